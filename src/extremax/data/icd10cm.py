"""ICD-10-CM, the clinical classification of diagnoses, as 60,332 short texts of 10,816 classes.

The source is the package ``simple-icd-10-cm``, which holds the tables of a year. Each description, inclusion
term and "includes" note of a code is a text. Codes with a seventh-character extension (initial encounter,
sequela) repeat the text of the code they extend and are left out. The class of a text is the parent of its
code, or for one of the 1,918 three-character categories the category itself.

Of the 10,816 classes, 10,538 are parents of a code and 278 are categories without further codes. The training
rows of the standard split have 10,662 of them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ICD10CM:
    """Texts and classes of the classification, and the standard split.

    Attributes
    ----------
    texts : list of str
        Short texts, in the order of the classification.
    codes : list of str
        Class of each text: its parent code.
    names : dict of str to str
        Description of every class.
    train, valid, test : int64 arrays
        Row numbers of the standard split, 80/10/10 at random.
    """

    texts: list[str] = field(repr=False)
    codes: list[str] = field(repr=False)
    names: dict[str, str] = field(repr=False)
    train: NDArray[np.int64]
    valid: NDArray[np.int64]
    test: NDArray[np.int64]

    def rows(self, part: NDArray[np.int64]) -> tuple[list[str], list[str]]:
        """Return texts and codes of a part: ``data.rows(data.train)``."""
        return [self.texts[i] for i in part], [self.codes[i] for i in part]


@cache
def load_icd10cm() -> ICD10CM:
    """Return the texts of ICD-10-CM with their parent codes, names of the codes, and the standard split.

    Rows of validation and test may have a class that no training row has: see `extremax.data.seen_classes`.

    Raises
    ------
    ImportError
        If the package ``simple-icd-10-cm`` is missing.

    Examples
    --------
    >>> from extremax.data.icd10cm import load_icd10cm
    >>> data = load_icd10cm()
    >>> data.codes[data.texts.index("Cholera")]
    'A00'
    >>> len(data.train), len(data.valid), len(data.test)
    (48265, 6033, 6034)
    """
    try:
        with warnings.catch_warnings():
            # the package reads its tables with a deprecated function
            warnings.simplefilter("ignore", DeprecationWarning)
            import simple_icd_10_cm as icd
    except ImportError as error:
        raise ImportError(
            "ICD-10-CM comes from the package simple-icd-10-cm, which is not installed: pip install"
            " 'extremax[demo]'."
        ) from error
    # a text of several codes of one parent counts once
    pairs: dict[tuple[str, str], None] = {}
    for code in icd.get_all_codes():
        if not icd.is_category_or_subcategory(code) or icd.is_extended_subcategory(code):
            continue
        parent = code if len(code) == 3 else icd.get_parent(code)
        for text in (icd.get_description(code), *icd.get_inclusion_term(code), *icd.get_includes(code)):
            pairs[(text.strip(), parent)] = None
    texts, codes = [text for text, _ in pairs], [parent for _, parent in pairs]
    order = np.random.default_rng(0).permutation(len(texts))
    train, valid, test = np.split(order, [len(texts) * 8 // 10, len(texts) * 9 // 10])
    return ICD10CM(
        texts, codes, {code: icd.get_description(code) for code in dict.fromkeys(codes)}, train, valid, test
    )
