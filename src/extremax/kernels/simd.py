"""Prefetching, inner products and table look-ups written for SIMD units."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

from extremax.kernels.compile import JIT_DISABLED, helper, inline

if JIT_DISABLED:

    def prefetch(array: Any, row: int, column: int) -> None:
        """Do nothing: interpreted code does not wait for memory."""

    def prefetch_item(array: Any, place: int) -> None:
        """Do nothing: interpreted code does not wait for memory."""

    def trailing_zeros(mask: Any) -> int:
        """Return the position of the lowest bit that is set; one must be."""
        return (int(mask) & -int(mask)).bit_length() - 1

else:

    @intrinsic
    def prefetch(typingctx: Any, array: Any, row: Any, column: Any) -> Any:
        """Request the 64 bytes around ``array[row, column]``; any place is allowed, nothing changes."""
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
    def prefetch_item(typingctx: Any, array: Any, place: Any) -> Any:
        """Request the 64 bytes around ``array[place]`` of a contiguous array; any place is allowed."""
        from llvmlite import ir
        from numba.core import cgutils

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            ary = context.make_array(signature.args[0])(context, builder, args[0])
            i32 = ir.IntType(32)
            address = builder.bitcast(builder.gep(ary.data, [args[1]]), ir.IntType(8).as_pointer())
            kind = ir.FunctionType(ir.VoidType(), [address.type, i32, i32, i32])
            fn = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
            builder.call(fn, [address, i32(0), i32(3), i32(1)])
            return context.get_dummy_value()

        return types.void(array, types.int64), codegen

    @intrinsic
    def trailing_zeros(typingctx: Any, mask: Any) -> Any:
        """Return the position of the lowest bit that is set; one must be."""
        from llvmlite import ir

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.zext(builder.cttz(args[0], ir.Constant(ir.IntType(1), 1)), ir.IntType(64))

        return types.int64(types.uint32), codegen


CACHE_LINE = 16  # float32 per cache line


@inline
def prefetch_row(array: Any, row: Any) -> None:
    """Request a whole row of a float32 array."""
    for column in range(0, array.shape[1], CACHE_LINE):
        prefetch(array, row, column)


if JIT_DISABLED or numba.config.BOUNDSCHECK:  # as a loop, every access of which is checked

    @inline
    def dot_rows(left: Any, i: Any, right: Any, j: Any) -> Any:
        """Return the inner product of row i of `left` and row j of `right`.

        Both are float32 in C order, of the same width, a multiple of 16.
        """
        total = np.float32(0.0)
        for c in range(left.shape[1]):
            total += left[i, c] * right[j, c]
        return total

else:

    @intrinsic
    def dot_rows(typingctx: Any, left: Any, i: Any, right: Any, j: Any) -> Any:
        """Return the inner product of row i of `left` and row j of `right`.

        Both are float32 in C order, of the same width, a multiple of 16.  Written as two SIMD accumulators,
        because LLVM unrolls so short a loop before it vectorises.
        """
        from llvmlite import ir
        from numba.core import cgutils

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            f32, i64 = ir.FloatType(), ir.IntType(64)
            lanes = ir.VectorType(f32, 8)
            flags = ("reassoc", "contract")
            rows = []
            for array_type, array, row in (
                (signature.args[0], args[0], args[1]),
                (signature.args[2], args[2], args[3]),
            ):
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


LANES = 32  # classes whose sums are computed together: one byte of each fills a register
ROWS_AT_ONCE = 4  # rows for which codes are unpacked together
CODES_AT_ONCE = 8  # entries whose sum a byte holds, because ...
MOST_ENTRY = 31  # ... no entry is larger


def _byte_shuffle() -> str | None:
    """Name the instruction set whose table look-up of 16 bytes is used, if the processor has one."""
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

if JIT_DISABLED or numba.config.BOUNDSCHECK or BYTE_SHUFFLE is None:

    @inline
    def _block_sums(
        codes: Any, block: Any, tables: Any, group: Any, slot: Any, sums: Any, highest: Any
    ) -> None:
        """Compute the sums of one block in a loop, one at a time."""
        for r in range(ROWS_AT_ONCE):
            most: Any = 0
            for j in range(LANES):
                total: Any = 0
                for p in range(codes.shape[1]):
                    pair = np.int64(codes[block, p, j])
                    total += np.int64(tables[group, r, 2 * p, pair & 15]) + np.int64(
                        tables[group, r, 2 * p + 1, pair >> 4]
                    )
                sums[r, slot, (j >> 1) + 16 * (j & 1)] = total
                most = max(most, total)
            highest[r, slot] = most

else:

    @intrinsic
    def _block_sums(
        typingctx: Any, codes: Any, block: Any, tables: Any, group: Any, slot: Any, sums: Any, highest: Any
    ) -> Any:
        """Compute the sums of one block by byte shuffles, 32 entries at once.

        Eight entries are added as bytes before they are widened to 16 bits.
        """
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
                return builder.shuffle_vector(
                    vector, vector, ir.Constant(ir.VectorType(i32, len(places)), places)
                )

            def intrinsic_function(name: str, kind: Any) -> Any:
                return cgutils.get_or_insert_function(builder.module, kind, name)

            def look_up(entries: Any, picks: Any) -> Any:
                if BYTE_SHUFFLE == "avx2":
                    fn = intrinsic_function(
                        "llvm.x86.avx2.pshuf.b", ir.FunctionType(bytes32, [bytes32, bytes32])
                    )
                    return builder.call(fn, [lanes(entries, [*range(16), *range(16)]), picks])
                fn = intrinsic_function(
                    "llvm.aarch64.neon.tbl1.v16i8", ir.FunctionType(bytes16, [bytes16, bytes16])
                )
                halves = [builder.call(fn, [entries, lanes(picks, list(range(a, a + 16)))]) for a in (0, 16)]
                return builder.shuffle_vector(*halves, ir.Constant(ir.VectorType(i32, 32), list(range(32))))

            low_bits, four, eight = constant(bytes32, 15), constant(words, 4), constant(words, 8)
            totals = [
                [cgutils.alloca_once_value(builder, ir.Constant(words, None)) for _ in range(2)]
                for _ in range(ROWS_AT_ONCE)
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
                            found = look_up(
                                load(builder.gep(entries, [i64(16 * half)]), bytes16), picks[half]
                            )
                            parts[r] = found if parts[r] is None else builder.add(parts[r], found)
                for r in range(ROWS_AT_ONCE):
                    # The upper bytes of the even sums hold the odd ones, which are subtracted at the end.
                    even = builder.bitcast(parts[r], words)
                    for total, part in zip(totals[r], (even, builder.lshr(even, eight)), strict=True):
                        builder.store(builder.add(builder.load(total), part), total)
            reduce = intrinsic_function("llvm.vector.reduce.umax.v16i16", ir.FunctionType(i16, [words]))
            for r in range(ROWS_AT_ONCE):
                place = builder.add(builder.mul(i64(r), n_slots), args[4])
                odd = builder.load(totals[r][1])
                even = builder.sub(builder.load(totals[r][0]), builder.shl(odd, eight))
                for half, vector in enumerate((even, odd)):
                    pointer = builder.gep(
                        arrays[2].data, [builder.add(builder.mul(place, i64(LANES)), i64(16 * half))]
                    )
                    builder.store(vector, builder.bitcast(pointer, words.as_pointer())).align = 2
                most = builder.select(builder.icmp_unsigned(">", even, odd), even, odd)
                builder.store(
                    builder.zext(builder.call(reduce, [most]), i32), builder.gep(arrays[3].data, [place])
                )
            return context.get_dummy_value()

        return types.void(codes, types.int64, tables, types.int64, types.int64, sums, highest), codegen


@helper
def table_sums(codes: Any, start: Any, stop: Any, tables: Any, group: Any, sums: Any, highest: Any) -> None:
    """Sum the table entries that the codes pick, for four rows and the blocks ``range(start, stop)``.

    Parameters
    ----------
    codes : uint8 (blocks, pairs, 32)
        Pairs are a multiple of four.  The low bits of a byte pick from table 2 p, the high ones from table
        2 p + 1; the byte at place j belongs to class ``j // 2 + 16 * (j % 2)`` of the block.
    tables : uint8 (groups, 4, 2 pairs, 16)
        Of which ``tables[group]`` are used; no entry is above 31.
    sums : uint16 (4, slots, 32)
        Filled; block ``start + slot`` goes to `slot`.
    highest : int32 (4, slots)
        Filled with the largest sum of each block.
    """
    for slot in range(stop - start):
        _block_sums(codes, start + slot, tables, group, slot, sums, highest)
