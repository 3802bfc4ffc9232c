"""From features and class ids to a model ready to train: feature scale, projection, noise, empty weights; and
what memory it takes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax import search as predict
from extremax.features.pca import PCA
from extremax.features.whitening import Whitening, discriminants, fold, whiten_and_start
from extremax.labelled_rows import LabelledRows
from extremax.linear import EpochOptions, Features, LinearModel, TrainingSet, feature_scale
from extremax.model import ExtremeModel
from extremax.noise import FrequencyNoise, MixtureNoise, Noise, TreeNoise, UniformNoise, mean_log_prob
from extremax.runtime.progress import ProgressLine
from extremax.shared import ClassSets, SharedSet, default_cells, route
from extremax.training.objectives import OBJECTIVES, SHARED_OBJECTIVES, removes_bias
from extremax.tree import LabelTree
from extremax.tree.tuning import fit_tuned
from extremax.validation import check_memory, describe_memory

_SHARED_WIDTH = 1024  # features up to which whitening them is cheap
_SHARED_BATCH = 256
_SHARED_SCORES = 1 << 25  # scores of a minibatch at most
_SHARED_STEPS = 900  # minibatches of a whole fit, at least, where ...
_SHARED_EPOCHS = (5, 50)  # ... that takes a number of epochs between these
# Step sizes.  Where a class is met rarely, it must learn from a few steps: npm-owner-124k ends at 21.7%, with
# 0.5 at 20.2%.
_SHARED_RATES = (0.5, 1.0)
_SHARED_EXPONENT = 0.5  # of the class frequencies, beside the cells of the tree
# classes for each that a minibatch shares, up to which cells of the tree are worth their time
_CELL_CLASSES = 64
_JUDGED_PAIRS = 20_000  # pairs from which on some rows are set aside to calibrate the probabilities ...
_JUDGED_SHARE, _JUDGES = 1 / 40, 1024  # ... a fortieth, at most so many, ...
_JUDGED_SCORES = 1 << 27  # ... fewer where that makes more scores, ...
_FEWEST_JUDGES = 128  # ... but so many, or none where rows are too few for them
_JUDGES_IN_HASTE = 256  # of a fit that was interrupted: whoever did it is waiting
# The longest step of a class in whitened rows, which have about unit length: the most that it changes a
# score.  Minibatches of one cell have rows that are alike, and their gradients add up on the same classes.
# Without a limit, the first epoch on ICD-10-CM takes the log-likelihood from -2.8 to -5.8, and it ends at
# -2.07 instead of -2.04.
_CELL_LIMIT = 1.5
# gradients of full length that each class's Adagrad sum starts with: no first step is wild, ...
_FIRST_GRADIENTS = 20.0
# ... and with many features no first step changes a score by more than about 3.5 times the rate
_FIRST_SQUARE = 0.08
_FIRST_BIAS_SQUARE = 0.02
# parameters that may be left open
_RESOLVED = ("objective", "optimizer", "n_epochs", "learning_rate", "batch_size")
_START_PAIRS = 1 << 24  # log-probabilities of the noise that the start of NCE is averaged from


@dataclass(frozen=True)
class Options:
    """The settings of one fit; names and meanings are those of `ExtremeClassifier`."""

    objective: str
    noise: str | Noise
    optimizer: str
    n_epochs: int
    learning_rate: float
    n_negatives: int
    n_shared: int
    precondition: bool
    score_penalty: float
    prior_variance: float | None
    batch_size: int | None
    n_components: int
    regularization: float | str
    noise_exponent: float
    tree_share: float
    n_threads: int

    @property
    def uses_tree(self) -> bool:
        return self.noise in ("adversarial", "mixture")

    @property
    def linear_scores(self) -> bool:
        """Whether what is predicted is linear in the features: no noise is added to the scores, or one
        that all rows share.
        """
        return not removes_bias(self.objective) or self.noise in ("uniform", "frequency")

    @property
    def shares(self) -> bool:
        """Whether the rows of a minibatch share their classes (extremax.shared)."""
        return self.objective in SHARED_OBJECTIVES

    @property
    def decays(self) -> bool:
        """Whether the learning rate of a `fit` falls to zero; without the precondition, softmax is the
        textbook's.
        """
        return self.shares and self.precondition

    def defers_tree(self, n_classes: int) -> bool:
        """Whether the tree is fitted after training: it then serves beam search alone, and the epochs need
        not wait for it.

        With classes in abundance, those of a cell are no harder than others: on npm-owner-124k (124,250
        classes) cells changed nothing, on eurlex57k (3,935) they gave half a point."""
        return self.shares and self.uses_tree and _in_abundance(n_classes, self.n_shared)

    def set_size(self, n_classes: int) -> int:
        return n_classes if self.objective == "softmax" else min(self.n_shared, n_classes)


def _in_abundance(n_classes: int, n_shared: int) -> bool:
    return n_classes > _CELL_CLASSES * n_shared


def resolve(
    parameters: Mapping[str, Any],
    shape: tuple[int, int],
    n_classes: int,
    n_pairs: int,
    n_threads: int,
    *,
    streaming: bool = False,
) -> Options:
    """Fill in what the parameters of `ExtremeClassifier` leave open, from the size of the problem.

    `streaming` is for rows that arrive piece by piece: a start and a scale taken from the first piece would
    be arbitrary."""
    given = {name: value for name, value in parameters.items() if name in Options.__dataclass_fields__}
    if given["objective"] == "auto":
        fits = shape[1] <= _SHARED_WIDTH and isinstance(given["noise"], str) and not streaming
        fits = fits and given["prior_variance"] is None
        given["objective"] = "shared_softmax" if fits else "negative_sampling"
    shares = given["objective"] in SHARED_OBJECTIVES
    if shares and not isinstance(given["noise"], str):
        raise ValueError(
            f"objective={given['objective']!r} draws the classes of a minibatch by itself and cannot use noise of type"
            f" {type(given['noise']).__name__}. Use noise='adversarial', 'frequency' or 'uniform', or another objective."
        )
    size = n_classes if given["objective"] == "softmax" else min(given["n_shared"], n_classes)
    if given["batch_size"] is None:
        given["batch_size"] = default_batch_size(n_pairs, n_classes)
        if shares:
            given["batch_size"] = int(np.clip(min(n_pairs // 32, _SHARED_SCORES // size), 16, _SHARED_BATCH))
    batches = -(-n_pairs // given["batch_size"])
    defaults: dict[str, Any] = {"n_epochs": 20, "learning_rate": 0.3, "optimizer": "adagrad"}
    if shares:
        epochs = int(np.clip(-(-_SHARED_STEPS // batches), *_SHARED_EPOCHS))
        few, many = _SHARED_RATES
        rate = (many if _in_abundance(n_classes, size) else few) if given["precondition"] else 0.1
        defaults = {"n_epochs": epochs, "learning_rate": rate, "optimizer": "adagrad_row"}
    given |= {name: value for name, value in defaults.items() if given[name] is None}
    return Options(**given, n_threads=n_threads)


@dataclass(frozen=True)
class Preparation:
    """A model before its first epoch, and what was chosen from the data on the way."""

    model: ExtremeModel
    choices: dict[str, Any] = field(default_factory=dict)


def fit_memory(
    shape: tuple[int, int], n_classes: int, options: Options, *, keeps_best: bool, n_pairs: int | None = None
) -> dict[str, int]:
    """Bytes that `prepare` and training allocate, by part; X itself is the caller's.

    `n_pairs` counts the pairs of a row and a label, where rows have several.
    """
    n_rows, n_features = shape
    n_pairs = n_rows if n_pairs is None else n_pairs
    weights = 4 * n_classes * (n_features + 1)
    tables = LinearModel.bytes_needed(n_classes, n_features, optimizer=options.optimizer)
    k = min(options.n_components, n_features)
    leaves = 1 << max(n_classes - 1, 0).bit_length()
    need = {"weights": weights, "accumulators": tables - weights}
    if options.shares:
        size, batch = options.set_size(n_classes), min(options.batch_size or _SHARED_BATCH, n_pairs)
        need["rows"] = 4 * n_pairs * 10  # order, cells, and both once more while they are sorted
        need["minibatch"] = (
            4 * (batch * size + (2 * size + 2 * batch) * n_features) + 24 * n_classes + 64 * n_features**2
        )
    else:
        need["rows"] = 4 * n_pairs * (3 + 4 * options.n_negatives)
    if options.uses_tree:
        # Fitting keeps the projected rows, a copy sorted by class, and one sum per class beside the nodes.
        need |= {
            "tree": leaves * 4 * (k + 3),
            "tree features": 4 * (n_rows + n_pairs) * k + 8 * n_classes * (k + 2),
        }
    if keeps_best:
        need["best epoch"] = weights
    if options.linear_scores:
        need["index"] = sum(predict.index_bytes(n_classes, n_features))
    return need


def require_memory(
    data: LabelledRows,
    validation: LabelledRows | None,
    n_classes: int,
    options: Options,
    report: ProgressLine,
    *,
    patience: int | None,
    limit: int | None,
) -> None:
    """Say what a fit needs beside X, and refuse it where there is less."""
    X = data.X
    need = fit_memory(X.shape, n_classes, options, keeps_best=patience is not None, n_pairs=len(data.ids))
    ways_out = ["fewer features (a projection of X) shrink the tables", "fewer classes"]
    if options.optimizer == "adagrad":
        ways_out.insert(0, "optimizer='adagrad_row' halves the tables")
    row_bytes = (X.data.nbytes + X.indices.nbytes) // X.shape[0] if sparse.issparse(X) else 4 * X.shape[1]
    if _unpacks(data, options):
        need["unpacked rows"] = 4 * X.shape[0] * X.shape[1]
        ways_out.insert(0, "objective='negative_sampling' leaves sparse rows as they are")
    if validation is not None and validation.X is X:  # rows kept back are copied
        need["validation rows"] = row_bytes * len(np.unique(validation.row_index))
    report.say(f"fit needs {describe_memory(need)}")
    check_memory(need, available=limit, ways_out=ways_out)


def _unpacks(data: LabelledRows, options: Options) -> bool:
    return options.shares and sparse.issparse(data.X)


def unpack(data: LabelledRows, options: Options) -> LabelledRows:
    """Matrix products with whitened rows want them dense; other objectives train on sparse rows."""
    return replace(data, X=data.X.toarray()) if _unpacks(data, options) else data


def prepare(
    X: Features,
    ids: NDArray[np.int32],
    weight: NDArray[np.float32] | None,
    n_classes: int,
    options: Options,
    seed: int,
    report: ProgressLine,
    *,
    rows: NDArray[np.int64] | None = None,
) -> Preparation:
    """Scale, projection, noise and zero weights, from the training pairs.

    `ids` and `weight` are those of the pairs; `rows` is the row of X of each, None where pair i is row i.
    """
    # Rows without a pair are left out.  A row with several labels counts once for each, but not for the
    # scale.
    labelled = None if rows is None else np.bincount(rows, minlength=X.shape[0]) > 0
    scale = feature_scale(X, labelled)
    row_weight = weight if rows is None else np.bincount(rows, weights=weight, minlength=X.shape[0])
    jobs = options.n_threads
    n_features = int(X.shape[1])
    whitens = options.shares and options.precondition
    if options.uses_tree or whitens:
        report.say("projecting the features")
        kept = min(options.n_components, n_features)
        found = PCA.fit(X, n_features if whitens else kept, sample_weight=row_weight, n_jobs=jobs)
    linear = LinearModel.zeros(n_classes, n_features, optimizer=options.optimizer, feature_scale=scale)
    choices: dict[str, Any] = {name: getattr(options, name) for name in _RESOLVED}
    white = Whitening.none(n_features)
    if whitens:
        weights = np.ones(len(ids), np.float32) if weight is None else weight
        unit = float(weights.mean(dtype=np.float64))  # weights that sum to one train like weights of one
        weights = weights / np.float32(unit)
        linear.squares[...] = max(_FIRST_GRADIENTS / n_features, _FIRST_SQUARE) * unit**2
        linear.bias_squares[...] = _FIRST_BIAS_SQUARE * unit**2
        white, sharpness = whiten_and_start(linear, found, X, rows, ids, weights, seed=seed, n_threads=jobs)
        choices["sharpness"] = sharpness
    if options.uses_tree and whitens:
        counts = np.bincount(ids, weights=weight, minlength=n_classes)
        projection = discriminants(linear, white, counts, kept, sharpness, jobs)
    elif options.uses_tree:
        # The tree sees scaled features too: its regularization then means the same for features of any
        # magnitude.
        projection = PCA(
            found.components[:kept] * np.float32(scale),
            found.mean,
            found.explained_variance[:kept] * scale**2,
        )
    else:
        empty = np.empty((0, n_features), np.float32)
        projection = PCA(empty, np.zeros(n_features, np.float32), np.empty(0, np.float64))
    if whitens:
        fold(linear, white, jobs)
    if options.defers_tree(n_classes):
        noise: Noise = FrequencyNoise(np.bincount(ids, weights=weight, minlength=n_classes), _SHARED_EXPONENT)
    else:
        noise = _make_noise(X, ids, weight, rows, n_classes, options, projection, seed, report, choices)
    model = ExtremeModel(linear, noise, projection, options.objective)
    model.class_counts = np.bincount(ids, minlength=n_classes)
    model.n_samples = int(X.shape[0] if labelled is None else labelled.sum())
    if options.shares:
        model.whitening = white
    elif OBJECTIVES[options.objective].starts_at_noise:
        some = np.linspace(0, len(ids) - 1, min(len(ids), max(16, _START_PAIRS // n_classes))).astype(
            np.int64
        )
        some = some if rows is None else np.unique(rows[some])
        linear.biases[:] = mean_log_prob(noise, model.project(X[some], n_jobs=jobs), n_jobs=jobs)
    return Preparation(model, choices)


def set_judges_aside(
    data: LabelledRows, options: Options, n_classes: int, seed: int
) -> tuple[LabelledRows, LabelledRows | None]:
    """Of many rows, a few that only judge how sure the model may be of itself (`finish`)."""
    wanted = min(
        _JUDGES, int(_JUDGED_SHARE * data.X.shape[0]), max(_FEWEST_JUDGES, _JUDGED_SCORES // n_classes)
    )
    if not options.decays or len(data.ids) < _JUDGED_PAIRS or wanted < _FEWEST_JUDGES:
        return data, None
    rest, judges = data.set_aside(wanted, seed)
    return (rest, judges) if judges.X.shape[0] >= _FEWEST_JUDGES else (data, None)


def calibrate(
    model: ExtremeModel, judges: LabelledRows, options: Options, report: ProgressLine, choices: dict[str, Any]
) -> None:
    """Temperature and floor, by rows that were not trained on."""
    by = f"by {judges.X.shape[0]:,} rows that were not trained on"
    try:
        temperature, floor = model.calibrate(judges.X, judges.ids, rows=judges.rows, n_jobs=options.n_threads)
        report.say(f"temperature {temperature:.3f}, floor {floor:g}, {by}")
    except predict.ScoreOverflowError:  # one row far from all others is no reason to lose the model
        model.temperature, model.floor = 1.0, 0.0
        report.say(f"no temperature {by}: scores of one overflow")
    choices |= {"temperature": model.temperature, "floor": model.floor}


def calibrate_cut_short(
    model: ExtremeModel, judges: LabelledRows, options: Options, report: ProgressLine, choices: dict[str, Any]
) -> None:
    """The same after an interruption, by fewer rows; another one leaves the probabilities as they are."""
    with suppress(KeyboardInterrupt):
        calibrate(model, judges.some_rows(_JUDGES_IN_HASTE), options, report, choices)


def finish(
    model: ExtremeModel,
    data: LabelledRows,
    judges: LabelledRows | None,
    options: Options,
    seed: int,
    report: ProgressLine,
    choices: dict[str, Any],
    *,
    whole: bool = True,
) -> None:
    """What comes after the epochs: temperature and floor, by the judges; the tree, if it was put off
    (`Options.defers_tree`); in a `whole` fit, the index for beam search."""
    if judges is not None:
        calibrate(model, judges, options, report, choices)
    n_classes = model.linear.n_classes
    if model.tree is None and options.defers_tree(n_classes):
        X = data.X
        noise = _make_noise(
            X, data.ids, data.weight, data.rows, n_classes, options, model.projection, seed, report, choices
        )
        model.noise = noise
        model.class_means = _class_means(
            model.project(X, n_jobs=options.n_threads), data.ids, data.rows, n_classes
        )
    if whole and model.takes_index:
        report.say("fitting the index of beam search")
        labelled = None if data.rows is None else np.unique(data.rows)
        unseen = None if judges is None else judges.X
        model.fit_index(data.X, rows=labelled, judges=unseen, seed=seed, n_jobs=options.n_threads)
        assert model.index is not None
        width, found = model.index.beam_width, model.index.agreement
        choices |= {"beam_width": width, "beam_agreement": found}
        report.say(f"beam search: width {width}, the exact best class in {found:.1%} of the rows")


def _make_noise(
    X: Features,
    ids: NDArray[np.int32],
    weight: NDArray[np.float32] | None,
    rows: NDArray[np.int64] | None,
    n_classes: int,
    options: Options,
    projection: PCA,
    seed: int,
    report: ProgressLine,
    choices: dict[str, Any],
) -> Noise:
    if not isinstance(options.noise, str):
        if options.noise.n_classes != n_classes:
            raise ValueError(
                f"noise is a distribution over {options.noise.n_classes:,} classes, but y has {n_classes:,}."
                " Make it for the same classes."
            )
        return options.noise
    if options.noise == "uniform":
        return UniformNoise(n_classes)
    counts = np.bincount(ids, weights=weight, minlength=n_classes)
    if options.noise == "frequency":
        return FrequencyNoise(counts, options.noise_exponent)
    report.say(f"fitting the label tree over {n_classes:,} classes")
    Z = projection.transform(X, n_jobs=options.n_threads)
    if rows is not None:
        Z = Z[rows]
    if options.regularization == "auto":
        # Where the tree only proposes classes, and its probabilities are not part of the scores, a rough fit
        # does.
        tuned = fit_tuned(
            Z,
            ids,
            n_classes=n_classes,
            sample_weight=weight,
            rows=rows,
            rough=options.shares,
            n_jobs=options.n_threads,
            seed=seed,
        )
        tree = tuned.tree
        choices["regularization"] = tuned.strengths.tolist()
        choices["tree_held_out_log_likelihood"] = tuned.held_out_log_likelihood
        levels = ", ".join(f"{strength:g}" for strength in tuned.strengths)
        report.say(
            f"tree: regularization by level {levels}; held-out log-likelihood {tuned.held_out_log_likelihood:.4f}"
        )
    else:
        tree = LabelTree.fit(
            Z,
            ids,
            n_classes=n_classes,
            regularization=options.regularization,
            sample_weight=weight,
            n_jobs=options.n_threads,
            random_state=seed,
        )
    if options.noise == "adversarial":
        return TreeNoise(tree)
    return MixtureNoise(
        TreeNoise(tree), FrequencyNoise(counts, options.noise_exponent), weight=options.tree_share
    )


def training_set(
    model: ExtremeModel,
    X: Features,
    ids: NDArray[np.int32],
    weight: NDArray[np.float32] | None,
    options: Options,
    seed: int,
    *,
    rows: NDArray[np.int64] | None = None,
) -> tuple[TrainingSet | SharedSet, EpochOptions | None]:
    """The pairs in the form that epochs take, with what can be computed once; arguments as in `prepare`."""
    if options.shares:
        return _shared_set(model, X, ids, weight, options, seed, rows), None
    Z = model.project(X, n_jobs=options.n_threads)
    log_noise = model.noise.log_prob(Z if rows is None else Z[rows], ids, n_jobs=options.n_threads)
    if model.tree is not None and model.class_means is None:
        model.class_means = _class_means(Z, ids, rows, model.linear.n_classes)
    weights = np.ones(len(ids), np.float32) if weight is None else weight
    data = TrainingSet(X, ids, Z, weights, log_noise, rows)
    batch = options.batch_size or default_batch_size(len(ids), model.linear.n_classes)
    return data, EpochOptions(
        # prediction undoes the bias of this one, whatever the settings say by now
        objective=OBJECTIVES[model.objective],
        noise=model.noise,
        n_negatives=options.n_negatives,
        score_penalty=options.score_penalty,
        prior_variance=options.prior_variance,
        batch_size=batch,
        seed=seed,
        n_threads=options.n_threads,
    )


def _class_means(
    Z: NDArray[np.float32], ids: NDArray[np.int32], rows: NDArray[np.int64] | None, n_classes: int
) -> NDArray[np.float16]:
    counts = np.maximum(np.bincount(ids, minlength=n_classes), 1)
    # to be looked at, not calculated with: half the bytes will do
    means = np.empty((n_classes, Z.shape[1]), np.float16)
    for j in range(Z.shape[1]):
        column = Z[:, j] if rows is None else Z[rows, j]
        means[:, j] = np.bincount(ids, weights=column, minlength=n_classes) / counts
    return means


def _shared_set(
    model: ExtremeModel,
    X: Features,
    ids: NDArray[np.int32],
    weight: NDArray[np.float32] | None,
    options: Options,
    seed: int,
    rows: NDArray[np.int64] | None,
) -> SharedSet:
    n_classes, jobs = model.linear.n_classes, options.n_threads
    size = options.set_size(n_classes)
    cells = None
    if model.tree is not None:
        Z = model.project(X, n_jobs=jobs)
        if model.class_means is None:
            model.class_means = _class_means(Z, ids, rows, n_classes)
        n_cells = (
            default_cells(len(ids), model.tree)
            if size < n_classes and not options.defers_tree(n_classes)
            else 1
        )
        if n_cells > 1:
            cells = route(model.tree, Z, n_cells, jobs)
            cells = cells if rows is None else cells[rows]
    exponent = {"uniform": 0.0, "frequency": options.noise_exponent}.get(str(options.noise), _SHARED_EXPONENT)
    counts = np.bincount(ids, weights=weight, minlength=n_classes).astype(np.float64)
    sets = ClassSets.make(counts, size, exponent=exponent, cells=cells, y=ids)
    assert model.whitening is not None
    batch = min(options.batch_size or _SHARED_BATCH, len(ids))
    weights = np.ones(len(ids), np.float32) if weight is None else weight
    limit = _CELL_LIMIT if cells is not None and options.precondition else np.inf
    return SharedSet(
        X,
        ids,
        weights,
        rows,
        sets,
        cells,
        model.whitening,
        model.linear.feature_scale,
        batch,
        seed,
        jobs,
        limit,
    )


def default_batch_size(n_rows: int, n_classes: int) -> int:
    """Few enough rows that hardly two share a class (they see each other's update late) and that all stay
    in the cache.
    """
    return int(np.clip(min(n_classes // 16, n_rows // 32), 16, 512))
