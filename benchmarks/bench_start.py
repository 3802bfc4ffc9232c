"""Seconds from a new process to the first answer: import, fit and predict on a small problem.

    python benchmarks/bench_start.py

With an empty and with a filled cache of compiled kernels; ``--tiny`` uses the cache that there is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from timing import Clock, machine, make_parser, write_rows

NAME = "bench_start"
PROGRAM = """
import json, time
started = time.perf_counter()
import numpy as np
from extremax import ExtremeClassifier
imported = time.perf_counter()
rng = np.random.default_rng(0)
y = rng.integers(100, size=3000)
X = (rng.normal(size=(100, 32))[y] + 0.5 * rng.normal(size=(3000, 32))).astype(np.float32)
model = ExtremeClassifier(random_state=0).fit(X, y)
fitted = time.perf_counter()
model.predict(X)
ended = time.perf_counter()
figures = {"import s": imported - started, "fit s": fitted - imported, "predict s": ended - fitted}
print(json.dumps({**figures, "processor s": time.process_time()}))
"""


def start(case: str, **environment: str) -> None:
    """Run the program in a new process and write a row about it."""
    clock = Clock()
    command, variables = [sys.executable, "-c", PROGRAM], {**os.environ, **environment}
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=variables).stdout
    write_rows(NAME, [{"case": case, "seconds": clock.read().wall, **json.loads(out)}])


def main(argv: Sequence[str] | None = None) -> None:
    args = make_parser(__doc__).parse_args(argv)
    print(machine())
    if args.tiny:
        start("usual cache")
        return
    with tempfile.TemporaryDirectory() as cache:
        for case in ("empty cache", "filled cache", "filled cache, again"):
            start(case, NUMBA_CACHE_DIR=cache)


if __name__ == "__main__":
    main()
