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
from extremax.data import planted_hierarchy
from extremax.features.pca import PCA
from extremax.kernels import row_losses
from extremax.kernels.row_training import Pairs
from extremax.nn import AdversarialSoftmax
from extremax.scores import ExactSearch, Scorer, TreeBeamSearch
from extremax.scores.dense import DenseWeights
from extremax.tree.noise import FrequencyNoise

# torch tells of its own default once per process when an optimiser makes a sparse tensor.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")

N_CLASSES, WIDTH = 40, 12
OBJECTIVES = ("negative_sampling", "sampled_softmax")
KERNELS = {
    "negative_sampling": (row_losses.NegativeSampling, row_losses.negative_sampling),
    "sampled_softmax": (row_losses.SampledSoftmax, row_losses.sampled_softmax),
}


@pytest.fixture(scope="module")
def data():
    return planted_hierarchy(3000, N_CLASSES, WIDTH, seed=1, n_test=500, noise_scale=0.7)


def tensors(data):
    return torch.from_numpy(data.X), torch.from_numpy(data.y).long()


def make_head(data=None, *, randomise=True, **options):
    """A head with a tree (if there are data) and random weights."""
    head = AdversarialSoftmax(WIDTH, N_CLASSES, tree_components=6, n_negatives=3, n_jobs=1, **options)
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


@pytest.mark.parametrize("penalty", [0.0, 0.02])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_loss_matches_reference_gradient(data, objective, penalty):
    """Loss and all three gradients against autograd in float64, and the loss against tests/reference.py."""
    head = make_head(data, objective=objective, score_penalty=penalty)
    hidden = torch.from_numpy(data.X[:20]).requires_grad_()
    out = head(hidden, torch.from_numpy(data.y[:20]).long())
    out.loss.backward()
    assert head.weight.grad.is_sparse
    assert head.bias.grad.is_sparse

    h = hidden.detach().double().requires_grad_()
    w, b = (p.detach().double().requires_grad_() for p in (head.weight, head.bias))
    log_noise = torch.from_numpy(log_noise_of(head, hidden, out.labels)).double()
    s = (w[out.labels] * h[:, None]).sum(-1) + b[out.labels, 0]
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

    log_base = np.zeros(a.shape)
    arguments = (s.detach().numpy(), log_base, log_noise.numpy(), np.ones(20), penalty, out.labels.numpy())
    np.testing.assert_allclose(
        out.losses.detach(), reference.LOSSES[objective](*arguments), rtol=2e-5, atol=1e-6
    )
    torch.testing.assert_close(out.debiased_scores.double(), s.detach(), **tolerance)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_coefficients_are_those_of_the_compiled_kernel(data, objective):
    """d loss / d score of the kernel, summed over classes, is the gradient of the head's bias."""
    head = make_head(data, objective=objective, score_penalty=0.01)
    hidden, y = torch.from_numpy(data.X[:30]), torch.from_numpy(data.y[:30]).long()
    out = head(hidden, y)
    out.loss.backward()
    labels, log_noise = out.labels.numpy(), log_noise_of(head, hidden, out.labels)
    w, b = head.weight.detach().numpy(), head.bias.detach().numpy()
    scores = (np.einsum("nd,nmd->nm", data.X[:30], w[labels]) + b[labels, 0]).astype(np.float32)
    log_base = np.zeros_like(log_noise)
    coefficients, losses = np.empty_like(scores), np.empty(30)
    row_weight, eta = np.full(30, 1 / 30, np.float32), np.full(30, -1.0, np.float32)
    tables = (labels.astype(np.int32), log_base, log_noise, row_weight, scores, coefficients, losses, eta)
    settings, kernel = KERNELS[objective]
    kernel(settings(np.float32(0.01)), Pairs(np.arange(30), *tables), 0, 30)
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


@pytest.mark.parametrize("fitted", [False, True])
def test_log_prob_identity(data, fitted):
    head = make_head(data if fitted else None)
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
    head = make_head(randomise=False, class_counts=counts)
    np.testing.assert_allclose(head.log_prob(torch.from_numpy(data.X[:2])).detach()[1], expected, atol=1e-5)
    uniform = make_head(randomise=False).log_prob(torch.from_numpy(data.X[:2])).detach()
    np.testing.assert_allclose(uniform, -np.log(N_CLASSES), atol=1e-5)


@pytest.mark.parametrize("tree_share", [0.5, 1.0])
def test_predictions_are_those_of_the_numpy_searches(data, tree_share):
    head = make_head(data, tree_share=tree_share)
    weights = DenseWeights(head.weight.detach().numpy(), head.bias.detach().numpy()[:, 0])
    state = head.noise
    projection = PCA(state.components.numpy(), state.mean.numpy(), np.ones(len(state.components), np.float32))
    scorer, X = Scorer(weights, projection=projection), data.X_test[:100]
    hidden = torch.from_numpy(X)
    expected = ExactSearch().topk(scorer, X, 5)
    labels, log_prob = head.predict_topk(hidden, 5)
    np.testing.assert_array_equal(labels, expected[0])
    np.testing.assert_allclose(log_prob, expected[1], atol=2e-5)  # float32 sums in another order
    expected = TreeBeamSearch(head.noise.tree).topk(scorer, X, 3, width=8)
    labels, log_prob = head.predict_topk(hidden, 3, search="beam", beam_width=8)
    np.testing.assert_array_equal(labels, expected[0])
    np.testing.assert_allclose(log_prob, expected[1], atol=2e-5)
    whole = head.predict_topk(hidden, 5, search="beam", beam_width=N_CLASSES)
    for ours, theirs in zip(whole, head.predict_topk(hidden, 5), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)  # a beam as wide as the tree


# -- learning


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


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_planted_classes_recovers(data, objective):
    head = AdversarialSoftmax(WIDTH, N_CLASSES, objective=objective, tree_components=8, n_jobs=1)
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
    head = AdversarialSoftmax(WIDTH, N_CLASSES, refit_every=40, tree_components=8, n_jobs=1)
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
    assert torch.equal(head._recent.tensors()[1], y[180:300])  # whole batches, at least 100 rows


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


def test_refit_changes_no_score_invariant(data):
    head = make_head(data)
    hidden, y = tensors(data)
    before = head.log_prob(hidden[:50]).detach()
    head.fit_tree(hidden[:1500], y[:1500])
    assert torch.equal(head.log_prob(hidden[:50]).detach(), before)


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


# -- state


def test_state_dict_round_trip_invariant(data):
    head = make_head(data)
    hidden, y = (t[:40] for t in tensors(data))
    head(hidden, y)
    file = io.BytesIO()
    torch.save(head.state_dict(), file)
    file.seek(0)
    fresh = make_head(randomise=False)
    fresh.log_prob(hidden)  # made its own noise before the state came
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(fresh.log_prob(hidden), head.log_prob(hidden))
    assert torch.equal(fresh(hidden, y).labels, head(hidden, y).labels)  # the next step
    for ours, theirs in zip(
        fresh.predict_topk(hidden, 3, search="beam"), head.predict_topk(hidden, 3, search="beam"), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_copy_is_independent_invariant(data):
    """A copy draws the same negatives, until its own tree is fitted again."""
    head = make_head(data)
    hidden, y = tensors(data)
    twin, other = copy.deepcopy(head), copy.deepcopy(head)
    before = head(hidden[:50], y[:50]).labels
    assert torch.equal(twin(hidden[:50], y[:50]).labels, before)
    other.fit_tree(hidden[:500], y[:500])
    assert not torch.equal(other(hidden[:50], y[:50]).labels, before)
    head.n_steps.zero_()
    assert torch.equal(head(hidden[:50], y[:50]).labels, before)


def test_lower_precision_keeps_the_noise_exact(data):
    head = make_head(data)
    hidden, y = (t[:40] for t in tensors(data))
    expected = head.log_prob(hidden).detach()
    half = copy.deepcopy(head).to(torch.bfloat16)
    assert half.weight.dtype == torch.bfloat16
    assert half.noise.tree_weights.dtype == torch.float32
    out = half(hidden.bfloat16(), y)
    out.loss.backward()
    assert out.loss.dtype == torch.float32
    # Scores of about 1 in bfloat16, three digits.
    torch.testing.assert_close(half.log_prob(hidden.bfloat16()).detach(), expected, atol=0.1, rtol=0.05)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(head.log_prob(hidden).detach(), expected)


# -- errors


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"n_classes": 0}, "n_classes is 0"),
        ({"n_negatives": 0}, "n_negatives is 0"),
        ({"refit_every": 0}, "refit_every is 0"),
        ({"objective": "softmax"}, "objective is 'softmax'; use 'negative_sampling' or"),
        ({"base": "noise"}, "base is 'noise', but scores no longer contain log p_n: leave base out"),
        ({"tree_components": 0}, "tree_components is 0"),
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


def test_unknown_parameter_rejects():
    with pytest.raises(TypeError, match="has no parameter 'n_trees'"):
        AdversarialSoftmax(4, 3, n_trees=2)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"base": "none"}, {}),
        ({"n_components": 5}, {"tree_components": 5}),
        ({"regularization": 1.0}, {"tree_regularization": 1.0}),
    ],
)
def test_old_parameters_warn_and_do_the_same(data, old, new):
    with pytest.warns(FutureWarning, match=f"{next(iter(old))}.*next release"):
        before = AdversarialSoftmax(WIDTH, N_CLASSES, n_jobs=1, **old)
    now = AdversarialSoftmax(WIDTH, N_CLASSES, n_jobs=1, **new)
    hidden, y = tensors(data)
    before.fit_tree(hidden, y)
    with pytest.warns(FutureWarning, match="keep_scores has no effect"):
        now.fit_tree(hidden, y, keep_scores=True)
    assert torch.equal(before(hidden[:9], y[:9]).losses, now(hidden[:9], y[:9]).losses)


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
