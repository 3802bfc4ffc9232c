"""Names of the nodes of a label hierarchy: words that the labels below them have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from extremax.features.text import cut_words
from extremax.report.hierarchy import LabelHierarchy

_WORDS = 3  # words in a name
_SHORT = 2  # letters of words that are left out
_LEAST_SHARE = 0.2  # of the labels of a node that have a word of its name
_LEAST_GAIN = 0.3  # part of the greatest gain that a further word has at least


def name_nodes(clf: Any, tree: LabelHierarchy) -> list[str]:
    """Return a name for each node; empty for the root, and where labels have no word in common.

    Words are those of the descriptions of the labels, or else of the labels. A word counts by how much larger
    its share of the labels is below the node than below the parent, times the log of its rarity in all.
    """
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS  # imports more than extremax may

    found = [_words(text, ENGLISH_STOP_WORDS) for text in _texts(clf)]
    vocabulary = sorted(set().union(*found))
    column = {word: i for i, word in enumerate(vocabulary)}
    columns = np.array([column[word] for words in found for word in words], np.int64)
    ends = np.cumsum([0, *map(len, found)])
    has = sparse.csr_matrix((np.ones(len(columns)), columns, ends), shape=(len(found), len(vocabulary)))
    has = has[tree.order]
    counts = np.bincount(columns, minlength=len(vocabulary))
    rarity = np.log(len(found) / np.maximum(counts, 1))  # "unspecified" says little
    names, depths = [""] * tree.n_nodes, tree.depths()
    for depth in range(1, int(depths.max(initial=0)) + 1):
        nodes = np.flatnonzero(depths == depth)
        share = sparse.csr_matrix(_range_means(tree, nodes) @ has)
        parents, place = np.unique(tree.parent[nodes], return_inverse=True)
        whole = sparse.csr_matrix(_range_means(tree, parents) @ has)[place]
        gain = sparse.csr_matrix(share - whole)
        sizes = tree.stop[nodes] - tree.start[nodes]
        for i, node in enumerate(nodes.tolist()):
            row = share[i]
            kept = row.data >= max(_LEAST_SHARE, 2.0 / sizes[i]) - 1e-9  # of two labels or more
            words = row.indices[kept]
            gains = gain[i, words].toarray()[0] * rarity[words] if len(words) else np.zeros(0)
            best = np.lexsort((words, -gains))[:_WORDS]
            least = max(1e-9, _LEAST_GAIN * gains.max(initial=0.0))
            names[node] = ", ".join(vocabulary[words[k]] for k in best if gains[k] >= least)
    return names


def _texts(clf: Any) -> list[str]:
    """Return the description of each class, or else its label."""
    descriptions, labels = clf.model_.classes.descriptions, [str(label) for label in clf.classes_.tolist()]
    return labels if descriptions is None else [descriptions.text(i) or name for i, name in enumerate(labels)]


def _words(text: str, left_out: frozenset[str]) -> list[str]:
    """Return the words of a text, each once, without numbers, short words and words such as "other"."""
    words = [word for word in dict.fromkeys(cut_words(text.lower())) if word not in left_out]
    return [word for word in words if not word.isdigit() and (len(word) > _SHORT or not word.isascii())]


def _range_means(tree: LabelHierarchy, nodes: Any) -> sparse.csr_matrix:
    """Return the matrix that takes means over the classes of nodes, which are in the order of the tree."""
    sizes = (tree.stop[nodes] - tree.start[nodes]).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    columns = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - tree.start[nodes], sizes)
    return sparse.csr_matrix(
        (np.repeat(1.0 / sizes, sizes), columns, offsets), shape=(len(nodes), tree.n_classes)
    )
