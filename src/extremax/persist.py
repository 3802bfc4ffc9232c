"""The old place of `extremax.storage.folder`, kept for one release."""

from __future__ import annotations

from extremax.runtime.moved import forward

__getattr__ = forward("extremax.persist", "extremax.storage.folder")
