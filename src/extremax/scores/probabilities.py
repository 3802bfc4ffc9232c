"""Debiased scores and probabilities of all classes, as tables that fit in memory."""

from __future__ import annotations

import numpy as np

from extremax.calibration import Calibration, fit_calibration, mix_uniform
from extremax.errors import ScoreOverflowError
from extremax.examples import Examples
from extremax.runtime.products import one_blas_thread
from extremax.runtime.threads import split
from extremax.scores.base import Scorer
from extremax.scores.scan import ClassTiles
from extremax.scores.weights import Buffers
from extremax.tuned import CalibrationConfig, SearchConfig
from extremax.types import Features, Float32, Float64, Int32


def remove_bias(scores: Float32, log_noise: Float32 | None, *, out: Float32 | None = None) -> Float32:
    """Return debiased scores ``scores + log_noise`` (Eq. 5); the scores themselves if `log_noise` is None.

    Examples
    --------
    >>> remove_bias(np.array([2.0, 3.0], np.float32), np.array([-1.0, -2.5], np.float32)).tolist()
    [1.0, 0.5]
    """
    if log_noise is None:
        if out is None or out is scores:
            return scores
        out[...] = scores
        return out
    return np.add(scores, log_noise, out=out)


def log_softmax(
    scores: Float32,
    *,
    temperature: float = 1.0,
    out: Float32 | None = None,
    config: SearchConfig | None = None,
) -> Float32:
    """Return the logarithm of the softmax of each row of ``scores / temperature``; sums are in float64.

    Examples
    --------
    >>> np.exp(log_softmax(np.log(np.array([[1.0, 3.0]], np.float32)))).round(3).tolist()
    [[0.25, 0.75]]
    """
    block_scores = (config or SearchConfig()).table_block_scores
    if out is None:
        out = np.empty_like(scores)
    for start, stop in split(len(scores), max(1, block_scores // max(scores.shape[1], 1))):
        block = np.multiply(scores[start:stop], np.float32(1.0 / temperature), out=out[start:stop])
        block -= block.max(axis=1, keepdims=True)
        block -= np.log(np.exp(block).sum(axis=1, dtype=np.float64, keepdims=True)).astype(np.float32)
    return out


def check_targets(examples: Examples, n_classes: int) -> Int32:
    """Return the classes of all pairs as the kernels take them, or raise ValueError."""
    n_pairs = examples.n_rows if examples.row_index is None else len(examples.row_index)
    targets = np.require(examples.y, np.int32, ["C", "W"])
    if targets.shape != (n_pairs,):
        raise ValueError(f"y has shape {targets.shape} but X has {n_pairs} rows; pass one class per row.")
    if n_pairs == 0:
        raise ValueError("A mean over no rows is not defined; pass at least one row.")
    if targets.min() < 0 or targets.max() >= n_classes:
        bad = int(targets.min() if targets.min() < 0 else targets.max())
        raise ValueError(
            f"y holds class {bad}; the model has classes 0 to {n_classes - 1}."
            " Leave out rows of unknown classes."
        )
    return targets


def debiased_scores(
    scorer: Scorer,
    X: Features,
    *,
    n_threads: int = 1,
    caller: str = "decision_function",
    config: SearchConfig | None = None,
) -> Float32:
    """Return ``feature_scale * x.w_y + b_y + log p_n(y|x)`` of every class: (n_samples, n_classes).

    Parameters
    ----------
    caller
        Public name in the error for a result of more than ``config.max_result_bytes``.

    Examples
    --------
    >>> from extremax.tree.noise import UniformNoise
    >>> from extremax.scores.weights import DenseWeights
    >>> scorer = Scorer(DenseWeights.zeros(2, 3), UniformNoise(2))
    >>> bool(np.allclose(debiased_scores(scorer, np.zeros((1, 3), np.float32)), -np.log(2)))
    True
    """
    config = config or SearchConfig()
    scorer.check(X)
    _check_result(scorer, X, 4, config, caller)
    return _fill_scores(scorer, X, scorer.project(X, n_threads), n_threads, config)


def _fill_scores(
    scorer: Scorer,
    X: Features,
    Z: Float32 | None,
    n_threads: int,
    config: SearchConfig,
    first_row: int = 0,
) -> Float32:
    """Compute all scores; `first_row` is the number of X[0] in error messages."""
    weights, n_rows = scorer.weights, X.shape[0]
    out = np.empty((n_rows, scorer.n_classes), np.float32)
    tiles = ClassTiles(scorer, Z, n_rows, config, n_threads)
    for first, last in split(n_rows, tiles.block_rows):
        block = out[first:last]
        weights.open_block(X, first, last).products(0, scorer.n_classes, Buffers(config.tile_scores), block)
        block *= np.float32(weights.feature_scale)
        block += weights.biases
        log_noise = None if scorer.noise_term is None else tiles.start_block(first, last)
        remove_bias(block, log_noise, out=block)
        finite = np.isfinite(block.max(axis=1)) & np.isfinite(block.min(axis=1))
        if not finite.all():
            raise ScoreOverflowError(first_row + first + int(np.argmin(finite)))
    return out


def log_prob_all(
    scorer: Scorer, X: Features, *, n_threads: int = 1, config: SearchConfig | None = None
) -> Float32:
    """Return log p(y|x) of every class: (n_samples, n_classes).

    Examples
    --------
    >>> from extremax.scores.weights import DenseWeights
    >>> scorer = Scorer(DenseWeights.zeros(2, 3))
    >>> np.exp(log_prob_all(scorer, np.zeros((1, 3), np.float32))).tolist()
    [[0.5, 0.5]]
    """
    log_prob = _log_softmax_all(scorer, X, n_threads, config or SearchConfig())
    return mix_uniform(log_prob, scorer.calibration.uniform_mix, scorer.n_classes, out=log_prob)


def prob_all(
    scorer: Scorer, X: Features, *, n_threads: int = 1, config: SearchConfig | None = None
) -> Float64:
    """Return p(y|x) of every class in float64: float32 rounds too much near 1.

    Examples
    --------
    >>> from extremax.scores.weights import DenseWeights
    >>> scorer = Scorer(DenseWeights.zeros(2, 3))
    >>> prob_all(scorer, np.zeros((1, 3), np.float32)).round(6).tolist()
    [[0.5, 0.5]]
    """
    config = config or SearchConfig()
    _check_result(scorer, X, 8, config, "predict_proba")
    prob: Float64 = np.exp(_log_softmax_all(scorer, X, n_threads, config), dtype=np.float64)
    uniform_mix = scorer.calibration.uniform_mix
    if uniform_mix > 0.0:  # as `mix_uniform`, but classes far below the uniform probability keep their order
        prob *= 1.0 - uniform_mix
        prob += uniform_mix / prob.shape[1]
    prob /= prob.sum(axis=1, keepdims=True)  # the logarithms are float32; sums are one to float64 rounding
    return prob


def choose_calibration(
    scorer: Scorer,
    examples: Examples,
    *,
    n_threads: int = 1,
    config: CalibrationConfig | None = None,
    search_config: SearchConfig | None = None,
) -> Calibration:
    """Choose temperature and uniform mixing on examples that the model was not trained on."""
    blocks, config = search_config or SearchConfig(), config or CalibrationConfig()
    scorer.check(examples.X)
    X, targets = examples.X, check_targets(examples, scorer.n_classes)
    Z = scorer.project(X, n_threads)
    few_classes = scorer.n_classes <= config.max_tempered_classes

    def score_rows(first: int, last: int) -> Float32:
        projected = None if Z is None else Z[first:last]
        return _fill_scores(scorer, X[first:last], projected, 1, blocks, first)

    with one_blas_thread():
        return fit_calibration(
            score_rows,
            Examples(X, targets, examples.row_index),
            scorer.n_classes,
            by_row=scorer.tempers_rows and (scorer.weights.row_major or few_classes),
            n_threads=n_threads,
            config=config,
        )


def _log_softmax_all(scorer: Scorer, X: Features, n_threads: int, config: SearchConfig) -> Float32:
    """Return log-probabilities of all classes before uniform mixing."""
    scores = debiased_scores(scorer, X, n_threads=n_threads, caller="predict_log_proba", config=config)
    calibration = scorer.calibration
    if calibration.temperature_slope == 0.0:
        return log_softmax(scores, temperature=calibration.temperature, out=scores, config=config)
    for start, stop in split(len(scores), max(1, config.table_block_scores // max(scores.shape[1], 1))):
        block = scores[start:stop]
        log_top = log_softmax(block, temperature=calibration.temperature, config=config).max(axis=1)
        temperature = calibration.row_temperature(log_top.astype(np.float64))
        block *= (1.0 / temperature).astype(np.float32)[:, None]
        log_softmax(block, out=block, config=config)
    return scores


def log_softmax_all(
    scorer: Scorer, X: Features, *, n_threads: int = 1, config: SearchConfig | None = None
) -> tuple[Float64, Float64]:
    """Return the log-softmax of all scores without calibration, (n, n_classes), and the log normalisers.

    Examples
    --------
    >>> from extremax.scores.weights import DenseWeights
    >>> table, normalizer = log_softmax_all(Scorer(DenseWeights.zeros(2, 3)), np.zeros((1, 3), np.float32))
    >>> table.round(3).tolist(), normalizer.round(3).tolist()
    ([[-0.693, -0.693]], [0.693])
    """
    config = config or SearchConfig()
    _check_result(scorer, X, 8, config, "predict_label_proba")
    scores = debiased_scores(scorer, X, n_threads=n_threads, config=config).astype(np.float64)
    largest = scores.max(axis=1)
    normalizer = largest + np.log(np.exp(scores - largest[:, None]).sum(axis=1))
    scores -= normalizer[:, None]
    return scores, normalizer


def _check_result(scorer: Scorer, X: Features, item_bytes: int, config: SearchConfig, caller: str) -> None:
    n_rows, n_classes, limit = X.shape[0], scorer.n_classes, config.max_result_bytes
    needed = item_bytes * n_rows * n_classes
    if needed > limit:
        raise ValueError(
            f"{caller} would return {n_rows} rows x {n_classes} classes, {needed / 2**30:.1f} GiB, more than"
            f" the limit of {limit / 2**30:.1f} GiB. Use predict_topk, which keeps only the best classes, or"
            " pass fewer rows."
        )
