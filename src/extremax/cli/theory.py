"""``extremax theory``: signal-to-noise ratios at the optimum and along training, as tables and a figure."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from extremax.cli import terminal
from extremax.cli.options import Json, Quiet, Seed, Threads

FIGURE_FORMATS = ("png", "svg", "pdf")


class Data(StrEnum):
    """Data on which noise distributions are compared."""

    planted = "planted"
    icd10cm = "icd10cm"
    eurlex57k = "eurlex57k"


def theory(
    data: Annotated[
        Data,
        typer.Option(
            "--data",
            help="planted: a hierarchy whose p_D is known; icd10cm: real texts, p_D by a classifier;"
            " eurlex57k: with --training alone.",
        ),
    ] = Data.planted,
    training: Annotated[
        bool,
        typer.Option(
            "--training",
            help="Measure the ratio along training with each noise and the default, and what is learned.",
        ),
    ] = False,
    figure: Annotated[
        Path | None,
        typer.Option(
            "--figure",
            metavar="FILE",
            help="Draw SNR against the weight of p_D, or along training: .png, .svg or .pdf.",
        ),
    ] = None,
    seed: Seed = None,
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare noise distributions by the paper's theory.

    First table: the signal-to-noise ratio of the paper's section 4 computed in three ways on a small problem.
    Second table: the same ratio on many classes, relative to the best one (p_n = p_D), with the overlap of
    p_n and p_D on which it depends, the divergence of p_n from p_D in nats, and the mean log-likelihood of
    the rows' labels.

    With --training there is another table: at fixed numbers of training rows, the ratio estimated from
    gradients of minibatches, and the log-likelihood of validation rows.
    """
    terminal.set_quiet(quiet)
    if figure is not None and figure.suffix.lower().removeprefix(".") not in FIGURE_FORMATS:
        raise typer.BadParameter(f"--figure {figure}: the name must end in .png, .svg or .pdf.")
    if figure is not None:
        terminal.check_file(figure)
    if training:
        drawn = _along_training(data, 0 if seed is None else seed, threads, as_json, figure is not None)
    elif data is Data.eurlex57k:
        raise typer.BadParameter("--data eurlex57k: there is only its --training; add it, or use icd10cm.")
    else:
        drawn = _at_the_optimum(data, 0 if seed is None else seed, threads, as_json, figure is not None)
    if figure is not None:
        with terminal.atomic_file(figure) as file:
            drawn.savefig(file, format=figure.suffix.lower().removeprefix("."))
        terminal.log(f"wrote {figure}")


def _along_training(data: Data, seed: int, threads: int | None, as_json: bool, draws: bool) -> Any:
    """Print what is measured along training, and return a figure of it."""
    from extremax.experiments.paper import training_study

    study = training_study.training_study(data.value, seed=seed, n_jobs=threads, log=terminal.log)
    if as_json:
        terminal.show_json(study.as_dict())
    else:
        columns = [
            "method",
            "samples",
            "SNR of a row",
            "standard error",
            "valid log-likelihood",
            "valid accuracy",
        ]
        rows = [
            [
                point.method,
                f"{point.samples:,}",
                f"{point.ratio:.3g}",
                f"{point.error:.1g}",
                f"{point.log_likelihood:.3f}",
                terminal.fraction(point.accuracy),
            ]
            for point in study.points
        ]
        title = f"{study.data}: {study.n_rows:,} training rows, {study.n_classes:,} classes"
        terminal.print_table(columns, rows, title=title, right=columns[1:])
    if not draws:
        return None
    from extremax.experiments.paper.theory_figure import draw_training

    return draw_training(study)


def _at_the_optimum(data: Data, seed: int, threads: int | None, as_json: bool, draws: bool) -> Any:
    """Print the ratios of the paper's section 4, and return a figure of them."""
    from extremax.experiments.paper import theory_study

    terminal.log("computing the signal-to-noise ratio in three ways on a small problem")
    checks = theory_study.three_ways(seed=seed, n_jobs=threads)
    terminal.log(f"comparing noise distributions on many classes ({data})")
    make = theory_study.icd10cm_study if data is Data.icd10cm else theory_study.planted_study
    study = make(seed=seed, n_jobs=threads)
    if as_json:
        terminal.show_json({"three_ways": [vars(check) for check in checks], **study.as_dict()})
    else:
        columns = ["noise", "exact", "matrices", "simulated", "standard error"]
        rows = [
            [c.noise, f"{c.exact:.6f}", f"{c.matrices:.6f}", f"{c.simulated:.6f}", f"{c.standard_error:.6f}"]
            for c in checks
        ]
        terminal.print_table(
            columns, rows, title="Signal-to-noise ratio, 5 rows and 8 classes", right=columns[1:]
        )
        columns = ["noise", "relative SNR", "overlap", "divergence", "log-likelihood"]
        rows = [
            [
                row.noise,
                f"{row.relative_snr:.6f}",
                f"{row.overlap:.3f}",
                f"{row.divergence:.3f}",
                f"{likelihood:.3f}",
            ]
            for row, likelihood in zip(study.noises, study.log_likelihood, strict=True)
        ]
        terminal.write("")
        title = f"{study.data}: {study.n_rows:,} rows, {study.n_classes:,} classes"
        terminal.print_table(columns, rows, title=title, right=columns[1:])
    if not draws:
        return None
    from extremax.experiments.paper.theory_figure import draw

    marks = {row.noise: row.relative_snr for row in study.noises}
    title = f"{study.data}, {study.n_classes:,} classes"
    return draw(study.curve, marks, n_classes=study.n_classes, title=title)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(theory)
