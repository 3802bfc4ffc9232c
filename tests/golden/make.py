"""Write the golden folders, with the code whose results later versions have to keep.

    cd tests && PYTHONPATH=../src python -m golden.make [CASE ...]
    cd tests && PYTHONPATH=../src python -m golden.make --trained CASE ...

Writes ``v2/CASE/expected.npz`` for each small case and, for those marked `saved`, ``v2/CASE/model``. Existing
folders are left alone.  ``--trained`` writes ``v2/CASE/trained.npz``: results of training with this code, for
cases whose training has changed on purpose.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from golden.cases import CASES, Case, observe
from golden.folders import Arrays

FOLDER = Path(__file__).parent / "v2"
_MOST_CLASSES = 200  # up to which all log-probabilities and weights are kept
_EXPECTED = (
    "classes", "predict", "exact_labels", "exact_log_prob", "beam_labels", "beam_log_prob", "beam_6_labels",
    "beam_6_log_prob", "report", "report_names", "history_loss", "history_valid_log_likelihood", "choices",
    "answers",
)  # fmt: skip
_EXPECTED_IF_SMALL = ("log_prob", "weights", "biases")


def expected_of(found: Arrays) -> Arrays:
    """Choose what is worth keeping of an observation."""
    names = _EXPECTED + (_EXPECTED_IF_SMALL if len(found["classes"]) <= _MOST_CLASSES else ())
    return {name: found[name] for name in names if name in found}


def write(case: Case, target: Path) -> None:
    """Train one case and write its folder and its expected values."""
    data = case.make_data()
    estimator = case.run(data)
    with tempfile.TemporaryDirectory() as folder:
        model = target / "model" if case.saved else Path(folder, "model")
        values = expected_of(observe(estimator, data, model, case.questions))
        if case.go_on is not None:
            later = observe(case.run_on(case.load(model), data), data, Path(folder, "later"))
            values |= {f"later_{name}": value for name, value in expected_of(later).items()}
    target.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(target / "expected.npz", **values)


def write_trained(case: Case, target: Path) -> None:
    """Train one case, go on with its stored folder, and write the results of both."""
    data = case.make_data()
    with tempfile.TemporaryDirectory() as folder:
        values = expected_of(observe(case.run(data), data, Path(folder, "model"), case.questions))
        if case.go_on is not None:
            model = target / "model" if case.saved else Path(folder, "model")
            later = observe(case.run_on(case.load(model), data), data, Path(folder, "later"))
            values |= {f"later_{name}": value for name, value in expected_of(later).items()}
    np.savez_compressed(target / "trained.npz", **values)


def main() -> None:
    """Write the cases that are missing, or the new results of training."""
    if sys.argv[1:2] == ["--trained"]:
        for name in sys.argv[2:]:
            write_trained(CASES[name], FOLDER / name)
        return
    for name in sys.argv[1:] or [name for name, case in CASES.items() if not case.large]:
        if not (FOLDER / name / "expected.npz").exists():
            write(CASES[name], FOLDER / name)
            sys.stdout.write(f"{name}\n")


if __name__ == "__main__":
    main()
