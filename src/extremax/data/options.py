"""Options of the readers of data files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Column = str | int
Kept = Sequence[Column] | Literal["all"] | None
Progress = Callable[[int, int | None], None]
ZeroBased = bool | Literal["auto"]


@dataclass(frozen=True)
class ReadOptions:
    """Options of `load_dataset` and `iter_dataset`, where they are described."""

    labels_path: str | os.PathLike[str] | None = None
    text_column: Column | None = None
    label_column: Column | None = None
    vector_column: str | None = None
    label_separator: str | None = None
    delimiter: str | None = None
    encoding: str | None = None
    header: bool | None = None
    n_features: int | None = None
    zero_based: ZeroBased = "auto"
    skip_bad_lines: bool = False
    keep: Kept = None
    ignore_labels: bool = False
    progress: Progress | None = None
