"""``extremax theory``: the signal-to-noise ratio of noise distributions, as a table and a figure."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from extremax.cli import terminal
from extremax.cli.options import Json, Quiet, Seed, Threads

FIGURE_FORMATS = ("png", "svg", "pdf")


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
            "--figure", metavar="FILE", help="Draw SNR against the weight of p_D: .png, .svg or .pdf."
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
    """
    terminal.set_quiet(quiet)
    if figure is not None and figure.suffix.lower().removeprefix(".") not in FIGURE_FORMATS:
        raise typer.BadParameter(f"--figure {figure}: the name must end in .png, .svg or .pdf.")
    if figure is not None:
        terminal.check_file(figure)
    from extremax.paper import theory_study

    first_seed = 0 if seed is None else seed
    terminal.log("computing the signal-to-noise ratio in three ways on a small problem")
    checks = theory_study.three_ways(seed=first_seed, n_jobs=threads)
    terminal.log(f"comparing noise distributions on many classes ({data})")
    make = theory_study.icd10cm_study if data is Data.icd10cm else theory_study.planted_study
    study = make(seed=first_seed, n_jobs=threads)
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
    if figure is not None:
        from extremax.paper.theory_figure import draw

        marks = {row.noise: row.relative_snr for row in study.noises}
        title = f"{study.data}, {study.n_classes:,} classes"
        drawn = draw(study.curve, marks, n_classes=study.n_classes, title=title)
        with terminal.atomic_file(figure) as file:
            drawn.savefig(file, format=figure.suffix.lower().removeprefix("."))
        terminal.log(f"wrote {figure}")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(theory)
