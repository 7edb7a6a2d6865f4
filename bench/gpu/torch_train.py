#!/usr/bin/env python3
"""Times training steps of dlrm-default in PyTorch on a GPU, the other side of run.sh's `training` stage.

    python bench/gpu/torch_train.py [--device cuda] [--steps 200] [--quick]

Variants, each in this process after the other, all with SGD and batches of 2048 made beforehand on the device:
    eager      EmbeddingBags with sparse gradients
    compiled   the same, its dense part by torch.compile
    graph      the same, its dense part in a CUDA graph (torch.cuda.make_graphed_callables)
    tbe        FBGEMM's table-batched embeddings with the fused update, the dense part compiled
    torchrec   TorchRec's EmbeddingBagCollection under its fused optimizer, the dense part compiled
What is not installed, or fails, is reported with the reason. Prints one JSON object. `--quick` makes tables small and steps
few, to try the script anywhere (`--device cpu`). Needs torch and numpy.
"""
import argparse
import importlib.metadata
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "compare"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import torch
from torch import nn

import reference

BATCH_SIZE = 2048
BATCHES = 32
WARM_UP = 10
RATE = 0.1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=int, default=200, help="timed steps of each variant (default: 200)")
    parser.add_argument("--quick", action="store_true", help="small tables, few steps")
    arguments = parser.parse_args()
    rows = 1000 if arguments.quick else 1_000_000
    steps = 3 if arguments.quick else arguments.steps
    shape = reference.Shape(dense=512, bottom=[512, 64], tables=[rows] * 8, dim=64, top=[1024, 1024, 1024, 1])
    torch.manual_seed(1)
    batches = [moved(batch, arguments.device) for batch in reference.made_batches(shape, BATCH_SIZE, BATCHES)]
    report = {
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu",
        "batch_size": BATCH_SIZE,
        "rows": rows,
        "steps": steps,
        "versions": versions(),
        "variants": {},
    }
    for name, make in VARIANTS.items():
        try:
            report["variants"][name] = timed(make(shape, batches, arguments.device), batches, steps, arguments.device)
        except Exception as error:  # A variant that cannot run must not hide the others.
            report["variants"][name] = {"problem": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(name, report["variants"][name], file=sys.stderr)
    print(json.dumps(report, indent=2))


def versions():
    found = {}
    for name in ("torch", "fbgemm-gpu", "torchrec"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def moved(batch, device):
    to = lambda tensors: [tensor.to(device) for tensor in tensors]
    return reference.Batch(batch.dense.to(device), batch.labels.to(device), to(batch.ids), to(batch.starts))


def timed(step, batches, steps, device):
    """The median step, each timed with the device's work."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    for i in range(WARM_UP):
        step(batches[i % len(batches)])
    wait()
    seconds = []
    # Several steps a sample: the host runs ahead of the device, as it does in training.
    group = max(1, steps // 20)
    for first in range(0, steps, group):
        began = time.perf_counter()
        for i in range(first, first + group):
            step(batches[i % len(batches)])
        wait()
        seconds.append((time.perf_counter() - began) / group)
    median = statistics.median(seconds)
    return {"seconds_per_step": median, "samples_per_second": BATCH_SIZE / median}


def loss_of(logits, batch):
    return nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)


def with_tables(dense_part):
    """A step of EmbeddingBags with sparse gradients, whose dense part `dense_part` makes of the model."""

    def make(shape, batches, device):
        model = reference.Dlrm(shape).to(device)
        forward = dense_part(model, batches[0])
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

        def step(batch):
            optimizer.zero_grad(set_to_none=True)
            loss_of(forward(batch.dense, model.pool(batch)), batch).backward()
            optimizer.step()

        return step

    return make


def in_a_graph(model, batch):
    dense = nn.ModuleList([model.bot_l, model.top_l])
    pooled = model.pool(batch).detach().requires_grad_()
    whole = reference.Dense(model.shape).to(pooled.device)
    whole.bot_l, whole.top_l = dense
    return torch.cuda.make_graphed_callables(whole, (batch.dense, pooled))


def merged(batch):
    """Ids of all tables in one, and where bags begin."""
    ids = torch.cat(batch.ids)
    sizes = torch.tensor([0, *[len(own) for own in batch.ids[:-1]]], device=ids.device).cumsum(0)
    starts = [starts[:-1] + size for starts, size in zip(batch.starts, sizes)]
    return ids, torch.cat([*starts, torch.tensor([len(ids)], device=ids.device)])


def tbe(shape, batches, device):
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen

    on_gpu = device == "cuda"
    place = EmbeddingLocation.DEVICE if on_gpu else EmbeddingLocation.HOST
    where = ComputeDevice.CUDA if on_gpu else ComputeDevice.CPU
    specs = [(rows, shape.dim, place, where) for rows in shape.tables]
    tables = SplitTableBatchedEmbeddingBagsCodegen(specs, optimizer=EmbOptimType.EXACT_SGD, learning_rate=RATE)
    return fused(shape, batches, device, lambda at: tables(*at), merged)


def torchrec(shape, batches, device):
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
    from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

    names = [f"t{i}" for i in range(len(shape.tables))]
    configs = [
        EmbeddingBagConfig(name=name, embedding_dim=shape.dim, num_embeddings=rows, feature_names=[name])
        for name, rows in zip(names, shape.tables)
    ]
    del EmbeddingBagCollection
    tables = FusedEmbeddingBagCollection(
        tables=configs, optimizer_type=torch.optim.SGD, optimizer_kwargs={"lr": RATE}, device=torch.device(device)
    )
    jagged = lambda batch: KeyedJaggedTensor(keys=names, values=merged(batch)[0], offsets=merged(batch)[1])
    return fused(shape, batches, device, lambda kjt: tables(kjt).values(), jagged)


def fused(shape, batches, device, pool, prepare):
    """A step whose tables are updated in their own backward pass."""
    dense = reference.Dense(shape).to(device)
    forward = torch.compile(dense) if device == "cuda" else dense
    optimizer = torch.optim.SGD(dense.parameters(), lr=RATE)
    # Made beforehand, as the batches are.
    prepared = {id(batch): prepare(batch) for batch in batches}

    def step(batch):
        optimizer.zero_grad(set_to_none=True)
        loss_of(forward(batch.dense, pool(prepared[id(batch)])), batch).backward()
        optimizer.step()

    return step


VARIANTS = {
    "eager": with_tables(lambda model, batch: model),
    "compiled": with_tables(lambda model, batch: torch.compile(model)),
    "graph": with_tables(in_a_graph),
    "tbe": tbe,
    "torchrec": torchrec,
}


if __name__ == "__main__":
    main()
