"""Planted problems that several tests use: rows made from class means, or labels drawn from known scores."""

from __future__ import annotations

import functools

import numpy as np
from scipy import sparse

from extremax.examples import Examples

# Neither is a power of two or a multiple of a vector.
FEW_CLASSES, FEW_FEATURES = 7, 5
LIST_CLASSES, LIST_FEATURES = 40, 24


def softmax(scores):
    """Probabilities of classes with these scores, in float64."""
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@functools.cache
def few_classes(n_rows=50, seed=0):
    """Rows of 7 classes, the first ones frequent, in 5 features of which a third is zero."""
    rng = np.random.default_rng(seed)
    y = np.minimum(rng.geometric(0.3, n_rows) - 1, FEW_CLASSES - 1).astype(np.int32)
    X = rng.standard_normal((FEW_CLASSES, FEW_FEATURES))[y] + rng.standard_normal((n_rows, FEW_FEATURES))
    X *= rng.random((n_rows, FEW_FEATURES)) < 0.7
    return X.astype(np.float32), y


def around_means(n_rows, n_classes, n_features, *, spread=0.4, distance=1.0, seed=0):
    """Rows around the random mean of their class, all classes equally frequent."""
    rng = np.random.default_rng(seed)
    y = rng.integers(n_classes, size=n_rows).astype(np.int32)
    means = distance * rng.normal(size=(n_classes, n_features))
    return (means[y] + spread * rng.normal(size=(n_rows, n_features))).astype(np.float32), y


@functools.cache
def a_dozen_classes():
    """300 rows of 12 classes in 5 features."""
    return around_means(300, 12, 5)


def from_softmax(n_rows, n_classes, n_features, *, scale=1.5, seed=4):
    """Rows, labels drawn from a softmax of linear scores, and its probabilities."""
    rng = np.random.default_rng(seed)
    W = scale * rng.normal(size=(n_classes, n_features))
    X = rng.normal(size=(n_rows, n_features)).astype(np.float32)
    p = softmax(X @ W.T)
    return X, (p.cumsum(axis=1) > rng.random((n_rows, 1))).argmax(axis=1), p


def label_lists(n_rows, seed=0, fewest=1):
    """Rows that are sums of the means of their one to three classes, with the classes as lists."""
    rng = np.random.default_rng(seed)
    means = np.random.default_rng(99).normal(size=(LIST_CLASSES, LIST_FEATURES))
    sizes = (rng.integers(fewest, 4) for _ in range(n_rows))
    y = [sorted(rng.choice(LIST_CLASSES, size=size, replace=False).tolist()) for size in sizes]
    X = np.stack([means[labels].sum(axis=0) for labels in y])
    return (X + 0.3 * rng.normal(size=X.shape)).astype(np.float32), y


def indicator(y, n_classes=LIST_CLASSES):
    """Lists of labels as a sparse matrix of zeros and ones."""
    rows = np.repeat(np.arange(len(y)), [len(labels) for labels in y])
    ids = [label for labels in y for label in labels]
    return sparse.csr_array((np.ones(len(ids), np.int8), (rows, ids)), shape=(len(y), n_classes))


def pairs_of(X, y, weight=None):
    """Lists of labels as examples."""
    rows = np.repeat(np.arange(len(y)), [len(labels) for labels in y])
    return Examples(X, np.concatenate(y).astype(np.int32), rows, weight)


def stored(X, storage, folder):
    """The same rows in memory ("dense", "csr") or on disk ("memmap")."""
    if storage == "csr":
        return sparse.csr_array(X)
    if storage == "memmap":
        path = folder / f"X{len(list(folder.iterdir()))}.npy"
        np.save(path, X)
        return np.load(path, mmap_mode="r")
    return X


def word_rows(n_rows, n_classes, n_words=1500, *, length=12, topic=0.35, seed=0, vocabulary_seed=77):
    """Rows of word frequencies, of unit length: words of all texts mixed with some of the row's class.

    Frequent classes come first. Classes go in pairs that share half of their words, some of them frequent
    everywhere, so that frequencies alone confuse them.
    """
    rng, words = np.random.default_rng(seed), np.random.default_rng(vocabulary_seed)
    common = 1.0 / np.arange(1, n_words + 1)
    common /= common.sum()
    own = words.choice(n_words, size=(n_classes, 12), p=np.sqrt(common) / np.sqrt(common).sum())
    own[1::2, :6] = own[: n_classes // 2 * 2 : 2, :6]
    share = 1.0 / np.sqrt(np.arange(1, n_classes + 1))
    y = rng.choice(n_classes, size=n_rows, p=share / share.sum()).astype(np.int32)
    y[:n_classes] = np.arange(n_classes)[:n_rows]
    sizes = rng.poisson(length, n_rows) + 1
    rows = np.repeat(np.arange(n_rows), sizes)
    drawn = rng.choice(n_words, size=len(rows), p=common)
    from_class = rng.random(len(rows)) < topic
    drawn[from_class] = own[y[rows[from_class]], rng.integers(0, own.shape[1], from_class.sum())]
    X = sparse.csr_matrix((np.ones(len(rows), np.float32), (rows, drawn)), shape=(n_rows, n_words))
    X.sum_duplicates()
    X.data = np.log1p(X.data)
    lengths = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    X.data /= np.repeat(lengths, np.diff(X.indptr)).astype(np.float32)
    return X, y


def short_texts(n_rows, n_classes, seed=0):
    """Return texts of five words, two of which tell the class, and the classes."""
    rng = np.random.default_rng(seed)
    words = np.array([f"{'aeiou'[i % 5]}{i:x}{'bdfgk'[i % 7 % 5]}{i * 7 % 13}" for i in range(8 * n_classes)])
    y = rng.integers(n_classes, size=n_rows)
    own = 5 * y[:, None] + rng.integers(5, size=(n_rows, 2))
    chosen = np.hstack([own, rng.integers(len(words), size=(n_rows, 3))])
    return [" ".join(row) for row in words[chosen].tolist()], y.tolist()
