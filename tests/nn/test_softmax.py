"""ExtremeSoftmax: the estimate, its gradients, agreement with the numpy engine, prediction, state."""

from __future__ import annotations

import copy
import io
import itertools
import subprocess
import sys

import numpy as np
import pytest
import scipy.linalg
import torch
import torch.nn.functional as F
from torch import nn

from coverings import in_turn
from extremax.data import planted_hierarchy
from extremax.nn import ExtremeSoftmax
from extremax.nn.hidden_moments import HiddenMoments, HiddenSize
from extremax.nn.shared_classes import INITIAL_SQUARE, ClassDraws, add_targets, padded, shared_losses
from extremax.tree.noise import class_weights
from layer_kinds import KINDS

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")

N_CLASSES, WIDTH = 100, 12


@pytest.fixture(scope="module")
def data():
    return planted_hierarchy(3000, N_CLASSES, WIDTH, seed=1, n_test=500, noise_scale=0.7)


def tensors(data, n=None):
    return torch.from_numpy(data.X[:n]), torch.from_numpy(data.y[:n]).long()


def make_layer(*, scale=0.3, **options):
    """A layer with random weights."""
    layer = ExtremeSoftmax(WIDTH, N_CLASSES, **{"n_shared": 24, "n_jobs": 1, **options})
    rng = np.random.default_rng(0)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(scale * rng.normal(size=(N_CLASSES, WIDTH))))
        if layer.bias is not None:
            layer.bias.add_(torch.from_numpy(scale * rng.normal(size=N_CLASSES)))
    return layer


# -- class sets


def test_inclusion_probabilities_are_exact_identity(data):
    """The frequency of every class in many sets, within 5 standard errors of exp(-minus_log_pi)."""
    counts = np.bincount(data.y, minlength=N_CLASSES).astype(float)
    draws = ClassDraws(class_weights(counts, 0.5), 20)
    rng, n = np.random.default_rng(0), 4000
    seen, stated = np.zeros(N_CLASSES), np.full(N_CLASSES, np.nan)
    for positions in rng.random((n, 2)):
        classes, minus_log_pi = draws.draw(positions)
        assert len(classes) <= 20
        seen[classes] += 1
        known = stated[classes][~np.isnan(stated[classes])]
        np.testing.assert_allclose(known, np.exp(-minus_log_pi)[~np.isnan(stated[classes])], rtol=1e-6)
        stated[classes] = np.exp(-minus_log_pi)
    assert not np.isnan(stated).any()
    error = 5 * np.sqrt(n * stated * (1 - stated)) + 1
    assert np.all(np.abs(seen - n * stated) < error)


def test_sum_of_exponentials_has_the_right_mean_identity(data):
    """The mean of exp(loss) over many sets is that of the full softmax: the estimate of Z is unbiased."""
    layer = make_layer(class_counts=np.bincount(data.y, minlength=N_CLASSES))
    hidden, y = tensors(data, 6)
    weight, bias = layer.weight.detach(), layer.bias.detach()
    (draws,) = layer._current_draws([24])
    values = []
    for positions in np.random.default_rng(1).random((3000, 2)):
        shared = padded(*draws.draw(positions), 24, torch.device("cpu"))
        losses = shared_losses(hidden, y, weight, bias, shared, label_smoothing=0.0, sparse=False)
        values.append(losses.double().exp().numpy())
    exact = (-layer.target_log_prob(hidden, y)).double().exp().numpy()
    error = np.std(values, axis=0) / np.sqrt(len(values))
    assert np.all(np.abs(np.mean(values, axis=0) - exact) < 5 * error)
    assert np.all(error < 0.05 * exact)  # the comparison says something


def test_targets_are_in_the_set_for_certain_reference():
    drawn = np.array([1, 4, 7], np.int32), np.array([0.5, 0.25, 2.0], np.float32)
    classes, minus_log_pi = add_targets(drawn, np.array([9, 4, 0, 9, 4, 5]), 10)
    assert classes.tolist() == [0, 1, 4, 5, 7, 9]
    assert minus_log_pi.tolist() == [0.0, 0.5, 0.0, 0.0, 2.0, 0.0]
    assert classes.dtype == np.int32
    assert minus_log_pi.dtype == np.float32
    assert drawn[1].tolist() == [0.5, 0.25, 2.0]
    # Two at most: those of most rows, then the smaller one.
    classes, minus_log_pi = add_targets(drawn, np.array([9, 4, 0, 9, 5]), 2)
    assert classes.tolist() == [0, 1, 4, 7, 9]
    assert minus_log_pi.tolist() == [0.0, 0.5, 0.25, 2.0, 0.0]
    classes, _ = add_targets(drawn, np.empty(0, np.int64), 2)
    assert classes.tolist() == [1, 4, 7]


@pytest.mark.parametrize("n_shared", [3, 8])
def test_training_loss_has_the_right_mean_enumeration_identity(n_shared):
    """Z with the targets of the rows in the set, against all sets of a systematic sample: exact.

    Some targets are left out at n_shared = 3, where at most one is certain.
    """
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 9, size=12)
    layer = ExtremeSoftmax(4, 12, n_shared=n_shared, class_counts=counts, n_jobs=1)
    hidden, y = torch.from_numpy(rng.normal(size=(6, 4))), torch.tensor([0, 5, 5, 11, 3, 7])
    weight, bias = (torch.from_numpy(rng.normal(size=size)) for size in ((12, 4), 12))
    (draws,) = layer._current_draws([n_shared])
    # The set changes with the position only where a cumulated probability has this fraction.
    edges = np.unique(np.concatenate([[0.0, 1.0], draws.cumulative % 1.0]))
    mean = torch.zeros(6, dtype=torch.float64)
    for a, b in itertools.pairwise(edges):
        drawn = draws.draw(np.array([(a + b) / 2, 0.0]))
        classes, minus_log_pi = add_targets(drawn, y.numpy(), n_shared // 2)
        assert len(classes) <= n_shared + n_shared // 2
        shared = padded(classes, minus_log_pi, 12, torch.device("cpu"))
        losses = shared_losses(hidden, y, weight, bias, shared, label_smoothing=0.0, sparse=False)
        mean += (b - a) * losses.exp()
    exact = F.cross_entropy(F.linear(hidden, weight, bias), y, reduction="none").exp()
    torch.testing.assert_close(mean, exact, rtol=1e-6, atol=0.0)


# -- the loss


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_all_classes_are_the_cross_entropy_of_torch_gradient(data, bias, smoothing):
    layer = make_layer(n_shared=N_CLASSES, bias=bias, label_smoothing=smoothing)
    hidden, y = tensors(data, 20)
    y[3] = -100
    ours, theirs = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    out = layer(ours, y)
    out.loss.backward()
    weight = layer.weight.detach().clone().requires_grad_()
    offset = layer.bias.detach().clone().requires_grad_() if bias else None
    expected = F.cross_entropy(F.linear(theirs, weight, offset), y, label_smoothing=smoothing)
    expected.backward()
    assert len(out.losses) == 19
    for a, b in ((out.loss, expected), (ours.grad, theirs.grad), (layer.weight.grad, weight.grad)):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=1e-6)
    if bias:
        torch.testing.assert_close(layer.bias.grad, offset.grad, rtol=2e-5, atol=1e-6)


def test_smoothing_has_the_right_mean_identity(data):
    """The mean score of all classes that smoothing subtracts is estimated without bias."""
    layer = make_layer()
    hidden, y = tensors(data, 6)
    (draws,) = layer._current_draws([24])
    values = []
    for positions in np.random.default_rng(1).random((3000, 2)):
        shared = padded(*draws.draw(positions), 24, torch.device("cpu"))
        tables = (layer.weight.detach(), layer.bias.detach(), shared)
        plain = shared_losses(hidden, y, *tables, label_smoothing=0.0, sparse=False)
        smooth = shared_losses(hidden, y, *tables, label_smoothing=0.5, sparse=False)
        values.append(2 * (smooth - plain).numpy())  # own score - mean score
    scores = F.linear(hidden, layer.weight, layer.bias).detach()
    expected = (scores.gather(1, y[:, None])[:, 0] - scores.mean(1)).numpy()
    error = np.std(values, axis=0) / np.sqrt(len(values))
    assert np.all(np.abs(np.mean(values, axis=0) - expected) < 5 * error)


@pytest.mark.parametrize("bias", [False, True])
def test_dense_sparse_and_fused_steps_agree_reference(data, bias):
    """Losses, gradients of the hidden states, and one step of row-wise Adagrad made from dense gradients."""
    hidden, y = tensors(data, 40)
    found = {}
    for gradients in ("dense", "sparse", "fused"):
        options = {"learning_rate": 0.05 * WIDTH, "whiten": False, "steps_per_batch": 1}
        layer = make_layer(gradients=gradients, bias=bias, **options)
        before = [p.detach().clone() for p in layer.parameters()]
        h = hidden.clone().requires_grad_()
        torch.manual_seed(3)
        out = layer(h, y)
        out.loss.backward()
        found[gradients] = (layer, before, h.grad, out.losses.detach())
    dense, before, grad, losses = found["dense"]
    sparse = found["sparse"][0]
    assert sparse.weight.grad.is_sparse
    torch.testing.assert_close(sparse.weight.grad.to_dense(), dense.weight.grad)
    for gradients in ("sparse", "fused"):
        torch.testing.assert_close(found[gradients][2], grad, rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(found[gradients][3], losses, rtol=1e-5, atol=1e-5)
    fused = found["fused"][0]
    # Sums over the 40 rows, in units of the size of the hidden states; steps in units of its inverse.
    size = hidden.square().mean().sqrt()
    assert size > 1.0
    sums = 40 * dense.weight.grad / size
    step = 0.05 / size * sums / (sums.square().mean(1, keepdim=True) + INITIAL_SQUARE).sqrt()
    torch.testing.assert_close(fused.weight.detach(), before[0] - step, rtol=1e-4, atol=1e-6)
    assert fused.weight.grad is None
    if bias:
        sums = 40 * dense.bias.grad
        moved = before[1] - 0.05 * sums / (sums.square() + INITIAL_SQUARE).sqrt()
        torch.testing.assert_close(fused.bias.detach(), moved, rtol=1e-4, atol=1e-4)
    untouched = (dense.weight.grad == 0).all(1)
    assert untouched.any()
    assert torch.equal(fused.weight.detach()[untouched], before[0][untouched])


def test_whitened_steps_reference(data):
    """Two minibatches of two steps each, by double precision, dense gradients and the formula."""
    options = {"gradients": "fused", "learning_rate": 0.05 * WIDTH, "steps_per_batch": 2}
    layer = make_layer(**options)
    dense = make_layer().double()
    sums = np.zeros((WIDTH, WIDTH))
    squares, bias_squares = np.full((N_CLASSES, 1), INITIAL_SQUARE), np.full(N_CLASSES, INITIAL_SQUARE)
    n_rows, n = 0.0, 40
    for batch in range(2):
        hidden, y = (t[n * batch : n * (batch + 1)] for t in tensors(data))
        torch.manual_seed(batch)
        sets = layer._choose(y).sets
        assert len(sets) == 2
        assert not np.isin(sets[1][0], sets[0][0]).all()
        assert len(sets[0][0]) <= 24
        assert len(sets[1][0]) <= 6 + 12  # a quarter of the classes, and half as many targets
        torch.manual_seed(batch)
        h = hidden.clone().requires_grad_()
        layer(h, y).loss.backward()

        X = hidden.double().numpy()
        sums, n_rows = 0.99 * sums + X.T @ X, 0.99 * n_rows + n
        mean = np.trace(sums) / n_rows / WIDTH
        M = sums / n_rows + (1e-3 + WIDTH / n_rows) * mean * np.eye(WIDTH)
        root = scipy.linalg.fractional_matrix_power(M, -0.5)
        root /= np.sqrt(np.trace(root @ (sums / n_rows) @ root) / WIDTH)
        for i, drawn in enumerate(sets):
            theirs = hidden.double().requires_grad_()
            dense.zero_grad()
            shared = padded(*drawn, len(drawn[0]), hidden.device)
            losses = shared_losses(
                theirs, y, dense.weight, dense.bias, shared, label_smoothing=0.0, sparse=False
            )
            losses.mean().backward()
            if i == 0:  # loss and gradient are those before all steps
                torch.testing.assert_close(h.grad.double(), theirs.grad, rtol=1e-3, atol=1e-6)
            with torch.no_grad():
                gradient = n * dense.weight.grad.numpy() @ root
                slope = n * dense.bias.grad.numpy()
                squares += np.square(gradient).mean(axis=1, keepdims=True)
                bias_squares += np.square(slope)
                size = max(1.0, np.sqrt(mean))
                dense.weight -= torch.from_numpy(0.05 / size * gradient / np.sqrt(squares))
                dense.bias -= torch.from_numpy(0.05 * slope / np.sqrt(bias_squares))
        torch.testing.assert_close(layer.weight.double(), dense.weight.detach(), rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(layer.bias.double(), dense.bias.detach(), rtol=1e-3, atol=1e-4)


def test_wide_hidden_states_are_whitened_in_blocks_reference():
    rng = np.random.default_rng(0)
    moments = HiddenMoments(300)
    moments.reset()
    for _ in range(20):  # past the steps that decompose each time
        x = (rng.normal(size=(700, 300)) * np.linspace(0.1, 3.0, 300)).astype(np.float32)
        x[:, 260:] += x[:, :1]
        found, _ = moments.scale(x)
    assert int(moments.n_steps) == 20
    sums = moments.moments.numpy()
    np.testing.assert_array_equal(sums[256:, 44:], 0.0)
    for a, b in ((0, 256), (256, 300)):
        block, out = moments.directions.numpy()[a:b, : b - a], found[:, a:b]
        np.testing.assert_allclose(out, x[:, a:b] @ block, rtol=1e-3, atol=1e-4)
        assert abs(np.square(out).mean() - 1.0) < 0.05
        # Nearly the same length everywhere, where columns differed by 30 times.
        lengths = scipy.linalg.eigvalsh(out.T @ out / len(out))
        assert lengths[-1] < 4 * lengths[0] + 3.0
    assert moments.scale(np.full((2, 300), np.nan, np.float32)) is None
    assert int(moments.n_steps) == 20


def test_no_hidden_state_has_a_length_planted():
    """An encoder that returns zeros: no direction, and no division by it."""
    layer = make_layer(gradients="fused")
    layer(torch.zeros(5, WIDTH), torch.arange(5)).loss.backward()
    assert torch.isfinite(layer.weight).all()
    assert torch.isfinite(layer.bias).all()


def test_fused_step_does_not_depend_on_scales_invariant(data):
    """A loss or hidden states 64 times as large: the same steps, in units of the inverse of the latter."""
    hidden, y = tensors(data, 40)
    found = []
    for loss_scale, hidden_scale in ((1.0, 1.0), (64.0, 1.0), (1.0, 64.0)):
        layer = make_layer(gradients="fused")
        with torch.no_grad():
            layer.weight.div_(hidden_scale)
        before = layer.weight.detach().clone()
        h = (hidden_scale * hidden).requires_grad_()
        torch.manual_seed(0)
        (loss_scale * layer(h, y).loss).backward()
        found.append((layer.weight.detach() - before, layer.bias.detach(), h.grad))
    (step, bias, grad), (step_2, bias_2, grad_2), (step_3, bias_3, grad_3) = found
    assert step.abs().max() > 0.01
    assert torch.equal(step, step_2)
    assert torch.equal(bias, bias_2)
    torch.testing.assert_close(grad_2, 64 * grad)
    torch.testing.assert_close(64 * step_3, step, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(bias_3, bias, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(grad_3, grad / 64, rtol=1e-3, atol=1e-6)


def test_classes_that_no_row_wants_move_little(data):
    """The first step of a drawn class is in proportion to its probability; that of a target is whole."""
    layer = make_layer(gradients="fused", learning_rate=WIDTH, scale=0.0, n_shared=90)
    hidden, y = tensors(data, 20)
    hidden = hidden / hidden.square().mean().sqrt()
    layer(hidden, y).loss.backward()
    length = layer.weight.detach().square().mean(1).sqrt()
    wanted = torch.zeros(N_CLASSES, dtype=torch.bool)
    wanted[y] = True
    assert length[wanted].min() > 0.5
    assert 0.0 < length[~wanted].max() < 0.25


def test_two_calls_before_one_backward_gradient(data):
    """The step of one call does not change the gradient of the other; all classes, so that it is exact."""
    hidden, y = tensors(data, 80)
    found = {}
    for gradients in ("dense", "fused"):
        layer = make_layer(gradients=gradients, n_shared=N_CLASSES, learning_rate=5.0)
        first, second = (part.clone().requires_grad_() for part in hidden.split(40))
        (layer(first, y[:40]).loss + layer(second, y[40:]).loss).backward()
        found[gradients] = torch.cat([first.grad, second.grad])
    torch.testing.assert_close(found["fused"], found["dense"], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("length", [1e19, 1e30])
def test_huge_hidden_states_leave_no_trace_invariant(data, length):
    """Their squares overflow; later steps are as good as before."""
    hidden, y = tensors(data, 40)
    layer = make_layer(gradients="fused")
    layer(hidden, y).loss.backward()
    before = copy.deepcopy(layer.hidden_moments.state_dict())
    layer(length * hidden, y).loss.backward()
    for name, value in layer.hidden_moments.state_dict().items():
        assert torch.equal(value, before[name]), name
    held = layer.weight.clone()
    layer(hidden, y).loss.backward()
    for name, value in layer.state_dict().items():
        assert torch.isfinite(value).all(), name
    assert (layer.weight != held).any(dim=1)[y].all()


@pytest.mark.parametrize("length", [1e-12, 1e-3, 0.3, 3.0, 1e3, 1e12])
def test_a_step_of_unusual_hidden_states_planted(length):
    """Rows of unusual length make steps as long as others, and later ones hardly shorter, however long."""
    rng = np.random.default_rng(0)
    moments = HiddenMoments(8)
    moments.reset()
    for _ in range(40):
        usual, _ = moments.scale(rng.normal(size=(50, 8)).astype(np.float32))
    found, _ = moments.scale((length * rng.normal(size=(50, 8))).astype(np.float32))
    assert abs(np.square(found).mean() - 1.0) < 1e-3
    assert abs(np.square(usual).mean() - 1.0) < 0.2
    for _ in range(16):  # until the next decomposition
        later, _ = moments.scale(rng.normal(size=(50, 8)).astype(np.float32))
    assert 0.7 < np.square(later).mean() < 1.2


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("length", [1e-3, 1e3])
def test_first_minibatch_of_unusual_length_recovers(data, length, whiten):
    """Weights that it makes are not too long for later rows, and these still learn."""
    hidden, y = tensors(data, 2000)
    reached = []
    for first in (1.0, length):
        layer = make_layer(gradients="fused", scale=0.0, n_shared=N_CLASSES, whiten=whiten)
        layer(first * hidden[:100], y[:100]).loss.backward()
        for rows in torch.arange(2000).split(100):
            layer(hidden[rows], y[rows]).loss.backward()
        reached.append(layer.log_likelihood(hidden, y))
    assert reached[1] > reached[0] - 0.3


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("usual", [1.0, 100.0])
def test_one_short_minibatch_does_no_harm(data, usual, whiten):
    hidden, y = tensors(data, 2000)
    hidden, reached = usual * hidden, []
    for length in (1.0, 1e-3):
        layer = make_layer(gradients="fused", scale=0.0, n_shared=N_CLASSES, whiten=whiten)
        for step, rows in enumerate(torch.arange(2000).split(100)):
            layer(hidden[rows] * (length if step == 15 else 1.0), y[rows]).loss.backward()
        reached.append(layer.log_likelihood(hidden, y))
    assert reached[1] > reached[0] - 0.3


@in_turn(whiten=[False, True], length=[1e-15, 1e-20, 1e-25, 1e-36])
def test_tiny_hidden_states_make_whole_steps_invariant(data, length, whiten):
    """Their squares have no place in float32; steps are those of rows at unit mean square, or near them."""
    hidden, y = tensors(data, 40)
    hidden, found = hidden / hidden.square().mean().sqrt(), []
    for scale in (1.0, length):
        layer = make_layer(gradients="fused", scale=0.0, n_shared=N_CLASSES, whiten=whiten)
        for _ in range(3):
            layer(scale * hidden, y).loss.backward()
        found.append(layer.weight.detach().square().mean(dim=1).sqrt()[y])
    assert (found[1] > 0.5 * found[0]).all()
    assert (found[1] < 5.0 * found[0]).all()


def test_encoder_whose_hidden_states_grow_trains(data):
    """From 1e-4 to above 1, as an encoder without a norm makes them: scores do not explode."""
    hidden, y = tensors(data, 2000)
    reached = []
    for first in (1e-4, 1.0):
        layer = make_layer(gradients="fused", scale=0.0, n_shared=N_CLASSES)
        for step, rows in enumerate(torch.arange(2000).repeat(2).split(100)):
            layer(hidden[rows] * min(1.0, first * 2.0**step), y[rows]).loss.backward()
        reached.append(layer.log_likelihood(hidden, y))
    assert reached[0] > reached[1] - 0.5


@pytest.mark.parametrize("whiten", [False, True])
def test_hidden_states_that_are_not_finite_make_no_step_invariant(data, whiten):
    hidden, y = tensors(data, 40)
    layer = make_layer(gradients="fused", whiten=whiten)
    before = copy.deepcopy(layer.state_dict())
    hidden = hidden.index_fill(1, torch.tensor([2]), torch.inf).requires_grad_()
    layer(hidden, y).loss.backward()
    for name, value in layer.state_dict().items():
        assert name == "n_steps" or torch.equal(value, before[name]), name


@in_turn(whiten=[False, True], factor=[np.inf, -np.inf, np.nan])
def test_gradients_that_are_not_finite_make_no_step_invariant(data, whiten, factor):
    """As of a loss scaled by too much. Gradients of hidden states tell of it; later steps are made."""
    hidden, y = tensors(data, 40)
    layer = make_layer(gradients="fused", whiten=whiten)
    before = copy.deepcopy(layer.state_dict())
    h = hidden.clone().requires_grad_()
    losses = layer(h, y).losses
    (losses * torch.ones(40).index_fill(0, torch.tensor([7]), factor)).sum().backward()
    for name, value in layer.state_dict().items():
        assert name == "n_steps" or torch.equal(value, before[name]), name
    assert h.grad.isfinite().all(dim=1).sum() == 39
    assert not h.grad[7].isfinite().any()
    layer(hidden, y).loss.backward()
    assert (layer.weight != before["weight"]).any(dim=1)[y].all()
    assert all(value.isfinite().all() for value in layer.state_dict().values())


@pytest.mark.parametrize("whiten", [False, True])
def test_scores_that_overflow_make_no_step_invariant(data, whiten):
    """Hidden states and weights are finite, but not their products."""
    hidden, y = tensors(data, 40)
    layer = make_layer(gradients="fused", whiten=whiten)
    with torch.no_grad():
        layer.weight.mul_(1e20)
    before = layer.weight.detach().clone(), layer.bias.detach().clone()
    layer(1e20 * hidden, y).loss.backward()
    assert torch.equal(layer.weight, before[0])
    assert torch.equal(layer.bias, before[1])


def test_hidden_states_that_become_long_make_no_longer_steps_invariant():
    """Steps are divided by the size of rows that are far longer than the earlier ones, at once."""
    rng = np.random.default_rng(0)
    moments = ExtremeSoftmax(8, 3000, gradients="fused", n_jobs=1).hidden_moments
    for _ in range(200):
        usual = moments.scale(rng.normal(size=(32, 8)).astype(np.float32))
    assert 1.0 <= usual.size < 1.2
    for _ in range(20):
        long = moments.scale((100.0 * rng.normal(size=(32, 8))).astype(np.float32))
        assert 80.0 < long.size < 120.0


def test_loss_beyond_float32_makes_no_step_invariant():
    """Scores are finite in float32, but not the difference between two of them."""
    layer = ExtremeSoftmax(1, 2, gradients="fused", n_jobs=1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[-3e18], [3e18]]))
    before = layer.weight.detach().clone()
    losses = layer(torch.full((3, 1), 1e20, requires_grad=True), torch.zeros(3, dtype=torch.long)).losses
    losses.sum().backward()
    assert losses.isinf().all()
    assert torch.equal(layer.weight, before)


def test_huge_hidden_states_of_a_wide_layer_reference():
    """One block of two overflows: neither is stored."""
    moments = HiddenMoments(300)
    moments.reset()
    x = np.random.default_rng(0).normal(size=(20, 300)).astype(np.float32)
    moments.scale(x)
    before = copy.deepcopy(moments.state_dict())
    x[:, 280:] *= np.float32(1e25)
    found, _ = moments.scale(x)
    assert abs(np.square(found, dtype=np.float64).mean() - 1.0) < 1e-5
    for name, value in moments.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("n", [1, 40])
def test_hidden_states_at_the_edge_of_overflow_are_whitened(n):
    x = np.random.default_rng(0).normal(size=(n, 256)).astype(np.float32)
    largest = np.finfo(np.float32).max / np.square(x, dtype=np.float64).sum()
    for share, is_stored in ((0.24, 1), (0.26, 0), (0.99, 0)):
        moments = HiddenMoments(256)
        moments.reset()
        found, _ = moments.scale(x * np.float32(np.sqrt(share * largest)))
        assert int(moments.n_steps) == is_stored
        assert abs(np.square(found, dtype=np.float64).mean() - 1.0) < 1e-3


def test_fused_step_without_encoder_trains(data):
    layer = make_layer(gradients="fused")
    before = layer.weight.clone()
    layer(*tensors(data, 20)).loss.backward()  # hidden states that want no gradient
    assert not torch.equal(layer.weight, before)


def test_evaluation_is_the_exact_likelihood_identity(data):
    layer = make_layer(label_smoothing=0.1).eval()
    hidden, y = tensors(data, 50)
    expected = F.cross_entropy(F.linear(hidden, layer.weight, layer.bias), y)
    hidden.requires_grad_()
    out = layer(hidden, y)
    torch.testing.assert_close(out.loss, expected)
    (grad,) = torch.autograd.grad(out.loss, hidden)
    assert grad.abs().sum() > 0
    with torch.no_grad():
        torch.testing.assert_close(layer(hidden, y).loss, expected)
        torch.testing.assert_close(F.nll_loss(layer(hidden), y), expected)
    assert int(layer.n_steps) == 0


@pytest.mark.parametrize("gradients", ["dense", "sparse", "fused"])
def test_all_rows_ignored_is_nan_as_in_torch(data, gradients):
    hidden, _ = tensors(data, 3)
    layer = make_layer(gradients=gradients)
    before = layer.weight.detach().clone()
    loss = layer(hidden, torch.full((3,), -100)).loss
    loss.backward()
    assert loss.isnan()
    assert torch.equal(layer.weight, before)
    assert F.cross_entropy(torch.zeros(3, 5), torch.full((3,), -100)).isnan()


# -- learning


@pytest.mark.parametrize("gradients", ["dense", "fused"])
def test_planted_classes_recovers(data, gradients):
    hidden, y = tensors(data)
    counts = np.bincount(data.y, minlength=N_CLASSES)
    layer = ExtremeSoftmax(WIDTH, N_CLASSES, n_shared=24, class_counts=counts, gradients=gradients, n_jobs=1)
    trained = [p for p in layer.parameters() if p.requires_grad]
    optimiser = torch.optim.Adagrad(trained, lr=0.3) if trained else None
    layer.learning_rate = 5.0
    torch.manual_seed(0)
    for _ in range(8):
        for rows in torch.randperm(len(y)).split(200):
            layer.zero_grad()
            layer(hidden[rows], y[rows]).loss.backward()
            if optimiser is not None:
                optimiser.step()
    truth = data.truth.log_prob_all(data.X_test)[np.arange(500), data.y_test].mean()
    frequencies = np.log(data.truth.prior)[data.y_test].mean()
    reached = layer.log_likelihood(torch.from_numpy(data.X_test), torch.from_numpy(data.y_test).long())
    assert reached > frequencies + 0.75 * (truth - frequencies)


def test_untrained_layer_predicts_class_frequencies(data):
    counts = np.bincount(data.y, minlength=N_CLASSES) + 1
    layer = ExtremeSoftmax(WIDTH, N_CLASSES, class_counts=torch.from_numpy(counts))
    expected = np.log(counts / counts.sum())
    np.testing.assert_allclose(layer(torch.zeros(2, WIDTH)).detach()[1], expected, atol=1e-5)


def test_sets_grow_with_the_steps_reference():
    layer = ExtremeSoftmax(4, 5000, gradients="fused", n_jobs=1)
    y = torch.arange(6)
    for n_steps, size in ((0, 512), (1023, 512), (1024, 2048), (99_000, 2048)):
        layer.n_steps.fill_(n_steps)
        n_drawn, ((classes, minus_log_pi), (later, _)) = layer._choose(y)
        assert len(classes) == n_drawn == size
        np.testing.assert_allclose(minus_log_pi, -np.log(size * 0.0002), rtol=1e-5)
        assert size // 4 <= len(later) <= size // 4 + 6
        assert np.isin(y, later).all()
    assert set(layer._draws) == {2048, 512}
    for n_classes, n_steps, size in ((1500, 0, 512), (1500, 1024, 1500), (1024, 0, 1024), (20, 0, 20)):
        layer = ExtremeSoftmax(4, n_classes, gradients="fused")
        layer.n_steps.fill_(n_steps)
        _, ((classes, minus_log_pi), _) = layer._choose(y)
        assert len(classes) == size
        assert (size == n_classes) == (not minus_log_pi.any())
    for n_classes, size in ((5000, 2048), (1500, 1500)):
        _, ((classes, _),) = ExtremeSoftmax(4, n_classes)._choose(y)
        assert len(classes) == size


def test_classes_are_drawn_by_a_power_of_their_counts_identity():
    counts = np.arange(1.0, 3001.0)
    for exponent, options in ((0.75, {}), (0.5, {"class_exponent": 0.5})):
        layer = ExtremeSoftmax(4, 3000, class_counts=counts, n_shared=200, **options)
        (draws,) = layer._current_draws([200])
        expected = 200 * counts**exponent / (counts**exponent).sum()
        np.testing.assert_allclose(np.diff(draws.cumulative, prepend=0.0), expected)


@pytest.mark.parametrize("gradients", ["dense", "sparse", "fused"])
def test_same_seed_same_model_invariant(data, gradients):
    def train(n_jobs):
        layer = make_layer(gradients=gradients, n_jobs=n_jobs)
        trained = [p for p in layer.parameters() if p.requires_grad]
        optimiser = torch.optim.SGD(trained, lr=0.5) if trained else None
        torch.manual_seed(5)
        for rows in torch.arange(900).split(100):
            layer.zero_grad()
            hidden, y = (t[rows] for t in tensors(data))
            layer(hidden, y).loss.backward()
            if optimiser is not None:
                optimiser.step()
        return layer.state_dict()

    one, two = train(1), train(2)
    for name, value in one.items():
        assert torch.equal(value, two[name]), name


def test_fused_step_does_not_depend_on_threads_invariant():
    """At a size where products by torch differ between one and two threads."""
    rng, found = np.random.default_rng(0), []
    hidden = torch.from_numpy(rng.normal(size=(256, 128)).astype(np.float32))
    y, threads = torch.from_numpy(rng.integers(5000, size=256)), torch.get_num_threads()
    try:
        for n_threads in (1, 2):
            torch.set_num_threads(n_threads)
            layer = ExtremeSoftmax(128, 5000, gradients="fused", n_jobs=n_threads)
            torch.manual_seed(0)
            for _ in range(2):
                h = hidden.clone().requires_grad_()
                layer(h, y).loss.backward()
            found.append((h.grad, layer.weight.detach(), layer.bias.detach()))
    finally:
        torch.set_num_threads(threads)
    for one, two in zip(*found, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("gradients", ["dense", "sparse", "fused"])
def test_the_same_seed_in_every_epoch_reference(data, gradients):
    """Other rows with the same random numbers get later sets with their own targets, and count as a step."""
    layer = make_layer(gradients=gradients, n_shared=20)
    parts = tensors(data, 15)[1].split(5)
    (known,) = layer._current_draws([20])
    for step, y in enumerate(parts, 1):
        torch.manual_seed(7)
        positions = torch.rand(2, dtype=torch.float64).numpy()
        torch.manual_seed(7)
        found, *later = layer._choose(y).sets
        assert len(later) == (gradients == "fused")
        assert all(np.isin(y, classes).all() for classes, _ in later)
        expected = known.draw(positions)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert int(layer.n_steps) == step
        torch.manual_seed(7)  # as activation checkpointing does
        again, *_ = layer._choose(y).sets
        assert all(a is b for a, b in zip(found, again, strict=True))
        assert int(layer.n_steps) == step


# -- state


def test_state_dict_round_trip_invariant(data):
    layer = make_layer(class_counts=np.arange(1, N_CLASSES + 1))
    hidden, y = tensors(data, 40)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    fresh = make_layer()
    fresh(hidden, y)  # made its own draws before the state came
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(fresh(hidden), layer(hidden))
    torch.manual_seed(0)
    first = layer(hidden, y).losses
    torch.manual_seed(0)
    assert torch.equal(first, fresh(hidden, y).losses)


def test_fused_training_goes_on_from_a_state_invariant(data):
    """Adagrad's sums are part of the state."""
    hidden, y = tensors(data, 200)

    def train(layer, parts):
        for seed in parts:
            torch.manual_seed(seed)
            rows = slice(50 * seed, 50 * seed + 50)
            layer(hidden[rows], y[rows]).loss.backward()

    whole = make_layer(gradients="fused")
    train(whole, range(4))
    first = make_layer(gradients="fused")
    train(first, range(2))
    second = ExtremeSoftmax(WIDTH, N_CLASSES, n_shared=24, n_jobs=1, gradients="fused")
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    train(second, range(2, 4))
    for name, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_state_without_size_is_loaded(data):
    """As of an earlier version without whitening: the usual size starts anew."""
    layer = make_layer(gradients="fused", whiten=False)
    state = {name: value.clone() for name, value in layer.state_dict().items() if "hidden_size" not in name}
    assert len(state) == len(layer.state_dict()) - 1
    layer(*tensors(data, 20)).loss.backward()
    assert layer.hidden_size.size() > 1.0
    layer.load_state_dict(state)
    assert layer.hidden_size.size() == 0.0


def test_usual_size_without_whitening_reference():
    """The median of the latest fifteen minibatches, which a few of any length do not change."""
    rng, known, sizes = np.random.default_rng(0), HiddenSize(8), []
    known.reset()
    for length in [1e3, *[1.0] * 20, *[1e-3, 1e30] * 5, 0.0, *[1e-25] * 6, *[50.0] * 9]:
        x = (3.0 * length * rng.normal(size=(5, 8))).astype(np.float32)
        own = np.sqrt(np.square(x, dtype=np.float64).mean())
        usual = np.percentile(sizes[-15:], 50, method="lower") if sizes else 0.0
        assert known.size() == usual
        rows, size = known.scale(x)
        assert size == max(1.0, usual, own)
        if length:
            assert np.square(rows, dtype=np.float64).mean() == pytest.approx(1.0, rel=1e-5)
            sizes.append(own)
    assert 100.0 < known.size() < 300.0
    assert known.scale(np.empty((0, 8), np.float32)) is None
    assert known.scale(np.full((1, 8), np.inf, np.float32)) is None


def test_state_without_moments_is_loaded(data):
    """As of a layer that does not whiten: moments start anew."""
    plain = make_layer(gradients="fused", whiten=False)
    assert not any(name.startswith("hidden_moments") for name in plain.state_dict())
    layer = make_layer(gradients="fused")
    layer(*tensors(data, 20)).loss.backward()
    assert float(layer.hidden_moments.n_rows) == 20.0
    layer.load_state_dict(plain.state_dict())
    assert torch.equal(layer.weight, plain.weight)
    assert not layer.hidden_moments.moments.any()
    assert float(layer.hidden_moments.n_rows) == 0.0


@pytest.mark.parametrize(("old", "new"), list(itertools.pairwise([*KINDS, *list(KINDS)[:1]])))
def test_state_of_other_gradients_is_loaded_reference(data, old, new):
    """Tables come along; sums and moments come along where both have them, and start anew elsewhere."""
    hidden, y = tensors(data, 60)
    first, second = make_layer(**KINDS[old]), make_layer(**KINDS[new])
    fresh = ExtremeSoftmax(WIDTH, N_CLASSES, **KINDS[new]).state_dict()
    for layer in (first, second):
        for rows in range(3):
            layer(hidden[20 * rows :][:20], y[20 * rows :][:20]).loss.backward()
    second(hidden[:20], y[:20]).loss.backward()
    given = copy.deepcopy(first.state_dict())
    nn.Sequential(second).load_state_dict({f"0.{name}": value for name, value in given.items()})
    for name, value in second.state_dict().items():
        has_both = name in given and given[name].shape == value.shape
        assert torch.equal(value, given[name] if has_both else fresh[name]), name
    assert int(second.n_steps) == 3
    second(hidden, y).loss.backward()
    other = ExtremeSoftmax(WIDTH, N_CLASSES, device="meta", **KINDS[new])
    other.load_state_dict(given, assign=True)
    for name, value in other.state_dict().items():
        has_both = name in given and given[name].shape == value.shape
        assert torch.equal(value, given[name] if has_both else fresh[name]), name
    wrong = ExtremeSoftmax(WIDTH, N_CLASSES + 1, **KINDS[old])
    with pytest.raises(RuntimeError, match="size mismatch"):
        second.load_state_dict(wrong.state_dict())


@pytest.mark.parametrize(("old", "new"), list(itertools.pairwise([*KINDS, *list(KINDS)[:1]])))
def test_assigned_tensors_are_where_the_state_is_invariant(old, new):
    """With assign=True, what starts anew is beside what came, wherever the layer was."""
    for of_state, of_layer in (("cpu", "meta"), ("meta", "cpu"), ("cpu", "cpu")):
        state = ExtremeSoftmax(WIDTH, N_CLASSES, device=of_state, **KINDS[old]).state_dict()
        layer = ExtremeSoftmax(WIDTH, N_CLASSES, device=of_layer, **KINDS[new])
        layer.load_state_dict(state, assign=True)
        assert {name: value.device.type for name, value in layer.state_dict().items()} == dict.fromkeys(
            layer.state_dict(), of_state
        )


def test_state_of_an_encoder_alone_keeps_the_layer(data):
    layer = make_layer(gradients="fused")
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), layer)
    layer(*tensors(data, 20)).loss.backward()
    before = copy.deepcopy(layer.state_dict())
    model.load_state_dict({"0." + name: value for name, value in model[0].state_dict().items()}, strict=False)
    assert float(layer.hidden_moments.n_rows) == 20.0
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("gradients", ["dense", "fused"])
def test_training_again_counts_and_draws_again_invariant(data, gradients):
    """The same seed and rows after a reset or another state: sets of before are forgotten."""
    _, y = tensors(data, 60)
    layer = make_layer(gradients=gradients)

    def train():
        torch.manual_seed(0)
        sets = [layer._choose(part).sets[0] for part in y.split(20)]
        assert int(layer.n_steps) == 3
        return sets

    first = train()
    layer.reset_parameters()
    for ours, theirs in zip(train(), first, strict=True):
        np.testing.assert_array_equal(ours[0], theirs[0])
    counts = np.arange(1, N_CLASSES + 1) ** 3
    other = make_layer(gradients=gradients, class_counts=counts)
    layer.load_state_dict(other.state_dict())
    second = train()
    assert any(not np.array_equal(ours[1], theirs[1]) for ours, theirs in zip(second, first, strict=True))


def test_class_counts_are_loaded(data):
    hidden, y = tensors(data, 40)
    layer = make_layer(class_counts=np.arange(1, N_CLASSES + 1) ** 3)
    fresh = make_layer()
    fresh(hidden, y)
    fresh.load_state_dict(layer.state_dict())
    (found,), (expected,) = fresh._current_draws([24]), layer._current_draws([24])
    np.testing.assert_array_equal(found.cumulative, expected.cumulative)


def test_copy_draws_the_same_invariant(data):
    layer = make_layer()
    hidden, y = tensors(data, 40)
    layer(hidden, y)
    twin = copy.deepcopy(layer)
    losses = []
    for each in (layer, twin):
        torch.manual_seed(0)
        losses.append(each(hidden, y).losses)
    assert torch.equal(*losses)


@pytest.mark.parametrize("gradients", ["dense", "sparse", "fused"])
def test_meta_device_and_reset_invariant(gradients):
    counts = np.arange(1, N_CLASSES + 1)
    options = {"class_counts": counts, "gradients": gradients}
    layer = ExtremeSoftmax(WIDTH, N_CLASSES, device="meta", **options)
    assert layer.weight.is_meta
    assert layer.class_counts.is_meta
    layer.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in layer.state_dict().values():
            tensor.fill_(1)  # what was in the memory before
    layer.reset_parameters()
    expected = ExtremeSoftmax(WIDTH, N_CLASSES, **options).state_dict()
    for name, value in layer.state_dict().items():
        assert torch.equal(value, expected[name]), name
    with torch.device("meta"):
        assert ExtremeSoftmax(WIDTH, N_CLASSES).weight.is_meta


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_double_precision_gradient(smoothing):
    """Finite differences in float64, of the loss over drawn classes and of the exact one."""
    layer = ExtremeSoftmax(4, 20, n_shared=8, n_jobs=1, dtype=torch.float64, label_smoothing=smoothing)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for table in layer.parameters():
            table.copy_(0.3 * torch.randn(table.shape, generator=generator, dtype=torch.float64))
    hidden = torch.randn(3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([2, 11, 19])

    def loss(h, weight, bias):
        torch.manual_seed(0)
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (h, y)).losses

    inputs = (hidden, *(p.detach().clone().requires_grad_() for p in (layer.weight, layer.bias)))
    assert loss(*inputs).dtype == torch.float64
    assert torch.autograd.gradcheck(loss, inputs)
    layer.eval()
    expected = F.cross_entropy(F.linear(hidden, layer.weight, layer.bias), y)
    torch.testing.assert_close(layer(hidden, y).loss, expected, rtol=1e-12, atol=1e-12)


def test_dtype_of_the_parameters(data):
    layer = ExtremeSoftmax(WIDTH, N_CLASSES, dtype=torch.float64)
    assert layer.weight.dtype == layer.bias.dtype == torch.float64
    half = make_layer().to(torch.bfloat16)
    hidden, y = tensors(data, 40)
    out = half(hidden.bfloat16().requires_grad_(), y)
    out.loss.backward()
    assert out.loss.dtype == torch.float32
    assert half.weight.grad.dtype == torch.bfloat16
    # bfloat16 has three digits.
    torch.testing.assert_close(half.eval()(hidden.bfloat16()), make_layer()(hidden), atol=0.1, rtol=0.05)


# -- errors


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"n_shared": 0}, "n_shared is 0"),
        ({"gradients": "none"}, "gradients is 'none'; use 'dense', 'sparse' or 'fused'"),
        ({"label_smoothing": 1.5}, "label_smoothing is 1.5"),
        ({"gradients": "fused", "label_smoothing": 0.1}, "has no label smoothing"),
        ({"gradients": "fused", "dtype": torch.float64}, "needs parameters in float32"),
        ({"class_counts": [1, 2]}, r"class_counts has shape \(2,\)"),
    ],
)
def test_wrong_options_rejects(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        ExtremeSoftmax(4, 3, **options)


@pytest.mark.parametrize(
    ("n_features", "targets", "sentence"),
    [
        (3, [0, 0], r"hidden has shape \(2, 3\)"),
        (WIDTH, [0, 0, 0], r"targets has shape \(3,\)"),
        (WIDTH, [0, N_CLASSES], f"targets holds {N_CLASSES}; the classes are 0"),
        (WIDTH, [0, -1], "targets holds -1"),
    ],
)
def test_wrong_input_rejects(n_features, targets, sentence):
    with pytest.raises(ValueError, match=sentence):
        make_layer()(torch.zeros(2, n_features), torch.tensor(targets))


def test_wrong_calls_reject():
    layer, hidden = make_layer(), torch.zeros(1, WIDTH)
    with pytest.raises(TypeError, match="integer classes"):
        layer(hidden, torch.zeros(1))
    with pytest.raises(ValueError, match="mean over no rows"):
        layer.log_likelihood(hidden, torch.tensor([-100]))
    with pytest.raises(ValueError, match="k is 0"):
        layer.predict_topk(hidden, 0)


def test_missing_torch_names_the_extra_rejects():
    code = "import sys; sys.modules['torch'] = None\nimport extremax.nn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].endswith(
        "PyTorch, which is not installed: pip install extremax[torch]"
    )


def test_fused_in_lower_precision_rejects(data):
    layer = make_layer(gradients="fused").to(torch.bfloat16)
    with pytest.raises(RuntimeError, match=r"these are torch.bfloat16 on cpu"):
        layer(*tensors(data, 3))


@pytest.mark.parametrize(("kind", "dtype"), list(zip(KINDS, itertools.cycle(["half", "double", "bfloat16"]))))
def test_types_of_weights_leave_counts_and_sums_invariant(data, kind, dtype):
    """Buffers stay bit for bit, in the type that they have; fused steps say what they need, and go on."""
    hidden, y = tensors(data, 200)
    layer = make_layer(class_counts=np.arange(100_001, 100_001 + N_CLASSES), **KINDS[kind])
    for _ in range(3):
        layer(hidden, y).loss.backward()
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    getattr(layer, dtype)()
    assert layer.weight.dtype == layer.bias.dtype == getattr(torch, dtype)
    for name, buffer in layer.named_buffers():
        assert buffer.dtype == before[name].dtype, name
        assert torch.equal(buffer, before[name]), name
    if layer.gradients == "fused" and dtype != "float":
        with pytest.raises(RuntimeError, match=f"needs weights in float32 .* these are {layer.weight.dtype}"):
            layer(hidden, y)
    layer.float()(hidden, y).loss.backward()
    if layer.gradients == "fused":
        assert (layer.squares > before["squares"]).any()


def test_modules_of_torch_accept_it(data):
    """Inside a Sequential it is an inference layer."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), make_layer())
    assert model(tensors(data, 5)[0]).shape == (5, N_CLASSES)
