"""Figures of learning curves like the paper's Figure 1: log-likelihood and accuracy against training time.

Only the files of runs are read. Each method looks the same in every figure (see `methods`). Runs of the same
method on the same data, with several seeds, become one line, their mean, with a band from the lowest to the
highest.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from extremax.experiments.curve import Point, read_curve
from extremax.experiments.methods import METHODS, PROPOSED, Method
from extremax.runtime.atomic_files import stage_of
from extremax.types import Float64

FORMATS = ("png", "svg", "pdf")
CLOCKS = {"seconds": "training time (s)", "cpu_seconds": "processor time of training (s)"}
_OTHER_COLORS = ("#8C6D31", "#637939", "#7B4173", "#444444")  # for methods that are not the paper's
_TITLES = {
    "icd10cm": "ICD-10-CM",
    "eurlex57k": "EURLEX57K",
    "eurlex57k-smallest": "EURLEX57K, smallest label",
    "npm-owner-124k": "npm owners, 124k",
    "npm-owner-282k": "npm owners, 282k",
    "amazon-670k": "Amazon-670K",
    "wikipedia-500k": "Wikipedia-500K",
}


@dataclass(frozen=True)
class RunCurve:
    """The curve of a run, with what a figure says about it."""

    folder: Path
    data: str
    method: str
    points: list[Point]
    n_classes: int | None
    n_train: int | None


def read_run(folder: str | os.PathLike[str]) -> RunCurve:
    """Return the curve of a run, finished or not."""
    path = Path(folder)
    if not (path / "config.json").exists() or not (path / "curve.jsonl").exists():
        raise FileNotFoundError(f"{path} is not the folder of a run: it has no config.json and curve.jsonl.")
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    summary_path = path / "summary.json"
    summary = json.loads(summary_path.read_text(encoding="utf-8")) if summary_path.exists() else {}
    name, points = (
        config["data"]["name"] or Path(config["data"]["path"]).name,
        read_curve(path / "curve.jsonl"),
    )
    return RunCurve(path, name, config["method"], points, summary.get("n_classes"), summary.get("n_train"))


def plot(
    folders: Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    clock: str = "seconds",
    formats: Sequence[str] = (),
) -> list[Path]:
    """Draw the curves of runs to files, with one row of panels per data set.

    Several runs of a method on the same data are drawn as their mean and a band from lowest to highest.

    Parameters
    ----------
    folders : paths
        Folders of runs.
    out : path
        The figure; its ending gives the format, unless `formats` does.
    clock : {"seconds", "cpu_seconds"}
        Elapsed time, or processor time.
    formats : sequence of {"png", "svg", "pdf"}
        Formats to write, each with its own ending.

    Returns
    -------
    list of Path
        The files written.
    """
    if clock not in CLOCKS:
        raise ValueError(f"clock is {clock!r}; use one of {', '.join(CLOCKS)}.")
    path = Path(out)
    kinds = list(formats) or [path.suffix.lstrip(".").lower() or "png"]
    for kind in kinds:
        if kind not in FORMATS:
            raise ValueError(f"a figure cannot be written as {kind!r}; use one of {', '.join(FORMATS)}.")
    curves = [curve for curve in map(read_run, folders) if curve.points]
    if not curves:
        raise ValueError("there is nothing to draw: none of the folders has a point of a learning curve yet.")
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'extremax[plot]'.") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context(_STYLE):
        figure = _draw(curves, clock)
        FigureCanvasAgg(figure)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once: every format has the same places
        for kind in kinds:
            target = path.with_suffix(f".{kind}")
            stage = stage_of(target)
            # without a date, the same curves give the same file
            stamp = {"png": None, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
            figure.savefig(stage, format=kind, dpi=200, metadata=stamp)
            os.replace(stage, target)
            written.append(target)
    return written


_STYLE: Any = {
    "font.size": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "svg.fonttype": "none",
    "svg.hashsalt": "extremax",
    "pdf.fonttype": 42,
}


def _draw(curves: list[RunCurve], clock: str) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    sets = list(dict.fromkeys(curve.data for curve in curves))
    styles = method_styles(curves)
    n_columns = min(3, len(styles))
    height = 2.55 * len(sets) + 0.24 * -(-len(styles) // n_columns) + 0.25
    figure = Figure(figsize=(7.2, height), layout="constrained")
    panels: Any = figure.subplots(len(sets), 2, squeeze=False)
    lines = {}
    for row, name in zip(panels, sets, strict=True):
        chosen = [curve for curve in curves if curve.data == name]
        for axis, figure_name in zip(row, ("log_likelihood", "accuracy"), strict=True):
            for method, style in styles.items():
                if of_method := [curve for curve in chosen if curve.method == method]:
                    lines[method] = _draw_band(axis, band_of(of_method, figure_name, clock), style)
            axis.set(xscale="log", xlabel=CLOCKS[clock], ylabel=f"test {figure_name.replace('_l', '-l')}")
            axis.xaxis.set_major_formatter(lambda seconds, _: f"{seconds:,.10g}")
        row[1].set_ylim(bottom=0.0)
        row[1].yaxis.set_major_formatter(PercentFormatter(1.0))
        _limit_log_likelihood(row[0], chosen)
        title, _, sizes = describe_data(chosen[0]).partition(": ")
        row[0].set_title(title, loc="left", fontweight="bold")
        row[1].set_title(sizes, loc="right")
    handles = [lines[method] for method in styles]
    labels = [style.label for style in styles.values()]
    figure.legend(handles, labels, loc="outside upper center", ncols=n_columns, frameon=False)
    return figure


@dataclass(frozen=True)
class Band:
    """Mean, lowest and highest figure of some runs, and their mean times, point by point."""

    times: Float64
    mean: Float64
    low: Float64
    high: Float64
    n_runs: int


def band_of(curves: Sequence[RunCurve], figure: str, clock: str) -> Band:
    """Return the band of runs, at the numbers of samples that all of them have."""
    name = f"test_{figure}"
    tables = [
        {p["samples"]: (p[clock], p[name]) for p in curve.points if p.get(clock) and p.get(name) is not None}
        for curve in curves
    ]
    common = [samples for samples in tables[0] if all(samples in table for table in tables)]
    pairs = [[table[samples] for table in tables] for samples in common]
    times, values = np.array(pairs, np.float64).reshape(-1, len(tables), 2).transpose(2, 0, 1)
    return Band(times.mean(axis=1), values.mean(axis=1), values.min(axis=1), values.max(axis=1), len(tables))


def _draw_band(axis: Any, band: Band, style: Method) -> Any:
    """Draw a method, the proposed one in front of the others; return the line."""
    proposed = style is METHODS[PROPOSED]
    look: dict[str, Any] = {"color": style.color, "zorder": 3 if proposed else 2}
    if band.n_runs > 1:
        axis.fill_between(band.times, band.low, band.high, alpha=0.22, linewidth=0, **look)
    look |= {"marker": style.marker, "markersize": 4.2, "linewidth": 2.2 if proposed else 1.4}
    (line,) = axis.plot(band.times, band.mean, **look)
    return line


def _limit_log_likelihood(axis: Any, curves: list[RunCurve]) -> None:
    """Cut the axis a little below uniform guessing: a method that diverges must not squeeze the others."""
    n_classes = max((curve.n_classes or 0 for curve in curves), default=0)
    if n_classes > 1:
        axis.set_ylim(bottom=max(axis.get_ylim()[0], -1.15 * math.log(n_classes)))


def method_styles(curves: Sequence[RunCurve]) -> dict[str, Method]:
    """Return the look of each method that occurs, those of the paper first and in its order."""
    present = list(dict.fromkeys(curve.method for curve in curves))
    known = {name: METHODS[name] for name in METHODS if name in present}
    others = sorted(name for name in present if name not in METHODS)
    looks = itertools.cycle(zip(_OTHER_COLORS, "<>*p", strict=True))
    more = {name: Method(name, *look) for name, look in zip(others, looks, strict=False)}
    return {**known, **more}


def describe_data(curve: RunCurve) -> str:
    """Return name and size of the data: ``ICD-10-CM: 48,265 rows, 10,662 classes``."""
    title = _TITLES.get(curve.data, curve.data)
    return (
        title if curve.n_classes is None else f"{title}: {curve.n_train:,} rows, {curve.n_classes:,} classes"
    )
