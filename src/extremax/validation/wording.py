"""Wording that several checks share."""

from __future__ import annotations

from typing import Any

ESTIMATOR = "ExtremeClassifier"


def short(value: Any) -> str:
    """Return ``repr(value)``, of a numpy scalar the number alone, cut to 60 characters."""
    text = repr(value.item() if _is_numpy_scalar(value) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_numpy_scalar(value: Any) -> bool:
    return any(base.__module__ == "numpy" and base.__name__ == "generic" for base in type(value).__mro__)
