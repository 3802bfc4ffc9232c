"""Wikipedia-500K and Amazon-670K as in the paper: dense XML-CNN features and label lists in text files.

The layout is that of the authors' scripts (repository mandt-lab/adversarial-negative-sampling)::

    trn_ft_mat_dense.txt    "N K", then N lines of K numbers separated by spaces
    trn_lbl_mat.txt         "N L", then N lines "label:1 label:1 ...", labels counted from 0
    tst_ft_mat_dense.txt    the same for the test rows
    tst_lbl_mat.txt

Each file may be compressed (``.gz``, ``.xz``, ``.zst``). As there, the class of a row is its smallest label,
test rows of classes without a training row are left out, and a random fifth of the other test rows are
validation data.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from extremax.data.dataset import DataFileError, indicator
from extremax.data.streams import SUFFIXES, open_stream

FILES = ("trn_ft_mat_dense.txt", "trn_lbl_mat.txt", "tst_ft_mat_dense.txt", "tst_lbl_mat.txt")
_LABEL = re.compile(r"(\d+)(:1(\.0*)?)?")


def read_dense_text(path: str | os.PathLike[str]) -> NDArray[np.float32]:
    """Return the numbers of a text file with the header ``N K``, as float32 (N, K).

    Examples
    --------
    >>> import tempfile
    >>> from extremax.experiments.xml_cnn import read_dense_text
    >>> with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
    ...     print("2 3", "0.5 1 -2", "0 1e-3 4", sep="\\n", file=file, flush=True)
    ...     read_dense_text(file.name).tolist()
    [[0.5, 1.0, -2.0], [0.0, 0.0010000000474974513, 4.0]]
    """
    with open_stream(path) as stream, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a file without rows
        lines = stream.lines()
        n_rows, n_features = _header(stream.name, lines)
        try:
            X: NDArray[np.float32] = np.loadtxt(lines, np.float32, comments=None, ndmin=2)
        except ValueError as error:
            raise DataFileError(stream.name, f"needs {n_features} numbers in each line: {error}.") from None
    if X.shape != (n_rows, n_features):
        where = (
            f"has {X.shape[0]} rows of {X.shape[1]} numbers; its first line says {n_rows} of {n_features}."
        )
        raise DataFileError(os.fspath(path), where)
    return X


def read_label_text(path: str | os.PathLike[str]) -> sp.csr_matrix:
    """Return the labels of a text file with the header ``N L`` as a CSR indicator matrix (N, L)."""
    flat: list[int] = []
    ends = [0]
    with open_stream(path) as stream:
        lines = stream.lines()
        n_rows, n_labels = _header(stream.name, lines)
        for number, line in enumerate(lines, 2):
            for word in line.split():
                found = _LABEL.fullmatch(word)
                if found is None or int(found[1]) >= n_labels:
                    said = f"has {word!r}; expected labels from 0 to {n_labels - 1}, written as '17:1'."
                    raise DataFileError(stream.name, said, line=number)
                flat.append(int(found[1]))
            ends.append(len(flat))
    if len(ends) - 1 != n_rows:
        raise DataFileError(os.fspath(path), f"has {len(ends) - 1} rows; its first line says {n_rows}.")
    return indicator(np.asarray(flat, dtype=np.int64), np.asarray(ends, dtype=np.int64), n_labels)


def read_header(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Return the two numbers of the first line of a file, without reading the rest."""
    with open_stream(path) as stream:
        return _header(stream.name, stream.lines())


def find_files(folder: Path) -> dict[str, Path]:
    """Return the four files of a data set, compressed or not."""
    found = {}
    for name in FILES:
        choices = [folder / (name + suffix) for suffix in ("", *SUFFIXES)]
        existing = [path for path in choices if path.exists()]
        if not existing:
            raise FileNotFoundError(
                f"{folder} has no {name}; XML-CNN features are the four files {', '.join(FILES)}."
            )
        found[name] = existing[0]
    return found


def _header(name: str, lines: Iterator[str]) -> tuple[int, int]:
    words = next(lines, "").split()
    if len(words) != 2 or not all(word.isdigit() for word in words):
        raise DataFileError(name, f"starts with {' '.join(words)[:40]!r}; expected two numbers.", line=1)
    return int(words[0]), int(words[1])
