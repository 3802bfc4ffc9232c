"""The architecture as a test: which package may import which, and the rules a reader relies on.

Every test reports all faults of the package at once.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "extremax"

# The core from the bottom up: a part may import those above it in this list, and no others.  The longest
# matching name decides: "storage.models" is a part of its own.
CORE = (
    *("errors", "types", "tuned", "kernels", "examples", "validation", "params", "metrics"),
    *("runtime", "storage", "features", "tree", "calibration", "class_texts", "scores", "solvers"),
    *(
        "model",
        "storage.models",
        "storage.card",
        "explanation",
        "class_editing",
        "fit",
        "subsets",
        "hierarchy",
    ),
    *("classifier", "text", "evaluation", "data"),
)
# Which satellite may import which other one.  Nothing of the core imports a satellite, with one exception.
SATELLITES: dict[str, set[str]] = {
    "nn": set(),
    "dask": set(),
    "report": {"report.drift"},
    "report.drift": {"report"},
    "serve": {"report"},
    "experiments": {"report", "nn"},  # features learned by a network
    "cli": {"experiments", "report", "serve"},
    "__init__": {"report"},
    "__main__": {"cli"},
}
ALLOWED = {part: set(CORE[:place]) for place, part in enumerate(CORE)}
ALLOWED |= {part: others | set(CORE) for part, others in SATELLITES.items()}
ALLOWED["classifier"].add("report.drift")  # the method `monitor` of a classifier
# Compiled code, and the parts that make a fit: satellites that use no more than the public names do without.
WALLED = {"serve": {"kernels", "solvers", "scores", "fit", "tree"}, "report": {"kernels", "solvers", "fit"}}
ALLOWED |= {part: ALLOWED[part] - hidden for part, hidden in WALLED.items()}
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
UNSAFE = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve"}  # they run code from a file
ONLY_IN = {
    "torch": "nn",
    "numba": "kernels",
    "llvmlite": "kernels",
    "dask": "dask",
    "distributed": "dask",
}
LONGEST_CHAIN = 16


@dataclass(frozen=True)
class Source:
    path: str  # inside the package, with slashes
    text: str

    @property
    def module(self) -> str:
        name = self.path.removesuffix(".py").replace("/", ".")
        return name.removesuffix(".__init__") if name != "__init__" else name

    @cached_property
    def nodes(self) -> list[tuple[ast.AST, bool, bool]]:
        """What the rules are about: imports, calls and classes, from one walk; see `_walk`."""
        kinds = ast.Import | ast.ImportFrom | ast.Call | ast.ClassDef
        return [found for found in _walk(ast.parse(self.text, self.path)) if isinstance(found[0], kinds)]

    def calls(self, name: str) -> list[ast.Call]:
        """Return the calls of a function."""
        found = [node for node, _, _ in self.nodes if isinstance(node, ast.Call)]
        return [call for call in found if isinstance(call.func, ast.Name) and call.func.id == name]


@dataclass(frozen=True)
class Import:
    module: str  # "" for a relative import
    line: int
    top_level: bool
    for_types: bool

    @property
    def distribution(self) -> str:
        return self.module.split(".")[0]

    @property
    def own(self) -> str | None:
        """The module of this package that is imported, if any."""
        return self.module.removeprefix("extremax.") if self.module.startswith("extremax.") else None


def part_of(module: str) -> str:
    """Return the part of the package that a module belongs to."""
    parts = module.split(".")
    names = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next((name for name in names if name in ALLOWED), parts[0])


def _walk(tree: ast.Module) -> Iterator[tuple[ast.AST, bool, bool]]:
    """Yield every node with whether it runs on import, and whether it is for type checkers alone."""
    stack: list[tuple[ast.AST, bool, bool]] = [(tree, True, False)]
    while stack:
        node, on_import, for_types = stack.pop()
        yield node, on_import, for_types
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            on_import = False
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for_types = True
        stack.extend((child, on_import, for_types) for child in ast.iter_child_nodes(node))


def imports_of(source: Source) -> Iterator[Import]:
    for node, on_import, for_types in source.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, on_import, for_types)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield Import("", node.lineno, on_import, for_types)
            else:
                for alias in node.names:
                    yield Import(f"{node.module}.{alias.name}", node.lineno, on_import, for_types)


def import_faults(source: Source) -> list[str]:
    """Return every import of a file that the rules forbid, each as ``path:line: sentence``."""
    part, faults = part_of(source.module), []
    if part not in ALLOWED:
        return [
            f"{source.path}:1: {part!r} is not a part of the package; list it in tests/test_architecture.py"
        ]
    for used in imports_of(source):
        where = f"{source.path}:{used.line}"
        if not used.module:
            faults.append(f"{where}: relative import")
        if used.distribution in UNSAFE:
            faults.append(f"{where}: imports {used.distribution}, which runs code from files")
        only = ONLY_IN.get(used.distribution)
        if only is not None and part != only:
            faults.append(f"{where}: imports {used.distribution}, which only {only} may")
        if used.distribution == "matplotlib" and used.top_level and not part.startswith("experiments"):
            faults.append(f"{where}: imports matplotlib on import; do it inside the function that draws")
        if used.own is not None and not used.for_types:
            target = part_of(used.own)
            if target != part and target not in ALLOWED[part]:
                faults.append(f"{where}: {part} may not import {target}")
    return faults


def style_faults(source: Source) -> list[str]:
    """Return names that say nothing, and prints outside the command line."""
    faults = [
        f"{source.path}:1: {name!r} does not say what is in it"
        for name in source.path.removesuffix(".py").split("/")
        if name.strip("_") in VAGUE_NAMES
    ]
    if part_of(source.module) != "cli":
        faults += [f"{source.path}:{call.lineno}: print outside cli/" for call in source.calls("print")]
    return faults


def import_graph(sources: list[Source]) -> dict[str, set[str]]:
    """Return the modules that each module imports when it is imported."""
    modules = {source.module for source in sources}
    graph: dict[str, set[str]] = {}
    for source in sources:
        found = set()
        for used in imports_of(source):
            if used.own is None or used.for_types or not used.top_level:
                continue
            found.add(used.own if used.own in modules else used.own.rpartition(".")[0])
        graph[source.module] = {name for name in found if name in modules and name != source.module}
    return graph


def cycle_in(graph: dict[str, set[str]]) -> list[str] | None:
    """Return modules that import one another in a circle, if there are any."""
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str] | None:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return None
        for target in sorted(graph.get(module, ())):
            if (found := visit(target, [*path, module])) is not None:
                return found
        done.add(module)
        return None

    return next((found for module in sorted(graph) if (found := visit(module, [])) is not None), None)


def longest_chain(graph: dict[str, set[str]]) -> list[str]:
    """Return the longest chain of imports, of a graph without cycles."""
    known: dict[str, list[str]] = {}

    def chain(module: str) -> list[str]:
        if module not in known:
            known[module] = [module, *max((chain(target) for target in graph[module]), key=len, default=[])]
        return known[module]

    return max((chain(module) for module in graph), key=len)


SOURCES = [
    Source(path.relative_to(PACKAGE).as_posix(), path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))
]


def test_imports_keep_to_the_contract() -> None:
    assert [fault for source in SOURCES for fault in import_faults(source)] == []


def test_names_and_prints() -> None:
    assert [fault for source in SOURCES for fault in style_faults(source)] == []


def test_modules_import_without_cycles() -> None:
    graph = import_graph(SOURCES)
    assert "classifier" in graph["text"]
    assert cycle_in(graph) is None
    assert len(longest_chain(graph)) <= LONGEST_CHAIN, " > ".join(longest_chain(graph))


@pytest.mark.parametrize(
    ("path", "text", "sentence"),
    [
        ("metrics.py", "from extremax.tree import LabelTree", "metrics may not import tree"),
        ("tree/layout.py", "def f():\n    import extremax.classifier", "tree may not import classifier"),
        ("fit.py", "def f():\n    from extremax.nn import ExtremeSoftmax", "fit may not import nn"),
        ("serve/app.py", "from extremax.fit import fit_model", "serve may not import fit"),
        ("storage/folder.py", "from extremax.model import Model", "storage may not import model"),
        ("extra.py", "", "not a part of the package"),
        ("data/xmc.py", "from . import labels", "relative"),
        ("fit.py", "import torch", "torch, which only nn"),
        ("scores/topk.py", "from numba import njit", "numba, which only kernels"),
        ("metrics.py", "import matplotlib.pyplot as plt", "matplotlib on import"),
        ("storage/folder.py", "import pickle", "runs code"),
    ],
)
def test_forbidden_import_is_found(path: str, text: str, sentence: str) -> None:
    faults = import_faults(Source(path, text))
    assert len(faults) == 1
    assert sentence in faults[0]


_WATCHED_IMPORT = """
import sys
# pandas is imported by scikit-learn, where it is installed
heavy = {"torch", "matplotlib", "optuna", "typer", "rich", "dask", "distributed"}
asked = []
class Watch:  # sees attempts to import what is not installed, too
    def find_spec(self, name, path=None, target=None):
        if name in heavy:
            asked.append(name)
sys.meta_path.insert(0, Watch())
import extremax
# names may be imported when they are first used
[getattr(extremax, name) for name in extremax.__all__]
print(*asked)
"""


def test_import_is_light() -> None:
    command = [sys.executable, "-c", _WATCHED_IMPORT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
