#!/usr/bin/env python3
"""Times training steps of rowmill and of PyTorch in turns, on the same shapes, and reports the ratios.

    target/venv-compare/bin/python bench/compare/train_speed.py [CASE...] [--pairs 7] [--output FOLDER]

Each pair is one `rowmill-bench train` and one sample of a PyTorch variant that was set up before (torch_variants.py), one
after the other, so that both meet the same machine. A sample counts if the clock it ran at was at least 3.3 GHz
(`--clock-least`) and other processes had at most a tenth of the cores; pairs go on until 7 of them count, or `--attempts` is
reached. A ratio is the median over the pairs of rowmill's samples/s over the variant's; a case is judged by the variant with
the lowest.

Variants: `ref` computes as facebookresearch/dlrm does, `lean` the same without detours, `tbe` has FBGEMM's tables, `torchrec`
is TorchRec's DLRM with its fused tables; `lean_bf16` and `tbe_bf16` are under CPU autocast. `--variants` chooses any of a
case's precision, also those that it does not have by itself.

PyTorch gets what helps it: OpenMP threads pinned to cores, batches made beforehand, warm-up, its default allocator.
`busy`: the same with a shell loop on core 1 and nothing pinned; each turn begins with a quiet sample of rowmill.
`busy-session`: the loop has a session of its own, as programs of others do. Where Linux schedules sessions as groups, as
most distributions do, it gets two thirds of the core instead of half.
On a machine that others use too, `--raise-priority` puts both sides before them.

Writes FOLDER/compare-train-DATE.json (every sample) and .md (the table); default: bench/record/MACHINE. `--list` names the
cases. Set up the environment with bench/compare/setup.py, and build rowmill with `cargo build --release -p bench`.
"""
import argparse
import contextlib
import datetime
import functools
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tomllib

import doors
import machine
import records

HERE = pathlib.Path(__file__).resolve().parent
CLOCK_LEAST_GHZ = 3.3
CLOCK_HELP = "of a sample that counts (default: %(default)s, of the EPYC of the first record; a Xeon may never run at it)"
FOREIGN_MOST = 0.1
BUSY_CORE = 1
BUSY_LOOP = "while :; do :; done"
F32 = ("ref", "lean", "tbe", "torchrec")
BF16 = ("lean_bf16", "tbe_bf16")

# name: configuration, batch size, ids per bag, optimizer of the tables, PyTorch variants, what the ratio should be.
CASES = {
    "default": ("dlrm-default", 2048, 1, "sgd", F32, 1.25),
    "ddp": ("dlrm-ddp", 2048, 1, "sgd", F32, 1.25),
    "mlperf": ("dlrm-mlperf", 2048, 1, "sgd", F32, 1.2),
    "default-l32": ("dlrm-default", 2048, 32, "sgd", ("lean", "tbe", "torchrec"), 1.4),
    "default-l32-rowwise": ("dlrm-default", 2048, 32, "rowwise_adagrad", ("lean", "tbe", "torchrec"), 3.0),
    "default-bf16": ("dlrm-default", 2048, 1, "sgd", BF16, 1.15),
    "ddp-bf16": ("dlrm-ddp", 2048, 1, "sgd", BF16, 1.25),
    "busy": ("dlrm-ddp", 512, 1, "sgd", ("lean", "tbe"), 5.0),
    "busy-session": ("dlrm-ddp", 512, 1, "sgd", ("lean", "tbe"), 5.0),
}
BUSY = ("busy", "busy-session")
QUIET_SHARE = 0.6
AUTOGROUP_NICE = -15


def main():
    arguments = parsed()
    if arguments.list:
        print("\n".join(CASES))
        return 0
    if arguments.raise_priority:
        raise_priority()
    rowmill = doors.Rowmill(arguments.bench, doors.ROOT, arguments.threads)
    report = {
        "command": " ".join(["bench/compare/train_speed.py", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "commit": doors.commit(),
        "machine": machine.describe(),
        "rowmill": rowmill.version(),
        "threads": arguments.threads,
        "rules": {"clock_ghz_least": arguments.clock_least, "foreign_cpu_most": FOREIGN_MOST, "pairs": arguments.pairs},
        "cases": {},
    }
    for name in arguments.cases:
        measured = measure_busy if name in BUSY else measure
        report["cases"][name] = measured(rowmill, name, arguments, report)
        case = report["cases"][name]
        print("\n".join([*lines_of(name, case), *note_of(name, case)]), flush=True)
        save(report, arguments)
    return 0


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--bench", default=doors.BENCH)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--pairs", type=int, default=7, help="pairs that must count, per variant")
    parser.add_argument("--attempts", type=int, default=21, help="pairs at most, per variant")
    parser.add_argument("--clock-least", type=float, default=CLOCK_LEAST_GHZ, metavar="GHZ", help=CLOCK_HELP)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each PyTorch sample, at least")
    parser.add_argument("--steps", type=int, default=10, help="of each rowmill sample")
    parser.add_argument("--variants", help=f"these PyTorch variants, of {', '.join(F32 + BF16)} (default: the case's)")
    parser.add_argument("--raise-priority", action="store_true", help="over other sessions; needs root; not for busy")
    parser.add_argument("--output", type=pathlib.Path, help="folder (default: bench/record/MACHINE)")
    arguments = parser.parse_args()
    for name in ("threads", "pairs", "attempts", "steps"):
        if getattr(arguments, name) < 1:
            parser.error(f"expected --{name} of at least 1, got {getattr(arguments, name)}")
    for name in arguments.cases:
        if name not in CASES:
            parser.error(f"expected cases of {', '.join(CASES)}, got {name!r}")
    for name in arguments.variants.split(",") if arguments.variants else []:
        if name not in F32 + BF16:
            parser.error(f"expected variants of {', '.join(F32 + BF16)}, got {name!r}")
    arguments.cases = arguments.cases or [name for name in CASES if name not in BUSY or not arguments.raise_priority]
    if arguments.raise_priority and any(name in BUSY for name in arguments.cases):
        parser.error(f"{' and '.join(BUSY)} are measured without any change of priorities")
    return arguments


def raise_priority():
    """Gives this command a session of its own, before others: where sessions are scheduled as groups, `nice` does not."""
    if os.getpid() != os.getpgrp():
        os.setsid()
    pathlib.Path("/proc/self/autogroup").write_text(str(AUTOGROUP_NICE))


# ---- one case ----


def measure(rowmill, name, arguments, report):
    config, batch_size, pooling, optimizer, variants, target = CASES[name]
    case = {"config": config, "batch_size": batch_size, "pooling": pooling, "optimizer": optimizer, "target": target}
    case["precision"] = "bf16" if name.endswith("bf16") else "f32"
    case["variants"] = {}
    counted = functools.partial(counts, arguments.clock_least)
    for variant in chosen(name, variants, arguments):
        with Torch(case, variant, arguments.threads, pinned=True) as torch:
            report.setdefault("versions", torch.versions)
            pairs = []
            while len(pairs) < arguments.attempts and sum(map(counted, pairs)) < arguments.pairs:
                pair = {"rowmill": sample_rowmill(rowmill, case, arguments), "torch": torch.sample(arguments.seconds)}
                pairs.append(pair)
                show(name, variant, pair)
        case["variants"][variant] = summary(pairs, counted)
    best = min(case["variants"].items(), key=lambda item: item[1]["ratio"])
    case["best"], case["ratio"] = best[0], best[1]["ratio"]
    return case


def chosen(name, variants, arguments):
    """Of a case: its own, or those asked for that are of its precision."""
    if not arguments.variants:
        return variants
    possible = BF16 if name.endswith("bf16") else F32
    asked = [variant for variant in arguments.variants.split(",") if variant in possible]
    if not asked:
        raise SystemExit(f"train_speed.py: {name}: expected variants of {', '.join(possible)}, got {arguments.variants}")
    return asked


def measure_busy(rowmill, name, arguments, report):
    """Quiet rowmill, then with a busy neighbour rowmill and PyTorch in turns, within the same minute."""
    config, batch_size, pooling, optimizer, variants, target = CASES[name]
    case = {"config": config, "batch_size": batch_size, "pooling": pooling, "optimizer": optimizer, "target": target}
    case.update(precision="f32", quiet_share_target=QUIET_SHARE, variants={})
    counted = functools.partial(quiet, arguments.clock_least)
    for variant in chosen(name, variants, arguments):
        with Torch(case, variant, arguments.threads, pinned=False) as torch:
            report.setdefault("versions", torch.versions)
            turns = []
            while len(turns) < arguments.attempts and sum(map(counted, turns)) < arguments.pairs:
                turn = {"quiet": sample_rowmill(rowmill, case, arguments)}
                with busy_neighbour(own_session=name == "busy-session"):
                    turn["rowmill"] = sample_rowmill(rowmill, case, arguments)
                    turn["torch"] = torch.sample(arguments.seconds)
                turns.append(turn)
                show(name, variant, turn)
        kept = [turn for turn in turns if counted(turn)] or turns
        shares = [turn["rowmill"]["samples_per_s"] / turn["quiet"]["samples_per_s"] for turn in kept]
        case["variants"][variant] = summary(turns, counted) | {"quiet_share": statistics.median(shares)}
    best = min(case["variants"].items(), key=lambda item: item[1]["ratio"])
    case["best"], case["ratio"] = best[0], best[1]["ratio"]
    case["quiet_share"] = best[1]["quiet_share"]
    return case


@contextlib.contextmanager
def busy_neighbour(own_session):
    command = ["taskset", "-c", str(BUSY_CORE), "sh", "-c", BUSY_LOOP]
    loop = subprocess.Popen(command, start_new_session=own_session)
    try:
        yield
    finally:
        loop.kill()
        loop.wait()


def counts(clock_least, pair):
    return all(fine(clock_least, pair[side]) for side in ("rowmill", "torch"))


def quiet(clock_least, turn):
    """With a neighbour on purpose only the quiet sample tells whether there were others."""
    return fine(clock_least, turn["quiet"]) and turn["torch"]["clock_ghz"] >= clock_least


def fine(clock_least, sample):
    return sample["clock_ghz"] >= clock_least and sample["foreign_cpu"] <= FOREIGN_MOST


def summary(pairs, counted):
    """Medians over the pairs that count; over all of them where none does, which `counted` then says."""
    kept = [pair for pair in pairs if counted(pair)]
    used = kept or pairs
    ratios = sorted(pair["rowmill"]["samples_per_s"] / pair["torch"]["samples_per_s"] for pair in used)
    median = lambda side, key: statistics.median(pair[side][key] for pair in used)
    return {
        "ratio": statistics.median(ratios),
        "ratio_min": ratios[0],
        "ratio_max": ratios[-1],
        "rowmill_samples_per_s": median("rowmill", "samples_per_s"),
        "torch_samples_per_s": median("torch", "samples_per_s"),
        "counted": len(kept),
        "rejected": len(pairs) - len(kept),
        "foreign_cpu_max": max(pair[side]["foreign_cpu"] for pair in used for side in ("rowmill", "torch")),
        "clock_ghz_min": min(pair[side]["clock_ghz"] for pair in used for side in ("rowmill", "torch")),
        "pairs": pairs,
    }


# ---- one sample ----


def sample_rowmill(rowmill, case, arguments):
    words = ["train", "--config", case["config"], "--batch-size", case["batch_size"]]
    words += ["--pooling", case["pooling"], "--optimizer", case["optimizer"], "--steps", arguments.steps]
    words += ["--repeats", 1]
    if case["precision"] == "bf16":
        words += ["--set", "training.precision=bf16"]
    foreign, children, clock = machine.Foreign(os.getpid()), children_seconds(), machine.Clock()
    before = clock.ghz()
    said = rowmill.run(*words)[-1]
    whole = foreign.share(children_seconds() - children)
    return {
        "samples_per_s": said["samples_per_s"],
        "clock_ghz": said.get("apparent_clock_ghz") or max(before, clock.ghz()),
        "foreign_cpu": said["foreign_cpu"] if "foreign_cpu" in said else whole,
        "command": "rowmill-bench " + " ".join(map(str, words)),
    }


def children_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Torch:
    """A variant, set up in a process of its own, that waits between its samples."""

    def __init__(self, case, variant, threads, pinned):
        self.batch_size = case["batch_size"]
        keys = {key: case[key] for key in ("batch_size", "pooling", "optimizer")}
        words = json.dumps(keys | {"shape": shape_of(case["config"]), "variant": variant, "threads": threads})
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        if pinned:
            environment["GOMP_CPU_AFFINITY"] = " ".join(map(str, range(threads)))
        command = [sys.executable, "-W", "ignore", str(HERE / "torch_variants.py"), words]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        self.process = subprocess.Popen(command, env=environment, **pipes)
        self.versions = self.answer()["versions"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"train_speed.py: torch_variants.py ended with {self.process.wait()}")
        return json.loads(line)

    def sample(self, seconds):
        foreign = machine.Foreign(self.process.pid, os.getpid())
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        said = self.answer()
        rate = self.batch_size / said["seconds_per_step"]
        clock = {"clock_ghz": said["clock_ghz"], "foreign_cpu": foreign.share()}
        return {"samples_per_s": rate, "steps": said["steps"], **clock}


def shape_of(config):
    """A configuration's model, as torch_variants.py wants it."""
    with open(doors.ROOT / "configs" / f"{config}.toml", "rb") as file:
        model = tomllib.load(file)["model"]
    tables = []
    for table in model["tables"]:
        name, _, last = table["name"].partition("..")
        # `t{0..7}` stands for eight tables.
        tables += [table["rows"]] * (int(last.rstrip("}")) - int(name.split("{")[1]) + 1 if last else 1)
    dims = {table["dim"] for table in model["tables"]}
    return {
        "dense": model["dense_features"],
        "bottom": model["bottom"],
        "tables": tables,
        "dim": dims.pop(),
        "top": model["top"],
    }


# ---- what is written ----


def show(name, variant, pair):
    rates = ", ".join(
        f"{side} {sample['samples_per_s']:,.0f}/s ({sample['clock_ghz']:.2f} GHz, foreign {sample['foreign_cpu']:.2f})"
        for side, sample in pair.items()
    )
    print(f"{name}, {variant}: {rates}", file=sys.stderr, flush=True)


HEADER = [
    "| case | B | L | optimizer | PyTorch variant | rowmill, k samples/s | PyTorch, k samples/s | ratio (min–max) | target | pairs |",
    "|---|---|---|---|---|---|---|---|---|---|",
]


def lines_of(name, case):
    lines = []
    for variant, figures in case["variants"].items():
        best = " **best**" if variant == case["best"] else ""
        pairs = f"{figures['counted']} of {figures['counted'] + figures['rejected']}"
        ratio = f"{figures['ratio']:.2f} ({figures['ratio_min']:.2f}–{figures['ratio_max']:.2f})"
        cells = [name, case["batch_size"], case["pooling"], case["optimizer"], variant + best]
        cells += [f"{figures[side] / 1000:.2f}" for side in ("rowmill_samples_per_s", "torch_samples_per_s")]
        lines.append("| " + " | ".join(map(str, [*cells, ratio, case["target"], pairs])) + " |")
    return lines


def note_of(name, case):
    if "quiet_share" not in case:
        return []
    share, target = 100 * case["quiet_share"], 100 * QUIET_SHARE
    return ["", f"`{name}`: rowmill keeps {share:.0f} % of its quiet rate beside the loop on core {BUSY_CORE} (target {target:.0f} %)."]


def save(report, arguments):
    where = arguments.output or doors.ROOT / "bench/record" / records.folder_name(report["machine"])
    about, rules = report["machine"], report["rules"]
    versions = ", ".join(f"{name} {version}" for name, version in report.get("versions", {}).items())
    text = [
        f"# Training, rowmill against PyTorch, {report['date']}",
        "",
        f"`{report['command']}` at commit {report['commit']}; {report['rowmill']}; {versions}; Python {about['python']}. ",
        f"{about['cpu']} (family/model {about['family_model']}), {about['cores']} cores, Linux {about['kernel']}; "
        f"{report['threads']} threads.",
        f"A pair counts at a clock of at least {rules['clock_ghz_least']} GHz and at most {rules['foreign_cpu_most']} of the "
        "cores with others; where no pair counts, the medians are over all and prove nothing.",
        "",
        *HEADER,
    ]
    cases = report["cases"].items()
    text += [line for name, case in cases for line in lines_of(name, case)]
    text += [line for name, case in cases for line in note_of(name, case)]
    records.write(where, f"compare-train-{report['date']}", report, "\n".join(text))


if __name__ == "__main__":
    sys.exit(main())
