"""Train an output layer whose classes are split over processes, and an encoder that each process has.

    torchrun --nproc-per-node=2 examples/sharded_head.py

The task is the owner of an npm package, of 124,250, from its name: character trigrams in an EmbeddingBag. The
data are npm-owner/npm-owner-124k.tsv.xz in the folder that EXTREMAX_DATA names, or in ../shared/data beside
the project. Without them the script makes up 20,000 names of 2,000 owners. Started with plain `python` it is
one process that has all classes.
"""

import argparse
import lzma
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from sklearn.feature_extraction.text import HashingVectorizer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from extremax.nn import ShardedExtremeSoftmax

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--batch", type=int, default=256, help="rows of a step, of all processes together")
parser.add_argument("--shared", type=int, default=1024, help="classes of a step, of all processes together")
options = parser.parse_args()

N_COLUMNS, WIDTH, N_EVALUATED = 1 << 16, 128, 4000
PROJECT = Path(__file__).resolve().parent.parent
FOLDER = Path(os.environ.get("EXTREMAX_DATA", PROJECT.parent / "shared" / "data"))


# -- data: every process reads all names and keeps its part


def read_npm(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t", 2) for line in file]
    found = {}
    for split in ("train", "val", "test"):
        rows = [(text, int(owner)) for part, owner, text in lines if part == split]
        texts, owners = zip(*rows, strict=True)
        found[split] = np.array(texts, object), np.array(owners)
    return found


def make_up_names() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Names of three words; the first two are mostly from the four that the owner prefers."""
    rng = np.random.default_rng(0)
    words = np.array(["".join(rng.choice(list("abcdefghijklmnop"), 5)) for _ in range(3000)], object)
    preferred = rng.integers(len(words), size=(2000, 4))
    owners = rng.integers(2000, size=24_000)
    chosen = preferred[owners[:, None], rng.integers(4, size=(len(owners), 3))]
    chosen[:, 2] = rng.integers(len(words), size=len(owners))
    texts = words[chosen[:, 0]] + "-" + words[chosen[:, 1]] + "-" + words[chosen[:, 2]]
    edges = {"train": (0, 20_000), "val": (20_000, 22_000), "test": (22_000, 24_000)}
    return {split: (texts[a:b], owners[a:b]) for split, (a, b) in edges.items()}


class Rows:
    """The n-grams of the rows of one process, and their classes."""

    def __init__(self, texts: np.ndarray, classes: np.ndarray) -> None:
        hashing = HashingVectorizer(
            analyzer="char_wb", ngram_range=(3, 3), n_features=N_COLUMNS, alternate_sign=False, norm=None
        )
        X = hashing.transform(texts).tocsr()
        self.columns, self.edges = X.indices.astype(np.int64), X.indptr.astype(np.int64)
        self.y = torch.from_numpy(classes.astype(np.int64))

    def take(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        parts = [self.columns[self.edges[row] : self.edges[row + 1]] for row in rows]
        offsets = np.cumsum([0] + [len(part) for part in parts[:-1]])
        return torch.from_numpy(np.concatenate(parts)), torch.from_numpy(offsets), self.y[rows]


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(N_COLUMNS, WIDTH, mode="mean", sparse=True)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, columns: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.norm(self.bag(columns, offsets))


def report(name: str, part: Rows, encoder: nn.Module, head: ShardedExtremeSoftmax) -> None:
    """Print figures over the rows of all processes, which search all classes together."""
    head.eval()
    columns, offsets, y = part.take(np.arange(len(part.y)))
    with torch.no_grad():
        hidden = encoder(columns, offsets)
    labels, _ = head.predict_topk(hidden, k=5)
    hits = torch.stack([(labels[:, 0] == y).sum(), (labels == y[:, None]).any(1).sum(), torch.tensor(len(y))])
    dist.all_reduce(hits)
    likelihood = head.log_likelihood(hidden, y)
    first, five, n = hits.tolist()
    if dist.get_rank() == 0:
        print(f"{name:20s} accuracy {first / n:.1%}   top 5 {five / n:.1%}   log-likelihood {likelihood:.3f}")
    head.train()


def main() -> None:
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    rank, size = dist.get_rank(), dist.get_world_size()
    path = FOLDER / "npm-owner" / "npm-owner-124k.tsv.xz"
    data = read_npm(path) if path.exists() else make_up_names()
    owners, counts = np.unique(data["train"][1], return_counts=True)  # classes that training rows have
    parts = {}
    for split, (texts, names) in data.items():
        classes = np.searchsorted(owners, names).clip(max=len(owners) - 1)
        rows = np.random.default_rng(1).permutation(np.flatnonzero(owners[classes] == names))
        rows = rows if split == "train" else rows[:N_EVALUATED]
        mine = rows[: len(rows) // size * size][rank::size]  # as many in every process
        parts[split] = Rows(texts[mine], classes[mine])

    torch.manual_seed(0)
    encoder = DistributedDataParallel(Encoder())
    head = ShardedExtremeSoftmax(
        WIDTH, len(counts), n_shared=options.shared, class_counts=counts, gradients="fused"
    )
    sparse = torch.optim.SparseAdam([encoder.module.bag.weight], lr=2e-3)
    dense = torch.optim.Adam(encoder.module.norm.parameters(), lr=2e-3)
    first, stop = head.class_range
    print(
        f"process {rank} of {size}: {len(parts['train'].y)} rows, classes {first} to {stop - 1}",
        flush=True,
    )

    train, batch = parts["train"], max(1, options.batch // size)
    n_steps = options.epochs * (len(train.y) // batch)
    report("start, validation", parts["val"], encoder.module, head)
    step, wall, processor = 0, time.perf_counter(), time.process_time()
    for epoch in range(options.epochs):
        order = np.random.default_rng(epoch).permutation(len(train.y))
        for rows in order[: len(order) // batch * batch].reshape(-1, batch):
            head.learning_rate = 12.8 * max(0.02, 1.0 - step / n_steps)
            columns, offsets, y = train.take(rows)
            sparse.zero_grad()
            dense.zero_grad()
            head(encoder(columns, offsets), y).loss.backward()
            sparse.step()
            dense.step()
            step += 1
    seconds, used = time.perf_counter() - wall, time.process_time() - processor
    if rank == 0:
        print(
            f"{step} steps of {batch * size} rows: {1000 * seconds / step:.1f} ms each,"
            f" {1000 * used / step:.1f} ms of this process"
        )
    report("trained, validation", parts["val"], encoder.module, head)
    report("trained, test", parts["test"], encoder.module, head)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
