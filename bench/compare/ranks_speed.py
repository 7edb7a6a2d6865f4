#!/usr/bin/env python3
"""Times training on two ranks of one thread each beside one process of two threads, and beside TorchRec on gloo.

    target/venv-compare/bin/python bench/compare/ranks_speed.py [CONFIG...] [--rounds 5] [--output FOLDER]

Every round runs the four sides one after the other, so that all meet the same machine: `one` is rowmill without ranks,
`threads` two ranks of one process, `mpi` two processes under Open MPI, `torchrec` TorchRec's DistributedModelParallel with
tables sharded table-wise over two gloo processes, each pinned to a core and on one thread. rowmill trains made-up rows from
a prepared folder by `rowmill train` (start, input and all, without the last checkpoint); TorchRec trains batches that were
made before. A ratio is the median over the rounds of the ratios within a round; their smallest and largest are beside it.

Writes FOLDER/compare-ranks-DATE.json and .md (default: bench/record/MACHINE). The environment is that of setup.py; `mpi`
needs mpirun.openmpi (Debian: openmpi-bin), and `--sides` leaves sides out.
"""
import argparse
import datetime
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import doors
import machine
import records
import train_speed

RANKS = 2
BATCH_SIZE = 2048
WARM_UP = 3
SIDES = ("one", "threads", "mpi", "torchrec")
# Two ranks with all that one process with as many threads does, and what TorchRec takes for the same.
RATIOS = [("threads", "one", 0.93), ("mpi", "one", 0.93), ("mpi", "torchrec", None), ("threads", "torchrec", None)]
TARGETS = {("dlrm-default", "mpi", "torchrec"): 1.25, ("dlrm-ddp", "mpi", "torchrec"): 1.5}
MPIRUN = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", str(RANKS)]


def main():
    arguments = parsed()
    if arguments.torchrec_rank is not None:
        return torchrec_rank(json.loads(arguments.torchrec_rank))
    report = {
        "command": " ".join(["bench/compare/ranks_speed.py", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "commit": doors.commit(),
        "machine": machine.describe(),
        "batch_size": BATCH_SIZE,
        "configs": {},
    }
    with tempfile.TemporaryDirectory(prefix="ranks-speed-", dir=arguments.scratch) as folder:
        for config in arguments.configs:
            rounds = [measured(config, turn, arguments, folder) for turn in range(arguments.rounds)]
            report["configs"][config] = {"rounds": rounds, "ratios": ratios(config, rounds)}
    save(report, arguments)
    print(table(report))
    return 0


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("configs", nargs="*", metavar="CONFIG", default=["dlrm-default", "dlrm-ddp"])
    parser.add_argument("--rowmill", default=doors.BINARY, type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=80, help="of a sample of rowmill; TorchRec takes a quarter of them")
    parser.add_argument("--sides", default=",".join(SIDES), help="of %(default)s")
    parser.add_argument("--scratch", help="folder for runs, 4 GB (default: the system's)")
    parser.add_argument("--output", type=pathlib.Path, help="folder of the record (default: bench/record/MACHINE)")
    parser.add_argument("--torchrec-rank", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.sides = arguments.sides.split(",")
    for side in arguments.sides:
        if side not in SIDES:
            parser.error(f"expected --sides of {', '.join(SIDES)}, got {side!r}")
    for name in ("rounds", "steps"):
        if getattr(arguments, name) < 1:
            parser.error(f"expected --{name} of at least 1, got {getattr(arguments, name)}")
    return arguments


def measured(config, turn, arguments, folder):
    """Samples per second of every side; the order turns by one each round."""
    sides = {}
    shift = turn % len(arguments.sides)
    for side in arguments.sides[shift:] + arguments.sides[:shift]:
        foreign, before = machine.Foreign(os.getpid()), train_speed.children_seconds()
        if side == "torchrec":
            rate = torchrec(config, max(1, arguments.steps // 4))
        else:
            rate = rowmill(config, side, arguments, pathlib.Path(folder))
        share = foreign.share(train_speed.children_seconds() - before)
        sides[side] = {"samples_per_s": rate, "foreign_cpu": share}
        print(f"{config}, round {turn + 1}, {side}: {rate:,.0f}/s (foreign {share:.2f})", file=sys.stderr, flush=True)
    return sides


def rowmill(config, side, arguments, folder):
    """The rate of a whole training run."""
    words = ["--train", prepared(config, arguments, folder)]
    words += ["--threads", 1] if side == "mpi" else ["--threads", RANKS]
    words += ["--ranks", RANKS] if side == "threads" else []
    return trained(config, words, arguments, folder / "run", MPIRUN if side == "mpi" else [])


def prepared(config, arguments, folder):
    """The rows every run trains on; a run of its own makes them the first time."""
    rows = folder / f"{config}-{arguments.steps}"
    if not rows.exists():
        trained(config, ["--synthetic", BATCH_SIZE * arguments.steps], arguments, folder / "making", kept=rows)
    return rows


def trained(config, words, arguments, run, launcher=(), kept=None):
    """The rate of a run whose folder is removed; its rows are kept under the name `kept`."""
    words = ["train", config, "--set", f"batch_size={BATCH_SIZE}", "--set", "data.hold_out=0", *words]
    words += ["--set", "evaluate_every=1000000", "--run", run, "--format", "json"]
    command = [*launcher, str(arguments.rowmill.resolve()), *map(str, words)]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode != 0:
        raise SystemExit(f"ranks_speed.py: {' '.join(command)}\n{ended.stderr}")
    if kept:
        next((run / "data").iterdir()).rename(kept)
    shutil.rmtree(run)
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    return next(line["samples_per_second"] for line in lines if line.get("event") == "finished")


# ---- TorchRec on gloo ----


def torchrec(config, steps):
    """The rate of the median step of two processes."""
    case = {"shape": train_speed.shape_of(config), "steps": steps, "port": 29_600 + os.getpid() % 1000}
    ranks = []
    for rank in range(RANKS):
        words = [sys.executable, "-W", "ignore", __file__, "--torchrec-rank", json.dumps(case | {"rank": rank})]
        ranks.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    said = [rank.communicate() for rank in ranks]
    if any(rank.returncode != 0 for rank in ranks):
        raise SystemExit("ranks_speed.py: TorchRec: " + "\n".join(errors for _, errors in said))
    return BATCH_SIZE / json.loads(said[0][0].splitlines()[-1])["seconds_per_step"]


def torchrec_rank(case):
    import torch
    import torch.distributed as dist

    rank, steps = case["rank"], case["steps"]
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(case["port"])}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(RANKS)}
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    step, batches = distributed(case["shape"], rank)
    seconds = []
    for at in range(WARM_UP + steps):
        dist.barrier()
        began = time.perf_counter()
        step(batches[at % len(batches)])
        seconds.append(time.perf_counter() - began)
    dist.barrier()
    if rank == 0:
        print(json.dumps({"seconds_per_step": statistics.median(seconds[WARM_UP:])}), flush=True)
    dist.destroy_process_group()
    return 0


def distributed(shape, rank):
    """A step of a sharded DLRM with SGD, fused into the backward pass of the tables, and this rank's batches."""
    import torch
    import torch.distributed as dist
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.types import ShardingEnv, ShardingType
    from torchrec.models.dlrm import DLRM
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    import reference
    import torch_variants

    shape, cpu = reference.Shape(**shape), torch.device("cpu")
    keys = [f"f{i}" for i in range(len(shape.tables))]
    tables = EmbeddingBagCollection(
        device=torch.device("meta"),
        tables=[
            EmbeddingBagConfig(name=f"t{i}", embedding_dim=shape.dim, num_embeddings=rows, feature_names=[keys[i]])
            for i, rows in enumerate(shape.tables)
        ],
    )
    model = DLRM(
        tables,
        dense_in_features=shape.dense,
        dense_arch_layer_sizes=shape.bottom,
        over_arch_layer_sizes=shape.top,
        dense_device=cpu,
    )
    apply_optimizer_in_backward(torch.optim.SGD, tables.parameters(), {"lr": torch_variants.RATE})
    sharders = [EmbeddingBagCollectionSharder()]
    wise = ParameterConstraints(sharding_types=[ShardingType.TABLE_WISE.value])
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=RANKS, compute_device="cpu", local_world_size=RANKS, ddr_cap=64 << 30, hbm_cap=0),
        constraints={f"t{i}": wise for i in range(len(keys))},
    )
    plan = planner.collective_plan(model, sharders, dist.group.WORLD)
    environment = ShardingEnv.from_process_group(dist.group.WORLD)
    model = DistributedModelParallel(model, env=environment, device=cpu, plan=plan, sharders=sharders)
    rest = [weight for name, weight in model.named_parameters() if "embedding_bag" not in name]

    def loss_of(batch):
        sparse = KeyedJaggedTensor(keys=keys, values=batch["ids"], lengths=batch["lengths"])
        return torch_variants.bce(model(batch["dense"], sparse).squeeze(1), batch["labels"])

    step = torch_variants.trained(loss_of, [torch.optim.SGD(rest, lr=torch_variants.RATE)])
    count = max(torch_variants.BATCHES_LEAST, torch_variants.SAMPLES // BATCH_SIZE)
    batches = reference.made_batches(shape, BATCH_SIZE // RANKS, count, seed=1 + rank)
    return step, [torch_variants.joined(batch) for batch in batches]


# ---- what is written ----


def ratios(config, rounds):
    found = []
    for side, other, target in RATIOS:
        pairs = [turn for turn in rounds if side in turn and other in turn]
        if pairs:
            each = sorted(turn[side]["samples_per_s"] / turn[other]["samples_per_s"] for turn in pairs)
            target = TARGETS.get((config, side, other), target)
            found.append(
                {"side": side, "of": other, "ratio": statistics.median(each), "min": each[0], "max": each[-1], "target": target}
            )
    return found


def table(report):
    lines = ["| configuration | side | samples/s | of | ratio | smallest, largest | target |", "|---|---|---|---|---|---|---|"]
    for config, case in report["configs"].items():
        for row in case["ratios"]:
            rate = statistics.median(turn[row["side"]]["samples_per_s"] for turn in case["rounds"])
            target = "–" if row["target"] is None else f"{row['target']:.2f}"
            lines.append(
                f"| {config} | {row['side']} | {rate:,.0f} | {row['of']} | {row['ratio']:.3f} "
                f"| {row['min']:.3f}, {row['max']:.3f} | {target} |"
            )
    return "\n".join(lines)


def save(report, arguments):
    folder = arguments.output or doors.ROOT / "bench/record" / records.folder_name(report["machine"])
    heading = f"# Two ranks beside one process, {report['date']}\n\n`{report['command']}`, commit {report['commit']}\n\n"
    records.write(folder, f"compare-ranks-{report['date']}", report, heading + table(report))


if __name__ == "__main__":
    sys.exit(main())
