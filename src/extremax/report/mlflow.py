"""Saved models in MLflow, as a Python function.

    mlflow.pyfunc.log_model(name="model", loader_module="extremax.report.mlflow", data_path="my-model",
                            pip_requirements=["extremax"])

`data_path` is a folder that `save` wrote. MLflow copies it as it is; nothing is pickled.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from extremax.text import load_model


class PyFunc:
    """A model as MLflow calls it: a table in, a data frame of labels and probabilities out."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.clf: Any = load_model(path)

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> Any:
        """Return the best labels of each row and their probabilities.

        Parameters
        ----------
        model_input : DataFrame, array, list of texts
            Rows of features; for a model of texts, a list of texts or a table with one column of them.
        params : mapping, optional
            ``top_k``: labels per row, 1 unless given; with more, columns are ``label_1``, ``probability_1``
            and so on.
        """
        import pandas as pd

        k = int((params or {}).get("top_k", 1))
        rows = model_input
        if self.clf.takes_texts:
            table = np.asarray(rows, dtype=object)
            if table.ndim == 2 and table.shape[1] != 1:
                raise ValueError(
                    f"the model takes one column of texts, and the table has {table.shape[1]}; select one."
                )
            rows = table.reshape(-1).tolist()
        labels, log_prob = self.clf.predict_topk(rows, k=k)
        if k == 1:
            return pd.DataFrame({"label": labels[:, 0], "probability": np.exp(log_prob[:, 0])})
        columns: dict[str, Any] = {}
        for j in range(k):
            columns |= {f"label_{j + 1}": labels[:, j], f"probability_{j + 1}": np.exp(log_prob[:, j])}
        return pd.DataFrame(columns)


def _load_pyfunc(path: str) -> PyFunc:
    """Open the folder; MLflow calls this by name."""
    return PyFunc(path)
