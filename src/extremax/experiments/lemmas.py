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
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extremax.data.dataset import DataFileError

FOLDER_VARIABLE = "EXTREMAX_LOOKUPS"
PACKAGE = "spacy-lookups-data"
TABLES = {"polish-nouns": "pl_lemma_lookup_noun", "german": "de_lemma_lookup", "turkish": "tr_lemma_lookup"}


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


def load_lemmas(name: str = "polish-nouns") -> dict[str, tuple[list[str], NDArray[Any]]]:
    """Return the word forms of a table and the lemma of each, by split: "train", "valid" and "test"."""
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
    parts = np.split(order, [n * 90 // 100, n * 95 // 100])
    forms, lemmas = list(pairs), np.array(list(pairs.values()))
    splits = zip(("train", "valid", "test"), parts, strict=True)
    return {split: ([forms[i] for i in part], lemmas[part]) for split, part in splits}
