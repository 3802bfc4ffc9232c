"""``extremax theory``: signal-to-noise ratios at the optimum and along training, as tables and a figure."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from extremax.cli import terminal
from extremax.cli.options import Json, Quiet, Seed, Threads


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
    seed: Seed = 0,
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
    if figure is not None:
        if figure.suffix.lower() not in (".png", ".svg", ".pdf"):
            raise typer.BadParameter(f"--figure {figure}: the name must end in .png, .svg or .pdf.")
        terminal.check_file(figure)
    if data is Data.eurlex57k and not training:
        raise typer.BadParameter("--data eurlex57k: there is only its --training; add it, or use icd10cm.")
    study: Any = _training_study(data, seed, threads, as_json) if training else None
    if study is None:
        study = _study(data, seed, threads, as_json)
    if figure is not None:
        from extremax.experiments.paper import theory_figure

        draw = theory_figure.draw_training if training else theory_figure.draw_study
        with terminal.atomic_file(figure) as file:
            draw(study).savefig(file, format=figure.suffix.lower().removeprefix("."))
        terminal.log(f"wrote {figure}")


def _training_study(data: Data, seed: int | None, threads: int | None, as_json: bool) -> Any:
    """Print what is measured along training."""
    from extremax.experiments.paper.training_study import training_study

    study = training_study(data.value, seed=seed or 0, n_jobs=threads, log=terminal.log)
    if as_json:
        terminal.show_json(study.as_dict())
        return study
    columns = ["method", "samples", "SNR of a row", "standard error"]
    rows = [
        [p.method, p.samples, f"{p.ratio:.3g}", f"{p.error:.1g}", p.log_likelihood, p.accuracy]
        for p in study.points
    ]
    title = f"{study.data}: {study.n_rows:,} training rows, {study.n_classes:,} classes"
    terminal.print_table([*columns, "valid log-likelihood", "valid accuracy"], rows, title=title)
    return study


def _study(data: Data, seed: int | None, threads: int | None, as_json: bool) -> Any:
    """Print the ratios of the paper's section 4."""
    from extremax.experiments.paper import theory_study

    terminal.log("computing the signal-to-noise ratio in three ways on a small problem")
    checks = [vars(check) for check in theory_study.three_ways(seed=seed or 0, n_jobs=threads)]
    terminal.log(f"comparing noise distributions on many classes ({data})")
    make = theory_study.icd10cm_study if data is Data.icd10cm else theory_study.planted_study
    study = make(seed=seed or 0, n_jobs=threads)
    if as_json:
        terminal.show_json({"three_ways": checks, **study.as_dict()})
        return study
    rows = [[c.pop("noise"), *(f"{value:.6f}" for value in c.values())] for c in checks]
    columns = ["noise", "exact", "matrices", "simulated", "standard error"]
    terminal.print_table(columns, rows, title="Signal-to-noise ratio, 5 rows and 8 classes")
    terminal.write("")
    rows = [
        [row.noise, f"{row.relative_snr:.6f}", row.overlap, row.divergence, likelihood]
        for row, likelihood in zip(study.noises, study.log_likelihood, strict=True)
    ]
    title = f"{study.data}: {study.n_rows:,} rows, {study.n_classes:,} classes"
    columns = ["noise", "relative SNR", "overlap", "divergence", "log-likelihood"]
    terminal.print_table(columns, rows, title=title)
    return study
