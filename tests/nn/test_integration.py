"""ExtremeSoftmax where PyTorch is used: optimizers, compilation, several processes, checkpoints, trainers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import extremax
from coverings import in_turn
from extremax.nn import ExtremeSoftmax

sys.path.append(str(Path(__file__).parent))

from nn.two_processes import N_CLASSES, WIDTH, Model, one_step, rows

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
# The optimizers of torch.optim, and what turns on the fused form where there is one for the CPU.
OPTIMIZERS = {
    "Adadelta": {},
    "Adafactor": {},
    "Adagrad": {"fused": True},
    "Adam": {"fused": True},
    "AdamW": {"fused": True},
    "Adamax": {},
    "ASGD": {},
    "LBFGS": {},
    "Muon": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {},
    "Rprop": {},
    "SGD": {"fused": True},
    "SparseAdam": {},
}
FOR_SPARSE = ("SGD", "Adagrad", "SparseAdam")
CASES = [
    *((name, {}, "dense") for name in OPTIMIZERS if name != "SparseAdam"),
    *((name, more, "dense") for name, more in OPTIMIZERS.items() if more),
    *((name, {}, "sparse") for name in FOR_SPARSE),
]


def reference_loss(model, x, y):
    """The loss of all classes by torch alone."""
    return F.cross_entropy(F.linear(model.encoder(x), model.layer.weight, model.layer.bias), y)


# -- the parameters of nn.Linear and nn.CrossEntropyLoss


@pytest.mark.parametrize("ignored", [-100, -1, 3])
@pytest.mark.parametrize(
    ("gradients", "bias", "dtype", "smoothing"),
    [
        *(("dense", True, torch.float32, smoothing) for smoothing in (0.0, 0.1)),
        *(("dense", False, torch.float64, smoothing) for smoothing in (0.0, 0.1)),
        *(("sparse", True, torch.float32, smoothing) for smoothing in (0.0, 0.1)),
        *(("sparse", False, torch.float64, smoothing) for smoothing in (0.0, 0.1)),
        ("fused", True, torch.float32, 0.0),
    ],
    ids=str,
)
def test_sequences_with_ignored_targets_reference(gradients, bias, dtype, smoothing, ignored):
    """Losses of (batch, length) targets are those of CrossEntropyLoss, in training and in evaluation."""
    options = {"label_smoothing": smoothing, "ignore_index": ignored, "gradients": gradients}
    layer = ExtremeSoftmax(WIDTH, N_CLASSES, bias=bias, n_shared=N_CLASSES, dtype=dtype, **options)
    linear = nn.Linear(WIDTH, N_CLASSES, bias=bias, dtype=dtype)
    assert [p.shape for p in layer.parameters()] == [p.shape for p in linear.parameters()]
    with torch.no_grad():
        for ours, theirs in zip(layer.parameters(), linear.parameters(), strict=True):
            ours.copy_(theirs)
    x, y = rows()
    x, y = x.to(dtype).reshape(4, 16, WIDTH), y.reshape(4, 16).clone()
    y[0, :5] = y[2] = ignored
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    for training in (False, True):  # the fused step changes the weights
        layer.train(training)
        loss = nn.CrossEntropyLoss(ignore_index=ignored, label_smoothing=smoothing if training else 0.0)
        expected = loss(linear(theirs).transpose(1, 2), y)
        out = layer(ours, y)
        torch.testing.assert_close(out.loss, expected, **CLOSE)
        none = nn.CrossEntropyLoss(ignore_index=ignored, reduction="none")
        if not training:
            kept = none(linear(x).transpose(1, 2), y)[y != ignored]
            torch.testing.assert_close(out.losses, kept, **CLOSE)
    out.loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, **CLOSE)
    if gradients != "fused":
        for mine, other in zip(layer.parameters(), linear.parameters(), strict=True):
            torch.testing.assert_close(mine.grad.to_dense(), other.grad, **CLOSE)


# -- optimizers


def test_every_optimizer_of_torch_is_tried():
    found = {
        name
        for name in dir(torch.optim)
        if isinstance(getattr(torch.optim, name), type) and name not in ("Optimizer",)
    }
    assert found == set(OPTIMIZERS)


@pytest.mark.parametrize(("name", "options", "gradients"), CASES, ids=lambda value: str(value))
def test_optimizer_lowers_the_exact_loss(name, options, gradients):
    model = Model(n_shared=32, gradients=gradients, bias=name != "Muon")
    trained = list(model.layer.parameters())
    optimizer = getattr(torch.optim, name)(trained, **options)
    # Adadelta's first steps are tiny; LBFGS would minimise over the drawn classes alone, to the end.
    optimizer.param_groups[0].update({"Adadelta": {"lr": 20.0}, "LBFGS": {"max_iter": 2}}.get(name, {}))
    x, y = rows()
    with torch.no_grad():
        hidden = model.encoder(x)
        before = model.eval().layer(hidden, y).loss

    def loss():
        torch.manual_seed(step)  # LBFGS compares losses of the same classes
        optimizer.zero_grad()
        value = model.layer(hidden, y).loss
        value.backward()
        return value

    model.train()
    for step in range(20):  # noqa: B007 (read by `loss`)
        optimizer.step(loss)
    with torch.no_grad():
        after = model.eval().layer(hidden, y).loss
    assert after < before


@pytest.mark.parametrize("gradients", ["dense", "sparse"])
def test_clipped_gradients_and_accumulation_reference(gradients):
    """Two halves of a minibatch add up to the whole, and clipping sees the layer's gradient.

    torch has no norm of sparse tensors: `clip_grad_norm_` refuses those of `nn.Embedding` as well.
    """
    x, y = rows()
    model, whole = Model(n_shared=N_CLASSES, gradients=gradients), Model(n_shared=N_CLASSES)
    for half in (slice(0, 32), slice(32, 64)):
        (0.5 * model(x[half], y[half])).backward()
    reference_loss(whole, x, y).backward()
    if gradients == "sparse":
        for each in (model.layer.weight, model.layer.bias):
            assert each.grad.is_sparse
            each.grad = each.grad.to_dense()
    norms = [torch.nn.utils.clip_grad_norm_(each.parameters(), 0.01) for each in (model, whole)]
    torch.testing.assert_close(*norms, **CLOSE)
    assert norms[0] > 0.01
    for ours, theirs in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("sparse", [False, True])
def test_tied_embeddings_reference(sparse):
    """Weights that are also an embedding get the gradients of both uses."""
    y = torch.randint(N_CLASSES, (64,), generator=torch.Generator().manual_seed(1))
    words = torch.randint(N_CLASSES, (64,), generator=torch.Generator().manual_seed(2))
    embedding = nn.Embedding(N_CLASSES, WIDTH, sparse=sparse)
    gradients = "sparse" if sparse else "dense"
    layer = ExtremeSoftmax(WIDTH, N_CLASSES, bias=False, n_shared=N_CLASSES, gradients=gradients)
    layer.weight = embedding.weight
    layer(embedding(words), y).loss.backward()
    weight = embedding.weight.detach().clone().requires_grad_()
    F.cross_entropy(F.linear(weight[words], weight), y).backward()
    assert embedding.weight.grad.is_sparse == sparse
    torch.testing.assert_close(embedding.weight.grad.to_dense(), weight.grad, **CLOSE)


# -- precision, compilation, checkpoints of activations


@pytest.mark.parametrize("gradients", ["dense", "sparse", "fused"])
def test_autocast_keeps_the_loss_in_float32(gradients):
    x, y = rows()
    torch.manual_seed(0)
    expected = Model(n_shared=16)(x, y)
    torch.manual_seed(0)
    model = Model(n_shared=16, gradients=gradients)
    before = model.layer.weight.detach().clone()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(x, y)
    loss.backward()
    assert loss.dtype == torch.float32
    if gradients != "fused":
        assert model.layer.weight.grad.dtype == torch.float32
    else:
        assert not torch.equal(model.layer.weight, before)
    assert model.encoder.weight.grad.abs().sum() > 0
    torch.testing.assert_close(loss, expected, rtol=0.02, atol=0.02)  # hidden states of three digits


# Warnings of torch itself: a compiled graph ends at a hidden state; inductor is imported.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor", "ignore:.torch.jit")
@pytest.mark.parametrize(
    ("gradients", "backend"),
    [
        ("dense", "aot_eager"),
        ("fused", "eager"),
        ("sparse", "eager"),
        pytest.param("dense", "inductor", marks=pytest.mark.slow),  # compiles C++
    ],
)
def test_compiled_model_trains_the_same(backend, gradients):
    found = []
    for wrap in (lambda model: model, lambda model: torch.compile(model, backend=backend)):
        torch._dynamo.reset()
        model = Model(n_shared=16, gradients=gradients)
        compiled = wrap(model)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        torch.manual_seed(0)
        x, y = rows()
        for _ in range(4):
            optimizer.zero_grad()
            loss = compiled(x, y)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            found.append((loss.detach(), model.layer.weight.detach(), compiled(x)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


@in_turn(reentrant=[False, True], gradients=["dense", "sparse", "fused"])
def test_activation_checkpointing_repeats_the_classes(gradients, reentrant):
    """The recomputed pass draws no new classes and counts no step."""
    x, y = rows()
    x.requires_grad_()
    results = []
    for repeated in (False, True):
        model = Model(n_shared=8, gradients=gradients)
        torch.manual_seed(0)
        for _ in range(3):
            loss = checkpoint(model, x, y, use_reentrant=reentrant) if repeated else model(x, y)
            loss.backward()
        grads = [p.grad.to_dense() for p in model.parameters() if p.requires_grad]
        results.append([loss.detach(), *grads, model.layer.weight.detach(), x.grad.clone()])
        x.grad = None
        assert int(model.layer.n_steps) == 3
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


def test_activation_checkpointing_while_sets_grow():
    """Both passes come before the backward pass: the first is recomputed after the step that draws more."""
    x, y = rows()
    x.requires_grad_()
    results = []
    for repeated in (False, True):
        layer = ExtremeSoftmax(WIDTH, 5000, gradients="fused", n_jobs=1)
        layer.n_steps.fill_(1023)

        def loss(x, y, layer=layer):
            return layer(x, y).loss

        torch.manual_seed(0)
        passes = [checkpoint(loss, x, y, use_reentrant=False) if repeated else loss(x, y) for _ in range(2)]
        sum(passes).backward()
        assert int(layer.n_steps) == 1025
        assert [kept.n_drawn for kept in layer._kept.values()] == [512, 2048]
        results.append([layer.weight.detach(), x.grad.clone()])
        x.grad = None
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


@pytest.mark.parametrize("gradients", ["dense", "sparse", "fused"])
def test_averaged_model_identity(gradients):
    model = Model(n_shared=16, gradients=gradients)
    averaged = AveragedModel(model)
    optimizer = torch.optim.Adagrad([p for p in model.parameters() if p.requires_grad], lr=0.05)
    seen = []
    for seed in range(3):
        optimizer.zero_grad()
        model(*rows(seed)).backward()
        optimizer.step()
        averaged.update_parameters(model)
        seen.append(model.layer.weight.detach().clone())
    torch.testing.assert_close(averaged.module.layer.weight.detach(), torch.stack(seen).mean(0), **CLOSE)
    x, y = rows()
    loss = averaged.eval()(x, y)
    torch.testing.assert_close(loss, reference_loss(averaged.module, x, y))


# -- inference elsewhere


def test_export_of_inference_reference():
    model = Model().eval()
    x, _ = rows()
    batch = torch.export.Dim("batch", min=2, max=1024)
    exported = torch.export.export(model, (x,), dynamic_shapes={"x": {0: batch}})
    for part in (x, x[:7]):
        torch.testing.assert_close(exported.module()(part), model(part), **CLOSE)


@pytest.mark.filterwarnings("ignore")  # of libraries beside this one
def test_onnx_of_inference_reference(tmp_path):
    import onnxruntime

    model = Model().eval()
    x, _ = rows()
    torch.onnx.export(model, (x,), str(tmp_path / "model.onnx"), dynamo=True)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), model(x).detach(), rtol=1e-4, atol=1e-4)


# -- several processes


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """Run all of two_processes.py once: the start of its processes takes longer than what they do."""
    folder = tmp_path_factory.mktemp("two_processes")
    script = Path(__file__).parent / "two_processes.py"
    source = str(Path(extremax.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": source, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(folder)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=900,  # a busy machine is no failure
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_distributed_data_parallel_reference(two_processes):
    """Exact classes: a step of two processes is that of one. Drawn ones: both processes stay the same."""
    expected = Model(n_shared=N_CLASSES)
    one_step(expected, *rows())
    first, second = (torch.load(two_processes / f"exact{rank}.pt", weights_only=True) for rank in range(2))
    for name, value in expected.named_parameters():
        torch.testing.assert_close(first[name], value.detach(), **CLOSE)
        assert torch.equal(first[name], second[name])
    first, second = (torch.load(two_processes / f"sampled{rank}.pt", weights_only=True) for rank in range(2))
    for name, _ in expected.named_parameters():
        assert torch.equal(first[name], second[name])


def test_fully_sharded_training_evaluation_and_checkpoint_reference(two_processes):
    expected = Model(n_shared=N_CLASSES)
    one_step(expected, *rows())
    expected.eval()
    x, y = rows()
    for rank in range(2):
        found = torch.load(two_processes / f"fsdp{rank}.pt", weights_only=True)
        with torch.no_grad():
            torch.testing.assert_close(found["log_prob"], expected(x), **CLOSE)
            torch.testing.assert_close(found["loss"], expected(x, y), **CLOSE)
            assert torch.equal(found["labels"], expected.layer.predict_topk(x, 3)[0])
