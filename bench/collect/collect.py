#!/usr/bin/env python3
"""Measures training steps of real PyTorch models: un-profiled times, traces, execution traces.

    python bench/collect/collect.py --device cuda --out DIR [--stage STAGE]...     all of it, or some stages
    python bench/collect/collect.py --device cpu --quick --out DIR                 two minutes on two cores
    python bench/collect/collect.py --list                                         what is run, in which stage

Stages (each within --limit seconds; `times` must be first in a process, so that no profiler was loaded before it):
    times          un-profiled step times of every model: 100 steps or more, wall clock and CUDA events
    traces         of every model at one batch size: a Kineto trace of 10 steps with shapes; a PyTorch execution trace of
                   one step with the Kineto trace of that step, joined by record-function id; a trace with Python stacks
    traces-other   at the other batch sizes: 3 steps, of DLRMs with the execution trace; left out where the suite would
                   grow over 22.5 MB

Models: DLRM `default` (1 and 100 ids per bag), `ddp`, `mlperf` at batch sizes 512 to 4096, each with one nn.EmbeddingBag
per table (`bags`) and with one lookup for all tables (`batched`); ResNet-50, Inception-v3 and a transformer of 4 layers at
16 to 64. A run that was finished is not run again, so the same command goes on after an interruption; `--retry-failed`
tries those again that failed. Exit status: 0 all done, 2 wrong call, 3 time is over (call again), 130 interrupted.
"""
import argparse
import json
import pathlib
import sys

import environment
import device as devices
import measure
import models
import profiles
import suite
from models import Workload

STAGES = ("times", "traces", "traces-other")
LIMIT_SECONDS = 450
TRACED_STEPS = 10
TRACED_STEPS_OTHER = 3
# What a suite's traces may take, so that antipatterns and kernel times still fit into suite.SIZE_MOST.
TRACES_BYTES_MOST = 22_500_000
QUICK_ROWS = 100_000
VARIANTS = (("dlrm-default", 1), ("dlrm-default", 100), ("dlrm-ddp", 1), ("dlrm-mlperf", 1))
FORMS = ("bags", "batched")
DENSE = (("resnet50", 224, 64), ("inception", 299, 96), ("transformer", 128, 32))


def main():
    arguments = parsed()
    workloads = [one for one in chosen(arguments.quick) if pathlib.PurePath(one.name()).match(arguments.only)]
    if arguments.list:
        for stage in STAGES:
            names = [one.name() for one in workloads if belongs(one, stage, arguments.quick)]
            print(f"{stage}: {len(names)} runs\n  " + "\n  ".join(names))
        return
    with suite.outcome():
        device = devices.named(arguments.device)
        with open_suite(arguments) as kept:
            if arguments.retry_failed:
                kept.forget_failed()
            for stage in arguments.stage or STAGES:
                run_stage(stage, workloads, kept, device, arguments)


def chosen(quick):
    """Every workload; in a quick suite each model at one or two small sizes."""
    found = []
    for model, pooling in VARIANTS:
        batches = ((128,) if pooling > 1 else (256, 1024)) if quick else (512, 1024, 2048, 4096)
        found += [Workload(model, batch, form, pooling) for form in FORMS for batch in batches]
    for model, size, small in DENSE:
        found += [Workload(model, batch, size=small if quick else size) for batch in ((4,) if quick else (16, 32, 64))]
    return found


def belongs(workload, stage, quick):
    """Traces of the reference batch size come first: where room is short, the others are left out."""
    if stage == "times":
        return True
    return is_reference(workload, quick) == (stage == "traces") and not (quick and stage == "traces-other")


def is_reference(workload, quick):
    same = [one.batch for one in chosen(quick)
            if (one.model, one.form, one.pooling) == (workload.model, workload.form, workload.pooling)]
    return workload.batch == same[len(same) // 2 if len(same) > 2 else 0]


def run_stage(stage, workloads, kept, device, arguments):
    workloads = [one for one in workloads if belongs(one, stage, arguments.quick)]
    suite.say(f"{stage}: {len(workloads)} runs on {device.kind}, none begun after {arguments.limit} s")
    kept.begin_stage(stage, "collect", environment.describe(device), arguments.limit)
    for workload in workloads:
        run, facts = f"{'times' if stage == 'times' else 'traces'}/{workload.name()}", workload.facts()
        if stage == "traces-other" and kept.bytes() > TRACES_BYTES_MOST and not kept.has(run):
            kept.skip(run, f"the suite has {kept.bytes()} bytes, traces get {TRACES_BYTES_MOST}", stage=stage, **facts)
            continue
        work = {"times": times, "traces": traces, "traces-other": traces_other}[stage]
        make = lambda: work(workload, run, kept, device, arguments)  # noqa: B023, E731
        kept.perform(run, device, make, stage=stage, **facts)


def times(workload, run, kept, device, arguments):
    job = build(workload, device, arguments)
    device.peak_bytes()
    others = environment.Others()
    measured = measure.step_times(job.step, device, measure.QUICK if arguments.quick else measure.FULL)
    facts = {**job.facts, "peak_bytes": device.peak_bytes(), "cpu_share_of_others": others.share()}
    if device.kind == "cuda":
        facts["clocks"] = environment.clocks(device)
    content = {"schema": "rowmill-step-times", "version": 1, **workload.facts(), **facts, **measured}
    data = (json.dumps(content) + "\n").encode()
    kept.add(run, f"collect/{workload.name()}/times.json", data, "step_times", **workload.facts())
    return facts


def traces(workload, run, kept, device, arguments):
    job = build(workload, device, arguments)
    keep_timeline(TRACED_STEPS_OTHER if arguments.quick else TRACED_STEPS, job, workload, run, kept, device)
    facts = keep_pair(job, workload, run, kept, device)
    # The stacks of a deep classifier are half a megabyte, more than a quick suite is worth.
    if not (arguments.quick and workload.model in ("resnet50", "inception")):
        stacks = profiles.kineto(job.step, device, 1, with_stack=True)
        path = f"collect/{workload.name()}/stacks.json.gz"
        kept.add(run, path, stacks, "kineto_with_stacks", steps=1, **workload.facts())
    return facts


def traces_other(workload, run, kept, device, arguments):
    job = build(workload, device, arguments)
    keep_timeline(TRACED_STEPS_OTHER, job, workload, run, kept, device)
    return keep_pair(job, workload, run, kept, device) if workload.form else {}


def keep_timeline(steps, job, workload, run, kept, device):
    timeline = profiles.kineto(job.step, device, steps, record_shapes=True)
    kept.add(run, f"collect/{workload.name()}/kineto.json.gz", timeline, "kineto", steps=steps, **workload.facts())


def keep_pair(job, workload, run, kept, device):
    execution, twin = profiles.linked_pair(job.step, device)
    linked = profiles.linked_share(execution, twin)
    if linked < 1.0:
        suite.say(f"{run}: {linked:.1%} of the execution trace's operators are in the Kineto trace of the step, expected all")
    folder, facts = f"collect/{workload.name()}", workload.facts()
    kept.add(run, f"{folder}/execution.json.gz", execution, "execution_trace", steps=1, **facts)
    kept.add(run, f"{folder}/execution-kineto.json.gz", twin, "kineto_of_execution_trace", steps=1, **facts)
    return {"linked_share": round(linked, 6)}


def build(workload, device, arguments):
    return models.build(workload, device, arguments.seed, QUICK_ROWS if arguments.quick else None)


# ---- arguments, for microbench.py and cases.py too ----


def open_suite(arguments):
    identity = {"device": arguments.device, "quick": arguments.quick, "seed": arguments.seed}
    return suite.Suite(arguments.out, identity)


def parser_of(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what runs the models (default: cpu)")
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR", help="the suite (default: target/suite-DEVICE)")
    parser.add_argument("--quick", action="store_true", help="small sizes and few of them: minutes on two cores")
    parser.add_argument("--seed", type=natural, default=1, help="of weights and batches (default: 1)")
    parser.add_argument("--limit", type=natural, default=LIMIT_SECONDS, metavar="SECONDS",
                        help=f"no run is begun after this long, per stage (default: {LIMIT_SECONDS})")
    parser.add_argument("--retry-failed", action="store_true", help="run again what failed or found no memory")
    return parser


def natural(text):
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {text!r}")
    return value


def completed(arguments):
    arguments.out = arguments.out or environment.ROOT / f"target/suite-{arguments.device}"
    return arguments


def parsed():
    parser = parser_of(__doc__)
    parser.add_argument("--stage", action="append", choices=STAGES, help="only this one; may be repeated (default: all)")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="only models such as 'dlrm-ddp-*' (default: all)")
    parser.add_argument("--list", action="store_true", help="print the runs of each stage and stop")
    arguments = completed(parser.parse_args())
    if not any(pathlib.PurePath(one.name()).match(arguments.only) for one in chosen(arguments.quick)):
        parser.error(f"--only: expected a pattern that a run of --list matches, got {arguments.only!r}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
