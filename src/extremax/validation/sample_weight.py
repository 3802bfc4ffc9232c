"""Weights of rows, one finite number >= 0 each, and of classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from extremax.errors import warn_caller
from extremax.examples import Examples
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


def row_weight(data: Examples, sample_weight: Any) -> Float32 | None:
    """Return the weights of the rows, which must not all be zero where there are labels."""
    weight = check_sample_weight(sample_weight, data.n_rows)
    if weight is not None and not weight[data.rows].any():
        raise ValueError(
            "sample_weight is zero for every row with a label; at least one of their weights must be"
            " above zero."
        )
    return weight


def warn_unlabelled(data: Examples, name: str) -> None:
    """Warn of rows without any label, which are left out, in the name of the method that a user called."""
    if data.n_unlabelled:
        warn_caller(
            f"{data.n_unlabelled:,} of {data.n_rows:,} rows of {name} have no label; they are left out."
        )


def class_weights(given: Mapping[int, Any] | str, data: Examples, n_classes: int) -> Float32:
    """Return the factor of the weight of every class, (n_classes,).

    Parameters
    ----------
    given
        Weights of some classes by number, 1 for the others; or "balanced": pairs over classes that occur
        over pairs of the class, both weighted.
    """
    weight = np.ones(n_classes)
    if isinstance(given, str):
        counts = data.take(data.y >= 0).class_counts(n_classes, weighted=True).astype(np.float64)
        used = counts > 0
        weight[used] = counts.sum() / (used.sum() * counts[used])
        return weight.astype(np.float32)
    for number, value in given.items():
        try:
            weight[number] = float(value)
        except (TypeError, ValueError):
            weight[number] = np.nan
        if not 0.0 <= weight[number] <= 1.0 / _MIN_WEIGHT:
            raise ValueError(f"class_weight has the weight {value!r}; a weight is a finite number >= 0.")
    return weight.astype(np.float32)
