"""Print the public names of modules with their signatures, one per line, to compare two versions.

Usage: `python lab/signatures.py extremax extremax.data > signatures.txt`.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import warnings
from collections.abc import Iterator
from types import ModuleType


def signature(thing: object) -> str:
    """The signature without package names and addresses; empty where there is none."""
    if not callable(thing):
        return ""
    try:
        text = str(inspect.signature(thing))
    except (TypeError, ValueError):
        return ""
    return re.sub(r" at 0x[0-9a-f]+", "", text.replace("extremax.", ""))


def public_names(module: ModuleType) -> list[str]:
    """`__all__`, or what the module itself defines without a leading underscore."""
    listed = getattr(module, "__all__", None)
    if listed:
        return sorted(listed)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    )


def members(cls: type) -> Iterator[str]:
    """The public members of a class that extremax itself defines."""
    for name in sorted(dir(cls)):
        if name.startswith("_"):
            continue
        owner = next((base for base in cls.__mro__ if name in vars(base)), cls)
        if owner.__module__.startswith("extremax"):
            value = inspect.getattr_static(cls, name)
            yield name + signature(getattr(value, "__func__", value))


def lines(module_name: str) -> Iterator[str]:
    """One line per public name of a module, and one per member of its classes."""
    try:
        module = importlib.import_module(module_name)
    except ImportError:
        yield f"{module_name} absent"
        return
    for name in public_names(module):
        thing = getattr(module, name)
        yield f"{module_name}.{name}{signature(thing)}"
        if inspect.isclass(thing):
            for member in members(thing):
                yield f"{module_name}.{name}.{member}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for argument in sys.argv[1:]:
        sys.stdout.writelines(f"{line}\n" for line in lines(argument))
