"""Samplers and `sampled_softmax_loss`: exact probabilities, means, gradients, types, compilation."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from extremax.nn import Draw, FrequencySampler, RowAdagrad, UniformSampler, sampled_softmax_loss
from extremax.nn.kernels import softmax_in_place

N_CLASSES, WIDTH = 40, 6
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def problem(n=9, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(n, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    w = torch.randn(N_CLASSES, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    b = torch.randn(N_CLASSES, generator=generator, dtype=torch.float64).to(dtype)
    y = torch.randint(N_CLASSES, (n,), generator=generator)
    return h, w, b, y


COUNTS = torch.arange(N_CLASSES, 0, -1) ** 2


# -- samplers


@pytest.mark.identity
@pytest.mark.parametrize("sampler", [FrequencySampler(COUNTS, 1.0, 12), UniformSampler(N_CLASSES, 12)])
def test_inclusion_probabilities_are_those_of_the_draws(sampler):
    expected = sampler.inclusion_probabilities()
    assert float(expected.sum()) == pytest.approx(12.0, abs=1e-9)
    hits, n = torch.zeros(N_CLASSES, dtype=torch.float64), 4000
    for _ in range(n):
        classes, log_pi = sampler()
        assert len(classes.unique()) == 12
        torch.testing.assert_close(log_pi.exp().double(), expected[classes], rtol=1e-5, atol=0.0)
        hits[classes] += 1.0
    error = (expected * (1.0 - expected) / n).sqrt()
    assert bool(((hits / n - expected).abs() <= 4.5 * error + 1e-12).all())


@pytest.mark.identity
def test_periodic_class_numbers_do_not_resonate():
    """Scores that repeat with the step of the draw: the estimated loss is as exact as with shuffled ones."""
    n_classes, n_sampled = 6400, 640
    scores = torch.zeros(n_classes)
    scores[:: n_classes // n_sampled] = 8.0
    h, y = torch.ones(1, 1), torch.tensor([1])
    exact = float(F.cross_entropy(scores[None], y))
    sampler = UniformSampler(n_classes, n_sampled)
    found = torch.stack([sampled_softmax_loss(h, scores[:, None], None, y, sampler) for _ in range(200)])
    assert float(found.mean()) == pytest.approx(exact, abs=0.1)
    assert float(found.std()) < 0.3


def test_seed_and_generator_repeat_draws():
    sampler = FrequencySampler(COUNTS, n_sampled=7)
    torch.manual_seed(3)
    first = sampler().classes
    torch.manual_seed(3)
    assert torch.equal(sampler().classes, first)
    own = FrequencySampler(COUNTS, n_sampled=7, generator=torch.Generator().manual_seed(3))
    again = FrequencySampler(COUNTS, n_sampled=7, generator=torch.Generator().manual_seed(3))
    torch.manual_seed(0)
    assert torch.equal(own().classes, again().classes)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_counts_keep_their_type(dtype):
    sampler = FrequencySampler(torch.full((N_CLASSES,), 100_003.0), n_sampled=7)  # float16 ends at 65,504
    before = sampler.frequencies(torch.arange(N_CLASSES))
    assert torch.equal(sampler.to(dtype).frequencies(torch.arange(N_CLASSES)), before)


def test_samplers_are_created_on_any_default_device():
    with torch.device("meta"):
        sampler = FrequencySampler(COUNTS, n_sampled=7)
    assert sampler().classes.device.type == "cpu"  # where the counts are not lost
    assert torch.equal(sampler.order, FrequencySampler(COUNTS, n_sampled=7).order)


@pytest.mark.error
@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: FrequencySampler([]), "counts must hold one number"),
        (lambda: FrequencySampler([1.0, -1.0]), "counts must hold one number"),
        (lambda: FrequencySampler([1.0, math.nan]), "counts must hold one number"),
        (lambda: UniformSampler(5, 0), "n_sampled is 0"),
        (lambda: UniformSampler(0), "n_classes is 0"),
        (lambda: FrequencySampler([1.0], batch_share=1.0), "batch_share is 1.0"),
    ],
)
def test_wrong_samplers_are_rejected(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


# -- the loss


@pytest.mark.reference
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_classes_give_the_cross_entropy_of_torch(reduction, smoothing, weighted, bias, dtype):
    h, w, b, y = problem(dtype=dtype)
    y[3] = -100
    y[4] = y[5]
    tables = [x.requires_grad_() for x in (h, w, *([b] if bias else []))]
    class_weight = torch.rand(N_CLASSES, dtype=dtype) + 0.5 if weighted else None
    options = {"reduction": reduction, "label_smoothing": smoothing}
    expected = F.cross_entropy(F.linear(h, w, b if bias else None), y, weight=class_weight, **options)
    found = sampled_softmax_loss(
        h,
        w,
        b if bias else None,
        y,
        UniformSampler(N_CLASSES, N_CLASSES),
        class_weight=class_weight,
        **options,
    )
    torch.testing.assert_close(found, expected, **CLOSE)
    grads = [torch.autograd.grad(loss.sum(), tables) for loss in (found, expected)]
    for own, reference in zip(*grads, strict=True):
        torch.testing.assert_close(own, reference, **CLOSE)


@pytest.mark.reference
@pytest.mark.parametrize("n", [9, 30])  # fewer and more rows than drawn classes
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_and_gradients_follow_the_formula(n, dtype, monkeypatch):
    """The kernel in float32, torch in float64, and a loop over rows and classes."""
    monkeypatch.setattr("extremax.nn.functional._MOST_TARGETS", 1)
    h, w, b, y = problem(n, dtype)
    y[1] = -100
    sampler = FrequencySampler(COUNTS, 0.5, 12)
    draw = sampler()
    tables = [x.requires_grad_() for x in (h, w, b)]
    targets = {int(y[k * n // min(n, 12)]) for k in range(min(n, 12))} - {-100}  # from all over the rows
    pi = dict(zip(draw.classes.tolist(), draw.log_pi.exp().tolist(), strict=True))
    losses = []
    for i in range(n):
        if int(y[i]) == -100:
            continue
        own = h[i] @ w[y[i]] + b[y[i]]
        total = own.exp()
        for j in (targets | set(pi)) - {int(y[i])}:
            total = total + (h[i] @ w[j] + b[j]).exp() / (1.0 if j in targets else pi[j])
        losses.append(total.log() - own)
    expected = torch.stack(losses).mean()
    found = sampled_softmax_loss(h, w, b, y, lambda: draw)
    torch.testing.assert_close(found, expected, **CLOSE)
    grads = [torch.autograd.grad(loss, tables) for loss in (found, expected)]
    for own, reference in zip(*grads, strict=True):
        torch.testing.assert_close(own, reference, rtol=1e-4, atol=1e-6)


@pytest.mark.identity
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_sum_of_exponentials_has_the_right_mean(smoothing):
    """Over all starts of the draw, exp(loss) averages to that of the full softmax, given the rows."""
    h, w, b, y = problem(6, torch.float64)
    sampler = UniformSampler(N_CLASSES, 10)
    sets = [sampler.order.long()[k :: N_CLASSES // 10].contiguous() for k in range(N_CLASSES // 10)]
    draws = [Draw(classes, torch.full((10,), 0.25).log()) for classes in sets]

    def losses(**options):
        return torch.stack(
            [sampled_softmax_loss(h, w, b, y, lambda d=d: d, reduction="none", **options) for d in draws]
        )

    scores = h @ w.T + b
    exact = F.cross_entropy(scores, y, reduction="none")
    torch.testing.assert_close(losses().exp().mean(0), exact.exp(), rtol=1e-6, atol=1e-9)
    # With smoothing, the estimate of the mean score is added: linear, so its own mean is exact.
    spread = losses(label_smoothing=smoothing) - losses() * (1.0 - smoothing)
    log_sum = losses() + scores.gather(1, y[:, None]).squeeze(1)
    mean_score = log_sum.mean(0) - (spread.mean(0) / smoothing if smoothing else 0.0)
    if smoothing:
        torch.testing.assert_close(mean_score, scores.mean(1), rtol=1e-6, atol=1e-6)


@pytest.mark.identity
@pytest.mark.parametrize("share", [0.0, 0.9])
def test_targets_of_independent_rows_are_a_sample(share):
    """The mean of exp(loss) of one row, over draws and over the targets of the other rows."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.arange(1, N_CLASSES + 1)
    sampler = FrequencySampler(counts, 0.5, 10, batch_share=share)
    h, w, b, _ = problem(12, torch.float64)
    w = 0.3 * w
    scores = (h[:1] @ w.T + b)[0]
    exact = float(F.cross_entropy(scores, torch.tensor(5)).exp())
    found = []
    torch.manual_seed(0)
    for _ in range(3000):
        y = torch.multinomial(counts.double(), 12, replacement=True, generator=generator)
        y[0] = 5
        y = torch.cat([y[:1], y[1:11]])  # 11 rows, some with the same target
        losses = sampled_softmax_loss(h[:11], w, b, y, sampler, reduction="none")
        found.append(losses[0].exp())
    found = torch.stack(found)
    assert float(found.mean()) == pytest.approx(exact, abs=5.0 * float(found.std()) / len(found) ** 0.5)


@pytest.mark.reference
@pytest.mark.parametrize(
    ("shape", "n_sampled"), [((9,), 10), ((3, 3), 10), ((1, 9), 10), ((9,), 5), ((4, 3), 6), ((2, 3, 2), 20)]
)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_targets_of_other_sequences_are_a_sample(shape, n_sampled, smoothing, monkeypatch):
    """The formula, row by row; as many targets as drawn classes take part, at most."""
    monkeypatch.setattr("extremax.nn.functional._MOST_TARGETS", 1)
    n, n_sequences = math.prod(shape), shape[0]
    counts = torch.arange(1, N_CLASSES + 1)
    sampler = FrequencySampler(counts, 0.5, n_sampled)
    draw = sampler()
    sampler.forward = lambda: draw
    h, w, b, y = problem(n)
    y[0] = y[1] = draw.classes[3]
    y[2] = -100
    q, scores, sequence = counts / counts.sum(), h @ w.T + b, torch.arange(n) // (n // n_sequences)
    taken = [k * n // min(n, n_sampled) for k in range(min(n, n_sampled))]
    taken = [k for k in taken if int(y[k]) >= 0]
    kept = [i for i in range(n) if int(y[i]) >= 0]
    m = sum(sum(int(sequence[k] != sequence[i]) for k in taken) for i in kept) / len(kept)
    expected = torch.zeros(n)
    for i in kept:
        share = 0.9 if n_sequences > 1 else 0.0
        columns = [
            (j, (1.0 - share) / pi) for j, pi in zip(draw.classes.tolist(), draw.log_pi.exp(), strict=True)
        ]
        if share > 0.0:
            columns += [(int(y[k]), share / (m * q[y[k]])) for k in taken if sequence[k] != sequence[i]]
        else:
            targets = {int(y[k]) for k in taken}
            columns = [(j, 1.0) for j in targets] + [(j, v) for j, v in columns if j not in targets]
        columns = [(j, v) for j, v in columns if j != int(y[i])] + [(int(y[i]), 1.0)]
        log_sum = sum(v * scores[i, j].exp() for j, v in columns).log()
        mean = sum(v * scores[i, j] for j, v in columns) / N_CLASSES
        expected[i] = log_sum - (1.0 - smoothing) * scores[i, y[i]] - smoothing * mean
    found = sampled_softmax_loss(
        h.view(*shape, -1), w, b, y.view(shape), sampler, reduction="none", label_smoothing=smoothing
    )
    torch.testing.assert_close(found.flatten(), expected, **CLOSE)


@pytest.mark.gradient
def test_gradient_penalties_have_second_derivatives():
    h, w, b, y = (x.requires_grad_() if x.is_floating_point() else x for x in problem(4, torch.float64))
    draw = FrequencySampler(COUNTS, n_sampled=9)()
    torch.autograd.gradcheck(
        lambda *tables: sampled_softmax_loss(*tables, y, lambda: draw), (h, w, b), atol=1e-6
    )
    torch.autograd.gradgradcheck(
        lambda *tables: sampled_softmax_loss(*tables, y, lambda: draw), (h, w, b), atol=1e-5
    )


@pytest.mark.identity
def test_gradient_that_will_be_derived_again_is_the_gradient():
    h, w, b, y = (x.requires_grad_() if x.is_floating_point() else x for x in problem(4, torch.float64))
    draw = FrequencySampler(COUNTS, n_sampled=9)()
    once, again = (
        torch.autograd.grad(sampled_softmax_loss(h, w, b, y, lambda: draw), (h, w, b), create_graph=create)
        for create in (False, True)
    )
    torch.testing.assert_close(again, once)


def test_ignored_rows_alone_give_nan_as_in_torch():
    h, w, b, _ = problem(3)
    y = torch.full((3,), -100)
    sampler = UniformSampler(N_CLASSES, 8)
    assert bool(sampled_softmax_loss(h, w, b, y, sampler).isnan())
    assert float(sampled_softmax_loss(h, w, b, y, sampler, reduction="sum")) == 0.0
    none = torch.empty(0, dtype=torch.long)
    assert sampled_softmax_loss(h[:0], w, b, none, sampler, reduction="none").shape == (0,)


@pytest.mark.parametrize("sampler", [FrequencySampler(COUNTS, 1.0, 12), UniformSampler(N_CLASSES, 12)])
def test_no_rows_have_a_sum_of_zero(sampler):
    weight = torch.randn(N_CLASSES, 4, requires_grad=True)
    target = torch.zeros(0, dtype=torch.long)
    loss = sampled_softmax_loss(torch.zeros(0, 4), weight, None, target, sampler, reduction="sum")
    loss.backward()
    assert loss == 0.0
    assert not weight.grad.any()


def test_sequences_keep_their_shape():
    h, w, b, y = problem(12)
    sampler = UniformSampler(N_CLASSES, N_CLASSES)
    flat = sampled_softmax_loss(h, w, b, y, sampler, reduction="none")
    folded = sampled_softmax_loss(h.view(3, 4, WIDTH), w, b, y.view(3, 4), sampler, reduction="none")
    torch.testing.assert_close(folded, flat.view(3, 4))


def test_sparse_and_dense_gradients_agree():
    h, w, b, y = problem()
    draw = FrequencySampler(COUNTS, n_sampled=10)()
    w, b = w.requires_grad_(), b.requires_grad_()
    dense = torch.autograd.grad(sampled_softmax_loss(h, w, b, y, lambda: draw), (w, b))
    sparse = torch.autograd.grad(sampled_softmax_loss(h, w, b, y, lambda: draw, sparse=True), (w, b))
    for one, other in zip(dense, sparse, strict=True):
        assert other.is_sparse
        torch.testing.assert_close(other.to_dense(), one, **CLOSE)


def test_autocast_multiplies_in_bfloat16_and_sums_in_float32():
    h, w, b, y = (x.requires_grad_() if x.is_floating_point() else x for x in problem(64))
    draw = FrequencySampler(COUNTS, n_sampled=20)()
    exact = sampled_softmax_loss(h, w, b, y, lambda: draw)
    seen = set()

    class Look(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.mm.default:
                seen.add((args[0].dtype, args[1].dtype))
            return func(*args, **(kwargs or {}))

    with Look():
        with torch.autocast("cpu", torch.bfloat16):
            found = sampled_softmax_loss(h, w, b, y, lambda: draw)
        grads = torch.autograd.grad(found, (h, w, b))
    assert seen == {(torch.bfloat16, torch.bfloat16)}
    assert found.dtype == torch.float32
    assert {grad.dtype for grad in grads} == {torch.float32}
    torch.testing.assert_close(found, exact, rtol=0.02, atol=0.02)
    for grad, reference in zip(grads, torch.autograd.grad(exact, (h, w, b)), strict=True):
        torch.testing.assert_close(grad, reference, rtol=0.1, atol=0.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tables_in_lower_precision(dtype):
    h, w, b, y = problem(dtype=dtype)
    loss = sampled_softmax_loss(h, w.requires_grad_(), b, y, UniformSampler(N_CLASSES, N_CLASSES))
    loss.backward()
    assert loss.dtype == torch.float32
    assert w.grad.dtype == dtype
    exact = F.cross_entropy((h.float() @ w.float().T + b.float()), y)
    torch.testing.assert_close(loss, exact, rtol=0.05, atol=0.05)


@pytest.mark.error
@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"hidden": torch.zeros(9, 5)}, ValueError, "hidden has shape .9, 5.; its last dimension must be 6"),
        ({"label_smoothing": -0.1}, ValueError, "label_smoothing is -0.1"),
        ({"target": torch.zeros(8, dtype=torch.long)}, ValueError, "target has shape .8,."),
        ({"target": torch.zeros(9)}, TypeError, "target has type torch.float32; it needs integer"),
        ({"reduction": "max"}, ValueError, "reduction is 'max'"),
    ],
)
def test_wrong_input_is_rejected(change, error, sentence):
    h, w, b, y = problem()
    arguments = {"hidden": h, "weight": w, "bias": b, "target": y, "sampler": UniformSampler(N_CLASSES)}
    with pytest.raises(error, match=sentence):
        sampled_softmax_loss(**{**arguments, **change})


# -- compilation and devices


class NoHost(TorchDispatchMode):
    """Refuse what makes a GPU wait: a scalar that the host reads, and copies between devices."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "unique_dim"), name
        devices = {x.device.type for x in args if isinstance(x, torch.Tensor) and x.ndim}
        assert len(devices) < 2, (name, devices)
        out = func(*args, **(kwargs or {}))
        if name in ("_to_copy", "copy_") and isinstance(args[0], torch.Tensor):
            assert out.device == args[-1 if name == "copy_" else 0].device, name
        return out


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_step_reads_nothing_on_the_host(device, smoothing):
    """Loss, gradients, and 20 steps of the optimizer, with dense gradients on a device without data."""
    h, w, b, y = (x.to(device) for x in problem())
    w, b = torch.nn.Parameter(w), torch.nn.Parameter(b)
    sampler = FrequencySampler(COUNTS, n_sampled=10, device=device)
    optimizer = RowAdagrad([w, b])
    with NoHost():
        for _ in range(20):
            optimizer.zero_grad()
            sampled_softmax_loss(h, w, b, y, sampler, label_smoothing=smoothing).backward()
            optimizer.step()
    assert w.device.type == device


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_in_one_graph_agrees(backend, sparse):
    h, w, b, y = (x.requires_grad_() if x.is_floating_point() else x for x in problem())
    draw = FrequencySampler(COUNTS, n_sampled=10)()

    def loss(h, w, b, y, classes, log_pi):
        return sampled_softmax_loss(h, w, b, y, lambda: Draw(classes, log_pi), sparse=sparse)

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    values = [f(h, w, b, y, *draw) for f in (loss, compiled)]
    torch.testing.assert_close(*values, **CLOSE)
    eager, in_graph = (torch.autograd.grad(value, (h, w, b)) for value in values)
    assert [grad.is_sparse for grad in eager] == [False, sparse, sparse]
    for one, other in zip(eager, in_graph, strict=True):
        assert not other.is_sparse
        torch.testing.assert_close(*(x.to_dense() for x in (one, other)), **CLOSE)


def test_ratios_that_do_not_count_are_zero():
    """Denormal numbers in place of zeros would make the products of a backward pass ten times as slow."""
    scores = torch.zeros(3, 4)
    shift = torch.tensor([0.0, -math.inf, -70.0, 1.0])
    y = torch.tensor([0, -1, -1])
    softmax_in_place(
        scores, shift, torch.zeros(3), torch.tensor([0, 1, 2, 3]), y, torch.zeros(3, 2, dtype=torch.long)
    )
    assert torch.equal(scores[:, 1:3], torch.zeros(3, 2))
    assert scores[0, 0] == 0.0 < scores[1, 0]


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # by torch's own jvp
def test_torch_func_derives_the_loss():
    """Its gradients are those of autograd, and those of single rows those of a loop."""
    hidden, weight, bias, target = problem()
    sampler = UniformSampler(N_CLASSES, N_CLASSES)

    def loss(weight, h, y):
        return sampled_softmax_loss(h, weight, bias, y, sampler)

    weight.requires_grad_()
    (expected,) = torch.autograd.grad(loss(weight, hidden, target), weight)
    weight = weight.detach()
    torch.testing.assert_close(torch.func.grad(loss)(weight, hidden, target), expected)
    torch.testing.assert_close(torch.func.jacrev(loss)(weight, hidden, target), expected)
    _, slope = torch.func.jvp(lambda w: loss(w, hidden, target), (weight,), (weight,))
    torch.testing.assert_close(slope, (weight * expected).sum(), rtol=1e-4, atol=1e-6)
    by_row = torch.func.vmap(torch.func.grad(loss), (None, 0, 0), randomness="different")
    found = by_row(weight, hidden[:, None], target[:, None])
    torch.testing.assert_close(found.mean(0), expected, rtol=1e-4, atol=1e-6)
