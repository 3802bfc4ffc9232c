"""Scalar mathematics that LLVM vectorises, in float32 where not said otherwise.

``exp``, ``log1p`` and the reciprocal square root are written out: a call into the C library cannot be
vectorised, these become SIMD code for eight or sixteen numbers at a time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from extremax.kernels.compile import inline


@inline
def float_bits(x: Any) -> Any:
    """Return the 32 bits of a float32 as an int32."""
    return np.float32(x).view(np.int32)


@inline
def bits_float(i: Any) -> Any:
    """Return the float32 whose bits are the given int32."""
    return np.int32(i).view(np.float32)


_LOG2E = np.float32(1.44269504088896341)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_HALF, _ONE, _ZERO, _THREE_HALVES = np.float32(0.5), np.float32(1.0), np.float32(0.0), np.float32(1.5)
_EXP_MIN, _EXP_MAX = np.float32(-87.0), np.float32(88.0)
_E0, _E1, _E2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_E3, _E4, _E5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
_L0, _L1, _L2 = np.float32(2.00000001), np.float32(0.66666316), np.float32(0.40024852)
_L3, _L4 = np.float32(0.27961426), np.float32(0.28174666)
_TWO = np.float32(2.0)
_RSQRT_MAGIC = np.int32(0x5F375A86)


@inline
def exp32(x: Any) -> Any:
    """Return ``exp(x)`` in float32, relative error below 2e-7.

    Arguments are clamped to [-87, 88], so that the result is never 0 or infinite.
    """
    x = min(max(x, _EXP_MIN), _EXP_MAX)
    t = x * _LOG2E
    n = np.int32(t + math.copysign(_HALF, t))
    nf = np.float32(n)
    r = (x - nf * _LN2_HIGH) - nf * _LN2_LOW
    p = ((((_E0 * r + _E1) * r + _E2) * r + _E3) * r + _E4) * r + _E5
    return (p * r * r + r + _ONE) * bits_float(np.int32((n + 127) << 23))


_LOG2E_64, _LN2_HIGH_64, _LN2_LOW_64 = 1.4426950408889634, 0.693147180369123816490, 1.90821492927058770002e-10


@inline
def float64_bits(x: Any) -> Any:
    """Return the 64 bits of a float64 as an int64."""
    return np.float64(x).view(np.int64)


@inline
def exp64(x: Any) -> Any:
    """Return ``exp(x)`` in float64 for x <= 0, relative error below 1e-15; exp(-700) for all below -700."""
    x = max(x, -700.0)
    n = np.int32(x * _LOG2E_64 - 0.5)
    r = (x - n * _LN2_HIGH_64) - n * _LN2_LOW_64
    p = 1.0 / 479001600.0  # the series up to r^12, |r| <= log(2) / 2
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    return p * np.int64((np.int64(n) + 1023) << 52).view(np.float64)


@inline
def log1p32(e: Any) -> Any:
    """Return ``log(1 + e)`` in float32 for e in [0, 1], relative error below 3e-7."""
    # 2 artanh(s) with s = e / (2 + e) <= 1/3: a division and a short polynomial in s * s, and no branch.
    s = e / (e + _TWO)
    z = s * s
    return s * ((((_L4 * z + _L3) * z + _L2) * z + _L1) * z + _L0)


@inline
def softplus32(a: Any) -> Any:
    """Return ``log(1 + exp(a))`` without overflow: max(a, 0) + log1p(exp(-|a|))."""
    return max(a, _ZERO) + log1p32(exp32(-abs(a)))


@inline
def sigmoid32(a: Any) -> Any:
    """Return ``1 / (1 + exp(-a))``; a small result keeps its relative precision."""
    e = exp32(-abs(a))
    return (_ONE if a >= _ZERO else e) / (_ONE + e)


@inline
def rsqrt32(x: Any) -> Any:
    """Return ``1 / sqrt(x)`` for normal x > 0, relative error below 6e-6.

    A first guess from the bits, then two Newton steps: division and square root, which Adagrad needs for
    every weight, are the slowest instructions of a processor.
    """
    y = bits_float(np.int32(_RSQRT_MAGIC - (float_bits(x) >> 1)))
    half = _HALF * x
    y = y * (_THREE_HALVES - half * y * y)
    return y * (_THREE_HALVES - half * y * y)
