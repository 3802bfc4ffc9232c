"""A trained classifier without its label names, complete when it is built and then only read.

`Model` turns features into class ids and log-probabilities. Steps that change it (calibration, an index)
return a new one. Its weights are those of the estimator's training state, without a copy: `partial_fit` and
`resume_fit` of the same estimator change them, and inside an epoch they may be those of whitened rows. Save a
model, or copy it, to keep it while training goes on."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from extremax import search
from extremax.calibration import Calibration
from extremax.config import FitConfig
from extremax.defaults import DEFAULTS
from extremax.errors import ModelFileError
from extremax.examples import Examples
from extremax.features.pca import PCA
from extremax.noise import Noise
from extremax.runtime.threads import resolve_threads
from extremax.search import Evaluation, ExactSearch, RankedPairs, Scorer, Search, TreeBeamSearch
from extremax.storage.state import State, restore
from extremax.training.base import TrainState, chosen_header
from extremax.training.objectives import OBJECTIVES
from extremax.types import Features, Float32, Float64, Int32, Int64
from extremax.validation import LabelIndex, check_features, lookup_targets
from extremax.weights import Weights

if TYPE_CHECKING:
    from extremax.tree import LabelTree


class Descriptions(NamedTuple):
    """A text on each class, as UTF-8 bytes one after the other and where each ends.

    Examples
    --------
    >>> texts = Descriptions.of(["Fall on and from ladder", ""])
    >>> texts.text(0), texts.text(1)
    ('Fall on and from ladder', '')
    """

    utf8: NDArray[np.uint8]
    ends: Int64

    @classmethod
    def of(cls, texts: Sequence[str]) -> Descriptions:
        """Make descriptions from one text per class, in the order of the classes."""
        coded = [text.encode(errors="replace") for text in texts]
        return cls(
            np.frombuffer(b"".join(coded), np.uint8), np.cumsum([len(c) for c in coded], dtype=np.int64)
        )

    def text(self, label: int) -> str:
        """Return the text on a class."""
        start = int(self.ends[label - 1]) if label else 0
        return self.utf8[start : int(self.ends[label])].tobytes().decode()


@dataclass(frozen=True)
class ClassInfo:
    """What is known about the classes.

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
    """

    counts: Int64 | None = None
    n_samples: int = 0
    means: NDArray[np.float16] | None = None
    descriptions: Descriptions | None = None

    def state(self) -> State:
        arrays = {name: value for name in ("counts", "means") if (value := getattr(self, name)) is not None}
        if self.descriptions is not None:
            arrays |= {f"descriptions_{name}": value for name, value in self.descriptions._asdict().items()}
        return State({"n_samples": self.n_samples}, arrays)

    @classmethod
    def from_state(cls, state: State) -> ClassInfo:
        arrays = state.arrays
        texts = None
        if "descriptions_ends" in arrays:
            texts = Descriptions(*(arrays[f"descriptions_{name}"] for name in Descriptions._fields))
        return cls(arrays.get("counts"), state.header["n_samples"], arrays.get("means"), texts)


@dataclass(frozen=True)
class Model:
    """Everything that prediction needs.

    Attributes
    ----------
    weights
        Weights, biases and feature scale.
    objective
        Name of the objective: it decides whether log p_n is added to the scores.
    noise
        The distribution that negatives or cells came from; None where none was used.
    projection
        Projection of the features for the label tree; None without a tree.
    calibration
        Temperature and uniform mixing.
    classes
        Counts, means and descriptions of the classes.
    searches
        Indexes by name, beside exact search; "beam" is the default approximate one.
    config
        The resolved parameters and tuned numbers of the fit; None for a model that was not fitted here.
    n_epochs
        Epochs trained.
    chosen
        What was chosen from the data in training.
    """

    weights: Weights
    objective: str
    noise: Noise | None = None
    projection: PCA | None = None
    calibration: Calibration = field(default_factory=Calibration)
    classes: ClassInfo = field(default_factory=ClassInfo)
    searches: Mapping[str, Search] = field(default_factory=dict)
    config: FitConfig | None = None
    n_epochs: int = 0
    chosen: Mapping[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        """Find attributes under their names of version 0.1, with a warning."""
        if name in _OLD_ATTRIBUTES:
            new = _OLD_ATTRIBUTES[name]
            warnings.warn(f"model_.{name} is now called model_.{new}.", FutureWarning, stacklevel=2)
            return attrgetter(new)(self)
        hint = f"; use {_OLD_METHODS[name]}" if name in _OLD_METHODS else ""
        raise AttributeError(f"'Model' object has no attribute {name!r}{hint}")

    # -- parts ---------------------------------------------------------------------------------------------

    @property
    def n_classes(self) -> int:
        return self.weights.n_classes

    @property
    def n_features(self) -> int:
        return self.weights.n_features

    @property
    def noise_term(self) -> Noise | None:
        """What prediction adds to the scores; None where they are unbiased."""
        return self.noise if OBJECTIVES[self.objective].adds_log_noise else None

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
        fits = any(search.index_bytes(self.n_classes, self.n_features, numbers))
        return fits and self.scorer.linear_scores and not self.weights.row_major

    def describe(self) -> dict[str, Any]:
        """Return what was left open and chosen: resolved parameters, figures from the data, calibration,
        beam.
        """
        names = ("objective", "optimizer", "n_epochs", "learning_rate", "batch_size")
        found: dict[str, Any] = {} if self.config is None else {n: getattr(self.config, n) for n in names}
        found |= {"objective": self.objective, **self.chosen, **self.calibration._asdict()}
        beam = self.searches.get("beam")
        if beam is not None:
            found |= {
                "beam_width": getattr(beam, "width", None),
                "beam_recall": getattr(beam, "recall", None),
            }
        return found

    # -- prediction ----------------------------------------------------------------------------------------

    def topk(
        self, X: Features, k: int, *, search: str = "exact", width: int | None = None, n_threads: int = 1
    ) -> tuple[Int32, Float32]:
        """Return the k best classes of each row and their log-probabilities, best first."""
        return self._find_search(search, width).topk(self.scorer, X, k, width=width, n_threads=n_threads)

    @property
    def search_names(self) -> tuple[str, ...]:
        """Names that `topk` accepts."""
        return tuple(dict.fromkeys(("exact", "beam", *self.searches)))

    def _find_search(self, name: str, width: int | None) -> Search:
        """Return the search of a name; "beam" is exact search where a beam would take as long."""
        if name == "exact":
            return ExactSearch()
        if name not in self.search_names:
            raise ValueError(f"search is {name!r}; this model has {', '.join(map(repr, self.search_names))}.")
        found = self.searches.get(name)
        if found is not None:
            if width is None and name == "beam" and getattr(found, "width", 0) is None:
                return ExactSearch()
            trained = getattr(found, "n_epochs", self.n_epochs)
            if trained != self.n_epochs:
                warnings.warn(
                    f"The index of beam search was fitted after {trained} epochs, and the model has been"
                    f" trained for {self.n_epochs}: it may miss more of the best classes. Fit it again with"
                    " fit_index(X).",
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
        if self.tree is None or (width is None and linear and self.n_classes < numbers.min_classes):
            return ExactSearch()
        return TreeBeamSearch(self.tree)

    def debiased_scores(self, X: Features, *, n_threads: int = 1) -> Float32:
        """Return the scores of every class, bias removed: (n, n_classes)."""
        return search.debiased_scores(self.scorer, X, n_threads=n_threads)

    def log_prob_all(self, X: Features, *, n_threads: int = 1) -> Float32:
        """Return log p(y|x) of every class: (n, n_classes)."""
        return search.log_prob_all(self.scorer, X, n_threads=n_threads)

    def prob_all(self, X: Features, *, n_threads: int = 1) -> Float64:
        """Return p(y|x) of every class, in float64: (n, n_classes)."""
        return search.prob_all(self.scorer, X, n_threads=n_threads)

    def rank_pairs(self, examples: Examples, *, k: int = 5, n_threads: int = 1) -> RankedPairs:
        """Return the k best classes of each row, their log-probabilities, and log p(y|x) of each pair."""
        return search.rank_pairs(self.scorer, examples, k, n_threads=n_threads)

    def evaluate(self, examples: Examples, *, n_threads: int = 1) -> Evaluation:
        """Return mean log-likelihood, accuracy and top-5 accuracy."""
        return search.evaluate(self.scorer, examples, n_threads=n_threads)

    def log_likelihood(self, examples: Examples, *, n_threads: int = 1) -> float:
        """Return the mean of log p(y|x) over the pairs, bias removed."""
        return search.log_likelihood(self.scorer, examples, n_threads=n_threads)

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
        else:
            hardness = self.weights.similarity(label)
        order = np.argsort(-hardness, kind="stable")
        order = order[order != label][:k].astype(np.int32)
        return order, hardness[order].astype(np.float32)

    # -- changed copies ------------------------------------------------------------------------------------

    def with_calibration(self, calibration: Calibration) -> Model:
        """Return the model with another temperature and uniform mixing."""
        calibration.check()
        return replace(self, calibration=calibration)

    def calibrated(self, examples: Examples, *, n_threads: int = 1) -> Model:
        """Return the model calibrated by pairs that it was not trained on."""
        config = DEFAULTS.calibration if self.config is None else self.config.numbers.calibration
        found = search.choose_calibration(self.scorer, examples, n_threads=n_threads, config=config)
        return replace(self, calibration=found)

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
        """Return the states of all parts, by name."""
        parts = {"weights": self.weights.state(), "calibration": self.calibration.state()}
        parts["classes"] = self.classes.state()
        if self.noise is not None:
            parts["noise"] = self.noise.state()
        if self.projection is not None:
            parts["projection"] = self.projection.state()
        return parts | {f"search_{name}": index.state() for name, index in self.searches.items()}

    def header(self) -> dict[str, Any]:
        """Return what a model folder stores beside the states of the parts."""
        return {
            "objective": self.objective,
            "n_epochs": self.n_epochs,
            "chosen": chosen_header(self.chosen),
            "config": None if self.config is None else self.config.to_dict(),
        }

    @classmethod
    def from_components(cls, header: Mapping[str, Any], parts: Mapping[str, State]) -> Model:
        """Build a model from what `header` and `components` gave."""
        if header["objective"] not in OBJECTIVES:
            raise ModelFileError(
                f"the model's objective {header['objective']!r} is unknown (known: {', '.join(OBJECTIVES)});"
                " a newer extremax, or the module that registers it, may be able to read it."
            )
        noise = restore("noise", parts["noise"]) if "noise" in parts else None
        config = None if header["config"] is None else FitConfig.from_dict(header["config"], noise)
        searches = {
            name.removeprefix("search_"): restore("search", part)
            for name, part in parts.items()
            if name.startswith("search_")
        }
        return cls(
            weights=restore("weights", parts["weights"]),
            objective=header["objective"],
            noise=noise,
            projection=PCA.from_state(parts["projection"]) if "projection" in parts else None,
            calibration=Calibration.from_state(parts["calibration"]),
            classes=ClassInfo.from_state(parts["classes"]),
            searches=searches,
            config=config,
            n_epochs=header["n_epochs"],
            chosen=header["chosen"],
        )

    def trained(self, state: TrainState, config: FitConfig) -> Model:
        """Return the model of a training state; calibration, indexes and descriptions stay as they are."""
        means = state.class_means if self.classes.means is None else self.classes.means
        return replace(
            self,
            objective=config.objective,
            noise=state.noise,
            projection=state.projection,
            classes=replace(self.classes, means=means),
            config=config,
            n_epochs=state.n_epochs,
            chosen=dict(state.chosen),
        )


# Names of version 0.1, and where their values are now.
_OLD_ATTRIBUTES = {
    "linear": "weights",
    "base": "noise_term",
    "temperature": "calibration.temperature",
    "floor": "calibration.uniform_mix",
    "class_counts": "classes.counts",
    "class_means": "classes.means",
    "n_samples": "classes.n_samples",
    "descriptions": "classes.descriptions",
}
_OLD_METHODS = {
    "top_k": "model_.topk",
    "fit_index": "clf.fit_index",
    "calibrate": "extremax.calibrate",
    "judge": "model_.rank_pairs",
    "save": "clf.save",
    "index": 'model_.searches["beam"]',
}


def __getattr__(name: str) -> Any:
    if name != "ExtremeModel":
        raise AttributeError(f"module 'extremax.model' has no attribute {name!r}")
    warnings.warn("extremax.model.ExtremeModel is now called Model.", FutureWarning, stacklevel=2)
    return Model
