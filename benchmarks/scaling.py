"""Cost of training and of prediction against the numbers of rows and of classes, and a figure of both.

    python benchmarks/scaling.py --out lab/results/scaling.jsonl --figure lab/results/scaling.svg
    python benchmarks/scaling.py --only yso-finna-10k debian-section --out FILE.jsonl

`TextClassifier` with defaults in a process of its own for each set, on two threads (prediction on one), after
a small fit that compiles. Rows: 10,000 to 636,142 titles of a library with their subjects. Classes: sections
and maintainers of Debian's packages, ICD-10-CM, owners of npm packages. Seconds are of the processor and
include features. What is in the file of ``--out`` is not measured again, and the figure shows what is there.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import benchmark_data as datasets
import text
from timing import machine, make_parser, write_rows

NAME = "scaling"
METHOD = "extremax-text"
BY_ROWS = ("yso-finna-10k", "yso-finna-30k", "yso-finna-100k", "yso-finna-300k", "yso-finna")
BY_CLASSES = ("debian-section", "debian-maintainer", "icd10cm", "npm-owner-124k", "npm-owner-282k")


def measure_set(name: str, options: text.Options) -> dict[str, Any]:
    """Return sizes and figures of a fit."""
    with tempfile.TemporaryDirectory() as folder:
        data = text.prepare(datasets.load_texts(name), Path(folder), 10_000, options.n_threads)
        if reason := text.run_method(METHOD, data, options):
            raise RuntimeError(f"{name}: {reason}")
        figures = text.score(METHOD, data)
    sizes = {"rows": data.n_rows["train"], "classes": data.n_classes, "entries a row": data.entries_per_row}
    figures["training ms per row"] = 1e3 * figures["processor s"] / data.n_rows["train"]
    return {"case": name, **sizes, **figures}


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw training seconds and milliseconds of a prediction against rows and against classes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "extremax"
    found = {row["case"]: row for row in rows}
    figure = Figure(figsize=(9.6, 6.6), layout="constrained")
    grid = figure.subplots(2, 2)
    columns = (
        (BY_ROWS, "rows", "training titles (yso-finna, up to 25,401 subjects)"),
        (BY_CLASSES, "classes", "classes (Debian, ICD-10-CM, npm)"),
    )
    heights = (
        ("training ms per row", "training, processor ms a row"),
        ("ms per row", "exact top 5, processor ms a row"),
    )
    for (names, size, title), above_below in zip(columns, grid.T, strict=True):
        points = [found[name] for name in names if name in found]
        for (figure_name, label), axes in zip(heights, above_below, strict=True):
            axes.plot([p[size] for p in points], [p[figure_name] for p in points], "o-", color="C1")
            for point in points:
                other = "rows" if size == "classes" else "classes"
                note = f"{point[other]:,} {other}"
                if figure_name.startswith("training"):
                    note = f"{point['processor s']:,.0f} s"
                place = (point[size], point[figure_name])
                axes.annotate(note, place, (0, 7), textcoords="offset points", ha="center", fontsize=8)
            axes.set_xscale("log")
            axes.margins(0.16, 0.18)
            axes.set_ylim(bottom=0)
            axes.set_xlabel(title)
            axes.set_ylabel(label)
            axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=160)


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    names = (*BY_ROWS, *BY_CLASSES)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="SET")
    parser.add_argument("--threads", type=int, default=2, help="of training")
    parser.add_argument("--out", type=Path, help="append figures to this JSON lines file")
    parser.add_argument("--figure", type=Path, help="draw the rows in --out")
    args = parser.parse_args(argv)
    if args.figure is not None and args.out is None:
        parser.error("--figure draws what is in the file of --out: name one")
    print(machine())
    options = text.Options(n_threads=args.threads, limit=4 * 3600, in_process=args.tiny)
    rows: list[dict[str, Any]] = []
    if args.out is not None and args.out.exists():
        rows = [json.loads(line) for line in args.out.read_text().splitlines()]
    done = {row["case"] for row in rows}
    for name in ("planted-texts",) if args.tiny else args.only:
        if name in done:
            continue
        if missing := datasets.texts_available(name):
            print(f"left out: {missing}", flush=True)
            continue
        row = measure_set(name, options)
        write_rows(NAME, [row])
        rows.append(row)
        if args.out is not None:
            text.append_row(args.out, row)
    if args.figure is not None:
        draw(rows, args.figure)


if __name__ == "__main__":
    main()
