"""The solvers by name, their parameters, and how open parameters are filled in.

A solver is a light object without training code, importable without numba; `Solver.make_trainer` imports the
trainer.  Formulas stand beside the kernels: `extremax.kernels.row_losses` for negatives drawn for each row
(negative sampling is the paper's Eq. 6), `extremax.kernels.batch_softmax` for classes that a minibatch
shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar

import numpy as np
from sklearn.base import BaseEstimator

from extremax.examples import FeatureLayout
from extremax.params import PARAMETERS, check_values, documented
from extremax.tuned import BatchConfig, Defaults, ProblemSize, RowConfig, SparseConfig, has_many_classes
from extremax.validation.constraints import Choice

if TYPE_CHECKING:
    from extremax.runtime.context import Context
    from extremax.solvers.base import Trainer
    from extremax.solvers.config import FitConfig
    from extremax.tree.noise import Noise

S = TypeVar("S", bound="Solver")
Optimizer = Literal["adagrad", "adagrad_row", "sgd"]
_OPEN = ("optimizer", "learning_rate", "batch_size", "score_penalty")  # None leaves them open
CUSTOM_NOISE = "custom"  # stands for a noise object in a model folder
SOLVERS: dict[str, type[Solver]] = {}


def register_solver(cls: type[Solver]) -> type[Solver]:
    """Make a solver known by its name, to the classifier and to saved models.

    The kernel of a loss of one's own is registered with `extremax.kernels.row_losses.register_loss`.
    """
    if cls.name in SOLVERS or cls.name == "auto":
        raise ValueError(f"there is a solver {cls.name!r} already; choose another name.")
    SOLVERS[cls.name] = cls
    return cls


@dataclass(repr=False, kw_only=True)
class Solver(BaseEstimator):
    """A training algorithm with its parameters.

    Attributes
    ----------
    name
        Its name as a string: ``ExtremeClassifier(solver=name)``.
    adds_log_noise
        Whether prediction adds log p_n to the scores (Eq. 5).
    uses_noise
        Whether negatives are drawn for each row, from a noise distribution.
    sparse_weights
        Whether weights are stored where they are not zero.
    renews_whitening
        Whether the whitening of a stream is made anew from all rows so far.
    uses_folds
        Whether folds may choose the learning rate and calibrate, where "auto" has few rows.
    fixed
        Parameters that the first call fixes: later ones go on with the same tables, tree and noise.
    """

    name: ClassVar[str]
    adds_log_noise: ClassVar[bool] = False
    uses_noise: ClassVar[bool] = False
    sparse_weights: ClassVar[bool] = False
    renews_whitening: ClassVar[bool] = False
    uses_folds: ClassVar[bool] = False
    fixed: ClassVar[tuple[str, ...]] = ()

    @property
    def decays(self) -> bool:
        """Whether the learning rate of a whole fit falls to zero."""
        return True

    def check(self) -> None:
        """Raise for parameters that are wrong, alone or together."""
        check_values(type(self).__name__, self.get_params(deep=False))

    def refuse(self, layout: FeatureLayout) -> None:
        """Raise for features that the solver cannot train on."""
        if layout.n_dense:
            raise ValueError(
                f"{type(self).__name__} cannot use a pair of sparse and dense features; use solver='auto' or"
                " 'sparse_softmax'."
            )

    def resolved(self, problem: ProblemSize, numbers: Defaults) -> Self:
        """Return the solver with nothing left open."""
        return self

    def default_epochs(
        self, problem: ProblemSize, layout: FeatureLayout, numbers: Defaults, *, streaming: bool = False
    ) -> int:
        """Return the epochs of a fit, for a solver with nothing left open."""
        raise NotImplementedError

    def resumed(self, given: Solver | None, numbers: Defaults, *, is_whitened: bool) -> Self:
        """Return the solver for further training; `given` holds parameters that a user may have changed."""
        if given is None or type(given) is not type(self):
            return self
        changed = {n: v for n, v in given.get_params(deep=False).items() if n not in self.fixed}
        return replace(self, **{n: v for n, v in changed.items() if v is not None or n not in _OPEN})

    def make_trainer(self, config: FitConfig, context: Context) -> Trainer:
        """Return the trainer for a resolved configuration."""
        raise NotImplementedError

    def header(self) -> dict[str, Any]:
        """Return name and parameters as JSON can hold them."""
        given = self.get_params(deep=False)
        return {"name": self.name} | {
            n: v.item() if isinstance(v, np.generic) else v for n, v in given.items()
        }

    def changed(self) -> dict[str, Any]:
        """Return the header without parameters that have their defaults."""
        return {n: v for n, v in self.header().items() if n == "name" or v != PARAMETERS[n].default}

    def chosen(self) -> dict[str, Any]:
        """Return those of its resolved parameters that may be left open, for `choices_`."""
        own = self.get_params(deep=False)
        return {name: own[name] for name in ("optimizer", "learning_rate", "batch_size") if name in own}


@dataclass(repr=False, kw_only=True)
class ExactSteps(Solver):
    """Solvers whose steps are exact: they have no step size."""

    learning_rate = 1.0


@register_solver
@dataclass(repr=False, kw_only=True)
class CandidateSoftmax(ExactSteps):
    """Softmax over the classes that score highest for each row, class by class in the dual.

    The default for dense features. It has no parameters.
    """

    name = "candidate_softmax"

    def resolved(self, problem: ProblemSize, numbers: Defaults) -> Self:
        if problem.n_entries is not None and problem.n_features > numbers.batch.max_features:
            raise ValueError(
                f"candidate_softmax would unpack all {problem.n_features:,} columns of a sparse X; use"
                " solver='sparse_softmax', or fewer columns."
            )
        return self

    def default_epochs(
        self, problem: ProblemSize, layout: FeatureLayout, numbers: Defaults, *, streaming: bool = False
    ) -> int:
        return numbers.candidates.n_epochs

    def make_trainer(self, config: FitConfig, context: Context) -> Trainer:
        from extremax.solvers.candidate import CandidateTrainer

        return CandidateTrainer(config, context)


@register_solver
@dataclass(repr=False, kw_only=True)
class SparseSoftmax(ExactSteps):
    """Weights for sparse features of any number, such as words, stored where they are not zero.

    Training starts from a naive Bayes model. It has no parameters.
    """

    name = "sparse_softmax"
    sparse_weights = True

    def refuse(self, layout: FeatureLayout) -> None:
        """Take all features, also pairs of sparse and dense features."""

    def default_epochs(
        self, problem: ProblemSize, layout: FeatureLayout, numbers: Defaults, *, streaming: bool = False
    ) -> int:
        one = streaming or (layout.is_text and not problem.several_labels)
        return numbers.sparse.n_epochs if one else numbers.sparse.n_epochs_more

    def make_trainer(self, config: FitConfig, context: Context) -> Trainer:
        from extremax.solvers.sparse.solver import SparseTrainer

        return SparseTrainer(config, context)


@register_solver
@documented(name for name, entry in PARAMETERS.items() if "MinibatchSoftmax" in entry.solvers)
@dataclass(repr=False, kw_only=True)
class MinibatchSoftmax(Solver):
    """Softmax over classes that the rows of a minibatch share, or over all classes.

    {parameters}
    """

    n_shared: int | None = 1024
    noise: Literal["tree", "uniform", "frequency"] = "tree"
    learning_rate: float | None = None
    optimizer: Optimizer | None = None
    score_penalty: float | None = None
    batch_size: int | None = None
    precondition: bool = True
    tree_components: int = 32
    tree_regularization: float | Literal["auto"] = "auto"
    noise_exponent: float = 1.0
    scale_features: bool = True

    name = "minibatch_softmax"
    renews_whitening = True
    uses_folds = True
    fixed = (
        "noise",
        "optimizer",
        "precondition",
        "tree_components",
        "tree_regularization",
        "scale_features",
        "noise_exponent",
    )

    @property
    def decays(self) -> bool:
        return self.precondition

    @property
    def uses_tree(self) -> bool:
        return self.noise == "tree"

    def set_size(self, n_classes: int) -> int:
        """Return the number of classes that a minibatch shares."""
        return n_classes if self.n_shared is None else min(self.n_shared, n_classes)

    def check(self) -> None:
        super().check()
        if self.noise not in ("tree", "uniform", "frequency"):
            raise ValueError(
                "MinibatchSoftmax draws the classes of a minibatch by noise='tree', 'uniform' or 'frequency';"
                f" got {self.noise!r}. NegativeSampling takes other noise."
            )

    def resolved(self, problem: ProblemSize, numbers: Defaults) -> Self:
        batch, size = numbers.batch, self.set_size(problem.n_classes)
        wanted = min(problem.n_pairs // batch.batches_per_epoch, batch.max_scores // size)
        rate = batch.learning_rate_plain
        if self.precondition:
            many = has_many_classes(problem.n_classes, size, batch)
            rate = batch.learning_rate_many_classes if many else batch.learning_rate
        return _filled(
            self,
            batch_size=int(np.clip(wanted, batch.min_batch, batch.max_batch)),
            learning_rate=rate,
            optimizer=batch.optimizer,
            score_penalty=0.0,
        )

    def default_epochs(
        self, problem: ProblemSize, layout: FeatureLayout, numbers: Defaults, *, streaming: bool = False
    ) -> int:
        batch, n_batches = numbers.batch, -(-problem.n_pairs // (self.batch_size or 1))
        return int(np.clip(-(-batch.min_steps // n_batches), batch.min_epochs, batch.max_epochs))

    def resumed(self, given: Solver | None, numbers: Defaults, *, is_whitened: bool) -> Self:
        found = super().resumed(given, numbers, is_whitened=is_whitened)
        is_open = type(given) is not type(self) or given.get_params()["learning_rate"] is None
        if is_whitened and not self.precondition and is_open:  # a stream got its whitening on the way
            return replace(found, learning_rate=numbers.batch.learning_rate)
        return found

    def make_trainer(self, config: FitConfig, context: Context) -> Trainer:
        from extremax.solvers.minibatch import MinibatchTrainer

        return MinibatchTrainer(config, context)


@register_solver
@documented(name for name, entry in PARAMETERS.items() if "NegativeSampling" in entry.solvers)
@dataclass(repr=False, kw_only=True)
class NegativeSampling(Solver):
    """The paper's method: negatives are drawn for each row, by default from a label tree.

    {parameters}
    """

    noise: Literal["tree", "uniform", "frequency", "mixture"] | Noise = "tree"
    n_negatives: int = 4
    learning_rate: float | None = None
    optimizer: Optimizer | None = None
    score_penalty: float | None = None
    batch_size: int | None = None
    tree_components: int = 32
    tree_regularization: float | Literal["auto"] = "auto"
    noise_exponent: float = 1.0
    tree_share: float = 0.9
    prior_variance: float | None = None
    penalized_scores: Literal["debiased", "raw"] = "debiased"
    tree_fit: Literal["default", "paper"] = "default"
    whiten_components: bool = False
    scale_features: bool = True

    name = "negative_sampling"
    adds_log_noise = True
    uses_noise = True
    starts_at_noise: ClassVar[bool] = False  # biases start at the mean of log p_n
    pair_state: ClassVar[bool] = False  # each training pair keeps a number (eta) from epoch to epoch
    fixed = (
        "noise",
        "optimizer",
        "tree_components",
        "tree_regularization",
        "tree_fit",
        "whiten_components",
        "scale_features",
        "noise_exponent",
        "tree_share",
    )

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """Return the paper's algorithm and parameters, with some changed.

        Bamler and Mandt, "Extreme Classification via Adversarial Softmax Approximation": one negative per
        row, a label tree fitted to the letter on 16 principal components of all rows with lambda_n = 0.1,
        features as given, and rho and lambda of Table 1.

        Examples
        --------
        >>> NegativeSampling.paper(learning_rate=0.003).tree_components
        16
        """
        return cls(**PAPER | changes)

    @property
    def decays(self) -> bool:
        return False

    @property
    def uses_tree(self) -> bool:
        return isinstance(self.noise, str) and self.noise in ("tree", "mixture")

    def check(self) -> None:
        super().check()
        if self.penalized_scores == "raw" and type(self).loss is not NegativeSampling.loss:
            raise ValueError(
                f"penalized_scores is 'raw', but the penalty of {type(self).__name__} has one reading; the"
                " parameter is for NegativeSampling."
            )
        if self.tree_fit == "paper" and self.tree_regularization == "auto":
            raise ValueError(
                "tree_fit='paper' needs a number as tree_regularization, 0.1 in the paper: levels of their"
                " own are not part of it."
            )

    def resolved(self, problem: ProblemSize, numbers: Defaults) -> Self:
        from extremax.tree.noise import as_noise

        rows = numbers.rows
        return _filled(
            self if isinstance(self.noise, str) else replace(self, noise=as_noise(self.noise)),
            batch_size=row_batch_size(problem, rows),
            learning_rate=rows.learning_rate,
            optimizer=rows.optimizer,
            score_penalty=rows.score_penalty,
        )

    def default_epochs(
        self, problem: ProblemSize, layout: FeatureLayout, numbers: Defaults, *, streaming: bool = False
    ) -> int:
        return numbers.rows.n_epochs

    def header(self) -> dict[str, Any]:
        return super().header() | {"noise": self.noise if isinstance(self.noise, str) else CUSTOM_NOISE}

    def loss(self, epoch: int, config: RowConfig) -> Any:
        """Return the parameters of the loss in an epoch, from 0; their class selects the kernel."""
        from extremax.kernels.row_losses import negative_sampling

        penalty = np.float32(self.score_penalty)
        return negative_sampling(penalty, self.n_negatives, is_raw=self.penalized_scores == "raw")

    def make_trainer(self, config: FitConfig, context: Context) -> Trainer:
        from extremax.solvers.negative_sampling import RowTrainer

        return RowTrainer(config, context)


# Section 5: one negative, k = 16, lambda_n = 0.1, Adagrad, features as they come; rho and lambda are those of
# Table 1 for the proposed method, the same on both data sets.
PAPER: dict[str, Any] = {
    "noise": "tree",
    "n_negatives": 1,
    "optimizer": "adagrad",
    "learning_rate": 0.01,
    "score_penalty": 0.001,
    "tree_components": 16,
    "tree_regularization": 0.1,
    "tree_fit": "paper",
    "scale_features": False,
}


@register_solver
@dataclass(repr=False, kw_only=True)
class NCE(NegativeSampling):
    """Noise contrastive estimation: scores are log-probabilities. Parameters: see `NegativeSampling`.

    Biases start at the mean of log p_n; in `NCEFromZero` they start at zero, as in the paper.
    """

    name = "nce"
    adds_log_noise = False
    starts_at_noise = True  # scores that are log-probabilities stall far from them

    def loss(self, epoch: int, config: RowConfig) -> Any:
        from extremax.kernels.row_losses import noise_contrastive

        return noise_contrastive(np.float32(self.score_penalty), self.n_negatives)


@register_solver
@dataclass(repr=False, kw_only=True)
class NCEFromZero(NCE):
    """NCE whose biases start at zero, a baseline of the paper. Parameters: see `NegativeSampling`.

    Every logit then starts near log C, and training stalls for many epochs.
    """

    name = "nce_from_zero"
    starts_at_noise = False


@register_solver
@dataclass(repr=False, kw_only=True)
class SampledSoftmax(NegativeSampling):
    """Sampled softmax, a baseline. Parameters: see `NegativeSampling`."""

    name = "sampled_softmax"

    def loss(self, epoch: int, config: RowConfig) -> Any:
        from extremax.kernels.row_losses import SampledSoftmax as Kernel

        return Kernel(np.float32(self.score_penalty))


@register_solver
@dataclass(repr=False, kw_only=True)
class OneVsEach(NegativeSampling):
    """The bound of Titsias (2016), a baseline of the paper. Parameters: see `NegativeSampling`."""

    name = "one_vs_each"

    def loss(self, epoch: int, config: RowConfig) -> Any:
        from extremax.kernels.row_losses import OneVsEach as Kernel

        return Kernel(np.float32(self.score_penalty))


@register_solver
@dataclass(repr=False, kw_only=True)
class AugmentReduce(NegativeSampling):
    """Augment and Reduce, a baseline of the paper. Parameters: see `NegativeSampling`."""

    name = "augment_reduce"
    pair_state = True

    def loss(self, epoch: int, config: RowConfig) -> Any:
        from extremax.kernels.row_losses import AugmentReduce as Kernel

        decay = (1.0 + epoch) ** -config.augment_reduce_decay
        return Kernel(np.float32(self.score_penalty), np.float32(decay))


def _filled(solver: S, **defaults: Any) -> S:
    """Return a solver with its open parameters filled in."""
    given = solver.get_params(deep=False)
    return replace(solver, **{name: value for name, value in defaults.items() if given[name] is None})


def make_solver(
    name: str, given: Mapping[str, Any], spell: Callable[[str], str] = str, *, option: str = "solver"
) -> str | Solver:
    """Return the solver of a name with parameters that were given apart from it.

    `spell` turns a parameter into what a user wrote, such as ``--learning-rate``.

    Examples
    --------
    >>> make_solver("minibatch_softmax", {"n_shared": 64}).n_shared
    64
    """
    if not given:
        return name
    own = () if name == "auto" else [entry.name for entry in fields(SOLVERS[name])]
    for parameter in given:
        if parameter not in own:
            takers = [n for n, cls in SOLVERS.items() if parameter in {entry.name for entry in fields(cls)}]
            known = ", ".join(takers)
            raise ValueError(f"{spell(parameter)} needs {spell(option)} to be one of {known}; it is {name}.")
    return SOLVERS[name](**given)


def solver_names() -> Choice:
    """Return the names that ``ExtremeClassifier(solver=...)`` takes."""
    return Choice(("auto", *SOLVERS))


def find_solver(solver: str | Solver) -> Solver:
    """Return a solver object, for a name one with default parameters."""
    return SOLVERS[solver]() if isinstance(solver, str) else solver


def restore_solver(content: Mapping[str, Any], noise: Noise | None = None) -> Solver:
    """Return the solver of a header; parameters that an earlier version did not have get their defaults."""
    given = {name: value for name, value in content.items() if name != "name"}
    if given.get("noise") == CUSTOM_NOISE and noise is not None:
        given["noise"] = noise
    names = Choice(tuple(SOLVERS))
    if not names.accepts(content.get("name")):
        raise ValueError(f"the solver of the model is {content.get('name')!r}; it must be {names}.")
    cls = SOLVERS[content["name"]]
    own = {entry.name for entry in fields(cls)}
    return cls(**{name: value for name, value in given.items() if name in own})


# -- what "auto" and open parameters depend on ---------------------------------------------------------------


def choose_solver(
    problem: ProblemSize,
    layout: FeatureLayout,
    numbers: Defaults,
    *,
    streaming: bool = False,
    n_seen: int | None = None,
) -> Solver:
    """Return the solver that "auto" stands for, by the shape and storage of the data alone.

    `streaming` is for rows that arrive in parts; `n_seen` is the number of classes in the first part.
    """
    if layout.n_dense or layout.is_text or is_wide_and_sparse(problem, numbers.sparse):
        return SparseSoftmax()
    if problem.n_features > numbers.batch.max_features:
        return NegativeSampling()
    if streaming:
        enough = n_seen is None or is_representative(problem, n_seen, numbers.batch)
        return MinibatchSoftmax(precondition=enough)
    return CandidateSoftmax() if is_scored_once(problem, numbers) else MinibatchSoftmax()


def is_wide_and_sparse(problem: ProblemSize, config: SparseConfig) -> bool:
    """Whether features are so wide and sparse that only non-zero weights are stored."""
    if problem.n_entries is None or problem.n_features < config.min_features:
        return False
    return problem.n_entries <= config.max_density * problem.n_rows * problem.n_features


def is_small(problem: ProblemSize, numbers: Defaults) -> bool:
    """Whether rows of one label each are too few to hold some out, and enough to be left out by folds."""
    least, most = numbers.calibration.label_min_rows, numbers.calibration.min_pairs
    return least <= problem.n_pairs < most and problem.n_pairs <= problem.n_rows


def is_scored_once(problem: ProblemSize, numbers: Defaults) -> bool:
    """Whether classes are more than a minibatch shares, and few enough to score every row against them.

    Not for rows with several labels: class by class, those of a row are ordered poorly (lab/notes.md).
    """
    config, n_shared = numbers.candidates, PARAMETERS["n_shared"].default
    values = problem.n_rows * problem.n_features
    enough = problem.n_classes > n_shared and config.min_pairs <= problem.n_pairs <= problem.n_rows
    return enough and values <= config.max_values and values * problem.n_classes <= config.max_work


def is_representative(problem: ProblemSize, n_seen: int, config: BatchConfig) -> bool:
    """Whether the first part of a stream is enough to whiten the features and to start from class means.

    `n_seen` is the number of classes in it: rows sorted by class would give a start that leaves out others.
    """
    wanted = max(2.0, config.stream_classes * min(problem.n_classes, problem.n_rows))
    return problem.n_rows >= config.stream_rows * problem.n_features and n_seen >= wanted


def row_batch_size(problem: ProblemSize, config: RowConfig) -> int:
    """Return a minibatch in which hardly two rows share a class, and which stays in the cache."""
    wanted = min(problem.n_classes // config.classes_per_row, problem.n_pairs // config.batches_per_epoch)
    return int(np.clip(wanted, config.min_batch, config.max_batch))
