"""Fit the noise distribution that a config names to the training rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from extremax.examples import Examples
from extremax.features.pca import PCA
from extremax.runtime.context import Context
from extremax.solvers.config import FitConfig
from extremax.tree import LabelTree
from extremax.tree.literal import fit_literal
from extremax.tree.noise import (
    FrequencyNoise,
    MixtureNoise,
    Noise,
    TreeNoise,
    UniformNoise,
)
from extremax.tree.tuning import TunedTree, fit_tuned
from extremax.types import Float32

Inspect: TypeAlias = Callable[[TunedTree], dict[str, Any]]


def fit_noise(
    data: Examples,
    Z: Float32,
    n_classes: int,
    config: FitConfig,
    context: Context,
) -> tuple[Noise, dict[str, Any]]:
    """Fit the noise distribution that a solver names; return it and the choices made.

    `Z` are the projected rows of the tree; no columns where there is none.
    """
    solver = config.solver
    noise: str | Noise = solver.noise
    if not isinstance(noise, str):
        if noise.n_classes != n_classes:
            raise ValueError(
                f"noise is a distribution over {noise.n_classes:,} classes, but y has {n_classes:,}."
                " Make it for the same classes."
            )
        return noise, {}
    if noise == "uniform":
        return UniformNoise(n_classes), {}
    counts = data.class_counts(n_classes, weighted=True)
    if noise == "frequency":
        return FrequencyNoise(counts, solver.noise_exponent), {}
    chosen: dict[str, Any] = {}
    if solver.tree_fit == "paper":
        tree = fit_paper_tree(data, Z, n_classes, config, context)
    else:
        tree, chosen = fit_tree(data, Z, n_classes, config, context)
    if noise == "mixture":
        frequencies = FrequencyNoise(counts, solver.noise_exponent)
        return MixtureNoise(TreeNoise(tree), frequencies, weight=solver.tree_share), chosen
    return TreeNoise(tree), chosen


def fit_tree(
    data: Examples,
    Z: Float32,
    n_classes: int,
    config: FitConfig,
    context: Context,
    *,
    rough: bool = False,
    inspect: Inspect | None = None,
) -> tuple[LabelTree, dict[str, Any]]:
    """Fit the label tree, its regularization by level where that is left open.

    Parameters
    ----------
    Z
        Projected rows.
    rough
        Whether the tree is fitted in a third of the time: enough where it only proposes classes.
    inspect
        Called with a tree whose regularization was chosen on held-out rows; what it returns was chosen, too.
    """
    log = context.progress.log
    log(f"fitting the label tree over {n_classes:,} classes")
    Z = data.expand(Z)
    if config.solver.tree_regularization != "auto":
        tree = LabelTree.fit(
            Z,
            data.y,
            config=config.numbers.tree_fit,
            n_classes=n_classes,
            regularization=float(config.solver.tree_regularization),
            sample_weight=data.weight,
            n_jobs=context.n_threads,
            random_state=context.seed,
        )
        return tree, {}
    tuned = fit_tuned(
        Z,
        data.y,
        n_classes=n_classes,
        sample_weight=data.weight,
        row_index=data.row_index,
        rough=rough,
        n_jobs=context.n_threads,
        seed=context.seed,
        config=config.numbers.tree_tuning,
        fit_config=config.numbers.tree_fit,
    )
    levels = ", ".join(f"{strength:g}" for strength in tuned.strengths)
    held_out = tuned.held_out_log_likelihood
    log(f"tree: regularization by level {levels}; held-out log-likelihood {held_out:.4f}")
    chosen: dict[str, Any] = {
        "tree_regularization": tuned.strengths.tolist(),
        "tree_held_out_log_likelihood": held_out,
    }
    return tuned.tree, chosen if inspect is None else chosen | inspect(tuned)


def fit_paper_tree(
    data: Examples, Z: Float32, n_classes: int, config: FitConfig, context: Context
) -> LabelTree:
    """Fit the label tree by the paper's algorithm to the letter."""
    context.progress.log(f"fitting the label tree over {n_classes:,} classes")
    return fit_literal(
        data.expand(Z),
        data.y,
        n_classes=n_classes,
        regularization=float(config.solver.tree_regularization),
        sample_weight=data.weight,
        n_jobs=context.n_threads,
    ).tree


def own_projection(noise: str | Noise, n_features: int) -> PCA | None:
    """Return the projection of a tree that the user gave, or None."""
    if isinstance(noise, str) or noise.tree is None:
        return None
    projection = noise.projection
    if projection is None:
        if noise.tree.n_components != n_features:
            raise ValueError(
                f"noise holds a label tree over {noise.tree.n_components} features, but X has {n_features};"
                " say how they are projected: TreeNoise(tree, projection=PCA.fit(X, ...))."
            )
        return PCA.identity(n_features)
    if projection.n_features != n_features:
        raise ValueError(
            f"the projection of noise takes {projection.n_features} features, but X has {n_features}."
        )
    return projection
