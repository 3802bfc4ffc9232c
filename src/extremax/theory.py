"""The old place of `extremax.paper.theory`, kept for one release."""

from __future__ import annotations

from extremax.runtime.moved import forward

__getattr__ = forward("extremax.theory", "extremax.paper.theory")
