"""Known data sets by name, each with its training, validation and test rows.

==================  =============================================  =========================================
name                rows                                           source
==================  =============================================  =========================================
icd10cm             short texts -> parent code                     the package simple-icd-10-cm
eurlex57k           word counts -> rarest of the row's concepts    ``eurlex57k/{train,dev,test}.txt.xz``
eurlex57k-smallest  the same -> smallest label (appendix A.2)      the same
npm-owner-124k      package names -> owner                         ``npm-owner/npm-owner-124k.tsv.xz``
npm-owner-282k      the same, larger                               ``npm-owner/npm-owner-282k.tsv.xz``
polish-nouns        Polish word forms -> lemma                     the package spacy-lookups-data
lemmas-5000, ...    the forms of so many random lemmas of these    the same
amazon-670k         XML-CNN features -> smallest label             ``Amazon-670K/`` (see `xml_cnn`)
wikipedia-500k      XML-CNN features -> smallest label             ``Wikipedia-500K/``
==================  =============================================  =========================================

Files are in the folder that the environment variable ``EXTREMAX_DATA`` names.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extremax.data import labels
from extremax.data.dataset import DataFileError, Dataset
from extremax.data.icd10cm import load_icd10cm
from extremax.data.readers import Reduction, load_dataset
from extremax.data.streams import open_stream
from extremax.examples import seen_classes
from extremax.experiments import xml_cnn
from extremax.experiments.lemmas import lemma_file, load_lemmas

FOLDER_VARIABLE = "EXTREMAX_DATA"


@dataclass(frozen=True)
class SplitData:
    """Training, validation and test rows, as texts or features, with one label per row."""

    name: str
    train: Dataset
    valid: Dataset
    test: Dataset


def load_named(name: str, *, reduce: Reduction | None = None) -> SplitData:
    """Return the rows of a known data set.

    Parameters
    ----------
    name : str
        One of `names()`.
    reduce : {"first", "smallest", "rarest"}, optional
        Label reduction where rows have several labels; the usual one of the data set unless given.

    Examples
    --------
    >>> from extremax.experiments.catalog import load_named
    >>> data = load_named("icd10cm")
    >>> data.train.n_samples, data.valid.n_samples, data.test.n_samples
    (48265, 6033, 6034)
    """
    if name not in _LOADERS:
        close = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(names())}."
        raise ValueError(f"{name!r} is not a known data set; {hint}")
    return _LOADERS[name](name, reduce)


def names() -> list[str]:
    """Return the names of all known data sets."""
    return list(_LOADERS)


def xml_cnn_folder(name: str) -> str | None:
    """Return the folder of a data set of XML-CNN features below that of all data; None for others."""
    return _XML_CNN.get(name)


def source_files(name: str) -> list[Path]:
    """Return the files of a data set; none for the tables of ICD-10-CM, which a package reads."""
    if name == "icd10cm":
        return []
    if name == "polish-nouns" or name in LEMMA_SUBSETS:
        return [lemma_file("polish-nouns")]
    if name in _EURLEX:
        return [_file("eurlex57k", f"{part}.txt.xz") for part in ("train", "dev", "test")]
    if name in _XML_CNN:
        return list(xml_cnn.find_files(_file(_XML_CNN[name])).values())
    return [_file("npm-owner", f"{name}.tsv.xz")]


def _file(*parts: str) -> Path:
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        raise FileNotFoundError(
            f"{parts[0]} is read from the folder that the environment variable {FOLDER_VARIABLE} names,"
            " which is not set."
        )
    path = Path(folder, *parts)
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; set {FOLDER_VARIABLE} to the folder that holds {parts[0]}."
        )
    return path


def _icd10cm(name: str, reduce: Reduction | None) -> SplitData:
    data = load_icd10cm()
    parts = (data.rows(part) for part in (data.train, data.valid, data.test))
    return SplitData(name, *(Dataset(texts=texts, y=np.asarray(codes)) for texts, codes in parts))


def _xmc_text(name: str, reduce: Reduction | None) -> SplitData:
    parts = [load_dataset(path) for path in source_files(name)]
    return SplitData(name, *reduce_labels(parts, reduce or _EURLEX[name]))


def reduce_labels(parts: list[Dataset], reduce: Reduction) -> list[Dataset]:
    """Return parts with one label per row, by label counts of the first part, the training rows."""
    labelled = [part.y[labels.has_label(part.y)] for part in parts]
    counts = np.bincount(labelled[0].indices, minlength=labelled[0].shape[1])
    out = []
    for part, y in zip(parts, labelled, strict=True):
        keep = labels.has_label(part.y)
        if reduce == "rarest":
            ids = labels.rarest_label(y, counts)
        elif reduce == "all":
            raise ValueError("reduce is 'all'; rows of a known data set have one label each.")
        else:
            ids = labels.first_label(y) if reduce == "first" else labels.smallest_label(y)
        out.append(
            Dataset(
                X=part.X[np.flatnonzero(keep)], y=ids, n_unlabelled=int((~keep).sum()), format=part.format
            )
        )
    return out


def _npm_owner(name: str, reduce: Reduction | None) -> SplitData:
    texts: dict[str, list[str]] = {part: [] for part in ("train", "val", "test")}
    owners: dict[str, list[int]] = {part: [] for part in texts}
    (path,) = source_files(name)
    with open_stream(path) as stream:
        for number, line in enumerate(stream.lines(), 1):
            words = line.rstrip("\n").split("\t")
            if len(words) != 3 or words[0] not in texts or not words[1].isdigit():
                raise DataFileError(
                    str(path), "expected a split, an owner and a name, separated by tabs.", line=number
                )
            texts[words[0]].append(words[2])
            owners[words[0]].append(int(words[1]))
    parts = (Dataset(texts=texts[part], y=np.asarray(owners[part]), format="tsv") for part in texts)
    return SplitData(name, *parts)


def _lemmas(name: str, reduce: Reduction | None) -> SplitData:
    parts = list(load_lemmas("polish-nouns").values())
    if name in LEMMA_SUBSETS:
        lemmas = np.unique(parts[0][1])
        n_kept = min(LEMMA_SUBSETS[name], len(lemmas))
        kept = np.random.default_rng(0).permutation(lemmas)[:n_kept]  # a larger subset holds the smaller ones
        parts = [_forms_of(kept, *part) for part in parts]
    return SplitData(name, *(Dataset(texts=forms, y=lemmas) for forms, lemmas in parts))


def _forms_of(kept: NDArray[Any], forms: list[str], lemmas: NDArray[Any]) -> tuple[list[str], NDArray[Any]]:
    """Return the forms of some lemmas, and their lemmas."""
    chosen = np.flatnonzero(np.isin(lemmas, kept))
    return [forms[i] for i in chosen], lemmas[chosen]


def _xml_cnn_features(name: str, reduce: Reduction | None) -> SplitData:
    files = xml_cnn.find_files(_file(_XML_CNN[name]))
    parts = []
    for part in ("trn", "tst"):
        X = xml_cnn.read_dense_text(files[f"{part}_ft_mat_dense.txt"])
        y = xml_cnn.read_label_text(files[f"{part}_lbl_mat.txt"])
        if X.shape[0] != y.shape[0]:
            where = str(files[f"{part}_lbl_mat.txt"])
            raise DataFileError(where, f"has {y.shape[0]} rows; the features have {X.shape[0]}.")
        parts.append(Dataset(X=X, y=y, format="xml-cnn"))
    train, held_out = reduce_labels(parts, reduce or "smallest")
    order = np.random.default_rng(0).permutation(np.flatnonzero(seen_classes(held_out.y, train.y)))
    cut = round(0.2 * len(order))
    valid, test = (np.sort(rows) for rows in (order[:cut], order[cut:]))
    return SplitData(
        name, train, *(Dataset(X=held_out.X[rows], y=held_out.y[rows]) for rows in (valid, test))
    )


LEMMA_SUBSETS = {f"lemmas-{n}": n for n in (5_000, 16_000, 50_000, 219_109)}
_EURLEX: dict[str, Reduction] = {"eurlex57k": "rarest", "eurlex57k-smallest": "smallest"}
_XML_CNN = {"amazon-670k": "Amazon-670K", "wikipedia-500k": "Wikipedia-500K"}
_LOADERS: dict[str, Callable[[str, Reduction | None], SplitData]] = {
    "icd10cm": _icd10cm,
    "eurlex57k": _xmc_text,
    "eurlex57k-smallest": _xmc_text,
    "npm-owner-124k": _npm_owner,
    "npm-owner-282k": _npm_owner,
    "polish-nouns": _lemmas,
    **dict.fromkeys(LEMMA_SUBSETS, _lemmas),
    "amazon-670k": _xml_cnn_features,
    "wikipedia-500k": _xml_cnn_features,
}
