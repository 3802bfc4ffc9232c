"""How strongly to regularize the label tree, level by level, by the likelihood of held-out rows.

One strength for all nodes is wrong for most of them: near the root a node has every row and noise in every
direction, near the leaves a handful of rows of a few classes. What overfits there goes straight into every
prediction, for bias removal adds log p_n. So: the structure is fitted on nine tenths of the rows; node
parameters are refitted at each strength of a grid; each level takes the strength under which its decisions
for the last tenth are most probable; and the parameters are fitted once more, on all rows. The strongest
penalty leaves only the biases, that is the class frequencies: the tree cannot end up far below them.

Deep levels have thousands of nodes that all behave alike, so a sample of subtrees decides for them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from extremax.tree import LabelTree

GRID = (0.01, 0.1, 1.0, 10.0, 100.0, 1e4)
_HELD_OUT = 0.1
_SAMPLE_ROWS = 120_000  # enough to rank strengths; more rows only cost time
_STRUCTURE_STRENGTH = 0.3
_ROUGH: dict[str, Any] = {"n_starts": 1, "max_points": 20_000}  # a structure in a third of the time
_ROUGH_ROWS = 30_000
_BIAS_STRENGTH = 1.0


class TunedTree(NamedTuple):
    """A tree, the strength of each of its levels, and what the held-out rows said of it."""

    tree: LabelTree
    strengths: NDArray[np.float64]
    held_out_log_likelihood: float | None


def fit_tuned(
    Z: NDArray[np.float32],
    y: NDArray[np.int32],
    *,
    n_classes: int,
    sample_weight: NDArray[np.float32] | None = None,
    rows: NDArray[np.int64] | None = None,
    grid: tuple[float, ...] = GRID,
    rough: bool = False,
    n_jobs: int | None = None,
    seed: int = 0,
) -> TunedTree:
    """Fit a `LabelTree` whose regularization is chosen per level on a tenth of the rows.

    `rows` tells which lines of `Z` and `y` belong to one row with several labels: they are held out together,
    or the judged lines would not be new to the tree. A `rough` fit takes a third of the time and loses some
    likelihood.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(30, size=600).astype(np.int32)
    >>> pure_noise = rng.normal(size=(600, 8)).astype(np.float32)
    >>> tuned = fit_tuned(pure_noise, y, n_classes=30)
    >>> bool(tuned.held_out_log_likelihood > -np.log(30) - 0.2)  # no better than frequencies, and hardly worse
    True
    """
    rng = np.random.default_rng((seed, 2))
    # of those with a line
    row = np.arange(len(y)) if rows is None else np.cumsum(np.diff(rows, prepend=rows[0]) != 0)
    held_out = (rng.random(int(row.max()) + 1) < _HELD_OUT)[row]
    if not held_out.any() or held_out.all():
        held_out = row % 10 == 9
    train = ~held_out
    weight = np.ones(len(y), np.float32) if sample_weight is None else sample_weight
    structure = LabelTree.fit(
        Z[train],
        y[train],
        n_classes=n_classes,
        regularization=_STRUCTURE_STRENGTH,
        bias_regularization=_BIAS_STRENGTH,
        sample_weight=weight[train],
        n_jobs=n_jobs,
        random_state=seed,
        **(_ROUGH if rough else {}),
    )
    if structure.depth == 0 or not held_out.any():  # one class, or too few rows to keep any back
        return TunedTree(structure, np.full(structure.depth, _STRUCTURE_STRENGTH), None)
    figures = np.empty((len(grid), structure.depth))
    for chosen, levels in _groups(structure, y, rng, _ROUGH_ROWS if rough else _SAMPLE_ROWS):
        fitted, judged = chosen & train, chosen & held_out
        for i, strength in enumerate(grid):
            tree = structure.refit(
                Z[fitted],
                y[fitted],
                regularization=strength,
                bias_regularization=_BIAS_STRENGTH,
                sample_weight=weight[fitted],
                n_jobs=n_jobs,
                random_state=seed,
            )
            figures[i, levels] = tree.level_log_prob(Z[judged], y[judged], n_jobs=n_jobs)[levels]
    strengths = np.asarray(grid)[figures.argmax(axis=0)]
    tree = structure.refit(
        Z,
        y,
        regularization=strengths,
        bias_regularization=_BIAS_STRENGTH,
        sample_weight=weight,
        n_jobs=n_jobs,
        random_state=seed,
    )
    return TunedTree(tree, strengths, float(figures.max(axis=0).sum()))


def _groups(
    tree: LabelTree, y: NDArray[np.int32], rng: np.random.Generator, sample: int
) -> list[tuple[NDArray[np.bool_], slice]]:
    """Rows that decide for a range of levels: all rows if few; else a sample for the top, some subtrees
    below it.
    """
    share = sample / len(y)
    if share >= 1.0:
        return [(np.ones(len(y), bool), slice(0, tree.depth))]
    top = min(6, tree.depth)
    subtrees = rng.permutation(1 << top)[: max(1, round(share * (1 << top)))]
    subtree = tree.class_leaf[y] >> (tree.depth - top)
    return [(rng.random(len(y)) < share, slice(0, top)), (np.isin(subtree, subtrees), slice(top, tree.depth))]
