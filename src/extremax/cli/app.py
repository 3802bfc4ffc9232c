"""The application: its commands, and the one place that turns errors into messages and exit codes."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from extremax.cli import terminal
from extremax.cli.options import in_options, unbundled
from extremax.cli.signals import EXIT_INTERRUPTED, command_signals

# Functions of the modules of extremax.cli that have the same name, or of another; in the order of --help.
COMMANDS = (
    *("train", "predict", "evaluate", "report", "inspect", "update", "export", "ask", "serve", "demo"),
    *("experiments.run", "experiments.tune", "experiments.plot", "experiments.reproduce"),
)
USER_ERRORS = (ValueError, TypeError, OSError, ImportError, MemoryError, OverflowError)
EXIT_ERROR, EXIT_PIPE_CLOSED = 1, 141


class Command(TyperCommand):
    """A command whose help lists options by panel, without Rich, which takes long to load."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
            if record is not None:
                panels.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(record)
        for panel, records in panels.items():
            with formatter.section(panel):
                formatter.write_dl(records)


class Application(TyperGroup):
    """A group of commands that ends mistakes of users with one sentence."""

    def invoke(self, ctx: Any) -> Any:
        terminal.set_quiet(False)
        with warnings.catch_warnings(), command_signals():
            warnings.showwarning = _show_warning
            try:
                result = super().invoke(ctx)
                # notice a pipe that was closed early here, not when the interpreter exits
                terminal.flush()
                return result
            except BrokenPipeError:
                _redirect_stdout()
                raise typer.Exit(EXIT_PIPE_CLOSED) from None
            except KeyboardInterrupt:
                _fail("interrupted.", EXIT_INTERRUPTED)
            except USER_ERRORS as error:
                if os.environ.get("EXTREMAX_TRACEBACK"):
                    raise
                if isinstance(error, OSError) and error.filename == terminal.STDOUT:
                    _redirect_stdout()
                _fail(_message(error), EXIT_ERROR)


def _fail(message: str, code: int) -> None:
    terminal.fail(message)
    raise typer.Exit(code)


def _message(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return f"not enough memory. {in_options(str(error))}".strip()
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}."
    return in_options(str(error) or type(error).__name__)


def _redirect_stdout() -> None:
    # the interpreter flushes standard output once more when it exits, and would report the closed pipe
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    terminal.warn(str(message))


def _print_version(wanted: bool) -> None:
    if wanted:
        from extremax.storage.folder import package_version

        terminal.write(f"extremax {package_version()}")
        raise typer.Exit


def start(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Train, evaluate and query classifiers over ten thousand to ten million classes."""


def build() -> typer.Typer:
    """Build the application with all its commands."""
    # plain help: drawing it with Rich takes longer than everything else that --help does
    app = typer.Typer(
        name="extremax",
        cls=Application,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    app.callback()(start)
    for command in COMMANDS:
        module, _, name = command.partition(".")
        app.command(cls=Command)(unbundled(getattr(import_module(f"extremax.cli.{module}"), name or module)))
    return app


app = build()
