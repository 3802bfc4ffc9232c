"""Run all benchmarks and write their figures to one table.

    python benchmarks/run_all.py                             # everything: hours; missing data are left out
    python benchmarks/run_all.py --tiny                      # does every benchmark run: a minute or two
    python benchmarks/run_all.py --only bench_epoch bench_topk

A benchmark is ``bench_*.py`` in this folder, or one of `STUDIES`: a module with ``main(argv=None) -> None``
that understands ``--tiny`` and calls `timing.write_rows`.  Each runs in a process of its own; one that fails
is reported at the end, and the others still run.  The rows are also kept as JSON lines beside the table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from timing import ROWS_FILE, describe, machine

FOLDER = Path(__file__).resolve().parent
# Comparisons on real data, with the arguments of a run of all benchmarks.
STUDIES: dict[str, tuple[str, ...]] = {
    "methods": ("--data", "icd10cm", "--noises", "uniform", "tree", "--trials", "1", "--epochs", "5"),
    "multilabel": (),
    "text": ("--methods", "extremax", "naive-bayes", "cosine", "linear-svc", "--limit", "900"),
    "embeddings": ("--methods", "default", "softmax", "class means"),
    "paper_steps": ("--data", "icd10cm"),
}


def benchmark_names(folder: Path = FOLDER) -> list[str]:
    """Return the names of all benchmarks in the folder."""
    return sorted(path.stem for path in folder.glob("bench_*.py")) + [
        name for name in STUDIES if (folder / f"{name}.py").exists()
    ]


def run_benchmarks(
    names: Sequence[str], rows_file: Path, *, tiny: bool = False, folder: Path = FOLDER
) -> dict[str, str]:
    """Run benchmarks one after the other; return the faults of those that failed, by name."""
    failed: dict[str, str] = {}
    rows_file.parent.mkdir(parents=True, exist_ok=True)
    rows_file.write_text("")
    for number, name in enumerate(names, 1):
        arguments = ("--tiny",) if tiny else STUDIES.get(name, ())
        title = f"[{number}/{len(names)}] {name}"
        print(f"{title} {' '.join(arguments)}".rstrip(), flush=True)
        before, started = len(read_rows(rows_file)), time.perf_counter()
        command = [sys.executable, str(folder / f"{name}.py"), *arguments]
        status = subprocess.run(command, env={**os.environ, ROWS_FILE: str(rows_file.resolve())}).returncode
        n_rows, seconds = len(read_rows(rows_file)) - before, time.perf_counter() - started
        if status:
            failed[name] = f"exit status {status}"
        print(f"{title}: {'FAILED, ' if status else ''}{n_rows} rows in {seconds:.1f} s", flush=True)
    return failed


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON lines file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def make_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a Markdown table of all rows."""
    lines = ["| benchmark | case | figures |", "|---|---|---|"]
    for row in rows:
        cells = (row["benchmark"], row["case"], describe(row))
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _commit() -> str:
    command = ["git", "-C", str(FOLDER), "describe", "--always", "--dirty"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "no commit"
    return f"commit {found}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = benchmark_names()
    parser.add_argument("--tiny", action="store_true", help="the smallest problems: do they run at all")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help="only these")
    parser.add_argument("--out", type=Path, default=FOLDER.parent / "build" / "benchmarks.md")
    args = parser.parse_args(argv)
    rows_file = args.out.with_suffix(".jsonl")
    failed = run_benchmarks(args.only, rows_file, tiny=args.tiny)
    rows = read_rows(rows_file)
    size = "tiny problems: figures mean nothing; " if args.tiny else ""
    head = f"{size}{machine()}, {_commit()}, {time.strftime('%d %B %Y')}"
    args.out.write_text(f"# Benchmarks\n\n{head}\n\n{make_table(rows)}")
    print(f"{len(rows)} rows in {args.out}")
    for name, fault in failed.items():
        print(f"FAILED: {name}, {fault}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
