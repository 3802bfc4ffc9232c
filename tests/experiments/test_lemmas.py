"""Word forms and lemmas, read from a small table in the layout of the real ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from extremax.cli.app import app
from extremax.data import DataFileError
from extremax.experiments import catalog, lemmas
from extremax.experiments.catalog import load_named, source_files
from extremax.experiments.methods import FIGURE_1
from extremax.experiments.paper import by_classes
from extremax.experiments.paper.by_classes import lemma_recipe, reproduce_lemmas
from extremax.experiments.paper.plan import describe_needs
from extremax.experiments.paper.reproduction import recipe_for
from extremax.experiments.recipe import find_recipe, load_recipe
from extremax.experiments.rows import load_rows
from extremax.experiments.runner import run

STEMS = [f"{a}{b}{c}" for a in "bdgk" for b in "aeiou" for c in ("rt", "ln")]
ENDINGS = ("a", "y", "ie", "om", "ach")


def write_table(folder: Path, content: object = None) -> None:
    table = {f"{stem}{ending}": f"{stem}a" for stem in STEMS for ending in ENDINGS}
    text = json.dumps(table if content is None else content, ensure_ascii=False)
    folder.mkdir(exist_ok=True)
    (folder / "pl_lemma_lookup_noun.json.gz").write_bytes(gzip.compress(text.encode()))


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_table(tmp_path / "tables")
    monkeypatch.setenv("EXTREMAX_LOOKUPS", str(tmp_path / "tables"))
    monkeypatch.setenv("EXTREMAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "tables"


def test_rows_are_those_of_the_table(table: Path) -> None:
    n = len(STEMS) * len(ENDINGS)
    data = load_named("polish-nouns")
    parts = (data.train, data.valid, data.test)
    assert [part.n_samples for part in parts] == [n * 90 // 100, n // 20, n // 20]
    forms = [form for part in parts for form in part.texts or []]
    assert len(set(forms)) == len(forms) == n
    for part in parts:
        for form, lemma in zip(part.texts or [], part.y, strict=True):
            stem = next(stem for stem in STEMS if form.startswith(stem))
            assert lemma == f"{stem}a"
    again = load_named("polish-nouns")
    assert again.train.texts == data.train.texts  # the split has a seed of its own
    assert source_files("polish-nouns") == [table / "pl_lemma_lookup_noun.json.gz"]


def test_shipped_recipe_runs(table: Path, tmp_path: Path) -> None:
    recipe = load_recipe(find_recipe("polish-nouns/adversarial")).with_model(n_epochs=8)
    rows = load_rows(recipe, n_jobs=1)
    assert rows.n_classes == len(STEMS)
    assert rows.X["train"].shape[1] <= 512
    summary = run(recipe, tmp_path / "run", rows=rows, n_jobs=1)
    curve = summary["last"]
    assert curve["valid_log_likelihood"] > -3.0  # chance is -log 40 = -3.7
    assert load_rows(recipe, n_jobs=1, log=pytest.fail).n_classes == len(STEMS)  # from the cache


def test_recipes_have_the_same_rows() -> None:
    recipes = [recipe_for("polish-nouns", method) for method in FIGURE_1]
    assert all(recipe.method == method for recipe, method in zip(recipes, FIGURE_1, strict=True))
    for recipe in recipes[1:]:
        assert recipe.data == recipes[0].data
        assert recipe.features == recipes[0].features
        assert recipe.evaluation == recipes[0].evaluation


def test_missing_package_and_files_reject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delenv("EXTREMAX_LOOKUPS", raising=False)
    with pytest.raises(ImportError, match=r"not installed: pip install spacy-lookups-data\."):
        load_named("polish-nouns")
    monkeypatch.setenv("EXTREMAX_LOOKUPS", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"noun\.json\.gz does not exist; set EXTREMAX_LOOKUPS"):
        lemmas.load_lemmas("polish-nouns")


@pytest.mark.parametrize("content", [{}, {"domy": 3}, ["domy"]])
def test_other_json_rejects(table: Path, content: object) -> None:
    write_table(table, content)
    with pytest.raises(DataFileError, match="is not a table of word form -> lemma"):
        lemmas.load_lemmas("polish-nouns")


@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: b"no gzip", lambda data: b""]
)
def test_damaged_file_rejects(table: Path, damage) -> None:
    path = table / "pl_lemma_lookup_noun.json.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataFileError, match="is not JSON compressed by gzip"):
        lemmas.load_lemmas("polish-nouns")


def test_subsets_are_nested_and_whole(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(catalog.LEMMA_SUBSETS, "lemmas-5000", 8)
    monkeypatch.setitem(catalog.LEMMA_SUBSETS, "lemmas-16000", 20)
    few, more = load_named("lemmas-5000"), load_named("lemmas-16000")
    assert (len(set(few.train.y)), len(set(more.train.y))) == (8, 20)
    assert set(few.train.y) < set(more.train.y)
    whole = load_named("polish-nouns")
    assert few.test.n_samples == np.isin(whole.test.y, np.unique(few.train.y)).sum()


def test_lemma_recipes_differ_by_method_alone() -> None:
    recipes = [lemma_recipe(5000, "learned", method) for method in FIGURE_1]
    assert len({(recipe.data, recipe.features, recipe.evaluation) for recipe in recipes}) == 1
    assert [recipe.model["n_epochs"] for recipe in recipes] == [30, 150, 150, 30, 30, 150, 150]
    for recipe in recipes:
        sizes = [len(values) for values in recipe.search.space.values() if isinstance(values, list)]
        assert np.prod(sizes) == by_classes.N_TRIALS


def test_command_compares_by_number_of_classes(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learned and other features, from the word forms to the table; the second call repeats nothing."""
    pytest.importorskip("torch")
    monkeypatch.setitem(catalog.LEMMA_SUBSETS, "lemmas-5000", 20)
    monkeypatch.setattr(by_classes, "N_FEATURES", 16)
    out = tmp_path / "out"
    arguments = ["reproduce", "lemmas", "--lemmas", "5000", "--out", str(out), "--threads", "1"]
    arguments += ["--trials", "2", "-m", "adversarial", "-m", "uniform"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.stderr
    told = done.stderr.splitlines()
    assert told[0].startswith("2 comparisons take at most about")
    assert told[1].startswith("lemmas-5000 needs")
    assert "pl_lemma_lookup_noun.json.gz" in told[1]
    assert "minutes of processor time" in told[2]
    assert told[3].startswith("memory: ")
    assert any("learned the features in" in line for line in told)
    factors, _, verdicts = done.stdout.partition("\n\n")
    rows = [line.split(" | ")[:3] for line in factors.splitlines()[2:]]
    assert rows == [[f"| {kind}", "5,000", "uniform neg. sampling"] for kind in ("learned", "text")]
    assert [line.split(" | ")[0] for line in verdicts.strip().splitlines()[2:]] == ["| learned", "| text"]
    content = json.loads((out / "by-classes.json").read_text())
    assert [part["features"] for part in content] == ["learned", "text"]
    assert set(content[0]["factors"]["uniform"]) == set(by_classes.UNITS)
    assert (out / "by-classes.svg").exists()
    curve = (out / "learned/5000/runs/uniform/seed-0/curve.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in curve][:5] == [0, 1, 2, 4, 8]
    again = CliRunner().invoke(app, [*arguments, "--features", "text"])
    assert "epoch" not in again.stderr
    assert "is finished already" in again.stderr
    assert again.stdout == done.stdout  # about all that the folder holds


def test_plan_is_a_bound_on_what_was_measured(table: Path) -> None:
    """5.0 and 6.0 minutes of processor time on two kinds of features of 16,000 lemmas, with one seed."""
    recipes = {name: lemma_recipe(16_000, "text", name) for name in FIGURE_1}
    _, seconds = describe_needs(recipes, n_trials=by_classes.N_TRIALS, n_finalists=by_classes.N_FINALISTS)
    assert 6 < seconds / 60 < 18


def test_unknown_sizes_and_features_reject(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sizes has 7; use some of 5000, 16000, 50000, 219109\\."):
        reproduce_lemmas(tmp_path, sizes=[7])
    with pytest.raises(ValueError, match="features has 'svd'; use some of learned, text"):
        reproduce_lemmas(tmp_path, features=["svd"])
    with pytest.raises(ValueError, match="methods must contain 'adversarial'"):
        reproduce_lemmas(tmp_path, methods=["uniform"])
