"""The label tree: the auxiliary model of the paper's section 3."""

from extremax.tree.label_tree import LabelTree

__all__ = ["LabelTree"]
