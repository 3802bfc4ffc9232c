"""Rows set aside for validation and test."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse


def split_rows(
    y: Any, *, fractions: tuple[float, ...] = (0.1,), seed: int = 0, keep_classes: bool = True
) -> tuple[NDArray[np.int64], ...]:
    """Row numbers for training, then for each fraction held out, at random.

    Parameters
    ----------
    y : (n_samples,) array, CSR indicator matrix (n_samples, n_labels), or int
        Labels, or the number of rows if `keep_classes` is False.
    fractions : tuple of float
        Share of each held-out part, for example ``(0.1, 0.1)`` for validation and test.
    seed : int
        Seed of the choice.
    keep_classes : bool
        Keep one row of every class, chosen at random, in training: rows of an unseen class say nothing about
        a model. The held-out parts are then smaller than asked for where most classes have one row.

    Returns
    -------
    tuple of int64 arrays
        Sorted row numbers: training first, then one array per fraction.

    Examples
    --------
    >>> import numpy as np
    >>> from extremax.data import split_rows
    >>> train, valid = split_rows(np.array([0, 0, 0, 0, 1, 2, 2, 2]), fractions=(0.25,))
    >>> len(train), len(valid)
    (6, 2)
    """
    if any(fraction < 0 for fraction in fractions) or sum(fractions) >= 1:
        raise ValueError(f"fractions are {fractions}; they must be >= 0 and leave something for training.")
    several = sparse.issparse(y)
    n_samples = int(y.shape[0]) if several else int(y) if np.ndim(y) == 0 else len(y)
    order = np.random.default_rng(seed).permutation(n_samples)
    if keep_classes and several:
        # In random order, the first row with each label stays; of the others those with any label are free.
        if hasattr(y, "check_format"):
            y.check_format(full_check=True)  # a conversion follows indices wherever they lead
        shuffled = sparse.csr_array(y)[order]
        shuffled.eliminate_zeros()
        free = np.diff(shuffled.indptr) > 0
        _, first = np.unique(shuffled.indices, return_index=True)
        free[np.searchsorted(shuffled.indptr, first, side="right") - 1] = False
        order = order[free]
    elif keep_classes:
        if np.ndim(y) != 1:
            raise ValueError(
                "keep_classes needs one label per row; pass keep_classes=False for a number of rows."
            )
        # In random order, the first row of each class stays; the others keep their random order.
        _, first = np.unique(np.asarray(y)[order], return_index=True)
        free = np.ones(n_samples, dtype=bool)
        free[first] = False
        order = order[free]
    taken = 0
    parts: list[NDArray[np.int64]] = []
    for fraction in fractions:
        size = min(round(fraction * n_samples), len(order) - taken)
        parts.append(np.sort(order[taken : taken + size]).astype(np.int64))
        taken += size
    train = np.ones(n_samples, dtype=bool)
    for part in parts:
        train[part] = False
    return (np.flatnonzero(train).astype(np.int64), *parts)


def seen_classes(y: Any, y_train: Any) -> NDArray[np.bool_]:
    """Whether the class of each row occurs in training: rows of other classes are left out of test figures,
    and counted.

    Examples
    --------
    >>> from extremax.data import seen_classes
    >>> seen_classes(["a", "b"], ["a", "a", "c"]).tolist()
    [True, False]
    """
    return np.isin(np.asarray(y), np.unique(np.asarray(y_train)))
