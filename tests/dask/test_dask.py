"""Estimators on Dask workers: the models of one machine, whatever happens to a worker."""

from __future__ import annotations

import copy
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from extremax import ExtremeClassifier, TextClassifier, load_model
from extremax.errors import NotEnoughMemoryError
from planted import around_means, short_texts
from same_models import assert_same_model

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
bag = pytest.importorskip("dask.bag")
distributed = pytest.importorskip("distributed")
from extremax.dask import DaskExtremeClassifier, DaskTextClassifier, executor  # noqa: E402 (they need Dask)
from extremax.dask.classifier import _require_room  # noqa: E402
from extremax.dask.inputs import list_files  # noqa: E402
from extremax.dask.prediction import SavedModelAt, predict_block  # noqa: E402

N_ROWS, N_FEATURES, N_CLASSES = 900, 12, 40


@pytest.fixture(
    scope="module", params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["threads", "processes"]
)
def cluster(request):
    """Two workers; where they are processes, their start takes seconds: all tests share them."""
    with start_cluster(2, processes=request.param) as found:
        yield found


def start_cluster(n_workers, processes):
    if processes:  # on a busy machine they take long to start, and Dask gives up what does not answer
        dask.config.set({f"distributed.comm.timeouts.{name}": "600 s" for name in ("connect", "tcp")})
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
    return X, np.array([f"class {i}" for i in range(N_CLASSES)])[y]


@pytest.fixture(scope="module")
def fitted(client, problem):
    """A model of the dense default on both sides, with weights."""
    X, labels = problem
    weight = np.random.default_rng(0).uniform(0.5, 2.0, N_ROWS)
    local = dense(ExtremeClassifier).fit(X, labels, weight)
    clf = dense(DaskExtremeClassifier, client=client)
    clf.fit(
        da.from_array(X, chunks=(211, N_FEATURES)),
        da.from_array(labels, chunks=150),
        da.from_array(weight, chunks=900),
    )
    return clf, local


def dense(kind, **more):
    """The default of many dense rows, on few."""
    return kind("candidate_softmax", random_state=3, **more)


def as_bag(values, n_parts=3):
    return bag.from_sequence(values, npartitions=n_parts)


# -- the model of one machine


@pytest.mark.invariance
def test_two_workers_make_the_dense_model_of_one_machine(fitted, cluster) -> None:
    assert_same_model(*fitted)
    named = {name for name in cluster.scheduler.task_prefixes if name.startswith("extremax-")}
    assert {"extremax-fit", "extremax-proposals", "extremax-training", "extremax-count-bytes"} <= named


@pytest.mark.invariance
def test_default_with_rows_to_validate_on(client, problem) -> None:
    """What `auto` takes for few rows; early stopping by rows of another collection; an indicator matrix."""
    X, labels = problem
    number = np.unique(labels, return_inverse=True)[1]
    y = np.stack([(number % 8 == i) | (number == i) for i in range(9)], axis=1).astype(np.int8)
    local = ExtremeClassifier(random_state=0, patience=1)
    local.fit(X[:600], y[:600], eval_set=(X[600:], y[600:]))
    clf = DaskExtremeClassifier(random_state=0, patience=1, client=client)
    blocks, indicator = da.from_array(X, chunks=(200, -1)), da.from_array(y, chunks=(100, -1))
    clf.fit(blocks[:600], indicator[:600], eval_set=(blocks[600:], indicator[600:]))
    assert "valid_log_likelihood" in clf.history_[-1]
    assert_same_model(clf, local)


@pytest.mark.invariance
@pytest.mark.parametrize("several", [False, True])
def test_two_workers_make_the_text_model_of_one_machine(client, several) -> None:
    texts, y = short_texts(1000, 60)
    labels = [[a, (a + 1) % 60] for a in y] if several else y
    options = {"class_texts": {3: "the third of all", 60: ["one more", "without a row"]}} if several else {}
    local = TextClassifier(ExtremeClassifier(random_state=0)).fit(texts, labels, **options)
    clf = DaskTextClassifier(ExtremeClassifier(random_state=0), client=client)
    clf.fit(as_bag(texts), as_bag(labels), **options)
    assert_same_model(clf, local)
    theirs = local.features_.state().arrays
    for name, array in clf.features_.state().arrays.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)
    assert clf.predict(as_bag(texts)).compute() == local.predict(texts).tolist()
    best = clf.predict_topk(as_bag(texts[:10]), k=2).compute()
    assert [pair[0].tolist() for pair in best] == local.predict_topk(texts[:10], k=2)[0].tolist()
    assert clf.classifier_.n_jobs is None
    assert clf.classifier_.memory_limit is None
    assert clf.explain(texts[0]).label == local.explain(texts[0]).label


@pytest.mark.invariance
def test_sparse_blocks_and_bags(client) -> None:
    rng = np.random.default_rng(2)
    y = rng.integers(N_CLASSES, size=1500)
    X = sparse.random_array((1500, 2500), density=0.01, rng=rng, format="lil", dtype=np.float32)
    X[np.arange(1500), y * 6 + rng.integers(3, size=1500)] = 1.0
    X = sparse.csr_array(X, dtype=np.float32)
    local = ExtremeClassifier("sparse_softmax", random_state=1).fit(X, y)
    cuts = [slice(a, b) for a, b in pairwise([0, 700, 703, 1200, 1500])]
    rows, labels = as_bag([X[cut] for cut in cuts]), as_bag([y[cut] for cut in cuts])
    clf = DaskExtremeClassifier("sparse_softmax", random_state=1, client=client).fit(rows, labels)
    assert_same_model(clf, local)
    assert (np.concatenate(clf.predict(rows).compute()) == local.predict(X)).all()


@pytest.mark.invariance
def test_files_and_frames(client, problem, tmp_path) -> None:
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    pytest.importorskip("pyarrow")
    X, labels = problem
    rows = tmp_path / "rows"
    rows.mkdir()
    np.savez(rows / "a.npz", X=X[:350], y=labels[:350])
    pd.DataFrame({"label": labels[350:], "vector": list(X[350:])}).to_parquet(rows / "b.parquet")
    local = ExtremeClassifier("nce", n_epochs=1, random_state=0).fit(X, labels)
    clf = DaskExtremeClassifier("nce", n_epochs=1, random_state=0, client=client)
    assert_same_model(clf.fit(rows), local)

    table = pd.DataFrame(X, columns=[f"f{i}" for i in range(N_FEATURES)]).assign(kind=labels)
    local = ExtremeClassifier("nce", n_epochs=1, random_state=0).fit(table, "kind")
    frame = dd.from_pandas(table, npartitions=3)
    assert_same_model(clf.fit(frame, "kind"), local)
    assert clf.feature_names_in_.tolist() == local.feature_names_in_.tolist()
    inputs = table.drop(columns="kind")
    assert (clf.predict(frame.drop(columns="kind")).compute() == local.predict(inputs)).all()

    texts, y = short_texts(300, 10)
    names = [[f"k{a}"] if i % 3 else [f"k{a}", "often"] for i, a in enumerate(y)]
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, cut in enumerate((slice(0, 130), slice(130, 300))):
        lines = [json.dumps({"text": t, "labels": n}) for t, n in zip(texts[cut], names[cut], strict=True)]
        (folder / f"{number}.jsonl").write_text("\n".join(lines))
    local = TextClassifier(ExtremeClassifier(random_state=0)).fit(texts, names)
    clf = DaskTextClassifier(ExtremeClassifier(random_state=0), client=client).fit(folder)
    assert_same_model(clf, local)


@pytest.mark.invariance
def test_block_after_block_is_partial_fit_of_one_machine(client, problem, capsys) -> None:
    X, labels = problem
    local = ExtremeClassifier(random_state=0)
    for i in range(0, N_ROWS, 300):
        local.partial_fit(X[i : i + 300], labels[i : i + 300], classes=None if i else np.unique(labels))
    clf = DaskExtremeClassifier(random_state=0, verbose=1, client=client)
    blocks, y = da.from_array(X, chunks=(300, -1)), da.from_array(labels, chunks=300)
    assert_same_model(clf.partial_fit(blocks, y), local)  # reads the labels of all blocks first
    assert capsys.readouterr().err.count("epoch ") == 3  # lines of a worker arrive, each once
    clf.partial_fit(blocks[:300], y[:300])
    assert_same_model(clf, local.partial_fit(X[:300], labels[:300]))

    texts, y = short_texts(400, 20)
    names = [[f"k{a}", "often"] for a in y]
    local = TextClassifier(ExtremeClassifier(random_state=0))
    for cut in (slice(0, 200), slice(200, 400)):
        local.partial_fit(texts[cut], names[cut], classes=sorted({name for each in names for name in each}))
    clf = DaskTextClassifier(ExtremeClassifier(random_state=0), client=client)
    assert_same_model(clf.partial_fit(as_bag(texts, 2), as_bag(names, 2)), local)


# -- what is done with it


@pytest.mark.invariance
def test_files_are_named_for_workers_in_other_folders(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").touch()
    assert list_files("a.csv") == list_files(".") == [str(tmp_path / "a.csv")]


def test_predictions_are_lazy_and_those_of_one_machine(fitted, problem, client) -> None:
    (clf, local), (X, labels) = fitted, problem
    blocks, y = da.from_array(X, chunks=(400, -1)), da.from_array(labels, chunks=400)
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
    some = blocks[blocks[:, 0] > np.quantile(X[:400, 0], 0.9)]  # rows whose number is not known
    assert (clf.predict(some).compute() == local.predict(some.compute())).all()
    none = blocks[blocks[:, 0] > X.max() + 1.0]
    assert clf.predict(none).compute().tolist() == []
    assert clf.predict_topk(none, k=2)[1].compute().shape == (0, 2)
    assert (clf.predict(X[:5]) == local.predict(X[:5])).all()  # rows in memory


def test_a_saved_model_is_opened_on_the_workers(fitted, problem, client, tmp_path) -> None:
    (clf, local), (X, _) = fitted, problem
    clf.save(tmp_path / "model")
    opened = load_model(tmp_path / "model", verify=True)
    assert type(opened) is ExtremeClassifier
    assert (opened.predict_proba(X) == local.predict_proba(X)).all()
    blocks = da.from_array(X, chunks=(400, -1))
    again = DaskExtremeClassifier.open(tmp_path / "model", client)
    assert isinstance(again._remote[1], SavedModelAt)
    assert (again.predict(blocks).compute() == local.predict(X)).all()
    with pytest.raises(ValueError, match="holds a ExtremeClassifier; DaskTextClassifier opens"):
        DaskTextClassifier.open(tmp_path / "model", client)


def test_copies_have_the_client_and_pickles_have_not(fitted, problem) -> None:
    clf, _ = fitted
    copied = clone(clf)
    assert copied.client is clf.client
    assert not copied.__sklearn_is_fitted__()
    again = pickle.loads(pickle.dumps(clf))
    assert again.client is None
    assert (again.predict(problem[0]) == clf.predict(problem[0])).all()
    assert copy.deepcopy(clf).get_params(deep=False) == {**clf.get_params(deep=False), "client": None}
    text = DaskTextClassifier(client=clf.client).set_params(classifier__n_epochs=3)
    assert clone(text).classifier.n_epochs == 3


def test_a_grid_search_of_rows_in_memory(client, problem) -> None:
    X, labels = problem
    grid = {"solver__learning_rate": [0.01, 0.3]}
    kind = {"n_epochs": 1, "random_state": 0}
    searches = [
        GridSearchCV(each.with_solver("nce", **kind), grid, cv=2).fit(X, labels)
        for each in (ExtremeClassifier, DaskExtremeClassifier)
    ]
    expected, found = (search.cv_results_["mean_test_score"] for search in searches)
    assert found.tolist() == expected.tolist()


def test_further_training_leaves_the_model_of_the_workers(fitted, problem, client) -> None:
    X, labels = problem
    blocks = da.from_array(X, chunks=(400, -1))
    clf = dense(DaskExtremeClassifier, client=client, n_epochs=1)
    clf.fit(blocks, da.from_array(labels, chunks=400))
    before = clf.predict_proba(blocks).compute()
    local = clf.to_local()
    assert type(local) is ExtremeClassifier
    local.partial_fit(X[::2], labels[::2])
    assert (clf.predict_proba(blocks).compute() == before).all()
    clf.partial_fit(X[::2], labels[::2])
    assert_same_model(clf, local)
    cuts = [X[:400], X[400:800], X[800:]]
    expected = np.concatenate([local.predict_proba(rows) for rows in cuts])
    assert (clf.predict_proba(blocks).compute() == expected).all()


def test_warnings_of_the_fit_arrive(client, problem) -> None:
    X, labels = problem
    given = [[label] if i else [] for i, label in enumerate(labels)]
    with pytest.warns(UserWarning, match="rows of y have no label"):
        DaskExtremeClassifier("nce", n_epochs=1, client=client).fit(as_bag([X]), as_bag(given, 1))


# -- faults


class Dying(distributed.WorkerPlugin):
    """Kills its worker when a task begins whose phase has a file in a folder, and removes the file."""

    def __init__(self, folder) -> None:
        self.folder = folder

    def transition(self, key, start, finish, **more) -> None:
        armed = [path for path in self.folder.iterdir() if str(key).startswith(f"extremax-{path.name}-")]
        if finish == "executing" and armed:
            armed[0].unlink()
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.invariance
def test_a_worker_killed_in_each_phase_changes_no_bit(tmp_path, monkeypatch) -> None:
    """Among the killed are the worker of the fit, and the one that has the only copy of rows in memory."""
    monkeypatch.setattr(executor, "_PATIENCE", 600.0)
    texts, y = short_texts(400, 20)
    local = TextClassifier(ExtremeClassifier(random_state=0)).fit(texts, y)
    with start_cluster(2, processes=True) as cluster, distributed.Client(cluster) as client:
        client.register_plugin(Dying(tmp_path))
        for phase in ("read-part", "count-bytes", "ngrams", "search", "linear", "fit", None):
            rows = (texts, y) if phase is None else (as_bag(texts), as_bag(y))
            client.wait_for_workers(2)
            (tmp_path / (phase or "fit")).touch()
            clf = DaskTextClassifier(ExtremeClassifier(random_state=0), client=client)
            assert_same_model(clf.fit(*rows), local)
            assert not list(tmp_path.iterdir()), phase


def fit_in_background(clf, X, y):
    """Start a fit whose first epoch ends when the event "go" is set; wait until it is there."""
    went, arrived = distributed.Event("go", clf.client), distributed.Event("arrived", clf.client)

    def hold(record) -> None:
        from distributed import Event

        Event("arrived").set()
        Event("go").wait()

    with ThreadPoolExecutor(1) as pool:
        fit = pool.submit(clf.fit, X, y, callbacks=[hold])
        assert arrived.wait(timeout=600)
        yield went
        yield fit.result()


@pytest.mark.slow
@pytest.mark.invariance
def test_a_worker_that_joins_takes_part(problem) -> None:
    X, labels = problem
    local = dense(ExtremeClassifier, n_epochs=2).fit(X, labels)
    with start_cluster(1, processes=False) as cluster, distributed.Client(cluster) as client:
        steps = fit_in_background(dense(DaskExtremeClassifier, n_epochs=2, client=client), X, labels)
        go = next(steps)
        assert "extremax-training" not in cluster.scheduler.task_prefixes  # alone, it asks no one
        cluster.scale(2)
        client.wait_for_workers(2)
        go.set()
        assert_same_model(next(steps), local)
        assert "extremax-training" in cluster.scheduler.task_prefixes


@pytest.mark.slow
@pytest.mark.invariance
def test_a_worker_that_leaves_is_not_missed(problem) -> None:
    X, labels = problem
    local = dense(ExtremeClassifier, n_epochs=2).fit(X, labels)
    with start_cluster(3, processes=False) as cluster, distributed.Client(cluster) as client:
        steps = fit_in_background(dense(DaskExtremeClassifier, n_epochs=2, client=client), X, labels)
        go = next(steps)
        others = [each for each in cluster.workers.values() if not each.state.long_running]
        assert len(others) == 2
        client.sync(others[0].close)
        go.set()
        assert_same_model(next(steps), local)


@pytest.mark.slow
@pytest.mark.invariance
def test_paused_workers_hold_nobody_up(problem, monkeypatch) -> None:
    monkeypatch.setattr(executor, "_LOOK_SECONDS", 0.2)
    X, labels = problem
    local = dense(ExtremeClassifier, n_epochs=2).fit(X, labels)
    with (
        dask.config.set({"distributed.worker.memory.pause": False}),  # or it would look, and go on
        start_cluster(2, processes=False) as cluster,
        distributed.Client(cluster) as client,
    ):
        steps = fit_in_background(dense(DaskExtremeClassifier, n_epochs=2, client=client), X, labels)
        go = next(steps)
        for worker in cluster.workers.values():
            worker.status = distributed.Status.paused
        go.set()
        assert_same_model(next(steps), local)


@pytest.mark.slow
@pytest.mark.error
def test_workers_that_are_all_paused_are_named(monkeypatch) -> None:
    monkeypatch.setattr(executor, "_PATIENCE", 0.5)
    with (
        dask.config.set({"distributed.worker.memory.pause": False}),
        start_cluster(1, processes=False) as cluster,
        distributed.Client(cluster) as client,
    ):
        next(iter(cluster.workers.values())).status = distributed.Status.paused
        with pytest.raises(RuntimeError, match="paused all its workers, which have no memory left, for 0"):
            DaskExtremeClassifier(client=client).fit(da.zeros((4, 2), chunks=2), da.arange(4, chunks=2))


def _begin_nothing():
    return lambda i: [i]


def map_for_ever() -> None:
    """Run a map as a fit does; tell when it has begun and when it has ended."""
    with distributed.worker_client() as client:
        worker = distributed.get_worker()
        mapped = executor.DaskExecutor(client, worker, worker.get_current_task())
        begun, ended = (distributed.Event(name, client) for name in ("begun", "ended"))
        try:
            while True:
                list(mapped.map(_begin_nothing, (), 4, lambda i: (i,), 1))
                begun.set()
        finally:
            ended.set()


@pytest.mark.slow
def test_a_fit_ends_with_the_client_that_wants_it() -> None:
    with start_cluster(2, processes=False) as cluster, distributed.Client(cluster) as client:
        task = client.submit(map_for_ever, pure=False)
        assert distributed.Event("begun", client).wait(timeout=600)
        task.release()
        assert distributed.Event("ended", client).wait(timeout=600)


@pytest.mark.slow
@pytest.mark.invariance
def test_a_client_that_connects_again_fits_again(problem) -> None:
    X, labels = problem
    local = dense(ExtremeClassifier, n_epochs=2).fit(X, labels)
    with start_cluster(2, processes=True) as cluster, distributed.Client(cluster) as client:
        steps = fit_in_background(dense(DaskExtremeClassifier, n_epochs=2, client=client), X, labels)
        go = next(steps)
        client.loop.add_callback(client.scheduler_comm.comm.abort)
        with distributed.Client(cluster, set_as_default=False) as other:
            distributed.Event("go", other).set()
            assert_same_model(next(steps), local)
        assert go


@pytest.mark.slow
@pytest.mark.error
def test_a_scheduler_that_dies_ends_the_fit(problem, tmp_path) -> None:
    X, labels = problem
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard"]
    where = tmp_path / "scheduler.json"
    scheduler = subprocess.Popen([*command, "--scheduler-file", str(where)], stderr=subprocess.DEVNULL)
    command = [sys.executable, "-m", "distributed.cli.dask_worker", "--no-dashboard"]
    worker = subprocess.Popen([*command, "--scheduler-file", str(where)], stderr=subprocess.DEVNULL)
    try:
        while not where.exists():
            assert scheduler.poll() is None
        with distributed.Client(scheduler_file=str(where), timeout=5) as client:
            client.wait_for_workers(1)
            steps = fit_in_background(dense(DaskExtremeClassifier, client=client), X, labels)
            next(steps)
            scheduler.kill()
            with pytest.raises(RuntimeError, match="lost the Dask scheduler, or rows in memory of a worker"):
                next(steps)
    finally:
        for process in (scheduler, worker):
            process.kill()
            process.wait()


@pytest.mark.error
def test_a_cluster_that_is_gone_ends_in_a_sentence(monkeypatch) -> None:
    monkeypatch.setattr(executor, "_PATIENCE", 0.5)
    with start_cluster(1, processes=False) as cluster, distributed.Client(cluster) as client:
        lost = client.submit(distributed.Event("never").wait, key="lost")
        lost.cancel()
        with pytest.raises(RuntimeError, match=r"fit lost the Dask scheduler, or .*; connect again"):
            executor.result_of(client, lost, "fit")
        cluster.scale(0)
        waits = client.submit(abs, -1, key="waits")
        with pytest.raises(RuntimeError, match="had no worker for 0 seconds; start some, and call fit again"):
            executor.result_of(client, waits, "fit")
        assert waits.cancelled()


@pytest.mark.error
def test_what_does_not_fit_is_refused_with_numbers(client, problem) -> None:
    class Small:
        def scheduler_info(self, n_workers):
            # Dask pauses a worker at four fifths; of what it manages, as much again is on disk
            taken = {"memory": 5 << 20, "managed_bytes": 8 << 20, "spilled_bytes": {"memory": 4 << 20}}
            return {"workers": {a: {"memory_limit": n << 20, "metrics": taken} for a, n in limits.items()}}

    limits = {"tcp://a": 4, "tcp://b": 5}
    assert _require_room(Small(), 1 << 20, "fit") == "tcp://b"
    sentence = (
        r"fit, on one worker, needs 4.0 MiB \(rows 2.0 MiB, .* but 3.0 MiB are available. Ways out: a wor"
    )
    with pytest.raises(NotEnoughMemoryError, match=sentence):
        _require_room(Small(), 2 << 20, "fit")
    X, labels = problem
    clf = dense(DaskExtremeClassifier, client=client, memory_limit=1000)
    with pytest.raises(NotEnoughMemoryError, match="1000 B are available"):
        clf.fit(X, labels)
    assert not clf.__sklearn_is_fitted__()


@pytest.mark.error
def test_workers_do_not_mix_two_saves_of_a_folder(problem, tmp_path) -> None:
    from extremax.storage.folder import folder_checksum

    (X, labels), path = problem, tmp_path / "model"
    local = ExtremeClassifier("nce", n_epochs=1, random_state=0).fit(X, labels)
    local.save(path)
    model = SavedModelAt(path, folder_checksum(path))
    assert (predict_block(X, model, "predict", {}) == local.predict(X)).all()
    late = SavedModelAt(path, model.checksum)  # on a worker that has not opened it yet
    other = ExtremeClassifier("nce", n_epochs=1, random_state=8).fit(X, labels)
    other.save(path)
    sys.modules[SavedModelAt.__module__]._open.cache_clear()
    with pytest.raises(ValueError, match="was saved again; open it anew"):
        predict_block(X, late, "predict", {})
    renewed = SavedModelAt(path, folder_checksum(path))
    assert (predict_block(X, renewed, "predict_proba", {}) == other.predict_proba(X)).all()


# -- bad input


def mixed_labels(y):
    """Labels that are strings in the first block and numbers in the others."""
    from dask import delayed

    parts = [y[:300].compute(), np.arange(300), np.arange(300)]
    return da.concatenate([da.from_delayed(delayed(part), (300,), object) for part in parts])


@pytest.mark.error
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda X, y: (X.compute(), y), "X is a ndarray, and y or sample_weight a Dask collection"),
        (lambda X, y: (X, y.compute()), "y is a ndarray, and X a Dask collection"),
        (lambda X, y: (X.rechunk((100, 7)), y), r"2 blocks of columns; .* X.rechunk\(\{1: -1\}\)"),
        (
            lambda X, y: (X.rechunk((300, -1))[X[:, 0] > 0], y),
            "y has 9 blocks and X 3; .*compute_chunk_sizes",
        ),
        (lambda X, y: (X, y[:800]), "y has 800 values, but X has 900 rows"),
        (lambda X, y: (X, mixed_labels(y)), "strings in one block and numbers in another; .* y.astype"),
        (lambda X, y: (da.where(X > 1.5, np.nan, X), y), r"X\[\d+, \d+\] is NaN"),
        (lambda X, y: (X, None), "y to be passed|y is None"),
        (lambda X, y: (X, da.full(900, "a", chunks=300)), "y has one class, 'a'"),
        (lambda X, y: ("/nowhere", None), "'/nowhere', which is no folder"),
        (
            lambda X, y: (as_bag([X[:5].compute(), X[:5, 1:].compute()], 2), as_bag([1, 2])),
            "3 and X 2|columns",
        ),
    ],
)
def test_bad_input_is_named(client, problem, change, sentence) -> None:
    X, labels = problem
    given = change(da.from_array(X, chunks=(300, -1)), da.from_array(labels.astype(object), chunks=100))
    with pytest.raises((TypeError, ValueError), match=sentence) as caught:
        DaskExtremeClassifier(client=client, random_state=0).fit(*given)
    assert "\n" not in str(caught.value)


@pytest.mark.error
def test_bad_parameters_are_named(client, fitted) -> None:
    rows = da.zeros((4, 3), chunks=2)
    with pytest.raises(ValueError, match="n_epochs"):
        DaskExtremeClassifier(n_epochs=-1, client=client).fit(rows, da.arange(4, chunks=2))
    with pytest.raises(TypeError, match="colour"):
        DaskExtremeClassifier(colour="red")
    with pytest.raises(ValueError, match="X has 3 features, but DaskExtremeClassifier is expecting 12"):
        fitted[0].predict(rows)
    with pytest.raises(ValueError, match="k is 41; predict_topk needs a whole number from 1 to 40"):
        fitted[0].predict_topk(da.zeros((4, N_FEATURES)), k=41)


@pytest.mark.error
def test_no_client_and_no_workers() -> None:
    class Lonely:
        asynchronous, status = False, "running"
        scheduler = type("Scheduler", (), {"address": "tcp://10.0.0.1:8786"})

        def nthreads(self):
            return {}

    X, y = np.eye(4), np.arange(4) % 2
    with pytest.raises(ValueError, match="has no workers; start some"):
        DaskExtremeClassifier(client=Lonely()).fit(X, y)
    closed = type("Closed", (Lonely,), {"status": "closed"})
    with pytest.raises(ValueError, match="the Dask client is closed; make another"):
        DaskExtremeClassifier(client=closed()).fit(X, y)
    if not distributed.client._get_global_client():  # tests before this one may have left theirs open
        with pytest.raises(ValueError, match="there is no Dask client"):
            DaskExtremeClassifier().fit(X, y)


@pytest.mark.error
def test_missing_extra_names_the_command(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ImportError, match=r"pip install 'extremax\[dask\]'"):
        DaskExtremeClassifier().fit(np.eye(4), np.arange(4) % 2)
