"""Section 4 of the paper on data: uniform, frequency and tree noise against the data distribution p_D.

`planted_study` compares noise distributions where p_D is known,
`icd10cm_study` on texts, with the probabilities of a trained classifier as p_D.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from extremax.classifier import ExtremeClassifier
from extremax.data import PCA, load_icd10cm, planted_hierarchy, seen_classes
from extremax.examples import Examples
from extremax.experiments.paper import theory
from extremax.experiments.rows import dense_text_features
from extremax.runtime.products import one_blas_thread
from extremax.tree.noise import FrequencyNoise, Noise, TreeNoise, UniformNoise
from extremax.tree.tuning import fit_tuned
from extremax.types import Float32, Float64, Int32, Int64


@dataclass(frozen=True)
class TheoryStudy:
    """Noise distributions compared on one data set.

    Attributes
    ----------
    data : str
        Name of the data.
    n_rows, n_classes : int
        Rows that the figures are means over, and classes.
    noises : tuple of NoiseFigures
        Figures of uniform, frequency and tree noise and of p_D.
    log_likelihood : tuple of float
        Mean log p(y|x) of the rows' labels under each of them; it needs no p_D.
    """

    data: str
    n_rows: int
    n_classes: int
    noises: tuple[theory.NoiseFigures, ...]
    log_likelihood: tuple[float, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the study as JSON can hold it."""
        rows = [
            {**asdict(row), "log_likelihood": value}
            for row, value in zip(self.noises, self.log_likelihood, strict=True)
        ]
        return {"data": self.data, "n_rows": self.n_rows, "n_classes": self.n_classes, "noises": rows}


def planted_study(
    *,
    n_classes: int = 1000,
    n_samples: int = 20_000,
    n_rows: int = 500,
    seed: int = 0,
    n_jobs: int | None = None,
) -> TheoryStudy:
    """Compare noise distributions on a planted hierarchy, where p_D is known.

    Examples
    --------
    >>> study = planted_study(n_classes=60, n_samples=2000, n_rows=50)
    >>> [row.noise for row in sorted(study.noises, key=lambda row: row.snr)]
    ['uniform', 'frequency', 'tree', 'p_D']
    """
    data = planted_hierarchy(
        n_samples, n_classes, 16, seed=seed, n_latent=12, noise_scale=0.8, n_test=n_rows, n_jobs=n_jobs
    )
    words = f"planted hierarchy, {n_samples:,} training rows"
    train, test = Examples(data.X, data.y), Examples(data.X_test, data.y_test)
    return _study(words, train, test, data.truth.log_prob_all(data.X_test), seed, n_jobs)


def icd10cm_study(
    *,
    n_rows: int = 500,
    n_features: int = 256,
    n_components: int = 32,
    classifier: ExtremeClassifier | None = None,
    seed: int = 0,
    n_jobs: int | None = None,
) -> TheoryStudy:
    """Compare noise distributions on ICD-10-CM, with a trained classifier in place of p_D.

    Its scores are divided by the temperature under which validation rows are most probable: an estimate of
    p_D that is too flat would favour uniform noise. Figures are means over test rows.

    Parameters
    ----------
    n_rows
        Test rows, and validation rows for the temperature, drawn at random.
    n_features
        Number of text features.
    n_components
        Principal components of the features that the tree is fitted on.
    classifier
        Classifier to train; by default one with default parameters.
    seed
        Seed of the draws, the features, the tree and the default classifier.
    n_jobs
        Threads.
    """
    icd = load_icd10cm()
    texts, codes = icd.rows(icd.train)
    features = dense_text_features(n_features, seed=seed)
    with one_blas_thread():  # the same bits at any thread count
        X = features.fit_transform(texts).astype(np.float32)
    model = ExtremeClassifier(random_state=seed, n_jobs=n_jobs) if classifier is None else classifier
    model.fit(X, codes)
    place = {code: i for i, code in enumerate(model.classes_)}
    rng = np.random.default_rng(seed)

    def some_rows(part: Int64) -> tuple[Float32, Int32]:
        given, labels = icd.rows(part)
        chosen = np.sort(rng.permutation(np.flatnonzero(seen_classes(labels, codes)))[:n_rows])
        rows = features.transform([given[i] for i in chosen]).astype(np.float32)
        return rows, np.array([place[labels[i]] for i in chosen], np.int32)

    (X_valid, y_valid), (X_test, y_test) = some_rows(icd.valid), some_rows(icd.test)
    temperature = best_temperature(model.decision_function(X_valid), y_valid)
    log_p_data = _log_softmax(model.decision_function(X_test) / temperature)
    projection = PCA.fit(X, n_components, n_jobs=n_jobs)
    Z, Z_test = projection.transform(X, n_jobs=n_jobs), projection.transform(X_test, n_jobs=n_jobs)
    y = np.array([place[code] for code in codes], np.int32)
    words = "ICD-10-CM test rows, p_D by a classifier"
    return _study(words, Examples(Z, y), Examples(Z_test, y_test), log_p_data, seed, n_jobs)


def best_temperature(log_prob: NDArray[Any], y: Int32) -> float:
    """Return the temperature from 0.1 to 10 under which labels are most probable.

    The probabilities are ``softmax(log_prob / temperature)``.

    Examples
    --------
    >>> too_flat = np.log(np.array([[0.6, 0.4]] * 10))
    >>> temperature = best_temperature(too_flat, np.array([0] * 9 + [1], np.int32))  # right in 9 of 10 rows
    >>> round(float(0.6 ** (1 / temperature) / (0.6 ** (1 / temperature) + 0.4 ** (1 / temperature))), 3)
    0.9
    """
    scores, rows = log_prob.astype(np.float64), np.arange(len(y))

    def loss(log_temperature: float) -> float:
        return -float(_log_softmax(scores * np.exp(-log_temperature))[rows, y].mean())

    found = minimize_scalar(loss, bounds=(np.log(0.1), np.log(10.0)), method="bounded")
    return float(np.exp(found.x))


def _log_softmax(scores: NDArray[Any]) -> Float64:
    result: Float64 = scores - scores.max(axis=1, keepdims=True).astype(np.float64)
    result -= np.log(np.exp(result).sum(axis=1, keepdims=True))
    return result


def _tables(
    train: Examples, Z_test: Float32, log_p_data: Float64, seed: int, n_jobs: int | None
) -> tuple[Float64, dict[str, Float64]]:
    """Return p_D of the test rows, and the probabilities of each noise, whose tree is fitted to `train`."""
    Z, y, n_classes = train.X, train.y, log_p_data.shape[1]
    tree = fit_tuned(Z, y, n_classes=n_classes, seed=seed, n_jobs=n_jobs).tree
    noises: dict[str, Noise] = {
        "uniform": UniformNoise(n_classes),
        "frequency": FrequencyNoise(np.bincount(y, minlength=n_classes)),
        "tree": TreeNoise(tree),
    }
    tables = {
        name: np.exp(noise.log_prob_all(Z_test, n_jobs=n_jobs).astype(np.float64))
        for name, noise in noises.items()
    }
    p_data = np.exp(log_p_data)
    return p_data, tables | {"p_D": p_data}


def _study(
    words: str, train: Examples, test: Examples, log_p_data: Float64, seed: int, n_jobs: int | None
) -> TheoryStudy:
    p_data, tables = _tables(train, test.X, log_p_data, seed, n_jobs)
    return TheoryStudy(
        data=words,
        n_rows=test.n_rows,
        n_classes=p_data.shape[1],
        noises=theory.compare_noises(p_data, tables),
        log_likelihood=tuple(float(np.log(table[test.rows, test.y]).mean()) for table in tables.values()),
    )
