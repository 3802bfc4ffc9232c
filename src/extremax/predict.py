"""The old place of `extremax.search`, kept for one release."""

from __future__ import annotations

from extremax.runtime.moved import forward

_NAMES = {"Calibration": "extremax.calibration.Calibration", "CodeIndex": "extremax.search.PQSearch"}
__getattr__ = forward("extremax.predict", "extremax.search", _NAMES)
