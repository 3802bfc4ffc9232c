"""The parameters of ``ExtremeClassifier`` as options of ``extremax train``, from the table of parameters."""

from __future__ import annotations

import re
from dataclasses import field, fields, make_dataclass
from enum import Enum
from typing import Annotated, Any

import typer

from extremax.cli.options import option_of
from extremax.params import PARAMETERS, RENAMED, Parameter, rename_parameters

# These have another spelling in every command, or none: see cli/options.py.
ELSEWHERE = frozenset({"random_state", "n_jobs", "verbose"})


def help_of(parameter: Parameter) -> str:
    """Return the help of a parameter in the words of the command line: names become options."""

    def spell(found: re.Match[str]) -> str:
        name = found.group(1)
        return option_of(name) if name in PARAMETERS or name == "eval_set" else name

    default = "" if parameter.default is None else f"  [default: {parameter.default}]"
    return re.sub(r"`([^`]*)`", spell, parameter.help) + default


def _kind_of(parameter: Parameter) -> tuple[Any, str | None]:
    """Return the type that Typer parses an option as, and the name of its value in the help."""
    if not parameter.choices:
        return parameter.kind, None
    if parameter.kind is str:
        make: Any = Enum
        return make(parameter.name, {name: name for name in parameter.choices}, type=str), None
    return str, f"[NUMBER|{'|'.join(parameter.choices)}]"


def _option(parameter: Parameter) -> tuple[str, Any, Any]:
    kind, metavar = _kind_of(parameter)
    option = typer.Option(help=help_of(parameter), show_default=False, metavar=metavar)
    return parameter.name, Annotated[kind | None, option], field(default=None)


def _old_option(old: str, new: str) -> tuple[str, Any, Any]:
    kind, _ = _kind_of(PARAMETERS[new])
    return old, Annotated[kind | None, typer.Option(hidden=True)], field(default=None)


# A dataclass with a field per option, None where the user gives none; hidden ones for the old names.
Parameters: Any = make_dataclass(
    "Parameters",
    [
        *(_option(entry) for entry in PARAMETERS.values() if entry.name not in ELSEWHERE),
        *(_old_option(old, new) for old, new in RENAMED.items()),
    ],
    frozen=True,
)


def given(parameters: Any) -> dict[str, Any]:
    """Return what the user has set, as arguments of the class; its own defaults hold for the rest."""
    values = {entry.name: getattr(parameters, entry.name) for entry in fields(parameters)}
    chosen = {name: _plain(value) for name, value in values.items() if value is not None}
    for old, new in RENAMED.items():
        if old in chosen and new in chosen:
            raise typer.BadParameter(
                f"{option_of(old)} is the old name of {option_of(new)}; give one of them, not both."
            )
    return rename_parameters(chosen, option_of)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):  # of a parameter that takes a number or a word, such as tree_regularization
        try:
            return float(value)
        except ValueError:
            return value
    return value
