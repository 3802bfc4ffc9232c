"""A trained classifier without its label names, complete when it is built and then only read.

`Model` turns features into class ids and log-probabilities. Steps that change it (calibration, an index)
return a new one. Its weights are those of the estimator's training state, without a copy: `partial_fit` and
`resume_fit` of the same estimator change them, and inside an epoch they may be those of whitened rows. Save a
model, or copy it, to keep it while training goes on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax.calibration import Calibration, LabelCalibration
from extremax.class_texts import ClassTexts, Descriptions
from extremax.errors import ModelFileError
from extremax.examples import Examples, FeatureLayout
from extremax.features.pca import PCA
from extremax.runtime.threads import resolve_threads, split
from extremax.scores.base import Scorer, Search, Weights
from extremax.scores.merged import LabelMap, MergedPredictor
from extremax.scores.pq import PQSearch, index_bytes
from extremax.scores.probabilities import Evaluation, Predictor, RankedPairs, summarize
from extremax.scores.reference import Reference
from extremax.scores.sparse import SparseWeights
from extremax.scores.topk import ExactSearch, TreeBeamSearch
from extremax.solvers.base import TrainState, chosen_header
from extremax.solvers.config import FitConfig
from extremax.solvers.registry import SOLVERS
from extremax.storage import checks
from extremax.storage.state import State, restore
from extremax.tree.noise import Noise
from extremax.tuned import DEFAULTS
from extremax.types import Features, Float32, Float64, Int32, Int64
from extremax.validation.features import check_features
from extremax.validation.labels import LabelIndex
from extremax.validation.targets import lookup_targets

if TYPE_CHECKING:
    from extremax.tree import LabelTree


_EXACT = ExactSearch()
_MAX_MIXTURES = 4  # inside one another
_LABEL_ROWS, _LABEL_WIDTH = 4096, 16  # rows, and best classes at first, whose labels are found at a time


@dataclass(frozen=True)
class ClassInfo:
    """Counts, means and descriptions of the classes.

    Attributes
    ----------
    counts
        Training pairs of each class; None where they are not known.
    n_samples
        Training rows with a label.
    means
        Mean of each class's projected rows, where there is a tree.
    descriptions
        A text on each class, such as the name that a code stands for.
    texts
        Names and synonyms of the classes that training has read.
    """

    counts: Int64 | None = None
    n_samples: int = 0
    means: NDArray[np.float16] | None = None
    descriptions: Descriptions | None = None
    texts: ClassTexts | None = None

    def state(self) -> State:
        given = {"counts": self.counts, "means": self.means}
        arrays: dict[str, NDArray[Any]] = {name: array for name, array in given.items() if array is not None}
        if self.descriptions is not None:
            arrays |= self.descriptions.arrays("descriptions")
        if self.texts is not None:
            arrays |= self.texts.arrays()
        return State({"n_samples": self.n_samples}, arrays)

    @classmethod
    def from_state(cls, state: State) -> ClassInfo:
        arrays = state.arrays
        descriptions, texts = Descriptions.from_arrays(arrays, "descriptions"), ClassTexts.from_arrays(arrays)
        counts = means = None
        if "counts" in arrays:
            counts = checks.get_array(arrays, "counts", "i8", (None,))
            checks.check_range(counts, "counts", 0, 2**53)
        if "means" in arrays:
            means = checks.get_array(arrays, "means", "f2", (None, None))
        return cls(counts, checks.get_int(state.header, "n_samples"), means, descriptions, texts)

    def check(self, n_classes: int) -> None:
        """Raise ModelFileError for arrays of another number of classes."""
        ends = None if self.descriptions is None else self.descriptions.ends
        for name, array in (("counts", self.counts), ("means", self.means), ("descriptions", ends)):
            if array is not None and len(array) != n_classes:
                checks.reject(f"{name} are those of {len(array):,} classes, weights of {n_classes:,}")
        if self.texts is not None:
            checks.check_range(self.texts.class_of, "text_classes", 0, n_classes)


# The attribute of a model for each component of a folder, and the function that restores it.
COMPONENTS: dict[str, tuple[str, Callable[[State], Any]]] = {
    "weights": ("weights", partial(restore, "weights")),
    "noise": ("noise", partial(restore, "noise")),
    "projection": ("projection", PCA.from_state),
    "calibration": ("calibration", Calibration.from_state),
    "label_calibration": ("label_calibration", LabelCalibration.from_state),
    "classes": ("classes", ClassInfo.from_state),
    "parts": ("label_map", LabelMap.from_state),
    "reference": ("reference", Reference.from_state),
}


@dataclass(frozen=True)
class Model:
    """Everything that prediction needs.

    Attributes
    ----------
    weights
        Weights, biases and feature scale.
    solver
        Name of the solver: it decides whether log p_n is added to the scores.
    noise
        The distribution that negatives or cells came from; None where none was used.
    projection
        Projection of the features for the label tree; None without a tree.
    calibration
        Temperature and uniform mixing.
    label_calibration
        Turns scores into independent probabilities of labels; None if no held-out rows fitted it.
    classes
        Counts, means and descriptions of the classes.
    searches
        Indexes by name, besides exact search; "beam" is the default approximate one.
    config
        The resolved parameters and tuned numbers of the fit; None for a model that was not fitted here.
    n_epochs
        Epochs trained.
    chosen
        What was chosen from the data in training.
    label_map
        The class of each line of the weights, where classes were merged; None where line i is class i.
    reference
        Statistics of held-out rows for drift monitors; None without such rows.
    """

    weights: Weights
    solver: str
    noise: Noise | None = None
    projection: PCA | None = None
    calibration: Calibration = field(default_factory=Calibration)
    label_calibration: LabelCalibration | None = None
    classes: ClassInfo = field(default_factory=ClassInfo)
    searches: Mapping[str, Search] = field(default_factory=dict)
    config: FitConfig | None = None
    n_epochs: int = 0
    chosen: Mapping[str, Any] = field(default_factory=dict)
    label_map: LabelMap | None = None
    reference: Reference | None = None

    # -- parts ---------------------------------------------------------------------------------------------

    @property
    def n_classes(self) -> int:
        return self.weights.n_classes if self.label_map is None else self.label_map.n_classes

    @property
    def n_features(self) -> int:
        return self.weights.n_features

    @property
    def layout(self) -> FeatureLayout:
        """Layout of the columns of the features."""
        return FeatureLayout(self.n_features) if self.config is None else self.config.layout

    @property
    def noise_term(self) -> Noise | None:
        """The noise whose log-probability prediction adds to the scores; None where they are unbiased."""
        return self.noise if SOLVERS[self.solver].adds_log_noise else None

    @property
    def tree(self) -> LabelTree | None:
        """The label tree inside the noise, if there is one."""
        return None if self.noise is None else self.noise.tree

    @property
    def scorer(self) -> Scorer:
        """Scores and probabilities, as every search reads them."""
        return Scorer(self.weights, self.noise_term, self.projection, self.calibration)

    @property
    def takes_index(self) -> bool:
        """Whether a product-quantization index makes sense: linear scores of many classes."""
        numbers = DEFAULTS.pq if self.config is None else self.config.numbers.pq
        fits = any(index_bytes(self.weights.n_classes, self.n_features, numbers))
        return fits and self.scorer.linear_scores and not isinstance(self.weights, SparseWeights)

    def describe(self) -> dict[str, Any]:
        """Return all automatic choices: resolved parameters, figures from the data, calibration, beam."""
        found: dict[str, Any] = {"solver": self.solver}
        if self.config is not None:
            found |= {"n_epochs": self.config.n_epochs, **self.config.solver.chosen()}
        found |= {**self.chosen, **self.calibration._asdict()}
        if self.label_calibration is not None:
            found |= {"label_threshold": self.labels.threshold, "label_rows": self.labels.n_rows}
        if "beam" in self.searches:
            index = self._index
            found["beam_width"] = None if index is None else index.width
            found["beam_recall"] = None if index is None else index.recall
        return found

    @property
    def _index(self) -> PQSearch | None:
        """The product-quantization index of beam search, or None."""
        beam = self.searches.get("beam")
        return beam if isinstance(beam, PQSearch) else None

    def predictor(self, n_threads: int = 1) -> Predictor:
        """Return the predictor; it sums merged classes."""
        if self.label_map is None:
            return Predictor(self.scorer, n_threads)
        return self.merged_predictor(n_threads)

    def merged_predictor(self, n_threads: int = 1) -> MergedPredictor:
        """Return the predictor that sums merged classes; it knows the lines of each class."""
        return MergedPredictor(self.scorer, n_threads, label_map=self.lines)

    @property
    def lines(self) -> LabelMap:
        """The class of each line of the weights."""
        return LabelMap.identity(self.weights.n_classes) if self.label_map is None else self.label_map

    # -- prediction ----------------------------------------------------------------------------------------

    def topk(
        self, X: Features, k: int, *, search: str = "exact", width: int | None = None, n_threads: int = 1
    ) -> tuple[Int32, Float32]:
        """Return the k best classes of each row and their log-probabilities, best first."""
        found = self._find_search(search, width)
        labels, log_prob = self.predictor(n_threads).topk(found, X, k, width=width)
        empty = self.empty_rows(X)
        if len(empty):
            labels[empty], log_prob[empty] = self._most_frequent(k)
        return labels, log_prob

    def empty_rows(self, X: Features) -> Int64:
        """Return the rows predicted by class frequencies: texts without a known n-gram."""
        features: Any = X
        if not self.layout.is_text or self.classes.counts is None or not sparse.issparse(features):
            return np.empty(0, np.int64)
        return np.flatnonzero(features.indptr[1:] == features.indptr[:-1])

    @cached_property
    def log_frequencies(self) -> Float32:
        """Log of the class frequencies, (n_classes,); a class without training rows counts as half a row."""
        counts = np.maximum(np.asarray(self.classes.counts, dtype=np.float64), 0.5)
        return np.asarray(np.log(counts / counts.sum()), dtype=np.float32)

    @property
    def label_frequencies(self) -> Float64:
        """Fraction of the training rows with each label, (n_classes,); zeros where it is not known."""
        counts, n_samples = self.classes.counts, self.classes.n_samples
        if counts is None or n_samples == 0:
            return np.zeros(self.n_classes)
        return np.asarray(counts / n_samples, np.float64)

    def _most_frequent(self, k: int) -> tuple[Int32, Float32]:
        """Return the k most frequent classes and the log of their frequencies."""
        labels, log_prob = np.full(k, -1, np.int32), np.full(k, -np.inf, np.float32)
        best = np.argsort(-self.log_frequencies, kind="stable")[:k]
        labels[: len(best)], log_prob[: len(best)] = best, self.log_frequencies[best]
        return labels, log_prob

    @property
    def search_names(self) -> tuple[str, ...]:
        """Names that `topk` accepts."""
        return tuple(dict.fromkeys(("exact", "beam", *self.searches)))

    def _find_search(self, name: str, width: int | None) -> Search:
        """Return the search of a name; "beam" is exact search where a beam would take as long."""
        if name == "exact":
            return _EXACT
        if name not in self.search_names:
            raise ValueError(f"search is {name!r}; this model has {', '.join(map(repr, self.search_names))}.")
        found = self.searches.get(name)
        if found is not None:
            if not isinstance(found, PQSearch):
                return found
            if width is None and name == "beam" and found.width is None:
                return ExactSearch()
            if found.n_epochs != self.n_epochs:
                warnings.warn(
                    f"The index of beam search was fitted after {found.n_epochs} epochs, and the model has"
                    f" been trained for {self.n_epochs}: it may miss more of the best classes. Fit it again"
                    " with fit_index(X).",
                    stacklevel=4,
                )
            return found
        if self.tree is None and self.takes_index:
            warnings.warn(
                f"search={name!r} finds no label tree and no index in this model, and scores every class."
                " Make an index with fit_index(X).",
                stacklevel=4,
            )
        linear = self.scorer.linear_scores
        numbers = DEFAULTS.pq if self.config is None else self.config.numbers.pq
        if self.tree is None or (width is None and linear and self.weights.n_classes < numbers.min_classes):
            return ExactSearch()
        return TreeBeamSearch(self.tree)

    def debiased_scores(self, X: Features, *, n_threads: int = 1) -> Float32:
        """Return the scores of every class, bias removed: (n, n_classes)."""
        return self._fill_empty(X, self.predictor(n_threads).debiased_scores(X))

    def log_prob_all(self, X: Features, *, n_threads: int = 1) -> Float32:
        """Return log p(y|x) of every class: (n, n_classes)."""
        return self._fill_empty(X, self.predictor(n_threads).log_prob_all(X))

    def _fill_empty(self, X: Features, table: Float32) -> Float32:
        """Put the log of the class frequencies into the empty rows of `table`."""
        empty = self.empty_rows(X)
        if len(empty):
            table[empty] = self.log_frequencies
        return table

    def prob_all(self, X: Features, *, n_threads: int = 1) -> Float64:
        """Return p(y|x) of every class, in float64: (n, n_classes)."""
        prob = self.predictor(n_threads).prob_all(X)
        empty = self.empty_rows(X)
        if len(empty):
            frequencies = np.exp(self.log_frequencies.astype(np.float64))
            prob[empty] = frequencies / frequencies.sum()
        return prob

    def rank_pairs(self, examples: Examples, *, k: int = 5, n_threads: int = 1) -> RankedPairs:
        """Return the k best classes of each row, their log-probabilities, and log p(y|x) of each pair."""
        ranked = self.predictor(n_threads).rank_pairs(examples, k)
        empty = self.empty_rows(examples.X)
        if len(empty):
            ranked.labels[empty], ranked.log_prob[empty] = self._most_frequent(k)
            pairs = np.isin(examples.rows, empty)
            ranked.pair_log_prob[pairs] = self.log_frequencies[examples.y[pairs]]
        return ranked

    def evaluate(self, examples: Examples, *, n_threads: int = 1) -> Evaluation:
        """Return mean log-likelihood, accuracy and top-5 accuracy."""
        return summarize(self.rank_pairs(examples, n_threads=n_threads), examples)

    @property
    def has_several_labels(self) -> bool:
        """Whether rows may have several labels, each with a probability of its own."""
        counts = self.classes.counts
        return self.label_calibration is not None or (
            counts is not None and int(counts.sum()) > self.classes.n_samples > 0
        )

    @property
    def labels(self) -> LabelCalibration:
        """The calibration of independent label probabilities, fitted on held-out rows or assumed."""
        if self.label_calibration is not None:
            return self.label_calibration
        counts, n_samples = self.classes.counts, self.classes.n_samples
        mean = 1.0 if counts is None or n_samples == 0 else float(counts.sum()) / n_samples
        return LabelCalibration.without_rows(mean)

    def labels_above(
        self, X: Features, threshold: float | None, *, n_threads: int = 1
    ) -> tuple[Int64, Int32, Float64]:
        """Return row, class and probability of all labels that apply with at least this probability.

        Without a threshold those of `LabelCalibration.least_prob`.  Rows ascend; in a row, the most probable
        label comes first.  An empty row has the labels that so many training rows have, by default half.
        """
        rows: list[Int64] = []
        labels: list[Int32] = []
        prob: list[Float64] = []
        is_empty = np.zeros(X.shape[0], bool)
        is_empty[self.empty_rows(X)] = True
        for first, last in split(X.shape[0], _LABEL_ROWS):
            width = 0
            while True:  # as many of the best classes as it takes for the last one to be below
                width = min(self.n_classes, max(_LABEL_WIDTH, 4 * width))
                found = self.predictor(n_threads).rank_scores(X[first:last], width)
                p = self.labels.prob(found.log_softmax, found.normalizer)
                above = p >= (self.labels.least_prob(p[:, :1]) if threshold is None else threshold)
                above[is_empty[first:last]] = False
                if width == self.n_classes or not above[:, -1].any():
                    break
            row, column = np.nonzero(above)
            rows.append(row.astype(np.int64) + first)
            labels.append(found.labels[row, column])
            prob.append(p[row, column])
        if is_empty.any():
            frequencies = self.label_frequencies
            often = np.argsort(-frequencies, kind="stable").astype(np.int32)
            often = often[frequencies[often] >= (0.5 if threshold is None else threshold)]
            rows.append(np.repeat(np.flatnonzero(is_empty), len(often)))
            labels.append(np.tile(often, int(is_empty.sum())))
            prob.append(np.tile(frequencies[often], int(is_empty.sum())))
        if not rows:
            return np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0)
        order = np.argsort(np.concatenate(rows), kind="stable")
        return np.concatenate(rows)[order], np.concatenate(labels)[order], np.concatenate(prob)[order]

    @property
    def label_min_prob(self) -> float:
        """Probability from which a label counts in the calibration error of labels."""
        return (DEFAULTS if self.config is None else self.config.numbers).calibration.label_min_prob

    def label_prob_all(self, X: Features, *, n_threads: int = 1) -> Float64:
        """Return the independent probability of every label: (n, n_classes)."""
        return self.labels.prob(*self.predictor(n_threads).log_softmax_all(X))

    def label_prob_of(self, X: Features, ids: Int32, *, n_threads: int = 1) -> Float64:
        """Return the probability that each of some classes (n, k) applies to its row; a class may be -1."""
        found = self.predictor(n_threads).log_softmax_of(X, np.maximum(ids, 0))
        prob = self.labels.prob(*found)
        empty = self.empty_rows(X)
        prob[empty] = self.label_frequencies[ids[empty]]
        return prob

    def log_normalizers(self, X: Features, *, n_threads: int = 1) -> Float64:
        """Return the log of the summed exp of the scores of all classes, without calibration: (n,)."""
        return self.predictor(n_threads).rank_scores(X, 1).normalizer

    def log_likelihood(self, examples: Examples, *, n_threads: int = 1) -> float:
        """Return the mean of log p(y|x) over the pairs, bias removed."""
        return summarize(self.rank_pairs(examples, k=1, n_threads=n_threads), examples).log_likelihood

    def _evaluation_rows(self, X: Any, y: Any) -> tuple[Model, Examples, int]:
        """Return the labelled rows for `extremax.evaluate`; labels are class numbers."""
        features = check_features(X, n_features=self.n_features)
        index = LabelIndex(np.arange(self.n_classes))
        targets = lookup_targets(y, index, n_samples=features.shape[0], allow_unseen=True)
        return self, targets.with_features(features), resolve_threads(None)

    def confusable(self, label: int, k: int) -> tuple[Int32, Float32]:
        """Return the k classes that are hardest to tell from a class, hardest first, and how hard.

        By the tree, if there is one: p_n(y'|z) at the mean features z of the class. Else by the cosine
        between the weights."""
        means = self.classes.means
        if self.tree is not None and means is not None:
            hardness = np.exp(self.tree.log_prob_all(means[label : label + 1].astype(np.float32))[0])
            hardness = self.lines.reduce(np.add, hardness)
        else:  # of the two lines that are most alike
            of_lines = [self.weights.similarity(int(line)) for line in self.lines.of(label)]
            hardness = self.lines.reduce(np.maximum, np.max(of_lines, axis=0))
        order = np.argsort(-hardness, kind="stable")
        order = order[order != label][:k].astype(np.int32)
        return order, hardness[order].astype(np.float32)

    # -- changed copies ------------------------------------------------------------------------------------

    def with_calibration(self, calibration: Calibration) -> Model:
        """Return the model with another temperature and uniform mixing."""
        calibration.check()
        return replace(self, calibration=calibration, reference=None)

    def calibrated(self, examples: Examples, *, n_threads: int = 1) -> Model:
        """Return the model calibrated by pairs that it was not trained on."""
        config = DEFAULTS.calibration if self.config is None else self.config.numbers.calibration
        predictor = self.predictor(n_threads)
        found = predictor.choose_calibration(examples, config=config, mixes_rows=self.layout.is_text)
        if examples.label_edges is None:
            return replace(self, calibration=found, reference=None)
        labels = predictor.choose_label_calibration(examples, self.n_classes)
        return replace(self, calibration=found, label_calibration=labels, reference=None)

    def with_reference(self, reference: Reference | None) -> Model:
        """Return the model with another reference for monitors."""
        return replace(self, reference=reference)

    def with_search(self, name: str, index: Search) -> Model:
        """Return the model with one more search, for ``topk(search=name)``."""
        return replace(self, searches={**self.searches, name: index})

    def with_descriptions(self, texts: Sequence[str]) -> Model:
        """Return the model with a text on each class, in the order of the classes."""
        if len(texts) != self.n_classes:
            raise ValueError(
                f"there are {len(texts):,} descriptions and {self.n_classes:,} classes; give one for each."
            )
        return replace(self, classes=replace(self.classes, descriptions=Descriptions.of(texts)))

    # -- files ---------------------------------------------------------------------------------------------

    def components(self) -> dict[str, State]:
        """Return the states of all components, by name."""
        found = {name: vars(self)[attribute] for name, (attribute, _) in COMPONENTS.items()}
        found |= {f"search_{name}": index for name, index in self.searches.items()}
        return {name: part.state() for name, part in found.items() if part is not None}

    def header(self) -> dict[str, Any]:
        """Return the header of a model folder, without the states of the components."""
        return {
            "solver": self.solver,
            "n_epochs": self.n_epochs,
            "chosen": chosen_header(self.chosen),
            "config": None if self.config is None else self.config.to_dict(),
        }

    @classmethod
    def from_components(cls, header: Mapping[str, Any], parts: Mapping[str, State]) -> Model:
        """Restore a model from its header and the states of its components."""
        if checks.get_text(header, "solver") not in SOLVERS:
            raise ModelFileError(
                f"the model's solver {header['solver']!r} is unknown (known: {', '.join(SOLVERS)});"
                " a newer extremax, or the module that registers it, may be able to read it."
            )
        for name in ("weights", "calibration", "classes"):
            checks.get(parts, name)
        given: dict[str, Any] = {}
        for name, (attribute, build) in COMPONENTS.items():
            if name == "noise" and name in parts:
                _check_noise_size(parts[name].header, given["weights"].n_classes)
            if name in parts:
                given[attribute] = build(parts[name])
        config = None
        if checks.get(header, "config") is not None:
            content, n_features = checks.get_mapping(header, "config"), given["weights"].n_features
            config = FitConfig.from_dict(content, n_features, given.get("noise"))
        searches = {
            name.removeprefix("search_"): restore("search", part)
            for name, part in parts.items()
            # the search of sparse weights that versions before 0.2 wrote is exact search now
            if name.startswith("search_") and part.header.get("kind") != "sparse"
        }
        found = cls(
            **given,
            solver=header["solver"],
            searches=searches,
            config=config,
            n_epochs=checks.get_int(header, "n_epochs"),
            chosen=checks.get_mapping(header, "chosen"),
        )
        found.check()
        return found

    def check(self) -> None:
        """Raise ModelFileError if the parts do not belong to one model."""
        n_classes, n_features, projection = self.weights.n_classes, self.n_features, self.projection
        if self.label_map is not None:
            _check_size("merging", "parts", self.label_map.n_lines, n_classes)
        self.classes.check(self.n_classes)
        if self.reference is not None:
            _check_size("the reference", "classes", self.reference.n_classes, self.n_classes)
        is_sparse = isinstance(self.weights, SparseWeights)
        if self.noise is not None:
            _check_size("noise", "classes", self.noise.n_classes, n_classes)
        self._check_searches()
        trees = [search.tree for search in self.searches.values() if isinstance(search, TreeBeamSearch)]
        for tree in trees if self.tree is None else (self.tree, *trees):
            if projection is None:
                checks.reject("there is a label tree, but no projection of the features for it")
            _check_size("the label tree", "components", tree.n_components, projection.n_components)
        if projection is not None:
            _check_size("the projection", "features", projection.n_features, n_features)
        if self.config is not None:
            if self.config.solver.name != self.solver:
                checks.reject(f"solver is {self.solver!r}, and {self.config.solver.name!r} in its config")
            n_dense = self.weights.n_dense if isinstance(self.weights, SparseWeights) else 0
            _check_size("config", "dense columns", self.layout.n_dense, n_dense)
            groups = self.layout.groups
            if list(groups) != sorted(groups) or (groups and not 0 <= groups[0] <= groups[-1] <= n_features):
                checks.reject(f"column_groups is {checks.shown(groups)} for {n_features:,} features")
        if SOLVERS[self.solver].sparse_weights != is_sparse:
            checks.reject(f"solver {self.solver!r} does not have weights of this kind")

    def _check_searches(self) -> None:
        """Raise ModelFileError for searches of this package that are those of other weights."""
        for name, search in self.searches.items():
            if isinstance(search, PQSearch | TreeBeamSearch):
                _check_size(name, "classes", search.n_classes, self.weights.n_classes)
            if isinstance(search, PQSearch):
                _check_size(name, "features", search.n_features, self.n_features)
                if isinstance(self.weights, SparseWeights):
                    checks.reject(f"search {name!r} is for dense weights, and the weights are sparse")

    def trained(self, state: TrainState, config: FitConfig) -> Model:
        """Return the model of a training state; calibration, indexes and descriptions stay as they are."""
        means = state.class_means if self.classes.means is None else self.classes.means
        return replace(
            self,
            solver=config.solver.name,
            noise=state.noise,
            projection=state.projection,
            classes=replace(self.classes, means=means),
            config=config,
            n_epochs=state.n_epochs,
            chosen=dict(state.chosen),
        )


def _check_size(name: str, what: str, found: int, expected: int) -> None:
    if found != expected:
        checks.reject(f"{name} has {found:,} {what} where {expected:,} are needed")


def _check_noise_size(header: Mapping[str, Any], n_classes: int | None, depth: int = 0) -> None:
    """Raise for noise of another number of classes, or mixtures of many mixtures, before it is built."""
    if depth > _MAX_MIXTURES:
        checks.reject(f"noise is a mixture of more than {_MAX_MIXTURES} mixtures inside one another")
    if "n_classes" in header and n_classes is not None:
        _check_size("noise", "classes", checks.get_int(header, "n_classes"), n_classes)
    for part in ("first", "second", "base"):  # what a changed distribution was may have had more classes
        if isinstance(header.get(part), dict):
            _check_noise_size(header[part], None if part == "base" else n_classes, depth + 1)
