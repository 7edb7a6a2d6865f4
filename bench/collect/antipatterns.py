"""Eleven ways of wasting a GPU, each beside its cure: pairs of training or inference steps that compute the same.

A pair is two functions of (device, scale, folder) that give a step; a step may have `close`, called when it is done with.
`scale` is 1 in a full suite and smaller in a quick one. What is made only of a GPU's properties (pinned memory, its queue,
its many multiprocessors) says so in `only_cuda`. Knows neither clocks nor files but those of the I/O pair.
"""
import dataclasses
import os
import pathlib
import queue
import threading

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

RATE = 0.01


@dataclasses.dataclass(frozen=True)
class Pair:
    """`wastes`: what the first does; `cure`: what the second does instead; `only_cuda`: why a CPU cannot show it."""

    name: str
    wastes: str
    cure: str
    before: object
    after: object
    only_cuda: str | None = None


def sized(size, scale, least=1):
    return max(least, int(size * scale))


def mlp(device, width, layers):
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts).to(device.torch)


def trainer(model, optimizer=None):
    """A function of inputs that takes a step on their mean square and gives the loss, still on the device."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=RATE)

    def train(inputs):
        optimizer.zero_grad(set_to_none=True)
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train


def host_batch(device, *sizes, pinned=True):
    batch = torch.randn(*sizes)
    return device.pinned(batch) if pinned else batch


# ---- copies ----

PIECES = 256
PIECE = 256


def copies_one_by_one(device, scale, folder):
    pieces = [host_batch(device, PIECE) for _ in range(sized(PIECES, scale, 64))]
    target = torch.empty(len(pieces), PIECE, device=device.torch)
    train = trainer(mlp(device, PIECE, 2))

    def step(i):
        for row, piece in enumerate(pieces):
            target[row].copy_(piece, non_blocking=True)
        train(target)

    return step


def copies_packed(device, scale, folder):
    packed = host_batch(device, sized(PIECES, scale, 64), PIECE)
    target = torch.empty(packed.shape, device=device.torch)
    train = trainer(mlp(device, PIECE, 2))

    def step(i):
        target.copy_(packed, non_blocking=True)
        train(target)

    return step


def copied_inputs(device, scale, pinned):
    batches = [host_batch(device, sized(4096, scale, 64), 2048, pinned=pinned) for _ in range(2)]
    train = trainer(mlp(device, 2048, 2))
    return lambda i: train(batches[i % 2].to(device.torch, non_blocking=pinned))


def pageable(device, scale, folder):
    return copied_inputs(device, scale, pinned=False)


def pinned(device, scale, folder):
    return copied_inputs(device, scale, pinned=True)


# ---- the host as the bottleneck ----


def raw_batches(scale):
    generator = np.random.default_rng(3)
    return [generator.integers(0, 1000, (sized(4096, scale, 256), 256)).astype(np.float32) for _ in range(2)]


def transformed_on_host(device, scale, folder):
    """log(1 + x), scaled by row, one row at a time."""
    raw, train = raw_batches(scale), trainer(mlp(device, 256, 2))

    def step(i):
        rows = [np.log1p(row) for row in raw[i % 2]]
        rows = np.stack([(row - row.mean()) / (row.std() + 1e-6) for row in rows])
        train(device.put(device.pinned(torch.from_numpy(rows))))

    return step


def transformed_on_device(device, scale, folder):
    raw, train = [device.pinned(torch.from_numpy(one)) for one in raw_batches(scale)], trainer(mlp(device, 256, 2))

    def step(i):
        rows = torch.log1p(device.put(raw[i % 2]))
        train((rows - rows.mean(1, keepdim=True)) / (rows.std(1, correction=0, keepdim=True) + 1e-6))

    return step


EVERY = 3


def saving(device, scale):
    model = mlp(device, sized(1024, scale, 256), 4)
    inputs = torch.randn(sized(1024, scale, 64), model[0].in_features, device=device.torch)
    return model, inputs, trainer(model)


def write_weights(weights, folder):
    """To the disk, not only to the system's buffers."""
    with open(pathlib.Path(folder) / "weights.pt", "wb") as file:
        torch.save(weights, file)
        file.flush()
        os.fsync(file.fileno())


def saved_in_the_step(device, scale, folder):
    model, inputs, train = saving(device, scale)

    def step(i):
        train(inputs)
        if i % EVERY == EVERY - 1:
            write_weights({name: weight.cpu() for name, weight in model.state_dict().items()}, folder)

    return step


def saved_beside(device, scale, folder):
    """The weights are copied on the device at once; a thread copies them to the host and writes."""
    model, inputs, train = saving(device, scale)
    jobs = queue.Queue()

    def write():
        while (weights := jobs.get()) is not None:
            write_weights({name: weight.cpu() for name, weight in weights.items()}, folder)
            jobs.task_done()
        jobs.task_done()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()

    def step(i):
        train(inputs)
        # A writer that is behind skips a turn rather than hold up training.
        if i % EVERY == EVERY - 1 and jobs.unfinished_tasks == 0:
            jobs.put({name: weight.detach().clone() for name, weight in model.state_dict().items()})

    def close():
        jobs.put(None)
        writer.join()

    step.close = close
    return step


class Decoded(Dataset):
    """Samples that cost the host something: a sort, as decoding would."""

    def __len__(self):
        return 1 << 30

    def __getitem__(self, at):
        values = np.random.default_rng(at).standard_normal(4096, dtype=np.float32)
        return torch.from_numpy(np.sort(values)[::16].copy())


def loaded(device, scale, workers):
    """Steps whose batches come from torch's loader, prepared by the training thread (0) or by other processes."""
    extra = {"multiprocessing_context": "fork", "persistent_workers": True} if workers else {}
    loader = DataLoader(Decoded(), batch_size=sized(256, scale, 32), num_workers=workers,
                        pin_memory=device.kind == "cuda", **extra)
    batches, train = iter(loader), trainer(mlp(device, 256, 4))
    return lambda i: train(device.put(next(batches)))


def fed_by_one(device, scale, folder):
    return loaded(device, scale, workers=0)


def fed_by_several(device, scale, folder):
    return loaded(device, scale, workers=max(2, min(8, (os.cpu_count() or 2) // 2)))


def losses(device, scale):
    model = mlp(device, sized(512, scale, 64), 8)
    inputs = torch.randn(256, model[0].in_features, device=device.torch)
    return inputs, trainer(model)


def read_every_step(device, scale, folder):
    inputs, train = losses(device, scale)
    return lambda i: train(inputs).item()


def read_seldom(device, scale, folder):
    inputs, train = losses(device, scale)
    total = torch.zeros((), device=device.torch)

    def step(i):
        total.add_(train(inputs))
        if i % 50 == 49:
            total.item()

    return step


# ---- grain and parallelism of kernels ----


def bags(device, scale):
    """16 bags of many ids each."""
    each = sized(1 << 16, scale, 1 << 12)
    table = torch.randn(200_000, 64, device=device.torch)
    return table, torch.randint(len(table), (16, each), device=device.torch)


def whole_bags(device, scale, folder):
    """A thread adds up a whole bag."""
    table, ids = bags(device, scale)
    starts = torch.arange(0, ids.numel(), ids.shape[1], device=device.torch)
    return lambda i: F.embedding_bag(ids.view(-1), table, starts, mode="sum")


def split_bags(device, scale, folder):
    """A thread adds up 256 ids, then the parts are added."""
    table, ids = bags(device, scale)
    starts = torch.arange(0, ids.numel(), 256, device=device.torch)
    return lambda i: F.embedding_bag(ids.view(-1), table, starts, mode="sum").view(len(ids), -1, 64).sum(1)


def matrices(device, scale):
    count = sized(256, scale, 16)
    return [torch.randn(count, 128, 128, device=device.torch) for _ in range(2)]


def one_product_each(device, scale, folder):
    """Every product fills a few multiprocessors."""
    left, right = matrices(device, scale)
    return lambda i: torch.stack([torch.mm(one, other) for one, other in zip(left, right)])


def all_products_at_once(device, scale, folder):
    left, right = matrices(device, scale)
    return lambda i: torch.bmm(left, right)


# ---- launches ----


def optimized(device, scale, options):
    model = mlp(device, 128, sized(48, scale, 16))
    inputs = torch.randn(64, 128, device=device.torch)
    train = trainer(model, torch.optim.Adam(model.parameters(), lr=1e-4, **options))
    return lambda i: train(inputs)


def update_by_parameter(device, scale, folder):
    return optimized(device, scale, {"foreach": False, "fused": False})


def update_fused(device, scale, folder):
    return optimized(device, scale, {"fused": True})


TABLES, TABLE_ROWS, TABLE_DIM = 48, 10_000, 32


def table_ids(device, scale):
    """Of each table, one id per sample."""
    sizes = sized(TABLES, scale, 16), sized(2048, scale, 128)
    return torch.randint(TABLE_ROWS, sizes, device=device.torch)


def many_bags(device, scale, folder):
    ids = table_ids(device, scale)
    tables = nn.ModuleList(nn.EmbeddingBag(TABLE_ROWS, TABLE_DIM, mode="sum", sparse=True) for _ in ids)
    tables = tables.to(device.torch)
    starts = torch.arange(ids.shape[1], device=device.torch)
    optimizer = torch.optim.SGD(tables.parameters(), lr=RATE)

    def step(i):
        optimizer.zero_grad(set_to_none=True)
        torch.cat([table(ids[t], starts) for t, table in enumerate(tables)], dim=1).square().mean().backward()
        optimizer.step()

    return step


def one_lookup(device, scale, folder):
    ids = table_ids(device, scale)
    count = len(ids)
    table = nn.EmbeddingBag(count * TABLE_ROWS, TABLE_DIM, mode="sum", sparse=True).to(device.torch)
    ids = (ids + TABLE_ROWS * torch.arange(count, device=device.torch).unsqueeze(1)).view(-1)
    starts = torch.arange(len(ids), device=device.torch)
    optimizer = torch.optim.SGD(table.parameters(), lr=RATE)

    def step(i):
        optimizer.zero_grad(set_to_none=True)
        table(ids, starts).view(count, -1, TABLE_DIM).transpose(0, 1).flatten(1).square().mean().backward()
        optimizer.step()

    return step


def small_layers(device, scale):
    model = mlp(device, 256, sized(12, scale, 4))
    return torch.zeros(128, 256, device=device.torch), [host_batch(device, 128, 256) for _ in range(2)], trainer(model)


def launched(device, scale, folder):
    inputs, batches, train = small_layers(device, scale)

    def step(i):
        inputs.copy_(batches[i % 2], non_blocking=True)
        train(inputs)

    return step


def replayed(device, scale, folder):
    """The whole step as one graph; new inputs are copied to where it reads them."""
    inputs, batches, train = small_layers(device, scale)
    device.side_stream(lambda: [train(inputs) for _ in range(3)])
    replay = device.captured(lambda: train(inputs))

    def step(i):
        inputs.copy_(batches[i % 2], non_blocking=True)
        replay()

    return step


PAIRS = (
    Pair("fine-grained-copies", f"copies {PIECES} rows of 1 KB one by one", "one copy of all rows", copies_one_by_one,
         copies_packed),
    Pair("host-transform", "transforms each batch on the host, row by row", "copies the raw batch, transforms it there",
         transformed_on_host, transformed_on_device),
    Pair("periodic-io", f"writes its weights to the disk every {EVERY} steps and waits", "a thread writes a copy",
         saved_in_the_step, saved_beside),
    Pair("one-feeder", "prepares batches on the training thread", "worker processes prepare them ahead", fed_by_one,
         fed_by_several),
    Pair("coarse-grain", "a thread of the GPU sums a bag of 65,536 rows", "sums of 256 rows, then their sum",
         whole_bags, split_bags, "the grain of a GPU's threads"),
    Pair("low-parallelism", "256 small products, one kernel each", "one batched product", one_product_each,
         all_products_at_once, "multiprocessors left idle by a small kernel"),
    Pair("pageable-copies", "copies batches from pageable memory and waits", "pinned memory, copied asynchronously",
         pageable, pinned, "pinned memory"),
    Pair("item-per-step", "reads the loss on the host after every step", "adds it up on the device, reads every 50",
         read_every_step, read_seldom, "a queue of launches that reading drains"),
    Pair("unfused-optimizer", "Adam, several kernels per parameter", "fused Adam", update_by_parameter, update_fused),
    Pair("many-embedding-bags", "an nn.EmbeddingBag per table", "one batched lookup", many_bags, one_lookup),
    Pair("launch-bound", "launches each small kernel of a step", "replays the step as a CUDA graph", launched, replayed,
         "CUDA graphs"),
)
