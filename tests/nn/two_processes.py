"""The two processes of test_integration.py: ``python two_processes.py FOLDER``.

They are forked from one, assert what they can, and save what the test compares with one process.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import load, save
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from extremax.nn import ExtremeSoftmax

N_CLASSES, WIDTH, N_ROWS = 40, 8, 64


class Model(nn.Module):
    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Linear(WIDTH, WIDTH)
        self.layer = ExtremeSoftmax(WIDTH, N_CLASSES, n_jobs=1, **options)
        with torch.no_grad():
            self.layer.weight.copy_(0.3 * torch.randn(N_CLASSES, WIDTH))

    def forward(self, x, y=None):
        h = self.encoder(x)
        return self.layer(h) if y is None else self.layer(h, y).loss


def rows(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(N_ROWS, WIDTH, generator=generator)
    return x, torch.randint(N_CLASSES, (N_ROWS,), generator=generator)


def one_step(model, x, y):
    """Return the loss of a step of AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    loss = model(x, y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def part(rank):
    x, y = rows()
    half = N_ROWS // 2
    return x[rank * half : (rank + 1) * half], y[rank * half : (rank + 1) * half]


def run_ddp(rank, folder):
    exact = Model(n_shared=N_CLASSES)
    one_step(DistributedDataParallel(exact), *part(rank))
    torch.save(exact.state_dict(), folder / f"exact{rank}.pt")
    sampled = Model(n_shared=8)
    wrapped = DistributedDataParallel(sampled)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.05)
    for _ in range(6):
        optimizer.zero_grad()
        wrapped(*part(rank)).backward()
        optimizer.step()
    torch.save(sampled.state_dict(), folder / f"sampled{rank}.pt")
    for gradients in ("fused", "sparse"):
        wrong = DistributedDataParallel(Model(gradients=gradients))
        with pytest.raises(RuntimeError, match=f"gradients='{gradients}' trains in one process"):
            wrong(*part(rank))
        with torch.no_grad():
            wrong.eval()(*part(rank))
    compiled = torch.compile(DistributedDataParallel(Model(n_shared=N_CLASSES)), backend="eager")
    torch.testing.assert_close(compiled(*part(rank)), Model(n_shared=N_CLASSES)(*part(rank)))


def train_sharded_on_drawn_classes(rank, mesh):
    model = Model(n_shared=8)
    fully_shard(model.layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    x, y = rows()
    losses = []
    for _ in range(12):
        model.eval()
        with torch.no_grad():
            losses.append(model(x, y))
        model.train()
        optimizer.zero_grad()
        model(*part(rank)).backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.3


def start_on_the_meta_device(mesh):
    """Deferred initialisation: no process ever has all weights."""
    with torch.device("meta"):
        model = Model(n_shared=16)
    fully_shard(model.layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    model.layer.reset_parameters()
    expected = ExtremeSoftmax(WIDTH, N_CLASSES, n_shared=16).state_dict()
    for name, value in get_model_state_dict(model.layer).items():
        full = value.full_tensor() if hasattr(value, "full_tensor") else value
        assert torch.equal(full, expected[name]), name


def train_in_mixed_precision(rank, mesh):
    """Parameters are bfloat16 in the forward pass, and norms of gradients are those of one process."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    losses = []
    for options in ({}, {"mp_policy": policy}):
        model = Model(n_shared=N_CLASSES)
        fully_shard(model.layer, mesh=mesh, **options)
        fully_shard(model, mesh=mesh, **options)
        losses.append(model(*part(rank)))
        losses[-1].backward()
        assert model.layer.weight.grad.dtype == torch.float32
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01).full_tensor()
        alone = Model(n_shared=N_CLASSES)
        alone(*rows()).backward()
        expected = nn.utils.clip_grad_norm_(alone.parameters(), 0.01)
        torch.testing.assert_close(norm, expected, rtol=0.05 if options else 1e-5, atol=1e-5)
    torch.testing.assert_close(losses[1], losses[0], rtol=0.02, atol=0.02)


def run_fsdp(rank, folder):
    mesh = init_device_mesh("cpu", (2,))
    train_sharded_on_drawn_classes(rank, mesh)
    start_on_the_meta_device(mesh)
    train_in_mixed_precision(rank, mesh)
    model = Model(n_shared=N_CLASSES)
    fully_shard(model.layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert model.layer.weight.to_local().shape[0] == N_CLASSES // 2
    one_step(model, *part(rank))
    model.eval()
    x, y = rows()
    with torch.no_grad():
        log_prob, loss = model(x), model(x, y)
    labels, _ = model.layer.predict_topk(x, 3)  # called from outside of forward: the shards are gathered
    torch.save({"log_prob": log_prob, "loss": loss, "labels": labels}, folder / f"fsdp{rank}.pt")
    state = get_model_state_dict(model)
    save(state, checkpoint_id=folder / "checkpoint")
    other = Model(n_shared=N_CLASSES)
    with torch.no_grad():
        other.layer.weight.zero_()
    fully_shard(other.layer, mesh=mesh)
    fully_shard(other, mesh=mesh)
    state = get_model_state_dict(other)
    load(state, checkpoint_id=folder / "checkpoint")
    set_model_state_dict(other, state)
    with torch.no_grad():
        assert torch.equal(other.eval()(x), log_prob)


def run_rank(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    try:
        run_ddp(rank, folder)
        run_fsdp(rank, folder)
    finally:
        dist.destroy_process_group()


def main():
    folder = Path(sys.argv[1])
    children = []
    for rank in range(2):
        child = os.fork()  # before torch has a thread: imports are made once
        if child == 0:
            code = 1
            try:
                run_rank(rank, folder)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    sys.exit(max(os.waitpid(child, 0)[1] for child in children) and 1)


if __name__ == "__main__":
    main()
