"""RowAdagrad, make_optimizer and clip_grad_norm_: the formula, and the contract of torch.optim."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from extremax.nn import (
    ExtremeSoftmax,
    FrequencySampler,
    RowAdagrad,
    UniformSampler,
    clip_grad_norm_,
    make_optimizer,
)
from extremax.nn.kernels import softmax_in_place
from extremax.nn.optim import _inverse_root

N_CLASSES, WIDTH = 60, 8


class Model(nn.Module):
    """An encoder and an output layer, or a language model with tied weights."""

    def __init__(self, *, tied=False, n_sampled=16, **options):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(N_CLASSES, WIDTH)
        self.mix = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        sampler = UniformSampler(N_CLASSES, n_sampled)
        self.head = ExtremeSoftmax(WIDTH, N_CLASSES, sampler=sampler, **options)
        if tied:
            self.words.weight = self.head.weight

    def forward(self, x, y):
        return self.head(self.mix(self.words(x)), y).loss


def rows(n=64, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(N_CLASSES, (n,), generator=generator)
    return x, (7 * x + 3) % N_CLASSES


def train(model, optimizer, n_steps=5, seed=5):
    torch.manual_seed(seed)
    for _ in range(n_steps):
        optimizer.zero_grad()
        model(*rows()).backward()
        optimizer.step()


# -- the step


@pytest.mark.reference
@pytest.mark.parametrize("sparse", [False, True])
def test_steps_follow_the_formula(sparse):
    """Three steps on rows of a matrix and a vector against numbers computed from the eigenvalues."""
    table = nn.Embedding(N_CLASSES, WIDTH, sparse=sparse)
    weight, generator = table.weight, torch.Generator().manual_seed(0)
    optimizer = RowAdagrad([weight], lr=0.3)
    moments, n_rows, unit = torch.zeros(WIDTH, WIDTH).double(), 0.0, 0.0
    sums, expected = torch.zeros(N_CLASSES).double(), weight.detach().double().clone()
    for t in range(1, 4):
        chosen = torch.randperm(N_CLASSES, generator=generator)[:20]
        factors = torch.randn(20, WIDTH, generator=generator) * torch.arange(1, WIDTH + 1)
        optimizer.zero_grad()
        (table(chosen) * factors).sum().backward()
        optimizer.step()
        g = factors.double()
        moments = 0.99 * moments + g.T @ g
        squares = g.square().sum(1)
        n_rows = 0.99 * n_rows + float(squares.sum() ** 2 / squares.square().sum())
        values, vectors = torch.linalg.eigh(moments)
        roots = (values / values.mean() + 1e-3 + WIDTH / n_rows).rsqrt()
        roots = roots / (values / values.mean() * roots.square()).mean().sqrt()
        g = g @ (vectors * roots) @ vectors.T
        q = g.square().mean(1)
        unit += (float(q.square().sum() / q.sum()) - unit) / t
        sums[chosen] += q
        expected[chosen] -= 0.3 * g / (sums[chosen] + 0.1 * unit).sqrt()[:, None]
    torch.testing.assert_close(weight.detach().double(), expected, rtol=2e-4, atol=2e-5)
    torch.testing.assert_close(optimizer.state[weight]["sum"].double(), sums, rtol=1e-3, atol=1e-5)


@pytest.mark.identity
@pytest.mark.parametrize("block", [3, 64, 256])
def test_inverse_root_is_that_of_the_eigenvalues(block):
    generator = torch.Generator().manual_seed(0)
    scale = torch.logspace(0, -3, block)
    x = torch.randn(20 * block, block, generator=generator) * scale
    moments = (x.T @ x)[None]
    root = _inverse_root(moments, torch.tensor(1e6))[0].double()
    values, vectors = torch.linalg.eigh(moments[0].double())
    values = values / values.mean()
    roots = (values + 1e-3 + block / 1e6).rsqrt()
    roots = roots / (values * roots.square()).mean().sqrt()
    expected = (vectors * roots) @ vectors.T
    torch.testing.assert_close(root, expected, rtol=0.0, atol=5e-3 * float(roots.max()))


@pytest.mark.invariance
@pytest.mark.parametrize("whiten", [False, True])
def test_scaled_loss_scales_the_gradient_and_not_the_steps(whiten):
    found = []
    for scale in (1.0, 1024.0):
        model = Model(sparse=True)
        optimizer = RowAdagrad(model.head.parameters(), lr=0.1, whiten=whiten)
        torch.manual_seed(5)
        (scale * model(*rows())).backward()
        grad = model.head.weight.grad.to_dense() / scale
        optimizer.step()
        found.append((grad, model.head.weight.detach()))
    torch.testing.assert_close(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-4, atol=1e-5)


@pytest.mark.identity
def test_dense_and_sparse_gradients_make_the_same_steps():
    models = [Model(sparse=sparse) for sparse in (False, True)]
    for model in models:
        train(model, RowAdagrad(model.head.parameters(), lr=0.1))
    torch.testing.assert_close(models[0].head.weight, models[1].head.weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(models[0].head.bias, models[1].head.bias, rtol=1e-4, atol=1e-5)


def test_first_step_of_a_class_that_was_merely_drawn_is_short():
    head = ExtremeSoftmax(WIDTH, 2000, sampler=UniformSampler(2000, 400), sparse=True)
    before = head.bias.detach().clone()
    optimizer = RowAdagrad(head.parameters(), lr=0.1)
    y = torch.arange(0, 80, 10)
    head(torch.randn(8, WIDTH), y).loss.backward()
    drawn = head.bias.grad.coalesce().indices()[0]
    optimizer.step()
    moved = (head.bias.detach() - before).abs()
    assert float(moved[drawn[~torch.isin(drawn, y)]].max()) < 0.1 * float(moved[y].min())
    assert float(moved[torch.isin(torch.arange(2000), drawn, invert=True)].max()) == 0.0


def test_gradients_that_are_not_finite_leave_no_trace():
    model = Model(sparse=True)
    optimizer = RowAdagrad(model.head.parameters(), lr=0.1)
    train(model, optimizer)
    before = copy.deepcopy(model.head.state_dict()), copy.deepcopy(optimizer.state_dict())
    for bad in (math.nan, math.inf):
        optimizer.zero_grad()
        (bad * model(*rows())).backward()
        optimizer.step()
    torch.testing.assert_close(model.head.state_dict(), before[0], rtol=0.0, atol=0.0)
    train(model, optimizer)
    assert all(bool(x.isfinite().all()) for x in model.head.parameters())


def test_zero_gradients_at_first_do_no_harm():
    """A loss whose weight grows from 0, or a scale of the loss that is found by overflows."""
    model = Model(sparse=True)
    optimizer = RowAdagrad(model.head.parameters(), lr=0.1)
    for factor in (*(0.0 for _ in range(20)), *(1.0 for _ in range(20))):
        optimizer.zero_grad()
        (factor * model(*rows())).backward()
        optimizer.step()
    assert all(float(p.detach().abs().max()) < 10.0 for p in model.head.parameters())


def test_tables_without_a_row_in_a_step():
    table = nn.Embedding(10, 4, sparse=True)
    before = table.weight.detach().clone()
    table(torch.empty(0, dtype=torch.long)).sum().backward()
    RowAdagrad(table.parameters()).step()
    assert torch.equal(table.weight, before)


# -- the contract


def test_frozen_layer_does_not_move():
    model = Model()
    optimizer = make_optimizer(model)
    model.head.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    train(model, optimizer)
    after = model.state_dict()
    assert torch.equal(after["head.weight"], before["head.weight"])
    assert torch.equal(after["head.bias"], before["head.bias"])
    assert not torch.equal(after["mix.0.weight"], before["mix.0.weight"])


def test_gradient_of_hidden_states_has_no_side_effects():
    model = Model()
    make_optimizer(model)
    before = copy.deepcopy(model.state_dict())
    hidden = torch.randn(5, WIDTH, requires_grad=True)
    (grad,) = torch.autograd.grad(model.head(hidden, torch.arange(5)).loss, hidden)
    assert bool((grad != 0.0).any())  # in the first step, too
    torch.testing.assert_close(model.state_dict(), before, rtol=0.0, atol=0.0)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("sparse", [False, True])
def test_two_backward_passes_add_two_gradients_and_no_step(sparse):
    model = Model(sparse=sparse)
    before = model.head.weight.detach().clone()
    loss = model(*rows())
    loss.backward(retain_graph=True)
    once = model.head.weight.grad.to_dense().clone()
    loss.backward()
    torch.testing.assert_close(model.head.weight.grad.to_dense(), 2.0 * once)
    assert torch.equal(model.head.weight.detach(), before)


def test_tied_weights_are_stepped_once_by_both_gradients():
    model = Model(tied=True)
    optimizer = make_optimizer(model, lr=1e-2)
    assert model.words.sparse
    assert [len(group["params"]) for group in optimizer.param_groups] == [4, 2]
    torch.manual_seed(5)
    model(*rows()).backward()
    sparse = model.head.weight.grad
    assert sparse.is_sparse
    dense = Model(tied=True)
    torch.manual_seed(5)
    dense(*rows()).backward()
    torch.testing.assert_close(sparse.to_dense(), dense.head.weight.grad, rtol=1e-4, atol=1e-6)
    optimizer.step()
    first = model.eval()(*rows()).item()
    train(model.train(), optimizer, 100)
    assert model.eval()(*rows()).item() < 0.5 * first


def test_schedules_and_states_go_on_where_they_were():
    def make():
        model = Model()
        optimizer = make_optimizer(model, lr=1e-2, row_lr=0.3)
        return model, optimizer, torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 10)

    first, optimizer, schedule = make()
    for _ in range(3):
        train(first, optimizer, 1)
        schedule.step()
    assert optimizer.param_groups[-1]["lr"] == pytest.approx(0.3 * 0.73)
    states = [copy.deepcopy(x.state_dict()) for x in (first, optimizer, schedule)]
    train(first, optimizer, 4)
    second = make()
    for x, state in zip(second, states, strict=True):
        x.load_state_dict(state)
    assert second[1].param_groups[-1]["lr"] == optimizer.param_groups[-1]["lr"]
    train(second[0], second[1], 4)
    torch.testing.assert_close(second[0].state_dict(), first.state_dict(), rtol=0.0, atol=0.0)


@pytest.mark.filterwarnings("ignore:.*weights_only.*")
def test_state_survives_a_file(tmp_path):
    model = Model()
    optimizer = make_optimizer(model)
    train(model, optimizer)
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    other = make_optimizer(Model())
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    torch.testing.assert_close(other.state_dict(), optimizer.state_dict(), rtol=0.0, atol=0.0)


def test_state_of_bfloat16_weights_stays_in_float32():
    table = nn.Embedding(20, 4, sparse=True, dtype=torch.bfloat16)
    optimizer = RowAdagrad(table.parameters())
    table(torch.arange(3)).sum().backward()
    optimizer.step()
    other = RowAdagrad(nn.Embedding(20, 4, sparse=True, dtype=torch.bfloat16).parameters())
    other.load_state_dict(optimizer.state_dict())
    (state,) = other.state.values()
    assert state["sum"].dtype == state["moments"].dtype == torch.float32
    torch.testing.assert_close(other.state_dict(), optimizer.state_dict(), rtol=0.0, atol=0.0)


def test_groups_have_rates_of_their_own():
    model = Model(sparse=True)
    groups = [{"params": [model.head.weight], "lr": 0.0}, {"params": [model.head.bias]}]
    before = copy.deepcopy(model.head.state_dict())
    train(model, RowAdagrad(groups, lr=0.1))
    assert torch.equal(model.head.weight, before["weight"])
    assert not torch.equal(model.head.bias, before["bias"])


def test_closures_and_copies():
    model = Model()
    optimizer = make_optimizer(model)

    def closure():
        optimizer.zero_grad()
        loss = model(*rows())
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > 0.0
    copied_model, copied = copy.deepcopy((model, optimizer))
    train(model, optimizer)
    train(copied_model, copied)
    torch.testing.assert_close(copied_model.state_dict(), model.state_dict(), rtol=0.0, atol=0.0)


def test_make_optimizer_finds_the_kinds_of_parameters():
    model = Model()
    model.words.sparse = True
    optimizer = make_optimizer(model, lr=0.01, weight_decay=0.5)
    assert [type(x).__name__ for x in optimizer.parts] == ["AdamW", "RowAdagrad"]
    adam, embeddings, head = optimizer.param_groups
    assert adam["weight_decay"] == 0.5
    assert (embeddings["params"], embeddings["lr"], embeddings["whiten"]) == (
        [model.words.weight],
        0.3,
        False,
    )
    assert (head["params"], head["lr"]) == ([model.head.weight, model.head.bias], 10.0 / WIDTH)
    before = model.words.weight.detach().clone()
    train(model, optimizer)
    assert not torch.equal(model.words.weight, before)


def test_rates_of_rows_follow_the_widths_of_their_layers():
    model = nn.ModuleList([ExtremeSoftmax(4, 30), ExtremeSoftmax(100, 30)])
    groups = make_optimizer(model).param_groups
    assert [group["lr"] for group in groups] == [2.5, 0.1]
    assert [p for group in groups for p in group["params"]] == list(model.parameters())
    assert all(group["lr"] == 0.0 for group in make_optimizer(model, row_lr=0.0).param_groups)


def test_groups_that_are_added_are_stepped():
    model = Model()
    model.words.requires_grad_(False)
    optimizer = make_optimizer(model)
    train(model, optimizer, 2)
    model.words.requires_grad_(True)
    before = model.words.weight.detach().clone()
    optimizer.add_param_group({"params": model.words.parameters(), "lr": 0.1})
    assert optimizer.param_groups[-1]["betas"] == (0.9, 0.999)
    train(model, optimizer, 2)
    assert float((model.words.weight.detach() - before).abs().max()) > 0.1
    copied_model, copied = copy.deepcopy((model, optimizer))
    copied.load_state_dict(optimizer.state_dict())
    train(model, optimizer)
    train(copied_model, copied)
    torch.testing.assert_close(copied_model.state_dict(), model.state_dict(), rtol=0.0, atol=0.0)


def test_layers_that_are_unfrozen_later_are_stepped():
    model = Model()
    model.head.requires_grad_(False)
    optimizer = make_optimizer(model)
    before = model.head.weight.detach().clone()
    train(model, optimizer, 2)
    assert torch.equal(model.head.weight, before)
    model.head.requires_grad_(True)
    train(model, optimizer, 2)
    assert not torch.equal(model.head.weight, before)


def test_loaded_steps_of_adam_stay_on_the_host():
    """As in torch: else AdamW would read one number from the device for each parameter and step."""
    model = Model()
    optimizer = make_optimizer(model)
    train(model, optimizer, 1)
    other = copy.deepcopy(model).to("meta")
    loaded = make_optimizer(other)
    loaded.load_state_dict(optimizer.state_dict())
    state = loaded.state[other.words.weight]
    assert (state["step"].device.type, state["exp_avg"].device.type) == ("cpu", "meta")


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of torch's Adagrad
@pytest.mark.parametrize(
    ("kind", "sparse"),
    [
        (torch.optim.AdamW, False),
        (torch.optim.RMSprop, False),
        (torch.optim.SGD, True),
        (torch.optim.Adagrad, True),
        (torch.optim.SparseAdam, True),
    ],
)
def test_optimizers_of_torch_train_the_layer(kind, sparse):
    model = Model(sparse=sparse)
    optimizer = kind(model.head.parameters(), lr=0.1)
    first = model.eval()(*rows()).item()
    train(model.train(), optimizer, 20)
    assert model.eval()(*rows()).item() < first


def test_accumulated_gradients_are_those_of_the_whole_batch():
    models = [Model(n_sampled=N_CLASSES), Model(n_sampled=N_CLASSES)]
    x, y = rows()
    for model, n_parts in zip(models, (1, 4), strict=True):
        optimizer = make_optimizer(model)
        for part in zip(x.chunk(n_parts), y.chunk(n_parts), strict=True):
            (model(*part) / n_parts).backward()
        optimizer.step()
    torch.testing.assert_close(models[0].state_dict(), models[1].state_dict(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.optim.lr_scheduler.OneCycleLR(x, [0.1, 0.2], total_steps=10, cycle_momentum=False),
        lambda x: torch.optim.lr_scheduler.CosineAnnealingLR(x, 10),
        lambda x: torch.optim.lr_scheduler.LambdaLR(x, lambda step: 0.5**step),
        lambda x: torch.optim.lr_scheduler.ReduceLROnPlateau(x, patience=0),
    ],
)
def test_schedules_change_all_rates(make):
    model = Model()
    optimizer = make_optimizer(model)
    schedule = make(optimizer)
    plateau = [1.0] if isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau) else []
    before = [group["lr"] for group in optimizer.param_groups]
    for _ in range(2):
        train(model, optimizer, 1)
        schedule.step(*plateau)
    assert all(group["lr"] != rate for group, rate in zip(optimizer.param_groups, before, strict=True))
    for part in optimizer.parts:
        assert all(any(group is own for own in optimizer.param_groups) for group in part.param_groups)


def test_grad_scaler_skips_steps_that_overflow():
    model = Model()
    optimizer = make_optimizer(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    before = model.head.weight.detach().clone()
    for factor, moves in ((math.inf, False), (1.0, True)):
        optimizer.zero_grad()
        scaler.scale(factor * model(*rows())).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(model.head.weight, before) != moves


@pytest.mark.reference
@pytest.mark.parametrize("clip", [clip_grad_norm_, nn.utils.clip_grad_norm_])
def test_clipping_of_sparse_gradients_is_that_of_dense_ones(clip):
    found = []
    for sparse in (False, True):
        model = Model(sparse=sparse)
        torch.manual_seed(5)
        model(*rows()).backward()
        norm = (clip if sparse else nn.utils.clip_grad_norm_)(model.parameters(), 0.01)
        found.append([norm, *(p.grad.to_dense() for p in model.parameters())])
        assert model.head.weight.grad.is_sparse == sparse
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-7)
    assert float(clip([nn.Parameter(torch.ones(2))], 1.0)) == 0.0


def test_norms_of_sparse_tensors_along_a_dimension_are_refused():
    with pytest.raises(NotImplementedError, match="give no dim"):
        torch.linalg.vector_norm(torch.eye(3).to_sparse(), dim=1)


@pytest.mark.error
def test_wrong_rates_and_models_are_rejected():
    with pytest.raises(ValueError, match="lr is -1"):
        RowAdagrad([nn.Parameter(torch.ones(2, 2))], lr=-1)
    with pytest.raises(ValueError, match="model has no ExtremeSoftmax layer"):
        make_optimizer(nn.Linear(2, 2))


@pytest.mark.planted
def test_many_classes_are_learned():
    """2,000 clusters, one pass of two rows each: most test rows are classified right."""
    torch.manual_seed(0)
    n_classes, width = 2000, 32
    centers = torch.randn(n_classes, width)
    y = torch.randperm(n_classes).repeat(4)
    x = centers[y] + 0.3 * torch.randn(len(y), width)
    counts = torch.bincount(y)
    head = ExtremeSoftmax(width, n_classes, sampler=FrequencySampler(counts, n_sampled=256))
    model = nn.ModuleDict({"encoder": nn.Linear(width, width), "head": head})
    optimizer = make_optimizer(model, lr=1e-3)
    for chosen in torch.arange(len(y)).split(100):
        optimizer.zero_grad()
        head(model["encoder"](x[chosen]), y[chosen]).loss.backward()
        optimizer.step()
    test = centers + 0.3 * torch.randn(n_classes, width)
    right = head.predict(model["encoder"](test)) == torch.arange(n_classes)
    assert float(right.float().mean()) > 0.8


@pytest.mark.invariance
def test_number_of_threads_changes_rounding_alone():
    """torch's own products and sums differ in their last bits; the softmax of the loss does not at all."""
    generator = torch.Generator().manual_seed(3)
    scores, shift = torch.randn(300, 90, generator=generator), torch.randn(90, generator=generator)
    own, y = torch.randn(300, generator=generator), torch.arange(300) % 100
    ratios, weights, n_threads = [], [], torch.get_num_threads()
    try:
        for n in (1, 2, 4):
            torch.set_num_threads(n)
            table = scores.clone()
            log_sum = softmax_in_place(
                table, shift, own, torch.arange(90), y, torch.zeros(len(y), 2, dtype=torch.long)
            )
            ratios.append(torch.cat([table.flatten(), log_sum]))
            model = Model()
            train(model, make_optimizer(model))
            weights.append(model.head.weight.detach())
    finally:
        torch.set_num_threads(n_threads)
    assert all(torch.equal(ratios[0], other) for other in ratios)
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weights[0], weights[2], rtol=1e-4, atol=1e-5)
