"""Train a classifier over thousands of classes on embeddings in memory, ask it, save it and load it.

Any float array of embeddings and any labels will do; here both are made up: 5,000 classes, each a cloud of
points around its mean.

    python examples/embeddings_in_memory.py
"""

from __future__ import annotations

import numpy as np

from extremax import ExtremeClassifier, load_model


def make_embeddings(
    n_classes: int = 5_000, n_rows: int = 30_000, n_features: int = 64
) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 rows and a string label for each, in place of the output of your encoder."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(n_classes, n_features)).astype(np.float32)
    ids = rng.integers(n_classes, size=n_rows)
    rows = means[ids] + 0.6 * rng.normal(size=(n_rows, n_features)).astype(np.float32)
    return rows, np.array([f"product-{i}" for i in ids])


def main() -> None:
    X, y = make_embeddings()
    n_train = len(X) * 9 // 10
    X_train, y_train, X_test, y_test = X[:n_train], y[:n_train], X[n_train:], y[n_train:]
    known = np.isin(y_test, y_train)  # a class without training rows cannot be predicted

    clf = ExtremeClassifier(random_state=0, verbose=1)  # verbose: memory needs and a line per epoch
    clf.fit(X_train, y_train)
    print(f"accuracy {clf.score(X_test[known], y_test[known]):.1%}")
    print(f"log-likelihood {clf.log_likelihood(X_test[known], y_test[known]):.3f}")

    labels, log_prob = clf.predict_topk(X_test[:3], k=3)  # over all classes: log_prob is normalised
    for row, p, truth in zip(labels, np.exp(log_prob), y_test, strict=False):
        print(truth, "->", ", ".join(f"{label} {prob:.0%}" for label, prob in zip(row, p, strict=True)))

    clf.save("model")  # safetensors and JSON in a folder
    again = load_model("model")  # memory-mapped
    assert (again.predict(X_test[:100]) == clf.predict(X_test[:100])).all()
    print("saved in model/ and loaded again: the same predictions")


if __name__ == "__main__":
    main()
