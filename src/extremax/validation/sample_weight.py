"""Weights of rows: one finite number >= 0 per row."""

from __future__ import annotations

from typing import Any

import numpy as np

from extremax.types import Float32

_MIN_WEIGHT = 1e-15  # lower bound of the largest weight; its inverse is the upper bound


def check_sample_weight(sample_weight: Any, n_samples: int, *, name: str = "sample_weight") -> Float32 | None:
    """Return one finite weight >= 0 per row as float32, or None for None.

    A single number is the weight of every row.
    """
    if sample_weight is None:
        return None
    try:
        given = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"{name} holds something that is not a number ({error}); it needs one weight per row."
        ) from error
    if given.ndim == 0:
        given = np.full(n_samples, given)
    if given.shape != (n_samples,):
        raise ValueError(
            f"{name} has shape {given.shape}, but there are {n_samples:,} rows: it needs shape"
            f" ({n_samples},)."
        )
    wrong = ~((given >= 0) & (given <= np.finfo(np.float32).max))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(f"{name}[{row}] is {given[row]}; a weight is a finite number >= 0.")
    if not (given > 0).any():
        raise ValueError(f"{name} is zero for every row: at least one weight must be above zero.")
    if not _MIN_WEIGHT <= given.max() <= 1.0 / _MIN_WEIGHT:
        raise ValueError(
            f"the largest {name} is {given.max():g}, whose square float32 cannot hold; divide the weights by"
            " their mean."
        )
    return given.astype(np.float32)
