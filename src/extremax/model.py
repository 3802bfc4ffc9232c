"""A trained classifier without its label names: linear model, base distribution, projection, calibration; and
its file form.

``ExtremeModel`` is what an estimator, a command line or a server share: it turns features into class ids and log-probabilities.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax import search as predict
from extremax.features.pca import PCA
from extremax.features.whitening import Whitening
from extremax.linear import Features, LinearModel
from extremax.noise import FrequencyNoise, MixtureNoise, Noise, TreeNoise, UniformNoise
from extremax.runtime.products import one_blas_thread
from extremax.runtime.threads import resolve_threads
from extremax.storage.folder import load_folder, save_folder
from extremax.training.objectives import removes_bias
from extremax.tree import LabelTree

KIND = "classifier"
_LINEAR_ARRAYS = ("weights", "biases", "squares", "bias_squares")
_CLASS_ARRAYS = ("class_counts", "class_means")


@dataclass
class ExtremeModel:
    """Everything that prediction needs.

    Attributes
    ----------
    linear
        Weights, biases and optimiser state.
    noise
        The distribution that negatives came from.
    projection
        Principal components of the features, the input of the tree.
    objective
        Name of the objective: it decides whether log p_n is added to the scores.
    temperature, floor
        Divides the debiased scores; share of the probability that all classes have alike
        (`extremax.calibration`).
    whitening
        The features that training saw, where these were not the model's own; training goes on in them.
    class_counts
        Training rows with each label, (n_classes,); None where they are not known.
    n_samples
        Training rows with a label.
    class_means
        Mean of each class's projected rows, where there is a tree: what the tree sees of a typical row of the
        class.
    descriptions
        A text on each class, such as the name that a code stands for, where they were given.
    index
        Index for beam search, where the scores are no tree's and the classes many.
    """

    linear: LinearModel
    noise: Noise
    projection: PCA
    objective: str
    temperature: float = 1.0
    floor: float = 0.0
    whitening: Whitening | None = None
    class_counts: NDArray[np.int64] | None = None
    n_samples: int = 0
    class_means: NDArray[np.float16] | None = None
    descriptions: Descriptions | None = None
    index: predict.CodeIndex | None = None

    @property
    def base(self) -> Noise | None:
        """What bias removal adds to a score; None when scores are unbiased as they are."""
        return self.noise if removes_bias(self.objective) else None

    @property
    def tree(self) -> LabelTree | None:
        """The label tree inside the noise, if there is one."""
        return find_tree(self.noise)

    def project(self, X: Features, *, n_jobs: int | None = None) -> NDArray[np.float32]:
        """The tree's features of the rows; no columns where no tree needs them."""
        if self.tree is None:
            return np.empty((X.shape[0], 0), np.float32)
        return self.projection.transform(X, n_jobs=n_jobs)

    @property
    def offsets(self) -> NDArray[np.float32] | None:
        """What bias removal adds to the scores of every row alike, if anything."""
        return getattr(self.base, "log_prob_", None)

    @property
    def linear_scores(self) -> bool:
        """Whether what is predicted is linear in the features: no noise is added to the scores, or one
        that all rows share.
        """
        return self.base is None or self.offsets is not None

    @property
    def _calibration(self) -> dict[str, Any]:
        return {"temperature": self.temperature, "floor": self.floor}

    @property
    def takes_index(self) -> bool:
        """Whether an index for beam search makes sense: linear scores of many classes."""
        return self.linear_scores and any(predict.index_bytes(*self.linear.weights.shape))

    def fit_index(
        self,
        X: Features,
        *,
        rows: NDArray[np.int64] | None = None,
        judges: Features | None = None,
        seed: int = 0,
        n_jobs: int | None = None,
    ) -> None:
        """Fit the index for beam search on rows like those to be predicted: some thousands of X, or of its
        `rows`, at random.

        `judges`, rows that the model was not trained on, choose the default width; without them, more rows of
        X."""
        if not self.takes_index:
            raise ValueError(
                f"fit_index is for scores that are linear in at most {predict.MOST_FEATURES:,} features, of at least"
                f" {predict.LEAST_CLASSES:,} classes; this model has others. Use search='exact', or 'beam' without an index."
            )
        among = np.arange(X.shape[0]) if rows is None else rows
        some = among[_some(len(among), predict.sample_size(self.linear.n_features), seed)]
        # the last of them may judge the others' work
        chosen = X[some][np.random.default_rng((seed, 5)).permutation(len(some))]
        unseen = None if judges is None else _dense(judges[_some(judges.shape[0], predict.MOST_JUDGES, seed)])
        options: dict[str, Any] = {"offsets": self.offsets, "temperature": self.temperature, "n_jobs": n_jobs}
        self.index = predict.CodeIndex.fit(_dense(chosen), self.linear, judges=unseen, **options)
        self.index.n_epochs = self.linear.n_epochs

    def top_k(
        self,
        X: Features,
        k: int,
        *,
        search: str = "exact",
        beam_width: int | None = None,
        n_jobs: int | None = None,
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The k best classes of each row: by scoring all classes, or by a beam; without a width, the
        model's own.
        """
        options: dict[str, Any] = {**self._calibration, "n_jobs": n_jobs}
        index = self.index
        exact = search == "exact"
        if beam_width is None and index is None:
            exact |= self.linear_scores and self.linear.n_classes < predict.LEAST_CLASSES
        elif beam_width is None and index is not None:
            exact |= index.beam_width is None
        if exact:  # also where a beam would take as long
            return predict.exact_topk(X, self.linear, self.base, self.project(X, n_jobs=n_jobs), k, **options)
        if index is not None:
            if index.n_epochs != self.linear.n_epochs:
                warnings.warn(
                    f"The index of beam search was fitted after {index.n_epochs} epochs, and the model has been trained for"
                    f" {self.linear.n_epochs}: it may miss more of the best classes. Fit it again with model_.fit_index(X).",
                    stacklevel=3,
                )
            width = beam_width if beam_width is not None else index.beam_width
            assert width is not None
            return predict.codes_topk(
                X, self.linear, index, k, beam_width=width, offsets=self.offsets, **options
            )
        if self.tree is None:
            way = (
                "make one with model_.fit_index(X)" if self.takes_index else "train with noise='adversarial'"
            )
            raise ValueError(
                f"search='beam' needs a label tree or an index, and this model has none. Use search='exact', or {way}."
            )
        Z = self.project(X, n_jobs=n_jobs)
        width = max(predict.BEAM_WIDTH if beam_width is None else beam_width, k)
        return predict.beam_topk(X, self.linear, self.tree, self.base, Z, k, beam_width=width, **options)

    def debiased_scores(self, X: Features, *, n_jobs: int | None = None) -> NDArray[np.float32]:
        """Scores of every class, bias removed: (n, n_classes)."""
        return predict.debiased_scores(
            X, self.linear, self.base, self.project(X, n_jobs=n_jobs), n_jobs=n_jobs
        )

    def log_prob_all(self, X: Features, *, n_jobs: int | None = None) -> NDArray[np.float32]:
        """log p(y|x) of every class: (n, n_classes)."""
        Z = self.project(X, n_jobs=n_jobs)
        return predict.predict_log_proba(X, self.linear, self.base, Z, **self._calibration, n_jobs=n_jobs)

    def prob_all(self, X: Features, *, n_jobs: int | None = None) -> NDArray[np.float64]:
        """p(y|x) of every class, in float64: (n, n_classes)."""
        Z = self.project(X, n_jobs=n_jobs)
        return predict.predict_proba(X, self.linear, self.base, Z, **self._calibration, n_jobs=n_jobs)

    def judge(
        self,
        X: Features,
        y: NDArray[np.int32],
        *,
        rows: NDArray[np.int64] | None = None,
        k: int = 5,
        n_jobs: int | None = None,
    ) -> predict.Judged:
        """The k best classes of each row with their log-probabilities, and log p(y|x) of each pair of a
        row and a class.
        """
        Z = self.project(X, n_jobs=n_jobs)
        return predict.judge_pairs(
            X, y, rows, self.linear, self.base, Z, k=k, **self._calibration, n_jobs=n_jobs
        )

    def evaluate(
        self,
        X: Features,
        y: NDArray[np.int32],
        *,
        rows: NDArray[np.int64] | None = None,
        sample_weight: NDArray[np.float32] | None = None,
        n_jobs: int | None = None,
    ) -> predict.Evaluation:
        """Mean log-likelihood, accuracy and top-5 accuracy; `rows` is the row of each class in `y`, where
        they have several.
        """
        Z = self.project(X, n_jobs=n_jobs)
        options: dict[str, Any] = {"rows": rows, "sample_weight": sample_weight, **self._calibration}
        return predict.evaluate(X, y, self.linear, self.base, Z, n_jobs=n_jobs, **options)

    def log_likelihood(
        self,
        X: Features,
        y: NDArray[np.int32],
        *,
        rows: NDArray[np.int64] | None = None,
        sample_weight: NDArray[np.float32] | None = None,
        n_jobs: int | None = None,
    ) -> float:
        """Mean log p(y|x), bias removed; `rows` is the row of each class in `y`, where they have several."""
        Z = self.project(X, n_jobs=n_jobs)
        options: dict[str, Any] = {"rows": rows, "sample_weight": sample_weight, **self._calibration}
        return predict.log_likelihood(X, y, self.linear, self.base, Z, n_jobs=n_jobs, **options)

    def confusable(self, label: int, k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The k classes that are hardest to tell from a class, hardest first, and how hard.

        By the tree, if there is one: p_n(y'|z) at the mean features z of the class. Else by the cosine
        between the weights."""
        if self.tree is not None and self.class_means is not None:
            hardness = np.exp(
                self.tree.log_prob_all(self.class_means[label : label + 1].astype(np.float32))[0]
            )
        else:
            weights = self.linear.weights
            norms = np.sqrt(np.einsum("ij,ij->i", weights, weights))
            hardness = (weights @ weights[label]) / np.maximum(
                norms * norms[label], np.finfo(np.float32).tiny
            )
        order = np.argsort(-hardness, kind="stable")
        order = order[order != label][:k].astype(np.int32)
        return order, hardness[order].astype(np.float32)

    def calibrate(
        self,
        X: Features,
        ids: NDArray[np.int32],
        *,
        rows: NDArray[np.int64] | None = None,
        n_jobs: int | None = None,
    ) -> predict.Calibration:
        """Set temperature and floor by pairs that the model was not trained on; returns both."""
        ids = predict.check_targets(ids, X.shape[0] if rows is None else len(rows), self.linear.n_classes)
        Z, threads = self.project(X, n_jobs=n_jobs), resolve_threads(n_jobs)

        def scores(first: int, last: int) -> NDArray[np.float32]:
            options: dict[str, Any] = {"memory_limit": 1 << 62, "n_jobs": 1, "first_row": first}
            return predict.debiased_scores(X[first:last], self.linear, self.base, Z[first:last], **options)

        with one_blas_thread():
            found = predict.fit_calibration(
                scores, X.shape[0], ids, rows, self.linear.n_classes, n_threads=threads
            )
        self.temperature, self.floor = found
        return found

    # -- files
    # ---------------------------------------------------------------------------------------------------------------

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        labels: NDArray[Any],
        header: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        """Write the model, its label names and what the caller keeps beside them to a folder."""
        noise, noise_arrays = _describe_noise(self.noise)
        own: dict[str, NDArray[Any]] = {name: getattr(self.linear, name) for name in _LINEAR_ARRAYS}
        linear = {
            "feature_scale": self.linear.feature_scale,
            "n_epochs": self.linear.n_epochs,
            "eta_key": self.linear.eta_key,
        }
        if self.linear.eta is not None:
            own["eta"] = self.linear.eta
        own |= {f"noise.{name}": value for name, value in noise_arrays.items()}
        own |= {"projection.components": self.projection.components, "projection.mean": self.projection.mean}
        own["projection.explained_variance"] = self.projection.explained_variance
        own |= {name: value for name in _CLASS_ARRAYS if (value := getattr(self, name)) is not None}
        if self.descriptions is not None:
            own |= {f"descriptions.{name}": value for name, value in self.descriptions._asdict().items()}
        if self.whitening is not None:
            own |= {f"whitening.{name}": value for name, value in self.whitening._asdict().items()}
        content = {"linear": linear, "noise": noise, "objective": self.objective, **self._calibration}
        content |= {"n_samples": self.n_samples, **header}
        if self.index is not None:
            own |= {f"index.{name}": value for name, value in self.index.to_arrays().items()}
            content["index"] = self.index.header()
        save_folder(path, kind=KIND, header=content, arrays={**own, **(arrays or {})}, labels=labels)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, verify: bool = False) -> SavedModel:
        """Open a folder that `save` wrote.

        Arrays are mapped from the file; what further training changes stays in memory and never reaches the
        file."""
        folder = load_folder(path, kind=KIND, verify=verify, copy_on_write=True)
        arrays, header = folder.arrays, dict(folder.header)
        tables: dict[str, Any] = {name: arrays[name] for name in _LINEAR_ARRAYS}
        linear = LinearModel(**tables, **header["linear"], eta=arrays.get("eta"))
        noise = _restore_noise(
            header["noise"], {n[6:]: a for n, a in arrays.items() if n.startswith("noise.")}
        )
        names = ("components", "mean", "explained_variance")
        projection = PCA(*(arrays[f"projection.{name}"] for name in names))
        model = cls(
            linear, noise, projection, header["objective"], header["temperature"], header.get("floor", 0.0)
        )
        model.n_samples = header.get("n_samples", 0)
        model.class_counts, model.class_means = (arrays.get(name) for name in _CLASS_ARRAYS)
        if "descriptions.ends" in arrays:
            model.descriptions = Descriptions(
                *(arrays[f"descriptions.{name}"] for name in Descriptions._fields)
            )
        if "whitening.matrix" in arrays:
            model.whitening = Whitening(
                *(np.array(arrays[f"whitening.{name}"]) for name in Whitening._fields)
            )
        if "index" in header:
            parts = {name[6:]: array for name, array in arrays.items() if name.startswith("index.")}
            model.index = predict.CodeIndex.from_arrays(header["index"], parts)
        elif "cells" in header:
            warnings.warn(
                f"{path} has an index of beam search of an earlier kind, which is not used. Fit one with model_.fit_index(X).",
                stacklevel=3,
            )
        return SavedModel(model, folder.labels, header, arrays)


class Descriptions(NamedTuple):
    """A text on each class, as UTF-8 bytes one after the other and where each ends: opened from a file
    without reading it.

    Examples
    --------
    >>> texts = Descriptions.of(["Fall on and from ladder", ""])
    >>> texts.text(0), texts.text(1)
    ('Fall on and from ladder', '')
    """

    utf8: NDArray[np.uint8]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[str]) -> Descriptions:
        """From one text per class, in the order of the classes."""
        coded = [text.encode(errors="replace") for text in texts]
        return cls(
            np.frombuffer(b"".join(coded), np.uint8), np.cumsum([len(c) for c in coded], dtype=np.int64)
        )

    def text(self, label: int) -> str:
        """The text on a class."""
        start = int(self.ends[label - 1]) if label else 0
        return self.utf8[start : int(self.ends[label])].tobytes().decode()


class SavedModel(NamedTuple):
    """What a folder holds: the model, the names of its classes, the header, and all arrays by name."""

    model: ExtremeModel
    labels: NDArray[Any] | None
    header: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


def _some(n_rows: int, size: int, seed: int) -> NDArray[np.int64]:
    """Rows at random, at most so many, in order: a file is read from front to back."""
    return np.sort(np.random.default_rng((seed, 4)).choice(n_rows, min(n_rows, size), replace=False))


def _dense(X: Features) -> NDArray[np.float32]:
    rows: NDArray[np.float32] = X.toarray() if sparse.issparse(X) else X
    return rows


def find_tree(noise: Noise) -> LabelTree | None:
    """The first label tree in a noise distribution."""
    if isinstance(noise, TreeNoise):
        return noise.tree
    if isinstance(noise, MixtureNoise):
        first = find_tree(noise.first)
        return first if first is not None else find_tree(noise.second)
    return None


def _describe_noise(noise: Noise) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    if isinstance(noise, TreeNoise):
        return {"kind": "tree"}, noise.tree.to_arrays()
    if isinstance(noise, UniformNoise):
        return {"kind": "uniform", "n_classes": noise.n_classes}, {}
    if isinstance(noise, FrequencyNoise):
        return {"kind": "frequency", "exponent": noise.exponent}, {"counts": noise.counts}
    if isinstance(noise, MixtureNoise):
        (first, a), (second, b) = _describe_noise(noise.first), _describe_noise(noise.second)
        arrays = {f"first.{n}": v for n, v in a.items()} | {f"second.{n}": v for n, v in b.items()}
        return {"kind": "mixture", "weight": noise.weight, "first": first, "second": second}, arrays
    raise TypeError(
        f"A model with noise of type {type(noise).__name__} cannot be saved;"
        " UniformNoise, FrequencyNoise, TreeNoise and MixtureNoise can."
    )


def _restore_noise(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Noise:
    match header["kind"]:
        case "tree":
            return TreeNoise(LabelTree.from_arrays(arrays))
        case "uniform":
            return UniformNoise(header["n_classes"])
        case "frequency":
            return FrequencyNoise(arrays["counts"], header["exponent"])
        case "mixture":
            first = _restore_noise(
                header["first"], {n[6:]: a for n, a in arrays.items() if n.startswith("first.")}
            )
            second = _restore_noise(
                header["second"], {n[7:]: a for n, a in arrays.items() if n.startswith("second.")}
            )
            return MixtureNoise(first, second, weight=header["weight"])
        case other:
            raise ValueError(
                f"The model's noise is of the unknown kind {other!r}; a newer extremax may be able to read it."
            )
