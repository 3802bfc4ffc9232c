"""A classifier over the 10,662 parent codes of ICD-10-CM, compared with two baselines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.preprocessing import normalize

from extremax.classifier import ExtremeClassifier
from extremax.data import load_icd10cm, seen_classes
from extremax.data.icd10cm import icd10cm_class_texts
from extremax.report import Analysis
from extremax.text import TextClassifier

PHRASES = (
    "bitten by a dog",
    "chest pain when breathing",
    "food allergy to peanuts",
    "fracture of the left wrist",
    "kidney stones",
    "ringing in the ears",
    "fell off a ladder",
)
_CURVE_ROWS = 1000  # validation rows that are evaluated after each epoch
_COMPILE_ROWS = 3000  # training texts of the fit that compiles the kernels
_CENTROID_ROWS = 500  # texts whose cosines with all classes are computed at a time
_SCALES = (5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0)  # of the cosines, chosen on validation texts


class Figures(NamedTuple):
    """Figures of a model on test texts whose code occurs in training."""

    accuracy: float
    top_5_accuracy: float
    log_likelihood: float


@dataclass(frozen=True)
class Texts:
    """Texts and codes by split; `names` describes the codes, `class_texts` are more words for them."""

    train: tuple[list[str], list[str]]
    valid: tuple[list[str], list[str]]
    test: tuple[list[str], list[str]]
    names: dict[str, str]
    class_texts: dict[str, list[str]]


def load_texts(n_rows: int | None = None) -> Texts:
    """Return ICD-10-CM, with at most `n_rows` training texts and some validation texts of known codes."""
    data = load_icd10cm()
    train = data.rows(data.train if n_rows is None else data.train[:n_rows])
    texts, codes = data.rows(data.valid)
    known = np.flatnonzero(seen_classes(codes, train[1]))[:_CURVE_ROWS]
    valid, test = ([texts[i] for i in known], [codes[i] for i in known]), data.rows(data.test)
    asked = {
        (text.lower(), code)
        for part in (data.rows(data.valid), test)
        for text, code in zip(*part, strict=True)
    }
    more = {
        code: [text for text in texts_of if (text.lower(), code) not in asked]  # the test stays one
        for code, texts_of in icd10cm_class_texts(*train).items()
    }
    return Texts(train, valid, test, data.names, more)


def train_demo(data: Texts, parameters: Mapping[str, Any]) -> TextClassifier:
    """Fit a classifier with descriptions of its codes."""
    clf = TextClassifier(ExtremeClassifier(**parameters))
    clf.fit(*data.train, eval_set=data.valid, class_texts=data.class_texts)
    return clf.describe_classes([data.names[code] for code in clf.classes_.tolist()])


def compile_kernels(data: Texts, parameters: Mapping[str, Any]) -> None:
    """Fit once on a few texts, so that compilation is not counted as training."""
    texts, codes = (part[:_COMPILE_ROWS] for part in data.train)
    clf = TextClassifier(ExtremeClassifier(**{**parameters, "n_epochs": 1, "verbose": 0}))
    clf.fit(texts, codes, eval_set=(texts[:8], codes[:8])).predict_topk(texts[:8])


def compare(clf: TextClassifier, data: Texts, analysis: Analysis) -> dict[str, Figures]:
    """Return the test figures of two baselines and of the classifier, whose analysis is that of the test."""
    model, frequencies = (
        Figures(line["accuracy"], line["top5_accuracy"], line["log_likelihood"])
        for line in analysis.tables["figures"].records()
    )
    centroids = centroid_figures(clf, data)
    return {"class frequencies": frequencies, "nearest centroid": centroids, "extremax": model}


def centroid_figures(clf: TextClassifier, data: Texts) -> Figures:
    """Return the figures of the cosine between a text and the mean of a class, on the same features.

    Its probabilities are a softmax of the cosines times a number that is chosen on validation texts.
    """
    assert clf.features_ is not None
    transform = clf.features_.transform
    names, ids = np.unique(np.asarray(data.train[1]), return_inverse=True)
    members = sp.csr_matrix((np.ones(len(ids), np.float32), (ids, np.arange(len(ids)))))
    centroids = normalize(members @ transform(data.train[0])).T.tocsr()
    at = {name: i for i, name in enumerate(names.tolist())}

    def measure(part: tuple[list[str], list[str]], scales: tuple[float, ...]) -> Any:
        known = [(text, at[code]) for text, code in zip(*part, strict=True) if code in at]
        found = []
        for first in range(0, len(known), _CENTROID_ROWS):
            texts, labels = zip(*known[first : first + _CENTROID_ROWS], strict=True)
            cosine = (transform(texts) @ centroids).toarray()
            own = cosine[np.arange(len(labels)), labels]
            rank = (cosine > own[:, None]).sum(axis=1)
            mass = [np.log(np.exp(s * (cosine - own[:, None])).sum(axis=1)) for s in scales]
            found.append(np.stack([rank < 1, rank < 5, *(-m for m in mass)]))
        return np.concatenate(found, axis=1).mean(axis=1)

    best = _SCALES[int(np.argmax(measure(data.valid, _SCALES)[2:]))]
    return Figures(*measure(data.test, (best,)).tolist())


def draw_curves(path: Path, history: list[dict[str, Any]], baselines: Mapping[str, Figures]) -> None:
    """Draw validation accuracy and log-likelihood against seconds of training, as a PNG file."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("the figure needs matplotlib: pip install extremax[demo].") from error
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels: Any = figure.subplots(1, 2)
    seconds = [record["seconds"] for record in history]
    for panel, name in zip(panels, ("accuracy", "log_likelihood"), strict=True):
        panel.plot(seconds, [record[f"valid_{name}"] for record in history], marker=".", label="extremax")
        for (baseline, figures), style in zip(baselines.items(), (":", "--"), strict=True):
            panel.axhline(figures._asdict()[name], color="grey", linestyle=style, label=baseline)
        panel.set_xlabel("seconds of training")
        panel.set_title(f"ICD-10-CM, validation {name.replace('_', '-')}", fontsize=10)
        panel.set_xlim(left=0)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylim(bottom=0)
    panels[0].legend(frameon=False, fontsize=8, loc="center right")
    figure.savefig(path, format="png", dpi=150)
