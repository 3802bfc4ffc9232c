"""Seconds from a new process to the first answer: import, fit and predict on a small problem, with an empty
and a filled cache.

python benchmarks/bench_start.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

from timing import machine

PROGRAM = """
import time
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
print(f"import {imported - started:.1f} s, fit {fitted - imported:.1f} s, predict {time.perf_counter() - fitted:.1f} s;"
      f" processor {time.process_time():.1f} s")
"""


def main() -> None:
    print(machine())
    with tempfile.TemporaryDirectory() as cache:
        for state in ("empty", "filled", "filled"):
            started = time.perf_counter()
            environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
            out = subprocess.run(
                [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=environment
            )
            print(f"{state} cache: {time.perf_counter() - started:5.1f} s in all ({out.stdout.strip()})")


if __name__ == "__main__":
    main()
