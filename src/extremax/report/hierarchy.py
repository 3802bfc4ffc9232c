"""A tree over the classes for looking at: alike classes together, at most a few of them in a leaf.

A model whose noise has a label tree shows that one.  Most models have none; for them the tree is made of the
class vectors, the rows of the weights scaled to length one: the classes of a node are split into two halves
by balanced spherical 2-means.  The start is the direction in which they differ most (a few power iterations
from a fixed vector), then

    d = mean of the right half - mean of the left half,    right half = the classes with the largest w.d

alternate until the halves stay, eight times at most.  Equal values keep the order
of the classes, and nothing is drawn at random, so that the same model has the same tree.

A tree is an order of the classes and nodes that are ranges of it, numbered so that children follow their
parent.  Sums over the classes of a node are differences of running sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax.runtime.products import one_blas_thread
from extremax.types import Float64, Int32, Int64

if TYPE_CHECKING:
    from extremax.model import Model
    from extremax.scores import LabelMap, Weights
    from extremax.tree import LabelTree

Matrix = Any  # a CSR matrix or an array (n_classes, n_columns)
_LEAF_CLASSES = 8  # classes that a node shows without splitting them further
_MAX_ITERATIONS = 8  # re-splits of a node
_POWER_ITERATIONS = 4  # steps of the first split towards the direction of greatest difference
_GRAM_CLASSES = 512  # of nodes that work on the products between their classes, which all nodes below share
_MAX_COLUMNS = 64  # of dense weights; of more, so many principal directions are kept


@dataclass(frozen=True)
class LabelHierarchy:
    """An order of the classes, and nodes that are ranges of it.

    Attributes
    ----------
    order : int32 (n_classes,)
        Classes from left to right.
    start, stop : int32 (n_nodes,)
        The classes of node i are ``order[start[i]:stop[i]]``; node 0 is the root.
    parent : int32 (n_nodes,)
        Number of the node above, smaller than i; -1 for the root.
    source : str
        ``"label tree"`` for the one that the model was trained with, ``"class vectors"`` for one made for
        looking at.

    Examples
    --------
    >>> vectors = np.array([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.1, 0.9]], np.float32)
    >>> tree = build_hierarchy(vectors, leaf_classes=2)
    >>> [sorted(tree.classes_of(node).tolist()) for node in tree.children(0)]
    [[0, 2], [1, 3]]
    >>> tree.path(3)
    [0, 2]
    """

    order: Int32
    start: Int32
    stop: Int32
    parent: Int32
    source: str

    @property
    def n_classes(self) -> int:
        return len(self.order)

    @property
    def n_nodes(self) -> int:
        return len(self.start)

    def classes_of(self, node: int) -> Int32:
        """Return the classes under a node, from left to right."""
        return self.order[self.start[node] : self.stop[node]]

    def children(self, node: int) -> list[int]:
        """Return the nodes directly under a node, from left to right; none under a leaf."""
        first, last = np.searchsorted(self._child_parent, [node, node + 1])
        return [int(child) for child in self._child_order[first:last]]

    def path(self, label: int) -> list[int]:
        """Return the nodes from the root to the leaf that holds a class."""
        found = [int(self.leaf_of[label])]
        while found[-1] != 0:
            found.append(int(self.parent[found[-1]]))
        return found[::-1]

    @cached_property
    def leaf_of(self) -> Int32:
        """The node without nodes under it that holds each class."""
        is_leaf = np.ones(self.n_nodes, bool)
        is_leaf[self.parent[1:]] = False
        leaves = np.flatnonzero(is_leaf)
        leaves = leaves[np.argsort(self.start[leaves], kind="stable")]
        return leaves[np.searchsorted(self.stop[leaves], self.places, side="right")].astype(np.int32)

    @cached_property
    def places(self) -> Int32:
        """Position of each class in the order."""
        return np.argsort(self.order, kind="stable").astype(np.int32)

    @cached_property
    def _child_order(self) -> Int64:
        """Nodes sorted by parent, then from left to right."""
        return np.asarray(np.lexsort((self.start, self.parent)), np.int64)

    @cached_property
    def _child_parent(self) -> Int32:
        return np.asarray(self.parent[self._child_order])

    def depths(self) -> Int32:
        """Return the number of nodes above each node."""
        depth = np.zeros(self.n_nodes, np.int32)
        for node, above in enumerate(self.parent.tolist()):  # parents have smaller numbers
            if above >= 0:
                depth[node] = depth[above] + 1
        return depth

    def sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the sum of one value per class over the classes of each node."""
        total = np.concatenate([np.zeros(1, values.dtype), np.cumsum(values[self.order])])
        return np.asarray(total[self.stop] - total[self.start])

    def pairs_inside(self, first: Int64, second: Int64, weight: Int64) -> Int64:
        """Return for each node the weight of the pairs of classes of which it holds both."""
        a, b = self.leaf_of[first], self.leaf_of[second]
        while (a != b).any():  # parents have smaller numbers
            a, b = np.where(a > b, self.parent[a], a), np.where(b > a, self.parent[b], b)
        inside = np.zeros(self.n_nodes, np.int64)
        np.add.at(inside, a, weight)
        for node in range(self.n_nodes - 1, 0, -1):
            inside[self.parent[node]] += inside[node]
        return inside


def build_hierarchy(
    vectors: Matrix, *, leaf_classes: int = _LEAF_CLASSES, gram_classes: int = _GRAM_CLASSES
) -> LabelHierarchy:
    """Split classes by balanced 2-means of their vectors, until few are left in each leaf.

    Parameters
    ----------
    vectors : array or CSR matrix (n_classes, n_columns)
        One row per class; only directions matter.
    leaf_classes, gram_classes
        Classes that a node shows without splitting them, and of nodes that work on products between classes.
    """
    rows = _unit_rows(_narrow(vectors))
    with one_blas_thread():
        return _number(*_split_all(rows, leaf_classes, gram_classes), "class vectors")


def hierarchy_of_tree(
    tree: LabelTree, label_map: LabelMap | None = None, *, leaf_classes: int = _LEAF_CLASSES
) -> LabelHierarchy:
    """Return a label tree as nodes over ranges of its leaves; small subtrees become one node.

    A merged class, whose lines have several leaves, is where the first of its lines is.
    """
    real = tree.leaf_class >= 0
    leaf_class = tree.leaf_class
    if label_map is not None:
        real &= np.isin(leaf_class, label_map.first(np.arange(label_map.n_classes)))
        leaf_class = np.where(real, label_map.class_of[leaf_class], -1)
    before = np.concatenate([[0], np.cumsum(real)])  # real leaves to the left
    ranges: list[tuple[int, int]] = []
    pending = [(0, len(real))]
    while pending:
        first, last = pending.pop()
        start, stop = int(before[first]), int(before[last])
        if start == stop:
            continue
        if (start, stop) != (
            ranges[-1] if ranges else None
        ):  # a node with one child that is not empty is one
            ranges.append((start, stop))
        if stop - start > leaf_classes and last - first > 1:
            middle = (first + last) // 2
            pending += [(middle, last), (first, middle)]
    return _number(leaf_class[real].astype(np.int32), ranges, "label tree")


def hierarchy_of(model: Model) -> LabelHierarchy:
    """Return the tree to show for a model: its label tree, or one made of its class vectors."""
    if model.tree is not None:
        return hierarchy_of_tree(model.tree, model.label_map)
    return build_hierarchy(class_vectors(model.weights, model.label_map))


def class_vectors(weights: Weights, label_map: LabelMap | None = None) -> Matrix:
    """Return one row per class: the weights of a class on the features.

    That of a merged class is the mean of its lines, each scaled to length one.
    """
    found: Matrix = weights.class_vectors()
    return found if label_map is None else line_means(label_map) @ _unit_rows(found)


def line_means(label_map: LabelMap) -> sparse.csr_matrix:
    """Return the matrix that takes means over the lines of each class."""
    share = np.repeat(1.0 / label_map.sizes, label_map.sizes).astype(np.float32)
    shape = (label_map.n_classes, label_map.n_lines)
    return sparse.csr_matrix((share, label_map.order, label_map.starts), shape=shape)


def _split_all(rows: Matrix, leaf_classes: int, gram_classes: int) -> tuple[Int32, list[tuple[int, int]]]:
    """Return an order of the classes, and the ranges of it that are nodes."""
    n = rows.shape[0]
    order, place = np.arange(n, dtype=np.int32), np.zeros(n, np.int64)
    ranges: list[tuple[int, int]] = []
    pending: list[tuple[int, int, Float64 | None]] = [(0, n, None)]
    while pending:
        start, stop, gram = pending.pop()
        ranges.append((start, stop))
        if stop - start <= leaf_classes:
            continue
        chosen = order[start:stop].copy()
        if gram is None and stop - start <= gram_classes:  # for all nodes below
            products = rows[chosen] @ rows[chosen].T
            gram = np.asarray(products.toarray() if sparse.issparse(products) else products, np.float64)
            place[chosen] = np.arange(stop - start)
        towards = (
            partial(_towards, rows[chosen])
            if gram is None
            else gram[np.ix_(place[chosen], place[chosen])].__matmul__
        )
        order[start:stop] = chosen[_split(stop - start, towards)]
        middle = start + (stop - start + 1) // 2
        pending += [(middle, stop, gram), (start, middle, gram)]
    return order, ranges


def _towards(rows: Matrix, side: Float64) -> Float64:
    """Return the products of all rows with a weighted sum of them."""
    direction = rows.T @ side.astype(rows.dtype)
    return np.asarray(rows @ direction, np.float64)


def _split(n: int, towards: Callable[[Float64], Float64]) -> Int64:
    """Return an order of rows whose first half, rounded up, is one side of a balanced 2-means split."""
    n_left = (n + 1) // 2
    side = np.cos(np.arange(n) * 2.399963)  # a fixed vector without a pattern
    for _ in range(_POWER_ITERATIONS):
        side = side - side.mean()
        side /= max(float(np.sqrt(side @ side)), 1e-30)
        side = towards(side)
    order = np.argsort(side, kind="stable")
    for _ in range(_MAX_ITERATIONS):
        right = np.zeros(n, bool)
        right[order[n_left:]] = True
        scores = towards(np.where(right, 1.0 / max(1, n - n_left), -1.0 / n_left))
        order = np.argsort(scores, kind="stable")
        if right[order[n_left:]].all():
            break
    # a stable side: the class that comes first is on the left
    left, other = np.sort(order[:n_left]), np.sort(order[n_left:])
    if n % 2 == 0 and n and other[0] < left[0]:
        left, other = other, left
    return np.concatenate([left, other])


def _narrow(vectors: Matrix) -> Matrix:
    """Return dense vectors projected on their principal directions, if there are too many columns."""
    if sparse.issparse(vectors) or vectors.shape[1] <= _MAX_COLUMNS:
        return vectors
    with one_blas_thread():
        scale = 1.0 / max(float(np.abs(vectors).max(initial=0.0)), 1e-30)
        moments = np.zeros((vectors.shape[1],) * 2)
        for first in range(0, len(vectors), 65536):
            block = vectors[first : first + 65536].astype(np.float64) * scale
            moments += block.T @ block
        directions = np.linalg.eigh(moments)[1][:, -_MAX_COLUMNS:].astype(np.float32)
        return vectors @ directions


def _unit_rows(vectors: Matrix) -> Matrix:
    from sklearn.preprocessing import normalize  # imports rich, where it is installed

    return normalize(vectors.astype(np.float32, copy=False))


def _number(order: Int32, ranges: Sequence[tuple[int, int]], source: str) -> LabelHierarchy:
    """Number nodes level by level, parents before their children."""
    start, stop = np.array(ranges, np.int64).reshape(-1, 2).T
    chosen = np.lexsort((start, start - stop))  # the widest first: a child is narrower than its parent
    start, stop = start[chosen], stop[chosen]
    parent = np.full(len(start), -1, np.int64)
    # from left to right with the widest first, the parent is the last open range
    open_nodes: list[int] = []
    for node in np.lexsort((start - stop, start)).tolist():
        while open_nodes and stop[open_nodes[-1]] <= start[node]:
            open_nodes.pop()
        if open_nodes:
            parent[node] = open_nodes[-1]
        open_nodes.append(node)
    return LabelHierarchy(
        order, start.astype(np.int32), stop.astype(np.int32), parent.astype(np.int32), source
    )
