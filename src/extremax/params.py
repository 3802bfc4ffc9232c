"""The public parameters: default, bounds, help and the solver each belongs to, stated once.

Checks, docstrings and the options of the command line derive from this table.  Importing it loads neither
numpy nor numba: ``extremax --help`` reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from textwrap import fill
from typing import Any, TypeVar

from extremax.validation.constraints import (
    BOOLEAN,
    RANDOM_STATE,
    Choice,
    Constraint,
    Instance,
    Interval,
    check_parameters,
)

T = TypeVar("T", bound=type)

CLASSIFIER = "ExtremeClassifier"
# The class of each solver, by its name.
SOLVER_CLASSES = {
    "candidate_softmax": "CandidateSoftmax",
    "minibatch_softmax": "MinibatchSoftmax",
    "sparse_softmax": "SparseSoftmax",
    "negative_sampling": "NegativeSampling",
    "nce": "NCE",
    "nce_from_zero": "NCEFromZero",
    "sampled_softmax": "SampledSoftmax",
    "one_vs_each": "OneVsEach",
    "augment_reduce": "AugmentReduce",
}
NOISES = ("tree", "uniform", "frequency", "mixture")
OPTIMIZERS = ("adagrad", "adagrad_row", "sgd")
_SAMPLING, _MINIBATCH = "NegativeSampling", "MinibatchSoftmax"
_BOTH = (_SAMPLING, _MINIBATCH)


@dataclass(frozen=True)
class Parameter:
    """One parameter.

    Attributes
    ----------
    name
        Name in the signature of its class.
    default
        Default value.
    constraints
        Values it may have; None among them allows None.
    type_text
        Its type in words, for documentation.
    help
        What it means, in sentences; names of other parameters stand in backticks.
    solvers
        Classes of the solvers that take it, besides their subclasses; none for one of the classifier.
    """

    name: str
    default: Any
    constraints: tuple[Constraint, ...]
    type_text: str
    help: str
    solvers: tuple[str, ...] = ()

    @property
    def choices(self) -> tuple[str, ...]:
        """Strings that it may be."""
        return tuple(
            option for entry in self.constraints if isinstance(entry, Choice) for option in entry.options
        )

    @property
    def kind(self) -> type[bool] | type[int] | type[float] | type[str]:
        """Type of its values on a command line: that of its numbers, bool, or str for choices alone."""
        for entry in self.constraints:
            if isinstance(entry, Interval):
                return entry.kind
        return bool if BOOLEAN in self.constraints else str


def _table(*entries: Parameter) -> dict[str, Parameter]:
    return {entry.name: entry for entry in entries}


PARAMETERS: dict[str, Parameter] = _table(
    Parameter(
        "solver", "auto",
        (Choice(("auto", *SOLVER_CLASSES)), Instance("a solver", ("extremax.solvers:Solver",))),
        "str or Solver",
        "How the weights are trained: a name, or an object from `extremax.solvers` with parameters of its"
        ' own, such as ``NegativeSampling(learning_rate=0.1)``. "auto" decides by the data: "sparse_softmax"'
        " for sparse matrices of at least 1,024 columns and at most 5% of non-zero entries; for up to 1,024"
        ' features "candidate_softmax" where rows and classes are many and all scores of the training rows'
        ' affordable, else "minibatch_softmax", as in `partial_fit`; for more features "negative_sampling".',
    ),
    Parameter(
        "n_epochs", None, (Interval(int, 0), None), "int, optional",
        "Passes over the data; 0 skips training and keeps the initial model. Chosen by the solver unless"
        " given.",
    ),
    Parameter(
        "class_weight", None, (Choice(("balanced",)), Instance("a dict", (dict,)), None),
        'dict, "balanced" or None',
        'Factor of the weight of each pair by its label, 1 for labels that a dict does not name; "balanced"'
        " gives every class the same total weight.",
    ),
    Parameter(
        "validation_fraction", 0.0, (Interval(float, 0.0, 1.0, closed="left"),), "float",
        "Fraction of the rows held out for validation, if no `eval_set` is given; one row of each class"
        " always stays in training.",
    ),
    Parameter(
        "patience", None, (Interval(int, 1), None), "int, optional",
        "Stop after this many epochs without a better validation log-likelihood, and keep the best epoch.",
    ),
    Parameter(
        "memory_limit", None, (Interval(int, 1), None), "int, optional",
        "Bytes that training may use; by default the free memory of the machine.",
    ),
    Parameter(
        "max_model_bytes", None, (Interval(int, 1), None), "int, optional",
        "Upper limit on the bytes of sparse weights: the weights that matter least are dropped after training"
        ' (``choices_["pruning_loss"]`` is the loss in log-likelihood on held-out rows).',
    ),
    Parameter(
        "n_jobs", None, (Interval(int), None), "int, optional",
        "Threads; None and -1 mean all processors. The model is the same at any number.",
    ),
    Parameter(
        "random_state", None, (Interval(int, 0), RANDOM_STATE, None), "int, Generator, RandomState or None",
        "Seed of all random draws.",
    ),
    Parameter(
        "verbose", 0, (Interval(int, 0), BOOLEAN), "int",
        "1 shows memory needs, choices, a line per epoch, and progress: a bar in a terminal, elsewhere a line"
        " for each phase that takes long.",
    ),
    # -- of solvers --
    Parameter(
        "noise", "tree",
        (Choice(NOISES), Instance("a Noise", methods=("sample", "log_prob", "log_prob_all"))),
        '{"tree", "uniform", "frequency", "mixture"} or Noise',
        "Distribution that classes are drawn from: a label tree fitted to the data, all classes alike, the"
        " class frequencies, a mixture of tree and frequencies, or an object of your own, such as a"
        " `TreeNoise`. Minibatches take the first three.",
        _BOTH,
    ),
    Parameter(
        "n_negatives", 4, (Interval(int, 1),), "int", "Negatives per row and epoch.", (_SAMPLING,)
    ),
    Parameter(
        "n_shared", 1024, (Interval(int, 1), None), "int or None",
        "Classes that the rows of a minibatch share, half of them from the rows' cell of the tree; None for"
        " all classes, the exact softmax.",
        (_MINIBATCH,),
    ),
    Parameter(
        "learning_rate", None, (Interval(float, 0.0, closed="neither"), None), "float, optional",
        "Step size, for rows of mean square length one; with `precondition` it falls to zero over the"
        " epochs.",
        _BOTH,
    ),
    Parameter(
        "optimizer", None, (Choice(OPTIMIZERS), None), '{"adagrad", "adagrad_row", "sgd"}, optional',
        "Adagrad with an accumulator per weight, or per class (half the memory), or plain gradient steps.",
        _BOTH,
    ),
    Parameter(
        "score_penalty", None, (Interval(float, 0.0), None), "float, optional",
        "The paper's lambda: a square penalty on the scores of the label and of the negatives (Eq. 6), 1e-4"
        " unless given; of minibatches on the score of the label and the mean over all classes, 0 unless"
        " given.",
        _BOTH,
    ),
    Parameter(
        "batch_size", None, (Interval(int, 1), None), "int, optional",
        "Rows whose gradients are computed from the same weights; chosen from the size of the problem unless"
        " given.",
        _BOTH,
    ),
    Parameter(
        "precondition", True, (BOOLEAN,), "bool",
        "Start from a linear discriminant, and train on whitened features with step sizes that fall to zero.",
        (_MINIBATCH,),
    ),
    Parameter(
        "tree_components", 32, (Interval(int, 1),), "int",
        "Principal components of the features that the label tree is fitted on (the paper's k, 16 there).",
        _BOTH,
    ),
    Parameter(
        "tree_regularization", "auto", (Interval(float, 0.0, closed="neither"), Choice(("auto",))),
        'float or "auto"',
        "Square penalty on the weights of the label tree (the paper's lambda_n, 0.1 there); \"auto\" chooses"
        " one per level of the tree, on held-out rows.",
        _BOTH,
    ),
    Parameter(
        "noise_exponent", 1.0, (Interval(float, 0.0),), "float",
        'Power of the class frequencies in "frequency" and "mixture" noise.',
        _BOTH,
    ),
    Parameter(
        "tree_share", 0.9, (Interval(float, 0.0, 1.0, closed="neither"),), "float",
        'Weight of the tree in "mixture" noise.',
        (_SAMPLING,),
    ),
    Parameter(
        "prior_variance", None, (Interval(float, 0.0, closed="neither"), None), "float, optional",
        "Variance of a Gaussian prior on weights and biases (the paper's sigma_0^2); None for no prior.",
        (_SAMPLING,),
    ),
    Parameter(
        "penalized_scores", "debiased", (Choice(("debiased", "raw")),), '{"debiased", "raw"}',
        "What `score_penalty` penalizes: scores plus log p_n, as in the text of the paper, or scores alone,"
        " as in its authors' code for noise that does not depend on x.",
        (_SAMPLING,),
    ),
    Parameter(
        "tree_fit", "default", (Choice(("default", "paper")),), '{"default", "paper"}',
        "How the label tree is fitted. \"paper\" is the algorithm of the paper's section 3 to the letter, for"
        " comparisons with it.",
        (_SAMPLING,),
    ),
    Parameter(
        "whiten_components", False, (BOOLEAN,), "bool",
        "Whether the components of the label tree are scaled to unit variance, as in the paper's published"
        " code.",
        (_SAMPLING,),
    ),
    Parameter(
        "scale_features", True, (BOOLEAN,), "bool",
        "Whether rows are scaled to a mean square length of one before training, so that one learning rate"
        " serves every data set; False trains on features as given, as the paper does. Preconditioned"
        " minibatches do not depend on it.",
        _BOTH,
    ),
)  # fmt: skip
CLASSIFIER_PARAMETERS = tuple(name for name, entry in PARAMETERS.items() if not entry.solvers)
SOLVER_PARAMETERS = tuple(name for name, entry in PARAMETERS.items() if entry.solvers)


def check_values(owner: str, values: Mapping[str, Any]) -> None:
    """Raise for the first parameter of a class whose value is out of its bounds."""
    check_parameters(owner, values, {name: PARAMETERS[name].constraints for name in values})


def check_patience(patience: int | None) -> None:
    """Raise if there is patience: for a fit without rows to validate on."""
    if patience is not None:
        raise ValueError(
            f"patience is {patience}, but there are no rows to validate on; give fit an eval_set, or set"
            " validation_fraction."
        )


def misplaced(name: str, value: Any) -> str:
    """Return the sentence for a parameter that was given to the classifier and belongs to a solver.

    Examples
    --------
    >>> misplaced("n_negatives", 2)
    'n_negatives belongs to a solver: ExtremeClassifier(solver=NegativeSampling(n_negatives=2)).'
    """
    if name == "objective":
        return "objective is now called solver: ExtremeClassifier(solver=...)."
    first, *others = PARAMETERS[name].solvers
    also = "".join(f" or {other}" for other in others)
    return f"{name} belongs to a solver: {CLASSIFIER}(solver={first}({name}={value!r})){also}."


def refuse_misplaced(given: Iterable[tuple[str, Any]], error: type[Exception]) -> None:
    """Raise for parameters of a solver among those given to the classifier."""
    for name, value in given:
        if name == "objective" or name in SOLVER_PARAMETERS:
            raise error(misplaced(name, value))


def says_where(init: Callable[..., None]) -> Callable[..., None]:
    """Let the constructor of the classifier say which solver takes a parameter that is not its own."""

    @wraps(init)
    def checking(self: Any, *args: Any, **given: Any) -> None:
        refuse_misplaced(given.items(), TypeError)
        init(self, *args, **given)

    return checking


def describe(names: Iterable[str]) -> str:
    """Return the Parameters section of a docstring, in numpydoc format."""
    lines = ["Parameters", "----------"]
    for entry in (PARAMETERS[name] for name in names):
        text = fill(entry.help, width=102, initial_indent="    ", subsequent_indent="    ")
        lines += [f"{entry.name} : {entry.type_text}", text]
    return "\n".join(lines)


def documented(names: Iterable[str]) -> Callable[[T], T]:
    """Put the help of parameters in the place of ``{parameters}`` in the docstring of a class."""

    def fill_in(cls: T) -> T:
        section = describe(names).replace("\n", "\n    ")
        cls.__doc__ = (cls.__doc__ or "").replace("{parameters}", section)
        return cls

    return fill_in
