"""States of layers with other `gradients` or `whiten`, and buffers that keep their types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from extremax.nn.shared_classes import INITIAL_SQUARE

SUMS = ("squares", "bias_squares")
EXACT = (*SUMS, "class_counts")  # keep their type, whatever the weights have
SCALES = ("hidden_moments.", "hidden_size.")  # what is known of earlier hidden states: one of them


def adapt_state(layer: nn.Module, state_dict: dict[str, Any], prefix: str) -> None:
    """Give a state the Adagrad sums, and the moments or the size of hidden states, that a layer has.

    What the layer lacks is left out, and what the state lacks starts anew. New tensors are on the device of
    the state: with ``assign=True`` they become tensors of the layer beside the state's own. A state without
    the sums is not that of a layer, and stays as it is.
    """
    old = {name: state_dict[prefix + name] for name in SUMS if prefix + name in state_dict}
    for name, value in old.items():
        buffer = layer.get_buffer(name)
        if (len(value) == 0) != (len(buffer) == 0):
            state_dict[prefix + name] = torch.full_like(buffer, INITIAL_SQUARE, device=value.device)
    for scale in SCALES:
        wanted = {name: buffer for name, buffer in layer.named_buffers() if name.startswith(scale)}
        found = [name for name in state_dict if name.startswith(prefix + scale)]
        if not wanted:
            for name in found:
                del state_dict[name]
        elif old and not found:
            device = old[SUMS[0]].device
            new = {prefix + name: torch.zeros_like(buffer, device=device) for name, buffer in wanted.items()}
            state_dict.update(new)


def keep_type(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Wrap `fn` so that it moves tensors (``.to(device)``) but never changes their type (``.half()``)."""

    def move(tensor: Tensor) -> Tensor:
        moved = fn(tensor)
        return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

    return move


class TypedBuffers(nn.Module):
    """A module whose buffers keep their types: counts and sums need all digits, whatever the weights have."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        result: Self = super()._apply(keep_type(fn), recurse)  # type: ignore[no-untyped-call]
        return result
