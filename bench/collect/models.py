"""The models of the suite as training steps on made batches: DLRM, image classifiers, a transformer.

Widths and rows of the DLRMs are those of arXiv:2201.07821, Table III. Knows neither clocks nor files.
"""
import dataclasses
import zlib

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import vision

KAGGLE_ROWS = (1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10,
               5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572)
RATE = 0.01
# Batches that training takes turns with: enough that the rows of the last are not those of the next.
BATCHES = 8
IMAGE_BATCHES = 2
# Tables are cut where they would take more of the device's free memory than this.
MEMORY_SHARE = 0.4


@dataclasses.dataclass(frozen=True)
class Shape:
    """`bottom` with its input, `top` without."""

    bottom: tuple
    rows: tuple
    dim: int
    top: tuple


DLRMS = {
    "dlrm-default": Shape((512, 512, 64), (1_000_000,) * 8, 64, (1024, 1024, 1024, 1)),
    "dlrm-ddp": Shape((128, 128, 128, 128), (80_000,) * 8, 128, (512, 512, 512, 256, 1)),
    "dlrm-mlperf": Shape((13, 512, 256, 32), KAGGLE_ROWS, 32, (1024, 1024, 512, 256, 1)),
}


@dataclasses.dataclass(frozen=True)
class Workload:
    """A model at a batch size. `form` and `pooling` are a DLRM's, `size` an image's edge or a sequence's length."""

    model: str
    batch: int
    form: str | None = None
    pooling: int | None = None
    size: int | None = None

    def name(self):
        parts = [self.model, self.pooling and f"p{self.pooling}", self.form, f"b{self.batch}"]
        return "-".join(part for part in parts if part)

    def facts(self):
        return {"model": self.model, "form": self.form, "pooling": self.pooling, "size": self.size, "batch": self.batch}


@dataclasses.dataclass
class Job:
    """A step that trains on batch `i`, and what is worth knowing of the model."""

    step: object
    facts: dict


def build(workload, device, seed, rows_cap=None):
    """`rows_cap`: rows of a table at most; None: as many as memory allows."""
    torch.manual_seed(seed)
    generator = np.random.default_rng([seed, zlib.crc32(workload.name().encode())])
    makers = {"resnet50": images(vision.resnet50), "inception": images(vision.inception), "transformer": transformer}
    return makers.get(workload.model, dlrm)(workload, device, generator, rows_cap)


def trained(model, device, batches, loss_of, optimizer):
    """A step: the batch to the device, forward, backward, update."""

    def step(i):
        batch = [device.put(part) for part in batches[i % len(batches)]]
        optimizer.zero_grad(set_to_none=True)
        loss_of(model, batch).backward()
        optimizer.step()

    return step


def parameters(model):
    return sum(weight.numel() for weight in model.parameters())


# ---- DLRM ----


def perceptron(widths, last_relu):
    parts = []
    for i, (inputs, outputs) in enumerate(zip(widths, widths[1:])):
        parts.append(nn.Linear(inputs, outputs))
        if last_relu or i + 2 < len(widths):
            parts.append(nn.ReLU())
    return nn.Sequential(*parts)


class Bags(nn.Module):
    """One nn.EmbeddingBag per table. `ids` `[T, B·L]`, `starts` `[B]`; gives `[B, T, D]`'s parts."""

    def __init__(self, rows, dim, place):
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(count, dim, mode="sum", sparse=True, _weight=initial(count, dim, place)) for count in rows
        )

    def forward(self, ids, starts):
        return [table(ids[t], starts).unsqueeze(1) for t, table in enumerate(self.tables)]


class Batched(nn.Module):
    """All tables below each other and one lookup. `ids` `[T·B·L]` count from the first table's first row."""

    def __init__(self, rows, dim, place):
        super().__init__()
        weight = torch.cat([initial(count, dim, place) for count in rows]) if len(set(rows)) > 1 else initial(
            sum(rows), dim, place, rows[0]
        )
        self.tables, self.count = nn.EmbeddingBag(len(weight), dim, mode="sum", sparse=True, _weight=weight), len(rows)

    def forward(self, ids, starts):
        pooled = self.tables(ids, starts)
        return [pooled.view(self.count, -1, pooled.shape[1]).transpose(0, 1)]


def initial(rows, dim, place, of=None):
    bound = (of or rows) ** -0.5
    return torch.empty(rows, dim, device=place).uniform_(-bound, bound)


class Dlrm(nn.Module):
    """Bottom MLP, embeddings, products of each pair of vectors, top MLP."""

    def __init__(self, shape, embeddings, place):
        super().__init__()
        vectors = len(shape.rows) + 1
        self.embeddings = embeddings
        self.bottom = perceptron(shape.bottom, last_relu=True).to(place)
        self.top = perceptron((shape.dim + vectors * (vectors - 1) // 2, *shape.top), last_relu=False).to(place)
        pairs = torch.tril_indices(vectors, vectors, -1, device=place)
        self.register_buffer("high", pairs[0])
        self.register_buffer("low", pairs[1])

    def forward(self, dense, ids, starts):
        """Logits `[B]`."""
        dense = self.bottom(dense)
        vectors = torch.cat([dense.unsqueeze(1), *self.embeddings(ids, starts)], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        return self.top(torch.cat([dense, products[:, self.high, self.low]], dim=1)).squeeze(1)


def dlrm(workload, device, generator, rows_cap):
    shape = DLRMS[workload.model]
    cap = rows_cap or cap_that_fits(shape, device.free_bytes())
    rows = tuple(min(count, cap) for count in shape.rows)
    embeddings = {"bags": Bags, "batched": Batched}[workload.form](rows, shape.dim, device.torch)
    model = Dlrm(shape, embeddings, device.torch)
    batches = [lookup_batch(shape.bottom[0], rows, workload, generator) for _ in range(BATCHES)]
    batches = [[device.pinned(part) for part in batch] for batch in batches]
    loss = lambda model, batch: F.binary_cross_entropy_with_logits(model(*batch[:3]), batch[3])  # noqa: E731
    facts = {"parameters": parameters(model), "optimizer": "sgd", "tables": len(rows), "rows": sum(rows),
             "rows_full": sum(shape.rows), "rows_cap": cap if cap < max(shape.rows) else None}
    return Job(trained(model, device, batches, loss, torch.optim.SGD(model.parameters(), lr=RATE)), facts)


def cap_that_fits(shape, free):
    """The largest power of two of rows per table with which the tables fit their share of the memory."""
    cap = 1 << max(shape.rows).bit_length()
    while cap > 1 and 4 * shape.dim * sum(min(rows, cap) for rows in shape.rows) > MEMORY_SHARE * free:
        cap //= 2
    return cap


def lookup_batch(width, rows, workload, generator):
    """Dense inputs, ids, starts of the bags, labels. Ids are uniform."""
    size, each = workload.batch, workload.batch * workload.pooling
    dense = generator.random((size, width), dtype=np.float32)
    labels = (generator.random(size) < 0.25).astype(np.float32)
    ids = np.stack([generator.integers(0, count, each) for count in rows])
    bags = size
    if workload.form == "batched":
        ids = (ids + np.cumsum([0, *rows[:-1]])[:, None]).reshape(-1)
        bags = size * len(rows)
    starts = np.arange(bags) * workload.pooling
    return [torch.from_numpy(part) for part in (dense, ids, starts, labels)]


# ---- images ----


def images(network):
    def build(workload, device, generator, _):
        model = network().to(device.torch)
        shape = (workload.batch, 3, workload.size, workload.size)
        batches = []
        for _ in range(IMAGE_BATCHES):
            pixels = torch.from_numpy(generator.standard_normal(shape, dtype=np.float32))
            labels = torch.from_numpy(generator.integers(0, vision.CLASSES, workload.batch))
            batches.append([device.pinned(pixels), device.pinned(labels)])
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
        loss = lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])  # noqa: E731
        facts = {"parameters": parameters(model), "optimizer": "sgd with momentum"}
        return Job(trained(model, device, batches, loss, optimizer), facts)

    return build


# ---- transformer ----

WORDS = 8192
WIDTH = 256
HEADS = 8
LAYERS = 4


class Attention(nn.Module):
    """Written out, so that its kernels are those that microbench.py times: products, softmax, transposes."""

    def __init__(self):
        super().__init__()
        self.inputs, self.outputs = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, states, mask):
        size, length, _ = states.shape
        queries, keys, values = self.inputs(states).view(size, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = queries @ keys.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5
        mixed = torch.softmax(scores + mask, dim=-1) @ values
        return self.outputs(mixed.transpose(1, 2).reshape(size, length, WIDTH))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, states, mask):
        states = states + self.attention(self.before(states), mask)
        return states + self.wide(self.between(states))


class Transformer(nn.Module):
    """Predicts the next word."""

    def __init__(self, length):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Parameter(0.02 * torch.randn(length, WIDTH))
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1))

    def forward(self, words):
        states = self.words(words) + self.places
        for block in self.blocks:
            states = block(states, self.mask)
        return self.head(self.norm(states))


def transformer(workload, device, generator, _):
    model = Transformer(workload.size).to(device.torch)
    shape = (workload.batch, workload.size + 1)
    batches = [[device.pinned(torch.from_numpy(generator.integers(0, WORDS, shape)))] for _ in range(BATCHES)]

    def loss(model, batch):
        return F.cross_entropy(model(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten())

    facts = {"parameters": parameters(model), "optimizer": "adamw"}
    return Job(trained(model, device, batches, loss, torch.optim.AdamW(model.parameters(), lr=RATE / 10)), facts)
