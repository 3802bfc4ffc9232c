"""The figure of a theory study: signal-to-noise ratios at the optimum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from extremax.experiments.paper.theory import MixingCurve
from extremax.experiments.paper.theory_study import TheoryStudy

# Okabe and Ito's colours, distinct for any kind of colour vision; shapes differ as well.
_MARKS = {
    "uniform": ("s", "#000000"),
    "frequency": ("D", "#E69F00"),
    "tree": ("o", "#0072B2"),
    "p_D": ("*", "#D55E00"),
}
_LINE = "#595959"
_LABELS = {
    "uniform": "uniform",
    "frequency": "class frequencies",
    "tree": "label tree (adversarial)",
    "p_D": r"$p_n = p_D$",
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
