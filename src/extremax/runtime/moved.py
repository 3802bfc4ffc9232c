"""Modules that have moved: their old names still work, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def forward(old: str, new: str, names: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` that takes names from the module `new`.

    `names` maps those that changed to their new ``module.name``.
    """

    def find(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        module, _, attribute = (names or {}).get(name, f"{new}.{name}").rpartition(".")
        value = getattr(import_module(module), attribute)
        message = f"{old}.{name} is now {module}.{attribute}; the old name will go with the next release."
        warnings.warn(message, FutureWarning, stacklevel=2)
        return value

    return find
