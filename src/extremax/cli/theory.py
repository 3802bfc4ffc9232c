"""``extremax theory``: signal-to-noise ratios at the optimum, as a table."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

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
    seed: Seed = 0,
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare noise distributions by the paper's theory.

    The signal-to-noise ratio of the paper's section 4 on many classes, relative to the best one (p_n = p_D),
    with the overlap of p_n and p_D on which it depends, the divergence of p_n from p_D in nats, and the mean
    log-likelihood of the rows' labels.
    """
    from extremax.experiments.paper import theory_study

    terminal.set_quiet(quiet)
    terminal.log(f"comparing noise distributions on many classes ({data})")
    make = theory_study.icd10cm_study if data is Data.icd10cm else theory_study.planted_study
    study = make(seed=seed or 0, n_jobs=threads)
    if as_json:
        terminal.show_json(study.as_dict())
        return
    rows = [
        [row.noise, f"{row.relative_snr:.6f}", row.overlap, row.divergence, likelihood]
        for row, likelihood in zip(study.noises, study.log_likelihood, strict=True)
    ]
    title = f"{study.data}: {study.n_rows:,} rows, {study.n_classes:,} classes"
    columns = ["noise", "relative SNR", "overlap", "divergence", "log-likelihood"]
    terminal.print_table(columns, rows, title=title)
