"""Names of the nodes of a label hierarchy: words that set its classes apart from those beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from extremax.report.hierarchy import LabelHierarchy, line_means
from extremax.scores.sparse import SparseWeights

_WORDS = 3  # words in a name
_SHORT = 2  # words of so few letters are left out where there are others
_CANDIDATES = 16  # columns that are looked at for them
_LEAST_SHARE = 0.2  # part of the greatest difference that a further word has at least


def name_nodes(clf: Any, tree: LabelHierarchy) -> list[str]:
    """Return a name for each node; empty for the root, and where features have no names.

    The mean of the class vectors under a node minus that under its parent is greatest on the words that set
    it apart; it is multiplied by the share of the classes that have the word.  Only single words of sparse
    text features count.
    """
    features = getattr(clf, "features_", None)
    weights = clf.model_.weights
    if (
        features is None
        or not getattr(features, "is_sparse", False)
        or not isinstance(weights, SparseWeights)
    ):
        return [""] * tree.n_nodes
    first, last = features.n_character_columns, features.n_features
    words = sparse.csr_matrix(weights.to_matrix()[:, first:last])
    depths = tree.depths()
    spelled: dict[int, str] = {}

    def spell(column: int) -> str:
        if column not in spelled:
            spelled[column] = features.column_names([first + column])[0]
        return spelled[column]

    names = [""] * tree.n_nodes
    lengths = np.sqrt(np.asarray(words.multiply(words).sum(axis=1)).ravel())
    # words of many texts, such as "of" and "other", say little
    share = (1.0 + features.text_counts_[first:last]) / (1.0 + features.n_texts_)
    rarity = np.square(np.log(np.minimum(share, 1.0)))
    words = sparse.diags(1.0 / np.maximum(lengths, 1e-12)) @ words @ sparse.diags(rarity)
    if clf.model_.label_map is not None:
        words = line_means(clf.model_.label_map) @ words
    words = sparse.csr_matrix(words)[tree.order]
    has = (words > 0).astype(np.float64)
    for depth in range(1, int(depths.max(initial=0)) + 1):
        nodes = np.flatnonzero(depths == depth)
        means = _range_means(tree, nodes) @ words
        parents, place = np.unique(tree.parent[nodes], return_inverse=True)
        whole = (_range_means(tree, parents) @ words)[place]
        # a word that few classes of the node have does not stand for it
        score = (means - whole).multiply(_range_means(tree, nodes) @ has)
        for node, row in zip(nodes.tolist(), sparse.csr_matrix(score), strict=True):
            names[node] = _name(row, spell)
    return names


def _range_means(tree: LabelHierarchy, nodes: Any) -> sparse.csr_matrix:
    """Return the matrix that takes means over the classes of nodes, which are in the order of the tree."""
    sizes = (tree.stop[nodes] - tree.start[nodes]).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    columns = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - tree.start[nodes], sizes)
    return sparse.csr_matrix(
        (np.repeat(1.0 / sizes, sizes), columns, offsets), shape=(len(nodes), tree.n_classes)
    )


def _name(difference: Any, spell: Any) -> str:
    """Return the words of the greatest differences."""
    values, columns = difference.data, difference.indices
    most = min(len(values), _CANDIDATES)
    chosen = np.argpartition(-values, most - 1)[:most] if most else np.empty(0, np.int64)
    chosen = chosen[np.lexsort((columns[chosen], -values[chosen]))]
    kept = [i for i in chosen.tolist() if values[i] > max(0.0, _LEAST_SHARE * values[chosen[0]])]
    words = [spell(int(columns[i])) for i in kept]
    words = [word for word in words if word[:1] != "#" and " " not in word]
    return ", ".join(([word for word in words if len(word) > _SHORT] or words)[:_WORDS])
