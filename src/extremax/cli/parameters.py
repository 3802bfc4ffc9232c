"""The parameters of the classifier and of its solvers as options of ``extremax train``, from their table."""

from __future__ import annotations

import re
from dataclasses import field, make_dataclass
from enum import Enum
from typing import Annotated, Any

import typer

from extremax.cli.options import TRAINING, option_of
from extremax.params import PARAMETERS, SOLVER_PARAMETERS, Parameter

# These have another spelling in every command, or none: see cli/options.py.
ELSEWHERE = frozenset({"random_state", "n_jobs", "verbose"})
_SOLVERS = "Options of a solver"


def help_of(parameter: Parameter) -> str:
    """Return the help of a parameter in the words of the command line: names become options."""

    def spell(found: re.Match[str]) -> str:
        name = found.group(1)
        return option_of(name) if name in PARAMETERS or name == "eval_set" else name

    default = "" if parameter.default is None else f"  [default: {parameter.default}]"
    return re.sub(r"`+([^`]*)`+", spell, parameter.help) + default


def _option(parameter: Parameter) -> tuple[str, Any, Any]:
    kind: Any = parameter.kind
    metavar = None
    if parameter.choices and kind is str:
        make: Any = Enum
        kind = make(parameter.name, {name: name for name in parameter.choices}, type=str)
    elif parameter.choices:
        kind, metavar = str, f"[NUMBER|{'|'.join(parameter.choices)}]"
    panel = _SOLVERS if parameter.solvers else TRAINING
    option = typer.Option(help=help_of(parameter), metavar=metavar, rich_help_panel=panel)
    return parameter.name, Annotated[kind | None, option], field(default=None)


# A dataclass with a field per option, None where the user gives none.
Parameters: Any = make_dataclass(
    "Parameters",
    [_option(entry) for entry in PARAMETERS.values() if entry.name not in ELSEWHERE],
    frozen=True,
)


def given(parameters: Any) -> dict[str, Any]:
    """Return what the user has set, as arguments of `ExtremeClassifier`; its defaults hold for the rest."""
    from extremax.solvers.registry import make_solver

    chosen = {name: _plain(value) for name, value in vars(parameters).items() if value is not None}
    own = {name: chosen.pop(name) for name in SOLVER_PARAMETERS if name in chosen}
    return chosen | {"solver": make_solver(chosen.get("solver", "auto"), own, option_of)}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):  # of a parameter that takes a number or a word, such as tree_regularization
        try:
            return float(value)
        except ValueError:
            return value
    return value
