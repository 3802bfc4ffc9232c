"""Drift: false alarms at most as often as stated, planted drift is found, memory is constant."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extremax import ExtremeClassifier, TextClassifier, load_model
from extremax.errors import ModelFileError
from extremax.report.drift import N_BETS, Monitor, SequentialTest, _densities
from extremax.scores.reference import Reference, left_out_share, unknown_share
from extremax.storage.state import State

N_BINS = 20


def even_reference(n_rows: int, n_bins: int, rng: np.random.Generator) -> np.ndarray:
    return np.bincount(rng.integers(n_bins, size=n_rows), minlength=n_bins)


@pytest.mark.identity
def test_bets_are_densities() -> None:
    p = (np.arange(1 << 16) + 0.5) / (1 << 16)
    found = _densities(p)
    assert found.shape == (N_BETS, 1 << 16)
    assert (found >= 0).all()
    np.testing.assert_allclose(found.mean(axis=1), 1.0, atol=3e-3)


@pytest.mark.reference
def test_capital_is_that_of_one_bet_after_the_other() -> None:
    rng = np.random.default_rng(0)
    reference = even_reference(60, 5, rng)
    bins = rng.integers(5, size=230)
    test = SequentialTest(reference, seed=7)
    ties = SequentialTest(reference, seed=7)
    capital, asleep, bag, best = np.zeros(N_BETS), 1.0, reference.copy(), 0.0
    for t, found in enumerate(bins.tolist()):
        p = ties.p_values(np.array([found]))[0]
        ties.n_rows += 1
        ties.counts[found] += 1
        bag[found] += 1
        low, high = bag[found + 1 :].sum() / bag.sum(), bag[found:].sum() / bag.sum()
        assert low < p < high
        still = np.log(2) / np.log(t + 2)
        left = asleep * (np.log(2) / np.log(t + 3)) / still
        capital = (capital + (asleep - left) / N_BETS) * _densities(np.array([p]))[:, 0]
        asleep = left
        best = max(best, np.log(asleep + capital.sum()))
    for part in (bins[:1], bins[1:3], bins[3:150], bins[150:]):
        test.update(part)
    assert test.log_evidence == pytest.approx(np.log(asleep + capital.sum()), abs=1e-9)
    assert test.max_log_evidence == pytest.approx(best, abs=1e-9)
    assert (test.counts == np.bincount(bins, minlength=5)).all()


@pytest.mark.reference
def test_p_values_are_uniform_and_independent() -> None:
    rng = np.random.default_rng(1)
    found = []
    for seed in range(400):
        test = SequentialTest(even_reference(20, 4, rng), seed)
        found.append(test.p_values(rng.integers(4, size=30)))
    p = np.array(found)
    for column in (p[:, 0], p[:, 29], p.ravel()):
        ordered = np.sort(column)
        distance = np.abs(ordered - np.arange(1, len(ordered) + 1) / len(ordered)).max()
        assert distance < 1.8 / np.sqrt(len(ordered))
    assert abs(np.corrcoef(p[:, 10], p[:, 11])[0, 1]) < 4 / np.sqrt(400)


def false_alarms(n_streams: int, n_rows: int, n_reference: int, level: float) -> int:
    rng = np.random.default_rng(2)
    n_alarms = 0
    for seed in range(n_streams):
        shares = rng.dirichlet(np.ones(N_BINS))  # of this stream and its reference
        test = SequentialTest(rng.multinomial(n_reference, shares), seed)
        test.update(rng.choice(N_BINS, n_rows, p=shares))
        n_alarms += test.max_log_evidence >= np.log(1 / level)
    return n_alarms


@pytest.mark.parametrize("n_reference", [50, 1000])
def test_false_alarms_are_as_rare_as_stated(n_reference: int) -> None:
    level, n_streams = 0.2, 150
    n_alarms = false_alarms(n_streams, 1000, n_reference, level)
    assert n_alarms <= level * n_streams + 2 * np.sqrt(level * (1 - level) * n_streams)


@pytest.mark.slow
@pytest.mark.parametrize(("n_reference", "level"), [(50, 0.05), (2000, 0.05), (200, 0.3)])
def test_false_alarms_of_many_streams(n_reference: int, level: float) -> None:
    n_alarms = false_alarms(2000, 4000, n_reference, level)
    assert n_alarms <= level * 2000 + 3 * np.sqrt(level * (1 - level) * 2000)


@pytest.mark.planted
@pytest.mark.parametrize("start", [0, 3000])
@pytest.mark.parametrize("kind", ["shift", "one bin more", "spread"])
def test_planted_change_is_found(kind: str, start: int) -> None:
    rng = np.random.default_rng(3)
    before = np.full(N_BINS, 1 / N_BINS)
    after = {
        "shift": np.linspace(0.5, 1.5, N_BINS),
        "one bin more": np.where(np.arange(N_BINS) == 7, 3.0, 17 / 19),
        "spread": np.abs(np.linspace(-1, 1, N_BINS)) + 0.5,
    }[kind]
    test = SequentialTest(rng.multinomial(2000, before), 0)
    test.update(rng.choice(N_BINS, start, p=before))
    assert test.max_log_evidence < np.log(300)
    test.update(rng.choice(N_BINS, 1500, p=after / after.sum()))
    assert test.max_log_evidence > np.log(300)
    assert start < test.max_at


# -- with a model ------------------------------------------------------------------------------------------


def planted(n_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.choice(40, size=n_rows, p=np.arange(1, 41) / 820)
    means = np.random.default_rng(99).normal(size=(40, 8))
    return (means[y] + 0.5 * rng.normal(size=(n_rows, 8))).astype(np.float32), y


VERBS = ("fell off", "fall from", "dropped from", "tumbled down", "slipped on", "bitten by", "stung by")
THINGS = [
    f"{a}{b}" for a in ("lad", "roo", "sta", "bri", "cha", "hor") for b in ("der", "ver", "ling", "nut")
]


def make_texts(n_rows: int, seed: int) -> tuple[list[str], list[str]]:
    rng = np.random.default_rng(seed)
    verb, thing = rng.integers(len(VERBS), size=n_rows), rng.integers(len(THINGS), size=n_rows)
    rare = rng.integers(500, size=n_rows)
    texts = [
        f"{VERBS[v]} the {THINGS[t]} no{r}"
        for v, t, r in zip(verb.tolist(), thing.tolist(), rare.tolist(), strict=True)
    ]
    return texts, [f"c{t}" for t in thing.tolist()]


@pytest.fixture(scope="module")
def dense_model() -> ExtremeClassifier:
    X, y = planted(2000, 0)
    return ExtremeClassifier(random_state=0, n_jobs=1).fit(X, y)


@pytest.fixture(scope="module")
def text_model() -> TextClassifier:
    return TextClassifier(ExtremeClassifier(random_state=0, n_jobs=1)).fit(*make_texts(3000, 0))


def test_text_model_has_reference_and_no_false_alarm(text_model: TextClassifier) -> None:
    reference = text_model.model_.reference
    assert reference is not None
    assert reference.kind == "unknown_share"
    assert reference.n_rows == 150
    monitor = text_model.monitor(alpha=0.05)
    for seed in range(1, 6):
        monitor.update(make_texts(600, seed)[0])
    report = monitor.report()
    assert not monitor.alarm, report
    assert report["n_rows"] == 3000
    json.dumps(report, allow_nan=False)


@pytest.mark.planted
def test_unknown_words_and_other_classes_are_found(text_model: TextClassifier) -> None:
    texts, labels = make_texts(1500, 7)
    unknown = text_model.monitor().update([f"{text} qqxx zzyy" for text in texts])
    assert unknown.report()["statistics"]["features"]["alarm"]
    assert unknown.report()["statistics"]["features"]["recent_distance"] > 0.5
    some = [text for text, label in zip(texts, labels, strict=True) if label < "c18"]
    shares = text_model.monitor().update(some)
    assert shares.report()["statistics"]["classes"]["alarm"]


@pytest.mark.planted
def test_dense_rows(dense_model: ExtremeClassifier) -> None:
    reference = planted(1000, 1)[0]
    monitor = dense_model.monitor(reference=reference)
    assert not monitor.update(planted(2000, 2)[0]).alarm
    assert monitor.update(1.3 * planted(500, 3)[0]).alarm
    sharper = dense_model.monitor(reference=reference)
    means = np.random.default_rng(99).normal(size=(40, 8))
    assert sharper.update(means[planted(800, 4)[1]].astype(np.float32)).report()["statistics"]["log_prob"][
        "alarm"
    ]


@pytest.mark.identity
def test_answers_save_predicting_again(dense_model: ExtremeClassifier) -> None:
    reference, stream = planted(500, 1)[0], planted(300, 2)[0]
    first = dense_model.monitor(reference=reference).update(stream)
    second = dense_model.monitor(reference=reference).update(stream, dense_model.predict_topk(stream, 3))
    assert first.to_json() == second.to_json()


@pytest.mark.invariance
def test_state_is_json_and_goes_on(text_model: TextClassifier) -> None:
    texts = make_texts(500, 11)[0]
    whole = text_model.monitor(seed=3).update(texts[:200]).update(texts[200:])
    saved = text_model.monitor(seed=3).update(texts[:200]).to_json()
    again = text_model.monitor(state=saved).update(texts[200:])
    assert again.report() == whole.report()
    assert again.to_json() == whole.to_json()


def test_memory_is_constant(text_model: TextClassifier) -> None:
    monitor = text_model.monitor()
    sizes = []
    for seed in range(4):
        monitor.update(make_texts(1000, 20 + seed)[0])
        sizes.append(len(monitor.to_json()))
        assert len(monitor._waiting) == 0
    assert max(sizes) < 12_000
    assert max(sizes) < 1.1 * sizes[0]


def test_rows_one_by_one_wait_in_a_bounded_buffer(text_model: TextClassifier) -> None:
    monitor = text_model.monitor()
    for text in make_texts(150, 30)[0]:
        monitor.update([text])
        assert monitor._n_waiting < 64
    assert monitor.n_rows == 150
    assert monitor.report()["n_rows"] == 150


def test_monitors_are_merged(text_model: TextClassifier) -> None:
    texts = make_texts(1200, 12)[0]
    first, second = text_model.monitor(alpha=0.01).update(texts[:500]), text_model.monitor(alpha=0.01)
    second.update(texts[500:])
    mean = {
        name: np.logaddexp(test.log_evidence, second._tests[name].log_evidence) - np.log(2)
        for name, test in first._tests.items()
    }
    merged = first.merge(second)
    report = merged.report()
    assert (report["n_rows"], report["alpha"], report["alarm"]) == (1200, 0.02, False)
    for name, expected in mean.items():
        assert report["statistics"][name]["log_evidence"] == pytest.approx(expected)
        assert merged._tests[name].counts.sum() == 1200
    drifted = text_model.monitor(alpha=0.01).update([f"{text} qqxx zzyy" for text in texts])
    assert merged.merge(drifted).alarm


def test_false_alarms_of_merged_monitors() -> None:
    rng = np.random.default_rng(5)
    level, n_alarms = 0.1, 0
    for seed in range(100):
        counts = even_reference(300, 10, rng)
        parts = [SequentialTest(counts, 2 * seed + i) for i in range(2)]
        for part in parts:
            part.update(rng.integers(10, size=300))
        parts[0].merge(parts[1])
        parts[0].update(rng.integers(10, size=300))
        n_alarms += parts[0].max_log_evidence >= np.log(1 / level)
    assert n_alarms <= 2 * level * 100 + 2 * np.sqrt(100 * 0.16)


# -- saved with the model ----------------------------------------------------------------------------------


@pytest.mark.identity
def test_reference_is_saved(text_model: TextClassifier, tmp_path: Path) -> None:
    text_model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    texts = make_texts(300, 13)[0]
    assert loaded.monitor().update(texts).to_json() == text_model.monitor().update(texts).to_json()
    assert Reference.from_state(text_model.model_.reference.state()).state().header == (  # type: ignore[union-attr]
        text_model.model_.reference.state().header  # type: ignore[union-attr]
    )


@pytest.mark.error
def test_models_without_reference_say_so(dense_model: ExtremeClassifier, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no reference rows.*clf\.monitor\(reference=X\)"):
        dense_model.monitor()


def test_later_training_drops_the_reference(text_model: TextClassifier) -> None:
    clf = copy.deepcopy(text_model)
    assert clf.model_.reference is not None
    clf.model_.with_calibration(clf.model_.calibration)
    from extremax import calibrate

    calibrate(clf, *make_texts(300, 5))
    assert clf.model_.reference is None


@pytest.mark.error
def test_bad_input(dense_model: ExtremeClassifier, text_model: TextClassifier) -> None:
    reference = planted(200, 1)[0]
    for alpha in (0, 1, -0.1, True, "a", float("nan")):
        with pytest.raises(ValueError, match="alpha is"):
            dense_model.monitor(alpha=alpha, reference=reference)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 50"):
        dense_model.monitor(reference=reference[:10])
    monitor = dense_model.monitor(reference=reference)
    with pytest.raises(ValueError, match="predict_topk"):
        monitor.update(reference, (np.zeros((3, 1), int), np.zeros((3, 1))))
    with pytest.raises(ValueError, match="two models"):
        monitor.merge(text_model.monitor())
    for state in ("", "[]", "{}", '{"format": "x"}', text_model.monitor().to_json(), "[" * 100_000):
        with pytest.raises(ValueError, match="the state of the monitor cannot be used"):
            dense_model.monitor(reference=reference, state=state)
    good: dict[str, Any] = json.loads(monitor.to_json())
    good["statistics"]["classes"]["capital"][0] = -1.0
    with pytest.raises(ValueError, match="no monitor has"):
        dense_model.monitor(reference=reference, state=json.dumps(good))
    assert monitor.update(reference[:0]).n_rows == 0


@pytest.mark.error
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kind", "other"),
        ("n_rows", 0),
        ("n_rows", 7),
        ("top_classes", [10**6]),
        ("range_ends", []),
        ("range_ends", [-1, 24]),
        ("edges", {"features": [2.0, 1.0], "log_prob": []}),
        ("counts", {"features": [1], "log_prob": [1], "classes": [1]}),
        ("counts", {}),
    ],
)
def test_damaged_reference_is_refused(text_model: TextClassifier, name: str, value: Any) -> None:
    state = text_model.model_.reference.state()  # type: ignore[union-attr]
    with pytest.raises(ModelFileError, match="does not fit together"):
        Reference.from_state(State({**state.header, name: value}, state.arrays))


@pytest.mark.reference
@pytest.mark.parametrize(
    "text",
    [
        "fell off the ladder no7 with quixampl",
        "quixampl and quixampl: the ladder quixampl",  # unknown n-grams that are repeated
        "fell off the ladder, off the roof",
    ],
)
def test_unknown_share_by_leaving_a_text_out(text: str) -> None:
    from extremax.features.ngrams import NgramFeatures

    texts = [*make_texts(80, 3)[0], "and with all", text]
    with_it, without = NgramFeatures().fit(texts), NgramFeatures().fit(texts[:-1])
    X = with_it.transform(texts)
    n_rows = np.bincount(X.indices, minlength=X.shape[1])
    left_out = left_out_share(X[-1:], n_rows, len(texts), with_it.n_character_columns)
    as_new = unknown_share(without.transform(texts[-1:]), None, of_unit=True)
    assert left_out[0] == pytest.approx(as_new[0], abs=1e-5)
    assert 0.05 < left_out[0] < 0.95


def test_sparse_rows_that_are_no_texts() -> None:
    from scipy import sparse

    rng = np.random.default_rng(0)
    n, width = 1500, 1200
    y = rng.integers(30, size=n)
    columns = np.hstack(
        [y[:, None] * 20 + rng.integers(20, size=(n, 4)), 700 + rng.integers(500, size=(n, 1))]
    )
    X = sparse.csr_matrix(
        (np.ones(5 * n, np.float32), columns.ravel(), np.arange(0, 5 * n + 1, 5)), shape=(n, width)
    )
    X.sum_duplicates()
    clf = ExtremeClassifier("sparse_softmax", random_state=0, n_jobs=1).fit(X[:1200], y[:1200])
    reference = clf.model_.reference
    assert reference is not None
    assert reference.kind == "unseen_share"
    seen = np.zeros(width, bool)
    seen[X[:1200].indices] = True
    assert (np.unpackbits(reference.seen_columns, count=width) == seen).all()
    monitor = Monitor(clf, reference)
    assert not monitor.update(X[1200:]).alarm
    new = sparse.csr_matrix(
        (np.ones(300), (np.arange(300), rng.choice(np.flatnonzero(~seen), 300))), shape=(300, width)
    )
    assert monitor.update(sparse.csr_matrix(X[1200:] + 2 * new)).report()["statistics"]["features"]["alarm"]


@pytest.mark.identity
def test_storage_of_sparse_rows_changes_nothing() -> None:
    from scipy import sparse

    rng = np.random.default_rng(1)
    n, width = 1500, 1200
    y = rng.integers(30, size=n)
    columns = (y[:, None] * 40 + rng.integers(40, size=(n, 5))).ravel()
    X = sparse.csr_matrix((np.ones(5 * n, np.float32), (np.repeat(np.arange(n), 5), columns)), (n, width))
    clf = ExtremeClassifier("sparse_softmax", random_state=0, n_jobs=1).fit(X[:1000], y[:1000])
    stream, given = X[1000:], X[:300]
    expected = clf.monitor().update(stream).to_json()
    for rows in (stream.tocsc(), stream.tocoo(), sparse.csc_array(stream)):
        assert clf.monitor().update(rows).to_json() == expected
    for rows in (stream, stream.tocsc()):  # with answers, the rows are looked at as well
        assert clf.monitor().update(rows, clf.predict_topk(rows, 2)).to_json() == expected
    expected = clf.monitor(reference=given).update(stream).to_json()
    assert clf.monitor(reference=given.tocsc()).update(stream.tocsc()).to_json() == expected


@pytest.mark.identity
def test_answers_for_texts_save_predicting_again(text_model: TextClassifier) -> None:
    texts = make_texts(300, 14)[0]
    given = text_model.monitor().update(texts, text_model.predict_topk(texts, 2))
    assert given.to_json() == text_model.monitor().update(texts).to_json()
