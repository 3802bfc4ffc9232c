"""ONNX graphs give the probabilities of the model, in onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

import extremax.report.onnx as exporter
from extremax import ExtremeClassifier, TextClassifier
from extremax.report.onnx import save_onnx
from extremax.solvers import MinibatchSoftmax, NegativeSampling
from extremax.tree import LabelTree
from extremax.tree.noise import FrequencyNoise, MixtureNoise, TreeNoise, UniformNoise

onnxruntime = pytest.importorskip("onnxruntime")


def planted(n_rows=600, n_classes=23, n_features=9, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((n_classes, n_features))
    y = rng.integers(n_classes, size=n_rows)
    y[:n_classes] = np.arange(n_classes)
    X = centres[y] + 0.4 * rng.standard_normal((n_rows, n_features))
    return X.astype(np.float32), y


def run(clf, X, tmp_path, k):
    path = tmp_path / "model.onnx"
    save_onnx(clf, path, k=k)
    session = onnxruntime.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"features": X}), strict=True))


def check(clf, X, tmp_path):
    found = run(clf, X, tmp_path, None)
    np.testing.assert_allclose(found["probabilities"], clf.predict_proba(X), atol=2e-6, rtol=2e-4)
    best = clf.predict_proba(X).argsort(axis=1)
    clear = np.take_along_axis(clf.predict_proba(X), best[:, -2:], axis=1)
    sure = clear[:, 1] - clear[:, 0] > 1e-4
    assert sure.mean() > 0.9
    assert (found["label"][sure] == clf.predict(X)[sure].astype(found["label"].dtype)).all()
    k = min(3, len(clf.classes_))
    labels, log_prob = clf.predict_topk(X, k=k)
    top = run(clf, X, tmp_path, 3)
    np.testing.assert_allclose(top["top_probabilities"], np.exp(log_prob), atol=2e-6, rtol=2e-4)
    same = top["top_labels"] == labels.astype(top["top_labels"].dtype)
    assert same.mean() > 0.98
    assert (top["label"] == top["top_labels"][:, 0]).all()


@pytest.mark.identity
@pytest.mark.parametrize("n_classes", [2, 3, 16, 23])
def test_tree_noise_is_in_the_graph(n_classes, tmp_path):
    X, y = planted(n_classes=n_classes)
    clf = ExtremeClassifier(NegativeSampling(noise="tree"), n_epochs=2, random_state=0)
    clf.fit(X, y)
    check(clf, X, tmp_path)


@pytest.mark.identity
@pytest.mark.parametrize("noise", ["uniform", "frequency"])
def test_shared_noise_is_in_the_biases(noise, tmp_path):
    X, y = planted()
    clf = ExtremeClassifier(NegativeSampling(noise=noise), n_epochs=2, random_state=0)
    check(clf.fit(X, y), X, tmp_path)


@pytest.mark.identity
def test_mixtures_are_in_the_graph(tmp_path):
    X, y = planted()
    tree = LabelTree.fit(X, y)
    counts = FrequencyNoise(np.bincount(y))
    noise = MixtureNoise(MixtureNoise(TreeNoise(tree), counts, weight=0.7), UniformNoise(23), weight=0.9)
    clf = ExtremeClassifier(NegativeSampling(noise=noise), n_epochs=2, random_state=0)
    check(clf.fit(X, y), X, tmp_path)


@pytest.mark.identity
@pytest.mark.parametrize("calibration", [(1.7, 0.05, 0.0), (0.8, 0.01, 0.6), (1.0, 0.0, -0.4)])
def test_calibration_is_in_the_graph(calibration, tmp_path):
    X, y = planted()
    clf = ExtremeClassifier(MinibatchSoftmax(n_shared=None), n_epochs=2, random_state=0).fit(
        X, np.char.add("c", y.astype(str))
    )
    model = clf.model_
    clf._replace_model(model.with_calibration(type(model.calibration)(*calibration)))
    check(clf, X, tmp_path)


@pytest.mark.identity
def test_default_classifier(tmp_path):
    X, y = planted()
    check(ExtremeClassifier(random_state=0).fit(X, y), X, tmp_path)


class Letters:
    def encode(self, texts):
        return np.array([[text.count(letter) for letter in "abcdeghlnortuw"] for text in texts], np.float32)


@pytest.mark.identity
def test_embeddings_enter_after_the_encoder(tmp_path):
    texts = [
        f"{word} {other}" for word in ["red", "green", "blue"] for other in ["cat", "dog", "cow", "hen"]
    ] * 3
    labels = [text.split()[0] for text in texts]
    clf = TextClassifier(ExtremeClassifier(random_state=0), encoder=Letters()).fit(texts, labels)
    found = run(clf, clf.transform(texts), tmp_path, None)
    np.testing.assert_allclose(found["probabilities"], clf.predict_proba(texts), atol=2e-6, rtol=2e-4)
    assert found["label"].tolist() == clf.predict(texts).tolist()


@pytest.mark.identity
def test_large_weights_go_beside_the_graph(tmp_path, monkeypatch):
    X, y = planted()
    clf = ExtremeClassifier(MinibatchSoftmax(n_shared=None), n_epochs=1, random_state=0).fit(
        np.tile(X, 60), y
    )
    X = np.tile(X, 60)
    monkeypatch.setattr(exporter, "_MAX_INLINE", 1024)
    check(clf, X, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    monkeypatch.undo()
    save_onnx(clf, tmp_path / "model.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.error
def test_what_cannot_be_exported_is_said(tmp_path):
    texts = ["red cat", "blue dog"] * 6
    sparse = TextClassifier().fit(texts, ["a", "b"] * 6)
    with pytest.raises(ValueError, match="sparse features"):
        save_onnx(sparse, tmp_path / "model.onnx")
    X, y = planted(100, 5)
    with pytest.raises(ValueError, match="k is 0"):
        save_onnx(ExtremeClassifier(random_state=0).fit(X, y), tmp_path / "model.onnx", k=0)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="missing"):
        save_onnx(ExtremeClassifier(random_state=0).fit(X, y), tmp_path / "missing" / "model.onnx")
