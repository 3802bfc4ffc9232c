"""The parameters of ``ExtremeClassifier`` as options of ``extremax train``.

They are read from the source of the class, not from the class: importing it takes longer than ``--help`` may.  So an option has
the name, the default and the description that the class states, and a new parameter of the class is an option at once.
"""

from __future__ import annotations

import ast
import re
from dataclasses import field, fields, make_dataclass
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

# These have another spelling in every command, or none: see cli/options.py.
ELSEWHERE = frozenset({"random_state", "n_jobs", "verbose"})
_KINDS: dict[str, Any] = {"int": int, "float": float, "bool": bool, "str": str}


class Parameter(NamedTuple):
    """One parameter of the class as its source tells it."""

    name: str
    annotation: str
    default: Any
    described: str  # the type line of the docstring
    help: str


def read_parameters(class_name: str = "ExtremeClassifier", module: str = "extremax.estimator") -> list[Parameter]:
    """Parameters of ``__init__`` with defaults and descriptions, in order."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    owner = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name)
    init = next(node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    texts = _descriptions(ast.get_docstring(owner) or "")
    positional = init.args.args[1:]  # without self
    missing: list[ast.expr | None] = [None] * (len(positional) - len(init.args.defaults))
    defaults = [*missing, *init.args.defaults, *init.args.kw_defaults]
    found = []
    for argument, default in zip([*positional, *init.args.kwonlyargs], defaults, strict=True):
        annotation = "" if argument.annotation is None else ast.unparse(argument.annotation)
        value = None if default is None else ast.literal_eval(default)
        found.append(Parameter(argument.arg, annotation, value, *texts.get(argument.arg, ("", ""))))
    return found


def _descriptions(docstring: str) -> dict[str, tuple[str, str]]:
    """Name -> (type line, text) of a numpydoc Parameters section."""
    section = re.search(r"Parameters\n-+\n(.*?)(?:\n\w[^\n]*\n-{3,}|\Z)", docstring, flags=re.DOTALL)
    entries = re.findall(r"^(\w+) : ([^\n]*)\n((?:    [^\n]*\n?|\n)*)", section.group(1) if section else "", flags=re.MULTILINE)
    return {name: (kind, " ".join(text.split()).replace("`", "")) for name, kind, text in entries}


def _enumeration(title: str, names: list[str]) -> Any:
    make: Any = Enum
    return make(title, {name: name for name in names}, type=str)


def _option(parameter: Parameter) -> tuple[str, Any, Any]:
    kinds = [part for part in re.split(r"\s*\|\s*", parameter.annotation) if part in _KINDS]
    choices = re.search(r"\{(.*?)\}", parameter.described)
    kind: Any = _KINDS[kinds[0]] if len(kinds) == 1 else str
    if choices and kind is str and "float" not in parameter.described:
        kind = _enumeration(parameter.name, re.findall(r'"([^"]+)"', choices.group(1)))
    shown = "" if parameter.default is None else f"  [default: {parameter.default}]"
    help_text = parameter.help[:1].upper() + parameter.help[1:]
    option = typer.Option(help=help_text + shown, show_default=False)
    optional: Any = kind | None
    return parameter.name, Annotated[optional, option], field(default=None)


Parameters: Any = make_dataclass(
    "Parameters", [_option(parameter) for parameter in read_parameters() if parameter.name not in ELSEWHERE], frozen=True
)


def given(parameters: Any) -> dict[str, Any]:
    """What the user has set, as arguments of the class: its own defaults hold for the rest."""
    values = {entry.name: getattr(parameters, entry.name) for entry in fields(parameters)}
    return {name: _plain(value) for name, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):  # a parameter that takes a number or a word, such as regularization
        try:
            return float(value)
        except ValueError:
            return value
    return value
