"""One of two processes of test_integration.py: ``python two_processes.py {ddp,fsdp} RANK FOLDER``.

Asserts what it can, and saves what the test compares with one process.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import load, save
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from extremax.nn import ExtremeSoftmax

N_CLASSES, WIDTH, N_ROWS = 40, 8, 64


class Model(nn.Module):
    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Linear(WIDTH, WIDTH)
        self.layer = ExtremeSoftmax(WIDTH, N_CLASSES, n_jobs=1, tree_regularization=1.0, **options)
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
    sampled = Model(n_shared=8, refit_every=2)
    wrapped = DistributedDataParallel(sampled)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.05)
    for _ in range(6):
        optimizer.zero_grad()
        wrapped(*part(rank)).backward()
        optimizer.step()
    torch.save(sampled.state_dict(), folder / f"sampled{rank}.pt")
    fused = Model(gradients="fused")
    with pytest.raises(RuntimeError, match="trains in one process"):
        DistributedDataParallel(fused)(*part(rank))


def train_sharded_on_drawn_classes(rank, mesh):
    model = Model(n_shared=8, refit_every=2)
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
    assert model.layer.noise.tree is not None
    assert losses[-1] < losses[0] - 0.3


def run_fsdp(rank, folder):
    mesh = init_device_mesh("cpu", (2,))
    train_sharded_on_drawn_classes(rank, mesh)
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


def main():
    kind, rank, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    try:
        {"ddp": run_ddp, "fsdp": run_fsdp}[kind](rank, folder)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
