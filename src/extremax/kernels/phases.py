"""Share the tasks of consecutive phases among threads that run the same kernel.

Each phase has the same number of tasks, and a phase begins when all tasks of the phase before are finished.
Threads claim tasks: each its own first, then those not begun yet. A thread that the system does not
run is therefore waited for only while it is in the middle of a task, and a thread that never comes is not
missed. A thread that waits spins for some ten microseconds and then sleeps, so that it takes no processor
from the thread that it waits for.

Which thread runs a task must not matter: a task may depend on nothing but its phase and its number.
"""

from __future__ import annotations

import platform
import sys
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from extremax.kernels.compile import JIT_DISABLED, helper

# Elements of a schedule. Those that different threads write lie on cache lines of their own (and not on
# neighbouring ones, which processors fetch in pairs).
_PHASE = 0  # the phase whose tasks can be claimed
_FINISHED = 16  # tasks finished so far, in all phases
_SLEEPERS = 32  # threads that sleep, or are about to
_ABANDONED = 48  # 1 after `abandon`
_TIMEOUT = 56  # of one sleep, as a timespec: seconds and nanoseconds
_CLAIMS = 64  # of each task, the number of phases in which it has been claimed
_STRIDE = 16  # between the claims of two tasks

_SPINS = 2000  # some 20 to 50 nanoseconds each
_TIMEOUT_NANOSECONDS = 50_000_000  # after that a sleeping thread sees that the schedule is abandoned


def new_schedule(n_tasks: int) -> NDArray[np.int64]:
    """Return the state that threads share, for phases of `n_tasks` tasks each."""
    schedule = np.zeros(_CLAIMS + _STRIDE * n_tasks, np.int64)
    schedule[_TIMEOUT + 1] = _TIMEOUT_NANOSECONDS
    return schedule


def abandon(schedule: NDArray[np.int64]) -> None:
    """Make `claim_task` return -1 to threads that wait: a task that somebody claimed will not be finished."""
    schedule[_ABANDONED] = 1


if JIT_DISABLED:  # interpreted kernels run on one thread, which never has to wait

    def _load(array: Any, index: int) -> int:
        return int(array[index])

    def _add(array: Any, index: int, value: int) -> int:
        array[index] += value
        return int(array[index]) - value

    def _replace(array: Any, index: int, expected: int, value: int) -> bool:
        if array[index] != expected:
            return False
        array[index] = value
        return True

    def _pause() -> None:
        pass

    def _sleep_while(array: Any, index: int, value: int) -> None:
        pass

    def _wake_all(array: Any, index: int) -> None:
        pass

else:

    def _pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        """Build the address of ``array[index]``, `array` and `index` being the first two arguments."""
        array = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.gep(array.data, [args[1]])

    @intrinsic
    def _load(typingctx: Any, array: Any, index: Any) -> Any:
        """Read an int64 element that other threads write."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.load_atomic(_pointer(context, builder, signature, args), "seq_cst", 8)

        return types.int64(array, types.int64), codegen

    @intrinsic
    def _add(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
        """Add to an int64 element in one indivisible step; return the old value."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.atomic_rmw("add", _pointer(context, builder, signature, args), args[2], "seq_cst")

        return types.int64(array, types.int64, types.int64), codegen

    @intrinsic
    def _replace(typingctx: Any, array: Any, index: Any, expected: Any, value: Any) -> Any:
        """Replace an int64 element if it is `expected`, in one indivisible step; return whether it was."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = _pointer(context, builder, signature, args)
            return builder.extract_value(builder.cmpxchg(pointer, args[2], args[3], "seq_cst"), 1)

        return types.boolean(array, types.int64, types.int64, types.int64), codegen

    @intrinsic
    def _address(typingctx: Any, array: Any, index: Any) -> Any:
        """Return the address of an int64 element as an int64."""
        from llvmlite import ir

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.ptrtoint(_pointer(context, builder, signature, args), ir.IntType(64))

        return types.int64(array, types.int64), codegen

    @intrinsic
    def _pause(typingctx: Any) -> Any:
        """Tell the processor that this thread spins: it leaves more to the other thread of the core."""
        from llvmlite import ir
        from numba.core import cgutils

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            hint, arguments = None, []
            if platform.machine() in ("x86_64", "AMD64"):
                hint = "llvm.x86.sse2.pause"
            elif platform.machine() in ("aarch64", "arm64"):
                hint, arguments = "llvm.aarch64.hint", [ir.IntType(32)(1)]
            if hint is not None:
                kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
                builder.call(cgutils.get_or_insert_function(builder.module, kind, hint), arguments)
            return context.get_dummy_value()

        return types.void(), codegen

    # Numbers of the system call futex. Where there is none, a thread that waits looks again now and then.
    _FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221}.get(platform.machine())

    if sys.platform == "linux" and sys.maxsize > 2**32 and _FUTEX is not None:
        _WAIT, _WAKE = 128, 129  # FUTEX_WAIT and FUTEX_WAKE among the threads of one process
        _ALL_SLEEPERS = 2**31 - 1
        _syscall = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))

        @helper
        def _sleep_while(array: Any, index: Any, value: Any) -> None:
            """Sleep until `_wake_all` or the timeout, unless ``array[index] != value`` already."""
            _syscall(_FUTEX, _address(array, index), _WAIT, value, _address(array, _TIMEOUT), 0, 0)

        @helper
        def _wake_all(array: Any, index: Any) -> None:
            """Wake the threads that sleep on ``array[index]``, which has changed."""
            _syscall(_FUTEX, _address(array, index), _WAKE, _ALL_SLEEPERS, 0, 0, 0)

    else:
        if sys.platform == "win32":
            _sleep, _A_MOMENT = types.ExternalFunction("Sleep", types.void(types.uint32)), 1  # milliseconds
        else:
            _sleep, _A_MOMENT = (
                types.ExternalFunction("usleep", types.int32(types.uint32)),
                50,
            )  # microseconds

        @helper
        def _sleep_while(array: Any, index: Any, value: Any) -> None:
            """Sleep for a moment."""
            _sleep(_A_MOMENT)

        @helper
        def _wake_all(array: Any, index: Any) -> None:
            """Do nothing: who sleeps wakes up soon."""


@helper
def _await_next_phase(schedule: Any, phase: Any) -> bool:
    """Wait until tasks of a later phase than `phase` can be claimed; return False if that will never be."""
    for _ in range(_SPINS):
        if _load(schedule, _PHASE) != phase:
            return True
        _pause()
    # A thread that opens a phase looks for sleepers afterwards. Either it sees this one, or this one sees
    # the new phase: both orders of events are safe because all these reads and writes have one order.
    while _load(schedule, _PHASE) == phase:
        if _load(schedule, _ABANDONED) != 0:
            return False
        _add(schedule, _SLEEPERS, 1)
        _sleep_while(schedule, _PHASE, phase)
        _add(schedule, _SLEEPERS, -1)
    return True


@helper
def claim_task(schedule: Any, preferred: Any, n_tasks: Any, n_phases: Any) -> Any:
    """Return a task for the caller to run, as ``phase * n_tasks + number``, or -1 when there are none left.

    Waits until a phase has unclaimed tasks. Task number `preferred` of a phase is tried first.
    """
    while True:
        phase = _load(schedule, _PHASE)
        if phase >= n_phases:
            return -1
        for i in range(n_tasks):
            number = (preferred + i) % n_tasks
            claim = _CLAIMS + _STRIDE * number
            if _load(schedule, claim) == phase and _replace(schedule, claim, phase, phase + 1):
                return phase * n_tasks + number
        if not _await_next_phase(schedule, phase):
            return -1


@helper
def finish_task(schedule: Any, n_tasks: Any) -> None:
    """Report that the claimed task is done; the last one of a phase opens the next phase."""
    if (_add(schedule, _FINISHED, 1) + 1) % n_tasks == 0:
        _add(schedule, _PHASE, 1)
        if _load(schedule, _SLEEPERS) > 0:
            _wake_all(schedule, _PHASE)
