"""How the factors of the paper's comparison depend on the number of classes: random sets of Polish lemmas.

512 features of the word forms, unsupervised ("text") or learned for the same labels ("learned"), as those of
the paper are. Every method has the same trials, and trains to its plateau, at most 30 epochs with a tree
and 150 without. The tree is extremax's own fit with the paper's 16 components and lambda_n = 0.1.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from extremax.experiments.catalog import LEMMA_SUBSETS, source_files
from extremax.experiments.methods import BASELINES, FIGURE_1, METHODS, PROPOSED
from extremax.experiments.paper import reproduce
from extremax.experiments.paper.claims import (
    ANSWERS,
    FIGURES,
    ORDER_OF_MAGNITUDE,
    Outcome,
    Speed,
    check_claims,
    compare_speed,
    format_factor,
    read_outcomes,
)
from extremax.experiments.paper.report import format_table
from extremax.experiments.recipe import (
    DataConfig,
    EvaluationConfig,
    FeaturesConfig,
    Recipe,
    SearchConfig,
)
from extremax.runtime.atomic_files import write_json, write_text
from extremax.runtime.memory import available_memory, format_bytes

ALL_SIZES = tuple(LEMMA_SUBSETS.values())
SIZES = ALL_SIZES[:-1]  # by default: all lemmas take hours
FEATURES = ("learned", "text")
N_FEATURES = 512
# Rates and penalties: around the best of earlier searches on features of unit length.
RATES = [0.1, 0.3, 1.0]
_GRID: dict[str, list[Any]] = {"score_penalty": [1e-4, 1e-3], "prior_variance": [10.0, 1000.0]}
N_TRIALS = 6  # the whole grid
_FORMS, _SVD_ROWS = 6.4, 20_000  # training rows of a lemma; rows that a truncated SVD is fitted to
# Processor seconds of a training row in all methods, and of a row and class of all evaluations.
_ROW_SECONDS, _SCORE_SECONDS = 2.4e-3, 2e-6
# Units of a factor: rows seen, and processor seconds with the tree and without it.
UNITS: dict[str, dict[str, Any]] = {
    "in samples": {"clock": "samples"},
    "in processor seconds": {"clock": "cpu_seconds"},
    "without the tree": {"clock": "cpu_seconds", "with_start": False},
    "at 95% of the accuracy": {"clock": "cpu_seconds", "fraction": 0.95},
}


def lemma_recipe(size: int, features: str, method: str) -> Recipe:
    """Return the recipe of a method for the forms of some lemmas."""
    chosen = METHODS[method]
    model = {**chosen.model, "scale_features": False}
    with_tree = model["noise"] == "tree"
    if with_tree:
        model["tree_fit"] = "default"
    elif "penalized_scores" in chosen.searched:
        model["penalized_scores"] = "raw"  # as in the authors' code, and better in earlier searches
    space = {"learning_rate": RATES} | {name: _GRID[name] for name in chosen.searched if name in _GRID}
    kind: Any = "auto" if features == "text" else features
    return Recipe(
        name=method,
        method=method,
        data=DataConfig(name=f"lemmas-{size}"),
        features=FeaturesConfig(kind=kind, n_components=N_FEATURES, word_ngrams=0, svd_rows=_SVD_ROWS),
        model={**model, "n_epochs": 30 if with_tree else 150},
        evaluation=EvaluationConfig(valid_rows=1000, test_rows=2000, until_plateau=True),
        search=SearchConfig(space=space, n_epochs=3),
    )


def describe_plan(sizes: Sequence[int], features: Sequence[str], n_methods: int, n_seeds: int) -> list[str]:
    """Word what a comparison needs: package, processor time and memory."""
    largest = max(sizes)
    rows = _FORMS * largest
    # Rows are held twice while features are computed; weights and accumulators are those of one model.
    memory = int(4 * N_FEATURES * (2.2 * rows + 4 * largest) + 1.5e9)
    seconds = sum(_FORMS * size * _ROW_SECONDS + size * 3000 * _SCORE_SECONDS for size in sizes)
    minutes = seconds * len(features) * n_seeds * n_methods / len(FIGURE_1) / 60
    source = source_files("polish-nouns")[0].name
    listed = ", ".join(f"{size:,}" for size in sizes)
    return [
        f"reads {source} of spacy-lookups-data; features: {', '.join(features)}",
        f"{listed} lemmas with {n_methods} methods take about {minutes:.0f} minutes of processor time",
        f"memory: about {format_bytes(memory)}; {format_bytes(available_memory())} are free",
    ]


def reproduce_lemmas(
    out: str | os.PathLike[str],
    *,
    sizes: Sequence[int] = SIZES,
    features: Sequence[str] = FEATURES,
    methods: Sequence[str] = (),
    n_trials: int = 0,
    n_finalists: int = 2,
    **options: Any,
) -> None:
    """Run the comparison for several numbers of lemmas; `options` are those of `reproduce`.

    Without a number of trials, every method tries its whole grid.
    The folder `out` holds a folder per kind of features and number of lemmas, and ``by-classes.md``,
    ``.json`` and ``.svg``, which are written anew after each of them, about all that the folder holds.
    """
    names = tuple(methods) or FIGURE_1
    if PROPOSED not in names:
        raise ValueError(f"methods must contain {PROPOSED!r}, which the others are compared with; add it.")
    for size in sizes:
        if size not in ALL_SIZES:
            raise ValueError(f"sizes has {size}; use some of {', '.join(map(str, ALL_SIZES))}.")
    for kind in features:
        if kind not in FEATURES:
            raise ValueError(f"features has {kind!r}; use some of {', '.join(FEATURES)}.")
    options |= {"n_trials": n_trials or N_TRIALS, "n_finalists": n_finalists}
    log = options.get("log", lambda text: None)
    for line in describe_plan(sizes, features, len(names), options.get("n_seeds", 1)):
        log(line)
    for size in sorted(sizes):
        for kind in features:
            recipes = {name: lemma_recipe(size, kind, name) for name in names}
            reproduce(f"lemmas-{size}", Path(out) / kind / str(size), recipes=recipes, **options)
            summarize(Path(out))


def summarize(folder: Path) -> None:
    """Write tables, numbers and figure of all finished comparisons in a folder."""
    found = {
        (kind, size): outcomes
        for kind in FEATURES
        for size in ALL_SIZES
        if PROPOSED in (outcomes := read_outcomes(folder / kind / str(size), FIGURE_1)) and len(outcomes) > 1
    }
    speeds = {key: _speeds(outcomes) for key, outcomes in found.items()}
    rows, verdicts, plain = [], [], []
    for (kind, size), by_name in speeds.items():
        outcomes, key = found[kind, size], [kind, f"{size:,}"]
        ours = f"{outcomes[PROPOSED].accuracy:.1%}"
        for name, factors in by_name.items():
            cells = [METHODS[name].label, ours, f"{outcomes[name].accuracy:.1%}"]
            rows.append([*key, *cells, *map(str, factors.values())])
        finals = [ANSWERS[verdict.held] for verdict in check_claims(outcomes)[: len(FIGURES)]]
        for unit in ("in samples", "in processor seconds"):
            for factor in (1.0, ORDER_OF_MAGNITUDE):
                faster = [name for name in by_name if by_name[name][unit].exceeds(factor)]
                finals.append(", ".join(faster) or "none")
        verdicts.append([*key, *finals])
        plain.append(
            {
                "features": kind,
                "lemmas": size,
                "outcomes": {name: outcome.as_dict() for name, outcome in outcomes.items()},
                "factors": {
                    name: {unit: speed.factors.tolist() for unit, speed in factors.items()}
                    for name, factors in by_name.items()
                },
            }
        )
    header = ["features", "lemmas", "baseline", "accuracy, proposed", "baseline's", *UNITS]
    lines = format_table(header, rows)
    header = ["features", "lemmas", "better final accuracy", "better final log-likelihood"]
    header += ["in samples faster than", "ten times", "in processor seconds faster than", "ten times"]
    write_text(folder / "by-classes.md", "\n".join([*lines, "", *format_table(header, verdicts)]) + "\n")
    write_json(folder / "by-classes.json", plain)
    draw(speeds, folder / "by-classes.svg")


def _speeds(outcomes: Mapping[str, Outcome]) -> dict[str, dict[str, Speed]]:
    """Return the factors of a comparison by baseline and unit."""
    return {
        name: {unit: compare_speed(outcomes[PROPOSED], outcomes[name], **how) for unit, how in UNITS.items()}
        for name in BASELINES
        if name in outcomes
    }


def draw(speeds: Mapping[tuple[str, int], Mapping[str, Mapping[str, Speed]]], path: Path) -> None:
    """Draw the factors against the number of classes: a row per kind of features, a panel per unit."""
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(kind for kind, _ in speeds))
    sizes = sorted({size for _, size in speeds})
    figure = Figure(figsize=(13, 3.2 * len(kinds) + 0.6), layout="constrained")
    panels: Any = figure.subplots(len(kinds), len(UNITS), sharex=True, sharey=True, squeeze=False)
    for row, kind in zip(panels, kinds, strict=True):
        here = {size: by_name for (other, size), by_name in speeds.items() if other == kind}
        for axes, unit in zip(row, UNITS, strict=True):
            for name in BASELINES:
                points = [(size, found[name][unit]) for size, found in here.items() if name in found]
                points = [(size, speed) for size, speed in points if 0 < speed.mean < math.inf]
                method = METHODS[name]
                places = [size for size, _ in points]
                low, high = [speed.low for _, speed in points], [speed.high for _, speed in points]
                axes.fill_between(places, low, high, color=method.color, alpha=0.22, linewidth=0)
                axes.plot(
                    places,
                    [speed.mean for _, speed in points],
                    color=method.color,
                    marker=method.marker,
                    label=method.label,
                )
            for level in (1.0, 10.0):  # as fast, and faster by an order of magnitude
                axes.axhline(level, color="#999999", linewidth=0.8, linestyle="--")
            axes.set(xscale="log", yscale="log")
            axes.set_title(f"{kind} features, {unit}", fontsize=9)
            axes.yaxis.set_major_formatter(lambda value, _: format_factor(value))
            axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
            axes.minorticks_off()
    for axes in panels[-1]:
        axes.set_xlabel("classes")
    for row in panels:
        row[0].set_ylabel("times faster")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    figure.savefig(path, format="svg", metadata={"Date": None})
