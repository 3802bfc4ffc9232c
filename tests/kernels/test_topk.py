"""The kernels of prediction on small tables, tile by tile."""

from __future__ import annotations

import numpy as np
import pytest

import reference
from extremax.kernels import topk
from extremax.scores import remove_bias

pytestmark = pytest.mark.small


def new_states(groups, n, k, target=None):
    return topk.empty_states(groups, n, k, np.asarray([-1] * n if target is None else target, np.int32))


def scan(
    products,
    biases,
    log_noise,
    k,
    *,
    order=None,
    widths=(1000,),
    scale=1.0,
    temperature=1.0,
    target=None,
    row_step=1,
    groups=1,
):
    """Run the kernels over tiles of the given widths, the columns in the given order of classes."""
    n, n_classes = products.shape
    order = np.arange(n_classes, dtype=np.int32) if order is None else np.asarray(order, np.int32)
    products, biases, log_noise = products[:, order].copy(), biases[order], log_noise[:, order].copy()
    scaling = topk.Scaling(np.float32(scale), np.float32(1.0 / temperature))
    states, start, tile_number = new_states(groups, n, k, target), 0, 0
    strip = np.empty(topk.STRIP, np.float32)
    while start < n_classes:
        stop = min(start + widths[tile_number % len(widths)], n_classes)
        columns = topk.Columns(order[start:stop], biases[start:stop], start)
        group = tile_number % groups
        state = states._replace(
            **{f: getattr(states, f)[group] for f in ("heap_scores", "heap_labels", "peak", "mass")}
        )
        noise = topk.LogNoise(log_noise, row_step, start)
        tile = np.ascontiguousarray(products[:, start:stop])
        topk.scan_tile(tile, columns, noise, scaling, state, strip)
        start, tile_number = stop, tile_number + 1
    log_prob, target_log_prob = np.empty((n, k), np.float32), np.empty(n, np.float32)
    labels = np.empty((n, k), np.int32)
    inverse = np.full(len(labels), scaling.inverse_temperature)
    topk.finish_rows(states, inverse, labels, log_prob, target_log_prob)
    return labels, log_prob, target_log_prob


def table(n, n_classes, seed=0, rounding=None):
    rng = np.random.default_rng(seed)
    products, biases = 3 * rng.standard_normal((n, n_classes)), rng.standard_normal(n_classes)
    log_noise = np.log(rng.dirichlet(np.ones(n_classes), n))
    if rounding is not None:  # few distinct values: many ties
        products, biases, log_noise = (
            np.round(a * rounding) / rounding for a in (products, biases, log_noise)
        )
    return products.astype(np.float32), biases.astype(np.float32), log_noise.astype(np.float32)


@pytest.mark.parametrize("k", [1, 5, 64, 700, 703])
@pytest.mark.parametrize(
    ("widths", "groups"), [((1000,), 1), ((256,), 2), ((1, 300, 77), 1), ((1, 300, 77), 3), ((300,), 9)]
)
def test_scan_matches_reference(k, widths, groups):
    products, biases, log_noise = table(5, 700)
    labels, log_prob, target_log_prob = scan(
        products,
        biases,
        log_noise,
        k,
        groups=groups,
        widths=widths,
        scale=0.5,
        temperature=1.5,
        target=[0, 699, 300, 1, 256],
    )
    scores = np.float32(0.5) * products + biases + log_noise
    expected = reference.log_softmax(scores, 1.5)
    best = reference.ranked(scores, k)
    # a fused multiply-add may swap two scores that differ in the last bit
    assert (labels == best).mean() > 0.999
    # float32 scores of size 30
    np.testing.assert_allclose(log_prob, reference.values_at(expected, labels), rtol=0, atol=1e-5)
    np.testing.assert_allclose(
        target_log_prob, expected[np.arange(5), [0, 699, 300, 1, 256]], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("k", [1, 4, 33])
def test_ties_go_to_the_smaller_class_in_any_order_of_columns_invariant(k):
    # Halves and quarters add exactly, so the ties are ties.
    products, biases, log_noise = table(6, 300, seed=1, rounding=2)
    best = reference.ranked(products.astype(np.float64) + biases + log_noise, k)
    orders = [None, np.arange(300)[::-1], np.random.default_rng(0).permutation(300)]
    for order in orders:
        labels, _, _ = scan(products, biases, log_noise, k, order=order, widths=(256, 20), groups=2)
        np.testing.assert_array_equal(labels, best)


def test_equal_scores_everywhere_give_the_first_classes():
    zeros = np.zeros((2, 600), np.float32)
    labels, log_prob, _ = scan(zeros, zeros[0], zeros, 3)
    np.testing.assert_array_equal(labels, [[0, 1, 2]] * 2)
    np.testing.assert_allclose(log_prob, -np.log(600), rtol=1e-6)  # one float32 rounding


def test_one_noise_row_for_all_equals_repeated_rows_identity():
    products, biases, log_noise = table(4, 500, seed=2)
    one = scan(products, biases, log_noise[:1], 5, row_step=0)
    repeated = scan(products, biases, np.repeat(log_noise[:1], 4, axis=0), 5)
    for a, b in zip(one, repeated, strict=True):
        np.testing.assert_array_equal(a, b)


def test_huge_scores_stay_finite():
    products, biases, log_noise = table(3, 400, seed=3)
    products[0] *= 1e30
    products[1] -= 5000.0
    products[2] += 5000.0
    labels, log_prob, _ = scan(products, biases, log_noise, 2, widths=(100,))
    scores = products.astype(np.float64) + biases + log_noise
    np.testing.assert_array_equal(labels[:, 0], scores.argmax(axis=1))
    assert log_prob[0, 0] == 0.0
    np.testing.assert_allclose(
        log_prob[1:], np.sort(reference.log_softmax(scores), axis=1)[1:, :-3:-1], atol=2e-3
    )  # 5000 in float32


def test_strips_skipped_for_the_normaliser_are_negligible_identity():
    scores = np.full((2, 1_000), -10.0, np.float32)
    scores[1] = -60.0  # more than 32 below the best: strips without it are skipped
    scores[:, 400] = 0.0
    _, log_prob, _ = scan(scores, np.zeros(1_000, np.float32), np.zeros((2, 1_000), np.float32), 1)
    # strips are summed in float32
    assert log_prob[0, 0] == pytest.approx(-np.log1p(999 * np.exp(-10.0)), rel=1e-3)
    assert log_prob[1, 0] == 0.0


def test_nan_scores_show_in_the_log_probabilities():
    products, biases, log_noise = table(2, 300, seed=4)
    products[1, 17] = np.nan
    with np.errstate(all="ignore"):  # interpreted, numpy would warn
        labels, log_prob, _ = scan(products, biases, log_noise, 3)
    assert np.isfinite(log_prob[0]).all()
    assert np.isnan(log_prob[1]).all()
    assert ((labels >= -1) & (labels < 300)).all()


def test_scalar_debias_equals_remove_bias_identity():
    rng = np.random.default_rng(5)
    scores, log_noise = rng.standard_normal(20).astype(np.float32), rng.standard_normal(20).astype(np.float32)
    scalar = [topk.debias(a, b) for a, b in zip(scores, log_noise, strict=True)]
    np.testing.assert_array_equal(remove_bias(scores, log_noise), np.array(scalar, np.float32))


@pytest.mark.parametrize("k", [1, 3, 12, 20])
def test_choose_candidates_matches_reference(k):
    rng = np.random.default_rng(6)
    n, width, n_classes = 8, 12, 50
    candidates = np.argsort(rng.random((n, n_classes)), axis=1)[:, :width].astype(np.int32)
    scores = (np.round(4 * rng.standard_normal((n, width))) / 4).astype(np.float32)  # quarters: ties
    candidates[2, 5:] = -1  # a beam with five leaves
    scores[2, 5:] = 100.0  # not a candidate: must not count
    candidates[3] = -1
    candidates[3, 4] = 7
    log_rest = np.where(np.arange(n) % 2, rng.normal(size=n) + 2.0, -np.inf).astype(np.float32)
    log_rest[5] = 40.0  # nearly all of the mass
    labels, log_prob = np.empty((n, k), np.int32), np.empty((n, k), np.float32)
    topk.choose_candidates(scores, candidates, np.full(n, 0.5, np.float32), log_rest, 0, n, labels, log_prob)
    full = np.full((n, n_classes), -np.inf)
    for i in range(n):
        for label, score in zip(candidates[i], scores[i], strict=True):
            if label >= 0:
                full[i, label] = score
    mass = np.logaddexp.reduce(np.column_stack([full / 2.0, log_rest]), axis=1)
    expected = full / 2.0 - mass[:, None]
    best = reference.ranked(full, k)
    best = np.where(np.isneginf(reference.values_at(full, best)), -1, best)
    np.testing.assert_array_equal(labels, best)
    np.testing.assert_allclose(log_prob, reference.values_at(expected, best), atol=1e-6)  # float32 rounding


@pytest.mark.reference
def test_short_exponential_matches_reference():
    x = np.linspace(-86.0, 0.0, 3001, dtype=np.float32)
    got = np.array([topk.exp_nonpositive(v) for v in x], np.float64)
    # at -86 the reduced argument has lost four bits
    np.testing.assert_allclose(got, np.exp(x.astype(np.float64)), rtol=1e-5)
    np.testing.assert_allclose(got[x > -10.0], np.exp(x[x > -10.0].astype(np.float64)), rtol=1e-6)
