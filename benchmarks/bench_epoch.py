"""One epoch of the paper's method against a memory copy of the bytes that it has to move.

    python benchmarks/bench_epoch.py            # N = 490,449, C = 213,874, K = 512, k = 16, one negative

Per row, x is read once, and for the positive and each negative the weights and the Adagrad sums are read
and written.  Epochs and copies alternate, and ratios are medians of the ratios of neighbours: what other
programs take of the machine then slows down both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from extremax import ExtremeClassifier
from extremax.data import SyntheticData, planted_hierarchy
from timing import MemoryCopy, count, machine, make_parser, write_rows

NAME = "bench_epoch"


def time_epochs(
    data: SyntheticData, parameters: dict[str, Any], copy: MemoryCopy, bytes_moved: float, repeats: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the seconds of some epochs, and of a memory copy after each; the first epoch is left out."""
    copies: list[float] = []

    def copy_memory(record: dict[str, Any]) -> None:  # the clock of the history stands still in callbacks
        copies.append(copy.seconds(bytes_moved, parameters["n_jobs"]))

    clf = ExtremeClassifier.with_solver(
        "negative_sampling", n_epochs=1 + repeats, random_state=0, **parameters
    )
    clf.fit(data.X, data.y, classes=np.arange(data.n_classes), callbacks=[copy_memory])
    return np.diff([record["seconds"] for record in clf.history_])[1:], np.array(copies[1:])


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=int, default=490_449)
    parser.add_argument("--classes", type=int, default=213_874)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--negatives", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--batch-size", type=int, default=None)
    args = parser.parse_args(argv)
    if args.tiny:
        args.rows, args.classes, args.features, args.repeats = 2000, 100, 16, 2
    print(machine())
    sizes = f"N = {args.rows:,}  C = {args.classes:,}  K = {args.features}"
    print(f"{sizes}  k = 16  negatives = {args.negatives}")

    data = planted_hierarchy(args.rows, args.classes, args.features, seed=0)
    row_bytes, n_pairs = 4 * args.features, 1 + args.negatives
    moved = {
        "adagrad": args.rows * row_bytes * (1 + 4 * n_pairs),
        "adagrad_row": args.rows * row_bytes * (1 + 2 * n_pairs),
    }
    copy = MemoryCopy(tiny=args.tiny)
    copy.seconds(1e9 if not args.tiny else 1e7, 2)
    medians: dict[tuple[str, int], float] = {}
    for optimizer, bytes_moved in moved.items():
        for threads in args.threads:
            parameters = {
                "optimizer": optimizer,
                "n_negatives": args.negatives,
                "score_penalty": 1e-3,
                "batch_size": args.batch_size,
                "tree_components": min(16, args.features),
                "tree_regularization": 0.1,
                "n_jobs": threads,
            }
            epochs, copies = time_epochs(data, parameters, copy, moved["adagrad"], args.repeats)
            medians[optimizer, threads] = seconds = float(np.median(epochs))
            row = {
                "case": f"{optimizer}, {count(threads, 'thread')}",
                "seconds": seconds,
                "rows/s": args.rows / seconds,
                "GB/s": bytes_moved / seconds / 1e9,
                f"times a copy of {moved['adagrad'] / 1e9:.3g} GB": float(np.median(epochs / copies)),
                "best epoch / best copy": float(epochs.min() / copies.min()),
            }
            write_rows(NAME, [row])
    for threads in args.threads:
        ratio = medians["adagrad_row", threads] / medians["adagrad", threads]
        write_rows(NAME, [{"case": f"adagrad_row / adagrad, {count(threads, 'thread')}", "ratio": ratio}])
    if {1, 2} <= set(args.threads):
        speedups = {optimizer: medians[optimizer, 1] / medians[optimizer, 2] for optimizer in moved}
        write_rows(NAME, [{"case": "one thread / two threads", **speedups}])


if __name__ == "__main__":
    main()
