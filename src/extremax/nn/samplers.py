"""Draw the classes that a training step compares its rows with, each with a known probability.

A draw is systematic: the inclusion probabilities of all classes lie end to end on a line, in a fixed random
order, and a class is drawn where its interval holds one of the marks u, u + 1, u + 2, ... for one random u.
No class is drawn twice, and the number drawn is always the same. The random order keeps the marks out of
step with class numbers that follow a pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

# Positions on the line are integers in units of 1 / _UNIT: inclusion probabilities are exact, also on devices
# without float64.
_UNIT = 1 << 40
_ORDER_SEED = 2024  # of the fixed order, the same in all processes


class Draw(NamedTuple):
    """Classes (n_sampled,), all different, and the logarithms of their inclusion probabilities."""

    classes: Tensor
    log_pi: Tensor


class FrequencySampler(nn.Module):
    """Draw classes by a power of their frequencies.

    The inclusion probability of class y is ``min(1, t * counts[y] ** power)``, with t such that the
    probabilities sum to `n_sampled`.

    Parameters
    ----------
    counts : (n_classes,)
        Training rows of each class. A class without rows counts as half a row.
    power : float
        1 draws by frequency, 0 draws all classes alike. Choose it on validation rows: for recommendation,
        small powers are often better.
    n_sampled : int
        Classes of a draw; all of them if there are no more, which makes the softmax exact.
    batch_share : float
        Share of the targets of the minibatch in the estimate of the softmax, the rest being that of the
        drawn classes; see `sampled_softmax_loss`. 0 where rows, or sequences, of a minibatch are not
        independent.
    generator : torch.Generator, optional
        Source of random numbers, torch's default one unless given.

    Examples
    --------
    >>> sampler = FrequencySampler([10, 2, 1, 1], power=1.0, n_sampled=2)
    >>> sampler.inclusion_probabilities().tolist()
    [1.0, 0.5, 0.25, 0.25]
    >>> len(sampler().classes)
    2
    """

    counts: Tensor
    total: float
    ends: Tensor
    order: Tensor

    def __init__(
        self,
        counts: Any,
        power: float = 0.75,
        n_sampled: int = 64,
        *,
        batch_share: float = 0.9,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if not 0.0 <= batch_share < 1.0:
            raise ValueError(f"batch_share is {batch_share}; it must be at least 0 and below 1.")
        if isinstance(counts, Tensor) and counts.is_meta:
            raise ValueError("counts are on the meta device, without data: create them on the CPU.")
        counts = torch.as_tensor(counts, device="cpu").double()
        if counts.ndim != 1 or len(counts) == 0 or not bool((counts >= 0).all()):
            raise ValueError("counts must hold one number, 0 or more, for each class.")
        if n_sampled < 1:
            raise ValueError(f"n_sampled is {n_sampled}; it must be at least 1.")
        self.n_classes, self.n_sampled, self.power = len(counts), min(n_sampled, len(counts)), power
        self.batch_share = batch_share if self.n_sampled < self.n_classes else 0.0
        self.generator, self.total = generator, float(counts.clamp(min=0.5).sum())
        if device is None:
            default = torch.get_default_device()
            # Models are created on the meta device to be filled later, when nothing would fill the counts.
            device = "cpu" if default.type == "meta" else default
        self._set_counts(counts.clamp(min=0.5), device)

    def _set_counts(self, counts: Tensor, device: torch.device | str) -> None:
        weights = (counts / counts.max()) ** self.power
        source = torch.Generator().manual_seed(_ORDER_SEED)
        order = torch.randperm(len(counts), generator=source, device="cpu")
        ends = (_inclusion_probabilities(weights, self.n_sampled)[order].cumsum(0) * _UNIT).round().long()
        ends[-1] = self.n_sampled * _UNIT
        # Made again from the training data rather than stored: the state of a layer is that of a Linear.
        for name, table in {"ends": ends, "order": order.int(), "counts": counts.float()}.items():
            self.register_buffer(name, table.to(device), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FrequencySampler:
        """Move to another device, and nothing else.

        Lower precision is for weights: counts overflow in float16. ``to_empty`` must not empty what no state
        dict brings back.
        """
        device = fn(self.ends.new_empty(0)).device
        if self.ends.is_meta and device.type != "meta":
            self._leave_meta(device)
        else:
            for name, buffer in self._buffers.items():
                self._buffers[name] = None if buffer is None else buffer.to(device)
        return self

    def _leave_meta(self, device: torch.device) -> None:
        raise RuntimeError(
            "A sampler on the meta device has no counts: create it without a device, or give the layer"
            " another one before to_empty."
        )

    def forward(self) -> Draw:
        """Draw a set of classes."""
        start = torch.randint(_UNIT, (1,), device=self.ends.device, generator=self.generator)
        marks = start + _UNIT * torch.arange(self.n_sampled, device=self.ends.device)
        places = torch.searchsorted(self.ends, marks, right=True)
        before = torch.where(places > 0, self.ends[(places - 1).clamp(min=0)], 0)
        log_pi = ((self.ends[places] - before).float() / _UNIT).log()
        return Draw(self.order[places].long(), log_pi)

    def frequencies(self, classes: Tensor) -> Tensor:
        """Return the shares of classes in the training rows."""
        return self.counts[classes] / self.total

    def inclusion_probabilities(self) -> Tensor:
        """Return the inclusion probability of every class (n_classes,), in float64."""
        lengths = self.ends.diff(prepend=self.ends.new_zeros(1)).double() / _UNIT
        return torch.empty_like(lengths).index_copy_(0, self.order.long(), lengths)

    def extra_repr(self) -> str:
        return f"n_classes={self.n_classes}, n_sampled={self.n_sampled}, power={self.power}"

    def part(self, start: int, stop: int, n_sampled: int) -> FrequencySampler:
        """Return a sampler of `n_sampled` of the classes from `start` to `stop` - 1, numbered from 0."""
        counts, device = self.counts[start:stop], self.counts.device
        options: Any = {"batch_share": self.batch_share, "generator": self.generator, "device": device}
        part = FrequencySampler(counts, self.power, n_sampled, **options)
        part.total = self.total
        return part


class UniformSampler(FrequencySampler):
    """Draw `n_sampled` of `n_classes` classes, each with the same probability.

    Examples
    --------
    >>> UniformSampler(4, n_sampled=2).inclusion_probabilities().tolist()
    [0.5, 0.5, 0.5, 0.5]
    """

    def __init__(
        self,
        n_classes: int,
        n_sampled: int = 1024,
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if n_classes < 1:
            raise ValueError(f"n_classes is {n_classes}; it must be at least 1.")
        counts = torch.ones(n_classes, device="cpu")
        super().__init__(counts, 0.0, n_sampled, batch_share=0.0, generator=generator, device=device)

    def _leave_meta(self, device: torch.device) -> None:
        self._set_counts(torch.ones(self.n_classes, dtype=torch.float64, device="cpu"), device)


def _inclusion_probabilities(weights: Tensor, size: int) -> Tensor:
    """Return min(1, t * weight), with t such that they sum to `size`."""
    if size >= len(weights):
        return torch.ones_like(weights)
    falling = weights.sort(descending=True).values
    tails = falling.flip(0).cumsum(0).flip(0)
    # The first k classes are certain, for the least k that leaves no other probability above 1.
    fits = (size - torch.arange(len(weights), device=weights.device)) * falling <= tails
    n_certain = int(fits.byte().argmax())
    return (weights * ((size - n_certain) / tails[n_certain])).clamp(max=1.0)
