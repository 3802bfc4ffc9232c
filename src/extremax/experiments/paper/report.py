"""The report of the paper's comparison, in Markdown: which claims fail first, then figures and reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from extremax.experiments.curve import PLATEAU
from extremax.experiments.machine import describe_machine
from extremax.experiments.methods import BASELINES, METHODS, PROPOSED
from extremax.experiments.paper.claims import (
    ANSWERS,
    ORDER_OF_MAGNITUDE,
    PAPER,
    Outcome,
    Speed,
    Verdict,
    compare_speed,
    difference,
    format_figure,
)

# Units of a factor: rows seen, and processor seconds with the tree and without it.
UNITS: dict[str, dict[str, Any]] = {
    "in samples": {"clock": "samples"},
    "in processor seconds": {},
    "without the tree": {"with_start": False},
    "at 95% of the accuracy": {"fraction": 0.95},
}
_READINGS = {"debiased": "(ξ + log p_n)²", "raw": "ξ²"}


@dataclass(frozen=True)
class ReportData:
    """All that a report is written from, by method: outcomes, summaries of runs, models and searches."""

    title: str
    outcomes: Mapping[str, Outcome]
    verdicts: Sequence[Verdict]
    summaries: Mapping[str, Sequence[dict[str, Any]]]
    models: Mapping[str, dict[str, Any]]
    searches: Mapping[str, dict[str, Any]]
    command: str


def write_report(data: ReportData) -> str:
    """Return the report."""
    failed_first = sorted(data.verdicts, key=lambda verdict: (False, None, True).index(verdict.held))
    parts = [
        f"# The paper's comparison on {data.title}",
        "\n".join(f"- {verdict}" for verdict in failed_first),
        _how_made(data),
        "![Learning curves](figure.png)",
        _how_trained(data),
        _final_figures(data),
        "The paper's figures are of other data and other features; only the order can be compared.",
        _speed_section(data.outcomes),
        _search_section(data),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _how_made(data: ReportData) -> str:
    every = [summary for summaries in data.summaries.values() for summary in summaries]
    machine, busiest = every[0]["machine"], max(one["machine"]["load_average"] or 0.0 for one in every)
    threads = ", ".join(sorted({str(summary["threads"]) for summary in every}))
    text = f"Made by `{data.command}` on " if data.command else "Made on "
    text += f"{describe_machine(machine)}, {every[0]['date'][:10]}; threads: {threads}. Times are processor"
    text += " seconds of training, tree included, without evaluation, checkpoints and compilation."
    if busiest > machine["processors"] + 0.5:
        text += f" Other programs used the machine at the same time (load up to {busiest:.0f})."
    parts = {
        part: sum(one[f"{part}_seconds"] for one in every)
        for part in ("training", "evaluation", "compilation")
    }
    listed = ", ".join(f"{part} {seconds:.0f} s" for part, seconds in parts.items())
    return f"{text} All runs together took {sum(parts.values()) / 60:.1f} minutes: {listed}."


def _how_trained(data: ReportData) -> str:
    outcomes = data.outcomes.values()
    n_seeds, n_test = max(len(outcome.runs) for outcome in outcomes), next(iter(outcomes)).runs[0].n_test
    text = "Points lie at fixed numbers of training rows; validation rows choose the point of each curve."
    text += f" Figures are means over {n_seeds} seed{'s' * (n_seeds > 1)} of {n_test:,} test rows, ± one"
    text += " standard error: that of the test rows and that of the seeds together."
    text += (
        " Every method trains the same affine model by Adagrad at a constant rate ρ, from weights of zero."
    )
    if PROPOSED in data.models:
        literal = data.models[PROPOSED].get("tree_fit") == "paper"
        tree = "as it is printed in the paper, to the letter" if literal else "by extremax's own fast fit"
        text += f" The tree of the proposed method and of NCE is fitted {tree}, and its time counts."
    if any(map(_reading, data.models.values())):
        text += " λ penalises (ξ + log p_n)², as the text of Eq. 6 says; where the table says raw, ξ², as the"
        text += " authors' code does for noise that does not depend on x."
    rising = [outcome.label for outcome in outcomes if outcome.gain_of_last_doubling() > PLATEAU]
    if rising:
        text += (
            " **Still rising at the end** (validation accuracy gained more than 2% of itself over the last"
        )
        text += f" doubling of samples): {', '.join(rising)}."
    return text


def _final_figures(data: ReportData) -> str:
    header = ["method", "ρ", "λ or σ₀²", "epochs", "processor s", "of these, tree", "test accuracy"]
    header += ["test log-likelihood", "last doubling", *(f"paper, {name}" for name in PAPER)]
    rows = []
    for name, outcome in data.outcomes.items():
        model = data.models[name]
        rate, strength = model["learning_rate"], model.get(METHODS[name].searched[0])
        cells = [
            outcome.label,
            "default" if rate is None else f"{rate:g}",
            "-" if strength is None else f"{strength:g}{_reading(model)}",
            f"{data.summaries[name][0]['last']['epoch']:g}",
            f"{outcome.seconds():.1f}",
            f"{outcome.start_seconds():.1f}" if "tree_fit" in METHODS[name].model else "-",
            outcome.describe("accuracy"),
            outcome.describe("log_likelihood"),
            f"{outcome.gain_of_last_doubling():+.1%}",
        ]
        rows.append(cells + [f"{known[name]:.1%}" if name in known else "-" for known in PAPER.values()])
    return format_table(header, rows)


def speeds_of(outcomes: Mapping[str, Outcome]) -> dict[str, dict[str, Speed]]:
    """Return the factors of a comparison by baseline and unit."""
    if PROPOSED not in outcomes:
        return {}
    return {
        name: {unit: compare_speed(outcomes[PROPOSED], outcomes[name], **how) for unit, how in UNITS.items()}
        for name in BASELINES
        if name in outcomes
    }


def _speed_section(outcomes: Mapping[str, Outcome]) -> str:
    """Return the table of factors, one row per baseline."""
    header = ["baseline", "its accuracy", "accuracy, proposed minus baseline", *UNITS, "faster"]
    rows = []
    for name, factors in speeds_of(outcomes).items():
        ahead = difference(outcomes[PROPOSED], outcomes[name], "accuracy")
        decisive = factors["in processor seconds"]
        answers = [ANSWERS[decisive.exceeds(factor)] for factor in (1.0, ORDER_OF_MAGNITUDE)]
        cells = [outcomes[name].label, f"{outcomes[name].mean('accuracy'):.1%}"]
        cells += [format_figure("accuracy", *ahead, signed=True), *map(str, factors.values())]
        rows.append(cells + answers)
    if not rows:
        return ""
    intro = "How many times faster the proposed method reaches the final accuracy of each baseline: geometric"
    intro += (
        " mean over pairs of seeds (lowest to highest). Yes and no are for processor seconds and all seeds;"
    )
    intro += " times within 5% count as equal."
    return f"## Speed\n\n{intro}\n\n" + format_table([*header, "by an order of magnitude"], rows)


def _search_section(data: ReportData) -> str:
    if not data.searches:
        return "The parameters are those of the recipes; they were not searched for this report."
    header = ["method", "trials", "epochs of a trial", "validation accuracy of the best", "readings of Eq. 6"]
    rows = []
    for name, search in data.searches.items():
        readings = ", ".join(f"{_READINGS[key]} {score:.1%}" for key, score in search["readings"].items())
        cells = [
            METHODS[name].label,
            str(search["n_trials"]),
            str(search["n_epochs"]),
            f"{search['score']:.1%}",
        ]
        rows.append([*cells, readings or "-"])
    intro = "Each method had the same number of trials, chosen by validation accuracy."
    untuned = [METHODS[name].label for name in data.outcomes if name not in data.searches]
    if untuned:
        intro += f" Not searched: {', '.join(untuned)}."
    return f"## Parameters\n\n{intro}\n\n" + format_table(header, rows)


def _reading(model: Mapping[str, Any]) -> str:
    """Return a word on the reading of Eq. 6, where it is not that of the text."""
    return " (raw)" if model.get("penalized_scores") == "raw" else ""


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
