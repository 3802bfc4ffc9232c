"""``TextClassifier``: texts in, labels out. Text features and classifier in one estimator and one saved
folder.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Self, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import TransformerTags
from sklearn.utils.validation import _num_samples

from extremax.classifier import EvalSet, ExtremeClassifier, check_count, read_pair
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
from extremax.monitor import Monitor
from extremax.runtime.memory import check_memory, describe_memory
from extremax.runtime.progress import ProgressLine
from extremax.runtime.threads import resolve_threads
from extremax.solvers.loop import Callback
from extremax.storage import checks
from extremax.storage.state import State, merge, restore
from extremax.types import Bool, Float32, Float64, Int32
from extremax.validation.features import copied_bytes
from extremax.validation.frames import frame_inputs, frame_texts

TEXT_COMPONENT = "text"  # the component of a saved model that makes it one of texts
_MAX_ENCODER_NAME = 500  # characters
_SPARSE = "sparse_softmax"  # the objective for features of any width
Method = TypeVar("Method", bound=Callable[..., Any])


def _accept_texts(method: Method) -> Method:
    """Let a method take its first argument under its old name, `texts`, with a warning."""

    @wraps(method)
    def renaming(self: Any, *args: Any, **given: Any) -> Any:
        if "texts" in given:
            warnings.warn(
                f"the argument texts of {method.__name__} is now called X; the old name will go with the"
                " next release.",
                FutureWarning,
                stacklevel=2,
            )
            given["X"] = given.pop("texts")
        return method(self, *args, **given)

    return cast("Method", renaming)


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
        saved with the model, and given to `load_model` again, as a name or as an object.

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
    _encoder_name: str | None = None  # what the folder of a saved model calls its encoder

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

    def set_params(self, **params: Any) -> Self:
        """Set parameters; those of `classifier` and `features` as ``classifier__n_epochs``.

        Where `classifier` or `features` is None, such a parameter is one of what None stands for.
        """
        nested = {name.partition("__")[0] for name in params if "__" in name}
        if "classifier" in nested and params.get("classifier", self.classifier) is None:
            self.classifier = ExtremeClassifier()
            params.pop("classifier", None)
        if "features" in nested and params.get("features", self.features) is None:
            classifier = params.get("classifier", self.classifier)
            self.features = _default_features(ExtremeClassifier() if classifier is None else classifier)
            params.pop("features", None)
        super().set_params(**params)
        return self

    # -- training ------------------------------------------------------------------------------------------

    @_accept_texts
    def fit(
        self,
        X: Sequence[str],
        y: Any,
        sample_weight: ArrayLike | None = None,
        *,
        eval_set: EvalSet = None,
        classes: ArrayLike | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Self:
        """Fit the text features, then train the classifier on them.

        Arguments are those of `ExtremeClassifier.fit`, with texts in place of features, also in `eval_set`.
        Texts may be a column, or a data frame or Hugging Face dataset with a column called ``text``.
        """
        self._forget()
        X, y = _inputs(X, y)
        pair = read_pair(eval_set, "(texts_valid, y_valid)")
        pair = None if pair is None else _inputs(*pair)
        with self._nothing_left_on_failure():
            listed = self._start(X, y)
            features = self._fit_features(listed)
            validation = None if pair is None else (self.transform(pair[0]), pair[1])
            options: dict[str, Any] = {"classes": classes, "callbacks": callbacks}
            self.classifier_.fit(features, y, sample_weight, eval_set=validation, **options)
            self._keep_names(listed)
            if self.features_ is not None and not getattr(self.features_, "count_unknown", True):
                # the length of a row does not say then how much of a text is unknown
                self._replace_model(self.model_.with_reference(None))
        return self

    def _forget(self) -> None:
        """Drop everything that an earlier fit left."""
        for name in ("classifier_", "features_", "_encodes", "_encoder", "_encoder_name"):
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

    @_accept_texts
    def resume_fit(self, X: Sequence[str], y: Any, *, callbacks: Sequence[Callback] = ()) -> Self:
        """Go on with a `fit` that was cut short, or saved on the way; see `ExtremeClassifier.resume_fit`."""
        X, y = _inputs(X, y)
        self._of(X).resume_fit(self.transform(X), y, callbacks=callbacks)
        return self

    @_accept_texts
    def partial_fit(
        self,
        X: Sequence[str],
        y: Any,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        new_classes: str = "error",
    ) -> Self:
        """Train one more epoch, on these texts; the first call fixes the text features, and what else the
        classifier fixes.

        With ``new_classes="add"``, labels that are not among the classes are added before the epoch.
        """
        X, y = _inputs(X, y)
        with self._nothing_left_on_failure():
            is_first = not hasattr(self, "classifier_")
            listed = self._start(X, y) if is_first else list(X)
            features = self._fit_features(listed) if is_first else self.transform(X)
            self.classifier_.partial_fit(features, y, classes, sample_weight, new_classes=new_classes)
            if is_first:
                self._keep_names(listed)
        return self

    def add_classes(
        self,
        X: Sequence[str],
        y: Any,
        sample_weight: ArrayLike | None = None,
        *,
        classes: ArrayLike | None = None,
    ) -> Self:
        """Add classes by texts of these; see `ExtremeClassifier.add_classes`.

        The text features stay as they are: words that no text of `fit` had say nothing about a class.
        """
        X, y = _inputs(X, y)
        self._of(X).add_classes(self.transform(X), y, sample_weight, classes=classes)
        return self

    def remove_classes(self, labels: Any) -> Self:
        """Remove classes, exactly; see `ExtremeClassifier.remove_classes`."""
        self._of(labels).remove_classes(labels)
        return self

    def merge_classes(self, names: Mapping[Any, Any]) -> Self:
        """Give classes other names; classes of the same name become one. See
        `ExtremeClassifier.merge_classes`.
        """
        self._of(names).merge_classes(names)
        return self

    @property
    def changes_(self) -> list[dict[str, Any]]:
        """Changes of the classes since the fit; see `ExtremeClassifier`."""
        return self._of(None).changes_

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
        found: Any = None
        if self.features_ is not None:
            report, started = ProgressLine(int(classifier.verbose)), time.perf_counter()

            def show(done: int, total: int) -> None:
                report.update("words and n-grams", done, total, started, unit="texts")
                if done == total:
                    report.close()

            need = self.features_.fit_bytes(texts, resolve_threads(classifier.n_jobs))
            report.log(f"the features of the texts need {describe_memory(need)}")
            hints = ["NgramFeatures with smaller char_ngrams, word_ngrams or hash_bits", "fewer texts"]
            what = "TextClassifier.fit"
            check_memory(need, available=classifier.memory_limit, hints=hints, what=what)
            found = self.features_.fit_transform(texts, n_jobs=classifier.n_jobs, progress=show)
            kind = "columns" if self.features_.is_sparse else "features per text"
            report.log(f"{len(texts):,} texts are read: {self.features_.n_features:,} {kind}")
            classifier._column_groups = self.features_.column_groups
        self.classifier_ = classifier
        features = self._beside_embeddings(found, texts)
        made = features if isinstance(features, tuple) else (features,)
        classifier._text_bytes = sum(copied_bytes(None, part) for part in made)
        if self.features_ is not None:
            classifier._text_bytes += self.features_.n_bytes
        return features

    def _new_features(self, classifier: ExtremeClassifier) -> NgramFeatures | TextFeatures | None:
        """Return features to fit; None where the encoder stands alone."""
        if self.features is not None:
            return type(self.features)(**self.features.to_options())
        if self.encoder is not None:
            return None
        return _default_features(classifier)

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

    @_accept_texts
    def transform(self, X: Sequence[str]) -> Any:
        """The features of the texts that the classifier sees.

        Returns
        -------
        csr_matrix or ndarray (n_texts, n_features), or a pair of both
            N-grams, dense features or embeddings; n-grams and embeddings together are a pair.
        """
        if not hasattr(self, "classifier_"):
            raise NotFittedError(f"This {type(self).__name__} is not fitted yet; call fit(texts, y) first.")
        X = frame_texts(X)
        check_texts(X)
        listed = list(X)
        features: Any = None
        if self.features_ is not None:
            features = self.features_.transform(listed, n_jobs=self.classifier_.n_jobs)
        return self._beside_embeddings(features, listed)

    def _beside_embeddings(self, features: Any, texts: list[str]) -> Any:
        """Return the features of texts, or None, with their embeddings where there is an encoder."""
        if not self._encodes:
            return features
        embeddings = _encode(self._find_encoder(), texts)
        if self.features_ is None:
            return embeddings
        return (features, embeddings) if self.features_.is_sparse else np.hstack([features, embeddings])

    def _find_encoder(self) -> Any:
        if not hasattr(self, "_encoder"):
            if self.encoder is None and self._encoder_name is not None:
                raise ValueError(
                    f"this model was trained with the sentence encoder {self._encoder_name!r}. The name comes"
                    " from the model's folder and is not loaded without your word: if you trust it, open the"
                    f" model with load_model(path, encoder={self._encoder_name!r}), or on the command line"
                    f" with --encoder {self._encoder_name}."
                )
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

    @_accept_texts
    def predict(self, X: Sequence[str]) -> Any:
        """The most probable label of each text, or an indicator matrix; see `ExtremeClassifier.predict`."""
        features = self.transform(X)
        if self.classifier_._indicator is not None:
            rows, ids, _ = self._labels_above(features, None)
            return self.classifier_._make_indicator(rows, ids, _n_rows(features))
        return self.classifier_.predict(features)

    @_accept_texts
    def predict_topk(
        self, X: Sequence[str], k: int = 5, *, search: str = "exact", beam_width: int | None = None
    ) -> tuple[NDArray[Any], Float32]:
        """The k most probable labels of each text, best first, and their log-probabilities; see
        `ExtremeClassifier`.
        """
        features = self.transform(X)
        return self.classifier_.predict_topk(features, k, search=search, beam_width=beam_width)

    def predict_labels(self, X: Sequence[str], threshold: float | None = None) -> list[list[Any]]:
        """All labels that apply to each text; see `ExtremeClassifier.predict_labels`."""
        features = self.transform(X)
        rows, ids, _ = self._labels_above(features, threshold)
        ends = np.searchsorted(rows, np.arange(1, _n_rows(features) + 1))
        return [part.tolist() for part in np.split(self.classes_[ids], ends[:-1])]

    def predict_label_proba(self, X: Sequence[str]) -> Float64:
        """The probability of every class by itself; see `ExtremeClassifier.predict_label_proba`."""
        features = self.transform(X)
        prob = self.classifier_.predict_label_proba(features)
        prob[self._unknown(features)] = self._label_frequencies()
        return prob

    def _label_frequencies(self) -> Float64:
        """Return the fraction of training texts with each label; zeros where it is not known."""
        about = self.model_.classes
        if about.counts is None or about.n_samples == 0:
            return np.zeros(len(self.classes_))
        return np.asarray(about.counts / about.n_samples, np.float64)

    def _labels_above(
        self, features: Any, threshold: float | None
    ) -> tuple[NDArray[np.int64], Int32, Float64]:
        """Return row, class and probability of the labels from a threshold on."""
        rows, ids, prob = self.classifier_._labels_above(self.classifier_._same_features(features), threshold)
        unknown = self._unknown(features)
        if not unknown.any():
            return rows, ids, prob
        least = self.model_.labels.threshold if threshold is None else threshold
        frequencies = self._label_frequencies()
        often = np.argsort(-frequencies, kind="stable").astype(np.int32)
        often = often[frequencies[often] >= least]
        kept, without = ~unknown[rows], np.flatnonzero(unknown)
        rows = np.concatenate([rows[kept], np.repeat(without, len(often))])
        ids = np.concatenate([ids[kept], np.tile(often, len(without))])
        prob = np.concatenate([prob[kept], np.tile(frequencies[often], len(without))])
        order = np.argsort(rows, kind="stable")
        return rows[order], ids[order], prob[order]

    @_accept_texts
    def decision_function(self, X: Sequence[str]) -> Float32:
        """Debiased scores, (n_texts, n_classes); for two classes the second's minus the first's."""
        features = self.transform(X)
        return self.classifier_.decision_function(features)

    @_accept_texts
    def predict_log_proba(self, X: Sequence[str]) -> Float32:
        """log p(y|text) of every class, (n_texts, n_classes); refuses results too large for memory."""
        features = self.transform(X)
        return self.classifier_.predict_log_proba(features)

    @_accept_texts
    def predict_proba(self, X: Sequence[str]) -> Float64:
        """p(y|text) of every class, (n_texts, n_classes); refuses results too large for memory."""
        features = self.transform(X)
        return self.classifier_.predict_proba(features)

    @_accept_texts
    def is_known(self, X: Sequence[str]) -> Bool:
        """Whether each text says something to the model; the others are answered with class frequencies."""
        return ~self._unknown(self.transform(X))

    def _unknown(self, X: Any) -> Bool:
        """Return which rows hold no known n-gram at all; an encoder knows every text."""
        unknown = np.zeros(_n_rows(X), dtype=np.bool_)
        if not isinstance(X, tuple):
            unknown[self.model_._empty_rows(X)] = True
        return unknown

    def monitor(
        self,
        *,
        alpha: float = 0.01,
        reference: Sequence[str] | None = None,
        state: str | None = None,
        seed: int = 0,
    ) -> Monitor:
        """A monitor of drift, for a stream of texts; see `ExtremeClassifier.monitor`."""
        classifier = self._of([])
        rows = None
        if reference is not None:
            rows = classifier._same_features(self.transform(reference), name="reference")
        found = Monitor(self, classifier._reference(rows), alpha=alpha, seed=seed)
        return found if state is None else found.restore(state)

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
            best, log_prob = self.model_.topk(X, k)
            return explain_frequencies(self.classes_, best[0], log_prob[0])
        if self.features_ is None or not self.features_.is_sparse:
            raise ValueError(
                "these features are sums over the whole text, which no word has a part of its own in; explain"
                " needs features=NgramFeatures()."
            )
        rows = classifier._same_features(X)
        found = self.features_.occurrences(text)
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

    @_accept_texts
    def log_likelihood(self, X: Sequence[str], y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Mean log p(y|text), normalised over all classes."""
        X, y = _inputs(X, y)
        return self._of(X).log_likelihood(self.transform(X), y, sample_weight)

    @_accept_texts
    def score(self, X: Sequence[str], y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Accuracy: the share of texts whose label is predicted."""
        X, y = _inputs(X, y)
        return self._of(X).score(self.transform(X), y, sample_weight)

    def _evaluation_rows(self, X: Any, y: Any) -> tuple[Model, Examples, int]:
        X, y = _inputs(X, y)
        return self._of(X)._evaluation_rows(self.transform(X), y)

    def _replace_model(self, model: Model) -> Self:
        self.classifier_._replace_model(model)
        return self

    @_accept_texts
    def fit_index(self, X: Sequence[str]) -> Self:
        """Fit the index for beam search again; see `ExtremeClassifier.fit_index`."""
        self._of(X).fit_index(self.transform(X))
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
        name = self.encoder if isinstance(self.encoder, str) else self._encoder_name
        header = {"kind": "encoder", "name": name}
        return State(header) if features is None else merge(header, {"features": features})

    @classmethod
    def _restore(cls, classifier: ExtremeClassifier, about: State, encoder: Any) -> Self:
        """Return the estimator of a folder, from its classifier and its text component."""
        encodes = about.header.get("kind") == "encoder"
        named = about.header.get("name") if encodes else None
        if named is not None and (not isinstance(named, str) or len(named) > _MAX_ENCODER_NAME):
            checks.reject(f"its encoder has the name {checks.shown(named)}")
        features: Any = None
        if not encodes:
            features = restore(TEXT_COMPONENT, about)
        elif "features" in about.header:
            features = restore(TEXT_COMPONENT, about.nested("features"))
        texts = cls(
            clone(classifier),
            features=None if features is None else type(features)(**features.to_options()),
            encoder=encoder,
        )
        texts.features_, texts._encodes, texts.classifier_ = features, encodes, classifier
        texts._encoder_name = named
        if features is not None and not _same_width(features, classifier, encodes):
            checks.reject(
                f"its texts have {features.n_features:,} features, its weights {classifier.n_features_in_:,}"
            )
        return texts


def _inputs(X: Any, y: Any) -> tuple[Any, Any]:
    """Return texts and labels; X may be a data frame, and `y` the name of its column of labels."""
    X, y = frame_inputs(X, y)
    return frame_texts(X), y


def _n_rows(features: Any) -> int:
    """Return the rows of features, or of a pair of sparse and dense ones."""
    return int((features[0] if isinstance(features, tuple) else features).shape[0])


def _same_width(features: NgramFeatures | TextFeatures, classifier: ExtremeClassifier, encodes: bool) -> bool:
    """Whether text features, and embeddings beside them, have the columns of the classifier's weights."""
    width = int(classifier.n_features_in_)
    if encodes and not features.is_sparse:
        return features.n_features < width
    return features.n_features == width - (classifier._n_dense if encodes else 0)


def _leaves_it_open(classifier: ExtremeClassifier) -> bool:
    """Whether the parameters of a classifier leave the objective to be chosen."""
    trees = isinstance(classifier.noise, str) and classifier.noise in ("adversarial", "tree")
    return classifier.objective == "auto" and trees and classifier.prior_variance is None


def _default_features(classifier: ExtremeClassifier) -> NgramFeatures | TextFeatures:
    """Return the features that a classifier takes: sparse ones unless its objective needs dense ones."""
    takes_sparse = classifier.objective == _SPARSE or _leaves_it_open(classifier)
    return NgramFeatures() if takes_sparse else TextFeatures()


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
