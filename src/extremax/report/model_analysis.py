"""`analyse`: strengths and weaknesses of a model on labelled rows, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from extremax.evaluation import prepare
from extremax.report import tables
from extremax.report.tables import AnalysisConfig, Predictions, Table
from extremax.runtime.threads import resolve_threads
from extremax.types import Int64

if TYPE_CHECKING:
    from extremax.classifier import Classifier

MAKERS = {
    "figures": tables.figure_table,
    "deciles": tables.decile_table,
    "reliability": tables.reliability_table,
    "confusions": tables.confusion_table,
    "examples": tables.example_table,
    "merge": tables.merge_table,
    "suspects": tables.suspect_table,
    "classes": tables.class_table,
}


@dataclass(frozen=True)
class Analysis:
    """Tables about a model on labelled rows.

    Each is a pandas DataFrame where pandas is installed, else a `Table`, a mapping from names to columns;
    ``tables[name].note`` states the rule behind it.

    Attributes
    ----------
    figures
        Accuracy, accuracy of the first five, log-likelihood and calibration error, of the model and of
        the class frequencies.
    deciles
        The same by class frequency.
    reliability
        Probability and share right of the first prediction, in bins.
    confusions
        Pairs of a label and another class that is predicted, the most frequent first.
    examples
        Rows of the most frequent confusions.
    merge
        Pairs of classes that the model cannot tell apart.
    suspects
        Rows to check: labels that are far less probable than another class.
    classes
        Training rows, held-out rows and accuracy of every class.
    tables : dict of str to Table
        The same without pandas.
    n_samples, n_pairs, n_left_out, n_unknown : int
        As in the report of `evaluate`.
    config : AnalysisConfig
        Numbers that the tables were made with.
    pairs : tuple of arrays
        Class, prediction and number of rows of each confusion, as class numbers.
    n_suspects_by_chance : float
        Rows to check that chance explains, at most, if all labels and probabilities are right.
    """

    tables: dict[str, Table]
    n_samples: int
    n_pairs: int
    n_left_out: int
    n_unknown: int
    config: AnalysisConfig
    pairs: tuple[Int64, Int64, Int64]
    n_suspects_by_chance: float

    def _repr_html_(self) -> str:
        """Return the figures, and how many rows each list has, for a notebook."""
        records = self.tables["figures"].records()
        cells = [list(records[0]), *(line.values() for line in records)]
        shown = [[v.replace("_", " ") if isinstance(v, str) else f"{v:.4g}" for v in line] for line in cells]
        rows = "".join(f"<tr><td>{'</td><td>'.join(line)}</td></tr>" for line in shown)
        n = {name: f"{self.tables[name].n_rows:,}" for name in ("confusions", "merge", "suspects")}
        return (
            f"<table>{rows}</table><p>{self.n_samples:,} rows; {n['confusions']} confused pairs,"
            f" {n['merge']} pairs of classes to merge, {n['suspects']} rows to check; chance explains up to"
            f" {self.n_suspects_by_chance:,.0f} of these.</p>"
        )

    def __getattr__(self, name: str) -> Any:
        if name not in MAKERS:
            raise AttributeError(f"Analysis has no attribute {name!r}; its tables are {', '.join(MAKERS)}.")
        try:
            return self.tables[name].to_frame()
        except ImportError:
            return self.tables[name]


def analyse(
    clf: Classifier,
    X: Any,
    y: Any,
    *,
    texts: Sequence[str] | None = None,
    config: AnalysisConfig | None = None,
    n_jobs: int | None = None,
) -> Analysis:
    """Analyse a fitted classifier on labelled rows that it was not trained on.

    Every class of each row is scored once, and the best are kept: nothing is of the size of all pairs of
    classes, or of all rows and classes.

    Parameters
    ----------
    clf : ExtremeClassifier or TextClassifier
        Fitted, or loaded from a folder.
    X : features (n_samples, n_features), or for a `TextClassifier` texts
    y : sequence of n_samples labels, or of lists of labels, or indicator matrix (n_samples, n_classes)
        As in `extremax.evaluate`: labels of unknown classes are left out and counted.
    texts : sequence of n_samples strings, optional
        Texts of the rows, to show; by default X where those are texts.
    config : AnalysisConfig, optional
        Numbers of the tables: bins, groups, when classes are to be merged and a row is to be checked.
    n_jobs : int, optional
        Threads; by default those of the classifier.

    Returns
    -------
    Analysis

    Examples
    --------
    >>> from extremax import TextClassifier, analyse
    >>> texts = ["fell off a ladder", "fall from a roof", "bitten by a dog", "bitten by a cat"] * 5
    >>> labels = ["fall", "fall", "bite", "bite"] * 5
    >>> clf = TextClassifier().fit(texts, labels)
    >>> found = analyse(clf, ["fell from a roof", "a dog has bitten me"], ["fall", "fall"])
    >>> found.figures["accuracy"].tolist()
    [0.5, 0.0]
    >>> found.confusions[["label", "predicted", "n"]].values.tolist()
    [['fall', 'bite', 1]]
    """
    config = config or AnalysisConfig()
    core, targets, threads = prepare(clf, X, y)
    texts = _texts_of(clf, X) if texts is None else texts
    if texts is not None and len(texts) != targets.n_rows:
        raise ValueError(
            f"texts has {len(texts):,} entries and X {targets.n_rows:,} rows; give one text for each row."
        )
    usable = targets.usable()
    numbers = np.unique(usable.rows)
    pairs = usable.compact()
    ranked = core.rank_pairs(
        pairs,
        k=min(config.n_best, core.n_classes),
        n_threads=threads if n_jobs is None else resolve_threads(n_jobs),
    )
    finite = np.isfinite(ranked.log_prob[:, 0])
    if not finite.all():
        raise ValueError(
            f"The scores of row {int(numbers[int(np.argmin(finite))])} overflow float32; scale the rows down"
            " to the size of the training rows."
        )
    made = Predictions(core, np.asarray(clf.classes_), pairs, numbers, ranked, texts, config)
    return Analysis(
        tables={name: make(made) for name, make in MAKERS.items()},
        n_samples=pairs.n_rows,
        n_pairs=pairs.n_pairs,
        n_left_out=targets.n_rows - pairs.n_rows,
        n_unknown=int((targets.y < 0).sum()),
        config=config,
        pairs=made.confusions,
        n_suspects_by_chance=tables.chance_of_suspects(made),
    )


def _texts_of(clf: Any, X: Any) -> Sequence[str] | None:
    """Return X if it is the texts of a `TextClassifier`."""
    return list(X) if clf.takes_texts else None
