"""Slow, plain versions of what the package computes fast: whole sums, full sorts, loops over rows.  Tests compare with them."""

from __future__ import annotations

import numpy as np

# -- prediction and metrics ----------------------------------------------------------------------------------------------------


def log_softmax(scores, temperature=1.0):
    """Row by row in float64."""
    scores = np.asarray(scores, np.float64) / temperature
    return np.array([row - row.max() - np.log(np.exp(row - row.max()).sum()) for row in scores]).reshape(scores.shape)


def ranked(scores, k):
    """Classes by falling score, equal scores by rising class: a full sort of each row, cut at k, filled with -1."""
    best = [sorted(range(len(row)), key=lambda j, row=row: (-row[j], j))[:k] for row in scores]
    return np.array([row + [-1] * (k - len(row)) for row in best], np.int64).reshape(len(scores), k)


def values_at(table, labels, missing=-np.inf):
    """table[i, labels[i, r]], and `missing` where the label is -1."""
    table, labels = np.asarray(table), np.asarray(labels)
    return np.array([[table[i, c] if c >= 0 else missing for c in row] for i, row in enumerate(labels)]).reshape(labels.shape)


def ranking_figures(Y, labels, k, propensity):
    """Precision, nDCG and normalised propensity-scored precision at k, row by row from their definitions; Y dense 0/1."""
    precision, ndcg, reached, possible = [], [], 0.0, 0.0
    for truth, row in zip(np.asarray(Y), labels, strict=True):
        hits = [bool(c >= 0 and truth[c]) for c in row[:k]]
        precision.append(sum(hits) / k)
        gain = sum(hit / np.log2(r + 2) for r, hit in enumerate(hits))
        best = sum(1.0 / np.log2(r + 2) for r in range(min(k, int(truth.sum()))))
        ndcg.append(gain / best if best else 0.0)
        reached += sum(1.0 / propensity[c] for c, hit in zip(row[:k], hits, strict=True) if hit)
        possible += sum(sorted((1.0 / propensity[c] for c in np.flatnonzero(truth)), reverse=True)[:k])
    return float(np.mean(precision)), float(np.mean(ndcg)), reached / possible if possible else 0.0


def calibration_error(correct, confidence, n_bins):
    """Bin by bin: (lower, upper], the first bin with its lower end."""
    total = 0.0
    for b in range(n_bins):
        inside = [i for i, p in enumerate(confidence) if b / n_bins < p <= (b + 1) / n_bins or (b == 0 and p == 0.0)]
        if inside:
            total += len(inside) * abs(np.mean([correct[i] for i in inside]) - np.mean([confidence[i] for i in inside]))
    return total / len(confidence)
