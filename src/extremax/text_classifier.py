"""``TextClassifier``: texts in, labels out. Text features and classifier in one estimator and one saved
folder.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import TransformerTags
from sklearn.utils.validation import _num_samples

from extremax.estimator import ExtremeClassifier, check_count
from extremax.examples import Examples
from extremax.explanation import (
    EMBEDDING,
    Explanation,
    LabelExplanation,
    explain_class,
    explain_frequencies,
    explain_row,
)
from extremax.features.ngrams import NgramFeatures
from extremax.features.text import TextFeatures, check_texts
from extremax.model import Model
from extremax.runtime.progress import ProgressLine
from extremax.storage.state import State, merge, restore
from extremax.training.loop import Callback
from extremax.types import Bool, Float32, Float64

TEXT_COMPONENT = "text"  # the component of a saved model that makes it one of texts
_SPARSE = "sparse_softmax"  # the objective for features of any width


class TextClassifier(ClassifierMixin, BaseEstimator):
    """Classifier of texts over very many classes: words and character n-grams, then an `ExtremeClassifier`.

    A text that says nothing to the model, because neither a word nor enough parts of words are known, is
    answered with the class frequencies of the training texts.

    Parameters
    ----------
    classifier : ExtremeClassifier, optional
        What is trained on the features, with its settings; it is copied, not changed. ``ExtremeClassifier()``
        if not given.
    features : NgramFeatures or TextFeatures, optional
        Settings of the text features: sparse ones of any width, or few dense ones. By default
        ``NgramFeatures()``, or ``TextFeatures()`` if the objective of `classifier` needs dense features.
    encoder : str or object with a method ``encode``, optional
        Sentence embeddings: the name or folder of a sentence-transformers model (``pip install
        extremax[embeddings]``), or an object whose ``encode(texts)`` gives an array (n_texts, n_features).
        In place of `features` or, if these are given as well, together with them. The encoder itself is not
        saved with the model: a name is looked up again, an object is given to `load_model`.

    Attributes
    ----------
    classifier_ : ExtremeClassifier
        The fitted classifier; ``classes_``, ``history_``, ``choices_`` and ``model_`` are its own.
    features_ : NgramFeatures, TextFeatures or None
        The fitted text features, unless there is an encoder alone.

    Examples
    --------
    >>> from extremax import ExtremeClassifier, TextClassifier
    >>> texts = ["fell off a ladder", "fall from a roof", "bitten by a dog", "bitten by a cat"] * 5
    >>> clf = TextClassifier(ExtremeClassifier(random_state=0))
    >>> clf = clf.fit(texts, ["fall", "fall", "bite", "bite"] * 5)
    >>> clf.predict(["a ladder fell", "bite of a cat"]).tolist()
    ['fall', 'bite']
    """

    _encodes = False  # whether the encoder is used, alone or beside features

    def __init__(
        self,
        classifier: ExtremeClassifier | None = None,
        *,
        features: NgramFeatures | TextFeatures | None = None,
        encoder: Any = None,
    ) -> None:
        self.classifier = classifier
        self.features = features
        self.encoder = encoder

    # -- training ------------------------------------------------------------------------------------------

    def fit(
        self,
        texts: Sequence[str],
        y: Any,
        sample_weight: ArrayLike | None = None,
        *,
        eval_set: tuple[Sequence[str], Any] | None = None,
        classes: ArrayLike | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Self:
        """Fit the text features, then train the classifier on them.

        Arguments are those of `ExtremeClassifier.fit`, with texts in place of features, also in `eval_set`.
        """
        self._forget()
        if eval_set is not None and (not isinstance(eval_set, tuple | list) or len(eval_set) != 2):
            raise TypeError(f"eval_set must be a pair (texts_valid, y_valid); got {type(eval_set).__name__}.")
        with self._nothing_left_on_failure():
            listed = self._start(texts, y)
            X = self._fit_features(listed)
            validation = None if eval_set is None else (self.transform(eval_set[0]), eval_set[1])
            options: dict[str, Any] = {"classes": classes, "callbacks": callbacks}
            self.classifier_.fit(X, y, sample_weight, eval_set=validation, **options)
            self._keep_names(listed)
        return self

    def _forget(self) -> None:
        """Drop everything that an earlier fit left."""
        for name in ("classifier_", "features_", "_encodes", "_encoder"):
            self.__dict__.pop(name, None)

    @contextmanager
    def _nothing_left_on_failure(self) -> Iterator[None]:
        """Forget what a first call has set, unless it got as far as a model."""
        try:
            yield
        except BaseException:
            if not hasattr(self.__dict__.get("classifier_"), "model_"):
                self._forget()
            raise

    def resume_fit(self, texts: Sequence[str], y: Any, *, callbacks: Sequence[Callback] = ()) -> Self:
        """Go on with a `fit` that was cut short, or saved on the way; see `ExtremeClassifier.resume_fit`."""
        self._of(texts).resume_fit(self.transform(texts), y, callbacks=callbacks)
        return self

    def partial_fit(
        self,
        texts: Sequence[str],
        y: Any,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Train one more epoch, on these texts; the first call fixes the text features, and what else the
        classifier fixes.
        """
        with self._nothing_left_on_failure():
            is_first = not hasattr(self, "classifier_")
            listed = self._start(texts, y) if is_first else list(texts)
            X = self._fit_features(listed) if is_first else self.transform(texts)
            self.classifier_.partial_fit(X, y, classes, sample_weight)
            if is_first:
                self._keep_names(listed)
        return self

    def _start(self, texts: Sequence[str], y: Any) -> list[str]:
        if self.classifier is not None and not isinstance(self.classifier, ExtremeClassifier):
            raise TypeError(f"classifier must be an ExtremeClassifier; got {type(self.classifier).__name__}.")
        if self.features is not None and not hasattr(self.features, "to_options"):
            raise TypeError(
                f"features must be NgramFeatures or TextFeatures; got {type(self.features).__name__}."
            )
        check_texts(texts)
        listed = list(texts)
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None; give one label per text.")
        n_labels = _num_samples(y)
        if len(listed) != n_labels:  # said before minutes of feature extraction, not after
            raise ValueError(
                f"there are {len(listed):,} texts and {n_labels:,} labels; each text needs its label."
            )
        return listed

    def _fit_features(self, texts: list[str]) -> Any:
        classifier = ExtremeClassifier() if self.classifier is None else clone(self.classifier)
        self.features_: NgramFeatures | TextFeatures | None = self._new_features(classifier)
        self._encodes = self.encoder is not None
        if self.features_ is not None and self.features_.is_sparse and _leaves_it_open(classifier):
            classifier.objective = _SPARSE  # however few the columns of few texts are
        if self.features_ is not None:
            report, started = ProgressLine(int(classifier.verbose)), time.perf_counter()

            def show(done: int, total: int) -> None:
                report.update("words and n-grams", done, total, started, unit="texts")
                if done == total:
                    report.close()

            self.features_.fit(texts, n_jobs=classifier.n_jobs, progress=show)
            kind = "columns" if self.features_.is_sparse else "features per text"
            report.log(f"{len(texts):,} texts are read: {self.features_.n_features:,} {kind}")
            classifier._column_groups = self.features_.column_groups
        self.classifier_ = classifier
        return self.transform(texts)

    def _new_features(self, classifier: ExtremeClassifier) -> NgramFeatures | TextFeatures | None:
        """Return features to fit; None where the encoder stands alone."""
        if self.features is not None:
            return type(self.features)(**self.features.to_options())
        if self.encoder is not None:
            return None
        takes_sparse = classifier.objective == _SPARSE or _leaves_it_open(classifier)
        return NgramFeatures() if takes_sparse else TextFeatures()

    def _keep_names(self, texts: list[str]) -> None:
        """Keep the n-grams of the columns with the greatest weights: the names that `explain_label` shows."""
        keep = getattr(self.features_, "keep_names", None)
        weights: Any = self.model_.weights
        if keep is None:
            return
        if weights.row_major:
            offsets, _, values = weights.postings
            used = np.flatnonzero(np.diff(offsets))
            greatest = np.maximum.reduceat(np.abs(values), offsets[used]) if len(used) else np.zeros(0)
        else:
            table = weights.to_dense()
            greatest = np.maximum(table.max(axis=0), -table.min(axis=0))
            used = np.arange(len(greatest))
        order = np.argsort(-greatest, kind="stable")
        keep(texts, used[order][used[order] < self.features_.n_features])  # type: ignore[union-attr]

    # -- prediction ----------------------------------------------------------------------------------------

    def transform(self, texts: Sequence[str]) -> Any:
        """The features of the texts that the classifier sees.

        Returns
        -------
        csr_matrix or ndarray (n_texts, n_features), or a pair of both
            N-grams, dense features or embeddings; n-grams and embeddings together are a pair.
        """
        if not hasattr(self, "classifier_"):
            raise NotFittedError(f"This {type(self).__name__} is not fitted yet; call fit(texts, y) first.")
        check_texts(texts)
        listed = list(texts)
        if self.features_ is None:
            return _encode(self._find_encoder(), listed)
        X = self.features_.transform(listed, n_jobs=self.classifier_.n_jobs)
        if not self._encodes:
            return X
        embeddings = _encode(self._find_encoder(), listed)
        return (X, embeddings) if self.features_.is_sparse else np.hstack([X, embeddings])

    def _find_encoder(self) -> Any:
        if not hasattr(self, "_encoder"):
            if self.encoder is None:
                raise ValueError(
                    "this model was trained with an encoder object, which is not saved with it;"
                    " open it with load_model(path, encoder=...)."
                )
            found = _load_encoder(self.encoder) if isinstance(self.encoder, str) else self.encoder
            if not hasattr(found, "encode"):
                raise TypeError(f"encoder must have a method encode(texts); got {type(found).__name__}.")
            self._encoder = found
        return self._encoder

    def predict(self, texts: Sequence[str]) -> NDArray[Any]:
        """The most probable label of each text."""
        X = self.transform(texts)
        labels = self.classifier_.predict(X)
        unknown = self._unknown(X)
        if unknown.any():
            labels[unknown] = self.classes_[np.argmax(self._log_frequencies())]
        return labels

    def predict_topk(
        self, texts: Sequence[str], k: int = 5, *, search: str = "exact", beam_width: int | None = None
    ) -> tuple[NDArray[Any], Float32]:
        """The k most probable labels of each text, best first, and their log-probabilities; see
        `ExtremeClassifier`.
        """
        X = self.transform(texts)
        labels, log_prob = self.classifier_.predict_topk(X, k, search=search, beam_width=beam_width)
        unknown = self._unknown(X)
        if unknown.any():
            frequencies = self._log_frequencies()
            best = np.argsort(-frequencies, kind="stable")[:k]
            labels[unknown], log_prob[unknown] = self.classes_[best], frequencies[best]
        return labels, log_prob

    def decision_function(self, texts: Sequence[str]) -> Float32:
        """Debiased scores, (n_texts, n_classes); for two classes the second's minus the first's."""
        X = self.transform(texts)
        scores = self.classifier_.decision_function(X)
        unknown = self._unknown(X)
        if unknown.any():
            frequencies = self._log_frequencies()
            scores[unknown] = frequencies[1] - frequencies[0] if scores.ndim == 1 else frequencies
        return scores

    def predict_log_proba(self, texts: Sequence[str]) -> Float32:
        """log p(y|text) of every class, (n_texts, n_classes); refuses results too large for memory."""
        X = self.transform(texts)
        log_prob = self.classifier_.predict_log_proba(X)
        unknown = self._unknown(X)
        if unknown.any():
            log_prob[unknown] = self._log_frequencies()
        return log_prob

    def predict_proba(self, texts: Sequence[str]) -> Float64:
        """p(y|text) of every class, (n_texts, n_classes); refuses results too large for memory."""
        X = self.transform(texts)
        prob = self.classifier_.predict_proba(X)
        unknown = self._unknown(X)
        if unknown.any():
            frequencies = np.exp(self._log_frequencies().astype(np.float64))
            prob[unknown] = frequencies / frequencies.sum()
        return prob

    def is_known(self, texts: Sequence[str]) -> Bool:
        """Whether each text says something to the model; the others are answered with class frequencies."""
        return ~self._unknown(self.transform(texts))

    def _unknown(self, X: Any) -> Bool:
        """Return which rows hold no known n-gram at all; an encoder knows every text."""
        has_counts = self.model_.classes.counts is not None
        if self.features_ is None or not self.features_.is_sparse or self._encodes or not has_counts:
            return np.zeros((X[0] if isinstance(X, tuple) else X).shape[0], dtype=np.bool_)
        return np.asarray(np.diff(X.indptr) == 0)

    def _log_frequencies(self) -> Float32:
        """Return the log of the class frequencies; a class without training rows counts as half a row."""
        counts = np.maximum(np.asarray(self.model_.classes.counts, dtype=np.float64), 0.5)
        return np.asarray(np.log(counts / counts.sum()), dtype=np.float32)

    # -- explanations --------------------------------------------------------------------------------------

    def explain(self, text: str, k: int = 3) -> Explanation:
        """Explain the prediction for a text by exact contributions of its words and n-grams.

        Parameters
        ----------
        text : str
        k : int
            Labels: the contributions to the score of the first, and to its difference from each of the
            others.

        Examples
        --------
        >>> texts = ["fell off a ladder", "fall from a roof", "bitten by a dog", "bitten by a cat"] * 5
        >>> clf = TextClassifier().fit(texts, ["fall", "fall", "bite", "bite"] * 5)
        >>> explanation = clf.explain("dog bite")
        >>> explanation.label, explanation.runner_up
        ('bite', 'fall')
        >>> round(sum(value for _, value in explanation.score.terms) - explanation.score.total, 4) + 0.0
        0.0
        """
        classifier = self._of([text])
        check_count("explain", k)
        X = self.transform([text])
        k = min(k, len(self.classes_))
        if self._unknown(X).any():
            frequencies = self._log_frequencies()
            best = np.argsort(-frequencies, kind="stable")[:k].astype(np.int32)
            return explain_frequencies(self.classes_, best, frequencies[best])
        if self.features_ is None or not self.features_.is_sparse:
            raise ValueError(
                "these features are sums over the whole text, which no word has a part of its own in; explain"
                " needs features=NgramFeatures()."
            )
        rows = classifier._same_features(X)
        found = self.features_.occurrences(text)  # type: ignore[union-attr]
        spelled = dict(zip(found.columns.tolist(), found.names, strict=True))
        return explain_row(
            self.model_,
            self.classes_,
            rows,
            self.model_.topk(rows, k),
            lambda columns: [spelled.get(column, EMBEDDING) for column in columns.tolist()],
            found,
        )

    def explain_label(self, label: Any, k: int = 10) -> LabelExplanation:
        """Explain a class: the n-grams with the greatest weights, and the classes that are most like it.

        Parameters
        ----------
        label
            One of `classes_`.
        k : int
            Features, and classes, to list.
        """
        number = self._of([])._label_id(label)
        check_count("explain_label", k)
        spell = getattr(self.features_, "column_names", None)
        if spell is None:
            raise ValueError("columns of these features have no names; explain_label needs NgramFeatures.")
        n_named = self.features_.n_features  # type: ignore[union-attr]

        def names(columns: NDArray[np.integer[Any]]) -> list[str]:
            return [spell([column])[0] if column < n_named else EMBEDDING for column in columns.tolist()]

        return explain_class(self.model_, self.classes_, number, names, k)

    # -- evaluation ----------------------------------------------------------------------------------------

    def log_likelihood(self, texts: Sequence[str], y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Mean log p(y|text), normalised over all classes."""
        return self._of(texts).log_likelihood(self.transform(texts), y, sample_weight)

    def score(self, texts: Sequence[str], y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Accuracy: the share of texts whose label is predicted."""
        return self._of(texts).score(self.transform(texts), y, sample_weight)

    def _evaluation_rows(self, X: Any, y: Any) -> tuple[Model, Examples, int]:
        return self._of(X)._evaluation_rows(self.transform(X), y)

    def _replace_model(self, model: Model) -> Self:
        self.classifier_._replace_model(model)
        return self

    def fit_index(self, texts: Sequence[str]) -> Self:
        """Fit the index for beam search again; see `ExtremeClassifier.fit_index`."""
        self._of(texts).fit_index(self.transform(texts))
        return self

    def describe_classes(self, descriptions: Sequence[str]) -> Self:
        """Keep a text on each class, in the order of `classes_`; it is saved with the model."""
        self._of(descriptions).describe_classes(descriptions)
        return self

    @property
    def interrupted_(self) -> bool:
        """Whether Ctrl-C ended the last fit early."""
        return self.classifier_.interrupted_

    def _of(self, texts: Any) -> ExtremeClassifier:
        if not hasattr(self, "classifier_"):
            raise NotFittedError(f"This {type(self).__name__} is not fitted yet; call fit(texts, y) first.")
        return self.classifier_

    @property
    def classes_(self) -> NDArray[Any]:
        """Labels as given."""
        return self.classifier_.classes_

    @property
    def history_(self) -> list[dict[str, Any]]:
        """Records of the epochs; see `ExtremeClassifier`."""
        return self.classifier_.history_

    @property
    def choices_(self) -> dict[str, Any]:
        """What was chosen from the data; see `ExtremeClassifier`."""
        return self.classifier_.choices_

    @property
    def model_(self) -> Model:
        """Weights, noise, calibration and search indexes."""
        return self.classifier_.model_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        tags.transformer_tags = TransformerTags(preserves_dtype=[])
        return tags

    # -- files ---------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write text features and classifier to one folder, all at once or not at all; `load_model` opens
        it.
        """
        if not hasattr(self, "classifier_"):
            raise NotFittedError(
                f"This {type(self).__name__} is not fitted yet; call fit(texts, y) before save."
            )
        self.classifier_._save(path, {TEXT_COMPONENT: self._text_state()})

    def _text_state(self) -> State:
        """Return the text component of a model folder: features, an encoder's name, or both."""
        features = None if self.features_ is None else self.features_.state()
        if features is not None and not self._encodes:
            return features
        header = {"kind": "encoder", "name": self.encoder if isinstance(self.encoder, str) else None}
        return State(header) if features is None else merge(header, {"features": features})

    @classmethod
    def _restore(cls, classifier: ExtremeClassifier, about: State, encoder: Any) -> Self:
        """Return the estimator of a folder, from its classifier and its text component."""
        encodes = about.header["kind"] == "encoder"
        features: Any = None
        if not encodes:
            features = restore(TEXT_COMPONENT, about)
        elif "features" in about.header:
            features = restore(TEXT_COMPONENT, about.nested("features"))
        texts = cls(
            clone(classifier),
            features=None if features is None else type(features)(**features.to_options()),
            encoder=about.header["name"] if encodes and encoder is None else encoder,
        )
        texts.features_, texts._encodes, texts.classifier_ = features, encodes, classifier
        return texts


def _leaves_it_open(classifier: ExtremeClassifier) -> bool:
    """Whether the parameters of a classifier leave the objective to be chosen."""
    trees = isinstance(classifier.noise, str) and classifier.noise in ("adversarial", "tree")
    return classifier.objective == "auto" and trees and classifier.prior_variance is None


def _load_encoder(name: str) -> Any:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ImportError(
            f"encoder={name!r} is a sentence-transformers model, and that package is not installed:"
            " pip install extremax[embeddings]."
        ) from error
    return SentenceTransformer(name)


def _encode(encoder: Any, texts: list[str]) -> NDArray[np.float32]:
    X = np.ascontiguousarray(encoder.encode(texts), dtype=np.float32)
    if X.ndim != 2 or len(X) != len(texts):
        raise ValueError(
            f"encoder.encode gave an array of shape {X.shape} for {len(texts)} texts; it must give one"
            " row of features a text."
        )
    return X
