"""Tables about a model on labelled rows, from its k best classes per row and sparse counts of confusions.

Nothing has a line per pair of classes or per row and class: memory grows with the number of rows times k plus
the number of classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, special

from extremax import metrics
from extremax.types import Float64, Int64

if TYPE_CHECKING:
    from extremax.examples import Examples
    from extremax.model import Model
    from extremax.scores import RankedPairs


@dataclass(frozen=True)
class AnalysisConfig:
    """Settings of `analyse`.

    Attributes
    ----------
    n_best
        Predictions kept for each row.
    n_bins
        Bins of the reliability diagram.
    n_groups
        Groups of equally many classes, by frequency.
    n_examples
        Rows listed for a pair of confused classes.
    max_pairs
        Pairs of confused classes with examples.
    merge_max_expected, merge_min_share
        A merge of two classes is suggested if chance would confuse fewer than `merge_max_expected` pairs of
        classes as often, and if at least `merge_min_share` of their rows predicted as either go to the wrong
        one.
    suspect_min_other, suspect_max_ratio
        A row is to be checked if another class has at least the probability `suspect_min_other`, and the
        label at most `suspect_max_ratio` times that.
    """

    n_best: int = 5
    n_bins: int = 15
    n_groups: int = 10
    n_examples: int = 3
    max_pairs: int = 200
    merge_max_expected: float = 0.05
    merge_min_share: float = 0.25
    suspect_min_other: float = 0.5
    suspect_max_ratio: float = 0.01

    def __post_init__(self) -> None:
        for name in ("n_best", "n_bins", "n_groups"):
            if vars(self)[name] < 1:
                raise ValueError(f"{name} is {vars(self)[name]}; it must be at least 1.")


@dataclass(frozen=True, eq=False)
class Table(Mapping[str, Any]):
    """Columns of one length by name, and a sentence about how they are made.

    Examples
    --------
    >>> table = Table({"label": ["a", "b"], "rows": np.array([3, 1])}, "rows of each label")
    >>> len(table), table.n_rows, table.records(1)
    (2, 2, [{'label': 'a', 'rows': 3}])
    """

    columns: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def n_rows(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def records(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the first lines as dictionaries of plain numbers, strings and lists; None for NaN."""
        n = self.n_rows if limit is None else min(limit, self.n_rows)
        listed = {name: _plain(column[:n]) for name, column in self.columns.items()}
        return [{name: listed[name][i] for name in listed} for i in range(n)]

    def to_frame(self) -> Any:
        """Return a pandas DataFrame; the note is ``frame.attrs["note"]``."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("data frames need pandas: pip install pandas.") from error
        frame = pandas.DataFrame(self.columns)
        frame.attrs["note"] = self.note
        return frame


def _plain(column: Any) -> list[Any]:
    values = column.tolist() if isinstance(column, np.ndarray) else list(column)
    return [None if isinstance(value, float) and not np.isfinite(value) else value for value in values]


@dataclass(frozen=True)
class Predictions:
    """Labelled rows and their best classes, from which all tables are made.

    Attributes
    ----------
    model, names
        The model, and the names of its classes.
    pairs
        Row and class of each label, rows numbered without those that have none.
    row_number
        Number of each row in the data as given.
    ranked
        Best classes of each row, and the log-probability of each label.
    texts
        The texts of all rows as given; None if there are none.
    config
        Numbers of the tables.
    """

    model: Model
    names: NDArray[Any]
    pairs: Examples
    row_number: Int64
    ranked: RankedPairs
    texts: Sequence[str] | None
    config: AnalysisConfig

    @property
    def n_classes(self) -> int:
        return len(self.names)

    @cached_property
    def labels(self) -> Int64:
        """Class of each pair."""
        return self.pairs.y.astype(np.int64)

    @cached_property
    def rows(self) -> Int64:
        """Row of each pair."""
        return self.pairs.rows

    @cached_property
    def best(self) -> Int64:
        """First prediction of the row of each pair."""
        return np.asarray(self.ranked.labels[self.rows, 0], np.int64)

    @cached_property
    def best_prob(self) -> Float64:
        """Probability of the first prediction of the row of each pair."""
        return np.asarray(np.minimum(np.exp(self.ranked.log_prob[self.rows, 0].astype(np.float64)), 1.0))

    @cached_property
    def label_log_prob(self) -> Float64:
        """Log-probability of each label."""
        return self.ranked.pair_log_prob.astype(np.float64)

    @cached_property
    def is_first(self) -> NDArray[np.bool_]:
        """Whether the label of a pair is predicted first."""
        return np.asarray(self.best == self.labels)

    @cached_property
    def is_listed(self) -> NDArray[np.bool_]:
        """Whether the label of a pair is among the predictions."""
        return np.asarray((self.ranked.labels[self.rows] == self.labels[:, None]).any(axis=1))

    @cached_property
    def row_right(self) -> NDArray[np.bool_]:
        """Whether the first prediction of a row is one of its labels."""
        right = np.zeros(self.pairs.n_rows, bool)
        right[self.rows[self.is_first]] = True
        return right

    @cached_property
    def wrong(self) -> Int64:
        """Pairs of rows whose first prediction is wrong."""
        return np.flatnonzero(~self.row_right[self.rows])

    @cached_property
    def support(self) -> Int64:
        """Rows of each class."""
        return np.bincount(self.labels, minlength=self.n_classes).astype(np.int64)

    @cached_property
    def right(self) -> Int64:
        """Rows of each class for which it is predicted first."""
        return np.bincount(self.labels[self.is_first], minlength=self.n_classes).astype(np.int64)

    @cached_property
    def confusions(self) -> tuple[Int64, Int64, Int64]:
        """Class, first prediction and number of rows of every confusion, the most frequent first."""
        key = self.labels[self.wrong] * self.n_classes + self.best[self.wrong]
        found, counts = np.unique(key, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        label, predicted = np.divmod(found[order], self.n_classes)
        return label, predicted, counts[order].astype(np.int64)

    def text(self, row: int) -> str | None:
        """Return the text of a row."""
        return None if self.texts is None else str(self.texts[int(self.row_number[row])])


def figure_table(made: Predictions) -> Table:
    """Compare accuracy, log-likelihood and calibration error with class frequencies."""
    k = made.ranked.labels.shape[1]

    def share(pairs: NDArray[np.bool_]) -> float:
        """Return the fraction of rows that have one of the pairs."""
        return len(np.unique(made.rows[pairs])) / made.pairs.n_rows

    def calibration_error(right: NDArray[np.bool_], prob: Float64) -> float:
        return metrics.expected_calibration_error(right, prob, n_bins=made.config.n_bins)

    likelihood, error = float(made.label_log_prob.mean()), calibration_error(made.is_first, made.best_prob)
    lines: list[tuple[Any, ...]] = [("model", share(made.is_first), share(made.is_listed), likelihood, error)]
    if made.model.classes.counts is not None:
        log_frequency = made.model.log_frequencies.astype(np.float64)
        often = np.argsort(-log_frequency, kind="stable")[:k]
        is_first, is_listed = made.labels == often[0], np.isin(made.labels, often)
        likelihood = float(log_frequency[made.labels].mean())
        error = calibration_error(is_first, np.full(len(is_first), np.exp(log_frequency[often[0]])))
        lines.append(("class frequencies", share(is_first), share(is_listed), likelihood, error))
    names = ("name", "accuracy", f"top{k}_accuracy", "log_likelihood", "calibration_error")
    return Table(
        {name: list(column) for name, column in zip(names, zip(*lines, strict=True), strict=True)},
        f"Fraction of rows with a label that is predicted first, or among the first {k}; mean log p(label|x);"
        " mean distance of probability and share right. Class frequencies: the answer without looking at x.",
    )


def frequency_groups(counts: Int64, n_groups: int) -> Int64:
    """Return the group of each class by its training rows: 0 for the tenth with the most, and so on.

    Classes with equally many rows are in one group, so that there may be fewer groups.

    Examples
    --------
    >>> frequency_groups(np.array([9, 1, 5, 1]), 2).tolist()
    [0, 1, 0, 1]
    """
    descending = np.sort(counts)[::-1]
    edges = descending[np.arange(n_groups) * len(counts) // n_groups]  # the most rows in each group
    # a class is in the last group whose largest class has at least as many rows as it has
    group = np.searchsorted(-edges, -counts, side="right") - 1
    return np.unique(group, return_inverse=True)[1].reshape(-1).astype(np.int64)


def decile_table(made: Predictions) -> Table:
    """Return figures by class frequency, frequent classes first."""
    config, counts = made.config, made.model.classes.counts
    known = "training rows" if counts is not None else "rows of the data, as training counts are not stored"
    sizes = made.support if counts is None else counts.astype(np.int64)
    group = frequency_groups(sizes, config.n_groups)
    n = int(group.max()) + 1
    of_pair = group[made.labels]
    n_pairs = np.bincount(of_pair, minlength=n)
    largest, smallest = np.full(n, -1), np.full(n, np.iinfo(np.int64).max)
    np.maximum.at(largest, group, sizes)
    np.minimum.at(smallest, group, sizes)

    def mean(values: NDArray[Any]) -> Float64:
        return _mean(np.bincount(of_pair, weights=values.astype(np.float64), minlength=n), n_pairs)

    low, high = wilson(np.bincount(of_pair, weights=made.is_first, minlength=n), n_pairs)
    return Table(
        {
            "group": np.arange(1, n + 1),
            "least_rows": smallest,
            "most_rows": largest,
            "n_classes": np.bincount(group, minlength=n),
            "n_held_out": n_pairs,
            "accuracy": mean(made.is_first),
            "accuracy_low": low,
            "accuracy_high": high,
            f"top{made.ranked.labels.shape[1]}_accuracy": mean(made.is_listed),
            "log_likelihood": mean(made.label_log_prob),
        },
        f"Classes in {config.n_groups} groups of equal size by {known}; classes with equally many stay"
        " together. The accuracy has its 95% interval.",
    )


def reliability_table(made: Predictions) -> Table:
    """Return how often the first prediction is right, by its probability."""
    n = made.config.n_bins
    place = np.clip(np.ceil(made.best_prob * n).astype(np.int64) - 1, 0, n - 1)
    size = np.bincount(place, minlength=n)
    hits = np.bincount(place, weights=made.is_first, minlength=n)
    low, high = wilson(hits, size)
    return Table(
        {
            "from": np.arange(n) / n,
            "to": np.arange(1, n + 1) / n,
            "n": size,
            "probability": _mean(np.bincount(place, weights=made.best_prob, minlength=n), size),
            "accuracy": _mean(hits, size),
            "accuracy_low": low,
            "accuracy_high": high,
        },
        "First predictions in bins of equal width by their probability: mean probability and share right,"
        " with its 95% interval. The mean distance of both, weighted by n, is the calibration error.",
    )


def _mean(total: NDArray[Any], n: NDArray[Any]) -> Float64:
    """Divide totals by counts; NaN for counts of zero."""
    return np.where(n > 0, total / np.maximum(n, 1), np.nan)


def wilson(hits: NDArray[Any], n: NDArray[Any], z: float = 1.96) -> tuple[Float64, Float64]:
    """Return the bounds of Wilson's interval of a share; NaN for counts of zero.

    Examples
    --------
    >>> [round(float(bound[0]), 3) for bound in wilson(np.array([8]), np.array([10]))]
    [0.49, 0.943]
    """
    size = np.maximum(n, 1).astype(np.float64)
    share = hits / size
    middle = (share + z * z / (2 * size)) / (1 + z * z / size)
    half = z * np.sqrt(share * (1 - share) / size + z * z / (4 * size * size)) / (1 + z * z / size)
    nothing = np.asarray(n) == 0
    return np.where(nothing, np.nan, middle - half), np.where(nothing, np.nan, middle + half)


def class_table(made: Predictions) -> Table:
    """Return every class: training rows, held-out rows, and how many of these are right."""
    counts = made.model.classes.counts
    return Table(
        {
            "label": made.names,
            "n_training": np.full(made.n_classes, -1) if counts is None else counts,
            "n_held_out": made.support,
            "n_right": made.right,
            "n_predicted": np.bincount(made.ranked.labels[:, 0], minlength=made.n_classes),
            "accuracy": _mean(made.right, made.support),
        },
        "Rows of each class, and for how many of them it is predicted first.",
    )


def confusion_table(made: Predictions) -> Table:
    """Return pairs of a label and another first prediction, the most frequent first."""
    label, predicted, counts = made.confusions
    reverse = _counts_of(made, predicted, label)
    return Table(
        {
            "label": made.names[label],
            "predicted": made.names[predicted],
            "n": counts,
            "n_label": made.support[label],
            "share": counts / made.support[label],
            "n_reverse": reverse,
        },
        "Rows with a label whose first prediction is another class and none of their labels; their share of"
        " the rows of the label; the reverse is the same with the two classes exchanged.",
    )


def example_table(made: Predictions) -> Table:
    """Return rows of the most frequent confusions, those with the most certain wrong answers first."""
    config = made.config
    label, predicted, _ = (part[: config.max_pairs] for part in made.confusions)
    key = made.labels[made.wrong] * made.n_classes + made.best[made.wrong]
    # by pair, then by the probability of the wrong answer, then by row
    order = np.lexsort((made.rows[made.wrong], -made.best_prob[made.wrong], key))
    sorted_key = key[order]
    chosen: list[int] = []
    for pair in (label * made.n_classes + predicted).tolist():
        first = int(np.searchsorted(sorted_key, pair))
        last = int(np.searchsorted(sorted_key, pair, side="right"))
        chosen += made.wrong[order[first : min(last, first + config.n_examples)]].tolist()
    return _row_table(
        made,
        np.array(chosen, np.int64),
        "Rows of the most frequent confusions, those with the most certain wrong answers first.",
    )


def _row_table(made: Predictions, pairs: Int64, note: str) -> Table:
    rows = made.rows[pairs]
    columns: dict[str, Any] = {
        "row": made.row_number[rows],
        "label": made.names[made.labels[pairs]],
        "probability": np.exp(made.label_log_prob[pairs]),
        "predicted": made.names[made.best[pairs]],
        "predicted_probability": made.best_prob[pairs],
    }
    if made.texts is not None:
        columns["text"] = [made.text(row) for row in rows.tolist()]
    return Table(columns, note)


def merge_table(made: Predictions) -> Table:
    """Return pairs of classes that the model cannot tell apart.

    If errors fell on classes by their sizes, a wrong row of class a would be predicted as b at the rate at
    which wrong rows of other classes are, or at which all rows are, whichever is greater:

        expected_ab = errors_a max(false_b without those from a / errors without a and b, predicted_b / n).

    The chance of at least n_ab such rows is a Poisson tail, and so is that of n_ba the other way round.  A
    product t of two such chances, or a smaller one, has the chance t (1 - log t) (Fisher); times the number
    of all pairs of classes, it is the number of pairs that chance would give.
    """
    config = made.config
    label, predicted, counts = made.confusions
    errors = np.bincount(label, weights=counts, minlength=made.n_classes)
    false = np.bincount(predicted, weights=counts, minlength=made.n_classes)
    often = np.bincount(made.best, minlength=made.n_classes) / max(1, len(made.best))
    once = label < predicted
    a, b, ab = label[once], predicted[once], counts[once]
    ba = _counts_of(made, b, a)
    both = ba > 0
    a, b, ab, ba = a[both], b[both], ab[both], ba[both]
    others = np.maximum(errors.sum() - errors[a] - errors[b], 1.0)
    expected_ab = errors[a] * np.maximum((false[b] - ab) / others, often[b])
    expected_ba = errors[b] * np.maximum((false[a] - ba) / others, often[a])
    n_pairs = made.n_classes * (made.n_classes - 1) / 2
    product = np.maximum(special.gammainc(ab, expected_ab) * special.gammainc(ba, expected_ba), 1e-300)
    by_chance = product * (1.0 - np.log(product)) * n_pairs
    told = made.right[a] + made.right[b]
    share = (ab + ba) / np.maximum(told + ab + ba, 1)
    kept = (by_chance < config.merge_max_expected) & (share >= config.merge_min_share)
    order = np.flatnonzero(kept)
    order = order[np.lexsort((by_chance[order], -(ab + ba)[order]))]
    return Table(
        {
            "label": made.names[a[order]],
            "other": made.names[b[order]],
            "n_to_other": ab[order],
            "n_from_other": ba[order],
            "n_label": made.support[a[order]],
            "n_other": made.support[b[order]],
            "share_confused": share[order],
            "expected_to_other": expected_ab[order],
            "expected_from_other": expected_ba[order],
            "pairs_by_chance": by_chance[order],
        },
        "Two classes of which rows of each are predicted as the other, so often that among all pairs of"
        f" classes fewer than {config.merge_max_expected:g} would be by chance, given the errors of each and"
        " how often each is predicted; and of whose rows that are predicted as either at least"
        f" {config.merge_min_share:.0%} go to the wrong one.",
    )


def suspect_table(made: Predictions) -> Table:
    """Return rows to check: those with another class far more probable than the label, by how far."""
    config = made.config
    ratio = np.exp(made.label_log_prob) / np.maximum(made.best_prob, 1e-300)
    certain = (made.best_prob >= config.suspect_min_other) & ~made.row_right[made.rows]
    found = np.flatnonzero(certain & (ratio <= config.suspect_max_ratio))
    found = found[np.lexsort((found, ratio[found]))]
    return _row_table(
        made,
        found,
        f"Rows whose label has at most {config.suspect_max_ratio:g} of the probability of another class, and"
        f" that class at least {config.suspect_min_other:.0%}; the strongest evidence first. Chance explains"
        f" up to {chance_of_suspects(made):,.0f} of them, if all labels and probabilities are right.",
    )


def chance_of_suspects(made: Predictions) -> float:
    """Return a bound on the number of rows that would be listed if labels were drawn from the probabilities.

    It is the probability outside of those best classes that have more than the ratio, over rows that are
    certain enough.
    """
    config = made.config
    prob = np.exp(made.ranked.log_prob.astype(np.float64))
    counted = prob > config.suspect_max_ratio * prob[:, :1]
    outside = np.maximum(0.0, 1.0 - np.where(counted, prob, 0.0).sum(axis=1))
    return float(outside[prob[:, 0] >= config.suspect_min_other].sum())


def _counts_of(made: Predictions, label: Int64, predicted: Int64) -> Int64:
    """Return how many rows of each label have each first prediction, wrongly."""
    of, to, counts = made.confusions
    table = sparse.csr_array((counts, (of, to)), shape=(made.n_classes, made.n_classes))
    return np.asarray(table[label, predicted], np.int64).reshape(-1) if len(label) else label
