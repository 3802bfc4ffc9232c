"""The terminal: ``extremax COMMAND``, by Typer, with tables and progress by Rich.

How to add a command
--------------------
1. Write a module of this package, say ``cli/plot.py``, with plain functions and one ``register``::

       def plot(folder: Annotated[Path, typer.Argument(help="...")], seed: Seed = None, as_json: Json = False)
       -> None:
           \"\"\"One sentence for the list of commands; more below it for `extremax plot --help`.\"\"\"
           from extremax.experiments import plot  # heavy imports inside: --help must stay under half a second
           ...

       def register(app: typer.Typer) -> None:
           app.command()(plot)

2. Name the module in ``COMMANDS`` of ``cli/app.py``.

What every command keeps to
---------------------------
- Raise ``ValueError``, ``TypeError``, ``OSError`` or ``ImportError`` with a sentence for what a user can cause, as everywhere
  in the package: the application prints the sentence on standard error and exits with 1.
  ``typer.BadParameter`` is for options that do not fit together: exit code 2, as for any wrong usage. Ctrl-C
  is 130. There are no tracebacks for these;
  ``EXTREMAX_TRACEBACK=1`` in the environment brings them back.
- Results go to standard output (`terminal.write`, `terminal.show_json`, `terminal.print_table`), all else to standard error
  (`terminal.say`, `terminal.warn`), so that a pipe gets results alone. ``--quiet`` silences `say`, not
  warnings and errors.
- Progress (`terminal.Bar`, `terminal.progress_line`) is drawn on standard error, and only if that is a terminal.
- Shared options have one spelling: the types `Seed`, `Threads`, `Json`, `Quiet` ... of ``cli/options.py``.
- Files that are written appear whole or not at all (`terminal.whole_file`).
"""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the ``extremax`` command."""
    try:
        from extremax.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(f"extremax: the command line needs {error.name}: pip install extremax[cli]", file=sys.stderr)
        raise SystemExit(1) from None
    app(prog_name="extremax")
