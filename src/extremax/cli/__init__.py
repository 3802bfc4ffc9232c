"""The command line ``extremax COMMAND``, by Typer, with tables and progress by Rich.

Adding a command
----------------
1. Write a module of this package, say ``cli/plot.py``, with a function of the same name::

       def plot(
           folder: Annotated[Path, typer.Argument(help="...")], seed: Seed = None, as_json: Json = False
       ) -> None:
           \"\"\"Draw the curves of a run.

           More text, shown by `extremax plot --help`.
           \"\"\"
           from extremax.experiments import plot  # heavy imports inside: --help must stay under 0.5 s
           ...

2. Name the module in ``COMMANDS`` of ``cli/app.py``.

Rules for every command
-----------------------
- For a user's mistake, raise ``ValueError``, ``TypeError``, ``OSError`` or ``ImportError`` with one sentence,
  as everywhere in the package: the application prints it on standard error and exits with 1.
  ``typer.BadParameter`` is for options that do not fit together, or values that no data could make right:
  exit code 2, as for any wrong usage. Ctrl-C and SIGTERM are 130. None of these shows a traceback unless
  ``EXTREMAX_TRACEBACK=1`` is set in the environment.
- Results go to standard output (`terminal.write`, `terminal.show_json`, `terminal.print_table`), everything
  else to standard error (`terminal.log`, `terminal.warn`), so that a pipe gets results alone. ``--quiet``
  silences `log`, not warnings and errors.
- Progress (`terminal.progress`) goes to standard error: a bar in a terminal, else a line for each long phase.
- Shared options have one spelling: the types `Seed`, `Threads`, `Json`, `Quiet` ... of ``cli/options.py``.
- Options that few need have a panel (``rich_help_panel``); without one they are in the first panel of --help.
- Files are written completely or not at all (`terminal.atomic_file`).
"""

from __future__ import annotations

import sys

from extremax.cli.signals import leave_on_interrupt


def main() -> None:
    """Run the ``extremax`` command."""
    with leave_on_interrupt():
        try:
            from extremax.cli.app import app
        except ModuleNotFoundError as error:
            if error.name not in ("typer", "rich"):
                raise
            print(
                f"extremax: the command line needs {error.name}: pip install extremax[cli]", file=sys.stderr
            )
            raise SystemExit(1) from None
        app(prog_name="extremax")
