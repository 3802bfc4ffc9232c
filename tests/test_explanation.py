"""Explanations: contributions add up to scores and differences; words, names, classes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, get_type_hints

import numpy as np
import pytest
import scipy.sparse as sp

from extremax import ExtremeClassifier, TextClassifier
from extremax.explanation import Contributions, Explanation, explain_class, explain_row
from extremax.features.ngrams import NgramFeatures
from extremax.model import ClassInfo, Model
from extremax.scores.dense import DenseWeights
from extremax.scores.sparse import DensePart, SparseWeights
from extremax.tree.noise import FrequencyNoise

N_CLASSES, N_COLUMNS = 7, 30
CLASSES = np.array(list("abcdefg"))
THINGS = ["ladder", "roof", "bicycle", "horse", "stairs", "boat", "tree", "train", "window", "bridge"]
TEXTS = [
    f"{verb} {place} a {thing}"
    for thing in THINGS
    for verb in ("fell", "falling", "jumped")
    for place in ("off", "from")
]
LABELS = np.repeat(THINGS, 6)


def planted_model(
    *, dense: bool = False, n_dense: int = 0, n_projected: int = 0, unit_rows: bool = True
) -> Model:
    rng = np.random.default_rng(0)
    biases = rng.normal(size=N_CLASSES).astype(np.float32)
    counts = ClassInfo(np.arange(1, N_CLASSES + 1), 28)
    if dense:
        weights: Any = DenseWeights(
            rng.normal(size=(N_CLASSES, N_COLUMNS)).astype(np.float32), biases, feature_scale=0.5
        )
        return Model(weights, "minibatch_softmax", classes=counts)
    matrix = sp.random(N_CLASSES, N_COLUMNS, 0.4, random_state=0, dtype=np.float32)
    part = None
    if n_dense or n_projected:
        columns = np.arange(0, N_COLUMNS, 2, dtype=np.int32)
        part = DensePart(
            rng.normal(size=(N_CLASSES, n_projected + n_dense)).astype(np.float32),
            columns,
            rng.normal(size=(len(columns), n_projected)).astype(np.float32),
            n_dense,
            unit_rows,
        )
    lengths = rng.normal(size=N_CLASSES).astype(np.float32)
    return Model(SparseWeights.from_matrix(matrix, biases, lengths, part), "sparse_softmax", classes=counts)


def some_row(n_dense: int = 0) -> sp.csr_matrix:
    rng = np.random.default_rng(1)
    words = sp.random(1, N_COLUMNS, 0.4, random_state=1, format="csr", dtype=np.float32)
    dense = sp.csr_matrix(rng.normal(size=(1, n_dense)).astype(np.float32))
    return sp.csr_matrix(sp.hstack([words, dense]) if n_dense else words)


def explain(model: Model, X: Any, k: int = 3) -> Any:
    return explain_row(model, CLASSES, X, model.topk(X, k), lambda columns: [f"f{c}" for c in columns])


def total(terms: list[tuple[str, float]]) -> float:
    return sum(value for _, value in terms)


@pytest.mark.identity
@pytest.mark.parametrize(
    ("dense", "n_dense", "n_projected"),
    [(False, 0, 0), (False, 4, 0), (False, 0, 3), (False, 4, 3), (True, 0, 0)],
)
@pytest.mark.parametrize("unit_rows", [True, False])
def test_contributions_add_up_identity(dense: bool, n_dense: int, n_projected: int, unit_rows: bool) -> None:
    model = planted_model(dense=dense, n_dense=n_dense, n_projected=n_projected, unit_rows=unit_rows)
    X = some_row(n_dense)
    X = X.toarray() if dense else X
    found = explain(model, X, k=N_CLASSES)
    scores = model.debiased_scores(X)[0]
    position = {label: i for i, label in enumerate(CLASSES.tolist())}
    assert found.labels == CLASSES[np.argsort(-scores)].tolist()
    assert total(found.score.terms) == pytest.approx(scores[position[found.label]], abs=1e-4)
    assert found.score.total == pytest.approx(scores[position[found.label]], abs=1e-6)
    assert len(found.against) == N_CLASSES - 1
    for label, part in zip(found.labels[1:], found.against, strict=True):
        assert part.rather_than == label
        difference = scores[position[found.label]] - scores[position[label]]
        assert part.total == pytest.approx(difference, abs=1e-5)
        assert total(part.terms) == pytest.approx(difference, abs=1e-4)
    names = {name for name, _ in found.score.terms}
    assert {"(class bias)"} <= names
    assert ("(embedding)" in names) == (n_dense > 0)
    assert ("(length of the row)" in names) != dense


@pytest.mark.identity
def test_noise_is_a_term_identity() -> None:
    weights = planted_model(dense=True).weights
    model = Model(weights, "negative_sampling", noise=FrequencyNoise(np.arange(1, 8)))
    found = explain(model, some_row().toarray())
    assert "(log p of the noise)" in {name for name, _ in found.score.terms}
    assert total(found.score.terms) == pytest.approx(found.score.total, abs=1e-4)


def test_terms_are_weights_times_features() -> None:
    model, X = planted_model(), some_row()
    found = explain(model, X)
    label = CLASSES.tolist().index(found.label)
    features, values = model.weights.class_weights(label)  # type: ignore[attr-defined]
    expected = {f"f{f}": float(X[0, f] * w) for f, w in zip(features, values, strict=True) if X[0, f]}
    got = {name: value for name, value in found.score.terms if name.startswith("f")}
    assert got == pytest.approx(expected, abs=1e-6)
    sizes = [abs(value) for _, value in found.score.terms]
    assert sizes == sorted(sizes, reverse=True)


def test_columns_without_a_weight_are_not_named() -> None:
    """Most n-grams of a long text have no weight for the classes, and names take long to make."""
    model, X, asked = planted_model(), some_row(), []

    def names(columns: Any) -> list[str]:
        asked.extend(f"f{c}" for c in columns)
        return asked

    found = explain_row(model, CLASSES, X, model.topk(X, 1), names)
    assert len(asked) < X.nnz
    assert sorted(asked) == sorted(name for name, _ in found.score.ngrams)


def test_class_is_explained() -> None:
    model = planted_model()
    found = explain_class(model, CLASSES, 2, lambda columns: [f"f{c}" for c in columns], 4)
    features, values = model.weights.class_weights(2)  # type: ignore[attr-defined]
    assert found.features[0] == (f"f{features[np.argmax(values)]}", pytest.approx(values.max()))
    assert found.n_samples == 3
    weights = model.weights.to_dense()
    cosine = weights @ weights[2] / np.linalg.norm(weights, axis=1) / np.linalg.norm(weights[2])
    order = [i for i in np.argsort(-cosine) if i != 2][:4]
    assert [label for label, _ in found.confusable] == CLASSES[order].tolist()
    assert [value for _, value in found.confusable] == pytest.approx(cosine[order], abs=1e-5)
    assert "c  (3 training rows)" in str(found)
    assert json.loads(json.dumps(found.to_dict()))["label"] == "c"


@pytest.mark.identity
@pytest.mark.parametrize("is_sparse", [False, True])
def test_classifier_explains_rows_identity(is_sparse: bool) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(12, size=400)
    X = (rng.random((12, 40))[y] + rng.random((400, 40)) > 1.2).astype(np.float32)
    if is_sparse:
        clf = ExtremeClassifier("sparse_softmax", random_state=0).fit(sp.csr_matrix(X), y)
        rows: Any = sp.csr_matrix(X[:3])
    else:
        pandas = pytest.importorskip("pandas")
        rows = pandas.DataFrame(X, columns=[f"f{i}" for i in range(40)])
        clf, rows = ExtremeClassifier(random_state=0, n_epochs=2).fit(rows, y), rows[:3]
    scores = clf.decision_function(rows)
    for i in range(3):
        found = clf.explain(rows[i : i + 1], k=2)
        first, second = np.sort(scores[i])[::-1][:2]
        assert total(found.score.terms) == pytest.approx(first, abs=1e-4)
        assert total(found.difference.terms) == pytest.approx(first - second, abs=1e-4)
        assert found.label == clf.predict(rows)[i]
        assert found.score.ngrams[0][0].startswith("column " if is_sparse else "f")
    assert found.score.words == []
    assert str(found).startswith(str(found.label))
    about = clf.explain_label(3, k=4)
    assert len(about.features) == len(about.confusable) == 4
    with pytest.raises(ValueError, match="x has 3 rows; explain takes one"):
        clf.explain(rows)
    with pytest.raises(ValueError, match="99 is not one of the 12 classes"):
        clf.explain_label(99)


@pytest.fixture(scope="module")
def fitted() -> TextClassifier:
    return TextClassifier(ExtremeClassifier(random_state=0)).fit(TEXTS, LABELS)


@pytest.mark.identity
@pytest.mark.parametrize("text", ["fell off a ladder", "A horse, a HORSE! co-op", "laddr roof", "Ladder" * 3])
def test_words_add_up_to_scores_identity(fitted: TextClassifier, text: str) -> None:
    found = fitted.explain(text)
    scores = fitted.decision_function([text])[0]
    best = np.argsort(-scores, kind="stable")[:3]
    assert found.labels == fitted.classes_[best].tolist()
    for part, expected in (
        (found.score, scores[best[0]]),
        (found.difference, scores[best[0]] - scores[best[1]]),
        (found.against[1], scores[best[0]] - scores[best[2]]),
    ):
        assert part is not None
        assert part.total == pytest.approx(expected, abs=1e-5)
        assert total(part.terms) == pytest.approx(expected, abs=1e-4)
        assert total(part.words) == pytest.approx(expected, abs=1e-4)
    assert found.probability == pytest.approx(fitted.predict_proba([text]).max(), abs=1e-6)


def test_the_word_that_made_it_so_comes_first(fitted: TextClassifier) -> None:
    found = fitted.explain("jumped off the ladder")
    assert found.label == "ladder"
    assert found.difference.words[0][0] == "ladder"
    assert found.difference.words[0][1] > 0
    assert {"ladder", "…ladd…", "ladd…"} & {name for name, _ in found.score.terms}
    shown = str(found)
    assert shown.startswith("ladder  ")
    assert f"ladder rather than {found.runner_up}" in shown
    assert "n-grams: " in shown
    data = json.loads(json.dumps(found.to_dict()))
    assert data["labels"] == found.labels
    assert data["against"][0]["rather_than"] == found.runner_up


def test_a_difference_needs_two_labels_rejects(fitted: TextClassifier) -> None:
    alone = fitted.explain("fell off a ladder", k=1)
    assert "rather than" not in str(alone)
    assert "<b>ladder</b>" in alone._repr_html_()
    with pytest.raises(ValueError, match=r"has one label; for a difference ask for two: explain\(x, k=2\)"):
        _ = alone.difference
    # never None: the lines of the README are right for a type checker
    assert get_type_hints(Explanation.difference.fget)["return"] is Contributions  # type: ignore[attr-defined]


def test_unknown_and_unmatched_words_are_told(fitted: TextClassifier) -> None:
    found = fitted.explain("Fell off a ZEBRA, roof", k=10)
    assert found.pieces == ["Fell", " ", "off", " ", "a", " ", "ZEBRA", ",", " ", "roof"]
    assert found.unknown_words == ["zebra"]
    assert found.label == "roof"
    unmatched = dict(zip(found.labels, found.unmatched_words, strict=True))
    assert "roof" not in unmatched.pop("roof")
    assert all("roof" in words and "zebra" not in words for words in unmatched.values())


def test_unspaced_writing_is_explained_by_runs_that_add_up() -> None:
    texts = ["从梯子上摔下来", "从屋顶摔下", "被狗咬伤", "被猫咬了"] * 5
    clf = TextClassifier().fit(texts, ["fall", "fall", "bite", "bite"] * 5)
    found = clf.explain("他从梯子上摔, 2 Dogs")
    assert "".join(found.pieces) == "他从梯子上摔, 2 Dogs"
    assert found.pieces[-5:] == [",", " ", "2", " ", "Dogs"]
    runs = [run for run in found.pieces[:-5] if len(run) > 1]
    assert runs
    assert all(any(run in text for text in texts) for run in runs)
    for part in (found.score, *found.against):
        assert sum(value for _, value in part.words) == pytest.approx(part.total, abs=1e-4)
    assert found.unknown_words == ["他", "2", "dogs"]


def test_notebooks_show_the_coloured_words(fitted: TextClassifier) -> None:
    found = fitted.explain("fell off <b>ladder</b> İx")
    shown = found._repr_html_()
    assert "<b>ladder</b>" not in shown.split("</table>")[1]
    assert f"title='{dict(found.score.words)['ladder']:+.2f}'" in shown
    assert "rather than" in shown
    assert "class frequencies" in fitted.explain("qqq zzz")._repr_html_()


def test_unknown_text_is_explained_by_frequencies(fitted: TextClassifier) -> None:
    found = fitted.explain("zzzzqqq")
    assert not found.is_known
    assert "no known word was found; these are the class frequencies" in str(found)
    assert found.probabilities == pytest.approx([0.1] * 3)
    assert found.score.total == pytest.approx(np.log(0.1), abs=1e-6)


def test_label_has_named_features(fitted: TextClassifier) -> None:
    found = fitted.explain_label("ladder", k=5)
    assert len(found.features) == 5
    assert all(value > 0 for _, value in found.features)
    assert any("lad" in name or "der" in name for name, _ in found.features)
    assert found.n_samples == 6
    assert len(found.confusable) == 5
    assert "ladder" not in dict(found.confusable)


class Lengths:
    def encode(self, texts: list[str]) -> list[list[float]]:
        return [[len(text), text.count("a")] for text in texts]


@pytest.mark.error
def test_features_without_names_rejects() -> None:
    dense = TextClassifier(ExtremeClassifier(random_state=0, n_epochs=1), encoder=Lengths())
    dense.fit(TEXTS, LABELS)
    with pytest.raises(ValueError, match="explain needs features=NgramFeatures"):
        dense.explain("a ladder")
    with pytest.raises(ValueError, match="explain_label needs NgramFeatures"):
        dense.explain_label("ladder")
    with pytest.raises(ValueError, match="'unheard of' is not one of the 10 classes"):
        TextClassifier(ExtremeClassifier(random_state=0), features=NgramFeatures()).fit(
            TEXTS, LABELS
        ).explain_label("unheard of")


def test_long_text_is_explained_in_a_few_times_the_time_of_its_prediction() -> None:
    rng = np.random.default_rng(0)
    words = np.array([f"word{i}" for i in range(2000)])
    texts = [" ".join(rng.choice(words, 10)) for _ in range(600)]
    clf = TextClassifier(ExtremeClassifier(random_state=0, n_jobs=1)).fit(texts, np.arange(600) % 300)
    long = " ".join(texts)[:20_000]

    def seconds(call: Callable[[str], Any]) -> float:
        call(long)
        found = []
        for _ in range(5):
            started = time.process_time()
            call(long)
            found.append(time.process_time() - started)
        return min(found)

    assert seconds(clf.explain) < 40.0 * seconds(lambda text: clf.predict_topk([text], k=3))
