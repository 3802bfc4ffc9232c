"""Models that are served: each loaded version with what its answers need, and folders that are watched."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import HTTPException
from scipy import sparse

from extremax.report import ModelPage, beside, load_analysis
from extremax.runtime.threads import resolve_threads, run
from extremax.serve.answers import to_json
from extremax.serve.questions import SparseRow
from extremax.serve.settings import ServeConfig
from extremax.storage.folder import HEADER
from extremax.text import load_model

_KEPT_LABELS = 1 << 16  # descriptions of labels that are kept at hand
_WARM_UP = "a"
_WARM_UP_ROWS = (1, 9)  # one row takes another way than several
_MOST_DENSE = 1_000_000  # columns of the longest dense vector to warm up with
_LOWEST_LOG = float(np.finfo(np.float32).min)  # stands for the logarithm of zero, which JSON does not have


@dataclass(frozen=True)
class Predict:
    """What the rows of some requests have in common; equal ones may share a call of the model."""

    model: ServedModel
    top_k: int
    search: str
    kind: str  # "texts", "dense" or "sparse"
    as_log: bool
    among: tuple[int, ...] = ()  # classes to choose from; none means all

    def run(self, pieces: Sequence[Sequence[Any]]) -> list[list[bytes]]:
        """Return the answers to the rows of each piece as JSON."""
        return self.model.answer(pieces, self)


class ServedModel:
    """A loaded model, and what its answers need.

    Parameters
    ----------
    name : str
        Name in the paths of the server.
    folder : Path
    clf : ExtremeClassifier or TextClassifier
    document : object, optional
        Analysis of the model for its page.
    """

    def __init__(self, name: str, folder: Path, clf: Any, document: Any = None) -> None:
        self.name, self.folder, self.clf, self.document = name, folder, clf, document
        self.loaded_at = datetime.now(UTC)
        self.takes_texts = clf.takes_texts
        self.encodes = self.takes_texts and clf.encoder is not None
        self.classifier = clf.classifier_ if self.takes_texts else clf
        self.n_classes, self.n_features = len(clf.classes_), int(self.classifier.n_features_in_)
        self.describe_label = lru_cache(_KEPT_LABELS)(self._describe_label)
        self.on_answer: Callable[[str, int, int, float], None] = lambda name, n_rows, n_unknown, top: None
        self.log: Callable[[str], None] = lambda text: None
        self.monitor: Any = None
        self._monitor_lock = threading.Lock()
        self._page_lock = threading.Lock()
        self._page: ModelPage | None = None

    # -- facts ---------------------------------------------------------------------------------------------

    @cached_property
    def label_names(self) -> list[str]:
        """All labels as strings."""
        return [str(label) for label in self.clf.classes_.tolist()]

    @cached_property
    def _folded(self) -> list[str]:
        return [name.casefold() for name in self.label_names]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.label_names)}

    def find_label(self, name: str) -> int:
        """Return the number of a class, or answer 404."""
        if name not in self._ids:
            raise HTTPException(404, f"{name[:80]!r} is none of the {self.n_classes:,} labels of this model.")
        return self._ids[name]

    def description(self, number: int) -> str | None:
        """Return the text on a class, if the model has texts."""
        texts = self.clf.model_.classes.descriptions
        return None if texts is None else str(texts.text(number))

    def _describe_label(self, number: int) -> dict[str, Any]:
        """Return label, number and description of a class."""
        found: dict[str, Any] = {"label": str(self.clf.classes_[number]), "id": number}
        text = self.description(number)
        return found if text is None else {**found, "description": text}

    def labels(self, prefix: str, contains: str, limit: int) -> dict[str, Any]:
        """Return labels that begin with a prefix and contain a text, in the order of the classes."""
        prefix, contains = prefix.casefold(), contains.casefold()
        found = [i for i, name in enumerate(self._folded) if name.startswith(prefix)]
        if contains:
            found = [
                i
                for i in found
                if contains in self._folded[i] or contains in (self.description(i) or "").casefold()
            ]
        listed = [self.describe_label(i) for i in found[:limit]]
        counts = self.clf.model_.classes.counts
        if counts is not None:
            listed = [{**label, "n_samples": int(counts[label["id"]])} for label in listed]
        return {"labels": listed, "total": len(found)}

    def info(self) -> dict[str, Any]:
        """Return facts about the model."""
        model = self.clf.model_
        held_out = {
            name.removeprefix("held_out_"): value
            for name, value in self.clf.history_[-1].items()
            if name.startswith("held_out_")
        }
        return {
            "name": self.name,
            "model": self.folder.name,
            "input": "texts" if self.takes_texts else "vectors",
            "n_classes": self.n_classes,
            "n_features": self.n_features,
            "n_samples": int(model.classes.n_samples),
            "objective": model.solver,
            "several_labels": model.has_several_labels,
            "examples": [] if self.document is None else self.document.get("examples", []),
            "has_descriptions": model.classes.descriptions is not None,
            "explains": self.explains,
            "searches": list(model.search_names),
            "choices": dict(self.clf.choices_),
            "held_out": held_out or None,
            "loaded_at": self.loaded_at.isoformat(timespec="seconds"),
            "has_tree": True,
            "has_analysis": self.document is not None,
            "monitor": self.monitor_report(),
        }

    @property
    def explains(self) -> bool:
        """Whether `explain` can say what each feature adds."""
        if not self.takes_texts:
            return True
        return self.clf.features_ is not None and bool(self.clf.features_.is_sparse)

    def monitor_report(self) -> dict[str, Any] | None:
        """Return what the test for drift has found."""
        if self.monitor is None:
            return None
        with self._monitor_lock:
            report: dict[str, Any] = self.monitor.report()
        return report

    # -- answers -------------------------------------------------------------------------------------------

    def matrix(self, rows: Sequence[Any], kind: str) -> Any:
        """Return rows as the classifier takes them."""
        if kind == "texts":
            return list(rows)
        if kind == "dense":
            return np.stack(rows)
        indptr = np.cumsum([0, *(len(row.indices) for row in rows)])
        indices = np.array([i for row in rows for i in row.indices], np.int32)
        values = np.array([v for row in rows for v in row.values], np.float32)
        found = sparse.csr_matrix((values, indices, indptr), shape=(len(rows), self.n_features))
        found.sort_indices()
        return found

    def answer(self, pieces: Sequence[Sequence[Any]], work: Predict) -> list[list[bytes]]:
        """Return the answers to the rows of each piece as JSON: what `predict_topk` gives for the piece."""
        answers = []
        for ids, log_prob, features in self._search(pieces, work):
            unknown = self.classifier.unknown(features)
            top_prob = np.exp(log_prob[:, 0], dtype=np.float64)
            self.on_answer(self.name, len(ids), int(unknown.sum()), float(top_prob.sum()))
            if self.monitor is not None and not work.among:
                with self._monitor_lock:
                    self.monitor.observe(features, ids[:, 0], log_prob[:, 0])
            answers.append(
                self._encode(ids, self._shown_log_prob(features, ids, log_prob), unknown, work.as_log)
            )
        return answers

    def _shown_log_prob(self, features: Any, ids: Any, log_prob: Any) -> Any:
        """Return the log-probability that each label applies, where rows may have several."""
        model = self.classifier.model_
        if not model.has_several_labels:
            return log_prob
        with np.errstate(divide="ignore"):
            n_threads = resolve_threads(self.classifier.n_jobs)
            return np.log(
                model.label_prob_of(self.classifier.to_features(features), ids, n_threads=n_threads)
            )

    def _search(self, pieces: Sequence[Sequence[Any]], work: Predict) -> list[tuple[Any, Any, Any]]:
        """Return classes, log-probabilities and features of each piece.

        The features of all texts are made in one call, unless an encoder makes them, whose last bits depend
        on the other texts. Then the labels are found piece by piece, each by one thread.
        """
        X: Any = self.matrix([row for piece in pieces for row in piece], work.kind)
        ends = np.cumsum([0, *map(len, pieces)]).tolist()
        if self.takes_texts and not self.encodes:
            X = self.clf.transform(X)
        found: list[Any] = [None] * len(pieces)

        options: dict[str, Any] = {"search": work.search}
        if work.among:
            options = {"among": self.classifier.classes_[list(work.among)]}

        def search(i: int) -> None:
            part = X if len(pieces) == 1 else X[ends[i] : ends[i + 1]]
            part = self.clf.transform(part) if self.encodes else part
            found[i] = (*self.classifier.predict_ids(part, work.top_k, **options), part)

        run(search, len(pieces), resolve_threads(self.classifier.n_jobs) if len(pieces) > 1 else 1)
        return found

    def _encode(self, ids: Any, log_prob: Any, unknown: Any, as_log: bool) -> list[bytes]:
        """Return the labels of each row as JSON; a search may find fewer than were asked for."""
        logs = np.maximum(log_prob.astype(np.float64), _LOWEST_LOG)
        scores, answers = (logs if as_log else np.exp(logs)).tolist(), []
        for classes, values, is_unknown in zip(ids.tolist(), scores, unknown.tolist(), strict=True):
            mark = {"known": False} if is_unknown else {}
            labels = [
                {**self.describe_label(i), "score": value, **mark}
                for i, value in zip(classes, values, strict=True)
                if i >= 0
            ]
            answers.append(to_json(labels))
        return answers

    def explain(self, row: Any, kind: str, top_k: int) -> dict[str, Any]:
        """Return why the first label is predicted, or answer 422 where no one can say."""
        if not self.explains:
            raise HTTPException(
                422, "this model reads dense features of whole texts, in which no word has a part of its own."
            )
        given = self.matrix([row], kind)
        found = self.clf.explain(given[0] if kind == "texts" else given, min(top_k, self.n_classes))
        plain = found.to_dict()
        numbers = self.clf.label_ids(plain.pop("labels")).tolist()
        scores = plain.pop("probabilities")
        if self.clf.model_.has_several_labels:
            ids = np.array([numbers], np.int32)
            scores = self.clf.model_.label_prob_of(self.clf.to_features(given), ids)[0].tolist()
        labels = [{**self.describe_label(i), "score": p} for i, p in zip(numbers, scores, strict=True)]
        for part in (plain["score"], *plain["against"]):
            part["label"] = str(part["label"])
            part["rather_than"] = None if part["rather_than"] is None else str(part["rather_than"])
        # The page may take long to build: nobody waits for it here.
        path = None if self._page is None else self._page.path(numbers[0])
        return {"labels": labels, **plain, "path": path}

    # -- the page ------------------------------------------------------------------------------------------

    def page(self) -> ModelPage:
        """Return what the page of the model shows; built at the first call."""
        with self._page_lock:
            if self._page is None:
                self._page = self._build_page()
            return self._page

    def _build_page(self) -> ModelPage:
        """Return the page with the analysis; without it where it is of other labels."""
        if self.document is not None:
            try:
                return ModelPage(self.clf, self.document)
            except ValueError as error:
                self.log(f"{self.name}: its page has no analysis: {error}")
                self.document = None
        return ModelPage(self.clf)

    def warm_up(self, search: str, top_k: int) -> None:
        """Predict once, so that the first request does not wait for tables and compiled code."""
        kind: str = "texts"
        row: Any = _WARM_UP
        if not self.takes_texts:
            kind = "dense" if self.n_features <= _MOST_DENSE else "sparse"
            row = np.zeros(self.n_features, np.float32) if kind == "dense" else SparseRow([], [])
        work = Predict(self, min(top_k, self.n_classes), search, kind, False)
        for n_rows in _WARM_UP_ROWS:
            self._search([[row] * n_rows], work)


@dataclass
class Slot:
    """A name, a folder, and the version of the model that answers now.

    A request keeps the version that it has begun with; the next one finds the new version.
    """

    name: str
    folder: Path
    threads: int | None = None
    encoder: str | None = None
    analysis: Path | None = None
    mapped: bool = False  # a copy over mapped files would end the server
    current: ServedModel | None = None
    n_reloads: int = 0
    error: str | None = None
    log: Callable[[str], None] = field(default=lambda text: None, repr=False)
    _identity: Hashable = field(default=None, repr=False)

    def load(self, config: ServeConfig, prepare: Callable[[ServedModel], None]) -> ServedModel:
        """Load the folder and put it in the place of the version before."""
        before = folder_identity(self.folder)
        clf: Any = load_model(self.folder, verify=True, encoder=self.encoder, mapped=self.mapped)
        if config.search not in clf.model_.search_names:
            raise ValueError(
                f"{self.folder} has no search {config.search!r}; it has {', '.join(clf.model_.search_names)}."
            )
        model = ServedModel(self.name, self.folder, clf, self._load_document())
        model.classifier.n_jobs, model.log = self.threads, self.log
        prepare(model)
        for search in dict.fromkeys(("exact", config.search)):  # a request may ask for the exact one
            model.warm_up(search, config.top_k)
        self._identity = before
        self.current, self.error = model, None
        return model

    def _load_document(self) -> Any:
        """Return the analysis that was named, or the one beside the folder, if there is one."""
        if self.analysis is not None:
            return load_analysis(self.analysis)
        if not beside(self.folder).is_file():
            return None
        try:
            return load_analysis(beside(self.folder))
        except (OSError, ValueError) as error:  # the analysis was not named: the model is served all the same
            self.log(f"{self.name}: served without the analysis beside it: {error}")
            return None

    @property
    def is_replaced(self) -> bool:
        """Whether the folder holds another model than the one that answers."""
        found = folder_identity(self.folder, files=self.error is not None)
        return found is not None and found != self._identity

    def reload(self, config: ServeConfig, prepare: Callable[[ServedModel], None]) -> bool:
        """Load a folder that was replaced; keep the old version, and say why, if that fails."""
        seen = folder_identity(self.folder, files=True)
        try:
            self.load(config, prepare)
        except Exception as error:  # an encoder may raise anything; the model that answers stays
            self.error, self._identity = str(error) or type(error).__name__, seen
            return False
        self.n_reloads += 1
        return True


def folder_identity(folder: Path, *, files: bool = False) -> Hashable:
    """Return numbers that change when a model is saved to a folder; None without one.

    With `files`, they also change with every file that arrives: a copy that could not be loaded is tried
    again at its end.
    """
    try:
        names = sorted(path.name for path in folder.iterdir()) if files else [HEADER]
        found = [(folder / name).stat() for name in (*names, HEADER)]
    except OSError:
        return None
    return tuple((about.st_ino, about.st_mtime_ns, about.st_size) for about in found)


async def watch(
    slots: Sequence[Slot],
    config: ServeConfig,
    prepare: Callable[[ServedModel], None],
    on_reload: Callable[[Slot, bool, float], None],
) -> None:
    """Reload models whose folders are replaced, for ever."""
    while True:
        await asyncio.sleep(config.reload_seconds)
        for slot in slots:
            if slot.is_replaced:
                started = time.perf_counter()
                done = await asyncio.to_thread(slot.reload, config, prepare)
                try:
                    on_reload(slot, done, time.perf_counter() - started)
                except Exception as error:  # a log that cannot be written must not end the watch
                    with contextlib.suppress(Exception):
                        slot.log(f"{slot.name}: the reload cannot be reported: {error}")
