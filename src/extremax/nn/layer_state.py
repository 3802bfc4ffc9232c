"""States of layers with other `gradients` or `whiten`, and of earlier versions."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from extremax.nn.shared_classes import INITIAL_SQUARE

SUMS = ("squares", "bias_squares")
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
