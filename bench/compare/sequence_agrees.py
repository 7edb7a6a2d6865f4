#!/usr/bin/env python3
"""Scores the same rows with rowmill and with TorchRec, with a table that is not pooled.

    target/venv-compare/bin/python bench/compare/sequence_agrees.py [--rowmill BINARY]

rowmill trains a DLRM with a sequence of up to 10 ids (`pooling = "none"`, in bf16) beside a pooled feature, exports its
weights under TorchRec's names, and scores rows whose sequences have 0 to 14 ids. TorchRec looks the same rows up in an
`EmbeddingCollection`, pads them with `JaggedTensor.to_padded_dense`, and passes them through its own `InteractionArch`
and `MLP`. Prints one JSON object; exits 1 where a probability is more than 1e-6 apart. Needs torch, torchrec, safetensors.
"""
import argparse
import json
import random
import sys
import tempfile

import torch
from safetensors.torch import load_file
from torchrec.models.dlrm import InteractionArch
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.mlp import MLP
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import doors

DIM, LENGTH, USERS, ITEMS = 16, 10, 1000, 5000
ROWS, LONGEST = 300, 14
APART = 1e-6
TOP = [64, 1]
BOTTOM = [32, DIM]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rowmill", default=doors.BINARY)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rowmill = doors.Rowmill(arguments.rowmill, folder)
        doors.write_job(rowmill.folder / "job.toml", job())
        rowmill.run("train", "job.toml", "--synthetic", 20000, "--run", "run")
        rowmill.run("checkpoint", "export", "run", "--to", "torchrec", "weights.safetensors")
        rows = made_rows()
        write_rows(rowmill.folder / "rows.csv", rows)
        rowmill.run("score", "run", "rows.csv", "--output", "scores.txt")
        ours = torch.tensor(list(map(float, (rowmill.folder / "scores.txt").read_text().split())))
        theirs = scored(load_file(rowmill.folder / "weights.safetensors"), rows)
    apart = (ours - theirs).abs().max().item()
    print(json.dumps({"rows": len(ours), "largest_difference": apart, "allowed": APART}))
    return 1 if len(ours) != ROWS or apart > APART else 0


def job():
    tables = [
        {"name": "user", "rows": USERS, "dim": DIM},
        {
            "name": "history",
            "rows": ITEMS,
            "dim": DIM,
            "pooling": "none",
            "sequence_length": LENGTH,
            "data_type": "bf16",
        },
    ]
    columns = [{"column": "user", "kind": "integer"}, {"column": "history", "kind": "integer", "separator": "|"}]
    model = {"name": "sequence", "dense_features": 2, "bottom": BOTTOM, "top": TOP, "tables": tables}
    return {
        "model": model | {"interaction": {"kind": "dot"}, "loss": "bce_with_logits"},
        "optimizer": {kind: {"kind": "adagrad", "learning_rate": 0.02} for kind in ("sparse", "dense")},
        "training": {"batch_size": 256},
        "data": {
            "format": "csv",
            "label": {"column": "y"},
            "dense": [{"column": "u", "transform": "log1p"}, {"column": "v", "transform": "log1p"}],
            "categorical": columns,
        },
    }


def made_rows():
    """Dense inputs, user, and the ids of the sequence."""
    draw = random.Random(1)
    ids = lambda: [draw.randrange(ITEMS) for _ in range(draw.randint(0, LONGEST))]
    return [([draw.randint(0, 9), draw.randint(0, 9)], draw.randrange(USERS), ids()) for _ in range(ROWS)]


def write_rows(path, rows):
    lines = [f"0,{u},{v},{user},{'|'.join(map(str, ids))}\n" for (u, v), user, ids in rows]
    path.write_text("".join(lines))


def scored(weights, rows):
    dense, users, sequences = zip(*rows)
    joined = lambda name, lists: KeyedJaggedTensor(
        keys=[name], values=torch.tensor(sum(lists, [])), lengths=torch.tensor(list(map(len, lists)), dtype=torch.int32)
    )
    table = {"embedding_dim": DIM}
    bags = EmbeddingBagCollection(
        tables=[EmbeddingBagConfig(name="user", num_embeddings=USERS, feature_names=["user"], **table)]
    )
    collection = EmbeddingCollection(
        tables=[EmbeddingConfig(name="history", num_embeddings=ITEMS, feature_names=["history"], **table)]
    )
    bottom, top = MLP(2, BOTTOM), MLP(DIM + (LENGTH + 2) * (LENGTH + 1) // 2, TOP[:-1])
    last = torch.nn.Linear(TOP[-2], 1)
    for prefix, module in (
        ("sparse_arch.embedding_bag_collection.", bags),
        ("sparse_arch.embedding_collection.", collection),
        ("dense_arch.model.", bottom),
        ("over_arch.model.0.", top),
        ("over_arch.model.1.", last),
    ):
        own = {name.removeprefix(prefix): value.float() for name, value in weights.items() if name.startswith(prefix)}
        module.load_state_dict(own)
    with torch.no_grad():
        user = bags(joined("user", [[user] for user in users]))["user"].unsqueeze(1)
        history = collection(joined("history", list(sequences)))["history"].to_padded_dense(LENGTH)
        vectors = torch.cat([user, history], dim=1)
        joint = InteractionArch(num_sparse_features=LENGTH + 1)(bottom(torch.tensor(dense).float().log1p()), vectors)
        return torch.sigmoid(last(top(joint))).squeeze(1)


if __name__ == "__main__":
    sys.exit(main())
