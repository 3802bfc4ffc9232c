"""Write the golden folders: run once, with the code whose results later versions have to keep.

    cd tests && PYTHONPATH=OLD_SRC python -m golden.make [CASE ...]
    cd tests && PYTHONPATH=../src python -m golden.make --trained CASE [...]

Leaves ``v1/CASE/expected.npz`` of every small case and, for those marked `saved`, ``v1/CASE/model``.  What is
there is left alone: the folders stay as they are for ever.  ``--trained`` leaves
``v1/CASE/trained.npz``: what training gives with the code at hand, for cases whose results were changed by
intent.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from golden.cases import CASES, Case, observe
from golden.folders import Arrays

FOLDER = Path(__file__).parent / "v1"
FORMAT_VERSION = 1
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
        version = json.loads((model / "header.json").read_text())["format_version"]
        if version != FORMAT_VERSION:
            raise RuntimeError(f"this code writes format {version}; {FOLDER} is for {FORMAT_VERSION}.")
        if case.go_on is not None:
            later = observe(case.run_on(case.load(model), data), data, Path(folder, "later"))
            values |= {f"later_{name}": value for name, value in expected_of(later).items()}
    target.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(target / "expected.npz", **values)


def write_trained(case: Case, target: Path) -> None:
    """Train one case and write what it gives, beside what version 1 gave."""
    data = case.make_data()
    with tempfile.TemporaryDirectory() as folder:
        found = observe(case.run(data), data, Path(folder, "model"), case.questions)
    np.savez_compressed(target / "trained.npz", **expected_of(found))


def main() -> None:
    """Write the cases that are missing, or anew what training gives."""
    if "--trained" in sys.argv[1:]:
        for name in sys.argv[2:]:
            write_trained(CASES[name], FOLDER / name)
        return
    for name in sys.argv[1:] or [name for name, case in CASES.items() if not case.large]:
        if (FOLDER / name / "expected.npz").exists():
            continue
        write(CASES[name], FOLDER / name)
        sys.stdout.write(f"{name}\n")


if __name__ == "__main__":
    main()
