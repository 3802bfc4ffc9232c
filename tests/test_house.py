"""The layout of the package as a test: who may import whom, and the rules a reader relies on. There are no
exemptions.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "extremax"

# From the ground up.  A room is a module or a subpackage; it imports from lower floors, and from its own
# floor without a cycle.
FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"_jit", "config", "parallel", "progress", "validation"}),
    frozenset({"objectives", "metrics", "data", "kernels"}),
    frozenset(
        {
            "strength",
            "tree",
            "noise",
            "linear",
            "prior",
            "whitening",
            "shared",
            "predict",
            "theory",
            "persist",
        }
    ),
    frozenset({"model", "fitting", "labelled_rows", "settings", "training"}),
    frozenset({"estimator", "evaluation", "loading", "text_classifier", "nn", "experiments", "cli"}),
    frozenset({"__init__", "__main__"}),
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
MAX_LINES = 500
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "base", "common", "misc"}
# they run code from a file
UNSAFE = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
ONLY_IN = {"torch": "nn", "numba": "_jit", "llvmlite": "_jit"}


@dataclass(frozen=True)
class Source:
    path: str  # inside the package, with slashes
    text: str

    @property
    def room(self) -> str:
        return self.path.split("/")[0].removesuffix(".py")

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)


@dataclass(frozen=True)
class Import:
    module: str  # "" for a relative import
    line: int
    top_level: bool

    @property
    def distribution(self) -> str:
        return self.module.split(".")[0]

    @property
    def room(self) -> str | None:
        """The room of this package that is imported, if any; the package itself counts as the roof."""
        parts = self.module.split(".")
        if parts[0] != "extremax":
            return None
        return parts[1] if len(parts) > 1 else "__init__"


def _statements_run_on_import(tree: ast.Module) -> set[int]:
    found: set[int] = set()
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        found.add(id(node))
        stack.extend(ast.iter_child_nodes(node))
    return found


def imports_of(source: Source) -> Iterator[Import]:
    tree = source.tree
    on_import = _statements_run_on_import(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, id(node) in on_import)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield Import("", node.lineno, id(node) in on_import)
            elif (
                node.module == "extremax"
            ):  # `from extremax import tree` names a room, `... import LabelTree` the roof
                for alias in node.names:
                    name = f"extremax.{alias.name}" if alias.name in FLOOR_OF else "extremax"
                    yield Import(name, node.lineno, id(node) in on_import)
            else:
                yield Import(node.module or "", node.lineno, id(node) in on_import)


def faults_of(source: Source) -> list[str]:
    """Every broken rule of one file, each as ``path:line: sentence``."""
    if source.room not in FLOOR_OF:
        return [f"{source.path}:1: not a room of the house; list it in tests/test_house.py on its floor"]
    floor = FLOOR_OF[source.room]
    faults: list[str] = []

    def fault(line: int, sentence: str) -> None:
        faults.append(f"{source.path}:{line}: {sentence}")

    for name in source.path.removesuffix(".py").split("/"):
        if name.strip("_") in VAGUE_NAMES:
            fault(1, f"{name!r} does not say what lives there")
    n_lines = source.text.count("\n")
    if n_lines > MAX_LINES:
        fault(n_lines, f"{n_lines} lines; at most {MAX_LINES}")
    for used in imports_of(source):
        if not used.module:
            fault(used.line, "relative import")
        if used.distribution in UNSAFE:
            fault(used.line, f"imports {used.distribution}, which runs code from files")
        only_in = ONLY_IN.get(used.distribution)
        if only_in is not None and source.room != only_in:
            fault(used.line, f"imports {used.distribution}, which only {only_in} may")
        if used.distribution == "matplotlib" and used.top_level and source.room != "experiments":
            fault(used.line, "imports matplotlib on import; do it inside the function that draws")
        target = used.room
        if target is None or (target == source.room and "/" in source.path):
            continue
        if target not in FLOOR_OF:
            fault(used.line, f"imports {used.module}, which is not a room of the house")
        elif FLOOR_OF[target] > floor:
            fault(used.line, f"imports upward: {used.module}")
        elif floor == 0:
            fault(used.line, f"the ground floor imports nothing of the package, not even {used.module}")
    if source.room != "cli":
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                fault(node.lineno, "print outside cli/")
    return faults


def cycle_in(sources: list[Source]) -> list[str] | None:
    """Rooms that import one another in a circle, if there are any."""
    graph: dict[str, set[str]] = {}
    for source in sources:
        targets = {used.room for used in imports_of(source)} - {None, source.room}
        graph.setdefault(source.room, set()).update(t for t in targets if t is not None)
    done: set[str] = set()

    def visit(room: str, path: list[str]) -> list[str] | None:
        if room in path:
            return [*path[path.index(room) :], room]
        if room in done:
            return None
        for target in sorted(graph.get(room, ())):
            if (found := visit(target, [*path, room])) is not None:
                return found
        done.add(room)
        return None

    return next((found for room in sorted(graph) if (found := visit(room, [])) is not None), None)


SOURCES = [
    Source(path.relative_to(PACKAGE).as_posix(), path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.path)
def test_file_keeps_the_rules(source: Source) -> None:
    assert faults_of(source) == []


def test_rooms_import_without_cycles() -> None:
    assert {"_jit", "parallel"} <= {source.room for source in SOURCES}  # the files were found
    assert cycle_in(SOURCES) is None


@pytest.mark.parametrize(
    ("path", "text", "sentence"),
    [
        ("metrics.py", "from extremax.tree import LabelTree", "imports upward"),
        ("metrics.py", "from extremax import tree", "imports upward"),
        ("metrics.py", "import extremax.estimator", "imports upward"),
        ("tree.py", "def f():\n    from extremax import ExtremeClassifier", "imports upward"),
        ("tree.py", "from extremax.unknown import f", "not a room"),
        ("validation.py", "from extremax._jit import njit", "ground floor"),
        ("extra.py", "", "not a room"),
        ("data/helpers.py", "", "does not say"),
        ("data/xmc.py", "from . import splits", "relative"),
        ("tree.py", "from .noise import Noise", "relative"),
        ("linear.py", "import torch", "torch, which only nn"),
        ("linear.py", "def f():\n    from torch import nn", "torch, which only nn"),
        ("kernels/topk.py", "from numba import njit", "numba, which only _jit"),
        ("theory.py", "import matplotlib.pyplot as plt", "matplotlib on import"),
        ("theory.py", "try:\n    import matplotlib\nexcept ImportError:\n    pass", "matplotlib on import"),
        ("persist.py", "import pickle", "runs code"),
        ("noise.py", "def f():\n    print(1)", "print outside"),
        ("noise.py", "\n" * (MAX_LINES + 1), "lines; at most"),
    ],
)
def test_broken_rule_rejects(path: str, text: str, sentence: str) -> None:
    faults = faults_of(Source(path, text))
    assert len(faults) == 1
    assert sentence in faults[0]


def test_allowed_imports_pass() -> None:
    assert (
        faults_of(Source("noise.py", "from extremax.tree import LabelTree\nfrom extremax._jit import njit"))
        == []
    )
    assert faults_of(Source("data/xmc.py", "from extremax.splits import split")) == []
    assert faults_of(Source("nn/head.py", "import torch\nfrom extremax.tree import LabelTree")) == []
    assert faults_of(Source("theory.py", "def plot():\n    import matplotlib")) == []
    assert faults_of(Source("cli/app.py", "print(1)")) == []


def test_cycle_rejects() -> None:
    sources = [
        Source("tree.py", "from extremax.noise import Noise"),
        Source("noise.py", "def f():\n    import extremax.tree"),
    ]
    assert cycle_in(sources) == ["noise", "tree", "noise"]


_WATCHED_IMPORT = """
import sys
heavy = {"torch", "matplotlib", "optuna", "typer", "rich"}  # pandas is imported by scikit-learn, where it is installed
asked = []
class Watch:  # sees attempts to import what is not installed, too
    def find_spec(self, name, path=None, target=None):
        if name in heavy:
            asked.append(name)
sys.meta_path.insert(0, Watch())
import MODULE
[getattr(MODULE, name) for name in getattr(MODULE, "__all__", ())]  # names may be imported when they are first used
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
    (tmp_path / "heavy_module.py").write_text("try:\n    import torch\nexcept ImportError:\n    pass\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert _heavy_imports("heavy_module") == ["torch"]
