"""Word forms and their lemmas: real single-label tasks of the size of the paper's own data sets.

The source is the package ``spacy-lookups-data``, which holds tables of word form -> lemma. Forms are split at
random, 90/5/5; a lemma whose forms are all held out is a class without a training row.

=============  =========  =======
table          forms      lemmas
=============  =========  =======
polish-nouns   1,551,066  219,301
german           355,354   90,533
turkish        1,333,971   39,841
=============  =========  =======
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extremax.data.dataset import DataFileError

FOLDER_VARIABLE = "EXTREMAX_LOOKUPS"
PACKAGE = "spacy-lookups-data"
TABLES = {"polish-nouns": "pl_lemma_lookup_noun", "german": "de_lemma_lookup", "turkish": "tr_lemma_lookup"}


@dataclass(frozen=True)
class Lemmas:
    """Word forms of a table with their lemmas, and the standard split.

    Attributes
    ----------
    forms : list of str
        Word forms, in the order of the table; each occurs once.
    lemmas : array of str
        Lemma of each form.
    train, valid, test : int64 arrays
        Row numbers of the standard split, 90/5/5 at random.
    """

    forms: list[str] = field(repr=False)
    lemmas: NDArray[Any] = field(repr=False)
    train: NDArray[np.int64] = field(repr=False)
    valid: NDArray[np.int64] = field(repr=False)
    test: NDArray[np.int64] = field(repr=False)

    def rows(self, part: NDArray[np.int64]) -> tuple[list[str], NDArray[Any]]:
        """Return forms and lemmas of a part: ``data.rows(data.train)``."""
        return [self.forms[i] for i in part], self.lemmas[part]


def lemma_file(name: str) -> Path:
    """Return the file of a table, in the package or in the folder that ``EXTREMAX_LOOKUPS`` names.

    Raises
    ------
    ImportError
        If the package is missing, and the variable is not set.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        path = Path(folder, f"{TABLES[name]}.json.gz")
        if not path.exists():
            raise FileNotFoundError(
                f"{path} does not exist; set {FOLDER_VARIABLE} to the folder of tables of {PACKAGE}."
            )
        return path
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise ImportError(
            f"{name} comes from the package {PACKAGE} (98 MB), which is not installed: pip install {PACKAGE}."
        )
    return Path(spec.origin).parent / "data" / f"{TABLES[name]}.json.gz"


def load_lemmas(name: str = "polish-nouns") -> Lemmas:
    """Return the word forms of a table, their lemmas, and the standard split."""
    path = lemma_file(name)
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            table = json.load(file)
    except (OSError, EOFError, ValueError) as error:
        raise DataFileError(
            str(path), f"is not JSON compressed by gzip ({error}); install it again."
        ) from None
    pairs = table if isinstance(table, dict) else {}
    if not pairs or not all(isinstance(lemma, str) for lemma in pairs.values()):
        raise DataFileError(str(path), "is not a table of word form -> lemma; install it again.")
    n = len(pairs)
    order = np.random.default_rng(0).permutation(n)
    train, valid, test = np.split(order, [n * 90 // 100, n * 95 // 100])
    return Lemmas(list(pairs), np.array(list(pairs.values())), train, valid, test)
