"""Scalar mathematics of the kernels against numpy in float64, hashes against their definition, the cache of
compiled code.

The functions are called from compiled loops, as kernels call them: there LLVM vectorises them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import extremax
from extremax import _jit
from extremax.kernels.compile import JIT_DISABLED, njit
from extremax.kernels.math import bits_float, exp32, float_bits, log1p32, rsqrt32, sigmoid32, softplus32
from extremax.kernels.rng import draw_key, mix64, uniform32
from extremax.kernels.simd import prefetch

N = 300 if JIT_DISABLED else 1_000_003  # odd, so that a vectorised loop has a remainder
pytestmark = pytest.mark.small


@njit
def exp_loop(x, out):
    for i in range(x.size):
        out[i] = exp32(x[i])


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


@njit
def sum_with_prefetch(array):
    total = 0.0
    for i in range(array.shape[0]):
        prefetch(array, i + 8, 0)  # runs past the end, which is allowed
        total += array[i, 0]
    return total


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


def test_exp32_matches_reference() -> None:
    x = grid(-87, 88)
    assert relative_error(apply(exp_loop, x), np.exp(x.astype(np.float64))) < 2e-7


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


def test_log1p32_matches_reference() -> None:
    x = np.concatenate([grid(1e-7, 1), np.geomspace(1e-30, 1, 1000), [0.41421354, 0.41421357, 1.0]]).astype(
        np.float32
    )
    assert relative_error(apply(log1p_loop, x), np.log1p(x.astype(np.float64))) < 3e-7
    assert apply(log1p_loop, [0.0])[0] == 0.0


def test_softplus32_matches_reference() -> None:
    x = grid(-86, 100)
    # One rounding more than its parts, exp32 and log1p32.
    assert relative_error(apply(softplus_loop, x), np.logaddexp(0, x.astype(np.float64))) < 6e-7
    assert apply(softplus_loop, [1e30])[0] == np.float32(1e30)
    assert apply(softplus_loop, [-1e30])[0] < 1e-37


def test_sigmoid32_matches_reference() -> None:
    x = grid(-86, 100)
    # A sum and a quotient more than exp32.
    assert relative_error(apply(sigmoid_loop, x), 1 / (1 + np.exp(-x.astype(np.float64)))) < 4e-7
    assert apply(sigmoid_loop, [0.0, 1e30]).tolist() == [0.5, 1.0]
    assert 0 < apply(sigmoid_loop, [-1e30])[0] < 1e-37


def test_sigmoid32_and_its_mirror_identity() -> None:
    x = grid(-30, 30)
    total = apply(sigmoid_loop, x).astype(np.float64) + apply(sigmoid_loop, -x)
    assert np.abs(total - 1).max() < 2e-7  # two roundings of numbers below one


def test_rsqrt32_matches_reference() -> None:
    low, high = np.finfo(np.float32).tiny, np.finfo(np.float32).max
    x = np.concatenate([np.geomspace(low, high / 4, N), grid(0.5, 4)]).astype(np.float32)
    assert relative_error(apply(rsqrt_loop, x), 1 / np.sqrt(x.astype(np.float64))) < 6e-6


def test_float_bits_identity() -> None:
    x = np.array([0.0, -0.0, 1.5, -3e38, 1e-45, np.inf, np.nan], dtype=np.float32)
    got = apply(bits_loop, x)
    np.testing.assert_array_equal(got.view(np.int32)[:-1], x.view(np.int32)[:-1])
    assert np.isnan(got[-1])


def test_prefetch_changes_nothing() -> None:
    array = np.arange(30, dtype=np.float32).reshape(10, 3)
    assert sum_with_prefetch(array) == array[:, 0].sum()


# -- hashes
# --------------------------------------------------------------------------------------------------------------------

MASK = (1 << 64) - 1


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


def test_mix64_matches_reference() -> None:
    x = np.random.default_rng(0).integers(0, 2**64, size=200, dtype=np.uint64)
    assert mixed(x).tolist() == [splitmix64(int(v)) for v in x]
    # The first two outputs of the published generator started at 0.
    assert mixed([0, 0x9E3779B97F4A7C15]).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


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
        share = np.unpackbits(changed.view(np.uint8)).mean()
        assert abs(share - 0.5) < 5 * 0.5 / np.sqrt(64 * x.size)  # five standard errors


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


# -- the cache on disk
# ---------------------------------------------------------------------------------------------------------

KERNEL = """
import numpy as np
from extremax._jit import exp32, njit

@njit
def total(x):
    s = 0.0
    for i in range(x.size):
        s += exp32(x[i])
    return s

if __name__ == "__main__":
    import kernel
    value = kernel.total(np.zeros(5, dtype=np.float32))
    hits = sum(kernel.total.stats.cache_hits.values())
    print(value, hits)
"""


def run_kernel(folder: Path, **environment: str) -> list[str]:
    """Run KERNEL against a copy of _jit.py in `folder`, and return the value and the number of cache hits
    it prints.
    """
    cleared = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
    code = "import runpy; runpy.run_path('kernel.py', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-B", "-c", code],
        cwd=folder,
        env={**cleared, "PYTHONPATH": str(folder), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def package_copy(tmp_path: Path) -> Path:
    (tmp_path / "extremax").mkdir()
    (tmp_path / "extremax" / "__init__.py").write_text("")
    shutil.copy(Path(_jit.__file__), tmp_path / "extremax" / "_jit.py")
    (tmp_path / "kernel.py").write_text(KERNEL)
    return tmp_path


def cache_files(folder: Path) -> list[Path]:
    return [*folder.rglob("*.nbi"), *folder.rglob("*.nbc")]


@pytest.mark.skipif(JIT_DISABLED, reason="nothing is compiled, so nothing is cached")
def test_second_process_finds_the_compiled_kernel(package_copy: Path) -> None:
    assert run_kernel(package_copy) == ["5.0", "0"]
    assert cache_files(package_copy)
    assert run_kernel(package_copy) == ["5.0", "1"]


@pytest.mark.skipif(JIT_DISABLED, reason="nothing is compiled, so nothing is cached")
def test_kernel_runs_where_no_folder_can_be_written(package_copy: Path) -> None:
    # A file in the place of each cache folder stops even root, whom permissions would not.
    (package_copy / "__pycache__").write_text("")
    nowhere = {
        "HOME": "/dev/null/home",
        "XDG_CACHE_HOME": "/dev/null/cache",
        "NUMBA_CACHE_DIR": "/dev/null/numba",
    }
    assert run_kernel(package_copy, **nowhere) == ["5.0", "0"]
    assert not cache_files(package_copy)


def test_package_is_the_one_under_test() -> None:
    assert Path(extremax.__file__).parent == Path(__file__).resolve().parent.parent / "src" / "extremax"
