"""Distributions p_n(y|x) from which negatives are drawn, each with its exact, normalised log-probability.

Bias removal adds log p_n(y|x) to a score (paper, Eq. 5) and the regularizer acts on the sum (Eq. 6), so a
log-probability that is only known up to a constant would be wrong twice. Every class here satisfies
``Noise``; ``Z`` are the features of the tree, which unconditional distributions only count."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from extremax.kernels.alias import build_alias, choose_component, draw_alias
from extremax.runtime.threads import resolve_threads, run, split
from extremax.tree import LabelTree
from extremax.validation import check_random_state

_ROW_BLOCK = 4096  # rows a thread takes at a time
_MEAN_ROWS = 16  # rows of all classes held at once: 640 MB for ten million classes


@runtime_checkable
class Noise(Protocol):
    """What training and prediction need of a noise distribution."""

    @property
    def n_classes(self) -> int: ...

    def sample(
        self, Z: NDArray[np.float32], n_draws: int = 1, seed: int = 0, *, n_jobs: int | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Draw `n_draws` classes per row: labels (n, n_draws) and their log-probabilities."""
        ...

    def log_prob(
        self, Z: NDArray[np.float32], labels: NDArray[np.int32], *, n_jobs: int | None = None
    ) -> NDArray[np.float32]:
        """log p_n(labels | row), for labels (n,) or (n, m)."""
        ...

    def log_prob_all(
        self, Z: NDArray[np.float32], *, out: NDArray[np.float32] | None = None, n_jobs: int | None = None
    ) -> NDArray[np.float32]:
        """log p_n of every class: (n, n_classes)."""
        ...


def class_weights(counts: NDArray[Any], exponent: float) -> NDArray[np.float64]:
    """``counts ** exponent``, up to a factor that keeps it in range: 1 for the largest, and above 0 for all.

    A class without rows counts as half a row, or as half the smallest count where that is less than one.

    Examples
    --------
    >>> import numpy as np
    >>> class_weights(np.array([4, 2, 0]), 2.0).tolist()
    [1.0, 0.25, 0.015625]
    """
    empty = 0.5 * np.min(counts, initial=1.0, where=counts > 0.0)
    known = np.where(counts > 0.0, counts, empty)
    weights: NDArray[np.float64] = np.maximum((known / known.max()) ** exponent, 1e-300)
    return weights


class _Unconditional:
    """A fixed distribution over classes, drawn in O(1) by an alias table."""

    def __init__(self, prob: NDArray[np.float64]) -> None:
        if prob.ndim != 1 or prob.size == 0 or not np.all(np.isfinite(prob)) or prob.min() <= 0.0:
            raise ValueError(
                f"A noise distribution needs one positive finite weight per class; got an array of shape {prob.shape}"
                " with other values. Give classes without data a small weight."
            )
        prob = prob / prob.sum()
        self.log_prob_: NDArray[np.float32] = np.log(prob).astype(np.float32)
        self._threshold = np.empty(prob.size, np.float64)
        self._alias = np.empty(prob.size, np.int32)
        build_alias(prob, self._threshold, self._alias)

    @property
    def n_classes(self) -> int:
        return int(self.log_prob_.size)

    def sample(
        self, Z: NDArray[np.float32], n_draws: int = 1, seed: int = 0, *, n_jobs: int | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        n = len(Z)
        labels = np.empty((n, n_draws), np.int32)
        log_noise = np.empty((n, n_draws), np.float32)
        blocks, key = split(n, _ROW_BLOCK), np.uint64(check_random_state(seed))
        run(
            lambda i: draw_alias(
                self._threshold, self._alias, self.log_prob_, key, labels, log_noise, *blocks[i]
            ),
            len(blocks),
            resolve_threads(n_jobs),
        )
        return labels, log_noise

    def log_prob(
        self, Z: NDArray[np.float32], labels: NDArray[np.int32], *, n_jobs: int | None = None
    ) -> NDArray[np.float32]:
        return self.log_prob_[labels]

    def log_prob_all(
        self, Z: NDArray[np.float32], *, out: NDArray[np.float32] | None = None, n_jobs: int | None = None
    ) -> NDArray[np.float32]:
        if out is None:
            out = np.empty((len(Z), self.n_classes), np.float32)
        out[...] = self.log_prob_
        return out


class UniformNoise(_Unconditional):
    """Every class with probability 1 / n_classes.

    Examples
    --------
    >>> import numpy as np
    >>> noise = UniformNoise(4)
    >>> labels, log_prob = noise.sample(np.zeros((2, 0), np.float32), n_draws=3, seed=1)
    >>> labels.shape, bool(np.allclose(log_prob, -np.log(4)))
    ((2, 3), True)
    """

    def __init__(self, n_classes: int) -> None:
        super().__init__(np.full(n_classes, 1.0))


class FrequencyNoise(_Unconditional):
    """Classes in proportion to their training counts to the power `exponent`.

    Parameters
    ----------
    counts
        Rows (or summed weights) of each class. A class without rows counts as half a row, or as half the
        smallest summed weight where that is less than one: it keeps a finite log-probability.
    exponent
        1 for the frequencies themselves, 0 for uniform noise, 0.75 as in word2vec.

    Examples
    --------
    >>> import numpy as np
    >>> noise = FrequencyNoise([1, 3])
    >>> np.exp(noise.log_prob_all(np.zeros((1, 0), np.float32))).round(2).tolist()
    [[0.25, 0.75]]
    """

    def __init__(self, counts: ArrayLike, exponent: float = 1.0) -> None:
        values = np.asarray(counts, np.float64)
        wrong = np.argwhere(~(np.isfinite(values) & (values >= 0.0)))
        if len(wrong):
            where = tuple(int(i) for i in wrong[0])
            raise ValueError(
                f"counts[{', '.join(map(str, where))}] is {values[where]}; FrequencyNoise needs the number of rows of each"
                " class, finite and at least 0."
            )
        super().__init__(class_weights(values, exponent) if values.size else values)
        self.counts, self.exponent = values, float(exponent)


class TreeNoise:
    """The label tree as noise: p_n(y|x) of the paper's section 3.

    Examples
    --------
    >>> import numpy as np
    >>> Z = np.array([[-1.0], [1.0], [-1.1], [0.9]], np.float32)
    >>> noise = TreeNoise(LabelTree.fit(Z, np.array([0, 1, 0, 1])))
    >>> noise.log_prob(Z, np.array([0, 1, 0, 1], np.int32)).min() > -0.69
    np.True_
    """

    def __init__(self, tree: LabelTree) -> None:
        self.tree = tree

    @property
    def n_classes(self) -> int:
        return self.tree.n_classes

    def sample(
        self, Z: NDArray[np.float32], n_draws: int = 1, seed: int = 0, *, n_jobs: int | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        return self.tree.sample(Z, n_draws, seed, n_jobs=n_jobs)

    def log_prob(
        self, Z: NDArray[np.float32], labels: NDArray[np.int32], *, n_jobs: int | None = None
    ) -> NDArray[np.float32]:
        return self.tree.log_prob(Z, labels, n_jobs=n_jobs)

    def log_prob_all(
        self, Z: NDArray[np.float32], *, out: NDArray[np.float32] | None = None, n_jobs: int | None = None
    ) -> NDArray[np.float32]:
        return self.tree.log_prob_all(Z, out=out, n_jobs=n_jobs)


class MixtureNoise:
    """``weight * first + (1 - weight) * second``: a floor under a distribution that may be badly wrong
    somewhere.

    Parameters
    ----------
    first, second
        The two distributions, over the same classes.
    weight
        Share of the first, strictly between 0 and 1.

    Examples
    --------
    >>> import numpy as np
    >>> noise = MixtureNoise(FrequencyNoise([1, 3]), UniformNoise(2), weight=0.5)
    >>> np.exp(noise.log_prob_all(np.zeros((1, 0), np.float32))).round(3).tolist()
    [[0.375, 0.625]]
    """

    def __init__(self, first: Noise, second: Noise, *, weight: float) -> None:
        if first.n_classes != second.n_classes:
            raise ValueError(
                f"MixtureNoise mixes distributions over the same classes; got {first.n_classes} and {second.n_classes} classes."
            )
        if not 0.0 < weight < 1.0:
            raise ValueError(
                f"MixtureNoise needs a weight strictly between 0 and 1; got {weight}. Use one distribution alone."
            )
        self.first, self.second, self.weight = first, second, float(weight)

    @property
    def n_classes(self) -> int:
        return self.first.n_classes

    def _mix(
        self, a: NDArray[np.float32], b: NDArray[np.float32], out: NDArray[np.float32] | None
    ) -> NDArray[np.float32]:
        # `a` and `b` may be a component's own arrays: only `out` is written to.
        mixed: NDArray[np.float32] = np.add(a, np.float32(np.log(self.weight)), out=out)
        np.logaddexp(mixed, b + np.float32(np.log1p(-self.weight)), out=mixed)
        return mixed

    def sample(
        self, Z: NDArray[np.float32], n_draws: int = 1, seed: int = 0, *, n_jobs: int | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        # Both components draw and a third hash chooses: a draw stays a pure function of (seed, row, column).
        # The three seeds are independent, so that a mixture inside a mixture does not repeat the choice of
        # the outer one.
        seeds = np.random.SeedSequence(check_random_state(seed)).generate_state(3, np.uint64)
        first, _ = self.first.sample(Z, n_draws, int(seeds[0]), n_jobs=n_jobs)
        second, _ = self.second.sample(Z, n_draws, int(seeds[1]), n_jobs=n_jobs)
        labels = np.empty_like(first)
        choose_component(seeds[2], self.weight, first, second, labels, 0, len(labels))
        return labels, self.log_prob(Z, labels, n_jobs=n_jobs)

    def log_prob(
        self, Z: NDArray[np.float32], labels: NDArray[np.int32], *, n_jobs: int | None = None
    ) -> NDArray[np.float32]:
        return self._mix(
            self.first.log_prob(Z, labels, n_jobs=n_jobs),
            self.second.log_prob(Z, labels, n_jobs=n_jobs),
            None,
        )

    def log_prob_all(
        self, Z: NDArray[np.float32], *, out: NDArray[np.float32] | None = None, n_jobs: int | None = None
    ) -> NDArray[np.float32]:
        if out is None:
            out = np.empty((len(Z), self.n_classes), np.float32)
        return self._mix(
            self.first.log_prob_all(Z, out=out, n_jobs=n_jobs),
            self.second.log_prob_all(Z, n_jobs=n_jobs),
            out,
        )


def mean_log_prob(noise: Noise, Z: NDArray[np.float32], *, n_jobs: int | None = None) -> NDArray[np.float32]:
    """log p_n(y|x) of every class, averaged over the rows: the best approximation of log p_n that does not
    depend on x.

    Examples
    --------
    >>> import numpy as np
    >>> np.exp(mean_log_prob(FrequencyNoise([1, 3]), np.zeros((2, 0), np.float32))).round(2).tolist()
    [0.25, 0.75]
    """
    if isinstance(noise, _Unconditional):
        return noise.log_prob_
    total = np.zeros(noise.n_classes, np.float64)
    for start in range(0, len(Z), _MEAN_ROWS):
        total += noise.log_prob_all(Z[start : start + _MEAN_ROWS], n_jobs=n_jobs).sum(
            axis=0, dtype=np.float64
        )
    return (total / len(Z)).astype(np.float32)
