"""The paper's comparison on random subsets of Polish lemmas: its factors by the number of classes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from extremax.experiments.catalog import LEMMA_SUBSETS
from extremax.experiments.methods import BASELINES, METHODS, PROPOSED
from extremax.experiments.paper.claims import Speed, compare_speed
from extremax.experiments.paper.reproduction import Reproduction, reproduce
from extremax.runtime.atomic_files import write_text

# Times in which a factor is told: rows seen, and processor seconds with the tree and without it.
_UNITS: dict[str, dict[str, Any]] = {
    "in samples": {"clock": "samples"},
    "in processor seconds": {"clock": "cpu_seconds"},
    "without the tree": {"clock": "cpu_seconds", "with_start": False},
}


def reproduce_lemmas(
    out: str | os.PathLike[str], *, sizes: Sequence[int] = tuple(LEMMA_SUBSETS.values()), **options: Any
) -> dict[tuple[int, bool], Reproduction]:
    """Run the comparison for each number of lemmas, on singular vectors and on learned features.

    Parameters
    ----------
    out : path
        Folder with one folder per comparison, ``by-classes.md`` and ``by-classes.png``.
    sizes
        Numbers of lemmas, among those of `LEMMA_SUBSETS`.
    **options
        Those of `reproduce`.

    Returns
    -------
    dict
        By number of lemmas and whether features are learned.
    """
    folder, found = Path(out), {}
    for size in sizes:
        for learned in (False, True):
            where = folder / f"{size}{'-learned' if learned else ''}"
            found[size, learned] = reproduce(f"lemmas-{size}", where, learned=learned, **options)
    write_text(folder / "by-classes.md", "\n".join(_table(found)) + "\n")
    _draw(found, folder / "by-classes.png")
    return found


def _speeds(result: Reproduction, baseline: str) -> dict[str, Speed]:
    """Return the factors of a comparison against a baseline, by unit."""
    ours, theirs = result.outcomes[PROPOSED], result.outcomes[baseline]
    return {unit: compare_speed(ours, theirs, **how) for unit, how in _UNITS.items()}


def _baselines(found: dict[tuple[int, bool], Reproduction]) -> list[str]:
    return [name for name in BASELINES if all(name in result.outcomes for result in found.values())]


def _table(found: dict[tuple[int, bool], Reproduction]) -> list[str]:
    header = ["lemmas", "features", "baseline", "its accuracy", "proposed", *_UNITS]
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for (size, learned), result in found.items():
        for name in _baselines(found):
            reached = [f"{result.outcomes[method].accuracy:.1%}" for method in (name, PROPOSED)]
            factors = [str(speed) for speed in _speeds(result, name).values()]
            cells = [f"{size:,}", "learned" if learned else "singular vectors", METHODS[name].label]
            lines.append("| " + " | ".join([*cells, *reached, *factors]) + " |")
    return lines


def _draw(found: dict[tuple[int, bool], Reproduction], path: Path) -> None:
    """Draw the factors against the number of lemmas: a panel per unit, dashed lines for learned features."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    sizes = sorted({size for size, _ in found})
    for axes, unit in zip(figure.subplots(1, len(_UNITS), sharey=True), _UNITS, strict=True):
        for name in _baselines(found):
            for learned in (False, True):
                means = [_speeds(found[size, learned], name)[unit].mean for size in sizes]
                line = {"color": METHODS[name].color, "marker": METHODS[name].marker}
                style, label = ("--", None) if learned else ("-", METHODS[name].label)
                axes.plot(sizes, means, style, label=label, **line)
        axes.set(xscale="log", yscale="log", xlabel="classes", title=f"times faster {unit}")
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=120)
