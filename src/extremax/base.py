"""What `ExtremeClassifier` and `TextClassifier` share: all that follows from features."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError

from extremax.errors import ScoreOverflowError, warn_caller
from extremax.examples import Examples
from extremax.fit import fit_index
from extremax.model import Model
from extremax.scores import Search
from extremax.scores.reference import MIN_ROWS, Reference, reference_of_rows
from extremax.scores.sparse import SparseWeights
from extremax.storage.state import State
from extremax.types import Bool, Features, Float32, Float64, Int32, Int64
from extremax.validation.constraints import Choice, ConstraintTable, Interval, check_parameters
from extremax.validation.frames import frame_inputs
from extremax.validation.sample_weight import check_sample_weight

if TYPE_CHECKING:
    from extremax.classifier import ExtremeClassifier
    from extremax.report.drift import Monitor


class Classifier(ClassifierMixin, BaseEstimator):
    """Prediction, evaluation and monitoring; `X` are features or, for a `TextClassifier`, texts."""

    _input = "X"  # what the first argument of `fit` is called in messages

    @property
    def _inner(self) -> ExtremeClassifier:
        """The fitted classifier of features: this one, or that behind texts."""
        raise NotImplementedError

    def to_features(self, X: Any, name: str = "X") -> Features:
        """The features of rows as the model reads them, checked: dense float32, or CSR.

        `name` is what error messages call the rows.
        """
        raise NotImplementedError

    def _inputs(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Return rows and labels; X may be a data frame, and `y` the name of its column of labels."""
        return frame_inputs(X, y)

    def _require_fitted(self, before: str = "first") -> None:
        if not hasattr(self, "model_"):
            raise NotFittedError(
                f"This {type(self).__name__} is not fitted yet; call fit({self._input}, y) {before}."
            )

    # -- prediction ----------------------------------------------------------------------------------------

    def predict(self, X: Any) -> Any:
        """Return the most probable label of each row.

        A model fitted on an indicator matrix returns one, (n_samples, n_classes), as scikit-learn's
        multi-label scorers expect: 1 for the labels of `predict_labels`, sparse where that of `fit` was.
        """
        features, inner = self.to_features(X), self._inner
        if inner._indicator is not None:
            rows, ids, _ = self._labels_above(features, None)
            return make_indicator(inner._indicator, rows, ids, (features.shape[0], len(inner.classes_)))
        ids, log_prob = inner.model_.topk(features, 1, n_threads=inner._threads_for(features))
        check_scores(ids, log_prob)
        return inner.classes_[ids[:, 0]]

    def predict_topk(
        self, X: Any, k: int = 5, *, search: str = "exact", beam_width: int | None = None
    ) -> tuple[NDArray[Any], Float32]:
        """Return the k most probable labels of each row, best first, and their log-probabilities.

        Parameters
        ----------
        X : array or sparse matrix (n_samples, n_features), or sequence of texts
        k : int
            At most the number of classes.
        search : {"exact", "beam"} or the name of another search of the model
            "exact" scores every class. "beam" scores those with the highest approximate scores and estimates
            the normaliser from the others; where the tree's probabilities are part of the scores, it scores
            the classes that a beam reaches in the tree and **normalises over them**.
        beam_width : int, optional
            Classes to score; by default as many as found the exact best class in 99.7% of some rows of `fit`
            (``choices_["beam_width"]``; None there: exact search is as fast), or 64 where the noise's own
            tree is used.
        """
        ids, log_prob = self.predict_ids(X, k, search=search, beam_width=beam_width)
        return self._inner.classes_[ids], log_prob

    def predict_ids(
        self, X: Any, k: int = 5, *, search: str = "exact", beam_width: int | None = None
    ) -> tuple[Int32, Float32]:
        """Return what `predict_topk` does, with places in `classes_` instead of labels."""
        features, inner = self.to_features(X), self._inner
        options: ConstraintTable = {
            "k": [Interval(int, 1, len(inner.classes_))],
            "search": [Choice(inner.model_.search_names)],
            "beam_width": [Interval(int, 1), None],
        }
        check_parameters("predict_topk", {"k": k, "search": search, "beam_width": beam_width}, options)
        ids, log_prob = inner.model_.topk(
            features, k, search=search, width=beam_width, n_threads=inner._threads_for(features)
        )
        check_scores(ids, log_prob)
        return ids, log_prob

    def predict_labels(self, X: Any, threshold: float | None = None) -> list[list[Any]]:
        """Return all labels that apply to each row, the most probable first; there may be none.

        Parameters
        ----------
        X : array or sparse matrix (n_samples, n_features), or sequence of texts
        threshold : float, optional
            Probability of a label by itself, `predict_label_proba`, from which it applies. By default the one
            with the best micro F1 on rows that `fit` or `extremax.calibrate` kept back
            (``choices_["label_threshold"]``), or 0.5 where there are none.
        """
        features = self.to_features(X)
        rows, ids, _ = self._labels_above(features, threshold)
        ends = np.searchsorted(rows, np.arange(1, features.shape[0] + 1))
        return [part.tolist() for part in np.split(self._inner.classes_[ids], ends[:-1])]

    def predict_label_proba(self, X: Any) -> Float64:
        """Return for every class the probability that it applies, each by itself: (n_samples, n_classes).

        Rows need not sum to one. Chosen by rows that `fit` kept back, where rows have several labels; without
        such rows it is the probability of `predict_proba` times the mean number of labels, at most one.
        Refuses results too large for memory.
        """
        features, model = self.to_features(X), self._inner.model_
        prob = model.label_prob_all(features, n_threads=self._inner._threads)
        prob[model.empty_rows(features)] = model.label_frequencies
        return prob

    def _labels_above(self, features: Features, threshold: float | None) -> tuple[Int64, Int32, Float64]:
        """Return row, class and probability of the labels from a threshold on."""
        options: ConstraintTable = {"threshold": [Interval(float, 0.0, 1.0, closed="right"), None]}
        check_parameters("predict_labels", {"threshold": threshold}, options)
        model = self._inner.model_
        least = model.labels.threshold if threshold is None else float(threshold)
        rows, ids, prob = model.labels_above(features, least, n_threads=self._inner._threads)
        empty = model.empty_rows(features)
        if len(empty) == 0:
            return rows, ids, prob
        frequencies = model.label_frequencies
        often = np.argsort(-frequencies, kind="stable").astype(np.int32)
        often = often[frequencies[often] >= least]
        kept = ~np.isin(rows, empty)
        rows = np.concatenate([rows[kept], np.repeat(empty, len(often))])
        ids = np.concatenate([ids[kept], np.tile(often, len(empty))])
        prob = np.concatenate([prob[kept], np.tile(frequencies[often], len(empty))])
        order = np.argsort(rows, kind="stable")
        return rows[order], ids[order], prob[order]

    def decision_function(self, X: Any) -> Float32:
        """Return debiased scores, (n_samples, n_classes); for two classes the second's minus the first's."""
        features, inner = self.to_features(X), self._inner
        scores = inner.model_.debiased_scores(features, n_threads=inner._threads)
        return scores[:, 1] - scores[:, 0] if len(inner.classes_) == 2 else scores

    def predict_log_proba(self, X: Any) -> Float32:
        """Return log p(y|x) of every class, (n_samples, n_classes); refuses results too large for memory."""
        features, inner = self.to_features(X), self._inner
        return inner.model_.log_prob_all(features, n_threads=inner._threads)

    def predict_proba(self, X: Any) -> Float64:
        """Return p(y|x) of every class, in float64; refuses results too large for memory."""
        features, inner = self.to_features(X), self._inner
        return inner.model_.prob_all(features, n_threads=inner._threads)

    def unknown(self, X: Any) -> Bool:
        """Return which rows say nothing to the model: texts without a known n-gram.

        They are answered with the class frequencies of the training rows.
        """
        features = self.to_features(X)
        unknown = np.zeros(features.shape[0], np.bool_)
        unknown[self._inner.model_.empty_rows(features)] = True
        return unknown

    def label_ids(self, labels: Sequence[Any]) -> Int32:
        """Return the places of labels in `classes_`; an unknown one is an error."""
        self._require_fitted()
        return self._inner._label_index.find(
            list(labels), where=lambda i: "the label", hint="See classes_ for them.", allow_unseen=False
        )

    # -- evaluation ----------------------------------------------------------------------------------------

    def log_likelihood(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Return the mean log p(y|x), normalised over all classes; over all pairs for several labels."""
        X, y = self._inputs(X, y)
        features, inner = self.to_features(X), self._inner
        hint = "Leave out rows of classes that were not in the training data."
        data = inner._weighted(inner._lookup(y, features, hint=hint), sample_weight)
        return inner.model_.log_likelihood(data.compact(), n_threads=inner._threads)

    def score(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy; a label that was not in the training data counts as missed.

        With several labels per row it is precision@1: the fraction of rows with the predicted label among
        theirs."""
        X, y = self._inputs(X, y)
        features, inner = self.to_features(X), self._inner
        data = inner._lookup(y, features, allow_unseen=True)
        weight = row_weight(data, sample_weight)
        warn_unlabelled(data, "y")
        best, _ = inner.model_.topk(features, 1, n_threads=inner._threads)
        hit = np.bincount(data.rows, weights=data.y == best[data.rows, 0], minlength=data.n_rows)
        labelled = data.labels_per_row > 0
        chosen = None if weight is None else weight[labelled].astype(np.float64)
        return float(np.average(hit[labelled], weights=chosen))

    def _evaluation_rows(self, X: Any, y: Any) -> tuple[Model, Examples, int]:
        """Return the model, the labelled rows (class -1 for unknown labels) and the threads to use."""
        self._require_fitted("before evaluate")
        X, y = self._inputs(X, y)
        inner = self._inner
        return inner.model_, inner._lookup(y, self.to_features(X), allow_unseen=True), inner._threads

    def monitor(
        self, *, alpha: float = 0.01, reference: Any = None, state: str | None = None, seed: int = 0
    ) -> Monitor:
        """Return a monitor of drift, for a stream of rows that this model answers.

        Parameters
        ----------
        alpha : float
            Probability of a false alarm over the whole stream, at most.
        reference : rows, optional
            Rows to compare the stream with, that training has not seen. By default those that `fit` held back
            for calibration.
        state : str, optional
            What `Monitor.to_json` returned, to go on with.
        seed : int
            Seed of the draws that break ties.
        """
        from extremax.report.drift import Monitor

        self._require_fitted("before monitor")
        rows = None if reference is None else self.to_features(reference, name="reference")
        monitor = Monitor(self, self._reference(rows), alpha=alpha, seed=seed)
        return monitor if state is None else monitor.restore(state)

    def _reference(self, rows: Features | None) -> Reference:
        """Return what a monitor compares with: rows given as features, or those of the fit."""
        model = self._inner.model_
        if rows is None:
            if model.reference is None:
                raise ValueError(
                    "this model has no reference rows: its fit held none back, it was trained or calibrated"
                    " afterwards, or an older version saved it. Give rows that training has not seen:"
                    " clf.monitor(reference=X)."
                )
            return model.reference
        if rows.shape[0] < MIN_ROWS:
            raise ValueError(f"reference has {rows.shape[0]:,} rows; give at least {MIN_ROWS}.")
        best, log_prob = model.topk(rows, 1, n_threads=self._inner._threads)
        check_scores(best, log_prob)
        return reference_of_rows(
            rows,
            (best[:, 0], log_prob[:, 0]),
            model.classes.counts,
            model.n_classes,
            before=model.reference,
            of_texts=model.layout.is_text,
            n_dense=model.layout.n_dense,
        )

    # -- the fitted model ----------------------------------------------------------------------------------

    def fit_index(self, X: Any, *, held_out: Any = None) -> Self:
        """Fit the index for beam search again, on rows like those to be predicted.

        `held_out`, rows that the model was not trained on, choose the default width; without them, some rows
        of X. `fit` does this by itself; `partial_fit` does not."""
        features, inner = self.to_features(X), self._inner
        unseen = None if held_out is None else self.to_features(held_out, name="held_out")
        options: dict[str, Any] = {"seed": inner.seed_, "n_threads": inner._threads}
        if isinstance(inner.model_.weights, SparseWeights):  # beam search is exact search
            return self
        index = fit_index(inner.model_, features, held_out=unseen, **options)
        return self._replace_model(inner.model_.with_search("beam", index))

    def add_search(self, name: str, search: Search) -> Self:
        """Add a search of one's own to the fitted model, for ``predict_topk(search=name)``."""
        self._require_fitted()
        return self._replace_model(self._inner.model_.with_search(name, search))

    def describe_classes(self, descriptions: Sequence[str]) -> Self:
        """Keep a text on each class, in the order of `classes_`; it is saved with the model."""
        self._require_fitted()
        return self._replace_model(self._inner.model_.with_descriptions(descriptions))

    def _replace_model(self, model: Model) -> Self:
        """Put another model, such as a calibrated one, in the place of the fitted one."""
        inner = self._inner
        inner._fitted.model = model
        inner.model_ = model
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a folder, all at once or not at all; `load_model` opens it."""
        self._require_fitted("before save")
        self._inner._save(path, self._components())

    def _components(self) -> Mapping[str, State]:
        """Return what is saved beside the classifier of features."""
        return {}


def check_scores(ids: Int32, log_prob: Float32) -> None:
    """Raise for rows whose scores are not numbers: with k <= n_classes, no class can be missing."""
    known = (ids >= 0).all(axis=1) & np.isfinite(log_prob[:, 0])
    if not known.all():
        raise ScoreOverflowError(int(np.argmin(known)))


def check_count(method: str, k: Any) -> None:
    """Raise unless k is a whole number of at least one."""
    check_parameters(method, {"k": k}, {"k": [Interval(int, 1)]})


def row_weight(data: Examples, sample_weight: ArrayLike | None) -> Float32 | None:
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


def make_indicator(format_: tuple[bool, str], rows: Int64, ids: Int32, shape: tuple[int, int]) -> Any:
    """Return pairs of row and class as a matrix like that of `fit`: whether it is sparse, its dtype."""
    is_sparse, dtype = format_
    if is_sparse:
        return sparse.csr_matrix((np.ones(len(ids), dtype), (rows, ids)), shape=shape)
    table = np.zeros(shape, dtype)
    table[rows, ids] = 1
    return table
