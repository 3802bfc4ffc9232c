"""Options that several commands share, each with one spelling and one meaning; and dataclasses of them.

A command takes a dataclass of options as one argument, ``reading: Reading``; `unbundled` puts the fields of
the dataclass among its options.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, Any, get_type_hints

import typer

from extremax.params import PARAMETERS

# panels of --help, behind the options that most people need
FILES, TRAINING, MORE = "Reading the file", "Training", "More options"
Seed = Annotated[
    int | None,
    typer.Option("--seed", min=0, help="Seed of all random draws; the same seed gives the same result."),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="Threads; by default one per processor.", rich_help_panel=MORE),
]
Encoder = Annotated[
    str | None,
    typer.Option(
        "--encoder",
        metavar="NAME",
        help="Sentence encoder that the model was trained with; its name in the folder is not enough.",
        rich_help_panel=MORE,
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, for programs.", rich_help_panel=MORE)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show warnings and errors only.")]

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a saved model.")]
DataArgument = Annotated[
    Path,
    typer.Argument(
        metavar="DATA", help="File of rows; - for standard input.", allow_dash=True, show_default=False
    ),
]


# Choices of options; those of a format and a reduction are the ones of `extremax.data.load_dataset`.
FileFormat = StrEnum("FileFormat", "auto xmc libsvm npy npz parquet arrow csv tsv json jsonl fasttext lines")
Reduction = StrEnum("Reduction", ["first", "smallest", "rarest", "all"])
TextKind = StrEnum("TextKind", ["ngrams"])
Search = StrEnum("Search", ["exact", "beam"])


@dataclass(frozen=True)
class Reading:
    """Options for reading a file of rows."""

    text_column: Annotated[
        str | None, typer.Option(help="Column or JSON field of texts: its name, or its position from 0.")
    ] = None
    label_column: Annotated[
        str | None, typer.Option(help="Column or JSON field of labels: its name, or its position from 0.")
    ] = None
    label_separator: Annotated[str | None, typer.Option(help="Separator of several labels in one field.")] = (
        None
    )
    encoding: Annotated[
        str | None,
        typer.Option(help="Encoding of text, such as cp1252.  [default: UTF-8, or UTF-16 by its mark]"),
    ] = None
    format: Annotated[
        FileFormat,
        typer.Option(help="Format of DATA; auto detects it from the content.", rich_help_panel=FILES),
    ] = FileFormat.auto
    delimiter: Annotated[
        str | None, typer.Option(help="Separator of columns.  [default: detected]", rich_help_panel=FILES)
    ] = None
    header: Annotated[
        bool | None,
        typer.Option(
            "--header/--no-header",
            help="Whether the first row holds names.  [default: detected]",
            rich_help_panel=FILES,
        ),
    ] = None
    skip_bad_lines: Annotated[
        bool,
        typer.Option(
            "--skip-bad-lines",
            help="Count and skip malformed lines, up to a tenth of all.",
            rich_help_panel=FILES,
        ),
    ] = False
    vector_column: Annotated[
        str | None,
        typer.Option(help="Column of vectors in a Parquet or Arrow file.", rich_help_panel=FILES),
    ] = None
    labels_path: Annotated[
        Path | None,
        typer.Option(
            "--labels",
            help="File of the labels of .npy features: .npy, or text with one label per line.",
            rich_help_panel=FILES,
        ),
    ] = None
    n_features: Annotated[
        int | None,
        typer.Option(min=1, help="Width of libsvm rows.  [default: largest index]", rich_help_panel=FILES),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for `load_dataset`."""
        named = dict(vars(self))
        for column in ("text_column", "label_column"):
            named[column] = column_of(named[column])
        return named | {"format": self.format.value, "delimiter": _unescaped(self.delimiter)}


@dataclass(frozen=True)
class Opening:
    """Options of commands that open a model, read labelled rows for it, and print a result."""

    encoder: Encoder = None
    threads: Threads = None
    as_json: Json = False
    quiet: Quiet = False


def column_of(given: str | None) -> str | int | None:
    """Return a column as the readers take it: digits are a position."""
    return int(given) if given is not None and given.isascii() and given.isdigit() else given


# Messages of the library name arguments of functions; on the command line these are options.
_AS_OPTIONS = {
    "skip_bad_lines=True": "--skip-bad-lines",
    "encoding='cp1252'": "--encoding cp1252",
    "encoding is": "--encoding is",
    "pass format= one of": "pass --format with one of",
    "text_column and label_column": "--text-column and --label-column",
    "labels_path is for": "--labels is for",
    "partial_fit(X, y) trains": "--train-known trains",
    'partial_fit(X, y, new_classes="add") takes': "--train-known takes",
    "add_classes takes rows": "--add takes rows",
    "NgramFeatures with smaller": "smaller",
    "such as no n-grams of characters": "such as by --char-ngrams 0 0",
    "read it in parts with extremax.data.iter_dataset": "read it in parts (train --batch-rows)",
    "; fewer texts.": "; fewer texts at a time (--batch-rows).",
    "give fit an eval_set": "give --valid FILE",
}
_PARAMETER = re.compile(r"The '(\w+)' parameter of \w+ must be")
_NAMES = [
    name for name in (*PARAMETERS, "eval_set", "char_ngrams", "word_ngrams", "hash_bits") if "_" in name
]
# a parameter, perhaps with a value; in quotes it is the name of a column, with a dot or a slash of a file
_ADVISED = re.compile(
    rf"(?<!['\w/.])({'|'.join(_NAMES)}|(?:solver|optimizer)(?==))(?:='(\w+)')?(?!['\w/.]\S)"
)


def in_options(message: str) -> str:
    """Return a message of the library in the words of the command line."""
    for argument, option in _AS_OPTIONS.items():
        message = message.replace(argument, option)

    def spell(found: re.Match[str]) -> str:
        name, value = found.groups()
        return option_of(name) + ("" if value is None else f" {value}")

    message = _ADVISED.sub(spell, message)
    return _PARAMETER.sub(lambda found: f"{option_of(found.group(1))} must be", message)


@contextmanager
def wrong_usage() -> Iterator[None]:
    """Report errors in the block as wrong usage, exit code 2: values that no data could make right."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(in_options(str(error))) from error


def option_of(parameter: str) -> str:
    """Return the option of a parameter: ``--n-epochs`` for ``n_epochs``, ``--seed`` for ``random_state``."""
    spelled = {"random_state": "seed", "n_jobs": "threads", "eval_set": "valid"}
    return "--" + spelled.get(parameter, parameter).replace("_", "-")


def _unescaped(delimiter: str | None) -> str | None:
    return "\t" if delimiter in (r"\t", "tab") else delimiter  # a tab is hard to type


@contextmanager
def source(data: Path) -> Iterator[Path | IO[bytes]]:
    """Yield the source of DATA: a path, or standard input for ``-``."""
    if str(data) != "-":
        yield data
        return
    if sys.stdin.isatty():
        raise typer.BadParameter("standard input is a terminal; give a file, or pipe rows into this command.")
    yield sys.stdin.buffer


def unbundled(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the fields of its dataclass arguments as arguments of their own."""
    hints = get_type_hints(command, include_extras=True)
    bundles: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        bundle = bundles.get(parameter.name)
        if bundle is None:
            parameters.append(parameter)
        else:  # the parameters of a dataclass are its fields
            parameters += inspect.signature(bundle).parameters.values()
            hints |= get_type_hints(bundle, include_extras=True)

    @functools.wraps(command)
    def call(**values: Any) -> None:
        for name, bundle in bundles.items():
            values[name] = bundle(**{field.name: values.pop(field.name) for field in fields(bundle)})
        command(**values)

    by_name = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
        for parameter in parameters
    ]
    call.__signature__ = inspect.Signature(by_name)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in by_name}
    return call
