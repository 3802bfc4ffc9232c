"""The noise distribution of a head: class frequencies first, then a label tree mixed with them.

Everything that defines the distribution is a buffer, so that ``state_dict`` and ``.to(device)`` include it.
Draws and log-probabilities come from the compiled tree on the CPU, which is made from the buffers when it is
first needed.
"""

from __future__ import annotations

import zlib
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from extremax.features.pca import PCA
from extremax.nn.layer_state import TypedBuffers
from extremax.tree import LabelTree
from extremax.tree.layout import depth_of
from extremax.tree.noise import FrequencyNoise, MixtureNoise, Noise, TreeNoise
from extremax.types import Float32


class NoiseState(TypedBuffers):
    """Buffers of the noise distribution, and the distribution made from them."""

    tree_weights: Tensor
    tree_biases: Tensor
    tree_leaf_class: Tensor
    components: Tensor
    mean: Tensor
    class_counts: Tensor
    has_tree: Tensor
    version: Tensor

    def __init__(
        self, in_features: int, n_classes: int, n_components: int, tree_share: float, counts: NDArray[Any]
    ) -> None:
        super().__init__()
        self.tree_share = tree_share
        n_leaves = 1 << depth_of(n_classes)
        n_components = min(n_components, in_features)
        # Fixed shapes from the start: the state of a head with a tree loads into one without.
        self.register_buffer("tree_weights", torch.zeros(n_leaves - 1, n_components))
        self.register_buffer("tree_biases", torch.zeros(n_leaves - 1))
        self.register_buffer("tree_leaf_class", torch.full((n_leaves,), -1, dtype=torch.int32))
        self.register_buffer("components", torch.zeros(n_components, in_features))
        self.register_buffer("mean", torch.zeros(in_features))
        self.register_buffer("class_counts", torch.from_numpy(np.array(counts, np.float32)))
        self.register_buffer("has_tree", torch.zeros((), dtype=torch.bool))
        # Changes with the content of the others: DistributedDataParallel copies the buffers of the first
        # process into those of all others without calling anything here.
        self.register_buffer("version", torch.zeros((), dtype=torch.int64))
        self._noise: Noise | None = None
        self._tree: LabelTree | None = None
        self._made_from = 0
        self.generation = 0  # of what is made from the buffers: `forget` starts the next one
        self.register_load_state_dict_post_hook(_forget)  # type: ignore[no-untyped-call]

    def reset(self, counts: NDArray[Any]) -> None:
        """Set all buffers to the state before the first tree, as after ``to_empty``."""
        for name in ("tree_weights", "tree_biases", "components", "mean", "has_tree", "version"):
            getattr(self, name).zero_()
        self.tree_leaf_class.fill_(-1)
        self.class_counts.copy_(torch.from_numpy(np.array(counts, np.float32)))
        self.forget()

    def forget(self) -> None:
        """Drop the distribution; the next use makes it from the buffers again."""
        self._noise, self._tree = None, None
        self.generation += 1

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())  # type: ignore[no-untyped-call]
        state["_noise"], state["_tree"] = None, None  # copies and worker processes make their own
        return state

    @property
    def tree(self) -> LabelTree | None:
        """The label tree, or None before the first fit."""
        self.current()
        return self._tree

    def frequencies(self) -> FrequencyNoise:
        """Return the distribution of the class counts."""
        return FrequencyNoise(self.class_counts.cpu().numpy())

    def current(self) -> Noise:
        """Return the distribution that negatives are drawn from."""
        version = int(self.version)
        if self._noise is None or self._made_from != version:
            self._made_from, self._tree = version, None
            frequencies = self.frequencies()
            if not bool(self.has_tree):
                self._noise = frequencies
                return frequencies
            arrays = (self.tree_weights, self.tree_biases, self.tree_leaf_class)
            self._tree = LabelTree(*(array.cpu().numpy() for array in arrays))
            tree = TreeNoise(self._tree)
            alone = self.tree_share == 1.0
            self._noise = tree if alone else MixtureNoise(tree, frequencies, weight=self.tree_share)
        return self._noise

    def set_tree(self, tree: LabelTree, projection: PCA, counts: NDArray[Any]) -> None:
        """Copy a fitted tree, the projection it was fitted on, and class counts into the buffers."""
        for name, values in (
            ("tree_weights", tree.weights),
            ("tree_biases", tree.biases),
            ("tree_leaf_class", tree.leaf_class),
            ("components", projection.components),
            ("mean", projection.mean),
            ("class_counts", counts),
        ):
            buffer: Tensor = getattr(self, name)
            buffer.copy_(torch.from_numpy(np.array(values, order="C")))
        self.has_tree.fill_(True)
        self.version.fill_(zlib.crc32(tree.biases.tobytes(), zlib.crc32(tree.weights.tobytes())))
        self.forget()

    def project(self, hidden: Tensor) -> Float32:
        """Return the projection (n, n_components) of hidden states that the tree reads, on the CPU.

        It has no columns before there is a tree.
        """
        if not bool(self.has_tree):
            return np.empty((len(hidden), 0), np.float32)
        with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
            x = hidden.detach().to(self.components.dtype)
            Z = (x - self.mean) @ self.components.T
        return np.ascontiguousarray(Z.cpu().numpy(), np.float32)


def _forget(module: nn.Module, _: object) -> None:
    # A function of the module, not a closure over one: a copied head must drop its own distribution.
    cast("NoiseState", module).forget()
