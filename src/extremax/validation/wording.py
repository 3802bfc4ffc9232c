"""Words that several checks share."""

from __future__ import annotations

from typing import Any

ESTIMATOR = "ExtremeClassifier"


def short(value: Any) -> str:
    """``repr(value)``, cut where it would make a sentence unreadable."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
