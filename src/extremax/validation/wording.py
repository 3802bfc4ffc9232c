"""Words that several checks share."""

from __future__ import annotations

from typing import Any

import numpy as np

ESTIMATOR = "ExtremeClassifier"


def short(value: Any) -> str:
    """``repr(value)``, of a number the number alone, cut where it would make a sentence unreadable."""
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."
