#!/usr/bin/env python3
"""Times training steps of dlrm-default in PyTorch on a GPU, the other side of the stage `training` of run.py.

    python bench/gpu/torch_train.py [--device cuda] [--steps 200] [--variant NAME-PRECISION]...

Variants, one after the other in this process, all with SGD and batches of 2048, each copied from pinned memory in its step:
    eager      EmbeddingBags with sparse gradients
    graph      the same, its dense part in a CUDA graph (torch.cuda.make_graphed_callables)
    compiled   the same, its dense part by torch.compile, which takes a minute
    tbe        FBGEMM's table-batched embeddings with the fused update, the dense part compiled
    torchrec   TorchRec's EmbeddingBagCollection under its fused optimizer, the dense part compiled
Precisions: f32 (products of f32 without TF32), tf32, bf16 (autocast). The host waits for the device after every
`--wait-every` steps, as `rowmill-bench train --wait-every` does; a sample is the mean of these steps.

Prints one JSON object per line: first the versions, then each variant as soon as it is measured, so that a run that is ended
early leaves what it has. A variant that cannot run gives its reason. `--quick` makes tables small and steps few, to try the
script anywhere (`--device cpu`). Needs torch and numpy.
"""
import argparse
import contextlib
import dataclasses
import importlib.metadata
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "compare"))

import torch
from torch import nn

import reference

BATCH_SIZE = 2048
BATCHES = 32
WARM_UP = 10
RATE = 0.1
PRECISIONS = ("f32", "tf32", "bf16")
# Compiling takes a minute, so it is done in one precision unless more are named.
DEFAULT = [f"{name}-{precision}" for name in ("eager", "graph") for precision in PRECISIONS] + ["compiled-tf32"]


@dataclasses.dataclass
class Job:
    """What a variant trains, and how."""

    shape: reference.Shape
    batches: list
    device: str
    precision: str

    def products(self):
        """The context in which products have this precision."""
        torch.backends.cuda.matmul.allow_tf32 = self.precision == "tf32"
        if self.precision != "bf16":
            return contextlib.nullcontext()
        return torch.autocast(self.device, dtype=torch.bfloat16, cache_enabled=False)

    def train(self, optimizers, forward, batch, pooled):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        with self.products():
            logits = forward(batch.dense, pooled)
        nn.functional.binary_cross_entropy_with_logits(logits.float(), batch.labels).backward()
        for optimizer in optimizers:
            optimizer.step()


def main():
    arguments = parsed()
    rows = 1000 if arguments.quick else 1_000_000
    shape = reference.Shape(dense=512, bottom=[512, 64], tables=[rows] * 8, dim=64, top=[1024, 1024, 1024, 1])
    torch.manual_seed(1)
    batches = reference.made_batches(shape, BATCH_SIZE, BATCHES)
    if arguments.device == "cuda":
        batches = [on_each(batch, torch.Tensor.pin_memory) for batch in batches]
    device = torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu"
    put({"device": device, "batch_size": BATCH_SIZE, "rows": rows, "wait_every": arguments.wait_every, **versions()})
    for variant in arguments.variant or DEFAULT:
        name, precision = variant.split("-")
        job = Job(shape, batches, arguments.device, precision)
        try:
            measured = timed(VARIANTS[name](job), job, arguments)
        except Exception as error:  # A variant that cannot run must not hide the others.
            measured = {"problem": f"{type(error).__name__}: {error}".splitlines()[0]}
        put({"variant": name, "precision": precision, **measured})
        if arguments.device == "cuda":
            torch.cuda.empty_cache()


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=int, default=200, help="timed steps of each variant (default: 200)")
    parser.add_argument("--wait-every", type=int, default=10, metavar="N", help="steps between two waits (default: 10)")
    known = [f"{name}-{precision}" for name in VARIANTS for precision in PRECISIONS]
    parser.add_argument("--variant", action="append", choices=known, metavar="NAME-PRECISION",
                        help=f"may be repeated (default: {' '.join(DEFAULT)})")
    parser.add_argument("--quick", action="store_true", help="small tables, one sample")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.steps = arguments.wait_every
    return arguments


def put(record):
    print(json.dumps(record), flush=True)


def versions():
    found = {}
    for name in ("torch", "fbgemm-gpu", "torchrec"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return {"versions": found}


def on_each(batch, move):
    """The batch with every tensor moved."""
    return reference.Batch(move(batch.dense), move(batch.labels), [*map(move, batch.ids)], [*map(move, batch.starts)])


def timed(step, job, arguments):
    """The median, lowest and highest sample."""
    wait = torch.cuda.synchronize if job.device == "cuda" else lambda: None
    here = lambda batch: on_each(batch, lambda tensor: tensor.to(job.device, non_blocking=True))
    number = 0

    def run(steps):
        nonlocal number
        for _ in range(steps):
            step(here(job.batches[number % BATCHES]))
            number += 1
        wait()

    run(1 if arguments.quick else WARM_UP)
    samples = []
    for _ in range(max(1, arguments.steps // arguments.wait_every)):
        began = time.perf_counter()
        run(arguments.wait_every)
        samples.append(1e3 * (time.perf_counter() - began) / arguments.wait_every)
    return {"step_ms": statistics.median(samples), "step_ms_min": min(samples), "step_ms_max": max(samples)}


def with_tables(make_forward):
    """A step of EmbeddingBags with sparse gradients, whose dense part `make_forward` makes of the model."""

    def make(job):
        with torch.device(job.device):
            model = reference.Dlrm(job.shape)
        forward = make_forward(model, job)
        # One optimizer for all would update the dense weights one by one, because some gradients are sparse.
        optimizers = reference.optimizers(model, "sgd", RATE)
        return lambda batch: job.train(optimizers, forward, batch, model.pool(batch))

    return make


def in_a_graph(model, job):
    batch = on_each(job.batches[0], lambda tensor: tensor.to(job.device))
    pooled = model.pool(batch).detach().requires_grad_()
    with torch.device(job.device):
        whole = reference.Dense(model.shape)
    whole.bot_l, whole.top_l = model.bot_l, model.top_l
    with job.products():
        return torch.cuda.make_graphed_callables(whole, (batch.dense, pooled))


def merged(batch):
    """Ids of all tables in one, and where bags begin."""
    starts, before = [], 0
    for ids, own in zip(batch.ids, batch.starts):
        starts.append(own[:-1] + before)
        before += len(ids)
    return torch.cat(batch.ids), torch.cat([*starts, torch.full_like(starts[0][:1], before)])


def tbe(job):
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen

    on_gpu = job.device == "cuda"
    place = EmbeddingLocation.DEVICE if on_gpu else EmbeddingLocation.HOST
    where = ComputeDevice.CUDA if on_gpu else ComputeDevice.CPU
    specs = [(rows, job.shape.dim, place, where) for rows in job.shape.tables]
    tables = SplitTableBatchedEmbeddingBagsCodegen(specs, optimizer=EmbOptimType.EXACT_SGD, learning_rate=RATE)
    return fused(job, lambda batch: tables(*merged(batch)))


def torchrec(job):
    from torchrec import EmbeddingBagConfig, KeyedJaggedTensor
    from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

    names = [f"t{i}" for i in range(len(job.shape.tables))]
    configs = [
        EmbeddingBagConfig(name=name, embedding_dim=job.shape.dim, num_embeddings=rows, feature_names=[name])
        for name, rows in zip(names, job.shape.tables)
    ]
    tables = FusedEmbeddingBagCollection(
        tables=configs, optimizer_type=torch.optim.SGD, optimizer_kwargs={"lr": RATE}, device=torch.device(job.device)
    )

    def pool(batch):
        ids, offsets = merged(batch)
        return tables(KeyedJaggedTensor(keys=names, values=ids, offsets=offsets)).values()

    return fused(job, pool)


def fused(job, pool):
    """A step whose tables are updated in their own backward pass."""
    with torch.device(job.device):
        dense = reference.Dense(job.shape)
    forward = torch.compile(dense) if job.device == "cuda" else dense
    optimizer = torch.optim.SGD(dense.parameters(), lr=RATE)
    return lambda batch: job.train([optimizer], forward, batch, pool(batch))


VARIANTS = {
    "eager": with_tables(lambda model, job: model),
    "graph": with_tables(in_a_graph),
    "compiled": with_tables(lambda model, job: torch.compile(model)),
    "tbe": tbe,
    "torchrec": torchrec,
}


if __name__ == "__main__":
    main()
