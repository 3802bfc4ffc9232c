"""`ExtremeClassifier`, the scikit-learn estimator: check the input, name the classes, run the fit."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import validate_data

from extremax import class_editing as editing
from extremax.class_texts import NO_TEXTS, WEIGHT, ClassTexts, ListedTexts
from extremax.errors import ModelFileError, ScoreOverflowError, TrainingInterruptedWarning, warn_caller
from extremax.examples import Examples, FeatureLayout
from extremax.explanation import Explanation, LabelExplanation, explain_class, explain_row
from extremax.features.scaling import LargeColumns
from extremax.fit import Fitted, Request, fit_index, fit_model, problem_size, resume_model, train_epoch
from extremax.model import Model
from extremax.params import (
    CLASSIFIER,
    CLASSIFIER_PARAMETERS,
    SOLVER_PARAMETERS,
    check_patience,
    check_values,
    documented,
    refuse_misplaced,
    says_where,
)
from extremax.runtime.context import Context
from extremax.runtime.progress import ProgressLine
from extremax.runtime.threads import resolve_threads
from extremax.scores import Search
from extremax.scores.reference import MIN_ROWS, Reference, reference_of_rows
from extremax.scores.sparse import SparseWeights
from extremax.solvers.config import FitConfig, resolve, resume
from extremax.solvers.loop import Callback, Record
from extremax.solvers.registry import (
    PAPER,
    Solver,
    find_solver,
    make_solver,
    restore_solver,
    solver_names,
)
from extremax.storage import checks
from extremax.storage.card import make_card
from extremax.storage.labels import check_savable
from extremax.storage.models import Change, EstimatorHeader, SavedModel, save_model
from extremax.storage.state import State
from extremax.subsets import label_log_probs, prediction_sets, topk_among
from extremax.tuned import DEFAULTS, Defaults
from extremax.types import Bool, Features, Float32, Float64, Int32, Int64
from extremax.validation.constraints import Choice, ConstraintTable, Interval, check_parameters
from extremax.validation.features import check_features, copied_bytes, join_pair
from extremax.validation.frames import as_frame, frame_inputs, is_frame
from extremax.validation.labels import LabelIndex, check_classes, encode_labels, join_labels
from extremax.validation.random_state import check_random_state
from extremax.validation.sample_weight import class_weights, row_weight, warn_unlabelled
from extremax.validation.targets import encode_targets, indicator_format, lookup_targets, make_indicator

if TYPE_CHECKING:
    from extremax.report.drift import Monitor

EvalSet: TypeAlias = tuple[Any, Any] | list[tuple[Any, Any]] | None
_CHANGED = (
    "_fitted", "model_", "history_", "interrupted_", "classes_", "_label_index", "_changes", "class_weight",
)  # fmt: skip


class FirstRows(NamedTuple):
    """Features of the rows of a first call, with their layout and memory.

    Attributes
    ----------
    X
        Features, not checked yet.
    groups
        Groups of columns in the layout of texts.
    held
        Bytes that features of texts take, by part.
    texts
        Labels, texts and kinds of the last rows of X, which are class texts.
    """

    X: Any
    groups: tuple[int, ...] = ()
    held: Mapping[str, int] = MappingProxyType({})
    texts: ListedTexts = NO_TEXTS


class Classifier(ClassifierMixin, BaseEstimator):
    """Base class of the classifiers of features and of texts."""

    takes_texts: ClassVar[bool] = False
    _input = "X"  # what the first argument of `fit` is called in messages

    @property
    def _inner(self) -> ExtremeClassifier:
        """The fitted classifier of features: this one, or the one inside a `TextClassifier`."""
        raise NotImplementedError

    def to_features(self, X: Any, name: str = "X") -> Features:
        """Check rows and return the features that the model reads: dense float32, or CSR.

        Error messages call the rows `name`.
        """
        raise NotImplementedError

    def _inputs(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Return rows and labels; `y` may name the column of labels of a data frame X."""
        return frame_inputs(X, y)

    def _require_fitted(self, before: str = "first") -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(
                f"This {type(self).__name__} is not fitted yet; call fit({self._input}, y) {before}."
            )

    def __sklearn_is_fitted__(self) -> bool:
        raise NotImplementedError

    # -- training ------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        *,
        eval_set: EvalSet = None,
        classes: ArrayLike | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Self:
        """Train from the beginning.

        Parameters
        ----------
        X : array, memory-mapped array or sparse matrix (n_samples, n_features), or sequence of texts
            Dense float32 in C order is used as it is, without a copy, and as a ``np.memmap`` may be larger
            than memory: it is read in blocks. Other types are converted in memory, and sparse rows unpacked
            where minibatches share classes. A pair ``(X_sparse, X_dense)`` of matrices with the same rows
            gives every row both, such as words and an embedding. Data frames of any kind that narwhals knows
            and Hugging Face datasets are read as well, also with one column of vectors. Texts may be a
            column of either, or the column called ``text``.
        y : sequence of n_samples labels, or of lists of labels, or indicator matrix (n_samples, n_classes)
            Labels of any hashable type. A row with several (a list, set or array; a tuple is one label) makes
            one positive pair with each, repeated ones counted once. An indicator matrix, sparse or dense, is
            1 where a row has the label of a column. Rows without a label are left out, with a warning that
            counts them. Where X is a data frame, `y` may be the name of its column of labels.
        sample_weight : array (n_samples,), optional
            Weight of each row in the loss, the tree and the frequencies; rows of weight zero are left out.
        eval_set : (X_valid, y_valid) or [(X_valid, y_valid)], optional
            Rows to validate on after each epoch; labels that `y` lacks are left out, with a warning that
            counts them.
        classes : sequence, optional
            Names of the columns of an indicator matrix, which are otherwise those of a DataFrame or 0, 1, 2,
            ...; for labels, all that there are, also those without a row.
        callbacks : sequence of callables
            Each gets the record of every epoch; one that returns True ends training.

        Ctrl-C, once training has started, ends it with the model as far as it got.
        """
        pair = read_pair(eval_set)
        self._forget()
        X, y = self._inputs(X, y)
        with self._nothing_left_on_failure():
            rows = self._first_rows(X, y)
            validation = None if pair is None else self._eval_rows(*pair)
            self._inner._train_first(rows, y, sample_weight, classes, validation, callbacks)
            self._finish_first(X)
        return self

    def partial_fit(
        self,
        X: Any,
        y: Any,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        new_classes: Literal["error", "add"] = "error",
    ) -> Self:
        """Train one more epoch, on these rows.

        The first call fixes the features of texts, the classes, the solver, the optimizer, the feature scale,
        the projection and the noise; give it `classes` when its rows do not contain all of them. Later calls
        go on with the same or other rows, also after `fit` and after `load_model`. The whitening of dense
        features is renewed from all rows so far, at doubling numbers of them.

        With ``new_classes="add"``, labels that are not among the classes are added by `add_classes` before
        the epoch; by default they are an error. A row of a merged class trains the member that scores
        highest.
        """
        X, y = self._inputs(X, y)
        options: ConstraintTable = {"new_classes": [Choice(("error", "add"))]}
        check_parameters("partial_fit", {"new_classes": new_classes}, options)
        if self.__sklearn_is_fitted__():
            self._inner.check_params()
            self._inner._require_fixed_weights()
            features = self.to_features(X)
            self._inner._train_more(features, y, classes, sample_weight, add=new_classes == "add")
            return self
        with self._nothing_left_on_failure():
            rows = self._first_rows(X, y)
            self._inner._require_fixed_weights()
            self._inner._start_stream(rows, y, classes, sample_weight)
            self._finish_first(X)
        return self

    def _first_rows(self, X: Any, y: Any) -> FirstRows:
        """Check the parameters, and return the features of the rows of a first call."""
        raise NotImplementedError

    def _eval_rows(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Return rows to validate on as the classifier of features takes them."""
        return X, y

    def _finish_first(self, X: Any) -> None:
        """Complete the estimator after a first call."""

    def _forget(self) -> None:
        """Drop the results of an earlier fit: its memory is needed, and a failed fit must leave nothing."""
        raise NotImplementedError

    @contextmanager
    def _nothing_left_on_failure(self) -> Iterator[None]:
        """Forget a failed first call, unless it got as far as a model."""
        try:
            yield
        except BaseException:
            if not self.__sklearn_is_fitted__():
                self._forget()
            raise

    # -- prediction ----------------------------------------------------------------------------------------

    def predict(self, X: Any) -> Any:
        """Return the most probable label of each row.

        A model fitted on an indicator matrix returns an indicator matrix (n_samples, n_classes), as
        scikit-learn's multi-label scorers expect: 1 for the labels of `predict_labels`, and sparse if the
        matrix given to `fit` was.
        """
        features, inner = self.to_features(X), self._inner
        if inner._indicator is not None:
            rows, ids, _ = self._labels_above(features, None)
            return make_indicator(inner._indicator, rows, ids, (features.shape[0], len(inner.classes_)))
        ids, _ = inner._search(features, 1)
        return inner.classes_[ids[:, 0]]

    def predict_topk(
        self,
        X: Any,
        k: int = 5,
        *,
        search: str = "exact",
        beam_width: int | None = None,
        among: Sequence[Any] | None = None,
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
            Number of classes to score. The default, ``choices_["beam_width"]``, found the exact best class
            for 99.7% of some rows of `fit`; it is None if exact search is as fast. Where the tree of the
            noise is searched, the default is 64.
        among : sequence of labels, or of n_samples lists of labels, optional
            Return the best of these, and their log-probabilities given that the label is one of them.
        """
        ids, log_prob = self.predict_ids(X, k, search=search, beam_width=beam_width, among=among)
        return self._inner.classes_[ids], log_prob

    def predict_ids(
        self,
        X: Any,
        k: int = 5,
        *,
        search: str = "exact",
        beam_width: int | None = None,
        among: Sequence[Any] | None = None,
    ) -> tuple[Int32, Float32]:
        """Return the result of `predict_topk` with positions in `classes_` instead of labels."""
        if among is not None:
            return topk_among(self, X, k, among)
        features, inner = self.to_features(X), self._inner
        options: ConstraintTable = {
            "k": [Interval(int, 1, len(inner.classes_))],
            "search": [Choice(inner.model_.search_names)],
            "beam_width": [Interval(int, 1), None],
        }
        check_parameters("predict_topk", {"k": k, "search": search, "beam_width": beam_width}, options)
        return inner._search(features, k, search=search, width=beam_width)

    def score_labels(self, X: Any, labels: Sequence[Any]) -> Float32:
        """Return log p(y|x) of some labels for each row, (n_samples, n_labels), normalised over all classes.

        Examples
        --------
        >>> from extremax import ExtremeClassifier
        >>> X, y = [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]] * 3, ["a", "b", "c"] * 3
        >>> clf = ExtremeClassifier(random_state=0).fit(X, y)
        >>> bool(np.allclose(clf.score_labels(X, ["c", "a"]), clf.predict_log_proba(X)[:, [2, 0]]))
        True
        """
        return label_log_probs(self, X, labels)

    def predict_set(self, X: Any, held_out: tuple[Any, Any], coverage: float = 0.9) -> list[list[Any]]:
        """Return for each row a set of labels, best first, that has the right one in `coverage` of all rows.

        Split conformal prediction: a label is in the set if it is at least as probable as a threshold that
        follows from `held_out`, rows and labels that the model was not trained on. The coverage holds for
        rows like these, however well the model is calibrated. A set has at least the best label.
        """
        return prediction_sets(self, X, held_out, coverage)

    def predict_labels(self, X: Any, threshold: float | None = None) -> list[list[Any]]:
        """Return all labels that apply to each row, the most probable first.

        Parameters
        ----------
        X : array or sparse matrix (n_samples, n_features), or sequence of texts
        threshold : float, optional
            Labels whose own probability (`predict_label_proba`) is at least this apply; a row may then have
            none. By default a row gets its best label, and every label whose probability is at least
            ``choices_["label_threshold"]`` times the square root of the best label's. That number maximises
            the mean F1 on rows that `fit` or `extremax.calibrate` held out, and is 0.5 without such rows. A
            row without any known feature gets the labels that at least half of the training rows have.
        """
        features = self.to_features(X)
        rows, ids, _ = self._labels_above(features, threshold)
        ends = np.searchsorted(rows, np.arange(1, features.shape[0] + 1))
        return [part.tolist() for part in np.split(self._inner.classes_[ids], ends[:-1])]

    def predict_label_proba(self, X: Any) -> Float64:
        """Return the probability that each class applies, independently of the others.

        The result is (n_samples, n_classes), and its rows need not sum to one. Where rows have several
        labels, held-out rows of `fit` calibrate it; without such rows it is the probability of
        `predict_proba` times the mean number of labels, at most one. Results too large for memory are
        refused.
        """
        features, model = self.to_features(X), self._inner.model_
        prob = model.label_prob_all(features, n_threads=self._inner._threads)
        prob[model.empty_rows(features)] = model.label_frequencies
        return prob

    def _labels_above(self, features: Features, threshold: float | None) -> tuple[Int64, Int32, Float64]:
        """Return row, class and probability of the labels that apply."""
        options: ConstraintTable = {"threshold": [Interval(float, 0.0, 1.0, closed="right"), None]}
        check_parameters("predict_labels", {"threshold": threshold}, options)
        return self._inner.model_.labels_above(features, threshold, n_threads=self._inner._threads)

    def decision_function(self, X: Any) -> Float32:
        """Return debiased scores, (n_samples, n_classes); for two classes the second's minus the first's."""
        features, inner = self.to_features(X), self._inner
        scores = inner.model_.debiased_scores(features, n_threads=inner._threads)
        return scores[:, 1] - scores[:, 0] if len(inner.classes_) == 2 else scores

    def predict_log_proba(self, X: Any) -> Float32:
        """Return log p(y|x) of every class, (n_samples, n_classes), unless that is too large for memory."""
        features, inner = self.to_features(X), self._inner
        return inner.model_.log_prob_all(features, n_threads=inner._threads)

    def predict_proba(self, X: Any) -> Float64:
        """Return p(y|x) of every class, in float64, unless that is too large for memory."""
        features, inner = self.to_features(X), self._inner
        return inner.model_.prob_all(features, n_threads=inner._threads)

    def unknown(self, X: Any) -> Bool:
        """Mark rows that the model knows nothing about: texts without a known n-gram.

        Their predictions are the class frequencies of the training rows.
        """
        features = self.to_features(X)
        unknown = np.zeros(features.shape[0], np.bool_)
        unknown[self._inner.model_.empty_rows(features)] = True
        return unknown

    def label_ids(self, labels: Sequence[Any]) -> Int32:
        """Return the positions of labels in `classes_`; an unknown label is an error."""
        self._require_fitted()
        return self._inner._label_index.find(
            list(labels), where=lambda i: "the label", hint="See classes_ for them.", allow_unseen=False
        )

    # -- evaluation ----------------------------------------------------------------------------------------

    def log_likelihood(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Return the mean log p(y|x), normalised over all classes; with several labels, over all pairs."""
        X, y = self._inputs(X, y)
        features, inner = self.to_features(X), self._inner
        hint = "Leave out rows of classes that were not in the training data."
        data = inner._weighted(inner._lookup(y, features, hint=hint), sample_weight)
        return inner.model_.log_likelihood(data.compact(), n_threads=inner._threads)

    def score(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy; a label that was not in the training data counts as wrong.

        With several labels per row it is precision@1: the fraction of rows whose predicted label is one of
        theirs.
        """
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
        """Return a monitor that watches a stream of rows for drift.

        Parameters
        ----------
        alpha : float
            Upper bound on the probability of a false alarm over the whole stream.
        reference : rows, optional
            Rows to compare the stream with, which must not have been trained on. By default the rows that
            `fit` held out for calibration.
        state : str, optional
            Saved by `Monitor.to_json`; the monitor continues from it.
        seed : int
            Seed for breaking ties.
        """
        from extremax.report.drift import Monitor

        self._require_fitted("before monitor")
        rows = None if reference is None else self.to_features(reference, name="reference")
        monitor = Monitor(self, self._reference(rows), alpha=alpha, seed=seed)
        return monitor if state is None else monitor.restore(state)

    def _reference(self, rows: Features | None) -> Reference:
        """Return the reference of a monitor: from given features, or that of the fit."""
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
        best, log_prob = self._inner._search(rows, 1)
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

    def resume_fit(self, X: Any, y: Any, *, callbacks: Sequence[Callback] = ()) -> Self:
        """Continue a `fit` that was interrupted or saved midway, up to `n_epochs`.

        Given the rows of a `fit` without weights and validation, the result is the model of an uninterrupted
        fit.
        """
        self._require_fitted()
        (X, y), inner, texts = self._inputs(X, y), self._inner, self._inner.model_.classes.texts
        features = self.to_features(X if texts is None else [*X, *texts.to_list()])
        if inner._changes:
            raise ValueError(
                f"the classes of this model were changed ({inner._changes[-1]['what']}) after its fit, so"
                " it cannot be resumed; continue with partial_fit, or call fit."
            )
        n_samples = features.shape[0] - (0 if texts is None else len(texts))
        data = inner._class_weighted(lookup_targets(y, inner._label_index, n_samples=n_samples))
        data = data.with_features(features).usable()
        if texts is not None:
            data = data.with_class_texts(texts.class_of, texts.kinds, WEIGHT, inner.layout_.n_sparse)
        config, context = inner._resume_config(), inner._context(inner.seed_)
        request = Request(None, callbacks, inner._publish, inner.patience)
        inner._finish(resume_model(inner._fitted, data, config, context, request))
        return self

    def explain_label(self, label: Any, k: int = 10) -> LabelExplanation:
        """Explain a class by its strongest features and by the classes most similar to it.

        Parameters
        ----------
        label
            One of `classes_`.
        k : int
            Number of features, and of classes, to list.
        """
        self._require_fitted()
        inner = self._inner
        number = inner._label_id(label)
        check_count("explain_label", k)
        return explain_class(inner.model_, inner.classes_, number, self._column_names, k)

    def _column_names(self, columns: NDArray[np.integer[Any]]) -> list[str]:
        """Return the names of columns."""
        raise NotImplementedError

    def fit_index(self, X: Any, *, held_out: Any = None) -> Self:
        """Refit the index of beam search, on rows like those to be predicted.

        `held_out`, rows that the model was not trained on, choose the default width; without them, some rows
        of X do. `fit` builds the index itself; `partial_fit` does not.
        """
        features, inner = self.to_features(X), self._inner
        unseen = None if held_out is None else self.to_features(held_out, name="held_out")
        options: dict[str, Any] = {"seed": inner.seed_, "n_threads": inner._threads}
        if isinstance(inner.model_.weights, SparseWeights):  # beam search is exact search
            return self
        index = fit_index(inner.model_, features, held_out=unseen, **options)
        return self._replace_model(inner.model_.with_search("beam", index))

    def add_search(self, name: str, search: Search) -> Self:
        """Add a custom search to the fitted model, for ``predict_topk(search=name)``."""
        self._require_fitted()
        return self._replace_model(self._inner.model_.with_search(name, search))

    def describe_classes(self, descriptions: Sequence[str]) -> Self:
        """Store a description of each class, in the order of `classes_`; it is saved with the model."""
        self._require_fitted()
        return self._replace_model(self._inner.model_.with_descriptions(descriptions))

    # -- changes of the classes ----------------------------------------------------------------------------

    def add_classes(
        self, X: Any, y: Any, sample_weight: ArrayLike | None = None, *, classes: ArrayLike | None = None
    ) -> Self:
        """Add new classes to a fitted model, given rows of them; all other weights stay the same.

        The weights of a new class follow from its rows and from what the fit learned about all classes: no
        epoch is run, and no rows of other classes are needed. `partial_fit` continues from there. Text
        features do not change: words that no text of `fit` had tell nothing about a class.

        Parameters
        ----------
        X : array or sparse matrix (n_samples, n_features), or sequence of texts
            Rows of the new classes.
        y : sequence of n_samples labels, or of lists of labels, or indicator matrix
            A row whose label is already a class of the model is an error; ``partial_fit(X, y,
            new_classes="add")`` takes rows of both. Of a row with several labels, one must be new.
        sample_weight : array (n_samples,), optional
            Weight of each row.
        classes : sequence, optional
            Names of the columns of an indicator matrix.

        Examples
        --------
        >>> import numpy as np
        >>> from extremax import ExtremeClassifier
        >>> rng = np.random.default_rng(0)
        >>> centres = 3.0 * rng.normal(size=(6, 8))
        >>> y = rng.integers(6, size=600)
        >>> X = centres[y] + rng.normal(size=(600, 8))
        >>> clf = ExtremeClassifier(random_state=0).fit(X[y < 5], y[y < 5])
        >>> clf.add_classes(X[y == 5][:20], y[y == 5][:20]).classes_.tolist()
        [0, 1, 2, 3, 4, 5]
        >>> bool((clf.predict(X[y == 5]) == 5).mean() > 0.8)
        True
        """
        X, y = self._inputs(X, y)
        editing.add_rows(self._inner, self.to_features(X), y, sample_weight, classes)
        return self

    def remove_classes(self, labels: Any) -> Self:
        """Remove classes from a fitted model, exactly; all other weights stay the same.

        The softmax over the remaining classes is the conditional probability given that the class is none
        of the removed ones. In the calibration, every remaining class keeps its share of the uniform mixing,
        and the temperature of a row depends on the remaining classes.

        Parameters
        ----------
        labels : sequence
            Some of `classes_`, or a single label.

        Examples
        --------
        >>> from extremax import ExtremeClassifier
        >>> X, y = [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]] * 3, ["a", "b", "c"] * 3
        >>> clf = ExtremeClassifier(random_state=0).fit(X, y).remove_classes(["c"])
        >>> clf.classes_.tolist(), clf.predict_proba([[1.0, 1.0]]).sum().round(6).item()
        (['a', 'b'], 1.0)
        """
        self._require_fitted("before remove_classes")
        editing.remove_labels(self._inner, labels)
        return self

    def merge_classes(self, names: Mapping[Any, Any]) -> Self:
        """Rename classes; classes with the same new name become one, exactly.

        The probability of a merged class is the sum of those of its members, in every method and search. The
        model keeps the weights of all members.

        Parameters
        ----------
        names : dict
            New name of each label to change: another label of the model, or a new name. All changes are made
            at once, so ``{"a": "b", "b": "a"}`` swaps two names.

        Examples
        --------
        >>> from extremax import ExtremeClassifier
        >>> X, y = [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]] * 3, ["cat", "dog", "kitten"] * 3
        >>> clf = ExtremeClassifier(random_state=0).fit(X, y)
        >>> before = clf.predict_proba([[0.5, 0.5]])[0]
        >>> after = clf.merge_classes({"kitten": "cat"}).predict_proba([[0.5, 0.5]])[0]
        >>> clf.classes_.tolist(), np.allclose(after, [before[0] + before[2], before[1]])
        (['cat', 'dog'], True)
        """
        self._require_fitted("before merge_classes")
        editing.rename_labels(self._inner, names)
        return self

    # -- files ---------------------------------------------------------------------------------------------

    def _replace_model(self, model: Model) -> Self:
        """Replace the fitted model, for example by a calibrated one."""
        inner = self._inner
        inner._fitted.model = model
        inner.model_ = model
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the model to a folder, completely or not at all; `load_model` opens it."""
        self._require_fitted("before save")
        self._inner._save(path, self._components())

    def _components(self) -> Mapping[str, State]:
        """Return the components to save besides the classifier of features."""
        return {}


@documented(CLASSIFIER_PARAMETERS)
class ExtremeClassifier(Classifier):
    """Linear softmax classifier over very many classes.

    By default each row is compared with the classes that score highest for it, or with about a thousand
    classes that the rows of a minibatch share, so that the loss estimates that of the softmax over all
    classes. Training starts from a linear discriminant on whitened features. The paper's method, negatives
    drawn for each row from a label tree, is ``solver="negative_sampling"``.

    {parameters}

    Attributes
    ----------
    classes_ : ndarray (n_classes,)
        Labels as given.
    n_features_in_ : int
        Width of the training features.
    model_ : Model
        Weights, noise, calibration and search indexes.
    choices_ : dict
        Values that were chosen automatically: ``solver``, ``n_epochs`` and others, ``temperature``,
        ``uniform_mix`` and ``temperature_slope``, the tree's ``tree_regularization`` by level,
        ``beam_width`` and ``beam_recall``; ``limited_rows``, ``scaled_columns`` and ``evened_columns`` if
        there were outlying rows, sparse columns far larger than others, or dense columns of uneven scales.
    history_ : list of dict
        One record per epoch: ``epoch``, ``seconds`` of training so far (projection and tree included),
        ``loss``, ``learning_rate``, and with validation data ``valid_log_likelihood``, ``valid_accuracy``,
        ``valid_top_k_accuracy``. Epoch 0 is the initial model. With several labels per row, the likelihood
        is a mean over pairs, and one correct label counts. If the fit held rows out for calibration, the
        last record has the same figures of the finished model on them: ``held_out_rows``,
        ``held_out_accuracy``, ...
    interrupted_ : bool
        Whether Ctrl-C ended the last fit early.

    Examples
    --------
    >>> import numpy as np
    >>> from extremax import ExtremeClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(50, size=2000)
    >>> X = rng.normal(size=(50, 8))[y] + 0.3 * rng.normal(size=(2000, 8))
    >>> clf = ExtremeClassifier(random_state=0).fit(X[:1500], y[:1500])
    >>> clf.score(X[1500:], y[1500:]) > 0.8
    True
    >>> labels, log_prob = clf.predict_topk(X[1500:], k=3)

    Rows may have any number of labels:

    >>> labels = [["red", "round"], ["red"], ["blue", "round"], ["blue"]]
    >>> clf = ExtremeClassifier(random_state=0).fit(X[:4], labels)
    >>> clf.classes_.tolist()
    ['blue', 'red', 'round']
    """

    _indicator: tuple[bool, str] | None = None  # whether the labels of fit were a sparse matrix; its dtype
    _changes: Sequence[Change] = ()  # of the classes since the fit
    _numbers: Defaults = DEFAULTS  # tuned numbers of the components; a subclass may have others

    @says_where
    def __init__(  # noqa: PLR0913 (the parameters are the API)
        self,
        solver: str | Solver = "auto",
        *,
        n_epochs: int | None = None,
        class_weight: dict[Any, float] | Literal["balanced"] | None = None,
        validation_fraction: float = 0.0,
        patience: int | None = None,
        memory_limit: int | None = None,
        max_model_bytes: int | None = None,
        n_jobs: int | None = None,
        random_state: int | np.random.Generator | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.solver = solver
        self.n_epochs = n_epochs
        self.class_weight = class_weight
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.memory_limit = memory_limit
        self.max_model_bytes = max_model_bytes
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def set_params(self, **params: Any) -> Self:
        """Set parameters; those of the solver as ``solver__learning_rate``."""
        refuse_misplaced(params.items(), ValueError)
        solver = params.get("solver", self.solver)
        if isinstance(solver, str) and any(name.startswith("solver__") for name in params):
            if solver == "auto":
                raise ValueError(
                    'solver="auto" has no parameters; name one first, such as solver="negative_sampling".'
                )
            params["solver"] = find_solver(solver)
        super().set_params(**params)
        return self

    @classmethod
    def with_solver(cls, solver: str = "auto", **parameters: Any) -> Self:
        """Return a classifier, given its parameters and those of a named solver side by side, as in a recipe.

        Examples
        --------
        >>> ExtremeClassifier.with_solver("nce", noise="uniform", n_epochs=3)
        ExtremeClassifier(n_epochs=3, solver=NCE(noise='uniform'))
        """
        own = {name: parameters.pop(name) for name in SOLVER_PARAMETERS if name in parameters}
        return cls(make_solver(solver, own), **parameters)

    @classmethod
    def paper(cls, **parameters: Any) -> Self:
        """Return an estimator with the paper's algorithm and parameters, some of which may be changed.

        Bamler and Mandt, "Extreme Classification via Adversarial Softmax Approximation": negative sampling
        with one negative per row, a label tree fitted to the letter on 16 principal components of all rows
        with lambda_n = 0.1, features as given, and rho and lambda of Table 1.

        Examples
        --------
        >>> clf = ExtremeClassifier.paper(learning_rate=0.003, random_state=0)
        >>> clf.solver.n_negatives, clf.solver.tree_components, clf.solver.tree_fit, clf.random_state
        (1, 16, 'paper', 0)
        """
        return cls.with_solver("negative_sampling", **PAPER | parameters)

    # -- training ------------------------------------------------------------------------------------------

    def _first_rows(self, X: Any, y: Any) -> FirstRows:
        self.check_params()
        return FirstRows(X)

    def _train_first(
        self,
        rows: FirstRows,
        y: Any,
        sample_weight: ArrayLike | None,
        classes: ArrayLike | None,
        eval_set: tuple[Any, Any] | None,
        callbacks: Sequence[Callback],
    ) -> None:
        """Train from the beginning, on the rows of a first call."""
        first, held = self._read_first(rows, y, classes, sample_weight)
        data = self._class_weighted(first).usable()
        texts = None
        if len(rows.texts.labels):
            class_of = self._label_index.lookup(rows.texts.labels)
            texts = ClassTexts.of(rows.texts.texts, class_of, rows.texts.kinds)
            data = data.with_class_texts(class_of, texts.kinds, WEIGHT, self.layout_.n_sparse)
        self._require_two_classes(data)
        context = self._context(check_random_state(self.random_state))
        data, validation = self._split_validation(data, eval_set, context.seed)
        config = self._resolve(data)
        request = Request(validation, callbacks, self._publish, self.patience, held, texts)
        self._finish(fit_model(data, len(self.classes_), config, context, request))

    def _start_stream(
        self, rows: FirstRows, y: Any, classes: ArrayLike | None, sample_weight: ArrayLike | None
    ) -> None:
        """Train one epoch, on the first part of a stream."""
        self._forget()
        first, held = self._read_first(rows, y, classes, sample_weight)
        data = self._class_weighted(first)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has one class, {self.classes_.item(0)!r}; ExtremeClassifier needs at least two."
                " Declare them: partial_fit(X, y, classes=...)."
            )
        config = self._resolve(data, streaming=True, n_seen=len(np.unique(data.y)))
        context = self._context(check_random_state(self.random_state))
        request = Request(publish=self._publish, patience=self.patience, held=held)
        self._finish(train_epoch(None, data, len(self.classes_), config, context, request))

    def _require_fixed_weights(self) -> None:
        if self.class_weight == "balanced":
            raise ValueError(
                "class_weight='balanced' needs the labels of all rows, which partial_fit does not see; give a"
                " dict with the weight of each label."
            )

    def _train_more(
        self,
        features: Features,
        y: Any,
        classes: ArrayLike | None,
        sample_weight: ArrayLike | None,
        *,
        add: bool,
    ) -> None:
        """Train a fitted model for one more epoch.

        An error before the epoch changes nothing; an error during it removes the added classes again.
        """
        self._check_same_classes(classes)
        before = {name: value for name, value in vars(self).items() if name in _CHANGED}
        before["_changes"] = self._changes  # an attribute of the class before the first change
        try:
            if add:
                editing.add_unseen(self, y, features, sample_weight)
            hint = (
                "Declare every class at the first call, partial_fit(X, y, classes=all_labels), or add it now:"
                ' partial_fit(X, y, new_classes="add").'
            )
            found = self._lookup(y, features, hint=hint)
            data = self._class_weighted(self._weighted(found, sample_weight))
            if self.model_.label_map is not None:
                data = self.model_.merged_predictor(self._threads).assign(data)
            config, context = self._resume_config(), self._context(self.seed_)
            request = Request(publish=self._publish, patience=self.patience)
            n_lines = self.model_.weights.n_classes
            trained = train_epoch(self._fitted, data, n_lines, config, context, request)
        except BaseException:
            if self._fitted is not before["_fitted"]:  # else it was trained in place
                self.__dict__.update(before)
            raise
        self._finish(trained)

    # -- the fitted state ----------------------------------------------------------------------------------

    @property
    def changes_(self) -> list[dict[str, Any]]:
        """Changes of the classes since the fit, oldest first, with time and numbers of classes and rows."""
        return [dict(change) for change in self._changes]

    def _forget(self) -> None:
        for name in [name for name in vars(self) if name.endswith("_") and not name.startswith("__")]:
            delattr(self, name)
        for name in ("_fitted", "_label_index", "_indicator", "_changes"):
            self.__dict__.pop(name, None)

    def _publish(self, fitted: Fitted) -> None:
        self._fitted = fitted
        self.model_: Model = fitted.model
        self.history_: list[Record] = fitted.history
        self.interrupted_: bool = fitted.interrupted

    def _finish(self, fitted: Fitted) -> None:
        self._publish(fitted)
        if fitted.interrupted:
            warn_caller(
                f"Training was interrupted after {fitted.model.n_epochs} epochs; the model is kept as it is.",
                TrainingInterruptedWarning,
            )

    @property
    def _inner(self) -> ExtremeClassifier:
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return "model_" in vars(self)

    def __getattr__(self, name: str) -> Any:
        if name in ("coef_", "intercept_"):  # their own AttributeError ends here
            raise AttributeError(self._no_coefficients)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def coef_(self) -> Any:
        """Weights of the features, (n_classes, n_features), or of two classes (1, n_features).

        With `intercept_` they give `decision_function`: ``X @ coef_.T + intercept_``. Sparse weights are a
        scipy matrix.
        """
        return self._coefficients()[0]

    @property
    def intercept_(self) -> Float32:
        """Score of each class for a row of zeros, (n_classes,), or of two classes (1,)."""
        return self._coefficients()[1]

    def _coefficients(self) -> tuple[Any, Float32]:
        if self._no_coefficients is not None:
            raise AttributeError(self._no_coefficients)
        scorer = self.model_.scorer
        weights, intercept = scorer.weights.coefficients()
        if scorer.offsets is not None:
            intercept = intercept + scorer.offsets
        if self.layout_.scaling is not None:
            weights = self.layout_.scaling.to_given(weights)
        if len(self.classes_) == 2:
            return weights[1:2] - weights[0:1], intercept[1:2] - intercept[0:1]
        return weights, intercept

    @property
    def _no_coefficients(self) -> str | None:
        """Why the model has no `coef_`, or None if it has one."""
        if "model_" not in vars(self):
            return f"This {type(self).__name__} is not fitted yet; call fit(X, y) first."
        scorer = self.model_.scorer
        if self.model_.label_map is not None:
            return (
                "a model with merged classes has no coef_ and intercept_: the score of a merged class is the"
                " log of a sum over its parts, whose weights are in model_.weights."
            )
        if not scorer.linear_scores:
            return (
                f"a model of solver {self.model_.solver!r} with a label tree has no coef_ and"
                " intercept_: log p_n of the tree, a part of its scores, is not linear in the features."
            )
        return scorer.weights.nonlinear_part

    @property
    def choices_(self) -> dict[str, Any]:
        """The automatically chosen values, as the model has them now."""
        if "model_" not in vars(self):
            raise AttributeError(f"This {type(self).__name__} is not fitted yet; call fit(X, y) first.")
        scaling = self.layout_.scaling
        scaled = {} if scaling is None else {"scaled_columns": scaling.columns.tolist()}
        return scaled | self.model_.describe()

    @property
    def _threads(self) -> int:
        return resolve_threads(self.n_jobs)

    def _search(self, features: Features, k: int, **options: Any) -> tuple[Int32, Float32]:
        """Return the best classes of checked rows, and their log-probabilities."""
        # one thread scores a single sparse row anyway
        alone = features.shape[0] == 1 and isinstance(self.model_.weights, SparseWeights)
        n_threads = 1 if alone and self.n_jobs != 0 else self._threads
        ids, log_prob = self.model_.topk(features, k, n_threads=n_threads, **options)
        known = (ids >= 0).all(axis=1) & np.isfinite(log_prob[:, 0])  # as k <= n_classes
        if not known.all():
            raise ScoreOverflowError(int(np.argmin(known)))
        return ids, log_prob

    def _context(self, seed: int) -> Context:
        self.seed_ = seed
        return Context(seed, self._threads, ProgressLine(int(self.verbose)), self.memory_limit)

    def check_params(self) -> None:
        """Raise for invalid parameters of the classifier or its solver."""
        values = self.get_params(deep=False)
        if isinstance(self.solver, str):  # a name may have been registered since the table was written
            check_parameters(CLASSIFIER, {"solver": values.pop("solver")}, {"solver": [solver_names()]})
        check_values(CLASSIFIER, values)
        if not isinstance(self.solver, str):
            self.solver.check()

    def _resolve(self, data: Examples, **streaming: Any) -> FitConfig:
        """Return the configuration of a first call."""
        options: dict[str, Any] = {"n_epochs": self.n_epochs, "max_model_bytes": self.max_model_bytes}
        problem = problem_size(data, len(self.classes_))
        options |= {"layout": self.layout_, "numbers": self._numbers, **streaming}
        return resolve(self.solver, problem, **options)

    def _resume_config(self) -> FitConfig:
        model = self.model_
        if model.config is None:
            raise ValueError(
                "this model has no record of how it was trained, so training cannot go on; fit it again."
            )
        is_whitened = self._fitted.state.whitening is not None
        options: dict[str, Any] = {"n_epochs": self.n_epochs, "max_model_bytes": self.max_model_bytes}
        return resume(model.config, self.solver, is_whitened=is_whitened, **options)

    # -- input ---------------------------------------------------------------------------------------------

    def _read_first(
        self, rows: FirstRows, y: Any, classes: Any, sample_weight: ArrayLike | None
    ) -> tuple[Examples, Mapping[str, int]]:
        """Check the rows of a first call and fix the classes and the columns.

        Returns the examples, and the bytes that are held for the fit by now, by part.
        """
        given, groups, held, texts = rows
        X, n_dense = join_pair(given)
        features = check_features(X)
        n_columns, copied = int(features.shape[1]), copied_bytes(given, features)
        n_samples = features.shape[0] - len(texts.labels)
        known, targets = encode_targets(y, n_samples=n_samples, classes=classes)
        if len(texts.labels):
            known, targets = self._with_text_labels(known, targets, texts.labels, y)
        check_savable(known)
        self._indicator = indicator_format(y)
        scaling = None
        if sparse.issparse(features):
            scaling = LargeColumns.find(features, self._numbers.scale, n_columns - n_dense)
        if scaling is not None:
            features = scaling.scale(features)
        self.layout_ = FeatureLayout(n_columns, n_dense, groups, scaling)
        data = self._weighted(targets, sample_weight).with_features(features)
        self._remember(X, features, known)
        return data, {**held, "converted features": copied} if copied else held

    def _with_text_labels(
        self, known: NDArray[Any], targets: Examples, labels: list[Any], y: Any
    ) -> tuple[NDArray[Any], Examples]:
        """Return classes and pairs with the labels of class texts among the classes."""
        more, _ = encode_labels(labels, name="class_texts")
        found = LabelIndex(known).find(more.tolist(), where=str, hint="", allow_unseen=True)
        new = more[found < 0]
        if not len(new):
            return known, targets
        if known.dtype.kind in "iuf" and more.dtype.kind not in "iuf":
            raise ValueError(
                f"class_texts has the label {new.item(0)!r}, and the labels of y are numbers; give numbers."
            )
        if indicator_format(y) is not None:
            raise ValueError(
                f"class_texts has the label {new.item(0)!r}, which is not a column of y; with an indicator"
                " matrix, the classes are its columns."
            )
        both, place = join_labels(known, new)
        return both, replace(targets, y=np.argsort(place).astype(np.int32)[targets.y])

    def _remember(self, X: Any, features: Features, classes: NDArray[Any]) -> None:
        self.classes_ = classes
        self._label_index = LabelIndex(classes)
        validate_data(self, X if is_frame(X) else features, skip_check_array=True, reset=True)

    def _require_two_classes(self, data: Examples) -> None:
        if len(np.unique(data.y)) < 2:
            only = self.classes_.item(data.y[0])
            raise ValueError(f"y has one class, {only!r}; ExtremeClassifier needs rows of at least two.")

    def _split_validation(
        self, data: Examples, eval_set: tuple[Any, Any] | None, seed: int
    ) -> tuple[Examples, Examples | None]:
        """Return rows to train on, and rows to validate on: those given, or a fraction held out."""
        validation = self._read_eval_set(eval_set)
        if validation is None and self.validation_fraction > 0.0:
            data, validation = data.holdout(self.validation_fraction, seed)
        if validation is None:
            check_patience(self.patience)
        return data, validation

    def _check_same_classes(self, classes: ArrayLike | None) -> None:
        known = self.classes_
        # Sorted or, for the columns of a matrix, in their order: both are the classes of the first call.
        same = classes is None or np.array_equal(check_classes(classes), known)
        if not same and not np.array_equal(np.asarray(classes), known):
            raise ValueError(
                f"classes differs from the {len(known):,} classes of the first call to partial_fit."
                " Leave it out, or call fit to start again."
            )

    def _read_eval_set(self, eval_set: tuple[Any, Any] | None) -> Examples | None:
        if eval_set is None:
            return None
        given, y = frame_inputs(*eval_set)
        X = self.to_features(given, name="eval_set[0]")
        data = self._lookup(y, X, name="eval_set[1]", allow_unseen=True)
        unseen = int((data.y < 0).sum())
        if unseen == data.n_pairs:
            raise ValueError(
                "eval_set has no row of a class that occurs in y; validate on rows of the same classes."
            )
        warn_unlabelled(data, "eval_set[1]")
        if unseen:
            what = "rows of eval_set are of" if data.row_index is None else "labels of eval_set are"
            warn_caller(f"{unseen} of {data.n_pairs} {what} classes that y lacks; they are left out.")
        return data.usable().compact()

    def _lookup(self, y: Any, features: Features, **options: Any) -> Examples:
        targets = lookup_targets(y, self._label_index, n_samples=features.shape[0], **options)
        return targets.with_features(features)

    def _weighted(self, data: Examples, sample_weight: ArrayLike | None) -> Examples:
        """Give the pairs the weights of their rows, and warn of rows without a label."""
        weight = row_weight(data, sample_weight)
        warn_unlabelled(data, "y")
        return data.with_row_weight(weight)

    def _class_weighted(self, data: Examples) -> Examples:
        """Multiply the weights of the pairs by those of their classes."""
        if self.class_weight is None:
            return data
        given: Any = self.class_weight
        if isinstance(given, dict):
            ids = {self._label_id(label, "class_weight names"): weight for label, weight in given.items()}
            given = ids
        return data.with_class_weight(class_weights(given, data, len(self.classes_)))

    def to_features(self, X: Any, name: str = "X") -> Features:
        """Check rows and return the features that the model reads: dense float32, or CSR.

        Error messages call the rows `name`.
        """
        if name == "X":
            self._require_fitted()
        X = self._join(as_frame(X, name), name)
        features = check_features(X, name=name, n_features=self.n_features_in_)
        if is_frame(X) or "feature_names_in_" in vars(self):  # the names of the columns matter
            validate_data(self, X if is_frame(X) else features, skip_check_array=True, reset=False)
        scaling = self.layout_.scaling
        return features if scaling is None else scaling.scale(features)

    def _join(self, X: Any, name: str) -> Any:
        """Return a pair of sparse and dense features as one matrix, if its parts have the right widths."""
        joined, n_dense = join_pair(X, name)
        expected = self.layout_.n_dense
        if joined is not X and n_dense != expected:
            raise ValueError(
                f"{name} has {n_dense} dense features beside sparse ones; the model was fitted on {expected}."
            )
        return joined

    # -- explanations --------------------------------------------------------------------------------------

    def explain(self, x: Any, k: int = 3) -> Explanation:
        """Explain the prediction for one row by exact contributions of its features.

        Parameters
        ----------
        x : array or sparse matrix (1, n_features)
        k : int
            Labels: the contributions to the score of the first, and to its difference from each of the
            others.

        Returns
        -------
        Explanation
            Features have the names of the training data's columns, or their numbers.
        """
        features = self.to_features(x)
        check_count("explain", k)
        if features.shape[0] != 1:
            raise ValueError(f"x has {features.shape[0]:,} rows; explain takes one.")
        best = self.model_.topk(features, min(k, len(self.classes_)), n_threads=self._threads)
        return explain_row(self.model_, self.classes_, features, best, self._column_names)

    def _label_id(self, label: Any, what: str = "") -> int:
        found = int(self._label_index.lookup([label], n_samples=1, allow_unseen=True)[0])
        if found < 0:
            what = f"{what} {label!r}, which" if what else repr(label)
            raise ValueError(f"{what} is not one of the {len(self.classes_):,} classes of this model.")
        return found

    def _column_names(self, columns: NDArray[np.integer[Any]]) -> list[str]:
        names = vars(self).get("feature_names_in_")
        return [f"column {c}" if names is None else str(names[c]) for c in columns.tolist()]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # -- files ---------------------------------------------------------------------------------------------

    def _save(self, path: str | os.PathLike[str], parts: Mapping[str, State]) -> None:
        header, defaults = self._header(), type(self)().get_params(deep=False)
        given = self.get_params(deep=False)
        if not isinstance(self.solver, str):
            given["solver"] = self.solver.changed()
        card = make_card(
            self.model_,
            self.classes_,
            history=self.history_,
            parameters={name: given[name] for name in given if _differ(given[name], defaults[name])},
            changes=self._changes,
            texts=bool(parts),
        )
        state = self._fitted.state
        save_model(path, self.model_, state, labels=self.classes_, header=header, parts=parts, card=card)

    def _header(self) -> dict[str, Any]:
        """Return the parameters, history and seed for a model folder."""
        plain: dict[str, Any] = {
            name: value
            for name, value in self.get_params(deep=False).items()
            if isinstance(value, str | int | float | np.generic | None)
        }
        if not isinstance(self.solver, str):
            plain["solver"] = self.solver.header()
        history = [
            {name: None if value != value else value for name, value in record.items()}
            for record in self.history_
        ]
        weights = None
        if isinstance(self.class_weight, dict):
            weights = sorted((self._label_id(label), float(w)) for label, w in self.class_weight.items())
        names = vars(self).get("feature_names_in_")
        return EstimatorHeader(
            plain,
            history,
            str(self.seed_),
            indicator=self._indicator,
            large_columns=None if self.layout_.scaling is None else self.layout_.scaling.header(),
            changes=list(self._changes) or None,
            class_weight=weights,
            feature_names=None if names is None else list(names),
        ).to_dict()

    @classmethod
    def _restore(cls, path: str | os.PathLike[str], saved: SavedModel) -> Self:
        """Return the estimator that a folder holds."""
        if saved.labels is None:
            raise ModelFileError(
                f"{path} holds a model without label names; it was not written by ExtremeClassifier.save."
            )
        header = checks.read(saved.header, EstimatorHeader)
        solver = header.parameters.pop("solver", "auto")
        if not isinstance(solver, str):
            solver = restore_solver(solver, saved.model.noise)
        estimator = cls(solver, **header.parameters)
        estimator.check_params()
        n_features = saved.model.n_features
        columns = np.empty((1, n_features), np.float32)
        estimator._remember(columns, columns, saved.labels)
        if header.indicator is not None:
            is_sparse, dtype = header.indicator
            estimator._indicator = is_sparse, np.dtype(dtype).name
        estimator.layout_ = saved.model.layout
        if header.large_columns is not None:
            scaling = LargeColumns.from_header(header.large_columns, n_features)
            estimator.layout_ = replace(estimator.layout_, scaling=scaling)
        estimator._changes = header.changes or ()
        if header.class_weight is not None:
            labels = saved.labels.tolist()
            estimator.class_weight = {labels[i]: weight for i, weight in header.class_weight}
        if header.feature_names is not None:
            if len(header.feature_names) != n_features:
                checks.reject(f"there are not as many feature names as the {n_features:,} features")
            estimator.feature_names_in_ = np.array(header.feature_names, dtype=object)
        estimator.seed_ = int(header.seed)
        history = [
            {n: float("nan") if v is None else v for n, v in record.items()} for record in header.history
        ]
        estimator._publish(Fitted(saved.model, saved.state, history))
        return estimator


def read_pair(eval_set: EvalSet) -> tuple[Any, Any] | None:
    """Return the rows and labels of an `eval_set`, which may be a list of one pair, as in LightGBM."""
    if eval_set is None:
        return None
    pairs = isinstance(eval_set, list) and all(isinstance(p, tuple | list) and len(p) == 2 for p in eval_set)
    if pairs and len(eval_set) != 1 and all(isinstance(pair, tuple) for pair in eval_set):
        raise ValueError(
            f"eval_set has {len(eval_set)} pairs; it must contain one (X_valid, y_valid) pair, which controls"
            " early stopping."
        )
    found: Any = eval_set[0] if pairs and len(eval_set) == 1 else eval_set
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise TypeError(f"eval_set must be a pair (X_valid, y_valid); got {type(eval_set).__name__}.")
    return found[0], found[1]


def _differ(one: Any, two: Any) -> bool:
    """Whether two values of a parameter differ; objects of other libraries do."""
    plain = (str, int, float, type(None))
    return type(one) is not type(two) or not isinstance(one, plain) or one != two


def check_count(method: str, k: Any) -> None:
    """Raise unless k is a whole number of at least one."""
    check_parameters(method, {"k": k}, {"k": [Interval(int, 1)]})
