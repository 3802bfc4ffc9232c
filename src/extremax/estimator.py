"""``ExtremeClassifier``, the scikit-learn estimator: check the input, name the classes, call the floors
below.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import validate_data

from extremax import fitting
from extremax.fitting import Options
from extremax.labelled_rows import LabelledRows, check_row_weight, warn_unlabelled
from extremax.linear import Features
from extremax.model import ExtremeModel
from extremax.noise import Noise
from extremax.parameters import check_patience, check_settings
from extremax.runtime.progress import ProgressLine
from extremax.runtime.threads import resolve_threads
from extremax.search import ScoreOverflowError
from extremax.training.loop import Callback, Plan, train
from extremax.validation import (
    Choice,
    ConstraintTable,
    Interval,
    LabelIndex,
    Targets,
    check_classes,
    check_features,
    check_parameters,
    check_random_state,
    encode_targets,
    lookup_targets,
)


class ExtremeClassifier(ClassifierMixin, BaseEstimator):
    """Linear softmax classifier over very many classes, trained by negative sampling at a cost that grows
    with log C.

    Parameters
    ----------
    objective : str
        The loss; formulas in `extremax.training.objectives`. "negative_sampling" (the paper's Eq. 6), "nce",
        "sampled_softmax", "sampled_softmax_masked" (without negatives that hit the positive: favours frequent
        classes), "one_vs_each" and "augment_reduce" draw for each row. "shared_softmax" compares a minibatch
        with `n_shared` classes, "softmax" with all. "auto": "shared_softmax" for up to 1,024 features, else,
        in `partial_fit` and with own noise "negative_sampling".
    noise : {"adversarial", "uniform", "frequency", "mixture"} or Noise without a tree
        Where negatives come from: label tree, all classes alike, class frequencies, or a mixture of tree and
        frequencies.
    n_negatives : int
        Negatives per row and epoch, of objectives whose rows draw their own.
    n_shared : int
        Classes that the rows of a minibatch share under "shared_softmax"; half of them come from the rows'
        cell of the tree.
    precondition : bool
        For "shared_softmax" and "softmax": start from a linear discriminant, train on whitened features, with
        falling steps.
    n_epochs : int, optional
        Passes over the data; 0 gives the start as classifier: the noise distribution, or the discriminant.
    learning_rate : float, optional
        Step size, for rows of mean square length one; with `precondition`, where it is used, it falls to zero
        over the epochs.
    optimizer : {"adagrad", "adagrad_row", "sgd"}, optional
        Adagrad with an accumulator per weight, or per class (half the memory), or plain gradient steps.
    score_penalty : float
        The paper's lambda: square penalty on debiased scores, of objectives whose rows draw their own
        negatives.
    prior_variance : float, optional
        Variance of a Gaussian prior on weights and biases (the paper's sigma_0^2); None for no prior.
    batch_size : int, optional
        Rows whose coefficients are computed from the same weights; chosen from the size of the problem unless
        given.
    n_components : int
        Principal components the tree sees (the paper's k, 16 there).
    regularization : float or "auto"
        Strength of the tree's own penalty (the paper's lambda_n, 0.1 there); "auto" chooses by level, on
        held-out rows.
    noise_exponent : float
        Power of the class frequencies in "frequency" and "mixture" noise.
    tree_share : float
        Share of the tree in "mixture" noise.
    validation_fraction : float
        Share of the rows of `fit` kept back for validation, if no `eval_set` is given; one row of each class
        always stays.
    patience : int, optional
        Stop after this many epochs without a better validation log-likelihood, and keep the best epoch.
    memory_limit : int, optional
        Bytes that `fit` may need; by default what the machine has free.
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
    model_ : ExtremeModel
        Weights, noise and projection.
    choices_ : dict
        What was chosen: ``objective``, ``n_epochs`` and others that were left open, ``temperature`` and
        ``floor``, the tree's
        ``regularization`` by level, ``beam_width``.
    history_ : list of dict
        Epoch by epoch: ``epoch``, ``seconds`` of training so far (projection and tree included), ``loss``,
        ``learning_rate``, and with validation data ``valid_log_likelihood``, ``valid_accuracy``, ``valid_top_k_accuracy``.
        Epoch 0 is the start. With several labels a row, the likelihood is a mean over pairs, and one right
        label counts.

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

    >>> clf = ExtremeClassifier(random_state=0).fit(X[:4], [["red", "round"], ["red"], ["blue", "round"], ["blue"]])
    >>> clf.classes_.tolist()
    ['blue', 'red', 'round']
    """

    def __init__(
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
        score_penalty: float = 1e-4,
        prior_variance: float | None = None,
        batch_size: int | None = None,
        n_components: int = 32,
        regularization: float | str = "auto",
        noise_exponent: float = 1.0,
        tree_share: float = 0.9,
        validation_fraction: float = 0.0,
        patience: int | None = None,
        memory_limit: int | None = None,
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
        self.prior_variance = prior_variance
        self.batch_size = batch_size
        self.n_components = n_components
        self.regularization = regularization
        self.noise_exponent = noise_exponent
        self.tree_share = tree_share
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.memory_limit = memory_limit
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        *,
        eval_set: tuple[Any, Any] | None = None,
        classes: ArrayLike | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Self:
        """Train from the beginning.

        Parameters
        ----------
        X : array, memory-mapped array or sparse matrix (n_samples, n_features)
            Dense float32 in C order is used as it is, without a copy, and as a ``np.memmap`` may be larger
            than memory: it is read in blocks. Other types are converted in memory, and sparse rows unpacked
            where minibatches share classes.
        y : sequence of n_samples labels, or of lists of labels, or indicator matrix (n_samples, n_classes)
            Labels of any hashable type. A row with several (a list, set or array; a tuple is one label) makes
            one positive pair with each, repeated ones counted once. An indicator matrix, sparse or dense, is
            1 where a row has the label of a column. Rows without a label are left out, with a warning that
            counts them; X is not copied for any of this.
        sample_weight : array (n_samples,), optional
            Weight of each row in the loss, the tree and the frequencies; rows of weight zero are left out.
        eval_set : (X_valid, y_valid), optional
            Rows to validate on after each epoch; labels that `y` lacks are left out, with a warning that
            counts them.
        classes : sequence, optional
            Names of the columns of an indicator matrix, which are otherwise those of a DataFrame or 0, 1, 2,
            ...; for labels, all that there are, also those without a row.
        callbacks : sequence of callables
            Each gets the record of every epoch; one that returns True ends training.

        Ctrl-C, once the noise is fitted, ends training with the model as far as it got.
        """
        check_settings(self.get_params(deep=False))
        features = check_features(X)
        known, targets = encode_targets(y, n_samples=features.shape[0], classes=classes)
        data = LabelledRows.of(features, targets, check_row_weight(sample_weight, targets))
        warn_unlabelled(targets, "y")
        if len(np.unique(data.ids)) < 2:
            raise ValueError(
                f"y has one class, {known.item(data.ids[0])!r}; ExtremeClassifier needs rows of at least two."
            )
        self._remember(X, features, known)
        seed = check_random_state(self.random_state)
        validation = self._check_eval_set(eval_set)
        if validation is None and self.validation_fraction > 0.0:
            data, validation = data.hold_out(self.validation_fraction, seed)
        if validation is None:
            check_patience(self.patience)
        report = ProgressLine(int(self.verbose))
        options = self._options(data)
        data, judges = fitting.set_judges_aside(data, options, len(known), seed)
        data = self._start(data, validation, options, seed, report)
        validation = validation and validation.labelled()
        self._train(
            data, validation, options, options.n_epochs, callbacks, report, judges=judges, decays=True
        )
        return self

    def resume_fit(self, X: Any, y: Any, *, callbacks: Sequence[Callback] = ()) -> Self:
        """Go on with a `fit` that was cut short, or saved on the way, up to `n_epochs`.

        With the rows of a `fit` without weights and validation, the model ends as if it had never stopped.
        """
        features = self._fitted(X)
        data = LabelledRows.of(features, self._targets(y, features))
        options = self._options(data, goes_on=True)
        left = max(0, options.n_epochs - self.model_.linear.n_epochs)
        data, judges = fitting.set_judges_aside(data, options, len(self.classes_), self.seed_)
        self._train(
            data, None, options, left, callbacks, ProgressLine(int(self.verbose)), judges=judges, decays=True
        )
        return self

    def partial_fit(
        self, X: Any, y: Any, classes: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Train one more epoch, on these rows.

        The first call fixes the classes, the objective, the optimizer, the feature scale, the projection and
        the noise; give it `classes` when its rows do not contain all of them. Later calls go on with the same
        or other rows, also after `fit` and after `load_model`."""
        first_call = not hasattr(self, "model_")
        check_settings(self.get_params(deep=False))
        features = check_features(X) if first_call else self._same_features(X)
        if first_call:
            known, targets = encode_targets(y, n_samples=features.shape[0], classes=classes)
        else:
            known = self.classes_
            # Sorted or, for the columns of a matrix, in their order: both are the classes of the first call.
            if classes is not None and not (
                np.array_equal(check_classes(classes), known) or np.array_equal(np.asarray(classes), known)
            ):
                raise ValueError(
                    f"classes differs from the {len(known):,} classes of the first call to partial_fit."
                    " Leave it out, or call fit to start again."
                )
            targets = self._targets(
                y,
                features,
                way_out="Declare every class at the first call: partial_fit(X, y, classes=all_labels).",
            )
        if len(known) < 2:
            raise ValueError(
                f"y has one class, {known.item(0)!r}; ExtremeClassifier needs at least two."
                " Declare them: partial_fit(X, y, classes=...)."
            )
        data = LabelledRows.all_of(features, targets, check_row_weight(sample_weight, targets))
        warn_unlabelled(targets, "y")
        report = ProgressLine(int(self.verbose))
        if first_call:
            self._remember(X, features, known)
            options = self._options(data, streaming=True)
            data = self._start(data, None, options, check_random_state(self.random_state), report)
        else:
            options = self._options(data, goes_on=True)
        self._train(data, None, options, 1, (), report)
        return self

    def _remember(self, X: Any, features: Features, classes: NDArray[Any]) -> None:
        # An older model goes first: its memory is needed, and a fit that fails must not leave it under the
        # new labels.
        self.__dict__.pop("model_", None)
        self.classes_ = classes
        self._label_index = LabelIndex(classes)
        validate_data(self, X if hasattr(X, "columns") else features, skip_check_array=True, reset=True)

    def _options(self, data: LabelledRows, *, streaming: bool = False, goes_on: bool = False) -> Options:
        parameters = self.get_params(deep=False)
        if goes_on:  # what the model was begun with, where the parameters leave it open
            begun = {name: value for name, value in self.choices_.items() if parameters.get(name, "") is None}
            parameters |= begun | {"objective": self.model_.objective}
        threads = resolve_threads(self.n_jobs)
        return fitting.resolve(
            parameters, data.X.shape, len(self.classes_), len(data.ids), threads, streaming=streaming
        )

    def _start(
        self,
        data: LabelledRows,
        validation: LabelledRows | None,
        options: Options,
        seed: int,
        report: ProgressLine,
    ) -> LabelledRows:
        """A model before its first epoch; returns the rows as training takes them."""
        n_classes = len(self.classes_)
        fitting.require_memory(
            data, validation, n_classes, options, report, patience=self.patience, limit=self.memory_limit
        )
        started = time.perf_counter()
        data = fitting.unpack(data, options)
        prepared = fitting.prepare(
            data.X, data.ids, data.weight, n_classes, options, seed, report, rows=data.rows
        )
        self.seed_ = seed
        self.model_: ExtremeModel = prepared.model
        self.choices_ = prepared.choices
        self.history_: list[dict[str, Any]] = [
            {
                "epoch": 0,
                "seconds": time.perf_counter() - started,
                "loss": float("nan"),
                "learning_rate": options.learning_rate,
            }
        ]
        return data

    def _train(
        self,
        data: LabelledRows,
        validation: LabelledRows | None,
        options: Options,
        n_epochs: int,
        callbacks: Sequence[Callback],
        report: ProgressLine,
        *,
        judges: LabelledRows | None = None,
        decays: bool = False,
    ) -> None:
        started = time.perf_counter()
        data = fitting.unpack(data, options)
        pairs, epoch_options = fitting.training_set(
            self.model_, data.X, data.ids, data.weight, options, self.seed_, rows=data.rows
        )
        self.history_[-1]["seconds"] += time.perf_counter() - started

        def evaluate() -> dict[str, float]:
            assert validation is not None
            return self.model_.evaluate(
                validation.X, validation.ids, rows=validation.rows, n_jobs=self.n_jobs
            )._asdict()

        if validation is not None and len(self.history_) == 1:
            self.history_[0] |= {f"valid_{name}": value for name, value in evaluate().items()}
        finished = train(
            self.model_.linear,
            pairs,
            epoch_options,
            Plan(
                n_epochs,
                options.learning_rate,
                self.patience,
                options.n_epochs if decays and options.decays else None,
            ),
            history=self.history_,
            evaluate=None if validation is None else evaluate,
            callbacks=callbacks,
            report=report,
        )
        started = time.perf_counter()
        if finished:
            try:
                fitting.finish(
                    self.model_, data, judges, options, self.seed_, report, self.choices_, whole=decays
                )
            except KeyboardInterrupt:
                finished = False
        elif judges is not None:
            fitting.calibrate_cut_short(self.model_, judges, options, report, self.choices_)
        self.history_[-1]["seconds"] += time.perf_counter() - started
        if not finished:
            done = self.model_.linear.n_epochs
            warnings.warn(
                f"Training was interrupted after {done} epochs; the model is kept as it is.", stacklevel=3
            )

    def _check_eval_set(self, eval_set: tuple[Any, Any] | None) -> LabelledRows | None:
        if eval_set is None:
            return None
        if not isinstance(eval_set, tuple | list) or len(eval_set) != 2:
            raise TypeError(f"eval_set must be a pair (X_valid, y_valid); got {type(eval_set).__name__}.")
        X = self._same_features(eval_set[0], name="eval_set[0]")
        targets = self._targets(eval_set[1], X, name="eval_set[1]", allow_unseen=True)
        unseen = int((targets.ids < 0).sum())
        if unseen == len(targets.ids):
            raise ValueError(
                "eval_set has no row of a class that occurs in y; validate on rows of the same classes."
            )
        warn_unlabelled(targets, "eval_set[1]")
        if unseen:
            what = "rows of eval_set are of" if targets.rows is None else "labels of eval_set are"
            warnings.warn(
                f"{unseen} of {len(targets.ids)} {what} classes that y lacks; they are left out.",
                stacklevel=3,
            )
        return LabelledRows.of(X, targets).labelled()

    def _targets(self, y: Any, features: Features, **options: Any) -> Targets:
        return lookup_targets(y, self._label_index, n_samples=features.shape[0], **options)

    def _fitted(self, X: Any) -> Features:
        if not hasattr(self, "model_"):
            raise NotFittedError(f"This {type(self).__name__} is not fitted yet; call fit(X, y) first.")
        return self._same_features(X)

    def _same_features(self, X: Any, name: str = "X") -> Features:
        """Check that X has the columns of the first call, by number and, where both have them, by name."""
        features = check_features(X, name=name, n_features=self.n_features_in_)
        validate_data(self, X if hasattr(X, "columns") else features, skip_check_array=True, reset=False)
        return features

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable label of each row."""
        features = self._fitted(X)
        return self._named(*self.model_.top_k(features, 1, n_jobs=self.n_jobs))[:, 0]

    def predict_topk(
        self, X: Any, k: int = 5, *, search: str = "exact", beam_width: int | None = None
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """The k most probable labels of each row, best first, and their log-probabilities.

        Parameters
        ----------
        X : array or sparse matrix (n_samples, n_features)
        k : int
            At most the number of classes.
        search : {"exact", "beam"}
            "exact" scores every class. "beam" scores those with the highest guesses and normalises by guesses
            at the others; where the tree's probabilities are part of the scores, those that it reaches in the
            tree, **normalised over them**.
        beam_width : int, optional
            Classes to score; by default as many as found the exact best class in 99.7% of some rows of `fit`
            (``choices_["beam_width"]``; None there: exact search is as fast), or 64 where the noise's own
            tree is used.
        """
        features = self._fitted(X)
        options: ConstraintTable = {
            "k": [Interval(int, 1, len(self.classes_))],
            "search": [Choice(("exact", "beam"))],
            "beam_width": [Interval(int, 1), None],
        }
        check_parameters("predict_topk", {"k": k, "search": search, "beam_width": beam_width}, options)
        ids, log_prob = self.model_.top_k(
            features, k, search=search, beam_width=beam_width, n_jobs=self.n_jobs
        )
        return self._named(ids, log_prob), log_prob

    def _named(self, ids: NDArray[np.int32], log_prob: NDArray[np.float32]) -> NDArray[Any]:
        # k is at most n_classes: a missing class means scores that are not numbers.
        known = (ids >= 0).all(axis=1) & np.isfinite(log_prob[:, 0])
        if not known.all():
            raise ScoreOverflowError(int(np.argmin(known)))
        return self.classes_[ids]

    def decision_function(self, X: Any) -> NDArray[np.float32]:
        """Debiased scores, (n_samples, n_classes); for two classes the score of the second minus that of
        the first.
        """
        features = self._fitted(X)
        scores = self.model_.debiased_scores(features, n_jobs=self.n_jobs)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_log_proba(self, X: Any) -> NDArray[np.float32]:
        """log p(y|x) of every class, (n_samples, n_classes); refuses results too large for memory."""
        features = self._fitted(X)
        return self.model_.log_prob_all(features, n_jobs=self.n_jobs)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """p(y|x) of every class, in float64 (near 1, float32 rounds too much); refuses results too large
        for memory.
        """
        features = self._fitted(X)
        return self.model_.prob_all(features, n_jobs=self.n_jobs)

    def log_likelihood(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Mean log p(y|x) of the rows, bias removed, normalised over all classes; with several labels a
        row, of the pairs.
        """
        data = self._labelled(
            X, y, sample_weight, way_out="Leave out rows of classes that were not in the training data."
        )
        return self.model_.log_likelihood(
            data.X, data.ids, rows=data.rows, sample_weight=data.weight, n_jobs=self.n_jobs
        )

    def score(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Accuracy: the share of rows whose label is predicted. A label that was not in the training data
        counts as missed.

        With several labels a row it is precision@1: the share of rows with the predicted label among theirs.
        """
        features = self._fitted(X)
        targets = self._targets(y, features, allow_unseen=True)
        weight = check_row_weight(sample_weight, targets)
        warn_unlabelled(targets, "y")
        best, _ = self.model_.top_k(features, 1, n_jobs=self.n_jobs)
        rows = targets.row_index
        hit = np.bincount(rows, weights=targets.ids == best[rows, 0], minlength=targets.n_rows)
        labelled = targets.labels_per_row > 0
        return float(
            np.average(hit[labelled], weights=None if weight is None else weight[labelled].astype(np.float64))
        )

    def _labelled(self, X: Any, y: Any, sample_weight: ArrayLike | None, *, way_out: str) -> LabelledRows:
        features = self._fitted(X)
        targets = self._targets(y, features, way_out=way_out)
        warn_unlabelled(targets, "y")
        return LabelledRows.all_of(features, targets, check_row_weight(sample_weight, targets)).labelled()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a folder, all at once or not at all; `load_model` opens it."""
        header = self._header()
        self.model_.save(path, labels=self.classes_, header=header)

    def _header(self) -> dict[str, Any]:
        """What a saved model holds beside arrays and labels: parameters, choices, history, seed."""
        if not hasattr(self, "model_"):
            raise NotFittedError(f"This {type(self).__name__} is not fitted yet; call fit(X, y) before save.")
        plain = {
            name: value
            for name, value in self.get_params(deep=False).items()
            if isinstance(value, str | int | float | np.generic | None)
        }
        history = [
            {name: None if value != value else value for name, value in record.items()}
            for record in self.history_
        ]
        header = {"parameters": plain, "choices": self.choices_, "history": history, "seed": str(self.seed_)}
        if hasattr(self, "feature_names_in_"):
            header["feature_names"] = list(self.feature_names_in_)
        return header
