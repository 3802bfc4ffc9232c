"""What a case may end with: a result that a slow reference confirms, or one sentence of this package."""

from __future__ import annotations

import traceback
from pathlib import Path

import extremax
from extremax.data.dataset import DataFileError
from extremax.errors import ModelFileError, NotEnoughMemoryError

PACKAGE = str(Path(extremax.__file__).parent)
REJECTED, PASSED = "rejected", "passed"


class WrongResult(AssertionError):
    """Raised by a case whose result is not that of the reference."""


def is_sentence(error: BaseException) -> bool:
    """Whether an error is one of this package, worded for users: a sentence that this package raised."""
    text = str(error)
    if "\n" in text or not text or len(text) > 2000:
        return False
    if isinstance(error, ModelFileError | DataFileError | NotEnoughMemoryError):
        return True
    raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
    return (
        isinstance(error, ValueError | FileNotFoundError)
        and raised_in.startswith(PACKAGE)
        and text.endswith(".")
    )


def require(condition: bool, what: str) -> None:
    """Raise WrongResult unless a condition holds."""
    if not condition:
        raise WrongResult(what)
