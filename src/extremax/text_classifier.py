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

from extremax.estimator import ExtremeClassifier
from extremax.examples import Examples
from extremax.features.text import TextFeatures, check_texts
from extremax.model import Model
from extremax.runtime.progress import ProgressLine
from extremax.storage.state import State
from extremax.training.loop import Callback

TEXT_COMPONENT = "text"  # the component of a saved model that makes it one of texts


class TextClassifier(ClassifierMixin, BaseEstimator):
    """Classifier of texts over very many classes: hashed n-grams, TF-IDF and SVD, then an
    `ExtremeClassifier`.

    Parameters
    ----------
    classifier : ExtremeClassifier, optional
        What is trained on the features, with its settings; it is copied, not changed. ``ExtremeClassifier()``
        if not given.
    features : TextFeatures, optional
        Settings of the text features. ``TextFeatures()`` if not given.
    encoder : str or object with a method ``encode``, optional
        Sentence embeddings in place of `features`: the name or folder of a sentence-transformers model (``pip
        install extremax[embeddings]``), or an object whose ``encode(texts)`` gives an array (n_texts,
        n_features). The encoder itself is not saved with the model: a name is looked up again, an object is
        given to `load_model`.

    Attributes
    ----------
    classifier_ : ExtremeClassifier
        The fitted classifier; ``classes_``, ``history_``, ``choices_`` and ``model_`` are its own.
    features_ : TextFeatures or None
        The fitted text features, unless there is an encoder.

    Examples
    --------
    >>> from extremax import ExtremeClassifier, TextClassifier
    >>> texts = ["fell off a ladder", "fall from a roof", "bitten by a dog", "bitten by a cat"] * 5
    >>> clf = TextClassifier(ExtremeClassifier(random_state=0))
    >>> clf = clf.fit(texts, ["fall", "fall", "bite", "bite"] * 5)
    >>> clf.predict(["a ladder fell", "bite of a cat"]).tolist()
    ['fall', 'bite']
    """

    def __init__(
        self,
        classifier: ExtremeClassifier | None = None,
        *,
        features: TextFeatures | None = None,
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
            X = self._fit_features(self._start(texts, y))
            validation = None if eval_set is None else (self.transform(eval_set[0]), eval_set[1])
            options: dict[str, Any] = {"classes": classes, "callbacks": callbacks}
            self.classifier_.fit(X, y, sample_weight, eval_set=validation, **options)
        return self

    def _forget(self) -> None:
        """Drop everything that an earlier fit left."""
        for name in ("classifier_", "features_", "_encoder"):
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
            if hasattr(self, "classifier_"):
                X = self.transform(texts)
            else:
                X = self._fit_features(self._start(texts, y))
            self.classifier_.partial_fit(X, y, classes, sample_weight)
        return self

    def _start(self, texts: Sequence[str], y: Any) -> list[str]:
        if self.features is not None and self.encoder is not None:
            raise ValueError("features and encoder are both given; a text has either the ones or the other.")
        if self.classifier is not None and not isinstance(self.classifier, ExtremeClassifier):
            raise TypeError(f"classifier must be an ExtremeClassifier; got {type(self.classifier).__name__}.")
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

    def _fit_features(self, texts: list[str]) -> NDArray[np.float32]:
        classifier = ExtremeClassifier() if self.classifier is None else clone(self.classifier)
        self.features_: TextFeatures | None = None
        if self.encoder is None:
            options = {} if self.features is None else self.features.to_options()
            report, started = ProgressLine(int(classifier.verbose)), time.perf_counter()

            def show(done: int, total: int) -> None:
                report.update("words and n-grams", done, total, started, unit="texts")
                if done == total:
                    report.close()
                    report.log(f"{total:,} texts are read; finding their singular vectors")

            self.features_ = TextFeatures(**options).fit(texts, n_jobs=classifier.n_jobs, progress=show)
            report.log(f"{self.features_.n_features} features per text")
        self.classifier_ = classifier
        return self.transform(texts)

    # -- prediction ----------------------------------------------------------------------------------------

    def transform(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The features of the texts that the classifier sees, (n_texts, n_features)."""
        if not hasattr(self, "classifier_"):
            raise NotFittedError(f"This {type(self).__name__} is not fitted yet; call fit(texts, y) first.")
        check_texts(texts)
        if self.features_ is not None:
            return self.features_.transform(list(texts), n_jobs=self.classifier_.n_jobs)
        return _encode(self._find_encoder(), list(texts))

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
        return self._of(texts).predict(self.transform(texts))

    def predict_topk(
        self, texts: Sequence[str], k: int = 5, *, search: str = "exact", beam_width: int | None = None
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """The k most probable labels of each text, best first, and their log-probabilities; see
        `ExtremeClassifier`.
        """
        return self._of(texts).predict_topk(self.transform(texts), k, search=search, beam_width=beam_width)

    def decision_function(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Debiased scores, (n_texts, n_classes)."""
        return self._of(texts).decision_function(self.transform(texts))

    def predict_log_proba(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """log p(y|text) of every class, (n_texts, n_classes); refuses results too large for memory."""
        return self._of(texts).predict_log_proba(self.transform(texts))

    def predict_proba(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """p(y|text) of every class, (n_texts, n_classes); refuses results too large for memory."""
        return self._of(texts).predict_proba(self.transform(texts))

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
        if self.features_ is None:
            return State({"kind": "encoder", "name": self.encoder if isinstance(self.encoder, str) else None})
        return State(*self.features_.to_arrays())

    @classmethod
    def _restore(cls, classifier: ExtremeClassifier, about: State, encoder: Any) -> Self:
        """Return the estimator of a folder, from its classifier and its text component."""
        template = clone(classifier)
        if about.header["kind"] == "encoder":
            texts = cls(template, encoder=about.header["name"] if encoder is None else encoder)
            texts.features_ = None
        else:
            features = TextFeatures.from_arrays(about.header, about.arrays)
            texts = cls(template, features=TextFeatures(**features.to_options()))
            texts.features_ = features
        texts.classifier_ = classifier
        return texts


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
