"""Weights of new classes, from their own rows; all other classes stay unchanged.

**Dense weights.**  On whitened rows a new class is what it was at the start of the fit: the linear
discriminant, its shrunk mean times the scale that the fit chose.  Without a whitening the spread of the rows
inside the classes is not known, and is taken from the rows of the new classes.

**Sparse weights.**  The generative start, the cosine and the bilinear part of a class are functions of its
summed rows and of numbers that the fit has chosen; `SparseRecord` holds these numbers.  Linear weights would
need the rows of other classes: the cosine stands for them, scaled so that rows of the class score -2 on
average, and the mean of all rows scores the bias that all classes have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.special import logsumexp

from extremax.examples import Examples
from extremax.features.pca import PCA
from extremax.features.whitening import Whitening, WhiteningFamily
from extremax.kernels.postings import Postings
from extremax.kernels.sparse_start import Numbers, Sums
from extremax.runtime.products import one_blas_thread
from extremax.scores.sparse import DensePart, SparseWeights, csr_rows, select_columns, unit_rows
from extremax.solvers.config import FitConfig
from extremax.solvers.sparse.start import ClassSums, check_numbers
from extremax.storage import checks
from extremax.storage.state import State
from extremax.types import Float32, Float64, Int32, Int64

_ORIGIN_CLASSES = 10.0  # that the origin counts for, where the mean of all rows is not known
_LEVELS = tuple(float(i) for i in range(-40, 41))  # nats that new classes may be ahead of the others
_OWN = 2.0  # below zero: the mean score of rows that linear weights were not trained on
_NUMBERS = ("log_weights", "cosine_weights", "bias_weights", "edges", "groups")


@dataclass(frozen=True, eq=False)
class SparseRecord:
    """What `grow` needs to know of a fit to compute the weights of a new class.

    Attributes
    ----------
    numbers
        The fitted numbers of the start.
    feature_mass : float32 (n_features,)
        Sum over all rows of each feature.
    feature_classes : int32 (n_features,)
        Classes that have each feature.
    n_pairs
        Weight of all pairs that the sums are over.
    mix
        Weight of each expert in the scores.
    bias
        The bias of the linear weights, below zero; zero without them.
    similarity : float32 (n_columns, size + 1)
        Q of the bilinear part: from the mean row of a class to its coordinates and bias; empty without it.
    """

    numbers: Numbers
    feature_mass: Float32
    feature_classes: Int32
    n_pairs: float
    mix: Mapping[str, float]
    bias: float = 0.0
    similarity: Float32 = field(default_factory=lambda: np.empty((0, 0), np.float32))

    @classmethod
    def of(
        cls,
        sums: ClassSums,
        numbers: Numbers,
        mix: Mapping[str, float],
        bias: float,
        similarity: Float32 | None,
    ) -> SparseRecord:
        """Make the record of a fit from its class sums."""
        arrays = sums.arrays
        none = np.empty((0, 0), np.float32)
        return cls(
            numbers,
            arrays.feature_mass.astype(np.float32),
            np.diff(arrays.offsets).astype(np.int32),
            float(arrays.counts.sum()),
            dict(mix),
            bias,
            none if similarity is None or mix.get("bilinear", 0.0) <= 0.0 else similarity,
        )

    def plus(self, new: Sums) -> SparseRecord:
        """Return the record with the rows of new classes."""
        return replace(
            self,
            feature_mass=(self.feature_mass + new.feature_mass).astype(np.float32),
            feature_classes=(self.feature_classes + np.diff(new.offsets)).astype(np.int32),
            n_pairs=self.n_pairs + float(new.counts.sum()),
        )

    def state(self) -> State:
        """Return the state that a model folder stores."""
        arrays: dict[str, Any] = {name: self.numbers._asdict()[name] for name in _NUMBERS}
        arrays |= {"feature_mass": self.feature_mass, "feature_classes": self.feature_classes}
        header = {
            "smoothing": self.numbers.smoothing,
            "n_pairs": self.n_pairs,
            "mix": dict(self.mix),
            "bias": self.bias,
        }
        return State(header, {**arrays, "similarity": self.similarity})

    @classmethod
    def from_state(cls, state: State, weights: SparseWeights) -> SparseRecord:
        """Build the record that `state` described, checked against the weights."""
        arrays, n_features = state.arrays, len(weights.postings.offsets) - 1
        given = (np.asarray(checks.get(arrays, name)) for name in _NUMBERS)
        numbers = Numbers(checks.get_float(state.header, "smoothing", 1e-30), *given)
        check_numbers(numbers, n_features)
        mass = checks.get_array(arrays, "feature_mass", "f4", (n_features,))
        having = checks.get_array(arrays, "feature_classes", "i4", (n_features,))
        similarity = checks.get_array(arrays, "similarity", "f4", (None, None))
        mix = checks.get_mapping(state.header, "mix")
        dense = weights.dense
        shape = (0, 0) if dense is None or not dense.n_projected else dense.projection.shape
        if similarity.size and similarity.shape != (shape[0], shape[1] + 1):
            checks.reject(f"the similarity of its classes has the shape {similarity.shape}")
        return cls(
            numbers,
            checks.check_finite(mass, "feature_mass"),
            having,
            checks.get_float(state.header, "n_pairs", 0.0),
            {name: checks.get_float(mix, name) for name in mix},
            checks.get_float(state.header, "bias", 0.0) if "bias" in state.header else 0.0,
            checks.check_finite(similarity, "similarity"),
        )

    # -- weights of new classes

    def grow(
        self, data: Examples, n_new: int, weights: SparseWeights, scale: float
    ) -> tuple[SparseWeights, SparseRecord]:
        """Return the weights of new classes 0 to ``n_new - 1``, and the record with their rows.

        Parameters
        ----------
        data
            Rows of the new classes.
        weights
            Those of the other classes.
        scale
            Factor of the features in training.
        """
        n_columns = len(self.feature_mass)
        sums = ClassSums.of(data, n_new, n_columns, scale)
        arrays, record = sums.arrays, self.plus(sums.arrays)
        norms = np.sqrt(np.maximum(arrays.squares, 1e-30))
        cosine = arrays.values / norms[arrays.classes]
        values = record._start_values(arrays, cosine)
        log_mass = np.log1p(arrays.mass / self.numbers.smoothing)
        length, prior, mass = self.numbers.bias_weights
        part = self.mix.get("start", 0.0)
        biases = part * (prior * np.log(np.maximum(arrays.counts, 1e-3)) + mass * log_mass)
        lengths = part * length * log_mass
        values = part * values + self.mix.get("centroid", 0.0) * cosine
        linear = self.mix.get("linear", 0.0) or self.mix.get("svm", 0.0)
        if linear > 0.0:
            low, high = (-self.bias, -_OWN) if self.bias else (-1.0, 1.0)  # older folders have SVMs
            own, usual = self._own_cosine(data, sums, scale, norms), record._usual_cosine(arrays, cosine)
            slope = (high - low) / np.maximum(own - usual, 0.1 * own)
            values = values + linear * slope[arrays.classes] * cosine
            biases = biases + linear * (low - slope * usual)
        factor = np.float32(scale)
        postings = Postings(arrays.offsets, arrays.classes, values.astype(np.float32) * factor)
        dense, added = self._dense(data, n_new, weights)
        found = SparseWeights(
            postings,
            (biases + added).astype(np.float32),
            (lengths * factor).astype(np.float32),
            dense,
        )
        return found, record

    def _start_values(self, new: Sums, cosine: Float64) -> Float64:
        """Return the weights of the start for the entries of the sums of new classes.

        `self` has their rows as well.
        """
        numbers, feature = self.numbers, np.repeat(np.arange(len(self.feature_mass)), np.diff(new.offsets))
        bucket = np.searchsorted(numbers.edges, self.feature_classes, side="right")
        group = np.searchsorted(numbers.groups, np.arange(len(bucket)), side="right")
        bucket = (bucket + group * (len(numbers.edges) + 1))[feature]
        total = max(float(self.feature_mass.sum(dtype=np.float64)), 1e-3)
        inverse = total / (numbers.smoothing * np.maximum(self.feature_mass.astype(np.float64), 1e-3))
        naive_bayes = np.log1p(np.maximum(new.values, 0.0) * inverse[feature])
        found: Float64 = numbers.log_weights[bucket] * naive_bayes + numbers.cosine_weights[bucket] * cosine
        return found

    def _usual_cosine(self, new: Sums, cosine: Float64) -> Float64:
        """Return the product of the mean of all rows with the unit sum of each class."""
        feature = np.repeat(np.arange(len(self.feature_mass)), np.diff(new.offsets))
        parts = cosine * self.feature_mass[feature] / max(self.n_pairs, 1.0)
        return np.bincount(new.classes, weights=parts, minlength=len(new.counts)).astype(np.float64)

    def _own_cosine(self, data: Examples, sums: ClassSums, scale: float, norms: Float64) -> Float64:
        """Return the mean product of the rows of each class with its unit sum, each row left out of it."""
        rows = csr_rows(data.X)
        n_columns = len(self.feature_mass)
        X = sparse.csr_matrix((rows.data, rows.indices, rows.indptr), shape=data.X.shape)[:, :n_columns]
        X = X[data.rows].multiply(np.float32(scale)).tocsr()
        own = np.asarray(X.multiply(sums.matrix.tocsr()[data.y]).sum(axis=1)).ravel().astype(np.float64)
        square = np.asarray(X.multiply(X).sum(axis=1)).ravel().astype(np.float64)
        weight, counts = data.pair_weight.astype(np.float64), sums.counts
        left = np.maximum(norms[data.y] ** 2 - 2.0 * weight * own + weight**2 * square, 1e-12)
        alone = counts[data.y] <= 1.5 * weight
        cosine = np.where(alone, np.nan, (own - weight * square) / np.sqrt(left))
        known = ~np.isnan(cosine)
        mean = float(np.average(cosine[known], weights=weight[known])) if known.any() else 0.5
        total = np.bincount(data.y[known], weights=(weight * cosine)[known], minlength=len(counts))
        n_known = np.bincount(data.y[known], weights=weight[known], minlength=len(counts))
        found: Float64 = (total + mean) / (n_known + 1.0)  # one row of a mean class
        return np.maximum(found, 0.1 * max(mean, 0.1))

    def _dense(self, data: Examples, n_new: int, weights: SparseWeights) -> tuple[DensePart | None, Float64]:
        """Return the dense part of new classes, and their bias terms."""
        part, nothing = weights.dense, np.zeros(n_new)
        if part is None:
            return None, nothing
        factors = np.zeros((n_new, part.factors.shape[1]), np.float32)
        added = nothing
        if part.n_projected and self.similarity.size:
            X = unit_rows(select_columns(csr_rows(data.X), part.columns, int(data.X.shape[1])))
            counts = np.maximum(data.class_counts(n_new), 1)
            ones = np.ones(data.n_pairs, np.float32)
            pairs = sparse.csr_matrix((ones, (data.y, data.rows)), shape=(n_new, data.n_rows))
            found = np.asarray((pairs @ X) @ self.similarity) / counts[:, None]
            found = self.mix["bilinear"] * found
            factors[:, : part.n_projected] = found[:, :-1]
            added = found[:, -1].astype(np.float64)
        return replace(part, factors=factors), added


# -- dense weights


class ClassRows(NamedTuple):
    """Whitened rows of all pairs, and sums of rows and of weights by class."""

    rows: Float64
    sums: Float64
    counts: Float64


@dataclass(frozen=True, eq=False)
class Discriminant:
    """A linear discriminant: the coordinates, the scale and the shrinkage of the class means.

    `bias` is added to the biases of all classes.
    """

    whitening: Whitening
    scale: float
    shrinkage: float
    feature_scale: float
    bias: float = 0.0

    @classmethod
    def of(
        cls, whitening: Whitening, feature_scale: float, chosen: Mapping[str, Any], config: FitConfig
    ) -> Discriminant:
        """Return the discriminant of a fit on whitened rows.

        Training has made the weights of the other classes longer than those of their start.
        """
        numbers, growth = config.numbers.warm_start, config.numbers.growth
        scale = float(chosen.get("init_scale", 1.0))
        shrinkage = growth.shrinkage_factor * float(chosen.get("shrinkage", numbers.shrinkage))
        return cls(whitening, scale, shrinkage, feature_scale, growth.bias)

    def grow(
        self, data: Examples, n_new: int, n_total: float, found: ClassRows | None = None
    ) -> tuple[Float32, Float32]:
        """Return weights and biases of new classes, for rows times the feature scale.

        `n_total` is the weight of all rows that the other classes have; `found` is what `class_rows` returns.
        """
        _, sums, counts = found or self.class_rows(data, n_new)
        means = sums / (counts + self.shrinkage)[:, None]
        biases = self._prior(counts, n_total) - self.scale * 0.5 * np.einsum("ck,ck->c", means, means)
        weights, biases = (self.scale * means).astype(np.float32), biases.astype(np.float32)
        with one_blas_thread():
            self.whitening.to_features(weights, biases, 1)
        return weights, biases

    def own_scores(self, data: Examples, n_total: float, found: ClassRows) -> Float64:
        """Return the score of each pair, its row left out of the mean of its class."""
        rows, sums, counts = found
        weight = data.pair_weight.astype(np.float64)
        left = np.maximum(counts[data.y] - weight, 0.0)
        means = (sums[data.y] - rows * weight[:, None]) / (left + self.shrinkage)[:, None]
        products = np.einsum("ik,ik->i", rows, means) - 0.5 * np.einsum("ik,ik->i", means, means)
        scores: Float64 = self.scale * products + self._prior(counts, n_total)[data.y]
        return scores

    def residuals(self, data: Examples) -> Float64:
        """Return the residuals of rows, corrected for the finite size of their classes."""
        X: Any = data.X
        rows = np.asarray(X[data.rows], np.float64)
        counts = np.bincount(data.y)
        means = np.zeros((len(counts), rows.shape[1]))
        np.add.at(means, data.y, rows)
        counts = np.maximum(counts, 1)
        residuals = rows - (means / counts[:, None])[data.y]
        several = counts[data.y] > 1
        if not several.any():
            return np.zeros((1, rows.shape[1]))
        n = counts[data.y][several]
        found: Float64 = residuals[several] * np.sqrt(n / (n - 1.0))[:, None]
        return found

    def centres(self, weights: Float32, data: Examples) -> Float64:
        """Return the class means, in the space of the rows, whose discriminant has these weights.

        Their distance from the mean of all is that of the classes of `data`.
        """
        _, sums, counts = self.class_rows(data, int(data.y.max()) + 1)
        length = float(np.sqrt(np.mean(np.square(sums / np.maximum(counts, 1e-12)[:, None]).sum(axis=1))))
        white = weights.astype(np.float32).copy()
        self.whitening.to_training(white, np.zeros(len(white), np.float32), 1)
        white = white.astype(np.float64) - white.mean(axis=0)
        white *= length / np.maximum(np.linalg.norm(white, axis=1), 1e-12)[:, None]
        found: Float64 = (white @ self.whitening.inverse + self.whitening.mean) / self.feature_scale
        return found

    def level_with(
        self,
        data: Examples,
        n_total: float,
        found: ClassRows,
        chosen: Int64,
        others: Float64,
        made_up: tuple[Float32, Float64] | None,
        config: FitConfig,
    ) -> Discriminant:
        """Return the discriminant with the scale and bias under which all rows are most probable.

        Rows of the other classes are not there.  Made-up ones stand for them or, where there are none, the
        same rows without their own class, which are as much like the new classes as any.

        Parameters
        ----------
        data
            Rows of new classes; each is left out of its own.
        found
            What `class_rows` returns for them.
        chosen : (n_chosen,)
            Pairs that stand for all.
        others : (n_chosen,)
            Log of the summed mass of all other classes for the rows of these.
        made_up
            Rows of other classes, and the same of these; or None.
        """
        rows, sums, counts = found
        means, weight = sums / (counts + self.shrinkage)[:, None], data.pair_weight.astype(np.float64)
        half, prior = 0.5 * np.einsum("ck,ck->c", means, means), self._prior(counts, n_total)
        y = data.y[chosen]
        pairs = np.arange(len(chosen)), y
        weight = weight[chosen] * (weight.sum() / max(float(weight[chosen].sum()), 1e-12))
        with one_blas_thread():
            products = rows[chosen] @ means.T - half
            if made_up is None:
                far, level = products.copy(), others
                far[pairs] = -np.inf
            else:
                white = self.whitening.rows(made_up[0].copy(), self.feature_scale).astype(np.float64)
                far, level = white @ means.T - half, made_up[1]
        own_scores = replace(self, scale=1.0).own_scores(data, n_total, found)
        products[pairs] = own_scores[chosen] - prior[y]
        each = n_total / len(far)
        best, figure = self, -np.inf
        for scale in config.numbers.warm_start.scales:
            scores, outside = scale * products + prior, logsumexp(scale * far + prior, axis=1)
            own, inside = scores[pairs], logsumexp(scores, axis=1)
            for bias in _LEVELS:
                log_prob = own + bias - np.logaddexp(others, inside + bias)
                kept = level - np.logaddexp(level, outside + bias)
                likelihood = float(weight @ log_prob) + each * float(kept.sum())
                if likelihood > figure:
                    best, figure = replace(self, scale=scale, bias=self.bias + bias), likelihood
        return best

    def _prior(self, counts: Float64, n_total: float) -> Float64:
        found: Float64 = np.log(np.maximum(counts, 0.5) / max(n_total, 1.0)) + self.bias
        return found

    def class_rows(self, data: Examples, n_new: int) -> ClassRows:
        """Return whitened rows of all pairs, and sums of rows and of weights by class."""
        X: Any = data.X
        weight = data.pair_weight.astype(np.float64)
        given = np.ascontiguousarray(X[data.rows], np.float32)
        with one_blas_thread():
            rows = self.whitening.rows(given, self.feature_scale).astype(np.float64)
        sums = np.zeros((n_new, rows.shape[1]))
        np.add.at(sums, data.y, rows * weight[:, None])
        counts: Float64 = np.bincount(data.y, weights=weight, minlength=n_new).astype(np.float64)
        return ClassRows(rows, sums, counts)


def estimate_discriminant(
    data: Examples, n_new: int, feature_scale: float, config: FitConfig
) -> Discriminant:
    """Return a discriminant of new classes, with the spread of their own rows inside the classes.

    The mean of all rows is guessed from the new classes and from the origin, which counts as much as
    some classes.
    """
    numbers, growth = config.numbers.warm_start, config.numbers.growth
    X: Any = data.X
    rows = np.asarray(X[data.rows], np.float64) * feature_scale
    counts = np.bincount(data.y, minlength=n_new)
    means = np.zeros((n_new, rows.shape[1]))
    np.add.at(means, data.y, rows)
    means /= np.maximum(counts, 1)[:, None]
    centre = means.mean(axis=0) * (n_new / (n_new + _ORIGIN_CLASSES))
    with one_blas_thread():
        centred, inside = rows - centre, rows - means[data.y]
        total, within = centred.T @ centred / len(rows), inside.T @ inside / len(rows)
    spread = float(np.trace(total))
    if float(np.trace(within)) < numbers.min_within * spread:
        within += (numbers.min_within - float(np.trace(within)) / spread) * total
    family = WhiteningFamily.of(within, no_variance=numbers.no_variance)
    white = family.fit(centre.astype(np.float32), numbers.ridge)
    return Discriminant(white, 1.0, growth.shrinkage_factor * numbers.shrinkage, feature_scale)


def projected_discriminant(
    data: Examples, projection: PCA, feature_scale: float, config: FitConfig
) -> Discriminant:
    """Return a discriminant of new classes, with the spread of all rows that a projection has kept.

    The covariance of the rows is that of their projection and, in all directions outside of it, the mean
    variance that the new rows have there.
    """
    numbers, growth = config.numbers.warm_start, config.numbers.growth
    X: Any = data.X
    centre = projection.mean.astype(np.float64) * feature_scale
    rows = np.asarray(X[data.rows], np.float64) * feature_scale - centre
    # components need not be orthonormal: z = (x - mean) A^T, and A^T = Q R
    Q, R = np.linalg.qr(projection.components.T.astype(np.float64) / feature_scale)
    n_columns, n_kept = Q.shape
    usable = np.abs(np.diag(R)) > 1e-6 * np.abs(np.diag(R)).max(initial=1e-30)
    back = np.linalg.pinv(R[usable][:, usable])
    inside = back.T @ (projection.explained_variance[usable, None] * back)
    variance, basis = np.linalg.eigh(inside)
    basis, n_kept = Q[:, usable] @ basis, len(variance)
    with one_blas_thread():
        square = np.square(rows).sum(axis=1) - np.square(rows @ basis).sum(axis=1)
    outside = max(float(square.mean()), 0.0) / max(n_columns - n_kept, 1)
    total = float(variance.sum()) + outside * (n_columns - n_kept)
    varies = total > numbers.no_variance
    floor = numbers.ridge * total / n_columns if varies else 1.0
    shares = float((variance / (variance + floor)).sum()) + (n_columns - n_kept) * outside / (outside + floor)
    scale = shares**-0.5 if varies else 1.0
    roots, root = np.sqrt(np.maximum(variance, 0.0) + floor), float(np.sqrt(outside + floor))
    identity = np.eye(n_columns)
    with one_blas_thread():
        matrix = scale * (identity / root + (basis * (1.0 / roots - 1.0 / root)) @ basis.T)
        inverse = (identity * root + (basis * (roots - root)) @ basis.T) / scale
    white = Whitening(matrix.astype(np.float32), inverse.astype(np.float32), centre.astype(np.float32))
    return Discriminant(white, 1.0, growth.shrinkage_factor * numbers.shrinkage, feature_scale)
