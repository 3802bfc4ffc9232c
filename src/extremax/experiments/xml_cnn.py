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
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from extremax.data.dataset import DataFileError, indicator
from extremax.data.options import Progress
from extremax.data.streams import SUFFIXES, open_stream

_CHUNK_BYTES = 8 << 20
FILES = ("trn_ft_mat_dense.txt", "trn_lbl_mat.txt", "tst_ft_mat_dense.txt", "tst_lbl_mat.txt")


def read_dense_text(path: str | os.PathLike[str], *, progress: Progress | None = None) -> NDArray[np.float32]:
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
    with open_stream(path, progress) as stream:
        out: NDArray[np.float32] | None = None
        done = 0
        for chunk in stream.chunks(_CHUNK_BYTES):
            lines = bytes(chunk).splitlines()
            if out is None:
                out = np.empty(_header(stream.name, lines.pop(0), "rows and features"), np.float32)
            lines = [line for line in lines if line.strip()]
            if done + len(lines) > len(out):
                raise DataFileError(
                    stream.name, f"more rows than the {len(out)} of the header.", line=len(out) + 2
                )
            for line in lines:
                done += 1
                try:
                    row = np.array(line.split(), dtype=np.float32)
                except ValueError as error:
                    raise DataFileError(stream.name, f"expected numbers: {error}.", line=done + 1) from None
                if len(row) != out.shape[1]:
                    raise DataFileError(
                        stream.name, f"has {len(row)} numbers; expected {out.shape[1]}.", line=done + 1
                    )
                out[done - 1] = row
    if out is None:
        raise DataFileError(os.fspath(path), "is empty; expected a first line 'rows features'.", line=1)
    if done < len(out):
        raise DataFileError(os.fspath(path), f"ends after {done} of {len(out)} rows; copy the file again.")
    return out


def read_label_text(path: str | os.PathLike[str], *, progress: Progress | None = None) -> sp.csr_matrix:
    """Return the labels of a text file with the header ``N L`` as a CSR indicator matrix (N, L)."""
    flat: list[int] = []
    ends = [0]
    shape: tuple[int, int] | None = None
    with open_stream(path, progress) as stream:
        for chunk in stream.chunks(_CHUNK_BYTES):
            lines = bytes(chunk).splitlines()
            if shape is None:
                shape = _header(stream.name, lines.pop(0), "rows and labels")
            for line in lines:
                where = len(ends) + 1
                for word in line.split():
                    label, _, value = word.partition(b":")
                    if not label.isdigit() or value.strip() not in (b"1", b"1.0", b"1.000000", b""):
                        got = word.decode(errors="replace")
                        raise DataFileError(
                            stream.name, f"has {got!r}; expected a label as '17:1'.", line=where
                        )
                    if int(label) >= shape[1]:
                        raise DataFileError(
                            stream.name, f"has label {int(label)} of {shape[1]}, counted from 0.", line=where
                        )
                    flat.append(int(label))
                ends.append(len(flat))
    if shape is None or len(ends) - 1 != shape[0]:
        found, wanted = (0, "some") if shape is None else (len(ends) - 1, str(shape[0]))
        raise DataFileError(os.fspath(path), f"has {found} rows; expected {wanted}, as its first line says.")
    return indicator(np.asarray(flat, dtype=np.int64), np.asarray(ends, dtype=np.int64), shape[1])


def read_header(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Return the two numbers of the first line of a file, without reading the rest."""
    with open_stream(path) as stream:
        for chunk in stream.chunks(_CHUNK_BYTES):
            return _header(stream.name, bytes(chunk).splitlines()[0], "rows and columns")
    raise DataFileError(os.fspath(path), "is empty; expected a first line of two numbers.", line=1)


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


def _header(name: str, line: bytes, what: str) -> tuple[int, int]:
    words = line.split()
    if len(words) != 2 or not all(word.isdigit() for word in words):
        raise DataFileError(
            name,
            f"starts with {line[:40].decode(errors='replace')!r}; expected the numbers of {what}.",
            line=1,
        )
    return int(words[0]), int(words[1])
