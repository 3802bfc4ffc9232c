"""The parameters of ``ExtremeClassifier`` as options of ``extremax train``.

They are read from the source of the class, not from the class: importing it takes longer than ``--help`` may.
So an option has the name, the default and the description that the class states, and a new parameter of the
class is an option at once. What an option may be is read from the source of the table that checks it."""

from __future__ import annotations

import ast
import re
from dataclasses import field, fields, make_dataclass
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from extremax.cli.options import option_of

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


def _source(module: str) -> ast.Module:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def read_parameters(
    class_name: str = "ExtremeClassifier", module: str = "extremax.estimator"
) -> list[Parameter]:
    """Parameters of ``__init__`` with defaults and descriptions, in order."""
    owner = next(
        node for node in _source(module).body if isinstance(node, ast.ClassDef) and node.name == class_name
    )
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
    entries = re.findall(
        r"^(\w+) : ([^\n]*)\n((?:    [^\n]*\n?|\n)*)", section.group(1) if section else "", flags=re.MULTILINE
    )
    names = {name for name, _, _ in entries} | {"eval_set"}

    def spelled(found: re.Match[str]) -> str:
        return option_of(found.group(1)) if found.group(1) in names else found.group(1)

    return {
        name: (kind, re.sub(r"`([^`]*)`", spelled, " ".join(text.split()))) for name, kind, text in entries
    }


def read_choices(
    module: str = "extremax.parameters", table: str = "CONSTRAINTS"
) -> dict[str, tuple[list[str], bool]]:
    """Parameters that take words: the words, and whether they are all that is taken on a command line."""
    tree = _source(module)
    constraints = _assigned(tree, table)
    assert isinstance(constraints, ast.Dict)
    found = {}
    for key, entry in zip(constraints.keys, constraints.values, strict=True):
        assert isinstance(key, ast.Constant)
        assert isinstance(entry, ast.List)
        calls = [
            node for node in entry.elts if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        ]
        kinds = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
        words = [
            word
            for call in calls
            if ast.unparse(call.func) == "Choice"
            for word in _words(call.args[0], tree)
        ]
        if words:
            found[str(key.value)] = words, "Interval" not in kinds
    return found


def _assigned(tree: ast.Module, name: str) -> ast.expr | None:
    """What a module assigns to a name."""
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return node.value
    return None


def _words(node: ast.expr, tree: ast.Module) -> list[str]:
    """Words that an expression stands for: a constant, a collection of them, or a name of this or of an
    imported module.
    """
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.Starred):
        return _words(node.value, tree)
    if isinstance(node, ast.Dict):
        return [word for key in node.keys if key is not None for word in _words(key, tree)]
    if isinstance(node, ast.Tuple | ast.List):
        return [word for element in node.elts for word in _words(element, tree)]
    assert isinstance(node, ast.Name)
    value = _assigned(tree, node.id)
    if value is not None:
        return _words(value, tree)
    imports = [
        line
        for line in tree.body
        if isinstance(line, ast.ImportFrom) and node.id in {alias.name for alias in line.names}
    ]
    assert imports[0].module is not None
    return _words(node, _source(imports[0].module))


def _enumeration(title: str, names: list[str]) -> Any:
    make: Any = Enum
    return make(title, {name: name for name in names}, type=str)


def _option(parameter: Parameter, choices: dict[str, tuple[list[str], bool]]) -> tuple[str, Any, Any]:
    kinds = [part for part in re.split(r"\s*\|\s*", parameter.annotation) if part in _KINDS]
    kind: Any = _KINDS[kinds[0]] if len(kinds) == 1 else str
    metavar = None
    if parameter.name in choices:
        words, only_words = choices[parameter.name]
        kind = _enumeration(parameter.name, words) if only_words else str
        metavar = None if only_words else f"[NUMBER|{'|'.join(words)}]"
    shown = "" if parameter.default is None else f"  [default: {parameter.default}]"
    help_text = parameter.help[:1].upper() + parameter.help[1:]
    option = typer.Option(help=help_text + shown, show_default=False, metavar=metavar)
    optional: Any = kind | None
    return parameter.name, Annotated[optional, option], field(default=None)


_choices = read_choices()
Parameters: Any = make_dataclass(
    "Parameters",
    [_option(entry, _choices) for entry in read_parameters() if entry.name not in ELSEWHERE],
    frozen=True,
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
