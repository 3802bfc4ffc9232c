"""The backend: texts and their subjects in, suggestions with probabilities out."""

from __future__ import annotations

import os
from typing import Any

from annif.backend.backend import AnnifBackend
from annif.exception import ConfigurationException, NotInitializedException, NotSupportedException
from annif.suggestion import SubjectSuggestion, SuggestionBatch

from extremax import ExtremeClassifier, TextClassifier, load_model
from extremax.errors import ModelFileError

MODEL = "extremax-model"


class ExtremaxBackend(AnnifBackend):  # type: ignore[misc]
    """Suggest subjects by an extremax `TextClassifier` on words and character n-grams.

    The score of a subject is the probability that it applies to the document by itself, calibrated on
    training documents that were kept back. A document of which nothing is known gets no suggestion.

    Parameters of a project, beside ``limit``: ``n_epochs``, ``max_model_bytes`` and ``random_state``, as in
    `ExtremeClassifier`; with ``use_labels=true`` the labels of the vocabulary are class texts, and subjects
    without a training document are suggested, too.
    """

    name = "extremax"
    DEFAULT_PARAMETERS = {"random_state": 0}  # noqa: RUF012 (Annif reads a dict of the class)

    _model: TextClassifier | None = None

    def initialize(self, parallel: bool = False) -> None:
        """Load the model; with `parallel`, each of Annif's processes takes one thread."""
        if self._model is None:
            path = os.path.join(self.datadir, MODEL)
            if not os.path.exists(path):
                raise NotInitializedException(f"model {path} not found", backend_id=self.backend_id)
            try:
                self._model = load_model(path)
            except ModelFileError as error:
                raise NotInitializedException(str(error), backend_id=self.backend_id) from error
        if parallel:
            self._model.classifier_.n_jobs = 1

    def _train(self, corpus: Any, params: dict[str, Any], jobs: int = 0) -> None:
        if corpus == "cached":
            raise NotSupportedException("extremax trains from documents; --cached has nothing to reuse.")
        texts, subjects = [], []
        for document in corpus.documents:
            ids = [int(subject) for subject in document.subject_set]
            if ids:
                texts.append(document.text)
                subjects.append(ids)
        if len({subject for ids in subjects for subject in ids}) < 2:
            raise NotSupportedException("extremax needs documents of at least two subjects to train on.")
        self.info(f"training on {len(texts):,} documents")
        classifier = ExtremeClassifier(
            n_epochs=self._number(params, "n_epochs"),
            max_model_bytes=self._number(params, "max_model_bytes"),
            random_state=self._number(params, "random_state"),
            n_jobs=jobs or None,
        )
        model = TextClassifier(classifier).fit(texts, subjects, class_texts=self._labels(params))
        model.save(os.path.join(self.datadir, MODEL))
        self._model = model

    def _labels(self, params: dict[str, Any]) -> dict[int, str] | None:
        """Return the label of each subject of the vocabulary in the language of the project."""
        value = str(params.get("use_labels", "false")).lower()
        if value not in ("true", "false"):
            raise ConfigurationException(
                f"use_labels is {value!r}; it must be true or false", backend_id=self.backend_id
            )
        if value == "false":
            return None
        found = ((number, subject.labels or {}) for number, subject in self.project.subjects.active)
        language = self.project.vocab_lang
        return {number: labels[language] for number, labels in found if language in labels}

    def _number(self, params: dict[str, Any], name: str) -> int | None:
        value = params.get(name)
        try:
            return None if value is None else int(value)
        except ValueError:
            raise ConfigurationException(
                f"{name} is {value!r}; it must be a whole number", backend_id=self.backend_id
            ) from None

    def _suggest_batch(self, documents: list[Any], params: dict[str, Any]) -> SuggestionBatch:
        clf = self._model
        assert clf is not None  # Annif calls initialize first
        limit, model, classes = int(params["limit"]), clf.model_, clf.classes_.tolist()
        features = clf.to_features([document.text for document in documents])
        found = model.predictor(clf.classifier_.n_jobs or 1).rank_scores(features, limit)
        prob = model.labels.prob(found.log_softmax, found.normalizer)
        unknown = set(model.empty_rows(features).tolist())
        suggestions = [
            [
                SubjectSuggestion(subject_id=classes[label], score=float(p))
                for label, p in zip(labels, row, strict=True)
            ]
            if number not in unknown
            else []
            for number, (labels, row) in enumerate(zip(found.labels.tolist(), prob.tolist(), strict=True))
        ]
        return SuggestionBatch.from_sequence(suggestions, self.project.subjects, limit=limit)
