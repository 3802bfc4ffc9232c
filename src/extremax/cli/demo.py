"""``extremax demo``: train a classifier over the 10,662 parent codes of ICD-10-CM in about a minute."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from extremax.cli import terminal
from extremax.cli.ask import show_answers, show_reasons
from extremax.cli.models import answers_of
from extremax.cli.options import Quiet, Seed, Threads


def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for the model and the figure.")
    ] = Path("demo"),
    epochs: Annotated[
        int | None,
        typer.Option("--n-epochs", min=1, help="Passes over the training texts.  [default: chosen]"),
    ] = None,
    rows: Annotated[
        int | None, typer.Option("--rows", min=1000, help="Train on this many texts only, for a quick look.")
    ] = None,
    seed: Seed = 0,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Train on ICD-10-CM and compare with two baselines.

    \b
    Each short text describes a diagnosis; its label is the parent code.
    Five phrases are classified at the end, the last one with the words that
    made it so; the model, a figure of the learning curve and a report on the
    test texts are saved in --out.
    """
    terminal.set_quiet(quiet)
    from extremax.experiments import demo as steps
    from extremax.report import analyse, beside, make_document, save_document, write_report
    from extremax.storage.folder import check_target

    check_target(out / "model")
    terminal.log("reading ICD-10-CM from the package simple-icd-10-cm")
    data = steps.load_texts(rows)
    texts, codes = data.train
    terminal.log(
        f"{len(texts):,} training texts, {len(set(codes)):,} codes; for example {texts[0]!r} has code"
        f" {codes[0]}"
    )
    verbose = int(sys.stderr.isatty() and not quiet)
    parameters: dict[str, Any] = {"random_state": seed, "n_jobs": threads, "verbose": verbose}
    terminal.log("compiling, once for this machine: about a minute")
    steps.compile_kernels(data, parameters)
    started = time.perf_counter()
    clf = steps.train_demo(data, {**parameters, "n_epochs": epochs})
    seconds = clf.history_[-1]["seconds"]
    others = time.perf_counter() - started - seconds
    terminal.log(f"trained in {seconds:.1f} s; text features, curve and calibration took {others:.1f} s")
    analysis = analyse(clf, *data.test, n_jobs=threads)
    figures = steps.compare(clf, data, analysis)
    columns = ["", "accuracy", "top-5 accuracy", "log-likelihood"]
    terminal.print_table(columns, [[name, *found] for name, found in figures.items()], title="On test texts")

    out.mkdir(parents=True, exist_ok=True)
    clf.save(out / "model")
    curve, report = out / "learning_curve.png", out / "report.html"
    baselines = {name: found for name, found in figures.items() if name != "extremax"}
    steps.draw_curves(curve, clf.history_, baselines)
    answers = answers_of(clf, list(steps.PHRASES), 5)
    for phrase, found in zip(steps.PHRASES, answers, strict=True):
        terminal.write(f"\n{phrase}")  # not a title, which a pipe would not show
        show_answers(found)
    show_reasons(clf.explain(steps.PHRASES[-1], k=2))
    document = make_document(clf, analysis, examples=steps.PHRASES)
    save_document(document, beside(out / "model"))  # where extremax serve looks for it
    write_report(clf, document, report, title="ICD-10-CM")
    terminal.log(f"model: {out / 'model'}   learning curve: {curve}   report: {report}")
    program = Path(sys.argv[0])
    command = str(program) if program.name == "extremax" else "extremax"
    terminal.log(f'classify your own text:  {command} ask {out / "model"} --why "short of breath"')
