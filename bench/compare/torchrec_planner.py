#!/usr/bin/env python3
"""Plans random models with TorchRec's planner, and writes what it estimates and chooses.

    target/venv-compare/bin/python bench/compare/torchrec_planner.py OUTPUT.json

The tests of `crates/plan/src/torchrec` read the file. Each case has the tables and the devices, the estimates of all
sharding options, and the chosen plan in TorchRec's own form. Only compute kernels that rowmill has are allowed. The
generator has fixed seeds, so that the same versions write the same file. Needs torch and torchrec.
"""
import json
import logging
import random
import sys
import warnings

import torch
import torchrec
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.estimator import EmbeddingPerfEstimatorFactory
from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner, MemoryBalancedPartitioner
from torchrec.distributed.planner.perf_models import NoopPerfModel
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.storage_reservations import (
    FixedPercentageStorageReservation,
    HeuristicalStorageReservation,
)
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError, Topology
from torchrec.distributed.types import PipelineType
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

CASES = 48
SIZES = [(1, 1), (2, 2), (4, 4), (8, 8), (4, 2), (16, 8), (8, 4), (32, 8), (64, 8)]
DIMS = [4, 8, 16, 20, 32, 48, 64, 96, 100, 128, 192, 256, 384, 512, 768]
TYPES = ["data_parallel", "table_wise", "column_wise", "table_column_wise", "row_wise", "table_row_wise", "grid_shard"]
OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adagrad": torchrec.optim.Adagrad,
    "rowwise_adagrad": torchrec.optim.RowWiseAdagrad,
    "lamb": torchrec.optim.LAMB,
}
PIPELINES = {
    "none": (PipelineType.NONE, False),
    "sparse_dist": (PipelineType.TRAIN_SPARSE_DIST, False),
    "sparse_dist_at_peak": (PipelineType.TRAIN_SPARSE_DIST, True),
}
GPU_SHARE_USED = [0.02, 0.3, 0.6, 0.8, 0.95]


def made_table(number, rng, pooled, weighted, device):
    features = rng.choice([1, 1, 1, 2, 3]) if pooled else 1
    bag = lambda: round(rng.choice([rng.uniform(0.1, 1), rng.uniform(1, 5), rng.uniform(5, 80)]), 3)
    dim = rng.choice(DIMS)
    allowed = None
    if rng.random() < 0.3 and pooled:
        kinds = TYPES if device == "cuda" else TYPES[:4]
        allowed = sorted(rng.sample(kinds, rng.randint(1, 3)), key=TYPES.index)
        # A grid or a single type that fits nowhere makes most cases infeasible.
        allowed = allowed + ["row_wise"] if device == "cuda" and "row_wise" not in allowed else allowed
        allowed.sort(key=TYPES.index)
    return {
        "name": f"table_{number}",
        "rows": int(10 ** rng.uniform(1, 7.5)),
        "dim": dim,
        "weight_bytes": rng.choice([4, 4, 2]),
        "ids_per_bag": [bag() for _ in range(features)],
        "is_pooled": pooled,
        # A property of the module, and thus of all tables of a case.
        "is_weighted": weighted,
        "optimizer": rng.choice([None, "sgd", "adam", "adagrad", "rowwise_adagrad", "lamb"]),
        "least_columns": rng.choice([None, None, 4, 16, 20, 32, 64, 200]),
        "allowed": allowed,
    }


def made_case(seed):
    rng = random.Random(seed)
    device = "cpu" if seed % 8 == 7 else "cuda"
    pooled = seed % 6 != 5
    ranks, per_host = SIZES[seed % len(SIZES)]
    count = rng.choice([1, 2, 3, 4, 5, 8] if ranks >= 32 else [1, 2, 3, 4, 5, 8, 12, 20])
    weighted = pooled and seed % 5 == 4
    tables = [made_table(i, rng, pooled, weighted, device) for i in range(count)]
    weights = sum(table["rows"] * table["dim"] * table["weight_bytes"] for table in tables)
    share = rng.choice(GPU_SHARE_USED)
    samples = rng.choice([128, 512, 1024, 3000, 8192])
    memory = int(weights / ranks / share) + (1 << 30)
    reservation = rng.choice([{"share": 0.0}, {"share": 0.15}, {"share": 0.15, "dense_parameter_bytes": 4 * 1000 * 501}])
    return {
        "name": f"case {seed}",
        "device": device,
        "ranks": ranks,
        "ranks_per_host": per_host,
        "memory_bytes": memory,
        "samples_per_rank": samples,
        "pipeline": "none" if device == "cpu" else rng.choice(list(PIPELINES)),
        "reservation": reservation,
        "partitioner": rng.choice(["greedy", "greedy", "memory_balanced"]),
        "tables": tables,
    }


def made_model(case):
    pooled = case["tables"][0]["is_pooled"]
    types = {4: DataType.FP32, 2: DataType.FP16}
    configs = [
        (EmbeddingBagConfig if pooled else EmbeddingConfig)(
            name=table["name"],
            num_embeddings=table["rows"],
            embedding_dim=table["dim"],
            feature_names=[f"{table['name']}_{i}" for i in range(len(table["ids_per_bag"]))],
            data_type=types[table["weight_bytes"]],
        )
        for table in case["tables"]
    ]
    model = torch.nn.Module()
    meta = torch.device("meta")
    if pooled:
        weighted = case["tables"][0]["is_weighted"]
        model.sparse = EmbeddingBagCollection(tables=configs, is_weighted=weighted, device=meta)
        parameters = dict(model.sparse.embedding_bags.named_parameters())
    else:
        # A collection has one dimension.
        model.sparse = EmbeddingCollection(tables=configs, device=meta)
        parameters = dict(model.sparse.embeddings.named_parameters())
    model.dense = torch.nn.Linear(500, 1000, device=meta)
    for table in case["tables"]:
        if table["optimizer"]:
            parameters[f"{table['name']}.weight"]._optimizer_classes = [OPTIMIZERS[table["optimizer"]]]
    return model


def run(case):
    if not case["tables"][0]["is_pooled"]:
        for table in case["tables"]:
            table["dim"] = case["tables"][0]["dim"]
    gpu = case["device"] == "cuda"
    topology = Topology(
        world_size=case["ranks"],
        local_world_size=case["ranks_per_host"],
        compute_device=case["device"],
        hbm_cap=case["memory_bytes"] if gpu else None,
        ddr_cap=None if gpu else case["memory_bytes"],
    )
    constraints = {
        table["name"]: ParameterConstraints(
            sharding_types=table["allowed"],
            compute_kernels=["dense", "fused"],
            min_partition=table["least_columns"],
            pooling_factors=table["ids_per_bag"],
        )
        for table in case["tables"]
    }
    pipeline, at_peak = PIPELINES[case["pipeline"]]
    enumerator = EmbeddingEnumerator(
        topology=topology,
        batch_size=case["samples_per_rank"],
        constraints=constraints,
        estimator=[
            EmbeddingPerfEstimatorFactory.create("default_estimator", topology=topology, constraints=constraints),
            EmbeddingStorageEstimator(
                topology=topology,
                constraints=constraints,
                pipeline_type=pipeline,
                run_embedding_at_peak_memory=at_peak,
            ),
        ],
    )
    share = case["reservation"]["share"]
    heuristic = "dense_parameter_bytes" in case["reservation"]
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=case["samples_per_rank"],
        enumerator=enumerator,
        storage_reservation=(HeuristicalStorageReservation if heuristic else FixedPercentageStorageReservation)(share),
        partitioner=GreedyPerfPartitioner() if case["partitioner"] == "greedy" else MemoryBalancedPartitioner(),
        stats=[],
        constraints=constraints,
        debug=False,
    )
    sharders = [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]
    try:
        plan = planner.plan(made_model(case), sharders)
        chosen = planner.get_selected_options()
        case["plan"] = plan._serialize()
        case["rating_ms"] = NoopPerfModel(topology).rate(chosen)
    except PlannerError as error:
        case["plan"] = None
        case["failure"] = str(error).split("\n")[0].strip()
    case["proposals"] = planner._num_proposals
    case["plans"] = planner._num_plans
    case["options"] = [option(entry) for entry in planner.get_search_space() or []]
    return case


def option(entry):
    """Table, type, kernel, and runs of equal shards."""
    runs = []
    for shard in entry.shards:
        perf, storage = shard.perf, shard.storage
        assert perf.prefetch_compute == 0.0
        shard = [
            *shard.size,
            perf.fwd_compute,
            perf.fwd_comms,
            perf.bwd_compute,
            perf.bwd_comms,
            perf.input_dist_comms,
            storage.hbm + storage.ddr,
        ]
        if runs and runs[-1][1:] == shard:
            runs[-1][0] += 1
        else:
            runs.append([1, *shard])
    return [entry.name, entry.sharding_type, entry.compute_kernel, runs]


def main():
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    cases = [run(made_case(seed)) for seed in range(CASES)]
    with open(sys.argv[1], "w") as output:
        output.write('{"torchrec": "%s", "cases": [\n' % torchrec.__version__)
        output.write(",\n".join(json.dumps(case, separators=(",", ":")) for case in cases))
        output.write("\n]}\n")
    planned = sum(case["plan"] is not None for case in cases)
    print(json.dumps({"cases": len(cases), "planned": planned}))


if __name__ == "__main__":
    main()
