"""Options that several commands share, each with one spelling and one meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of all random draws: the same seed, the same result.")]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="Threads; by default one per processor.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on the way; warnings and errors are still shown.")]

ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Folder of a saved model.", exists=True, file_okay=False, show_default=False)
]
