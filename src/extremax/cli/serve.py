"""``extremax serve MODEL...``: answer questions over HTTP."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from extremax.cli import terminal
from extremax.cli.options import Encoder, Quiet, Search, Threads

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def serve(  # noqa: PLR0913 (the parameters are the options)
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="Folders of saved models, or NAME=FOLDER; the first one answers requests without a name.",
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any free one.")] = 8000,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Host name that a proxy sends, if the server listens on this machine alone and has no key."
            " May be repeated.",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="File with a key that requests must carry (Authorization: Bearer KEY)."),
    ] = None,
    analysis: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Analysis for the page of the model, or NAME=FILE."),
    ] = None,
    search: Annotated[Search, typer.Option(help="Search, unless a request names one.")] = Search.exact,
    max_texts: Annotated[int, typer.Option(min=1, help="Most texts in one request.")] = 1024,
    max_characters: Annotated[int, typer.Option(min=1, help="Most characters in one text.")] = 20_000,
    max_body: Annotated[int, typer.Option(min=1, help="Most bytes in the body of a request.")] = 4 << 20,
    max_seconds: Annotated[float, typer.Option(min=0.1, help="Most seconds per request.")] = 30.0,
    queue: Annotated[int, typer.Option(min=1, help="Most texts in the queue; others get status 503.")] = 8192,
    batch: Annotated[
        int, typer.Option(min=1, help="Most texts of several requests in one call of the model.")
    ] = 128,
    reload: Annotated[
        float, typer.Option(min=0, help="Seconds between checks for a new model; 0 for never.")
    ] = 1.0,
    drift_alpha: Annotated[
        float,
        typer.Option(min=0, max=0.5, help="False-alarm rate of the test for drift in /metrics; 0 for none."),
    ] = 0.01,
    mapped: Annotated[
        bool,
        typer.Option(
            "--mapped",
            help="Map the files of models instead of reading them, for models larger than memory; a copy over"
            " mapped files ends the server.",
        ),
    ] = False,
    encoder: Encoder = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Serve models over HTTP.

    \b
    extremax serve model --port 8000
    curl localhost:8000/predict -d '{"inputs": "fell off a ladder"}'
    /docs lists the paths, / is a page to try the model. A model that is saved
    again to its folder is loaded without a pause. SIGTERM and Ctrl-C answer
    what is under way, and then stop.
    """
    terminal.set_quiet(quiet)
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"serving needs the package {error.name}, which is not installed: pip install extremax[serve]."
        ) from None
    from extremax.serve.app import create_app
    from extremax.serve.server import open_socket, run_server
    from extremax.serve.settings import ServeConfig

    is_local = host in _LOOPBACK or host == "::1"
    config = ServeConfig(
        max_texts=max_texts,
        max_characters=max_characters,
        max_body_bytes=max_body,
        max_seconds=max_seconds,
        max_queue_rows=max(queue, max_texts),
        max_batch_rows=batch,
        reload_seconds=reload,
        search=search.value,
        api_key=None if api_key_file is None else read_key(api_key_file),
        hosts=(*_LOOPBACK, *(allow_host or ())) if is_local and api_key_file is None else None,
        monitor_alpha=drift_alpha,
    )
    slots = _slots(models, analysis or [], threads=threads, encoder=encoder, mapped=mapped)
    listening = open_socket(host, port)  # before models are loaded: a port that is taken is said at once
    try:
        app = create_app(slots, config, log=terminal.log)
    except BaseException:
        listening.close()
        raise
    for slot in slots:
        model: Any = slot.current
        what = "texts" if model.takes_texts else f"vectors of {model.n_features:,}"
        terminal.log(f"{slot.name}: {model.n_classes:,} classes, {what}, from {slot.folder}")
        if config.monitor_alpha > 0 and model.monitor is None:
            terminal.log(f"{slot.name}: has no reference rows from its training, so drift is not watched")
    shown = f"[{host}]" if ":" in host else host
    terminal.log(f"serving on http://{shown}:{listening.getsockname()[1]} (Ctrl-C stops)")
    run_server(app, listening, config, log=terminal.log)


def read_key(path: Path) -> str:
    """Return the API key in a file: its one line."""
    lines = path.read_text(encoding="utf-8").split()
    if len(lines) != 1 or not lines[0].isascii():
        raise ValueError(f"{path} must hold one key on one line, of ASCII characters without spaces.")
    return lines[0]


def _slots(models: list[str], analysis: list[str], **how: Any) -> list[Any]:
    """Return the models to serve, each under its name."""
    from extremax.serve.models import Slot

    slots = []
    for given in models:
        name, folder = _split(given)
        name = name or Path(folder).resolve().name
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} cannot be the name of a model in a path; name it with letters, digits, dots and"
                " dashes: NAME=FOLDER."
            )
        slots.append(Slot(name, Path(folder), **how))
    for given in analysis:
        name, file = _split(given)
        found = [slot for slot in slots if slot.name == (name or slots[0].name)]
        if not found:
            raise ValueError(f"--analysis names the model {name}, which is not served.")
        found[0].analysis = Path(file)
    return slots


def _split(given: str) -> tuple[str, str]:
    """Return name and path of NAME=PATH; no name for a path alone."""
    name, sign, path = given.partition("=")
    return (name, path) if sign and path and "/" not in name and "\\" not in name else ("", given)
