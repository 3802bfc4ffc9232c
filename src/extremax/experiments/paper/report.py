"""The report of the paper's comparison, in Markdown: which claims fail first, then figures and reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from extremax.experiments.machine import describe_machine
from extremax.experiments.methods import BASELINES, METHODS, PROPOSED
from extremax.experiments.paper.claims import (
    ANSWERS,
    ORDER_OF_MAGNITUDE,
    PAPER,
    Outcome,
    Verdict,
    compare_speed,
    difference,
    format_figure,
)

_CLOCK_WORDS = {
    "cpu_seconds": "processor seconds, all threads together",
    "seconds": "elapsed seconds",
}


@dataclass(frozen=True)
class SearchFigures:
    """What a search tried, and its best trial.

    Attributes
    ----------
    n_trials, n_epochs
        Trials, and the epochs of each.
    score
        Best accuracy on validation rows.
    parameters
        Those of the best trial.
    readings
        Best score under each reading of Eq. 6.
    """

    n_trials: int
    n_epochs: int
    score: float
    parameters: dict[str, Any]
    readings: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ReportData:
    """All that a report is written from."""

    title: str
    outcomes: Mapping[str, Outcome]
    verdicts: Sequence[Verdict]
    summaries: Mapping[str, Sequence[dict[str, Any]]]
    models: Mapping[str, dict[str, Any]]
    searches: Mapping[str, SearchFigures]
    clock: str
    command: str


def write_report(data: ReportData) -> str:
    """Return the report."""
    parts = [
        [f"# The paper's comparison on {data.title}"],
        [f"- {verdict}" for verdict in sorted(data.verdicts, key=_failed_first)],
        [_how_made(data)],
        ["![Learning curves](figure.png)"],
        [_how_trained(data)],
        format_table(*_final_figures(data)),
        ["The paper's figures are of other data and other features; only the order can be compared."],
        _speed_section(data),
        _search_section(data),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _failed_first(verdict: Verdict) -> int:
    return (False, None, True).index(verdict.held)


def _how_made(data: ReportData) -> str:
    every = [summary for summaries in data.summaries.values() for summary in summaries]
    some = every[0]
    busiest = max(summary["machine"]["load_average"] or 0.0 for summary in every)
    made = f"Made by `{data.command}` on " if data.command else "Made on "
    text = f"{made}{describe_machine(some['machine'])}, {some['date'][:10]}"
    threads = {summary["threads"] for summary in every if "threads" in summary}
    if len(threads) == 1:
        n_threads = threads.pop()
        text += f", with {n_threads} thread{'' if n_threads == 1 else 's'}"
    text += (
        f". Times of verdicts and figure are {_CLOCK_WORDS[data.clock]}, of training with the tree, without"
    )
    text += " evaluation, checkpoints and compilation."
    if busiest > some["machine"]["processors"] + 0.5:
        text += (
            f" Other programs used the machine at the same time (load up to {busiest:.0f}), so that elapsed"
        )
        text += " times are too long."
    return f"{text} {_whole_time(every)}"


def _how_trained(data: ReportData) -> str:
    n_seeds = max(len(outcome.runs) for outcome in data.outcomes.values())
    n_test = next(iter(data.outcomes.values())).runs[0].n_test
    text = "Points lie at fixed numbers of training rows; validation rows choose the point of each curve."
    text += (
        f" Figures are means over {n_seeds} seed{'' if n_seeds == 1 else 's'} of {n_test:,} test rows, ± one"
    )
    text += " standard error: that of the test rows and that of the seeds together."
    if n_seeds > 1:
        text += " Bands in the figure go from the lowest seed to the highest."
    text += (
        " Every method trains the same affine model by Adagrad at a constant rate ρ, from weights of zero."
    )
    model = data.models.get(PROPOSED)
    if model is not None:
        literal = model.get("tree_fit") == "paper"
        tree = "as it is printed in the paper, to the letter" if literal else "by extremax's own fast fit"
        text += f" The tree of the proposed method and of NCE is fitted {tree}, and its time counts."
    if any(_reading(model) for model in data.models.values()):
        text += " λ penalises (ξ + log p_n)², as the text of Eq. 6 says; where the table says raw, ξ², as the"
        text += " authors' code does for noise that does not depend on x."
    rising = [METHODS[name].label for name, outcome in data.outcomes.items() if outcome.still_rises()]
    if rising:
        text += (
            " **Still rising at the end** (validation accuracy gained more than 2% of itself over the last"
        )
        text += f" doubling of samples): {', '.join(rising)}."
    return text


def _final_figures(data: ReportData) -> tuple[list[str], list[list[str]]]:
    header = ["method", "ρ", "λ or σ₀²", "epochs", "processor s", "wall s", "of these, tree", "test accuracy"]
    header += ["test log-likelihood", "last doubling", *(f"paper, {name}" for name in PAPER)]
    rows = []
    for name, outcome in data.outcomes.items():
        model = data.models[name]
        strength = next((model.get(searched) for searched in METHODS[name].searched), None)
        rate = model["learning_rate"]
        start = sum(run.start("cpu_seconds") for run in outcome.runs) / len(outcome.runs)
        cells = [
            METHODS[name].label,
            "default" if rate is None else f"{rate:g}",
            "-" if strength is None else f"{strength:g}{_reading(model)}",
            f"{data.summaries[name][0]['last']['epoch']:g}",
            f"{outcome.seconds('cpu_seconds'):.1f}",
            f"{outcome.seconds('seconds'):.1f}",
            f"{start:.1f}" if "tree_fit" in METHODS[name].model else "-",
            format_figure("accuracy", outcome.accuracy, outcome.error("accuracy")),
            format_figure("log_likelihood", outcome.log_likelihood, outcome.error("log_likelihood")),
            f"{outcome.gain_of_last_doubling():+.1%}",
        ]
        cells += [f"{PAPER[source][name]:.1%}" if name in PAPER[source] else "-" for source in PAPER]
        rows.append(cells)
    return header, rows


def _speed_section(data: ReportData) -> list[str]:
    """Return the table of factors, one row per baseline."""
    proposed = data.outcomes.get(PROPOSED)
    baselines = [data.outcomes[name] for name in BASELINES if name in data.outcomes]
    if proposed is None or not baselines:
        return []
    header = ["baseline", "its accuracy", "accuracy, proposed minus baseline", "faster, processor", "wall"]
    header += [
        "without the tree's time",
        "in samples",
        "at 95% of its accuracy",
        "faster",
        "by an order of magnitude",
    ]
    rows = []
    for baseline in baselines:
        speed = compare_speed(proposed, baseline, clock="cpu_seconds")
        wall = compare_speed(proposed, baseline, clock="seconds")
        trained = compare_speed(proposed, baseline, clock="cpu_seconds", with_start=False)
        samples = compare_speed(proposed, baseline, clock="samples")
        near = compare_speed(proposed, baseline, clock="cpu_seconds", fraction=0.95)
        decisive = speed if data.clock == "cpu_seconds" else wall
        rows.append(
            [
                METHODS[baseline.method].label,
                f"{baseline.accuracy:.1%}",
                format_figure("accuracy", *difference(proposed, baseline, "accuracy"), signed=True),
                *(str(found) for found in (speed, wall, trained, samples, near)),
                ANSWERS[decisive.exceeds(1.0)],
                ANSWERS[decisive.exceeds(ORDER_OF_MAGNITUDE)],
            ]
        )
    intro = "How many times faster the proposed method reaches the final accuracy of each baseline: geometric"
    intro += " mean over pairs of seeds (lowest to highest). Yes and no are for all seeds; times"
    intro += " within 5% count as equal."
    return ["## Speed", "", intro, "", *format_table(header, rows)]


def _search_section(data: ReportData) -> list[str]:
    if not data.searches:
        return ["The parameters are those of the recipes; they were not searched for this report."]
    header = ["method", "trials", "epochs of a trial", "validation accuracy of the best", "readings of Eq. 6"]
    rows = []
    for name, search in data.searches.items():
        readings = ", ".join(f"{_READINGS[key]} {score:.1%}" for key, score in search.readings.items())
        cells = [METHODS[name].label, str(search.n_trials), str(search.n_epochs), f"{search.score:.1%}"]
        rows.append([*cells, readings or "-"])
    untuned = [METHODS[name].label for name in data.outcomes if name not in data.searches]
    intro = "Each method had the same number of trials on the paper's grid, chosen by validation accuracy."
    if untuned:
        intro += f" Not searched: {', '.join(untuned)}."
    return ["## Parameters", "", intro, "", *format_table(header, rows)]


_READINGS = {"debiased": "(ξ + log p_n)²", "raw": "ξ²"}


def _reading(model: Mapping[str, Any]) -> str:
    """Return a word on the reading of Eq. 6, where it is not that of the text."""
    return " (raw)" if model.get("penalized_scores") == "raw" else ""


def format_table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    return lines + ["| " + " | ".join(cells) + " |" for cells in rows]


def _whole_time(summaries: Iterable[dict[str, Any]]) -> str:
    """Word the elapsed time of all runs together, without reading the data and searching."""
    parts = dict.fromkeys(("training", "evaluation", "compilation"), 0.0)
    for summary in summaries:
        for part in parts:
            parts[part] += summary[f"{part}_seconds"]
    listed = ", ".join(f"{part} {seconds:.0f} s" for part, seconds in parts.items())
    return f"All runs together took {sum(parts.values()) / 60:.1f} minutes: {listed}."
