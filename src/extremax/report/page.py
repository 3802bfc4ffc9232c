"""The data of the model page: an overview, parts of the label tree, the path to a label, a search.

`ModelPage` holds one model and returns plain dictionaries, ready for JSON. It does not change after it is
built, so several threads may use it.  Nodes of the tree are numbered from 0, the root; the
classes follow: class c is node ``n_nodes + c``.
"""

from __future__ import annotations

import heapq
from functools import cached_property
from typing import Any

import numpy as np

from extremax.report.document import (
    MAX_LABEL,
    MAX_TEXT,
    Document,
    cut,
    describe_model,
    labels_checksum,
    make_document,
)
from extremax.report.hierarchy import hierarchy_of
from extremax.report.names import name_nodes
from extremax.types import Int64

_MAX_NODES = 1000  # nodes of one answer
_LARGEST = 3  # classes that stand for a node
_COUNTS = ("n_rows", "n_pairs", "n_left_out", "n_unknown")


class ModelPage:
    """Answers about one model. Its tree is built here, which takes seconds for ten thousand classes.

    Parameters
    ----------
    clf : ExtremeClassifier or TextClassifier
        Fitted, or loaded from a folder.
    document : dict, optional
        From `load_analysis` or `make_document`; without it there are no held-out figures.

    Examples
    --------
    >>> from extremax import TextClassifier
    >>> texts = ["fell off a ladder", "fall from a roof", "bitten by a dog", "bitten by a cat"] * 5
    >>> clf = TextClassifier().fit(texts, ["fall", "fall", "bite", "bite"] * 5)
    >>> page = ModelPage(clf)
    >>> [(node["name"], node["n_rows"]) for node in page.tree(0, depth=1)["nodes"]]
    [('all classes', 20), ('bite', 10), ('fall', 10)]
    >>> page.search("ite")["labels"][0]["label"]
    'bite'
    """

    def __init__(self, clf: Any, document: Document | None = None) -> None:
        self.document = make_document(clf, None) if document is None else document
        known, classes = self.document["model"], clf.classes_
        if known["n_classes"] != len(classes) or known["labels_checksum"] != labels_checksum(classes):
            raise ValueError(
                f"the analysis is of another model: its {known['n_classes']:,} labels are not the"
                f" {len(classes):,} of this one; make it again with extremax report."
            )
        model = clf.model_
        self.about = describe_model(clf)
        self.hierarchy = tree = hierarchy_of(model)
        self._labels = [str(label) for label in classes.tolist()]
        self._descriptions = model.classes.descriptions
        self._depths, self._names = tree.depths(), name_nodes(clf, tree)
        held_out = self.document["held_out"]
        self._support = self._counts(held_out, "support")
        self._right = self._counts(held_out, "right")
        # Without an analysis the support is zero.
        self._rows: Int64 = self._support if model.classes.counts is None else model.classes.counts
        self._node_rows = tree.sums(self._rows)
        self._node_support, self._node_right = tree.sums(self._support), tree.sums(self._right)
        confusions = None if held_out is None else held_out.get("confusions")
        self._inside: Int64 | None = None
        if confusions is not None:
            label, predicted, n = (np.array(part, np.int64) for part in confusions)
            self._inside = self._node_right + tree.pairs_inside(label, predicted, n)
        self._largest = self._find_largest()

    def _counts(self, held_out: Any, name: str) -> Int64:
        n = self.hierarchy.n_classes
        return np.zeros(n, np.int64) if held_out is None else np.asarray(held_out[name], np.int64)

    def _find_largest(self) -> list[list[int]]:
        """Return the classes with the most rows under each node."""
        tree = self.hierarchy
        largest: list[list[int]] = [[] for _ in range(tree.n_nodes)]
        has_children = np.zeros(tree.n_nodes, bool)
        has_children[tree.parent[1:]] = True
        for node in range(tree.n_nodes - 1, -1, -1):  # children before their parents
            found = largest[node] if has_children[node] else tree.classes_of(node).tolist()
            best = sorted(set(found), key=lambda c: (-int(self._rows[c]), c))[:_LARGEST]
            largest[node] = best
            if node:
                largest[int(tree.parent[node])] += best
        return largest

    @property
    def n_nodes(self) -> int:
        """Nodes above the classes."""
        return self.hierarchy.n_nodes

    def overview(self) -> dict[str, Any]:
        """Return the tables, without the tree."""
        held_out = self.document["held_out"]
        return {
            "model": {name: value for name, value in self.about.items() if name != "labels_checksum"},
            "held_out": None if held_out is None else {name: held_out[name] for name in _COUNTS},
            "tables": self.document["tables"],
            "tree": {
                "source": self.hierarchy.source,
                "n_nodes": self.n_nodes,
                "depth": int(self._depths.max(initial=0)) + 1,
                "has_accuracy": held_out is not None,
                "width": "training rows" if self.about["n_samples"] else "rows" if held_out else "classes",
            },
        }

    def node(self, number: int) -> dict[str, Any]:
        """Return one node."""
        tree, n_nodes = self.hierarchy, self.n_nodes
        if not 0 <= number < n_nodes + tree.n_classes:
            raise ValueError(f"the tree has no node {number}; nodes are 0 to {n_nodes + tree.n_classes - 1}.")
        if number >= n_nodes:
            return self.class_node(number - n_nodes)
        largest = self._largest[number]
        name = self._names[number] or ("all classes" if number == 0 else self._named_after(largest))
        inside = None if self._inside is None else int(self._inside[number])
        return {
            "id": number,
            "parent": int(tree.parent[number]) if number else None,
            "depth": int(self._depths[number]),
            "n_classes": int(tree.stop[number] - tree.start[number]),
            "n_rows": int(self._node_rows[number]),
            **_shares(int(self._node_support[number]), int(self._node_right[number]), inside),
            "label": None,
            "name": name,
            "description": None,
            "labels": [{"label": self._label(c), "description": self._describe(c, 120)} for c in largest],
            "is_leaf": False,
        }

    def _named_after(self, largest: list[int]) -> str:
        return ", ".join(cut(self._describe(c, 40) or self._labels[c], 40) for c in largest[:2]) + " …"

    def _label(self, c: int) -> str:
        return cut(self._labels[c], MAX_LABEL)

    def _describe(self, c: int, length: int = MAX_TEXT) -> str | None:
        return None if self._descriptions is None else cut(self._descriptions.text(c), length) or None

    def class_node(self, c: int) -> dict[str, Any]:
        """Return the node of a class, given by its number."""
        leaf, right = int(self.hierarchy.leaf_of[c]), int(self._right[c])
        return {
            "id": self.n_nodes + c,
            "parent": leaf,
            "depth": int(self._depths[leaf]) + 1,
            "n_classes": 1,
            "n_rows": int(self._rows[c]),
            **_shares(int(self._support[c]), right, right),
            "label": self._label(c),
            "name": self._label(c),
            "description": self._describe(c),
            "labels": [],
            "is_leaf": True,
        }

    def children(self, number: int) -> list[int]:
        """Return the numbers of the nodes under a node; classes have none."""
        if number >= self.n_nodes:
            return []
        below = self.hierarchy.children(number)
        return below or [self.n_nodes + int(c) for c in self.hierarchy.classes_of(number)]

    def tree(self, node: int = 0, depth: int = 5) -> dict[str, Any]:
        """Return a node and `depth` levels of its descendants, level by level."""
        root = self.node(node)
        if not 0 <= depth <= 16:
            raise ValueError(f"depth is {depth}; give 0 to 16 levels.")
        nodes, level, truncated = [root], [node], False
        for _ in range(depth):
            level = [child for number in level for child in self.children(number)]
            if len(nodes) + len(level) > _MAX_NODES:
                truncated = True
                break
            nodes += [self.node(number) for number in level]
        return {"root": root, "nodes": nodes, "truncated": truncated}

    def excerpt(self, max_nodes: int) -> list[dict[str, Any]]:
        """Return at most `max_nodes` nodes, opening those with the most rows first.

        A node is opened with all of its children or not at all; ``n_hidden`` is the number of classes under
        a node that is not.
        """
        found: dict[int, dict[str, Any]] = {0: self.node(0)}
        heap = [(0, 0)]
        while heap:
            _, number = heapq.heappop(heap)
            below = self.children(number)
            if len(found) + len(below) > max_nodes:
                found[number]["n_hidden"] = found[number]["n_classes"]
                continue
            for child in below:
                found[child] = self.node(child)
                if not found[child]["is_leaf"]:
                    heapq.heappush(heap, (-found[child]["n_rows"] - found[child]["n_classes"], child))
        return list(found.values())

    def path(self, label: int) -> list[dict[str, Any]]:
        """Return the nodes from the root to a class, given by its number."""
        if not 0 <= label < self.hierarchy.n_classes:
            raise ValueError(f"there is no class {label}; classes are 0 to {self.hierarchy.n_classes - 1}.")
        return [self.node(number) for number in self.hierarchy.path(label)] + [self.class_node(label)]

    def search(self, query: str, limit: int = 20) -> dict[str, Any]:
        """Return classes whose label or description holds a text: those that begin with it first."""
        wanted = query.strip().casefold()
        if not wanted:
            return {"labels": [], "total": 0}
        matches = []
        for c, label in enumerate(self._labels):
            name = label.casefold()
            if wanted in name:
                matches.append((0 if name == wanted else 1 if name.startswith(wanted) else 2, c))
            elif self._descriptions is not None and wanted in self._folded[c]:
                matches.append((3 if f" {wanted}" in f" {self._folded[c]}" else 4, c))  # words before parts
        matches.sort(key=lambda match: (match[0], -int(self._rows[match[1]]), match[1]))
        return {"labels": [self._found(c) for _, c in matches[: max(0, limit)]], "total": len(matches)}

    @cached_property
    def _folded(self) -> list[str]:
        texts: Any = self._descriptions
        return [texts.text(c).casefold() for c in range(len(self._labels))]

    def _found(self, c: int) -> dict[str, Any]:
        node = self.class_node(c)
        shown = {name: node[name] for name in ("label", "description", "n_rows", "accuracy")}
        return {**shown, "id": c, "node": node["id"]}


def _shares(support: int, right: int, inside: int | None) -> dict[str, Any]:
    """Return held-out rows, and the shares of them that are right and inside of a node."""
    return {
        "n_held_out": support,
        "accuracy": right / support if support else None,
        "inside": inside / support if support and inside is not None else None,
    }
