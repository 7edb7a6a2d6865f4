#!/usr/bin/env python3
"""Builds plans that rowmill exported from TorchRec's own classes.

    target/venv-compare/bin/python bench/compare/torchrec_plan_agrees.py < PLANS.json

The input has the tables, the devices and the plans; a test of `crates/plan` writes it. For each table, TorchRec's
generators make the sharding that the plan describes (such as `row_wise()` or `table_row_wise(host_index=1)`), and its
`ShardingPlan` must serialize to the plan that was exported. PyTorch also checks that the shards of each table cover it. Prints one JSON object; exits 1 with the first difference.
"""
import json
import sys

import torch
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec
from torch.distributed._shard.sharded_tensor import TensorProperties
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import (
    column_wise,
    data_parallel,
    grid_shard,
    row_wise,
    table_row_wise,
    table_wise,
)
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ShardingPlan


def generator(entry, per_host):
    """TorchRec's sharding of the same meaning."""
    kind, ranks = entry["sharding_type"], entry["ranks"]
    hosts = [rank // per_host for rank in ranks[::per_host]]
    return {
        "data_parallel": data_parallel,
        "table_wise": lambda: table_wise(rank=ranks[0]),
        "column_wise": lambda: column_wise(ranks=ranks),
        "row_wise": row_wise,
        "table_row_wise": lambda: table_row_wise(host_index=hosts[0]),
        "grid_shard": lambda: grid_shard(host_indexes=hosts),
    }[kind]()


def check_cover(entry, shape):
    """Raises an error if the shards do not cover the table exactly."""
    if "shards" not in entry:
        return
    shards = [
        ShardMetadata(shard["shard_offsets"], shard["shard_sizes"], shard["placement"])
        for shard in entry["shards"]
        # The check of PyTorch has no place for empty shards.
        if 0 not in shard["shard_sizes"]
    ]
    EnumerableShardingSpec(shards).build_metadata(torch.Size(shape), TensorProperties())


def main():
    given = json.load(sys.stdin)
    shapes = {name: (rows, dim) for name, rows, dim in given["tables"]}
    ranks, per_host = given["ranks"], given["ranks_per_host"]
    checked = 0
    for exported in given["plans"]:
        module = EmbeddingModuleShardingPlan()
        for name, entry in exported["plan"][given["module"]].items():
            parameter = torch.nn.Parameter(torch.empty(shapes[name], device="meta"))
            # A parameter with a fused optimizer gets the fused kernel.
            if entry["sharding_type"] != "data_parallel":
                parameter._in_backward_optimizers = []
            make = generator(entry, per_host)
            module[name] = make(parameter, per_host, ranks, "cuda", EmbeddingBagCollectionSharder())
            check_cover(entry, shapes[name])
            checked += 1
        theirs = ShardingPlan({given["module"]: module})._serialize()
        for name, entry in exported["plan"][given["module"]].items():
            expected = theirs["plan"][given["module"]][name]
            if entry != expected:
                print(json.dumps({"table": name, "exported": entry, "torchrec": expected}))
                return 1
    print(json.dumps({"plans": len(given["plans"]), "tables": checked}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
