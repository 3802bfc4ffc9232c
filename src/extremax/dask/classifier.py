"""`DaskExtremeClassifier` and `DaskTextClassifier`: the estimators of one machine on a Dask cluster."""

from __future__ import annotations

import copy
import math
import operator
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, ClassVar, Self

import numpy as np
import psutil
from numpy.typing import ArrayLike
from sklearn.base import clone

from extremax.classifier import Classifier, EvalSet, ExtremeClassifier, read_pair
from extremax.dask import prediction
from extremax.dask.executor import (
    DaskExecutor,
    LostError,
    Terminal,
    find_client,
    forward_lines,
    is_connected,
    make_key,
    result_of,
    room_of,
    wait_for,
)
from extremax.dask.inputs import (
    Part,
    count_bytes,
    delay_parts,
    is_array,
    is_collection,
    is_spread,
    join_parts,
    labels_of,
    len_of,
    submit_parts,
)
from extremax.errors import warn_caller
from extremax.runtime.executor import use_executor
from extremax.runtime.memory import check_memory
from extremax.runtime.progress import stream_of_fits
from extremax.solvers.loop import Callback
from extremax.storage.folder import folder_checksum
from extremax.text import TextClassifier, load_model

_ATTEMPTS = 3  # fits of rows that a worker has lost, or of a client that has lost the scheduler for a while


class _OnDask(Classifier):
    """What both estimators add to those of one machine, which they otherwise are."""

    client: Any
    _local: ClassVar[type[Any]]  # the estimator of one machine
    _remote: tuple[Any, Any] | None = None  # a model, and where the workers find it

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return sorted([*cls._local._get_param_names(), "client"])

    def __sklearn_clone__(self) -> Self:
        given = self.get_params(deep=False)
        client = given.pop("client")
        return type(self)(client=client, **{name: clone(v, safe=False) for name, v in given.items()})

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without what belongs to this process: the client, and futures."""
        state: dict[str, Any] = super().__getstate__()
        return {**{name: value for name, value in state.items() if name != "_remote"}, "client": None}

    # -- training ------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        eval_set: EvalSet = None,
        classes: ArrayLike | None = None,
        callbacks: Sequence[Callback] = (),
        **more: Any,
    ) -> Self:
        """Train on the workers of the cluster.

        Parameters
        ----------
        X : Dask array, data frame or bag, path of a file or folder, or rows in memory
            Dense or CSR blocks, data frames, bags of texts or of sparse blocks. The files of a folder, which
            hold rows and labels, are read by the workers: all that `extremax.data.load_dataset` reads.
        y : Dask array, series or bag, name of a column of X, or labels in memory
            In partitions like those of X: labels, lists of labels, or rows of an indicator matrix.
        sample_weight : Dask array or series (n_samples,), optional
            Weight of each row.
        eval_set, classes, callbacks, class_texts
            As on one machine; the rows of `eval_set` may be collections. Callbacks run on the worker of the
            fit, with a copy of what they refer to.
        """
        pair = read_pair(eval_set)
        self._forget()
        self._remote = None
        client = find_client(self.client, type(self).__name__)
        if isinstance(self, ExtremeClassifier):
            self.check_params()
        more |= {"classes": classes, "callbacks": callbacks}
        for attempt in range(_ATTEMPTS):
            try:
                self._fit_once(client, (X, y, sample_weight), pair, more)
                break
            except LostError:
                if attempt == _ATTEMPTS - 1 or not is_connected(client):
                    raise
        return self

    def _fit_once(self, client: Any, given: Any, pair: Any, more: dict[str, Any]) -> None:
        kind = type(self).__name__
        X, y, weight = given
        rows = submit_parts(client, X, y, weight, kind)
        held_out = [] if pair is None else submit_parts(client, pair[0], pair[1], None, kind)
        counts = [
            client.submit(count_bytes, part, key=make_key("count-bytes")) for part in [*rows, *held_out]
        ]
        n_bytes = sum(result_of(client, count, f"{kind}.fit") for count in counts)
        worker = _require_room(client, n_bytes, f"{kind}.fit")
        label_column = y if isinstance(y, str) else None
        with forward_lines(client) as topic:
            future = client.submit(
                fit_parts, self._plain(), rows, held_out, label_column, more, topic,
                key=make_key("fit"), workers=[worker], allow_other_workers=True,
            )  # fmt: skip
            self._receive(client, future, f"{kind}.fit")

    def _receive(self, client: Any, future: Any, name: str) -> None:
        """Take the estimator and the warnings of a task."""
        fitted, caught = result_of(client, future, name)
        if client.scheduler.address.startswith("inproc"):  # the worker's own object: training would change it
            fitted = copy.deepcopy(fitted)
        self._take(fitted)
        self._remote = self.model_, client.submit(operator.itemgetter(0), future, key=make_key("model"))
        for category, message in caught:
            warn_caller(message, category)

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        classes: ArrayLike | None = None,
        sample_weight: Any = None,
        **options: Any,
    ) -> Self:
        """Train one more epoch, block by block: for rows that fit into no worker.

        The model is that of `partial_fit` on one machine with one block after the other, by which the first
        fixes what `partial_fit` fixes: let blocks be alike, rows in random order. One worker holds the model
        and a block or two. Without `classes`, the first call reads all blocks for their labels first.
        """
        if not is_spread(X):
            super().partial_fit(X, y, classes, sample_weight, **options)
            return self
        kind = type(self).__name__
        name, client = f"{kind}.partial_fit", find_client(self.client, kind)
        is_first, column = not self.__sklearn_is_fitted__(), y if isinstance(y, str) else None
        parts = delay_parts(X, None if column else y, sample_weight)
        if is_first and classes is None:
            read = import_module("dask").delayed(labels_of)
            tasks = [read(part, column, dask_key_name=make_key("labels")) for part in parts]
            found = [result_of(client, task, name) for task in client.compute(tasks)]
            classes = None if None in found else sorted(set().union(*found))
        model: Any = (self._plain() if is_first else self.to_local()), []
        ahead = client.compute(parts[0])
        with forward_lines(client) as topic:
            for i in range(len(parts)):
                given, ahead = ahead, client.compute(parts[i + 1]) if i + 1 < len(parts) else None
                more = {"classes": classes} | options
                model = client.submit(
                    train_more, model, given, column, more, topic, key=make_key("partial-fit")
                )
                wait_for(client, model, name)
                classes = None  # the model has them
            self._receive(client, model, name)
        return self

    def _plain(self) -> Any:
        """Return the estimator of one machine with the same parameters, not fitted."""
        given = {name: value for name, value in self.get_params(deep=False).items() if name != "client"}
        return self._local(**given)

    def _take(self, fitted: Classifier) -> None:
        """Take what a fit has left."""
        own = set(self._get_param_names())
        self.__dict__.update({name: value for name, value in vars(fitted).items() if name not in own})

    def _as_local(self) -> Any:
        """Return the estimator of one machine, which shares the model."""
        self._require_fitted()
        local, own = self._plain(), {*self._get_param_names(), "_remote"}
        local.__dict__.update({name: value for name, value in vars(self).items() if name not in own})
        return local

    def to_local(self) -> Any:
        """Return a copy of the model as the estimator of one machine."""
        return copy.deepcopy(self._as_local())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the model to a folder of this machine; `extremax.load_model` opens it."""
        self._as_local().save(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str], client: Any = None) -> Self:
        """Return an estimator that predicts with the model of a folder, mapped once per worker.

        All workers must be able to read the folder.
        """
        checksum = folder_checksum(path)  # first: of a model saved meanwhile, workers say so
        found = load_model(path)
        if not isinstance(found, cls._local):
            raise ValueError(
                f"{path} holds a {type(found).__name__}; {cls.__name__} opens those of {cls._local.__name__}."
            )
        clf = cls(client=client, **found.get_params(deep=False))
        clf._take(found)
        clf._remote = clf.model_, prediction.SavedModelAt(path, checksum)
        return clf

    # -- prediction ----------------------------------------------------------------------------------------

    def predict(self, X: Any) -> Any:
        """Return the most probable label of each row: lazily, for a collection."""
        if not is_collection(X):
            return super().predict(X)
        return self._lazily(X, "predict", [(None, self._label_type)])

    def predict_proba(self, X: Any) -> Any:
        """Return p(y|x) of every class, (n_samples, n_classes): lazily, for a collection."""
        if not is_collection(X):
            return super().predict_proba(X)
        return self._lazily(X, "predict_proba", [(self._n_classes, np.dtype(np.float64))])

    def predict_log_proba(self, X: Any) -> Any:
        """Return log p(y|x) of every class, (n_samples, n_classes): lazily, for a collection."""
        if not is_collection(X):
            return super().predict_log_proba(X)
        return self._lazily(X, "predict_log_proba", [(self._n_classes, np.dtype(np.float32))])

    def predict_topk(self, X: Any, k: int = 5, **options: Any) -> Any:
        """Return the k most probable labels of each row, best first, and their log-probabilities.

        Two lazy arrays (n_samples, k) for a Dask array or data frame, and a bag of pairs for a bag. Options
        as on one machine.
        """
        if not is_collection(X):
            return super().predict_topk(X, k, **options)
        if type(k) is not int or not 1 <= k <= self._n_classes:
            raise ValueError(
                f"k is {k!r}; predict_topk needs a whole number from 1 to {self._n_classes:,}, the number of"
                " classes."
            )
        columns = [(k, self._label_type), (k, np.dtype(np.float32))]
        return self._lazily(X, "predict_topk", columns, k=k, **options)

    def log_likelihood(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the mean log p(y|x), normalised over all classes; computed at once."""
        if not is_collection(X):
            return super().log_likelihood(X, y, sample_weight)
        return self._mean(X, y, sample_weight, "log_likelihood")

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy; computed at once."""
        if not is_collection(X):
            return super().score(X, y, sample_weight)
        return self._mean(X, y, sample_weight, "score")

    @property
    def _n_classes(self) -> int:
        self._require_fitted()
        return len(self._inner.classes_)

    @property
    def _label_type(self) -> np.dtype[Any]:
        self._require_fitted()
        kind: np.dtype[Any] = self._inner.classes_.dtype
        return kind

    def _lazily(self, X: Any, method: str, columns: list[Any], **options: Any) -> Any:
        self._require_fitted()
        expected = self._inner.n_features_in_
        if self._input == "X" and is_array(X) and X.shape[1] != expected:
            raise ValueError(
                f"X has {X.shape[1]} features, but {type(self).__name__} is expecting {expected} features as"
                " input."
            )
        delayed = import_module("dask").delayed
        client = find_client(self.client, type(self).__name__)
        return prediction.lazily(X, delayed(self._on(client), pure=False), method, options, columns)

    def _mean(self, X: Any, y: Any, sample_weight: Any, method: str) -> float:
        self._require_fitted()
        name = type(self).__name__
        client = find_client(self.client, name)
        model = self._on(client)
        tasks = [
            client.submit(prediction.evaluate_part, part, model, method, key=make_key(method))
            for part in submit_parts(client, X, y, sample_weight, name)
        ]
        found = [result_of(client, task, f"{name}.{method}") for task in tasks]
        total = sum(weight for _, weight in found)
        if total == 0.0:
            raise ValueError("X has no rows.")
        return float(sum(mean * weight for mean, weight in found) / total)

    def _on(self, client: Any) -> Any:
        """Return the model as an argument of tasks: what stands for it on the workers."""
        if self._remote is None or self._remote[0] is not self.model_:
            self._remote = self.model_, client.scatter([self._as_local()], hash=False)[0]
        return self._remote[1]


class DaskExtremeClassifier(_OnDask, ExtremeClassifier):
    """`ExtremeClassifier` on the workers of a Dask cluster.

    The defaults are the same and so is, bit for bit, the model. One worker runs the fit and holds the rows;
    heavy maps over rows and classes run on all workers. The finished model comes to this process, where all
    methods of `ExtremeClassifier` work on rows in memory.

    Parameters
    ----------
    solver, **parameters
        Those of `ExtremeClassifier`. `n_jobs` are the threads of the worker that runs the fit.
    client : distributed.Client, optional
        The cluster; by default the present client. It is not pickled.

    Examples
    --------
    >>> import dask.array as da
    >>> from distributed import Client
    >>> from extremax.dask import DaskExtremeClassifier
    >>> client = Client(processes=False, dashboard_address=":0")
    >>> X, y = da.random.random((600, 8), chunks=(250, 8)), da.arange(600, chunks=250) % 20
    >>> clf = DaskExtremeClassifier(random_state=0).fit(X, y)
    >>> clf.predict(X).compute().shape
    (600,)
    >>> client.close()
    """

    _local = ExtremeClassifier

    def __init__(self, solver: Any = "auto", *, client: Any = None, **parameters: Any) -> None:
        ExtremeClassifier.__init__(self, solver, **parameters)
        self.client = client

    def check_params(self) -> None:
        """Raise for parameters that are out of their bounds."""
        self._plain().check_params()

    def _plain(self) -> Any:
        local = super()._plain()
        local._numbers = self._numbers
        return local


class DaskTextClassifier(_OnDask, TextClassifier):
    """`TextClassifier` on the workers of a Dask cluster.

    The defaults are the same and so is, bit for bit, the model. Words and n-grams of the texts are counted on
    all workers; see `DaskExtremeClassifier` for the rest.

    Parameters
    ----------
    classifier, **parameters
        Those of `TextClassifier`.
    client : distributed.Client, optional
        The cluster; by default the present client. It is not pickled.

    Examples
    --------
    >>> import dask.bag
    >>> from distributed import Client
    >>> from extremax.dask import DaskTextClassifier
    >>> client = Client(processes=False, dashboard_address=":0")
    >>> texts = ["fell off a ladder", "fall from a roof", "bitten by a dog", "bitten by a cat"] * 5
    >>> X = dask.bag.from_sequence(texts, npartitions=2)
    >>> y = dask.bag.from_sequence(["fall", "fall", "bite", "bite"] * 5, npartitions=2)
    >>> clf = DaskTextClassifier().fit(X, y)
    >>> clf.predict(X).compute()[:3]
    ['fall', 'fall', 'bite']
    >>> client.close()
    """

    _local = TextClassifier

    def __init__(
        self, classifier: ExtremeClassifier | None = None, *, client: Any = None, **parameters: Any
    ) -> None:
        TextClassifier.__init__(self, classifier, **parameters)
        self.client = client


def _require_room(client: Any, n_bytes: int, name: str) -> str:
    """Return the worker with most room; refuse rows that it cannot hold twice, as came and joined."""
    pause, rooms = import_module("dask.config").get("distributed.worker.memory.pause"), {}
    for address, about in client.scheduler_info(n_workers=-1)["workers"].items():
        metrics = about["metrics"]
        # Dask writes to disk what it manages, where it has not done so already
        moves = metrics.get("managed_bytes", 0) - metrics.get("spilled_bytes", {}).get("memory", 0)
        taken = max(0, metrics.get("memory", 0) - max(0, moves))
        rooms[address] = room_of(about["memory_limit"], pause, taken)
    best = max(rooms, key=lambda each: (rooms[each], each), default=None)
    if best is None:
        raise LostError(f"the Dask cluster has no worker any more; start some, and call {name} again.")
    if rooms[best] < math.inf:
        hints = ["a worker with more memory", "partial_fit, which takes block after block", "fewer rows"]
        need = {"rows": n_bytes, "rows in one piece": n_bytes}
        check_memory(need, available=int(rooms[best]), hints=hints, what=f"{name}, on one worker,")
    return str(best)


Fitted = tuple[Classifier, list[tuple[type[Warning], str]]]  # and its warnings


def fit_parts(
    local: Classifier,
    rows: list[Part],
    held_out: list[Part],
    label_column: str | None,
    options: Mapping[str, Any],
    topic: str,
) -> Fitted:
    """Fit an estimator on the worker of this task, with the others; return it, and the warnings."""
    distributed = import_module("distributed")
    worker = distributed.get_worker()
    X, y, weight = join_parts(rows)
    y = y if label_column is None else label_column
    eval_set = join_parts(held_out)[:2] if held_out else None
    key = worker.get_current_task()
    with (
        distributed.worker_client() as client,
        use_executor(DaskExecutor(client, worker, key)),
        _resources_of(local, worker, topic) as caught,
    ):
        local.fit(X, y, weight, eval_set=eval_set, **options)
    return local, caught


def train_more(
    before: Fitted, part: Part, label_column: str | None, options: Mapping[str, Any], topic: str
) -> Fitted:
    """Train an estimator on one more part; return it, and all warnings."""
    local, told = before
    X, y, weight = part.take_out()
    if len_of(X) > 0:
        y = y if label_column is None else label_column
        with _resources_of(local, import_module("distributed").get_worker(), topic) as caught:
            local.partial_fit(X, y, sample_weight=weight, **options)
        told = [*told, *(each for each in caught if each not in told)]
    return local, told


@contextmanager
def _resources_of(local: Any, worker: Any, topic: str) -> Iterator[list[tuple[type[Warning], str]]]:
    """Let a fit take the threads and the memory of a worker, where the parameters do not say.

    What it prints goes to the client, and its warnings into the list.
    """
    if isinstance(local, TextClassifier) and local.classifier is None:
        local.classifier = ExtremeClassifier()
    given: Any = local.classifier if isinstance(local, TextClassifier) else local
    before, manager = (given.n_jobs, given.memory_limit), worker.memory_manager
    room = room_of(manager.memory_limit, manager.memory_pause_fraction, psutil.Process().memory_info().rss)
    if given.n_jobs is None:
        given.n_jobs = worker.state.nthreads
    if given.memory_limit is None and room < math.inf:
        given.memory_limit = int(room)
    terminal: Any = Terminal(worker, topic)
    told: list[tuple[type[Warning], str]] = []
    token = stream_of_fits.set(terminal)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield told
    finally:
        stream_of_fits.reset(token)
        for each in (given, vars(local).get("classifier_", given)):
            each.n_jobs, each.memory_limit = before
    told += [(each.category, str(each.message)) for each in caught if issubclass(each.category, UserWarning)]
