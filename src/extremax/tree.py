"""The auxiliary model of the paper's section 3: a balanced binary tree with one logistic regression per node and a class per leaf.

``log p_n(y|x)`` is the sum of ``log sigma(zeta (w_v.x + b_v))`` over the nodes v on the way to the leaf of y, zeta = 1 to the right
and -1 to the left.  It is normalised over the classes, costs O(k log C), and so does a draw from it.  Nodes are numbered as in a
heap: the children of node i are 2 i + 1 and 2 i + 2, and leaf j is node ``n_leaves - 1 + j``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from extremax.kernels.tree_fit import PADDING_BIAS, Grouped, Nodes, Settings, fit_subtree, group_by_class, sum_by_class
from extremax.kernels.tree_walk import LANES, all_log_prob, beam_leaves, path_log_prob, sample_paths
from extremax.parallel import resolve_threads, run, split

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]

_PAIRS_PER_TASK = 4096
_ALL_ROWS_PER_TASK = 32
_BEAM_ROWS_PER_TASK = 64
_SUBTREE_POINTS = 4096  # nodes are one task each until they hold about this few points; then a whole subtree is one task
_CLASSES_PER_TASK = 16384


class LabelTree:
    """Probabilistic decision tree over classes: ``p_n(y|x)`` with exact sampling and exact log-probabilities.

    Use `LabelTree.fit` to make one from data; the constructor takes the arrays of a fitted tree.

    Parameters
    ----------
    weights : float32 (2**depth - 1, n_components)
        Weights of the inner nodes, in heap order.
    biases : float32 (2**depth - 1,)
        Biases of the inner nodes.
    leaf_class : int32 (2**depth,)
        Class of each leaf, from left to right; -1 is padding, which has probability 0.

    Attributes
    ----------
    class_leaf : int32 (n_classes,)
        Leaf of each class.
    n_classes, n_components, depth : int

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(5, size=400)
    >>> Z = rng.standard_normal((400, 2)) + np.array([[0, 0], [0, 4], [4, 0], [4, 4], [8, 2]])[y]
    >>> tree = LabelTree.fit(Z, y)
    >>> labels, log_prob = tree.sample(Z, n_draws=3, seed=1)
    >>> labels.shape
    (400, 3)
    >>> bool(np.allclose(np.exp(tree.log_prob_all(Z)).sum(axis=1), 1.0, atol=1e-5))
    True
    """

    def __init__(self, weights: ArrayLike, biases: ArrayLike, leaf_class: ArrayLike) -> None:
        weights, biases, leaf_class = np.asarray(weights), np.asarray(biases), np.asarray(leaf_class)
        n_leaves = leaf_class.size
        if n_leaves == 0 or n_leaves & (n_leaves - 1) or leaf_class.ndim != 1:
            raise ValueError(f"leaf_class has shape {leaf_class.shape}; a tree has 1, 2, 4, 8, ... leaves. Pass the array of a fitted tree.")
        if weights.ndim != 2 or weights.shape[0] != n_leaves - 1 or biases.shape != (n_leaves - 1,):
            raise ValueError(
                f"weights has shape {weights.shape} and biases {biases.shape}; a tree of {n_leaves} leaves needs ({n_leaves - 1}, k)"
                f" and ({n_leaves - 1},). Pass the arrays of one fitted tree."
            )
        self.depth: int = n_leaves.bit_length() - 1
        self.n_components: int = weights.shape[1]
        self.leaf_class: Int32 = np.array(leaf_class, np.int32)
        real = np.flatnonzero(self.leaf_class >= 0)
        self.n_classes: int = real.size
        self.class_leaf: Int32 = np.full(self.n_classes, -1, np.int32)
        if real.size and self.leaf_class.max() < real.size:
            self.class_leaf[self.leaf_class[real]] = real
        if real.size == 0 or self.class_leaf.min() < 0:
            raise ValueError(f"leaf_class does not hold each of the classes 0 to {real.size - 1} once. Pass the array of a fitted tree.")
        self._table = _padded_table(weights)
        self._biases: Float32 = np.array(biases, np.float32)
        padding = np.flatnonzero(self.leaf_class < 0)
        above = (n_leaves + padding) // 2 - 1
        if np.any(padding % 2 == 0) or np.any(self._table[above]) or np.any(self._biases[above] > PADDING_BIAS):
            raise ValueError("A padding leaf (-1 in leaf_class) can be reached from its parent. Pass the arrays of a fitted tree.")
        if not (np.isfinite(self._table).all() and np.isfinite(self._biases).all()):
            raise ValueError("weights or biases of the tree hold NaN or infinity. Pass the arrays of a fitted tree.")

    @property
    def weights(self) -> Float32:
        """Node weights (2**depth - 1, n_components), a view."""
        return self._table[:, : self.n_components]

    @property
    def biases(self) -> Float32:
        """Node biases (2**depth - 1,)."""
        return self._biases

    def __repr__(self) -> str:
        return f"LabelTree(n_classes={self.n_classes}, n_components={self.n_components}, depth={self.depth})"

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The tree as named arrays, for saving; `from_arrays` is the way back."""
        return {"weights": np.ascontiguousarray(self.weights), "biases": self.biases, "leaf_class": self.leaf_class}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> LabelTree:
        """The tree that `to_arrays` wrote."""
        return cls(arrays["weights"], arrays["biases"], arrays["leaf_class"])

    # -- fitting -----------------------------------------------------------------------------------------------------------------

    @classmethod
    def fit(
        cls,
        Z: ArrayLike,
        y: ArrayLike,
        *,
        n_classes: int | None = None,
        regularization: ArrayLike = 0.1,
        bias_regularization: ArrayLike | None = None,
        max_points: int | None = 50_000,
        max_alternations: int = 100,
        tolerance: float = 1e-5,
        sample_weight: ArrayLike | None = None,
        n_jobs: int | None = None,
        random_state: int = 0,
    ) -> LabelTree:
        """Fit structure and parameters greedily from the root: Newton ascent alternating with balanced re-splits.

        Parameters
        ----------
        Z : (n_samples, n_components)
            Features, usually the leading principal components.
        y : (n_samples,)
            Classes 0 to n_classes - 1.
        n_classes
            Default: the largest label plus one.  Classes without rows get a leaf as well.
        regularization
            The paper's lambda_n: each node maximises log-likelihood - lambda_n |w|^2 - bias_regularization b^2.  One number, or one
            per level from the root.
        bias_regularization
            None: the same as `regularization`.
        max_points
            Nodes with more points are fitted on a sample of this many; None: on all.
        max_alternations
            Bound on the re-splits of one node.
        tolerance
            A node is done when an iteration gains less log-likelihood than this per point.
        sample_weight : (n_samples,)
            Weight of each row in the likelihood.

        Returns
        -------
        LabelTree
        """
        features, labels, share = _check_data(Z, y, sample_weight)
        largest = int(labels.max()) if labels.size else -1
        if n_classes is None:
            n_classes = largest + 1
        if n_classes < 1 or largest >= n_classes:
            raise ValueError(f"n_classes is {n_classes} but y holds the class {largest}; n_classes must be at least {max(largest + 1, 1)}.")
        depth = (n_classes - 1).bit_length()
        nodes = _new_nodes(np.arange(n_classes, dtype=np.int32), features.shape[1], depth, regularization, bias_regularization)
        settings = _settings(len(features), features.shape[1], max_points, max_alternations, tolerance, random_state)
        _fit_nodes(_group(features, labels, share, n_classes, n_jobs), nodes, settings, features.shape[1], depth, True, n_jobs)
        return cls(nodes.table[:, : features.shape[1]], nodes.biases, _leaf_class(nodes.order, depth))

    def refit(
        self,
        Z: ArrayLike,
        y: ArrayLike,
        *,
        regularization: ArrayLike = 0.1,
        bias_regularization: ArrayLike | None = None,
        max_points: int | None = 50_000,
        tolerance: float = 1e-5,
        sample_weight: ArrayLike | None = None,
        n_jobs: int | None = None,
        random_state: int = 0,
    ) -> LabelTree:
        """A tree with the structure of this one and node parameters fitted to `Z` and `y`.

        `Z` may be other features, even another number of them; with the same number, nodes start from their present parameters.
        Parameters as in `fit`.

        Examples
        --------
        >>> import numpy as np
        >>> Z, y = np.array([[-1.0], [1.0], [-1.1], [0.9]]), np.array([0, 1, 0, 1])
        >>> tree = LabelTree.fit(Z, y, regularization=1.0)
        >>> weaker = tree.refit(Z, y, regularization=0.01)
        >>> bool(weaker.log_prob(Z, y).mean() > tree.log_prob(Z, y).mean())
        True
        """
        features, labels, share = _check_data(Z, y, sample_weight)
        labels = _check_labels(labels, self.n_classes)
        order = self.leaf_class[self.leaf_class >= 0]
        nodes = _new_nodes(order, features.shape[1], self.depth, regularization, bias_regularization)
        if features.shape[1] == self.n_components:
            nodes.table[...] = self._table
            nodes.biases[...] = self._biases
        settings = _settings(len(features), features.shape[1], max_points, 0, tolerance, random_state)
        _fit_nodes(_group(features, labels, share, self.n_classes, n_jobs), nodes, settings, features.shape[1], self.depth, False, n_jobs)
        return LabelTree(nodes.table[:, : features.shape[1]], nodes.biases, self.leaf_class)

    # -- the distribution --------------------------------------------------------------------------------------------------------

    def sample(self, Z: ArrayLike, n_draws: int = 1, seed: int = 0, *, n_jobs: int | None = None) -> tuple[Int32, Float32]:
        """Draw classes from p_n(.|x) of every row.

        A draw is a function of `seed`, the number of the row in `Z` and the number of the draw.

        Returns
        -------
        labels : int32 (n, n_draws)
        log_prob : float32 (n, n_draws)
        """
        features = self._check_features(Z)
        if n_draws < 0:
            raise ValueError(f"n_draws is {n_draws}; it must not be negative.")
        shape = (len(features), n_draws)
        labels, log_prob = np.empty(shape, np.int32), np.empty(shape, np.float32)
        flat_labels, flat_log_prob = labels.reshape(-1), log_prob.reshape(-1)
        pairs = split(labels.size, _PAIRS_PER_TASK)
        key = np.uint64(int(seed) & 0xFFFFFFFFFFFFFFFF)

        def task(i: int) -> None:
            sample_paths(self._table, self._biases, self.leaf_class, features, n_draws, key, *pairs[i], flat_labels, flat_log_prob)

        run(task, len(pairs), resolve_threads(n_jobs))
        return labels, log_prob

    def log_prob(self, Z: ArrayLike, labels: ArrayLike, *, n_jobs: int | None = None) -> Float32:
        """log p_n(label | row) for labels of shape (n,) or (n, m)."""
        return self._log_prob(Z, labels, 0, self.depth, n_jobs)

    def level_log_prob(self, Z: ArrayLike, y: ArrayLike, *, n_jobs: int | None = None) -> NDArray[np.float64]:
        """Mean log-probability of the decisions of each level on the way to `y`, (depth,); they add up to the mean of `log_prob`.

        This is the figure by which a regularization per level is chosen on held-out rows.
        """
        means = [self._log_prob(Z, y, level, level + 1, n_jobs).mean(dtype=np.float64) for level in range(self.depth)]
        return np.array(means, np.float64)

    def _log_prob(self, Z: ArrayLike, labels: ArrayLike, first_level: int, last_level: int, n_jobs: int | None) -> Float32:
        features = self._check_features(Z)
        classes = _check_labels(labels, self.n_classes)
        if classes.ndim not in (1, 2) or len(classes) != len(features):
            raise ValueError(f"labels has shape {classes.shape} but Z has {len(features)} rows; labels must be (n,) or (n, m).")
        log_prob = np.empty(classes.shape, np.float32)
        flat, flat_log_prob = classes.reshape(-1), log_prob.reshape(-1)
        n_labels = 1 if classes.ndim == 1 else max(classes.shape[1], 1)
        pairs = split(flat.size, _PAIRS_PER_TASK)

        def task(i: int) -> None:
            path_log_prob(
                self._table, self._biases, self.class_leaf, features, flat, n_labels, first_level, last_level, *pairs[i], flat_log_prob
            )

        run(task, len(pairs), resolve_threads(n_jobs))
        return log_prob

    def log_prob_all(self, Z: ArrayLike, *, out: Float32 | None = None, n_jobs: int | None = None) -> Float32:
        """log p_n of every class, (n, n_classes) float32; `out`, if given, is filled and returned."""
        features = self._check_features(Z)
        shape = (len(features), self.n_classes)
        if out is None:
            out = np.empty(shape, np.float32)
        elif out.shape != shape or out.dtype != np.float32 or not out.flags.c_contiguous:
            raise ValueError(f"out is {out.dtype} of shape {out.shape}; log_prob_all needs C-contiguous float32 of shape {shape}.")
        result = out
        rows = split(len(features), _ALL_ROWS_PER_TASK)

        def task(i: int) -> None:
            all_log_prob(self._table, self._biases, self.class_leaf, features, *rows[i], result)

        run(task, len(rows), resolve_threads(n_jobs))
        return result

    def candidates(self, Z: ArrayLike, beam_width: int = 64, *, n_jobs: int | None = None) -> tuple[Int32, Float32]:
        """Classes that a beam search finds: at each level the `beam_width` most probable nodes go on.

        Returns
        -------
        labels : int32 (n, w)
            In no particular order, w = min(beam_width, n_classes); -1 where there are fewer.
        log_prob : float32 (n, w)
            Exact log-probabilities; -inf where the label is -1.
        """
        features = self._check_features(Z)
        if beam_width < 1:
            raise ValueError(f"beam_width is {beam_width}; a beam search needs at least 1.")
        beam_width = min(beam_width, self.n_classes)
        shape = (len(features), beam_width)
        labels, log_prob = np.empty(shape, np.int32), np.empty(shape, np.float32)
        rows = split(len(features), _BEAM_ROWS_PER_TASK)

        def task(i: int) -> None:
            beam_leaves(self._table, self._biases, self.leaf_class, features, beam_width, *rows[i], labels, log_prob)

        run(task, len(rows), resolve_threads(n_jobs))
        return labels, log_prob

    def top_k(self, Z: ArrayLike, k: int, *, beam_width: int = 64, n_jobs: int | None = None) -> tuple[Int32, Float32]:
        """The k most probable classes of p_n(.|x) by beam search, best first, ties by the smaller label.

        The beam is at least k wide; one of n_classes is exact.  Where there are fewer than k classes: -1 and -inf.

        Returns
        -------
        labels : int32 (n, k)
        log_prob : float32 (n, k)
        """
        if k < 1:
            raise ValueError(f"k is {k}; top_k needs at least 1.")
        found, found_log_prob = self.candidates(Z, max(k, beam_width), n_jobs=n_jobs)
        best = np.lexsort((found, -found_log_prob), axis=-1)[:, :k]
        shape = (len(found), k)
        labels, log_prob = np.full(shape, -1, np.int32), np.full(shape, -np.inf, np.float32)
        labels[:, : best.shape[1]] = np.take_along_axis(found, best, axis=1)
        log_prob[:, : best.shape[1]] = np.take_along_axis(found_log_prob, best, axis=1)
        return labels, log_prob

    def expected_features(self, Z: ArrayLike, values: ArrayLike, *, n_jobs: int | None = None) -> Float32:
        """Mean of `values` (n_classes, d) under p_n(.|x) of every row: (n, d), exactly, in blocks of rows.

        With the mean feature vector of each class as `values`, this is the feature vector that the tree expects at x.
        """
        features = self._check_features(Z)
        table = np.asarray(values, np.float32)
        if table.ndim != 2 or len(table) != self.n_classes:
            raise ValueError(f"values has shape {table.shape}; expected_features needs one row for each of the {self.n_classes} classes.")
        expected = np.empty((len(features), table.shape[1]), np.float32)
        block = max(8, (1 << 24) // self.n_classes // 8 * 8)
        prob = np.empty((min(block, len(features)), self.n_classes), np.float32)
        for first, last in split(len(features), block):
            part = prob[: last - first]
            self.log_prob_all(features[first:last, : self.n_components], out=part, n_jobs=n_jobs)
            np.exp(part, out=part)
            np.matmul(part, table, out=expected[first:last])
        return expected

    def _check_features(self, Z: ArrayLike) -> Float32:
        return _padded_features(_check_matrix(Z, self.n_components))


# -- checks and layout -----------------------------------------------------------------------------------------------------------


def _width(n_components: int) -> int:
    return max(1, -(-n_components // LANES)) * LANES


def _check_matrix(Z: ArrayLike, n_components: int | None) -> Float32:
    features = np.asarray(Z, dtype=np.float32)
    if features.ndim != 2:
        raise ValueError(f"Z has {features.ndim} dimensions; LabelTree needs a matrix (n_samples, n_components). Reshape it.")
    if n_components is not None and features.shape[1] != n_components:
        raise ValueError(f"Z has {features.shape[1]} columns; this tree was fitted on {n_components}. Apply the same projection.")
    if not np.isfinite(features).all():
        row = int(np.flatnonzero(~np.isfinite(features).all(axis=1))[0])
        raise ValueError(f"Z[{row}] holds NaN or infinity (in float32); LabelTree needs finite features. Fill or drop such rows.")
    return features


def _check_labels(labels: ArrayLike, n_classes: int | None) -> Int32:
    classes = np.asarray(labels)
    if classes.size and classes.dtype.kind not in "iu":
        raise TypeError(f"labels are {classes.dtype}; LabelTree needs integers 0 to n_classes - 1. Encode them first.")
    if classes.size and (classes.min() < 0 or classes.max() >= (n_classes if n_classes is not None else np.iinfo(np.int32).max)):
        top = "" if n_classes is None else f" to {n_classes - 1}"
        bad = classes.min() if classes.min() < 0 else classes.max()
        raise ValueError(f"labels hold {bad}; the classes are 0{top}. Encode labels as consecutive integers from 0.")
    return _plain(classes, np.int32)


def _check_data(Z: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> tuple[Float32, Int32, Float32]:
    features = _check_matrix(Z, None)
    labels = _check_labels(y, None)
    if labels.shape != (len(features),):
        raise ValueError(f"y has shape {labels.shape} but Z has {len(features)} rows; y needs one class per row.")
    if sample_weight is None:
        return features, labels, np.ones(len(features), np.float32)
    share = _plain(np.asarray(sample_weight), np.float32)
    if share.shape != labels.shape:
        raise ValueError(f"sample_weight has shape {share.shape}; it needs one number for each of the {len(labels)} rows.")
    if not np.isfinite(share).all() or (share.size and share.min() < 0):
        raise ValueError("sample_weight holds a negative number, NaN or infinity; weights must be finite and at least 0.")
    return features, labels, share


def _plain(array: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """C order, given type, writable: one kind of array, so that every kernel is compiled once."""
    return np.require(array, dtype, ["C", "W"])


def _aligned(shape: tuple[int, int]) -> Float32:
    """Zeros whose rows start on a cache line."""
    raw = np.zeros(shape[0] * shape[1] + LANES, np.float32)
    skip = -(raw.ctypes.data // 4) % LANES
    return raw[skip : skip + shape[0] * shape[1]].reshape(shape)


def _padded_table(weights: NDArray[Any]) -> Float32:
    table = _aligned((weights.shape[0], _width(weights.shape[1])))
    table[:, : weights.shape[1]] = weights
    return table


def _padded_features(features: Float32) -> Float32:
    width = _width(features.shape[1])
    if width == features.shape[1]:
        return _plain(features, np.float32)
    padded = np.zeros((len(features), width), np.float32)
    padded[:, : features.shape[1]] = features
    return padded


def _leaf_class(order: Int32, depth: int) -> Int32:
    """Classes by leaf: the order of the classes with the padding filled in."""
    counts = np.array([len(order)])
    for _ in range(depth):
        counts = np.stack([counts - counts // 2, counts // 2], axis=1).reshape(-1)
    leaf_class = np.full(1 << depth, -1, np.int32)
    leaf_class[counts > 0] = order
    return leaf_class


# -- fitting, in threads ---------------------------------------------------------------------------------------------------------


def _per_level(value: ArrayLike, depth: int, name: str) -> NDArray[np.float64]:
    strength = np.asarray(value, np.float64)
    if strength.shape not in ((), (depth,)):
        raise ValueError(f"{name} has shape {strength.shape}; pass one number, or one for each of the {depth} levels.")
    if not np.isfinite(strength).all() or np.any(strength <= 0):
        raise ValueError(f"{name} must be positive and finite, or nodes without data on one side have no optimum; got {value}.")
    return np.array(np.broadcast_to(strength, (depth,)))


def _new_nodes(order: Int32, k: int, depth: int, regularization: ArrayLike, bias_regularization: ArrayLike | None) -> Nodes:
    penalty = _per_level(regularization, depth, "regularization")
    bias_penalty = penalty.copy() if bias_regularization is None else _per_level(bias_regularization, depth, "bias_regularization")
    n_inner = (1 << depth) - 1
    return Nodes(_aligned((n_inner, _width(k))), np.zeros(n_inner, np.float32), order.copy(), penalty, bias_penalty)


def _settings(n: int, k: int, max_points: int | None, max_alternations: int, tolerance: float, random_state: int) -> Settings:
    if max_points is not None and max_points < 1:
        raise ValueError(f"max_points is {max_points}; a node needs at least 1 point. Pass None to use all.")
    if max_alternations < 0 or not tolerance >= 0:
        raise ValueError(f"max_alternations is {max_alternations} and tolerance {tolerance}; neither may be negative.")
    seed = np.uint64(int(random_state) & 0xFFFFFFFFFFFFFFFF)
    return Settings(n if max_points is None else min(max_points, n), max_alternations, 50, float(tolerance), k + 1, seed)


def _group(features: Float32, labels: Int32, share: Float32, n_classes: int, n_jobs: int | None) -> Grouped:
    n, k = features.shape
    data = Grouped(
        np.empty((n, k), np.float32),
        np.empty(n, np.float32),
        np.zeros(n_classes + 1, np.int64),
        np.empty((n_classes, k + 1), np.float32),
    )
    group_by_class(_plain(features, np.float32), labels, share, data.offsets, data.points, data.share)
    classes = split(n_classes, _CLASSES_PER_TASK)
    run(lambda i: sum_by_class(data, *classes[i]), len(classes), resolve_threads(n_jobs))
    return data


def _fit_nodes(data: Grouped, nodes: Nodes, settings: Settings, k: int, depth: int, alternate: bool, n_jobs: int | None) -> None:
    """Level by level while nodes are large, then subtree by subtree: the cut depends on the data alone."""
    top = min(depth, max(0, (len(data.points) // _SUBTREE_POINTS).bit_length()))
    threads = resolve_threads(n_jobs)
    bounds = np.array([0, len(nodes.order)])
    for level in range(top + 1):
        n_levels = 1 if level < top else depth - top

        def task(j: int, level: int = level, n_levels: int = n_levels, bounds: NDArray[np.int64] = bounds) -> None:
            first, last = int(bounds[j]), int(bounds[j + 1])
            fit_subtree(data, nodes, settings, k, (1 << level) - 1 + j, level, n_levels, first, last, alternate)

        if n_levels:
            run(task, 1 << level, threads)
        sizes = np.diff(bounds)
        cuts = np.stack([bounds[:-1], bounds[:-1] + sizes - sizes // 2], axis=1).reshape(-1)
        bounds = np.append(cuts, bounds[-1])
