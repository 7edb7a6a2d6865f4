#!/usr/bin/env python3
"""Prints what a suite found: step times, the device's active and idle share, what the active part was, antipatterns.

    python bench/collect/report.py DIR             Markdown on stdout
    python bench/collect/report.py DIR --write     the same into DIR/README.md with where the suite comes from, and the
                                                   picture into DIR/steps.svg; both go into suite.json

The active time is the union of kernels, copies and sets in the Kineto trace, per step; its share is of the un-profiled step
time, because the profiler slows the host down but hardly a kernel (arXiv:2201.07821, figures 1 and 5). It is computed here
and not by `rowmill trace breakdown`, whose shares are of the profiled window, and so that the machine with the GPU needs
Python only; on the traces of a GPU both find the same busy time (selftest.py --rowmill). A suite of a CPU shows the share
of a traced step inside operators instead; the rest is Python and the framework.
"""
import argparse
import collections
import csv
import io
import json
import pathlib
import sys

import environment  # noqa: F401  (before torch)
import activity
import suite

COLORS = {
    "embedding forward": "#1b7837", "embedding backward": "#7fbf7b", "products": "#2166ac", "products backward": "#92c5de",
    "conv": "#b2182b", "conv backward": "#f4a582", "norm": "#762a83", "softmax": "#c2a5cf", "index": "#8c510a",
    "index backward": "#d8b365", "concat": "#e08214", "copy to the device": "#35978f", "optimizer": "#4d4d4d",
    "pool": "#c51b7d", "element-wise and other": "#a6a6a6", "outside of operators": "#737373",
    "launched before the trace": "#252525",
}
IDLE_COLOR = "#f0f0f0"
PARTS_SHOWN = 4


class Row:
    """One model at one batch size; the shares are None where it was not traced."""

    def __init__(self, kept, entry):
        self.times = json.loads(kept.read(entry["path"]))
        same = [one for one in kept.files("kineto") if run_key(one) == run_key(entry)]
        self.found = activity.share(kept.read(same[0]["path"])) if same else None
        self.name = " ".join(str(part) for part in (
            entry["model"], entry["pooling"] and f"L={entry['pooling']}", entry["form"]) if part)
        self.batch, self.step_us = entry["batch"], self.times["step_us"]

    def active(self):
        """(share of the step, µs); at most all of it."""
        if not self.found:
            return None
        whole = self.step_us["median"] if self.found["device"] else self.found["traced_step_us"]
        return min(1.0, self.found["busy_us"] / whole), self.found["busy_us"]

    def parts(self):
        """(kind, share of the active time), largest first."""
        total = sum(self.found["parts"].values()) or 1.0
        return sorted(((kind, time / total) for kind, time in self.found["parts"].items()), key=lambda one: -one[1])


def run_key(entry):
    return entry["model"], entry["form"], entry["pooling"], entry["batch"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, metavar="DIR", help="a suite that collect.py began")
    parser.add_argument("--write", action="store_true", help="into the suite's README.md and steps.svg")
    arguments = parser.parse_args()
    with suite.outcome():
        path = arguments.folder / suite.LIST
        if not path.is_file():
            raise suite.Refused(f"{path}: expected the list of a suite, found none; hint: collect.py makes one")
        identity = {key: json.loads(path.read_text()).get(key) for key in ("device", "quick", "seed")}
        with suite.Suite(arguments.folder, identity) as kept:
            order = [one["id"] for one in kept.content["runs"]]
            rows = [Row(kept, one) for one in sorted(kept.files("step_times"), key=lambda one: order.index(one["run"]))]
            text = tables(kept, rows)
            if not arguments.write:
                print(text)
                return
            kept.add(None, "steps.svg", picture(rows).encode(), "report")
            kept.add(None, "README.md", (provenance(kept) + text).encode(), "report")
            kept.save()
            suite.say(f"{arguments.folder / 'README.md'}: {len(rows)} models and batch sizes, {kept.bytes() / 1e6:.1f} MB in all")
            if kept.bytes() > suite.SIZE_MOST:
                raise suite.Refused(f"{arguments.folder}: {kept.bytes()} bytes, expected at most {suite.SIZE_MOST}")


# ---- tables ----


def tables(kept, rows):
    return "\n".join([*step_table(kept, rows), *part_table(rows), *pair_table(kept), *kernel_table(kept), *losses(kept)])


def step_table(kept, rows):
    gpu = kept.content["device"] == "cuda"
    active = "GPU active ms | active % | idle %" if gpu else "in operators ms | in operators % | between them %"
    lines = ["## Step times", "", f"| model | batch | step ms, median (p5–p95) | samples/s | {active} | steps |",
             "|---|--:|--:|--:|--:|--:|--:|--:|"]
    for row in rows:
        spread = {key: value / 1e3 for key, value in row.step_us.items()}
        share = row.active()
        shares = f"{share[1] / 1e3:.2f} | {100 * share[0]:.0f} | {100 - 100 * share[0]:.0f}" if share else "– | – | –"
        lines.append(f"| {row.name} | {row.batch} | {spread['median']:.2f} ({spread['p5']:.2f}–{spread['p95']:.2f}) | "
                     f"{row.batch / spread['median'] * 1e3:,.0f} | {shares} | {row.times['steps']} |")
    return lines + [""]


def part_table(rows):
    lines = ["## What the active part was", "", "| model | batch | largest parts, % of the active time |", "|---|--:|---|"]
    for row in rows:
        if row.found:
            parts = ", ".join(f"{kind} {100 * share:.0f}" for kind, share in row.parts()[:PARTS_SHOWN])
            lines.append(f"| {row.name} | {row.batch} | {parts} |")
    return lines + [""]


# Gains that "Datacenter-Scale Analysis and Optimization of GPU Machine Learning Workloads" tells of, of workloads at Facebook.
PUBLISHED_GAINS = {
    "fine-grained-copies": "3.5, of the copies alone 200",
    "one-feeder": "1.4, from 8 threads to 64",
}


def pair_table(kept):
    if not kept.files("antipatterns"):
        return []
    rows = list(csv.DictReader(io.StringIO(kept.read(kept.files("antipatterns")[0]["path"]).decode())))
    lines = ["## Antipatterns and cures", "", "| pair | before ms | after ms | times faster, by means | published |", "|---|--:|--:|--:|--:|"]
    both = collections.defaultdict(dict)
    for row in rows:
        both[row["pair"]][row["variant"]] = row
    for pair, variants in both.items():
        before, after = variants.get("before"), variants.get("after")
        times = [f"{float(one['median_us']) / 1e3:.2f}" if one and one["median_us"] else "–" for one in (before, after)]
        faster = after["times_faster"] if after else ""
        if faster and float(faster) <= 1.0:
            faster = f"{faster}, no gain"
        why = f" ({before['status']}: {before['reason']})" if before and before["status"] != "done" else ""
        lines.append(f"| {pair}{why} | {times[0]} | {times[1]} | {faster or '–'} | {PUBLISHED_GAINS.get(pair, '–')} |")
    return lines + [""]


def kernel_table(kept):
    files = kept.files("microbench")
    if not files:
        return []
    lines = ["## Kernels timed alone", "", "| kernel | shapes | median µs, least to most |", "|---|--:|--:|"]
    for entry in files:
        rows = list(csv.DictReader(io.StringIO(kept.read(entry["path"]).decode())))
        times = sorted(float(row["median_us"]) for row in rows if row["op"] == entry["op"])
        lines.append(f"| {entry['op']} | {len(times)} | {times[0]:,.1f}–{times[-1]:,.1f} |")
    return lines + [""]


def losses(kept):
    """What was not measured, and why."""
    lost = [one for one in kept.content["runs"] if one["status"] != "done"]
    if not lost:
        return []
    lines = ["## Not measured", ""]
    for (status, reason), count in collections.Counter((one["status"], one["reason"]) for one in lost).items():
        first = next(one["id"] for one in lost if (one["status"], one["reason"]) == (status, reason))
        lines.append(f"- {status}: {reason} ({first}{f' and {count - 1} more' if count > 1 else ''})")
    return lines + [""]


# ---- where it comes from ----


def provenance(kept):
    content = kept.content
    facts = next(iter(content["environments"].values()), {})
    quick = " --quick" if content["quick"] else ""
    gpu = facts.get("gpu", {})
    where = [f"{facts.get('cpu')}, {facts.get('cpus')} CPUs, {facts.get('memory_gb')} GB"]
    if gpu:
        where.append(f"{gpu.get('name')}, {gpu.get('sms')} multiprocessors, {gpu.get('memory_gb')} GB, "
                     f"driver {gpu.get('driver_version')}, CUDA {gpu.get('cuda')}")
    others = [one["cpu_share_of_others"] for one in content["runs"] if one.get("cpu_share_of_others") is not None]
    noise = f" Other processes had {100 * sum(others) / len(others):.0f} % of the CPUs on average while steps were timed." if others else ""
    cut = sorted({f"{one['model']} to {one['rows_cap']:,} rows ({100 * one['rows'] / one['rows_full']:.1f} % of all)"
                  for one in content["runs"] if one.get("rows_cap")})
    tables = f"Tables were cut: {'; '.join(cut)}." if cut else "No table was cut."
    seconds = sum(one["seconds"] for one in content["runs"])
    small = ["A quick suite is small models of few steps: it shows what a suite holds and is something to try programs on; "
             "times to judge a prediction by are those of a full one.", ""] if content["quick"] else []
    return "\n".join([
        "# Measured runs of PyTorch", "",
        "Step times, traces, execution traces, kernel times and antipatterns, measured by `bench/collect` and written by",
        "`bench/collect/report.py`. `suite.json` lists every file with its hash, and what each was measured on.", "",
        f"- machine: {'; '.join(where)}",
        f"- software: torch {facts.get('torch')}, numpy {facts.get('numpy')}, Python {facts.get('python')}, "
        f"{facts.get('system')} {facts.get('kernel')}, {facts.get('threads')} threads",
        f"- when: {facts.get('date')}, at commit {facts.get('commit') or 'unknown'} or a change of it; {seconds:.0f} s of runs",
        f"- again: `python bench/collect/record.py --device {content['device']}{quick} --seed {content['seed']} --out DIR`", "",
        *small,
        f"{tables} `step` is the un-profiled time from one step to the next ({timer_of(kept)}); batches come from host memory in"
        f" every step.{noise}", "",
        "![shares of a step](steps.svg)", "", "",
    ])


def timer_of(kept):
    return "CUDA events" if kept.content["device"] == "cuda" else "wall clock"


# ---- picture ----

BAR, GAP, LEFT, WIDE, HEAD = 16, 6, 250, 560, 46


def picture(rows):
    """A bar per traced row: its active part by kind, the rest idle; all of a step is the full width."""
    rows = [row for row in rows if row.found]
    kinds = [kind for kind in COLORS if any(kind in row.found["parts"] for row in rows)]
    legend = (len(kinds) + 3) // 4
    height = HEAD + len(rows) * (BAR + GAP) + 24 + 18 * (legend + 1)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDE + 110}" height="{height}" '
           'font-family="sans-serif" font-size="12">', '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="{LEFT}" y="20" font-size="14">{heading(rows)}</text>']
    for at, row in enumerate(rows):
        out += bar(row, HEAD + at * (BAR + GAP))
    base = HEAD + len(rows) * (BAR + GAP)
    for percent in range(0, 101, 25):
        x = LEFT + WIDE * percent / 100
        out.append(f'<text x="{x:.0f}" y="{base + 14}" text-anchor="middle" fill="#555">{percent} %</text>')
    for at, kind in enumerate(kinds):
        x, y = 20 + at % 4 * 225, base + 30 + at // 4 * 18
        out += [f'<rect x="{x}" y="{y}" width="12" height="12" fill="{COLORS[kind]}"/>',
                f'<text x="{x + 18}" y="{y + 10}">{kind}</text>']
    return "\n".join([*out, "</svg>", ""])


def heading(rows):
    gpu = any(row.found["device"] for row in rows)
    return ("What the GPU does in a step, % of the un-profiled step; grey: idle" if gpu else
            "What a step on the CPU does, % of the traced step; light grey: between operators")


def bar(row, y):
    share, busy = row.active()
    out = [f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{row.name}, B={row.batch}</text>',
           f'<rect x="{LEFT}" y="{y}" width="{WIDE}" height="{BAR}" fill="{IDLE_COLOR}"/>']
    x = float(LEFT)
    for kind, part in sorted(row.parts(), key=lambda one: list(COLORS).index(one[0])):
        width = WIDE * share * part
        out.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{COLORS[kind]}">'
                   f"<title>{kind}: {100 * share * part:.1f} %</title></rect>")
        x += width
    return out + [f'<text x="{LEFT + WIDE + 8}" y="{y + 12}">{100 * share:.0f} %, {row.step_us["median"] / 1e3:.1f} ms</text>']


if __name__ == "__main__":
    sys.exit(main())
