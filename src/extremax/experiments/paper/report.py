"""The report of the paper's comparison, in Markdown: which claims fail first, then figures and reasons."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from extremax.experiments.curve import PLATEAU
from extremax.experiments.figures import describe_data, read_run
from extremax.experiments.machine import describe_machine
from extremax.experiments.methods import METHODS, PROPOSED
from extremax.experiments.paper.claims import (
    ANSWERS,
    ORDER_OF_MAGNITUDE,
    PAPER,
    UNITS,
    Outcome,
    Verdict,
    compare,
    finished_runs,
    format_figure,
    speeds_of,
)


def write_report(
    folder: Path,
    outcomes: Mapping[str, Outcome],
    verdicts: Sequence[Verdict],
    models: Mapping[str, dict[str, Any]],
    command: str,
) -> str:
    """Return the report of a folder; `models` has the parameters of each method."""
    runs = [path for name in outcomes for path in finished_runs(folder, name)]
    failed_first = sorted(verdicts, key=lambda verdict: (False, None, True).index(verdict.held))
    parts = [
        f"# The paper's comparison on {describe_data(read_run(runs[0]))}",
        "\n".join(f"- {verdict}" for verdict in failed_first),
        _how_made([_read_json(path / "summary.json") for path in runs], command),
        "![Learning curves](figure.png)",
        _how_trained(folder, outcomes, models),
        _final_figures(outcomes, models),
        "The paper's figures are of other data and other features; only the order can be compared.",
        _speed_section(outcomes),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _how_made(summaries: Sequence[dict[str, Any]], command: str) -> str:
    first, busiest = summaries[0], max(one["machine"]["load_average"] or 0.0 for one in summaries)
    threads = ", ".join(sorted({str(summary["threads"]) for summary in summaries}))
    text = f"Made by `{command}` on " if command else "Made on "
    text += f"{describe_machine(first['machine'])}, {first['date'][:10]}; threads: {threads}; load up to"
    text += f" {busiest:.0f}. Times are processor seconds of training, tree included, without evaluation,"
    text += " checkpoints and compilation. With these, the runs took"
    return f"{text} {sum(one['session_cpu_seconds'] for one in summaries) / 60:.1f} minutes."


def _how_trained(folder: Path, outcomes: Mapping[str, Outcome], models: Mapping[str, dict[str, Any]]) -> str:
    runs = next(iter(outcomes.values())).runs
    text = "Points lie at fixed numbers of training rows; validation rows choose the point of each curve."
    text += (
        " Every method trains the same affine model by Adagrad at a constant rate ρ, from weights of zero."
    )
    text += f" Figures are means over {max(len(outcome.runs) for outcome in outcomes.values())} seeds of"
    text += f" {len(runs[0].by_row['accuracy']):,} test rows, ± one standard error of rows and seeds."
    if PROPOSED in models:
        literal = models[PROPOSED].get("tree_fit") == "paper"
        tree = "as it is printed in the paper, to the letter" if literal else "by extremax's own fast fit"
        text += f" The tree is fitted {tree}. λ penalises (ξ + log p_n)², as the text of Eq. 6 says; where"
        text += " the table says raw, ξ², as the authors' code does for noise that does not depend on x."
    rising = [outcome.label for outcome in outcomes.values() if outcome.gain_of_last_doubling() > PLATEAU]
    if rising:
        text += " **Still rising at the end** (validation accuracy gained more than 2% of itself over the"
        text += f" last doubling of samples): {', '.join(rising)}."
    searched = []
    for name, outcome in outcomes.items():
        path = folder / "search" / name / "result.json"
        if path.exists():
            found = _read_json(path)
            trials = f"{found['n_trials']} × {found['n_epochs']} epochs"
            searched.append(f"{outcome.label} {trials}, {found['score']:.1%}")
    if not searched:
        return f"{text} The parameters are those of the recipes; they were not searched for this report."
    return f"{text} Trials, and the best validation accuracy among them: {'; '.join(searched)}."


def _final_figures(outcomes: Mapping[str, Outcome], models: Mapping[str, dict[str, Any]]) -> str:
    header = ["method", "ρ", "λ or σ₀²", "epochs", "processor s", "of these, tree", "test accuracy"]
    header += ["test log-likelihood", "last doubling", *(f"paper, {name}" for name in PAPER)]
    rows = []
    for name, outcome in outcomes.items():
        model = models[name]
        rate, strength = model["learning_rate"], model.get(METHODS[name].searched[0])
        reading = " (raw)" if model.get("penalized_scores") == "raw" else ""
        cells = [
            outcome.label,
            "default" if rate is None else f"{rate:g}",
            "-" if strength is None else f"{strength:g}{reading}",
            f"{outcome.runs[0].points[-1]['epoch']:g}",
            f"{outcome.seconds():.1f}",
            f"{outcome.seconds(0):.1f}" if "tree_fit" in METHODS[name].model else "-",
            outcome.describe("accuracy"),
            outcome.describe("log_likelihood"),
            f"{outcome.gain_of_last_doubling():+.1%}",
        ]
        rows.append(cells + [f"{known[name]:.1%}" if name in known else "-" for known in PAPER.values()])
    return format_table(header, rows)


def _speed_section(outcomes: Mapping[str, Outcome]) -> str:
    """Return the table of factors, one row per baseline."""
    rows = []
    for name, factors in speeds_of(outcomes).items():
        ahead = compare(outcomes[PROPOSED], outcomes[name], "accuracy")
        decisive = factors["in processor seconds"]
        rows.append(
            [
                outcomes[name].label,
                f"{outcomes[name].mean('accuracy'):.1%}",
                format_figure("accuracy", ahead.value, ahead.error, signed=True),
                *map(str, factors.values()),
                *(ANSWERS[decisive.exceeds(factor)] for factor in (1.0, ORDER_OF_MAGNITUDE)),
            ]
        )
    if not rows:
        return ""
    intro = "How many times faster the proposed method reaches the final accuracy of each baseline: geometric"
    intro += (
        " mean over pairs of seeds (lowest to highest). Yes and no are for processor seconds and all seeds;"
    )
    intro += " times within 5% count as equal."
    header = ["baseline", "its accuracy", "accuracy, proposed minus baseline", *UNITS]
    table = format_table([*header, "faster", "by an order of magnitude"], rows)
    return f"## Speed\n\n{intro}\n\n{table}"


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
