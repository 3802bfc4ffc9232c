"""The old place of `extremax.training.objectives`, kept for one release."""

from __future__ import annotations

from extremax.runtime.moved import forward

__getattr__ = forward("extremax.objectives", "extremax.training.objectives")
