"""Processor seconds from a new process to the first answer: import, fit and predict on small problems.

    python benchmarks/bench_start.py

3,000 texts in 300 classes for `TextClassifier`, 3,000 dense rows in 100 classes for `ExtremeClassifier`, with
an empty and with a filled cache of compiled kernels, the seconds that each module compiles, and the kernels
that compile longest.  ``--tiny`` fits the dense rows with the cache that there is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from timing import machine, make_parser, write_rows

NAME = "bench_start"
LONGEST = 15  # kernels that are named
PROGRAM = """
import json, sys, time
import numpy as np
import extremax.classifier, extremax.text
from numba.core import event

class Compilations(event.Listener):
    # Seconds of each function, without those of the functions that it calls for the first time.
    def __init__(self):
        self.seconds, self.running = {}, []
    def on_start(self, found):
        self.running.append([time.thread_time(), 0.0])
    def on_end(self, found):
        began, inner = self.running.pop()
        seconds = time.thread_time() - began
        if self.running:
            self.running[-1][1] += seconds
        function = found.data["dispatcher"].py_func
        name = f"{function.__module__}.{function.__name__}"
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds - inner

compilations = Compilations()
event.register("numba:compile", compilations)
imported = time.process_time()
rng = np.random.default_rng(0)
if sys.argv[1] == "text":
    letters = list("abcdefghijklmnopqrstuvwxyz")
    words = np.array(["".join(rng.choice(letters, rng.integers(3, 9))) for _ in range(2000)])
    y, own = rng.integers(300, size=3000), rng.integers(2000, size=(300, 8))
    picks = [np.concatenate([rng.choice(own[c], 4), rng.integers(2000, size=4)]) for c in y]
    X = [" ".join(words[pick]) for pick in picks]
    model = extremax.text.TextClassifier(extremax.classifier.ExtremeClassifier(random_state=0))
else:
    y = rng.integers(100, size=3000)
    X = (rng.normal(size=(100, 32))[y] + 0.5 * rng.normal(size=(3000, 32))).astype(np.float32)
    model = extremax.classifier.ExtremeClassifier(random_state=0)
made = time.process_time()
model.fit(X, y)
fitted = time.process_time()
model.predict(X)
figures = {"import s": imported, "fit s": fitted - made, "predict s": time.process_time() - fitted}
print(json.dumps([figures, compilations.seconds]))
"""


def start(kind: str, case: str, **environment: str) -> None:
    """Run the program in a new process; write a row about it, and what it compiled."""
    command, variables = [sys.executable, "-c", PROGRAM, kind], {**os.environ, **environment}
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=variables).stdout
    figures, compiled = json.loads(out)
    total = figures["fit s"] + figures["predict s"]
    write_rows(
        NAME, [{"case": f"{kind}, {case}", "beside imports s": total, **figures, "compiled": len(compiled)}]
    )
    modules: dict[str, float] = {}
    for name, seconds in compiled.items():
        module = name.rpartition(".")[0]
        modules[module] = modules.get(module, 0.0) + seconds
    for title, table in (("by module", modules), ("longest kernels", compiled)):
        if table:
            print(f"  compiled {sum(table.values()):.1f} s, {title}:")
        for name, seconds in sorted(table.items(), key=lambda item: -item[1])[:LONGEST]:
            print(f"    {seconds:6.2f} s  {name}")


def main(argv: Sequence[str] | None = None) -> None:
    args = make_parser(__doc__).parse_args(argv)
    print(machine())
    if args.tiny:
        start("dense", "usual cache")
        return
    for kind in ("text", "dense"):
        with tempfile.TemporaryDirectory() as cache:
            for case in ("empty cache", "filled cache", "filled cache, again"):
                start(kind, case, NUMBA_CACHE_DIR=cache)


if __name__ == "__main__":
    main()
