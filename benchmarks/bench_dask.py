"""Default fits on a Dask cluster of this machine against fits in one process: bits, seconds, bytes moved.

    python benchmarks/bench_dask.py                    # icd10cm texts and eurlex57k, 1 and 2 workers
    python benchmarks/bench_dask.py --data npm-owner-124k:text --workers 2 --memory 2.5GB

A set with ":text" is fitted as texts, others as dense features.  Rows are in memory of the client on both
sides, and kernels are loaded by a fit on a few rows.  Processor seconds of the cluster are those of client,
scheduler and workers together; its start, imports included, is not among them.  "moved" are the bytes that
workers sent to one another, in all and by phase, "peak" is the largest memory of any worker, and "overhead"
is the ratio of processor seconds to those of one process with one thread.  "at rest" are the seconds that the
same processes take in the same time without any work: on a machine that is busy with other things, they are
most of the overhead.
"""

from __future__ import annotations

import logging
import os
import resource
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from extremax import ExtremeClassifier, TextClassifier
from extremax.dask import DaskExtremeClassifier, DaskTextClassifier
from timing import count, machine, make_parser, write_rows

NAME = "bench_dask"
_WARM_ROWS, _REST_SECONDS = 4000, 4.0
_KINDS = {True: (TextClassifier, DaskTextClassifier), False: (ExtremeClassifier, DaskExtremeClassifier)}


def load(name: str, tiny: bool, n_rows: int | None) -> tuple[Any, Any, bool]:
    """Return training rows or texts, their labels, and whether they are texts; of `n_rows` at random."""
    X, y, is_text = load_all(name, tiny)
    if n_rows is not None and n_rows < len(X):
        some = np.sort(np.random.default_rng(0).permutation(len(X))[:n_rows])
        X, y = [X[i] for i in some] if is_text else X[some], y[some]
    return X, y, is_text


def load_all(name: str, tiny: bool) -> tuple[Any, Any, bool]:
    import benchmark_data

    name, _, kind = name.partition(":")
    if kind == "text":
        texts = benchmark_data.load_texts("planted-texts" if tiny else name)
        y = texts.y["train"]
        return list(texts.texts["train"]), y if sp.issparse(y) else np.asarray(y), True
    data = benchmark_data.load("planted-many" if tiny else name)
    return np.ascontiguousarray(data.X_train, np.float32), np.asarray(data.y_train), False


def processor_seconds() -> float:
    """Return the processor seconds of this process so far."""
    return time.process_time()


def cluster_seconds(client: Any) -> float:
    """Return the processor seconds of client, scheduler and workers so far."""
    return processor_seconds() + sum(client.run(processor_seconds).values())


def bytes_sent(dask_worker: Any) -> dict[str, int]:
    """Return the bytes that a worker has sent to others, by the first word of the key."""
    sent: dict[str, int] = {}
    for transfer in list(dask_worker.transfer_outgoing_log):
        for key, n_bytes in transfer["keys"].items():
            phase = str(key).removeprefix("extremax-").split("-", 1)[0]
            sent[phase] = sent.get(phase, 0) + n_bytes
    return sent


def total_sent(client: Any) -> Counter[str]:
    """Return the bytes that all workers have sent, by phase."""
    return sum((Counter(sent) for sent in client.run(bytes_sent).values()), Counter())


def peak_memory() -> int:
    """Return the largest memory of this process so far, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def same_bits(found: Any, local: Any) -> bool:
    """Whether two models have the same weights."""
    ours, theirs = (each.model_.weights.state().arrays for each in (found, local))
    return all(ours[name].tobytes() == theirs[name].tobytes() for name in theirs)


def make(kind: type[Any], n_jobs: int | None, **more: Any) -> Any:
    """Return a default estimator with a seed."""
    classifier = ExtremeClassifier(random_state=0, n_jobs=n_jobs)
    if issubclass(kind, TextClassifier):
        return kind(classifier, **more)
    return kind(**classifier.get_params(deep=False), **more)


def time_local(X: Any, y: Any, kind: type[Any]) -> tuple[Any, dict[str, Any]]:
    """Fit in this process on one thread; return the model and its seconds."""
    make(kind, 1).fit(X[:_WARM_ROWS], y[:_WARM_ROWS])
    began, processor = time.perf_counter(), processor_seconds()
    local = make(kind, 1).fit(X, y)
    return local, {
        "wall s": time.perf_counter() - began,
        "processor s": processor_seconds() - processor,
    }


def time_cluster(
    X: Any, y: Any, n_workers: int, kind: type[Any], local: Any, processes: bool, memory: str
) -> dict[str, Any]:
    """Fit on a cluster; return seconds, bytes, and whether the model is that of one process."""
    from distributed import Client, LocalCluster

    silent = {"dashboard_address": ":0", "silence_logs": logging.CRITICAL, "processes": processes}
    silent["memory_limit"] = memory
    with (
        LocalCluster(n_workers=n_workers, threads_per_worker=1, **silent) as cluster,
        Client(cluster) as client,
    ):
        make(kind, None, client=client).fit(X[:_WARM_ROWS], y[:_WARM_ROWS])
        rested = cluster_seconds(client)
        time.sleep(_REST_SECONDS)
        rest = (cluster_seconds(client) - rested) / _REST_SECONDS
        began, processor = time.perf_counter(), cluster_seconds(client)
        before = total_sent(client)
        clf = make(kind, None, client=client).fit(X, y)
        wall, processor = time.perf_counter() - began, cluster_seconds(client) - processor
        sent = total_sent(client) - before
        return {
            "wall s": wall,
            "processor s": processor,
            "at rest s": rest * wall,
            "moved MB": sum(sent.values()) / 1e6,
            "by phase": ", ".join(f"{phase} {n / 1e6:.0f}" for phase, n in sent.most_common()),
            "peak MB": max(client.run(peak_memory).values()) / 1e6,
            "same bits": str(same_bits(clf, local)),
        }


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", nargs="*", default=["icd10cm:text", "eurlex57k"])
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rows", type=int, help="so many random training rows")
    parser.add_argument("--memory", default="auto", help="memory limit of a worker")
    args = parser.parse_args(argv)
    print(machine())
    for name in args.data:
        X, y, is_text = load(name, args.tiny, args.rows)
        alone, on_dask = _KINDS[is_text]
        local, figures = time_local(X, y, alone)
        load_before = {"load": f"{os.getloadavg()[0]:.1f}"}
        write_rows(NAME, [{"case": f"{name}, one process of 1 thread", **figures, **load_before}])
        for n_workers in args.workers[:1] if args.tiny else args.workers:
            found = time_cluster(X, y, n_workers, on_dask, local, not args.tiny, args.memory)
            ratio = {"overhead": found["processor s"] / figures["processor s"]}
            case = f"{name}, {count(n_workers, 'worker')} of 1 thread"
            load_before = {"load": f"{os.getloadavg()[0]:.1f}"}
            write_rows(NAME, [{"case": case, **found, **ratio, **load_before}])


if __name__ == "__main__":
    main()
