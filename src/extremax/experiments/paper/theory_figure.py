"""The figures of theory studies: signal-to-noise ratios at the optimum, and along training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from extremax.experiments.paper.theory import MixingCurve
from extremax.experiments.paper.theory_study import TheoryStudy
from extremax.experiments.paper.training_study import DEFAULT, TrainingStudy

# Okabe and Ito's colours, distinct for any kind of colour vision; shapes differ as well.
_MARKS = {
    "uniform": ("s", "#000000"),
    "frequency": ("D", "#E69F00"),
    "tree": ("o", "#0072B2"),
    "p_D": ("*", "#D55E00"),
    DEFAULT: ("^", "#009E73"),
}
_LINE = "#595959"
_LABELS = {
    "uniform": "uniform",
    "frequency": "class frequencies",
    "tree": "label tree (adversarial)",
    "p_D": r"$p_n = p_D$",
    DEFAULT: "default, nothing drawn",
}


def draw(curve: MixingCurve, relative_snr: Mapping[str, float], *, n_classes: int, title: str = "") -> Any:
    """Draw the curve from uniform noise to p_D, with a mark for each noise distribution.

    A distribution that is not a mixture of uniform noise and p_D is marked where the curve has the same
    ratio. Returns a matplotlib figure.

    Parameters
    ----------
    curve
        SNR and overlap for each mixing weight.
    relative_snr
        SNR of each noise distribution, relative to that of p_D, by its name in the study.
    n_classes
        Number of classes, for the scale of overlaps at the right.
    title
        Title of the figure.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), dpi=150, layout="constrained")
    axes: Any = figure.add_subplot()
    axes.plot(curve.weights, curve.relative_snr, color=_LINE, linewidth=2, zorder=1)
    low = float(curve.relative_snr.min())
    for name, value in relative_snr.items():
        marker, colour = _MARKS[name]
        weight = float(np.interp(value, curve.relative_snr, curve.weights))
        if 0.0 < weight < 1.0:
            axes.plot([weight, weight], [low, value], color=colour, linewidth=1, linestyle=":", zorder=1)
        axes.plot(
            weight,
            value,
            marker,
            color=colour,
            markersize=13 if marker == "*" else 8,
            markeredgecolor="white",
            label=_LABELS[name],
            zorder=2,
        )
    axes.set_xlabel(r"weight of $p_D$ in a mixture with uniform noise")
    axes.set_ylabel(r"signal-to-noise ratio $\bar\eta$, relative to $p_n = p_D$")
    axes.set_xlim(-0.02, 1.02)
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)

    # relative = (C - 1) / (C - overlap) in both directions; one class has no such scale
    if n_classes > 1:
        right = axes.secondary_yaxis(
            "right",
            functions=(
                lambda r: n_classes - (n_classes - 1) / r,
                lambda o: (n_classes - 1) / (n_classes - o),
            ),
        )
        right.set_ylabel(r"overlap of $p_n$ and $p_D$")
    axes.legend(loc="lower right", frameon=False)
    if title:
        axes.set_title(title, loc="left", fontsize=10)
    return figure


def draw_study(study: TheoryStudy) -> Any:
    """Draw the curve and the noise distributions of a study; returns a matplotlib figure."""
    marks = {row.noise: row.relative_snr for row in study.noises}
    title = f"{study.data}, {study.n_classes:,} classes"
    return draw(study.curve, marks, n_classes=study.n_classes, title=title)


def draw_training(study: TrainingStudy) -> Any:
    """Draw the ratio and what was learned against samples, and the ratio against what was learned.

    The start, with no sample seen, stands at the left end of the first two panels. Returns a matplotlib
    figure.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 3.8), dpi=150, layout="constrained")
    panels: Any = figure.subplots(1, 3)
    first = min(point.samples for point in study.points if point.samples > 0) / 2
    for method in study.methods:
        marker, colour = _MARKS[method]
        curve = study.curve(method)
        samples = np.maximum([point.samples for point in curve], first)
        ratio = np.array([point.ratio for point in curve])
        learned = np.array([point.log_likelihood for point in curve])
        look = {"color": colour, "marker": marker, "markersize": 5, "label": _LABELS[method]}
        # an estimate of a small signal may be negative: nothing to draw on a logarithmic scale
        shown = np.where(ratio > 0, ratio, np.nan)
        panels[0].errorbar(samples, shown, yerr=[point.error for point in curve], **look)
        panels[1].plot(samples, learned, **look)
        panels[2].plot(learned, shown, **look)
    for panel in panels[:2]:
        panel.set_xscale("log")
        panel.set_xlabel("samples (training rows seen)")
    for panel in (panels[0], panels[2]):
        panel.set_yscale("log")
        panel.set_ylabel("signal-to-noise ratio of one row")
    panels[1].set_ylabel("validation log-likelihood")
    panels[2].set_xlabel("validation log-likelihood")
    for panel in panels:
        panel.grid(color="#dddddd", linewidth=0.6)
        panel.set_axisbelow(True)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    panels[1].legend(loc="lower right", frameon=False, fontsize=8)
    figure.suptitle(f"{study.data}, {study.n_classes:,} classes", fontsize=10, x=0.01, ha="left")
    return figure
