"""The backend beside Annif's omikuji backends, through Annif's own commands, on titles of a library.

    make bench-annif                                  # from the root of the repository: 100,000 titles
    python annif-extremax/benchmark.py --titles 20000

The titles are yso-finna's, in the folder that EXTREMAX_DATA names, or ../shared/data beside the repository.
Each project is loaded, trained and evaluated by ``annif-extremax load-vocab``, ``train`` and ``eval``, each
command in a process of its own; omikuji has the settings of Annif's documentation (Parabel and Bonsai) and of
its tutorial (Bonsai on words and word pairs). The ensembles take the mean of scores of their sources. Files
and rows that are done stay in the work folder; a second run goes on where the first one ended.
"""

from __future__ import annotations

import argparse
import configparser
import json
import lzma
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "from annif_extremax import main; main()"
URI = "http://www.yso.fi/onto/yso/"
COMMON = {"language": "en", "vocab": "yso", "analyzer": "snowball(english)", "limit": "100"}
BONSAI = {"backend": "omikuji", "cluster_balanced": "False", "cluster_k": "100", "max_depth": "3"}
PROJECTS: dict[str, dict[str, str]] = {
    "extremax": {"backend": "extremax"},
    "omikuji-parabel": {"backend": "omikuji"},
    "omikuji-bonsai": BONSAI,
    "omikuji-bonsai-pairs": BONSAI | {"ngram": "2", "min_df": "2"},
    "ensemble-omikuji": {"backend": "ensemble", "sources": "omikuji-parabel,omikuji-bonsai-pairs"},
    "ensemble": {"backend": "ensemble", "sources": "extremax,omikuji-bonsai-pairs"},
}
METRICS = ("Precision@1", "Precision@3", "Precision@5", "NDCG@5", "F1@5", "NDCG@10")


def write_data(work: Path, n_titles: int, n_test: int) -> int:
    """Write vocabulary, projects, training and test titles; return the number of test titles."""
    folder = Path(os.environ.get("EXTREMAX_DATA", ROOT.parent / "shared" / "data")) / "yso-finna"
    rows: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    with lzma.open(folder / "yso-finna-en.tsv.xz", "rt", encoding="utf-8") as file:
        for line in file:
            split, subjects, title = line.rstrip("\n").split("\t")
            rows[split].append(f"{title}\t{' '.join(f'<{URI}{s}>' for s in subjects.split())}\n")
    random.Random(0).shuffle(rows["train"])
    (work / "train.tsv").write_text("".join(rows["train"][:n_titles]), encoding="utf-8")
    random.Random(0).shuffle(rows["test"])
    (work / "test.tsv").write_text("".join(rows["test"][:n_test]), encoding="utf-8")
    with lzma.open(folder / "labels-en.tsv.xz", "rt", encoding="utf-8") as file:
        subjects = "".join(f"<{URI}{line.replace(chr(9), '>' + chr(9), 1)}" for line in file)
    (work / "subjects.tsv").write_text(subjects, encoding="utf-8")
    projects = configparser.ConfigParser()
    projects.read_dict({name: {"name": name, **COMMON, **own} for name, own in PROJECTS.items()})
    with (work / "projects.cfg").open("w") as file:
        projects.write(file)
    return len(rows["test"][:n_test])


def annif(work: Path, *arguments: str) -> tuple[float, float]:
    """Run a command; return its processor seconds and its peak memory in GB."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, *arguments]
    with (work / "annif.log").open("a") as log:
        process = subprocess.Popen(command, cwd=work, stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"annif {' '.join(arguments)} failed; its messages are in {work / 'annif.log'}.")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e9


def measure(project: str, work: Path, n_test: int) -> dict[str, Any]:
    """Train a project, unless it is an ensemble, and evaluate it."""
    row: dict[str, Any] = {"project": project}
    if PROJECTS[project]["backend"] != "ensemble":
        row["training s"], row["training GB"] = annif(work, "train", project, "train.tsv", "--jobs", "2")
        files = (work / "data" / "projects" / project).rglob("*")
        kept = [file for file in files if file.is_file() and not file.name.endswith("train.txt")]
        row["model MB"] = sum(file.stat().st_size for file in kept) / 1e6
    metrics = work / f"{project}.json"
    seconds, _ = annif(work, "eval", project, "test.tsv", "--jobs", "1", "--metrics-file", str(metrics))
    return row | {"eval ms a title": 1e3 * seconds / n_test, **json.loads(metrics.read_text())}


def print_table(rows: list[dict[str, Any]]) -> None:
    costs = ("training s", "training GB", "model MB", "eval ms a title")
    heads = (*METRICS, *costs)
    print("| project | " + " | ".join(heads) + " |\n|---|" + "---|" * len(heads))
    for row in rows:
        cells = [f"{100 * row[head]:.1f}" for head in METRICS]
        cells += [f"{row[head]:.1f}" if head in row else "–" for head in costs]
        print(f"| {row['project']} | {' | '.join(cells)} |")


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--titles", type=int, default=100_000, help="for training, at random")
    parser.add_argument("--test-titles", type=int, default=10_000, help="at most so many, at random")
    parser.add_argument("--work", type=Path, default=ROOT / ".cache" / "annif-benchmark")
    args = parser.parse_args()
    work = args.work.resolve() / str(args.titles)
    work.mkdir(parents=True, exist_ok=True)
    n_test = write_data(work, args.titles, args.test_titles)
    results = work / "results.jsonl"
    rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    if not rows:
        shutil.rmtree(work / "data", ignore_errors=True)
        annif(work, "load-vocab", "yso", "subjects.tsv", "--language", "en")
    for project in PROJECTS:
        if project not in {row["project"] for row in rows}:
            rows.append(measure(project, work, n_test))
            with results.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            print(json.dumps(rows[-1]), flush=True)
    print_table(rows)


if __name__ == "__main__":
    main()
