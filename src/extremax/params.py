"""The public parameters of `ExtremeClassifier`: default, constraints and help, each stated once.

The estimator checks against this table, and the command line and recipes take names, defaults and help from
it.  Importing it loads neither numpy nor numba: ``extremax --help`` reads it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

from extremax.validation.constraints import (
    BOOLEAN,
    RANDOM_STATE,
    Choice,
    Constraint,
    Instance,
    Interval,
    check_parameters,
)

ESTIMATOR = "ExtremeClassifier"
ROW_OBJECTIVES = ("negative_sampling", "nce", "sampled_softmax", "one_vs_each", "augment_reduce")
BATCH_OBJECTIVES = ("shared_softmax", "softmax")
CANDIDATE_OBJECTIVES = ("candidate_softmax",)
SPARSE_OBJECTIVES = ("sparse_softmax",)
ALL_OBJECTIVES = (*ROW_OBJECTIVES, *BATCH_OBJECTIVES, *CANDIDATE_OBJECTIVES, *SPARSE_OBJECTIVES)
NOISES = ("adversarial", "tree", "uniform", "frequency", "mixture")
OPTIMIZERS = ("adagrad", "adagrad_row", "sgd")
PENALIZED = ("debiased", "raw")
TREE_FITS = ("default", "paper")
_RAW_PENALTY = ("negative_sampling", "nce")  # NCE's penalty is on its scores in either reading
# Old names of parameters, accepted with a warning for one release.
RENAMED = {"regularization": "tree_regularization", "n_components": "tree_components"}


@dataclass(frozen=True)
class Parameter:
    """One parameter.

    Attributes
    ----------
    name
        Name in the signature of the class.
    default
        Default value.
    constraints
        Values it may have; None among them allows None.
    type_text
        Its type in words, for documentation.
    help
        What it means, in sentences; names of other parameters stand in backticks.
    """

    name: str
    default: Any
    constraints: tuple[Constraint, ...]
    type_text: str
    help: str

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
        "objective", "auto", (Choice(("auto", *ALL_OBJECTIVES)),), "str",
        'The loss; formulas in `extremax.kernels.row_losses`. "negative_sampling" (the paper\'s Eq. 6),'
        ' "nce", "sampled_softmax", "one_vs_each" and "augment_reduce" draw negatives for each row.'
        ' "shared_softmax" compares the rows of a minibatch with `n_shared` classes, "softmax" with all;'
        ' "candidate_softmax" compares each row with the classes that score highest for it, and'
        ' `learning_rate`, `optimizer` and `batch_size` have no effect on it.'
        ' "sparse_softmax" is for sparse features of any number, such as words: weights are stored where they'
        ' are not zero, on top of a naive Bayes start; `learning_rate`, `optimizer` and `batch_size` have no'
        ' effect on it, `noise` and `prior_variance` on its dense features alone. "auto" is "sparse_softmax"'
        ' for sparse matrices of at least 1,024 columns and at most 5% of non-zero entries, else'
        ' for up to 1,024 features "candidate_softmax" where classes are more than `n_shared` and all scores'
        ' of the training rows are affordable, and "shared_softmax" where not and in `partial_fit`; for more,'
        ' and with an own noise object, it is "negative_sampling".',
    ),
    Parameter(
        "noise", "adversarial",
        (Choice(NOISES), Instance("a Noise", methods=("sample", "log_prob", "log_prob_all"))),
        '{"adversarial", "tree", "uniform", "frequency", "mixture"} or Noise',
        'Distribution that negatives are drawn from: the label tree ("adversarial" or "tree"), all classes'
        ' with the'
        " same probability, the class frequencies, a mixture of tree and frequencies, or an object of your"
        " own, such as a `LabelTree`, or `TreeNoise` for a tree of projected features.",
    ),
    Parameter(
        "n_negatives", 4, (Interval(int, 1),), "int",
        "Negatives per row and epoch, of objectives that draw negatives for each row.",
    ),
    Parameter(
        "n_shared", 1024, (Interval(int, 1),), "int",
        'Classes that the rows of a minibatch share under "shared_softmax"; half of them come from the rows\''
        ' cell of'
        " the tree.",
    ),
    Parameter(
        "precondition", True, (BOOLEAN,), "bool",
        'For "shared_softmax" and "softmax": start from a linear discriminant, and train on whitened features'
        ' with'
        " step sizes that fall to zero.",
    ),
    Parameter(
        "n_epochs", None, (Interval(int, 0), None), "int, optional",
        "Passes over the data; 0 gives the start as classifier: the noise distribution, or the discriminant.",
    ),
    Parameter(
        "learning_rate", None, (Interval(float, 0.0, closed="neither"), None), "float, optional",
        "Step size, for rows of mean square length one; with `precondition`, where it is used, it falls to"
        " zero over the epochs.",
    ),
    Parameter(
        "optimizer", None, (Choice(OPTIMIZERS), None), '{"adagrad", "adagrad_row", "sgd"}, optional',
        "Adagrad with an accumulator per weight, or per class (half the memory), or plain gradient steps.",
    ),
    Parameter(
        "score_penalty", None, (Interval(float, 0.0), None), "float, optional",
        "The paper's lambda. For objectives that draw negatives for each row, a square penalty on the scores"
        ' of the label and of the negatives (Eq. 6), 1e-4 unless given; for "shared_softmax" and "softmax" on'
        " the score of the label and the mean over all classes, 0 unless given. No effect on other"
        " objectives.",
    ),
    Parameter(
        "penalized_scores", "debiased", (Choice(PENALIZED),), '{"debiased", "raw"}',
        'What `score_penalty` is on under "negative_sampling": scores plus log p_n, as in the text of the'
        " paper, or scores alone, as in its authors' code for noise that does not depend on x.",
    ),
    Parameter(
        "prior_variance", None, (Interval(float, 0.0, closed="neither"), None), "float, optional",
        "Variance of a Gaussian prior on weights and biases (the paper's sigma_0^2); None for no prior.",
    ),
    Parameter(
        "class_weight", None, (Choice(("balanced",)), Instance("a dict", (dict,)), None),
        'dict, "balanced" or None',
        "Factor of the weight of each pair by its label, 1 for labels that a dict does not name; \"balanced\""
        " gives every class the same total weight.",
    ),
    Parameter(
        "batch_size", None, (Interval(int, 1), None), "int, optional",
        "Rows whose coefficients are computed from the same weights; chosen from the size of the problem"
        " unless given.",
    ),
    Parameter(
        "tree_components", 32, (Interval(int, 1),), "int",
        "Principal components of the features that the label tree is fitted on (the paper's k, 16 there).",
    ),
    Parameter(
        "tree_regularization", "auto", (Interval(float, 0.0, closed="neither"), Choice(("auto",))),
        'float or "auto"',
        "Square penalty on the weights of the label tree (the paper's lambda_n, 0.1 there); \"auto\" chooses"
        " one per level of the tree, on held-out rows.",
    ),
    Parameter(
        "tree_fit", "default", (Choice(TREE_FITS),), '{"default", "paper"}',
        "How the label tree is fitted. \"paper\" is the algorithm of the paper's section 3 to the letter, for"
        " comparisons with it: slower.",
    ),
    Parameter(
        "whiten_components", False, (BOOLEAN,), "bool",
        "Whether the components of the label tree are scaled to unit variance, as in the paper's published"
        " code; for objectives that draw negatives for each row.",
    ),
    Parameter(
        "scale_features", True, (BOOLEAN,), "bool",
        "Whether rows are scaled to a mean square length of one before training, so that one learning rate"
        " serves every data set; False trains on features as given, as the paper does. No effect with"
        " `precondition`, where it is used.",
    ),
    Parameter(
        "noise_exponent", 1.0, (Interval(float, 0.0),), "float",
        'Power of the class frequencies in "frequency" and "mixture" noise.',
    ),
    Parameter(
        "tree_share", 0.9, (Interval(float, 0.0, 1.0, closed="neither"),), "float",
        'Weight of the tree in "mixture" noise.',
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
        "Bytes that training may need; by default what the machine has free.",
    ),
    Parameter(
        "max_model_bytes", None, (Interval(int, 1), None), "int, optional",
        'Bytes of the weights of a "sparse_softmax" model: those that matter least are dropped after training'
        ' (``choices_["pruning_loss"]`` says what they were worth on held-out rows).',
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
        "1 shows memory needs, choices, a progress bar in a terminal, and a line per epoch.",
    ),
)  # fmt: skip


def check_estimator_parameters(params: Mapping[str, Any], objectives: Collection[str] = ()) -> None:
    """Raise for parameters of `ExtremeClassifier` that are wrong, alone or together.

    Parameters
    ----------
    params
        All parameters by name, as from ``get_params(deep=False)``.
    objectives
        Names of the registered objectives, for those that are not in the table.
    """
    table = {name: entry.constraints for name, entry in PARAMETERS.items()}
    more = tuple(name for name in objectives if name not in PARAMETERS["objective"].choices)
    table["objective"] = (Choice((*PARAMETERS["objective"].choices, *more)),)
    if params["objective"] == "sampled_softmax_masked":
        raise ValueError(
            "objective='sampled_softmax_masked' is gone, because it favoured frequent classes; use"
            " 'sampled_softmax'."
        )
    check_parameters(ESTIMATOR, params, table)
    if params["penalized_scores"] == "raw" and params["objective"] not in ("auto", *_RAW_PENALTY):
        raise ValueError(
            f"penalized_scores is 'raw', but objective={params['objective']!r} has one reading of its penalty"
            " alone; it is for objective='negative_sampling'."
        )
    if params["tree_fit"] == "paper" and params["tree_regularization"] == "auto":
        raise ValueError(
            "tree_fit='paper' needs a number as tree_regularization, 0.1 in the paper: levels of their own"
            " are not part of it."
        )
    if params["prior_variance"] is not None and params["objective"] in BATCH_OBJECTIVES:
        raise ValueError(
            f"prior_variance is {params['prior_variance']:g}, but objective={params['objective']!r} has no"
            " prior; it is for objectives whose rows draw their own negatives."
        )


def check_saved_parameters(params: Mapping[str, Any], config: Any, objectives: Mapping[str, Any]) -> None:
    """Raise for a parameter of a saved model, given or resolved, that no estimator could have had.

    `config` is the resolved configuration of its fit, or None.
    """
    named = isinstance(params["noise"], str)
    check_estimator_parameters({**params, "noise": params["noise"] if named else "uniform"}, objectives)
    if config is None:
        return
    own = {"objective", "noise", "optimizer"}  # resolved names that are no parameters, such as "dual"
    resolved = {n: getattr(config, n) for n in PARAMETERS if n not in own and hasattr(config, n)}
    check_parameters(ESTIMATOR, resolved, {name: entry.constraints for name, entry in PARAMETERS.items()})
    if config.optimizer not in (*PARAMETERS["optimizer"].choices, "dual"):
        raise ValueError(f"the optimizer of its fit is {config.optimizer!r}.")


def check_patience(patience: int | None) -> None:
    """Raise if there is patience: for a fit without rows to validate on."""
    if patience is not None:
        raise ValueError(
            f"patience is {patience}, but there are no rows to validate on; give fit an eval_set, or set"
            " validation_fraction."
        )


def rename_parameters(
    given: Mapping[str, Any], spell: Callable[[str], str] = str, *, stacklevel: int = 2
) -> dict[str, Any]:
    """Return parameters under their present names, with a warning for each old name.

    `spell` turns a name into what a user wrote, such as ``--n-components``; `stacklevel` is that of a warning
    issued by the caller.

    Examples
    --------
    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     rename_parameters({"noise": "tree", "n_components": 16})
    {'noise': 'tree', 'tree_components': 16}
    >>> str(caught[0].message)
    'n_components is now called tree_components; the old name will go with the next release.'
    """
    renamed: dict[str, Any] = {}
    for name, value in given.items():
        new = RENAMED.get(name, name)
        if new != name:
            if new in given:
                raise ValueError(f"{spell(name)} is now called {spell(new)}; give one of them, not both.")
            message = f"{spell(name)} is now called {spell(new)}; the old name will go with the next release."
            warnings.warn(message, FutureWarning, stacklevel=stacklevel + 1)
        renamed[new] = value
    return renamed


def accept_old_names(init: Callable[..., None]) -> Callable[..., None]:
    """Let a constructor take parameters under their old names; its signature stays the same."""

    @wraps(init)
    def renaming(self: Any, *args: Any, **given: Any) -> None:
        init(self, *args, **rename_parameters(given))

    return renaming


def canonical_noise(noise: Any) -> Any:
    """Return the one name of a noise that has two: "adversarial" for "tree".

    Examples
    --------
    >>> canonical_noise("tree"), canonical_noise("uniform")
    ('adversarial', 'uniform')
    """
    return "adversarial" if isinstance(noise, str) and noise == "tree" else noise


def describe_parameters() -> str:
    """Return the Parameters section of the docstring of `ExtremeClassifier`, in numpydoc format."""
    from textwrap import fill

    lines = ["Parameters", "----------"]
    for entry in PARAMETERS.values():
        text = fill(entry.help, width=102, initial_indent="    ", subsequent_indent="    ")
        lines += [f"{entry.name} : {entry.type_text}", text]
    return "\n".join(lines)
