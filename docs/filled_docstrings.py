"""Fill in docstrings whose parameters come from a table: an extension of griffe, which reads sources only."""

from __future__ import annotations

import inspect
from typing import Any

import griffe


class FilledDocstrings(griffe.Extension):
    """Take the docstring of a class from the imported class where the source has a placeholder."""

    def on_class_instance(self, *, cls: griffe.Class, **_: Any) -> None:
        if cls.docstring is not None and "{parameters}" in cls.docstring.value:
            cls.docstring.value = inspect.getdoc(griffe.dynamic_import(cls.path)) or ""
