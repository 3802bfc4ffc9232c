"""Compile kernels with numba: without the GIL, cached on disk.

A file of the cache that a crash or a full disk cut short is thrown away, and its kernel compiled again.

With ``NUMBA_DISABLE_JIT=1`` the same code runs as plain Python (slowly), for debugging and for bounds checks.
"""

from __future__ import annotations

import glob
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.caching import FunctionCache
from numba.extending import overload

F = TypeVar("F", bound=Callable[..., Any])

JIT_DISABLED = bool(numba.config.DISABLE_JIT)

# Reassociation and contraction let a dot product use SIMD lanes and fused multiply-adds.  NaN, infinity and
# signed zero keep their meaning, so guards in the code stay guards.
_FASTMATH = {"reassoc", "contract", "arcp"}
_OPTIONS: dict[str, Any] = {"fastmath": _FASTMATH, "error_model": "numpy"}


class MendingCache(FunctionCache):  # type: ignore[misc]
    """numba's cache of a function; without it, a damaged file would end every later process."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # unpickling damaged bytes can raise anything
            self._throw_away()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except (
            OSError
        ):  # a full disk, or a folder that may no longer be written: the kernel runs all the same
            self._throw_away()
            _warn_uncached()
        except Exception:  # the index is damaged
            self._throw_away()
            super().save_overload(sig, data)

    def _throw_away(self) -> None:
        """Delete all that is cached of the function."""
        folder, name = Path(self._cache_path), glob.escape(self._impl.filename_base)
        for path in (*folder.glob(f"{name}.nbi"), *folder.glob(f"{name}.*.nbc")):
            with suppress(OSError):
                path.unlink()


def njit(func: F) -> F:
    """Compile a kernel that Python calls; cached on disk where a cache folder can be written."""
    compiled = numba.njit(nogil=True, no_cfunc_wrapper=True, **_OPTIONS)(func)
    if not JIT_DISABLED:
        try:
            compiled._cache = MendingCache(compiled.py_func)
        except RuntimeError:  # numba found no place, in a read-only install without a home folder
            _warn_uncached()
    return compiled  # type: ignore[no-any-return]


@cache
def _warn_uncached() -> None:
    """Say once how kernels need not be compiled in every process."""
    warnings.warn(
        "compiled kernels cannot be kept, so every process compiles them again, for up to a minute; set"
        " NUMBA_CACHE_DIR to a folder that can be written.",
        RuntimeWarning,
        stacklevel=3,
    )


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

        @overload(call, jit_options={"forceinline": True})
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
