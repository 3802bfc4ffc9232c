"""The only door to numba: compilation, random draws as a hash, and the scalar mathematics of the kernels.

Everything here is a pure function of its arguments.  Random draws are a hash of counters, so that a draw does not depend on
which thread makes it or in what order.  ``exp``, ``log1p`` and the reciprocal square root are written as polynomials because a
call into the C library cannot be vectorised: LLVM turns these into SIMD code, eight or sixteen numbers at a time.

With ``NUMBA_DISABLE_JIT=1`` the same code runs as plain Python (slowly), for debugging and for bounds checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])

JIT_DISABLED = bool(numba.config.DISABLE_JIT)

# Reassociation and contraction let a dot product use SIMD lanes and fused multiply-adds.  NaN, infinity and signed zero keep
# their meaning, so guards in the code stay guards.
_FASTMATH = {"reassoc", "contract", "arcp"}


def njit(func: F) -> F:
    """Compile `func` without the GIL, cached on disk; uncached when no cache folder can be written."""
    options: dict[str, Any] = {"nogil": True, "fastmath": _FASTMATH, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(func)  # type: ignore[no-any-return]
    except RuntimeError:  # numba found no writable place for the cache: a read-only install without a home folder
        return numba.njit(**options)(func)  # type: ignore[no-any-return]


def inline(func: F) -> F:
    """Compile a small helper that is merged into each kernel calling it, so that loops around it vectorise."""
    return numba.njit(inline="always", fastmath=_FASTMATH, error_model="numpy")(func)  # type: ignore[no-any-return]


if JIT_DISABLED:  # plain Python stand-ins with the same results

    def prefetch(array: Any, row: int, column: int) -> None:
        """Nothing to do: there is no cache to warm in interpreted code."""

    def float_bits(x: Any) -> Any:
        return np.float32(x).view(np.int32)

    def bits_float(i: Any) -> Any:
        return np.int32(i).view(np.float32)

else:

    @intrinsic
    def prefetch(typingctx: Any, array: Any, row: Any, column: Any) -> Any:
        """Ask the processor for the 64 bytes around ``array[row, column]``; never faults, changes nothing."""
        from llvmlite import ir
        from numba.core import cgutils

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            ary = context.make_array(signature.args[0])(context, builder, args[0])
            strides = cgutils.unpack_tuple(builder, ary.strides, 2)
            offset = builder.add(builder.mul(args[1], strides[0]), builder.mul(args[2], strides[1]))
            byte_pointer = builder.bitcast(ary.data, ir.IntType(8).as_pointer())
            address = builder.gep(byte_pointer, [offset])
            i32 = ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [address.type, i32, i32, i32])
            fn = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
            builder.call(fn, [address, i32(0), i32(3), i32(1)])
            return context.get_dummy_value()

        return types.void(array, types.int64, types.int64), codegen

    @intrinsic
    def float_bits(typingctx: Any, x: Any) -> Any:
        """The 32 bits of a float32 as an int32."""
        from llvmlite import ir

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], ir.IntType(32))

        return types.int32(types.float32), codegen

    @intrinsic
    def bits_float(typingctx: Any, i: Any) -> Any:
        """The float32 whose bits are the given int32."""
        from llvmlite import ir

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], ir.FloatType())

        return types.float32(types.int32), codegen


# -- random numbers as a hash of counters ------------------------------------------------------------------------------------

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S40, _S32 = (np.uint64(s) for s in (30, 27, 31, 40, 32))
_U24 = np.float32(2.0**-24)
_U32 = np.float64(2.0**-32)
_LOW32 = np.uint64(0xFFFFFFFF)

if JIT_DISABLED:

    def mix64(x: Any) -> Any:
        """Finaliser of splitmix64: every input bit changes every output bit with probability one half."""
        mask = (1 << 64) - 1
        z = (int(x) + int(_GOLDEN)) & mask
        z = ((z ^ (z >> 30)) * int(_MIX_1)) & mask
        z = ((z ^ (z >> 27)) * int(_MIX_2)) & mask
        return np.uint64(z ^ (z >> 31))

else:

    @inline
    def mix64(x: Any) -> Any:
        """Finaliser of splitmix64: every input bit changes every output bit with probability one half."""
        z = np.uint64(x) + _GOLDEN
        z = (z ^ (z >> _S30)) * _MIX_1
        z = (z ^ (z >> _S27)) * _MIX_2
        return z ^ (z >> _S31)


@inline
def draw_key(seed: Any, row: Any, draw: Any) -> Any:
    """A 64-bit key for one random draw; ``seed`` already carries the run and the epoch."""
    return mix64(mix64(np.uint64(seed) ^ np.uint64(row)) ^ np.uint64(draw))


@inline
def uniform32(bits: Any) -> Any:
    """A float32 in [0, 1) from the upper 24 bits of a 64-bit hash."""
    return np.float32(np.uint64(bits) >> _S40) * _U24


@inline
def uniform_bits(bits: Any) -> Any:
    """Two independent float64 in [0, 1) from the halves of one 64-bit hash (32 bits each)."""
    return np.float64(np.uint64(bits) >> _S32) * _U32, np.float64(np.uint64(bits) & _LOW32) * _U32


# -- scalar mathematics that vectorises --------------------------------------------------------------------------------------

_LOG2E = np.float32(1.44269504088896341)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_LN2 = np.float32(0.69314718056)
_HALF, _ONE, _ZERO, _THREE_HALVES = np.float32(0.5), np.float32(1.0), np.float32(0.0), np.float32(1.5)
_EXP_MIN, _EXP_MAX = np.float32(-87.0), np.float32(88.0)
_E0, _E1, _E2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_E3, _E4, _E5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
_L0, _L1, _L2 = np.float32(7.0376836292e-2), np.float32(-1.1514610310e-1), np.float32(1.1676998740e-1)
_L3, _L4, _L5 = np.float32(-1.2420140846e-1), np.float32(1.4249322787e-1), np.float32(-1.6668057665e-1)
_L6, _L7, _L8 = np.float32(2.0000714765e-1), np.float32(-2.4999993993e-1), np.float32(3.3333331174e-1)
_SQRT2_MINUS_1 = np.float32(0.41421356)
_RSQRT_MAGIC = np.int32(0x5F375A86)


@inline
def exp32(x: Any) -> Any:
    """``exp(x)`` in float32, relative error below 2e-7; arguments are clamped to [-87, 88], so it is never 0 or infinite."""
    x = min(max(x, _EXP_MIN), _EXP_MAX)
    t = x * _LOG2E
    n = np.int32(t + math.copysign(_HALF, t))
    nf = np.float32(n)
    r = (x - nf * _LN2_HIGH) - nf * _LN2_LOW
    p = ((((_E0 * r + _E1) * r + _E2) * r + _E3) * r + _E4) * r + _E5
    return (p * r * r + r + _ONE) * bits_float(np.int32((n + 127) << 23))


@inline
def log1p32(e: Any) -> Any:
    """``log(1 + e)`` in float32 for e in [0, 1], relative error below 3e-7."""
    # A number instead of a branch: 1 where 1 + e is halved to stay near 1, else 0.  A branch here stops vectorisation.
    upper = np.float32(e > _SQRT2_MINUS_1)
    f = e - upper * ((e + _ONE) * _HALF)
    z = f * f
    p = ((((((((_L0 * f + _L1) * f + _L2) * f + _L3) * f + _L4) * f + _L5) * f + _L6) * f + _L7) * f + _L8) * f * z
    return f + (p - _HALF * z) + upper * _LN2


@inline
def softplus32(a: Any) -> Any:
    """``log(1 + exp(a))``, without overflow: max(a, 0) + log1p(exp(-|a|))."""
    return _HALF * (a + abs(a)) + log1p32(exp32(-abs(a)))


@inline
def sigmoid32(a: Any) -> Any:
    """``1 / (1 + exp(-a))``, exact in both tails: a small result keeps its relative precision."""
    e = exp32(-abs(a))
    return (_ONE if a >= _ZERO else e) / (_ONE + e)


@inline
def rsqrt32(x: Any) -> Any:
    """``1 / sqrt(x)`` for normal x > 0, relative error below 6e-6: a bit trick and two Newton steps.

    The divider and the square-root unit are the slowest parts of a processor; Adagrad would need both for every weight.
    """
    y = bits_float(np.int32(_RSQRT_MAGIC - (float_bits(x) >> 1)))
    half = _HALF * x
    y = y * (_THREE_HALVES - half * y * y)
    return y * (_THREE_HALVES - half * y * y)
