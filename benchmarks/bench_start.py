"""Processor seconds from a new process to the first answer: import, fit and predict.

    python benchmarks/bench_start.py                 # small problems, with an empty and a filled cache
    python benchmarks/bench_start.py --middling      # tables as people bring them, with a filled cache

Small: 3,000 texts in 300 classes for `TextClassifier`, 3,000 dense rows in 100 classes for
`ExtremeClassifier`, with an empty and with a filled cache of compiled kernels, the seconds that each module
compiles, and the kernels that compile longest.  Middling: the 3,000 texts, 16,000 titles of a library with
one of 1,381 subjects, 57,651 descriptions of Debian's packages with one of 58 sections, and 27,034 of them
with their debtags, all with defaults.  ``--tiny`` fits the dense rows with the cache that there is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba.core import event

from timing import machine, make_parser, write_rows

NAME = "bench_start"
LONGEST = 15  # kernels that are named
_TITLES_OF_A_SUBJECT = 20  # at most; 16,000 in all


class Compilations(event.Listener):
    """Seconds of each function, without those of the functions that it calls for the first time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.running: list[list[float]] = []

    def on_start(self, found: Any) -> None:
        self.running.append([time.thread_time(), 0.0])

    def on_end(self, found: Any) -> None:
        began, inner = self.running.pop()
        seconds = time.thread_time() - began
        if self.running:
            self.running[-1][1] += seconds
        function = found.data["dispatcher"].py_func
        name = f"{function.__module__}.{function.__name__}"
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds - inner


# -- problems


def made_up_texts() -> tuple[list[str], Any]:
    rng = np.random.default_rng(0)
    letters = list("abcdefghijklmnopqrstuvwxyz")
    words = np.array(["".join(rng.choice(letters, rng.integers(3, 9))) for _ in range(2000)])
    y, own = rng.integers(300, size=3000), rng.integers(2000, size=(300, 8))
    picks = [np.concatenate([rng.choice(own[c], 4), rng.integers(2000, size=4)]) for c in y]
    return [" ".join(words[pick]) for pick in picks], y


def dense_rows() -> tuple[np.ndarray, Any]:
    rng = np.random.default_rng(0)
    y = rng.integers(100, size=3000)
    return (rng.normal(size=(100, 32))[y] + 0.5 * rng.normal(size=(3000, 32))).astype(np.float32), y


def titles() -> tuple[list[str], Any]:
    """Return titles that have one subject, of 1,381 random subjects."""
    from benchmark_data import load_texts

    data = load_texts("yso-finna")
    assert data.texts is not None
    Y, rng = data.y["train"], np.random.default_rng(0)
    rows = rng.permutation(np.flatnonzero(np.diff(Y.indptr) == 1))
    labels = Y.indices[Y.indptr[rows]]
    counts = np.bincount(labels)
    chosen = rng.permutation(np.flatnonzero(counts > 1))[:1381]
    kept = np.concatenate([rows[labels == subject][:_TITLES_OF_A_SUBJECT] for subject in chosen])
    return [data.texts["train"][row] for row in kept], Y.indices[Y.indptr[kept]]


def sections() -> tuple[list[str], Any]:
    return _debian("debian-section", 57_651)


def debtags() -> tuple[list[str], Any]:
    return _debian("debian-debtags", 27_034)


def _debian(name: str, n_rows: int) -> tuple[list[str], Any]:
    import scipy.sparse as sp

    from benchmark_data import SPLITS, load_texts

    data = load_texts(name)
    assert data.texts is not None
    parts = [data.y[split] for split in SPLITS]
    y = sp.vstack(parts, format="csr") if data.multilabel else np.concatenate(parts)
    return [text for split in SPLITS for text in data.texts[split]][:n_rows], y[:n_rows]


PROBLEMS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "text": made_up_texts,
    "dense": dense_rows,
    "titles": titles,
    "sections": sections,
    "debtags": debtags,
}
NEEDED = {"titles": "yso-finna", "sections": "debian-section", "debtags": "debian-debtags"}


# -- running


def work(kind: str) -> None:
    """Fit and ask a model in this process, and print its figures and what was compiled."""
    import extremax.classifier
    import extremax.text

    compilations = Compilations()
    event.register("numba:compile", compilations)
    imported = time.process_time()
    X, y = PROBLEMS[kind]()
    model: Any = extremax.classifier.ExtremeClassifier(random_state=0)
    if kind != "dense":
        model = extremax.text.TextClassifier(model)
    made, wall = time.process_time(), time.perf_counter()
    model.fit(X, y)
    fitted = time.process_time()
    figures = {"import s": imported, "fit s": fitted - made, "fit wall s": time.perf_counter() - wall}
    model.predict(X[:3000])
    figures["predict s"] = time.process_time() - fitted
    from peers import peak_bytes

    figures["peak GiB"] = peak_bytes() / 2**30
    print(json.dumps([{"rows": len(X), **figures}, compilations.seconds]))


def start(kind: str, case: str, **environment: str) -> None:
    """Run a problem in a new process; write a row about it, and what it compiled."""
    command, variables = [sys.executable, __file__, "--worker", kind], {**os.environ, **environment}
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=variables).stdout
    figures, compiled = json.loads(out)
    total = figures["fit s"] + figures["predict s"]
    row = {"case": f"{kind}, {case}", "beside imports s": total, **figures, "compiled": len(compiled)}
    write_rows(NAME, [row])
    modules: dict[str, float] = {}
    for name, seconds in compiled.items():
        module = name.rpartition(".")[0]
        modules[module] = modules.get(module, 0.0) + seconds
    for title, table in (("by module", modules), ("longest kernels", compiled)):
        if table:
            print(f"  compiled {sum(table.values()):.1f} s, {title}:")
        for name, seconds in sorted(table.items(), key=lambda item: -item[1])[:LONGEST]:
            print(f"    {seconds:6.2f} s  {name}")


def start_middling() -> None:
    from benchmark_data import texts_available

    start("text", "filling the cache")
    for kind in ("text", *NEEDED):
        if missing := texts_available(NEEDED[kind]) if kind in NEEDED else "":
            print(f"left out: {missing}", flush=True)
        else:
            start(kind, "filled cache")


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--middling", action="store_true", help="tables as people bring them")
    parser.add_argument("--worker", choices=PROBLEMS, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        work(args.worker)
        return
    print(machine())
    if args.tiny:
        start("dense", "usual cache")
    elif args.middling:
        start_middling()
    else:
        for kind in ("text", "dense"):
            with tempfile.TemporaryDirectory() as cache:
                for case in ("empty cache", "filled cache", "filled cache, again"):
                    start(kind, case, NUMBA_CACHE_DIR=cache)


if __name__ == "__main__":
    main()
