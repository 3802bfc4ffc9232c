"""Labels that are below others: probabilities of all levels, exactly.

The probability of a node is the sum of those of the classes below it, itself included. A class of the model
may be an inner node.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from extremax.runtime.threads import split
from extremax.types import Float64, Int64

if TYPE_CHECKING:
    from extremax.classifier import Classifier

_BLOCK_SCORES = 1 << 24  # probabilities of all classes that are in memory together


class Taxonomy:
    """The parent of each label.

    Parameters
    ----------
    parents : dict from labels to their parents
        Labels without a parent are at level 0, their children at level 1.

    Examples
    --------
    >>> from extremax import TextClassifier
    >>> texts = ["fell off a ladder", "fell off a roof", "bitten by a dog", "bitten by a cat"] * 5
    >>> clf = TextClassifier().fit(texts, ["ladder", "roof", "dog", "cat"] * 5)
    >>> tree = Taxonomy({"ladder": "fall", "roof": "fall", "dog": "bite", "cat": "bite"})
    >>> tree.predict(clf, ["fell off something", "bitten"], level=0)
    ['fall', 'bite']
    >>> tree.predict_sure(clf, ["a dog has bitten", "fell off"], least=0.7)
    ['dog', 'fall']
    """

    def __init__(self, parents: Mapping[Any, Any]) -> None:
        if not isinstance(parents, Mapping):
            raise TypeError(f"parents must be a dict from labels to parents; got {type(parents).__name__}.")
        self.parents = dict(parents)
        for label in self.parents:
            self.path(label)

    @classmethod
    def from_paths(cls, paths: Iterable[Sequence[Any]]) -> Taxonomy:
        """Make a hierarchy from paths of labels, each from the top down.

        Examples
        --------
        >>> Taxonomy.from_paths([["animal", "cat", "tabby"], ["animal", "dog"]]).path("tabby")
        ['animal', 'cat', 'tabby']
        """
        parents: dict[Any, Any] = {}
        for path in paths:
            for parent, label in itertools.pairwise(path):
                if parents.setdefault(label, parent) != parent:
                    raise ValueError(
                        f"{label!r} is below {parents[label]!r} and below {parent!r}; a label has one parent."
                    )
        return cls(parents)

    def path(self, label: Any) -> list[Any]:
        """Return the labels from the top down to one."""
        found = [label]
        while found[-1] in self.parents:
            found.append(self.parents[found[-1]])
            if found[-1] == label or len(found) > len(self.parents) + 1:
                raise ValueError(f"parents has a circle: {label!r} is above itself.")
        return found[::-1]

    def predict_proba(self, clf: Classifier, X: Any, level: int | None = None) -> tuple[list[Any], Float64]:
        """Return nodes and their probabilities, (n_samples, n_nodes): of a level, by default of all levels.

        Classes above the level are nodes of it, so that the probabilities of a level sum to one.
        """
        features, model = clf.to_features(X), clf.model_
        nodes, members, owners = self._members(clf.classes_.tolist(), level)
        found = np.empty((features.shape[0], len(nodes)))
        starts = np.searchsorted(owners, np.arange(len(nodes)))
        for first, last in split(features.shape[0], max(1, _BLOCK_SCORES // model.n_classes)):
            prob = model.prob_all(features[first:last], n_threads=clf._inner._threads)
            found[first:last] = np.add.reduceat(prob[:, members], starts, axis=1)
        return nodes, found

    def predict(self, clf: Classifier, X: Any, level: int) -> list[Any]:
        """Return the most probable node of a level for each row."""
        nodes, prob = self.predict_proba(clf, X, level)
        return [nodes[i] for i in prob.argmax(axis=1)]

    def predict_sure(self, clf: Classifier, X: Any, least: float = 0.8) -> list[Any]:
        """Return for each row the deepest node that has at least a probability; None where none has."""
        if not 0.0 < least <= 1.0:
            raise ValueError(f"least is {least}; it is a probability above 0.")
        nodes, prob = self.predict_proba(clf, X)
        depth = np.array([len(self.path(node)) for node in nodes])
        rank = np.where(
            prob >= least, depth + np.minimum(prob, 1.0 - 1e-12), -1.0
        )  # of one depth the likelier
        best = rank.argmax(axis=1)
        return [nodes[i] if value >= 0.0 else None for i, value in zip(best, rank.max(axis=1), strict=True)]

    def _members(self, labels: list[Any], level: int | None) -> tuple[list[Any], NDArray[Any], Int64]:
        """Return nodes, and the classes of each, node by node, with the number of the node."""
        if level is not None and level < 0:
            raise ValueError(f"level is {level}; the top level is 0.")
        number: dict[Any, int] = {}
        pairs = []
        for i, label in enumerate(labels):
            path = self.path(label)
            own = path if level is None else [path[min(level, len(path) - 1)]]
            pairs += [(number.setdefault(node, len(number)), i) for node in own]
        table = np.array(sorted(pairs), np.int64)
        return list(number), table[:, 1], table[:, 0]
