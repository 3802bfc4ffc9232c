"""ExtremeSoftmax: a drop-in for Linear and cross-entropy, in training, evaluation, search and export."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from extremax.nn import ExtremeSoftmax, FrequencySampler, RowAdagrad, UniformSampler, make_optimizer

N_CLASSES, WIDTH = 50, 8


def make(n_sampled=12, **options):
    torch.manual_seed(0)
    sampler = FrequencySampler(torch.arange(1, N_CLASSES + 1), n_sampled=n_sampled)
    layer = ExtremeSoftmax(WIDTH, N_CLASSES, sampler=sampler, **options)
    nn.init.normal_(layer.weight)
    return layer


def rows(n=10):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, WIDTH, generator=generator), torch.randint(N_CLASSES, (n,), generator=generator)


@pytest.mark.parametrize("bias", [False, True])
def test_state_goes_into_a_linear_layer_and_back(bias):
    layer, linear = make(bias=bias), nn.Linear(WIDTH, N_CLASSES, bias=bias)
    linear.load_state_dict(layer.state_dict())
    hidden, _ = rows()
    torch.testing.assert_close(layer.log_prob(hidden), linear(hidden).log_softmax(1))
    other = make(bias=bias)
    nn.init.normal_(linear.weight)
    other.load_state_dict(linear.state_dict())
    assert torch.equal(other.weight, linear.weight)
    assert (layer.in_features, layer.out_features) == (linear.in_features, linear.out_features)


@pytest.mark.identity
def test_evaluation_is_exact():
    layer = make().eval()
    hidden, target = rows()
    target[2] = -100
    scores = F.linear(hidden, layer.weight, layer.bias)
    output, loss = layer(hidden, target)
    torch.testing.assert_close(loss, F.cross_entropy(scores, target))
    torch.testing.assert_close(output, -F.cross_entropy(scores, target, reduction="none"))
    torch.testing.assert_close(layer(hidden), scores.log_softmax(1))


def test_blocks_of_rows_do_not_change_results(monkeypatch):
    layer = make().eval()
    hidden, target = rows()
    expected = layer(hidden, target), layer.topk(hidden, 3)
    monkeypatch.setattr("extremax.nn.layer._BLOCK_SCORES", 3 * N_CLASSES)
    torch.testing.assert_close(layer(hidden, target), expected[0])
    torch.testing.assert_close(layer.topk(hidden, 3), expected[1])


@pytest.mark.identity
def test_training_estimates_the_sum_of_the_softmax():
    """exp(loss) is linear in the sum, so that its mean over draws is exact."""
    layer = make()
    nn.init.normal_(layer.weight, std=0.3)
    layer.sampler.batch_share = 0.0  # else the mean is over rows, too
    hidden, target = rows()
    exact = -layer.eval()(hidden, target).output.detach()
    layer.train()
    found = torch.stack([-layer(hidden, target).output.detach() for _ in range(1000)]).exp()
    assert float(found.std(0).min()) > 0.0
    error = found.std(0) / 1000**0.5
    assert bool(((found.mean(0) - exact.exp()).abs() < 5.0 * error).all())


def test_untrained_layer_predicts_frequencies():
    counts = torch.arange(1, N_CLASSES + 1)
    layer = ExtremeSoftmax(WIDTH, N_CLASSES, sampler=FrequencySampler(counts))
    found = layer.log_prob(torch.randn(200, WIDTH)).exp().mean(0)
    torch.testing.assert_close(found, counts / counts.sum(), rtol=0.1, atol=0.0)


def test_prediction_is_in_the_order_of_torch():
    layer = make()
    hidden, _ = rows(12)
    values, indices = layer.topk(hidden.view(3, 4, WIDTH), 5)
    expected = torch.topk(layer.log_prob(hidden), 5)
    torch.testing.assert_close(values.view(12, 5), expected.values)
    assert torch.equal(indices.view(12, 5), expected.indices)
    assert torch.equal(layer.predict(hidden), expected.indices[:, 0])


@pytest.mark.identity
@pytest.mark.parametrize("bias", [False, True])
def test_index_ranks_as_the_layer_does(bias):
    layer = make(bias=bias)
    hidden, _ = rows()
    scores = torch.cat([hidden, torch.ones(len(hidden), 1)], dim=1) @ layer.to_index().T
    torch.testing.assert_close(scores.log_softmax(1), layer.log_prob(hidden))


@pytest.mark.parametrize("n_classes", [70, 30])
def test_resized_layer_goes_on(n_classes):
    layer = ExtremeSoftmax(WIDTH, N_CLASSES, sampler=UniformSampler(N_CLASSES, 12), sparse=True)
    optimizer = RowAdagrad(layer.parameters(), lr=0.1)

    def step(n):
        optimizer.zero_grad()
        layer(torch.randn(40, WIDTH), torch.arange(40) % n).loss.backward()
        optimizer.step()

    step(N_CLASSES)
    kept = min(N_CLASSES, n_classes)
    before, sums = layer.weight.detach().clone(), optimizer.state[layer.weight]["sum"].clone()
    layer.resize(n_classes)
    assert torch.equal(layer.weight[:kept], before[:kept])
    assert layer.out_features == layer.sampler.n_classes == len(layer.bias) == n_classes
    assert layer.sampler.n_sampled == 12
    step(n_classes)
    assert len(optimizer.state[layer.weight]["sum"]) == n_classes
    assert bool((optimizer.state[layer.weight]["sum"][:kept] >= sums[:kept]).all())
    assert layer.eval()(torch.randn(2, WIDTH), torch.tensor([0, n_classes - 1])).loss.isfinite()


def test_resized_layer_forgets_gradients_of_the_old_size():
    layer = ExtremeSoftmax(WIDTH, N_CLASSES)
    layer(*rows()).loss.backward()
    layer.resize(60)
    layer(*rows()).loss.backward()
    assert layer.weight.grad.shape == (60, WIDTH)


@pytest.mark.error
def test_refused_resize_leaves_the_layer_as_it_was():
    layer = ExtremeSoftmax(WIDTH, N_CLASSES)
    with pytest.raises(ValueError, match="sampler has 7 classes, and the layer 60"):
        layer.resize(60, UniformSampler(7))
    assert layer.out_features == layer.sampler.n_classes == N_CLASSES
    layer(*rows()).loss.backward()


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
@pytest.mark.parametrize("training", [False, True])
def test_targets_of_any_integer_type(dtype, training):
    layer, (hidden, target) = make(n_sampled=N_CLASSES).train(training), rows()
    torch.testing.assert_close(layer(hidden, target.to(dtype)), layer(hidden, target))


@pytest.mark.parametrize("sampler", [None, FrequencySampler(torch.arange(1, N_CLASSES + 1), n_sampled=12)])
def test_layer_from_the_meta_device(sampler):
    """The parameters are empty and filled later; the sampler must be what it would have been."""
    with torch.device("meta"):
        layer = ExtremeSoftmax(WIDTH, N_CLASSES, sampler=sampler)
    assert layer.weight.is_meta
    layer.to_empty(device="cpu").load_state_dict(make().state_dict())
    expected = UniformSampler(N_CLASSES) if sampler is None else sampler
    assert torch.equal(
        layer.sampler.inclusion_probabilities(), copy.deepcopy(expected).inclusion_probabilities()
    )
    assert layer(*rows()).loss.isfinite()


@pytest.mark.error
def test_counts_that_the_meta_device_lost_are_named():
    with pytest.raises(RuntimeError, match="A sampler on the meta device has no counts"):
        FrequencySampler(torch.ones(3), device="meta").to_empty(device="cpu")
    with pytest.raises(ValueError, match="counts are on the meta device, without data"):
        FrequencySampler(torch.ones(3, device="meta"))


def test_dense_gradients_of_many_classes_warn_once():
    layer = ExtremeSoftmax(2, 20_001)
    hidden, target = torch.ones(1, 2), torch.tensor([0])
    with pytest.warns(
        UserWarning, match=r"create the optimizer with extremax.nn.make_optimizer\(model\)"
    ) as told:
        layer(hidden, target)
    assert told[0].filename == __file__
    layer(hidden, target)  # warnings are errors here
    other = ExtremeSoftmax(2, 20_001)
    make_optimizer(other)
    other(hidden, target)
    ExtremeSoftmax(2, 20_001).eval()(hidden, target)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_repeats_the_classes(reentrant):
    layer, (hidden, target) = make(), rows()
    grads = []
    for recompute in (False, True):
        layer.zero_grad()
        torch.manual_seed(3)
        h = hidden.clone().requires_grad_()
        if recompute:
            checkpoint(lambda h: layer(h, target).loss, h, use_reentrant=reentrant).backward()
        else:
            layer(h, target).loss.backward()
        grads.append((h.grad, layer.weight.grad.clone()))
    torch.testing.assert_close(*grads)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, inside its compiler
@pytest.mark.parametrize("training", [False, True])
def test_compiled_in_one_graph(training):
    layer, (hidden, target) = make(n_sampled=N_CLASSES), rows()
    layer.train(training)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found, expected = compiled(hidden, target).loss, layer(hidden, target).loss
    torch.testing.assert_close(found, expected)
    found.backward()
    grad = layer.weight.grad.clone()
    layer.zero_grad()
    expected.backward()
    torch.testing.assert_close(grad, layer.weight.grad, rtol=1e-4, atol=1e-6)


def test_export_of_scores():
    layer = make().eval()
    hidden, _ = rows()
    exported = torch.export.export(layer, (hidden,)).module()
    torch.testing.assert_close(exported(hidden), layer(hidden))


def test_copies_devices_and_types():
    layer = make()
    copied = copy.deepcopy(layer)
    hidden, target = rows()
    for one in (layer, copied):
        torch.manual_seed(2)
        one(hidden, target).loss.backward()
    assert torch.equal(layer.weight.grad, copied.weight.grad)
    half = copy.deepcopy(layer).to(torch.bfloat16)
    assert half(hidden.bfloat16(), target).loss.dtype == torch.float32
    assert half.sampler.ends.dtype == torch.int64
    meta = ExtremeSoftmax(WIDTH, N_CLASSES, device="meta")
    assert meta(hidden.to("meta"), target.to("meta")).loss.device.type == "meta"
    assert meta.eval()(hidden.to("meta"), target.to("meta")).output.shape == target.shape


def test_memory_per_class():
    """Beside the parameters, a layer and its optimizer hold at most 16 bytes a class for draws, and sums."""
    n_classes, width = 3000, 4
    layer = ExtremeSoftmax(width, n_classes, sampler=FrequencySampler(torch.ones(n_classes)))
    optimizer = make_optimizer(layer)
    layer(torch.ones(2, width), torch.arange(2)).loss.backward()
    optimizer.step()
    buffers = sum(x.nbytes for x in layer.buffers())
    state = [x for known in optimizer.state.values() for x in known.values() if torch.is_tensor(x)]
    assert buffers <= 16 * n_classes
    assert sum(x.nbytes for x in state if x.numel() >= n_classes) == 2 * 4 * n_classes


@pytest.mark.error
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"in_features": 0}, "in_features is 0"),
        ({"n_classes": 0}, "n_classes is 0"),
        ({"label_smoothing": 1.5}, "label_smoothing is 1.5"),
        ({"sampler": UniformSampler(7)}, "sampler has 7 classes, and the layer 50"),
    ],
)
def test_wrong_options_are_rejected(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        ExtremeSoftmax(**{"in_features": WIDTH, "n_classes": N_CLASSES, **options})


@pytest.mark.error
def test_wrong_calls_are_rejected():
    layer = make()
    with pytest.raises(ValueError, match=r"hidden has shape \(3, 5\)"):
        layer.log_prob(torch.zeros(3, 5))
    with pytest.raises(ValueError, match="k is 51; ask for 1 to 50"):
        layer.topk(torch.zeros(3, WIDTH), 51)
    with pytest.raises(ValueError, match="resize needs a sampler"):
        layer.resize(60)
    with pytest.raises(TypeError, match="needs integer classes"):
        layer(torch.zeros(3, WIDTH), torch.zeros(3))


@pytest.mark.error
def test_missing_torch_names_the_extra():
    code = "import sys; sys.modules['torch'] = None; import extremax.nn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install extremax[torch]" in done.stderr
