"""What the output layers share: checks of their input, and scores of all classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Self, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor, nn

from extremax.nn.hidden_moments import HiddenMoments, HiddenSize
from extremax.nn.layer_state import EXACT, keep_type
from extremax.types import Float64

BLOCK_SCORES = 1 << 25  # scores that exist at the same time, where nothing is differentiated
GRADIENTS = ("dense", "sparse", "fused")


class OutputLayer(nn.Module):
    """Checks of what an output layer is called with, and types of its buffers."""

    in_features: int
    n_classes: int
    ignore_index: int
    hidden_moments: HiddenMoments | None
    hidden_size: HiddenSize | None

    @property
    def _hidden_scale(self) -> HiddenMoments | HiddenSize | None:
        """What fused steps know of earlier hidden states: moments, or sizes without whitening."""
        return self.hidden_size if self.hidden_moments is None else self.hidden_moments

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Keep the type of Adagrad's sums and of class counts in ``.half()`` and the like."""
        sums = {name: self.get_buffer(name) for name in EXACT if name in self._buffers}
        result: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._buffers.update({name: keep_type(fn)(buffer) for name, buffer in sums.items()})
        return result

    def _flat(self, hidden: Tensor) -> Tensor:
        if hidden.ndim < 1 or hidden.shape[-1] != self.in_features:
            raise ValueError(
                f"hidden has shape {tuple(hidden.shape)}; its last dimension must be {self.in_features}."
            )
        return hidden.reshape(-1, self.in_features)

    def _flat_pairs(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows and targets as (n, in_features) and (n,), without those to be ignored."""
        h = self._flat(hidden)
        if targets.shape != hidden.shape[:-1]:
            raise ValueError(
                f"targets has shape {tuple(targets.shape)}; hidden of shape {tuple(hidden.shape)} needs"
                f" {tuple(hidden.shape[:-1])}."
            )
        y = targets.reshape(-1)
        kept = y != self.ignore_index
        if not bool(kept.all()):
            h, y = h[kept.to(h.device)], y[kept]
        self._check_targets(y)
        return h, y

    def _check_targets(self, y: Tensor) -> None:
        if y.is_floating_point() or y.dtype == torch.bool:
            raise TypeError(f"targets has type {y.dtype}; it needs integer classes.")
        if len(y) and (int(y.min()) < 0 or int(y.max()) >= self.n_classes):
            wrong = int(y.min()) if int(y.min()) < 0 else int(y.max())
            raise ValueError(f"targets holds {wrong}; the classes are 0 to {self.n_classes - 1}.")

    def _check_k(self, k: int) -> None:
        if not 1 <= k <= self.n_classes:
            raise ValueError(f"k is {k}; ask for 1 to {self.n_classes} classes.")


def row_blocks(n: int, row_size: int) -> Iterator[tuple[int, int]]:
    """Return the first row of each block, and the one after its last: rows of `row_size` numbers."""
    step = max(1, BLOCK_SCORES // max(1, row_size))
    return ((a, min(a + step, n)) for a in range(0, n, step))


def score_all(h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the scores (n, classes of the table), in float32 at least."""
    with torch.autocast(h.device.type, enabled=False):
        scores = F.linear(h.to(weight.dtype), weight, bias)
    return scores.to(torch.promote_types(weight.dtype, torch.float32))


def gather(table: Tensor) -> Tensor:
    # Only a DTensor has this; its module is slow to import, and where it is depends on the version of torch.
    full = getattr(table, "full_tensor", None)
    return table if full is None else cast("Tensor", full())


def copy_into(table: Tensor, values: Tensor) -> None:
    """Copy values into a table of the same shape, or into the shards of it that this process has."""
    placements = getattr(table, "placements", None)
    if placements is not None:
        from torch.distributed.tensor import DTensor, distribute_tensor

        mesh = cast("DTensor", table).device_mesh
        values = distribute_tensor(values.to(table.device), mesh, placements)
    table.copy_(values)


def check_positive(**values: int | None) -> None:
    for name, value in values.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1.")


def check_gradients(gradients: str, label_smoothing: float) -> None:
    if gradients not in GRADIENTS:
        raise ValueError(f"gradients is {gradients!r}; use 'dense', 'sparse' or 'fused'.")
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing is {label_smoothing}; it must be between 0 and 1.")
    if gradients == "fused" and label_smoothing > 0.0:
        raise ValueError(
            "gradients='fused' has no label smoothing: set label_smoothing=0, or use 'dense' or 'sparse'."
        )


def check_class_counts(class_counts: ArrayLike | None, n_classes: int) -> Float64:
    """Return the counts as numbers, or ones unless they are given."""
    counts: Float64
    counts = np.ones(n_classes) if class_counts is None else np.asarray(class_counts).astype(np.float64)
    if counts.shape != (n_classes,):
        raise ValueError(
            f"class_counts has shape {counts.shape}; it needs one number for each of the {n_classes} classes."
        )
    return counts


def n_processes() -> int:
    """Return the number of processes that train together, in the sense of torch.distributed."""
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    return int(torch.distributed.get_world_size()) if together else 1
