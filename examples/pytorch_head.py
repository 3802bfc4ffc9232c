"""Train a PyTorch encoder with an output layer over 20,000 classes, and ask it for the five best classes.

    python examples/pytorch_head.py

The classes form a hierarchy, and the encoder sees them through a random layer that it has to undo. A dense
output layer would compute a score for every class in every step, and step all of them; this one computes
scores of the classes that a minibatch shares, and steps those.
"""

import time

import numpy as np
import torch
from torch import nn

from extremax.data import planted_hierarchy
from extremax.nn import ExtremeSoftmax, FrequencySampler, make_optimizer

N_CLASSES = 20_000
torch.set_num_threads(1)  # for so small a model, threads cost more time than they save

# Data: any float tensor and integer labels will do.
data = planted_hierarchy(200_000, N_CLASSES, 32, n_test=1000, noise_scale=0.5, seed=0)
warp = (np.random.default_rng(0).normal(size=(32, 64)) / np.sqrt(32)).astype(np.float32)
X, X_test = (torch.from_numpy(np.tanh(features @ warp)) for features in (data.X, data.X_test))
y, y_test = (torch.from_numpy(labels).long() for labels in (data.y, data.y_test))

# Model: any encoder, then the head. One optimizer: AdamW for the encoder, RowAdagrad for the head.
torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.LayerNorm(64))
counts = torch.bincount(y, minlength=N_CLASSES)
head = ExtremeSoftmax(64, N_CLASSES, sampler=FrequencySampler(counts))
optimizer = make_optimizer(nn.ModuleList([encoder, head]), lr=2e-3)

N_EPOCHS, BATCH = 2, 256
n_steps = N_EPOCHS * -(-len(y) // BATCH)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, n_steps)


def report(name: str) -> None:
    encoder.eval(), head.eval()
    with torch.no_grad():
        hidden = encoder(X_test)
        loss = head(hidden, y_test).loss.item()
    accuracy = (head.predict(hidden) == y_test).float().mean().item()
    print(f"{name:8s} log-likelihood {-loss:6.3f}   accuracy {accuracy:.1%}", flush=True)
    encoder.train(), head.train()


report("start")
started = time.perf_counter()
for epoch in range(N_EPOCHS):
    for rows in torch.randperm(len(y)).split(BATCH):
        loss = head(encoder(X[rows]), y[rows]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    report(f"epoch {epoch + 1}")
print(f"{time.perf_counter() - started:.1f} s")

encoder.eval(), head.eval()
with torch.no_grad():
    log_prob, labels = head.topk(encoder(X_test[:3]), k=5)
for row in range(3):
    answers = ", ".join(
        f"{c} ({p:.0%})" for c, p in zip(labels[row].tolist(), log_prob[row].exp().tolist(), strict=True)
    )
    print(f"class {y_test[row].item()}: {answers}")
