"""Why a class was predicted: exact contributions of features to its score; portraits of classes.

The score of class y is a sum over the features of the row, ``x_f w_fy``, plus terms that no single feature
has: the bias of the class, a factor of the sum of the row, an embedding, log p_n of negative sampling.  An
`Explanation` lists all of them, so that they add up to the score; the difference of two scores is the sum of
the differences.  Probabilities are a softmax of the scores after calibration, so a difference of scores of 1
is a factor of e between two probabilities where the temperature is 1.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax.features.ngrams import Occurrences
from extremax.kernels.ngram_hash import UNSPACED, WORD
from extremax.scores.base import RowTerms
from extremax.scores.sparse import EMBEDDING, SparseWeights
from extremax.types import Features, Float32, Float64, Int32

if TYPE_CHECKING:
    from extremax.model import Model

Terms = list[tuple[str, float]]
_MOST_RAISED = 1 / 3  # of the classes: words of more say little
_SHOWN = 8  # terms that are printed; the others are added up


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
    pieces : list of str
        The text, cut into words and what is between them.  Writing without spaces is cut into the n-grams
        that add most.  Empty for rows that are not texts.
    unknown_words : list of str
        Words that no training text has.
    unmatched_words : list of list of str
        For each label, the words of the text that raise the scores of other labels, but not of this one:
        its training texts have them rarely or never. Without words that raise those of most labels.
    """

    labels: list[Any]
    probabilities: list[float]
    score: Contributions
    against: list[Contributions]
    is_known: bool = True
    matched: str | None = None
    pieces: list[str] = field(default_factory=list)
    unknown_words: list[str] = field(default_factory=list)
    unmatched_words: list[list[str]] = field(default_factory=list)

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
    def difference(self) -> Contributions:
        """Difference between the scores of the first and the second label."""
        if not self.against:
            raise ValueError("this explanation has one label; for a difference ask for two: explain(x, k=2).")
        return self.against[0]

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
        if self.against:
            lines += ["", f"{self.label} rather than {self.runner_up}  {self.probabilities[1]:.1%}"]
            lines.append(str(self.difference))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the labels, and the text with its words coloured, for a notebook."""
        rows = zip(self.labels, self.probabilities, strict=True)
        found = "".join(
            f"<tr><td><b>{escape(str(label))}</b></td><td>{p:.1%}</td><td>{_bar(p)}</td></tr>"
            for label, p in rows
        )
        found = f"<table>{found}</table>"
        if not self.is_known:
            return f"<p>No known word was found; these are the class frequencies.</p>{found}"
        for part in (self.score, *self.against[:1]):
            found += _coloured(part, self.pieces)
        return found

    def spelled_as(self, text: str) -> Explanation:
        """Return the explanation with the text as it was written, not in lower case."""
        if len(text) != sum(map(len, self.pieces)):  # a few letters are two in lower case
            return self
        ends = list(accumulate(map(len, self.pieces)))
        return replace(self, pieces=[text[a:b] for a, b in pairwise([0, *ends])])

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
    *,
    counts_words: bool = True,
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
    counts_words
        Whether words of the text have columns.
    """
    ids = best[0][0]
    columns, pieces, rest = _class_contributions(model, X, ids)
    has_weight = pieces.any(axis=1)
    columns, pieces = columns[has_weight], pieces[has_weight]
    named = list(names(columns))
    is_dense = np.array([name == EMBEDDING for name in named], np.bool_)
    if is_dense.any():
        rest = [*rest, (EMBEDDING, pieces[is_dense].sum(axis=0))]
        columns, pieces = columns[~is_dense], pieces[~is_dense]
        named = [name for name in named if name != EMBEDDING]
    cuts: list[tuple[int, int]] = []
    spelled: list[str] = []
    shares = np.zeros((0, len(columns)))
    if occurrences is not None:
        cuts = _cut_words(
            occurrences, dict(zip(columns.tolist(), np.abs(pieces[:, 0]).tolist(), strict=True))
        )
        spelled, shares = _words(occurrences, cuts, columns)
    scores = model.debiased_scores(X)[0, ids].astype(np.float64)
    if model.noise_term is not None:
        rest = [*rest, ("(log p of the noise)", scores - pieces.sum(axis=0) - sum(part for _, part in rest))]
    others = [name for name, _ in rest]
    whole = np.array([part for _, part in rest]).reshape(-1, len(ids))

    def of(weights: Float64, rather_than: int | None) -> Contributions:
        by_column, by_other = pieces @ weights, whole @ weights
        by_word = shares @ by_column
        return Contributions(
            label=_item(classes[ids[0]]),
            rather_than=None if rather_than is None else _item(classes[ids[rather_than]]),
            total=float(scores @ weights),
            terms=_sorted([*named, *others], np.append(by_column, by_other)),
            words=_sorted([*spelled, *others], np.append(by_word, by_other)) if spelled else [],
        )

    first = np.zeros(len(ids))
    first[0] = 1.0
    return Explanation(
        labels=[_item(label) for label in classes[ids]],
        probabilities=np.exp(best[1][0].astype(np.float64)).tolist(),
        score=of(first, None),
        against=[of(first - np.eye(len(ids))[i], i) for i in range(1, len(ids))],
        **(_matches(model, ids, occurrences, cuts) if occurrences is not None and counts_words else {}),
        pieces=[] if occurrences is None else _pieces(occurrences.text, cuts),
    )


def _cut_words(found: Occurrences, strength: dict[int, float]) -> list[tuple[int, int]]:
    """Return the words and marks of a text; unspaced letters are joined to the n-grams of most strength."""
    tokens = found.tokens
    ends = [-1, *(end for _, end, _ in tokens)]
    goes_on = [t[2] == UNSPACED and t[0] == end for t, end in zip(tokens, ends[:-1], strict=True)]
    stretch = np.cumsum(~np.array(goes_on, np.bool_))
    first, last = ({token[side]: i for i, token in enumerate(tokens)} for side in (0, 1))
    run = np.full(len(tokens), -1)
    if any(kind == UNSPACED for _, _, kind in tokens):
        places = list(zip(found.columns.tolist(), found.starts.tolist(), found.lengths.tolist(), strict=True))
        for _, start, length in sorted(places, key=lambda place: -strength.get(place[0], 0.0)):
            i, j = first.get(start, 0), last.get(start + length, 0)
            free = i < j and stretch[i] == stretch[j] and tokens[i][2] == UNSPACED
            if free and (run[i : j + 1] < 0).all():
                run[i : j + 1] = i
    words: list[tuple[int, int]] = []
    for i, (start, end, _) in enumerate(tokens):
        joined = run[i] >= 0 and run[i] < i
        words[len(words) - joined :] = [(words[-1][0] if joined else start, end)]
    return words


def _pieces(text: str, words: list[tuple[int, int]]) -> list[str]:
    edges = [0, *(edge for word in words for edge in word), len(text)]
    return [text[a:b] for a, b in pairwise(edges) if a < b]


def _matches(model: Model, ids: Int32, found: Occurrences, words: list[tuple[int, int]]) -> dict[str, Any]:
    """Return the words without a column, and for each class the others that do not raise its score."""
    single = found.orders == 1
    starts, columns = found.starts[single].tolist(), found.columns[single].tolist()
    known = dict(zip(starts, columns, strict=True))
    letters = [start for start, _, kind in found.tokens if kind >= WORD]
    inside: dict[str, list[int]] = {}
    for a, b in words:
        of_word = letters[bisect_left(letters, a) : bisect_left(letters, b)]
        if of_word:
            inside[found.text[a:b]] = [known[start] for start in of_word if start in known]
    spelled = np.array([word for word, own in inside.items() if own], dtype=object)
    unmatched: list[list[str]] = [[] for _ in ids]
    if len(spelled) and isinstance(model.weights, SparseWeights):
        columns = np.array([column for own in inside.values() for column in own])
        word_of = np.repeat(np.arange(len(spelled)), [len(own) for own in inside.values() if own])
        classes, place = model.weights.classes_above_zero(columns)
        raising = word_of[place]
        is_common = np.bincount(raising, minlength=len(spelled)) > _MOST_RAISED * model.n_classes
        for i, label in enumerate(ids.tolist()):
            is_matched = is_common.copy()
            is_matched[raising[np.isin(classes, model.lines.of(label))]] = True
            unmatched[i] = spelled[~is_matched].tolist()
    return {
        "unknown_words": [word for word, own in inside.items() if not own],
        "unmatched_words": unmatched,
    }


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


def _words(
    found: Occurrences, cuts: list[tuple[int, int]], columns: Int32
) -> tuple[list[str], sparse.csr_matrix]:
    """Return the words of a text, and the share of each in the contribution of each column.

    The contribution of an n-gram is divided among its places, and at each among the words that it covers, by
    the number of their letters in it; among marks where there are no letters.
    """
    words = list(dict.fromkeys(found.text[a:b] for a, b in cuts))
    number = {word: i for i, word in enumerate(words)}
    owner = np.full(len(found.text), -1, np.int64)  # word or mark of each character, -1 for spaces
    for a, b in cuts:
        owner[a:b] = number[found.text[a:b]]
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


def _sorted(names: list[str], values: Float64) -> Terms:
    """Return the terms that are not zero, those that matter most first."""
    order = np.argsort(-np.abs(values), kind="stable")[: np.count_nonzero(values)]
    return list(zip([names[i] for i in order.tolist()], values[order].tolist(), strict=True))


def _lines(terms: Terms, total: float, name: str) -> list[str]:
    shown = list(terms[:_SHOWN])
    if len(terms) > _SHOWN:
        others = terms[_SHOWN:]
        shown.append((f"{len(others)} others", sum(value for _, value in others)))
    shown.append((name, total))
    width = max(len(term) for term, _ in shown)
    return [f"  {term:<{width}}  {value:+8.2f}" for term, value in shown]


def _bar(share: float) -> str:
    style = f"background:#1f6ebe;height:.6em;width:{8.0 * share:.2f}em"
    return f"<div style='width:8em;background:#d9e0e7'><div style='{style}'></div></div>"


def _coloured(part: Contributions, pieces: list[str]) -> str:
    """Return the pieces of a text, blue where they speak for the label and orange against; or a table."""
    what = escape(str(part.label))
    if part.rather_than is not None:
        what += f" rather than {escape(str(part.rather_than))}"
    title = f"<p>{what}: {part.total:+.2f}</p>"
    if not part.words:
        terms = "".join(f"<tr><td>{escape(n)}</td><td>{v:+.2f}</td></tr>" for n, v in part.terms[:_SHOWN])
        return f"{title}<table>{terms}</table>"
    values = dict(part.words)
    most = max((abs(values.get(piece.lower(), 0.0)) for piece in pieces), default=0.0) or 1.0
    shown = []
    for piece in pieces:
        value = values.get(piece.lower())
        if value is None:
            shown.append(escape(piece))
            continue
        colour = "31,110,190" if value >= 0.0 else "214,110,20"
        strength = 0.06 + 0.5 * abs(value) / most
        style = f"color:inherit;background:rgba({colour},{strength:.2f})"
        shown.append(f"<mark title='{value:+.2f}' style='{style}'>{escape(piece)}</mark>")
    return f"{title}<p>{''.join(shown)}</p>"


def _item(label: Any) -> Any:
    return label.item() if isinstance(label, np.generic) else label
