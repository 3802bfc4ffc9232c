"""How the factors of the paper's comparison depend on the number of classes: random sets of Polish lemmas.

512 features of the word forms, unsupervised ("text") or learned for the same labels ("learned"), as those of
the paper are. Every method has the same trials, and trains to its plateau, at most 30 epochs with a tree
and 150 without. The tree is extremax's own fit with the paper's 16 components and lambda_n = 0.1.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from extremax.experiments.catalog import LEMMA_SUBSETS
from extremax.experiments.methods import BASELINES, FIGURE_1, METHODS, PROPOSED
from extremax.experiments.paper.claims import (
    ANSWERS,
    FIGURES,
    ORDER_OF_MAGNITUDE,
    UNITS,
    Speed,
    check_claims,
    format_factor,
    read_outcomes,
    speeds_of,
)
from extremax.experiments.paper.plan import describe_needs
from extremax.experiments.paper.report import format_table
from extremax.experiments.paper.reproduction import reproduce
from extremax.experiments.recipe import (
    DataConfig,
    EvaluationConfig,
    FeaturesConfig,
    Recipe,
    SearchConfig,
)
from extremax.runtime.atomic_files import write_json, write_text

ALL_SIZES = tuple(LEMMA_SUBSETS.values())
SIZES = ALL_SIZES[:-1]  # by default: all lemmas take hours
FEATURES = ("learned", "text")
N_FEATURES = 512
# Rates and penalties: around the best of earlier searches on features of unit length.
RATES = [0.1, 0.3, 1.0]
_GRID: dict[str, list[Any]] = {"score_penalty": [1e-4, 1e-3], "prior_variance": [10.0, 1000.0]}
N_TRIALS, N_FINALISTS = 6, 2  # the whole grid
_SVD_ROWS = 20_000  # rows that a truncated SVD is fitted to


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


def reproduce_lemmas(
    out: str | os.PathLike[str],
    *,
    sizes: Sequence[int] = SIZES,
    features: Sequence[str] = FEATURES,
    methods: Sequence[str] = (),
    n_trials: int = 0,
    n_finalists: int = N_FINALISTS,
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
    effort: dict[str, Any] = {"n_trials": n_trials or N_TRIALS, "n_finalists": n_finalists}
    compared = {
        (size, kind): {name: lemma_recipe(size, kind, name) for name in names}
        for size in sorted(sizes)
        for kind in features
    }
    limits = {name: options[name] for name in ("n_seeds", "max_seconds") if name in options}
    seconds = sum(describe_needs(recipes, **effort, **limits)[1] for recipes in compared.values())
    n_minutes = f"at most about {seconds / 60:.0f} minutes of processor time"
    options.get("log", print)(f"{len(compared)} comparisons take {n_minutes} together")
    for (size, kind), recipes in compared.items():
        reproduce(f"lemmas-{size}", Path(out) / kind / str(size), recipes=recipes, **effort, **options)
        summarize(Path(out))


def summarize(folder: Path) -> None:
    """Write tables, numbers and figure of all finished comparisons in a folder."""
    speeds: dict[tuple[str, int], dict[str, dict[str, Speed]]] = {}
    factors, verdicts, plain = [], [], []
    for kind, size in itertools.product(FEATURES, ALL_SIZES):
        outcomes = read_outcomes(folder / kind / str(size), FIGURE_1)
        of_size, key = speeds_of(outcomes), [kind, f"{size:,}"]
        if not of_size:
            continue
        speeds[kind, size] = of_size
        for name, by_unit in of_size.items():
            accuracies = [f"{outcomes[which].mean('accuracy'):.1%}" for which in (PROPOSED, name)]
            factors.append([*key, outcomes[name].label, *accuracies, *map(str, by_unit.values())])
        answers = [ANSWERS[verdict.held] for verdict in check_claims(outcomes)[: len(FIGURES)]]
        for unit, least in itertools.product(list(UNITS)[:2], (1.0, ORDER_OF_MAGNITUDE)):
            faster = [name for name, by_unit in of_size.items() if by_unit[unit].exceeds(least)]
            answers.append(", ".join(faster) or "none")
        verdicts.append([*key, *answers])
        by_seed = {
            name: {unit: speed.factors.tolist() for unit, speed in by_unit.items()}
            for name, by_unit in of_size.items()
        }
        figures_of = {name: outcome.as_dict() for name, outcome in outcomes.items()}
        plain.append({"features": kind, "lemmas": size, "outcomes": figures_of, "factors": by_seed})
    header = ["features", "lemmas", "baseline", "accuracy, proposed", "baseline's", *UNITS]
    tables = [format_table(header, factors)]
    header = ["features", "lemmas", "better final accuracy", "better final log-likelihood"]
    header += ["in samples faster than", "ten times", "in processor seconds faster than", "ten times"]
    tables.append(format_table(header, verdicts))
    write_text(folder / "by-classes.md", "\n\n".join(tables) + "\n")
    write_json(folder / "by-classes.json", plain)
    draw(speeds, folder / "by-classes.svg")


def draw(speeds: Mapping[tuple[str, int], Mapping[str, Mapping[str, Speed]]], path: Path) -> None:
    """Draw the factors against the number of classes: a row per kind of features, a panel per unit."""
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(kind for kind, _ in speeds))
    sizes = sorted({size for _, size in speeds})
    figure = Figure(figsize=(13, 3.2 * len(kinds) + 0.6), layout="constrained")
    panels: Any = figure.subplots(len(kinds), len(UNITS), sharex=True, sharey=True, squeeze=False)
    for (kind, unit), axes in zip(itertools.product(kinds, UNITS), panels.flat, strict=True):
        for name in BASELINES:
            found = [(size, speeds.get((kind, size), {}).get(name, {}).get(unit)) for size in sizes]
            points = [(size, speed) for size, speed in found if speed and 0 < speed.mean < math.inf]
            x, look = [size for size, _ in points], METHODS[name]
            ends = [[end(speed.factors) for _, speed in points] for end in (min, max)]
            axes.fill_between(x, *ends, color=look.color, alpha=0.22, linewidth=0)
            y = [speed.mean for _, speed in points]
            axes.plot(x, y, color=look.color, marker=look.marker, label=look.label)
        for level in (1.0, ORDER_OF_MAGNITUDE):
            axes.axhline(level, color="#999999", linewidth=0.8, linestyle="--")
        axes.set(xscale="log", yscale="log", xlabel="classes", ylabel="times faster")
        axes.label_outer()
        axes.set_title(f"{kind} features, {unit}", fontsize=9)
        axes.yaxis.set_major_formatter(lambda value, _: format_factor(value))
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    figure.savefig(path, format="svg", metadata={"Date": None})
