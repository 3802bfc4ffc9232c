"""Classes added, removed and merged after a fit: identities, what is in the folder, and what is refused."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import sparse

from extremax import ExtremeClassifier, TextClassifier, calibrate, evaluate, fit, load_model
from extremax.calibration import Calibration
from extremax.solvers import MinibatchSoftmax
from planted import around_means, label_lists, softmax

N_CLASSES = 12
NAMES = np.array([f"label-{i:02d}" for i in range(N_CLASSES)])
MERGES = {"label-03": "label-05", "label-07": "zebra", "label-08": "zebra", "label-09": "zebra"}
KINDS = {
    "softmax": {"solver": "minibatch_softmax", "n_shared": None, "n_epochs": 2},
    "candidates": {"solver": "candidate_softmax", "n_epochs": 1},
    "tree": {"solver": "negative_sampling", "n_epochs": 2, "tree_components": 4},
    "frequency": {"solver": "negative_sampling", "noise": "frequency", "n_epochs": 2},
    "nce": {"solver": "nce", "n_epochs": 2, "tree_components": 4},
    "sparse": {"solver": "sparse_softmax"},
}


def planted():
    X, y = around_means(500, N_CLASSES, 6, spread=0.7, seed=1)
    return X, y


def rows_of(kind, X):
    return sparse.csr_matrix(np.maximum(X, 0.0)) if kind == "sparse" else X


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """A function from a kind of model to the folder of one."""
    made = {}

    def find(kind):
        if kind not in made:
            X, y = planted()
            clf = ExtremeClassifier.with_solver(random_state=0, n_jobs=1, **KINDS[kind])
            clf.fit(rows_of(kind, X[:400]), NAMES[y[:400]])
            made[kind] = tmp_path_factory.mktemp("changes") / kind
            clf.save(made[kind])
        return made[kind]

    return find


def opened(folder_of, kind, calibration=None):
    clf = load_model(folder_of(kind))
    if calibration is not None:
        clf._replace_model(clf.model_.with_calibration(calibration))
    return clf, rows_of(kind, planted()[0][400:])


# -- removal


@pytest.mark.parametrize("kind", KINDS)
def test_removed_classes_leave_conditional_probabilities(folder_of, kind):
    clf, X = opened(folder_of, kind, Calibration(1.3))
    before, scores = clf.predict_proba(X), clf.decision_function(X)
    gone = ["label-02", "label-06", "label-11"]
    kept = ~np.isin(NAMES, gone)
    clf.remove_classes(gone)
    assert clf.classes_.tolist() == NAMES[kept].tolist()
    conditional = before[:, kept] / before[:, kept].sum(axis=1, keepdims=True)
    np.testing.assert_allclose(clf.predict_proba(X), conditional, atol=2e-6)
    np.testing.assert_allclose(softmax(clf.decision_function(X)), softmax(scores[:, kept]), atol=2e-6)
    for search in clf.model_.search_names:
        labels, log_prob = clf.predict_topk(X, k=9, search=search)
        assert not np.isin(labels, gone).any()
        np.testing.assert_allclose(np.exp(log_prob).sum(axis=1), 1.0, atol=1e-5)


@pytest.mark.parametrize("kind", ["softmax", "sparse"])
def test_removal_keeps_the_share_of_uniform_mixing(folder_of, kind):
    """A row on which removed classes have no mass keeps all its ratios."""
    clf, X = opened(folder_of, kind, Calibration(0.7, 0.1, 0.0))
    before = clf.predict_proba(X)
    mass = before[:, 2]
    clf.remove_classes("label-02")
    kept = np.arange(N_CLASSES) != 2
    row = int(np.argmin(mass))
    ratio = before[row, kept] / before[row, kept].sum()
    np.testing.assert_allclose(clf.predict_proba(X)[row], ratio, atol=1e-3)


@pytest.mark.parametrize("kind", ["softmax", "tree", "sparse"])
def test_bytes_of_removed_classes_are_not_in_the_folder(folder_of, kind, tmp_path):
    clf, _ = opened(folder_of, kind)
    clf.describe_classes([f"the story of {name}" for name in NAMES])
    clf.class_weight = {"label-04": 2.0, "label-01": 1.0}
    weights = clf.model_.weights
    if kind == "sparse":
        _, values = weights.class_weights(4)
        lines = [values[i : i + 3].tobytes() for i in range(0, len(values) - 3, 3)]
        assert not lines or all(len(set(line)) > 4 for line in lines)
    else:
        lines = [np.ascontiguousarray(weights.weights[4]).tobytes()]
    clf.save(tmp_path / "before")
    clf.remove_classes(["label-04"]).save(tmp_path / "after")

    def content(name):
        return b"".join(path.read_bytes() for path in sorted((tmp_path / name).iterdir()))

    spelled = [b"label-04", np.frombuffer(b"label-04", np.uint8).astype(np.uint16).tobytes()]
    assert any(name in content("before") for name in spelled)
    assert not any(name in content("after") for name in spelled)
    if kind != "sparse":
        assert all(line in content("before") and line not in content("after") for line in lines)
    else:
        assert not np.isin(
            load_model(tmp_path / "after").model_.weights.postings.classes, N_CLASSES - 1
        ).any()
    again = load_model(tmp_path / "after", verify=True)
    assert again.class_weight == {"label-01": 1.0}
    assert again.model_.classes.descriptions.text(4) == "the story of label-05"


# -- merging


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("calibration", [Calibration(1.3, 0.05), Calibration(1.2, 0.01, 0.3)])
def test_merged_classes_are_sums(folder_of, kind, calibration, tmp_path):
    if calibration.temperature_slope and kind in ("tree", "frequency"):
        calibration = Calibration(1.2, 0.01)
    clf, X = opened(folder_of, kind, calibration)
    before = clf.predict_proba(X)
    clf.merge_classes(MERGES)
    labels = clf.classes_.tolist()
    assert labels == sorted({MERGES.get(name, name) for name in NAMES.tolist()})
    expected = np.zeros((X.shape[0], len(labels)))
    for i, name in enumerate(NAMES.tolist()):
        expected[:, labels.index(MERGES.get(name, name))] += before[:, i]
    np.testing.assert_allclose(clf.predict_proba(X), expected, atol=1e-7)
    np.testing.assert_allclose(clf.predict_log_proba(X), np.log(expected), atol=2e-5)
    for search in clf.model_.search_names:
        best, log_prob = clf.predict_topk(X, k=4, search=search)
        order = np.argsort(-expected, axis=1, kind="stable")[:, :4]
        np.testing.assert_allclose(np.exp(log_prob), np.take_along_axis(expected, order, 1), atol=2e-5)
        assert (clf.classes_[order] == best).mean() > 0.99  # ties
    y = [MERGES.get(name, name) for name in NAMES[planted()[1][400:]].tolist()]
    truth = np.log(expected[np.arange(len(y)), [labels.index(name) for name in y]]).mean()
    assert clf.log_likelihood(X, y) == pytest.approx(truth, abs=1e-5)
    found = evaluate(clf, X, y)
    assert found.log_likelihood == pytest.approx(truth, abs=1e-5)
    assert found.accuracy[1] == pytest.approx(np.mean(clf.predict(X) == np.array(y)))
    plain = clf.model_.with_calibration(calibration._replace(uniform_mix=0.0))
    assert np.array_equal(plain.debiased_scores(X).argmax(axis=1), plain.topk(X, 1)[0][:, 0])
    clf.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert np.array_equal(again.predict_proba(X), clf.predict_proba(X))
    np.testing.assert_allclose(again.predict_label_proba(X), clf.predict_label_proba(X))


@pytest.mark.parametrize("kind", ["softmax", "tree", "sparse"])
def test_explanations_of_merged_classes_add_up(folder_of, kind):
    clf, X = opened(folder_of, kind, Calibration(1.2))
    clf.merge_classes(MERGES)
    scores = clf.decision_function(X)
    place = clf.classes_.tolist().index("zebra")
    row = int(np.argmax(scores[:, place] - scores.max(axis=1)))  # where the merged class is best
    found = clf.explain(X[row : row + 1], k=3)
    assert "zebra" in found.labels
    for part in (found.score, *found.against):
        assert sum(value for _, value in part.terms) == pytest.approx(part.total, abs=1e-4)
    about = clf.explain_label("zebra")
    assert about.n_samples == clf.model_.classes.counts[place]
    assert "zebra" not in [label for label, _ in about.confusable]


def test_names_are_exchanged_at_once(folder_of):
    clf, X = opened(folder_of, "softmax")
    before = clf.predict_proba(X)
    clf.merge_classes({"label-00": "label-01", "label-01": "label-00"})
    assert clf.model_.label_map is None
    np.testing.assert_allclose(clf.predict_proba(X)[:, [1, 0, *range(2, N_CLASSES)]], before, atol=1e-6)


def test_merged_and_removed_and_merged_again(folder_of):
    clf, X = opened(folder_of, "softmax", Calibration(1.1))
    before = clf.predict_proba(X)
    clf.merge_classes(MERGES).remove_classes(["label-05", "label-00"]).merge_classes({"zebra": "label-01"})
    kept = ~np.isin(NAMES, ["label-00", "label-03", "label-05"])
    conditional = before / before[:, kept].sum(axis=1, keepdims=True)
    zebra = conditional[:, [1, 7, 8, 9]].sum(axis=1)
    np.testing.assert_allclose(clf.predict_proba(X)[:, 0], zebra, atol=2e-6)
    assert [change["what"] for change in clf.changes_] == ["merge_classes", "remove_classes", "merge_classes"]


def test_merged_models_can_be_calibrated_and_trained(folder_of):
    clf, X = opened(folder_of, "softmax")
    y = [MERGES.get(name, name) for name in NAMES[planted()[1][400:]].tolist()]
    clf.merge_classes(MERGES)
    before = clf.log_likelihood(X, y)
    clf._replace_model(clf.model_.with_calibration(Calibration(5.0)))
    calibrate(clf, X, y)
    assert clf.log_likelihood(X, y) > before - 0.1
    accuracy = clf.score(X, y)
    clf.partial_fit(X, y)
    assert clf.score(X, y) >= accuracy
    with pytest.raises(AttributeError, match="merged classes"):
        clf.coef_  # noqa: B018


# -- further classes


@pytest.mark.parametrize("kind", KINDS)
def test_added_classes_are_found_and_others_stay(kind):
    X, y = around_means(900, N_CLASSES, 8, spread=0.5, distance=1.5, seed=3)
    X, names = rows_of(kind, X), NAMES[y]
    new = np.isin(y, [4, 9])
    clf = ExtremeClassifier.with_solver(random_state=0, n_jobs=1, **KINDS[kind]).fit(X[~new], names[~new])
    old_scores = clf.decision_function(X[:50])
    old = clf.score(X[~new], names[~new])
    clf.add_classes(X[new][:60], names[new][:60])
    assert clf.classes_.tolist() == NAMES.tolist()
    is_old = ~np.isin(NAMES, ["label-04", "label-09"])
    kept = clf.decision_function(X[:50])[:, is_old]
    shift = kept - old_scores
    np.testing.assert_allclose(shift - shift[:, :1], 0.0, atol=1e-4)  # all others in the same order
    few = kind in ("sparse", "frequency")  # twelve classes in eight columns tell little of a further one
    assert clf.score(X[~new], names[~new]) > old - (0.1 if few else 0.05)
    assert clf.score(X[new][60:], names[new][60:]) > (0.4 if few else 0.6)
    np.testing.assert_allclose(clf.predict_proba(X).sum(axis=1), 1.0, atol=1e-6)
    assert clf.model_.classes.counts[4] + clf.model_.classes.counts[9] == 60
    after = clf.score(X, names)
    clf.partial_fit(X, names)
    assert clf.score(X, names) > after - 0.05


def test_a_single_class_is_added_and_survives_a_folder(tmp_path):
    X, y = around_means(600, N_CLASSES, 8, spread=0.5, distance=1.5, seed=5)
    clf = ExtremeClassifier.with_solver(random_state=0, n_jobs=1, **KINDS["tree"]).fit(
        X[y > 0], NAMES[y[y > 0]]
    )
    clf.add_classes(X[y == 0][:10], NAMES[y[y == 0]][:10])
    clf.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert np.array_equal(again.predict_proba(X), clf.predict_proba(X))
    assert again.changes_ == clf.changes_
    assert again.changes_[0]["n_rows"] == 10
    assert clf.score(X[y == 0], NAMES[y[y == 0]]) > 0.5


def test_adding_is_the_same_at_any_number_of_threads(folder_of):
    X, y = around_means(40, 2, 6, seed=9)
    found = []
    for n_jobs in (1, 2):
        clf, rows = opened(folder_of, "softmax")
        clf.n_jobs = n_jobs
        found.append(clf.add_classes(X, np.array(["new", "newer"])[y]).predict_proba(rows))
    assert np.array_equal(*found)


def test_labels_of_another_kind_come_last(folder_of):
    clf, X = opened(folder_of, "softmax")
    clf.add_classes(X[:4], np.array([7, 7, 7, 7]))
    assert clf.classes_.tolist() == [*NAMES.tolist(), 7]
    assert 7 in clf.predict_topk(X[:4], k=6)[0]


def test_index_follows_changed_classes():
    n_classes = 2100
    X, y = around_means(4300, n_classes, 12, spread=0.3, seed=2)
    y[:n_classes] = np.arange(n_classes)
    clf = (
        ExtremeClassifier(MinibatchSoftmax(n_shared=None), n_epochs=0, random_state=0, n_jobs=2)
        .fit(X, y)
        .fit_index(X)
    )
    assert "beam" in clf.model_.searches
    gone = list(range(0, n_classes, 7))
    clf.remove_classes(gone)
    rows = X[~np.isin(y, gone)][:400]
    exact, _ = clf.predict_topk(rows, k=1)
    beam, log_prob = clf.predict_topk(rows, k=1, search="beam", beam_width=200)
    assert (exact == beam).mean() > 0.95
    assert not np.isin(clf.predict_topk(X[:300], k=20, search="beam", beam_width=100)[0], gone).any()
    clf.add_classes(X[y == 0], y[y == 0]).add_classes(X[np.isin(y, [7, 14])], y[np.isin(y, [7, 14])])
    again = X[np.isin(y, [0, 7, 14])]
    exact, of_exact = clf.predict_topk(again, k=1)
    beam, log_prob = clf.predict_topk(again, k=1, search="beam", beam_width=200)
    assert (exact == beam).mean() > 0.9
    same = exact == beam
    np.testing.assert_allclose(log_prob[same], of_exact[same], atol=0.2)  # the tail is an estimate
    clf.merge_classes({1: -1, 2: -1, 3: -1})
    exact, _ = clf.predict_topk(rows, k=2)
    beam, _ = clf.predict_topk(rows, k=2, search="beam", beam_width=200)
    assert (exact[:, 0] == beam[:, 0]).mean() > 0.95


# -- texts, several labels


TEXTS = [
    f"{verb} {thing}" for thing in ("ladder", "roof", "dog", "cat") for verb in ("a", "the", "my", "one")
]
THINGS = [text.split()[1] for text in TEXTS]


def test_texts():
    clf = TextClassifier(ExtremeClassifier(random_state=0)).fit(TEXTS + ["a horse"] * 2, THINGS + ["x"] * 2)
    clf.remove_classes(["x"]).merge_classes({"dog": "animal", "cat": "animal"})
    clf.add_classes(["a horse", "my horse", "one horse", "the horse"], ["horse"] * 4)
    assert clf.classes_.tolist() == ["animal", "horse", "ladder", "roof"]
    assert clf.predict(["the cat", "the dog", "that horse", "on the roof"]).tolist() == [
        "animal", "animal", "horse", "roof",
    ]  # fmt: skip
    assert clf.predict_proba(["nothing that is known: zzz"]).sum() == pytest.approx(1.0)
    assert clf.explain("a cat").label == "animal"
    assert [change["n_changed"] for change in clf.changes_] == [1, 2, 1]
    clf.partial_fit(["the sea", "a sea"], ["sea", "sea"], new_classes="add")
    assert "sea" in clf.classes_


def test_several_labels_per_row():
    X, y = label_lists(300)
    names = [[f"n{c:02d}" for c in row] for row in y]
    clf = ExtremeClassifier(n_epochs=2, random_state=0).fit(
        X, [[n for n in row if n != "n03"] or ["n00"] for row in names]
    )
    rows = [i for i, row in enumerate(names) if "n03" in row]
    clf.add_classes(X[rows], [names[i] for i in rows])  # their other labels are known
    assert clf.classes_.tolist() == [f"n{c:02d}" for c in range(40)]
    before = clf.predict_proba(X)
    clf.merge_classes({"n04": "n05"})
    np.testing.assert_allclose(clf.predict_proba(X)[:, 4], before[:, 4] + before[:, 5], atol=1e-6)
    assert clf.predict_label_proba(X[:5]).shape == (5, 39)
    assert all(isinstance(row, list) for row in clf.predict_labels(X[:5]))
    clf.remove_classes(["n06"])
    assert "n06" not in clf.classes_


def test_indicator_columns_are_appended():
    X, y = around_means(120, 4, 5, seed=4)
    table = np.eye(4, dtype=int)[y]
    known = y < 3
    clf = ExtremeClassifier(n_epochs=1, random_state=0)
    clf.fit(X[known], table[known][:, [2, 0, 1]], classes=["c", "a", "b"])
    clf.add_classes(X[y == 3], np.ones((int((y == 3).sum()), 2), int) * [1, 1], classes=["aa", "c"])
    assert clf.classes_.tolist() == ["c", "a", "b", "aa"]
    assert clf.predict(X[:3]).shape == (3, 4)


# -- what is refused, and leaves the model as it was


def test_refusals_change_nothing(folder_of):
    clf, X = opened(folder_of, "softmax")
    before = clf.predict_proba(X)
    fitted = clf._fitted
    two = X[:2]
    cases = [
        (lambda: clf.add_classes(two, ["label-01", "new"]), "already; add_classes takes rows of further"),
        (
            lambda: clf.add_classes(two, ["label-01", "label-02"]),
            "classes of this model already; partial_fit",
        ),
        (lambda: clf.add_classes(two, ["new", "newer"], classes=["new", "newer", "newest"]), "has no row"),
        (lambda: clf.add_classes(X[:2, :3], ["new", "newer"]), "3 features"),
        (lambda: clf.add_classes(two, [("a", object()), "b"]), "saved model cannot hold"),
        (lambda: clf.remove_classes(["nobody"]), "'nobody', which is not one of the 12 known classes"),
        (lambda: clf.remove_classes(NAMES[1:]), "would leave 1 of 12 classes"),
        (lambda: clf.merge_classes({"nobody": "x"}), "not one of the 12 known"),
        (lambda: clf.merge_classes(dict.fromkeys(NAMES.tolist(), "x")), "would leave 1"),
        (lambda: clf.merge_classes({}), "takes a dict"),
        (lambda: clf.partial_fit(two, ["label-01", "new"]), 'new_classes="add"'),
        (lambda: clf.partial_fit(two, ["label-01", "new"], new_classes="all"), "new_classes"),
    ]
    for call, sentence in cases:
        with pytest.raises((ValueError, TypeError), match=sentence):
            call()
        assert clf._fitted is fitted
        assert clf.changes_ == []
        assert clf.classes_.tolist() == NAMES.tolist()
    assert np.array_equal(clf.predict_proba(X), before)


def test_resuming_is_refused_after_a_change(folder_of):
    clf, X = opened(folder_of, "softmax")
    clf.remove_classes(["label-01"])
    with pytest.raises(ValueError, match=r"changed \(remove_classes\).*partial_fit"):
        clf.resume_fit(X[:3], NAMES[[0, 2, 3]])


def test_partial_fit_adds_what_it_is_asked_to(folder_of):
    clf, X = opened(folder_of, "softmax")
    y = NAMES[planted()[1][400:]].copy()
    y[:5] = "new"
    clf.partial_fit(X, y, new_classes="add")
    assert "new" in clf.classes_
    assert clf.changes_[-1]["n_rows"] == 5
    again = clf.partial_fit(X, y, new_classes="add").changes_
    assert len(again) == 1  # nothing was new


def test_failed_training_of_added_classes_takes_them_back(folder_of):
    clf, X = opened(folder_of, "softmax")
    with pytest.raises(ValueError, match="sample_weight"):
        clf.partial_fit(
            X[:3], ["new", "label-01", "label-02"], sample_weight=[1.0, -1.0, 1.0], new_classes="add"
        )
    assert clf.classes_.tolist() == NAMES.tolist()
    assert clf.changes_ == []


@pytest.mark.identity
@pytest.mark.parametrize("kind", ["streamed", *KINDS])
def test_failed_training_of_added_classes_leaves_every_byte(folder_of, kind, tmp_path, monkeypatch):
    """The epoch that follows the new classes is run, and fails at its end."""
    if kind == "streamed":
        X, y = planted()
        clf = ExtremeClassifier(MinibatchSoftmax(n_shared=None), random_state=0, n_jobs=1).partial_fit(
            X[:400], NAMES[y[:400]]
        )
        rows = X[400:]
    else:
        clf, rows = opened(folder_of, kind)
    clf.class_weight = {"label-01": 2.0}
    clf.save(tmp_path / "before")
    labels = NAMES[planted()[1][400:]].copy()
    labels[:5] = "new"
    run = fit.run_training
    seen = []

    def fail(trainer, fitted, *arguments):
        run(trainer, fitted, *arguments)
        seen.append(fitted.model.n_classes)
        raise MemoryError("no more")

    monkeypatch.setattr(fit, "run_training", fail)
    with pytest.raises(MemoryError):
        clf.partial_fit(rows, labels, new_classes="add")
    assert seen == [N_CLASSES + 1]
    assert clf.classes_.tolist() == NAMES.tolist()
    clf.save(tmp_path / "after")
    before, after = (
        {path.name: path.read_bytes() for path in sorted((tmp_path / name).iterdir())}
        for name in ("before", "after")
    )
    assert before == after
    monkeypatch.undo()
    assert "new" in clf.partial_fit(rows, labels, new_classes="add").classes_


@pytest.mark.identity
def test_class_weights_follow_names():
    X, y = around_means(60, 4, 5, seed=4)
    names = np.array(["a", "b", "c", "d"])[y]
    clf = ExtremeClassifier(
        MinibatchSoftmax(n_shared=None), n_epochs=1, random_state=0, class_weight={"a": 2.0, "c": 5.0}
    )
    clf.fit(X, names)
    counts = clf.model_.classes.counts
    given = clf.class_weight
    clf.merge_classes({"a": "c", "c": "a"})  # exchanged
    assert clf.class_weight == {"a": 5.0, "c": 2.0}
    assert given == {"a": 2.0, "c": 5.0}
    clf.merge_classes({"a": "z", "d": "z", "c": "y"})
    mean = (5.0 * counts[2] + counts[3]) / (counts[2] + counts[3])
    assert clf.class_weight == {"y": 2.0, "z": pytest.approx(mean)}
    clf.partial_fit(X, np.array(["y", "b", "z", "z"])[y])


def test_models_of_earlier_versions_say_what_they_lack(folder_of):
    clf, X = opened(folder_of, "sparse")
    clf._fitted.state.tables.record = None
    with pytest.raises(ValueError, match="fitted by an earlier version"):
        clf.add_classes(X[:2], ["new", "new"])
    clf.remove_classes(["label-01"])


def test_own_searches_are_left_out_with_a_word(folder_of):
    class Own:
        def topk(self, scorer, X, k, *, width=None, n_threads=1):
            raise NotImplementedError

        def state(self):
            raise NotImplementedError

    clf, _ = opened(folder_of, "softmax")
    clf.add_search("own", Own())
    with pytest.warns(UserWarning, match="'own' of this model cannot follow"):
        clf.remove_classes(["label-01"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clf.remove_classes(["label-02"])
