"""PyTorch output layers at equal processor time, and training steps with a million classes.

    python benchmarks/bench_head.py                                  # all methods on two tasks, hours
    python benchmarks/bench_head.py --data npm --methods extremax "frequency 1024" --seconds 20

npm      Package names -> owner: the 47,336 owners with the most training rows, ties by smaller id. (A least
         number of rows does not give this number: 48,374 owners have 4 or more, 36,259 have 5 or more.)
         Character trigrams, hashed to 65,536 columns, in an EmbeddingBag and a LayerNorm.
icd10cm  Descriptions, inclusion terms and "includes" notes of all codes of ICD-10-CM, those with a seventh
         character included -> parent code, or for a three-character category the category itself. Repeated
         pairs count once. 80/10/10 by numpy's RandomState(42), whose training rows have 23,454 classes.
         The first 16 words through a transformer of two layers of width 64, their mean, a linear map to 128
         and a LayerNorm.

beauty, sports, toys, yelp
         The next item of a user, from `seqrec`: a causal transformer of two layers of width 64 over the last
         50 items, its embeddings tied to the output layer in no method. The last item of a user is the test
         row, the last but one the validation row. Accuracy is HIT@10 there, over all items.

Every method has the same encoder and batches, AdamW on the encoder (SparseAdam on the EmbeddingBag), and an
output layer whose biases start at log-frequencies. "extremax" is the set-up of the documentation: a
FrequencySampler and `make_optimizer`, with no other setting. Sampled methods have Adagrad on sparse gradients
or AdamW on dense ones; "in-batch" takes the targets of the other rows as negatives, corrected by their
frequencies. The rate of the output layer is found by log-likelihood on 2,000 validation rows after --search
seconds of training with the first of --seeds: from --rate on, rates are doubled and halved until the best is
between two others. Figures are of 6,000 test rows, both at random, with that rate and each of --seeds.
Seconds are processor time of training, on one thread.
"""

from __future__ import annotations

import argparse
import lzma
import math
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from extremax.data import planted_hierarchy
from extremax.nn import ExtremeSoftmax, FrequencySampler, make_optimizer
from timing import machine, make_parser, measure, one_torch_thread, write_rows

NAME = "bench_head"
WIDTH, BATCH = 128, 256
N_OWNERS = 47_336
EVALUATION_ROWS = {"valid": 2000, "test": 6000}
N_COLUMNS, N_WORDS = 1 << 16, 16  # of the bag; of a text, at most
N_ITEMS = 50  # of a user, at most
SPLITS = ("train", "valid", "test")
ENCODER_RATE = 2e-3


@dataclass(frozen=True)
class Task:
    """Inputs and classes by split, and the encoder that they need.

    ``take(split, rows)`` returns the arguments of the encoder. An answer counts as right among the first `k`.
    """

    name: str
    n_classes: int
    y: dict[str, Tensor]
    take: Callable[[str, Tensor], tuple[Tensor, ...]]
    make_encoder: Callable[[], nn.Module]
    k: int = 1


class Bag(nn.Module):
    """The normalised mean of the vectors of a row's n-grams."""

    def __init__(self, n_columns: int, width: int) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(n_columns, width, mode="mean", sparse=True)
        self.norm = nn.LayerNorm(width)

    def forward(self, columns: Tensor, offsets: Tensor) -> Tensor:
        return self.norm(self.bag(columns, offsets))


class Transformer(nn.Module):
    """Two layers over the words of a text, the mean over its words, and a linear map."""

    def __init__(self, n_words: int, inner: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(n_words, inner, padding_idx=0)
        self.places = nn.Parameter(0.02 * torch.randn(N_WORDS, inner))
        layer = nn.TransformerEncoderLayer(inner, 4, 2 * inner, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, words: Tensor) -> Tensor:
        padding = words == 0
        length = int((~padding).sum(1).max())
        words, padding = words[:, :length], padding[:, :length]
        x = self.layers(self.words(words) + self.places[:length], src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1)
        return self.norm(self.out((x * kept).sum(1) / kept.sum(1).clamp(min=1)))


def npm_task() -> Task:
    from sklearn.feature_extraction.text import HashingVectorizer

    from benchmark_data import load_texts

    data = load_texts("npm-owner-124k")
    assert data.texts is not None
    counts = np.bincount(data.y["train"])
    known = np.sort(np.lexsort((np.arange(len(counts)), -counts))[:N_OWNERS])
    place = np.full(len(counts), -1)
    place[known] = np.arange(len(known))
    hashing = HashingVectorizer(
        analyzer="char_wb", ngram_range=(3, 3), n_features=N_COLUMNS, alternate_sign=False, norm=None
    )
    y, columns, edges = {}, {}, {}
    for split in SPLITS:
        rows = np.flatnonzero(place[data.y[split]] >= 0)
        if split != "train":
            rows = np.random.default_rng(0).permutation(rows)[: EVALUATION_ROWS[split]]
        X = hashing.transform([data.texts[split][i] for i in rows]).tocsr()
        y[split] = torch.from_numpy(place[data.y[split][rows]])
        columns[split], edges[split] = X.indices.astype(np.int64), X.indptr.astype(np.int64)

    def take(split: str, rows: Tensor) -> tuple[Tensor, ...]:
        starts, ends = edges[split][rows.numpy()], edges[split][rows.numpy() + 1]
        offsets = np.concatenate([[0], np.cumsum(ends - starts)])
        at = np.repeat(starts - offsets[:-1], ends - starts) + np.arange(offsets[-1])
        return torch.from_numpy(columns[split][at]), torch.from_numpy(offsets[:-1])

    return Task("npm", len(known), y, take, lambda: Bag(N_COLUMNS, WIDTH))


def icd10cm_pairs() -> list[tuple[str, str]]:
    """Return texts and parent codes of all codes, those with a seventh character included."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a function that the package calls
        import simple_icd_10_cm as icd
    pairs: dict[tuple[str, str], None] = {}
    for code in icd.get_all_codes():
        if icd.is_category_or_subcategory(code):
            parent = code if len(code) == 3 else icd.get_parent(code)
            for text in (icd.get_description(code), *icd.get_inclusion_term(code), *icd.get_includes(code)):
                pairs[(text.strip(), parent)] = None
    return list(pairs)


def icd10cm_task() -> Task:
    pairs = icd10cm_pairs()
    n = len(pairs)
    order = np.random.RandomState(42).permutation(n)
    parts = dict(zip(SPLITS, np.split(order, [n * 8 // 10, n * 9 // 10]), strict=True))
    codes = {code: i for i, code in enumerate(sorted({pairs[i][1] for i in parts["train"]}))}
    words, y = {}, {}
    for split in SPLITS:
        rows = [i for i in parts[split] if pairs[i][1] in codes][: EVALUATION_ROWS.get(split)]
        words[split] = [re.findall(r"\w+", pairs[i][0].lower()) for i in rows]
        y[split] = torch.tensor([codes[pairs[i][1]] for i in rows])
    counts = Counter(word for text in words["train"] for word in text)
    number = {word: i + 2 for i, (word, k) in enumerate(counts.most_common()) if k > 1}
    X = {}
    for split in SPLITS:
        table = np.zeros((len(words[split]), N_WORDS), np.int64)
        for row, text in zip(table, words[split], strict=True):
            found = [number.get(word, 1) for word in text[:N_WORDS]] or [1]
            row[: len(found)] = found
        X[split] = torch.from_numpy(table)
    return Task(
        "icd10cm",
        len(codes),
        y,
        lambda split, rows: (X[split][rows],),
        lambda: Transformer(len(number) + 2, 64, WIDTH),
    )


class Sequences(nn.Module):
    """A causal transformer over the latest items of a user; the hidden states of all places, or the last."""

    def __init__(self, n_items: int, inner: int, width: int) -> None:
        super().__init__()
        self.items = nn.Embedding(n_items + 1, inner, padding_idx=n_items)
        self.places = nn.Parameter(0.02 * torch.randn(N_ITEMS, inner))
        nn.init.normal_(self.items.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(inner, 2, 2 * inner, 0.2, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width)
        self.register_buffer("later", torch.ones(N_ITEMS, N_ITEMS, dtype=torch.bool).triu(1))

    def forward(self, items: Tensor) -> Tensor:
        x = self.layers(self.items(items) + self.places, mask=self.later)
        return self.norm(self.out(x if self.training else x[:, -1]))


def sequence_task(name: str) -> Task:
    from benchmark_data import data_folder

    with lzma.open(data_folder() / "seqrec" / f"{name}.txt.xz", "rt") as file:
        users = [[int(item) - 1 for item in line.split()[1:]] for line in file]
    n_items = max(max(user) for user in users) + 1
    kept = {"train": 2, "valid": 1, "test": 0}
    X, y = {}, {}
    for split, n_left in kept.items():
        table = np.full((len(users), N_ITEMS), n_items)
        labels = np.full((len(users), N_ITEMS), -100)
        for row, label, user in zip(table, labels, users, strict=True):
            known = user[: len(user) - n_left][-N_ITEMS - 1 :]
            row[N_ITEMS - len(known) + 1 :], label[N_ITEMS - len(known) + 1 :] = known[:-1], known[1:]
        rows = np.arange(len(users))
        if split != "train":
            rows = np.random.default_rng(0).permutation(rows)[: EVALUATION_ROWS[split]]
            labels = labels[:, -1]
        X[split], y[split] = torch.from_numpy(table[rows]), torch.from_numpy(labels[rows])
    return Task(
        name.split("_")[0].lower(),
        n_items,
        y,
        lambda split, rows: (X[split][rows],),
        lambda: Sequences(n_items, 64, WIDTH),
        k=10,
    )


def planted_task() -> Task:
    data = planted_hierarchy(600, 50, 12, n_test=200, seed=0)
    X = {"train": data.X, "valid": data.X_test[:100], "test": data.X_test[100:]}
    y = {"train": data.y, "valid": data.y_test[:100], "test": data.y_test[100:]}
    return Task(
        "planted",
        50,
        {split: torch.from_numpy(y[split]).long() for split in SPLITS},
        lambda split, rows: (torch.from_numpy(X[split])[rows],),
        lambda: nn.Linear(12, WIDTH),
    )


# -- output layers: parameters, a loss, and log-probabilities


class Dense(nn.Module):
    """A linear layer with an exact softmax; `fused_loss` uses F.linear_cross_entropy."""

    def __init__(self, task: Task, counts: Tensor, *, fused_loss: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(task.n_classes, WIDTH))
        self.bias = nn.Parameter(counts.log() - counts.sum().log())
        self.fused_loss = fused_loss

    def loss(self, h: Tensor, y: Tensor) -> Tensor:
        if self.fused_loss:
            # One chunk: the default of torch 2.13 takes ten times as long on this many classes.
            options = nn.LinearCrossEntropyOptions(batch_chunk_size=BATCH)
            return F.linear_cross_entropy(
                h.reshape(-1, WIDTH), self.weight, y.reshape(-1), linear_bias=self.bias, options=options
            )
        kept = y != -100
        return F.cross_entropy(F.linear(h[kept], self.weight, self.bias), y[kept])

    def log_prob(self, h: Tensor) -> Tensor:
        return F.linear(h, self.weight, self.bias).log_softmax(1)


class Sampled(Dense):
    """Shared sampled softmax as usually written: draws with replacement, and the correction log(n q)."""

    def __init__(self, task: Task, counts: Tensor, *, n: int, by_frequency: bool, sparse: bool) -> None:
        super().__init__(task, counts)
        self.n, self.sparse, q = n, sparse, counts if by_frequency else torch.ones_like(counts)
        self.cumulative = (q.double() / q.sum()).cumsum(0)
        self.log_q = (q / q.sum()).log()

    def draw(self, y: Tensor) -> Tensor:
        classes = torch.searchsorted(self.cumulative, torch.rand(self.n, dtype=torch.float64))
        return classes.clamp(max=len(self.log_q) - 1)

    def loss(self, h: Tensor, y: Tensor) -> Tensor:
        kept = y != -100
        h, y = h[kept], y[kept]
        classes = self.draw(y)
        both = torch.cat([y, classes])
        w = F.embedding(both, self.weight, sparse=self.sparse)
        b = self.bias.gather(0, both, sparse_grad=self.sparse)
        own = (h * w[: len(y)]).sum(1) + b[: len(y)]
        scores = h @ w[len(y) :].T + b[len(y) :] - self.log_q[classes] - math.log(len(classes))
        scores = scores.masked_fill(classes == y[:, None], -torch.inf)
        return (torch.cat([own[:, None], scores], 1).logsumexp(1) - own).mean()


class InBatch(Sampled):
    """The same with the targets of the minibatch as its draws."""

    def draw(self, y: Tensor) -> Tensor:
        return y[: self.n]


class Adaptive(nn.Module):
    """torch's AdaptiveLogSoftmaxWithLoss, with classes in falling order of their counts."""

    def __init__(self, task: Task, counts: Tensor) -> None:
        super().__init__()
        n = task.n_classes
        self.order = counts.argsort(descending=True)
        self.place = self.order.argsort()
        self.layer = nn.AdaptiveLogSoftmaxWithLoss(WIDTH, n, [n // 20, n // 5], div_value=2.0)

    def loss(self, h: Tensor, y: Tensor) -> Tensor:
        kept = y != -100
        return self.layer(h[kept], self.place[y[kept]]).loss

    def log_prob(self, h: Tensor) -> Tensor:
        return self.layer.log_prob(h)[:, self.place]


class Ours(nn.Module):
    """The set-up of the documentation."""

    def __init__(self, task: Task, counts: Tensor, *, n_sampled: int = 1024, power: float = 0.75) -> None:
        super().__init__()
        sampler = FrequencySampler(counts, power, n_sampled)
        self.layer = ExtremeSoftmax(WIDTH, task.n_classes, sampler=sampler)

    def loss(self, h: Tensor, y: Tensor) -> Tensor:
        return self.layer(h, y).loss

    def log_prob(self, h: Tensor) -> Tensor:
        return self.layer.log_prob(h)


def _sampled(n: int, *, by_frequency: bool, sparse: bool) -> Callable[[Task, Tensor], Any]:
    return lambda task, counts: Sampled(task, counts, n=n, by_frequency=by_frequency, sparse=sparse)


METHODS: dict[str, Callable[[Task, Tensor], Any]] = {
    "extremax": Ours,
    "uniform 256": _sampled(256, by_frequency=False, sparse=True),
    "uniform 1024": _sampled(1024, by_frequency=False, sparse=True),
    "frequency 256": _sampled(256, by_frequency=True, sparse=True),
    "frequency 1024": _sampled(1024, by_frequency=True, sparse=True),
    "in-batch": lambda task, counts: InBatch(task, counts, n=BATCH, by_frequency=True, sparse=True),
    "uniform 1024, AdamW": _sampled(1024, by_frequency=False, sparse=False),
    "frequency 256, AdamW": _sampled(256, by_frequency=True, sparse=False),
    "frequency 1024, AdamW": _sampled(1024, by_frequency=True, sparse=False),
    "adaptive": Adaptive,
    "full": Dense,
    "linear_cross_entropy": lambda task, counts: Dense(task, counts, fused_loss=True),
}


# -- training


@dataclass(frozen=True)
class Run:
    """Train a method for some processor seconds, and look at it at some of them."""

    task: Task
    method: str
    seconds: tuple[float, ...]
    rate: float
    seed: int = 0

    def figures(self, split: str) -> Iterator[dict[str, float]]:
        task = self.task
        _compile_kernels()
        torch.manual_seed(self.seed)
        known = task.y["train"][task.y["train"] >= 0]
        counts = torch.bincount(known, minlength=task.n_classes).float().clamp(min=0.5)
        encoder, output = task.make_encoder(), METHODS[self.method](task, counts)
        optimizers = _optimizers(encoder, output, self.rate)
        spent, n_steps, looks = 0.0, 0, list(self.seconds)
        generator = torch.Generator().manual_seed(self.seed)
        while looks:
            for rows in torch.randperm(len(task.y["train"]), generator=generator).split(BATCH):
                started = time.process_time()
                loss = output.loss(encoder(*task.take("train", rows)), task.y["train"][rows])
                for optimizer in optimizers:
                    optimizer.zero_grad()
                loss.backward()
                for optimizer in optimizers:
                    optimizer.step()
                spent, n_steps = spent + time.process_time() - started, n_steps + 1
                if spent >= looks[0]:
                    looks.pop(0)
                    yield {"processor s": spent, "steps": n_steps, **self._test(encoder, output, split)}
                    if not looks:
                        return

    def _test(self, encoder: nn.Module, output: Any, split: str) -> dict[str, float]:
        encoder.eval(), output.eval()
        y, right, total = self.task.y[split], 0.0, 0.0
        with torch.no_grad():
            for rows in torch.arange(len(y)).split(BATCH):
                log_prob = output.log_prob(encoder(*self.task.take(split, rows)))
                right += (log_prob.topk(self.task.k).indices == y[rows, None]).sum().item()
                total += log_prob[torch.arange(len(rows)), y[rows]].sum().item()
        encoder.train(), output.train()
        return {"accuracy": right / len(y), "log-likelihood": total / len(y)}


@lru_cache
def _compile_kernels() -> None:
    """Compile, or load, what a step needs: no part of the time of training."""
    layer = ExtremeSoftmax(WIDTH, 500)
    layer(torch.randn(300, WIDTH), torch.arange(300) % 50).loss.backward()


def _optimizers(encoder: nn.Module, output: nn.Module, rate: float) -> list[torch.optim.Optimizer]:
    if isinstance(output, Ours):
        model = nn.ModuleList([encoder, output])
        return [make_optimizer(model, lr=ENCODER_RATE, row_lr=rate)]
    bags = [m.weight for m in encoder.modules() if isinstance(m, nn.EmbeddingBag)]
    others = [p for p in encoder.parameters() if all(p is not bag for bag in bags)]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(others, lr=ENCODER_RATE)]
    optimizers += [torch.optim.SparseAdam(bags, lr=ENCODER_RATE)] if bags else []
    is_dense = isinstance(output, Sampled) and not output.sparse
    kind: Any = torch.optim.AdamW if is_dense else torch.optim.Adagrad
    return [*optimizers, kind(output.parameters(), lr=rate)]


def find_rate(score: Callable[[float], float], first: float, n_most: int = 9) -> dict[float, float]:
    """Return the scores of rates that were tried, best first: half and double, until the best is inside."""
    found = {rate: score(rate) for rate in (first / 2, first, 2 * first)}
    while len(found) < n_most:
        best = max(found, key=lambda rate: found[rate])
        tried = sorted(found)
        if best not in (tried[0], tried[-1]):
            break
        new = best / 2 if best == tried[0] else 2 * best
        found[new] = score(new)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def compare(
    task: Task,
    methods: Sequence[str],
    seconds: Sequence[float],
    *,
    rate: float,
    search: float,
    seeds: Sequence[int],
) -> None:
    """Find the rate of each method on validation rows, and write its figures on test rows."""
    for method in methods:
        run = Run(task, method, tuple(seconds), rate, seeds[0])
        n_tried = 0
        if search > 0.0:

            def score(tried: float, run: Run = run) -> float:
                (figures,) = replace(run, seconds=(search,), rate=tried).figures("valid")
                return figures["log-likelihood"]

            found = find_rate(score, rate)
            run, n_tried = replace(run, rate=next(iter(found))), len(found)
        for seed in seeds:
            for limit, figures in zip(seconds, replace(run, seed=seed).figures("test"), strict=True):
                case = f"{task.name}, {method}, {limit:g} s, seed {seed}"
                write_rows(NAME, [{"case": case, "rate": run.rate, "rates tried": n_tried, **figures}])


def time_many_classes(n_classes: int, n_steps: int) -> None:
    """Write the time of a training step with very many classes: loss, gradients and update of the layer."""
    rng = np.random.default_rng(0)
    hidden = torch.from_numpy(rng.normal(size=(n_steps * BATCH, WIDTH)).astype(np.float32))
    y = torch.from_numpy(rng.integers(n_classes, size=len(hidden)))
    layer = ExtremeSoftmax(WIDTH, n_classes, sampler=FrequencySampler(rng.integers(1, 100, n_classes)))
    optimizer = make_optimizer(layer)

    def step(i: int) -> None:
        rows = slice(BATCH * i, BATCH * (i + 1))
        optimizer.zero_grad()
        layer(hidden[rows].requires_grad_(), y[rows]).loss.backward()
        optimizer.step()

    for i in range(min(17, n_steps)):  # the first steps decompose moments more often
        step(i)
    found = [measure(lambda i=i: step(i)) for i in range(n_steps)]
    processor = 1e3 * float(np.median([seconds.processor for seconds in found]))
    wall = 1e3 * float(np.median([seconds.wall for seconds in found]))
    case = f"{n_classes:,} classes, {BATCH} rows, {torch.get_num_threads()} threads"
    write_rows(NAME, [{"case": case, "processor ms": processor, "wall ms": wall}])


TASKS: dict[str, Callable[[], Task]] = {
    "npm": npm_task,
    "icd10cm": icd10cm_task,
    "beauty": lambda: sequence_task("Beauty"),
    "sports": lambda: sequence_task("Sports_and_Outdoors"),
    "toys": lambda: sequence_task("Toys_and_Games"),
    "yelp": lambda: sequence_task("Yelp"),
    "planted": planted_task,
}


def main(argv: Sequence[str] | None = None) -> None:
    parser: argparse.ArgumentParser = make_parser(__doc__)
    parser.add_argument("--data", nargs="+", default=["npm", "icd10cm"], choices=list(TASKS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seconds", nargs="+", type=float, default=[20.0, 40.0])
    parser.add_argument("--rate", type=float, default=0.08, help="where the search begins")
    parser.add_argument("--search", type=float, default=20.0, help="seconds of each rate; 0: no search")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--classes", type=int, default=1_000_000, help="of the step that is timed; 0: none")
    args = parser.parse_args(argv)
    if args.tiny:
        args.data, args.seconds, args.search = ["planted"], [0.02, 0.04], 0.01
        args.classes = 2000
    print(machine(), f"torch {torch.__version__}")
    with one_torch_thread():
        for name in args.data:
            task, options = TASKS[name](), {"search": args.search, "seeds": args.seeds}
            compare(task, args.methods, args.seconds, rate=args.rate, **options)
        if args.classes:
            time_many_classes(args.classes, 2 if args.tiny else 30)
    if args.classes and torch.get_num_threads() > 1:
        time_many_classes(args.classes, 2 if args.tiny else 30)


if __name__ == "__main__":
    main()
