"""The old place of `extremax.features.text`, kept for one release."""

from __future__ import annotations

from extremax.runtime.moved import forward

__getattr__ = forward("extremax.data.text", "extremax.features.text")
