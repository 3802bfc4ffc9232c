"""MLflow loads a saved model and predicts as the model does."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

from extremax import ExtremeClassifier, TextClassifier

with warnings.catch_warnings():  # of MLflow's own dependencies
    warnings.simplefilter("ignore")
    pyfunc = pytest.importorskip("mlflow.pyfunc")

pytestmark = pytest.mark.filterwarnings("ignore")


def through_mlflow(clf, tmp_path):
    clf.save(tmp_path / "model")
    pyfunc.save_model(
        tmp_path / "mlflow",
        loader_module="extremax.report.mlflow",
        data_path=str(tmp_path / "model"),
        pip_requirements=["extremax"],
    )
    return pyfunc.load_model(str(tmp_path / "mlflow"))


@pytest.mark.identity
def test_features(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 4)).astype(np.float32)
    y = X.argmax(axis=1)
    clf = ExtremeClassifier(random_state=0).fit(X, y)
    served = through_mlflow(clf, tmp_path)
    found = served.predict(pd.DataFrame(X))
    labels, log_prob = clf.predict_topk(X, k=1)
    assert found["label"].tolist() == labels[:, 0].tolist()
    np.testing.assert_array_equal(found["probability"], np.exp(log_prob[:, 0]))


@pytest.mark.identity
def test_texts(tmp_path):
    texts = ["fell off a ladder", "bitten by a dog"] * 6
    clf = TextClassifier(ExtremeClassifier(random_state=0)).fit(texts, ["fall", "bite"] * 6)
    served = through_mlflow(clf, tmp_path)
    table = pd.DataFrame({"text": ["a ladder", "a dog"]})
    assert served.predict(table)["label"].tolist() == ["fall", "bite"]
    with pytest.raises(ValueError, match="one column of texts"):
        served.predict(pd.DataFrame({"a": ["x"], "b": ["y"]}))
