"""Golden models: folders of format 2 load, predict, train and go on as they did.

Tolerances: prediction is a float32 product of given weights, and 1e-5 is what another order of sums may
change. Training carries such differences along. With the matrix kernels that OpenBLAS has for other
processors, and with kernels compiled for a Nehalem, log-probabilities moved by at most 8e-5, weights by 4e-6
of their length and losses by 6e-7; no label or choice changed. The limits are about ten times that.

The linear weights of sparse features end at a tolerance, not at the optimum, so that rounding of another
processor moves single log-probabilities of these tiny sets by 0.1 and more: there, accuracy and likelihood
are compared. That nothing depends on the threads is tested elsewhere, bit for bit.
"""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from extremax import load_model
from golden.cases import CASES, Case, Data, comparable_choices, observe
from golden.folders import Arrays

FOLDER = Path(__file__).parent / "golden" / "v2"
SMALL = [case for case in CASES.values() if not case.large]
SAVED = [case for case in SMALL if case.saved]
GOING_ON = [case for case in SAVED if case.go_on is not None]
RESUMED = [case for case in SMALL if case.whole is not None]

SAME_WEIGHTS = 1e-5  # in log-probabilities, of the same weights
TRAINED = 1e-3  # in log-probabilities, after training
TRAINED_WEIGHTS = 5e-5  # of the length of all weights
TRAINED_LOSS = 5e-6
SAME_ANSWERS = 0.9  # of the best classes of rows, after training on texts ...
TEXT_LIKELIHOOD = 0.1  # ... and nats per row that may be lost
SEARCHES = ("exact", "beam", "beam_6")
# Figures of predicted labels, which are chosen by another rule since the folders were made.
CHOSEN_LABELS = {"micro_f1", "macro_f1"}


@cache
def data_of(name: str) -> Data:
    return CASES[name].make_data()


@cache
def fitted(name: str) -> Any:
    return CASES[name].run(data_of(name))


def expected_of(case: Case, *, later: bool = False, trained: bool = False) -> Arrays:
    """Return the stored results of a case; `later` ones are those after going on with it.

    `trained` results are those of later code where training has changed on purpose since the folder was made.
    """
    changed = FOLDER / case.name / "trained.npz"
    with np.load(changed if trained and changed.exists() else changed.with_name("expected.npz")) as content:
        values = dict(content)
    found = {name: value for name, value in values.items() if name.startswith("later_") == later}
    return {name.removeprefix("later_"): value for name, value in found.items()}


def clear_places(log_prob: NDArray[np.float32], tolerance: float) -> NDArray[np.bool_]:
    """Mark the places of a ranking whose neighbours are too far away to change places with them."""
    apart = -np.diff(log_prob, axis=1) > 2 * tolerance
    ends = (
        np.ones((len(log_prob), 1), bool),
        np.zeros((len(log_prob), 1), bool),
    )  # who follows the last is unknown
    return np.hstack([ends[0], apart]) & np.hstack([apart, ends[1]])


def check_predictions(found: Arrays, expected: Arrays, tolerance: float) -> None:
    assert found["classes"].tolist() == expected["classes"].tolist()
    for search in SEARCHES:
        if f"{search}_labels" in expected:
            check_ranking(found, search, expected, tolerance)
    if "log_prob" in expected:
        np.testing.assert_allclose(found["log_prob"], expected["log_prob"], rtol=0, atol=tolerance)
    report = dict(zip(found["report_names"].tolist(), found["report"], strict=True))
    stored = dict(zip(expected["report_names"].tolist(), expected["report"], strict=True))
    for name in stored.keys() - CHOSEN_LABELS:
        np.testing.assert_allclose(report[name], stored[name], rtol=0, atol=tolerance, err_msg=name)
    if "answers" in expected:
        assert found["answers"].tolist() == expected["answers"].tolist()


def check_ranking(found: Arrays, search: str, expected: Arrays, tolerance: float) -> None:
    log_prob, labels = (expected[f"{search}_{of}"] for of in ("log_prob", "labels"))
    np.testing.assert_allclose(found[f"{search}_log_prob"], log_prob, rtol=0, atol=tolerance)
    clear = clear_places(log_prob, tolerance)
    assert clear.mean() > 0.5  # so that labels are compared at all
    assert np.array_equal(found[f"{search}_labels"][clear], labels[clear])


def check_text_training(found: Arrays, expected: Arrays) -> None:
    assert found["classes"].tolist() == expected["classes"].tolist()
    same = found["exact_labels"][:, 0] == expected["exact_labels"][:, 0]
    assert same.mean() >= SAME_ANSWERS
    report = dict(zip(found["report_names"].tolist(), found["report"], strict=True))
    stored = dict(zip(expected["report_names"].tolist(), expected["report"], strict=True))
    assert report["log_likelihood"] > stored["log_likelihood"] - TEXT_LIKELIHOOD


def check_training(found: Arrays, expected: Arrays) -> None:
    if json.loads(str(expected["choices"])).get("solver") == "sparse_softmax":
        check_text_training(found, expected)
        return
    check_predictions(found, expected, TRAINED)
    for name in ("weights", "biases"):
        if name in expected:
            apart = np.linalg.norm(found[name] - expected[name])
            assert apart <= TRAINED_WEIGHTS * np.linalg.norm(expected[name]), name
    for name in ("history_loss", "history_valid_log_likelihood"):
        if name in expected:
            np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=TRAINED_LOSS)
    check_choices(found, expected, rtol=1e-4)


def check_choices(found: Arrays, expected: Arrays, *, rtol: float) -> None:
    now = json.loads(str(found["choices"]))
    for key, value in comparable_choices(json.loads(str(expected["choices"]))).items():
        if isinstance(value, float):
            assert now[key] == pytest.approx(value, rel=rtol, abs=0.0), key
        else:
            assert now[key] == value, key


def check_same_bits(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name, strict=True)


def by_name(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", SAVED, ids=by_name)
def test_stored_folder_predicts_as_it_did(case: Case, tmp_path: Path) -> None:
    model = case.load(FOLDER / case.name / "model")
    expected = expected_of(case)
    found = observe(model, data_of(case.name), tmp_path / "again", case.questions)
    check_predictions(found, expected, SAME_WEIGHTS)
    check_choices(found, expected, rtol=0.0)
    np.testing.assert_array_equal(found["history_loss"], expected["history_loss"])
    for name in ("weights", "biases"):
        if name in expected:
            np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("case", SAVED, ids=by_name)
def test_folder_saved_again_gives_the_same_bits(case: Case, tmp_path: Path) -> None:
    data = data_of(case.name)
    first = observe(case.load(FOLDER / case.name / "model"), data, tmp_path / "first", case.questions)
    second = observe(case.load(tmp_path / "first"), data, tmp_path / "second", case.questions)
    check_same_bits(second, first)


@pytest.mark.parametrize("case", GOING_ON, ids=by_name)
def test_stored_folder_goes_on_as_it_did(case: Case, tmp_path: Path) -> None:
    data = data_of(case.name)
    model = case.run_on(case.load(FOLDER / case.name / "model"), data)
    check_training(observe(model, data, tmp_path / "later"), expected_of(case, later=True, trained=True))


@pytest.mark.parametrize("case", SMALL, ids=by_name)
def test_training_gives_the_stored_results(case: Case, tmp_path: Path) -> None:
    found = observe(fitted(case.name), data_of(case.name), tmp_path / "model", case.questions)
    check_training(found, expected_of(case, trained=True))


@pytest.mark.parametrize("case", RESUMED, ids=by_name)
def test_resumed_fit_is_the_whole_fit(case: Case, tmp_path: Path) -> None:
    data = data_of(case.name)
    cut_short = fitted(case.name)
    cut_short.save(tmp_path / "cut short")
    whole = observe(case.run_whole(data), data, tmp_path / "whole")
    loaded = case.run_on(case.load(tmp_path / "cut short"), data)
    check_same_bits(observe(loaded, data, tmp_path / "loaded"), whole)
    again = case.run_on(case.run(data), data)
    check_same_bits(observe(again, data, tmp_path / "again"), whole)


def test_folders_are_complete_and_of_formats_2_and_3() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {case.name for case in SMALL}
    assert {path.parent.name for path in FOLDER.glob("*/model")} == {case.name for case in SAVED}
    for case in SAVED:  # made by the code that wrote these formats, not by a later one
        header = json.loads((FOLDER / case.name / "model" / "header.json").read_text(encoding="utf-8"))
        assert header["format_version"] == (3 if case.name == "text_merged" else 2)


def test_sharded_folder_of_format_2_predicts_as_it_did_and_is_replaced(tmp_path: Path) -> None:
    sharded = FOLDER.parent / "sharded"
    path = shutil.copytree(sharded / "model", tmp_path / "model")
    with np.load(sharded / "expected.npz") as expected:
        query, log_prob = expected["query"], expected["log_prob"]
    model = load_model(path, verify=True)
    np.testing.assert_allclose(model.predict_log_proba(query), log_prob, rtol=0, atol=SAME_WEIGHTS)
    model.save(path)
    assert not list(path.glob("shard-*"))
    np.testing.assert_array_equal(load_model(path).predict(query), model.predict(query))
