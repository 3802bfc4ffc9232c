"""The resolved configuration of one fit: public parameters with nothing left open, and all tuned numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self, get_type_hints

import numpy as np

from extremax.solvers.objectives import OBJECTIVES, Objective
from extremax.tree.noise import Noise
from extremax.tuned import (
    DEFAULTS,
    BatchConfig,
    Defaults,
    ProblemSize,
    RowConfig,
    SparseConfig,
    has_many_classes,
    has_type,
    restore_numbers,
)

CUSTOM_NOISE = "custom"
BATCH_OBJECTIVES = tuple(name for name, objective in OBJECTIVES.items() if objective.shares_classes)
# Parameters that may be left open.
RESOLVED = ("objective", "optimizer", "n_epochs", "learning_rate", "batch_size", "score_penalty")
# Parameters that the first call fixes: later ones go on with the same tables, tree and noise.
FIXED = (
    "objective",
    "noise",
    "optimizer",
    "precondition",
    "tree_components",
    "tree_regularization",
    "tree_fit",
    "whiten_components",
    "scale_features",
    "noise_exponent",
    "tree_share",
)


@dataclass(frozen=True)
class FitConfig:
    """The public parameters of one fit, resolved, and the tuned numbers of every component."""

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
    batch_size: int
    tree_components: int
    tree_regularization: float | str
    noise_exponent: float
    tree_share: float
    penalized_scores: str = "debiased"
    tree_fit: str = "default"
    whiten_components: bool = False
    scale_features: bool = True
    max_model_bytes: int | None = None
    numbers: Defaults = field(default_factory=Defaults)
    n_dense: int = 0  # last columns of X that every row has, beside sparse ones
    column_groups: tuple[int, ...] = ()  # first columns of groups: words, runs of words; before, characters
    streaming: bool = False  # rows arrive in parts, in calls of partial_fit
    renews_whitening: bool = False  # ... and the whitening is made anew from all of them

    @property
    def definition(self) -> Objective:
        """The objective's entry in the registry."""
        return OBJECTIVES[self.objective]

    @property
    def uses_tree(self) -> bool:
        return self.noise in ("adversarial", "tree", "mixture")

    @property
    def decays(self) -> bool:
        """Whether the learning rate of a whole fit falls to zero."""
        trainer = self.definition.trainer
        return (trainer == "batch" and self.precondition) or trainer in ("candidates", "sparse")

    def set_size(self, n_classes: int) -> int:
        """Return how many classes a minibatch shares."""
        return n_classes if self.definition.all_classes else min(self.n_shared, n_classes)

    def to_dict(self) -> dict[str, Any]:
        """Return the config as JSON can hold it."""
        plain = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        noise = self.noise if isinstance(self.noise, str) else CUSTOM_NOISE
        return {**plain, "noise": noise, "numbers": asdict(self.numbers)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], noise: Noise | None = None) -> Self:
        """Restore a config; numbers that an earlier version did not have get today's values."""
        known, hints = {entry.name for entry in fields(cls)}, get_type_hints(cls)
        given = {name: value for name, value in content.items() if name in known}
        given["numbers"] = restore_numbers(Defaults, _earlier_numbers(content.get("numbers", {})))
        given["column_groups"] = tuple(content.get("column_groups", ()))
        if "penalized_scores" not in given and content.get("objective") in BATCH_OBJECTIVES:
            given["score_penalty"] = 0.0  # it had no effect there in the version that wrote it
        for entry in fields(cls):
            kind = str if entry.name == "noise" else hints[entry.name]
            if entry.name in given and entry.name != "numbers" and not has_type(given[entry.name], kind):
                raise TypeError(f"{entry.name} is a {type(given[entry.name]).__name__} that does not fit")
        if given["noise"] == CUSTOM_NOISE and noise is not None:
            given["noise"] = noise
        return cls(**given)


def _earlier_numbers(content: Any) -> Any:
    """Return stored numbers; where they do not say so, rows of dense weights all had one temperature."""
    if not isinstance(content, Mapping) or not isinstance(content.get("calibration", {}), Mapping):
        return content  # refused where it is read
    calibration = {"max_tempered_classes": 0, **content.get("calibration", {})}
    return {**content, "calibration": calibration}


def row_batch_size(problem: ProblemSize, config: RowConfig) -> int:
    """Return a minibatch in which hardly two rows share a class, and which stays in the cache."""
    wanted = min(problem.n_classes // config.classes_per_row, problem.n_pairs // config.batches_per_epoch)
    return int(np.clip(wanted, config.min_batch, config.max_batch))


def is_wide_and_sparse(problem: ProblemSize, config: SparseConfig) -> bool:
    """Whether features are sparse and so many that weights are stored where they are not zero."""
    if problem.n_entries is None or problem.n_features < config.min_features:
        return False
    return problem.n_entries <= config.max_density * problem.n_rows * problem.n_features


def choose_objective(
    given: Mapping[str, Any], problem: ProblemSize, numbers: Defaults, *, streaming: bool = False
) -> str:
    """Return the objective that "auto" stands for."""
    plain = isinstance(given["noise"], str) and given["prior_variance"] is None
    words = given["noise"] in ("adversarial", "tree") and is_wide_and_sparse(problem, numbers.sparse)
    if problem.n_dense or (plain and words):
        return "sparse_softmax"
    fits = problem.n_features <= numbers.batch.max_features and plain
    if not fits:
        return "negative_sampling"
    chosen = any(given[name] is not None for name in ("learning_rate", "optimizer", "batch_size"))
    tree = given["noise"] in ("adversarial", "tree")
    whole = tree and given["precondition"] and not chosen and not streaming
    if whole and is_scored_once(problem, given["n_shared"], numbers):
        return "candidate_softmax"
    return "shared_softmax"


def is_scored_once(problem: ProblemSize, n_shared: int, numbers: Defaults) -> bool:
    """Whether classes are more than a minibatch shares, and few enough to score every row against them.

    Not for rows with several labels: class by class, those of a row are ordered poorly (lab/notes.md).
    """
    config = numbers.candidates
    values = problem.n_rows * problem.n_features
    enough = problem.n_classes > n_shared and config.min_pairs <= problem.n_pairs <= problem.n_rows
    return enough and values <= config.max_values and values * problem.n_classes <= config.max_work


def is_representative(problem: ProblemSize, n_seen: int, config: BatchConfig) -> bool:
    """Whether the first part of a stream is enough to whiten the features and to start from class means.

    `n_seen` is the number of classes in it: rows sorted by class would give a start that leaves out others.
    """
    wanted = max(2.0, config.stream_classes * min(problem.n_classes, problem.n_rows))
    return problem.n_rows >= config.stream_rows * problem.n_features and n_seen >= wanted


def svms_are_affordable(n_entries: int, n_classes: int, config: SparseConfig, *, several: bool) -> bool:
    """Whether every row can be compared with every class; `several` labels per row allow for more."""
    return n_entries * n_classes <= (config.svm_work_several if several else config.svm_work)


def is_small(n_entries: int, n_pairs: int, n_classes: int, config: SparseConfig) -> bool:
    """Whether pairs are so few that a correction has nothing to add to one-vs-rest SVMs."""
    return n_pairs <= config.few_pairs and svms_are_affordable(n_entries, n_classes, config, several=False)


def candidate_count(n_entries: int, n_pairs: int, n_classes: int, config: SparseConfig) -> int:
    """Return the hard negatives of a pair: many where all classes would be affordable, too."""
    wanted = config.many_candidates if n_pairs > config.many_pairs else config.max_candidates
    if svms_are_affordable(n_entries, n_classes, config, several=False):
        affordable = int(config.small_entries / max(n_entries, 1)) - 1
        wanted = max(wanted, min(affordable, config.small_candidates))
    return min(wanted, n_classes - 1)


def sparse_epochs(problem: ProblemSize, config: SparseConfig, *, streaming: bool = False) -> int:
    """Return the rounds of the correction: several where every class has a wide support."""
    entries = problem.n_entries or problem.n_rows * problem.n_features
    if problem.n_classes <= config.few_classes:
        return 1
    if not streaming and is_small(entries, problem.n_pairs, problem.n_classes, config):
        return 1
    if candidate_count(entries, problem.n_pairs, problem.n_classes, config) > config.max_candidates:
        return config.n_epochs_small
    few = entries / max(problem.n_rows, 1) * problem.n_pairs * config.max_candidates <= config.wide_entries
    return config.n_epochs if few else config.n_epochs_own


def resolve(
    parameters: Mapping[str, Any],
    problem: ProblemSize,
    *,
    streaming: bool = False,
    n_seen: int | None = None,
    numbers: Defaults = DEFAULTS,
) -> FitConfig:
    """Fill in what the parameters of `ExtremeClassifier` leave open, from the size of the problem.

    `streaming` is for rows that arrive in parts; `n_seen` is the number of classes in the first part."""
    own = {"numbers", "n_dense", "column_groups", "streaming", "renews_whitening"}
    names = {entry.name for entry in fields(FitConfig)} - own
    given = {name: value for name, value in parameters.items() if name in names}
    batch, rows = numbers.batch, numbers.rows
    renews = streaming and bool(given["precondition"])
    if given["objective"] == "auto":
        given["objective"] = choose_objective(given, problem, numbers, streaming=streaming)
        if streaming and n_seen is not None and OBJECTIVES[given["objective"]].shares_classes:
            given["precondition"] = given["precondition"] and is_representative(problem, n_seen, batch)
    objective = OBJECTIVES[given["objective"]]
    if objective.shares_classes and not isinstance(given["noise"], str):
        raise ValueError(
            f"objective={given['objective']!r} draws the classes of a minibatch by itself and cannot use"
            " noise of type"
            f" {type(given['noise']).__name__}. Use noise='adversarial', 'frequency' or 'uniform', or"
            " another objective."
        )
    if objective.trainer == "sparse" and not isinstance(given["noise"], str):
        raise ValueError(
            f"objective={given['objective']!r} finds its negatives by itself and cannot use noise of type"
            f" {type(given['noise']).__name__}. Leave noise out, or use objective='negative_sampling'."
        )
    if objective.trainer == "candidates" and not (given["precondition"] and isinstance(given["noise"], str)):
        raise ValueError(
            f"objective={given['objective']!r} needs precondition=True and no noise object of its own: it"
            " starts from a linear discriminant. Use objective='shared_softmax' or another one."
        )
    if problem.n_dense and objective.trainer != "sparse":
        raise ValueError(
            f"objective={given['objective']!r} cannot use a pair of sparse and dense features; use 'auto' or"
            " 'sparse_softmax'."
        )
    defaults: dict[str, Any]
    if objective.trainer == "sparse":
        epochs = sparse_epochs(problem, numbers.sparse, streaming=streaming)
        defaults = {"n_epochs": epochs, "score_penalty": 0.0}
        given |= {"batch_size": 1, "learning_rate": 1.0, "optimizer": "dual"}  # exact steps have none of them
    elif objective.trainer == "candidates":
        defaults = {"n_epochs": numbers.candidates.n_epochs, "score_penalty": 0.0}
        given |= {"batch_size": 1, "learning_rate": 1.0, "optimizer": "dual"}
    elif objective.shares_classes:
        size = problem.n_classes if objective.all_classes else min(given["n_shared"], problem.n_classes)
        wanted = min(problem.n_pairs // batch.batches_per_epoch, batch.max_scores // size)
        defaults = {"batch_size": int(np.clip(wanted, batch.min_batch, batch.max_batch))}
        n_batches = -(-problem.n_pairs // (given["batch_size"] or defaults["batch_size"]))
        epochs = int(np.clip(-(-batch.min_steps // n_batches), batch.min_epochs, batch.max_epochs))
        rate = batch.learning_rate_plain
        if given["precondition"]:
            many = has_many_classes(problem.n_classes, size, batch)
            rate = batch.learning_rate_many_classes if many else batch.learning_rate
        defaults |= {"n_epochs": epochs, "learning_rate": rate, "optimizer": batch.optimizer}
        defaults["score_penalty"] = 0.0
    else:
        defaults = {
            "batch_size": row_batch_size(problem, rows),
            "n_epochs": rows.n_epochs,
            "learning_rate": rows.learning_rate,
            "optimizer": rows.optimizer,
            "score_penalty": rows.score_penalty,
        }
    given |= {name: value for name, value in defaults.items() if given[name] is None}
    return FitConfig(
        **given,
        numbers=numbers,
        streaming=streaming,
        renews_whitening=renews and objective.shares_classes,
        n_dense=problem.n_dense,
        column_groups=problem.column_groups,
    )


def resume_config(
    begun: FitConfig,
    parameters: Mapping[str, Any],
    problem: ProblemSize,
    noise: Noise | None,
    *,
    is_whitened: bool = False,
) -> FitConfig:
    """Return the config with which a fit goes on.

    What the first call fixes, and what parameters leave open, stays as it was begun; but where a stream got
    its whitening on the way, the learning rate is that of whitened rows.
    """
    open_ones = {name: getattr(begun, name) for name in RESOLVED if parameters.get(name, "") is None}
    fixed = {name: getattr(begun, name) for name in FIXED}
    if begun.noise == CUSTOM_NOISE and noise is not None:
        fixed["noise"] = noise
    found = resolve({**parameters, **open_ones, **fixed}, problem, numbers=begun.numbers)
    if is_whitened and not begun.precondition and parameters.get("learning_rate") is None:
        found = replace(found, learning_rate=begun.numbers.batch.learning_rate)
    return replace(found, streaming=begun.streaming, renews_whitening=begun.renews_whitening)
