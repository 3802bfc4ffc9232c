"""Train the golden cases with two source trees on this machine and compare every number bit for bit.

    python benchmarks/compare_commits.py OLD_SRC NEW_SRC

A source tree is a folder that holds the package ``extremax``, such as ``src`` of a checkout.  It compares

fit     the same case trained by both trees: predictions, probabilities, scores, weights, accumulators, losses
        and ``choices_``, after `fit` and after going on with it
read    the folder that the old tree saved, opened by the new one: predictions, and going on with the fit
stored  arrays of the old tree's folder that the new tree's folder holds under no name: these are listed, but
        are no failure, since a later format may store less

Ends with 1 if anything differs.  Compiled code is kept in a folder of its own for each state of the kernels,
because numba does not notice a change in a function that a cached one calls.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

TESTS = Path(__file__).resolve().parent.parent / "tests"
CACHES = Path(tempfile.gettempdir()) / "extremax-compare-commits"
REAL = {"icd10cm_one_thread": 1, "icd10cm_two_threads": 2}  # threads of the default on ICD-10-CM
_REAL_QUERY = 200
_KERNELS = re.compile(r"numba|_jit|\bkernels\b")


# -- one source tree, in a process of its own ----------------------------------------------------------------


def work(arguments: argparse.Namespace) -> None:
    """Fit the cases, or read the folders of another tree, and write what they give to `arguments.out`."""
    from golden.cases import CASES, Case

    known = CASES | {case.name: case for case in _real_cases(Case)}
    for name in arguments.cases:
        started = time.perf_counter()
        try:
            _work_on(known[name], Path(arguments.out, name), arguments)
        except Exception:  # the other cases are worth knowing too
            traceback.print_exc()
        print(f"  {name}: {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)


def _work_on(case: Any, out: Path, arguments: argparse.Namespace) -> None:
    from golden.cases import observe

    out.mkdir(parents=True)
    data = case.make_data()
    if arguments.read is None:
        estimator = case.run(data, arguments.n_jobs)
    else:
        estimator = case.load(Path(arguments.read, case.name, "model"))
    found = observe(estimator, data, out / "model", case.questions)
    if case.go_on is not None:
        later = observe(case.run_on(estimator, data), data, out / "later")
        found |= {f"later {name}": value for name, value in later.items()}
    np.savez(out / "found.npz", **found)


def _real_cases(case: Any) -> Iterator[Any]:
    """Make the cases on real texts: what `TextClassifier()` does with ICD-10-CM."""
    try:
        import simple_icd_10_cm  # noqa: F401
    except ImportError:
        return
    from extremax import ExtremeClassifier, TextClassifier
    from extremax.data import load_icd10cm, seen_classes
    from golden.cases import Data

    def make() -> Data:
        found = load_icd10cm()
        texts, codes = found.rows(found.train)
        test_texts, test_codes = found.rows(found.test)
        seen = np.flatnonzero(seen_classes(test_codes, codes))[:_REAL_QUERY]
        return Data(texts, codes, [test_texts[i] for i in seen], [test_codes[i] for i in seen])

    def fit(data: Data, n_jobs: int) -> Any:
        return TextClassifier(ExtremeClassifier(random_state=0, n_jobs=n_jobs)).fit(data.X, data.y)

    for name, threads in REAL.items():
        yield case(name, make, fit, n_jobs=threads, large=True)


# -- both ----------------------------------------------------------------------------------------------------


def run_tree(source: Path, out: Path, cases: list[str], n_jobs: int | None, read: Path | None = None) -> None:
    """Run the worker with one source tree; what it gives is in `out`."""
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", "--out", str(out)]
    command += ["--cases", *cases]
    command += [] if n_jobs is None else ["--jobs", str(n_jobs)]
    command += [] if read is None else ["--read", str(read)]
    cache = CACHES / _kernel_state(source)
    cache.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(source), "NUMBA_CACHE_DIR": str(cache)}
    check = [sys.executable, "-c", "import extremax; print(extremax.__file__)"]
    used = subprocess.run(check, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(used).is_relative_to(source):
        raise SystemExit(f"{source} is not what Python imports: it found {used}.")
    subprocess.run(command, env=environment, check=False)  # a case without a result is reported


def _kernel_state(source: Path) -> str:
    """Name a state of all files that have to do with compiled code, and where they are."""
    state = hashlib.sha256(str(source).encode())
    for path in sorted((source / "extremax").rglob("*.py")):
        content = path.read_bytes()
        if "kernels" in path.parts or _KERNELS.search(content.decode()):
            state.update(str(path).encode() + content)
    return state.hexdigest()[:16]


@dataclass(frozen=True)
class Difference:
    """How two values of one name differ."""

    name: str
    what: str


def compare(old: Arrays, new: Arrays) -> list[Difference]:
    """List the names whose values differ in any bit, or that one side lacks."""
    differences = []
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in old or name not in new:
            differences.append(Difference(name, f"only in {'the new' if name in new else 'the old'} tree"))
        elif name.endswith("choices"):
            differences += _compare_choices(name, json.loads(str(old[name])), json.loads(str(new[name])))
        elif (what := _difference(old[name], new[name])) is not None:
            differences.append(Difference(name, what))
    return differences


def _difference(old: NDArray[Any], new: NDArray[Any]) -> str | None:
    if old.dtype != new.dtype or old.shape != new.shape:
        return f"{old.dtype}{list(old.shape)} became {new.dtype}{list(new.shape)}"
    if old.tobytes() == new.tobytes():
        return None
    old, new = np.atleast_1d(old), np.atleast_1d(new)
    if old.dtype.kind != "f":
        changed = np.asarray(old != new)
        place = tuple(int(i) for i in np.argwhere(changed)[0])
        return f"{changed.sum()} of {old.size}, first at {list(place)}: {old[place]} became {new[place]}"
    bits = f"u{old.dtype.itemsize}"
    changed = np.ascontiguousarray(old).view(bits) != np.ascontiguousarray(new).view(bits)
    place = tuple(int(i) for i in np.argwhere(changed)[0])
    largest = float(np.nanmax(np.abs(old[changed].astype(np.float64) - new[changed].astype(np.float64))))
    return (
        f"{int(changed.sum())} of {old.size}, by at most {largest:.3g},"
        f" first at {list(place)}: {old[place]!r} became {new[place]!r}"
    )


def _compare_choices(name: str, old: dict[str, Any], new: dict[str, Any]) -> list[Difference]:
    differences = []
    for key, value in old.items():
        if key not in new:
            differences.append(Difference(f"{name}[{key}]", "only in the old tree"))
        elif new[key] != value:
            differences.append(Difference(f"{name}[{key}]", f"{value!r} became {new[key]!r}"))
    # The new tree may tell more than the old one did.
    return differences


def not_stored(old: Path, new: Path) -> list[str]:
    """Name the arrays of one folder that another holds under no name."""
    from golden.folders import read_folder

    held = {(a.dtype.str, a.shape, a.tobytes()) for a in read_folder(new).values()}
    return [name for name, a in read_folder(old).items() if (a.dtype.str, a.shape, a.tobytes()) not in held]


def load_found(out: Path, name: str) -> Arrays | None:
    """Read what the worker wrote about a case; None where it did not get so far."""
    path = out / name / "found.npz"
    if not path.exists():
        return None
    with np.load(path) as content:
        return dict(content)


def report(title: str, cases: list[str], old: Path, new: Path, *, stored: bool) -> int:
    """Print one line for each case, and return how many differ."""
    print(f"\n{title}")
    bad = 0
    for name in cases:
        before, after = load_found(old, name), load_found(new, name)
        if before is None or after is None:
            side = "old" if before is None else "new"
            print(f"  FAILED   {name}: the {side} tree gave nothing; its error is above")
            bad += 1
            continue
        differences = compare(before, after)
        bad += bool(differences)
        print(f"  {'DIFFERS' if differences else 'equal':8} {name}: {len(before)} values")
        for difference in differences[:1]:
            print(f"           {difference.name}: {difference.what}")
        if len(differences) > 1:
            print(f"           and {len(differences) - 1} more: {', '.join(d.name for d in differences[1:])}")
        if stored and (missing := not_stored(old / name / "model", new / name / "model")):
            print(f"           not stored by the new tree: {', '.join(missing)}")
    return bad


def parse() -> argparse.Namespace:
    """Read the command line, the worker's included."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("old", nargs="?", type=Path, metavar="OLD_SRC")
    parser.add_argument("new", nargs="?", type=Path, metavar="NEW_SRC")
    parser.add_argument(
        "--cases", nargs="+", help="only these; by default all, with ICD-10-CM if it is installed"
    )
    parser.add_argument("--small", action="store_true", help="leave out large cases and real data")
    parser.add_argument(
        "--jobs", dest="n_jobs", type=int, help="threads of both trees, whatever the cases say"
    )
    parser.add_argument("--new-jobs", type=int, help="threads of the new tree alone")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="write everything there; it must not exist"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    parser.add_argument("--read", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.worker and (arguments.old is None or arguments.new is None):
        parser.error("give the old and the new source tree.")
    return arguments


def chosen_cases(arguments: argparse.Namespace, source: Path) -> list[str]:
    """List the cases to run, by a process that imports the old tree."""
    if arguments.cases:
        return list(arguments.cases)
    code = "import sys; sys.path.insert(0, sys.argv[1]); from golden.cases import CASES; import json;"
    code += "print(json.dumps({name: case.large for name, case in CASES.items()}))"
    environment = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, "-c", code, str(TESTS)]
    large = json.loads(
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    )
    names = [name for name in large if not (arguments.small and large[name])]
    if not arguments.small:
        try:
            import simple_icd_10_cm  # noqa: F401

            names += REAL
        except ImportError:
            print("simple-icd-10-cm is not installed: no comparison on real texts")
    return names


def main() -> int:
    """Compare two source trees."""
    arguments = parse()
    sys.path.insert(0, str(TESTS))
    if arguments.worker:
        work(arguments)
        return 0
    old_source, new_source = arguments.old.resolve(), arguments.new.resolve()
    cases = chosen_cases(arguments, old_source)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if arguments.keep is None else arguments.keep
        old, new, read = folder / "old", folder / "new", folder / "read"
        for title, source, out, jobs, reads in (
            ("old tree", old_source, old, arguments.n_jobs, None),
            ("new tree", new_source, new, arguments.new_jobs or arguments.n_jobs, None),
            ("new tree, folders of the old one", new_source, read, arguments.n_jobs, old),
        ):
            print(f"{title}: {source}", file=sys.stderr, flush=True)
            run_tree(source, out, cases, jobs, reads)
        bad = report("fit: trained by both trees", cases, old, new, stored=True)
        bad += report("read: saved by the old tree, opened by the new one", cases, old, read, stored=False)
    print(f"\n{bad} of {2 * len(cases)} comparisons differ" if bad else "\nno difference")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
