"""`evaluate`: every figure about a fitted model on labelled rows; `calibrate`: probabilities that match
frequencies.

With one label per row, look at accuracy@1 and log-likelihood. With several, at the ranking figures of the
Extreme Classification Repository (precision, nDCG and propensity-scored precision at k), and at the F1 of the
predicted labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from extremax import metrics
from extremax.calibration import Calibration
from extremax.errors import ScoreOverflowError
from extremax.examples import Examples
from extremax.runtime.threads import resolve_threads

if TYPE_CHECKING:
    from extremax.classifier import Classifier
    from extremax.model import Model

KS = (1, 3, 5, 10)
RECALL_K = 100  # recall asks whether the labels are among the candidates that somebody would look through


@dataclass(frozen=True)
class Report:
    """Figures of a model on labelled rows, as fractions of one; those at k are dictionaries from k.

    Attributes
    ----------
    n_samples : int
        Rows ranked.
    n_pairs : int
        Their labels: pairs of a row and a label.
    n_left_out : int
        Rows left out because they have no label, or none of a known class.
    n_unknown : int
        Labels left out because their class is not among those of the model.
    log_likelihood : float
        Mean of log p(y|x) over the pairs.
    calibration_error : float
        Expected calibration error of the best class: the mean distance between its probability and the share
        of pairs whose label it is.
    samples_f1, micro_f1, macro_f1 : float or None
        F1 of the labels that `predict_labels` gives: the mean over rows, of all pairs together, and the mean
        over labels that are true or predicted. Like the next two, only where rows have several labels.
    label_calibration_error : float or None
        Expected calibration error of the probabilities of single labels, of those above 1%.
    label_threshold : float or None
        Times the square root of a row's highest probability: that from which labels are predicted.
    ece : dict
        Expected calibration error of the first k predictions (arXiv 2411.04276): the same over all of them,
        each a prediction of its own; ``ece[1]`` is `calibration_error`.
    accuracy : dict
        Share of rows with a true label among the first k predictions.
    precision, ndcg : dict
        Of the first k predictions the share that is true; discounted gain over that of a perfect ranking.
    f1, recall : dict
        F1 of the first k predictions, the mean over rows; share of the true labels among the first 100. Empty
        where rows have one label.
    propensity_scored_precision : dict
        Precision in which a rare label counts more, over the best that is possible; empty where the training
        counts of the classes are not known.
    """

    n_samples: int
    n_pairs: int
    n_left_out: int
    n_unknown: int
    log_likelihood: float
    calibration_error: float
    samples_f1: float | None = None
    micro_f1: float | None = None
    macro_f1: float | None = None
    label_calibration_error: float | None = None
    label_threshold: float | None = None
    ece: dict[int, float] = field(default_factory=dict)
    accuracy: dict[int, float] = field(default_factory=dict)
    precision: dict[int, float] = field(default_factory=dict)
    ndcg: dict[int, float] = field(default_factory=dict)
    f1: dict[int, float] = field(default_factory=dict)
    recall: dict[int, float] = field(default_factory=dict)
    propensity_scored_precision: dict[int, float] = field(default_factory=dict)

    @property
    def multilabel(self) -> bool:
        """Whether any row has more than one label."""
        return self.n_pairs > self.n_samples

    def _repr_html_(self) -> str:
        """Return the figures as a table, for a notebook."""
        rows = "".join(
            f"<tr><td>{name}</td><td>{value:.4g}</td></tr>" for name, value in self.as_dict().items()
        )
        return f"<table>{rows}</table>"

    def as_dict(self) -> dict[str, float]:
        """All figures by name, those at k as ``precision@1`` and so on: for tables and JSON."""
        flat: dict[str, float] = {}
        for name, value in vars(self).items():
            if isinstance(value, dict):
                flat |= {f"{name}@{k}": figure for k, figure in value.items()}
            elif value is not None:
                flat[name] = value
        return flat


def evaluate(
    model: Classifier | Model,
    X: Any,
    y: Any,
    *,
    ks: Sequence[int] = KS,
    propensity: ArrayLike | None = None,
    n_bins: int = 15,
    n_jobs: int | None = None,
) -> Report:
    """Evaluate a fitted model on labelled rows, scoring every class of each row once.

    Parameters
    ----------
    model : ExtremeClassifier, TextClassifier or Model
        Fitted, or loaded from a folder.
    X : features (n_samples, n_features), or for a `TextClassifier` texts
    y : sequence of n_samples labels, or of lists of labels, or indicator matrix (n_samples, n_classes)
        As in `ExtremeClassifier.fit`; for a `Model`, which has no label names, class numbers. Labels
        of unknown classes are left out, and so are rows without any other; both are counted.
    ks : sequence of int
        Values of k.
    propensity : (n_classes,) array, optional
        For propensity-scored precision; by default `extremax.metrics.label_propensities` of the training
        counts that the model has stored, with the parameters that the Extreme Classification Repository uses
        for most sets.
    n_bins : int
        Bins of the calibration error.
    n_jobs : int, optional
        Threads; by default those of the classifier.

    Returns
    -------
    Report
        Its ``as_dict()`` is flat: ``log_likelihood``, ``accuracy@1``, ``precision@5``, ...

    Examples
    --------
    >>> from extremax import ExtremeClassifier
    >>> from extremax.evaluation import evaluate
    >>> rng = np.random.default_rng(0)
    >>> y = [sorted({int(a), int(b)}) for a, b in rng.integers(20, size=(900, 2))]
    >>> means = rng.normal(size=(20, 32))
    >>> X = np.array([means[labels].sum(axis=0) for labels in y]) + 0.1 * rng.normal(size=(900, 32))
    >>> clf = ExtremeClassifier(random_state=0).fit(X[:600], y[:600])
    >>> report = evaluate(clf, X[600:], y[600:], ks=(1, 2))
    >>> report.precision[1] > 0.9, sorted(report.as_dict())[:3]
    (True, ['accuracy@1', 'accuracy@2', 'calibration_error'])
    """
    if not ks or min(ks) < 1:
        raise ValueError(f"ks is {tuple(ks)}; give one or more numbers of predictions, each at least 1.")
    core, targets, threads = prepare(model, X, y)
    data = targets.usable().compact()
    n_classes, n_samples, rows = core.n_classes, data.n_rows, data.rows
    several = data.label_edges is not None
    threads = threads if n_jobs is None else resolve_threads(n_jobs)
    ranked = core.rank_pairs(data, k=max(*ks, RECALL_K if several else 1), n_threads=threads)
    finite = np.isfinite(ranked.log_prob[:, 0])
    if not finite.all():
        row = int(np.argmin(finite))
        raise ValueError(
            f"The scores of row {row} overflow float32; scale the rows down to the size of the training rows."
        )
    offsets = np.searchsorted(rows, np.arange(n_samples + 1))
    truth = sparse.csr_array((np.ones(len(rows), np.int8), data.y, offsets), shape=(n_samples, n_classes))
    chances = _propensity(core, propensity)
    # Over pairs: a class of probability p is right for a share p of them, also where each row has several.
    is_label = ranked.labels[rows, : max(ks)] == data.y[:, None]
    confidence = np.minimum(np.exp(ranked.log_prob[:, : max(ks)].astype(np.float64)), 1.0)[rows]
    errors = {
        k: metrics.expected_calibration_error(
            is_label[:, :k].ravel(), confidence[:, :k].ravel(), n_bins=n_bins
        )
        for k in sorted({1, *ks})
    }

    def at_ks(metric: Callable[..., float], *more: Any) -> dict[int, float]:
        return {k: metric(truth, ranked.labels, *more, k=k) for k in ks}

    figures: dict[str, Any] = {}
    if several:
        figures = {
            **_label_figures(core, data, truth, threads, n_bins),
            "f1": at_ks(metrics.f1_at_k),
            "recall": {RECALL_K: metrics.recall_at_k(truth, ranked.labels, k=RECALL_K)},
        }
    return Report(
        n_samples=n_samples,
        n_pairs=len(rows),
        n_left_out=targets.n_rows - n_samples,
        n_unknown=int((targets.y < 0).sum()),
        log_likelihood=float(ranked.pair_log_prob.astype(np.float64).mean()),
        calibration_error=errors[1],
        **figures,
        ece={k: errors[k] for k in ks},
        accuracy=at_ks(metrics.accuracy_at_k),
        precision=at_ks(metrics.precision_at_k),
        ndcg=at_ks(metrics.ndcg_at_k),
        propensity_scored_precision={}
        if chances is None
        else at_ks(metrics.propensity_scored_precision_at_k, chances),
    )


def _label_figures(
    model: Model, data: Examples, truth: sparse.csr_array, n_threads: int, n_bins: int
) -> dict[str, float]:
    """Return figures of the probabilities of single labels, and of the labels that they predict."""
    rows, labels, _ = model.labels_above(data.X, None, n_threads=n_threads)
    predicted = sparse.csr_array((np.ones(len(rows), np.int8), (rows, labels)), shape=truth.shape)
    rows, labels, prob = model.labels_above(data.X, model.label_min_prob, n_threads=n_threads)
    applies = np.asarray(metrics.label_hits(truth[rows], labels[:, None]))[:, 0]
    return {
        "samples_f1": metrics.samples_f1(truth, predicted),
        "micro_f1": metrics.micro_f1(truth, predicted),
        "macro_f1": metrics.macro_f1(truth, predicted),
        "label_calibration_error": metrics.expected_calibration_error(
            applies, np.minimum(prob, 1.0), n_bins=n_bins
        ),
        "label_threshold": model.labels.threshold,
    }


@dataclass(frozen=True)
class ClassFigures:
    """How one class is recognised, by the first prediction of each row.

    Attributes
    ----------
    label : int
        Number of the class: its position in ``classes_``.
    support : int
        Rows with this label.
    predicted : int
        Rows for which it is predicted first.
    precision : float or None
        Fraction of those that have the label; None where it is never predicted.
    recall : float or None
        Fraction of the rows with this label for which it is predicted first; None without such rows.
    confused_with : int or None
        The wrong class most often predicted first for rows with this label.
    n_confused : int
        Number of these rows.
    """

    label: int
    support: int
    predicted: int
    precision: float | None
    recall: float | None
    confused_with: int | None
    n_confused: int


def evaluate_classes(
    model: Classifier | Model, X: Any, y: Any, *, n_jobs: int | None = None
) -> list[ClassFigures]:
    """Return figures of each class that occurs in y or is predicted, the most frequent in y first.

    Arguments are those of `evaluate`. With several labels in a row, each counts; one is predicted first.

    Examples
    --------
    >>> from extremax import ExtremeClassifier
    >>> X, y = [[0.0, 1.0], [0.1, 0.9], [1.0, 0.0], [0.9, 0.1]], ["a", "a", "b", "b"]
    >>> clf = ExtremeClassifier(random_state=0).fit(X, y)
    >>> for row in evaluate_classes(clf, X, ["a", "a", "a", "b"]):
    ...     print(clf.classes_[row.label], row.support, row.precision, row.confused_with)
    a 3 1.0 1
    b 1 0.5 None
    """
    core, targets, threads = prepare(model, X, y)
    data = targets.usable().compact()
    threads = threads if n_jobs is None else resolve_threads(n_jobs)
    first = core.rank_pairs(data, k=1, n_threads=threads).labels[:, 0].astype(np.int64)
    rows, labels, n_classes = data.rows, data.y.astype(np.int64), core.n_classes
    is_first = first[rows] == labels
    is_right = np.zeros(data.n_rows, bool)
    is_right[rows[is_first]] = True
    support = np.bincount(labels, minlength=n_classes)
    found = np.bincount(labels[is_first], minlength=n_classes)
    predicted = np.bincount(first, minlength=n_classes)
    right = np.bincount(first[is_right], minlength=n_classes)
    wrong = ~is_right[rows]
    pairs, counts = np.unique(labels[wrong] * n_classes + first[rows[wrong]], return_counts=True)
    confusion: dict[int, tuple[int, int]] = {}
    for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):  # of equal ones the first class
        label, other = divmod(pair, n_classes)
        if count > confusion.get(label, (0, 0))[1]:
            confusion[label] = other, count
    listed = np.flatnonzero((support > 0) | (predicted > 0))
    return [
        ClassFigures(
            label=label,
            support=int(support[label]),
            predicted=int(predicted[label]),
            precision=float(right[label] / predicted[label]) if predicted[label] else None,
            recall=float(found[label] / support[label]) if support[label] else None,
            confused_with=confusion[label][0] if label in confusion else None,
            n_confused=confusion[label][1] if label in confusion else 0,
        )
        for label in listed[np.argsort(-support[listed], kind="stable")].tolist()
    ]


def calibrate(
    model: Classifier,
    X: Any,
    y: Any,
    *,
    max_rows: int = 5000,
    seed: int = 0,
) -> Calibration:
    """Calibrate the probabilities of a classifier by rows that it was not trained on.

    Of predictions with probability 30%, about 30% are then right. Sets the temperature, which divides scores,
    the uniform mixing, a part of the probability that all classes share equally, and for sparse weights how
    the temperature depends on the row; returns them. Predicted labels stay the same. Of more than `max_rows`
    pairs a random sample is used. For a `Model`, which never changes, use `Model.calibrated`.

    Examples
    --------
    >>> from extremax import ExtremeClassifier
    >>> from extremax.evaluation import calibrate
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(20, size=900)
    >>> X = rng.normal(size=(20, 4))[y] + rng.normal(size=(900, 4))
    >>> clf = ExtremeClassifier(random_state=0).fit(X[:300], y[:300])
    >>> before = clf.log_likelihood(X[600:], y[600:])
    >>> calibration = calibrate(clf, X[300:600], y[300:600])
    >>> clf.log_likelihood(X[600:], y[600:]) > before - 0.02
    True
    """
    if not hasattr(model, "_replace_model"):
        raise TypeError(
            f"model must be an ExtremeClassifier or a TextClassifier; got {type(model).__name__}."
        )
    core, targets, threads = prepare(model, X, y)
    data = targets.usable().compact()
    y_pairs, rows = data.y, data.rows
    if len(y_pairs) > max_rows and data.label_edges is not None:  # whole rows, with all of their labels
        size = max(1, max_rows * data.n_rows // data.n_pairs)
        some = np.flatnonzero(
            np.isin(rows, np.random.default_rng(seed).choice(data.n_rows, size, replace=False))
        )
        y_pairs, rows = y_pairs[some], rows[some]
    elif len(y_pairs) > max_rows:
        some = np.sort(np.random.default_rng(seed).choice(len(y_pairs), max_rows, replace=False))
        y_pairs, rows = y_pairs[some], rows[some]
    used, place = np.unique(rows, return_inverse=True)
    sample = Examples(data.X[used], y_pairs, place.astype(np.int64))
    try:
        calibrated = core.calibrated(sample, n_threads=threads)
    except ScoreOverflowError as error:
        raise ScoreOverflowError(int(used[error.row])) from None
    model._replace_model(calibrated)
    return calibrated.calibration


def prepare(model: Classifier | Model, X: Any, y: Any) -> tuple[Model, Examples, int]:
    """Return the model, all labels that were given, and the threads of the classifier."""
    if not hasattr(model, "_evaluation_rows"):
        raise TypeError(
            f"model must be an ExtremeClassifier, a TextClassifier or a Model; got {type(model).__name__}."
        )
    core, targets, threads = model._evaluation_rows(X, y)
    if (targets.y < 0).all():
        raise ValueError(
            "y has no label of a class of the model, so there is nothing to evaluate; pass labels as in"
            " training."
        )
    return core, targets, threads


def _propensity(model: Model, given: ArrayLike | None) -> NDArray[np.float64] | None:
    if given is not None:
        return np.asarray(given, np.float64)
    if model.classes.counts is None:
        return None
    return metrics.label_propensities(model.classes.counts, model.classes.n_samples)
