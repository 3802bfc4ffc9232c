"""``load_model``: from a folder to the estimator that wrote it."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from sklearn.base import clone

from extremax.estimator import ExtremeClassifier
from extremax.features.text import TextFeatures
from extremax.model import ExtremeModel, SavedModel
from extremax.text_classifier import TEXT_ARRAYS, TEXT_HEADER, TextClassifier


def load_model(
    path: str | os.PathLike[str], *, verify: bool = False, encoder: Any = None
) -> ExtremeClassifier | TextClassifier:
    """Open a model that `ExtremeClassifier.save` or `TextClassifier.save` wrote.

    Arrays are memory-mapped: opening takes no longer for a larger model. Each load checks the header, the
    sizes and a sample of the data. A `random_state` that was no integer comes back as None.

    Parameters
    ----------
    path : path-like
        The folder.
    verify : bool
        Read and check all of the data.
    encoder : object with a method ``encode``, optional
        For a `TextClassifier` that was trained with an encoder object: the model holds only what came after
        it.

    Returns
    -------
    ExtremeClassifier or TextClassifier
        Of the kind that was saved.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from extremax import ExtremeClassifier, load_model
    >>> X, y = [[0.0, 1.0], [1.0, 0.0], [0.1, 0.9], [0.9, 0.2]], ["a", "b", "a", "b"]
    >>> with TemporaryDirectory() as folder:
    ...     ExtremeClassifier(random_state=0).fit(X, y).save(f"{folder}/model")
    ...     load_model(f"{folder}/model").predict([[0.0, 1.0]]).tolist()
    ['a']
    """
    saved = ExtremeModel.load(path, verify=verify)
    about = saved.header.get(TEXT_HEADER)
    if encoder is not None and (about is None or about["kind"] != "encoder"):
        raise ValueError(f"{path} was not trained with an encoder; open it without one.")
    classifier = _restore(path, saved)
    if about is None:
        return classifier
    template = clone(classifier)
    if about["kind"] == "encoder":
        texts = TextClassifier(template, encoder=about["name"] if encoder is None else encoder)
        texts.features_ = None
    else:
        arrays = {
            name.removeprefix(TEXT_ARRAYS): a
            for name, a in saved.arrays.items()
            if name.startswith(TEXT_ARRAYS)
        }
        features = TextFeatures.from_arrays(about, arrays)
        texts = TextClassifier(template, features=TextFeatures(**features.to_options()))
        texts.features_ = features
    texts.classifier_ = classifier
    return texts


def _restore(path: str | os.PathLike[str], saved: SavedModel) -> ExtremeClassifier:
    if saved.labels is None:
        raise ValueError(
            f"{path} holds a model without label names; it was not written by ExtremeClassifier.save."
        )
    # A noise object is no plain parameter, but the model has it.
    estimator = ExtremeClassifier(**({"noise": saved.model.noise} | saved.header["parameters"]))
    weights = saved.model.linear.weights
    estimator._remember(weights, weights, saved.labels)
    if "feature_names" in saved.header:
        estimator.feature_names_in_ = np.array(saved.header["feature_names"], dtype=object)
    estimator.model_ = saved.model
    estimator.choices_ = saved.header["choices"]
    estimator.seed_ = int(saved.header["seed"])
    history = saved.header["history"]
    estimator.history_ = [
        {n: float("nan") if v is None else v for n, v in record.items()} for record in history
    ]
    return estimator
