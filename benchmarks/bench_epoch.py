"""One epoch of the paper's method against a memory copy of the bytes it has to move.

    python benchmarks/bench_epoch.py            # shape S: N = 490,449, C = 213,874, K = 512, k = 16, one negative

Per row: x read once, and for the positive and each negative the weights and the Adagrad sums read and
written. Epoch and copy are timed in turns, and the median of the ratios is printed: the machine's mood is in
both."""

from __future__ import annotations

import argparse

import numpy as np

from extremax.data.synthetic import planted_hierarchy
from extremax.fitting import Options, prepare, training_set
from extremax.linear import train_epoch
from extremax.runtime.progress import ProgressLine
from timing import MemoryCopy, machine, stopwatch


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=490_449)
    parser.add_argument("--classes", type=int, default=213_874)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--negatives", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--batch-size", type=int, default=None)
    args = parser.parse_args()
    print(machine())
    print(
        f"N = {args.rows:,}  C = {args.classes:,}  K = {args.features}  k = 16  negatives = {args.negatives}"
    )

    data = planted_hierarchy(args.rows, args.classes, args.features, seed=0)
    X, y = data.X, data.y
    pairs = 1 + args.negatives
    row_bytes = 4 * args.features
    moved = {
        "adagrad": args.rows * row_bytes * (1 + 4 * pairs),
        "adagrad_row": args.rows * row_bytes * (1 + 2 * pairs),
    }
    copy = MemoryCopy()
    copy.seconds(1e9, 2)
    median_seconds: dict[tuple[str, int], float] = {}
    noise = None
    for optimizer in ("adagrad", "adagrad_row"):
        for threads in args.threads:
            options = Options(
                objective="negative_sampling", noise=noise or "adversarial", optimizer=optimizer, n_negatives=args.negatives,
                score_penalty=1e-3, prior_variance=None, batch_size=args.batch_size, n_components=16, regularization=0.1,
                noise_exponent=1.0,
                tree_share=0.9, n_threads=threads,
            )  # fmt: skip
            prepared = prepare(X, y, None, args.classes, options, 0, ProgressLine(0))
            if noise is None:  # one tree serves all runs
                noise, projection = prepared.model.noise, prepared.model.projection
            prepared.model.projection = projection
            rows, epoch_options = training_set(prepared.model, X, y, None, options, 0)

            def epoch(model=prepared.model, rows=rows, epoch_options=epoch_options) -> None:  # type: ignore[no-untyped-def]
                train_epoch(model.linear, rows, epoch_options, learning_rate=0.1)

            epoch()  # compiles, and touches every page
            copies, epochs = [], []
            for _ in range(args.repeats):
                copies.append(copy.seconds(moved["adagrad"], threads))
                epochs.append(stopwatch(epoch))
            seconds = float(np.median(epochs))
            median_seconds[optimizer, threads] = seconds
            ratio = float(np.median(np.array(epochs) / np.array(copies)))
            print(
                f"{optimizer:12s} {threads} thread{'s' if threads > 1 else ' '}  {seconds:6.3f} s"
                f"  {args.rows / seconds:12,.0f} samples/s"
                f"  {moved[optimizer] / seconds / 1e9:5.1f} GB/s  {ratio:5.2f} x memcpy of {moved['adagrad'] / 1e9:.2f} GB"
                f" (best epoch / best copy {min(epochs) / min(copies):.2f})"
            )
    for threads in args.threads:
        share = median_seconds["adagrad_row", threads] / median_seconds["adagrad", threads]
        print(f"row-wise / per-weight Adagrad, {threads} thread(s): {share:.2f}")
    if {1, 2} <= set(args.threads):
        for optimizer in moved:
            print(
                f"{optimizer}: two threads are {median_seconds[optimizer, 1] / median_seconds[optimizer, 2]:.2f}"
                " times as fast as one"
            )


if __name__ == "__main__":
    main()
