"""Compile kernels with numba: without the GIL, cached on disk.

With ``NUMBA_DISABLE_JIT=1`` the same code runs as plain Python (slowly), for debugging and for bounds checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

import numba
from numba.extending import overload

F = TypeVar("F", bound=Callable[..., Any])

JIT_DISABLED = bool(numba.config.DISABLE_JIT)

# Reassociation and contraction let a dot product use SIMD lanes and fused multiply-adds.  NaN, infinity and
# signed zero keep their meaning, so guards in the code stay guards.
_FASTMATH = {"reassoc", "contract", "arcp"}
_OPTIONS: dict[str, Any] = {"fastmath": _FASTMATH, "error_model": "numpy"}


def njit(func: F) -> F:
    """Compile a kernel that Python calls; cached on disk where a cache folder can be written."""
    try:
        return numba.njit(nogil=True, cache=True, **_OPTIONS)(func)  # type: ignore[no-any-return]
    except RuntimeError:  # numba found no place for the cache: a read-only install without a home folder
        return numba.njit(nogil=True, **_OPTIONS)(func)  # type: ignore[no-any-return]


def helper(func: F) -> F:
    """Compile a function that only kernels call, without the slow-to-build entry point for Python."""
    return numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS)(func)  # type: ignore[no-any-return]


def inline(func: F) -> F:
    """Compile a small function into each kernel that calls it, so that loops around it vectorise."""
    return numba.njit(forceinline=True, **_OPTIONS)(func)  # type: ignore[no-any-return]


def njit_extensible(func: F) -> F:
    """Compile a kernel that calls functions which users may register (see `by_class`).

    Calls whose arguments hold named tuples of another package are compiled for this process alone.  numba's
    cache on disk refers to a class by module and name: its index could not be read where that module is
    missing, and a changed function for the same class would go unnoticed.
    """
    if JIT_DISABLED:
        return func
    cached = njit(func)
    uncached = numba.njit(nogil=True, **_OPTIONS)(func)

    @wraps(func)
    def call(*arguments: Any) -> Any:
        return (uncached if any(map(_is_foreign, arguments)) else cached)(*arguments)

    call.cached, call.uncached = cached, uncached  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def _is_foreign(value: Any) -> bool:
    """Whether a value is, or holds, a named tuple of a class that this package does not define."""
    if not isinstance(value, tuple):
        return False
    own = type(value) is tuple or type(value).__module__.startswith("extremax.")
    return not own or any(map(_is_foreign, value))


def by_class(table: Mapping[type, Callable[..., Any]]) -> Callable[..., Any]:
    """Return a function for kernels that calls ``table[type(first argument)]``.

    The keys are classes of named tuples.  The choice is made when a kernel is compiled, which then contains
    the chosen function alone.  Entries added to `table` later are found by kernels compiled later.
    """

    def call(first: Any, *others: Any) -> Any:
        return _entry(table, type(first))(first, *others)

    if not JIT_DISABLED:

        @overload(call)
        def choose(first: Any, *others: Any) -> Any:
            chosen = _entry(table, first.instance_class)

            def implementation(first: Any, *others: Any) -> Any:
                return chosen(first, *others)

            return implementation

    return call


def _entry(table: Mapping[type, Callable[..., Any]], cls: type) -> Callable[..., Any]:
    if cls not in table:
        known = ", ".join(sorted(key.__name__ for key in table))
        raise TypeError(f"no kernel is registered for {cls.__name__}; known are {known}.")
    return table[cls]
