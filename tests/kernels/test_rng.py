"""Hashes and random numbers of the kernels against their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from extremax.kernels.compile import JIT_DISABLED, njit
from extremax.kernels.rng import draw_key, mix64, uniform32

MASK = (1 << 64) - 1
pytestmark = pytest.mark.small


@njit
def mix_loop(x, out):
    for i in range(x.size):
        out[i] = mix64(x[i])


@njit
def key_loop(seed, row, draw, out):
    for i in range(row.size):
        out[i] = draw_key(seed, row[i], draw[i])


@njit
def uniform_loop(keys, out):
    for i in range(keys.size):
        out[i] = uniform32(keys[i])


def splitmix64(x: int) -> int:
    z = (x + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def mixed(x: Any) -> np.ndarray[Any, np.dtype[np.uint64]]:
    x = np.asarray(x, dtype=np.uint64)
    out = np.empty_like(x)
    mix_loop(x, out)
    return out


def keys(seed: int, row: Any, draw: Any) -> np.ndarray[Any, np.dtype[np.uint64]]:
    row, draw = np.broadcast_arrays(np.asarray(row, dtype=np.int64), np.asarray(draw, dtype=np.int64))
    out = np.empty(row.size, dtype=np.uint64)
    key_loop(np.uint64(seed), row.ravel().copy(), draw.ravel().copy(), out)
    return out


@pytest.mark.reference
def test_mix64_matches_reference() -> None:
    x = np.random.default_rng(0).integers(0, 2**64, size=200, dtype=np.uint64)
    assert mixed(x).tolist() == [splitmix64(int(v)) for v in x]
    # The first two outputs of the published generator started at 0.
    assert mixed([0, 0x9E3779B97F4A7C15]).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


@pytest.mark.reference
def test_draw_key_matches_reference() -> None:
    rng = np.random.default_rng(1)
    row, draw = rng.integers(0, 10**9, 100), rng.integers(0, 10**4, 100)
    expected = [splitmix64(splitmix64(12345 ^ int(r)) ^ int(d)) for r, d in zip(row, draw, strict=True)]
    assert keys(12345, row, draw).tolist() == expected


def test_mix64_changes_half_of_the_bits() -> None:
    rng = np.random.default_rng(2)
    x = rng.integers(0, 2**64, size=100 if JIT_DISABLED else 4000, dtype=np.uint64)
    before = mixed(x)
    for bit in range(64):
        changed = mixed(x ^ np.uint64(1 << bit)) ^ before
        fraction = np.unpackbits(changed.view(np.uint8)).mean()
        assert abs(fraction - 0.5) < 5 * 0.5 / np.sqrt(64 * x.size)  # five standard errors


def bins_deviate(values: np.ndarray[Any, Any], n_bins: int = 64) -> float:
    """Largest deviation of a bin count from its expectation, in standard errors."""
    counts = np.histogram(values, bins=n_bins, range=(0, 1))[0]
    expected = values.size / n_bins
    return float(np.abs(counts - expected).max() / np.sqrt(expected * (1 - 1 / n_bins)))


@pytest.mark.parametrize("vary", ["row", "draw", "both"])
def test_uniform32_is_uniform_over_rows_and_draws(vary: str) -> None:
    i = np.arange(64 * 20 if JIT_DISABLED else 640_000)
    seed = splitmix64(7)
    key = {
        "row": lambda: keys(seed, i, 0),
        "draw": lambda: keys(seed, 3, i),
        "both": lambda: keys(seed, i // 10, i % 10),
    }[vary]()
    u = apply_uniform(key)
    assert u.dtype == np.float32
    assert u.min() >= 0
    assert u.max() < 1
    # The largest of 64 normal deviates exceeds 5 with probability 4e-5.
    assert bins_deviate(u) < 5
    pair = (np.floor(u[:-1] * 8) * 8 + np.floor(u[1:] * 8) + 0.5) / 64  # neighbours are independent
    assert bins_deviate(pair) < 5.5  # overlapping pairs are correlated, which widens the counts a little


def apply_uniform(key: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    out = np.empty(key.size, dtype=np.float32)
    uniform_loop(key, out)
    return out


def test_uniform32_reaches_both_ends() -> None:
    assert apply_uniform(np.array([0, MASK], dtype=np.uint64)).tolist() == [0.0, 1 - 2.0**-24]


def test_draw_keys_of_different_seeds_do_not_meet() -> None:
    i = np.arange(300 if JIT_DISABLED else 100_000)
    both = np.concatenate([keys(splitmix64(0), i, 0), keys(splitmix64(1), i, 0), keys(splitmix64(0), i, 1)])
    assert np.unique(both).size == both.size
