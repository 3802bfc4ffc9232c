"""Scalar mathematics of the kernels against numpy in float64.

The functions are called from compiled loops, as kernels call them: there LLVM vectorises them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from extremax.kernels.compile import JIT_DISABLED, njit
from extremax.kernels.math import (
    bits_float,
    exp32,
    exp64,
    float64_bits,
    float_bits,
    log1p32,
    rsqrt32,
    sigmoid32,
    softplus32,
)

N = 300 if JIT_DISABLED else 1_000_003  # odd, so that a vectorised loop has a remainder
pytestmark = pytest.mark.small


@njit
def exp_loop(x, out):
    for i in range(x.size):
        out[i] = exp32(x[i])


@njit
def exp64_loop(x, out):
    for i in range(x.size):
        out[i] = exp64(x[i])


@njit
def bits64_loop(x, out):
    for i in range(x.size):
        out[i] = float64_bits(x[i])


@njit
def log1p_loop(x, out):
    for i in range(x.size):
        out[i] = log1p32(x[i])


@njit
def softplus_loop(x, out):
    for i in range(x.size):
        out[i] = softplus32(x[i])


@njit
def sigmoid_loop(x, out):
    for i in range(x.size):
        out[i] = sigmoid32(x[i])


@njit
def rsqrt_loop(x, out):
    for i in range(x.size):
        out[i] = rsqrt32(x[i])


@njit
def bits_loop(x, out):
    for i in range(x.size):
        out[i] = bits_float(float_bits(x[i]))


def apply(loop: Callable[..., Any], x: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    x = np.asarray(x, dtype=np.float32)
    out = np.empty_like(x)
    with np.errstate(over="ignore"):
        loop(x, out)
    return out


def relative_error(got: np.ndarray[Any, Any], exact: np.ndarray[Any, Any]) -> float:
    return float(np.max(np.abs(got.astype(np.float64) - exact) / exact))


def grid(low: float, high: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.linspace(low, high, N, dtype=np.float32)


# The bounds are those promised in the docstrings; one unit in the last place of float32 is 1.2e-7.


@pytest.mark.reference
def test_exp32_matches_reference() -> None:
    x = grid(-87, 88)
    assert relative_error(apply(exp_loop, x), np.exp(x.astype(np.float64))) < 2e-7


@pytest.mark.reference
def test_exp32_near_zero_matches_reference() -> None:
    x = np.concatenate([grid(-1, 1), [0.0, -0.0, 1e-30, -1e-30]]).astype(np.float32)
    assert relative_error(apply(exp_loop, x), np.exp(x.astype(np.float64))) < 2e-7
    assert apply(exp_loop, [0.0, -0.0]).tolist() == [1.0, 1.0]


def test_exp32_is_clamped_never_zero_or_infinite() -> None:
    got = apply(exp_loop, [-1e30, -np.inf, -88, -87, 88, 89, 1e30, np.inf])
    assert (got[:4] == got[3]).all()
    assert (got[4:] == got[4]).all()
    assert got[0] > np.finfo(np.float32).tiny
    assert np.isfinite(got).all()


@pytest.mark.reference
def test_log1p32_matches_reference() -> None:
    x = np.concatenate([grid(1e-7, 1), np.geomspace(1e-30, 1, 1000), [0.41421354, 0.41421357, 1.0]]).astype(
        np.float32
    )
    assert relative_error(apply(log1p_loop, x), np.log1p(x.astype(np.float64))) < 3e-7
    assert apply(log1p_loop, [0.0])[0] == 0.0


@pytest.mark.reference
def test_softplus32_matches_reference() -> None:
    x = grid(-86, 100)
    # One rounding more than its parts, exp32 and log1p32.
    assert relative_error(apply(softplus_loop, x), np.logaddexp(0, x.astype(np.float64))) < 6e-7
    assert apply(softplus_loop, [1e30])[0] == np.float32(1e30)
    assert apply(softplus_loop, [-1e30])[0] < 1e-37


@pytest.mark.reference
def test_sigmoid32_matches_reference() -> None:
    x = grid(-86, 100)
    # A sum and a quotient more than exp32.
    assert relative_error(apply(sigmoid_loop, x), 1 / (1 + np.exp(-x.astype(np.float64)))) < 4e-7
    assert apply(sigmoid_loop, [0.0, 1e30]).tolist() == [0.5, 1.0]
    assert 0 < apply(sigmoid_loop, [-1e30])[0] < 1e-37


@pytest.mark.identity
def test_sigmoid32_and_its_mirror_identity() -> None:
    x = grid(-30, 30)
    total = apply(sigmoid_loop, x).astype(np.float64) + apply(sigmoid_loop, -x)
    assert np.abs(total - 1).max() < 2e-7  # two roundings of numbers below one


@pytest.mark.reference
def test_rsqrt32_matches_reference() -> None:
    low, high = np.finfo(np.float32).tiny, np.finfo(np.float32).max
    x = np.concatenate([np.geomspace(low, high / 4, N), grid(0.5, 4)]).astype(np.float32)
    assert relative_error(apply(rsqrt_loop, x), 1 / np.sqrt(x.astype(np.float64))) < 6e-6


@pytest.mark.identity
def test_float_bits_identity() -> None:
    x = np.array([0.0, -0.0, 1.5, -3e38, 1e-45, np.inf, np.nan], dtype=np.float32)
    got = apply(bits_loop, x)
    np.testing.assert_array_equal(got.view(np.int32)[:-1], x.view(np.int32)[:-1])
    assert np.isnan(got[-1])


@pytest.mark.reference
def test_exp64_matches_numpy() -> None:
    x = np.linspace(-700.0, 0.0, N)
    out = np.empty_like(x)
    exp64_loop(x, out)
    assert relative_error(out, np.exp(x)) < 1e-15
    assert out[-1] == 1.0
    exp64_loop(np.array([-1e300, -np.inf]), out[:2])
    np.testing.assert_allclose(out[:2], np.exp(-700.0), rtol=1e-13)


@pytest.mark.identity
def test_bits_of_float64_are_those_of_numpy_identity() -> None:
    x = np.array([0.0, -0.0, 1.5, -3e300, np.inf])
    out = np.empty(len(x), np.int64)
    bits64_loop(x, out)
    np.testing.assert_array_equal(out, x.view(np.int64))
