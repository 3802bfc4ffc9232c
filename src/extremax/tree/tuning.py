"""Choose the regularization of the label tree, level by level, by the likelihood of held-out rows.

One penalty for all nodes is wrong for most of them: a node near the root has every row and noise in every
direction, a node near the leaves has few rows of a few classes.  Overfitting there affects every prediction
to which bias removal adds log p_n.  Therefore the structure is fitted on nine tenths of the rows; node
parameters are refitted with penalties of a grid; each level takes the penalty under which its decisions
for the last tenth are most probable; and the parameters are fitted once more, on all rows.  The largest
penalty leaves only the biases, that is the class frequencies: the tree cannot be much worse than those.

Deep levels have thousands of nodes that behave alike, so that a sample of subtrees decides for them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from extremax.tree import LabelTree
from extremax.tuned import TreeFitConfig, TreeTuningConfig
from extremax.types import Bool, Float32, Float64, Int32, Int64

_TUNING, _FIT = TreeTuningConfig(), TreeFitConfig()


class TunedTree(NamedTuple):
    """A tree, the regularization of each of its levels, and its likelihood on the held-out rows.

    Also the tree of the other rows that had its structure first, and which pairs were held out of that.
    """

    tree: LabelTree
    strengths: Float64
    held_out_log_likelihood: float | None
    structure: LabelTree
    held_out: Bool


def fit_tuned(  # noqa: PLR0913 (data, and how they are used)
    Z: Float32,
    y: Int32,
    *,
    n_classes: int,
    sample_weight: Float32 | None = None,
    row_index: Int64 | None = None,
    rough: bool = False,
    n_jobs: int | None = None,
    seed: int = 0,
    config: TreeTuningConfig = _TUNING,
    fit_config: TreeFitConfig = _FIT,
) -> TunedTree:
    """Fit a `LabelTree` whose regularization is chosen per level on a tenth of the rows.

    Parameters
    ----------
    Z, y : (n_pairs, n_components), (n_pairs,)
        Features and classes.
    row_index : (n_pairs,)
        Row that each pair belongs to, ascending, where rows have several labels.  The pairs of a row are held
        out together: otherwise the tree would have been fitted to the rows that choose.
    rough
        Whether to take a third of the time and lose some likelihood.
    config, fit_config
        Numbers of the choice and of the fits.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(30, size=600).astype(np.int32)
    >>> pure_noise = rng.normal(size=(600, 8)).astype(np.float32)
    >>> tuned = fit_tuned(pure_noise, y, n_classes=30)
    >>> bool(tuned.held_out_log_likelihood > -np.log(30) - 0.2)  # hardly worse than the class frequencies
    True
    """
    rng = np.random.default_rng((seed, 2))
    held_out = _hold_out(len(y), row_index, config.held_out, rng)
    train = ~held_out
    weight = np.ones(len(y), np.float32) if sample_weight is None else sample_weight
    structure_config = replace(fit_config, fit_pairs=False)
    if rough:
        structure_config = replace(
            structure_config, n_starts=config.rough_starts, max_points=config.rough_points
        )
    structure = LabelTree.fit(
        Z[train],
        y[train],
        config=structure_config,
        n_classes=n_classes,
        regularization=config.structure_regularization,
        bias_regularization=config.bias_regularization,
        sample_weight=weight[train],
        n_jobs=n_jobs,
        random_state=seed,
    )

    def refit(
        tree: LabelTree,
        rows: Bool | slice,
        regularization: float | Float64,
        levels: tuple[int, int] | None,
        scale: float = 1.0,
    ) -> LabelTree:
        return tree.refit(
            Z[rows],
            y[rows],
            config=fit_config,
            regularization=regularization,
            bias_regularization=config.bias_regularization,
            sample_weight=weight[rows] * np.float32(scale),
            levels=levels,
            n_jobs=n_jobs,
            random_state=seed,
        )

    if structure.depth == 0 or not held_out.any():  # one class, or too few rows to hold any out
        strengths = np.full(structure.depth, config.structure_regularization)
        return TunedTree(refit(structure, train, strengths, None), strengths, None, structure, held_out)

    log_prob = np.full((len(config.grid), structure.depth), -np.inf)
    best = np.zeros(structure.depth, np.int64)
    for chosen, levels, scale in _deciding_rows(structure, y, config, rng):
        fitted, judged = chosen & train, chosen & held_out
        Z_judged, y_judged, cut = Z[judged], y[judged], slice(*levels)

        def judge(tree: LabelTree, i: int) -> LabelTree:
            tree = refit(tree, fitted, config.grid[i], levels, scale)
            log_prob[i, cut] = tree.level_log_prob(Z_judged, y_judged, n_jobs=n_jobs)[cut]
            best[cut] = _best(log_prob[:, cut])
            return tree

        # Upwards while some level is best there, then downwards: no penalty beyond both ends can be the best.
        low = high = min(1, len(config.grid) - 1)
        tree = first = judge(structure, low)
        while high + 1 < len(config.grid) and (best[cut] == high).any():
            high += 1
            tree = judge(tree, high)
        while low > 0 and (best[cut] == low).any():
            low -= 1
            first = judge(first, low)
    strengths = np.asarray(config.grid)[best]
    likelihood = float(log_prob[best, np.arange(structure.depth)].sum())
    tree = refit(structure, slice(None), strengths, None)
    return TunedTree(tree, strengths, likelihood, structure, held_out)


def _best(log_prob: Float64) -> Int64:
    """Return the best row of each column and its neighbours: levels want similar penalties."""
    padded = np.pad(log_prob, ((0, 0), (1, 1)))
    total = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    best: Int64 = total.argmax(axis=0)
    return best


def _hold_out(n_pairs: int, row_index: Int64 | None, fraction: float, rng: np.random.Generator) -> Bool:
    """Choose rows at random and return which pairs belong to them."""
    # number of each pair's row among the rows that have pairs
    row = np.arange(n_pairs)
    if row_index is not None:
        row = np.cumsum(np.diff(row_index, prepend=row_index[0]) != 0)
    held_out: Bool = (rng.random(int(row.max()) + 1) < fraction)[row]
    if not held_out.any() or held_out.all():
        held_out = row % 10 == 9
    return held_out


def _deciding_rows(
    tree: LabelTree, y: Int32, config: TreeTuningConfig, rng: np.random.Generator
) -> list[tuple[Bool, tuple[int, int], float]]:
    """Return the pairs that decide, the levels that they decide on, from one to before another, their weight.

    All pairs decide on all levels if they are few; otherwise a sample of them on the top levels, where each
    stands for several, and all pairs of some subtrees on the levels below.
    """
    fraction = config.sample_rows / len(y)
    if fraction >= 1.0:
        return [(np.ones(len(y), bool), (0, tree.depth), 1.0)]
    top = min(config.top_levels, tree.depth)
    share = max(fraction, config.sample_share)
    subtrees = rng.permutation(1 << top)[: max(1, round(share * (1 << top)))]
    subtree = tree.class_leaf[y] >> (tree.depth - top)
    sample = rng.random(len(y)) < fraction
    return [(sample, (0, top), fraction**-0.5), (np.isin(subtree, subtrees), (top, tree.depth), 1.0)]
