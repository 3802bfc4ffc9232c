"""Losses of rows: against float64 references, and the identities that relate them to the softmax."""

from __future__ import annotations

import itertools
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest

import reference
from coverings import in_turn, pairwise
from extremax.kernels import row_losses
from extremax.kernels.row_training import Pairs

pytestmark = pytest.mark.small

LOSSES = {
    "negative_sampling": (row_losses.negative_sampling, row_losses.logistic),
    "raw_negative_sampling": (partial(row_losses.negative_sampling, is_raw=True), row_losses.logistic),
    "nce": (row_losses.noise_contrastive, row_losses.logistic),
    "sampled_softmax": (row_losses.SampledSoftmax, row_losses.sampled_softmax),
    "one_vs_each": (row_losses.OneVsEach, row_losses.one_vs_each),
    "augment_reduce": (row_losses.AugmentReduce, row_losses.augment_reduce),
}
NAMES = list(reference.LOSSES)  # all but Augment and Reduce, whose rows have a state


class Batch(NamedTuple):
    scores: np.ndarray
    log_base: np.ndarray
    log_noise: np.ndarray
    weight: np.ndarray
    labels: np.ndarray


def batch(n=7, n_negatives=3, n_classes=6, seed=0, base="other"):
    """A random batch; its base distribution is `other` than the noise, the `noise` itself, or `none`."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(n_classes, size=(n, 1 + n_negatives)).astype(np.int32)
    log_noise, other = (np.log(rng.dirichlet(np.ones(n_classes), n)) for _ in range(2))
    log_noise, other = (
        np.take_along_axis(table, labels, axis=1).astype(np.float32) for table in (log_noise, other)
    )
    log_base = {"other": other, "noise": log_noise, "none": np.zeros_like(log_noise)}[base]
    scores = 2.0 * rng.standard_normal((n, n_classes))
    scores = np.take_along_axis(scores, labels, axis=1).astype(np.float32)
    return Batch(scores, log_base, log_noise, rng.uniform(0.1, 3.0, n).astype(np.float32), labels)


def evaluate(name, data, penalty=0.0, start=0, stop=None, *, eta=None, epoch=0):
    """Coefficients and losses by the kernel; NaN where it was not asked to write."""
    (settings, kernel), n = LOSSES[name], len(data.scores)
    more: tuple = (np.float32((1.0 + epoch) ** -0.9),) if name == "augment_reduce" else ()
    more = (data.scores.shape[1] - 1,) if kernel is row_losses.logistic else more
    coefficients, losses = np.full_like(data.scores, np.nan), np.full(n, np.nan)
    eta = np.full(n, -1.0, np.float32) if eta is None else eta
    tables = (data.labels, data.log_base, data.log_noise, data.weight, data.scores, coefficients, losses, eta)
    pairs = Pairs(np.arange(n), *tables)
    kernel(settings(np.float32(penalty), *more), pairs, start, n if stop is None else stop)
    return coefficients, losses


def reference_loss(name, data, penalty, scores=None):
    scores = data.scores if scores is None else scores
    log_base, log_noise = data.log_base.astype(np.float64), data.log_noise.astype(np.float64)
    return reference.LOSSES[name](
        np.asarray(scores, np.float64), log_base, log_noise, data.weight, penalty, data.labels
    )


@pytest.mark.reference
@pairwise(name=NAMES, penalty=[0.0, 0.05], base=["other", "noise", "none"], n_negatives=[1, 2, 5])
def test_loss_matches_reference(name, penalty, base, n_negatives):
    data = batch(n_negatives=n_negatives, base=base)
    _, losses = evaluate(name, data, penalty)
    assert losses.dtype == np.float64
    # Scores and log-probabilities of size 10 in float32: 1e-6 absolute each, and the loss has a slope of
    # about one.
    np.testing.assert_allclose(losses, reference_loss(name, data, penalty), rtol=3e-6, atol=3e-6)


@pytest.mark.gradient
@pairwise(name=NAMES, penalty=[0.0, 0.05], base=["other", "noise", "none"], n_negatives=[1, 2, 5])
def test_coefficients_gradient(name, penalty, base, n_negatives):
    data = batch(n_negatives=n_negatives, base=base)
    coefficients, _ = evaluate(name, data, penalty)
    scores = data.scores.astype(np.float64)
    gradient = reference.central_differences(lambda s: reference_loss(name, data, penalty, s), scores)
    # float32; central differences are good to 1e-9.  One-vs-Each has weights 1 / p_n, large for a rare draw.
    np.testing.assert_allclose(coefficients, gradient, atol=3e-6, rtol=3e-6 if name == "one_vs_each" else 0.0)


@pytest.mark.identity
def test_readings_of_the_penalty_differ_by_log_noise_identity():
    """Eq. 6 under uniform noise: the text penalises (xi - log C)^2, the other reading xi^2."""
    data = batch(base="noise")
    uniform = np.full_like(data.log_noise, -np.log(6.0))
    data = data._replace(log_base=uniform, log_noise=uniform)
    text, raw = (evaluate(name, data, 0.05) for name in ("negative_sampling", "raw_negative_sampling"))
    m = data.scores.shape[1] - 1
    share = data.weight[:, None] * np.array([1.0] + [1.0 / m] * m)
    np.testing.assert_allclose(raw[0] - text[0], 2 * 0.05 * np.log(6.0) * share, rtol=1e-5)
    same = [evaluate(name, data, 0.0) for name in ("negative_sampling", "raw_negative_sampling")]
    np.testing.assert_allclose(same[0][0], same[1][0], atol=1e-7)  # without a penalty there is one loss


@pytest.mark.parametrize("name", NAMES)
def test_only_the_rows_asked_for_are_written(name):
    data = batch(n=9)
    coefficients, losses = evaluate(name, data, 0.01)
    for start, stop in [(0, 4), (4, 5), (5, 9), (3, 3)]:
        part, part_losses = evaluate(name, data, 0.01, start, stop)
        np.testing.assert_array_equal(part[start:stop], coefficients[start:stop])
        np.testing.assert_array_equal(part_losses[start:stop], losses[start:stop])
        outside = np.r_[0:start, stop:9]
        assert np.isnan(part[outside]).all()
        assert np.isnan(part_losses[outside]).all()


@pytest.mark.identity
@pytest.mark.parametrize("name", NAMES)
def test_row_weight_identity(name):
    data = batch()
    coefficients, losses = evaluate(name, data, 0.02)
    single = data._replace(weight=np.ones_like(data.weight))
    expected, expected_losses = evaluate(name, single, 0.02)
    np.testing.assert_allclose(coefficients, expected * data.weight[:, None], rtol=1e-6)  # one more rounding
    np.testing.assert_allclose(losses, expected_losses * data.weight, rtol=1e-6)
    coefficients, losses = evaluate(name, data._replace(weight=np.zeros_like(data.weight)), 0.02)
    assert not coefficients.any()  # a row of weight zero moves nothing
    assert not losses.any()


@in_turn(name=NAMES, scale=[100.0, 1000.0])
def test_extreme_scores_stay_finite(name, scale):
    signs = np.array([[1, 1, 1], [1, -1, 1], [-1, 1, 1], [-1, -1, 1], [-1, 1, -1], [-1, -1, -1]], np.float32)
    labels = np.tile(np.array([0, 1, 2], np.int32), (6, 1))
    log_noise = np.tile(np.log(np.array([1e-6, 0.5, 0.499999], np.float32)), (6, 1))
    data = Batch(scale * signs, np.zeros_like(log_noise), log_noise, np.ones(6, np.float32), labels)
    coefficients, losses = evaluate(name, data)
    assert np.isfinite(coefficients).all()
    assert np.isfinite(losses).all()
    np.testing.assert_allclose(losses, reference_loss(name, data, 0.0), rtol=1e-6, atol=1e-6)  # float32
    gradient = reference.central_differences(
        lambda s: reference_loss(name, data, 0.0, s), data.scores.astype(np.float64), 1e-3
    )
    # differences of losses of 1,000 at a step of 1e-3
    np.testing.assert_allclose(coefficients, gradient, atol=3e-6)
    assert np.all(coefficients[:, 0] <= 0.0)
    assert np.all(coefficients[:, 1:] >= 0.0)


@pytest.mark.parametrize("name", ["negative_sampling", "nce"])
def test_small_coefficients_keep_their_precision(name):
    # Far in a tail the coefficient is exp(-|a|), not 1 - 1 = 0: rare classes go on learning.
    log_noise = np.zeros((1, 2), np.float32)
    data = Batch(
        np.array([[40.0, -40.0]], np.float32),
        log_noise,
        log_noise,
        np.ones(1, np.float32),
        np.array([[0, 1]], np.int32),
    )
    coefficients, losses = evaluate(name, data)
    np.testing.assert_allclose(coefficients[0], [-np.exp(-40.0), np.exp(-40.0)], rtol=1e-5)
    np.testing.assert_allclose(losses[0], 2.0 * np.exp(-40.0), rtol=1e-5)


# -- identities


def all_other_classes(n_classes):
    """One row per positive class, the negatives being every other class once."""
    return np.array([[y] + [c for c in range(n_classes) if c != y] for y in range(n_classes)], np.int32)


@pytest.mark.identity
@pytest.mark.parametrize("n_classes", [2, 3, 20])
def test_sampled_softmax_with_all_classes_equals_softmax_identity(n_classes):
    rng = np.random.default_rng(n_classes)
    labels = all_other_classes(n_classes)
    xi = 3.0 * rng.standard_normal(n_classes)
    scores = xi[labels].astype(np.float32)
    zeros, uniform = np.zeros_like(scores), np.full_like(scores, -np.log(n_classes))
    coefficients, losses = evaluate(
        "sampled_softmax", Batch(scores, zeros, uniform, np.ones(n_classes, np.float32), labels)
    )
    log_prob = reference.log_softmax([xi])[0]
    np.testing.assert_allclose(losses, -log_prob, rtol=1e-6, atol=2e-6)  # float32 scores
    gradient = np.tile(np.exp(log_prob), (n_classes, 1)) - np.eye(n_classes)
    np.testing.assert_allclose(coefficients, np.take_along_axis(gradient, labels, axis=1), atol=1e-6)


@pytest.mark.identity
def test_sampled_softmax_with_only_hits_learns_nothing_identity():
    data = batch(n=4, n_negatives=3)
    same = data._replace(
        **{
            name: np.repeat(getattr(data, name)[:, :1], 4, axis=1)
            for name in data._fields
            if name != "weight"
        }
    )
    coefficients, losses = evaluate("sampled_softmax", same)
    np.testing.assert_allclose(coefficients.sum(axis=1), 0.0, atol=1e-6)  # all on one class: it is not moved
    np.testing.assert_allclose(losses, data.weight * np.log(4.0), rtol=1e-6)


@pytest.mark.identity
def test_two_classes_equal_logistic_regression_identity():
    # Sampled softmax over two classes, the negative always the other: the logistic loss of the difference of
    # scores.
    rng = np.random.default_rng(5)
    labels = np.array([[0, 1], [1, 0]] * 10, np.int32)
    scores = 3.0 * rng.standard_normal((20, 2)).astype(np.float32)
    log_noise = np.full((20, 2), -np.log(2.0), np.float32)
    data = Batch(scores, np.zeros_like(scores), log_noise, np.ones(20, np.float32), labels)
    coefficients, losses = evaluate("sampled_softmax", data)
    margin = scores[:, 0].astype(np.float64) - scores[:, 1]
    # float32
    np.testing.assert_allclose(losses, reference.negative_log_sigmoid(margin), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(coefficients[:, 0], -1.0 / (1.0 + np.exp(margin)), atol=1e-6)
    np.testing.assert_allclose(coefficients[:, 1], -coefficients[:, 0], atol=1e-6)


@pytest.mark.identity
def test_negative_sampling_from_base_is_logistic_in_the_score_itself_identity():
    # Base and noise cancel, as in the paper's Eq. 2: the loss sees xi alone, whatever the noise.
    data = batch(base="noise", n_negatives=4)
    _, losses = evaluate("negative_sampling", data)
    xi = data.scores.astype(np.float64)
    expected = reference.negative_log_sigmoid(xi[:, 0]) + reference.negative_log_sigmoid(-xi[:, 1:]).mean(
        axis=1
    )
    # s - log p_n rounds twice
    np.testing.assert_allclose(losses, data.weight * expected, rtol=2e-6, atol=1e-6)


@pytest.mark.identity
def test_nce_and_negative_sampling_agree_with_one_negative_identity():
    # With m = 1 and no base, NCE's logit xi - log p_n is negative sampling's.
    data = batch(base="none", n_negatives=1)
    for ours, theirs in zip(
        evaluate("nce", data, 0.03), evaluate("negative_sampling", data, 0.03), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7)  # the same sums in another order


@pytest.mark.identity
def test_repeated_negatives_share_one_coefficient_identity():
    # The negatives are averaged: m copies of one draw are the same loss, its coefficient shared out.
    single = batch(n_negatives=1, seed=3)
    many = Batch(*(a[:, [0, 1, 1, 1]] if a.ndim == 2 else a for a in single))
    coefficients, losses = evaluate("negative_sampling", single, 0.01)
    shared, shared_losses = evaluate("negative_sampling", many, 0.01)
    np.testing.assert_allclose(shared_losses, losses, rtol=1e-6)  # float32
    np.testing.assert_allclose(shared[:, 0], coefficients[:, 0], rtol=1e-6)
    np.testing.assert_allclose(shared[:, 1:].sum(axis=1), coefficients[:, 1], rtol=1e-6)


def all_draws(n_classes, n_negatives, base, seed):
    """Every positive with every list of negatives; its weight is the probability of the negatives."""
    rng = np.random.default_rng(seed)
    log_noise, xi = np.log(rng.dirichlet(np.ones(n_classes))), rng.standard_normal(n_classes)
    labels = np.array(list(itertools.product(range(n_classes), repeat=1 + n_negatives)), np.int32)
    scores = (xi - log_noise if base == "noise" else xi)[labels].astype(np.float32)
    log_noise = log_noise[labels].astype(np.float32)
    weight = np.exp(log_noise[:, 1:].sum(axis=1))
    return xi, Batch(
        scores, log_noise if base == "noise" else np.zeros_like(log_noise), log_noise, weight, labels
    )


@pytest.mark.identity
@pairwise(base=["noise", "none"], n_negatives=[1, 2, 3], n_classes=[2, 4])
def test_draws_stand_for_all_other_classes_identity(n_classes, n_negatives, base):
    """In expectation over the draws, whatever the noise: the full sum of One-vs-Each, and the sum that eta
    follows.
    """
    xi, data = all_draws(n_classes, n_negatives, base, seed=n_classes)
    _, losses = evaluate("one_vs_each", data)
    eta = np.full(len(data.labels), -1.0, np.float32)
    evaluate("augment_reduce", data, eta=eta)
    for y in range(n_classes):
        others, rows = np.arange(n_classes) != y, data.labels[:, 0] == y
        # two classes: logistic regression
        expected = reference.negative_log_sigmoid(xi[y] - xi[others]).sum()
        np.testing.assert_allclose(losses[rows].sum(), expected, rtol=3e-6)  # float32
        np.testing.assert_allclose(
            (data.weight * eta)[rows].sum(), np.exp(xi[others] - xi[y]).sum(), rtol=3e-6
        )


@pytest.mark.gradient
@pairwise(penalty=[0.0, 0.05], base=["other", "noise", "none"], n_negatives=[1, 2, 5])
def test_augment_reduce_gradient(n_negatives, base, penalty):
    data = batch(n_negatives=n_negatives, base=base)
    eta = np.random.default_rng(1).uniform(0.0, 5.0, len(data.scores)).astype(np.float32)
    eta[0] = -1.0
    before = eta.astype(np.float64)
    coefficients, losses = evaluate("augment_reduce", data, penalty, eta=eta, epoch=3)
    wide = [np.asarray(a, np.float64) for a in data[:4]]
    rate = np.where(before < 0.0, 1.0, 4.0**-0.9)
    mixed = (1.0 - rate) * before + rate * reference.estimated_sum(*wide[:3], data.labels)
    np.testing.assert_allclose(eta, mixed, rtol=3e-6)  # float32, with weights 1 / p_n

    def loss(scores):
        return reference.augment_reduce_loss(scores, *wide[1:], penalty, data.labels, mixed)

    np.testing.assert_allclose(losses, loss(wide[0]), rtol=5e-6, atol=3e-6)
    np.testing.assert_allclose(
        coefficients, reference.central_differences(loss, wide[0]), rtol=5e-6, atol=3e-6
    )


@pytest.mark.identity
def test_augment_reduce_is_the_softmax_where_eta_is_the_sum_identity():
    # All other classes once, among 20: the chance that no draw is another class is zero, and the weights are
    # one.
    rng = np.random.default_rng(0)
    labels, xi = all_other_classes(20), 3.0 * rng.standard_normal(20)
    scores = xi[labels].astype(np.float32)
    uniform = np.full_like(scores, -np.log(20))
    data = Batch(scores, np.zeros_like(scores), uniform, np.ones(20, np.float32), labels)
    coefficients, losses = evaluate("augment_reduce", data)
    log_prob = reference.log_softmax([xi])[0]
    np.testing.assert_allclose(losses, -log_prob, rtol=1e-5, atol=3e-6)  # float32 sums of exp
    gradient = np.tile(np.exp(log_prob), (20, 1)) - np.eye(20)
    np.testing.assert_allclose(coefficients, np.take_along_axis(gradient, labels, axis=1), atol=3e-6)
    _, elsewhere = evaluate(
        "augment_reduce", data, eta=rng.uniform(0.0, 9.0, 20).astype(np.float32), epoch=50
    )
    assert np.all(elsewhere > losses)  # a bound: worse at any other eta


@pytest.mark.parametrize("scale", [100.0, 1000.0])
@pytest.mark.parametrize("epoch", [0, 30])
def test_augment_reduce_stays_finite(scale, epoch):
    signs = np.array([[1, 1, 1], [1, -1, 1], [-1, 1, 1], [-1, -1, 1], [-1, 1, -1], [-1, -1, -1]], np.float32)
    labels = np.tile(np.array([0, 1, 2], np.int32), (6, 1))
    log_noise = np.tile(np.log(np.array([1e-6, 0.5, 0.499999], np.float32)), (6, 1))
    data = Batch(scale * signs, np.zeros_like(log_noise), log_noise, np.ones(6, np.float32), labels)
    eta = np.zeros(6, np.float32)
    coefficients, losses = evaluate("augment_reduce", data, eta=eta, epoch=epoch)
    for values in (coefficients, losses, eta):
        assert np.isfinite(values).all()
    assert np.all(coefficients[:, 0] <= 0.0)
    assert np.all(coefficients[:, 1:] >= 0.0)
    # no step is longer than the newest estimate allows
    assert np.all(-coefficients[:, 0] <= (1.0 + epoch) ** 0.9 + 1e-3)


@pytest.mark.identity
def test_a_row_of_hits_alone_moves_nothing_identity():
    data = batch(n=4, n_negatives=3)
    same = data._replace(
        **{
            name: np.repeat(getattr(data, name)[:, :1], 4, axis=1)
            for name in data._fields
            if name != "weight"
        }
    )
    for name in ("one_vs_each", "augment_reduce"):
        coefficients, losses = evaluate(name, same)
        assert not coefficients.any()
        assert not losses.any()
