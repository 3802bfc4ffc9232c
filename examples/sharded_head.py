"""Train an output layer whose classes are split over processes, and an encoder that each process has.

    torchrun --nproc-per-node=2 --max-restarts=2 examples/sharded_head.py --checkpoint folder

With --checkpoint, the state is written there every --every steps, and a start goes on from what is there:
after a process was killed, which torchrun answers by starting all of them again, and with another number of
processes.

The task is the owner of an npm package, of 124,250, from its name: character trigrams in an EmbeddingBag. The
data are npm-owner/npm-owner-124k.tsv.xz in the folder that EXTREMAX_DATA names, or in ../shared/data beside
the project. Without them the script makes up 20,000 names of 2,000 owners. Started with plain `python` it is
one process that has all classes.
"""

import argparse
import lzma
import os
import signal
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from sklearn.feature_extraction.text import HashingVectorizer
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

from extremax.nn import FrequencySampler, ShardedExtremeSoftmax, make_optimizer

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--batch", type=int, default=256, help="rows of a step, of all processes together")
parser.add_argument("--shared", type=int, default=1024, help="classes of a step, of all processes together")
parser.add_argument("--checkpoint", type=Path, help="folder to write the state to, and to go on from")
parser.add_argument("--every", type=int, default=200, help="steps between two checkpoints")
parser.add_argument("--die", type=int, default=-1, help="step at which the last process kills itself, once")
options = parser.parse_args()

N_COLUMNS, WIDTH, N_EVALUATED = 1 << 14, 128, 4000
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


class Model(nn.Module):
    def __init__(self, counts: np.ndarray) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(N_COLUMNS, WIDTH, mode="mean")
        self.norm = nn.LayerNorm(WIDTH)
        sampler = FrequencySampler(counts, n_sampled=options.shared)
        self.head = ShardedExtremeSoftmax(WIDTH, len(counts), sampler=sampler)

    def encode(self, columns: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.norm(self.bag(columns, offsets))

    def forward(self, columns: torch.Tensor, offsets: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.head(self.encode(columns, offsets), y).loss


def report(name: str, part: Rows, model: Model) -> None:
    """Print figures over the rows of all processes, which search all classes together."""
    model.eval()
    columns, offsets, y = part.take(np.arange(len(part.y)))
    with torch.no_grad():
        hidden = model.encode(columns, offsets)
        loss = model.head(hidden, y).loss.item()
    labels = model.head.topk(hidden, k=5).indices
    hits = torch.stack([(labels[:, 0] == y).sum(), (labels == y[:, None]).any(1).sum(), torch.tensor(len(y))])
    dist.all_reduce(hits)
    first, five, n = hits.tolist()
    if dist.get_rank() == 0:
        print(f"{name:20s} accuracy {first / n:.1%}   top 5 {five / n:.1%}   log-likelihood {-loss:.3f}")
    model.train()


class Progress:
    """The step, which is written with the state, and the files."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer, self.step = model, optimizer, 0

    def load(self) -> None:
        found = sorted(options.checkpoint.glob("*/.metadata")) if options.checkpoint else []
        if found:
            state, optimizer_state = get_state_dict(self.model, self.optimizer)
            read = {"model": state, "optimizer": optimizer_state, "step": torch.tensor(0)}
            dcp.load(read, checkpoint_id=found[-1].parent)
            kinds = {"model_state_dict": read["model"], "optim_state_dict": read["optimizer"]}
            set_state_dict(self.model, self.optimizer, **kinds)
            self.step = int(read["step"])

    def save(self) -> None:
        if options.checkpoint and self.step % options.every == 0:
            state, optimizer_state = get_state_dict(self.model, self.optimizer)
            written = {"model": state, "optimizer": optimizer_state, "step": torch.tensor(self.step)}
            dcp.save(written, checkpoint_id=options.checkpoint / f"{self.step:08d}")


def main() -> None:
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        # After a restart, torchrun's store still has the addresses of the processes before.
        store, rank, size = next(dist.rendezvous("env://"))
        store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
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
    model = Model(counts)
    wrapped = DistributedDataParallel(model)
    optimizer = make_optimizer(model, lr=2e-3)
    train, batch = parts["train"], max(1, options.batch // size)
    n_batches = len(train.y) // batch
    n_steps, shard = options.epochs * n_batches, model.head.shard
    print(
        f"process {rank} of {size}: {len(train.y)} rows, classes {shard.start} to {shard.stop - 1}",
        flush=True,
    )
    rates = [group["lr"] for group in optimizer.param_groups]
    progress = Progress(wrapped, optimizer)
    progress.load()
    report(f"step {progress.step}, validation", parts["val"], model)
    first, wall, processor = progress.step, time.perf_counter(), time.process_time()
    while progress.step < n_steps:
        epoch, place = divmod(progress.step, n_batches)
        order = np.random.default_rng(epoch).permutation(len(train.y))
        for rows in order[: n_batches * batch].reshape(-1, batch)[place:]:
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * max(0.02, 1.0 - progress.step / n_steps)
            optimizer.zero_grad()
            wrapped(*train.take(rows)).backward()
            optimizer.step()
            progress.step += 1
            progress.save()
            if progress.step == options.die and first == 0 and rank == size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
    seconds, used = time.perf_counter() - wall, time.process_time() - processor
    if rank == 0 and progress.step > first:
        n = progress.step - first
        print(
            f"{n} steps of {batch * size} rows: {1000 * seconds / n:.1f} ms each,"
            f" {1000 * used / n:.1f} ms of this process"
        )
    report("trained, validation", parts["val"], model)
    report("trained, test", parts["test"], model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
