"""A barrier for threads that run the same kernel side by side."""

from __future__ import annotations

import sys
from typing import Any

import numba
from numba import types
from numba.extending import intrinsic

from extremax.kernels.compile import JIT_DISABLED

if JIT_DISABLED:

    def wait_for_all(state: Any, n_threads: int) -> None:
        """Return at once: interpreted code trains on one thread."""

else:

    @intrinsic
    def _atomic_add(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
        """Add to an int64 array element in one indivisible step; returns the old value."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            ary = context.make_array(signature.args[0])(context, builder, args[0])
            return builder.atomic_rmw("add", builder.gep(ary.data, [args[1]]), args[2], "seq_cst")

        return types.int64(array, types.int64, types.int64), codegen

    # A thread that waits long gives its processor to whoever it is waiting for.
    _yield_processor = types.ExternalFunction(
        "SwitchToThread" if sys.platform == "win32" else "sched_yield", types.int32()
    )
    _SPINS = 2000

    @numba.njit(nogil=True, cache=True)
    def wait_for_all(state: Any, n_threads: Any) -> None:
        """Return when all `n_threads` threads that share `state` (64 zeros of int64) have called this as
        often as the caller.

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
