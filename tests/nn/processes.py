"""The processes of test_sharded.py: ``python processes.py FOLDER SIZE ...`` runs all checks on SIZE ranks.

Each rank writes what failed to ``FOLDER/RANK.json``. Every rank knows all rows, and computes by itself what a
single process would.
"""

from __future__ import annotations

import copy
import json
import sys
import traceback
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

from extremax.nn import (
    ExtremeSoftmax,
    FrequencySampler,
    ShardedExtremeSoftmax,
    clip_grad_norm_,
    make_optimizer,
)
from extremax.nn.functional import sampled_terms

N_CLASSES, WIDTH, N_ROWS = 23, 6, 10
COUNTS = torch.arange(1, N_CLASSES + 1)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


class Model(nn.Module):
    """An encoder and an output layer that draws all classes: its loss is exact."""

    def __init__(self, *, sharded: bool, **options):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        sampler = FrequencySampler(COUNTS, n_sampled=N_CLASSES)
        kind = ShardedExtremeSoftmax if sharded else ExtremeSoftmax
        self.head = kind(WIDTH, N_CLASSES, sampler=sampler, **options)
        with torch.no_grad():
            for p in self.encoder.parameters():
                p.copy_(0.5 * torch.randn(p.shape, generator=generator))
            self.head.load_state_dict(
                {
                    "weight": torch.randn(N_CLASSES, WIDTH, generator=generator),
                    "bias": torch.randn(N_CLASSES, generator=generator),
                }
                if options.get("bias", True)
                else {"weight": torch.randn(N_CLASSES, WIDTH, generator=generator)}
            )

    def forward(self, x, y):
        return self.head(self.encoder(x), y).loss


def rows(n_ranks, step=0):
    """Rows of all ranks; some are ignored."""
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.randn(n_ranks * N_ROWS, 4, generator=generator)
    y = torch.randint(N_CLASSES, (len(x),), generator=generator)
    y[::7] = -100
    return x, y


def own(whole):
    return whole.unflatten(0, (dist.get_world_size(), -1))[dist.get_rank()]


def whole_tables(layer):
    return {name: value.full_tensor() for name, value in layer.state_dict().items()}


def train(model, optimizer, n_steps, *, whole, clip=clip_grad_norm_):
    for step in range(n_steps):
        x, y = rows(dist.get_world_size(), step)
        optimizer.zero_grad()
        model(*((x, y) if whole else (own(x), own(y)))).backward()
        clip(model.parameters(), 0.5)
        optimizer.step()


def compare(model, reference):
    torch.testing.assert_close(whole_tables(model.head), dict(reference.head.state_dict()), **CLOSE)
    for one, other in zip(model.encoder.parameters(), reference.encoder.parameters(), strict=True):
        full = one.full_tensor() if hasattr(one, "full_tensor") else one
        torch.testing.assert_close(full, other, **CLOSE)


def check_loss_and_gradients_are_those_of_one_process():
    size = dist.get_world_size()
    for options in ({}, {"bias": False}, {"label_smoothing": 0.2}, {"sparse": True}):
        model, reference = Model(sharded=True, **options), Model(sharded=False, **options)
        x, y = rows(size)
        loss, expected = model(own(x), own(y)), reference(x, y)
        torch.testing.assert_close(loss, expected, **CLOSE)
        loss.backward()
        expected.backward()
        shard = model.head.shard
        for p, q in zip(model.head.parameters(), reference.head.parameters(), strict=True):
            grad = q.grad.to_dense()[shard.start : shard.stop]
            torch.testing.assert_close(p.grad.to_dense(), grad, **CLOSE)
        for p, q in zip(model.encoder.parameters(), reference.encoder.parameters(), strict=True):
            dist.all_reduce(p.grad)
            torch.testing.assert_close(p.grad / size, q.grad, **CLOSE)


def check_evaluation_and_search_are_exact():
    size = dist.get_world_size()
    model, reference = Model(sharded=True).eval(), Model(sharded=False).eval()
    x, y = rows(size)
    found = model.head(model.encoder(own(x)), own(y))
    expected = reference.head(reference.encoder(x), y)
    torch.testing.assert_close(found.loss, expected.loss, **CLOSE)
    torch.testing.assert_close(found.output, own(expected.output).detach(), **CLOSE)
    for k in (1, 5, N_CLASSES):
        values, indices = model.head.topk(model.encoder(own(x)), k)
        best = reference.head.topk(reference.encoder(own(x)), k)
        torch.testing.assert_close(values, best.values, **CLOSE)
        assert torch.equal(indices, best.indices)
    assert torch.equal(model.head.predict(model.encoder(own(x))), best.indices[:, 0])


def check_drawn_classes_follow_the_formula():
    """Each rank draws four classes; a loop over rows and classes knows what all of them drew."""
    torch.manual_seed(dist.get_rank())
    model = Model(sharded=True)
    shard = model.head.shard
    sampler = FrequencySampler(COUNTS, n_sampled=8, batch_share=0.0).part(shard.start, shard.stop, 4)
    draw = sampler()
    sampler.forward = lambda: draw
    model.head.sampler = sampler
    x, y = rows(shard.size)
    found = model(own(x), own(y))
    drawn = [None] * shard.size
    dist.all_gather_object(drawn, (shard.start, shard.stop, draw.classes + shard.start, draw.log_pi.exp()))
    weights = {}
    for start, stop, classes, pi in drawn:
        weights |= dict(zip(classes.tolist(), (1.0 / pi).tolist(), strict=True))
        weights |= {j: 1.0 for j in y.tolist() if start <= j < stop}
    reference = Model(sharded=False)
    scores = nn.functional.linear(reference.encoder(x), reference.head.weight, reference.head.bias)
    losses = []
    for i in (y >= 0).nonzero().flatten().tolist():
        total = scores[i, y[i]].exp()
        for j, weight in weights.items():
            total = total + (weight * scores[i, j].exp() if j != int(y[i]) else 0.0)
        losses.append(total.log() - scores[i, y[i]])
    torch.testing.assert_close(found, torch.stack(losses).mean(), **CLOSE)


def check_training_inside_ddp_is_that_of_one_process():
    model, reference = Model(sharded=True), Model(sharded=False)
    wrapped = DistributedDataParallel(model)
    train(wrapped, make_optimizer(model, lr=0.01), 4, whole=False, clip=nn.utils.clip_grad_norm_)
    train(reference, make_optimizer(reference, lr=0.01), 4, whole=True)
    compare(model, reference)


def check_training_inside_fully_shard_is_that_of_one_process():
    model, reference = Model(sharded=True), Model(sharded=False)
    fully_shard(model)
    assert not hasattr(model.head.weight, "full_tensor")
    assert hasattr(model.encoder[0].weight, "full_tensor")
    train(model, make_optimizer(model, lr=0.01), 4, whole=False)
    train(reference, make_optimizer(reference, lr=0.01), 4, whole=True)
    compare(model, reference)


def check_few_collectives():
    model = Model(sharded=True)
    x, y = (own(table) for table in rows(dist.get_world_size()))
    with CommDebugMode() as counted:
        model(x, y).backward()
    # Of rows, targets, terms and gradients; one more compares the numbers of rows on the CPU.
    assert counted.get_total_counts() == 5, counted.get_comm_counts()


def check_meshes_that_would_drift_are_refused():
    size = dist.get_world_size()
    ShardedExtremeSoftmax(WIDTH, N_CLASSES, group=init_device_mesh("cpu", (size,)))
    if size == 1:
        return
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))
    with pytest.raises(ValueError, match="mesh of 2 dimensions; it must have one"):
        ShardedExtremeSoftmax(WIDTH, N_CLASSES, group=mesh)
    alone = dist.new_group([0])
    if dist.get_rank() == 0:
        with pytest.raises(ValueError, match=f"group has 1 of {size} ranks: the others would hold copies"):
            ShardedExtremeSoftmax(WIDTH, N_CLASSES, group=alone)
    if size > 2:
        with pytest.raises(ValueError, match=f"group has 2 of {size} ranks"):
            ShardedExtremeSoftmax(WIDTH, N_CLASSES, group=mesh["tp"])
    with pytest.raises(ValueError, match="would leave one without classes"):
        ShardedExtremeSoftmax(WIDTH, size - 1)


def check_an_overflow_on_one_rank_skips_the_step_of_all():
    """A GradScaler asks its own rank alone, and the others would wait for it in the optimizer."""

    def overflow(rows, weight, *others, **options):
        weight.register_hook(lambda grad: grad * torch.inf)
        return sampled_terms(rows, weight, *others, **options)

    x, y = (own(table) for table in rows(dist.get_world_size()))
    for frozen in (False, True):
        model = Model(sharded=True)
        model.encoder.requires_grad_(not frozen)
        optimizer = make_optimizer(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        before = copy.deepcopy(model.state_dict())
        for overflows in (True, False):
            last = dist.get_rank() == dist.get_world_size() - 1
            terms = overflow if overflows and last else sampled_terms
            optimizer.zero_grad()
            with patch("extremax.nn.layer.sampled_terms", terms):
                scaler.scale(model(x, y)).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            assert scaler.get_scale() == 2.0
            assert torch.equal(model.head.weight, before["head.weight"].to_local()) == overflows


def check_copies_talk_to_the_same_ranks():
    model = Model(sharded=True)
    other = copy.deepcopy(model)
    x, y = (own(table) for table in rows(dist.get_world_size()))
    torch.testing.assert_close(other(x, y), model(x, y))
    assert other.head.weight.shard is model.head.shard


def check_rows_of_different_number_raise():
    if dist.get_world_size() == 1:
        return
    model = Model(sharded=True)
    n = 3 + dist.get_rank()
    with pytest.raises(ValueError, match=r"different numbers of rows, \[3, 4"):
        model(torch.randn(n, 4), torch.zeros(n, dtype=torch.long))


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]


def check_checkpoint(folder):
    """Two steps are written; two more from the file are those of four steps without one.

    The first group writes, and a group of another size goes on: each compares with a single process.
    """
    file, n_written = folder / "checkpoint", 2
    model = Model(sharded=True)
    wrapped = DistributedDataParallel(model)
    optimizer = make_optimizer(model, lr=0.01)

    def steps(model, optimizer, n_steps, first, *, alone):
        for step in range(first, first + n_steps):
            x, y = rows(4, step)  # the same rows for any number of ranks
            mine = (x, y) if alone else (own(x), own(y))
            optimizer.zero_grad()
            model(*mine).backward()
            optimizer.step()

    if not file.exists():
        dist.barrier()
        steps(wrapped, optimizer, n_written, 0, alone=False)
        state, optimizer_state = get_state_dict(wrapped, optimizer)
        dcp.save({"model": state, "optimizer": optimizer_state}, checkpoint_id=file)
    else:
        state, optimizer_state = get_state_dict(wrapped, optimizer)
        read = {"model": state, "optimizer": optimizer_state}
        dcp.load(read, checkpoint_id=file)
        set_state_dict(wrapped, optimizer, model_state_dict=read["model"], optim_state_dict=read["optimizer"])
        steps(wrapped, optimizer, 2, n_written, alone=False)
        reference = Model(sharded=False)
        reference_optimizer = make_optimizer(reference, lr=0.01)
        steps(reference, reference_optimizer, 4, 0, alone=True)
        compare(model, reference)
    dist.barrier()


def run(rank, size, folder):
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / f"store-{size}"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
    failed = {}
    for check in [*CHECKS, partial(check_checkpoint, folder)]:
        try:
            check()
        except BaseException:  # told to the test
            failed[str(check)] = traceback.format_exc()
            break  # the others wait in a collective
    (folder / f"{size}-{rank}.json").write_text(json.dumps(failed))


if __name__ == "__main__":
    for size in map(int, sys.argv[2:]):
        mp.start_processes(run, (size, Path(sys.argv[1])), nprocs=size, start_method="fork")
