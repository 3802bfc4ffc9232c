"""``extremax report MODEL DATA``: strengths and weaknesses of a model, as a page or for a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from extremax.cli import terminal
from extremax.cli.models import load_rows, open_model, warn_left_out
from extremax.cli.options import DataArgument, ModelArgument, Opening, Reading

_HTML, _JSON = "report.html", "analysis.json"


def report(
    model: ModelArgument,
    data: DataArgument,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="PATH",
            help="An .html page, a .json file for extremax serve --analysis, or a folder for both.",
        ),
    ] = Path(_HTML),
    title: Annotated[str | None, typer.Option(help="Headline.  [default: name of the model folder]")] = None,
    *,
    opening: Opening,
    reading: Reading,
) -> None:
    """Write a report on a model, from labelled rows it was not trained on.

    \b
    The file is complete in itself and opens without a server: figures, the
    label tree with the accuracy of its branches, accuracy by class frequency,
    reliability, confused pairs with examples, classes to merge, and rows
    whose labels are to be checked. Texts of DATA are in it.

    Rows whose labels were not in the training data are left out and counted.
    """
    terminal.set_quiet(opening.quiet)
    targets = _targets(out)
    for path in targets.values():
        if path.parent.exists():
            terminal.check_file(path)
    from extremax.report import analyse, make_document, save_document
    from extremax.report.report import write_report

    clf = open_model(model, opening.threads, opening.encoder)
    rows, labels = load_rows(clf, data, reading)
    found = analyse(clf, rows, labels)
    warn_left_out(found.n_left_out)
    document = make_document(clf, found, examples=rows if clf.takes_texts else ())
    with _folder(out) if len(targets) > 1 else nullcontext():
        if "json" in targets:
            save_document(document, targets["json"])
        if "html" in targets:
            write_report(clf, document, targets["html"], title=title or model.resolve().name)
    for path in targets.values():
        terminal.log(f"wrote {path}")
    _show(found, opening.as_json)


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Make a folder; one that is new and still empty goes where the block fails."""
    is_new = not path.exists()
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            if is_new:
                path.rmdir()
        raise


def _targets(out: Path) -> dict[str, Path]:
    """Return the files to write, by kind."""
    kind = out.suffix.lower().removeprefix(".")
    if kind in ("html", "json") and not out.is_dir():
        return {kind: out}
    if out.suffix and not out.is_dir():
        raise typer.BadParameter(f"--out {out}: the name must end in .html or .json, or be a folder.")
    return {"html": out / _HTML, "json": out / _JSON}


def _show(found: Any, as_json: bool) -> None:
    model, *others = found.tables["figures"].records()
    counts = {name: found.tables[name].n_rows for name in ("confusions", "merge", "suspects")}
    if as_json:
        figures = {name: value for name, value in model.items() if name != "name"}
        terminal.show_json({"n_samples": found.n_samples, **figures, **counts})
        return
    titles = ["", *(name.replace("_", " ") for name in list(model)[1:])]
    table = [list(row.values()) for row in (model, *others)]
    terminal.print_table(titles, table, title=f"On {found.n_samples:,} rows")
    terminal.log(
        f"{counts['confusions']:,} confused pairs, {counts['merge']:,} pairs of classes to merge,"
        f" {counts['suspects']:,} rows to check; chance explains up to {found.n_suspects_by_chance:,.0f}"
    )
