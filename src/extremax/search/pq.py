"""An index over the scores of all classes: short codes from which a score is guessed, many at a time.

Where the label tree's log-probability is no part of the scores, the best class of a row may hang anywhere in
that tree, and the scores of trained classes have no leading directions that a smaller product could make use
of. So every class is looked at, but briefly. Weights and rows are turned into coordinates z of the rows that
are uncorrelated and of unit variance, and then by a random rotation, after which the direction u_y of a
weight vector looks like Gaussian noise whatever the data:

    s_y(x) = |r_y| u_y . z + b_y + (the same for all classes).

Cut into 56 pieces, each is replaced by the nearest of 16 fixed centres, together u'_y, and named by four
bits. The guess

    s_y(x)  ~  |r_y| (u_y . u_y) / (u_y . u'_y)  u'_y . z + b_y

is right on average over rotations: without the quotient, the best classes, those along z, would come out
lowest. Its sum over the pieces is a sum of table entries (`extremax.kernels.pq`). The classes with the
highest guesses are scored exactly.

The guesses at some of the other classes tell what probability is left for these. The error of a guess has a
variance v in proportion to |z|^2. Under temperature 1 / t, classes of a guess have exp(t^2 v / 2) times its
mass on average, or where there are exp(-d) times as many classes at a score higher by one, exp(t^2 v / 2 - t
d v) times: most high guesses are too high. Rows whose sums are known choose both terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy import sparse
from scipy.cluster.vq import kmeans2

from extremax.calibration import lift
from extremax.kernels import pq as kernels
from extremax.kernels.simd import BYTE_SHUFFLE, CODES_AT_ONCE, LANES, ROWS_AT_ONCE
from extremax.runtime.products import one_blas_thread
from extremax.runtime.threads import resolve_threads, run, split
from extremax.search.scan import Features, Scorer
from extremax.search.scores import check_arguments
from extremax.search.topk import exact_topk

Float32: TypeAlias = NDArray[np.float32]

LEAST_CLASSES = 2048  # fewer are scored as fast as chosen
MOST_FEATURES = 2048  # the covariance takes their square in memory and their cube in time
# Share of the rows kept back whose exact best class the default width finds: 99%, and what a thousand rows
# may be wrong by.
AGREEMENT = 0.997
_ROWS_PER_FEATURE = 8  # rows of the covariance for each feature ...
_ROWS = (2048, 8192)  # ... between these
MOST_JUDGES = 2048  # rows that choose the width ...
_FEW_JUDGES = 100  # ... and so few cannot tell one in a hundred: the default is then exact search
# fewer that are given would leave the width to the hardest two or three: others take their place
_ENOUGH_JUDGES = 500
_RIDGE = 1e-3  # of the mean variance of a feature
_LEAST_RIDGE = 1e-12  # rows have a mean square length of about one
_PIECES = 56  # of a weight vector at most, each with a code of four bits: 28 bytes for a class
_SAMPLED, _MOST_STRIDE = 2048, 16  # classes whose guesses set a row's threshold, at least; of one in so many
_UNCHOSEN_WIDTH = 64  # at which a beam's log-probabilities are set right where none was chosen
_EXCESS_JUDGES, _EXCESS_SHARPNESS = 512, (0.7, 1.0, 1.4)  # by these rows, under these temperatures
_LEAST_REST = 1e-3  # mass of the classes not scored, over that of the others, that tells something in float32
_BLOCK_ROWS = 2048  # rows that are searched together: the weights of a class are read once for all of them
_BLOCK_FOUND = 1 << 22  # ... fewer where the beam is wide
_TABLED_ROWS = 256  # rows of these whose tables are in the second cache
# of weights that a thread encodes at a time, and threads that memory is counted for
_TASK_NUMBERS, _TASKS_AT_ONCE = 1 << 19, 8
_SEED = 20_200_430  # of the rotation, which no data and no user choose
# Time of a code's table entry, and of a class scored exactly, over that of a feature and of a class in exact
# search; of a row.
_ENTRY_COST, _CLASS_COST, _ROW_COST = (0.3 if BYTE_SHUFFLE else 6.0), 6.0, 1.5


def sample_size(n_features: int) -> int:
    """Training rows that `CodeIndex.fit` makes use of."""
    return int(np.clip(_ROWS_PER_FEATURE * n_features, *_ROWS)) + MOST_JUDGES


def index_bytes(n_classes: int, n_features: int) -> tuple[int, int]:
    """Bytes of an index, and those that fitting it takes beside."""
    if n_classes < LEAST_CLASSES or n_features > MOST_FEATURES:
        return 0, 0
    n_pieces, size = _pieces(n_features)
    n_places = -(-n_classes // LANES) * LANES
    sample = _sample_size(n_classes) * (n_pieces // 2 + 8)
    rotation = 4 * n_features * (n_pieces * size + 4)
    rows = 4 * sample_size(n_features) * n_features
    blocks = 3 * 4 * _task_classes(n_features) * n_features * _TASKS_AT_ONCE
    return n_places * (
        n_pieces // 2 + 12
    ) + rotation + sample, 4 * rows + 16 * rotation + blocks + 16 * n_classes


def _task_classes(n_features: int) -> int:
    return int(np.clip(_TASK_NUMBERS // n_features, 64, 4096))


def _pieces(n_features: int) -> tuple[int, int]:
    """Pieces of a weight vector, and numbers in each."""
    size = -(-n_features // _PIECES)
    return -(-n_features // (size * CODES_AT_ONCE)) * CODES_AT_ONCE, size


@lru_cache
def _centres(size: int) -> Float32:
    """16 points to which normal vectors are near, (16, size)."""
    sample = np.random.default_rng(_SEED).standard_normal((40_000, size), np.float32)
    centres: Float32 = kmeans2(sample, kernels.CENTRES, iter=30, minit="++", seed=0)[0].astype(np.float32)
    return centres


class _Shifted(NamedTuple):
    """A model with what bias removal adds to the scores of all rows alike in its biases."""

    weights: Float32
    biases: Float32
    feature_scale: float


def _shifted(model: Scorer, offsets: Float32 | None) -> _Shifted:
    biases = model.biases if offsets is None else model.biases + offsets
    return _Shifted(model.weights, biases, model.feature_scale)


@dataclass
class CodeIndex:
    """Codes of all classes, made by `fit`.

    Attributes
    ----------
    order
        Classes in the order of their codes, (n_classes,).
    codes
        Of 32 classes together, two pieces in a byte: (blocks, pieces / 2, 32).
    factors, bases
        Of each class: a guess is ``factor * (u' . z) + base``; (blocks, 32).
    turn, shift
        ``turn @ x - shift`` are the numbers of z, the first of all pieces, then the second, and so on; at last comes what the
        scores of all classes have in common, and three zeros: (size * pieces + 4, n_features), (size * pieces
        + 4,).
    centres
        What the codes stand for, (16, size).
    beam_width
        Classes to score so that the exact best is found in at least 99% of the rows; None where scoring all
        takes no longer.
    agreement
        Share of the rows kept back in `fit` whose exact best class that width finds.
    excess
        Log of how much too high the mass is that guesses promise, over |z|^2: terms in 1 / temperature and
        its square.
    temperature, largest
        Around which temperature the excess was found, and up to which |z|^2.
    n_epochs
        Epochs that the model had been trained for.
    """

    order: NDArray[np.int32]
    codes: NDArray[np.uint8]
    factors: Float32
    bases: Float32
    turn: Float32
    shift: Float32
    centres: Float32
    beam_width: int | None = None
    agreement: float = 1.0
    excess: tuple[float, float] = (0.0, 0.0)
    temperature: float = 1.0
    largest: float = 0.0
    n_epochs: int = 0

    def __post_init__(self) -> None:
        for name in ("order", "codes", "factors", "bases", "turn", "shift", "centres"):
            setattr(self, name, np.require(getattr(self, name), requirements=["C", "W"]))
        self.blocks = _blocks(self.codes, self.factors, self.bases)
        n_classes = len(self.order)
        size = _sample_size(n_classes)
        places = (
            (2 * np.arange(size) + 1) * n_classes // (2 * size)
        )  # each so many-th in the order of their sizes: of all kinds
        # Those that come out high for some row first: they raise the threshold, and the others are passed
        # over.
        spread = np.float32(np.sqrt(0.5 * (len(self.turn) - 4)))  # of u' . z, about
        high = self.bases.reshape(-1)[places] + 3 * spread * self.factors.reshape(-1)[places]
        self.sample = _copied(self.blocks, places[np.argsort(-high, kind="stable")])
        self.share = n_classes / size

    @classmethod
    def fit(
        cls,
        X: Float32,
        model: Scorer,
        *,
        judges: Float32 | None = None,
        offsets: Float32 | None = None,
        temperature: float = 1.0,
        n_jobs: int | None = None,
    ) -> CodeIndex:
        """From rows; `judges`, rows that the model was not trained on, choose the width; `offsets` are added
        to the biases.

        Log-probabilities are set right for temperatures around the one given.

        Without judges, or with few, the last `MOST_JUDGES` of the rows, or a third, are kept back for it. The
        model is surer of rows that it was trained on, and finds their best classes sooner than those of
        others."""
        threads = resolve_threads(n_jobs)
        if judges is None or len(judges) < _ENOUGH_JUDGES:
            kept_back = min(MOST_JUDGES, len(X) // 3)
            X, judges = X[: len(X) - kept_back], X[len(X) - kept_back :]
        own = _shifted(model, offsets)
        with one_blas_thread():
            index = cls(**_encode(np.ascontiguousarray(X, np.float32), own, threads))
        judges = np.ascontiguousarray(judges[:MOST_JUDGES], np.float32)
        if len(judges) >= _FEW_JUDGES:
            index.temperature = float(temperature)
            index._choose_width(judges, own, threads)
        return index

    def _choose_width(self, X: Float32, model: _Shifted, threads: int) -> None:
        """The narrowest beam in which most of the rows find their best class, to a tenth."""
        best, _ = exact_topk(X, model, None, None, 1, n_jobs=threads)

        def found(width: int) -> float:
            labels, _ = codes_topk(X, model, self, 1, beam_width=width, n_jobs=threads)
            return float(np.mean(labels == best))

        low, high, share = 0, 16, 0.0
        while self.cost(high) < 1.0 and (share := found(high)) < AGREEMENT:
            low, high = high, 2 * high
        while share >= AGREEMENT and high - low > max(1, high // 10):
            middle = (low + high + 1) // 2
            if (now := found(middle)) >= AGREEMENT:
                high, share = middle, now
            else:
                low = middle
        if share >= AGREEMENT:  # else exact search it is
            self.beam_width, self.agreement = high, share
        self._fit_excess(X[:_EXCESS_JUDGES], model, threads)

    def _fit_excess(self, X: Float32, model: _Shifted, threads: int) -> None:
        """So that log-probabilities come out right, as far as two numbers can do it, where the best class
        is found.
        """
        width = self.beam_width or _UNCHOSEN_WIDTH
        turned = np.empty((len(X), len(self.turn)), np.float32)
        kernels.turn_rows(X, self.turn, self.shift, turned)
        squares = np.square(turned[:, :-4], dtype=np.float64).sum(axis=1)
        finite = squares[np.isfinite(squares)]  # a judge may be too far from all others for float32
        self.largest = float(np.quantile(finite, 0.99)) if len(finite) else 0.0
        left, right = [], []
        for sharpness in np.array(_EXCESS_SHARPNESS) / self.temperature:
            options: dict[str, Any] = {"temperature": 1.0 / sharpness, "n_jobs": threads}
            best, exact = exact_topk(X, model, None, None, 1, **options)
            given = []
            # nothing is left for the other classes, and what guesses promise
            for self.excess in ((np.inf, 0.0), (0.0, 0.0)):
                labels, found = codes_topk(X, model, self, 1, beam_width=width, **options)
                given.append(np.where(labels == best, np.float64(found), np.nan)[:, 0])
            with np.errstate(over="ignore", invalid="ignore"):
                # over the classes scored
                known, guessed = np.expm1(given[0] - exact[:, 0]), np.expm1(given[0] - given[1])
                good = (
                    (known > _LEAST_REST)
                    & (guessed > _LEAST_REST)
                    & np.isfinite(known + guessed)
                    & (squares <= self.largest)
                )
            known, guessed, square = known[good], guessed[good], squares[good]
            weight = known / (1.0 + known)  # what a change of the rest does to the log-probability
            left.append((weight * square)[:, None] * [sharpness, sharpness**2])
            right.append(weight * np.log(guessed / known))
        # Minimum norm where one temperature has all that is known.
        first, second = np.linalg.lstsq(np.concatenate(left), np.concatenate(right), rcond=1e-6)[0]
        self.excess = float(first), float(second)

    def cost(self, beam_width: int) -> float:
        """Time of a search over that of scoring every class, roughly."""
        n_classes, (turned, n_features) = len(self.order), self.turn.shape
        entries = 2 * self.codes.shape[1] * (1.0 + 1.0 / self.share)
        looking = _ENTRY_COST * entries / n_features + _ROW_COST * turned / n_classes
        return float(looking + _CLASS_COST * beam_width / n_classes)

    def rest(self, threshold: Float32, tail: Float32, square: Float32, sharpness: float) -> Float32:
        """Log-mass of the classes below a score, where guesses promise them `tail` times that of a class
        there.

        Beyond the temperatures and lengths of rows that it was found for, the excess stays as it is at the
        border."""
        t = (
            float(np.clip(sharpness * self.temperature, _EXCESS_SHARPNESS[0], _EXCESS_SHARPNESS[-1]))
            / self.temperature
        )
        with np.errstate(all="ignore"):
            excess = np.float32(self.excess[0] * t + self.excess[1] * t**2) * np.minimum(
                square, np.float32(self.largest)
            )
            mass = np.minimum(np.log(tail) - excess, np.float32(np.log(len(self.order))))
            total: Float32 = mass + threshold * np.float32(sharpness)
        total[~(tail > 0.0)] = -np.inf
        return total

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """What `from_arrays` takes, beside the fields of `header`."""
        return {
            name: getattr(self, name)
            for name in ("order", "codes", "factors", "bases", "turn", "shift", "centres")
        }

    def header(self) -> dict[str, Any]:
        """The rest, for a JSON header."""
        return {
            name: getattr(self, name)
            for name in ("beam_width", "agreement", "excess", "temperature", "largest", "n_epochs")
        }

    @classmethod
    def from_arrays(cls, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> CodeIndex:
        """The index that `to_arrays` and `header` described."""
        return cls(**arrays, **{**header, "excess": tuple(header["excess"])})


def _sample_size(n_classes: int) -> int:
    return min(n_classes, max(_SAMPLED, n_classes // _MOST_STRIDE))


def _blocks(codes: NDArray[np.uint8], factors: Float32, bases: Float32) -> kernels.Blocks:
    n_blocks = len(codes)
    bounds = np.zeros((2, -(-n_blocks // kernels.CHUNK) * kernels.CHUNK), np.float32)
    bounds[1] = -np.inf
    bounds[0, :n_blocks], bounds[1, :n_blocks] = factors.max(axis=1), bases.max(axis=1)
    return kernels.Blocks(codes, factors, bases, bounds)


def _copied(blocks: kernels.Blocks, places: NDArray[np.int64]) -> kernels.Blocks:
    """Blocks of the classes at these places."""
    n_blocks = -(-len(places) // LANES)
    codes = np.zeros((n_blocks, blocks.codes.shape[1], LANES), np.uint8)
    factors, bases = np.zeros((n_blocks, LANES), np.float32), np.full((n_blocks, LANES), -np.inf, np.float32)
    factors.reshape(-1)[: len(places)] = blocks.factors.reshape(-1)[places]
    bases.reshape(-1)[: len(places)] = blocks.bases.reshape(-1)[places]
    at, lanes = (f(np.arange(len(places)), LANES) for f in (np.floor_divide, np.remainder))
    codes[at, :, kernels.BYTE_OF[lanes]] = blocks.codes[places // LANES, :, kernels.BYTE_OF[places % LANES]]
    return _blocks(codes, factors, bases)


def _encode(rows: Float32, model: _Shifted, threads: int) -> dict[str, Any]:
    """The arrays of an index."""
    weights, biases, scale = model
    n_classes, n_features = weights.shape
    n_pieces, size = _pieces(n_features)
    width = n_pieces * size
    rows = rows * np.float32(scale)
    mean = rows.mean(axis=0, dtype=np.float64)
    rows -= mean.astype(np.float32)
    gram = np.zeros((n_features, n_features))
    for first, last in split(len(rows), 1024):
        part = rows[first:last].astype(np.float64)
        gram += part.T @ part
    gram /= len(rows)
    ridge = max(_RIDGE * np.trace(gram) / n_features, _LEAST_RIDGE)
    factor = scipy.linalg.cholesky(gram + ridge * np.eye(n_features), lower=True)
    normal = np.random.default_rng(_SEED).standard_normal((width, n_features))
    rotation = np.linalg.qr(normal)[0].T
    turn = scipy.linalg.solve_triangular(factor.T, rotation)
    turned = (factor @ rotation).astype(np.float32)
    middle = weights.mean(axis=0, dtype=np.float64).astype(np.float32)
    blocks = split(n_classes, _task_classes(n_features))
    lengths, at_mean = np.empty(n_classes, np.float32), np.empty(n_classes, np.float32)

    def measure(number: int) -> None:
        part = slice(*blocks[number])
        lengths[part] = np.linalg.norm((weights[part] - middle) @ turned, axis=1)
        at_mean[part] = biases[part] + weights[part] @ mean.astype(np.float32)

    run(measure, len(blocks), threads)
    order = _alike(lengths, at_mean)
    n_blocks = -(-n_classes // LANES)
    codes = np.zeros((n_blocks, n_pieces // 2, LANES), np.uint8)
    factors, bases = np.zeros((n_blocks, LANES), np.float32), np.full((n_blocks, LANES), -np.inf, np.float32)
    centres = _centres(size)

    def encode(number: int) -> None:
        first, last = blocks[number]
        classes = order[first:last]
        directions = (weights[classes] - middle) @ turned
        long = np.where(lengths[classes] > 0, lengths[classes], np.float32(1.0))
        directions *= (np.sqrt(np.float32(width)) / long)[:, None]
        alike = np.empty(len(classes), np.float32)
        kernels.encode(directions, centres, first, codes, alike)
        good = (alike > 0) & (lengths[classes] > 0) & np.isfinite(lengths[classes])
        factors.reshape(-1)[first:last] = np.where(
            good, long * np.sqrt(width) / np.where(good, alike, 1.0), 0.0
        )
        bases.reshape(-1)[first:last] = at_mean[classes]

    run(encode, len(blocks), threads)
    turn = turn.reshape(n_features, n_pieces, size).transpose(2, 1, 0).reshape(width, n_features)
    turn = np.concatenate([turn, middle[None], np.zeros((3, n_features))])
    shift = (turn @ mean).astype(np.float32)
    turn = (scale * turn).astype(np.float32)
    arrays: dict[str, Any] = {"order": order, "codes": codes, "factors": factors, "bases": bases}
    return arrays | {"turn": turn, "shift": shift, "centres": centres}


def _alike(lengths: Float32, bases: Float32) -> NDArray[np.int32]:
    """An order in which 32 classes that follow each other differ little in both."""
    n_strips = max(1, round(np.sqrt(len(lengths) / LANES)))
    strip = LANES * -(-len(lengths) // (LANES * n_strips))
    order = np.argsort(lengths, kind="stable").astype(np.int32)
    for first in range(0, len(order), strip):
        part = order[first : first + strip]
        part[:] = part[np.argsort(bases[part], kind="stable")]
    return order


def codes_topk(
    X: Features,
    model: Scorer,
    index: CodeIndex,
    k: int,
    *,
    beam_width: int,
    offsets: Float32 | None = None,
    temperature: float = 1.0,
    floor: float = 0.0,
    n_jobs: int | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The k best classes of each row among about `beam_width` with the highest guesses, which are scored
    exactly.

    Log-probabilities are normalised over all classes, **by guesses at those that were not scored**:
    differences between the classes of a row are exact, their level is not. A row's result depends neither on
    the other rows nor on the number of threads, but for the rounding of rows that go to exact search: where
    beams are wide, where more than four times as many classes as wanted are above the threshold.

    Parameters are those of `exact_topk`, and

    index
        Made by `CodeIndex.fit`.
    beam_width
        Classes to score, about; more where k classes need more. Of very many classes, one in 16 sets a row's
        threshold: under a hundred, their number is less certain.
    offsets
        Added to the biases, where `CodeIndex.fit` had them: log p_n of a distribution that is the same for
        all rows.
    """
    check_arguments(X, None, model, k, temperature, floor)
    own = _shifted(model, offsets)
    n_rows, n_classes = X.shape[0], len(index.order)
    kept = max(k, round(beam_width / index.share))
    expected = int(np.ceil(kept * index.share))
    if index.cost(expected) >= 1.0:
        return exact_topk(X, own, None, None, k, temperature=temperature, floor=floor, n_jobs=n_jobs)
    most = 4 * expected + LANES
    weights, biases = (
        np.require(own.weights, np.float32, ["C", "W"]),
        np.require(own.biases, np.float32, ["C", "W"]),
    )
    scale, sharpness = np.float32(own.feature_scale), np.float32(1.0 / temperature)
    threads = resolve_threads(n_jobs)
    rows_at_once = int(np.clip(_BLOCK_FOUND // most, ROWS_AT_ONCE, _BLOCK_ROWS))
    blocks = split(n_rows, max(1, min(rows_at_once, -(-n_rows // threads))))
    labels, log_prob = np.empty((n_rows, k), np.int32), np.empty((n_rows, k), np.float32)
    counts = np.zeros(n_rows, np.int32)

    def search(number: int) -> None:
        part = slice(*blocks[number])
        x = X[part].toarray() if sparse.issparse(X) else X[part]  # type: ignore[union-attr]
        x = np.require(x, np.float32, ["C", "W"])
        found, count, rest = np.empty((len(x), most), np.int32), counts[part], np.empty(len(x), np.float32)
        for a, b in split(len(x), _TABLED_ROWS):
            rest[a:b] = _find(x[a:b], index, kept, sharpness, found[a:b], count[a:b])
        scores = np.empty((len(x), most), np.float32)
        ends, listed = np.empty(n_classes, np.int64), np.empty(int(np.minimum(count, most).sum()), np.int32)
        kernels.list_rows(found, count, ends, listed)
        kernels.score_listed(x, ends, listed, most, index.order, weights, biases, scale, scores)
        kernels.choose_classes(
            scores, found, count, index.order, sharpness, rest, labels[part], log_prob[part]
        )

    run(search, len(blocks), threads)
    lifted = lift(log_prob, floor, n_classes)
    many = np.flatnonzero(counts > most)
    if len(many):  # rows to which most classes are the same
        options: dict[str, Any] = {"temperature": temperature, "floor": floor, "n_jobs": n_jobs}
        labels[many], lifted[many] = exact_topk(X[many], own, None, None, k, **options)
    return labels, lifted


def _find(
    x: Float32,
    index: CodeIndex,
    kept: int,
    sharpness: np.float32,
    found: NDArray[np.int32],
    counts: NDArray[np.int32],
) -> Float32:
    """Places of the classes with the highest guesses for each row; returns the log-mass of the others."""
    n_groups, n_tables = -(-len(x) // ROWS_AT_ONCE), 2 * index.codes.shape[1]
    turned = np.empty((len(x), len(index.turn)), np.float32)
    kernels.turn_rows(x, index.turn, index.shift, turned)
    shape = (n_groups, ROWS_AT_ONCE)
    tables = kernels.Tables(
        np.empty((*shape, n_tables, kernels.CENTRES), np.uint8), *np.empty((2, *shape), np.float32)
    )
    squares, thresholds, tails = np.empty((3, *shape), np.float32)
    entries = tables.entries.reshape(-1, n_tables, kernels.CENTRES)
    kernels.make_tables(
        turned,
        index.centres,
        entries,
        tables.steps.reshape(-1),
        tables.offsets.reshape(-1),
        squares.reshape(-1),
    )
    kernels.set_thresholds(index.sample, tables, kept, sharpness, thresholds, tails)
    kernels.find_classes(index.blocks, tables, thresholds, found, counts)
    tails *= np.float32(index.share)
    threshold, tail, square = (a.reshape(-1)[: len(x)] for a in (thresholds, tails, squares))
    return index.rest(turned[:, -4] + threshold, tail, square, float(sharpness))
