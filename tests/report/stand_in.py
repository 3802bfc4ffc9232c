"""A classifier whose probabilities are known: linear scores that a test chooses."""

from __future__ import annotations

import numpy as np

from extremax.class_texts import Descriptions
from extremax.model import ClassInfo, Model
from extremax.scores.dense import DenseWeights


class StandIn:
    """The parts of a fitted classifier that an analysis reads."""

    takes_texts = False

    def __init__(self, weights, labels=None, counts=None, descriptions=None):
        n_classes = len(weights)
        counts = np.ones(n_classes, np.int64) if counts is None else counts
        self.classes_ = np.arange(n_classes) if labels is None else np.asarray(labels)
        texts = None if descriptions is None else Descriptions.of(descriptions)
        self.model_ = Model(
            DenseWeights(np.ascontiguousarray(weights, np.float32), np.zeros(n_classes, np.float32), 1.0),
            "minibatch_softmax",
            classes=ClassInfo(counts, int(counts.sum()), descriptions=texts),
        )

    def _evaluation_rows(self, X, y):
        return self.model_._evaluation_rows(X, y)

    def _label_id(self, label):
        return int(np.flatnonzero(self.classes_ == label)[0])
