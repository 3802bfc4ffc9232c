"""The old place of `extremax.features.pca`, kept for one release."""

from __future__ import annotations

from extremax.runtime.moved import forward

__getattr__ = forward("extremax.data.pca", "extremax.features.pca")
