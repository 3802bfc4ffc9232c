"""The old place of `extremax.paper.theory`, kept for one release."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

_MODULE = "extremax.paper.theory"


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    warnings.warn(
        f"extremax.theory is now called {_MODULE}; the old name will go with the next release.",
        FutureWarning,
        stacklevel=2,
    )
    return getattr(import_module(_MODULE), name)
