"""``extremax theory``: signal-to-noise ratios at the optimum, as tables and a figure."""

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


def theory(
    data: Annotated[
        Data,
        typer.Option(
            "--data",
            help="planted: a hierarchy whose p_D is known; icd10cm: real texts, p_D by a classifier.",
        ),
    ] = Data.planted,
    figure: Annotated[
        Path | None,
        typer.Option(
            "--figure",
            metavar="FILE",
            help="Draw SNR against the weight of p_D: .png, .svg or .pdf.",
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
    """
    terminal.set_quiet(quiet)
    if figure is not None:
        if figure.suffix.lower() not in (".png", ".svg", ".pdf"):
            raise typer.BadParameter(f"--figure {figure}: the name must end in .png, .svg or .pdf.")
        terminal.check_file(figure)
    study = _study(data, seed, threads, as_json)
    if figure is not None:
        from extremax.experiments.paper import theory_figure

        with terminal.atomic_file(figure) as file:
            theory_figure.draw_study(study).savefig(file, format=figure.suffix.lower().removeprefix("."))
        terminal.log(f"wrote {figure}")


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
