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

# What each part of the package may import.  The longest matching name decides: "storage.models" is a part of
# its own.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "types": set(),
    "splits": set(),
    "kernels": set(),
    "examples": {"splits", "types"},
    "validation": {"errors", "examples", "types"},
    "params": {"validation"},
    "runtime": {"errors", "kernels", "types"},
    "storage": {"errors", "runtime"},
    "solvers.objectives": {"kernels"},
    "tuned": set(),
    "solvers.config": {"solvers.objectives", "tree", "tuned"},
    "metrics": {"types"},
    "features": {"kernels", "runtime", "storage", "tuned", "types"},
    "tree": {"kernels", "runtime", "storage", "tuned", "types", "validation"},
    "scores": {
        "calibration",
        "errors",
        "examples",
        "kernels",
        "metrics",
        "runtime",
        "storage",
        "tree",
        "tuned",
        "types",
    },
    "data": {"features", "kernels", "runtime", "splits", "types", "validation"},
    "calibration": {"examples", "runtime", "storage", "tuned", "types"},
    "solvers": {
        "examples",
        "features",
        "kernels",
        "model",
        "runtime",
        "scores",
        "solvers.config",
        "solvers.objectives",
        "storage",
        "tree",
        "tree.literal",
        "tuned",
        "types",
    },
    "reference": {"storage", "types"},
    "monitor": {"reference", "storage", "types"},
    "model": {
        "calibration",
        "errors",
        "examples",
        "features",
        "reference",
        "runtime",
        "scores",
        "solvers",
        "solvers.config",
        "solvers.objectives",
        "storage",
        "tree",
        "tuned",
        "types",
        "validation",
    },
    "class_editing": {
        "examples",
        "fit",
        "model",
        "runtime",
        "scores",
        "solvers",
        "solvers.config",
        "solvers.objectives",
        "tree",
        "types",
    },
    "model_card": {"model", "storage"},
    "fit": {
        "errors",
        "examples",
        "model",
        "reference",
        "runtime",
        "scores",
        "solvers",
        "solvers.config",
        "tuned",
        "types",
    },
    "storage.models": {"errors", "features", "model", "scores", "solvers", "storage", "types"},
    "classifier_protocol": {"examples", "model", "solvers", "types"},
    "explanation": {"features", "model", "types"},
    "classifier": {
        "class_editing",
        "errors",
        "examples",
        "explanation",
        "features",
        "fit",
        "model",
        "model_card",
        "monitor",
        "params",
        "reference",
        "runtime",
        "scores",
        "solvers",
        "solvers.config",
        "solvers.objectives",
        "solvers.paper_parameters",
        "storage",
        "storage.models",
        "tree",
        "tuned",
        "types",
        "validation",
    },
    "text": {
        "classifier",
        "examples",
        "explanation",
        "features",
        "model",
        "monitor",
        "runtime",
        "solvers",
        "storage",
        "types",
        "validation",
    },
    "loading": {"classifier", "storage", "storage.models", "text"},
    "evaluation": {
        "calibration",
        "classifier_protocol",
        "errors",
        "examples",
        "metrics",
        "model",
        "runtime",
        "types",
    },
    "report": {
        "calibration",
        "classifier_protocol",
        "evaluation",
        "examples",
        "loading",
        "metrics",
        "model",
        "runtime",
        "scores",
        "tree",
        "types",
    },
    "nn": {
        "calibration",
        "features",
        "kernels",
        "params",
        "runtime",
        "scores",
        "solvers",
        "tree",
        "tuned",
        "types",
    },
    "serve": {"errors", "loading", "report", "runtime"},
    "experiments": {
        "classifier",
        "data",
        "errors",
        "evaluation",
        "examples",
        "features",
        "loading",
        "model",
        "params",
        "runtime",
        "scores",
        "solvers",
        "solvers.objectives",
        "splits",
        "storage",
        "text",
        "tree",
        "types",
        "validation",
    },
    "dask": {
        "classifier",
        "data",
        "errors",
        "examples",
        "features",
        "fit",
        "kernels",
        "loading",
        "model",
        "model_card",
        "params",
        "runtime",
        "scores",
        "solvers",
        "solvers.config",
        "solvers.objectives",
        "storage",
        "storage.models",
        "tree",
        "tuned",
        "types",
        "validation",
    },
    "solvers.paper_parameters": set(),
    "tree.literal": {"kernels", "runtime", "tree", "types", "validation"},
    "experiments.paper.gradient_noise": {"examples", "kernels", "model", "solvers.objectives", "types"},
    "experiments.paper": {
        "classifier",
        "data",
        "examples",
        "experiments",
        "experiments.paper.gradient_noise",
        "features",
        "fit",
        "model",
        "runtime",
        "solvers",
        "solvers.config",
        "solvers.objectives",
        "solvers.paper_parameters",
        "tree",
        "tree.literal",
        "tuned",
        "types",
        "validation",
    },
    "cli": {
        "classifier",
        "data",
        "errors",
        "evaluation",
        "experiments",
        "experiments.paper",
        "features",
        "loading",
        "model",
        "params",
        "report",
        "runtime",
        "serve",
        "solvers",
        "storage",
        "text",
        "types",
    },
    "__init__": {"classifier", "evaluation", "loading", "report", "text", "tree"},
    "__main__": {"cli"},
}
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
UNSAFE = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve"}  # they run code from a file
ONLY_IN = {
    "torch": "nn",
    "numba": "kernels",
    "llvmlite": "kernels",
    "dask": "dask",
    "distributed": "dask",
}
# Questions for the type of what a user passes: a check of input.
INPUT_CHECKS = {
    ("tree/noise.py", "Noise"),
    ("params.py", "Choice"),
    ("params.py", "Interval"),
    ("text.py", "ExtremeClassifier"),
    ("solvers/loop.py", "Watcher"),
}
LONGEST_CHAIN = 19


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


def isinstance_faults(source: Source, own_classes: set[str]) -> list[str]:
    """Return every question for the type of an object of our own, which a method should answer."""
    faults = []
    if part_of(source.module).startswith("storage") or part_of(source.module) == "validation":
        return []
    for call in source.calls("isinstance"):
        asked = {name.id for name in ast.walk(call.args[1]) if isinstance(name, ast.Name)}
        for name in sorted(name for name in asked & own_classes if (source.path, name) not in INPUT_CHECKS):
            faults.append(f"{source.path}:{call.lineno}: isinstance(..., {name})")
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


def test_no_questions_for_own_types() -> None:
    nodes = [node for source in SOURCES for node, _, _ in source.nodes]
    own = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    assert {"Model", "Noise", "TreeNoise"} <= own
    assert [fault for source in SOURCES for fault in isinstance_faults(source, own)] == []


def test_modules_import_without_cycles() -> None:
    graph = import_graph(SOURCES)
    assert "classifier" in graph["loading"]
    assert cycle_in(graph) is None
    assert len(longest_chain(graph)) <= LONGEST_CHAIN, " > ".join(longest_chain(graph))


@pytest.mark.parametrize(
    ("path", "text", "sentence"),
    [
        ("metrics.py", "from extremax.tree import LabelTree", "metrics may not import tree"),
        ("metrics.py", "from extremax import tree", "metrics may not import tree"),
        ("tree/layout.py", "def f():\n    import extremax.classifier", "tree may not import classifier"),
        (
            "validation/labels.py",
            "from extremax.kernels.math import exp32",
            "validation may not import kernels",
        ),
        ("storage/folder.py", "from extremax.model import Model", "storage may not import model"),
        ("extra.py", "", "not a part of the package"),
        ("data/xmc.py", "from . import splits", "relative"),
        ("fit.py", "import torch", "torch, which only nn"),
        ("fit.py", "def f():\n    from torch import nn", "torch, which only nn"),
        ("scores/exact.py", "from numba import njit", "numba, which only kernels"),
        ("metrics.py", "import matplotlib.pyplot as plt", "matplotlib on import"),
        ("storage/folder.py", "import pickle", "runs code"),
    ],
)
def test_forbidden_import_is_found(path: str, text: str, sentence: str) -> None:
    faults = import_faults(Source(path, text))
    assert len(faults) == 1
    assert sentence in faults[0]


def test_other_faults_are_found() -> None:
    assert "print outside" in style_faults(Source("tree/noise.py", "def f():\n    print(1)"))[0]
    assert "does not say" in style_faults(Source("data/helpers.py", ""))[0]
    text = "def f(x):\n    return isinstance(x, (int, Model))"
    assert "isinstance(..., Model)" in isinstance_faults(Source("fit.py", text), {"Model"})[0]
    assert isinstance_faults(Source("storage/models.py", text), {"Model"}) == []


def test_allowed_imports_pass() -> None:
    assert (
        import_faults(
            Source("tree/noise.py", "from extremax.tree import LabelTree\nfrom extremax.kernels import rng")
        )
        == []
    )
    assert import_faults(Source("storage/models.py", "from extremax.model import Model")) == []
    assert import_faults(Source("nn/head.py", "import torch\nfrom extremax.tree import LabelTree")) == []
    assert import_faults(Source("metrics.py", "def plot():\n    import matplotlib")) == []
    types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from extremax.model import Model"
    assert import_faults(Source("metrics.py", types)) == []
    assert style_faults(Source("cli/app.py", "print(1)")) == []


def test_cycle_and_chain_are_found() -> None:
    assert cycle_in({"noise": {"tree"}, "tree": {"noise"}}) == ["noise", "tree", "noise"]
    assert longest_chain({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == ["a", "b", "c"]


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
import MODULE
# names may be imported when they are first used
[getattr(MODULE, name) for name in getattr(MODULE, "__all__", ())]
print(*asked)
"""


def _heavy_imports(module: str) -> list[str]:
    code = _WATCHED_IMPORT.replace("MODULE", module)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()


def test_import_is_light() -> None:
    assert _heavy_imports("extremax") == []


def test_import_watch_rejects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").touch()  # quicker than the real one
    (tmp_path / "heavy_module.py").write_text("try:\n    import torch\nexcept ImportError:\n    pass\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert _heavy_imports("heavy_module") == ["torch"]
