"""Loads a model that `rowmill checkpoint export` wrote, as a torch.nn.Module. The only required package is torch.

    import rowmill_model
    model = rowmill_model.load("weights.safetensors")
    probabilities = model(dense, bags)

`dense` is [B, dense features], f32, transformed as the run's data was. `bags` has a pair (ids, offsets) for each
feature, in the order of `model.features`: all ids, and where each sample's bag begins, as in
torch.nn.functional.embedding_bag.
"""
import json
import struct

import torch

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def read(path):
    """Returns the metadata and the tensors of a safetensors file, which is mapped into memory instead of read."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        end = file.seek(0, 2)
    notes = header.pop("__metadata__", {})
    data = torch.from_file(path, shared=False, size=end, dtype=torch.uint8)[8 + length :]
    tensors = {}
    for name, info in header.items():
        first, last = info["data_offsets"]
        # Copied, because a mapped tensor may begin at an address that is not aligned for its type.
        values = data[first:last].clone().view(DTYPES[info["dtype"]])
        tensors[name] = values.reshape(info["shape"])
    return notes, tensors


class Model(torch.nn.Module):
    def __init__(self, config, tensors):
        super().__init__()
        torchrec = not any(name.startswith("emb_l.") for name in tensors)
        self.config, self.upper = config, torchrec
        self.features = [name for table in config["tables"] for name in table["features"]]
        take = lambda name: torch.nn.Parameter(tensors[name].float())
        self.tables = torch.nn.ParameterList()
        for i, table in enumerate(config["tables"]):
            if torchrec:
                folder = "embedding_collection.embeddings"
                if table["pooling"] != "none":
                    folder = "embedding_bag_collection.embedding_bags"
                self.tables.append(take(f"sparse_arch.{folder}.{table['name']}.weight"))
            else:
                self.tables.append(take(f"emb_l.{i}.weight"))
        top = len(config["top"])
        if torchrec:
            bottom_names = [f"dense_arch.model._mlp.{i}._linear" for i in range(len(config["bottom"]))]
            top_names = [f"over_arch.model.0._mlp.{i}._linear" for i in range(top - 1)]
            top_names.append("over_arch.model.1")
        else:
            bottom_names = [f"bot_l.{2 * i}" for i in range(len(config["bottom"]))]
            top_names = [f"top_l.{2 * i}" for i in range(top)]
        layers = lambda names: torch.nn.ParameterList(
            take(f"{name}.{kind}") for name in names for kind in ("weight", "bias")
        )
        self.bottom, self.top = layers(bottom_names), layers(top_names)
        kind = config["interaction"]
        crosses = range(kind["layers"] if kind["kind"] == "dcn_v2" else 0)
        self.cross = torch.nn.ParameterList(
            take(f"inter_arch.crossnet.{part}.{i}")
            for i in crosses
            for part in ("V_kernels", "W_kernels", "bias")
        )

    def pool(self, table, weight, ids, offsets):
        """Returns pooled vectors [B, dim], or a sequence of vectors [B, length · dim]."""
        if table["pooling"] != "none":
            return torch.nn.functional.embedding_bag(ids, weight, offsets, mode=table["pooling"])
        length, ends = table["sequence_length"], torch.cat([offsets[1:], offsets.new_tensor([len(ids)])])
        rows = weight.new_zeros(len(offsets), length, weight.shape[1])
        for sample, (first, last) in enumerate(zip(offsets.tolist(), ends.tolist())):
            taken = ids[first : min(last, first + length)]
            rows[sample, : len(taken)] = weight[taken]
        return rows.flatten(1)

    def interact(self, x, pooled):
        kind = self.config["interaction"]
        joined = torch.cat([x, *pooled], dim=1)
        if kind["kind"] == "dot":
            vectors = joined.reshape(len(x), -1, x.shape[1])
            count = vectors.shape[1]
            products = torch.bmm(vectors, vectors.transpose(1, 2))
            offset = 0 if kind.get("itself") else 1
            if self.upper:
                first, second = torch.triu_indices(count, count, offset=offset)
            else:
                first, second = torch.tril_indices(count, count, offset=-offset)
            return torch.cat([x, products[:, first, second]], dim=1)
        at = joined
        for i in range(0, len(self.cross), 3):
            down, up, bias = self.cross[i : i + 3]
            at = joined * (at @ down.T @ up.T + bias) + at
        return at

    def logits(self, dense, bags):
        x = mlp(dense, self.bottom, True)
        of_feature = [
            (table, weight) for table, weight in zip(self.config["tables"], self.tables) for _ in table["features"]
        ]
        pooled = [self.pool(*owner, *bag) for owner, bag in zip(of_feature, bags)]
        return mlp(self.interact(x, pooled), self.top, False).squeeze(1)

    def forward(self, dense, bags):
        return torch.sigmoid(self.logits(dense, bags))


def mlp(x, layers, last_relu):
    for i in range(0, len(layers), 2):
        x = torch.nn.functional.linear(x, layers[i], layers[i + 1])
        if last_relu or i + 2 < len(layers):
            x = torch.relu(x)
    return x


def load(path):
    """Returns the model that is stored in `path`, a file written by `rowmill checkpoint export`."""
    notes, tensors = read(path)
    if "rowmill.model" not in notes:
        raise ValueError(f"{path}: expected a file of `rowmill checkpoint export`, got one without its model")
    return Model(json.loads(notes["rowmill.model"]), tensors)
