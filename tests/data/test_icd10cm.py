"""ICD-10-CM as a data set: the counts that documents quote, and the rules by which texts get their class."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from extremax.data import icd10cm, seen_classes
from extremax.data.icd10cm import load_icd10cm

pytestmark = pytest.mark.skipif(find_spec("simple_icd_10_cm") is None, reason="needs the codes of ICD-10-CM")


def test_classes_match_reference() -> None:
    """The two ways to count parent codes, by the package's own walk over the codes."""
    icd = pytest.importorskip("simple_icd_10_cm")
    data = load_icd10cm()
    codes = [
        c
        for c in icd.get_all_codes()
        if icd.is_category_or_subcategory(c) and not icd.is_extended_subcategory(c)
    ]
    categories = {c for c in codes if len(c) == 3}
    parents = {icd.get_parent(c) for c in codes if len(c) > 3}
    assert set(data.codes) == parents | categories == set(data.names)
    assert (len(categories), len(parents), len(parents | categories)) == (1_918, 10_538, 10_816)
    assert len(parents) + len(categories) == 12_456
    assert len(data.texts) == 60_332


def test_texts_match_reference() -> None:
    data = load_icd10cm()
    of_text = dict(zip(data.texts, data.codes, strict=True))
    assert of_text["Cholera due to Vibrio cholerae 01, biovar cholerae"] == "A00"
    assert of_text["Cholera"] == "A00"  # a category is its own class
    assert of_text["Classical cholera"] == "A00"  # an inclusion term of A00.0
    assert data.names["A00"] == "Cholera"
    assert len(set(zip(data.texts, data.codes, strict=True))) == len(data.texts)


def test_split_invariant() -> None:
    data = load_icd10cm()
    rows = np.concatenate([data.train, data.valid, data.test])
    assert np.array_equal(np.sort(rows), np.arange(len(data.texts)))
    texts, codes = data.rows(data.train)
    assert texts[0] == data.texts[data.train[0]]
    assert len(set(codes)) == 10_662
    assert seen_classes(data.rows(data.test)[1], codes).mean() > 0.98


def test_class_texts_come_from_notes_and_ontologies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diseases = [
        {
            "name": "nephrolithiasis",
            "synonyms": ["renal stone"],
            "xrefs": [{"namespace": "ICD10CM", "id": "N20"}],
        },
        {"name": "two codes", "xrefs": [{"namespace": "ICD10", "id": c} for c in ("N20", "A00.1")]},
        {"name": "no class", "xrefs": [{"namespace": "MESH", "id": "N20"}]},
    ]
    (tmp_path / "doid.json").write_text(json.dumps(diseases))
    for name in ("efo.json", "mondo.json"):
        (tmp_path / name).write_text("[]")
    terms = '[Term]\nname: {}\nsynonym: "{}" EXACT []\nsynonym: "{}" BROAD []\n\n'
    phenotypes = terms.format("Tinnitus", "Ringing in the ears", "Noise") + terms.format(
        "Other", "Thing", "x"
    )
    (tmp_path / "hp.obo").write_text("header\n" + phenotypes)
    words = "  1 a notice\n00000001 26 n 02 ear_noises 0 hum 1 001 @ 00000002 n 0000 | a sound\n"
    (tmp_path / "data.noun1").write_text(words + words.replace(" 26 n", " 03 n").replace("hum", "other"))
    (tmp_path / "data.noun2").write_text("\n")
    monkeypatch.setattr(icd10cm, "_package_file", lambda package, path: tmp_path / Path(path).name)
    rows = {"Cholera": "A00", "Ear noise, unspecified": "H93.1", "Stones": "N20"}
    texts = icd10cm.icd10cm_class_texts([*rows], [*rows.values()])
    assert {"nephrolithiasis", "renal stone"} <= set(texts["N20"])
    assert "Calculus of kidney and ureter" not in texts["N20"]  # its name, a row of its parent
    # a phenotype has the name of the class, a state of WordNet the text of a row, but for its number
    assert texts["H93.1"] == ["Ringing in the ears", "ear noises", "hum", "a sound"]
    assert "calculus of kidney" in texts["N20"]  # of the notes of other codes
    assert not {"two codes", "no class", "Thing"} & {text for own in texts.values() for text in own}


def test_missing_package_rejects(monkeypatch: pytest.MonkeyPatch) -> None:
    load_icd10cm.cache_clear()
    monkeypatch.setitem(sys.modules, "simple_icd_10_cm", None)
    with pytest.raises(ImportError, match=r"pip install 'extremax\[demo\]'"):
        load_icd10cm()
