"""PyTorch output layers at equal processor time, and training steps with a million classes.

    python benchmarks/bench_head.py                                  # all methods on all tasks, hours
    python benchmarks/bench_head.py --data npm --methods extremax "frequency 1024" --seconds 20

npm      Package names -> owner: the 47,336 owners with the most training rows, ties by smaller id. (A least
         number of rows does not give this number: 48,374 owners have 4 or more, 36,259 have 5 or more.)
         Character trigrams, hashed to 65,536 columns, in an EmbeddingBag and a LayerNorm.
icd10cm  Descriptions, inclusion terms and "includes" notes of all codes of ICD-10-CM, those with a seventh
         character included -> parent code, or for a three-character category the category itself. Repeated
         pairs count once. 80/10/10 by numpy's RandomState(42), whose training rows have 23,454 classes.
         The first 16 words through a transformer of two layers of width 64, their mean, a linear map to 128
         and a LayerNorm.
debian   Short descriptions of Debian's packages -> source package. One package for each description,
         80/10/10. Words and pairs of words, hashed to 65,536 columns, in an EmbeddingBag and a LayerNorm.
beauty, sports, toys, yelp
         The next item of a user, from `seqrec`: a causal transformer of two layers of width 64 over the last
         50 items, with the output layer's weights as embeddings. The last item of a user is the test row, the
         last but one the validation row; all items are ranked.
depends  The same on Debian's packages: a package, followed by all that it depends on, recommends, suggests,
         enhances or provides, alternatives included, in the order of these fields.
words    The next word of titles of `yso-finna`: words that occur twice or more in all splits, and one for all
         others; the same transformer, of width 128, on 16 words, embeddings tied as well. The titles of a
         split are one text in random order, 16 pieces of which are a minibatch.

Every method has the same encoder and batches, AdamW on the encoder, and an output layer whose biases start at
log-frequencies. "extremax" is the set-up of the documentation: a FrequencySampler and `make_optimizer`, with
no other setting; --power is that of the sampler. Sampled methods have Adagrad on sparse gradients, of the
EmbeddingBag too, or AdamW on dense ones; "in-batch" takes the targets of the other rows as negatives,
corrected by their frequencies. All others have AdamW. The adaptive softmax has embeddings of its own.

The rate of the output layer is found on 2,000 validation rows after --search seconds of training with the
first of --seeds, by log-likelihood, or NDCG@10 where items are ranked: from a start on, rates are doubled and
halved until the best is between two others. The runs with the best rates go on to --seconds, in turns of a
second, so that other work on the machine slows down all of them alike; other seeds start with these rates.
Figures are of 6,000 test rows, at random like those of validation. Seconds are processor time of training, on
one thread.
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
from functools import lru_cache, partial
from itertools import chain, count
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.feature_extraction.text import HashingVectorizer
from torch import Tensor, nn

from benchmark_data import data_folder, debian_packages, load_texts
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
TIED_SIZE = 0.1  # of the first embeddings
SPARSE_RATE, DENSE_RATE = 0.08, 0.005  # of Adagrad and AdamW: where the search begins
TURN = 1.0  # seconds
IGNORED = -100

Batch = tuple[tuple[Tensor, ...], Tensor]  # arguments of the encoder, and classes


@dataclass(frozen=True)
class Task:
    """Rows by split, and the encoder that they need.

    Attributes
    ----------
    counts
        Training rows of each class.
    n_rows
        Of each split.
    take
        ``take(split, rows)`` returns a batch.
    make_encoder
        Called with the weights of the output layer where these are its embeddings, else with None.
    tied
        Whether they are.
    width, batch
        Of hidden states; rows of a minibatch.
    lengths
        Of the training rows, if rows of a minibatch should be of like length.
    ranked
        Whether the first ten classes count, or the first one.
    power
        Of the sampler of "extremax".
    """

    name: str
    counts: Tensor
    n_rows: dict[str, int]
    take: Callable[[str, Tensor], Batch]
    make_encoder: Callable[[nn.Parameter | None], nn.Module]
    tied: bool = False
    width: int = WIDTH
    batch: int = BATCH
    lengths: Tensor | None = None
    ranked: bool = False
    power: float = 0.75

    @property
    def n_classes(self) -> int:
        return len(self.counts)

    def batches(self, generator: torch.Generator) -> Iterator[Batch]:
        """Yield the minibatches of an epoch."""
        order = torch.randperm(self.n_rows["train"], generator=generator)
        if self.lengths is not None:
            blocks = order.split(16 * self.batch)
            order = torch.cat([block[self.lengths[block].argsort(stable=True)] for block in blocks])
        parts = order.split(self.batch)
        for i in torch.randperm(len(parts), generator=generator).tolist():
            yield self.take("train", parts[i])


def text_task(name: str, y: dict[str, Tensor], take: Callable[..., tuple[Tensor, ...]], make: Any) -> Task:
    """Return a task with one class for each row."""
    counts = torch.bincount(y["train"]).float()
    n_rows = {split: len(y[split]) for split in SPLITS}
    return Task(name, counts, n_rows, lambda split, rows: (take(split, rows), y[split][rows]), make)


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
    data = load_texts("npm-owner-124k")
    assert data.texts is not None
    counts = np.bincount(data.y["train"])
    known = np.sort(np.lexsort((np.arange(len(counts)), -counts))[:N_OWNERS])
    place = np.full(len(counts), -1)
    place[known] = np.arange(len(known))
    rows = {split: np.flatnonzero(place[data.y[split]] >= 0) for split in SPLITS}
    texts = {split: [data.texts[split][i] for i in rows[split]] for split in SPLITS}
    classes = {split: place[data.y[split][rows[split]]] for split in SPLITS}
    return bag_task("npm", texts, classes, analyzer="char_wb", ngram_range=(3, 3))


def debian_task() -> Task:
    packages = debian_packages()
    order = np.random.default_rng(0).permutation(len(packages))
    parts = np.split(order, [len(order) * 8 // 10, len(order) * 9 // 10])
    rows = {split: [packages[i] for i in part] for split, part in zip(SPLITS, parts, strict=True)}

    def source(package: dict[str, str]) -> str:
        return package.get("Source", package["Package"]).partition(" ")[0]

    number = {name: i for i, name in enumerate(sorted({source(package) for package in rows["train"]}))}
    known = {split: [p for p in rows[split] if source(p) in number] for split in SPLITS}
    texts = {split: [p["Description"] for p in known[split]] for split in SPLITS}
    classes = {split: np.array([number[source(p)] for p in known[split]]) for split in SPLITS}
    return bag_task("debian", texts, classes, ngram_range=(1, 2))


def bag_task(name: str, texts: dict[str, list[str]], classes: dict[str, np.ndarray], **options: Any) -> Task:
    """Hash n-grams of texts into an EmbeddingBag; validation and test rows are a random part."""
    hashing = HashingVectorizer(n_features=N_COLUMNS, alternate_sign=False, norm=None, **options)
    y, columns, edges = {}, {}, {}
    for split in SPLITS:
        rows = np.arange(len(texts[split]))
        if split != "train":
            rows = np.random.default_rng(0).permutation(rows)[: EVALUATION_ROWS[split]]
        X = hashing.transform([texts[split][i] for i in rows]).tocsr()
        y[split] = torch.from_numpy(classes[split][rows]).long()
        columns[split], edges[split] = X.indices.astype(np.int64), X.indptr.astype(np.int64)

    def take(split: str, rows: Tensor) -> tuple[Tensor, ...]:
        starts, ends = edges[split][rows.numpy()], edges[split][rows.numpy() + 1]
        offsets = np.concatenate([[0], np.cumsum(ends - starts)])
        at = np.repeat(starts - offsets[:-1], ends - starts) + np.arange(offsets[-1])
        return torch.from_numpy(columns[split][at]), torch.from_numpy(offsets[:-1])

    return text_task(name, y, take, lambda _: Bag(N_COLUMNS, WIDTH))


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
    return text_task(
        "icd10cm",
        y,
        lambda split, rows: (X[split][rows],),
        lambda _: Transformer(len(number) + 2, 64, WIDTH),
    )


class Sequences(nn.Module):
    """A causal transformer of two layers over rows of classes, padded by -1 at their ends."""

    def __init__(self, weight: nn.Parameter | None, n_classes: int, width: int, dropout: float) -> None:
        super().__init__()
        self.table = nn.Embedding(n_classes, width)
        if weight is None:
            nn.init.normal_(self.table.weight, std=TIED_SIZE)
        else:
            self.table.weight = weight
        self.places = nn.Parameter(TIED_SIZE * torch.randn(N_ITEMS, width))
        self.first = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.LayerNorm(width)
        self.drop = nn.Dropout(dropout)

    def forward(self, classes: Tensor) -> Tensor:
        n = classes.shape[1]
        x = self.drop(self.first(self.table(classes.clamp(min=0)) + self.places[:n]))
        later = torch.ones(n, n, dtype=torch.bool).triu(1)
        return self.last(self.layers(x, mask=later, is_causal=True))


def sequence_task(name: str, users: list[list[int]]) -> Task:
    """Predict the last class of each sequence from those before, and train on all earlier ones."""
    n_classes = max(max(user) for user in users) + 1
    X, y = {}, {}
    for split, n_left in {"train": 2, "valid": 1, "test": 0}.items():
        rows = np.arange(len(users))
        if split != "train":
            rows = np.random.default_rng(0).permutation(rows)[: EVALUATION_ROWS[split]]
        table = np.full((len(rows), N_ITEMS), -1)
        labels = np.full((len(rows), N_ITEMS), IGNORED)
        for row, label, i in zip(table, labels, rows, strict=True):
            known = users[i][: len(users[i]) - n_left][-N_ITEMS - 1 :]
            row[: len(known) - 1] = known[:-1]
            wanted = slice(0 if split == "train" else len(known) - 2, len(known) - 1)
            label[wanted] = known[1:][wanted]
        X[split], y[split] = torch.from_numpy(table), torch.from_numpy(labels)
    lengths = {split: (X[split] >= 0).sum(1) for split in SPLITS}

    def take(split: str, rows: Tensor) -> Batch:
        n = int(lengths[split][rows].max().clamp(min=1))
        return (X[split][rows, :n],), y[split][rows, :n]

    return Task(
        name,
        torch.bincount(y["train"][y["train"] >= 0], minlength=n_classes).float(),
        {split: len(y[split]) for split in SPLITS},
        take,
        lambda weight: Sequences(weight, n_classes, 64, 0.2),
        tied=True,
        width=64,
        lengths=lengths["train"],
        ranked=True,
    )


def seqrec_task(name: str) -> Task:
    with lzma.open(data_folder() / "seqrec" / f"{name}.txt.xz", "rt") as file:
        users = [[int(item) - 1 for item in line.split()[1:]] for line in file]
    return sequence_task(name.split("_")[0].lower(), users)


def depends_task() -> Task:
    fields = ("Pre-Depends", "Depends", "Recommends", "Suggests", "Enhances", "Provides")
    rows = []
    for package in debian_packages():
        listed = re.split(r"[,|]", ",".join(package.get(field, "") for field in fields))
        names = [re.split(r"[ :(]", name.strip())[0] for name in listed]
        rows.append(list(dict.fromkeys(name for name in (package["Package"], *names) if name)))
    number = {name: i for i, name in enumerate(sorted({name for row in rows for name in row}))}
    return sequence_task("depends", [[number[name] for name in row] for row in rows if len(row) >= 4])


def words_task() -> Task:
    with lzma.open(data_folder() / "yso-finna" / "yso-finna-en.tsv.xz", "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t", 2) for line in file]
    titles = [(split, re.findall(r"\w+", title.lower())) for split, _, title in rows]
    counts = Counter(word for _, words in titles for word in words)
    number = {word: i + 1 for i, (word, k) in enumerate(counts.most_common()) if k > 1}
    titles = [titles[i] for i in np.random.default_rng(0).permutation(len(titles))]
    pieces = {}
    for split in SPLITS:
        text = [number.get(word, 0) for own, words in titles if own == split for word in words]
        n = (len(text) - 1) // N_WORDS * N_WORDS
        table = torch.tensor([text[:n], text[1 : n + 1]]).view(2, -1, N_WORDS)
        pieces[split] = table if split == "train" else table[:, : EVALUATION_ROWS[split] // N_WORDS]
    return Task(
        "words",
        torch.bincount(pieces["train"][1].flatten(), minlength=len(number) + 1).float(),
        {split: pieces[split].shape[1] for split in SPLITS},
        lambda split, rows: ((pieces[split][0, rows],), pieces[split][1, rows]),
        lambda weight: Sequences(weight, len(number) + 1, WIDTH, 0.0),
        tied=True,
        batch=BATCH // N_WORDS,
    )


def planted_task(*, tied: bool = False) -> Task:
    data = planted_hierarchy(600, 50, 12, n_test=200, seed=0)
    if tied:
        return sequence_task("planted items", [[int(i) % 50 for i in row] for row in 9 * data.X[:, :6] + 25])
    X = {"train": data.X, "valid": data.X_test[:100], "test": data.X_test[100:]}
    y = {"train": data.y, "valid": data.y_test[:100], "test": data.y_test[100:]}
    return text_task(
        "planted",
        {split: torch.from_numpy(y[split]).long() for split in SPLITS},
        lambda split, rows: (torch.from_numpy(X[split])[rows],),
        lambda _: nn.Linear(12, WIDTH),
    )


# -- output layers: parameters, a loss, and log-probabilities


class Dense(nn.Module):
    """A linear layer with an exact softmax; `fused_loss` uses F.linear_cross_entropy."""

    sparse = False

    def __init__(self, task: Task, *, fused_loss: bool = False) -> None:
        super().__init__()
        counts = task.counts.clamp(min=0.5)
        self.weight = nn.Parameter(torch.zeros(task.n_classes, task.width))
        self.bias = nn.Parameter(counts.log() - counts.sum().log())
        self.fused_loss = fused_loss

    def loss(self, h: Tensor, y: Tensor) -> Tensor:
        kept = y != IGNORED
        if self.fused_loss:
            # One chunk: the default of torch 2.13 takes ten times as long on this many classes.
            options = nn.LinearCrossEntropyOptions(batch_chunk_size=int(kept.sum()))
            return F.linear_cross_entropy(
                h[kept], self.weight, y[kept], linear_bias=self.bias, options=options
            )
        return F.cross_entropy(F.linear(h[kept], self.weight, self.bias), y[kept])

    def log_prob(self, h: Tensor) -> Tensor:
        return F.linear(h, self.weight, self.bias).log_softmax(1)


class Sampled(Dense):
    """Shared sampled softmax as usually written: draws with replacement, and the correction log(n q)."""

    def __init__(self, task: Task, *, n: int, by_frequency: bool, sparse: bool) -> None:
        super().__init__(task)
        q = task.counts.clamp(min=0.5) if by_frequency else torch.ones(task.n_classes)
        self.n, self.sparse = n, sparse
        self.cumulative = (q.double() / q.sum()).cumsum(0)
        self.log_q = (q / q.sum()).log()

    def draw(self, y: Tensor) -> Tensor:
        classes = torch.searchsorted(self.cumulative, torch.rand(self.n, dtype=torch.float64))
        return classes.clamp(max=len(self.log_q) - 1)

    def loss(self, h: Tensor, y: Tensor) -> Tensor:
        kept = y != IGNORED
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

    sparse = False

    def __init__(self, task: Task) -> None:
        super().__init__()
        n = task.n_classes
        self.place = task.counts.argsort(descending=True).argsort()
        self.layer = nn.AdaptiveLogSoftmaxWithLoss(task.width, n, [n // 20, n // 5], div_value=2.0)

    def loss(self, h: Tensor, y: Tensor) -> Tensor:
        kept = y != IGNORED
        return self.layer(h[kept], self.place[y[kept]]).loss

    def log_prob(self, h: Tensor) -> Tensor:
        return self.layer.log_prob(h)[:, self.place]


class Ours(nn.Module):
    """The set-up of the documentation."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        sampler = FrequencySampler(task.counts, task.power)
        self.layer = ExtremeSoftmax(task.width, task.n_classes, sampler=sampler)

    @property
    def weight(self) -> nn.Parameter:
        return self.layer.weight

    def loss(self, h: Tensor, y: Tensor) -> Tensor:
        return self.layer(h, y).loss

    def log_prob(self, h: Tensor) -> Tensor:
        return self.layer.log_prob(h)


METHODS: dict[str, Callable[[Task], Any]] = {
    "extremax": Ours,
    "in-batch": lambda task: InBatch(task, n=1024, by_frequency=True, sparse=True),
    **{
        f"{name} {n}{'' if sparse else ', AdamW'}": partial(
            Sampled, n=n, by_frequency=name == "frequency", sparse=sparse
        )
        for sparse in (True, False)
        for name in ("frequency", "uniform")
        for n in (1024, 256)
    },
    "full": Dense,
    "linear_cross_entropy": partial(Dense, fused_loss=True),
    "adaptive": Adaptive,
}


# -- training


@dataclass(frozen=True)
class Run:
    """Train a method with a rate and a seed, and look at it now and then."""

    task: Task
    method: str
    rate: float
    seed: int = 0

    def figures(self, looks: Sequence[tuple[float, str]]) -> Iterator[dict[str, float]]:
        """Yield figures after some processor seconds on a split, for each of `looks`; no split, no figures.

        Other runs may go on between them: this one has random numbers of its own.
        """
        task = self.task
        torch.manual_seed(self.seed)
        output = METHODS[self.method](task)
        weight = output.weight if task.tied and hasattr(output, "weight") else None
        if weight is not None:
            nn.init.normal_(weight, std=TIED_SIZE)
        encoder = task.make_encoder(weight)
        optimizers = make_optimizers(encoder, output, self.rate)
        generator = torch.Generator().manual_seed(self.seed)
        batches = chain.from_iterable(task.batches(generator) for _ in count())
        spent, n_steps = 0.0, 0
        for limit, split in looks:
            while spent < limit:
                inputs, y = next(batches)
                started = time.process_time()
                loss = output.loss(encoder(*inputs), y)
                for optimizer in optimizers:
                    optimizer.zero_grad()
                loss.backward()
                for optimizer in optimizers:
                    optimizer.step()
                spent, n_steps = spent + time.process_time() - started, n_steps + 1
            found = self._look(encoder, output, split) if split else {}
            state = torch.get_rng_state()
            yield {"processor s": spent, "steps": n_steps, **found}
            torch.set_rng_state(state)

    @torch.no_grad()
    def _look(self, encoder: nn.Module, output: Any, split: str) -> dict[str, float]:
        encoder.eval(), output.eval()
        ranks, log_probs = [], []
        for rows in torch.arange(self.task.n_rows[split]).split(self.task.batch):
            inputs, y = self.task.take(split, rows)
            kept = y != IGNORED
            log_prob, y = output.log_prob(encoder(*inputs)[kept]), y[kept]
            own = log_prob.gather(1, y[:, None])
            log_probs.append(own.squeeze(1))
            ranks.append((log_prob > own).sum(1))
        encoder.train(), output.train()
        rank, likelihood = torch.cat(ranks), torch.cat(log_probs).mean().item()
        if not self.task.ranked:
            return {"accuracy": (rank == 0).float().mean().item(), "log-likelihood": likelihood}
        hit = (rank < 10).float()
        gain = (hit / (rank + 2.0).log2()).mean().item()
        return {"HIT@10": hit.mean().item(), "NDCG@10": gain, "log-likelihood": likelihood}


@lru_cache
def _compile_kernels() -> None:
    """Compile, or load, what a step needs: no part of the time of training."""
    layer = ExtremeSoftmax(WIDTH, 500)
    layer(torch.randn(300, WIDTH), torch.arange(300) % 50).loss.backward()


def make_optimizers(encoder: nn.Module, output: Any, rate: float) -> list[torch.optim.Optimizer]:
    if isinstance(output, Ours):
        model = nn.ModuleList([encoder, output])
        return [make_optimizer(model, lr=ENCODER_RATE, row_lr=rate)]
    rows = list(output.parameters())
    own = {id(p) for p in rows}
    for table in (m for m in encoder.modules() if isinstance(m, nn.Embedding) and id(m.weight) in own):
        table.sparse = output.sparse
    bags = [m.weight for m in encoder.modules() if isinstance(m, nn.EmbeddingBag)]
    others = [p for p in encoder.parameters() if id(p) not in own and all(p is not bag for bag in bags)]
    kind: Any = torch.optim.Adagrad if output.sparse else torch.optim.AdamW
    tables = torch.optim.Adagrad(bags, lr=rate if output.sparse else SPARSE_RATE) if bags else None
    optimizers = [torch.optim.AdamW(others, lr=ENCODER_RATE), kind(rows, lr=rate), tables]
    return [optimizer for optimizer in optimizers if optimizer is not None]


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


def find_rate_of(
    task: Task, method: str, looks: Sequence[tuple[float, str]], seed: int
) -> tuple[float, Iterator[dict[str, float]]]:
    """Return the best rate of a method after the first of `looks`, and the run with it."""
    output = METHODS[method](task)
    ours = 10.0 / task.width  # the default of make_optimizer
    first = ours if isinstance(output, Ours) else SPARSE_RATE if output.sparse else DENSE_RATE
    search, begun = looks[0][0], {}
    if search == 0.0:
        return first, Run(task, method, first, seed).figures(looks[1:])

    def score(tried: float) -> float:
        begun[tried] = Run(task, method, tried, seed).figures(looks)
        figures = next(begun[tried])
        case = f"{task.name}, {method}, validation after {search:g} s, rate {tried:g}"
        write_rows(NAME, [{"case": case, **figures}])
        return figures["NDCG@10" if task.ranked else "log-likelihood"]

    best = next(iter(find_rate(score, first)))
    return best, begun[best]


def compare(
    task: Task,
    methods: Sequence[str],
    seconds: Sequence[float],
    search: float,
    seeds: Sequence[int],
) -> None:
    """Find the rate of each method on validation rows, and write its figures on test rows."""
    _compile_kernels()
    turns = [(limit, "") for limit in np.arange(search + TURN, max(seconds), TURN) if limit not in seconds]
    looks = [(search, "valid"), *sorted([*turns, *((limit, "test") for limit in seconds)])]
    begun = {method: find_rate_of(task, method, looks, seeds[0]) for method in methods}
    for seed in seeds:
        runs = {
            method: training if seed == seeds[0] else Run(task, method, best, seed).figures(looks[1:])
            for method, (best, training) in begun.items()
        }
        for limit, split in looks[1:]:
            for method, run in runs.items():
                figures = next(run)
                if split:
                    case = f"{task.name}, {method}, {limit:g} s, seed {seed}"
                    write_rows(NAME, [{"case": case, "rate": begun[method][0], **figures}])


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
    "debian": debian_task,
    "depends": depends_task,
    "words": words_task,
    "beauty": lambda: seqrec_task("Beauty"),
    "sports": lambda: seqrec_task("Sports_and_Outdoors"),
    "toys": lambda: seqrec_task("Toys_and_Games"),
    "yelp": lambda: seqrec_task("Yelp"),
    "planted": planted_task,
    "planted items": lambda: planted_task(tied=True),
}


def main(argv: Sequence[str] | None = None) -> None:
    parser: argparse.ArgumentParser = make_parser(__doc__)
    parser.add_argument("--data", nargs="+", default=list(TASKS)[:-2], choices=list(TASKS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seconds", nargs="+", type=float, default=[20.0, 40.0])
    parser.add_argument("--power", type=float, default=0.75, help="of the sampler of extremax")
    parser.add_argument("--search", type=float, default=20.0, help="seconds of each rate; 0: no search")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--classes", type=int, default=1_000_000, help="of the step that is timed; 0: none")
    args = parser.parse_args(argv)
    if args.tiny:
        args.data, args.seconds, args.search = ["planted", "planted items"], [0.02, 0.04], 0.01
        args.classes = 2000
    print(machine(), f"torch {torch.__version__}")
    with one_torch_thread():
        for name in args.data:
            task = replace(TASKS[name](), power=args.power)
            compare(task, args.methods, args.seconds, args.search, args.seeds)
        if args.classes:
            time_many_classes(args.classes, 2 if args.tiny else 30)
    if args.classes and torch.get_num_threads() > 1:
        time_many_classes(args.classes, 2 if args.tiny else 30)


if __name__ == "__main__":
    main()
