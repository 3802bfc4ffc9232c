"""`DaskExtremeClassifier`: `ExtremeClassifier` on the workers of a Dask cluster."""

from __future__ import annotations

import copy
import inspect
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from extremax.classifier import ExtremeClassifier
from extremax.dask import blocks as b
from extremax.dask import prediction
from extremax.dask.inputs import (
    check_infos,
    group_blocks,
    is_array,
    split_all,
    split_collection,
    submit_blocks,
)
from extremax.dask.job import Job, find_client, import_delayed
from extremax.dask.row_fit import (
    DistributedRows,
    RowFit,
    find_large_columns,
    require_drawable,
    scale_columns,
    wants_routing,
)
from extremax.dask.shards import PAIR_LOSSES
from extremax.dask.sparse_fit import SparseFit, fit_on_one_worker
from extremax.errors import TrainingInterruptedWarning
from extremax.examples import Examples, FeatureLayout
from extremax.features.scaling import LargeColumns
from extremax.fit import Fitted
from extremax.runtime.interrupts import Interrupts
from extremax.runtime.progress import ProgressLine
from extremax.solvers.config import FitConfig, resolve
from extremax.solvers.loop import Callback, Record
from extremax.solvers.registry import (
    NegativeSampling,
    SparseSoftmax,
    find_solver,
    is_wide_and_sparse,
)
from extremax.storage.folder import check_target, folder_checksum
from extremax.storage.labels import check_savable
from extremax.text import load_model
from extremax.tree.noise import as_noise
from extremax.tuned import DEFAULTS, Defaults, ProblemSize
from extremax.types import Float32, Int32
from extremax.validation.random_state import check_random_state
from extremax.validation.sample_weight import class_weights

_BLOCKS_PER_THREAD = 4  # blocks of rows of a fit; smaller ones are merged
_DISTRIBUTED = (*PAIR_LOSSES, "sparse_softmax")
_PARAMETERS = inspect.signature(ExtremeClassifier.__init__).parameters


class DaskExtremeClassifier(BaseEstimator):
    """`ExtremeClassifier` on the workers of a Dask cluster.

    Solvers are those that need no machine that sees all rows. Under "negative_sampling" (the paper's
    method) and "nce", each worker trains a range of the classes: negatives are hashes of counters, and a
    class needs its own pairs alone, so that the weights are bit for bit those of `ExtremeClassifier` with
    the same parameters. Under "sparse_softmax" the generative start is one sum over the rows: the model is
    that of ``n_epochs=0``. "auto" is "sparse_softmax" for wide sparse features, else "negative_sampling".
    Other solvers compare classes with one another and are refused.

    Parameters
    ----------
    client : distributed.Client, optional
        The cluster; by default the present client.
    n_shards : int, optional
        Ranges of classes that are trained apart; as many as workers unless given. No result depends on it.
    rows : {"auto", "replicate", "route"}
        How shards get the rows of their pairs under "negative_sampling" and "nce": every worker holds all
        rows, or rows travel with their pairs in every epoch. "auto" holds them where they take at most 40% of
        the memory of a worker. No result depends on it.
    **parameters
        Those of `ExtremeClassifier`. `n_jobs` are the threads of a task, by default those of a worker.
        `validation_fraction`, `patience`, `memory_limit` and `max_model_bytes` must be left out.

    Attributes
    ----------
    classes_ : ndarray (n_classes,)
        Labels as given.
    n_features_in_ : int
        Width of the training features.
    history_ : list of dict
        As that of `ExtremeClassifier`; losses are sums over shards and agree up to rounding.
    interrupted_ : bool
        Whether Ctrl-C ended training early. The model is then that of the last step that all shards have
        finished: an epoch, or with ``rows="route"`` a window of 256 MB of rows.
    seed_ : int
        Seed of all random draws.

    Examples
    --------
    >>> import dask.array as da
    >>> from distributed import Client
    >>> from extremax.dask import DaskExtremeClassifier
    >>> from extremax.solvers import NCE
    >>> client = Client(processes=False, dashboard_address=":0")
    >>> X, y = da.random.random((600, 8), chunks=(250, 8)), da.arange(600, chunks=250) % 20
    >>> clf = DaskExtremeClassifier(client, solver=NCE(noise="uniform"), n_epochs=1, random_state=0)
    >>> clf = clf.fit(X, y)
    >>> clf.predict(X).compute().shape
    (600,)
    >>> client.close()
    """

    _numbers: Defaults = DEFAULTS  # tuned numbers of the components; a subclass may have others
    _saved: prediction.SavedModelAt | None = None  # where the model was saved

    def __init__(
        self,
        client: Any = None,
        *,
        n_shards: int | None = None,
        rows: str = "auto",
        **parameters: Any,
    ) -> None:
        unknown = [name for name in parameters if name not in _PARAMETERS or name == "self"]
        if unknown:
            raise TypeError(f"DaskExtremeClassifier has no parameter {unknown[0]!r}.")
        self.client, self.n_shards, self.rows = client, n_shards, rows
        given = {name: entry.default for name, entry in _PARAMETERS.items() if name != "self"}
        for name, value in {**given, **parameters}.items():
            setattr(self, name, value)

    __signature__ = inspect.Signature(
        [
            inspect.Parameter("client", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None),
            inspect.Parameter("n_shards", inspect.Parameter.KEYWORD_ONLY, default=None),
            inspect.Parameter("rows", inspect.Parameter.KEYWORD_ONLY, default="auto"),
            *(
                entry.replace(kind=inspect.Parameter.KEYWORD_ONLY)
                for name, entry in _PARAMETERS.items()
                if name != "self"
            ),
        ]
    )

    @classmethod
    def _get_param_names(cls) -> list[str]:
        names = [name for name in _PARAMETERS if name != "self"]
        return sorted([*names, "client", "n_shards", "rows"])

    def _local_parameters(self) -> dict[str, Any]:
        own = self.get_params(deep=False)
        return {name: own[name] for name in _PARAMETERS if name != "self"}

    # -- training ------------------------------------------------------------------------------------------

    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, callbacks: Sequence[Callback] = ()
    ) -> Self:
        """Train on the rows of Dask collections.

        Parameters
        ----------
        X : Dask array (n_samples, n_features), bag of sparse blocks, Dask data frame, or path of a folder
            Blocks of rows, dense or CSR. The files of a folder (.npz or Parquet) hold labels, too.
        y : Dask array (n_samples,), bag of labels or of arrays of labels, or Dask series
            One label per row, in blocks like those of X.
        sample_weight : Dask array (n_samples,), optional
            Weight of each row, above zero.
        callbacks : sequence of callables
            Each gets the record of every epoch; one that returns True ends training.
        """
        self._forget()
        self._check_parameters()
        job = Job(find_client(self.client), self.n_jobs)
        try:
            rows, classes = self._read(job, X, y, sample_weight)
            config = self._resolve(rows)
            self.seed_ = check_random_state(self.random_state)
            self._job = job
            if config.solver.sparse_weights:
                self._fit_sparse(job, rows, config)
                self._publish(classes, rows.n_features)
            else:
                self._fit_rows(job, rows, config, callbacks, classes)
        except BaseException:
            if "classes_" not in vars(self):  # it did not get as far as a model
                self._forget()
            raise
        return self

    def _forget(self) -> None:
        """Drop everything that an earlier fit left."""
        for name in [name for name in vars(self) if name.endswith("_") and not name.startswith("__")]:
            delattr(self, name)
        self.__dict__.pop("_fit", None)
        self.__dict__.pop("_local", None)
        self._saved = None

    def _publish(self, classes: NDArray[Any], n_features: int) -> None:
        """Make the model of the fit, which may go on, that of this estimator."""
        self.__dict__.pop("_local", None)
        self.classes_, self.n_features_in_ = classes, n_features
        self.history_, self.interrupted_ = self._fit.history, self._fit.interrupted

    def _check_parameters(self) -> None:
        parameters = self._local_parameters()
        ExtremeClassifier(**parameters).check_params()
        solver: Any = NegativeSampling() if self.solver == "auto" else find_solver(self.solver)
        if solver.name not in _DISTRIBUTED:
            raise ValueError(
                f"solver={solver.name!r} compares the scores of classes with one another, which shards of"
                f" classes cannot; use one of {', '.join(map(repr, _DISTRIBUTED))}, or ExtremeClassifier on"
                " one machine."
            )
        for name in ("validation_fraction", "patience", "memory_limit", "max_model_bytes"):
            if parameters[name] not in (None, 0.0):
                raise ValueError(
                    f"{name} is {parameters[name]!r}; DaskExtremeClassifier cannot use it. Leave it out, and"
                    " validate with log_likelihood(X, y)."
                )
        if self.rows not in ("auto", "replicate", "route"):
            raise ValueError(f"rows is {self.rows!r}; it must be 'auto', 'replicate' or 'route'.")
        if self.n_shards is not None and (type(self.n_shards) is not int or self.n_shards < 1):
            raise ValueError(f"n_shards is {self.n_shards!r}; it must be a whole number from 1, or None.")
        if solver.uses_noise and not isinstance(solver.noise, str):
            require_drawable(as_noise(solver.noise))

    def _read(self, job: Job, X: Any, y: Any, weight: Any) -> tuple[DistributedRows, NDArray[Any]]:
        """Check the rows, name the classes, and scale sparse columns."""
        blocks = submit_blocks(job, X, y, weight)
        infos = job.gather([job.submit(b.describe, block) for block in blocks])
        check_infos(infos)
        groups = group_blocks([info.n_rows for info in infos], _BLOCKS_PER_THREAD * sum(job.threads.values()))
        merged = [
            blocks[group[0]] if len(group) == 1 else job.submit(b.merge_blocks, *(blocks[i] for i in group))
            for group in groups
        ]
        del blocks
        labels = job.submit(b.join_labels, *(job.submit(b.distinct_labels, block) for block in merged))
        classes: NDArray[Any] = job.gather(labels)
        check_savable(classes)
        if len(classes) < 2:
            raise ValueError(
                f"y has one class, {classes.item(0)!r}; DaskExtremeClassifier needs rows of at least two."
            )
        ids = [job.submit(b.encode, block, labels) for block in merged]
        sizes = [sum(infos[i].n_rows for i in group) for group in groups]
        entries = None
        features = [job.submit(b.features_of, block) for block in merged]
        if infos[0].n_entries is not None:
            counts = [sum(infos[i].n_entries or 0 for i in group) for group in groups]
            entries = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
            n_features = infos[0].n_features
            large = find_large_columns(job, features, entries, n_features, self._numbers.scale)
            self._large_columns: LargeColumns | None = large
            if large is not None:
                features = [job.submit(scale_columns, block, large) for block in features]
        else:
            self._large_columns = None
        weights = None
        if infos[0].has_weight:
            weights = [job.submit(_weight_of, block) for block in merged]
        weights = self._class_weighted(job, ids, weights, classes)
        rows = DistributedRows(
            features,
            ids,
            weights,
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            entries,
            infos[0].n_features,
            len(classes),
        )
        return rows, classes

    def _class_weighted(
        self, job: Job, ids: list[Any], weights: list[Any] | None, classes: NDArray[Any]
    ) -> list[Any] | None:
        """Multiply the weights of the rows by those of their classes."""
        if self.class_weight is None:
            return weights
        given: Any = self.class_weight
        if isinstance(given, Mapping):
            place = {label: i for i, label in enumerate(classes.tolist())}
            unknown = [label for label in given if label not in place]
            if unknown:
                raise ValueError(
                    f"class_weight names {unknown[0]!r}, which is none of the {len(classes):,} classes of"
                    " this model."
                )
            given = {place[label]: value for label, value in given.items()}
            if any(value == 0 for value in given.values()):
                raise ValueError("class_weight is zero for a class; leave its rows out.")
        factor = job.submit(_class_factor, given, len(classes), len(ids), *ids, *(weights or []))
        return [
            job.submit(_times_factor, y, None if weights is None else weights[i], factor)
            for i, y in enumerate(ids)
        ]

    def _resolve(self, rows: DistributedRows) -> FitConfig:
        """Fill in what the parameters leave open."""
        n_entries = None if rows.entries is None else int(rows.entries[-1])
        problem = ProblemSize(rows.n_rows, rows.n_rows, rows.n_features, rows.n_classes, n_entries)
        n_epochs, solver = self.n_epochs, self.solver
        if solver == "auto":
            wide = is_wide_and_sparse(problem, self._numbers.sparse)
            solver = SparseSoftmax() if wide else NegativeSampling()
        if find_solver(solver).sparse_weights:
            if n_epochs not in (None, 0):
                raise ValueError(
                    f"n_epochs is {n_epochs}; on a cluster, solver='sparse_softmax' is its start,"
                    " n_epochs=0. Later epochs compare classes with one another: use"
                    " ExtremeClassifier for it."
                )
            if n_entries is None:
                raise ValueError(
                    "X has dense blocks; on a cluster, solver='sparse_softmax' needs sparse ones:"
                    " X.map_blocks(scipy.sparse.csr_array)."
                )
            n_epochs = None if n_epochs is None and self._is_small(n_entries) else 0
        return resolve(solver, problem, n_epochs=n_epochs, numbers=self._numbers)

    def _is_small(self, n_entries: int) -> bool:
        """Whether one worker fits sparse weights alone, as one machine does."""
        return n_entries <= self._numbers.sparse.one_worker_entries

    def _fit_rows(
        self,
        job: Job,
        rows: DistributedRows,
        config: FitConfig,
        callbacks: Sequence[Callback],
        classes: NDArray[Any],
    ) -> None:
        n_shards = min(self.n_shards or len(job.workers), rows.n_classes)
        row_bytes = 4 * rows.n_rows * rows.n_features if rows.entries is None else 8 * int(rows.entries[-1])
        routed = wants_routing(job, row_bytes) if self.rows == "auto" else self.rows == "route"
        progress = ProgressLine(int(self.verbose))
        fit = RowFit(job, rows, config, self.seed_, n_shards, routed)

        def report(record: Record) -> bool:
            self._publish(classes, rows.n_features)
            progress.log(f"epoch {record['epoch']}  loss {record['loss']:.4f}")
            wishes = [callback(record) for callback in callbacks]  # each hears of it, whatever others want
            return any(wishes)

        fit.prepare()
        self._fit: Any = fit
        self._publish(classes, rows.n_features)
        fit.train(report, Interrupts())
        self._publish(classes, rows.n_features)
        if fit.interrupted:
            warnings.warn(
                f"Training was interrupted after {self.history_[-1]['epoch']} epochs; the model is kept as it"
                " is.",
                TrainingInterruptedWarning,
                stacklevel=3,
            )

    def _fit_sparse(self, job: Job, rows: DistributedRows, config: FitConfig) -> None:
        n_entries = 0 if rows.entries is None else int(rows.entries[-1])
        if self._is_small(n_entries):
            self._fit = fit_on_one_worker(job, rows, config, self.seed_)
        else:
            n_shards = min(self.n_shards or len(job.workers), rows.n_classes)
            self._fit = SparseFit(job, rows, config, self.seed_, n_shards)
            self._fit.run()

    # -- the fitted model ----------------------------------------------------------------------------------

    def _require_fitted(self) -> None:
        if "classes_" not in vars(self):
            raise NotFittedError("This DaskExtremeClassifier is not fitted yet; call fit(X, y) first.")

    def _local_future(self) -> Any:
        """Return the future of the whole model as an `ExtremeClassifier`."""
        return self._job.submit(make_local, self._fit.assemble(), self._about())

    def _predictor(self) -> Any:
        """Return the future of the same model without what further training needs."""
        if "_local" not in vars(self):
            self._local = self._job.submit(_for_prediction, self._local_future())
        return self._local

    def _about(self) -> dict[str, Any]:
        """Return what an estimator has beside its model."""
        return {
            "parameters": self._shipped_parameters(),
            "classes": self.classes_,
            "n_features": self.n_features_in_,
            "seed": self.seed_,
            "large_columns": self._large_columns,
        }

    def _shipped_parameters(self) -> dict[str, Any]:
        config = self._fit.config
        given = self._local_parameters()
        if given["solver"] == "auto":
            given["solver"] = config.solver.name
        if config.solver.sparse_weights:
            given["n_epochs"] = 0
        return given

    def to_local(self) -> ExtremeClassifier:
        """Return the model as an `ExtremeClassifier` in the memory of this process."""
        self._require_fitted()
        if self._fit is None and self._saved is not None:
            return load_model(self._saved.path)
        local: ExtremeClassifier = self._job.gather(self._local_future())
        return local

    # -- prediction ----------------------------------------------------------------------------------------

    def predict(self, X: Any) -> Any:
        """Return the most probable label of each row: a lazy Dask array, or a bag for a bag."""
        return self._predict(X, "predict", self._label_type, None)

    def predict_proba(self, X: Any) -> Any:
        """Return p(y|x) of every class in float64, (n_samples, n_classes): a lazy Dask array."""
        return self._predict(X, "predict_proba", np.dtype(np.float64), len(self._fitted_classes))

    def predict_log_proba(self, X: Any) -> Any:
        """Return log p(y|x) of every class, (n_samples, n_classes): a lazy Dask array."""
        return self._predict(X, "predict_log_proba", np.dtype(np.float32), len(self._fitted_classes))

    def predict_topk(
        self, X: Any, k: int = 5, *, search: str = "exact", beam_width: int | None = None
    ) -> Any:
        """Return the k most probable labels of each row, best first, and their log-probabilities.

        Two lazy Dask arrays (n_samples, k), computed by the same tasks; for a bag, a bag of such pairs.
        Options as in `ExtremeClassifier.predict_topk`.
        """
        options = {"k": k, "search": search, "beam_width": beam_width}
        if type(k) is not int or not 1 <= k <= len(self._fitted_classes):
            raise ValueError(
                f"k is {k!r}; predict_topk needs a whole number from 1 to {len(self.classes_):,}, the number"
                " of classes."
            )
        model, n_threads = self._lazy_model(), self._job.task_threads
        X = self._collection(X)
        if not is_array(X):
            return X.map_partitions(_bag_partition, model, "predict_topk", options, n_threads)
        return prediction.predict_pair(X, model, self._label_type, options, n_threads)

    def _predict(self, X: Any, method: str, dtype: np.dtype[Any], n_columns: int | None) -> Any:
        model, n_threads = self._lazy_model(), self._job.task_threads
        X = self._collection(X)
        if not is_array(X):
            return X.map_partitions(_bag_partition, model, method, {}, n_threads)
        return prediction.predict_array(X, model, method, dtype, n_columns, n_threads)

    def log_likelihood(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the mean log p(y|x), normalised over all classes; computed at once."""
        return self._mean(X, y, sample_weight, "log_likelihood")

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy; computed at once."""
        return self._mean(X, y, sample_weight, "score")

    def _mean(self, X: Any, y: Any, sample_weight: Any, method: str) -> float:
        delayed = import_delayed()
        model, n_threads = self._lazy_model(), self._job.task_threads
        parts, labels, weights = split_all(self._collection(X), y, sample_weight)
        work = delayed(prediction.evaluate_block, pure=False)
        tasks = [work(*part, model, method, n_threads) for part in zip(parts, labels, weights, strict=True)]
        found = self._job.gather(self._job.client.compute(tasks))
        total = sum(weight for _, weight in found)
        if total == 0.0:
            raise ValueError("X has no rows.")
        return float(sum(mean * weight for mean, weight in found) / total)

    @property
    def _fitted_classes(self) -> NDArray[Any]:
        self._require_fitted()
        return self.classes_

    @property
    def _label_type(self) -> np.dtype[Any]:
        return self._fitted_classes.dtype

    def _lazy_model(self) -> Any:
        """Return the model as an argument of tasks: once per worker, not once per task."""
        delayed = import_delayed()
        self._require_fitted()
        return delayed(self._saved or self._predictor(), pure=False)

    def _collection(self, X: Any) -> Any:
        if hasattr(X, "to_dask_array"):  # a data frame
            X = X.to_dask_array()
        split_collection(X, "X")
        width = X.shape[1] if is_array(X) else self.n_features_in_
        if width != self.n_features_in_:
            raise ValueError(
                f"X has {width} features, but DaskExtremeClassifier is expecting {self.n_features_in_}"
                " features as input."
            )
        return X

    # -- files ---------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a folder, all at once or not at all; `extremax.load_model` opens it.

        Every worker writes the classes that it trained, in a folder that all workers and this process share.
        Predictions from then on map the folder into memory, once per worker.
        """
        self._require_fitted()
        if self._fit is None and self._saved is not None:
            raise ValueError(f"this model was opened from {self._saved.path}; copy that folder.")
        check_target(path)
        target = os.path.abspath(path)
        if isinstance(self._fit, RowFit):
            local = make_local(None, self._about())
            local.history_ = self.history_
            self._fit.save(target, local.classes_, local._header())
        else:
            self.to_local().save(target)
        self._saved = prediction.SavedModelAt(target, folder_checksum(target))

    @classmethod
    def open(cls, path: str | os.PathLike[str], client: Any = None) -> Self:
        """Return a classifier that predicts with the model of a folder, mapped once per worker.

        The folder is one that this class or `ExtremeClassifier` saved, and that all workers can read.
        """
        found: Any = load_model(path)
        if not isinstance(found, ExtremeClassifier):
            raise ValueError(
                f"{path} holds a {type(found).__name__}; DaskExtremeClassifier opens classifiers."
            )
        clf = cls(client, **found.get_params(deep=False))
        clf._job = Job(find_client(client), found.n_jobs)
        clf.classes_, clf.n_features_in_ = found.classes_, found.n_features_in_
        clf.history_, clf.seed_ = found.history_, found.seed_
        clf.interrupted_ = found.interrupted_
        clf._large_columns, clf._fit = found.layout_.scaling, None
        clf._saved = prediction.SavedModelAt(path, folder_checksum(path))
        return clf

    @property
    def choices_(self) -> dict[str, Any]:
        """What was left open and chosen, as `ExtremeClassifier.choices_`."""
        if "_fit" not in vars(self):
            raise AttributeError("This DaskExtremeClassifier is not fitted yet; call fit(X, y) first.")
        if self._fit is None:
            return dict(self.to_local().choices_)
        return dict(self._job.gather(self._job.submit(_choices_of, self._predictor())))


def _weight_of(block: b.Block) -> Float32 | None:
    return block.weight


def _class_factor(given: Any, n_classes: int, n_blocks: int, *arrays: Any) -> Float32:
    y, weight = np.concatenate(arrays[:n_blocks]), arrays[n_blocks:]
    data = Examples.labels_only(y, len(y))
    if weight:
        data = data.with_row_weight(np.concatenate(weight))
    return class_weights(given, data, n_classes)


def _times_factor(y: Int32, weight: Float32 | None, factor: Float32) -> Float32:
    data = Examples.labels_only(y, len(y)).with_row_weight(weight)
    weighted = data.with_class_weight(factor).weight
    assert weighted is not None
    return weighted


def make_local(fitted: Fitted | None, about: dict[str, Any]) -> ExtremeClassifier:
    """Return a finished fit as the estimator that one machine would have made."""
    local = ExtremeClassifier(**about["parameters"])
    columns = np.empty((1, about["n_features"]), np.float32)
    local._remember(columns, columns, about["classes"])
    local.layout_ = FeatureLayout(about["n_features"], scaling=about["large_columns"])
    local.seed_ = about["seed"]
    if fitted is not None:
        local._publish(fitted)
    return local


def _for_prediction(local: ExtremeClassifier) -> ExtremeClassifier:
    found = copy.copy(local)
    del found._fitted
    return found


def _bag_partition(partition: Any, model: Any, method: str, options: dict[str, Any], n_threads: int) -> Any:
    return [prediction.call_block(list(partition), model, method, options, n_threads)]


def _choices_of(local: ExtremeClassifier) -> dict[str, Any]:
    return dict(local.choices_)
