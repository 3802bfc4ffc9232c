"""Product quantization: approximate scores of all classes from short codes, exact scores of the best.

For scores that are linear in the features.  Weights and rows are expressed in coordinates z of the rows that
are uncorrelated and of unit variance, then rotated at random.  With r_y the weight vector of class y in these
coordinates, relative to the mean of all classes, and u_y its direction scaled to length sqrt(d),

    s_y(x) = |r_y| / sqrt(d)  u_y.z + b_y + (a term that all classes share).

After the rotation u_y looks like Gaussian noise, whatever the data.  It is cut into up to 56 subvectors, and
each is replaced by the nearest of 16 fixed centroids, a code of four bits.  With u'_y the vector of these
centroids, the approximate score

    |r_y| / sqrt(d)  (u_y.u_y) / (u_y.u'_y)  u'_y.z + b_y

is unbiased over rotations: without the quotient, the scores of the best classes, those along z, would be too
low.  A row's products with all centroids are a table, and ``u'_y.z`` is a sum of table entries
(`extremax.kernels.pq`).  The classes of highest approximate score are then scored exactly.

**Tail mass.**  Log-probabilities need the total mass of the classes that are not scored.  Approximate scores
of a sample of the classes estimate it.  Their error has a variance v in proportion to |z|^2.  At inverse
temperature t, classes of one approximate score have exp(t^2 v / 2) times its mass on average; where the
number of classes falls as exp(-a s) with the score s, exp(t^2 v / 2 - t a v) times, because most high
approximate scores are too high.  `PQSearch.fit` estimates both terms on rows whose exact sums it computes:
the tail-mass correction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy import sparse
from scipy.cluster.vq import kmeans2

from extremax.calibration import Calibration, mix_uniform
from extremax.kernels import pq as kernels
from extremax.kernels.project import project_rows
from extremax.kernels.simd import BYTE_SHUFFLE, CODES_AT_ONCE, LANES, ROWS_AT_ONCE
from extremax.kernels.topk import choose_candidates
from extremax.runtime.products import one_blas_thread, read_only
from extremax.runtime.threads import run, split
from extremax.scores.base import Scorer, Weights
from extremax.scores.dense import DenseWeights
from extremax.scores.topk import ExactSearch
from extremax.storage import checks
from extremax.storage.state import State, register
from extremax.tuned import PQConfig
from extremax.types import Features, Float32, Float64, Int32, Int64

_CONFIG = PQConfig()
_BLOCK_ROWS = 2048  # rows that are searched together: weights are read once for all of them ...
_BLOCK_CANDIDATES = 1 << 22  # ... fewer rows where these have more candidates in all
_TABLE_ROWS = 256  # rows whose tables fit in the second cache
_TASK_WEIGHTS = 1 << 19  # weights that a thread encodes at a time
_TASKS_AT_ONCE = 8  # threads that memory is counted for
_MAX_SUBVECTORS = 256  # sums of as many table entries, a byte each, fit into 16 bits
_COMMON_ROWS = 4  # rows of `rotation` behind the coordinates: the shared term of the scores, and padding
_ROTATION_SEED = 20_200_430  # of the random rotation and the centroids, which depend on no data
_ROWS_PER_FEATURE, _MIN_ROWS, _MAX_ROWS = 8, 2048, 8192  # of the covariance
_RIDGE, _MIN_RIDGE = 1e-3, 1e-12  # of the mean variance of a feature, and variance: rows are about one long
_MAX_STRIDE = 16  # one class in so many, at least, sets the threshold of a row
_FALLBACK_WIDTH = 64  # classes, the width of the tail-mass correction where no width was chosen
_TAIL_QUANTILE = 0.99  # of |z|^2 of some rows, up to which the correction grows
_MIN_TAIL_MASS = 1e-3  # of the mass of the scored classes; less is rounding error in float32

_ARRAYS = ("order", "codes", "factors", "bases", "rotation", "shift", "centroids")
_SPREAD = np.float32(1.05)  # around the temperatures of rows, where tails are summed ...
_KNOTS = 4  # ... at so many of them
_NUMBERS = ("width", "recall", "tail_correction", "temperature", "max_square", "n_epochs")


def sample_size(n_features: int, config: PQConfig = _CONFIG) -> int:
    """Return the number of training rows that `PQSearch.fit` can use."""
    rows = int(np.clip(_ROWS_PER_FEATURE * n_features, _MIN_ROWS, _MAX_ROWS))
    return rows + config.max_width_rows


def index_bytes(n_classes: int, n_features: int, config: PQConfig = _CONFIG) -> tuple[int, int]:
    """Return the bytes of a `PQSearch`, and those that fitting it takes in addition; zeros if none pays."""
    if n_classes < config.min_classes or n_features > config.max_features:
        return 0, 0
    n_subvectors, size = _subvectors(n_features, config)
    n_places = -(-n_classes // LANES) * LANES
    sample = _n_sampled(n_classes, config) * (n_subvectors // 2 + 8)
    rotation = 4 * n_features * (n_subvectors * size + _COMMON_ROWS)
    rows = 4 * sample_size(n_features, config) * n_features
    blocks = 3 * 4 * _task_classes(n_features) * n_features * _TASKS_AT_ONCE
    kept = n_places * (n_subvectors // 2 + 12) + rotation + sample
    return kept, 4 * rows + 16 * rotation + blocks + 16 * n_classes


def _task_classes(n_features: int) -> int:
    return int(np.clip(_TASK_WEIGHTS // n_features, 64, 4096))


def _n_sampled(n_classes: int, config: PQConfig) -> int:
    """Return the number of classes whose approximate scores set the threshold of a row."""
    return min(n_classes, max(config.threshold_classes, n_classes // _MAX_STRIDE))


def _subvectors(n_features: int, config: PQConfig) -> tuple[int, int]:
    """Return the number of subvectors of a weight vector, and the length of each."""
    size = -(-n_features // config.subvectors)
    return -(-n_features // (size * CODES_AT_ONCE)) * CODES_AT_ONCE, size


@lru_cache
def _centroids(size: int) -> Float32:
    """Return 16 points that cover normally distributed vectors, (16, size)."""
    sample = np.random.default_rng(_ROTATION_SEED).standard_normal((40_000, size), np.float32)
    centroids: Float32 = kmeans2(sample, kernels.N_CENTROIDS, iter=30, minit="++", seed=0)[0].astype(
        np.float32
    )
    return centroids


def _add_offsets(weights: Weights, offsets: Float32 | None) -> DenseWeights:
    """Return the same weights with `offsets` added to the biases."""
    biases = weights.biases if offsets is None else weights.biases + offsets
    return DenseWeights(weights.to_dense(), biases, weights.feature_scale)


@register("search", "pq")
@dataclass(frozen=True, eq=False)
class PQSearch:
    """Codes of all classes, made by `fit`, and the search with them.

    Log-probabilities are normalised over all classes, **the mass of classes that are not scored is an
    estimate**: differences between the classes of a row are exact, their level is not.

    Attributes
    ----------
    order : int32 (n_classes,)
        Class at each place of the arrays below.
    codes : uint8 (n_blocks, n_subvectors / 2, 32)
        Codes of 32 classes per block, two subvectors per byte.
    factors, bases : float32 (n_blocks, 32)
        An approximate score is ``factor * (u'.z) + base``.
    rotation : float32 (size * n_subvectors + 4, n_features)
        ``rotation @ x - shift`` is z: the first number of all subvectors, then the second, and so on.  Then
        comes the term that the scores of all classes share, and three zeros.
    shift : float32 (size * n_subvectors + 4,)
    centroids : float32 (16, size)
        What the codes stand for.
    width : int or None
        Default number of classes to score; None where exact search takes no longer.
    recall : float
        Fraction of held-out rows whose exact best class that width finds.
    tail_correction : (float, float)
        Log of how much too large the estimated tail mass is, over |z|^2: terms in the inverse temperature and
        its square.
    temperature, max_square : float
        The correction was fitted around this temperature, and for |z|^2 up to this.
    n_epochs : int
        Epochs that the model had been trained for.
    config : PQConfig
        Constants of `fit` and `topk`.
    blocks, sample : kernels.Blocks
        Codes of all classes, and of those that set the threshold of a row; made from the arrays above.
    """

    order: Int32
    codes: NDArray[np.uint8]
    factors: Float32
    bases: Float32
    rotation: Float32
    shift: Float32
    centroids: Float32
    width: int | None = None
    recall: float = 1.0
    tail_correction: tuple[float, float] = (0.0, 0.0)
    temperature: float = 1.0
    max_square: float = 0.0
    n_epochs: int = 0
    config: PQConfig = field(default_factory=PQConfig)
    blocks: kernels.Blocks = field(init=False, repr=False)
    sample: kernels.Blocks = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in _ARRAYS:  # writable: kernels are compiled once
            object.__setattr__(self, name, np.require(vars(self)[name], requirements=["C", "W"]))
        object.__setattr__(self, "blocks", _make_blocks(self.codes, self.factors, self.bases))
        object.__setattr__(self, "sample", self._take_sample())

    # -- fit

    @classmethod
    def fit(  # noqa: PLR0913 (what an index depends on)
        cls,
        rows: Float32,
        weights: Weights,
        *,
        held_out: Float32 | None = None,
        offsets: Float32 | None = None,
        temperature: float = 1.0,
        n_epochs: int = 0,
        n_threads: int = 1,
        config: PQConfig = _CONFIG,
    ) -> PQSearch:
        """Encode the classes, and choose the default width and the tail-mass correction.

        Parameters
        ----------
        rows
            Training rows, at most `sample_size` of them.
        weights
            The scores to search.
        held_out
            Rows that the model was not trained on; they choose the width.  Where there are none, or few, the
            last of `rows` do: the model finds the best classes of these sooner than those of new rows.
        offsets
            Added to the biases: log p_n that all rows share.
        temperature
            Log-probabilities are right for temperatures around this one.
        n_epochs
            Epochs that the model has been trained for.
        """
        if held_out is None or len(held_out) < config.enough_width_rows:
            n_fit = len(rows) - min(config.max_width_rows, len(rows) // 3)
            rows, held_out = rows[:n_fit], rows[n_fit:]
        biased = _add_offsets(weights, offsets)
        with one_blas_thread():
            arrays = _encode(np.ascontiguousarray(rows, np.float32), biased, n_threads, config)
        search = cls(**arrays, n_epochs=n_epochs, config=config)
        held_out = np.ascontiguousarray(held_out[: config.max_width_rows], np.float32)
        if len(held_out) < config.min_width_rows:
            return search
        search = replace(search, temperature=float(temperature))
        search = search._choose_width(held_out, biased, n_threads)
        return search._fit_tail_correction(held_out[: config.tail_rows], biased, n_threads)

    def _choose_width(self, X: Float32, weights: DenseWeights, n_threads: int) -> PQSearch:
        """Return the search with the smallest width, to a tenth, that reaches the target recall."""
        scorer, target = Scorer(weights), self.config.target_recall
        best, _ = ExactSearch().topk(scorer, X, 1, n_threads=n_threads)

        def measure(width: int) -> float:
            labels, _ = self.topk(scorer, X, 1, width=width, n_threads=n_threads)
            return float(np.mean(labels == best))

        low, high, recall = 0, self.config.min_width, 0.0
        while self.cost(high) < 1.0 and (recall := measure(high)) < target:
            low, high = high, 2 * high
        while recall >= target and high - low > max(1, high // 10):
            middle = (low + high + 1) // 2
            if (now := measure(middle)) >= target:
                high, recall = middle, now
            else:
                low = middle
        if recall < target:  # exact search is as fast
            return self
        return replace(self, width=high, recall=recall)

    def _fit_tail_correction(self, X: Float32, weights: DenseWeights, n_threads: int) -> PQSearch:
        """Return the search with the correction that makes log-probabilities right on average.

        Least squares over rows whose best class is found, at temperatures around the model's.
        """
        rotated = self._rotate(X)
        squares = np.square(rotated[:, :-_COMMON_ROWS], dtype=np.float64).sum(axis=1)
        finite = squares[np.isfinite(squares)]  # a row may be too far from all others for float32
        max_square = float(np.quantile(finite, _TAIL_QUANTILE)) if len(finite) else 0.0
        # Without any tail mass, and with the tail mass as it is estimated.
        variants = [
            replace(self, max_square=max_square, tail_correction=c) for c in ((np.inf, 0.0), (0.0, 0.0))
        ]
        left, right = [], []
        for inverse in np.array(self.config.tail_scales) / self.temperature:
            scorer = Scorer(weights, calibration=Calibration(1.0 / inverse))
            good, known, estimated = self._tail_masses(X, scorer, variants, n_threads)
            good &= squares <= max_square
            known, estimated, square = known[good], estimated[good], squares[good]
            weight = known / (1.0 + known)  # derivative of the log-probability by the log of the tail mass
            left.append((weight * square)[:, None] * [inverse, inverse**2])
            right.append(weight * np.log(estimated / known))
        # The solution of minimum norm, where one temperature has all the information.
        first, second = np.linalg.lstsq(np.concatenate(left), np.concatenate(right), rcond=1e-6)[0]
        return replace(self, max_square=max_square, tail_correction=(float(first), float(second)))

    def _tail_masses(
        self, X: Float32, scorer: Scorer, variants: list[PQSearch], n_threads: int
    ) -> tuple[NDArray[np.bool_], Float64, Float64]:
        """Return which rows are informative, and true and estimated tail mass over the scored mass."""
        width = self.width or _FALLBACK_WIDTH
        best, exact = ExactSearch().topk(scorer, X, 1, n_threads=n_threads)
        log_prob = []
        for variant in variants:
            labels, found = variant.topk(scorer, X, 1, width=width, n_threads=n_threads)
            log_prob.append(np.where(labels == best, np.float64(found), np.nan)[:, 0])
        least = _MIN_TAIL_MASS
        with np.errstate(over="ignore", invalid="ignore"):
            known, estimated = np.expm1(log_prob[0] - exact[:, 0]), np.expm1(log_prob[0] - log_prob[1])
            good = (known > least) & (estimated > least) & np.isfinite(known + estimated)
        return good, known, estimated

    # -- changes of the classes

    def follow(self, scorer: Scorer) -> PQSearch:
        """Encode the classes of a changed model, in the coordinates that there are."""
        n_coordinates, size = len(self.rotation) - _COMMON_ROWS, self.centroids.shape[1]
        given = self.rotation.astype(np.float64) / scorer.weights.feature_scale
        by_size = given[:n_coordinates].reshape(size, -1, given.shape[1]).transpose(2, 1, 0)
        to_rows = by_size.reshape(given.shape[1], n_coordinates)  # of `_encode`: from rows to coordinates
        shift = self.shift[:n_coordinates].reshape(size, -1).T.reshape(-1).astype(np.float64)
        with one_blas_thread():
            to_weights = scipy.linalg.cho_solve(scipy.linalg.cho_factor(to_rows @ to_rows.T), to_rows)
            coordinates = _Coordinates(
                to_weights.astype(np.float32),
                given[n_coordinates].astype(np.float32),
                (to_weights @ shift).astype(np.float32),
            )
            biased = _add_offsets(scorer.weights, scorer.offsets)
            return replace(self, **_encode_classes(biased, coordinates, self.centroids, 1))

    # -- search

    def topk(
        self, scorer: Scorer, X: Features, k: int, *, width: int | None = None, n_threads: int = 1
    ) -> tuple[Int32, Float32]:
        """Return the k best of about `width` classes with the highest approximate scores.

        The result of a row does not depend on other rows, but for the rounding of rows that go to exact
        search: all rows where the width is large, and rows for which far more classes than wanted reach the
        threshold.

        Parameters
        ----------
        width
            Classes to score, about; more where k classes need more.  Of very many classes, one in 16 sets the
            threshold of a row: below a hundred, their number is less certain.
        """
        scorer.check(X, k)
        if not scorer.linear_scores:
            raise ValueError("This search is for scores that are linear in the features; use exact search.")
        width = self.width if width is None else width
        if width is None:
            return ExactSearch().topk(scorer, X, k, n_threads=n_threads)
        linear = Scorer(_add_offsets(scorer.weights, scorer.offsets), calibration=scorer.calibration)
        n_threshold = max(k, round(width / self.stride))
        expected = int(np.ceil(n_threshold * self.stride))
        if self.cost(expected) >= 1.0:
            return ExactSearch().topk(linear, X, k, n_threads=n_threads)
        return self._search_codes(linear, X, k, n_threshold, expected, n_threads)

    def _search_codes(
        self, scorer: Scorer, X: Features, k: int, n_threshold: int, expected: int, n_threads: int
    ) -> tuple[Int32, Float32]:
        """Score about `expected` candidates: those that reach the score of `n_threshold` of the sample."""
        n_rows, n_classes = X.shape[0], len(self.order)
        most = self.config.max_candidates * expected + LANES
        weights = np.require(scorer.weights.to_dense(), np.float32, ["C", "W"])
        biases = np.require(scorer.weights.biases, np.float32, ["C", "W"])
        scale, inverses = np.float32(scorer.weights.feature_scale), _tail_temperatures(scorer)
        rows_at_once = int(np.clip(_BLOCK_CANDIDATES // most, ROWS_AT_ONCE, _BLOCK_ROWS))
        tasks = split(n_rows, max(1, min(rows_at_once, -(-n_rows // n_threads))))
        labels, log_prob = np.empty((n_rows, k), np.int32), np.empty((n_rows, k), np.float32)
        counts = np.zeros(n_rows, np.int32)

        def work(number: int) -> None:
            rows = slice(*tasks[number])
            x: Any = X[rows]
            x = np.require(x.toarray() if sparse.issparse(x) else x, np.float32, ["C", "W"])
            places, count = np.empty((len(x), most), np.int32), counts[rows]
            tails = np.empty((len(inverses), len(x)), np.float32)
            for a, b in split(len(x), _TABLE_ROWS):
                tails[:, a:b] = self._find_candidates(x[a:b], n_threshold, inverses, places[a:b], count[a:b])
            scores = np.empty((len(x), most), np.float32)
            ends = np.empty(n_classes, np.int64)
            listed = np.empty(int(np.minimum(count, most).sum()), np.int32)
            kernels.list_rows(places, count, ends, listed)
            kernels.score_listed(x, ends, listed, most, self.order, weights, biases, scale, scores)
            for row, n in zip(places, np.minimum(count, most).tolist(), strict=True):
                row[:n], row[n:] = self.order[row[:n]], -1  # from places to classes
            inverse, rest = np.full(len(x), scorer.inverse_temperature), tails[0]
            filled = 0, len(x), labels[rows], log_prob[rows]
            choose_candidates(scores, places, inverse, rest, *filled)
            if len(inverses) > 1:
                inverse = scorer.temper(log_prob[rows, 0])
                rest = _interpolate(inverses, tails, inverse)
                choose_candidates(scores, places, inverse, rest, *filled)

        run(work, len(tasks), n_threads)
        mixed = mix_uniform(log_prob, scorer.calibration.uniform_mix, n_classes)
        crowded = np.flatnonzero(counts > most)  # rows to which most classes are the same
        if len(crowded):
            labels[crowded], mixed[crowded] = ExactSearch().topk(scorer, X[crowded], k, n_threads=n_threads)
        return labels, mixed

    def _rotate(self, x: Float32) -> Float32:
        """Return z of some rows, and the term that the scores of all classes share."""
        rotated = np.empty((len(x), len(self.rotation)), np.float32)
        project_rows(read_only(x), read_only(self.rotation), self.shift, rotated)
        return rotated

    def _find_candidates(
        self, x: Float32, n_threshold: int, inverses: Float32, places: Int32, counts: Int32
    ) -> Float32:
        """Fill `places` and `counts` of each row; return the log of the tail mass at each temperature."""
        n_groups, n_tables = -(-len(x) // ROWS_AT_ONCE), 2 * self.codes.shape[1]
        rotated = self._rotate(x)
        shape = (n_groups, ROWS_AT_ONCE)
        tables = kernels.Tables(
            np.empty((*shape, n_tables, kernels.N_CENTROIDS), np.uint8), *np.empty((2, *shape), np.float32)
        )
        squares, thresholds = np.empty((2, *shape), np.float32)
        tails = np.empty((len(inverses), *shape), np.float32)
        kernels.make_tables(
            rotated,
            self.centroids,
            tables.entries.reshape(-1, n_tables, kernels.N_CENTROIDS),
            tables.steps.reshape(-1),
            tables.offsets.reshape(-1),
            squares.reshape(-1),
        )
        kernels.set_thresholds(self.sample, tables, n_threshold, inverses, thresholds, tails)
        kernels.find_classes(self.blocks, tables, thresholds, places, counts)
        tails *= np.float32(self.stride)
        threshold, square = (a.reshape(-1)[: len(x)] for a in (thresholds, squares))
        threshold = rotated[:, -_COMMON_ROWS] + threshold
        found = [
            self.log_tail_mass(threshold, tail.reshape(-1)[: len(x)], square, float(inverse))
            for tail, inverse in zip(tails, inverses, strict=True)
        ]
        return np.stack(found)

    def log_tail_mass(
        self, threshold: Float32, tail: Float32, square: Float32, inverse_temperature: float
    ) -> Float32:
        """Return the log of the corrected mass of all classes below a threshold.

        Parameters
        ----------
        threshold : (n,)
            Lowest score of a candidate.
        tail : (n,)
            Estimated mass over that of one class at the threshold.
        square : (n,)
            |z|^2.  Beyond `max_square`, and beyond the temperatures of `fit`, the correction is constant.
        """
        scales = self.config.tail_scales
        t = float(np.clip(inverse_temperature * self.temperature, scales[0], scales[-1])) / self.temperature
        first, second = self.tail_correction
        with np.errstate(all="ignore"):
            correction = np.float32(first * t + second * t**2) * np.minimum(
                square, np.float32(self.max_square)
            )
            mass = np.minimum(np.log(tail) - correction, np.float32(np.log(len(self.order))))
            total: Float32 = mass + threshold * np.float32(inverse_temperature)
        total[~(tail > 0.0)] = -np.inf
        return total

    def cost(self, width: int) -> float:
        """Return the time of a search over that of exact search, roughly."""
        n_classes, (n_rotated, n_features) = len(self.order), self.rotation.shape
        entry_cost = self.config.entry_cost if BYTE_SHUFFLE else self.config.entry_cost_scalar
        entries = 2 * self.codes.shape[1] * (1.0 + 1.0 / self.stride)
        approximate = entry_cost * entries / n_features + self.config.row_cost * n_rotated / n_classes
        return float(approximate + self.config.class_cost * width / n_classes)

    @property
    def stride(self) -> float:
        """Classes for each one of the sample that sets thresholds."""
        n_classes = len(self.order)
        return n_classes / _n_sampled(n_classes, self.config)

    def _take_sample(self) -> kernels.Blocks:
        """Copy the codes of every so many-th class in an order by size, so that all sizes occur.

        Classes that score high for some row come first: they raise the threshold early.
        """
        n_classes = len(self.order)
        size = _n_sampled(n_classes, self.config)
        places = (2 * np.arange(size) + 1) * n_classes // (2 * size)
        spread = np.float32(np.sqrt(0.5 * (len(self.rotation) - _COMMON_ROWS)))  # of u'.z, about
        high = self.bases.reshape(-1)[places] + 3 * spread * self.factors.reshape(-1)[places]
        return _copy_places(self.blocks, places[np.argsort(-high, kind="stable")])

    # -- storage

    def state(self) -> State:
        """Return the state that a model folder stores."""
        numbers = {name: vars(self)[name] for name in _NUMBERS}
        header = {"kind": "pq", **numbers, "config": asdict(self.config)}
        return State(header, {name: vars(self)[name] for name in _ARRAYS})

    @classmethod
    def from_state(cls, state: State) -> PQSearch:
        """Build the search that `state` described; without a config, with the default one."""
        header = state.header
        correction = checks.get_list(header, "tail_correction", (float, int))
        if len(correction) != 2 or not np.isfinite(correction).all():
            checks.reject(f"tail_correction is {checks.shown(correction)} where two numbers are needed")
        given: dict[str, Any] = {
            "width": None
            if checks.get(header, "width") is None
            else checks.get_int(header, "width", 1, 2**31),
            "recall": checks.get_float(header, "recall", 0.0, 1.0),
            "tail_correction": tuple(map(float, correction)),
            "temperature": checks.get_float(header, "temperature", 1e-30),
            "max_square": checks.get_float(header, "max_square", 0.0),
            "n_epochs": checks.get_int(header, "n_epochs"),
        }
        config = checks.read(header.get("config", {}), PQConfig)
        _check_config(config)
        given |= _check_arrays(state.arrays)
        return cls(**given, config=config)

    @property
    def n_classes(self) -> int:
        return len(self.order)

    @property
    def n_features(self) -> int:
        return int(self.rotation.shape[1])


def _check_config(config: PQConfig) -> None:
    """Raise ModelFileError for numbers that a search divides by, or takes memory by."""
    for name in ("subvectors", "threshold_classes", "max_candidates"):
        value = getattr(config, name)
        if not 1 <= value <= 2**31:
            checks.reject(f"{name} of the index is {value}")
    scales = config.tail_scales
    if not scales or list(scales) != sorted(scales) or not 0.0 < scales[0] <= scales[-1] < np.inf:
        checks.reject(f"tail_scales of the index is {checks.shown(scales)}")


def _check_arrays(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays of an index; no place of theirs leads outside of another."""
    order = checks.get_array(arrays, "order", "i4", (None,))
    n_classes = len(order)
    if n_classes == 0:
        checks.reject("the index has no classes")
    checks.check_distinct(order, "order", n_classes)
    n_blocks = -(-n_classes // LANES)
    codes = checks.get_array(arrays, "codes", "u1", (n_blocks, None, LANES))
    n_subvectors = 2 * codes.shape[1]
    if not 0 < n_subvectors <= _MAX_SUBVECTORS or n_subvectors % CODES_AT_ONCE:
        checks.reject(f"the index has {n_subvectors} subvectors")
    centroids = checks.get_array(arrays, "centroids", "f4", (kernels.N_CENTROIDS, None))
    n_rotated = n_subvectors * centroids.shape[1] + _COMMON_ROWS
    rotation = checks.get_array(arrays, "rotation", "f4", (n_rotated, None))
    shift = checks.get_array(arrays, "shift", "f4", (n_rotated,))
    factors = checks.get_array(arrays, "factors", "f4", (n_blocks, LANES))
    bases = checks.get_array(arrays, "bases", "f4", (n_blocks, LANES))
    found = {"order": order, "codes": codes, "factors": factors, "bases": bases}
    found |= {"rotation": rotation, "shift": shift, "centroids": centroids}
    for name in ("rotation", "shift", "centroids", "factors"):
        checks.check_finite(found[name], name)
    checks.check_finite(bases.reshape(-1)[:n_classes], "bases")
    # A place without a class must reach no threshold: `order` has no entry for it.
    if factors.reshape(-1)[n_classes:].any() or not np.isneginf(bases.reshape(-1)[n_classes:]).all():
        checks.reject("the index has codes for more classes than its order")
    return found


def _make_blocks(codes: NDArray[np.uint8], factors: Float32, bases: Float32) -> kernels.Blocks:
    """Return blocks of classes with the bounds of their factors and bases."""
    n_blocks = len(codes)
    bounds = np.zeros((2, -(-n_blocks // kernels.CHUNK) * kernels.CHUNK), np.float32)
    bounds[1] = -np.inf
    bounds[0, :n_blocks], bounds[1, :n_blocks] = factors.max(axis=1), bases.max(axis=1)
    return kernels.Blocks(codes, factors, bases, bounds)


def _copy_places(blocks: kernels.Blocks, places: Int64) -> kernels.Blocks:
    """Return blocks of the classes at the given places."""
    n_blocks = -(-len(places) // LANES)
    codes = np.zeros((n_blocks, blocks.codes.shape[1], LANES), np.uint8)
    factors, bases = _empty_blocks(n_blocks)
    factors.reshape(-1)[: len(places)] = blocks.factors.reshape(-1)[places]
    bases.reshape(-1)[: len(places)] = blocks.bases.reshape(-1)[places]
    at, lanes = np.floor_divide(np.arange(len(places)), LANES), np.remainder(np.arange(len(places)), LANES)
    codes[at, :, kernels.BYTE_OF[lanes]] = blocks.codes[places // LANES, :, kernels.BYTE_OF[places % LANES]]
    return _make_blocks(codes, factors, bases)


def _empty_blocks(n_blocks: int) -> tuple[Float32, Float32]:
    """Return factors and bases of places without a class: no approximate score reaches a threshold."""
    return np.zeros((n_blocks, LANES), np.float32), np.full((n_blocks, LANES), -np.inf, np.float32)


def _whitening_factor(rows: Float32) -> Float64:
    """Return the lower Cholesky factor of the covariance of centred rows, with a ridge."""
    n_features = rows.shape[1]
    gram = np.zeros((n_features, n_features))
    for first, last in split(len(rows), 1024):
        part = rows[first:last].astype(np.float64)
        gram += part.T @ part
    gram /= len(rows)
    ridge = max(_RIDGE * np.trace(gram) / n_features, _MIN_RIDGE)
    factor: Float64 = scipy.linalg.cholesky(gram + ridge * np.eye(n_features), lower=True)
    return factor


class _Coordinates(NamedTuple):
    """How weights become coordinates.

    Attributes
    ----------
    rotation : float32 (n_features, n_coordinates)
        From weights, relative to their mean, to coordinates.
    mean_weights, mean : float32 (n_features,)
        Means of the weights of all classes, and of scaled rows.
    """

    rotation: Float32
    mean_weights: Float32
    mean: Float32


def _encode(rows: Float32, model: DenseWeights, n_threads: int, config: PQConfig) -> dict[str, Any]:
    """Return the arrays of a `PQSearch`; `rows` give the coordinates z."""
    n_features, scale = model.n_features, model.feature_scale
    n_subvectors, size = _subvectors(n_features, config)
    n_coordinates = n_subvectors * size
    rows = rows * np.float32(scale)
    mean = rows.mean(axis=0, dtype=np.float64)
    rows -= mean.astype(np.float32)
    factor = _whitening_factor(rows)
    normal = np.random.default_rng(_ROTATION_SEED).standard_normal((n_coordinates, n_features))
    orthogonal = np.linalg.qr(normal)[0].T
    row_rotation = scipy.linalg.solve_triangular(factor.T, orthogonal)
    coordinates = _Coordinates(
        (factor @ orthogonal).astype(np.float32),
        model.weights.mean(axis=0, dtype=np.float64).astype(np.float32),
        mean.astype(np.float32),
    )
    centroids = _centroids(size)
    arrays = _encode_classes(model, coordinates, centroids, n_threads)
    by_coordinate = row_rotation.reshape(n_features, n_subvectors, size).transpose(2, 1, 0)
    rotation = by_coordinate.reshape(n_coordinates, n_features)
    padding = np.zeros((_COMMON_ROWS - 1, n_features))
    rotation = np.concatenate([rotation, coordinates.mean_weights[None], padding])
    shift = (rotation @ mean).astype(np.float32)
    rotation = (scale * rotation).astype(np.float32)
    return arrays | {"rotation": rotation, "shift": shift, "centroids": centroids}


def _encode_classes(
    model: DenseWeights, coordinates: _Coordinates, centroids: Float32, n_threads: int
) -> dict[str, Any]:
    """Return the order of the classes, their codes, factors and bases."""
    weights, biases = model.weights, model.biases
    rotation, mean_weights, mean = coordinates
    n_classes, n_coordinates = len(weights), rotation.shape[1]
    tasks = split(n_classes, _task_classes(weights.shape[1]))
    lengths, at_mean = np.empty(n_classes, np.float32), np.empty(n_classes, np.float32)

    def measure(number: int) -> None:
        part = slice(*tasks[number])
        lengths[part] = np.linalg.norm((weights[part] - mean_weights) @ rotation, axis=1)
        at_mean[part] = biases[part] + weights[part] @ mean

    run(measure, len(tasks), n_threads)
    order = _order_classes(lengths, at_mean)
    n_blocks = -(-n_classes // LANES)
    codes = np.zeros((n_blocks, n_coordinates // centroids.shape[1] // 2, LANES), np.uint8)
    factors, bases = _empty_blocks(n_blocks)

    def encode(number: int) -> None:
        first, last = tasks[number]
        classes = order[first:last]
        # The product of `measure` again, not a copy: in another order of classes its last bits may differ.
        directions = (weights[classes] - mean_weights) @ rotation
        length = np.where(lengths[classes] > 0, lengths[classes], np.float32(1.0))
        directions *= (np.sqrt(np.float32(n_coordinates)) / length)[:, None]
        alignment = np.empty(last - first, np.float32)  # u.u'
        kernels.encode(directions, centroids, first, codes, alignment)
        good = (alignment > 0) & (lengths[classes] > 0) & np.isfinite(lengths[classes])
        factors.reshape(-1)[first:last] = np.where(
            good, length * np.sqrt(n_coordinates) / np.where(good, alignment, 1.0), 0.0
        )
        bases.reshape(-1)[first:last] = at_mean[classes]

    run(encode, len(tasks), n_threads)
    return {"order": order, "codes": codes, "factors": factors, "bases": bases}


def _order_classes(lengths: Float32, bases: Float32) -> Int32:
    """Return an order in which 32 consecutive classes differ little in both arrays."""
    n_strips = max(1, round(np.sqrt(len(lengths) / LANES)))
    strip = LANES * -(-len(lengths) // (LANES * n_strips))
    order = np.argsort(lengths, kind="stable").astype(np.int32)
    for first in range(0, len(order), strip):
        part = order[first : first + strip]
        part[:] = part[np.argsort(bases[part], kind="stable")]
    return order


def _tail_temperatures(scorer: Scorer) -> Float32:
    """Return the inverse temperatures at which tails are summed: that of all rows, then those that rows span.

    With a temperature by row, p_1 is from 0 to 1.
    """
    base = scorer.inverse_temperature
    if scorer.calibration.temperature_slope == 0.0:
        return np.array([base], np.float32)
    low, high = np.sort(scorer.temper(np.log(np.array([1e-9, 1.0], np.float32))))
    low, high = low / _SPREAD, high * _SPREAD  # apart, however small the slope
    return np.append(base, np.linspace(low, high, _KNOTS)).astype(np.float32)


def _interpolate(knots: Float32, values: Float32, at: Float32) -> Float32:
    """Return the polynomial through all values (m, n) but the first, at a place of each row.

    ``knots`` (m,) are the places of the values.  The log of a mass, as a function of the inverse temperature,
    is convex and nearly straight: its slope is a mean score, its curvature their variance.
    """
    places, x = knots[1:].astype(np.float64), at.astype(np.float64)
    total = np.zeros(len(x))
    with np.errstate(invalid="ignore"):
        for number, place in enumerate(places):
            others = np.delete(places, number)
            total += values[number + 1] * np.prod((x[:, None] - others) / (place - others), axis=1)
    total[~np.isfinite(values[1:]).all(axis=0)] = -np.inf
    return total.astype(np.float32)
