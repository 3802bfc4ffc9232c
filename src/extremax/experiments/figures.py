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

from extremax.experiments.curve import Point, read_curve
from extremax.experiments.methods import METHODS, PROPOSED, Method
from extremax.runtime.atomic_files import stage_of

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

    def finished(self) -> bool:
        """Tell whether the run has come to its end."""
        return (self.folder / "summary.json").exists()


def read_run(folder: str | os.PathLike[str]) -> RunCurve:
    """Return the curve of a run, finished or not."""
    path = Path(folder)
    if not (path / "config.json").exists() or not (path / "curve.jsonl").exists():
        raise FileNotFoundError(f"{path} is not the folder of a run: it has no config.json and curve.jsonl.")
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    summary_path = path / "summary.json"
    summary = json.loads(summary_path.read_text(encoding="utf-8")) if summary_path.exists() else {}
    name = config["data"]["name"] or Path(config["data"]["path"]).name
    return RunCurve(
        path,
        name,
        config["method"],
        read_curve(path / "curve.jsonl"),
        summary.get("n_classes"),
        summary.get("n_train"),
    )


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
    curves = [read_run(folder) for folder in folders]
    curves = [curve for curve in curves if curve.points]
    if not curves:
        raise ValueError("there is nothing to draw: none of the folders has a point of a learning curve yet.")
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'extremax[plot]'.") from error
    with mpl.rc_context(_STYLE):
        figure = _draw(curves, clock)
        FigureCanvasAgg(figure)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once: every format has the same places
        written = []
        path.parent.mkdir(parents=True, exist_ok=True)
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
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9.0,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "legend.fontsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "extremax",
    "pdf.fonttype": 42,
    "figure.dpi": 100,
}


def _draw(curves: list[RunCurve], clock: str) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

    sets = list(dict.fromkeys(curve.data for curve in curves))
    styles = method_styles(curves)
    n_columns = min(3, len(styles))
    legend_rows = -(-len(styles) // n_columns)
    height = 2.55 * len(sets) + 0.24 * legend_rows + 0.25
    figure = Figure(figsize=(7.2, height), layout="constrained")
    panels = figure.subplots(len(sets), 2, squeeze=False)
    for row, name in zip(panels, sets, strict=True):
        chosen = [curve for curve in curves if curve.data == name]
        for axis, figure_name in zip(row, ("log_likelihood", "accuracy"), strict=True):
            for method in reversed([name for name in styles if any(c.method == name for c in chosen)]):
                curves_of_method = [curve for curve in chosen if curve.method == method]
                _draw_band(axis, band_of(curves_of_method, figure_name, clock), method, styles[method])
            axis.set_xscale("log")
            times = [point[clock] for curve in chosen for point in curve.points if point.get(clock)]
            wide = max(times, default=1.0) > 300 * min(times, default=1.0)
            axis.xaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=12))
            axis.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:,.10g}"))
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.grid(True, color="#DDDDDD", linewidth=0.6)
            axis.set_axisbelow(True)
            axis.set_xlabel(CLOCKS[clock])
        row[0].set_ylabel("test log-likelihood per row")
        row[1].set_ylabel("test accuracy")
        row[1].set_ylim(bottom=0.0)
        row[1].yaxis.set_major_formatter(
            PercentFormatter(1.0, decimals=0 if row[1].get_ylim()[1] > 0.08 else 1)
        )
        _limit_log_likelihood(row[0], chosen)
        name, _, sizes = describe_data(chosen[0]).partition(": ")
        row[0].set_title(name, loc="left", fontweight="bold")
        row[1].set_title(sizes, loc="right")
    handles = [
        Line2D(
            [],
            [],
            color=style.color,
            marker=style.marker,
            label=style.label,
            linewidth=_width(method),
            markersize=5,
        )
        for method, style in styles.items()
    ]
    figure.legend(
        handles=handles, loc="outside upper center", ncols=n_columns, frameon=False, handlelength=2.4
    )
    return figure


@dataclass(frozen=True)
class Band:
    """Mean, lowest and highest figure of some runs, and their mean times, point by point."""

    times: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    n_runs: int


def band_of(curves: Sequence[RunCurve], figure: str, clock: str) -> Band:
    """Return the band of runs, at the numbers of samples that all of them have."""
    tables = [
        {
            point["samples"]: (point[clock], point[f"test_{figure}"])
            for point in curve.points
            if point.get(clock) and point.get(f"test_{figure}") is not None
        }
        for curve in curves
    ]
    common = [samples for samples in tables[0] if all(samples in table for table in tables)]
    found = [[table[samples] for table in tables] for samples in common]
    values = [[value for _, value in runs] for runs in found]
    return Band(
        [sum(time for time, _ in runs) / len(runs) for runs in found],
        [sum(runs) / len(runs) for runs in values],
        [min(runs) for runs in values],
        [max(runs) for runs in values],
        len(tables),
    )


def _draw_band(axis: Any, band: Band, method: str, style: Method) -> None:
    front = 3 if method == PROPOSED else 2
    if band.n_runs > 1:
        axis.fill_between(
            band.times, band.low, band.high, color=style.color, alpha=0.22, linewidth=0, zorder=front
        )
    axis.plot(
        band.times,
        band.mean,
        color=style.color,
        marker=style.marker,
        markersize=4.2,
        markeredgecolor="white",
        markeredgewidth=0.5,
        linewidth=_width(method),
        zorder=front,
    )


def _width(method: str) -> float:
    return 2.2 if method == PROPOSED else 1.4


def _limit_log_likelihood(axis: Any, curves: list[RunCurve]) -> None:
    """Cut the axis a little below uniform guessing: a method that diverges must not squeeze the others."""
    values = [point["test_log_likelihood"] for curve in curves for point in curve.points]
    finite = [value for value in values if value is not None and math.isfinite(value)]
    n_classes = max((curve.n_classes or 0 for curve in curves), default=0)
    if finite and n_classes > 1:
        lowest = -1.15 * math.log(n_classes)
        if min(finite) < lowest:
            axis.set_ylim(bottom=lowest)


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
