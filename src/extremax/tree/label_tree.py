"""LabelTree: a balanced binary tree with a logistic regression at every node and a class at every leaf.

``log p_n(y|x)`` is the sum of ``log sigma(zeta (w_v.x + b_v))`` over the nodes v on the path to the leaf of
y, with zeta = 1 to the right and -1 to the left (paper, section 3).  It is normalised over the classes and
costs O(k log C), like a draw from it.  Nodes are numbered as in a heap: the children of node i are 2 i + 1
and 2 i + 2, and leaf j is node ``n_leaves - 1 + j``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from extremax.kernels.tree_walk import (
    CHUNK,
    TILE,
    TreeArrays,
    all_log_prob,
    beam_leaves,
    path_log_prob,
    sample_paths,
)
from extremax.runtime.threads import resolve_threads, run, split
from extremax.storage import checks
from extremax.storage.state import State
from extremax.tree.fitting import fit_nodes, group_by_class, kernel_settings, new_nodes, penalties
from extremax.tree.layout import (
    Chunks,
    depth_of,
    is_balanced,
    leaves_of,
    make_chunks,
    padded_features,
    padded_table,
    padding_is_closed,
    plain,
)
from extremax.tuned import TreeFitConfig
from extremax.types import Float32, Float64, Int32
from extremax.validation.features import check_features
from extremax.validation.random_state import check_random_state
from extremax.validation.sample_weight import check_sample_weight

_FIT = TreeFitConfig()
_PAIRS_PER_TASK = 4096
_BEAM_ROWS_PER_TASK = 64
_NAME = "LabelTree"
_HINT = "Pass the arrays of a fitted tree."


class LabelTree:
    """Probabilistic decision tree over classes, with exact sampling and exact log-probabilities.

    `LabelTree.fit` fits a tree to data; the constructor takes the arrays of a fitted tree.

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
        given, given_biases, leaves = np.asarray(weights), np.asarray(biases), np.asarray(leaf_class)
        n_leaves = leaves.size
        if leaves.ndim != 1 or leaves.dtype.kind != "i" or n_leaves == 0 or n_leaves & (n_leaves - 1):
            raise ValueError(
                f"leaf_class is {leaves.dtype} of shape {leaves.shape}; a tree has 1, 2, 4, ... leaves."
                f" {_HINT}"
            )
        if given.ndim != 2 or len(given) != n_leaves - 1 or given_biases.shape != (n_leaves - 1,):
            raise ValueError(
                f"weights has shape {given.shape} and biases {given_biases.shape}; a tree of {n_leaves}"
                f" leaves needs ({n_leaves - 1}, n_components) and ({n_leaves - 1},). {_HINT}"
            )
        n_classes = int(np.count_nonzero(leaves >= 0))
        if n_classes == 0 or not np.array_equal(np.sort(leaves[leaves >= 0]), np.arange(n_classes)):
            raise ValueError(
                f"leaf_class does not hold each of the classes 0 to {n_classes - 1} once. {_HINT}"
            )
        self.n_classes: int = n_classes
        self.depth: int = n_leaves.bit_length() - 1
        self.n_components: int = given.shape[1]
        self.leaf_class: Int32 = np.array(leaves, np.int32)
        self.class_leaf: Int32 = np.argsort(self.leaf_class, kind="stable")[-n_classes:].astype(np.int32)
        self._table = padded_table(given)
        self._biases: Float32 = np.array(given_biases, np.float32)
        self._chunks: Chunks | None = None
        if not (np.isfinite(self._table).all() and np.isfinite(self._biases).all()):
            raise ValueError(f"weights or biases hold NaN or infinity. {_HINT}")
        if not padding_is_closed(self._table, self._biases, self.leaf_class):
            raise ValueError(f"A padding leaf (-1 in leaf_class) has a probability above 0. {_HINT}")

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
        """Return the tree as named arrays; `from_arrays` makes a tree of them."""
        return {
            "weights": np.ascontiguousarray(self.weights),
            "biases": self.biases,
            "leaf_class": self.leaf_class,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> LabelTree:
        """Make a tree of the arrays that `to_arrays` returned."""
        return cls(arrays["weights"], arrays["biases"], arrays["leaf_class"])

    def state(self) -> State:
        """Return what a model folder stores."""
        return State({"kind": "label_tree"}, self.to_arrays())

    @classmethod
    def from_state(cls, state: State) -> LabelTree:
        """Make a tree of what `state` returned."""
        leaves = checks.get_array(state.arrays, "leaf_class", "i4", (None,))
        checks.get_array(state.arrays, "weights", "f4", (len(leaves) - 1, None))
        checks.get_array(state.arrays, "biases", "f4", (len(leaves) - 1,))
        return cls.from_arrays(state.arrays)

    @classmethod
    def fit(  # noqa: PLR0913 (the parameters are the API)
        cls,
        Z: ArrayLike,
        y: ArrayLike,
        *,
        n_classes: int | None = None,
        regularization: ArrayLike = 0.1,
        bias_regularization: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        config: TreeFitConfig = _FIT,
        n_jobs: int | None = None,
        random_state: int = 0,
    ) -> LabelTree:
        """Fit structure and parameters greedily, from the root down.

        At each node Newton steps alternate with balanced re-splits of its classes.

        Parameters
        ----------
        Z : (n_samples, n_components)
            Features, usually the leading principal components.
        y : (n_samples,)
            Classes 0 to n_classes - 1.
        n_classes
            By default the largest label plus one. Classes without rows get a leaf as well.
        regularization
            The paper's lambda_n: each node maximises its log-likelihood - lambda_n |w|^2 -
            bias_regularization b^2. One number, or one per level from the root.
        bias_regularization
            None: the same as `regularization`.
        sample_weight : (n_samples,)
            Weight of each row in the likelihood.
        config : TreeFitConfig
            Numbers of the algorithm, such as ``max_points`` and ``tolerance``.
        n_jobs
            Threads; the tree does not depend on it.
        random_state
            Seed of the samples at nodes with more than ``max_points`` points.

        Returns
        -------
        LabelTree
        """
        features, labels, weight, n_classes = check_data(Z, y, sample_weight, n_classes)
        penalty = penalties(regularization, bias_regularization, depth_of(n_classes), features.shape[1])
        settings = kernel_settings(config, features.shape, random_state)
        nodes = new_nodes(np.arange(n_classes, dtype=np.int32), penalty)
        fit_nodes(
            group_by_class(features, labels, weight, n_classes),
            nodes,
            settings,
            alternate=True,
            subtree_points=config.subtree_points,
            n_threads=resolve_threads(n_jobs),
        )
        return cls(nodes.weights, nodes.biases, leaves_of(nodes.order))

    def refit(  # noqa: PLR0913 (the parameters are the API)
        self,
        Z: ArrayLike,
        y: ArrayLike,
        *,
        regularization: ArrayLike = 0.1,
        bias_regularization: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        config: TreeFitConfig = _FIT,
        levels: tuple[int, int] | None = None,
        n_jobs: int | None = None,
        random_state: int = 0,
    ) -> LabelTree:
        """Return a tree of the same structure, with node parameters fitted to `Z` and `y`.

        `Z` may hold other features, even another number of them; with the same number, nodes start from their
        present parameters.  With `levels` only nodes of the levels from the first number to before the second
        are fitted.  The other arguments are those of `fit`.

        Examples
        --------
        >>> import numpy as np
        >>> Z, y = np.array([[-1.0], [1.0], [-1.1], [0.9]]), np.array([0, 1, 0, 1])
        >>> tree = LabelTree.fit(Z, y, regularization=1.0)
        >>> weaker = tree.refit(Z, y, regularization=0.01)
        >>> bool(weaker.log_prob(Z, y).mean() > tree.log_prob(Z, y).mean())
        True
        """
        if not is_balanced(self.leaf_class):
            raise ValueError(
                "This tree was not made by LabelTree.fit: its halves differ in size. Fit a new one."
            )
        _check_classes(y, self.n_classes, "y")
        features, labels, weight, _ = check_data(Z, y, sample_weight, self.n_classes)
        k = features.shape[1]
        settings = kernel_settings(config, features.shape, random_state)
        order = self.leaf_class[self.leaf_class >= 0]
        nodes = new_nodes(order, penalties(regularization, bias_regularization, self.depth, k))
        if k == self.n_components:
            nodes.weights[...] = self.weights
            nodes.biases[...] = self._biases
        fit_nodes(
            group_by_class(features, labels, weight, self.n_classes),
            nodes,
            settings,
            alternate=False,
            subtree_points=config.subtree_points,
            n_threads=resolve_threads(n_jobs),
            levels=levels,
        )
        return LabelTree(nodes.weights, nodes.biases, self.leaf_class)

    def sample(
        self, Z: ArrayLike, n_draws: int = 1, seed: int = 0, *, n_jobs: int | None = None
    ) -> tuple[Int32, Float32]:
        """Draw classes from p_n(.|x) of every row.

        A draw is a function of `seed`, the number of the row in `Z` and the number of the draw.

        Returns
        -------
        labels : int32 (n, n_draws)
        log_prob : float32 (n, n_draws)
        """
        if n_draws < 0:
            raise ValueError(f"n_draws is {n_draws}; it must not be negative.")
        features = self._check_rows(Z)
        shape = (len(features), n_draws)
        labels, log_prob = np.empty(shape, np.int32), np.empty(shape, np.float32)
        tree, key = self._kernel_arrays(), np.uint64(check_random_state(seed))
        flat_labels, flat_log_prob = labels.reshape(-1), log_prob.reshape(-1)
        pairs = split(labels.size, _PAIRS_PER_TASK)
        run(
            lambda i: sample_paths(tree, features, n_draws, key, *pairs[i], flat_labels, flat_log_prob),
            len(pairs),
            resolve_threads(n_jobs),
        )
        return labels, log_prob

    def log_prob(self, Z: ArrayLike, labels: ArrayLike, *, n_jobs: int | None = None) -> Float32:
        """Return log p_n(label | row) for labels of shape (n,) or (n, m), in the same shape."""
        return self._path_log_prob(Z, labels, (0, self.depth), n_jobs)

    def level_log_prob(self, Z: ArrayLike, y: ArrayLike, *, n_jobs: int | None = None) -> Float64:
        """Return the mean log-probability of the decisions of each level on the path to `y`: (depth,).

        Their sum is the mean of `log_prob`.  On held-out rows they choose a regularization for each level.
        """
        levels = (self._path_log_prob(Z, y, (level, level + 1), n_jobs) for level in range(self.depth))
        return np.array([part.mean(dtype=np.float64) for part in levels], np.float64)

    def _path_log_prob(
        self, Z: ArrayLike, labels: ArrayLike, levels: tuple[int, int], n_jobs: int | None
    ) -> Float32:
        features, classes = self._check_rows(Z), _check_classes(labels, self.n_classes, "labels")
        if classes.ndim not in (1, 2) or len(classes) != len(features):
            raise ValueError(
                f"labels has shape {classes.shape}, but Z has {len(features)} rows; it must be (n,) or"
                " (n, m)."
            )
        log_prob = np.empty(classes.shape, np.float32)
        tree, flat_classes, flat = self._kernel_arrays(), classes.reshape(-1), log_prob.reshape(-1)
        n_labels = classes.size // max(len(classes), 1)
        pairs = split(flat.size, _PAIRS_PER_TASK)
        run(
            lambda i: path_log_prob(tree, features, flat_classes, n_labels, levels, *pairs[i], flat),
            len(pairs),
            resolve_threads(n_jobs),
        )
        return log_prob

    def log_prob_all(self, Z: ArrayLike, *, out: Float32 | None = None, n_jobs: int | None = None) -> Float32:
        """Return log p_n of every class, (n, n_classes) float32; `out`, if given, is filled."""
        features = self._check_rows(Z)
        shape = (len(features), self.n_classes)
        if out is None:
            out = np.empty(shape, np.float32)
        elif (
            out.shape != shape
            or out.dtype != np.float32
            or not (out.flags.c_contiguous and out.flags.writeable)
        ):
            raise ValueError(
                f"out is {out.dtype} of shape {out.shape}; it must be writable C-ordered float32 of shape"
                f" {shape}."
            )
        if self._chunks is None:
            self._chunks = make_chunks(self._table, self._biases, self.leaf_class, self.class_leaf)
        result, (nodes, place, n_places) = out, self._chunks
        rows = split(len(features), TILE)
        spare: list[Float32] = []  # scratch that no thread is using

        def task(i: int) -> None:
            try:
                scratch = spare.pop()
            except IndexError:
                scratch = np.zeros((TILE + 4, nodes.shape[0] * CHUNK), np.float32)
            all_log_prob(nodes, place, n_places, features, *rows[i], scratch, result)
            spare.append(scratch)

        run(task, len(rows), resolve_threads(n_jobs))
        return result

    def candidates(
        self, Z: ArrayLike, beam_width: int = 64, *, n_jobs: int | None = None
    ) -> tuple[Int32, Float32]:
        """Find classes by beam search: every level keeps its `beam_width` most probable nodes.

        Returns
        -------
        labels : int32 (n, w)
            In no particular order; w = min(beam_width, n_classes), and -1 where there are fewer.
        log_prob : float32 (n, w)
            Exact log-probabilities, -inf where the label is -1.
        """
        features = self._check_rows(Z)
        if beam_width < 1:
            raise ValueError(f"beam_width is {beam_width}; a beam search needs at least 1.")
        width = min(beam_width, self.n_classes)
        labels, log_prob = (
            np.empty((len(features), width), np.int32),
            np.empty((len(features), width), np.float32),
        )
        tree = self._kernel_arrays()
        rows = split(len(features), _BEAM_ROWS_PER_TASK)
        run(
            lambda i: beam_leaves(tree, features, width, *rows[i], labels, log_prob),
            len(rows),
            resolve_threads(n_jobs),
        )
        return labels, log_prob

    def top_k(
        self, Z: ArrayLike, k: int, *, beam_width: int = 64, n_jobs: int | None = None
    ) -> tuple[Int32, Float32]:
        """Find the k most probable classes of p_n(.|x) by beam search, best first.

        Ties go to the smaller label.  The beam is at least k wide; a beam of n_classes is exact.  Where there
        are fewer than k classes, labels are -1 and log-probabilities -inf.

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

    def _kernel_arrays(self) -> TreeArrays:
        return TreeArrays(self._table, self._biases[:, None], self.leaf_class, self.class_leaf)

    def _check_rows(self, Z: ArrayLike) -> Float32:
        return padded_features(_check_matrix(Z, self.n_components))


def _check_matrix(Z: ArrayLike, n_components: int | None) -> Float32:
    features = check_features(Z, name="Z", n_features=n_components, estimator_name=_NAME, allow_empty=True)
    if sparse.issparse(features):
        raise TypeError(
            "Z is sparse; LabelTree needs dense features. Give it principal components, or Z.toarray()."
        )
    return plain(features, np.float32)


def _check_classes(labels: ArrayLike, n_classes: int | None, name: str) -> Int32:
    classes = np.asarray(labels)
    if classes.size == 0:
        return np.empty(classes.shape, np.int32)
    if classes.dtype.kind not in "iu":
        raise TypeError(
            f"{name} has dtype {classes.dtype}; LabelTree needs integers from 0. Encode the classes first."
        )
    lowest, highest = int(classes.min()), int(classes.max())
    if lowest < 0 or highest >= (np.iinfo(np.int32).max if n_classes is None else n_classes):
        allowed = "from 0" if n_classes is None else f"0 to {n_classes - 1}"
        raise ValueError(
            f"{name} holds {lowest if lowest < 0 else highest}; the classes are {allowed}. Encode them"
            " without gaps."
        )
    return plain(classes, np.int32)


def check_data(
    Z: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, n_classes: int | None
) -> tuple[Float32, Int32, Float32, int]:
    """Return features, classes and weights to fit a tree to, and the number of classes."""
    features, labels = _check_matrix(Z, None), _check_classes(y, None, "y")
    if labels.shape != (len(features),):
        raise ValueError(
            f"y has shape {labels.shape}, but Z has {len(features)} rows; it needs one class per row."
        )
    largest = int(labels.max(initial=-1))
    n_classes, least = largest + 1 if n_classes is None else int(n_classes), max(1, largest + 1)
    if n_classes < least:
        raise ValueError(
            f"n_classes is {n_classes}, but y holds the class {largest}; it must be at least {least}."
        )
    weight = check_sample_weight(sample_weight, len(features))
    if weight is None:
        weight = np.ones(len(features), np.float32)
    return features, labels, weight, n_classes
