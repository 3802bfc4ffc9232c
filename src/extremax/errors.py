"""Errors and warnings that users may want to catch."""

from __future__ import annotations

import sys
import warnings


class ModelFileError(ValueError):
    """Raised for a folder that is not a model, is damaged, or was written by a newer version."""


class NotEnoughMemoryError(MemoryError):
    """Raised before work starts that needs more memory than there is."""


class ScoreOverflowError(ValueError):
    """Raised for a row of X whose scores overflow float32."""

    def __init__(self, row: int) -> None:
        super().__init__(
            f"The scores of X[{row}] overflow float32; scale the row down to the size of the training rows."
        )
        self.row = row

    def __reduce__(self) -> tuple[type[ScoreOverflowError], tuple[int]]:
        return type(self), (self.row,)  # pickled by its row, not by its sentence


class TrainingInterruptedWarning(UserWarning):
    """Issued when Ctrl-C ends a fit early and the model is kept as far as it got."""


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn in the name of the first caller outside this package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("extremax."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
