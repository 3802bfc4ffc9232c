"""Dense models as ONNX graphs, which run without Python.

The graph holds the whole prediction: scores, log p_n where prediction adds it, calibration, and the labels of
the best classes. Weights of more than a gigabyte go to a file beside the graph.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extremax.calibration import CONFIDENCE_OFFSET
from extremax.model import Model
from extremax.runtime.atomic_files import naming, stage_of
from extremax.tree.noise import Noise
from extremax.types import Float32

OPSET, IR_VERSION = 18, 10  # of 2023: runtimes since then read the file
INPUT = "features"
_MAX_INLINE = 1 << 30  # bytes of arrays inside the graph; a file of protocol buffers ends at 2 GiB


def save_onnx(clf: Any, path: str | os.PathLike[str], *, k: int | None = 5) -> None:
    """Write a fitted model on dense features as an ONNX file.

    The input ``features`` is float32 (n, n_features). Outputs are ``label`` (n,), the most probable label;
    ``top_labels`` and ``top_probabilities`` (n, k), best first; with ``k=None``, instead of these,
    ``probabilities`` (n, n_classes) in the order of ``classes_``. Labels are int64 where ``classes_`` are
    integers, otherwise strings. Probabilities are those of `predict_topk` and `predict_proba` to float32
    rounding. The graph does not check its input: NaN in a row gives NaN.

    Parameters
    ----------
    clf : ExtremeClassifier or TextClassifier
        Fitted, with dense weights. Of a `TextClassifier` with an encoder, the part after
        ``clf.transform(texts)`` is written.
    path : path-like
        File to write. Weights of more than 1 GiB are written to ``<name>.data`` beside it.
    k : int or None
        Labels per row; None for the probabilities of all classes.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import numpy as np
    >>> from extremax import ExtremeClassifier
    >>> from extremax.report.onnx import save_onnx
    >>> X = np.repeat(np.eye(3, dtype=np.float32), 4, axis=0)
    >>> clf = ExtremeClassifier(random_state=0).fit(X, np.repeat(["a", "b", "c"], 4))
    >>> import onnxruntime
    >>> with TemporaryDirectory() as folder:
    ...     save_onnx(clf, f"{folder}/model.onnx", k=2)
    ...     session = onnxruntime.InferenceSession(f"{folder}/model.onnx")
    >>> session.run(["label"], {"features": X[:5]})[0].tolist()
    ['a', 'a', 'a', 'a', 'b']
    """
    onnx = _import_onnx()
    if k is not None and k < 1:
        raise ValueError(f"k is {k}; ask for at least one label per row, or None for all probabilities.")
    model = _exportable(clf)
    graph = _Graph(onnx)
    _predict(graph, model, np.asarray(clf.classes_), k)
    _write(onnx, graph.build(model.n_features), Path(path))


def _import_onnx() -> Any:
    try:
        import onnx
    except ImportError:
        raise ImportError("ONNX files need the package onnx: pip install 'extremax[onnx]'.") from None
    return onnx


def _exportable(clf: Any) -> Model:
    """Return the model of a classifier, or say why it has no ONNX graph."""
    model: Model = clf.model_
    groups = model.layout.groups
    if model.label_map is not None:
        raise ValueError(
            "a model with merged classes has no ONNX graph: a class would need the sum over its parts. Export"
            " it before merge_classes."
        )
    if model.weights.state().header["kind"] != "dense" or len(groups) > 0:
        raise ValueError(
            "only models on dense features have an ONNX graph, and this one reads sparse features;"
            " serve it with 'extremax serve', or train on embeddings."
        )
    return model


class _Graph:
    """An ONNX graph that grows node by node; values are known by name."""

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.arrays: list[Any] = []
        self.outputs: list[Any] = []

    def constant(self, array: Any) -> str:
        """Add an array and return its name."""
        name = f"array_{len(self.arrays)}"
        self.arrays.append(self.onnx.numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def number(self, value: float) -> str:
        """Add a float32 number."""
        return self.constant(np.float32(value).reshape(()))

    def axes(self, *values: int) -> str:
        """Add a list of int64 numbers."""
        return self.constant(np.array(values, np.int64))

    def add(self, kind: str, *inputs: str, n_outputs: int = 1, **attributes: Any) -> Any:
        """Add a node and return the name of its output, or the names."""
        names = [f"{kind.lower()}_{len(self.nodes)}_{i}" for i in range(n_outputs)]
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if n_outputs == 1 else names

    def result(self, value: str, name: str, kind: int, shape: list[Any]) -> None:
        """Make a value an output of the graph."""
        self.nodes.append(self.onnx.helper.make_node("Identity", [value], [name]))
        self.outputs.append(self.onnx.helper.make_tensor_value_info(name, kind, shape))

    def build(self, n_features: int) -> Any:
        """Return the checked model."""
        helper, float32 = self.onnx.helper, self.onnx.TensorProto.FLOAT
        given = helper.make_tensor_value_info(INPUT, float32, ["n", n_features])
        graph = helper.make_graph(self.nodes, "extremax", [given], self.outputs, self.arrays)
        opset = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, producer_name="extremax", opset_imports=opset, ir_version=IR_VERSION)


def _predict(graph: _Graph, model: Model, classes: NDArray[Any], k: int | None) -> None:
    """Add the whole prediction to a graph."""
    kinds, n_classes = graph.onnx.TensorProto, model.n_classes
    prob = _probabilities(graph, model, _scores(graph, model))
    labels, label_kind = _label_array(classes)
    names = graph.constant(labels)
    kind = kinds.STRING if label_kind == "string" else kinds.INT64
    if k is None:
        best = graph.add("ArgMax", prob, axis=1, keepdims=0)
        graph.result(graph.add("Gather", names, best), "label", kind, ["n"])
        graph.result(prob, "probabilities", kinds.FLOAT, ["n", n_classes])
        return
    k = min(k, n_classes)
    values, places = graph.add("TopK", prob, graph.axes(k), n_outputs=2, axis=1)  # ties: the lower place
    top = graph.add("Gather", names, places)
    first = graph.add("Gather", top, graph.constant(np.int64(0)), axis=1)
    graph.result(first, "label", kind, ["n"])
    graph.result(top, "top_labels", kind, ["n", k])
    graph.result(values, "top_probabilities", kinds.FLOAT, ["n", k])


def _label_array(classes: NDArray[Any]) -> tuple[NDArray[Any], str]:
    if classes.dtype.kind in "iu" and (classes.size == 0 or int(classes.max()) <= np.iinfo(np.int64).max):
        return classes.astype(np.int64), "int64"
    return np.array([str(label) for label in classes.tolist()], dtype=object), "string"


def _scores(graph: _Graph, model: Model) -> str:
    """Add ``feature_scale * x.w_y + b_y``, and log p_n where prediction adds it."""
    weights: Any = model.weights
    offsets, noise = model.scorer.offsets, model.noise_term
    biases = weights.biases if offsets is None else weights.biases + offsets
    scores: str = _affine(graph, INPUT, weights.weights, biases, float(weights.feature_scale))
    if noise is None or offsets is not None:
        return scores
    Z = INPUT
    if model.projection is not None:
        components, mean = model.projection.components, model.projection.mean
        offset = components.astype(np.float64) @ mean.astype(np.float64)
        Z = _affine(graph, INPUT, components, -offset.astype(np.float32))
    found: str = graph.add("Add", scores, _log_noise(graph, noise, Z))
    return found


def _affine(graph: _Graph, x: str, weights: Float32, biases: Float32, scale: float = 1.0) -> str:
    """Add ``scale * x @ weights.T + biases``."""
    table, shift = graph.constant(weights), graph.constant(biases)
    found: str = graph.add("Gemm", x, table, shift, alpha=scale, transB=1)
    return found


def _log_noise(graph: _Graph, noise: Noise, Z: str) -> str:
    """Add log p_n of all classes."""
    if noise.shared_log_prob is not None:
        return graph.constant(noise.shared_log_prob[None, :])
    kind = str(noise.state().header["kind"])
    if kind not in _NOISE:
        raise ValueError(
            f"noise {kind!r} has no ONNX graph; there are uniform, frequency, tree and mixtures of them."
        )
    return _NOISE[kind](graph, noise, Z)


def _log_mixture(graph: _Graph, noise: Any, Z: str) -> str:
    """Add log(w e^a + (1 - w) e^b) of the two parts: max + softplus(-|difference|)."""
    shift = float(np.log(noise.weight)), float(np.log1p(-noise.weight))
    first = graph.add("Add", _log_noise(graph, noise.first, Z), graph.number(shift[0]))
    second = graph.add("Add", _log_noise(graph, noise.second, Z), graph.number(shift[1]))
    gap = graph.add("Neg", graph.add("Abs", graph.add("Sub", first, second)))
    found: str = graph.add("Add", graph.add("Max", first, second), graph.add("Softplus", gap))
    return found


def _log_tree(graph: _Graph, noise: Any, Z: str) -> str:
    """Add log p_n of a label tree: level by level, every node hands its log-probability to two children."""
    tree = noise.tree
    log_prob = graph.constant(np.zeros((1, 1), np.float32))  # of the root
    logits = _affine(graph, Z, tree.weights, tree.biases)
    for level in range(tree.depth):
        width = 1 << level
        start, stop = graph.axes(width - 1), graph.axes(2 * width - 1)
        a = graph.add("Slice", logits, start, stop, graph.axes(1))
        left = graph.add("Sub", log_prob, graph.add("Softplus", a))
        right = graph.add("Sub", log_prob, graph.add("Softplus", graph.add("Neg", a)))
        pair = [graph.add("Unsqueeze", side, graph.axes(2)) for side in (left, right)]
        log_prob = graph.add("Reshape", graph.add("Concat", *pair, axis=2), graph.axes(0, 2 * width))
    found: str = graph.add("Gather", log_prob, graph.constant(tree.class_leaf.astype(np.int64)), axis=1)
    return found


_NOISE = {"tree": _log_tree, "mixture": _log_mixture}


def _probabilities(graph: _Graph, model: Model, scores: str) -> str:
    """Add the calibrated softmax of scores; see `extremax.calibration`."""
    temperature, uniform_mix, slope = model.calibration
    scaled = graph.add("Mul", scores, graph.number(1.0 / temperature))
    if slope != 0.0:
        log_top = graph.add("ReduceMax", graph.add("LogSoftmax", scaled, axis=1), graph.axes(1), keepdims=1)
        sure = graph.add("Add", graph.add("Exp", log_top), graph.number(CONFIDENCE_OFFSET))
        # the temperature of a row is the common one times sure^slope
        scaled = graph.add("Div", scaled, graph.add("Pow", sure, graph.number(slope)))
    prob: str = graph.add("Softmax", scaled, axis=1)
    if uniform_mix > 0.0:
        prob = graph.add("Mul", prob, graph.number(1.0 - uniform_mix))
        prob = graph.add("Add", prob, graph.number(uniform_mix / model.n_classes))
    return prob


def _write(onnx: Any, proto: Any, path: Path) -> None:
    """Check and write a model, completely or not at all; large arrays beside it."""
    data = path.with_name(f"{path.name}.data")
    stage = stage_of(path)
    try:
        with naming(path):
            stage.mkdir()
            if sum(len(array.raw_data) for array in proto.graph.initializer) > _MAX_INLINE:
                onnx.save_model(
                    proto,
                    stage / path.name,
                    save_as_external_data=True,
                    location=data.name,
                    size_threshold=4096,
                )
                onnx.checker.check_model(str(stage / path.name))
                os.replace(stage / data.name, data)
            else:
                onnx.checker.check_model(proto, full_check=True)
                onnx.save_model(proto, stage / path.name)
                data.unlink(missing_ok=True)
            os.replace(stage / path.name, path)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
