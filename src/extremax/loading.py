"""`load_model`: from a folder to the estimator that wrote it."""

from __future__ import annotations

import os
from typing import Any

from extremax.classifier import ExtremeClassifier
from extremax.storage import checks
from extremax.storage.models import open_model
from extremax.text import TEXT_COMPONENT, TextClassifier


def load_model(
    path: str | os.PathLike[str], *, verify: bool = False, encoder: Any = None
) -> ExtremeClassifier | TextClassifier:
    """Open a model that `save` of a classifier wrote, in one piece or in shards of classes.

    Arrays are memory-mapped: opening takes no longer for a larger model. Each load checks the header, the
    sizes, a sample of the data, and that all parts fit together. A `random_state` that was no integer comes
    back as None.

    Parameters
    ----------
    path : path-like
        The folder.
    verify : bool
        Read and check all of the data.
    encoder : str or object with a method ``encode``, optional
        For a `TextClassifier` that was trained with an encoder: the model holds only what came after it. A
        name that the folder holds is not loaded by itself, because a folder from elsewhere may name anything:
        give the name of the encoder that you trust.

    Returns
    -------
    ExtremeClassifier or TextClassifier
        Of the kind that was saved.

    Raises
    ------
    ModelFileError
        If the folder is no model, is damaged, or its parts do not fit together.

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
    saved = open_model(path, verify=verify)
    about = saved.parts.get(TEXT_COMPONENT)
    if encoder is not None and (about is None or about.header.get("kind") != "encoder"):
        raise ValueError(f"{path} was not trained with an encoder; open it without one.")
    with checks.whole_model(path):
        classifier = ExtremeClassifier._restore(path, saved)
        return classifier if about is None else TextClassifier._restore(classifier, about, encoder)
