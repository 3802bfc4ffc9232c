"""AdversarialSoftmax: gradients, agreement with the numpy engine, learning, refits, state."""

from __future__ import annotations

import copy
import io
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import reference
from extremax import search as predict
from extremax.data import planted_hierarchy
from extremax.kernels.row_training import Pairs
from extremax.linear import LinearModel
from extremax.nn import AdversarialSoftmax
from extremax.nn.rebase import fit_change
from extremax.noise import FrequencyNoise
from extremax.training.objectives import OBJECTIVES

# torch tells of its own default once per process when an optimiser makes a sparse tensor.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")

N_CLASSES, WIDTH = 40, 12
VARIANTS = [(o, b) for o in ("negative_sampling", "sampled_softmax") for b in ("none", "noise")]


@pytest.fixture(scope="module")
def data():
    return planted_hierarchy(3000, N_CLASSES, WIDTH, seed=1, n_test=500, noise_scale=0.7)


def tensors(data):
    return torch.from_numpy(data.X), torch.from_numpy(data.y).long()


def make_head(data=None, *, randomise=True, **options):
    """A head with a tree (if there are data) and random weights."""
    head = AdversarialSoftmax(WIDTH, N_CLASSES, n_components=6, n_negatives=3, n_jobs=1, **options)
    if data is not None:
        head.fit_tree(*tensors(data))
    if randomise:
        rng = np.random.default_rng(0)
        with torch.no_grad():
            head.weight.copy_(torch.from_numpy(0.3 * rng.normal(size=(N_CLASSES, WIDTH))))
            head.bias.add_(torch.from_numpy(0.3 * rng.normal(size=(N_CLASSES, 1))))
    return head


def log_noise_of(head, hidden, labels):
    return head.noise.current().log_prob(head.noise.project(hidden), labels.numpy().astype(np.int32))


# -- the loss
# ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [0.0, 0.02])
@pytest.mark.parametrize(("objective", "base"), VARIANTS)
def test_loss_matches_reference_gradient(data, objective, base, penalty):
    """Loss and all three gradients against a dense computation in float64 by autograd, and against
    tests/reference.py.
    """
    head = make_head(data, objective=objective, base=base, score_penalty=penalty)
    hidden = torch.from_numpy(data.X[:20]).requires_grad_()
    out = head(hidden, torch.from_numpy(data.y[:20]).long())
    out.loss.backward()
    assert head.weight.grad.is_sparse
    assert head.bias.grad.is_sparse

    h = hidden.detach().double().requires_grad_()
    w, b = (p.detach().double().requires_grad_() for p in (head.weight, head.bias))
    log_noise = torch.from_numpy(log_noise_of(head, hidden, out.labels)).double()
    xi = (w[out.labels] * h[:, None]).sum(-1) + b[out.labels, 0]
    s = xi + (log_noise if base == "noise" else 0.0)
    a = s - log_noise
    if objective == "negative_sampling":
        losses = -nn.functional.logsigmoid(a[:, 0]) + penalty * s[:, 0] ** 2
        losses = losses + (-nn.functional.logsigmoid(-a[:, 1:]) + penalty * s[:, 1:] ** 2).mean(1)
    else:
        losses = torch.logsumexp(a, 1) - a[:, 0] + penalty * (s**2).sum(1)
    losses.mean().backward()
    tolerance = {"rtol": 2e-5, "atol": 1e-6}  # float32 sums of a dozen products
    torch.testing.assert_close(out.losses.double(), losses.detach(), **tolerance)
    torch.testing.assert_close(head.weight.grad.to_dense().double(), w.grad, **tolerance)
    torch.testing.assert_close(head.bias.grad.to_dense().double(), b.grad, **tolerance)
    torch.testing.assert_close(hidden.grad.double(), h.grad, **tolerance)

    log_base = log_noise.numpy() if base == "noise" else np.zeros(a.shape)
    arguments = (xi.detach().numpy(), log_base, log_noise.numpy(), np.ones(20), penalty, out.labels.numpy())
    np.testing.assert_allclose(
        out.losses.detach(), reference.LOSSES[objective](*arguments), rtol=2e-5, atol=1e-6
    )
    torch.testing.assert_close(out.debiased_scores.double(), s.detach(), **tolerance)


@pytest.mark.parametrize(("objective", "base"), VARIANTS)
def test_coefficients_are_those_of_the_numpy_engine_same_everywhere(data, objective, base):
    """d loss / d xi from the compiled objective, spread over classes, is the gradient of the head's bias."""
    head = make_head(data, objective=objective, base=base, score_penalty=0.01)
    hidden, y = torch.from_numpy(data.X[:30]), torch.from_numpy(data.y[:30]).long()
    out = head(hidden, y)
    out.loss.backward()
    labels, log_noise = out.labels.numpy(), log_noise_of(head, hidden, out.labels)
    w, b = head.weight.detach().numpy(), head.bias.detach().numpy()
    scores = (np.einsum("nd,nmd->nm", data.X[:30], w[labels]) + b[labels, 0]).astype(np.float32)
    log_base = log_noise if base == "noise" else np.zeros_like(log_noise)
    coefficients, losses = np.empty_like(scores), np.empty(30)
    row_weight, eta = np.full(30, 1 / 30, np.float32), np.full(30, -1.0, np.float32)
    tables = (labels.astype(np.int32), log_base, log_noise, row_weight, scores, coefficients, losses, eta)
    engine = OBJECTIVES[objective]
    engine.kernel(engine.settings_of(0.01, 0), Pairs(np.arange(30), *tables), 0, 30)
    assert out.loss.item() == pytest.approx(losses.sum(), rel=1e-5)
    expected_bias, expected_weight = np.zeros(N_CLASSES), np.zeros((N_CLASSES, WIDTH))
    np.add.at(expected_bias, labels, coefficients)
    np.add.at(expected_weight, labels, coefficients[:, :, None] * data.X[:30, None, :])
    np.testing.assert_allclose(head.bias.grad.to_dense()[:, 0], expected_bias, atol=1e-6)  # float32 sums
    np.testing.assert_allclose(head.weight.grad.to_dense(), expected_weight, atol=3e-6)


def test_negatives_follow_the_noise(data):
    """Counts of many draws for one hidden state, within 5 standard errors."""
    head = make_head(data)
    hidden = torch.from_numpy(np.repeat(data.X[:1], 5000, axis=0))
    drawn = head(hidden, torch.zeros(5000, dtype=torch.int64)).labels[:, 1:].reshape(-1)
    p = np.exp(head.noise.current().log_prob_all(head.noise.project(hidden[:1]))[0])
    counts = np.bincount(drawn, minlength=N_CLASSES)
    assert np.all(np.abs(counts - 15000 * p) < 5 * np.sqrt(15000 * p * (1 - p)) + 1)


def test_draws_depend_on_seed_and_step_alone_invariant(data):
    hidden, y = (t[:50] for t in tensors(data))
    one, two, other = make_head(data), make_head(data), make_head(data, random_state=1)
    two.n_jobs = 2
    first = one(hidden, y).labels
    assert torch.equal(first, two(hidden, y).labels)
    assert not torch.equal(first, other(hidden, y).labels)
    assert not torch.equal(first, one(hidden, y).labels)  # the next step
    one.eval()
    assert torch.equal(one(hidden, y).labels, one(hidden, y).labels)  # evaluation takes no steps
    assert int(one.n_steps) == 2


def test_ignored_rows_and_leading_dimensions_invariant(data):
    hidden, y = (t[:24] for t in tensors(data))
    flat = make_head(data)(hidden, y)
    shaped = make_head(data)(hidden.reshape(4, 6, WIDTH), y.reshape(4, 6))
    assert torch.equal(flat.losses, shaped.losses)
    masked = y.clone()
    masked[20:] = -100
    assert torch.equal(make_head(data)(hidden, masked).losses, make_head(data)(hidden[:20], y[:20]).losses)


# -- prediction
# ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["none", "noise"])
@pytest.mark.parametrize("fitted", [False, True])
def test_log_prob_identity(data, base, fitted):
    head = make_head(data if fitted else None, base=base)
    hidden, y = (t[:30] for t in tensors(data))
    log_prob = head.log_prob(hidden.reshape(5, 6, WIDTH))
    assert log_prob.shape == (5, 6, N_CLASSES)
    log_prob = log_prob.reshape(30, N_CLASSES).detach()
    # float32 sums of 40 terms
    torch.testing.assert_close(log_prob.exp().sum(1), torch.ones(30), atol=1e-5, rtol=0)
    target = log_prob[torch.arange(30), y]
    torch.testing.assert_close(head.target_log_prob(hidden, y), target)
    assert head.log_likelihood(hidden, y) == pytest.approx(float(target.mean()), rel=1e-6)


def test_untrained_head_predicts_class_frequencies(data):
    counts = np.bincount(data.y, minlength=N_CLASSES)
    expected = FrequencyNoise(counts).log_prob_
    for base in ("none", "noise"):
        head = make_head(randomise=False, base=base, class_counts=counts)
        np.testing.assert_allclose(
            head.log_prob(torch.from_numpy(data.X[:2])).detach()[1], expected, atol=1e-5
        )
    uniform = make_head(randomise=False).log_prob(torch.from_numpy(data.X[:2])).detach()
    np.testing.assert_allclose(uniform, -np.log(N_CLASSES), atol=1e-5)


@pytest.mark.parametrize("tree_share", [0.5, 1.0])
@pytest.mark.parametrize("base", ["none", "noise"])
def test_predictions_are_those_of_the_numpy_engine_same_everywhere(data, base, tree_share):
    head = make_head(data, base=base, tree_share=tree_share)
    linear = LinearModel.zeros(N_CLASSES, WIDTH)
    linear.weights[...], linear.biases[...] = head.weight.detach().numpy(), head.bias.detach().numpy()[:, 0]
    hidden = torch.from_numpy(data.X_test[:100])
    noise, Z = (head.noise.current() if base == "noise" else None), head.noise.project(hidden)
    expected = predict.exact_topk(data.X_test[:100], linear, noise, Z, 5)
    labels, log_prob = head.predict_topk(hidden, 5)
    np.testing.assert_array_equal(labels, expected[0])
    np.testing.assert_allclose(log_prob, expected[1], atol=2e-5)  # float32 sums in another order
    expected = predict.beam_topk(data.X_test[:100], linear, head.noise.tree, noise, Z, 3, beam_width=8)
    labels, log_prob = head.predict_topk(hidden, 3, search="beam", beam_width=8)
    np.testing.assert_array_equal(labels, expected[0])
    np.testing.assert_allclose(log_prob, expected[1], atol=2e-5)
    whole = head.predict_topk(hidden, 5, search="beam", beam_width=N_CLASSES)
    for ours, theirs in zip(whole, head.predict_topk(hidden, 5), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)  # a beam as wide as the tree


# -- learning
# ------------------------------------------------------------------------------------------------------------------


def train(head, data, *, encoder=None, n_epochs=10, learning_rate=0.1):
    hidden, y = tensors(data)
    parameters = list(encoder.parameters()) if encoder is not None else []
    optimisers = [torch.optim.Adagrad(head.parameters(), lr=learning_rate)]
    optimisers += [torch.optim.Adam(parameters, lr=3e-3)] if parameters else []
    torch.manual_seed(0)
    for _ in range(n_epochs):
        for rows in torch.randperm(len(y)).split(200):
            loss = head(hidden[rows] if encoder is None else encoder(hidden[rows]), y[rows]).loss
            for optimiser in optimisers:
                optimiser.zero_grad()
            loss.backward()
            for optimiser in optimisers:
                optimiser.step()


@pytest.mark.parametrize(("objective", "base"), VARIANTS)
def test_planted_classes_recovers(data, objective, base):
    head = AdversarialSoftmax(WIDTH, N_CLASSES, objective=objective, base=base, n_components=8, n_jobs=1)
    head.fit_tree(*tensors(data))
    train(head, data, learning_rate=0.3)
    hidden, y = torch.from_numpy(data.X_test), torch.from_numpy(data.y_test).long()
    truth = data.truth.log_prob_all(data.X_test)[np.arange(500), data.y_test].mean()
    frequencies = np.log(data.truth.prior)[data.y_test].mean()
    # At least 80 % of the way from class frequencies to the truth; the noise alone gets much less far.
    assert head.log_likelihood(hidden, y) > frequencies + 0.8 * (truth - frequencies)


def test_encoder_and_refits_recover(data):
    """The features through a random rotation and a nonlinearity; the encoder learns, and the tree follows."""
    torch.manual_seed(1)
    encoder = nn.Sequential(nn.Linear(WIDTH, 48), nn.ReLU(), nn.Linear(48, WIDTH))
    head = AdversarialSoftmax(WIDTH, N_CLASSES, refit_every=40, n_components=8, n_jobs=1)
    train(head, data, encoder=encoder, n_epochs=8)
    assert head.noise.tree is not None
    assert int(head.n_steps) == 8 * 15
    hidden, y = encoder(torch.from_numpy(data.X_test)).detach(), torch.from_numpy(data.y_test).long()
    frequencies = np.log(data.truth.prior)[data.y_test].mean()
    assert head.log_likelihood(hidden, y) > 0.6 * frequencies
    # Negatives are closer to the data than class frequencies are.
    log_noise = head.noise.current().log_prob(head.noise.project(hidden), data.y_test)
    assert log_noise.mean() > 0.8 * frequencies


def test_rows_kept_for_a_refit_are_the_latest(data):
    head = make_head(refit_every=100, refit_rows=100)
    hidden, y = tensors(data)
    for i in range(5):
        head(hidden[60 * i : 60 * i + 60], y[60 * i : 60 * i + 60])
    kept = torch.cat([part for _, part in head._recent])
    assert torch.equal(kept, y[180:300])  # whole batches, at least 100 rows


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.SparseAdam])
def test_sparse_optimisers_move_drawn_classes_alone(data, optimiser):
    head = make_head(data)
    before = head.weight.detach().clone()
    stepper = optimiser(head.parameters(), lr=0.1)
    out = head(torch.from_numpy(data.X[:4]), torch.from_numpy(data.y[:4]).long())
    out.loss.backward()
    stepper.step()
    moved = (head.weight.detach() != before).any(dim=1).nonzero().ravel()
    assert set(moved.tolist()) == set(out.labels.ravel().tolist())


def test_dense_gradients_on_request(data):
    head = make_head(data, sparse=False)
    head(torch.from_numpy(data.X[:4]), torch.from_numpy(data.y[:4]).long()).loss.backward()
    assert not head.weight.grad.is_sparse


# -- refits
# --------------------------------------------------------------------------------------------------------------------


def test_refit_leaves_scores_alone_without_base(data):
    head = make_head(data)
    hidden, y = tensors(data)
    before = head.log_prob(hidden[:50]).detach()
    assert head.fit_tree(hidden[:1500], y[:1500]) is None
    assert torch.equal(head.log_prob(hidden[:50]).detach(), before)


def test_refit_keeps_debiased_scores_with_noise_as_base(data):
    """From class frequencies to a tree. Log p of the tree is not linear in the hidden states, so part of
    the change stays.
    """
    counts = np.bincount(data.y, minlength=N_CLASSES)
    head = AdversarialSoftmax(WIDTH, N_CLASSES, base="noise", class_counts=counts, n_components=8, n_jobs=1)
    train(head, data, n_epochs=5)
    test = torch.from_numpy(data.X_test)
    before = head.log_prob(test).detach().exp()
    left_alone = copy.deepcopy(head)
    left_alone.fit_tree(*tensors(data), keep_scores=False)
    quality = head.fit_tree(*tensors(data))
    assert quality is head.last_rebase
    assert quality.residual < 0.5 * quality.shift
    # Probability that moves to other classes: what a reader of predictions sees of the residual.
    moved = [
        float((h.log_prob(test).detach().exp() - before).abs().sum(1).mean()) / 2 for h in (head, left_alone)
    ]
    assert moved[0] < 0.8 * moved[1]


@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_change_of_scores_is_never_worse_than_none(slope):
    """Held-out pairs decide: what follows delta is taken, pure noise is left alone."""
    rng = np.random.default_rng(0)
    Z, labels = (
        rng.normal(size=(300, 4)).astype(np.float32),
        rng.integers(100, size=(300, 3)).astype(np.int32),
    )
    delta = slope * (Z[:, :1] + np.array([0.5])) + rng.normal(size=(300, 3)) * (1.0 - slope)
    change = fit_change(Z, labels, delta.astype(np.float32), np.ones((300, 3)))
    if slope:
        assert change.quality.residual < 0.5 * change.quality.shift
    else:
        assert change.quality.residual == change.quality.shift
        assert len(change.classes) == 0


def test_first_fit_starts_from_the_tree(data):
    head = AdversarialSoftmax(WIDTH, N_CLASSES, base="noise", tree_share=1.0, n_components=8, n_jobs=1)
    assert head.fit_tree(*tensors(data)) is None
    hidden = torch.from_numpy(data.X_test[:20])
    expected = head.noise.tree.log_prob_all(head.noise.project(hidden))
    np.testing.assert_allclose(head.log_prob(hidden).detach(), expected, atol=1e-5)


def test_buffers_of_another_process_are_noticed(data):
    """DistributedDataParallel copies the first process's buffers into those of all others before each
    step.
    """
    hidden, y = tensors(data)
    first, other = make_head(), make_head()
    for head, rows in ((first, slice(0, 1000)), (other, slice(1000, 2000))):
        head.fit_tree(hidden[rows], y[rows])
        head.noise.current()
    for ours, theirs in zip(other.buffers(), first.buffers(), strict=True):
        ours.copy_(theirs)
    assert torch.equal(other(hidden[:9], y[:9]).labels, first(hidden[:9], y[:9]).labels)


def test_refit_of_weights_in_several_processes_rejects(data, monkeypatch):
    monkeypatch.setattr("extremax.nn.head._n_processes", lambda: 2)
    with pytest.raises(
        ValueError,
        match=r"refit_every with base='noise' changes the weights, .* call fit_tree in every process",
    ):
        make_head(base="noise", refit_every=5)(*tensors(data))


# -- state
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["none", "noise"])
def test_state_dict_round_trip_invariant(data, base):
    head = make_head(data, base=base)
    hidden, y = (t[:40] for t in tensors(data))
    head(hidden, y)
    file = io.BytesIO()
    torch.save(head.state_dict(), file)
    file.seek(0)
    fresh = make_head(randomise=False, base=base)
    fresh.log_prob(hidden)  # made its own noise before the state came
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(fresh.log_prob(hidden), head.log_prob(hidden))
    assert torch.equal(fresh(hidden, y).labels, head(hidden, y).labels)  # the next step
    for ours, theirs in zip(
        fresh.predict_topk(hidden, 3, search="beam"), head.predict_topk(hidden, 3, search="beam"), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_copy_is_independent_invariant(data):
    head = make_head(data, base="noise")
    hidden, y = tensors(data)
    twin = copy.deepcopy(head)
    before = head.log_prob(hidden[:5]).detach()
    assert torch.equal(twin.log_prob(hidden[:5]).detach(), before)
    twin.fit_tree(hidden[:500], y[:500], keep_scores=False)
    assert torch.equal(head.log_prob(hidden[:5]).detach(), before)
    assert not torch.equal(twin.log_prob(hidden[:5]).detach(), before)


def test_lower_precision_keeps_the_noise_exact(data):
    head = make_head(data, base="noise")
    hidden, y = (t[:40] for t in tensors(data))
    expected = head.log_prob(hidden).detach()
    half = copy.deepcopy(head).to(torch.bfloat16)
    assert half.weight.dtype == torch.bfloat16
    assert half.noise.tree_weights.dtype == torch.float32
    out = half(hidden.bfloat16(), y)
    out.loss.backward()
    assert out.loss.dtype == torch.float32
    # Scores of about 1 in bfloat16, three digits; the projection of bfloat16 rows moves the tree's logits a
    # little as well.
    torch.testing.assert_close(half.log_prob(hidden.bfloat16()).detach(), expected, atol=0.1, rtol=0.05)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(head.log_prob(hidden).detach(), expected)


# -- errors
# --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"n_classes": 0}, "n_classes is 0"),
        ({"n_negatives": 0}, "n_negatives is 0"),
        ({"refit_every": 0}, "refit_every is 0"),
        ({"objective": "softmax"}, "objective is 'softmax'; use 'negative_sampling' or"),
        ({"base": "tree"}, "base is 'tree'"),
        ({"tree_share": 0.0}, "tree_share is 0.0"),
        ({"class_counts": [1, 2]}, r"class_counts has shape \(2,\)"),
    ],
)
def test_wrong_options_rejects(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        AdversarialSoftmax(**{"in_features": 4, "n_classes": 3, **options})


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda head: head(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)),
            r"hidden has shape \(2, 3\)",
        ),
        (
            lambda head: head(torch.zeros(2, WIDTH), torch.zeros(3, dtype=torch.int64)),
            r"targets has shape \(3,\)",
        ),
        (
            lambda head: head(torch.zeros(1, WIDTH), torch.tensor([N_CLASSES])),
            f"targets holds {N_CLASSES}; the classes are 0",
        ),
        (lambda head: head(torch.zeros(1, WIDTH), torch.tensor([-1])), "targets holds -1"),
        (lambda head: head(torch.zeros(1, WIDTH), torch.tensor([-100])), "no row other than ignore_index"),
        (lambda head: head.log_likelihood(torch.zeros(1, WIDTH), torch.tensor([-100])), "mean over no rows"),
        (lambda head: head.predict_topk(torch.zeros(1, WIDTH), 0), "k is 0"),
        (lambda head: head.predict_topk(torch.zeros(1, WIDTH), 1, search="fast"), "search is 'fast'"),
        (lambda head: head.predict_topk(torch.zeros(1, WIDTH), 1, search="beam"), "none was fitted yet"),
        (lambda head: head.fit_tree(np.zeros((3, 2)), np.zeros(3, int)), r"features has shape \(3, 2\)"),
        (lambda head: head.fit_tree(np.full((3, WIDTH), np.nan), np.zeros(3, int)), "NaN or infinity"),
        (
            lambda head: head.fit_tree(np.zeros((3, WIDTH)), np.full(3, -100)),
            "no row other than ignore_index",
        ),
    ],
)
def test_wrong_input_rejects(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(AdversarialSoftmax(WIDTH, N_CLASSES))


def test_targets_of_another_type_rejects():
    with pytest.raises(TypeError, match="integer classes"):
        AdversarialSoftmax(WIDTH, N_CLASSES)(torch.zeros(1, WIDTH), torch.zeros(1))


def test_missing_torch_names_the_extra_rejects():
    code = "import sys; sys.modules['torch'] = None\nimport extremax.nn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].endswith(
        "PyTorch, which is not installed: pip install extremax[torch]"
    )
