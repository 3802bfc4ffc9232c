"""Slow, plain versions of what the package computes: whole sums, full sorts, loops over rows."""

from __future__ import annotations

import numpy as np

# -- prediction and metrics


def log_softmax(scores, temperature=1.0):
    """Row by row in float64."""
    scores = np.asarray(scores, np.float64) / temperature
    return np.array([row - row.max() - np.log(np.exp(row - row.max()).sum()) for row in scores]).reshape(
        scores.shape
    )


def ranked(scores, k):
    """Classes by falling score, equal scores by rising class: a full sort of each row, cut at k, filled
    with -1.
    """
    best = [sorted(range(len(row)), key=lambda j, row=row: (-row[j], j))[:k] for row in scores]
    return np.array([row + [-1] * (k - len(row)) for row in best], np.int64).reshape(len(scores), k)


def values_at(table, labels, missing=-np.inf):
    """table[i, labels[i, r]], and `missing` where the label is -1."""
    table, labels = np.asarray(table), np.asarray(labels)
    return np.array(
        [[table[i, c] if c >= 0 else missing for c in row] for i, row in enumerate(labels)]
    ).reshape(labels.shape)


def ranking_figures(Y, labels, k, propensity):
    """Precision, nDCG, recall, F1 and normalised propensity-scored precision at k, row by row from their
    definitions; Y dense 0/1.
    """
    precision, ndcg, recall, f1, reached, possible = [], [], [], [], 0.0, 0.0
    for truth, row in zip(np.asarray(Y), labels, strict=True):
        hits = [bool(c >= 0 and truth[c]) for c in row[:k]]
        precision.append(sum(hits) / k)
        gain = sum(hit / np.log2(r + 2) for r, hit in enumerate(hits))
        best = sum(1.0 / np.log2(r + 2) for r in range(min(k, int(truth.sum()))))
        ndcg.append(gain / best if best else 0.0)
        chosen, true = {int(c) for c in row[:k] if c >= 0}, set(np.flatnonzero(truth).tolist())
        recall.append(len(chosen & true) / len(true) if true else 0.0)
        f1.append(set_f1(chosen, true))
        reached += sum(1.0 / propensity[c] for c, hit in zip(row[:k], hits, strict=True) if hit)
        possible += sum(sorted((1.0 / propensity[c] for c in true), reverse=True)[:k])
    scored = reached / possible if possible else 0.0
    return *(float(np.mean(figure)) for figure in (precision, ndcg, recall, f1)), scored


def set_f1(predicted, true):
    """Harmonic mean of precision and recall of a set; 0 where either is 0 or not defined."""
    hits = len(predicted & true)
    if hits == 0:
        return 0.0
    precision, recall = hits / len(predicted), hits / len(true)
    return 2.0 / (1.0 / precision + 1.0 / recall)


def label_f1(Y, predicted):
    """Micro, macro and samples F1 of dense 0/1 tables, as F1 of sets of pairs, of rows and of labels."""

    def pairs(table):
        return {(int(i), int(j)) for i, j in np.argwhere(table)}

    def sets(table):
        return [set(np.flatnonzero(row)) for row in table]

    samples = [set_f1(p, t) for p, t in zip(sets(predicted), sets(Y), strict=True)]
    macro = [set_f1(p, t) for p, t in zip(sets(predicted.T), sets(Y.T), strict=True) if p or t]
    return set_f1(pairs(predicted), pairs(Y)), np.mean(macro), np.mean(samples)


def calibration_error(correct, confidence, n_bins):
    """Bin by bin: (lower, upper], the first bin with its lower end."""
    total = 0.0
    for b in range(n_bins):
        inside = [
            i for i, p in enumerate(confidence) if b / n_bins < p <= (b + 1) / n_bins or (b == 0 and p == 0.0)
        ]
        if inside:
            total += len(inside) * abs(
                np.mean([correct[i] for i in inside]) - np.mean([confidence[i] for i in inside])
            )
    return total / len(confidence)


# -- solvers
# One loss per row in float64, written from the formulas; arguments (n, 1 + m) with the positive in column 0.


def negative_log_sigmoid(a):
    """-log sigma(a)."""
    return np.logaddexp(0.0, -np.asarray(a, np.float64))


def negative_sampling_loss(scores, log_base, log_noise, weight, penalty, labels):
    """Eq. 6, the mean over the negatives beside the positive."""
    debiased = scores + log_base
    logits = debiased - log_noise
    terms = penalty * debiased**2
    terms[:, 0] += negative_log_sigmoid(logits[:, 0])
    terms[:, 1:] += negative_log_sigmoid(-logits[:, 1:])
    return weight * (terms[:, 0] + terms[:, 1:].mean(axis=1))


def raw_negative_sampling_loss(scores, log_base, log_noise, weight, penalty, labels):
    """Eq. 6 with the penalty on the scores themselves."""
    terms = penalty * scores**2
    logits = scores + log_base - log_noise
    terms[:, 0] += negative_log_sigmoid(logits[:, 0])
    terms[:, 1:] += negative_log_sigmoid(-logits[:, 1:])
    return weight * (terms[:, 0] + terms[:, 1:].mean(axis=1))


def nce_loss(scores, log_base, log_noise, weight, penalty, labels):
    """Is this pair from the data or one of m draws from the noise?  Posterior odds p / (m p_n)."""
    debiased = scores + log_base
    odds = debiased - np.log((scores.shape[1] - 1) * np.exp(log_noise))
    losses = negative_log_sigmoid(odds[:, 0]) + negative_log_sigmoid(-odds[:, 1:]).sum(axis=1)
    return weight * (losses + penalty * (debiased**2).sum(axis=1))


def sampled_softmax_loss(scores, log_base, log_noise, weight, penalty, labels):
    """Cross-entropy of column 0 among all columns, corrected by log p_n; negatives that hit the positive
    stay.
    """
    losses = []
    for i, row in enumerate(scores + log_base):
        losses.append(-log_softmax([row - log_noise[i]])[0, 0] + penalty * (row**2).sum())
    return weight * np.array(losses)


def other_weights(log_noise, labels):
    """Weights of a row's negatives that make sums over them exact for the sum over all classes but the
    positive.
    """
    p, m = np.exp(log_noise), labels.shape[1] - 1
    other = labels[:, 1:] != labels[:, :1]
    number = np.maximum(other.sum(axis=1, keepdims=True), 1)
    return other * (1.0 - p[:, :1]) / (number * p[:, 1:]) / (1.0 - p[:, :1] ** m)


def _penalty_of_others(debiased, labels, penalty):
    other = labels[:, 1:] != labels[:, :1]
    return penalty * (debiased[:, 0] ** 2 + (other * debiased[:, 1:] ** 2).mean(axis=1))


def one_vs_each_loss(scores, log_base, log_noise, weight, penalty, labels):
    """The positive against each other class, by weighted draws."""
    debiased = scores + log_base
    terms = other_weights(log_noise, labels) * negative_log_sigmoid(debiased[:, :1] - debiased[:, 1:])
    return weight * (terms.sum(axis=1) + _penalty_of_others(debiased, labels, penalty))


def estimated_sum(scores, log_base, log_noise, labels):
    """sum over y' != y of exp(s_y' - s_y), by weighted draws."""
    debiased = scores + log_base
    return (other_weights(log_noise, labels) * np.exp(debiased[:, 1:] - debiased[:, :1])).sum(axis=1)


def augment_reduce_loss(scores, log_base, log_noise, weight, penalty, labels, eta):
    """Minus the bound of Augment and Reduce at the given eta."""
    terms = np.log1p(eta) + (1.0 + estimated_sum(scores, log_base, log_noise, labels)) / (1.0 + eta) - 1.0
    return weight * (terms + _penalty_of_others(scores + log_base, labels, penalty))


LOSSES = {
    "negative_sampling": negative_sampling_loss,
    "raw_negative_sampling": raw_negative_sampling_loss,
    "nce": nce_loss,
    "sampled_softmax": sampled_softmax_loss,
    "one_vs_each": one_vs_each_loss,
}


def central_differences(loss, scores, step=1e-5):
    """d loss_i / d scores_ij for a loss with one value per row, each of which depends on its own row
    alone.
    """
    gradient = np.empty_like(scores)
    for j in range(scores.shape[1]):
        shift = np.zeros_like(scores)
        shift[:, j] = step
        gradient[:, j] = (loss(scores + shift) - loss(scores - shift)) / (2.0 * step)
    return gradient


# -- training


def score_pairs(X, rows, labels, weights, biases, scale):
    """scale * x . w_y + b_y, pair by pair; X dense."""
    X, weights, biases = (np.asarray(a, np.float64) for a in (X, weights, biases))
    return np.array(
        [[scale * X[r] @ weights[y] + biases[y] for y in row] for r, row in zip(rows, labels, strict=True)]
    )


def update_pairs(optimizer, X, rows, labels, coefficients, arrays, scale, learning_rate):
    """All pairs in order, in place; `arrays` = (weights, biases, squares, bias_squares) in float64, X
    dense.
    """
    weights, biases, squares, bias_squares = arrays
    for r, row, c_row in zip(rows, labels, coefficients, strict=True):
        for y, c in zip(row, c_row, strict=True):
            gradient = c * scale * np.asarray(X[r], np.float64)
            if optimizer == "sgd":
                weights[y] -= learning_rate * gradient
                biases[y] -= learning_rate * c
                continue
            squares[y] += gradient**2 if optimizer == "adagrad" else (gradient**2).mean()
            weights[y] -= learning_rate * gradient / np.sqrt(squares[y])
            bias_squares[y] += c * c
            biases[y] -= learning_rate * c / np.sqrt(bias_squares[y])


def minibatch_step(
    optimizer, solver, X, rows, labels, log_base, log_noise, weight, arrays, scale, learning_rate, penalty
):
    """Scores and gradients by central differences from frozen weights, then all updates; returns the loss
    of each row.
    """
    scores = score_pairs(X, rows, labels, arrays[0], arrays[1], scale)

    def loss(s):
        return LOSSES[solver](s, log_base, log_noise, weight, penalty, labels)

    update_pairs(optimizer, X, rows, labels, central_differences(loss, scores), arrays, scale, learning_rate)
    return loss(scores)


# -- the label tree


def tree_path(tree, label):
    """Nodes from the root to the leaf of a class, each with its decision: 1 to the right, -1 to the left."""
    node = len(tree.biases) + int(tree.class_leaf[label])
    path = []
    while node > 0:
        path.append(((node - 1) // 2, 1 if node % 2 == 0 else -1))
        node = (node - 1) // 2
    return path[::-1]


def tree_log_prob_all(tree, Z):
    """Walk to every class, for every row, in float64."""
    Z, weights, biases = (np.asarray(a, np.float64) for a in (Z, tree.weights, tree.biases))
    table = np.zeros((len(Z), tree.n_classes))
    for label in range(tree.n_classes):
        for node, decision in tree_path(tree, label):
            table[:, label] -= np.logaddexp(0.0, -decision * (Z @ weights[node] + biases[node]))
    return table


def tree_node_classes(tree, node):
    """Classes of the left and of the right child of a node."""
    children = [[2 * node + 1], [2 * node + 2]]
    while children[0][0] < len(tree.biases):
        children = [[c for parent in side for c in (2 * parent + 1, 2 * parent + 2)] for side in children]
    leaves = [tree.leaf_class[np.array(side) - len(tree.biases)] for side in children]
    return [side[side >= 0] for side in leaves]


def node_objective(theta, X, zeta, weight, penalty, bias_penalty):
    """Penalised log-likelihood of one node in float64, and its gradient; theta = (w, b)."""
    a = X @ theta[:-1] + theta[-1]
    slope = weight * zeta / (1.0 + np.exp(zeta * a))
    value = (
        -(weight * np.logaddexp(0.0, -zeta * a)).sum()
        - penalty * theta[:-1] @ theta[:-1]
        - bias_penalty * theta[-1] ** 2
    )
    return value, np.append(
        X.T @ slope - 2 * penalty * theta[:-1], slope.sum() - 2 * bias_penalty * theta[-1]
    )


def pair_figures(log_prob: np.ndarray, pairs: list[tuple[int, int]], k: int) -> dict[str, float]:
    """Mean log-likelihood over (row, class) pairs, and by loops the figures at k over the rows that have a
    pair.
    """
    truth: dict[int, set[int]] = {}
    for row, label in pairs:
        truth.setdefault(row, set()).add(label)
    any_hit, precision, ndcg, recall, f1 = [], [], [], [], []
    for row, labels in truth.items():
        hits = [int(label in labels) for label in np.argsort(-log_prob[row], kind="stable")[:k]]
        gain = sum(hit / np.log2(place + 2) for place, hit in enumerate(hits))
        best = sum(1 / np.log2(place + 2) for place in range(min(k, len(labels))))
        any_hit.append(max(hits))
        precision.append(sum(hits) / k)
        ndcg.append(gain / best)
        recall.append(sum(hits) / len(labels))
        f1.append(2 * sum(hits) / (k + len(labels)))
    return {
        "log_likelihood": float(np.mean([log_prob[row, label] for row, label in pairs])),
        "accuracy": float(np.mean(any_hit)),
        "precision": float(np.mean(precision)),
        "ndcg": float(np.mean(ndcg)),
        "recall": float(np.mean(recall)),
        "f1": float(np.mean(f1)),
    }
