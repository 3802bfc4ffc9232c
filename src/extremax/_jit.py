"""The only door to numba: compilation, random draws as a hash, and the scalar mathematics of the kernels.

Everything here is a pure function of its arguments.  Random draws are a hash of counters, so that a draw does not depend on
which thread makes it or in what order.  ``exp``, ``log1p`` and the reciprocal square root are written as polynomials because a
call into the C library cannot be vectorised: LLVM turns these into SIMD code, eight or sixteen numbers at a time.

With ``NUMBA_DISABLE_JIT=1`` the same code runs as plain Python (slowly), for debugging and for bounds checks.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic, overload

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


def helper(func: F) -> F:
    """Compile a function that only kernels call: without the door for Python, which takes long to build."""
    options: dict[str, Any] = {"fastmath": _FASTMATH, "error_model": "numpy"}
    return numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)(func)  # type: ignore[no-any-return]


def inline(func: F) -> F:
    """Compile a small helper that is merged into each kernel calling it, so that loops around it vectorise."""
    return numba.njit(forceinline=True, fastmath=_FASTMATH, error_model="numpy")(func)  # type: ignore[no-any-return]


def by_class(table: dict[type, Callable[..., Any]]) -> Callable[..., Any]:
    """A function for kernels that calls ``table[class of its first argument]``, the classes being named tuples.

    Which one is settled when the kernel is compiled: it contains that one alone, and nothing is asked while it runs.
    """

    def call(first: Any, *others: Any) -> Any:
        return table[type(first)](first, *others)

    if not JIT_DISABLED:

        @overload(call)
        def choose(first: Any, *others: Any) -> Any:
            chosen = table[first.instance_class]

            def implementation(first: Any, *others: Any) -> Any:
                return chosen(first, *others)

            return implementation

    return call


if JIT_DISABLED:  # plain Python stand-ins with the same results

    def prefetch(array: Any, row: int, column: int) -> None:
        """Nothing to do: there is no cache to warm in interpreted code."""

    def float_bits(x: Any) -> Any:
        return np.float32(x).view(np.int32)

    def bits_float(i: Any) -> Any:
        return np.int32(i).view(np.float32)

    def trailing_zeros(mask: Any) -> int:
        return (int(mask) & -int(mask)).bit_length() - 1

    def wait_for_all(state: Any, n_threads: int) -> None:
        """Interpreted code trains on one thread: there is nobody to wait for."""

else:

    @intrinsic
    def _atomic_add(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
        """Add to an int64 array element in one indivisible step; returns the old value."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            ary = context.make_array(signature.args[0])(context, builder, args[0])
            return builder.atomic_rmw("add", builder.gep(ary.data, [args[1]]), args[2], "seq_cst")

        return types.int64(array, types.int64, types.int64), codegen

    # A thread that waits long gives its processor to whoever it is waiting for.
    _yield_processor = types.ExternalFunction("SwitchToThread" if sys.platform == "win32" else "sched_yield", types.int32())
    _SPINS = 2000

    @numba.njit(nogil=True, cache=True)
    def wait_for_all(state: Any, n_threads: Any) -> None:
        """Return when all `n_threads` threads that share `state` (64 zeros of int64) have called this as often as the caller.

        Every thread of the group must be running: see ``parallel.run_together``.
        """
        if n_threads == 1:
            return
        round_number = _atomic_add(state, 32, 0)  # counters on cache lines of their own
        if _atomic_add(state, 0, 1) == n_threads - 1:
            _atomic_add(state, 0, -n_threads)
            _atomic_add(state, 32, 1)
            return
        spins = 0
        while _atomic_add(state, 32, 0) == round_number:
            spins += 1
            if spins > _SPINS:
                _yield_processor()

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
    def trailing_zeros(typingctx: Any, mask: Any) -> Any:
        """The place of the lowest bit that is set; some must be."""
        from llvmlite import ir

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.zext(builder.cttz(args[0], ir.Constant(ir.IntType(1), 1)), ir.IntType(64))

        return types.int64(types.uint32), codegen

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


CACHE_LINE = 16  # float32 in it


@inline
def prefetch_row(array: Any, row: Any) -> None:
    """Ask the processor for a whole row of a float32 array."""
    for column in range(0, array.shape[1], CACHE_LINE):
        prefetch(array, row, column)


if JIT_DISABLED or numba.config.BOUNDSCHECK:  # the loop in full, with every access checked

    @inline
    def dot_rows(left: Any, i: Any, right: Any, j: Any) -> Any:
        """Inner product of row i of `left` and row j of `right`: float32, C order, the same width, a multiple of 16."""
        total = np.float32(0.0)
        for c in range(left.shape[1]):
            total += left[i, c] * right[j, c]
        return total

else:

    @intrinsic
    def dot_rows(typingctx: Any, left: Any, i: Any, right: Any, j: Any) -> Any:
        """Inner product of row i of `left` and row j of `right`: float32, C order, the same width, a multiple of 16.

        Spelled out as two SIMD accumulators, because LLVM unrolls so short a loop before it looks for SIMD in it.
        """
        from llvmlite import ir
        from numba.core import cgutils

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            f32, i64 = ir.FloatType(), ir.IntType(64)
            lanes = ir.VectorType(f32, 8)
            flags = ("reassoc", "contract")
            rows = []
            for array_type, array, row in ((signature.args[0], args[0], args[1]), (signature.args[2], args[2], args[3])):
                ary = context.make_array(array_type)(context, builder, array)
                width = cgutils.unpack_tuple(builder, ary.shape, 2)[1]
                rows.append(builder.gep(ary.data, [builder.mul(row, width)]))
            sums = [cgutils.alloca_once_value(builder, ir.Constant(lanes, None)) for _ in range(2)]
            with cgutils.for_range_slice(builder, i64(0), width, i64(16), i64) as (start, _):
                for half, total in enumerate(sums):
                    place = builder.add(start, i64(8 * half))
                    factors = []
                    for row in rows:
                        pointer = builder.bitcast(builder.gep(row, [place]), lanes.as_pointer())
                        load = builder.load(pointer)
                        load.align = 4
                        factors.append(load)
                    product = builder.fmul(*factors, flags=flags)
                    builder.store(builder.fadd(builder.load(total), product, flags=flags), total)
            both = builder.fadd(builder.load(sums[0]), builder.load(sums[1]), flags=flags)
            kind = ir.FunctionType(f32, [f32, lanes])
            fn = cgutils.get_or_insert_function(builder.module, kind, "llvm.vector.reduce.fadd.v8f32")
            return builder.call(fn, [ir.Constant(f32, -0.0), both], fastmath=flags)

        return types.float32(left, types.int64, right, types.int64), codegen


# -- sums of table entries that short codes pick -------------------------------------------------------------------------------

LANES = 32  # classes whose sums are made at a time: one byte of each fills a register
ROWS_AT_ONCE = 4  # rows that share the work of unpacking the codes
CODES_AT_ONCE = 8  # entries that a byte holds the sum of ...
MOST_ENTRY = 31  # ... because none is larger


def _byte_shuffle() -> str | None:
    """The instruction that looks 16 bytes up at once, if the machine that numba compiles for has one."""
    import llvmlite.binding as llvm
    from numba.core.codegen import get_host_cpu_features

    given = numba.config.CPU_FEATURES
    features = (get_host_cpu_features() if given is None else given).split(",")
    triple = llvm.get_process_triple()
    if triple.startswith("x86_64") and "+avx2" in features:
        return "avx2"
    if triple.startswith(("aarch64", "arm64")) and "-neon" not in features:  # part of every such processor
        return "neon"
    return None


BYTE_SHUFFLE = _byte_shuffle()

if JIT_DISABLED or numba.config.BOUNDSCHECK or BYTE_SHUFFLE is None:  # the loop in full: the same sums, one at a time

    @inline
    def _block_sums(codes: Any, block: Any, tables: Any, group: Any, slot: Any, sums: Any, highest: Any) -> None:
        for r in range(ROWS_AT_ONCE):
            most: Any = 0
            for j in range(LANES):
                total: Any = 0
                for p in range(codes.shape[1]):
                    pair = np.int64(codes[block, p, j])
                    total += np.int64(tables[group, r, 2 * p, pair & 15]) + np.int64(tables[group, r, 2 * p + 1, pair >> 4])
                sums[r, slot, (j >> 1) + 16 * (j & 1)] = total
                most = max(most, total)
            highest[r, slot] = most

else:

    @intrinsic
    def _block_sums(typingctx: Any, codes: Any, block: Any, tables: Any, group: Any, slot: Any, sums: Any, highest: Any) -> Any:
        """By byte shuffles, 32 entries at once.  Eight are added as bytes before they are widened to 16 bits."""
        from llvmlite import ir
        from numba.core import cgutils

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            i8, i16, i32, i64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
            bytes32, bytes16, words = ir.VectorType(i8, 32), ir.VectorType(i8, 16), ir.VectorType(i16, 16)
            arrays = [context.make_array(signature.args[n])(context, builder, args[n]) for n in (0, 2, 5, 6)]
            n_slots = cgutils.unpack_tuple(builder, arrays[3].shape, 2)[1]
            pairs = cgutils.unpack_tuple(builder, arrays[0].shape, 3)[1]
            size = builder.mul(pairs, i64(LANES))  # bytes of a block, and of a row's tables
            code = builder.gep(arrays[0].data, [builder.mul(args[1], size)])
            table = builder.gep(arrays[1].data, [builder.mul(builder.mul(args[3], i64(ROWS_AT_ONCE)), size)])

            def constant(kind: Any, value: int) -> Any:
                return ir.Constant(kind, [value] * kind.count)

            def load(pointer: Any, kind: Any) -> Any:
                found = builder.load(builder.bitcast(pointer, kind.as_pointer()))
                found.align = 1
                return found

            def lanes(vector: Any, places: list[int]) -> Any:
                return builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(i32, len(places)), places))

            def intrinsic_function(name: str, kind: Any) -> Any:
                return cgutils.get_or_insert_function(builder.module, kind, name)

            def look_up(entries: Any, picks: Any) -> Any:
                if BYTE_SHUFFLE == "avx2":
                    fn = intrinsic_function("llvm.x86.avx2.pshuf.b", ir.FunctionType(bytes32, [bytes32, bytes32]))
                    return builder.call(fn, [lanes(entries, [*range(16), *range(16)]), picks])
                fn = intrinsic_function("llvm.aarch64.neon.tbl1.v16i8", ir.FunctionType(bytes16, [bytes16, bytes16]))
                halves = [builder.call(fn, [entries, lanes(picks, list(range(a, a + 16)))]) for a in (0, 16)]
                return builder.shuffle_vector(*halves, ir.Constant(ir.VectorType(i32, 32), list(range(32))))

            low_bits, four, eight = constant(bytes32, 15), constant(words, 4), constant(words, 8)
            totals = [
                [cgutils.alloca_once_value(builder, ir.Constant(words, None)) for _ in range(2)] for _ in range(ROWS_AT_ONCE)
            ]
            with cgutils.for_range_slice(builder, i64(0), pairs, i64(CODES_AT_ONCE // 2), i64) as (first, _):
                parts: list[Any] = [None] * ROWS_AT_ONCE
                for q in range(CODES_AT_ONCE // 2):
                    place = builder.mul(builder.add(first, i64(q)), i64(LANES))
                    both = load(builder.gep(code, [place]), bytes32)
                    shifted = builder.bitcast(builder.lshr(builder.bitcast(both, words), four), bytes32)
                    picks = [builder.and_(both, low_bits), builder.and_(shifted, low_bits)]
                    for r in range(ROWS_AT_ONCE):
                        entries = builder.gep(table, [builder.add(builder.mul(i64(r), size), place)])
                        for half in range(2):
                            found = look_up(load(builder.gep(entries, [i64(16 * half)]), bytes16), picks[half])
                            parts[r] = found if parts[r] is None else builder.add(parts[r], found)
                for r in range(ROWS_AT_ONCE):
                    # The sums of even places still carry those of odd ones in their upper bytes, until all are added up.
                    even = builder.bitcast(parts[r], words)
                    for total, part in zip(totals[r], (even, builder.lshr(even, eight)), strict=True):
                        builder.store(builder.add(builder.load(total), part), total)
            reduce = intrinsic_function("llvm.vector.reduce.umax.v16i16", ir.FunctionType(i16, [words]))
            for r in range(ROWS_AT_ONCE):
                place = builder.add(builder.mul(i64(r), n_slots), args[4])
                odd = builder.load(totals[r][1])
                even = builder.sub(builder.load(totals[r][0]), builder.shl(odd, eight))
                for half, vector in enumerate((even, odd)):
                    pointer = builder.gep(arrays[2].data, [builder.add(builder.mul(place, i64(LANES)), i64(16 * half))])
                    builder.store(vector, builder.bitcast(pointer, words.as_pointer())).align = 2
                most = builder.select(builder.icmp_unsigned(">", even, odd), even, odd)
                builder.store(builder.zext(builder.call(reduce, [most]), i32), builder.gep(arrays[3].data, [place]))
            return context.get_dummy_value()

        return types.void(codes, types.int64, tables, types.int64, types.int64, sums, highest), codegen


@helper
def table_sums(codes: Any, start: Any, stop: Any, tables: Any, group: Any, sums: Any, highest: Any) -> None:
    """For each of four rows and the classes of blocks ``range(start, stop)`` the sum of the table entries that they pick.

    ``codes`` (blocks, pairs, 32) uint8, pairs a multiple of four: the low bits of a byte pick from table 2 p, the high ones
    from table 2 p + 1, and the byte at place j is that of class ``j // 2 + 16 * (j % 2)``.  ``tables`` (groups, 4, 2 pairs, 16)
    uint8, no entry above 31.  To ``sums`` (4, slots, 32) uint16, and the highest of a block to ``highest`` (4, slots) int32.
    """
    for slot in range(stop - start):
        _block_sums(codes, start + slot, tables, group, slot, sums, highest)


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
    # 2 artanh(s) with s = e / (2 + e) <= 1/3: a division and a short polynomial in s * s, and no branch.
    s = e / (e + _TWO)
    z = s * s
    return s * ((((_L4 * z + _L3) * z + _L2) * z + _L1) * z + _L0)


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
