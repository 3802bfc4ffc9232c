"""Models that are served: each loaded version with what its answers need, and folders that are watched."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from extremax.loading import load_model
from extremax.runtime.threads import run
from extremax.scores import scores_rows_alone
from extremax.serve.batching import RowTime
from extremax.serve.settings import RequestError, ServeConfig
from extremax.storage.folder import HEADER

_KEPT_LABELS = 1 << 16  # labels whose JSON is kept
_WARM_UP = "a"
_LOWEST_LOG = float(np.finfo(np.float32).min)  # stands for the logarithm of zero, which JSON does not have
_LIGHT_CHARACTERS = 500  # of a text ...
_LIGHT_ENTRIES = 2000  # ... and numbers of a vector that the thread of the event loop may take


class SparseRow(NamedTuple):
    """Columns and values of one sparse vector."""

    indices: list[int]
    values: list[float]


@dataclass(frozen=True)
class Outcome:
    """What the calls of a model gave, for metrics: of all rows of one call."""

    top_prob: float
    n_unknown: int
    n_rows: int


@dataclass(frozen=True)
class Predict:
    """Rows of one model, number of labels and search: what a call of the model needs."""

    model: ServedModel
    top_k: int
    search: str
    kind: str  # "texts", "dense" or "sparse"
    as_log: bool

    @property
    def key(self) -> Hashable:
        return id(self.model), self.top_k, self.search, self.kind, self.as_log

    @property
    def step(self) -> int | None:
        return self.model.step_rows(self.search)

    @property
    def row_time(self) -> RowTime:
        return self.model.row_times.setdefault((self.kind, self.search), RowTime())

    def is_light(self, row: Any) -> bool:
        """Whether a row is a short text that no encoder reads, or a vector with few entries."""
        if self.kind == "texts":
            return len(row) <= _LIGHT_CHARACTERS and not getattr(self.model.clf, "_encodes", False)
        return len(row.indices if self.kind == "sparse" else row) <= _LIGHT_ENTRIES

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
        self.takes_texts = hasattr(clf, "classifier_")
        self.classifier = clf.classifier_ if self.takes_texts else clf
        self.on_outcome: Callable[[Outcome], None] = lambda outcome: None
        self.log: Callable[[str], None] = lambda text: None
        self.row_times: dict[tuple[str, str], RowTime] = {}  # of each kind of row and search
        self.monitor: Any = None
        self.monitor_lock = threading.Lock()
        self._kept: dict[int, str] = {}
        self._page_lock = threading.Lock()
        self._page: Any = None

    # -- facts ---------------------------------------------------------------------------------------------

    @property
    def n_classes(self) -> int:
        return len(self.clf.classes_)

    @property
    def n_features(self) -> int:
        return int(self.classifier.n_features_in_)

    def step_rows(self, search: str) -> int | None:
        """Return by how many rows a request may be cut into pieces, so that no bit of an answer changes.

        The last bits of a product of dense matrices depend on the number of its rows; those of sparse weights
        do not.
        """
        model = self.clf.model_
        if search != "exact" or model.label_map is not None or getattr(self.clf, "_encodes", False):
            return None  # before the table of columns, which other searches never need, is made
        return 1 if scores_rows_alone(model.scorer) else None

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
        """Return the number of a class; raise RequestError (404) for a label that the model does not have."""
        if name not in self._ids:
            raise RequestError(404, f"{name[:80]!r} is none of the {self.n_classes:,} labels of this model.")
        return self._ids[name]

    def description(self, number: int) -> str | None:
        """Return the text on a class, if the model has texts."""
        texts = self.clf.model_.classes.descriptions
        return None if texts is None else str(texts.text(number))

    def describe_label(self, number: int) -> dict[str, Any]:
        """Return label, number, description and training rows of a class."""
        counts = self.clf.model_.classes.counts
        text = self.description(number)
        found: dict[str, Any] = {"label": self.label_names[number], "id": number}
        if text is not None:
            found["description"] = text
        if counts is not None:
            found["n_samples"] = int(counts[number])
        return found

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
        return {"labels": [self.describe_label(i) for i in found[:limit]], "total": len(found)}

    def info(self) -> dict[str, Any]:
        """Return facts about the model."""
        model = self.clf.model_
        last = self.clf.history_[-1]
        held_out = {
            name.removeprefix("held_out_"): value
            for name, value in last.items()
            if name.startswith("held_out_")
        }
        return {
            "name": self.name,
            "model": self.folder.name,
            "input": "texts" if self.takes_texts else "vectors",
            "n_classes": self.n_classes,
            "n_features": self.n_features,
            "n_samples": int(model.classes.n_samples),
            "objective": model.objective,
            "has_descriptions": model.classes.descriptions is not None,
            "explains": self.explains,
            "searches": list(model.search_names),
            "choices": json_ready(dict(self.clf.choices_)),
            "held_out": json_ready(held_out) or None,
            "loaded_at": self.loaded_at.isoformat(timespec="seconds"),
        }

    @property
    def explains(self) -> bool:
        """Whether `explain` can say what each feature adds."""
        if not self.takes_texts:
            return True
        return self.clf.features_ is not None and bool(self.clf.features_.is_sparse)

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
        shape = len(rows), self.n_features
        found = sparse.csr_matrix((values, indices, indptr), shape=shape)
        found.sort_indices()
        return found

    def answer(self, pieces: Sequence[Sequence[Any]], work: Predict) -> list[list[bytes]]:
        """Return the answers to the rows of each piece as JSON: what `predict_topk` gives for the piece.

        The features of all texts are made in one call, and the labels found piece by piece: by one thread
        each where these are single rows, which would use no more.
        """
        rows = [row for piece in pieces for row in piece]
        X = self.matrix(rows, work.kind)
        features, ends = X, np.cumsum([0, *map(len, pieces)]).tolist()
        joined = not getattr(self.clf, "_encodes", False)
        if self.takes_texts and joined:
            features = self.clf.transform(X)
        found: list[Any] = [None] * len(pieces)

        def predict(i: int) -> None:
            part = features if len(pieces) == 1 else features[ends[i] : ends[i + 1]]
            part = part if joined else self.clf.transform(part)
            found[i] = (*self.classifier._predict_ids(part, work.top_k, work.search), part)

        run(predict, len(pieces), self.classifier._threads if len(pieces) > 1 else 1)
        for ids, log_prob, part in found:
            self._observe(ids, log_prob, part)
        return [self._encode_all(ids, log_prob, part, work.as_log) for ids, log_prob, part in found]

    def _observe(self, ids: Any, log_prob: Any, features: Any) -> None:
        top = float(np.exp(log_prob[:, 0].astype(np.float64)).sum())
        self.on_outcome(Outcome(top, int(self._unknown(features).sum()), len(ids)))
        if self.monitor is not None:
            with self.monitor_lock:
                self.monitor.observe(features, ids[:, 0], log_prob[:, 0])

    def _unknown(self, features: Any) -> Any:
        return self.clf._unknown(features) if self.takes_texts else np.zeros(features.shape[0], np.bool_)

    def _encode_all(self, ids: Any, log_prob: Any, features: Any, as_log: bool) -> list[bytes]:
        logs = np.maximum(log_prob.astype(np.float64), _LOWEST_LOG)
        scores, known = (logs if as_log else np.exp(logs)).tolist(), (~self._unknown(features)).tolist()
        return [self._encode(*row) for row in zip(ids.tolist(), scores, known, strict=True)]

    def _encode(self, ids: list[int], scores: list[float], known: bool) -> bytes:
        end = "}" if known else ',"known":false}'
        found = zip(ids, scores, strict=True)  # a search may find fewer labels than were asked for
        parts = [f"{self._label_json(i)}{score!r}{end}" for i, score in found if i >= 0]
        return ("[" + ",".join(parts) + "]").encode()

    def _label_json(self, number: int) -> str:
        """Return the beginning of the JSON of one label, up to its score."""
        found = self._kept.get(number)
        if found is None:
            about: dict[str, Any] = {"label": str(self.clf.classes_[number]), "id": number}
            text = self.description(number)
            if text is not None:
                about["description"] = text
            found = json.dumps(about)[:-1] + ',"score":'
            if len(self._kept) >= _KEPT_LABELS:
                self._kept.clear()
            self._kept[number] = found
        return found

    def explain(self, row: Any, kind: str, top_k: int) -> dict[str, Any]:
        """Return why the first label is predicted; raise RequestError (422) where no one can say."""
        if not self.explains:
            raise RequestError(
                422, "this model reads dense features of whole texts, in which no word has a part of its own."
            )
        given = self.matrix([row], kind)
        found = self.clf.explain(given[0] if kind == "texts" else given, min(top_k, self.n_classes))
        plain = json_ready(found.to_dict())
        names = [str(label) for label in plain.pop("labels")]
        numbers = [self.classifier._label_id(label) for label in found.labels]
        labels = []
        for name, number, prob in zip(names, numbers, plain.pop("probabilities"), strict=True):
            about = {"label": name, "score": prob, "id": number}
            text = self.description(number)
            labels.append(about if text is None else {**about, "description": text})
        for part in (plain["score"], *plain["against"]):
            part["label"] = str(part["label"])
            part["rather_than"] = None if part["rather_than"] is None else str(part["rather_than"])
        return {"labels": labels, **plain, "path": self._path_of(numbers[0])}

    # -- the page ------------------------------------------------------------------------------------------

    @cached_property
    def has_page(self) -> bool:
        """Whether the label tree and the figures of the model can be shown."""
        return _page_class() is not None

    def page(self) -> Any:
        """Return what the page of the model shows; built at the first call, raises RequestError (404)."""
        build = _page_class()
        if build is None:
            raise RequestError(404, "this server has no analysis of its models.")
        with self._page_lock:
            if self._page is None:
                self._page = self._build_page(build)
            return self._page

    def _build_page(self, build: Any) -> Any:
        """Return the page with the analysis; without it where it is of other labels."""
        try:
            return build(self.clf, self.document)
        except ValueError as error:
            if self.document is None:
                raise
            self.log(f"{self.name}: its page has no analysis: {error}")
            self.document = None
            return build(self.clf, None)

    def _path_of(self, number: int) -> Any:
        """Return the path of a class in the label tree, where the page has been built."""
        if self._page is None:
            return None
        try:
            return json_ready(self._page.path(number))
        except ValueError:
            return None

    def warm_up(self, search: str, top_k: int) -> None:
        """Predict once, so that the first request does not wait for tables and compiled code."""
        kind = "texts" if self.takes_texts else "dense"
        row: Any = _WARM_UP if self.takes_texts else np.zeros(self.n_features, np.float32)
        if not self.takes_texts and self.n_features > 1_000_000:
            kind, row = "sparse", SparseRow([], [])
        work = Predict(self, min(top_k, self.n_classes), search, kind, False)
        observe, self.on_outcome = self.on_outcome, lambda outcome: None
        monitor, self.monitor = self.monitor, None
        try:
            for n_rows in (1, 9):
                self.answer([[row] * n_rows], work)
        finally:
            self.on_outcome, self.monitor = observe, monitor


def _page_class() -> Any:
    """Return the class behind the page of a model; None in a version without it."""
    return getattr(_analysis(), "ModelPage", None)


def _analysis() -> Any:
    try:
        return import_module("extremax.report")
    except ImportError:
        return None


def json_ready(value: Any) -> Any:
    """Return a value as JSON has it: numpy becomes plain, NaN and infinity null, other objects text."""
    if isinstance(value, dict):
        return {str(name): json_ready(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    if hasattr(value, "tolist"):
        return json_ready(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)


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
    current: ServedModel | None = None
    n_reloads: int = 0
    error: str | None = None
    log: Callable[[str], None] = field(default=lambda text: None, repr=False)
    _identity: tuple[int, ...] | None = field(default=None, repr=False)

    def load(self, config: ServeConfig, prepare: Callable[[ServedModel], None]) -> ServedModel:
        """Load the folder and put it in the place of the version before."""
        before = folder_identity(self.folder)
        clf: Any = load_model(self.folder, encoder=self.encoder)
        (clf.classifier_ if hasattr(clf, "classifier_") else clf).n_jobs = self.threads
        if config.search not in clf.model_.search_names:
            raise ValueError(
                f"{self.folder} has no search {config.search!r}; it has {', '.join(clf.model_.search_names)}."
            )
        model = ServedModel(self.name, self.folder, clf, self._load_document())
        model.log = self.log
        prepare(model)
        for search in dict.fromkeys(("exact", config.search)):  # a request may ask for the exact one
            model.warm_up(search, config.top_k)
        self._identity = before
        self.current, self.error = model, None
        return model

    def _load_document(self) -> Any:
        """Return the analysis that was named, or the one that lies beside the folder; None without one."""
        analysis = _analysis()
        load, beside = getattr(analysis, "load_analysis", None), getattr(analysis, "beside", None)
        if self.analysis is not None:
            if load is None:
                raise ValueError(f"{self.analysis}: this version of extremax reads no analysis.")
            return load(self.analysis)
        if load is None or beside is None or not beside(self.folder).is_file():
            return None
        try:
            return load(beside(self.folder))
        except (OSError, ValueError) as error:  # the analysis was not named: the model is served all the same
            self.log(f"{self.name}: served without the analysis beside it: {error}")
            return None

    @property
    def is_replaced(self) -> bool:
        """Whether the folder holds another model than the one that answers."""
        found = folder_identity(self.folder)
        return found is not None and found != self._identity

    def reload(self, config: ServeConfig, prepare: Callable[[ServedModel], None]) -> bool:
        """Load a folder that was replaced; keep the old version, and say why, if that fails."""
        seen = folder_identity(self.folder)
        try:
            self.load(config, prepare)
        except Exception as error:  # an encoder may raise anything; the model that answers stays
            self.error, self._identity = str(error) or type(error).__name__, seen
            return False
        self.n_reloads += 1
        return True


def folder_identity(folder: Path) -> tuple[int, ...] | None:
    """Return numbers that change when another model takes the place of a folder; None without one."""
    try:
        about, header = os.stat(folder), os.stat(folder / HEADER)
    except OSError:
        return None
    # the time of the folder changes with every file that arrives, so that a copy is tried again at its end
    return (
        about.st_dev,
        about.st_ino,
        about.st_mtime_ns,
        header.st_ino,
        header.st_mtime_ns,
        header.st_size,
    )


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
