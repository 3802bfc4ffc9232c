"""`ExtremeClassifier`, the scikit-learn estimator: check the input, name the classes, run the fit."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import validate_data

from extremax import class_editing as changes
from extremax.errors import ModelFileError, ScoreOverflowError, TrainingInterruptedWarning
from extremax.examples import Examples
from extremax.explanation import Explanation, LabelExplanation, explain_class, explain_row
from extremax.features.scaling import LargeColumns
from extremax.fit import (
    Fitted,
    Request,
    fit_index,
    fit_model,
    fit_sparse_index,
    make_trainer,
    problem_size,
    resume_model,
    train_epoch,
)
from extremax.model import Model
from extremax.model_card import make_card
from extremax.monitor import Monitor
from extremax.params import (
    BATCH_OBJECTIVES,
    RENAMED,
    accept_old_names,
    canonical_noise,
    check_estimator_parameters,
    check_patience,
    check_saved_parameters,
    rename_parameters,
)
from extremax.reference import MIN_ROWS, Reference, reference_of_rows
from extremax.runtime.context import Context
from extremax.runtime.progress import ProgressLine
from extremax.runtime.threads import resolve_threads
from extremax.scores import Search
from extremax.solvers.config import FitConfig, resolve, resume_config
from extremax.solvers.loop import Callback, Record
from extremax.solvers.objectives import OBJECTIVES
from extremax.storage import checks
from extremax.storage.labels import check_savable
from extremax.storage.models import SavedModel, save_model
from extremax.storage.state import State
from extremax.tree.noise import Noise, as_noise
from extremax.tuned import DEFAULTS, Defaults, ProblemSize
from extremax.types import Features, Float32, Float64, Int32
from extremax.validation.constraints import Choice, ConstraintTable, Interval, check_parameters
from extremax.validation.features import check_features, copied_bytes, join_pair
from extremax.validation.frames import as_frame, frame_inputs
from extremax.validation.labels import LabelIndex, check_classes, encode_labels, join_labels
from extremax.validation.random_state import check_random_state
from extremax.validation.sample_weight import check_sample_weight, class_weights
from extremax.validation.targets import encode_targets, indicator_format, lookup_targets

EvalSet: TypeAlias = tuple[Any, Any] | list[tuple[Any, Any]] | None
_RENAMED_CHOICES = {
    "floor": "uniform_mix",
    "sharpness": "init_scale",
    "regularization": "tree_regularization",
    "beam_agreement": "beam_recall",
}


_CHANGED = (
    "_fitted", "model_", "history_", "interrupted_", "classes_", "_label_index", "_changes", "class_weight",
)  # fmt: skip
_CHANGE_FIELDS = ("what", "when", "n_changed", "n_rows", "n_classes")


class Choices(dict[str, Any]):
    """What a fit chose; names of version 0.1 still work, with a warning."""

    def __missing__(self, name: str) -> Any:
        if name not in _RENAMED_CHOICES:
            raise KeyError(name)
        new = _RENAMED_CHOICES[name]
        warnings.warn(f"choices_[{name!r}] is now called choices_[{new!r}].", FutureWarning, stacklevel=2)
        return self[new]

    def __contains__(self, name: object) -> bool:
        return super().__contains__(_RENAMED_CHOICES.get(str(name), name))

    def get(self, name: str, default: Any = None) -> Any:
        """Return a choice, or a default where there is none."""
        return self[name] if name in self else default  # noqa: SIM401 (`[]` knows old names)


class ExtremeClassifier(ClassifierMixin, BaseEstimator):
    """Linear softmax classifier over very many classes.

    By default, the rows of a minibatch share about a thousand classes, drawn with known probabilities, so
    that the loss estimates that of the softmax over all classes. Training starts from a linear discriminant
    on whitened features. The paper's method, negatives drawn for each row from a label tree, is
    ``objective="negative_sampling"``.

    Parameters
    ----------
    objective : str
        The loss; formulas in `extremax.kernels.row_losses`. "negative_sampling" (the paper's Eq. 6), "nce",
        "sampled_softmax", "one_vs_each" and "augment_reduce" draw negatives for each row. "shared_softmax"
        compares the rows of a minibatch with `n_shared` classes, "softmax" with all; "candidate_softmax"
        compares each row with the classes that score highest for it, and `learning_rate`, `optimizer` and
        `batch_size` have no effect on it. "sparse_softmax" is for sparse features of any number, such as
        words: weights are stored where they are not zero, on top of a naive Bayes start; `learning_rate`,
        `optimizer` and `batch_size` have no effect on it, `noise` and `prior_variance` on its dense features
        alone. "auto" is "sparse_softmax" for sparse matrices of at least 1,024 columns and at most 5% of
        non-zero entries, else for up to 1,024 features "candidate_softmax" where classes are more than
        `n_shared` and all scores of the training rows are affordable, and "shared_softmax" where not and in
        `partial_fit`; for more, and with an own noise object, it is "negative_sampling".
    noise : {"adversarial", "tree", "uniform", "frequency", "mixture"} or Noise
        Distribution that negatives are drawn from: the label tree ("adversarial" or "tree"), all classes
        with the same probability, the class frequencies, a mixture of tree and frequencies, or an object
        of your own, such as a `LabelTree`, or `TreeNoise` for a tree of projected features.
    n_negatives : int
        Negatives per row and epoch, of objectives that draw negatives for each row.
    n_shared : int
        Classes that the rows of a minibatch share under "shared_softmax"; half of them come from the
        rows' cell of the tree.
    precondition : bool
        For "shared_softmax" and "softmax": start from a linear discriminant, and train on whitened
        features with step sizes that fall to zero.
    n_epochs : int, optional
        Passes over the data; 0 gives the start as classifier: the noise distribution, or the
        discriminant.
    learning_rate : float, optional
        Step size, for rows of mean square length one; with `precondition`, where it is used, it falls to
        zero over the epochs.
    optimizer : {"adagrad", "adagrad_row", "sgd"}, optional
        Adagrad with an accumulator per weight, or per class (half the memory), or plain gradient steps.
    score_penalty : float, optional
        The paper's lambda. For objectives that draw negatives for each row, a square penalty on the
        scores of the label and of the negatives (Eq. 6), 1e-4 unless given; for "shared_softmax" and
        "softmax" on the score of the label and the mean over all classes, 0 unless given. No effect on
        other objectives.
    penalized_scores : {"debiased", "raw"}
        What `score_penalty` is on under "negative_sampling": scores plus log p_n, as in the text of the
        paper, or scores alone, as in its authors' code for noise that does not depend on x.
    prior_variance : float, optional
        Variance of a Gaussian prior on weights and biases (the paper's sigma_0^2); None for no prior.
    class_weight : dict, "balanced" or None
        Factor of the weight of each pair by its label, 1 for labels that a dict does not name; "balanced"
        gives every class the same total weight.
    batch_size : int, optional
        Rows whose coefficients are computed from the same weights; chosen from the size of the problem
        unless given.
    tree_components : int
        Principal components of the features that the label tree is fitted on (the paper's k, 16 there).
    tree_regularization : float or "auto"
        Square penalty on the weights of the label tree (the paper's lambda_n, 0.1 there); "auto" chooses
        one per level of the tree, on held-out rows.
    tree_fit : {"default", "paper"}
        How the label tree is fitted. "paper" is the algorithm of the paper's section 3 to the letter, for
        comparisons with it: slower.
    whiten_components : bool
        Whether the components of the label tree are scaled to unit variance, as in the paper's published
        code; for objectives that draw negatives for each row.
    scale_features : bool
        Whether rows are scaled to a mean square length of one before training, so that one learning rate
        serves every data set; False trains on features as given, as the paper does. No effect with
        `precondition`, where it is used.
    noise_exponent : float
        Power of the class frequencies in "frequency" and "mixture" noise.
    tree_share : float
        Weight of the tree in "mixture" noise.
    validation_fraction : float
        Fraction of the rows held out for validation, if no `eval_set` is given; one row of each class
        always stays in training.
    patience : int, optional
        Stop after this many epochs without a better validation log-likelihood, and keep the best epoch.
    memory_limit : int, optional
        Bytes that training may need; by default what the machine has free.
    max_model_bytes : int, optional
        Bytes of the weights of a "sparse_softmax" model: those that matter least are dropped after training
        (``choices_["pruning_loss"]`` says what they were worth on held-out rows).
    n_jobs : int, optional
        Threads; None and -1 mean all processors. The model is the same at any number.
    random_state : int, Generator, RandomState or None
        Seed of all random draws.
    verbose : int
        1 shows memory needs, choices, a progress bar in a terminal, and a line per epoch.

    Attributes
    ----------
    classes_ : ndarray (n_classes,)
        Labels as given.
    n_features_in_ : int
        Width of the training features.
    model_ : Model
        Weights, noise, calibration and search indexes.
    choices_ : dict
        What was left open and chosen: ``objective``, ``n_epochs`` and others, ``temperature``,
        ``uniform_mix`` and ``temperature_slope``, the tree's ``tree_regularization`` by level,
        ``beam_width`` and ``beam_recall``; ``limited_rows``, ``scaled_columns`` and ``evened_columns``, where
        rows were outlying, sparse columns far larger than others, or dense ones of uneven scales.
    history_ : list of dict
        Epoch by epoch: ``epoch``, ``seconds`` of training so far (projection and tree included), ``loss``,
        ``learning_rate``, and with validation data ``valid_log_likelihood``, ``valid_accuracy``,
        ``valid_top_k_accuracy``. Epoch 0 is the start. With several labels per row, the likelihood is a mean
        over pairs, and one right label counts. Where a fit keeps rows back for calibration, the last record
        has the same figures of the finished model on these: ``held_out_rows``, ``held_out_accuracy``, ...
    interrupted_ : bool
        Whether Ctrl-C ended the last fit early.

    Examples
    --------
    >>> import numpy as np
    >>> from extremax import ExtremeClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(50, size=2000)
    >>> X = rng.normal(size=(50, 8))[y] + 0.3 * rng.normal(size=(2000, 8))
    >>> clf = ExtremeClassifier(random_state=0).fit(X[:1500], y[:1500])
    >>> clf.score(X[1500:], y[1500:]) > 0.8
    True
    >>> labels, log_prob = clf.predict_topk(X[1500:], k=3)

    Rows may have any number of labels:

    >>> labels = [["red", "round"], ["red"], ["blue", "round"], ["blue"]]
    >>> clf = ExtremeClassifier(random_state=0).fit(X[:4], labels)
    >>> clf.classes_.tolist()
    ['blue', 'red', 'round']
    """

    _indicator: tuple[bool, str] | None = None  # whether the labels of fit were a sparse matrix; its dtype
    _large_columns: LargeColumns | None = None  # columns of sparse features that are scaled down
    _changes: Sequence[Mapping[str, Any]] = ()  # of the classes since the fit
    _text_bytes = 0  # of features that a `TextClassifier` has made of texts
    _held: Mapping[str, int] = MappingProxyType({})  # bytes that a first call holds before training, by part
    _numbers: Defaults = DEFAULTS  # tuned numbers of the components; a subclass may have others

    @accept_old_names
    def __init__(  # noqa: PLR0913 (the parameters are the API)
        self,
        objective: str = "auto",
        noise: str | Noise = "adversarial",
        *,
        n_negatives: int = 4,
        n_shared: int = 1024,
        precondition: bool = True,
        n_epochs: int | None = None,
        learning_rate: float | None = None,
        optimizer: str | None = None,
        score_penalty: float | None = None,
        penalized_scores: str = "debiased",
        prior_variance: float | None = None,
        class_weight: dict[Any, float] | str | None = None,
        batch_size: int | None = None,
        tree_components: int = 32,
        tree_regularization: float | str = "auto",
        tree_fit: str = "default",
        whiten_components: bool = False,
        scale_features: bool = True,
        noise_exponent: float = 1.0,
        tree_share: float = 0.9,
        validation_fraction: float = 0.0,
        patience: int | None = None,
        memory_limit: int | None = None,
        max_model_bytes: int | None = None,
        n_jobs: int | None = None,
        random_state: int | np.random.Generator | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.objective = objective
        self.noise = noise
        self.n_negatives = n_negatives
        self.n_shared = n_shared
        self.precondition = precondition
        self.n_epochs = n_epochs
        self.learning_rate = learning_rate
        self.optimizer = optimizer
        self.score_penalty = score_penalty
        self.penalized_scores = penalized_scores
        self.prior_variance = prior_variance
        self.class_weight = class_weight
        self.batch_size = batch_size
        self.tree_components = tree_components
        self.tree_regularization = tree_regularization
        self.tree_fit = tree_fit
        self.whiten_components = whiten_components
        self.scale_features = scale_features
        self.noise_exponent = noise_exponent
        self.tree_share = tree_share
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.memory_limit = memory_limit
        self.max_model_bytes = max_model_bytes
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def set_params(self, **params: Any) -> Self:
        """Set parameters; old names work with a warning."""
        super().set_params(**rename_parameters(params))
        return self

    @classmethod
    def paper(cls, **parameters: Any) -> Self:
        """Return an estimator with the paper's algorithm and parameters, and some of one's own.

        Bamler and Mandt, "Extreme Classification via Adversarial Softmax Approximation": negative sampling
        with one negative per row, a label tree fitted to the letter on 16 principal components of all rows
        with lambda_n = 0.1, features as given, and rho and lambda of Table 1.

        Examples
        --------
        >>> clf = ExtremeClassifier.paper(learning_rate=0.003, random_state=0)
        >>> clf.n_negatives, clf.tree_components, clf.tree_fit, clf.scale_features
        (1, 16, 'paper', False)
        """
        from extremax.solvers.paper_parameters import PAPER_PARAMETERS

        return cls(**{**PAPER_PARAMETERS, **rename_parameters(parameters)})

    # -- training ------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        *,
        eval_set: EvalSet = None,
        classes: ArrayLike | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Self:
        """Train from the beginning.

        Parameters
        ----------
        X : array, memory-mapped array or sparse matrix (n_samples, n_features)
            Dense float32 in C order is used as it is, without a copy, and as a ``np.memmap`` may be larger
            than memory: it is read in blocks. Other types are converted in memory, and sparse rows unpacked
            where minibatches share classes. A pair ``(X_sparse, X_dense)`` of matrices with the same rows
            gives every row both, such as words and an embedding. Data frames of any kind that narwhals knows
            and Hugging Face datasets are read as well, also with one column of vectors.
        y : sequence of n_samples labels, or of lists of labels, or indicator matrix (n_samples, n_classes)
            Labels of any hashable type. A row with several (a list, set or array; a tuple is one label) makes
            one positive pair with each, repeated ones counted once. An indicator matrix, sparse or dense, is
            1 where a row has the label of a column. Rows without a label are left out, with a warning that
            counts them. Where X is a data frame, `y` may be the name of its column of labels.
        sample_weight : array (n_samples,), optional
            Weight of each row in the loss, the tree and the frequencies; rows of weight zero are left out.
        eval_set : (X_valid, y_valid) or [(X_valid, y_valid)], optional
            Rows to validate on after each epoch; labels that `y` lacks are left out, with a warning that
            counts them.
        classes : sequence, optional
            Names of the columns of an indicator matrix, which are otherwise those of a DataFrame or 0, 1, 2,
            ...; for labels, all that there are, also those without a row.
        callbacks : sequence of callables
            Each gets the record of every epoch; one that returns True ends training.

        Ctrl-C, once training has started, ends it with the model as far as it got.
        """
        self._forget()
        check_estimator_parameters(self.get_params(deep=False), OBJECTIVES)
        X, y = frame_inputs(X, y)
        with self._nothing_left_on_failure():
            data = self._class_weighted(self._read_first(X, y, classes, sample_weight)).usable()
            self._require_two_classes(data)
            context = self._context(check_random_state(self.random_state))
            data, validation = self._split_validation(data, eval_set, context.seed)
            config = resolve(self._parameters(), self._problem(data), numbers=self._numbers)
            request = Request(validation, callbacks, self._publish, self.patience, self._held)
            return self._finish(fit_model(data, len(self.classes_), config, context, request))

    def resume_fit(self, X: Any, y: Any, *, callbacks: Sequence[Callback] = ()) -> Self:
        """Go on with a `fit` that was cut short, or saved on the way, up to `n_epochs`.

        With the rows of a `fit` without weights and validation, the model ends as if it had never stopped.
        """
        X, y = frame_inputs(X, y)
        features = self._check_fitted(X)
        if self._changes:
            raise ValueError(
                f"the classes of this model were changed ({self._changes[-1]['what']}) after its fit, which"
                " cannot be resumed as if they had not been; go on with partial_fit, or call fit."
            )
        data = self._class_weighted(self._lookup(y, features)).usable()
        config = self._resume_config(data)
        context = self._context(self.seed_)
        request = Request(None, callbacks, self._publish, self.patience)
        return self._finish(resume_model(self._fitted, data, config, context, request))

    def partial_fit(
        self,
        X: Any,
        y: Any,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        new_classes: str = "error",
    ) -> Self:
        """Train one more epoch, on these rows.

        The first call fixes the classes, the objective, the optimizer, the feature scale, the projection and
        the noise; give it `classes` when its rows do not contain all of them. Later calls go on with the same
        or other rows, also after `fit` and after `load_model`. The whitening of dense features is renewed
        from all rows so far, at doubling numbers of them.

        With ``new_classes="add"``, labels that are not among the classes are added by `add_classes` before
        the epoch; by default they are an error. A row of a merged class trains the part of it that scores
        highest."""
        check_estimator_parameters(self.get_params(deep=False), OBJECTIVES)
        check_parameters(
            "partial_fit", {"new_classes": new_classes}, {"new_classes": [Choice(("error", "add"))]}
        )
        X, y = frame_inputs(X, y)
        if self.class_weight == "balanced":
            raise ValueError(
                "class_weight='balanced' needs the labels of all rows, which partial_fit does not see; give a"
                " dict with the weight of each label."
            )
        begun: Fitted | None = vars(self).get("_fitted")
        with self._nothing_left_on_failure():
            if begun is None:
                self._forget()
                data = self._class_weighted(self._read_first(X, y, classes, sample_weight))
                if len(self.classes_) < 2:
                    raise ValueError(
                        f"y has one class, {self.classes_.item(0)!r}; ExtremeClassifier needs at least two."
                        " Declare them: partial_fit(X, y, classes=...)."
                    )
                n_seen = len(np.unique(data.y))
                config = resolve(
                    self._parameters(),
                    self._problem(data),
                    streaming=True,
                    n_seen=n_seen,
                    numbers=self._numbers,
                )
                context = self._context(check_random_state(self.random_state))
            else:
                return self._train_more(X, y, classes, sample_weight, add=new_classes == "add")
            request = Request(publish=self._publish, patience=self.patience, held=self._held)
            return self._finish(train_epoch(begun, data, len(self.classes_), config, context, request))

    def _train_more(
        self, X: Any, y: Any, classes: ArrayLike | None, sample_weight: ArrayLike | None, *, add: bool
    ) -> Self:
        """Train a fitted model for one more epoch.

        What goes wrong before that changes nothing; what goes wrong in it takes added classes back.
        """
        features = self._same_features(X)
        self._check_same_classes(classes)
        before = {name: getattr(self, name) for name in _CHANGED if hasattr(self, name)}
        try:
            if add:
                self._add_unseen(y, features, sample_weight)
            hint = (
                "Declare every class at the first call, partial_fit(X, y, classes=all_labels), or add it now:"
                ' partial_fit(X, y, new_classes="add").'
            )
            found = self._lookup(y, features, hint=hint)
            data = self._class_weighted(self._weighted(found, sample_weight, stacklevel=5))
            if self.model_.parts is not None:
                data = self.model_.merged(self._threads).assign(data)
            config, context = self._resume_config(data), self._context(self.seed_)
            request = Request(publish=self._publish, patience=self.patience)
            n_lines = self.model_.weights.n_classes
            trained = train_epoch(self._fitted, data, n_lines, config, context, request)
        except BaseException:
            if self._fitted is not before["_fitted"]:  # else it was trained in place
                self.__dict__.update(before)
            raise
        return self._finish(trained)

    # -- changes of the classes ----------------------------------------------------------------------------

    def add_classes(
        self, X: Any, y: Any, sample_weight: ArrayLike | None = None, *, classes: ArrayLike | None = None
    ) -> Self:
        """Add classes to a fitted model, by rows of these classes; the weights of all others stay.

        The weights of a further class follow from its rows and from what the fit has learnt about all
        classes: no epoch is run, and no row of another class is needed. `partial_fit` goes on from there.

        Parameters
        ----------
        X : array or sparse matrix (n_samples, n_features)
            Rows of the further classes.
        y : sequence of n_samples labels, or of lists of labels, or indicator matrix
            A row whose label is a class of the model already is an error: ``partial_fit(X, y,
            new_classes="add")`` takes rows of both. Of a row with several labels, one must be new.
        sample_weight : array (n_samples,), optional
            Weight of each row.
        classes : sequence, optional
            Names of the columns of an indicator matrix.

        Examples
        --------
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> centres = 3.0 * rng.normal(size=(6, 8))
        >>> y = rng.integers(6, size=600)
        >>> X = centres[y] + rng.normal(size=(600, 8))
        >>> clf = ExtremeClassifier(random_state=0).fit(X[y < 5], y[y < 5])
        >>> clf.add_classes(X[y == 5][:20], y[y == 5][:20]).classes_.tolist()
        [0, 1, 2, 3, 4, 5]
        >>> bool((clf.predict(X[y == 5]) == 5).mean() > 0.8)
        True
        """
        X, y = frame_inputs(X, y)
        features = self._check_fitted(X)
        known, targets = encode_targets(y, n_samples=features.shape[0], classes=classes)
        data = self._weighted(targets.with_features(features), sample_weight)
        ids = self._find_labels(known)
        if (ids >= 0).all():
            what = (
                f"all {len(known):,} labels of y are classes"
                if len(known) > 1
                else "the label of y is a class"
            )
            raise ValueError(
                f"{what} of this model already; partial_fit(X, y) trains known classes on further rows."
            )
        is_new = ids[data.y] < 0
        has_new = np.bincount(data.rows, weights=is_new, minlength=data.n_rows) > 0
        wrong = np.flatnonzero(~has_new[data.rows])
        if len(wrong):
            row, label = int(data.rows[wrong[0]]), known.item(int(data.y[wrong[0]]))
            raise ValueError(
                f"y[{row}] is {label!r}, a class of this model already; add_classes takes rows of further"
                ' classes. partial_fit(X, y, new_classes="add") takes rows of both, and trains on all.'
            )
        return self._add(known, ids, data)

    def _find_labels(self, labels: NDArray[Any]) -> Int32:
        """Return the class of each label, -1 for those that are none."""
        return self._label_index.find(labels, where=str, hint="", allow_unseen=True)

    def _add(self, known: NDArray[Any], ids: Int32, data: Examples) -> Self:
        """Add those of the `known` labels that have no id yet, by their rows among `data`."""
        number = np.where(ids < 0, np.cumsum(ids < 0) - 1, -1).astype(np.int32)
        new, rows = known[ids < 0], replace(data, y=number[data.y]).usable().compact()
        check_savable(new)
        counts = rows.class_counts(len(new))
        if not counts.all():
            label = new.item(int(np.argmin(counts)))
            raise ValueError(f"the class {label!r} has no row; a class is added by at least one row of it.")
        labels, place = join_labels(self.classes_, new, in_order=self._indicator is None)
        context = self._context(self.seed_)
        fitted = changes.add_classes(self._fitted, rows, place, make_trainer, context)
        return self._change("add_classes", fitted, labels, len(new), rows.n_rows)

    def _add_unseen(self, y: Any, features: Features, sample_weight: ArrayLike | None) -> None:
        """Add the labels of rows that are not among the classes."""
        if self._indicator is not None and indicator_format(y) is not None and not hasattr(y, "columns"):
            return  # its columns are the classes
        known, targets = encode_targets(y, n_samples=features.shape[0])
        ids = self._find_labels(known)
        if (ids < 0).any():
            weight = _row_weight(targets, sample_weight)
            self._add(known, ids, targets.with_features(features).with_row_weight(weight))

    def remove_classes(self, labels: Any) -> Self:
        """Remove classes from a fitted model, exactly: their weights are gone, all others stay.

        The softmax of the scores over the classes that are left is the conditional probability, given that
        none of the removed ones is meant. Of the calibration, uniform mixing keeps its share of every class
        that is left, and the temperature of a row depends on the classes that are left.

        Parameters
        ----------
        labels : sequence
            Some of `classes_`; a single label may stand alone.

        Examples
        --------
        >>> X, y = [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]] * 3, ["a", "b", "c"] * 3
        >>> clf = ExtremeClassifier(random_state=0).fit(X, y).remove_classes(["c"])
        >>> clf.classes_.tolist(), clf.predict_proba([[1.0, 1.0]]).sum().round(6).item()
        (['a', 'b'], 1.0)
        """
        self._require_fitted("before remove_classes")
        ids = self._label_ids(_as_labels(labels))
        kept = np.ones(len(self.classes_), np.bool_)
        kept[ids] = False
        self._require_classes_left(int(kept.sum()), "remove_classes")
        fitted = changes.remove_classes(self._fitted, kept)
        return self._change("remove_classes", fitted, self.classes_[kept], int((~kept).sum()), 0)

    def merge_classes(self, names: Mapping[Any, Any]) -> Self:
        """Give classes other names; classes of the same name become one, exactly.

        The probability of a merged class is the sum of those of its parts, in every method and search. The
        model keeps the weights of all parts.

        Parameters
        ----------
        names : dict
            New name of each label that changes: another label of the model, or a name that is new. All
            changes are made at once, so that ``{"a": "b", "b": "a"}`` exchanges two names.

        Examples
        --------
        >>> X, y = [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]] * 3, ["cat", "dog", "kitten"] * 3
        >>> clf = ExtremeClassifier(random_state=0).fit(X, y)
        >>> before = clf.predict_proba([[0.5, 0.5]])[0]
        >>> after = clf.merge_classes({"kitten": "cat"}).predict_proba([[0.5, 0.5]])[0]
        >>> clf.classes_.tolist(), np.allclose(after, [before[0] + before[2], before[1]])
        (['cat', 'dog'], True)
        """
        self._require_fitted("before merge_classes")
        if not isinstance(names, Mapping) or not names:
            raise TypeError("merge_classes takes a dict from labels to their new names, with one or more.")
        labels = self.classes_.tolist()
        for label, name in zip(self._label_ids(list(names)).tolist(), names.values(), strict=True):
            labels[label] = name
        known, target = encode_labels(labels, name="names")
        check_savable(known)
        if self._indicator is not None:  # columns stay in their order
            first = np.unique(target, return_index=True)[1]
            order = np.argsort(first, kind="stable")
            known, target = known[order], np.argsort(order)[target].astype(np.int32)
        self._require_classes_left(len(known), "merge_classes")
        fitted = changes.merge_classes(self._fitted, np.asarray(target, np.int64))
        weights = self._merged_weights(known, target)
        return self._change("merge_classes", fitted, known, len(names), 0, weights)

    def _merged_weights(self, labels: NDArray[Any], target: Int32) -> dict[Any, float] | None:
        """Return `class_weight` by names after a merge: the mean of those merged, by their training rows."""
        if not isinstance(self.class_weight, dict):
            return None
        index = self._label_index
        ids = index.find(list(self.class_weight), where=str, hint="", allow_unseen=True)
        weights, named = np.ones(len(target)), np.zeros(len(labels), np.bool_)
        known = ids >= 0
        weights[ids[known]] = np.array([float(w) for w in self.class_weight.values()])[known]
        named[target[ids[known]]] = True
        counts = self.model_.classes.counts
        rows = np.ones(len(target)) if counts is None else np.maximum(counts, 0.5)
        found = np.bincount(target, weights=rows * weights) / np.bincount(target, weights=rows)
        return {labels.item(int(i)): float(found[i]) for i in np.flatnonzero(named)}

    def _label_ids(self, labels: Sequence[Any]) -> Int32:
        index = self._label_index
        return index.find(
            list(labels), where=lambda i: "the label", hint="See classes_ for them.", allow_unseen=False
        )

    def _require_classes_left(self, n_classes: int, method: str) -> None:
        if n_classes < 2:
            raise ValueError(
                f"{method} would leave {n_classes} of {len(self.classes_):,} classes; a classifier needs at"
                " least two."
            )

    def _change(
        self,
        what: str,
        fitted: Fitted,
        labels: NDArray[Any],
        n_classes: int,
        n_rows: int,
        class_weight: dict[Any, float] | None = None,
    ) -> Self:
        """Take a changed model in the place of the fitted one, and remember the change."""
        index = LabelIndex(labels)
        record = {
            "what": what,
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "n_changed": n_classes,
            "n_rows": n_rows,
            "n_classes": len(labels),
        }
        if class_weight is not None:
            self.class_weight = class_weight
        elif isinstance(self.class_weight, dict):  # names of classes that are gone would be an error
            found = index.find(list(self.class_weight), where=str, hint="", allow_unseen=True)
            pairs = zip(self.class_weight.items(), found.tolist(), strict=True)
            self.class_weight = {label: weight for (label, weight), i in pairs if i >= 0}
        self.classes_, self._label_index = labels, index
        self._changes = (*self._changes, record)
        self._publish(fitted)
        return self

    @property
    def changes_(self) -> list[dict[str, Any]]:
        """Changes of the classes since the fit, oldest first: what, when, of how many classes and rows."""
        return [dict(change) for change in self._changes]

    def fit_index(self, X: Any, *, held_out: Any = None) -> Self:
        """Fit the index for beam search again, on rows like those to be predicted.

        `held_out`, rows that the model was not trained on, choose the default width; without them, some rows
        of X. `fit` does this by itself; `partial_fit` does not."""
        features = self._check_fitted(X)
        unseen = None if held_out is None else self._same_features(held_out, name="held_out")
        options: dict[str, Any] = {"seed": self.seed_, "n_threads": self._threads}
        index: Search | None
        if self.model_.weights.row_major:
            index = fit_sparse_index(self.model_, features if unseen is None else unseen, **options)
        else:
            index = fit_index(self.model_, features, held_out=unseen, **options)
        return self if index is None else self._replace_model(self.model_.with_search("beam", index))

    def add_search(self, name: str, search: Search) -> Self:
        """Add a search of one's own to the fitted model, for ``predict_topk(search=name)``."""
        self._require_fitted()
        return self._replace_model(self.model_.with_search(name, search))

    def describe_classes(self, texts: Sequence[str]) -> Self:
        """Keep a text on each class, in the order of `classes_`; it is saved with the model."""
        self._require_fitted()
        return self._replace_model(self.model_.with_descriptions(texts))

    # -- the fitted state ----------------------------------------------------------------------------------

    def _forget(self) -> None:
        """Drop everything that an earlier fit left: its memory is needed, and a failed fit must leave
        nothing.
        """
        for name in [name for name in vars(self) if name.endswith("_") and not name.startswith("__")]:
            delattr(self, name)
        for name in ("_fitted", "_label_index", "_indicator", "_large_columns", "_changes"):
            self.__dict__.pop(name, None)

    @contextmanager
    def _nothing_left_on_failure(self) -> Iterator[None]:
        """Forget what a first call has set, unless it got as far as a model."""
        try:
            yield
        except BaseException:
            if "_fitted" not in vars(self):
                self._forget()
            raise

    def _publish(self, fitted: Fitted) -> None:
        self._fitted = fitted
        self.model_: Model = fitted.model
        self.history_: list[Record] = fitted.history
        self.interrupted_: bool = fitted.interrupted

    def _finish(self, fitted: Fitted) -> Self:
        self._publish(fitted)
        if fitted.interrupted:
            warnings.warn(
                f"Training was interrupted after {fitted.model.n_epochs} epochs; the model is kept as it is.",
                TrainingInterruptedWarning,
                stacklevel=3,
            )
        return self

    def _replace_model(self, model: Model) -> Self:
        self._fitted.model = model
        self.model_ = model
        return self

    def __getattr__(self, name: str) -> Any:
        """Find parameters under their old names, with a warning."""
        if name in ("coef_", "intercept_"):  # their own AttributeError ends here
            raise AttributeError(self._no_coefficients)
        if name not in RENAMED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        new = RENAMED[name]
        warnings.warn(f"{name} is now called {new}.", FutureWarning, stacklevel=2)
        return getattr(self, new)

    @property
    def coef_(self) -> Any:
        """Weights of the features, (n_classes, n_features), or of two classes (1, n_features).

        With `intercept_` they give `decision_function`: ``X @ coef_.T + intercept_``. Sparse weights are a
        scipy matrix.
        """
        return self._coefficients()[0]

    @property
    def intercept_(self) -> Float32:
        """Score of each class for a row of zeros, (n_classes,), or of two classes (1,)."""
        return self._coefficients()[1]

    def _coefficients(self) -> tuple[Any, Float32]:
        if self._no_coefficients is not None:
            raise AttributeError(self._no_coefficients)
        scorer = self.model_.scorer
        weights, intercept = scorer.weights.coefficients()
        if scorer.offsets is not None:
            intercept = intercept + scorer.offsets
        if self._large_columns is not None:
            weights = self._large_columns.to_given(weights)
        if len(self.classes_) == 2:
            return weights[1:2] - weights[0:1], intercept[1:2] - intercept[0:1]
        return weights, intercept

    @property
    def _no_coefficients(self) -> str | None:
        """Say why there is no `coef_`; None where there is one."""
        if "model_" not in vars(self):
            return f"This {type(self).__name__} is not fitted yet; call fit(X, y) first."
        scorer = self.model_.scorer
        if self.model_.parts is not None:
            return (
                "a model with merged classes has no coef_ and intercept_: the score of a merged class is the"
                " log of a sum over its parts, whose weights are in model_.weights."
            )
        if not scorer.linear_scores:
            return (
                f"a model of objective {self.model_.objective!r} with a label tree has no coef_ and"
                " intercept_: log p_n of the tree, a part of its scores, is not linear in the features."
            )
        return scorer.weights.nonlinear_part

    @property
    def choices_(self) -> Choices:
        """What was left open and chosen, as the model has it now."""
        if "model_" not in vars(self):
            raise AttributeError(f"This {type(self).__name__} is not fitted yet; call fit(X, y) first.")
        large = self._large_columns
        scaled = {} if large is None else {"scaled_columns": large.columns.tolist()}
        return Choices(scaled | self.model_.describe())

    @property
    def _threads(self) -> int:
        return resolve_threads(self.n_jobs)

    def _threads_for(self, features: Features) -> int:
        """Return the threads of a search: one for a single row that one thread scores anyway."""
        alone = features.shape[0] == 1 and self.model_.weights.row_major
        return 1 if alone and self.n_jobs != 0 else self._threads

    def _context(self, seed: int) -> Context:
        self.seed_ = seed
        return Context(seed, self._threads, ProgressLine(int(self.verbose)), self.memory_limit)

    def _parameters(self) -> dict[str, Any]:
        parameters = self.get_params(deep=False)
        noise = canonical_noise(parameters["noise"])
        return {**parameters, "noise": noise if isinstance(noise, str) else as_noise(noise)}

    def _problem(self, data: Examples) -> ProblemSize:
        layout = vars(self).get("_n_dense", 0), vars(self).get("_column_groups", ())
        return problem_size(data, len(self.classes_), *layout)

    def _resume_config(self, data: Examples) -> FitConfig:
        model = self.model_
        if model.config is None:
            raise ValueError(
                "this model has no record of how it was trained, so training cannot go on; fit it again."
            )
        return resume_config(
            model.config,
            self._parameters(),
            self._problem(data),
            model.noise,
            is_whitened=self._fitted.state.whitening is not None,
        )

    # -- input ---------------------------------------------------------------------------------------------

    def _read_first(self, X: Any, y: Any, classes: Any, sample_weight: ArrayLike | None) -> Examples:
        """Check the rows of a first call and fix the classes and the columns."""
        given = X
        X, self._n_dense = join_pair(given)
        features = check_features(X)
        held = {"text features": self._text_bytes, "converted features": copied_bytes(given, features)}
        self._held = {part: size for part, size in held.items() if size}
        known, targets = encode_targets(y, n_samples=features.shape[0], classes=classes)
        check_savable(known)
        self._indicator = indicator_format(y)
        if sparse.issparse(features):
            n_sparse = int(features.shape[1]) - self._n_dense
            self._large_columns = LargeColumns.find(features, self._numbers.scale, n_sparse)
        if self._large_columns is not None:
            features = self._large_columns.scale(features)
        data = self._weighted(targets.with_features(features), sample_weight, stacklevel=5)
        self._remember(X, features, known)
        return data

    def _remember(self, X: Any, features: Features, classes: NDArray[Any]) -> None:
        self.classes_ = classes
        self._label_index = LabelIndex(classes)
        validate_data(self, X if hasattr(X, "columns") else features, skip_check_array=True, reset=True)

    def _require_two_classes(self, data: Examples) -> None:
        if len(np.unique(data.y)) < 2:
            only = self.classes_.item(data.y[0])
            raise ValueError(f"y has one class, {only!r}; ExtremeClassifier needs rows of at least two.")

    def _split_validation(
        self, data: Examples, eval_set: EvalSet, seed: int
    ) -> tuple[Examples, Examples | None]:
        """Return rows to train on, and rows to validate on: those given, or a fraction held out."""
        validation = self._read_eval_set(eval_set)
        if validation is None and self.validation_fraction > 0.0:
            data, validation = data.holdout(self.validation_fraction, seed)
        if validation is None:
            check_patience(self.patience)
        return data, validation

    def _check_same_classes(self, classes: ArrayLike | None) -> None:
        known = self.classes_
        # Sorted or, for the columns of a matrix, in their order: both are the classes of the first call.
        same = classes is None or np.array_equal(check_classes(classes), known)
        if not same and not np.array_equal(np.asarray(classes), known):
            raise ValueError(
                f"classes differs from the {len(known):,} classes of the first call to partial_fit."
                " Leave it out, or call fit to start again."
            )

    def _read_eval_set(self, eval_set: EvalSet) -> Examples | None:
        pair = read_pair(eval_set)
        if pair is None:
            return None
        given, y = frame_inputs(*pair)
        X = self._same_features(given, name="eval_set[0]")
        data = self._lookup(y, X, name="eval_set[1]", allow_unseen=True)
        unseen = int((data.y < 0).sum())
        if unseen == data.n_pairs:
            raise ValueError(
                "eval_set has no row of a class that occurs in y; validate on rows of the same classes."
            )
        _warn_unlabelled(data, "eval_set[1]", stacklevel=5)
        if unseen:
            what = "rows of eval_set are of" if data.row_index is None else "labels of eval_set are"
            warnings.warn(
                f"{unseen} of {data.n_pairs} {what} classes that y lacks; they are left out.", stacklevel=4
            )
        return data.usable().compact()

    def _lookup(self, y: Any, features: Features, **options: Any) -> Examples:
        targets = lookup_targets(y, self._label_index, n_samples=features.shape[0], **options)
        return targets.with_features(features)

    def _weighted(self, data: Examples, sample_weight: ArrayLike | None, stacklevel: int = 4) -> Examples:
        """Give the pairs the weights of their rows, and warn of rows without a label."""
        weight = _row_weight(data, sample_weight)
        _warn_unlabelled(data, "y", stacklevel)
        return data.with_row_weight(weight)

    def _class_weighted(self, data: Examples) -> Examples:
        """Multiply the weights of the pairs by those of their classes."""
        if self.class_weight is None:
            return data
        given: Any = self.class_weight
        if isinstance(given, dict):
            ids = {self._label_id(label, "class_weight names"): weight for label, weight in given.items()}
            given = ids
        return data.with_class_weight(class_weights(given, data, len(self.classes_)))

    def _require_fitted(self, before: str = "first") -> None:
        if not hasattr(self, "model_"):
            raise NotFittedError(f"This {type(self).__name__} is not fitted yet; call fit(X, y) {before}.")

    def _check_fitted(self, X: Any) -> Features:
        self._require_fitted()
        return self._same_features(X)

    def _same_features(self, X: Any, name: str = "X") -> Features:
        """Check that X has the columns of the first call, by number and, where both have them, by name."""
        X = self._join(as_frame(X, name), name)
        features = check_features(X, name=name, n_features=self.n_features_in_)
        if hasattr(X, "columns") or hasattr(self, "feature_names_in_"):  # the names of the columns matter
            validate_data(self, X if hasattr(X, "columns") else features, skip_check_array=True, reset=False)
        return features if self._large_columns is None else self._large_columns.scale(features)

    def _join(self, X: Any, name: str) -> Any:
        """Return a pair of sparse and dense features as one matrix, if its parts have the right widths."""
        joined, n_dense = join_pair(X, name)
        expected = vars(self).get("_n_dense", 0)
        if joined is not X and n_dense != expected:
            raise ValueError(
                f"{name} has {n_dense} dense features beside sparse ones; the model was fitted on {expected}."
            )
        return joined

    # -- prediction ----------------------------------------------------------------------------------------

    def predict(self, X: Any) -> Any:
        """Return the most probable label of each row.

        A model fitted on an indicator matrix returns one, (n_samples, n_classes), as scikit-learn's
        multi-label scorers expect: 1 for the labels of `predict_labels`, sparse where that of `fit` was.
        """
        features = self._check_fitted(X)
        if self._indicator is not None:
            rows, ids, _ = self._labels_above(features, None)
            return self._make_indicator(rows, ids, features.shape[0])
        return self._named(*self.model_.topk(features, 1, n_threads=self._threads_for(features)))[:, 0]

    def predict_topk(
        self, X: Any, k: int = 5, *, search: str = "exact", beam_width: int | None = None
    ) -> tuple[NDArray[Any], Float32]:
        """Return the k most probable labels of each row, best first, and their log-probabilities.

        Parameters
        ----------
        X : array or sparse matrix (n_samples, n_features)
        k : int
            At most the number of classes.
        search : {"exact", "beam"} or the name of another search of the model
            "exact" scores every class. "beam" scores those with the highest approximate scores and estimates
            the normaliser from the others; where the tree's probabilities are part of the scores, it scores
            the classes that a beam reaches in the tree and **normalises over them**.
        beam_width : int, optional
            Classes to score; by default as many as found the exact best class in 99.7% of some rows of `fit`
            (``choices_["beam_width"]``; None there: exact search is as fast), or 64 where the noise's own
            tree is used.
        """
        ids, log_prob = self._predict_ids(X, k, search, beam_width)
        return self.classes_[ids], log_prob

    def _predict_ids(
        self, X: Any, k: int, search: str = "exact", beam_width: int | None = None
    ) -> tuple[Int32, Float32]:
        """Return what `predict_topk` does, with numbers of classes in place of labels."""
        features = self._check_fitted(X)
        options: ConstraintTable = {
            "k": [Interval(int, 1, len(self.classes_))],
            "search": [Choice(self.model_.search_names)],
            "beam_width": [Interval(int, 1), None],
        }
        check_parameters("predict_topk", {"k": k, "search": search, "beam_width": beam_width}, options)
        ids, log_prob = self.model_.topk(
            features, k, search=search, width=beam_width, n_threads=self._threads_for(features)
        )
        _check_scores(ids, log_prob)
        return ids, log_prob

    def _named(self, ids: Int32, log_prob: Float32) -> NDArray[Any]:
        _check_scores(ids, log_prob)
        return self.classes_[ids]

    def predict_labels(self, X: Any, threshold: float | None = None) -> list[list[Any]]:
        """Return all labels that apply to each row, the most probable first; there may be none.

        Parameters
        ----------
        X : array or sparse matrix (n_samples, n_features)
        threshold : float, optional
            Probability of a label by itself, `predict_label_proba`, from which it applies. By default the one
            with the best micro F1 on rows that `fit` or `extremax.calibrate` kept back
            (``choices_["label_threshold"]``), or 0.5 where there are none.
        """
        features = self._check_fitted(X)
        rows, ids, _ = self._labels_above(features, threshold)
        ends = np.searchsorted(rows, np.arange(1, features.shape[0] + 1))
        names = self.classes_[ids]
        return [part.tolist() for part in np.split(names, ends[:-1])]

    def predict_label_proba(self, X: Any) -> Float64:
        """Return for every class the probability that it applies, each by itself: (n_samples, n_classes).

        Rows need not sum to one. Chosen by rows that `fit` kept back, where rows have several labels; without
        such rows it is the probability of `predict_proba` times the mean number of labels, at most one.
        Refuses results too large for memory.
        """
        features = self._check_fitted(X)
        return self.model_.label_prob_all(features, n_threads=self._threads)

    def _labels_above(
        self, features: Features, threshold: float | None
    ) -> tuple[NDArray[np.int64], Int32, Float64]:
        """Return row, class and probability of the labels from a threshold on."""
        options: ConstraintTable = {"threshold": [Interval(float, 0.0, 1.0, closed="right"), None]}
        check_parameters("predict_labels", {"threshold": threshold}, options)
        least = self.model_.labels.threshold if threshold is None else float(threshold)
        return self.model_.labels_above(features, least, n_threads=self._threads)

    def _make_indicator(self, rows: NDArray[np.int64], ids: Int32, n_rows: int) -> Any:
        """Return pairs of row and class as a matrix like that of `fit`."""
        is_sparse, dtype = self._indicator or (False, "int64")
        shape = n_rows, len(self.classes_)
        if is_sparse:
            return sparse.csr_matrix((np.ones(len(ids), dtype), (rows, ids)), shape=shape)
        table = np.zeros(shape, dtype)
        table[rows, ids] = 1
        return table

    def decision_function(self, X: Any) -> Float32:
        """Return debiased scores, (n_samples, n_classes); for two classes the second's minus the first's."""
        features = self._check_fitted(X)
        scores = self.model_.debiased_scores(features, n_threads=self._threads)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_log_proba(self, X: Any) -> Float32:
        """Return log p(y|x) of every class, (n_samples, n_classes); refuses results too large for memory."""
        features = self._check_fitted(X)
        return self.model_.log_prob_all(features, n_threads=self._threads)

    def predict_proba(self, X: Any) -> Float64:
        """Return p(y|x) of every class, in float64; refuses results too large for memory."""
        features = self._check_fitted(X)
        return self.model_.prob_all(features, n_threads=self._threads)

    def log_likelihood(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Return the mean log p(y|x), normalised over all classes; with several labels per row, over the
        pairs.
        """
        X, y = frame_inputs(X, y)
        features = self._check_fitted(X)
        hint = "Leave out rows of classes that were not in the training data."
        data = self._weighted(self._lookup(y, features, hint=hint), sample_weight)
        return self.model_.log_likelihood(data.compact(), n_threads=self._threads)

    def score(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy; a label that was not in the training data counts as missed.

        With several labels per row it is precision@1: the fraction of rows with the predicted label among
        theirs."""
        X, y = frame_inputs(X, y)
        features = self._check_fitted(X)
        data = self._lookup(y, features, allow_unseen=True)
        weight = _row_weight(data, sample_weight)
        _warn_unlabelled(data, "y")
        best, _ = self.model_.topk(features, 1, n_threads=self._threads)
        hit = np.bincount(data.rows, weights=data.y == best[data.rows, 0], minlength=data.n_rows)
        labelled = data.labels_per_row > 0
        chosen = None if weight is None else weight[labelled].astype(np.float64)
        return float(np.average(hit[labelled], weights=chosen))

    def _evaluation_rows(self, X: Any, y: Any) -> tuple[Model, Examples, int]:
        """Return the model, the labelled rows (class -1 for unknown labels) and the threads to use."""
        self._require_fitted("before evaluate")
        X, y = frame_inputs(X, y)
        return self.model_, self._lookup(y, self._same_features(X), allow_unseen=True), self._threads

    def monitor(
        self, *, alpha: float = 0.01, reference: Any = None, state: str | None = None, seed: int = 0
    ) -> Monitor:
        """Return a monitor of drift, for a stream of rows that this model answers.

        Parameters
        ----------
        alpha : float
            Probability of a false alarm over the whole stream, at most.
        reference : array or sparse matrix (n_samples, n_features), optional
            Rows to compare the stream with, that training has not seen. By default those that `fit` held back
            for calibration.
        state : str, optional
            What `Monitor.to_json` returned, to go on with.
        seed : int
            Seed of the draws that break ties.
        """
        self._require_fitted("before monitor")
        found = self._reference(
            None if reference is None else self._same_features(reference, name="reference")
        )
        monitor = Monitor(self, found, alpha=alpha, seed=seed)
        return monitor if state is None else monitor.restore(state)

    def _reference(self, rows: Features | None) -> Reference:
        """Return what a monitor compares with: rows given as features, or those of the fit."""
        model = self.model_
        if rows is None:
            if model.reference is None:
                raise ValueError(
                    "this model has no reference rows: its fit held none back, it was trained or calibrated"
                    " afterwards, or an older version saved it. Give rows that training has not seen:"
                    " clf.monitor(reference=X)."
                )
            return model.reference
        if rows.shape[0] < MIN_ROWS:
            raise ValueError(f"reference has {rows.shape[0]:,} rows; give at least {MIN_ROWS}.")
        best, log_prob = model.topk(rows, 1, n_threads=self._threads)
        _check_scores(best, log_prob)
        return reference_of_rows(
            rows,
            (best[:, 0], log_prob[:, 0]),
            model.classes.counts,
            model.n_classes,
            before=model.reference,
            of_texts=model.config is not None and len(model.config.column_groups) > 0,
            n_dense=vars(self).get("_n_dense", 0),
        )

    # -- explanations --------------------------------------------------------------------------------------

    def explain(self, x: Any, k: int = 3) -> Explanation:
        """Explain the prediction for one row by exact contributions of its features.

        Parameters
        ----------
        x : array or sparse matrix (1, n_features)
        k : int
            Labels: the contributions to the score of the first, and to its difference from each of the
            others.

        Returns
        -------
        Explanation
            Features have the names of the training data's columns, or their numbers.
        """
        features = self._check_fitted(x)
        check_count("explain", k)
        if features.shape[0] != 1:
            raise ValueError(f"x has {features.shape[0]:,} rows; explain takes one.")
        best = self.model_.topk(features, min(k, len(self.classes_)), n_threads=self._threads)
        return explain_row(self.model_, self.classes_, features, best, self._column_names)

    def explain_label(self, label: Any, k: int = 10) -> LabelExplanation:
        """Explain a class: the features with the greatest weights, and the classes that are most like it.

        Parameters
        ----------
        label
            One of `classes_`.
        k : int
            Features, and classes, to list.
        """
        self._require_fitted()
        check_count("explain_label", k)
        return explain_class(self.model_, self.classes_, self._label_id(label), self._column_names, k)

    def _label_id(self, label: Any, what: str = "") -> int:
        found = int(self._label_index.lookup([label], n_samples=1, allow_unseen=True)[0])
        if found < 0:
            what = f"{what} {label!r}, which" if what else repr(label)
            raise ValueError(f"{what} is none of the {len(self.classes_):,} classes of this model.")
        return found

    def _column_names(self, columns: NDArray[np.integer[Any]]) -> list[str]:
        names = getattr(self, "feature_names_in_", None)
        return [f"column {c}" if names is None else str(names[c]) for c in columns.tolist()]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # -- files ---------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a folder, all at once or not at all; `load_model` opens it."""
        self._save(path)

    def _save(self, path: str | os.PathLike[str], parts: dict[str, State] | None = None) -> None:
        self._require_fitted("before save")
        header, defaults = self._header(), type(self)().get_params(deep=False)
        given = self.get_params(deep=False)
        card = make_card(
            self.model_,
            self.classes_,
            history=self.history_,
            parameters={name: given[name] for name in given if _differ(given[name], defaults[name])},
            changes=self._changes,
            texts=bool(parts),
        )
        state = self._fitted.state
        save_model(path, self.model_, state, labels=self.classes_, header=header, parts=parts, card=card)

    def _header(self) -> dict[str, Any]:
        """Return what a saved model holds beside the model: parameters, history, seed."""
        plain = {
            name: value
            for name, value in self.get_params(deep=False).items()
            if isinstance(value, str | int | float | np.generic | None)
        }
        history = [
            {name: None if value != value else value for name, value in record.items()}
            for record in self.history_
        ]
        header: dict[str, Any] = {"parameters": plain, "history": history, "seed": str(self.seed_)}
        if self._indicator is not None:
            header["indicator"] = list(self._indicator)
        if self._large_columns is not None:
            header["large_columns"] = self._large_columns.header()
        if self._changes:
            header["changes"] = [dict(change) for change in self._changes]
        if isinstance(self.class_weight, dict):
            weights = {self._label_id(label): float(w) for label, w in self.class_weight.items()}
            header["class_weight"] = sorted(weights.items())
        if hasattr(self, "feature_names_in_"):
            header["feature_names"] = list(self.feature_names_in_)
        return header

    @classmethod
    def _restore(cls, path: str | os.PathLike[str], saved: SavedModel) -> Self:
        """Return the estimator that a folder holds."""
        if saved.labels is None:
            raise ModelFileError(
                f"{path} holds a model without label names; it was not written by ExtremeClassifier.save."
            )
        given = checks.get_mapping(saved.header, "parameters")
        if "penalized_scores" not in given and saved.model.objective in BATCH_OBJECTIVES:
            given = {**given, "score_penalty": None}  # it had no effect there in the version that wrote it
        if not isinstance(given.get("noise", ""), str):
            checks.reject(f"its parameter 'noise' is {checks.shown(given['noise'])}")
        # A noise object is no plain parameter, but the model has it.
        estimator = cls(**{"noise": saved.model.noise, **given})
        check_saved_parameters({**estimator.get_params(deep=False), **given}, saved.model.config, OBJECTIVES)
        columns = np.empty((1, saved.model.n_features), np.float32)
        estimator._remember(columns, columns, saved.labels)
        if "indicator" in saved.header:
            is_sparse, dtype = saved.header["indicator"]
            estimator._indicator = bool(is_sparse), np.dtype(dtype).name
        if "large_columns" in saved.header:
            estimator._large_columns = LargeColumns.from_header(
                checks.get_mapping(saved.header, "large_columns"), saved.model.n_features
            )
        if "changes" in saved.header:
            estimator._changes = _check_changes(checks.get_list(saved.header, "changes", (dict,)))
        if "class_weight" in saved.header:
            labels = saved.labels.tolist()
            estimator.class_weight = {labels[i]: weight for i, weight in saved.header["class_weight"]}
        if "feature_names" in saved.header:
            if len(checks.get_list(saved.header, "feature_names")) != saved.model.n_features:
                checks.reject(
                    f"there are not as many feature names as the {saved.model.n_features:,} features"
                )
            estimator.feature_names_in_ = np.array(saved.header["feature_names"], dtype=object)
        if saved.model.config is not None:
            estimator._n_dense = saved.model.config.n_dense
            estimator._column_groups = saved.model.config.column_groups
        seed = checks.get_text(saved.header, "seed")
        if not (seed.isascii() and seed.isdigit() and len(seed) <= 20 and int(seed) < 2**64):
            checks.reject(f"the seed is {checks.shown(seed)}")
        estimator.seed_ = int(seed)
        history = [
            {n: float("nan") if v is None else v for n, v in record.items()}
            for record in checks.get_list(saved.header, "history", (dict,))
        ]
        _check_history(history)
        estimator._publish(Fitted(saved.model, saved.state, history))
        return estimator


def read_pair(eval_set: EvalSet, names: str = "(X_valid, y_valid)") -> tuple[Any, Any] | None:
    """Return the rows and labels of an `eval_set`, which may be a list of one pair, as in LightGBM."""
    if eval_set is None:
        return None
    pairs = isinstance(eval_set, list) and all(isinstance(p, tuple | list) and len(p) == 2 for p in eval_set)
    if pairs and len(eval_set) != 1 and all(isinstance(pair, tuple) for pair in eval_set):
        raise ValueError(
            f"eval_set has {len(eval_set)} pairs; give one, {names}: it is what patience stops by."
        )
    found: Any = eval_set[0] if pairs and len(eval_set) == 1 else eval_set
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise TypeError(f"eval_set must be a pair {names}; got {type(eval_set).__name__}.")
    return found[0], found[1]


def _check_history(history: list[Record]) -> None:
    """Raise ModelFileError unless a saved history has records of numbers that training can go on from."""
    if not history or any(type(value) not in (int, float) for record in history for value in record.values()):
        checks.reject("its history holds something that is no number")
    for name in ("epoch", "seconds"):
        checks.get_float(history[-1], name)


def _check_changes(changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the changes of a saved model, or raise ModelFileError."""
    for change in changes:
        for name in ("what", "when"):
            checks.get_text(change, name)
        for name in ("n_changed", "n_rows", "n_classes"):
            checks.get_int(change, name)
    return [{name: change[name] for name in _CHANGE_FIELDS} for change in changes]


def _differ(one: Any, two: Any) -> bool:
    """Whether two values of a parameter differ; objects of other libraries do."""
    plain = (str, int, float, type(None))
    return type(one) is not type(two) or not isinstance(one, plain) or one != two


def _as_labels(labels: Any) -> list[Any]:
    """Return labels as a list; one that stands alone is a list of one."""
    if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
        return [labels]
    return labels.tolist() if isinstance(labels, np.ndarray) else list(labels)


def _check_scores(ids: Int32, log_prob: Float32) -> None:
    """Raise for rows whose scores are not numbers: with k <= n_classes, no class can be missing."""
    known = (ids >= 0).all(axis=1) & np.isfinite(log_prob[:, 0])
    if not known.all():
        raise ScoreOverflowError(int(np.argmin(known)))


def check_count(method: str, k: Any) -> None:
    """Raise unless k is a whole number of at least one."""
    check_parameters(method, {"k": k}, {"k": [Interval(int, 1)]})


def _row_weight(data: Examples, sample_weight: ArrayLike | None) -> Float32 | None:
    """Return the weights of the rows, which must not all be zero where there are labels."""
    weight = check_sample_weight(sample_weight, data.n_rows)
    if weight is not None and not weight[data.rows].any():
        raise ValueError(
            "sample_weight is zero for every row with a label; at least one of their weights must be"
            " above zero."
        )
    return weight


def _warn_unlabelled(data: Examples, name: str, stacklevel: int = 3) -> None:
    """Warn of rows without any label, which are left out, in the name of the method that a user called."""
    if data.n_unlabelled:
        warnings.warn(
            f"{data.n_unlabelled:,} of {data.n_rows:,} rows of {name} have no label; they are left out.",
            stacklevel=stacklevel,
        )
