"""Sample weights and seeds."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

from extremax.validation.random_state import check_random_state
from extremax.validation.sample_weight import check_sample_weight


def sentence(text: str) -> str:
    return re.escape(text)


def test_sample_weight_kinds() -> None:
    assert check_sample_weight(None, 3) is None
    for given_weight in ([1, 0, 2], np.array([1.0, 0.0, 2.0]), pd.Series([1, 0, 2], index=[5, 6, 7])):
        weight = check_sample_weight(given_weight, 3)
        assert weight is not None
        assert weight.dtype == np.float32
        assert weight.tolist() == [1.0, 0.0, 2.0]
    np.testing.assert_array_equal(check_sample_weight(2, 3), [2.0, 2.0, 2.0])


@pytest.mark.parametrize(
    ("weight", "text"),
    [
        ([1, 2], "sample_weight has shape (2,), but there are 3 rows: it needs shape (3,)."),
        (np.ones((3, 2)), "sample_weight has shape (3, 2)"),
        ([1, -2, 1], "sample_weight[1] is -2.0; a weight is a finite number >= 0."),
        ([1, 1, np.nan], "sample_weight[2] is nan"),
        ([np.inf, 1, 1], "sample_weight[0] is inf"),
        ([1e300, 1, 1], "sample_weight[0] is 1e+300"),
        ([0, 0, 0], "sample_weight is zero for every row: at least one weight must be above zero."),
        (["a", "b", "c"], "sample_weight holds something that is not a number"),
    ],
)
def test_sample_weight_rejects(weight: Any, text: str) -> None:
    with pytest.raises(ValueError, match=sentence(text)):
        check_sample_weight(weight, 3)


def test_random_state_kinds() -> None:
    assert check_random_state(7) == 7
    assert check_random_state(np.int32(7)) == 7
    assert check_random_state(2**64 - 1) == 2**64 - 1
    assert check_random_state(None) != check_random_state(None)
    for make in (np.random.RandomState, np.random.default_rng):
        first, same, other = make(1), make(1), make(2)
        seeds = [check_random_state(first), check_random_state(first)]
        assert seeds == [check_random_state(same), check_random_state(same)]
        assert seeds[0] != seeds[1]  # a generator moves on
        assert seeds[0] != check_random_state(other)
        assert type(seeds[0]) is int


def test_random_state_uses_all_64_bits() -> None:
    seeds = [
        check_random_state(state) for state in [None] * 20 + [np.random.RandomState(i) for i in range(20)]
    ]
    assert sum(seed >= 2**63 for seed in seeds) > 5  # 20 are expected; 5 or fewer has probability 1e-6
    assert all(0 <= seed < 2**64 for seed in seeds)


@pytest.mark.parametrize(
    ("state", "error"), [(-1, ValueError), (2**64, ValueError), ("a", TypeError), (1.0, TypeError)]
)
def test_random_state_rejects(state: Any, error: type[Exception]) -> None:
    with pytest.raises(
        error, match=r"random_state is .*; give None, an integer in \[0, 2\*\*64\), a numpy Generator"
    ):
        check_random_state(state)
