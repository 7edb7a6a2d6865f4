#!/usr/bin/env python3
"""Checks that an exported model gives the same click probabilities in PyTorch.

    python bench/compare/torch_agrees.py EXPORT.safetensors ROWS.txt PROBABILITIES.txt

EXPORT is `rowmill checkpoint export --to torch|torchrec` of a DLRM with the dot interaction, ROWS a file in
Criteo's format prepared as `criteo-dlrm` with ids modulo the tables' rows, PROBABILITIES what `rowmill score`
printed for it. Prints JSON; exits 1 where any probability is further apart than 1e-5. Needs torch, numpy and
safetensors.
"""
import itertools
import json
import sys

import criteo
import torch
from safetensors.torch import load_file

TOLERANCE = 1e-5


def layers(state, names):
    """(weight, bias) pairs of the modules in order."""
    return [(state[f"{name}.weight"], state[f"{name}.bias"]) for name in names]


def read(state):
    """Bottom MLP, tables and top MLP of either library, and whether pairs are in TorchRec's order."""
    torchrec = any(name.startswith("sparse_arch.") for name in state)
    modules = sorted({name.rsplit(".", 1)[0] for name in state if name.endswith(".bias")})
    if torchrec:
        number = lambda name: int(name.split("_mlp.")[1].split(".")[0]) if "_mlp." in name else 999
        bottom = sorted((m for m in modules if m.startswith("dense_arch.")), key=number)
        top = sorted((m for m in modules if m.startswith("over_arch.")), key=number)
        prefix = "sparse_arch.embedding_bag_collection.embedding_bags."
        table = lambda i: state[f"{prefix}C{i + 1}.weight"]
    else:
        number = lambda name: int(name.split(".")[1])
        bottom = sorted((m for m in modules if m.startswith("bot_l.")), key=number)
        top = sorted((m for m in modules if m.startswith("top_l.")), key=number)
        table = lambda i: state[f"emb_l.{i}.weight"]
    tables = [table(i) for i in range(26)]
    return layers(state, bottom), tables, layers(state, top), torchrec


def mlp(x, stack, last_relu):
    for i, (weight, bias) in enumerate(stack):
        x = torch.nn.functional.linear(x, weight, bias)
        if i + 1 < len(stack) or last_relu:
            x = torch.relu(x)
    return x


def main():
    export, rows, probabilities = sys.argv[1:4]
    bottom, tables, top, torchrec = read(load_file(export))
    dense, ids = (torch.tensor(values) for values in zip(*criteo.prepared(rows)))
    x = mlp(dense.float(), bottom, True)
    pooled = [
        torch.nn.functional.embedding_bag((ids[:, i : i + 1] % table.shape[0]), table, mode="sum")
        for i, table in enumerate(tables)
    ]
    vectors = torch.stack([x, *pooled], dim=1)
    products = torch.bmm(vectors, vectors.transpose(1, 2))
    count = vectors.shape[1]
    first, second = (
        torch.triu_indices(count, count, offset=1)
        if torchrec
        else torch.tril_indices(count, count, offset=-1)
    )
    joined = torch.cat([x, products[:, first, second]], dim=1)
    expected = torch.sigmoid(mlp(joined, top, False)).squeeze(1)
    with open(probabilities) as file:
        got = torch.tensor([float(line) for line in itertools.islice(file, len(expected))])
    apart = (got - expected).abs().max().item()
    print(json.dumps({"export": export, "rows": len(expected), "largest_difference": apart}))
    sys.exit(0 if len(got) == len(expected) and apart < TOLERANCE else 1)


if __name__ == "__main__":
    main()
