"""Compile kernels with numba, cached on disk, without the GIL.

With ``NUMBA_DISABLE_JIT=1`` the same code runs as plain Python (slowly), for debugging and for bounds checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba.extending import overload

F = TypeVar("F", bound=Callable[..., Any])

JIT_DISABLED = bool(numba.config.DISABLE_JIT)

# Reassociation and contraction let a dot product use SIMD lanes and fused multiply-adds.  NaN, infinity and
# signed zero keep their meaning, so guards in the code stay guards.
_FASTMATH = {"reassoc", "contract", "arcp"}


def njit(func: F) -> F:
    """Compile `func` without the GIL, cached on disk; uncached when no cache folder can be written."""
    options: dict[str, Any] = {"nogil": True, "fastmath": _FASTMATH, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(func)  # type: ignore[no-any-return]
    except (
        RuntimeError
    ):  # numba found no writable place for the cache: a read-only install without a home folder
        return numba.njit(**options)(func)  # type: ignore[no-any-return]


def helper(func: F) -> F:
    """Compile a function that only kernels call: without the door for Python, which takes long to build."""
    options: dict[str, Any] = {"fastmath": _FASTMATH, "error_model": "numpy"}
    return numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)(func)  # type: ignore[no-any-return]


def inline(func: F) -> F:
    """Compile a small helper that is merged into each kernel calling it, so that loops around it
    vectorise.
    """
    return numba.njit(forceinline=True, fastmath=_FASTMATH, error_model="numpy")(func)  # type: ignore[no-any-return]


def by_class(table: dict[type, Callable[..., Any]]) -> Callable[..., Any]:
    """A function for kernels that calls ``table[class of its first argument]``, the classes being named
    tuples.

    Which one is settled when the kernel is compiled: it contains that one alone, and nothing is asked while
    it runs."""

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
