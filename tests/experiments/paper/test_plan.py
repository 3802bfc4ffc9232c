"""What a reproduction says before it starts, and the authors' data in their own units."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from table_1 import TABLE_1

from extremax import ExtremeClassifier
from extremax.data import planted_hierarchy
from extremax.experiments.catalog import load_named
from extremax.experiments.paper.plan import SIZES, describe_needs, find_size
from extremax.experiments.paper.reproduction import recipe_for, reproduce
from extremax.experiments.recipe import resolve
from extremax.experiments.runner import run

LENGTH = 27.7  # of XML-CNN rows of Amazon-670K


def write_files(folder: Path, n_classes: int = 40) -> None:
    """Planted classes in the layout of the authors' files, rows of about the length of theirs."""
    data = planted_hierarchy(2000, n_classes, 24, n_test=500)
    scale = LENGTH / np.sqrt(np.mean(np.sum(data.X**2, axis=1)))
    folder.mkdir(parents=True)
    for part, X, y in (("trn", data.X, data.y), ("tst", data.X_test, data.y_test)):
        rows = "".join(" ".join(f"{x:.5g}" for x in row) + "\n" for row in X * scale)
        (folder / f"{part}_ft_mat_dense.txt").write_text(f"{len(X)} {X.shape[1]}\n{rows}")
        labels = "".join(f"{label}:1 {label + n_classes}:1\n" for label in y)
        (folder / f"{part}_lbl_mat.txt").write_text(f"{len(y)} {2 * n_classes}\n{labels}")


@pytest.mark.parametrize("data", list(TABLE_1))
def test_recipes_have_the_paper_s_table(data: str) -> None:
    for method, numbers in TABLE_1[data].items():
        model = recipe_for(data, method).model
        assert numbers.items() <= model.items()
        assert model["scale_features"] is False
        assert model.get("tree_fit", "paper") == "paper"
        unconditional = method in ("uniform", "frequency")
        assert (model.get("penalized_scores") == "raw") is unconditional


def test_authors_files_learn_in_the_paper_s_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path / "Amazon-670K")
    monkeypatch.setenv("EXTREMAX_DATA", str(tmp_path))
    rows = load_named("amazon-670k")
    length = np.sqrt(np.mean(np.sum(rows.train.X**2, axis=1)))
    assert length == pytest.approx(LENGTH, rel=0.01)
    for method, factor in (("uniform", 1.5), ("adversarial", 3.0)):
        model = {**resolve(recipe_for("amazon-670k", method))["model"], "n_epochs": 5}
        gains = []
        for scaled in (False, True):
            options = {**model, "scale_features": scaled}
            start = ExtremeClassifier.with_solver(**{**options, "n_epochs": 0}).fit(
                rows.train.X, rows.train.y
            )
            clf = ExtremeClassifier.with_solver(**options).fit(rows.train.X, rows.train.y)
            before, after = (c.log_likelihood(rows.test.X, rows.test.y) for c in (start, clf))
            gains.append(after - before)
        assert gains[0] > factor * gains[1] > 0.0  # the same rate on scaled rows is another, smaller one


def test_recipe_learns_as_fast_as_unscaled_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`extremax run` of the recipe on files of that layout, beside the same rows without files."""
    write_files(tmp_path / "Amazon-670K")
    monkeypatch.setenv("EXTREMAX_DATA", str(tmp_path))
    monkeypatch.setenv("EXTREMAX_CACHE", str(tmp_path / "cache"))
    recipe = recipe_for("amazon-670k", "adversarial").with_model(n_epochs=5)
    summary = run(recipe, tmp_path / "run", n_jobs=1)
    data, test = planted_hierarchy(2000, 40, 24, n_test=500), load_named("amazon-670k").test
    X = data.X * np.float32(LENGTH / np.sqrt(np.mean(np.sum(data.X**2, axis=1))))
    clf = ExtremeClassifier.paper(n_epochs=5, random_state=0).fit(X, data.y)
    last = summary["last"]["test_log_likelihood"]
    assert last == pytest.approx(clf.log_likelihood(test.X, test.y), abs=1e-3)  # five digits in the files


def test_size_is_that_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXTREMAX_DATA", str(tmp_path))
    assert find_size("amazon-670k") == (SIZES["amazon-670k"], False)
    write_files(tmp_path / "Amazon-670K")
    assert find_size("amazon-670k") == ((2000, 500, 24, 80), True)


def test_needs_are_files_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXTREMAX_DATA", raising=False)
    recipes = {name: recipe_for("amazon-670k", name) for name in TABLE_1["amazon-670k"]}
    text = "\n".join(describe_needs(recipes)[0])
    assert "amazon-670k needs trn_ft_mat_dense.txt, trn_lbl_mat.txt" in text
    assert "in EXTREMAX_DATA/Amazon-670K/ (not found; labels from the Extreme Classification" in text
    assert "490,449 training rows, 153,025 others, 512 features, 213,874 classes; 6 methods take" in text
    assert "memory: " in text
    recipe = recipe_for("icd10cm", "uniform")
    lines, seconds = describe_needs({"uniform": recipe})
    assert lines[0] == "icd10cm needs a package"
    assert describe_needs({"uniform": recipe}, n_seeds=3)[1] == pytest.approx(3 * seconds)
    assert describe_needs({"uniform": recipe}, n_trials=4)[1] > seconds
    own = replace(recipe, data=replace(recipe.data, name="mine", path="rows.csv"))
    assert describe_needs({"uniform": own}) == ([], 0.0)


def test_sizes_are_those_of_the_data() -> None:
    data = load_named("icd10cm")
    others = data.valid.n_samples + data.test.n_samples
    size = (data.train.n_samples, others, 512, len(np.unique(data.train.y)))
    assert size == SIZES["icd10cm"]


def test_reproduction_speaks_before_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXTREMAX_DATA", raising=False)
    said: list[str] = []
    with pytest.raises(FileNotFoundError, match="environment variable EXTREMAX_DATA"):
        reproduce("amazon-670k", tmp_path / "out", log=said.append)
    assert any(line.startswith("amazon-670k needs") for line in said)
    assert any(line.startswith("memory: ") for line in said)
    assert not (tmp_path / "out").exists()
