"""Run many cases in worker processes: a crash or a hang is that of the case that was begun last.

    python -m fuzz.driver models --count 1000 --first 0

Every case is a function of its number. A worker says which case it begins and how it ended; when it dies, or
says nothing for too long, the case is a failure and another worker goes on after it.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

TIME_LIMIT = 60.0  # seconds of a case that a busy machine must not exceed; a case takes milliseconds
FIRST_LIMIT = 900.0  # of the first cases of a worker, which compile kernels
MEMORY_LIMIT = 8 << 30
_SHOWN_BYTES = 3000  # of what a worker that died has said


def _pass_on(stream: IO[str], lines: queue.Queue[str]) -> None:
    """Put every line of a stream, and an empty one at its end, where it can be waited for."""
    for line in stream:
        lines.put(line)
    lines.put("")


@dataclass
class Report:
    """What became of the cases."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)

    def __str__(self) -> str:
        counts = ", ".join(f"{n:,} {what}" for what, n in sorted(self.counts.items()))
        lines = [f"case {seed}: {what}" for seed, what in self.failures[:20]]
        return "\n".join([f"{counts or 'nothing'}; {len(self.failures):,} failures", *lines])


def run_cases(kind: str, first: int, count: int, bases: Path, *, log: bool = False) -> Report:
    """Run the cases of some numbers, in one worker at a time."""
    report, at, stop = Report(), first, first + count
    while at < stop:
        at = _run_worker(kind, at, stop, bases, report, log=log)
    return report


def _run_worker(kind: str, at: int, stop: int, bases: Path, report: Report, *, log: bool) -> int:
    """Run cases until the worker ends; return the number of the next case."""
    command = [
        sys.executable,
        "-m",
        "fuzz.driver",
        kind,
        "--worker",
        "--first",
        str(at),
        "--count",
        str(stop - at),
    ]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            [*command, "--bases", str(bases)], stdout=subprocess.PIPE, stderr=errors, text=True
        ) as worker,
    ):
        begun, n_done, shown = at, 0, time.monotonic()
        lines: queue.Queue[str] = queue.Queue()
        reader = threading.Thread(target=_pass_on, args=(worker.stdout, lines), daemon=True)
        reader.start()
        while True:
            limit = TIME_LIMIT if n_done > 50 else FIRST_LIMIT
            try:
                line, ready = lines.get(timeout=limit), True
            except queue.Empty:
                line, ready = "", False
            if not line:
                break
            said = json.loads(line)
            if "begin" in said:
                begun = said["begin"]
            else:
                n_done += 1
                report.counts[said["end"]] += 1
                if said["end"] == "failed":
                    report.failures.append((begun, said["why"]))
                begun += 1
            if log and time.monotonic() - shown > 60:
                shown = time.monotonic()
                _say(f"{kind} up to {begun:,}: {report}")
        if not ready:
            worker.kill()
        code = worker.wait()
        if code == 0 and begun >= stop:
            return stop
        errors.seek(0)
        tail = errors.read(_SHOWN_BYTES).decode(errors="replace")  # a traceback, then a list of libraries
        what = f"hung for {limit:.0f} s" if not ready else f"ended the process with {code}"
        report.counts["failed"] += 1
        report.failures.append((begun, f"{what}\n{tail}"))
        return begun + 1


def _work(kind: str, first: int, count: int, bases: Path) -> None:
    """Run cases and say how they ended."""
    import resource

    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    from fuzz.outcome import WrongResult

    out = os.fdopen(os.dup(1), "w")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        run = _case_runner(kind, bases, Path(folder))
        for seed in range(first, first + count):
            _say(json.dumps({"begin": seed}), out)
            try:
                end = {"end": run(seed)}
            except WrongResult as error:
                end = {"end": "failed", "why": f"wrong result: {error}"}
            except BaseException:
                end = {"end": "failed", "why": traceback.format_exc()[-1500:]}
            _say(json.dumps(end), out)


def _say(text: str, out: IO[str] | None = None) -> None:
    stream = out or sys.stdout
    stream.write(f"{text}\n")
    stream.flush()


def _case_runner(kind: str, bases: Path, folder: Path) -> Callable[[int], str]:
    from fuzz.bases import make_bases

    models = make_bases(bases)
    if kind == "models":
        from fuzz.model_cases import run_model_case

        return lambda seed: run_model_case(seed, models, folder)
    from fuzz.input_cases import InputCases

    return InputCases(models, folder).run


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["models", "inputs"])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--bases", type=Path, default=None)
    parser.add_argument("--worker", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-bases-") as made:
        bases = given.bases or Path(made)
        if given.worker:
            _work(given.kind, given.first, given.count, bases)
            return 0
        report = run_cases(given.kind, given.first, given.count, bases, log=True)
    _say(f"{given.kind} {given.first} to {given.first + given.count - 1}: {report}")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
