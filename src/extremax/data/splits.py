"""The old place of `extremax.splits`, kept for one release."""

from __future__ import annotations

from extremax.runtime.moved import forward

__getattr__ = forward("extremax.data.splits", "extremax.splits")
