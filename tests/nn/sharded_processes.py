"""The processes of test_sharded.py: ``python sharded_processes.py FOLDER``.

Runs every check in groups of processes that are forked from this one, and each process writes what failed to
``failed-SIZE-RANK.json``. Every process knows all rows and makes the reference of one process by itself.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint import DefaultLoadPlanner, load, save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from extremax.nn import ExtremeSoftmax, ShardedExtremeSoftmax, shard_group
from extremax.nn.shared_classes import ClassDraws, SharedSet, shared_losses
from extremax.nn.softmax import StepSets

N_CLASSES, WIDTH = 23, 6  # 23 classes are 12 and 11, or 8, 8 and 7
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
COUNTS = np.arange(1, N_CLASSES + 1) ** 2


# -- the problem, the same on every rank


def tables(n_classes=N_CLASSES, dtype=torch.float32):
    generator = torch.Generator().manual_seed(7)
    weight = 0.7 * torch.randn(n_classes, WIDTH, generator=generator, dtype=torch.float64)
    return weight.to(dtype), torch.randn(n_classes, generator=generator, dtype=torch.float64).to(dtype)


def rows(size, *, n_classes=N_CLASSES, uneven=True, dtype=torch.float32):
    """Hidden states and targets of each of `size` ranks; a row of each is ignored."""
    generator = torch.Generator().manual_seed(3)
    found = []
    for rank in range(size):
        n = 9 + 4 * (rank % 2) * uneven
        x = torch.randn(n, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
        y = torch.randint(n_classes, (n,), generator=generator)
        y[2] = -100
        found.append((x, y))
    return found


def make_layer(n_classes=N_CLASSES, **options):
    weight, bias = tables(n_classes, options.get("dtype", torch.float32))
    layer = ShardedExtremeSoftmax(WIDTH, n_classes, **options)
    start, stop = layer.class_range
    with torch.no_grad():
        local(layer.weight).copy_(weight[start:stop])
        if layer.bias is not None:
            local(layer.bias).copy_(bias[start:stop])
    return layer


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def dense(tensor):
    tensor = local(tensor)
    return tensor.to_dense() if tensor.is_sparse else tensor


def whole_sets(layer):
    """The classes that the ranks drew in the latest minibatch, as sets of all classes, one for each step."""
    mine = [
        (classes + layer.class_range[0], shift) for classes, shift in next(reversed(layer._kept.values()))
    ]
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return [
        tuple(np.concatenate(part) for part in zip(*of_ranks, strict=True))
        for of_ranks in zip(*found, strict=True)
    ]


def whole_set(layer):
    (drawn,) = whole_sets(layer)
    return SharedSet(*map(torch.from_numpy, drawn))


def reference(parts, shared, *, bias=True, smoothing=0.0, n_classes=N_CLASSES):
    """Mean losses of the ranks' rows by one process, and the gradients of their mean over ranks."""
    inputs = [table.requires_grad_() for table in tables(n_classes)][: 1 + bias]
    hidden = [x.clone().requires_grad_() for x, _ in parts]
    losses = []
    for h, (_, y) in zip(hidden, parts, strict=True):
        kept = y != -100
        options = {"label_smoothing": smoothing, "sparse": False}
        own = shared_losses(h[kept], y[kept], inputs[0], inputs[1] if bias else None, shared, **options)
        losses.append(own.mean())
    torch.stack(losses).mean().backward()
    return losses, [h.grad * len(parts) for h in hidden], [table.grad for table in inputs]


def compare_step(layer, parts, mine, *, smoothing=0.0, shared=None):
    """A step of the ranks is that of one process with the same classes."""
    hidden = parts[mine][0].clone().requires_grad_()
    out = layer(hidden, parts[mine][1])
    out.loss.backward()
    shared = whole_set(layer) if shared is None else shared
    losses, hidden_grads, table_grads = reference(
        parts, shared, bias=layer.bias is not None, smoothing=smoothing, n_classes=layer.n_classes
    )
    torch.testing.assert_close(out.loss, losses[mine], **CLOSE)
    torch.testing.assert_close(hidden.grad, hidden_grads[mine], **CLOSE)
    start, stop = layer.class_range
    for table, expected in zip(layer.parameters(), table_grads, strict=True):
        torch.testing.assert_close(dense(table.grad), expected[start:stop], **CLOSE)


# -- checks: each runs on every rank of a group


def check_drawn_classes(rank, size, folder):
    """Loss and gradients of drawn classes, rows of the ranks' own, of different numbers."""
    for options in (
        {},
        {"gradients": "sparse"},
        {"bias": False},
        {"label_smoothing": 0.2},
        {"gradients": "sparse", "label_smoothing": 0.2, "bias": False},
    ):
        torch.manual_seed(rank)
        layer = make_layer(n_shared=9, class_counts=COUNTS, **options)
        for _ in range(2):
            layer.zero_grad()
            compare_step(layer, rows(size), rank, smoothing=options.get("label_smoothing", 0.0))
        assert local(layer.weight).shape[0] == layer.class_range[1] - layer.class_range[0]
        if "gradients" in options:
            assert layer.weight.grad.is_sparse
        else:
            assert layer.weight.placements == (Shard(0),)
            assert isinstance(layer.weight.grad, DTensor)


def check_same_rows(rank, size, folder):
    """All ranks have the same rows, in a group that is named."""
    group = dist.new_group(range(size))
    for options in ({}, {"gradients": "sparse"}, {"label_smoothing": 0.2}):
        torch.manual_seed(0)  # ranks draw differently all the same
        layer = make_layer(mesh=group, rows="same", n_shared=9, class_counts=COUNTS, **options)
        compare_step(layer, rows(1), 0, smoothing=options.get("label_smoothing", 0.0))


def check_full_softmax(rank, size, folder):
    """With all classes, the loss is torch's cross-entropy; a rank without classes takes part."""
    for n_classes in (N_CLASSES, 4):  # 4 classes on 3 ranks are 2, 2 and 0
        for smoothing in (0.0, 0.3):
            for gradients in ("dense", "sparse"):
                layer = make_layer(n_classes, n_shared=50, label_smoothing=smoothing, gradients=gradients)
                parts = rows(size, n_classes=n_classes)
                hidden = parts[rank][0].clone().requires_grad_()
                out = layer(hidden, parts[rank][1])
                out.loss.backward()
                x = torch.cat([part[0] for part in parts]).requires_grad_()
                weight, bias = (table.requires_grad_() for table in tables(n_classes))
                pieces = torch.split(F.linear(x, weight, bias), [len(part[1]) for part in parts])
                losses = [
                    F.cross_entropy(scores, y, label_smoothing=smoothing)
                    for scores, (_, y) in zip(pieces, parts, strict=True)
                ]
                torch.stack(losses).mean().backward()
                first = sum(len(part[1]) for part in parts[:rank])
                torch.testing.assert_close(out.loss, losses[rank], **CLOSE)
                torch.testing.assert_close(hidden.grad, size * x.grad[first : first + len(hidden)], **CLOSE)
                start, stop = layer.class_range
                torch.testing.assert_close(dense(layer.weight.grad), weight.grad[start:stop], **CLOSE)
                torch.testing.assert_close(dense(layer.bias.grad), bias.grad[start:stop], **CLOSE)


def check_ranks_without_rows(rank, size, folder):
    """A rank may come without rows, as at the end of an epoch; the others' gradients are right."""
    layer = make_layer(n_shared=50)
    parts = rows(size)
    parts[size - 1] = (parts[size - 1][0][:0], parts[size - 1][1][:0])
    hidden = parts[rank][0].clone().requires_grad_()
    out = layer(hidden, parts[rank][1])
    out.losses.sum().backward()
    weight, bias = (table.requires_grad_() for table in tables())
    x, y = (torch.cat(part) for part in zip(*parts, strict=True))
    F.cross_entropy(F.linear(x, weight, bias), y, reduction="sum").backward()
    start, stop = layer.class_range
    torch.testing.assert_close(local(layer.weight.grad), weight.grad[start:stop] / size, **CLOSE)
    assert bool(out.loss.isnan()) == (rank == size - 1)


def check_ranks_without_classes(rank, size, folder):
    """A rank without classes takes random numbers, counts steps and goes through backward as others do."""
    for n_classes in (2, 4):  # on 3 ranks 1, 1 and 0, or 2, 2 and 0
        x, y = rows(size, n_classes=n_classes)[rank]
        for gradients in ("dense", "sparse", "fused"):
            torch.manual_seed(5)
            layer = make_layer(n_classes, n_shared=2, gradients=gradients, steps_per_batch=2)
            before = local(layer.weight).detach().clone()
            for step in range(2):
                hidden = x.clone().requires_grad_(step == 0)  # an encoder may be frozen
                layer(hidden, y).loss.backward()
                assert hidden.grad is None or bool(hidden.grad.isfinite().all())
            assert int(layer.n_steps) == 2
            following = [None] * size
            dist.all_gather_object(following, float(torch.rand(())))
            assert len(set(following)) == 1
            if gradients == "fused":
                assert bool((local(layer.weight) != before).any(dim=1).all())
                moments = [None] * size
                dist.all_gather_object(moments, layer.hidden_moments.moments)
                assert all(torch.equal(moments[0], other) for other in moments)
                assert bool(moments[0].any())


def check_wrong_input_on_one_rank(rank, size, folder):
    """All ranks raise, none waits; they go on together afterwards."""
    layer = make_layer(n_shared=9)
    x, y = rows(size)[rank]
    for training in (True, False):
        layer.train(training)
        bad = y.clone()
        bad[0] = N_CLASSES + 2 if rank == size - 1 else 0
        with pytest.raises(ValueError, match=r"^targets holds 25; the classes are 0 to 22\.$"):
            layer(x, bad)
        own = ("its last dimension must be 6", "targets has type torch.float32")
        for wrong, sentence in zip(((x[:, :3], y), (x, y.float())), own, strict=True):
            is_wrong = rank == size - 1
            theirs = f"rank {size - 1} of {size} in the group refused what it was called with"
            with pytest.raises((TypeError, ValueError), match=sentence if is_wrong else theirs):
                layer(*(wrong if is_wrong else (x, y)))
    with pytest.raises(ValueError, match="its last dimension must be 6" if rank == 0 else "rank 0 of"):
        layer.predict_topk(x[:, :3] if rank == 0 else x, 2)
    assert int(layer.n_steps) == 0
    # Hidden states of one rank want no gradient: it takes part in that of the others.
    hidden = x.clone().requires_grad_(rank == 0)
    layer.train()(hidden, y).loss.backward()
    assert (hidden.grad is not None) == (rank == 0)
    # Random numbers that come again with other targets are another step.
    for targets in (y, torch.zeros_like(y), y):
        torch.manual_seed(0)
        layer(x, targets)
    assert int(layer.n_steps) == 3


def check_predictions(rank, size, folder):
    """Top-k, all log-probabilities and the exact loss, against one process."""
    for rows_of, n_classes in (("own", N_CLASSES), ("same", N_CLASSES), ("own", 4)):
        layer = make_layer(n_classes, rows=rows_of, n_shared=2, label_smoothing=0.1).eval()
        parts = rows(size, n_classes=n_classes)
        x, y = parts[rank if rows_of == "own" else 0]
        weight, bias = tables(n_classes)
        expected = F.log_softmax(F.linear(x, weight, bias), dim=1)
        for k in (1, n_classes):  # all classes are more than a rank has
            labels, log_prob = layer.predict_topk(x, k)
            best, order = expected.topk(k, dim=1)
            assert torch.equal(labels, order)
            torch.testing.assert_close(log_prob, best, **CLOSE)
        labels, _ = layer.predict_topk(x[0], 2)  # one row without a batch
        assert labels.shape == (2,)
        torch.testing.assert_close(layer(x.unsqueeze(0)), expected.unsqueeze(0), **CLOSE)
        exact = F.nll_loss(expected, y)
        with torch.no_grad():
            torch.testing.assert_close(layer(x, y).loss, exact, **CLOSE)
        hidden = x.clone().requires_grad_()
        layer(hidden, y).loss.backward()
        theirs = x.clone().requires_grad_()
        F.cross_entropy(F.linear(theirs, weight, bias), y).backward()
        torch.testing.assert_close(hidden.grad, theirs.grad, **CLOSE)
        used = parts if rows_of == "own" else parts[:1]
        values = torch.cat(
            [-F.cross_entropy(F.linear(h, weight, bias), t, reduction="none")[t != -100] for h, t in used]
        )
        assert layer.log_likelihood(x, y) == pytest.approx(float(values.mean()), abs=1e-5)
        assert int(layer.n_steps) == 0


def check_collectives(rank, size, folder):
    """The docstring's collectives are made, and no others."""
    gathered = {"_allgather_base_": 2, "allreduce_": 2}

    def count(work):
        with CommDebugMode() as mode:
            result = work()
        found = {str(op).split(".")[-1].rstrip("')>"): n for op, n in mode.get_comm_counts().items()}
        return {name.removeprefix("c10d."): n for name, n in found.items() if n}, result

    for smoothing in (0.0, 0.1):
        for gradients in ("dense", "sparse") if smoothing else ("dense", "sparse", "fused"):
            options = {"n_shared": 9, "gradients": gradients, "label_smoothing": smoothing}
            layer = make_layer(**options)
            x, y = rows(size)[rank]
            x.requires_grad_()
            found, out = count(lambda: layer(x, y))
            assert found == gathered, found
            found, _ = count(out.loss.backward)
            assert found == {"_allgather_base_": 1, "_reduce_scatter_base_": 1}, found
            same = make_layer(rows="same", **options)
            x, y = rows(1)[0]
            x.requires_grad_()
            found, out = count(lambda: same(x, y))
            assert found == {"allreduce_": 2}, found
            found, _ = count(out.loss.backward)
            assert found == {"allreduce_": 1}, found
    compare_bytes(rank, size)
    several = make_layer(n_shared=9, gradients="fused", steps_per_batch=3)
    x, y = rows(size)[rank]
    x.requires_grad_()
    found, out = count(lambda: several(x, y))
    assert found == gathered, found
    found, _ = count(out.loss.backward)
    assert found == {"_allgather_base_": 1, "allreduce_": 4, "_reduce_scatter_base_": 1}, found
    layer.eval()
    found, _ = count(lambda: layer(*rows(size)[rank]))
    assert found == gathered, found
    found, _ = count(lambda: layer.predict_topk(rows(size)[rank][0], 3))
    assert found == {"_allgather_base_": 3}, found


def compare_bytes(rank, size):
    """Bytes that a rank hands over in a step of the docstring, in order."""
    sent = []

    def recorded(work, place):
        def wrapped(*arguments, **options):
            tensor = arguments[place]
            sent.append(tensor.numel() * tensor.element_size())
            return work(*arguments, **options)

        return wrapped

    for options in ({}, {"gradients": "fused", "steps_per_batch": 2}):
        sent.clear()
        layer = make_layer(n_shared=9, **options)
        x, y = rows(size, uneven=False)[rank]
        x, y = x.requires_grad_(), y.clamp(min=0)
        n, total = len(y), size * len(y)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shard_group, "_all_gather", recorded(shard_group._all_gather, 1))
            patch.setattr(shard_group, "_reduce_scatter", recorded(shard_group._reduce_scatter, 1))
            patch.setattr(dist, "all_reduce", recorded(dist.all_reduce, 0))
            layer(x, y).loss.backward()
        sums = [4 * total, 8 * total]
        more = sums if options else []
        assert sent == [8, n * (4 * WIDTH + 8), *sums, 4 * n, *more, 4 * total * WIDTH], sent


def check_fused_step(rank, size, folder):
    """Steps in backward are those of the layer of one process, whose kernels are others."""
    for options in (
        {},
        {"bias": False, "whiten": False},
        {"n_shared": 9, "class_counts": COUNTS, "steps_per_batch": 3},
        {"n_shared": 9, "whiten": False, "steps_per_batch": 2},
        {"rows": "same", "n_shared": 9, "steps_per_batch": 2},
    ):
        parts = rows(size if options.get("rows", "own") == "own" else 1)
        layer, single = compare_fused_steps(rank % len(parts), parts, **options)
        start, stop = layer.class_range
        close = {"rtol": 1e-4, "atol": 1e-4}
        for name in ("weight", "squares") + (("bias", "bias_squares") if layer.bias is not None else ()):
            ours, theirs = local(getattr(layer, name)), getattr(single, name)[start:stop].detach()
            torch.testing.assert_close(ours, theirs, **close)
        assert not layer.weight.requires_grad
        compare_scale(layer, single, "hidden_moments" if options.get("whiten", True) else "hidden_size")
    # Classes that were not drawn stay: one process of one drawn class steps that and the targets.
    few = make_layer(n_shared=1, gradients="fused", rows="same")
    x, y = rows(1)[0]
    few(x, torch.full_like(y, 0)).loss.backward()
    start, stop = few.class_range
    moved = (local(few.weight) != tables()[0][start:stop]).any(dim=1).sum()
    assert 1 <= int(moved) <= 2


def compare_fused_steps(mine, parts, *, n_shared=50, rows="own", class_counts=None, **options):
    """Train three minibatches, and one process on the same class sets; return both layers."""
    options = {"gradients": "fused", "learning_rate": 0.05 * WIDTH, "steps_per_batch": 1, **options}
    layer = make_layer(n_shared=n_shared, rows=rows, class_counts=class_counts, **options)
    single = ExtremeSoftmax(WIDTH, N_CLASSES, n_jobs=1, **options)
    with torch.no_grad():
        single.weight.copy_(tables()[0])
        if single.bias is not None:
            single.bias.copy_(tables()[1])
    x, y = (torch.cat(part) for part in zip(*parts, strict=True))
    for _ in range(3):
        hidden = parts[mine][0].clone().requires_grad_()
        out = layer(hidden, parts[mine][1])
        out.loss.backward()
        theirs = x.clone().requires_grad_()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("extremax.nn.softmax.n_processes", lambda: 1)  # it refuses several processes
            sets = [(classes.astype(np.int32), shift) for classes, shift in whole_sets(layer)]
            assert len(sets) == options["steps_per_batch"]
            patch.setattr(single, "_choose", lambda y: StepSets(50, sets))
            losses = torch.split(single(theirs, y).losses, [int((y != -100).sum()) for _, y in parts])
            torch.stack([own.mean() for own in losses]).mean().backward()
        torch.testing.assert_close(out.losses, losses[mine], rtol=1e-4, atol=1e-4)
        ours = torch.split(theirs.grad * len(parts), [len(y) for _, y in parts])[mine]
        torch.testing.assert_close(hidden.grad, ours, rtol=1e-4, atol=1e-4)
    return layer, single


def compare_scale(layer, single, part):
    """Moments, or sizes, are the same bits on all ranks, and those of one process."""
    buffers = dict(getattr(layer, part).named_buffers())
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, buffers)
    for name, value in buffers.items():
        assert all(torch.equal(value, other[name]) for other in found), name
        theirs = getattr(single, part).get_buffer(name)
        torch.testing.assert_close(value, theirs, rtol=1e-4, atol=1e-4)
    if part == "hidden_moments":
        assert int(layer.hidden_moments.n_steps) == 3
    else:
        assert int((layer.hidden_size.sizes > 0.0).sum()) == 3


def check_what_is_not_finite(rank, size, folder):
    """Hidden states or a gradient of one rank that are not finite: no rank steps, none waits."""
    x, y = rows(size)[rank]
    is_last = rank == size - 1
    for options in ({}, {"whiten": False}):
        layer = make_layer(n_shared=9, gradients="fused", steps_per_batch=2, **options)
        before = {name: local(value).clone() for name, value in layer.state_dict().items()}
        for value in (torch.inf, torch.nan):
            bad = x.index_fill(0, torch.tensor([1]), value) if is_last else x
            layer(bad.clone().requires_grad_(), y).loss.backward()
            hidden = x.clone().requires_grad_()
            (layer(hidden, y).loss * (value if is_last else 1.0)).backward()
            kept = hidden.grad[y != -100]
            assert bool(kept.isfinite().any()) != is_last
            for name, tensor in layer.state_dict().items():
                assert name == "n_steps" or torch.equal(local(tensor), before[name]), name
        layer(x, y).loss.backward()
        assert bool((local(layer.weight) != before["weight"]).any())
        assert all(bool(local(value).isfinite().all()) for value in layer.state_dict().values())
    huge = make_layer(n_shared=9, gradients="fused", steps_per_batch=2)
    with torch.no_grad():
        local(huge.weight).mul_(1e20)
    before = local(huge.weight).clone()
    huge(1e20 * x, y).loss.backward()
    assert torch.equal(local(huge.weight), before)
    scores_of_one_rank_overflow(rank, size)


def scores_of_one_rank_overflow(rank, size):
    """Scores of the first rank are -inf. Without a target there, the others step; with one, none does."""
    for target, steps in ((N_CLASSES - 1, rank == size - 1), (0, False)):
        layer = make_layer(
            n_shared=N_CLASSES, gradients="fused", rows="same", whiten=False, steps_per_batch=2
        )
        with torch.no_grad():
            local(layer.weight).fill_(-1e20 if rank == 0 else 0.0)
        before = local(layer.weight).clone()
        hidden = torch.full((5, WIDTH), 1e20, requires_grad=True)
        loss = layer(hidden, torch.full((5,), target)).loss
        loss.backward()
        assert bool(loss.isfinite()) == (target > 0)
        assert bool(local(layer.weight).isfinite().all())
        if size > 1 and (rank == size - 1 or target == 0):
            assert bool((local(layer.weight) != before).any()) == steps
        assert target == 0 or bool(hidden.grad.isfinite().all())


def check_sum_of_exponentials(rank, size, folder):
    """The mean of exp(loss) over many sets is that of the full softmax, and inclusion is as stated."""
    layer = make_layer(n_shared=9, rows="same", class_counts=COUNTS)
    x, y = rows(1)[0]
    torch.manual_seed(1)
    seen, stated, values = np.zeros(N_CLASSES), np.zeros(N_CLASSES), []
    n = 300
    with torch.no_grad():
        for _ in range(n):
            values.append(layer(x, y).losses.double().exp().numpy())
            ((classes, minus_log_pi),) = next(reversed(layer._kept.values()))
            seen[classes] += 1
            stated[classes] = np.exp(-minus_log_pi)
        exact = layer.target_log_prob(x, y).double().neg().exp().numpy()
    error = np.std(values, axis=0) / np.sqrt(n)
    assert np.all(np.abs(np.mean(values, axis=0) - exact) < 5 * error)
    assert np.all(error < 0.15 * exact)  # the comparison says something
    spread = 5 * np.sqrt(n * stated * (1 - stated)) + 1
    assert np.all(np.abs(seen - n * stated) < spread)
    # Targets are in the set for certain, the others by frequency.
    by_frequency = np.diff(layer._current_draws().cumulative, prepend=0.0)
    assert by_frequency.sum() == pytest.approx(-(-9 // size))
    found = stated[: len(by_frequency)]
    drawn = (found > 0) & (found < 1)
    assert drawn.sum() > 3
    np.testing.assert_allclose(found[drawn], by_frequency[drawn], rtol=1e-5)
    assert (seen == n).sum() >= -(-9 // size) // 2
    # Sets of different ranks are independent: positions that all ranks share would draw one class of each
    # rank together, and those of the first differ from those of the others.
    position = np.array([np.random.default_rng([seed, dist.get_rank()]).random() for seed in range(5)])
    others = [None] * size
    dist.all_gather_object(others, position)
    assert len(np.unique(np.concatenate(others))) == 5 * size


class Model(nn.Module):
    def __init__(self, layer):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, WIDTH))
        self.layer = layer

    def forward(self, x, y):
        return self.layer(self.encoder(x), y).loss


def single_model(**options):
    layer = ExtremeSoftmax(WIDTH, N_CLASSES, n_shared=50, n_jobs=1, **options)
    with torch.no_grad():
        layer.weight.copy_(tables()[0])
        layer.bias.copy_(tables()[1])
    return Model(layer)


def check_training(rank, size, folder):
    """Encoders in DDP (2 ranks) and in FSDP (3), clipped gradients: four steps are those of one process."""
    parts = [(x, y.clamp(min=0)) for x, y in rows(size, uneven=False)]
    x, y = (torch.cat(part) for part in zip(*parts, strict=True))
    for name, options in (("AdamW", {"lr": 0.05}), ("SGD", {"lr": 0.5, "momentum": 0.9})):
        model, single = Model(make_layer(n_shared=50)), single_model()
        if size == 2:
            model.encoder = DistributedDataParallel(model.encoder)
        else:
            fully_shard(model.encoder, mesh=init_device_mesh("cpu", (size,)))
        optimizers = [
            getattr(torch.optim, name)(part.parameters(), **options) for part in (model.encoder, model.layer)
        ]
        theirs = getattr(torch.optim, name)(single.parameters(), **options)
        for _ in range(4):
            model.zero_grad()
            model(*parts[rank]).backward()
            norms = [
                full(nn.utils.get_total_norm([p.grad for p in part.parameters()]))
                for part in (model.encoder, model.layer)
            ]
            total = torch.stack(norms).norm()
            nn.utils.clip_grads_with_norm_(model.layer.parameters(), 0.5, total)
            nn.utils.clip_grads_with_norm_(model.encoder.parameters(), 0.5, total)
            single.zero_grad()
            single(x, y).backward()
            expected = nn.utils.clip_grad_norm_(single.parameters(), 0.5)
            torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-5)
            for optimizer in (*optimizers, theirs):
                optimizer.step()
        start, stop = model.layer.class_range
        close = {"rtol": 1e-4, "atol": 1e-4}
        torch.testing.assert_close(local(model.layer.weight), single.layer.weight[start:stop], **close)
        for ours, other in zip(model.encoder.parameters(), single.encoder.parameters(), strict=True):
            torch.testing.assert_close(full(ours), other, **close)


def full(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def check_optimizers(rank, size, folder):
    """Optimizers of dense shards take DTensors, those of sparse ones plain tensors; the loss falls."""
    x, y = rows(size)[rank]
    dense_ones = ("AdamW", "Adam", "Adagrad", "SGD", "RMSprop", "NAdam")
    cases = [("dense", name, {}) for name in dense_ones]
    cases += [("dense", name, {"fused": True}) for name in ("Adam", "AdamW")]
    cases += [("sparse", name, {}) for name in ("SparseAdam", "Adagrad", "SGD")]
    for gradients, name, options in cases:
        layer = make_layer(n_shared=9, gradients=gradients)
        optimizer = getattr(torch.optim, name)(layer.parameters(), lr=0.05, **options)
        before = layer.log_likelihood(x, y)
        for _ in range(4):
            optimizer.zero_grad()
            layer(x, y).loss.backward()
            optimizer.step()
        assert layer.log_likelihood(x, y) > before, name
        assert torch.isfinite(local(layer.weight)).all()


def check_accumulation_and_precision(rank, size, folder):
    """Two halves add up; float64 and autocast; activation checkpointing; compiled; averaged; copied."""
    x, y = rows(size)[rank]
    y = y.clamp(min=0)
    half = len(y) // 2
    whole, split = make_layer(n_shared=50), make_layer(n_shared=50)
    whole(x[: 2 * half], y[: 2 * half]).loss.backward()
    for part in (slice(0, half), slice(half, 2 * half)):
        (0.5 * split(x[part], y[part]).loss).backward()
    torch.testing.assert_close(local(split.weight.grad), local(whole.weight.grad), **CLOSE)
    double = make_layer(n_shared=50, dtype=torch.float64)
    assert double(x.double(), y).loss.dtype == torch.float64
    expected = F.cross_entropy(F.linear(x.double(), *tables(dtype=torch.float64)), y)
    torch.testing.assert_close(double(x.double(), y).loss, expected, rtol=1e-10, atol=1e-10)
    model = Model(make_layer(n_shared=50))
    plain = model(x, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(x, y)
    loss.backward()
    assert loss.dtype == torch.float32
    assert local(model.layer.weight.grad).dtype == torch.float32
    torch.testing.assert_close(loss, plain, rtol=0.02, atol=0.02)
    losses = []
    for repeated in (False, True):
        model = Model(make_layer(n_shared=9))
        torch.manual_seed(4)
        loss = checkpoint(model, x, y, use_reentrant=False) if repeated else model(x, y)
        loss.backward()
        losses.append((loss.detach(), local(model.layer.weight.grad), model.encoder[0].weight.grad))
        assert int(model.layer.n_steps) == 1
    for ours, theirs in zip(*losses, strict=True):
        torch.testing.assert_close(ours, theirs)
    if size == 2:  # takes seconds
        compiled = torch.compile(Model(make_layer(n_shared=9)), backend="eager")
        torch.manual_seed(4)
        torch.testing.assert_close(compiled(x, y), losses[0][0], **CLOSE)
    averaged = AveragedModel(model)
    averaged.update_parameters(model)
    with torch.no_grad():
        torch.testing.assert_close(averaged.eval()(x, y), model.eval()(x, y))
    twin = copy.deepcopy(model)
    with torch.no_grad():
        local(model.layer.weight).zero_()
    assert local(twin.layer.weight).abs().sum() > 0


def check_meta_device(rank, size, folder):
    for gradients in ("dense", "sparse", "fused"):
        layer = ShardedExtremeSoftmax(
            WIDTH, N_CLASSES, class_counts=COUNTS, gradients=gradients, device="meta"
        )
        assert local(layer.weight).is_meta
        layer.to_empty(device="cpu")
        layer.reset_parameters()
        known = COUNTS / COUNTS.sum()
        x, _ = rows(size)[rank]
        found = layer(x).exp()
        np.testing.assert_allclose(found, np.broadcast_to(known, found.shape), rtol=1e-5)
        layer(*rows(size)[rank]).loss.backward()


def state_of(gradients):
    layer = make_layer(n_shared=9, class_counts=COUNTS, gradients=gradients)
    layer.n_steps.fill_(5)
    if gradients == "fused":
        start, stop = layer.class_range
        layer.squares.to_local().copy_(torch.arange(start, stop)[:, None])
        layer.hidden_moments.scale(rows(1)[0][0].numpy())
    return layer


def check_conversion(rank, size, folder):
    """A state of one process and back, for all three kinds of gradients."""
    for gradients in ("dense", "sparse", "fused"):
        layer = state_of(gradients)
        single = ExtremeSoftmax(WIDTH, N_CLASSES, n_jobs=1, gradients=gradients)
        single.load_state_dict(layer.unsharded_state_dict())
        assert torch.equal(single.weight.detach(), tables()[0])
        assert torch.equal(single.bias.detach(), tables()[1])
        np.testing.assert_array_equal(single.class_counts, COUNTS)
        assert int(single.n_steps) == 5
        x, _ = rows(size)[rank]
        torch.testing.assert_close(single(x).detach(), layer(x), **CLOSE)
        if gradients == "fused":
            assert torch.equal(single.squares[:, 0], torch.arange(N_CLASSES).float())
            assert float(single.hidden_moments.n_rows) == len(rows(1)[0][0])
            single.squares += 1
            single.hidden_moments.scale(x.numpy())
        with torch.no_grad():
            single.weight += 1
        layer.load_state_dict(single.state_dict())
        start, stop = layer.class_range
        assert torch.equal(local(layer.weight), single.weight[start:stop])
        if gradients == "fused":
            assert torch.equal(local(layer.squares), single.squares[start:stop])
            for name, value in layer.hidden_moments.named_buffers():
                assert torch.equal(value, single.hidden_moments.get_buffer(name)), name
        assert layer._current_draws().n_classes == stop - start
    with pytest.raises(RuntimeError, match="size mismatch"):
        layer.load_state_dict(ExtremeSoftmax(WIDTH, N_CLASSES + 1, gradients="fused").state_dict())


def check_checkpoints(rank, size, folder):
    """Two processes write; two, three and one load. Weights, sums of Adagrad, and the state of AdamW."""
    for gradients in ("dense", "sparse", "fused"):
        path = folder / f"checkpoint-{gradients}"
        if size == 2:
            save(state_of(gradients).state_dict(), checkpoint_id=path)
        expected = state_of(gradients).state_dict()
        fresh = ShardedExtremeSoftmax(WIDTH, N_CLASSES, gradients=gradients)
        state = fresh.state_dict()
        load(state, checkpoint_id=path)
        fresh.load_state_dict(state)
        for name, value in fresh.state_dict().items():
            assert torch.equal(local(value), local(expected[name])), name
        assert fresh.n_steps == 5
    load_other_moments(size, folder)
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def trained():
        layer = make_layer(n_shared=50)
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.05)
        step(layer, optimizer)
        return layer, optimizer

    def step(layer, optimizer):
        parts = rows(1)
        x, y = parts[0] if rank == 0 else (parts[0][0][:0], parts[0][1][:0])
        optimizer.zero_grad()
        (layer(x, y).losses.sum() * size).backward()  # the mean over ranks is the sum over rows
        optimizer.step()

    layer, optimizer = trained()
    if size == 2:
        model_state, optimizer_state = get_state_dict(layer, optimizer)
        save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder / "adamw")
    other = ShardedExtremeSoftmax(WIDTH, N_CLASSES, n_shared=50)
    again = torch.optim.AdamW(other.parameters(), lr=0.05)
    model_state, optimizer_state = get_state_dict(other, again)
    state = {"model": model_state, "optimizer": optimizer_state}
    load(state, checkpoint_id=folder / "adamw")
    set_state_dict(other, again, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    step(layer, optimizer)
    step(other, again)
    torch.testing.assert_close(local(other.weight), local(layer.weight), **CLOSE)


def load_other_moments(size, folder):
    """Checkpoints with moments into a layer without, and the other way round."""
    plain = ShardedExtremeSoftmax(WIDTH, N_CLASSES, gradients="fused", whiten=False)
    state = plain.state_dict()
    planner = DefaultLoadPlanner(allow_partial_load=True)
    load(state, checkpoint_id=folder / "checkpoint-fused", planner=planner)
    plain.load_state_dict(state)
    assert torch.equal(local(plain.weight), local(state_of("fused").weight))
    if size == 2:
        save(plain.state_dict(), checkpoint_id=folder / "checkpoint-plain")
    layer = ShardedExtremeSoftmax(WIDTH, N_CLASSES, gradients="fused")
    state = layer.state_dict()
    planner = DefaultLoadPlanner(allow_partial_load=True)
    load(state, checkpoint_id=folder / "checkpoint-plain", planner=planner)
    layer.load_state_dict(state)
    assert torch.equal(local(layer.squares), local(plain.squares))
    assert int(layer.hidden_moments.n_steps) == 0
    layer.hidden_moments.scale(rows(1)[0][0].numpy())
    layer.load_state_dict(plain.state_dict())
    assert not any(bool(buffer.any()) for buffer in layer.hidden_moments.buffers())


def check_mesh_of_two_dimensions(rank, size, folder):
    """Copies of the shards along one dimension average their gradients; rows along the other are the same
    or gathered."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "classes"))
    replica, shard = mesh.get_coordinate()
    for rows_of in ("own", "same"):
        for gradients in ("dense", "sparse"):
            options = {"mesh": mesh, "class_dim": "classes", "rows": rows_of, "gradients": gradients}
            layer = make_layer(n_shared=50, **options)
            parts = rows(4 if rows_of == "own" else 2)
            mine = rank if rows_of == "own" else replica
            everything = SharedSet(torch.arange(N_CLASSES), torch.zeros(N_CLASSES))
            compare_mesh_step(layer, parts, mine, everything)
            assert layer.class_range == ((0, 12) if shard == 0 else (12, 23))
            if gradients == "dense":
                assert layer.weight.placements == (Replicate(), Shard(0))
    layer = make_layer(mesh=mesh, class_dim=1, n_shared=9)
    save(layer.state_dict(), checkpoint_id=folder / "mesh")
    state = ShardedExtremeSoftmax(WIDTH, N_CLASSES).state_dict()  # over all four ranks
    load(state, checkpoint_id=folder / "mesh")
    start = 6 * rank
    assert torch.equal(state["weight"].to_local(), tables()[0][start : start + 6])
    with pytest.raises(ValueError, match=r"class_dim is None; name the dimension .*'data' or 'classes'"):
        ShardedExtremeSoftmax(WIDTH, N_CLASSES, mesh=mesh)
    with pytest.raises(ValueError, match="has copies of them"):
        ShardedExtremeSoftmax(WIDTH, N_CLASSES, mesh=mesh, class_dim="classes", gradients="fused")


def compare_mesh_step(layer, parts, mine, everything):
    """Gradients of hidden states are those of a rank's own loss, those of tables the mean over all."""
    hidden = parts[mine][0].clone().requires_grad_()
    out = layer(hidden, parts[mine][1])
    out.loss.backward()
    losses, hidden_grads, table_grads = reference(parts, everything)
    torch.testing.assert_close(out.loss, losses[mine], **CLOSE)
    torch.testing.assert_close(hidden.grad, hidden_grads[mine], **CLOSE)
    start, stop = layer.class_range
    for table, expected in zip(layer.parameters(), table_grads, strict=True):
        torch.testing.assert_close(dense(table.grad), expected[start:stop], **CLOSE)


CHECKS = {
    name.removeprefix("check_"): function for name, function in globals().items() if name.startswith("check_")
}
# The sizes of the groups that make a check; three where nothing is said.
SIZES = {
    "drawn_classes": (2, 3),
    "fused_step": (2, 3),
    "training": (2, 3),
    "accumulation_and_precision": (2,),
    "optimizers": (2,),
    "checkpoints": (2, 3, 1),
    "mesh_of_two_dimensions": (4,),
}
PAIRS = [(name, size) for size in (2, 3, 1, 4) for name in CHECKS if size in SIZES.get(name, (3,))]


def run_rank(rank, size, folder, names):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting{size}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=300),
    )
    failed = {}
    for name in names:
        try:
            CHECKS[name](rank, size, folder)
            dist.barrier()
        except BaseException:
            failed[name] = traceback.format_exc()
            break  # the others wait for this rank
    (folder / f"failed-{size}-{rank}.json").write_text(json.dumps(failed))
    if not failed:
        dist.destroy_process_group()


def main():
    warnings.simplefilter("error")
    # Warnings of torch itself: sparse tensors; a compiled graph ends at a hidden state.
    warnings.filterwarnings("ignore", message="Sparse invariant checks")
    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor")
    folder = Path(sys.argv[1])
    wanted = sys.argv[2:]
    ClassDraws(np.ones(5), 2).draw(np.zeros(2))  # compile before forking
    for size in (2, 3, 1, 4):
        names = [name for name, n in PAIRS if n == size and (not wanted or name in wanted)]
        children = []
        for rank in range(size if names else 0):
            child = os.fork()  # before torch has a thread: imports are made once
            if child == 0:
                try:
                    run_rank(rank, size, folder, names)
                finally:
                    sys.stdout.flush()
                    os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
