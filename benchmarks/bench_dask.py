"""A fit on a Dask cluster of this machine against a fit in one process: same bits, seconds of both.

    python benchmarks/bench_dask.py                      # npm-owner-124k, 2 workers of 1 thread, 20 epochs
    python benchmarks/bench_dask.py --workers 1 2 3 --epochs 5 --rows route
    python benchmarks/bench_dask.py --part sparse        # the start of sparse weights alone

"dense": the paper's negative sampling on dense features.  "sparse": the generative start on hashed n-grams.
Both sides read the features into memory before the clock starts, on the workers as Dask blocks.  Processor
seconds of the cluster are those of client, scheduler and workers together.  One fit of each side is run first
on a few rows: kernels are loaded then.  "start s" is what comes before the first epoch; "cluster" is the
start of scheduler and workers, their imports included.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from extremax import ExtremeClassifier
from extremax.dask import DaskExtremeClassifier
from timing import count, machine, make_parser, write_rows

NAME = "bench_dask"
_WARM_ROWS = 4000


def load_dense(name: str, tiny: bool) -> tuple[Any, Any]:
    """Return dense training rows and labels."""
    import benchmark_data

    data = benchmark_data.load("planted-many" if tiny else name)
    return np.ascontiguousarray(data.X_train, np.float32), np.asarray(data.y_train)


def load_sparse(name: str, tiny: bool) -> tuple[Any, Any]:
    """Return hashed n-grams of training texts, and labels; cached, because hashing takes minutes."""
    import benchmark_data
    from extremax.features.ngrams import NgramFeatures

    if tiny:
        data = benchmark_data.load_texts("planted-texts")
        return NgramFeatures().fit_transform(data.texts["train"]), np.asarray(data.y["train"])
    folder = benchmark_data.cache_folder() / f"{name}-ngrams"
    if not (folder / "y.npy").exists():
        data = benchmark_data.load_texts(name)
        folder.mkdir(parents=True, exist_ok=True)
        X = NgramFeatures().fit_transform(data.texts["train"])
        sp.save_npz(folder / "X.npz", sp.csr_matrix(X), compressed=False)
        np.save(folder / "y.npy", np.asarray(data.y["train"]))
    return sp.csr_array(sp.load_npz(folder / "X.npz")), np.load(folder / "y.npy")


def processor_seconds() -> float:
    """Return the processor seconds of this process so far."""
    return time.process_time()


def cluster_seconds(client: Any) -> float:
    """Return the processor seconds of client, scheduler and workers so far."""
    return processor_seconds() + sum(client.run(processor_seconds).values())


def load_average() -> str:
    """Return how many processes wanted a processor in the last minute."""
    return f"{os.getloadavg()[0]:.1f}"


def put_on_workers(client: Any, X: Any, y: Any, n_blocks: int) -> tuple[Any, Any]:
    """Return X and y as Dask arrays whose blocks are in the memory of the workers."""
    import dask.array as da
    from distributed import wait

    size = -(-X.shape[0] // n_blocks)
    workers = sorted(client.nthreads())
    parts, labels = [], []
    for i in range(n_blocks):
        cut = slice(i * size, (i + 1) * size)
        placed = client.scatter([X[cut], y[cut]], workers=[workers[i % len(workers)]])
        rows = min((i + 1) * size, X.shape[0]) - i * size
        meta = X[:0] if sp.issparse(X) else np.empty((0, 0), np.float32)
        parts.append(da.from_delayed(placed[0], (rows, X.shape[1]), np.float32, meta=meta))
        labels.append(da.from_delayed(placed[1], (rows,), y.dtype))
        wait(placed)
    return da.concatenate(parts), da.concatenate(labels)


def same_bits(found: Any, local: Any) -> bool:
    """Whether two models have the same weights."""
    ours, theirs = (each.model_.weights.state().arrays for each in (found, local))
    return all(ours[name].tobytes() == theirs[name].tobytes() for name in theirs)


def time_cluster(
    X: Any, y: Any, n_workers: int, options: dict[str, Any], check: Callable[[Any], bool], processes: bool
) -> dict[str, Any]:
    """Fit on a cluster; return seconds, and whether the model is that of one process."""
    from distributed import Client, LocalCluster

    silent = {"dashboard_address": ":0", "silence_logs": logging.CRITICAL, "processes": processes}
    began, processor = time.perf_counter(), processor_seconds()
    with (
        LocalCluster(n_workers=n_workers, threads_per_worker=1, **silent) as cluster,
        Client(cluster) as client,
    ):
        cluster_wall = time.perf_counter() - began
        cluster_processor = cluster_seconds(client) - processor
        warm_X, warm_y = put_on_workers(client, X[:_WARM_ROWS], y[:_WARM_ROWS], 2 * n_workers)
        DaskExtremeClassifier(client, **{**options, "n_epochs": min(1, options["n_epochs"])}).fit(
            warm_X, warm_y
        )
        blocks, labels = put_on_workers(client, X, y, 4 * n_workers)
        began, processor = time.perf_counter(), cluster_seconds(client)
        clf = DaskExtremeClassifier(client, **options).fit(blocks, labels)
        wall, processor = time.perf_counter() - began, cluster_seconds(client) - processor
        same = str(check(clf.to_local()))
        start = clf.history_[0]["seconds"]
    of_cluster = {"cluster wall s": cluster_wall, "cluster processor s": cluster_processor}
    return {"wall s": wall, "processor s": processor, "start s": start, **of_cluster, "same bits": same}


def time_local(X: Any, y: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Fit in this process; return the model and its seconds."""
    given = {name: value for name, value in options.items() if name != "rows"}
    ExtremeClassifier.with_solver(**{**given, "n_epochs": min(1, given["n_epochs"])}).fit(
        X[:_WARM_ROWS], y[:_WARM_ROWS]
    )
    began, processor = time.perf_counter(), processor_seconds()
    local = ExtremeClassifier.with_solver(n_jobs=2, **given).fit(X, y)
    figures = {"wall s": time.perf_counter() - began, "processor s": processor_seconds() - processor}
    return local, {**figures, "start s": local.history_[0]["seconds"]}


def compare(
    part: str, X: Any, y: Any, options: dict[str, Any], workers: Sequence[int], *, tiny: bool
) -> None:
    """Print one line for the fit in one process and one for each cluster."""
    before = load_average()
    local, alone = time_local(X, y, options)
    write_rows(NAME, [{"case": f"{part}, one process of 2 threads", **alone, "load before": before}])
    for n_workers in workers:
        before = load_average()
        found = time_cluster(X, y, n_workers, options, lambda model: same_bits(model, local), not tiny)
        ratios = {}
        for name in ("wall", "processor"):
            ratios[f"{name} ratio"] = found[f"{name} s"] / alone[f"{name} s"]
            with_cluster = found[f"{name} s"] + found[f"cluster {name} s"]
            ratios[f"{name} ratio with cluster"] = with_cluster / alone[f"{name} s"]
        case = f"{part}, {count(n_workers, 'worker')} of 1 thread, rows={options.get('rows', 'auto')}"
        write_rows(NAME, [{"case": case, **found, **ratios, "load before": before}])


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", default="npm-owner-124k")
    parser.add_argument("--part", choices=("dense", "sparse"), nargs="*", default=["dense", "sparse"])
    parser.add_argument("--workers", type=int, nargs="*", default=[2])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--noise", default="tree")
    parser.add_argument("--rows", default="auto")
    args = parser.parse_args(argv)
    if args.tiny:
        args.epochs, args.workers = 1, args.workers[:1]
    print(machine())
    if "dense" in args.part:
        X, y = load_dense(args.data, args.tiny)
        options = {"solver": "negative_sampling", "noise": args.noise, "n_epochs": args.epochs}
        compare(
            "dense", X, y, {**options, "rows": args.rows, "random_state": 0}, args.workers, tiny=args.tiny
        )
    if "sparse" in args.part:
        X, y = load_sparse(args.data, args.tiny)
        options = {"solver": "sparse_softmax", "n_epochs": 0, "random_state": 0}
        compare("sparse", X, y, options, args.workers, tiny=args.tiny)


if __name__ == "__main__":
    main()
