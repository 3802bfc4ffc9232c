"""The auxiliary model of the paper's section 3: a probabilistic decision tree over the classes."""

from extremax.tree.label_tree import LabelTree

__all__ = ["LabelTree"]
