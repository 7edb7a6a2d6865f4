#!/usr/bin/env python3
"""Holds the memory estimate of training runs against what the process really took, over twelve runs.

    python3 bench/compare/memory_peaks.py [--rowmill target/release/rowmill] [--output bench/record/MACHINE]
    python3 bench/compare/memory_peaks.py --cases 0 3       only some

Each run is estimated (`rowmill train --estimate`), written down, and then trained; its peak is the kernel's `ru_maxrss` of the child process:
what it had resident, without page cache. How full loaders are at the peak is a matter of timing, so that each case runs REPEATS times, and the
largest peak counts: the estimate is of what a run may take. Bar: each estimate within 5 % of it.
"""
import argparse
import datetime
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import machine
import records

BAR_PCT = 5.0
REPEATS = 3
SHORT = "--synthetic 30000 --set steps=10"
CASES = [
    f"dlrm-ddp {SHORT}",
    f"dlrm-ddp {SHORT} --set batch_size=1024",
    "dlrm-ddp --synthetic 40000 --set steps=4 --set batch_size=16384",
    f"dlrm-ddp {SHORT} --ranks 4 --sharding row",
    f"dlrm-ddp {SHORT} --ranks 7 --sharding column",
    f"dlrm-ddp {SHORT} --set precision=bf16",
    f"dlrm-ddp {SHORT} --set optimizer.sparse.kind=rowwise_adagrad",
    f"dlrm-ddp {SHORT} --set optimizer.sparse.kind=adagrad --set optimizer.dense.kind=adam",
    "dlrm-default --synthetic 30000 --set steps=6",
    "dlrm-mlperf --synthetic 30000 --set steps=4",
    "dlrm-criteo-kaggle --synthetic 60000 --set steps=20",
    "dlrm-1000-tables --synthetic 9000 --set steps=3",
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rowmill", type=pathlib.Path, default="target/release/rowmill")
    parser.add_argument("--cases", type=int, nargs="+", choices=range(len(CASES)), help="only these")
    parser.add_argument("--output", type=pathlib.Path)
    arguments = parser.parse_args()
    rowmill = arguments.rowmill.resolve()
    rows = [case(rowmill, CASES[number]) for number in arguments.cases or range(len(CASES))]
    report = {
        "date": datetime.date.today().isoformat(),
        "machine": machine.describe(),
        "bar_pct": BAR_PCT,
        "repeats": REPEATS,
        "rows": rows,
        "passed": all(abs(row["error_pct"]) <= BAR_PCT for row in rows),
    }
    text = markdown(report)
    print(text)
    if arguments.output:
        records.write(arguments.output, f"memory-peaks-{report['date']}", report, text)
    return 0 if report["passed"] else 1


def case(rowmill, words):
    with tempfile.TemporaryDirectory(prefix="memory-peaks-") as folder:
        command = [str(rowmill), "train", *words.split(), "--run", f"{folder}/run"]
        done = subprocess.run([*command, "--estimate", "--format", "json"], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
        estimate = json.loads(done.stdout.strip().splitlines()[-1])["estimate"]
        moment = max(estimate["moments"], key=lambda moment: moment["total"])
        peaks = [peak(command, number) for number in range(REPEATS)]
    estimated, measured = moment["total"], max(peaks)
    return {
        "run": words,
        "moment": moment["when"],
        "estimated_bytes": estimated,
        "measured_bytes": measured,
        "peaks_bytes": peaks,
        "error_pct": 100.0 * (estimated / measured - 1.0),
    }


def peak(command, number):
    """Resident bytes of a run at most."""
    run = f"{command[-1]}-{number}"
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen([*command[:-1], run], stdout=subprocess.DEVNULL, stderr=said)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            said.seek(0)
            raise SystemExit(f"{' '.join(command)}: exit code {child.returncode}: {said.read().strip()[-500:]}")
    # Checkpoints of one run at a time: they have gigabytes.
    shutil.rmtree(run)
    return usage.ru_maxrss * 1024


def markdown(report):
    lines = [
        f"# Estimated and measured memory of runs, {report['date']}",
        "",
        f"{report['machine']['cpu']}, {report['machine']['cores']} cores; the largest of {report['repeats']} peaks.",
        "",
        "| run | peak while | estimated MiB | measured MiB | error % |",
        "|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        sizes = f"{row['estimated_bytes'] / 2**20:.0f} | {row['measured_bytes'] / 2**20:.0f}"
        lines.append(f"| `{row['run']}` | {row['moment']} | {sizes} | {row['error_pct']:+.1f} |")
    within = sum(abs(row["error_pct"]) <= report["bar_pct"] for row in report["rows"])
    lines += ["", f"Within {report['bar_pct']:.0f} %: {within} of {len(report['rows'])}."]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
