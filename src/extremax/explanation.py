"""Why a class was predicted: exact contributions of features to its score; portraits of classes.

The score of class y is a sum over the features of the row, ``x_f w_fy``, plus terms that no single feature
has: the bias of the class, a factor of the sum of the row, an embedding, log p_n of negative sampling.  An
`Explanation` lists all of them, so that they add up to the score; the difference of two scores is the sum of
the differences.  Probabilities are a softmax of the scores after calibration, so a difference of scores of 1
is a factor of e between two probabilities where the temperature is 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax.features.ngrams import Occurrences
from extremax.scores.base import RowTerms
from extremax.scores.sparse import EMBEDDING
from extremax.types import Features, Float32, Float64, Int32

if TYPE_CHECKING:
    from extremax.model import Model

Terms = list[tuple[str, float]]
_SHOWN = 8  # terms that are printed; the others are added up
_TOKEN = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Contributions:
    """A score, or a difference of scores, as a sum.

    Attributes
    ----------
    label
        The class whose score it is.
    rather_than
        The class whose score is subtracted; None for the score itself.
    total : float
        The score or the difference, as `decision_function` has it.
    terms : list of (name, contribution)
        By feature, those that matter most first; they add up to `total`.  What belongs to no feature is in
        parentheses: ``(class bias)``.
    words : list of (word, contribution)
        The same by the words of the text: the contribution of an n-gram is divided among the words that it
        covers, by the number of their letters in it.  Empty for rows that are not texts.
    """

    label: Any
    rather_than: Any
    total: float
    terms: Terms
    words: Terms = field(default_factory=list)

    @property
    def ngrams(self) -> Terms:
        """The terms that are features, without those in parentheses."""
        return [term for term in self.terms if not (term[0][0] == "(" and term[0][-1] == ")")]

    def __str__(self) -> str:
        name = "score" if self.rather_than is None else "difference"
        lines = _lines(self.words or self.terms, self.total, name)
        if self.words:
            strongest = ", ".join(f"{term} {value:+.2f}" for term, value in self.ngrams[:_SHOWN])
            lines.append(f"  n-grams: {strongest}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Explanation:
    """Why the first of some labels was predicted.

    Attributes
    ----------
    labels, probabilities
        The most probable labels, best first.
    score : Contributions
        Score of the first label.
    against : list of Contributions
        Difference between the score of the first label and that of each of the others.
    is_known : bool
        False for a text that says nothing to the model: its answer is the class frequencies.
    matched : str or None
        The class text of the first label that the text is most like, if there is one like it.
    """

    labels: list[Any]
    probabilities: list[float]
    score: Contributions
    against: list[Contributions]
    is_known: bool = True
    matched: str | None = None

    @property
    def label(self) -> Any:
        """The most probable label."""
        return self.labels[0]

    @property
    def probability(self) -> float:
        """Its probability."""
        return self.probabilities[0]

    @property
    def runner_up(self) -> Any:
        """The label that comes second; None if only one was asked for."""
        return self.labels[1] if len(self.labels) > 1 else None

    @property
    def difference(self) -> Contributions | None:
        """Difference between the scores of the first and the second label."""
        return self.against[0] if self.against else None

    def __str__(self) -> str:
        if not self.is_known:
            frequent = ", ".join(
                f"{label} {p:.1%}" for label, p in zip(self.labels, self.probabilities, strict=True)
            )
            return f"no known word was found; these are the class frequencies: {frequent}"
        lines = [f"{self.label}  {self.probability:.1%}"]
        if self.matched is not None:
            lines.append(f"matched the name {self.matched!r}")
        lines.append(str(self.score))
        if self.difference is not None:
            lines += ["", f"{self.label} rather than {self.runner_up}  {self.probabilities[1]:.1%}"]
            lines.append(str(self.difference))
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain lists and dictionaries."""
        # `asdict` would copy every term
        return vars(self) | {
            "score": {**vars(self.score)},
            "against": [{**vars(part)} for part in self.against],
        }


@dataclass(frozen=True)
class LabelExplanation:
    """The strongest features of a class, and the classes most like it.

    Attributes
    ----------
    label
    n_samples : int or None
        Training rows of the class.
    features : list of (name, weight)
        The features with the greatest weights, greatest first.
    confusable : list of (label, similarity)
        Classes that are hard to tell from it, hardest first: by the label tree, if the model has one, the
        probability that it gives to a class for a typical row of this one; else the cosine between the
        weights of the two classes.
    """

    label: Any
    n_samples: int | None
    features: Terms
    confusable: list[tuple[Any, float]]

    def __str__(self) -> str:
        rows = "" if self.n_samples is None else f"  ({self.n_samples:,} training rows)"
        width = max((len(name) for name, _ in self.features), default=0)
        lines = [f"{self.label}{rows}"]
        lines += [f"  {name:<{width}}  {value:+.2f}" for name, value in self.features]
        lines.append("hardest to tell from it:")
        lines += [f"  {label}  {value:.3f}" for label, value in self.confusable]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain lists and dictionaries."""
        return asdict(self)


Names = Callable[[NDArray[np.integer[Any]]], Sequence[str]]


def explain_row(
    model: Model,
    classes: NDArray[Any],
    X: Features,
    best: tuple[Int32, Float32],
    names: Names,
    occurrences: Occurrences | None = None,
) -> Explanation:
    """Explain the prediction for one row.

    Parameters
    ----------
    model, classes
        The model and its labels.
    X
        One row.
    best
        Ids and log-probabilities, (1, k) each, of the classes to explain, best first.
    names
        Names of columns.
    occurrences
        Where the n-grams of the text are, if the row is one of a text.
    """
    ids = best[0][0]
    columns, pieces, rest = _class_contributions(model, X, ids)
    named = list(names(columns))
    spelled, shares = (
        ([], np.zeros((0, len(columns)))) if occurrences is None else _words(occurrences, columns)
    )
    scores = model.debiased_scores(X)[0, ids].astype(np.float64)
    if model.noise_term is not None:
        rest = [*rest, ("(log p of the noise)", scores - pieces.sum(axis=0) - sum(part for _, part in rest))]

    def of(weights: Float64, rather_than: int | None) -> Contributions:
        terms = list(zip(named, (pieces @ weights).tolist(), strict=True))
        whole = [(name, float(part @ weights)) for name, part in rest]
        inside = sum(value for name, value in terms if name == EMBEDDING)
        terms = [term for term in terms if term[0] != EMBEDDING]
        whole += [(EMBEDDING, inside)] if inside else []
        words = list(zip(spelled, (shares @ (pieces @ weights)).tolist(), strict=True))
        return Contributions(
            label=_item(classes[ids[0]]),
            rather_than=None if rather_than is None else _item(classes[ids[rather_than]]),
            total=float(scores @ weights),
            terms=_sorted([*terms, *whole]),
            words=_sorted([*words, *whole]) if words else [],
        )

    first = np.zeros(len(ids))
    first[0] = 1.0
    others = [first - np.eye(len(ids))[i] for i in range(1, len(ids))]
    return Explanation(
        labels=[_item(label) for label in classes[ids]],
        probabilities=np.exp(best[1][0].astype(np.float64)).tolist(),
        score=of(first, None),
        against=[of(weights, i) for i, weights in enumerate(others, start=1)],
    )


def explain_frequencies(classes: NDArray[Any], ids: Int32, log_prob: Float32) -> Explanation:
    """Explain the answer to a text that says nothing: the k greatest class frequencies."""
    labels = [_item(label) for label in classes[ids]]
    logs = log_prob.astype(np.float64).tolist()
    name = "(log of the class frequency)"
    score = Contributions(labels[0], None, logs[0], [(name, logs[0])])
    against = [
        replace(score, rather_than=label, total=logs[0] - other, terms=[(name, logs[0] - other)])
        for label, other in zip(labels[1:], logs[1:], strict=True)
    ]
    return Explanation(labels, np.exp(logs).tolist(), score, against, is_known=False)


def explain_class(model: Model, classes: NDArray[Any], label: int, names: Names, k: int) -> LabelExplanation:
    """Explain a class by its strongest features.

    Parameters
    ----------
    model, classes
        The model and its labels.
    label
        Number of the class.
    names
        Names of columns.
    k
        Features, and classes, to list.
    """
    columns, values = _mean_weights([model.weights.class_weights(int(i)) for i in model.lines.of(label)])
    strongest = np.argsort(-values, kind="stable")[:k]
    ids, likeness = model.confusable(label, min(k, len(classes) - 1))
    counts = model.classes.counts
    return LabelExplanation(
        label=_item(classes[label]),
        n_samples=None if counts is None else int(counts[label]),
        features=list(zip(names(columns[strongest]), values[strongest].tolist(), strict=True)),
        confusable=[(_item(classes[i]), float(value)) for i, value in zip(ids, likeness, strict=True)],
    )


def _class_contributions(model: Model, X: Features, ids: Int32) -> RowTerms:
    """Return the terms of the scores of classes, some of which may be merged.

    With shares r of its lines, the score of a merged class is the mean of theirs, weighted by r, plus the
    temperature of the row times the entropy of r.
    """
    if model.label_map is None:
        return model.weights.contributions(X, ids)
    lines, starts = model.label_map.expand(ids)
    sizes = model.label_map.sizes[ids]
    share, entropy = np.ones(len(lines)), np.zeros(len(ids))
    for i in np.flatnonzero(sizes > 1):
        r, temperature = model.merged_predictor().weigh_lines(X, int(ids[i]))
        share[starts[i] : starts[i] + sizes[i]] = r
        entropy[i] = -temperature * float((r * np.log(np.maximum(r, 1e-300))).sum())
    columns, pieces, others = model.weights.contributions(X, lines)
    summed = np.add.reduceat(pieces * share, starts, axis=1) if len(columns) else np.zeros((0, len(ids)))
    others = [(name, np.add.reduceat(part * share, starts)) for name, part in others]
    if entropy.any():
        others.append(("(classes merged into one)", entropy))
    return RowTerms(columns, summed, others)


def _mean_weights(found: list[tuple[Int32, Float32]]) -> tuple[Int32, Float32]:
    """Return the features on which one of some parts has a weight, and the mean of their weights."""
    if len(found) == 1:
        return found[0]
    columns, at = np.unique(np.concatenate([part[0] for part in found]), return_inverse=True)
    summed = np.bincount(at, weights=np.concatenate([part[1] for part in found]))
    return columns.astype(np.int32), (summed / len(found)).astype(np.float32)


def _words(found: Occurrences, columns: Int32) -> tuple[list[str], sparse.csr_matrix]:
    """Return the words of a text, and the share of each in the contribution of each column.

    The contribution of an n-gram is divided among its places, and at each among the words that it covers, by
    the number of their letters in it; among marks where there are no letters.
    """
    tokens = list(_TOKEN.finditer(found.text))
    words = list(dict.fromkeys(token[0] for token in tokens))
    number = {word: i for i, word in enumerate(words)}
    owner = np.full(len(found.text), -1, np.int64)  # word or mark of each character, -1 for spaces
    for token in tokens:
        owner[token.start() : token.end()] = number[token[0]]
    starts = np.maximum(found.starts, 0).astype(np.int64)
    sizes = np.minimum(found.starts + found.lengths, len(found.text)) - starts
    places = np.repeat(np.arange(len(starts)), sizes)
    first = np.cumsum(sizes) - sizes
    covered = owner[np.arange(len(places)) + np.repeat(starts - first, sizes)]
    is_mark = np.array([not (word[0].isalnum() or word[0] == "_") for word in words], dtype=np.bool_)
    has_letter = np.zeros(len(starts), np.bool_)
    has_letter[places[(covered >= 0) & ~is_mark[covered]]] = True
    at = np.full(max(columns.max(initial=-1), found.columns.max(initial=-1)) + 1, -1)
    at[columns] = np.arange(len(columns))
    at = at[found.columns]  # place of each n-gram among the columns
    kept = (covered >= 0) & ~(is_mark[covered] & has_letter[places]) & (at >= 0)[places]
    places, covered = places[kept], covered[kept]
    n_letters = np.bincount(places, minlength=len(starts))
    n_places = np.bincount(at[at >= 0], minlength=len(columns))[at]
    share = 1.0 / np.maximum(n_letters * n_places, 1)
    matrix = sparse.coo_matrix((share[places], (covered, at[places])), shape=(len(words), len(columns)))
    return words, matrix.tocsr()


def _sorted(terms: Terms) -> Terms:
    return sorted((term for term in terms if term[1] != 0.0), key=lambda term: -abs(term[1]))


def _lines(terms: Terms, total: float, name: str) -> list[str]:
    shown = list(terms[:_SHOWN])
    if len(terms) > _SHOWN:
        others = terms[_SHOWN:]
        shown.append((f"{len(others)} others", sum(value for _, value in others)))
    shown.append((name, total))
    width = max(len(term) for term, _ in shown)
    return [f"  {term:<{width}}  {value:+8.2f}" for term, value in shown]


def _item(label: Any) -> Any:
    return label.item() if isinstance(label, np.generic) else label
