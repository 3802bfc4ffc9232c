"""Random numbers as hashes of counters.

A draw is a function of the seed and its own numbers: neither the thread that makes it nor the order matters.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from extremax.kernels.compile import JIT_DISABLED, inline

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S40, _S32 = (np.uint64(s) for s in (30, 27, 31, 40, 32))
_U24 = np.float32(2.0**-24)
_U32 = np.float64(2.0**-32)
_LOW32 = np.uint64(0xFFFFFFFF)

if JIT_DISABLED:

    def mix64(x: Any) -> Any:
        """Hash 64 bits by the finaliser of splitmix64.

        Every input bit changes every output bit with probability one half.
        """
        mask = (1 << 64) - 1
        z = (int(x) + int(_GOLDEN)) & mask
        z = ((z ^ (z >> 30)) * int(_MIX_1)) & mask
        z = ((z ^ (z >> 27)) * int(_MIX_2)) & mask
        return np.uint64(z ^ (z >> 31))

else:

    @inline
    def mix64(x: Any) -> Any:
        """Hash 64 bits by the finaliser of splitmix64.

        Every input bit changes every output bit with probability one half.
        """
        z = np.uint64(x) + _GOLDEN
        z = (z ^ (z >> _S30)) * _MIX_1
        z = (z ^ (z >> _S27)) * _MIX_2
        return z ^ (z >> _S31)


@inline
def draw_key(seed: Any, row: Any, draw: Any) -> Any:
    """Return a 64-bit key for one random draw; ``seed`` already contains the run and the epoch."""
    return mix64(mix64(np.uint64(seed) ^ np.uint64(row)) ^ np.uint64(draw))


@inline
def uniform32(bits: Any) -> Any:
    """Return a float32 in [0, 1) from the upper 24 bits of a 64-bit hash."""
    return np.float32(np.uint64(bits) >> _S40) * _U24


@inline
def uniform_bits(bits: Any) -> Any:
    """Return two independent float64 in [0, 1), from the halves of one 64-bit hash."""
    return np.float64(np.uint64(bits) >> _S32) * _U32, np.float64(np.uint64(bits) & _LOW32) * _U32
