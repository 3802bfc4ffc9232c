"""Reproduction of R. Bamler and S. Mandt, "Extreme Classification via Adversarial Softmax Approximation".

`reproduce` repeats the comparison of the paper's Figure 1 on a data set, `theory` computes the
signal-to-noise ratios of its section 4, and `theory_study` compares noise distributions on data.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from extremax.experiments.paper.reproduction import reproduce as reproduce

__all__ = ["reproduce"]


def __getattr__(name: str) -> Any:
    if name != "reproduce":  # imported when it is used: `theory` alone needs no estimator
        raise AttributeError(f"module 'extremax.experiments.paper' has no attribute {name!r}")
    return import_module("extremax.experiments.paper.reproduction").reproduce
