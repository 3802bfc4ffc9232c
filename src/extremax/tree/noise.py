"""Noise distributions p_n(y|x): draws of negatives, and exact normalised log-probabilities.

Bias removal adds log p_n(y|x) to a score (paper, Eq. 5) and the regularizer acts on the sum (Eq. 6): both
need log p_n itself, not log p_n up to a constant.  ``Z`` is the projection of the features that the tree of
a noise distribution was fitted on, one row per row of X; it has no columns where there is no tree.

A new distribution is one class, derived from `Noise`, with ``n_classes``, ``sample``, ``log_prob`` and
``log_prob_all``.  To make models with it loadable, give it ``state`` and ``from_state`` and decorate it with
``register("noise", kind)`` of `extremax.storage.state`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from extremax.kernels.alias import build_alias, choose_component, draw_alias
from extremax.runtime.threads import resolve_threads, run, split
from extremax.storage import checks
from extremax.storage.state import State, merge, register, restore
from extremax.types import Float32, Float64, Int32
from extremax.validation.random_state import check_random_state

if TYPE_CHECKING:
    from extremax.features.pca import PCA
    from extremax.tree import LabelTree

_ROWS_PER_TASK = 4096
_EDITED_ROWS = 256  # rows whose probabilities of all classes are in memory together
_MEAN_ROWS = 16  # rows of all classes held at once: 640 MB for ten million classes


class Noise:
    """A distribution over classes, as training, prediction and storage read it.

    A class derived from it has ``n_classes``, ``sample``, ``log_prob`` and ``log_prob_all``.  By default it
    depends on the row, has no tree and cannot be saved.

    Examples
    --------
    >>> class OwnNoise(Noise):
    ...     n_classes = 3  # and sample, log_prob, log_prob_all
    >>> OwnNoise().needs_features, OwnNoise().tree
    (True, None)
    """

    @property
    def n_classes(self) -> int:
        raise NotImplementedError

    def sample(
        self, Z: Float32, n_draws: int = 1, seed: int = 0, *, n_jobs: int | None = None
    ) -> tuple[Int32, Float32]:
        """Draw `n_draws` classes per row: labels and their log-probabilities, both (n, n_draws)."""
        raise NotImplementedError

    def log_prob(self, Z: Float32, labels: Int32, *, n_jobs: int | None = None) -> Float32:
        """Return log p_n(labels | row), for labels (n,) or (n, m)."""
        raise NotImplementedError

    def log_prob_all(self, Z: Float32, *, out: Float32 | None = None, n_jobs: int | None = None) -> Float32:
        """Return log p_n of every class: (n, n_classes)."""
        raise NotImplementedError

    @property
    def needs_features(self) -> bool:
        """Whether log p_n depends on the row; if not, `shared_log_prob` holds it for all rows."""
        return self.shared_log_prob is None

    @property
    def shared_log_prob(self) -> Float32 | None:
        """log p_n (n_classes,) that all rows share, or None."""
        return None

    @property
    def tree(self) -> LabelTree | None:
        """The first label tree inside the distribution, or None."""
        return None

    @property
    def leaf_tree(self) -> LabelTree | None:
        """The tree whose own log-probabilities are exactly log p_n, or None."""
        return None

    @property
    def projection(self) -> PCA | None:
        """Projection of the features to those of the tree, if it has one of its own."""
        return None

    def state(self) -> State:
        """Return what a model folder stores of it."""
        raise _not_savable(self)


def _not_savable(noise: object) -> TypeError:
    return TypeError(
        f"A model with noise of type {type(noise).__name__} cannot be saved;"
        " UniformNoise, FrequencyNoise, TreeNoise and MixtureNoise can."
    )


class _Adapted(Noise):
    """A distribution with the four members that `Noise` asks for, and the defaults for the rest."""

    def __init__(self, noise: Any) -> None:
        self.wrapped = noise

    @property
    def n_classes(self) -> int:
        return int(self.wrapped.n_classes)

    def sample(
        self, Z: Float32, n_draws: int = 1, seed: int = 0, *, n_jobs: int | None = None
    ) -> tuple[Int32, Float32]:
        labels, log_prob = self.wrapped.sample(Z, n_draws, seed, n_jobs=n_jobs)
        return labels, log_prob

    def log_prob(self, Z: Float32, labels: Int32, *, n_jobs: int | None = None) -> Float32:
        found: Float32 = self.wrapped.log_prob(Z, labels, n_jobs=n_jobs)
        return found

    def log_prob_all(self, Z: Float32, *, out: Float32 | None = None, n_jobs: int | None = None) -> Float32:
        found: Float32 = self.wrapped.log_prob_all(Z, out=out, n_jobs=n_jobs)
        return found

    def state(self) -> State:
        raise _not_savable(self.wrapped)


def as_noise(noise: Any) -> Noise:
    """Return `noise` itself if it is a `Noise`, else a wrapper with the defaults of one.

    A label tree is `TreeNoise` without a projection.

    Examples
    --------
    >>> noise = UniformNoise(3)
    >>> as_noise(noise) is noise
    True
    """
    from extremax.tree import LabelTree

    if isinstance(noise, LabelTree):
        return TreeNoise(noise)
    return noise if isinstance(noise, Noise) else _Adapted(noise)


def class_weights(counts: NDArray[Any], exponent: float) -> Float64:
    """Return ``counts ** exponent`` up to a factor that keeps it in range.

    The largest weight is 1 and every weight is above 0.  A class without rows counts as half a row, or as
    half the smallest count where that is less than one.

    Examples
    --------
    >>> import numpy as np
    >>> class_weights(np.array([4, 2, 0]), 2.0).tolist()
    [1.0, 0.25, 0.015625]
    """
    empty = 0.5 * np.min(counts, initial=1.0, where=counts > 0.0)
    known = np.where(counts > 0.0, counts, empty)
    weights: Float64 = np.maximum((known / known.max()) ** exponent, 1e-300)
    return weights


class _Unconditional(Noise):
    """A fixed distribution over classes, drawn in O(1) by an alias table."""

    def __init__(self, prob: Float64) -> None:
        if prob.ndim != 1 or prob.size == 0 or not np.all(np.isfinite(prob)) or prob.min() <= 0.0:
            raise ValueError(
                f"A noise distribution needs one positive finite weight per class; got an array of shape"
                f" {prob.shape} with other values. Give classes without data a small weight."
            )
        prob = prob / prob.sum()
        self.log_prob_: Float32 = np.log(prob).astype(np.float32)
        self._threshold = np.empty(prob.size, np.float64)
        self._alias = np.empty(prob.size, np.int32)
        build_alias(prob, self._threshold, self._alias)

    @property
    def n_classes(self) -> int:
        return int(self.log_prob_.size)

    @property
    def shared_log_prob(self) -> Float32:
        return self.log_prob_

    def sample(
        self, Z: Float32, n_draws: int = 1, seed: int = 0, *, n_jobs: int | None = None
    ) -> tuple[Int32, Float32]:
        labels = np.empty((len(Z), n_draws), np.int32)
        log_noise = np.empty((len(Z), n_draws), np.float32)
        blocks, key = split(len(Z), _ROWS_PER_TASK), np.uint64(check_random_state(seed))
        run(
            lambda i: draw_alias(
                self._threshold, self._alias, self.log_prob_, key, labels, log_noise, *blocks[i]
            ),
            len(blocks),
            resolve_threads(n_jobs),
        )
        return labels, log_noise

    def log_prob(self, Z: Float32, labels: Int32, *, n_jobs: int | None = None) -> Float32:
        return self.log_prob_[labels]

    def log_prob_all(self, Z: Float32, *, out: Float32 | None = None, n_jobs: int | None = None) -> Float32:
        if out is None:
            out = np.empty((len(Z), self.n_classes), np.float32)
        out[...] = self.log_prob_
        return out


@register("noise", "uniform")
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

    def state(self) -> State:
        return State({"kind": "uniform", "n_classes": self.n_classes})

    @classmethod
    def from_state(cls, state: State) -> UniformNoise:
        return cls(checks.get_int(state.header, "n_classes", 1, 2**31 - 1))


@register("noise", "frequency")
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
                f"counts[{', '.join(map(str, where))}] is {values[where]}; FrequencyNoise needs the number of"
                " rows of each class, finite and at least 0."
            )
        super().__init__(class_weights(values, exponent) if values.size else values)
        self.counts, self.exponent = values, float(exponent)

    def state(self) -> State:
        return State({"kind": "frequency", "exponent": self.exponent}, {"counts": self.counts})

    @classmethod
    def from_state(cls, state: State) -> FrequencyNoise:
        counts = checks.get_array(state.arrays, "counts", "f8", (None,))
        return cls(counts, checks.get_float(state.header, "exponent"))


@register("noise", "tree")
class TreeNoise(Noise):
    """The label tree as noise: p_n(y|x) of the paper's section 3.

    Parameters
    ----------
    tree
        The tree.
    projection : PCA, optional
        Projection of the features of `ExtremeClassifier` to those that the tree was fitted on; None for a
        tree that was fitted on the features themselves. A saved model keeps it.

    Examples
    --------
    >>> import numpy as np
    >>> Z = np.array([[-1.0], [1.0], [-1.1], [0.9]], np.float32)
    >>> from extremax import LabelTree
    >>> noise = TreeNoise(LabelTree.fit(Z, np.array([0, 1, 0, 1])))
    >>> noise.log_prob(Z, np.array([0, 1, 0, 1], np.int32)).min() > -0.69
    np.True_
    """

    def __init__(self, tree: LabelTree, projection: PCA | None = None) -> None:
        if projection is not None and projection.n_components != tree.n_components:
            raise ValueError(
                f"projection has {projection.n_components} components, but the tree {tree.n_components};"
                " give the projection that the tree was fitted on."
            )
        self._tree, self._projection = tree, projection

    @property
    def tree(self) -> LabelTree:
        return self._tree

    @property
    def leaf_tree(self) -> LabelTree:
        return self._tree

    @property
    def projection(self) -> PCA | None:
        return self._projection

    @property
    def n_classes(self) -> int:
        return self.tree.n_classes

    def sample(
        self, Z: Float32, n_draws: int = 1, seed: int = 0, *, n_jobs: int | None = None
    ) -> tuple[Int32, Float32]:
        return self.tree.sample(Z, n_draws, seed, n_jobs=n_jobs)

    def log_prob(self, Z: Float32, labels: Int32, *, n_jobs: int | None = None) -> Float32:
        return self.tree.log_prob(Z, labels, n_jobs=n_jobs)

    def log_prob_all(self, Z: Float32, *, out: Float32 | None = None, n_jobs: int | None = None) -> Float32:
        return self.tree.log_prob_all(Z, out=out, n_jobs=n_jobs)

    def state(self) -> State:
        return State({"kind": "tree"}, self.tree.to_arrays())

    @classmethod
    def from_state(cls, state: State) -> TreeNoise:
        from extremax.tree import LabelTree

        return cls(LabelTree.from_state(state))


@register("noise", "mixture")
class MixtureNoise(Noise):
    """The mixture ``weight * first + (1 - weight) * second``.

    A mixture with `UniformNoise` or `FrequencyNoise` bounds the probability of every class from below, where
    a fitted tree may be badly wrong.

    Parameters
    ----------
    first, second
        The two distributions, over the same classes.
    weight
        Weight of the first, strictly between 0 and 1.

    Examples
    --------
    >>> import numpy as np
    >>> noise = MixtureNoise(FrequencyNoise([1, 3]), UniformNoise(2), weight=0.5)
    >>> np.exp(noise.log_prob_all(np.zeros((1, 0), np.float32))).round(3).tolist()
    [[0.375, 0.625]]
    """

    def __init__(self, first: Any, second: Any, *, weight: float) -> None:
        if first.n_classes != second.n_classes:
            raise ValueError(
                f"MixtureNoise mixes distributions over the same classes; got {first.n_classes} and"
                f" {second.n_classes} classes."
            )
        if not 0.0 < weight < 1.0:
            raise ValueError(
                f"MixtureNoise needs a weight strictly between 0 and 1; got {weight}. Use one distribution"
                " alone."
            )
        self.first, self.second, self.weight = as_noise(first), as_noise(second), float(weight)

    @property
    def n_classes(self) -> int:
        return self.first.n_classes

    @property
    def tree(self) -> LabelTree | None:
        return self.second.tree if self.first.tree is None else self.first.tree

    @property
    def projection(self) -> PCA | None:
        return self.second.projection if self.first.tree is None else self.first.projection

    def _mix(self, a: Float32, b: Float32, out: Float32 | None) -> Float32:
        # `a` and `b` may be a component's own arrays: only `out` is written to.
        mixed: Float32 = np.add(a, np.float32(np.log(self.weight)), out=out)
        np.logaddexp(mixed, b + np.float32(np.log1p(-self.weight)), out=mixed)
        return mixed

    def sample(
        self, Z: Float32, n_draws: int = 1, seed: int = 0, *, n_jobs: int | None = None
    ) -> tuple[Int32, Float32]:
        # Both components draw and a third hash chooses: a draw stays a pure function of (seed, row, column).
        # The three seeds are independent, so that a mixture inside a mixture does not repeat the choice of
        # the outer one.
        seeds = np.random.SeedSequence(check_random_state(seed)).generate_state(3, np.uint64)
        first, _ = self.first.sample(Z, n_draws, int(seeds[0]), n_jobs=n_jobs)
        second, _ = self.second.sample(Z, n_draws, int(seeds[1]), n_jobs=n_jobs)
        labels = np.empty_like(first)
        choose_component(seeds[2], self.weight, first, second, labels)
        return labels, self.log_prob(Z, labels, n_jobs=n_jobs)

    def log_prob(self, Z: Float32, labels: Int32, *, n_jobs: int | None = None) -> Float32:
        return self._mix(
            self.first.log_prob(Z, labels, n_jobs=n_jobs),
            self.second.log_prob(Z, labels, n_jobs=n_jobs),
            None,
        )

    def log_prob_all(self, Z: Float32, *, out: Float32 | None = None, n_jobs: int | None = None) -> Float32:
        if out is None:
            out = np.empty((len(Z), self.n_classes), np.float32)
        return self._mix(
            self.first.log_prob_all(Z, out=out, n_jobs=n_jobs),
            self.second.log_prob_all(Z, n_jobs=n_jobs),
            out,
        )

    def state(self) -> State:
        parts = {"first": self.first.state(), "second": self.second.state()}
        return merge({"kind": "mixture", "weight": self.weight}, parts)

    @classmethod
    def from_state(cls, state: State) -> MixtureNoise:
        first, second = (restore("noise", state.nested(part)) for part in ("first", "second"))
        return cls(first, second, weight=checks.get_float(state.header, "weight"))


@register("noise", "changed")
class EditedNoise(Noise):
    """A distribution after classes were removed from it and others added.

    With the classes K of `base` that are kept and constants c of those that were added,

        p_n(y|x) = p_base(y|x) / D(x)  or  c_y / D(x),     D(x) = p_base(K|x) + sum c,

    so that the classes that were there keep their probabilities relative to each other.  Everything is read
    from the probabilities of all classes: training goes on, at a cost per row of O(n_classes).

    Parameters
    ----------
    base
        The distribution as it was.
    place : int (n_classes,)
        Class of `base` of each class, or ``-1 - j`` for the added class j.
    added : (n_added,)
        The constants, positive.

    Examples
    --------
    >>> import numpy as np
    >>> noise = EditedNoise(FrequencyNoise([1, 1, 2]), [0, 2, -1], [0.25])
    >>> np.exp(noise.log_prob_all(np.zeros((1, 0), np.float32))).round(3).tolist()
    [[0.25, 0.5, 0.25]]
    """

    def __init__(self, base: Any, place: ArrayLike, added: ArrayLike) -> None:
        self.base = as_noise(base)
        self.place: Int32 = np.array(place, np.int32)
        self.added: Float64 = np.array(added, np.float64)
        old, new = self.place[self.place >= 0], -1 - self.place[self.place < 0]
        once = len(np.unique(old)) == len(old) and np.array_equal(np.sort(new), np.arange(len(self.added)))
        inside = len(self.place) > 0 and int(old.max(initial=0)) < self.base.n_classes
        if not (once and inside and np.isfinite(self.added).all() and (self.added > 0.0).all()):
            raise ValueError(
                "EditedNoise needs each class of `base` at most once, each added class once, and positive"
                " constants of these."
            )

    @classmethod
    def of(cls, noise: Noise) -> EditedNoise:
        """Return a distribution that can be edited: the same as the given one."""
        return noise if isinstance(noise, cls) else cls(noise, np.arange(noise.n_classes), [])

    @property
    def n_classes(self) -> int:
        return len(self.place)

    @property
    def shared_log_prob(self) -> Float32 | None:
        shared = self.base.shared_log_prob
        return None if shared is None else self._edit(shared[None])[0].astype(np.float32)

    @property
    def projection(self) -> PCA | None:
        return self.base.projection

    def take(self, index: NDArray[Any]) -> EditedNoise:
        """Return the distribution of some classes, in a given order."""
        place = self.place[index]
        kept = -1 - place[place < 0]
        place[place < 0] = -1 - np.arange(len(kept), dtype=np.int32)
        return EditedNoise(self.base, place, self.added[kept])

    def plus(self, constants: ArrayLike) -> EditedNoise:
        """Return the distribution with new classes behind the others."""
        more = np.asarray(constants, np.float64)
        place = -1 - len(self.added) - np.arange(len(more), dtype=np.int32)
        return EditedNoise(self.base, np.concatenate([self.place, place]), np.concatenate([self.added, more]))

    def _edit(self, of_base: NDArray[Any]) -> Float64:
        """Return log p_n of all classes from that of all classes of `base`, (n, n_classes)."""
        out = np.empty((len(of_base), self.n_classes))
        is_old = self.place >= 0
        out[:, is_old] = of_base[:, self.place[is_old]]
        out[:, ~is_old] = np.log(self.added[-1 - self.place[~is_old]])
        peak = out.max(axis=1, keepdims=True)
        out -= peak + np.log(np.exp(out - peak).sum(axis=1, keepdims=True))
        return out

    def _blocks(self, Z: Float32, n_jobs: int | None) -> Iterator[tuple[slice, Float64]]:
        """Yield log p_n of all classes, for some rows at a time."""
        for first, last in split(len(Z), _EDITED_ROWS):
            yield slice(first, last), self._edit(self.base.log_prob_all(Z[first:last], n_jobs=n_jobs))

    def sample(
        self, Z: Float32, n_draws: int = 1, seed: int = 0, *, n_jobs: int | None = None
    ) -> tuple[Int32, Float32]:
        uniform = np.random.default_rng(check_random_state(seed)).random((len(Z), n_draws))
        labels, log_prob = np.empty(uniform.shape, np.int32), np.empty(uniform.shape, np.float32)
        for rows, table in self._blocks(Z, n_jobs):
            reached = np.cumsum(np.exp(table), axis=1)
            for i, row in enumerate(range(rows.start, rows.stop)):
                found = np.searchsorted(reached[i], uniform[row] * reached[i, -1], side="right")
                labels[row] = np.minimum(found, self.n_classes - 1)
            log_prob[rows] = np.take_along_axis(table, labels[rows].astype(np.int64), axis=1)
        return labels, log_prob

    def log_prob(self, Z: Float32, labels: Int32, *, n_jobs: int | None = None) -> Float32:
        out = np.empty((len(Z), labels.size // max(len(Z), 1)), np.float32)
        wanted = labels.reshape(out.shape).astype(np.int64)
        for rows, table in self._blocks(Z, n_jobs):
            out[rows] = np.take_along_axis(table, wanted[rows], axis=1)
        return out.reshape(labels.shape)

    def log_prob_all(self, Z: Float32, *, out: Float32 | None = None, n_jobs: int | None = None) -> Float32:
        if out is None:
            out = np.empty((len(Z), self.n_classes), np.float32)
        for rows, table in self._blocks(Z, n_jobs):
            out[rows] = table
        return out

    def state(self) -> State:
        kept = np.zeros(self.base.n_classes, np.bool_)
        kept[self.place[self.place >= 0]] = True
        arrays: dict[str, NDArray[Any]] = {"place": self.place, "added": self.added, "kept": kept}
        return merge({"kind": "changed"}, {"base": self.base.state()}, arrays)

    @classmethod
    def from_state(cls, state: State) -> EditedNoise:
        kept = checks.get_array(state.arrays, "kept", "b1", (None,))
        place = checks.get_array(state.arrays, "place", "i4", (None,))
        checks.check_range(place, "place", -len(place) - 1, len(kept))
        added = checks.get_array(state.arrays, "added", "f8", (None,))
        base = state.nested("base")
        if base.header.get("kind") == "changed":
            checks.reject("noise is a change of a changed distribution")
        if "n_classes" in base.header:  # before it is built
            checks.get_int(base.header, "n_classes", len(kept), len(kept))
        found = cls(restore("noise", base), place, added)
        if not np.array_equal(found.state().arrays["kept"], kept):
            checks.reject("the classes of the noise are not those that it keeps")
        return found


def mean_log_prob(noise: Noise, Z: Float32, *, n_jobs: int | None = None) -> Float32:
    """Return log p_n(y|x) of every class, averaged over the rows.

    Of all approximations of log p_n that do not depend on x it has the least squared error.

    Examples
    --------
    >>> import numpy as np
    >>> np.exp(mean_log_prob(FrequencyNoise([1, 3]), np.zeros((2, 0), np.float32))).round(2).tolist()
    [0.25, 0.75]
    """
    if noise.shared_log_prob is not None:
        return noise.shared_log_prob
    total = np.zeros(noise.n_classes, np.float64)
    for start in range(0, len(Z), _MEAN_ROWS):
        log_prob = noise.log_prob_all(Z[start : start + _MEAN_ROWS], n_jobs=n_jobs)
        total += log_prob.sum(axis=0, dtype=np.float64)
    return (total / len(Z)).astype(np.float32)
