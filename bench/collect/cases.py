#!/usr/bin/env python3
"""Commits the antipatterns of GPU programs that fleets lose most to, and their cures: each pair with times and traces.

    python bench/collect/cases.py --device cuda --out DIR [--only 'launch*']
    python bench/collect/cases.py --device cpu --quick --out DIR
    python bench/collect/cases.py --list                              the pairs: what is wasted, and the cure

Of each pair, `before` and `after`: un-profiled step times, then a Kineto trace of 6 steps with shapes, gzip,
cases/PAIR/before.json.gz and after.json.gz. cases/antipatterns.csv has a row per variant: status, median, p5 and p95 of a
step in µs, and how many times faster the cure is. On a CPU the pairs that only a GPU can show are recorded as skipped, with
the reason. What was finished is not run again.
"""
import csv
import io
import json
import pathlib
import sys
import tempfile

import environment
import antipatterns
import collect
import device as devices
import measure
import profiles
import suite
import torch

TABLE = "cases/antipatterns.csv"
COLUMNS = ("pair", "variant", "status", "reason", "median_us", "p5_us", "p95_us", "steps", "times_faster")
VARIANTS = ("before", "after")
TRACED_STEPS = 6
QUICK_SCALE = 0.125


def main():
    arguments = parsed()
    chosen = [one for one in antipatterns.PAIRS if pathlib.PurePath(one.name).match(arguments.only)]
    if arguments.list:
        for pair in chosen:
            print(f"{pair.name:<22} before: {pair.wastes}\n{'':<22} after:  {pair.cure}"
                  + (f"\n{'':<22} needs a GPU: {pair.only_cuda}" if pair.only_cuda else ""))
        return
    with suite.outcome():
        device = devices.named(arguments.device)
        with collect.open_suite(arguments) as kept:
            if arguments.retry_failed:
                kept.forget_failed()
            run_all(chosen, kept, device, arguments)


def run_all(chosen, kept, device, arguments):
    """All times before the first profile; the table when they are there."""
    suite.say(f"cases: {len(chosen)} pairs on {device.kind}, none begun after {arguments.limit} s")
    kept.begin_stage("pairs", "cases", environment.describe(device), arguments.limit)
    scale = QUICK_SCALE if arguments.quick else 1.0
    for what, work in (("times", times), ("trace", trace)):
        for pair in chosen:
            for variant in VARIANTS:
                run, facts = f"case-{what}/{pair.name}-{variant}", {"pair": pair.name, "variant": variant}
                if pair.only_cuda and device.kind != "cuda":
                    if not kept.has(run):
                        kept.skip(run, f"needs --device cuda: {pair.only_cuda}", **facts)
                else:
                    kept.perform(run, device, lambda: work(pair, variant, run, kept, device, scale), **facts)
        write_table(kept)


class Step:
    """The step of a variant, made and closed, with a folder of its own."""

    def __init__(self, pair, variant, device, scale):
        torch.manual_seed(1)
        self.make = lambda folder: getattr(pair, variant)(device, scale, folder)

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="rowmill-")
        self.step = self.make(self.folder.name)
        return self.step

    def __exit__(self, *_):
        getattr(self.step, "close", lambda: None)()
        self.folder.cleanup()


def times(pair, variant, run, kept, device, scale):
    bounds = measure.FULL if scale == 1.0 else measure.QUICK
    others = environment.Others()
    with Step(pair, variant, device, scale) as step:
        measured = measure.step_times(step, device, bounds)
    content = {"schema": "rowmill-step-times", "version": 1, "pair": pair.name, "variant": variant,
               "cpu_share_of_others": others.share(), **measured}
    path = f"cases/{pair.name}/{variant}-times.json"
    kept.add(run, path, (json.dumps(content) + "\n").encode(), "case_times", pair=pair.name, variant=variant)


def trace(pair, variant, run, kept, device, scale):
    with Step(pair, variant, device, scale) as step:
        data = profiles.kineto(step, device, TRACED_STEPS, record_shapes=True)
    kept.add(run, f"cases/{pair.name}/{variant}.json.gz", data, "case_trace", pair=pair.name, variant=variant,
             steps=TRACED_STEPS)


def write_table(kept):
    rows = []
    for pair in antipatterns.PAIRS:
        found = {variant: measured_times(kept, pair, variant) for variant in VARIANTS}
        for variant in VARIANTS:
            run = next((one for one in kept.content["runs"] if one["id"] == f"case-times/{pair.name}-{variant}"), None)
            if run is None:
                continue
            row = [pair.name, variant, run["status"], run["reason"] or ""]
            if content := found[variant]:
                spread = content["step_us"]
                both = variant == "after" and found["before"]
                faster = round(found["before"]["step_us"]["mean"] / spread["mean"], 3) if both else ""
                row += [spread["median"], spread["p5"], spread["p95"], content["steps"], faster]
            rows.append(row + [""] * (len(COLUMNS) - len(row)))
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([COLUMNS, *rows])
    kept.add(None, TABLE, table.getvalue().encode(), "antipatterns")
    kept.save()


def measured_times(kept, pair, variant):
    path = f"cases/{pair.name}/{variant}-times.json"
    there = any(one["path"] == path for one in kept.files("case_times"))
    return json.loads(kept.read(path)) if there else None


def parsed():
    parser = collect.parser_of(__doc__)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="only pairs such as 'launch*' (default: all)")
    parser.add_argument("--list", action="store_true", help="print the pairs and stop")
    arguments = collect.completed(parser.parse_args())
    if not any(pathlib.PurePath(one.name).match(arguments.only) for one in antipatterns.PAIRS):
        parser.error(f"--only: expected a pattern that a pair of --list matches, got {arguments.only!r}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
