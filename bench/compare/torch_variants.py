#!/usr/bin/env python3
"""One way of training a DLRM in PyTorch, set up once and timed whenever asked: the other side of train_speed.py.

    python bench/compare/torch_variants.py CASE_AS_JSON

Prints a line of JSON when it is ready. Then for each line on standard input, a number of seconds, it trains for at least
that long, and at least five steps, each timed by itself, and prints one line: median seconds of a step, their number,
the median clock read between them, and when it began and ended. All batches are made beforehand: 65,536 samples, so that
the rows they touch do not stay in the cache. Needs torch and numpy; `tbe*` fbgemm-gpu-cpu, `torchrec` that and torchrec.
"""
import importlib.metadata
import json
import statistics
import sys
import time

import numpy as np
import torch
from torch import nn

import machine
import reference

SAMPLES = 65_536
BATCHES_LEAST = 16
STEPS_LEAST = 5
WARM_UP = 3
CLOCK_READINGS = 5
RATE = 0.01
EPSILON = 1e-8


def main():
    case = json.loads(sys.argv[1])
    torch.manual_seed(1)
    torch.set_num_threads(case["threads"])
    shape = reference.Shape(**case["shape"])
    count = max(BATCHES_LEAST, SAMPLES // case["batch_size"])
    bags = (case["pooling"], case["pooling"])
    batches = reference.made_batches(shape, case["batch_size"], count, bags)
    step, batches = VARIANTS[case["variant"]](shape, case["optimizer"], batches)
    for batch in batches[:WARM_UP]:
        step(batch)
    say({"ready": case["variant"], "versions": versions()})
    clock, at = machine.Clock(), WARM_UP
    for line in sys.stdin:
        seconds, clocks, begin = [], [], time.time()
        end = time.perf_counter() + float(line)
        while len(seconds) < STEPS_LEAST or time.perf_counter() < end:
            began = time.perf_counter()
            step(batches[at % len(batches)])
            seconds.append(time.perf_counter() - began)
            # The first readings after a step pay for what the step left in the caches.
            clocks.append(max(clock.ghz() for _ in range(CLOCK_READINGS)))
            at += 1
        rate = {"seconds_per_step": statistics.median(seconds), "steps": len(seconds)}
        say({**rate, "clock_ghz": statistics.median(clocks), "began": begin, "ended": time.time()})


def say(value):
    print(json.dumps(value), flush=True)


def versions():
    names = ["torch", "fbgemm-gpu-cpu", "torchrec", "numpy"]
    installed = {dist.metadata["Name"].replace("_", "-"): dist.version for dist in importlib.metadata.distributions()}
    return {name: installed.get(name) for name in names}


def bce(logits, labels):
    return nn.functional.binary_cross_entropy_with_logits(logits, labels)


def trained(loss_of, optimizers):
    """A step of forward, backward and update."""

    def step(batch):
        loss = loss_of(batch)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()

    return step


# ---- one EmbeddingBag per table ----


class AsPublished(reference.Dlrm):
    """As facebookresearch/dlrm computes it: pairs by two index lists, a sigmoid, BCE on probabilities."""

    def loss(self, batch):
        dense = self.bot_l(batch.dense)
        pooled = [bag(ids, starts[:-1]) for bag, ids, starts in zip(self.emb_l, batch.ids, batch.starts)]
        size, width = dense.shape
        vectors = torch.cat([dense, *pooled], dim=1).view(size, -1, width)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        count = vectors.shape[1]
        high = torch.tensor([i for i in range(count) for _ in range(i)])
        low = torch.tensor([j for i in range(count) for j in range(i)])
        joined = torch.cat([dense, products[:, high, low]], dim=1)
        return nn.functional.binary_cross_entropy(torch.sigmoid(self.top_l(joined)).squeeze(1), batch.labels)


def ref(shape, optimizer, batches):
    model = AsPublished(shape)
    if optimizer == "sgd":
        return trained(model.loss, [torch.optim.SGD(model.parameters(), lr=RATE)]), batches
    return trained(model.loss, lean_optimizers(model, optimizer)), batches


def lean(shape, optimizer, batches):
    """The same mathematics without detours: pairs by one cached index, logits, fused dense SGD."""
    model = reference.Dlrm(shape)
    return trained(model.loss, lean_optimizers(model, optimizer)), batches


def lean_bf16(shape, optimizer, batches):
    model = reference.Dlrm(shape)

    def loss_of(batch):
        pooled = model.pool(batch)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(batch.dense, pooled)
        return bce(logits.float(), batch.labels)

    return trained(loss_of, lean_optimizers(model, optimizer)), batches


def lean_optimizers(model, optimizer):
    tables = list(model.emb_l.parameters())
    sparse = {
        "sgd": lambda: torch.optim.SGD(tables, lr=RATE),
        "rowwise_adagrad": lambda: reference.RowwiseAdagrad(tables, RATE, EPSILON),
    }
    rest = [weight for name, weight in model.named_parameters() if not name.startswith("emb_l.")]
    return [sparse[optimizer](), torch.optim.SGD(rest, lr=RATE, fused=True)]


# ---- FBGEMM: all tables in one operator, the update fused into backward ----


def tbe(shape, optimizer, batches, autocast=False):
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    kinds = {"sgd": EmbOptimType.EXACT_SGD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, shape.dim, EmbeddingLocation.HOST, ComputeDevice.CPU) for rows in shape.tables],
        optimizer=kinds[optimizer],
        learning_rate=RATE,
        eps=EPSILON,
        device=torch.device("cpu"),
    )
    tables.init_embedding_weights_uniform(-1e-3, 1e-3)
    model = reference.Dense(shape)

    def loss_of(batch):
        pooled = tables(batch["ids"], batch["starts"])
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            logits = model(batch["dense"], pooled)
        return bce(logits.float(), batch["labels"])

    step = trained(loss_of, [torch.optim.SGD(model.parameters(), lr=RATE, fused=True)])
    return step, [joined(batch) for batch in batches]


def tbe_bf16(shape, optimizer, batches):
    return tbe(shape, optimizer, batches, autocast=True)


def joined(batch):
    """Ids of all tables in one tensor."""
    firsts = np.cumsum([0] + [len(ids) for ids in batch.ids])
    starts = [starts[:-1] + int(first) for starts, first in zip(batch.starts, firsts)]
    return {
        "dense": batch.dense,
        "labels": batch.labels,
        "ids": torch.cat(batch.ids),
        "starts": torch.cat([*starts, torch.tensor([int(firsts[-1])])]),
        "lengths": torch.cat([starts.diff() for starts in batch.starts]).int(),
    }


# ---- TorchRec: its DLRM, its fused tables ----


def torchrec(shape, optimizer, batches):
    import torchrec
    from torchrec.models.dlrm import DLRM
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection
    from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    keys = [f"f{i}" for i in range(len(shape.tables))]
    tables = [
        EmbeddingBagConfig(name=f"t{i}", embedding_dim=shape.dim, num_embeddings=rows, feature_names=[keys[i]])
        for i, rows in enumerate(shape.tables)
    ]
    kinds = {"sgd": torch.optim.SGD, "rowwise_adagrad": torchrec.optim.RowWiseAdagrad}
    cpu = torch.device("cpu")
    fused = FusedEmbeddingBagCollection(
        tables=tables, optimizer_type=kinds[optimizer], optimizer_kwargs={"lr": RATE}, device=cpu
    )
    model = DLRM(
        EmbeddingBagCollection(tables=tables, device=torch.device("meta")),
        dense_in_features=shape.dense,
        dense_arch_layer_sizes=shape.bottom,
        over_arch_layer_sizes=shape.top,
        dense_device=cpu,
    )
    model.sparse_arch.embedding_bag_collection = fused
    rest = [weight for name, weight in model.named_parameters() if "embedding_bag_collection" not in name]

    def loss_of(batch):
        sparse = KeyedJaggedTensor(keys=keys, values=batch["ids"], lengths=batch["lengths"])
        return bce(model(batch["dense"], sparse).squeeze(1), batch["labels"])

    step = trained(loss_of, [torch.optim.SGD(rest, lr=RATE, fused=True)])
    return step, [joined(batch) for batch in batches]


VARIANTS = {
    "ref": ref,
    "lean": lean,
    "tbe": tbe,
    "torchrec": torchrec,
    "lean_bf16": lean_bf16,
    "tbe_bf16": tbe_bf16,
}


if __name__ == "__main__":
    main()
