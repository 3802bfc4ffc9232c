"""Constraints on parameters, and the message for a value that meets none."""

from __future__ import annotations

import re

import numpy as np
import pytest

from extremax.validation.constraints import BOOLEAN, Choice, Instance, Interval, check_parameters


def sentence(text: str) -> str:
    return re.escape(text)


TABLE = {
    "n_negatives": [Interval(int, 1)],
    "rate": [Interval(float, 0, closed="neither")],
    "fraction": [Interval(float, 0, 1, closed="left"), None],
    "noise": [
        Choice(("uniform", "frequency", "tree")),
        Instance("a Noise", methods=("sample", "log_prob")),
    ],
    "warm_start": [BOOLEAN],
    "callback": [Instance("a callable", methods=("__call__",)), None],
}


@pytest.mark.parametrize(
    "params",
    [
        {"n_negatives": 1},
        {"n_negatives": np.int64(10**18)},
        {"n_negatives": 10**400},
        {"rate": 1},
        {"rate": np.float32(0.1)},
        {"fraction": 0.0},
        {"fraction": None},
        {"noise": "uniform"},
        {"noise": type("Noise", (), {"sample": lambda self: 0, "log_prob": lambda self: 0})()},
        {"warm_start": np.True_},
        {"callback": print},
        {"callback": None},
    ],
    ids=lambda params: f"{next(iter(params))}-{type(next(iter(params.values()))).__name__}",
)
def test_parameters_pass(params: dict[str, object]) -> None:
    check_parameters("Model", params, TABLE)


@pytest.mark.parametrize(
    ("params", "error", "text"),
    [
        (
            {"n_negatives": 0},
            ValueError,
            "The 'n_negatives' parameter of Model must be an integer >= 1. Got 0 instead.",
        ),
        ({"n_negatives": 2.0}, TypeError, "must be an integer >= 1. Got 2.0 instead."),
        ({"n_negatives": True}, TypeError, "Got True instead."),
        ({"n_negatives": None}, TypeError, "Got None instead."),
        ({"rate": 0}, ValueError, "must be a number > 0. Got 0 instead."),
        ({"rate": float("nan")}, ValueError, "must be a number > 0. Got nan instead."),
        ({"rate": float("inf")}, ValueError, "must be a number > 0. Got inf instead."),
        ({"fraction": 1.0}, ValueError, "must be a number >= 0 and < 1 or None. Got 1.0 instead."),
        ({"fraction": "x"}, TypeError, "must be a number >= 0 and < 1 or None. Got 'x' instead."),
        (
            {"noise": "tre"},
            ValueError,
            "'frequency', 'tree' or a Noise. Got 'tre' instead. Did you mean 'tree'?",
        ),
        ({"noise": 3}, TypeError, "or a Noise. Got 3 instead."),
        ({"warm_start": 1}, TypeError, "must be a bool. Got 1 instead."),
        ({"callback": "x" * 100}, TypeError, f"must be a callable or None. Got '{'x' * 56}... instead."),
    ],
)
def test_parameters_rejects(params: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=sentence(text)):
        check_parameters("Model", {"callback": None, **params}, TABLE)


def test_parameter_without_a_constraint_rejects() -> None:
    with pytest.raises(KeyError):
        check_parameters("Model", {"unknown": 1}, TABLE)
