"""Old names of modules and attributes still work, with a warning that says the new one."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

from extremax import ExtremeClassifier

MOVED = [
    ("extremax.theory", "alpha", "extremax.paper.theory"),
    ("extremax.predict", "Calibration", "extremax.calibration"),
    ("extremax.predict", "CodeIndex", "extremax.search"),
    ("extremax.persist", "load_folder", "extremax.storage.folder"),
    ("extremax.objectives", "OBJECTIVES", "extremax.training.objectives"),
    ("extremax.data.pca", "PCA", "extremax.features.pca"),
    ("extremax.data.text", "TextFeatures", "extremax.features.text"),
    ("extremax.data.splits", "split_rows", "extremax.splits"),
    ("extremax.model", "ExtremeModel", "Model"),
]


@pytest.mark.parametrize(("old", "name", "new"), MOVED)
def test_old_module_warns(old: str, name: str, new: str) -> None:
    module = import_module(old)
    with pytest.warns(FutureWarning, match=new):
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError):
        _ = module.nothing_of_that_name


def test_old_attributes_of_a_model_warn() -> None:
    X, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 6
    model = ExtremeClassifier(n_epochs=1, random_state=0).fit(X, y).model_
    for old, value in [
        ("linear", model.weights),
        ("temperature", model.calibration.temperature),
        ("class_counts", model.classes.counts),
        ("n_samples", 60),
    ]:
        with pytest.warns(FutureWarning, match=f"model_.{old} is now called"):
            assert np.all(getattr(model, old) == value)
    with pytest.raises(AttributeError, match=r"use clf\.fit_index"):
        _ = model.fit_index
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = model.nothing
