"""Small deterministic fits that hold the library's results in place, through the public API alone.

Each case draws its data from a seed, fits an estimator, and names rows to query. `make.py` stores the
results, `tests/test_golden.py` checks that later code reproduces them, and `benchmarks/compare_commits.py`
compares two source trees bit for bit.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax import ExtremeClassifier, FrequencyNoise, TextClassifier, calibrate, evaluate, load_model
from extremax.features.ngrams import NgramFeatures
from golden.folders import Arrays, read_folder

N_QUERY = 12


@dataclass(frozen=True)
class Data:
    """Rows to train on, other rows to ask about, and whatever else a case needs."""

    X: Any
    y: Any
    query: Any
    query_y: Any
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One fit.

    Attributes
    ----------
    name
        Name of the function that fits, and of the folder.
    make_data
        Makes the data.
    fit
        Takes the data and the number of threads; returns a fitted estimator.
    n_jobs
        Threads unless others are asked for.
    saved
        Whether the repository holds the model folder beside the expected values.
    large
        Whether the case is for `benchmarks/compare_commits.py` alone.
    go_on
        Trains a fitted or loaded estimator further.
    whole
        The fit without the interruption, where `fit` was interrupted and `go_on` resumes it.
    load_options
        Further arguments of `load_model`.
    questions
        Texts for ``extremax ask``, which shows descriptions of labels.
    """

    name: str
    make_data: Callable[[], Data]
    fit: Callable[[Data, int], Any]
    n_jobs: int = 1
    saved: bool = False
    large: bool = False
    go_on: Callable[[Any, Data], Any] | None = None
    whole: Callable[[Data, int], Any] | None = None
    load_options: dict[str, Any] = field(default_factory=dict)
    questions: tuple[str, ...] = ()

    def run(self, data: Data, n_jobs: int | None = None) -> Any:
        """Fit without a word about what the case does on purpose, such as an interruption."""
        with quiet():
            return self.fit(data, n_jobs or self.n_jobs)

    def run_whole(self, data: Data) -> Any:
        """Fit without the interruption."""
        assert self.whole is not None
        with quiet():
            return self.whole(data, self.n_jobs)

    def run_on(self, estimator: Any, data: Data) -> Any:
        """Train a fitted estimator further."""
        assert self.go_on is not None
        with quiet():
            return self.go_on(estimator, data)

    def load(self, folder: Path) -> Any:
        """Open a saved model of this case."""
        return load_model(folder, **self.load_options)


CASES: dict[str, Case] = {}


def case(
    make_data: Callable[[], Data], **options: Any
) -> Callable[[Callable[[Data, int], Any]], Callable[[Data, int], Any]]:
    """Register the decorated function as the fit of a case."""

    def register(fit: Callable[[Data, int], Any]) -> Callable[[Data, int], Any]:
        CASES[fit.__name__] = Case(fit.__name__, make_data, fit, **options)
        return fit

    return register


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings: of interruptions, and of names that are on their way out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# -- data ----------------------------------------------------------------------------------------------------


def gaussians(
    n_rows: int,
    n_classes: int,
    n_features: int,
    *,
    seed: int,
    spread: float = 0.6,
    name: Callable[[int], Any] = int,
    form: str = "dense",
    n_labels: int = 1,
) -> Callable[[], Data]:
    """Make a function that draws rows around the means of their classes, with class frequencies that fall.

    `form` is "dense", "csr" or "memmap".  Rows with several labels lie around the sum of their means.
    """

    def make() -> Data:
        rng = np.random.default_rng(seed)
        n = n_rows + N_QUERY
        means = rng.normal(size=(n_classes, n_features))
        labels = (n_classes * rng.random((n, n_labels)) ** 2).astype(np.int64)
        labels[:n_classes, 0] = np.arange(n_classes)  # no class without a row
        X = means[labels].sum(axis=1) + spread * rng.normal(size=(n, n_features))
        if form == "csr":
            X[np.abs(X) < 0.5] = 0.0
        X = X.astype(np.float32)
        y: Any = [name(int(c)) for c in labels[:, 0]]
        if isinstance(y[0], np.generic):
            y = np.array(y)
        if n_labels > 1:
            y = [[name(c) for c in sorted(set(row))] for row in labels.tolist()]
            for i in range(n_classes, n_rows, 50):
                y[i] = []
        return Data(_stored(X[:n_rows], form), y[:n_rows], _stored(X[n_rows:], form), y[n_rows:])

    return make


def _stored(X: NDArray[np.float32], form: str) -> Any:
    if form == "csr":
        return sparse.csr_array(X)
    if form == "memmap":
        with tempfile.TemporaryFile() as file:  # the mapping outlives the name
            file.write(X.tobytes())
            file.flush()
            return np.memmap(file, np.float32, "r", shape=X.shape)
    return X


def weighted(make_data: Callable[[], Data], seed: int) -> Callable[[], Data]:
    """Add sample weights, some of them zero."""

    def make() -> Data:
        data = make_data()
        weights = np.maximum(np.random.default_rng(seed).normal(1.0, 0.7, size=data.X.shape[0]), 0.0)
        return Data(data.X, data.y, data.query, data.query_y, {"weight": weights})

    return make


def as_indicators(make_data: Callable[[], Data], n_classes: int) -> Callable[[], Data]:
    """Turn lists of class numbers into a sparse indicator matrix."""

    def make() -> Data:
        data = make_data()
        ends = np.cumsum([0, *map(len, data.y)])
        columns = np.array([c for row in data.y for c in row], np.int64)
        y = sparse.csr_array((np.ones(len(columns), np.int8), columns, ends), shape=(len(data.y), n_classes))
        return Data(data.X, y, data.query, data.query_y)

    return make


_WORDS = (
    "ache", "arm", "bite", "burn", "cough", "cut", "fall", "fever", "foot", "hand",
    "head", "heart", "itch", "knee", "leg", "lung", "rash", "skin", "sprain", "wrist",
)  # fmt: skip


def texts(n_rows: int, n_classes: int, seed: int) -> Callable[[], Data]:
    """Make a function that writes texts of words that go with their class, and some that do not."""

    def make() -> Data:
        rng = np.random.default_rng(seed)
        own = rng.integers(len(_WORDS), size=(n_classes, 3))
        y = rng.integers(n_classes, size=n_rows + N_QUERY)
        y[:n_classes] = np.arange(n_classes)
        picks = np.where(rng.random((len(y), 3)) < 0.8, own[y], rng.integers(len(_WORDS), size=(len(y), 3)))
        written = [" ".join(_WORDS[i] for i in row) for row in picks]
        names = [f"code {c:02d}" for c in y]
        return Data(written[:n_rows], names[:n_rows], written[n_rows:], names[n_rows:])

    return make


# -- fits ----------------------------------------------------------------------------------------------------


def make(solver: str, **parameters: Any) -> ExtremeClassifier:
    """Make a classifier by the code at hand: before solvers had parameters, the classifier took them all."""
    if hasattr(ExtremeClassifier, "with_solver"):
        return ExtremeClassifier.with_solver(solver, **parameters)
    if solver == "minibatch_softmax":
        solver = "softmax" if parameters.get("n_shared", 1) is None else "shared_softmax"
        parameters = {name: value for name, value in parameters.items() if value is not None}
    return ExtremeClassifier(solver, **parameters)


def comparable_choices(choices: dict[str, Any]) -> dict[str, Any]:
    """Return the choices of any version in the names of this one."""
    found = dict(choices)
    named = found.pop("objective", found.pop("solver", None))
    if found.get("optimizer") == "dual":  # exact steps have none of these
        found = {n: v for n, v in found.items() if n not in ("optimizer", "learning_rate", "batch_size")}
    both = {"shared_softmax": "minibatch_softmax", "softmax": "minibatch_softmax"}
    return found | {"solver": both.get(named, named)}


def stop_after(n_epochs: int) -> Callable[[dict[str, Any]], bool]:
    """Make a callback that ends training after some epochs."""
    return lambda record: record["epoch"] >= n_epochs


def interrupt_after(n_epochs: int) -> Callable[[dict[str, Any]], None]:
    """Make a callback that stands for Ctrl-C after some epochs."""

    def press(record: dict[str, Any]) -> None:
        if record["epoch"] == n_epochs:
            raise KeyboardInterrupt

    return press


def resume(estimator: Any, data: Data) -> Any:
    """Go on with a fit that was cut short."""
    return estimator.resume_fit(data.X, data.y)


def one_more_epoch(estimator: Any, data: Data) -> Any:
    """Train on the same rows once more."""
    return estimator.partial_fit(data.X, data.y)


@case(gaussians(400, 24, 6, seed=1), n_jobs=2, go_on=one_more_epoch, saved=True)
def negative_sampling_tree(data: Data, n_jobs: int) -> Any:
    """The paper's method."""
    clf = make("negative_sampling", n_epochs=4, random_state=1, n_jobs=n_jobs)
    return clf.fit(data.X, data.y)


@case(gaussians(400, 20, 5, seed=2, name="klasse {}".format))
def nce_frequency(data: Data, n_jobs: int) -> Any:
    """NCE, one accumulator per class, frequencies to a power."""
    clf = make(
        "nce",
        noise="frequency",
        noise_exponent=0.75,
        n_negatives=8,
        optimizer="adagrad_row",
        n_epochs=4,
        random_state=2,
        n_jobs=n_jobs,
    )
    return clf.fit(data.X, data.y)


@case(gaussians(400, 20, 8, seed=3, name=lambda c: ("group", c), form="csr"), n_jobs=2, saved=True)
def sampled_softmax_mixture_csr(data: Data, n_jobs: int) -> Any:
    """Mixture noise whose tree has a fixed regularization and fewer components than features; sparse rows."""
    clf = make(
        "sampled_softmax",
        noise="mixture",
        tree_share=0.7,
        n_epochs=4,
        random_state=3,
        n_jobs=n_jobs,
        tree_regularization=0.1,
        tree_components=4,
    )
    return clf.fit(data.X, data.y)


@case(gaussians(400, 20, 5, seed=4, name=lambda c: c / 4, form="memmap"), n_jobs=2, saved=True)
def one_vs_each_sgd_memmap(data: Data, n_jobs: int) -> Any:
    """Plain gradient steps, uniform noise, rows on disk."""
    clf = make(
        "one_vs_each",
        noise="uniform",
        optimizer="sgd",
        learning_rate=0.2,
        score_penalty=1e-3,
        batch_size=16,
        n_epochs=4,
        random_state=4,
        n_jobs=n_jobs,
    )
    return clf.fit(data.X, data.y)


@case(gaussians(300, 16, 5, seed=5), go_on=one_more_epoch, saved=True)
def augment_reduce_prior(data: Data, n_jobs: int) -> Any:
    """A parameter per training pair, and a Gaussian prior."""
    clf = make(
        "augment_reduce", noise="uniform", prior_variance=0.5, n_epochs=3, random_state=5, n_jobs=n_jobs
    )
    return clf.fit(data.X, data.y)


@case(weighted(gaussians(400, 20, 5, seed=6), seed=6), saved=True)
def own_noise_weights(data: Data, n_jobs: int) -> Any:
    """A noise object, which makes "auto" negative sampling, and weighted rows."""
    noise = FrequencyNoise(np.arange(1, 21), 0.5)
    clf = make("negative_sampling", noise=noise, n_epochs=4, random_state=6, n_jobs=n_jobs)
    return clf.fit(data.X, data.y, data.more["weight"])


@case(gaussians(9000, 40, 6, seed=7, form="memmap"), n_jobs=2, go_on=one_more_epoch, saved=True)
def default_cells_memmap(data: Data, n_jobs: int) -> Any:
    """The default with fewer shared classes than there are, from cells of the tree; rows on disk."""
    clf = make("minibatch_softmax", n_shared=16, n_epochs=3, random_state=7, n_jobs=n_jobs)
    return clf.fit(data.X, data.y)


@case(gaussians(300, 20, 5, seed=8, name=lambda c: np.datetime64("2020-01-01") + c), saved=True)
def default_nothing_set(data: Data, n_jobs: int) -> Any:
    """The default with all epochs that it chooses."""
    return ExtremeClassifier(random_state=8, n_jobs=n_jobs).fit(data.X, data.y)


@case(weighted(gaussians(500, 20, 5, seed=9), seed=9), n_jobs=2)
def softmax_weights(data: Data, n_jobs: int) -> Any:
    """Softmax over all classes, weighted rows, an accumulator per weight."""
    clf = make(
        "minibatch_softmax", n_shared=None, optimizer="adagrad", n_epochs=4, random_state=9, n_jobs=n_jobs
    )
    return clf.fit(data.X, data.y, data.more["weight"])


@case(gaussians(500, 30, 5, seed=10, form="csr"), go_on=one_more_epoch)
def plain_shared_softmax_csr(data: Data, n_jobs: int) -> Any:
    """Textbook steps: no start, no whitening, no falling rate; classes drawn uniformly."""
    clf = make(
        "minibatch_softmax",
        noise="uniform",
        precondition=False,
        n_shared=10,
        optimizer="sgd",
        n_epochs=3,
        random_state=10,
        n_jobs=n_jobs,
    )
    return clf.fit(data.X, data.y)


@case(gaussians(200, 12, 4, seed=11, name="{}".format))
def start_alone(data: Data, n_jobs: int) -> Any:
    """No epochs: the discriminant, over classes of which one has no row."""
    clf = make(
        "minibatch_softmax", n_shared=None, noise="frequency", n_epochs=0, random_state=11, n_jobs=n_jobs
    )
    return clf.fit(data.X, data.y, classes=[str(i) for i in range(13)])


@case(gaussians(600, 20, 8, seed=12, form="csr", n_labels=3, name="tag {}".format), n_jobs=2)
def several_labels_csr(data: Data, n_jobs: int) -> Any:
    """Rows with any number of labels, by the default."""
    return make("minibatch_softmax", n_shared=12, n_epochs=4, random_state=12, n_jobs=n_jobs).fit(
        data.X, data.y
    )


@case(as_indicators(gaussians(400, 20, 6, seed=13, n_labels=2), 20))
def indicators_negative_sampling(data: Data, n_jobs: int) -> Any:
    """The same from an indicator matrix, with negatives of each pair."""
    return make("negative_sampling", n_epochs=3, random_state=13, n_jobs=n_jobs).fit(data.X, data.y)


@case(gaussians(600, 150, 4, seed=14, n_labels=2), n_jobs=2, saved=True)
def deferred_tree(data: Data, n_jobs: int) -> Any:
    """So few shared classes that the tree is fitted after training; several labels a row."""
    return make("minibatch_softmax", n_shared=2, n_epochs=3, random_state=14, n_jobs=n_jobs).fit(
        data.X, data.y
    )


def _text_classifier(seed: int, n_jobs: int, *, hash_bits: int = 9, encoder: Any = None) -> TextClassifier:
    classifier = ExtremeClassifier(random_state=seed, n_jobs=n_jobs)
    return TextClassifier(classifier, features=NgramFeatures(hash_bits=hash_bits), encoder=encoder)


@case(texts(300, 12, seed=15), n_jobs=2, saved=True)
def text_few_classes(data: Data, n_jobs: int) -> Any:
    """The default for texts."""
    return _text_classifier(15, n_jobs).fit(data.X, data.y)


@case(texts(800, 220, seed=26), n_jobs=2, saved=True)
def text_many_classes(data: Data, n_jobs: int) -> Any:
    """The default for texts, with few texts of each class."""
    return _text_classifier(26, n_jobs, hash_bits=7).fit(data.X, data.y)


@case(texts(300, 12, seed=27), n_jobs=2, go_on=one_more_epoch, saved=True)
def text_stream(data: Data, n_jobs: int) -> Any:
    """Texts that arrive in two parts, the classes declared with the first."""
    clf = _text_classifier(27, n_jobs)
    clf.partial_fit(data.X[:150], data.y[:150], classes=sorted(set(data.y)))
    return clf.partial_fit(data.X[150:], data.y[150:])


@case(texts(300, 12, seed=28), saved=True)
def text_merged(data: Data, n_jobs: int) -> Any:
    """Two classes of texts merged into one, which format 3 stores."""
    clf = _text_classifier(28, n_jobs).fit(data.X, data.y)
    return clf.merge_classes({"code 05": "code 07"})


class LetterCounts:
    """An encoder of texts: how often each of some letters occurs."""

    def encode(self, written: Sequence[str]) -> NDArray[np.float32]:
        return np.array([[text.count(letter) for letter in "aeiourst"] for text in written], np.float32)


@case(texts(300, 12, seed=16), load_options={"encoder": LetterCounts()}, saved=True)
def encoded_texts(data: Data, n_jobs: int) -> Any:
    """Features by an encoder that the folder does not hold."""
    classifier = make("nce", noise="uniform", n_epochs=4, random_state=16, n_jobs=n_jobs)
    return TextClassifier(classifier, encoder=LetterCounts()).fit(data.X, data.y)


@case(texts(300, 12, seed=29), load_options={"encoder": LetterCounts()}, n_jobs=2, saved=True)
def text_embeddings(data: Data, n_jobs: int) -> Any:
    """N-grams beside embeddings."""
    return _text_classifier(29, n_jobs, encoder=LetterCounts()).fit(data.X, data.y)


@case(texts(300, 12, seed=17), questions=("fever cough", "cut hand"))
def described_labels(data: Data, n_jobs: int) -> Any:
    """By the command line, with a description of each label."""
    with tempfile.TemporaryDirectory() as folder:
        rows, names, model = (Path(folder, name) for name in ("rows.csv", "names.csv", "model"))
        rows.write_text("text,label\n" + "".join(f"{x},{y}\n" for x, y in zip(data.X, data.y, strict=True)))
        names.write_text(
            "label,description\n" + "".join(f"{y},what {y} stands for\n" for y in sorted(set(data.y)))
        )
        options = ["--n-epochs", "2", "--seed", "17", "--threads", str(n_jobs), "--quiet"]
        command("train", str(rows), "--out", str(model), "--descriptions", str(names), *options)
        return load_model(model)


@case(gaussians(400, 20, 40, seed=37, form="csr"), n_jobs=2, saved=True)
def sparse_softmax(data: Data, n_jobs: int) -> Any:
    """What texts are trained with, on sparse rows."""
    return make("sparse_softmax", random_state=37, n_jobs=n_jobs).fit(data.X, data.y)


@case(gaussians(300, 16, 5, seed=38), saved=True)
def paper(data: Data, n_jobs: int) -> Any:
    """The paper to the letter."""
    clf = ExtremeClassifier.paper(learning_rate=0.1, n_epochs=2, random_state=38, n_jobs=n_jobs)
    return clf.fit(data.X, data.y)


@case(gaussians(600, 20, 5, seed=39), n_jobs=2, go_on=one_more_epoch, saved=True)
def dense_stream(data: Data, n_jobs: int) -> Any:
    """The default on rows that arrive in two parts."""
    clf = ExtremeClassifier(random_state=39, n_jobs=n_jobs)
    clf.partial_fit(data.X[:300], data.y[:300], classes=np.arange(20))
    return clf.partial_fit(data.X[300:], data.y[300:])


@case(gaussians(400, 20, 5, seed=40), saved=True)
def dense_grown(data: Data, n_jobs: int) -> Any:
    """Classes added and removed after a fit."""
    y = np.array(data.y)
    clf = ExtremeClassifier(random_state=40, n_jobs=n_jobs).fit(data.X[y < 15], y[y < 15])
    return clf.add_classes(data.X[y >= 15], y[y >= 15]).remove_classes([3])


@case(gaussians(500, 20, 5, seed=18), n_jobs=2)
def patience_eval_set(data: Data, n_jobs: int) -> Any:
    """Validation on given rows, and the best epoch put back."""
    clf = make(
        "negative_sampling", learning_rate=1.0, n_epochs=30, patience=2, random_state=18, n_jobs=n_jobs
    )
    return clf.fit(data.X[:400], data.y[:400], eval_set=(data.X[400:], data.y[400:]))


@case(gaussians(500, 20, 5, seed=19))
def patience_kept_back(data: Data, n_jobs: int) -> Any:
    """Validation on a part of the rows, by the default."""
    clf = ExtremeClassifier(validation_fraction=0.2, patience=2, random_state=19, n_jobs=n_jobs)
    return clf.fit(data.X, data.y)


def _default_of_six(n_jobs: int) -> ExtremeClassifier:
    return make("minibatch_softmax", n_shared=16, n_epochs=6, random_state=20, n_jobs=n_jobs)


@case(
    gaussians(600, 24, 5, seed=20),
    n_jobs=2,
    go_on=resume,
    whole=lambda data, n_jobs: _default_of_six(n_jobs).fit(data.X, data.y),
    saved=True,
)
def interrupted_default(data: Data, n_jobs: int) -> Any:
    """Ctrl-C after two of six epochs."""
    return _default_of_six(n_jobs).fit(data.X, data.y, callbacks=[interrupt_after(2)])


def _rows_of_four(n_jobs: int) -> ExtremeClassifier:
    return make("negative_sampling", n_epochs=4, random_state=21, n_jobs=n_jobs)


@case(
    gaussians(400, 20, 5, seed=21, n_labels=2),
    go_on=resume,
    whole=lambda data, n_jobs: _rows_of_four(n_jobs).fit(data.X, data.y),
)
def stopped_negative_sampling(data: Data, n_jobs: int) -> Any:
    """A callback that ends training after the first of four epochs."""
    return _rows_of_four(n_jobs).fit(data.X, data.y, callbacks=[stop_after(1)])


@case(gaussians(600, 20, 5, seed=22, name=lambda c: b"%03d" % c), n_jobs=2, go_on=one_more_epoch)
def partial_fits(data: Data, n_jobs: int) -> Any:
    """Rows that arrive in three parts, the classes declared at the first."""
    clf = make("negative_sampling", random_state=22, n_jobs=n_jobs)
    names = sorted(set(data.y))
    for part in range(3):
        cut = slice(200 * part, 200 * (part + 1))
        clf.partial_fit(data.X[cut], data.y[cut], classes=names)
    return clf


@case(gaussians(300, 16, 4, seed=23, spread=1.5))
def calibrated_by_hand(data: Data, n_jobs: int) -> Any:
    """Temperature and uniform mixing from rows that the user has."""
    clf = make("minibatch_softmax", n_shared=None, random_state=23, n_jobs=n_jobs).fit(
        data.X[:200], data.y[:200]
    )
    calibrate(clf, data.X[200:], data.y[200:])
    return clf


def _calibrated(n_jobs: int) -> ExtremeClassifier:
    return make(
        "minibatch_softmax", noise="frequency", n_shared=16, n_epochs=3, random_state=24, n_jobs=n_jobs
    )


@case(
    gaussians(20_500, 30, 4, seed=24, spread=1.0),
    n_jobs=2,
    go_on=resume,
    whole=lambda data, n_jobs: _calibrated(n_jobs).fit(data.X, data.y),
    saved=True,
)
def calibrated_cut_short(data: Data, n_jobs: int) -> Any:
    """So many rows that some are kept back to calibrate by; interrupted, resumed, calibrated again."""
    return _calibrated(n_jobs).fit(data.X, data.y, callbacks=[interrupt_after(1)])


@case(gaussians(21_000, 2048, 8, seed=25, spread=0.6), n_jobs=2, saved=True)
def beam_index(data: Data, n_jobs: int) -> Any:
    """As many classes as an index for beam search takes, and no tree."""
    clf = make(
        "minibatch_softmax", n_shared=None, noise="uniform", n_epochs=1, random_state=25, n_jobs=n_jobs
    )
    return clf.fit(data.X, data.y)


# -- larger ones: too large for the repository, compared between commits -------------------------------------


@case(gaussians(36_000, 2600, 8, seed=30, n_labels=2, spread=0.2), large=True, n_jobs=2)
def large_default_labels(data: Data, n_jobs: int) -> Any:
    """Default with cells, calibration, index, and a tree tuned on a part of the rows; several labels."""
    return ExtremeClassifier(n_epochs=2, random_state=30, n_jobs=n_jobs).fit(data.X, data.y)


@case(gaussians(24_000, 3000, 8, seed=31, spread=0.2), large=True, n_jobs=1)
def large_deferred(data: Data, n_jobs: int) -> Any:
    """A tree that is fitted after training, calibration, index."""
    return make("minibatch_softmax", n_shared=32, n_epochs=2, random_state=31, n_jobs=n_jobs).fit(
        data.X, data.y
    )


@case(gaussians(60_000, 2100, 8, seed=32, form="memmap"), large=True, n_jobs=2)
def large_frequency_memmap(data: Data, n_jobs: int) -> Any:
    """Negative sampling whose scores an index takes, with frequencies added; rows on disk."""
    clf = make("negative_sampling", noise="frequency", n_epochs=2, random_state=32, n_jobs=n_jobs)
    return clf.fit(data.X, data.y)


@case(gaussians(20_000, 1500, 24, seed=33), large=True, n_jobs=2)
def large_tree(data: Data, n_jobs: int) -> Any:
    """The paper's method with a tree of eleven levels, and a prior."""
    clf = make("negative_sampling", prior_variance=1.0, n_epochs=2, random_state=33, n_jobs=n_jobs)
    return clf.fit(data.X, data.y)


@case(gaussians(3000, 60, 1100, seed=34, form="csr"), large=True, n_jobs=2)
def wide_csr(data: Data, n_jobs: int) -> Any:
    """More features than the default whitens: "auto" is negative sampling, on sparse rows."""
    return ExtremeClassifier(n_epochs=2, random_state=34, n_jobs=n_jobs).fit(data.X, data.y)


def _large(n_jobs: int) -> ExtremeClassifier:
    return make("minibatch_softmax", n_shared=256, n_epochs=4, random_state=35, n_jobs=n_jobs)


@case(
    gaussians(24_000, 2300, 8, seed=35, spread=0.3),
    large=True,
    n_jobs=2,
    go_on=resume,
    whole=lambda data, n_jobs: _large(n_jobs).fit(data.X, data.y),
)
def large_interrupted(data: Data, n_jobs: int) -> Any:
    """An interrupted fit that gets its calibration and its index when it is resumed."""
    return _large(n_jobs).fit(data.X, data.y, callbacks=[interrupt_after(2)])


@case(weighted(gaussians(12_000, 300, 8, seed=36), seed=36), large=True, n_jobs=2)
def large_weights_mixture(data: Data, n_jobs: int) -> Any:
    """Weighted rows, cells."""
    clf = make("minibatch_softmax", noise="tree", n_shared=64, n_epochs=2, random_state=36, n_jobs=n_jobs)
    return clf.fit(data.X, data.y, data.more["weight"])


# -- what a fitted estimator gives ---------------------------------------------------------------------------


def command(*arguments: str) -> str:
    """Run ``extremax`` in this process; return what it printed on standard output."""
    from extremax.cli import main

    out = io.StringIO()
    with mock.patch.object(sys, "argv", ["extremax", *arguments]), redirect_stdout(out):
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"extremax {' '.join(arguments)} ended with {end.code}") from end
    return out.getvalue()


def observe(estimator: Any, data: Data, folder: Path, questions: Sequence[str] = ()) -> Arrays:
    """Ask a fitted estimator everything about the query rows; it is saved in `folder` for that.

    Labels become their places in `classes_`, and dictionaries JSON, so that every value is a plain array.
    """
    with quiet():
        return _observe(estimator, data, folder, questions)


def _first_labels(estimator: Any, X: Any) -> NDArray[Any]:
    """Predict one label per row, also for models of several labels."""
    labels = estimator.predict(X)
    return estimator.predict_topk(X, 1)[0][:, 0] if sparse.issparse(labels) else labels


def _observe(estimator: Any, data: Data, folder: Path, questions: Sequence[str]) -> Arrays:
    names = list(estimator.classes_.tolist())
    place = {name: i for i, name in enumerate(names)}

    def places(labels: NDArray[Any]) -> NDArray[np.int32]:
        return np.array([place[name] for name in labels.ravel().tolist()], np.int32).reshape(labels.shape)

    X, k = data.query, min(5, len(names))
    found: Arrays = {
        "classes": np.array([repr(name) for name in names]),
        "predict": places(_first_labels(estimator, X)),
    }
    for search, width in (("exact", None), ("beam", None), ("beam", 6)):
        try:
            labels, log_prob = estimator.predict_topk(X, k, search=search, beam_width=width)
        except ValueError:  # a beam needs a tree or an index
            continue
        key = search if width is None else f"{search}_{width}"
        found |= {f"{key}_labels": places(labels), f"{key}_log_prob": log_prob}
    found["log_prob"] = estimator.predict_log_proba(X)
    found["prob"] = estimator.predict_proba(X)
    found["scores"] = estimator.decision_function(X)
    found["log_likelihood"] = np.array(estimator.log_likelihood(X, data.query_y))
    found["score"] = np.array(estimator.score(X, data.query_y))
    figures = evaluate(estimator, X, data.query_y).as_dict()
    report = {name: value for name, value in figures.items() if not name.startswith("ece@")}
    found["report"] = np.array(list(report.values()), np.float64)
    found["report_names"] = np.array(list(report))
    for name in sorted({name for record in estimator.history_ for name in record} - {"seconds"}):
        values = [record.get(name) for record in estimator.history_]
        found[f"history_{name}"] = np.array([np.nan if v is None else v for v in values], np.float64)
    found["choices"] = np.array(
        json.dumps(comparable_choices(estimator.choices_), sort_keys=True, default=_plain)
    )
    estimator.save(folder)
    stored = read_folder(folder)
    for name in ("weights.weights", "weights.biases", "weights.values", "training.squares"):
        if name in stored:
            found[name.partition(".")[2]] = stored[name]
    if questions:
        answers = [json.loads(command("ask", str(folder), text, "--json"))["answers"] for text in questions]
        found["answers"] = np.array(
            [f"{a['label']}: {a['description']}" for listed in answers for a in listed]
        )
    return found


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"choices_ holds a {type(value).__name__}")
