"""An index over the scores of all classes: cells of classes, and a linear guess at the best score in each.

Where the label tree's log-probability is no part of the scores, the best class of a row may hang anywhere in that tree.  Here
classes whose scores rise and fall together lie side by side: the weights, in a metric in which a distance is the root mean
square difference of two scores over the rows, are cut in halves of equal size again and again.  Each node g of the tree that
comes out has a linear guess at the best score among its classes,

    max over y in g of s_y(x)  ~  v_g . x + c_g,

by least squares over rows that were scored exactly.  A search keeps the nodes of the highest guesses at each level, at the
last one `beam_width` cells, and scores their classes exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy import sparse

from extremax.data.products import one_blas_thread
from extremax.kernels import cells as kernels
from extremax.parallel import resolve_threads, run, split
from extremax.predict.calibration import lift
from extremax.predict.scan import Features, Scorer
from extremax.predict.scores import check_arguments

Float32: TypeAlias = NDArray[np.float32]

LEAST_CLASSES = 2048  # fewer are scored as fast as chosen
MOST_FEATURES = 2048  # the least squares take their square in memory and their cube in time
# Share of the rows kept back whose exact best class the default width finds: where a thousand find 99.4%, others find 99%.
AGREEMENT = 0.994
_ROWS_PER_FEATURE = 16  # rows of the least squares for each feature ...
_ROWS = (2048, 8192)  # ... between these
MOST_JUDGES = 2048  # rows that choose the width ...
_FEW_JUDGES = 100  # ... and so few cannot tell one in a hundred: the default is then exact search
_ENOUGH_JUDGES = 500  # fewer that are given would leave the width to the hardest two or three: others take their place
_RIDGE = 1e-3  # of the mean variance of a feature: towards the mean weights of the cell
_LEAST_SPREAD = 0.5  # the children of the nodes kept are then enough
_LEAST_RIDGE = 1e-12  # rows have a mean square length of about one
_ITERATIONS, _SAMPLE = 4, 2048  # of two means, and the classes of a large node that they look at
_SUBTREE = 2048  # classes that are copied together before they are cut further
_TASK_CLASSES, _TASK_ROWS = 512, 1024  # whose scores a thread makes at a time: 2 MB
_BLOCK_ROWS = 2048  # rows that are searched together: the weights of a cell are read once for all of them
_BLOCK_SCORES = 1 << 23  # ... fewer where the beam is wide
_ROUTED_ROWS = 256  # rows of these that go through the levels together: they stay in the second cache
# Time of a score, choosing by it included, over that of one in exact search: at the first level, below it, and of a class.
_FIRST_SCORE, _NODE_SCORE, _CLASS_SCORE = 1.4, 1.9, 2.5


def sample_size(n_features: int) -> int:
    """Training rows that `CellIndex.fit` makes use of."""
    return int(np.clip(_ROWS_PER_FEATURE * n_features, *_ROWS)) + MOST_JUDGES


def index_bytes(n_classes: int, n_features: int) -> tuple[int, int]:
    """Bytes of an index, and those that fitting it takes beside."""
    if n_classes < LEAST_CLASSES or n_features > MOST_FEATURES:
        return 0, 0
    nodes = sum(1 << depth for depth in _depths(n_classes))
    rows = sample_size(n_features)
    judged = 8 * MOST_JUDGES * (1 << _depths(n_classes)[-1])  # their guesses at all cells, if all are made at once
    return 4 * (nodes * (n_features + 1) + n_classes), 4 * (n_classes + 2 * rows) * n_features + judged


def _depths(n_classes: int) -> list[int]:
    """Depths of the levels in use: cells of two to four classes at the last, and at least sqrt(C) nodes at the first."""
    last = (-(-n_classes // kernels.CHILDREN) - 1).bit_length()
    first = last
    while first >= 4 and 4 ** (first - 2) >= n_classes:
        first -= 2
    return list(range(first, last + 1, 2))


def _widths(depths: list[int], beam_width: int, spread: float) -> list[int]:
    """Nodes kept at each level."""
    above = max(int(np.ceil(beam_width * spread)), 1)
    return [min(beam_width if depth == depths[-1] else above, 1 << depth) for depth in depths]


def _cost(n_classes: int, depths: list[int], widths: list[int]) -> float:
    """Time of a search over that of scoring every class, roughly."""
    classes = widths[-1] * n_classes / (1 << depths[-1])
    first, others = 1 << depths[0], kernels.CHILDREN * sum(widths[:-1])
    return (_FIRST_SCORE * first + _NODE_SCORE * others + _CLASS_SCORE * classes) / n_classes


def _starts(n_classes: int, depth: int) -> NDArray[np.int64]:
    """Where each node of a depth begins in the order of the classes, and the end."""
    bounds = np.array([0, n_classes], np.int64)
    for _ in range(depth):
        middles = bounds[:-1] + (np.diff(bounds) + 1) // 2
        bounds = np.insert(bounds, np.arange(1, len(bounds)), middles)
    return bounds


@dataclass
class CellIndex:
    """Cells of classes and the guesses at their best scores; made by `fit`.

    Attributes
    ----------
    order
        Classes in the order of the cells, (n_classes,).
    depths
        Depths of the levels, from the top; a level has ``2 ** depth`` nodes.
    tables, biases
        Guesses at each level, (nodes, n_features) and (nodes,), for features multiplied by the model's scale.
    start
        The level that searches of the model's own width begin with.
    spread
        Nodes kept at each level above the last for every cell kept there.
    beam_width
        Cells to keep so that the exact best class is found in at least 99% of the rows; None where scoring all classes takes no
        longer.
    agreement
        Share of the rows kept back in `fit` whose exact best class that width finds.
    n_epochs
        Epochs that the model had been trained for.
    """

    order: NDArray[np.int32]
    depths: list[int]
    tables: list[Float32]
    biases: list[Float32]
    start: int = 0
    spread: float = 1.0
    beam_width: int | None = None
    agreement: float = 1.0
    n_epochs: int = 0

    def __post_init__(self) -> None:
        self.starts = _starts(len(self.order), self.depths[-1])

    @classmethod
    def fit(
        cls,
        X: Float32,
        model: Scorer,
        *,
        judges: Float32 | None = None,
        offsets: Float32 | None = None,
        n_jobs: int | None = None,
    ) -> CellIndex:
        """From rows; `judges`, rows that the model was not trained on, choose the width; `offsets` are added to the biases.

        Without judges, or with few, the last `MOST_JUDGES` of the rows, or a third, are kept back for it.  The model is surer
        of rows that it was trained on, and finds their best classes sooner than those of others.
        """
        threads = resolve_threads(n_jobs)
        scale = np.float32(model.feature_scale)
        n_classes, n_features = model.weights.shape
        biases = model.biases if offsets is None else model.biases + offsets
        if judges is None or len(judges) < _ENOUGH_JUDGES:
            kept_back = min(MOST_JUDGES, len(X) // 3)
            X, judges = X[: len(X) - kept_back], X[len(X) - kept_back :]
        rows = np.ascontiguousarray(X, np.float32) * scale
        mean = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        rows -= mean
        with one_blas_thread():
            gram = rows.T.astype(np.float64) @ rows / len(rows)
            ridge = max(_RIDGE * np.trace(gram) / n_features, _LEAST_RIDGE)
            factor = scipy.linalg.cholesky(gram + ridge * np.eye(n_features), lower=True)
            inverse = scipy.linalg.cho_solve((factor, True), np.eye(n_features))
            depths = _depths(n_classes)
            order = _cut(model.weights, factor.astype(np.float32), depths[-1], threads)
            at_mean = biases + model.weights @ mean
            fitted = _fit_maxima(rows, model.weights, at_mean, order, depths, gram, inverse, threads)
        index = cls(order, depths, [v for v, _ in fitted], [c - v @ mean for v, c in fitted])
        judges = np.ascontiguousarray(judges[:MOST_JUDGES], np.float32)
        if len(judges) >= _FEW_JUDGES:
            best = index._choose_width(judges, model, biases, scale, threads)
            index._narrow(judges, best, model, offsets, threads)
        return index

    def _choose_width(self, X: Float32, model: Scorer, biases: Float32, scale: np.float32, threads: int) -> NDArray[np.intp]:
        """Where to start and how many nodes to keep, so that most of the rows find their best class, soonest; returns it."""
        label = np.empty(len(X), np.intp)
        place = np.empty(len(self.order), np.int64)
        place[self.order] = np.arange(len(self.order))
        ranks = np.empty((len(self.depths), len(X)), np.int64)  # of the best class's node among those of its level
        cuts = split(len(X), 256)

        def work(number: int) -> None:
            rows = slice(*cuts[number])
            x = X[rows] * scale
            label[rows] = _best_class(x, model.weights, biases)
            best = place[label[rows]]
            for level, depth in enumerate(self.depths):
                guess = x @ self.tables[level].T + self.biases[level]
                own = np.searchsorted(_starts(len(self.order), depth), best, side="right") - 1
                ranks[level, rows] = (guess >= guess[np.arange(len(x)), own][:, None]).sum(axis=1)

        with one_blas_thread():
            run(work, len(cuts), threads)
        wanted = int(np.ceil(AGREEMENT * len(X)))
        choices = []
        for start in range(len(self.depths)):
            above = ranks[start:-1].max(axis=0, initial=1)
            for width in np.unique(np.sort(ranks[-1])[wanted - 1 :]):  # the more cells, the fewer nodes above may do
                spread = float(np.sort(above[ranks[-1] <= width])[wanted - 1] / width) if start + 1 < len(self.depths) else 1.0
                spread = max(spread, _LEAST_SPREAD)
                depths = self.depths[start:]
                choices.append((_cost(len(self.order), depths, _widths(depths, width, spread)), start, int(width), spread))
        _, self.start, self.beam_width, self.spread = min(choices)
        return label

    def _narrow(self, X: Float32, best: NDArray[np.intp], model: Scorer, offsets: Float32 | None, threads: int) -> None:
        """A width that searches confirm: they compare fewer nodes than `_choose_width` did, and may do with less."""
        assert self.beam_width is not None

        def found(width: int) -> float:
            labels, _ = cells_topk(X, model, self, 1, beam_width=width, offsets=offsets, n_jobs=threads)
            return float(np.mean(labels[:, 0] == best))

        high = self.beam_width
        self.agreement, self.beam_width = found(high), None
        low, step = high // 2, max(1, high // 32)
        while high - low > step:  # the agreement at `high` is known
            middle = (low + high + 1) // 2
            share = found(middle)
            if share >= min(AGREEMENT, self.agreement):
                high, self.agreement = middle, share
            else:
                low = middle
        if self.cost(high) < 1.0:
            self.beam_width = high
        else:  # exact search it is
            self.agreement = 1.0

    def plan(self, beam_width: int) -> tuple[int, list[int]]:
        """The level where a search begins, and the nodes it keeps there and at each level below.

        A beam narrower than the model's own may begin further up, where that is less work: it is to be fast.
        """
        starts = [self.start]
        if self.beam_width is not None and beam_width < self.beam_width:
            starts += range(self.start)
        plans = [(start, _widths(self.depths[start:], beam_width, self.spread)) for start in starts]
        return min(plans, key=lambda plan: _cost(len(self.order), self.depths[plan[0] :], plan[1]))

    def cost(self, beam_width: int) -> float:
        """Time of a search over that of scoring every class, roughly."""
        start, widths = self.plan(beam_width)
        return _cost(len(self.order), self.depths[start:], widths)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """What `from_arrays` takes, beside the fields of `header`."""
        return {"order": self.order, "weights": np.concatenate(self.tables), "biases": np.concatenate(self.biases)}

    def header(self) -> dict[str, Any]:
        """The rest, for a JSON header."""
        return {name: getattr(self, name) for name in ("depths", "start", "spread", "beam_width", "agreement", "n_epochs")}

    @classmethod
    def from_arrays(cls, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> CellIndex:
        """The index that `to_arrays` and `header` described."""
        ends = np.cumsum([1 << depth for depth in header["depths"]])
        tables, biases = (np.split(arrays[name], ends[:-1]) for name in ("weights", "biases"))
        return cls(arrays["order"], **{**header, "tables": tables, "biases": biases})


def _cut(weights: Float32, factor: Float32, depth: int, threads: int) -> NDArray[np.int32]:
    """The order of the classes in which the nodes of a balanced tree are runs of classes with like scores."""
    n_classes = len(weights)
    table = np.empty_like(weights)
    blocks = split(n_classes, 1 << 14)
    run(lambda i: np.matmul(weights[slice(*blocks[i])], factor, out=table[slice(*blocks[i])]), len(blocks), threads)
    order = np.arange(n_classes, dtype=np.int32)
    top = 0
    while top < depth and n_classes >> top > _SUBTREE:
        nodes = _starts(n_classes, top)

        def halve(i: int, nodes: NDArray[np.int64] = nodes) -> None:
            kernels.cut_levels(table, order[nodes[i] : nodes[i + 1]], 1, _ITERATIONS, _SAMPLE)

        run(halve, len(nodes) - 1, threads)
        top += 1
    nodes = _starts(n_classes, top)

    def cut(i: int) -> None:
        classes = order[nodes[i] : nodes[i + 1]]
        places = np.arange(len(classes), dtype=np.int32)
        kernels.cut_levels(np.take(table, classes, axis=0), places, depth - top, _ITERATIONS, _SAMPLE)
        classes[:] = classes[places]

    run(cut, len(nodes) - 1, threads)
    return order


def _fit_maxima(
    rows: Float32,
    weights: Float32,
    biases: Float32,
    order: NDArray[np.int32],
    depths: list[int],
    gram: NDArray[np.float64],
    inverse: NDArray[np.float64],
    threads: int,
) -> list[tuple[Float32, Float32]]:
    """Least squares for the best score in each node, at each level, over centred rows: slopes and values at the mean.

    Slopes are pulled to the mean weights of the node's classes, where the rows leave them open: `inverse` is that of `gram`,
    the mean of x x', with the ridge.
    """
    n_rows, n_features = rows.shape
    fitted = [(np.empty((1 << depth, n_features), np.float32), np.empty(1 << depth, np.float32)) for depth in depths]
    starts = _starts(len(order), depths[-1])
    sizes = np.diff(starts)
    width = int(sizes.max())
    # Cells of one size: a smaller one has its last class again, which changes no maximum.
    table = order[starts[:-1, None] + np.minimum(np.arange(width), sizes[:, None] - 1)]
    once = np.arange(width) < sizes[:, None]
    below = 1 << (depths[-1] - depths[0])  # cells under a node of the first level
    tasks, chunks = split(1 << depths[0], max(1, _TASK_CLASSES // (width * below))), split(n_rows, _TASK_ROWS)

    def work(number: int) -> None:
        first, last = tasks[number]
        cells = table[first * below : last * below]
        own = weights[cells.ravel()]
        nodes = [slice(first << (depth - depths[0]), last << (depth - depths[0])) for depth in depths]
        products = [np.zeros((part.stop - part.start, n_features)) for part in nodes]
        totals = [np.zeros(len(product)) for product in products]
        scores = np.empty((len(own), _TASK_ROWS), np.float32)
        for a, b in chunks:
            part = np.matmul(own, rows[a:b].T, out=scores[:, : b - a])
            part += biases[cells.ravel(), None]
            best = part.reshape(-1, width, b - a).max(axis=1)
            for level in range(len(depths) - 1, -1, -1):
                products[level] += best @ rows[a:b]
                totals[level] += best.sum(axis=1)
                best = best.reshape(-1, kernels.CHILDREN, b - a).max(axis=1) if level else best
        counted = once[first * below : last * below]
        sums = (own.reshape(*cells.shape, -1) * counted[:, :, None]).sum(axis=1, dtype=np.float64)
        count = counted.sum(axis=1)
        for level in range(len(depths) - 1, -1, -1):
            slopes, values = fitted[level]
            middle = sums / count[:, None]
            slopes[nodes[level]] = middle + (products[level] / n_rows - middle @ gram) @ inverse
            values[nodes[level]] = totals[level] / n_rows
            if level:
                sums, count = (v.reshape(-1, kernels.CHILDREN, *v.shape[1:]).sum(axis=1) for v in (sums, count))

    run(work, len(tasks), threads)
    return fitted


def _best_class(x: Float32, weights: Float32, biases: Float32) -> NDArray[np.intp]:
    best, label = np.full(len(x), -np.inf, np.float32), np.zeros(len(x), np.intp)
    for first, last in split(len(weights), 4096):
        scores = x @ weights[first:last].T
        scores += biases[first:last]
        highest = scores.argmax(axis=1)
        value = scores[np.arange(len(x)), highest]
        better = value > best
        best[better], label[better] = value[better], first + highest[better]
    return label


def cells_topk(
    X: Features,
    model: Scorer,
    index: CellIndex,
    k: int,
    *,
    beam_width: int,
    offsets: Float32 | None = None,
    temperature: float = 1.0,
    floor: float = 0.0,
    n_jobs: int | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The k best classes of each row among those of the `beam_width` cells that promise most.

    **Log-probabilities are normalised over the classes scored**, not over all.  A row's result depends neither on the other
    rows nor on the number of threads.  A beam as wide as there are cells is exact search.

    Parameters are those of `exact_topk`, and

    index
        Made by `CellIndex.fit`.
    beam_width
        Cells to keep; more where k classes need more.
    offsets
        Added to the biases, where `CellIndex.fit` had them: log p_n of a distribution that is the same for all rows.
    """
    check_arguments(X, None, model, k, temperature, floor)
    n_rows = X.shape[0]
    smallest = len(index.order) >> index.depths[-1]
    first, widths = index.plan(max(beam_width, -(-k // smallest)))
    biases = np.require(model.biases if offsets is None else model.biases + offsets, np.float32, ["C", "W"])
    weights, order = np.require(model.weights, np.float32, ["C", "W"]), np.require(index.order, np.int32, ["C", "W"])
    scale, sharpness = np.float32(model.feature_scale), np.float32(1.0 / temperature)
    starts = index.starts
    guesses = [
        (np.require(table, np.float32, ["C", "W"]), np.require(c, np.float32, ["C", "W"]))
        for table, c in zip(index.tables[first:], index.biases[first:], strict=True)
    ]
    threads = resolve_threads(n_jobs)
    columns = max(len(guesses[0][0]), kernels.CHILDREN * max(widths))
    most = min(_BLOCK_ROWS, max(16, _BLOCK_SCORES // columns), -(-n_rows // threads))
    blocks = split(n_rows, max(most, 1))
    labels, log_prob = np.empty((n_rows, k), np.int32), np.empty((n_rows, k), np.float32)

    def search(number: int) -> None:
        cut = slice(*blocks[number])
        x = X[cut].toarray() if sparse.issparse(X) else X[cut]  # type: ignore[union-attr]
        x = np.require(x, np.float32, ["C", "W"])
        scores, kept = np.empty((len(x), columns), np.float32), np.empty((len(x), widths[-1]), np.int32)
        places, listed = np.empty(kept.size, np.int32), np.empty((1 << index.depths[-1]) + 2, np.int64)
        for a, b in split(len(x), _ROUTED_ROWS):
            _route(x[a:b], guesses, widths, scale, scores[a:b], kept[a:b])
        kernels.list_rows(kept, listed, places)
        kernels.score_classes(x, widths[-1], listed, places, starts, order, weights, biases, scale, scores)
        kernels.choose_classes(scores, kept, starts, order, sharpness, labels[cut], log_prob[cut])

    run(search, len(blocks), threads)
    return labels, lift(log_prob, floor, len(model.weights))


def _route(
    x: Float32,
    guesses: list[tuple[Float32, Float32]],
    widths: list[int],
    scale: np.float32,
    scores: Float32,
    kept: NDArray[np.int32],
) -> None:
    """Fill `kept` with the best cells of each row; `scores` is scratch."""
    keys, before = np.empty(scores.shape[1], np.int32), np.empty((len(x), 0), np.int32)
    kernels.score_top(x, *guesses[0], scale, scores)
    n_scores = len(guesses[0][0])
    for level, width in enumerate(widths[:-1]):
        now = np.empty((len(x), width), np.int32)
        kernels.keep_best(scores, n_scores, before, keys, now)
        places, listed = np.empty(now.size, np.int32), np.empty(len(guesses[level][0]) + 2, np.int64)
        kernels.list_rows(now, listed, places)
        kernels.score_children(x, width, listed, places, *guesses[level + 1], scale, scores)
        before, n_scores = now, kernels.CHILDREN * width
    kernels.keep_best(scores, n_scores, before, keys, kept)
