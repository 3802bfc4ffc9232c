"""`DaskExtremeClassifier` on worker processes: the bits of one machine, whatever happens to a worker."""

from __future__ import annotations

import logging
import os
import signal
import sys
from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse

from extremax import ExtremeClassifier, load_model
from extremax.errors import ModelFileError, TrainingInterruptedWarning
from extremax.solvers import NegativeSampling
from extremax.tuned import DEFAULTS, replace_numbers
from planted import around_means

da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")
from extremax.dask import DaskExtremeClassifier  # noqa: E402 (needs Dask)

N_ROWS, N_FEATURES, N_CLASSES = 900, 21, 50


def settings(noise="tree", **more):
    """Return parameters of a classifier that draws negatives for each row."""
    return {"solver": NegativeSampling(noise=noise, batch_size=48), "n_epochs": 2, "random_state": 3, **more}


# One worker would fit so small a problem alone.
SHARED_WORK = replace_numbers(
    DEFAULTS, sparse={"one_worker_entries": 0, "min_features": 64, "few_classes": 5}
)


class SharedWork(ExtremeClassifier):
    _numbers = SHARED_WORK


class DaskSharedWork(DaskExtremeClassifier):
    _numbers = SHARED_WORK


@pytest.fixture(
    scope="module", params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["threads", "processes"]
)
def cluster(request):
    """Two workers; where they are processes, their start takes seconds: all tests share them."""
    with start_cluster(2, processes=request.param) as found:
        yield found


def start_cluster(n_workers, processes):
    return distributed.LocalCluster(
        n_workers=n_workers,
        processes=processes,
        threads_per_worker=1,
        dashboard_address=":0",
        silence_logs=logging.CRITICAL,
    )


@pytest.fixture(scope="module")
def client(cluster):
    with distributed.Client(cluster) as found:
        yield found


@pytest.fixture(scope="module")
def problem():
    X, y = around_means(N_ROWS, N_CLASSES, N_FEATURES, seed=1)
    labels = np.array([f"class {i}" for i in range(N_CLASSES)])[y]
    return X, labels


@pytest.fixture(scope="module")
def words():
    """Sparse rows of 50 classes in 300 columns, of uneven lengths."""
    rng = np.random.default_rng(2)
    y = rng.integers(N_CLASSES, size=1500)
    X = sparse.random_array((1500, 300), density=0.03, rng=rng, format="lil", dtype=np.float32)
    X[np.arange(1500), y * 6 + rng.integers(3, size=1500)] = 1.0
    X[17] = X[17] * 40.0  # far longer than others
    return sparse.csr_array(X, dtype=np.float32), y


def as_sparse(X):
    return sparse.csr_array(np.where(X > 0.3, X, 0.0).astype(np.float32))


def sparse_blocks(X, sizes):
    """A Dask array of CSR blocks, and the blocks."""
    from dask import delayed

    ends = np.cumsum([0, *sizes])
    blocks = [X[a:b] for a, b in pairwise(ends)]
    parts = [da.from_delayed(delayed(block), block.shape, np.float32, meta=X[:0]) for block in blocks]
    return da.concatenate(parts), blocks


def assert_same_model(found, local):
    """Compare weights, accumulators, noise and calibration, bit for bit."""
    ours, theirs = found._fitted.state.state().arrays, local._fitted.state.state().arrays
    parts, expected = found.model_.components(), local.model_.components()
    assert parts.keys() == expected.keys()
    for name, part in expected.items():
        ours |= {f"{name}.{key}": array for key, array in parts[name].arrays.items()}
        theirs |= {f"{name}.{key}": array for key, array in part.arrays.items()}
        assert parts[name].header == part.header, name
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        assert ours[name].dtype == array.dtype, name
        assert ours[name].tobytes() == np.ascontiguousarray(array).tobytes(), name
    assert list(found.classes_) == list(local.classes_)
    assert found.model_.chosen == local.model_.chosen
    assert found.model_.describe() == local.model_.describe()


@pytest.mark.invariance
@pytest.mark.parametrize(
    ("noise", "rows", "is_sparse"),
    [
        ("uniform", "replicate", False),
        ("frequency", "route", True),
        ("tree", "route", False),
        pytest.param("frequency", "replicate", False, marks=pytest.mark.slow),
        pytest.param("uniform", "replicate", True, marks=pytest.mark.slow),
        pytest.param("tree", "replicate", True, marks=pytest.mark.slow),
        pytest.param("mixture", "replicate", False, marks=pytest.mark.slow),
    ],
)
def test_two_workers_make_the_model_of_one_machine(client, problem, noise, rows, is_sparse) -> None:
    X, labels = problem
    weight = np.random.default_rng(0).uniform(0.5, 2.0, N_ROWS)
    given = da.from_array(X, chunks=(211, N_FEATURES))
    if is_sparse:
        X = as_sparse(X)
        given, _ = sparse_blocks(X, [1, 400, 211, 288])
    local = ExtremeClassifier(**settings(noise)).fit(X, labels, weight)
    clf = DaskExtremeClassifier(client, rows=rows, **settings(noise))
    clf.fit(given, da.from_array(labels, chunks=150), da.from_array(weight, chunks=900))
    assert_same_model(clf.to_local(), local)
    losses = [record["loss"] for record in clf.history_[1:]]
    assert losses == pytest.approx([record["loss"] for record in local.history_[1:]], rel=1e-6)


@pytest.mark.invariance
def test_uneven_columns_and_class_weights(client, problem) -> None:
    X, labels = problem
    X = X * np.where(np.arange(N_FEATURES) == 3, 1e3, 1.0).astype(np.float32) + np.float32(4.0)
    X[5] *= 1e5
    parameters = settings("uniform", class_weight="balanced")
    local = ExtremeClassifier(**parameters).fit(X, labels)
    clf = DaskExtremeClassifier(client, n_shards=5, **parameters)
    clf.fit(da.from_array(X, chunks=(437, -1)), da.from_array(labels, chunks=437))
    assert local._fitted.state.scaling is not None
    assert_same_model(clf.to_local(), local)


@pytest.mark.invariance
@pytest.mark.parametrize("factor", [37.0, pytest.param(1.0, marks=pytest.mark.slow)])
def test_the_sparse_start_is_one_sum(client, words, factor) -> None:
    import dask.bag

    X, y = words
    X = X * np.float32(factor)
    if factor != 1.0:
        X.data[::97] = 0.0  # stored zeros, which are left out
    local = SharedWork("sparse_softmax", n_epochs=0, random_state=1).fit(X, y)
    cuts = [slice(0, 700), slice(700, 703), slice(703, 1200), slice(1200, None)]
    bag = dask.bag.from_sequence([X[cut] for cut in cuts], npartitions=3)
    labels = dask.bag.from_sequence([y[cut] for cut in cuts], npartitions=3)
    clf = DaskSharedWork(client, solver="sparse_softmax", random_state=1).fit(bag, labels)
    assert local.choices_["limited_rows"] == 1
    assert "included_rows" in local.choices_
    found = clf.to_local()
    assert_same_model(found, local)
    assert found.history_[-1]["held_out_accuracy"] == local.history_[-1]["held_out_accuracy"]
    assert (np.concatenate(clf.predict(bag).compute()) == local.predict(X)).all()


@pytest.mark.slow
@pytest.mark.invariance
def test_a_small_sparse_problem_is_left_to_one_worker(client, words) -> None:
    X, y = words[0][:400], words[1][:400]
    local = ExtremeClassifier("sparse_softmax", random_state=1).fit(X, y)
    given, _ = sparse_blocks(X, [150, 180, 70])
    clf = DaskExtremeClassifier(client, random_state=1, solver="sparse_softmax")
    clf.fit(given, da.from_array(y, chunks=100))
    assert_same_model(clf.to_local(), local)


@pytest.mark.invariance
def test_predictions_are_lazy_and_those_of_one_machine(client, problem, tmp_path) -> None:
    X, labels = problem
    clf = DaskExtremeClassifier(client, **settings("tree"))
    blocks, y = da.from_array(X, chunks=(400, -1)), da.from_array(labels, chunks=400)
    clf.fit(blocks, y)
    local = clf.to_local()
    cuts = [X[:400], X[400:800], X[800:]]  # a matrix product may round otherwise with other rows beside
    for method in ("predict", "predict_proba", "predict_log_proba"):
        lazy = getattr(clf, method)(blocks)
        expected = np.concatenate([getattr(local, method)(rows) for rows in cuts])
        assert lazy.shape == expected.shape
        assert lazy.dtype == expected.dtype
        assert (lazy.compute() == expected).all(), method
    best, log_prob = clf.predict_topk(blocks, k=3)
    assert best.shape == (N_ROWS, 3)
    found = client.gather(client.compute([best, log_prob]))
    expected = zip(*(local.predict_topk(rows, k=3) for rows in cuts), strict=True)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours == np.concatenate(theirs)).all()
    assert clf.log_likelihood(blocks, y) == pytest.approx(local.log_likelihood(X, labels), rel=1e-6)
    assert clf.score(blocks, y) == pytest.approx(local.score(X, labels))
    # rows whose number is not known
    some = blocks[blocks[:, 0] > 0.0]
    assert (clf.predict(some).compute() == local.predict(X[X[:, 0] > 0.0])).all()

    clf.save(tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").glob("shards-0/shard-*")) == [
        "shard-0000",
        "shard-0001",
    ]
    opened = load_model(tmp_path / "model", verify=True)
    assert (opened.predict_proba(X) == local.predict_proba(X)).all()
    assert (opened.predict_topk(X, k=3, search="beam")[1] == local.predict_topk(X, 3, search="beam")[1]).all()
    assert (clf.predict(blocks).compute() == local.predict(X)).all()  # from the folder
    again = DaskExtremeClassifier.open(tmp_path / "model", client)
    assert (again.predict(blocks).compute() == local.predict(X)).all()
    assert_same_model(opened.partial_fit(X, labels), local.partial_fit(X, labels))
    local.save(tmp_path / "whole")
    opened.save(tmp_path / "joined")
    assert not list((tmp_path / "joined").glob("shard-*"))


@pytest.mark.invariance
def test_a_folder_of_files(client, problem, tmp_path) -> None:
    X, labels = problem
    np.savez(tmp_path / "a.npz", X=X[:350], y=labels[:350])
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"label": labels[350:].tolist(), "vector": X[350:].tolist()}
    parquet.write_table(pa.table(columns), tmp_path / "b.parquet")
    local = ExtremeClassifier(**settings("uniform")).fit(X, labels)
    clf = DaskExtremeClassifier(client, **settings("uniform")).fit(tmp_path)
    assert_same_model(clf.to_local(), local)


@pytest.mark.invariance
def test_interrupted_training_keeps_the_model(client, problem) -> None:
    X, labels = problem
    parameters = settings("uniform", n_epochs=4)
    given = da.from_array(X, chunks=(450, -1)), da.from_array(labels, chunks=450)
    seen = []

    def press(record) -> None:
        seen.append(clf.to_local().model_.n_epochs)
        if record["epoch"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    clf = DaskExtremeClassifier(client, **parameters)
    with pytest.warns(TrainingInterruptedWarning, match="interrupted after 2 epochs; the model is kept"):
        clf.fit(*given, callbacks=[press])
    assert seen == [1, 2]
    assert clf.interrupted_
    assert [record["epoch"] for record in clf.history_] == [0, 1, 2]
    found = clf.to_local()
    assert found.interrupted_
    assert (clf.predict(given[0]).compute() == found.predict(X)).all()
    whole = ExtremeClassifier(**parameters).fit(X, labels)
    assert_same_model(found.resume_fit(X, labels), whole)

    def fail(record) -> None:
        raise KeyError("of the callback")

    cut = ExtremeClassifier(**parameters)
    with pytest.raises(KeyError, match="of the callback"):
        cut.fit(X, labels, callbacks=[fail])
    with pytest.raises(KeyError, match="of the callback"):
        clf.fit(*given, callbacks=[fail])
    assert not clf.interrupted_
    assert_same_model(clf.to_local(), cut)
    with pytest.raises(ValueError, match="sample_weight"):
        clf.fit(*given, da.full(N_ROWS, -1.0, chunks=450))
    assert not hasattr(clf, "classes_")  # nothing of an earlier fit
    assert not hasattr(clf, "seed_")


class Here:
    """A job whose tasks run at once, in this process and without copies."""

    lone_threads = task_threads = 1

    def __init__(self) -> None:
        self.client, self.cancelled = self, []

    def submit(self, function, *arguments, **_):
        return function(*arguments)

    def gather(self, values):
        return values

    def cancel(self, futures) -> None:
        self.cancelled += futures


@pytest.mark.invariance
def test_a_step_that_is_interrupted_leaves_the_one_before(monkeypatch) -> None:
    from extremax.dask import row_fit
    from extremax.runtime.interrupts import Interrupts

    class Interrupted(row_fit.RowFit):
        def _wait(self, futures) -> None:
            raise KeyboardInterrupt

    left = []
    monkeypatch.setattr(row_fit, "leave_epoch", lambda plan, shard: left.append(shard) or f"{shard} left")
    for inside in (False, True):
        fit = Interrupted(Here(), None, None, 0, 2, True, shards=["a", "b"])
        fit._inside_epoch = inside
        with pytest.raises(KeyboardInterrupt):
            fit._finish_step(["c", "d"], Interrupts(), inside_epoch=True)
        assert fit.job.cancelled == ["c", "d"]
        assert fit.shards == (["a left", "b left"] if inside else ["a", "b"])
    assert left == ["a", "b"]


@pytest.mark.invariance
def test_a_local_model_shares_nothing_with_the_worker(words) -> None:
    """A worker in this process hands over the object itself: training it must not change the worker's."""
    from extremax.dask.sparse_fit import OneWorkerFit

    X, y = words[0][:300], words[1][:300]
    given = SharedWork("sparse_softmax", n_epochs=0, random_state=1).fit(X, y)
    clf = DaskExtremeClassifier(solver="sparse_softmax", random_state=1)
    clf._job, clf.classes_, clf.n_features_in_ = Here(), given.classes_, X.shape[1]
    clf.seed_, clf._large_columns = 1, None
    clf._fit = OneWorkerFit(Here(), given.model_.config, given.history_, given._fitted)
    first = clf.to_local()
    first.partial_fit(X[::2], y[::2])
    first.history_[0]["epoch"] = 17
    assert first.model_.n_epochs == 1
    again = clf.to_local()
    assert again.model_.n_epochs == 0
    assert_same_model(again, given)
    assert again.history_ == given.history_


# After the tests on threads, which compile what the three processes would each compile for themselves.
@pytest.mark.invariance
def test_a_killed_worker_changes_no_bit(problem) -> None:
    X, labels = problem
    parameters = settings("tree", n_epochs=4)
    local = ExtremeClassifier(**parameters).fit(X, labels)
    killed = []

    def kill(record) -> None:
        if record["epoch"] == 2:
            address, pid = sorted(client.run(os.getpid).items())[0]
            os.kill(pid, signal.SIGKILL)
            killed.append(address)

    with start_cluster(2, processes=True) as cluster, distributed.Client(cluster) as client:
        assert len(client.nthreads()) == 2
        clf = DaskExtremeClassifier(client, **parameters)
        clf.fit(da.from_array(X, chunks=(130, -1)), da.from_array(labels, chunks=130), callbacks=[kill])
        assert len(killed) == 1
        assert len(clf._fit.shards) == 2
        assert len(clf.history_) == 5
        assert_same_model(clf.to_local(), local)


# -- model folders -----------------------------------------------------------------------------------------


@pytest.fixture
def sharded_folder(tmp_path):
    """A sharded model, written without a cluster."""
    from extremax.dask.row_fit import Head, Start, _Elsewhere
    from extremax.dask.shards import Plan
    from extremax.solvers.optimizers import Tables
    from extremax.storage.models import save_model, save_shard

    X, y = around_means(200, 12, 6)
    local = ExtremeClassifier(**settings("uniform")).fit(X, y)
    state, model = local._fitted.state, local.model_
    plan = Plan(model.config, 3, 200, 6, 12, (0, 5, 12), 200.0, state.feature_scale)
    head = Head(plan, None, {}, local.history_)
    start = Start(state.noise, {}, None, None)
    empty = head.train_state(start, _Elsewhere(plan))

    def write(folder) -> int:
        for i, (a, b) in enumerate(((0, 5), (5, 12))):
            names = ("weights", "biases", "squares", "bias_squares")
            save_shard(folder, i, a, Tables(*(getattr(state.tables, name)[a:b] for name in names)))
        return 2

    def save(path=tmp_path / "model"):
        save_model(
            path,
            head.model(empty, _Elsewhere(plan), model.classes.counts),
            empty,
            labels=local.classes_,
            header=local._header(),
            write_shards=write,
        )
        return path

    save()
    return save, local, X


@pytest.mark.identity
def test_sharded_weights_score_as_one_array(sharded_folder) -> None:
    save, local, X = sharded_folder
    opened = load_model(save())
    assert (opened.decision_function(X) == local.decision_function(X)).all()
    assert (opened.predict_topk(X, 4)[1] == local.predict_topk(X, 4)[1]).all()
    assert opened.log_likelihood(X, local.predict(X)) == local.log_likelihood(X, local.predict(X))
    assert (opened.coef_ == local.coef_).all()
    assert opened.model_.confusable(2, 3)[0].tolist() == local.model_.confusable(2, 3)[0].tolist()
    rows = sparse.csr_array(np.where(X > 0.5, X, 0.0))
    assert (opened.predict_proba(rows) == local.predict_proba(rows)).all()


@pytest.mark.error
def test_workers_do_not_mix_two_saves_of_a_folder(sharded_folder) -> None:
    from extremax.dask.prediction import SavedModelAt, call_block
    from extremax.storage.folder import folder_checksum

    save, local, X = sharded_folder
    path = save()
    model = SavedModelAt(path, folder_checksum(path))
    assert (call_block(X, model, "predict", {}, 1) == local.predict(X)).all()
    late = SavedModelAt(path, model.checksum)  # on a worker that has not opened it yet
    other = ExtremeClassifier(**settings("uniform", random_state=8)).fit(*around_means(200, 12, 6))
    other.save(path)
    prediction_module = sys.modules[SavedModelAt.__module__]
    prediction_module._open.cache_clear()
    with pytest.raises(ValueError, match="was saved again; open it anew"):
        call_block(X, late, "predict", {}, 1)
    renewed = SavedModelAt(path, folder_checksum(path))
    assert (call_block(X, renewed, "predict_proba", {}, 1) == other.predict_proba(X)).all()


@pytest.mark.error
def test_damaged_shards_are_refused(sharded_folder, tmp_path) -> None:
    import json
    import shutil

    save, _, _ = sharded_folder

    def refuse(change, sentence) -> None:
        path = save()
        change(path)
        with pytest.raises(ModelFileError, match=sentence):
            load_model(path, verify=True)
        shutil.rmtree(path)

    def flip(path) -> None:
        (file,) = path.glob("shards-*/shard-0001/weights.safetensors")
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)

    def exchange(path) -> None:  # a shard of another model, sound in itself
        from extremax.solvers.optimizers import Tables
        from extremax.storage.models import save_shard

        save_shard(next(path.glob("shards-*")), 1, 5, Tables.zeros(7, 6, "adagrad"))

    def rename(path) -> None:
        (shard,) = path.glob("shards-*/shard-0001")
        shard.rename(shard.with_name("shard-0000x"))

    refuse(flip, "damaged")
    refuse(exchange, "not the one that was saved")
    refuse(rename, "shard-0001")

    def forge(change):
        """Change the list of shards and make the checksum of the header right."""
        from extremax.storage.folder import _checksum

        def apply(path) -> None:
            content = json.loads((path / "header.json").read_text())
            content.pop("checksum")
            change(content["header"]["shards"])
            (path / "header.json").write_text(json.dumps({"checksum": _checksum(content), **content}))

        return apply

    refuse(forge(lambda shards: shards.reverse()), "cannot be the name of shard 0")
    refuse(forge(lambda shards: shards.pop()), "12 classes where 5 are needed")
    refuse(forge(lambda shards: shards.clear()), "no shards")
    refuse(forge(lambda shards: shards[0].update(name="../../x")), "cannot be the name")


# -- bad input ---------------------------------------------------------------------------------------------


def mixed_labels(y):
    """Labels that are strings in the first block and numbers in the others."""
    from dask import delayed

    parts = [y[:300].compute(), np.arange(300), np.arange(300)]
    return da.concatenate([da.from_delayed(delayed(part), (300,), object) for part in parts])


@pytest.mark.error
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda X, y: (X.compute(), y), "X is a ndarray; DaskExtremeClassifier takes Dask arrays"),
        (lambda X, y: (X.rechunk((100, 7)), y), r"3 blocks of columns; .* X.rechunk\(\{1: -1\}\)"),
        (
            lambda X, y: (X.rechunk((300, -1))[X[:, 0] > 0], y),
            "y has 9 blocks and X 3; .*compute_chunk_sizes",
        ),
        (lambda X, y: (X, y[:800]), "y has 800 values, but X has 900 rows"),
        (lambda X, y: (X, mixed_labels(y)), "strings in block 0 and numbers in block 1; .* y.astype"),
        (lambda X, y: (da.where(X > 1.5, np.nan, X), y), r"block \d of X and y: X\[\d+, \d+\] is NaN"),
        (lambda X, y: (X, None), "y is None"),
        (lambda X, y: (X, da.full(900, "a", chunks=300)), "y has one class, 'a'"),
        (lambda X, y: ("/nowhere", None), "'/nowhere', which is no folder"),
    ],
)
def test_bad_input_is_named(client, problem, change, sentence) -> None:
    X, labels = problem
    given = change(da.from_array(X, chunks=(300, -1)), da.from_array(labels.astype(object), chunks=100))
    with pytest.raises((TypeError, ValueError), match=sentence) as caught:
        DaskExtremeClassifier(client, **settings()).fit(*given)
    assert "\n" not in str(caught.value)


@pytest.mark.error
@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        (
            {"solver": "minibatch_softmax"},
            "compares the scores of classes with one another.*'negative_sampling'",
        ),
        ({"solver": "sparse_softmax", "n_epochs": 2}, "n_epochs is 2; on a cluster"),
        ({"validation_fraction": 0.1}, "validation_fraction is 0.1; DaskExtremeClassifier cannot use it"),
        ({"rows": "all"}, "rows is 'all'"),
        ({"n_shards": 0}, "n_shards is 0"),
        ({"solver": NegativeSampling(learning_rate=-1.0)}, "learning_rate"),
    ],
)
def test_bad_parameters_are_named(client, problem, parameters, sentence) -> None:
    X, labels = problem
    with pytest.raises(ValueError, match=sentence):
        DaskExtremeClassifier(client, **parameters).fit(da.from_array(X), da.from_array(labels))
    with pytest.raises(TypeError, match="no parameter 'colour'"):
        DaskExtremeClassifier(colour="red")


@pytest.mark.error
def test_no_client_and_no_workers() -> None:
    class Lonely:
        asynchronous = False
        scheduler = type("Scheduler", (), {"address": "tcp://10.0.0.1:8786"})

        def nthreads(self):
            return {}

    with pytest.raises(ValueError, match="has no workers; start some"):
        DaskExtremeClassifier(Lonely()).fit(None, None)
    if not distributed.client._get_global_client():  # tests before this one may have left theirs open
        with pytest.raises(ValueError, match="there is no Dask client"):
            DaskExtremeClassifier().fit(None, None)


@pytest.mark.error
def test_missing_extra_names_the_command(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ImportError, match=r"pip install 'extremax\[dask\]'"):
        DaskExtremeClassifier().fit(None, None)
