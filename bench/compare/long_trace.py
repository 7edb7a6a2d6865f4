"""How findings and report grow with the length of a recording.

    python bench/compare/long_trace.py [--source TRACE] [--bytes 1e9] [--output FILE] [--repeats 3]

Repeats a recording until the file has the size: the times, correlation ids, external ids, flow ids and step numbers of each copy
follow those of the copy before. Then times `rowmill trace breakdown`, `findings` and `report` on it, in turns, and prints the
medians of elapsed time and of CPU time, and their ratios to `breakdown`. The bars on elapsed time are 2 for `findings` and 2.7 for
`report`. Nothing else may run on the machine.
"""
import argparse
import gzip
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = "../shared/data/traces/modern/resnet50_2021_workers0.json.gz"
IDS = ("correlation", "External id", "external id", "Ev Idx", "Record function id")
STEP = re.compile(r"ProfilerStep#(\d+)")


def shifted(row, copy, span, ids, steps):
    """One row of a copy; rows without a time, such as names of processes, belong to the first copy."""
    row = dict(row)
    row["ts"] += copy * span
    if "id" in row and isinstance(row["id"], int):
        row["id"] += copy * ids
    args = row.get("args") or {}
    changed = {key: args[key] + copy * ids for key in IDS if isinstance(args.get(key), int) and args[key] > 0}
    row["args"] = args | changed
    row["name"] = STEP.sub(lambda number: f"ProfilerStep#{int(number[1]) + copy * steps}", row["name"])
    return row


def write(source, size, target):
    """Writes the file, and returns the number of copies in it."""
    with gzip.open(source, "rt") as file:
        document = json.load(file)
    rows = document.pop("traceEvents")
    timed = [row for row in rows if row.get("ph") in ("X", "s", "f", "i") and row.get("cat") != "Trace"]
    untimed = [row for row in rows if row.get("ph") == "M"]
    starts = [row["ts"] for row in timed]
    span = max(row["ts"] + row.get("dur", 0) for row in timed) - min(starts) + 1
    numbers = [int(found[1]) for row in timed if (found := STEP.match(row["name"]))]
    steps = max(numbers) - min(numbers) + 1
    known = [row.get("id") for row in timed] + [(row.get("args") or {}).get(key) for row in timed for key in IDS]
    ids = max(value for value in known if isinstance(value, int)) + 1
    copies = 0
    with open(target, "w") as out:
        head = json.dumps(document)[:-1]
        out.write(head + (", " if document else "") + '"traceEvents": [\n')
        out.write(",\n".join(map(json.dumps, untimed)))
        while out.tell() < size:
            for row in timed:
                out.write(",\n" + json.dumps(shifted(row, copies, span, ids, steps)))
            copies += 1
        out.write("\n]}\n")
    return copies


def seconds(rowmill, command, trace, folder):
    """Elapsed time of a command, and its CPU time on all threads."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    extra = ["--output", str(folder / "report.html")] if command == "report" else ["--format", "json"]
    subprocess.run([rowmill, "trace", command, str(trace), *extra], stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, check=True)
    elapsed = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return elapsed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rowmill", default="target/release/rowmill")
    parser.add_argument("--source", default=SOURCE)
    parser.add_argument("--bytes", type=float, default=1e9)
    parser.add_argument("--output", help="keep the file here, and use it again if it is there")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace = Path(args.output) if args.output else folder / "long.json"
        if not trace.exists():
            print(f"{write(args.source, args.bytes, trace)} copies", file=sys.stderr)
        commands = ["breakdown", "findings", "report"]
        times = {command: [] for command in commands}
        for _ in range(args.repeats):
            for command in commands:
                times[command].append(seconds(args.rowmill, command, trace, folder))
    medians = {command: [statistics.median(column) for column in zip(*times[command])] for command in commands}
    base = medians["breakdown"]
    ratios = {command: [value / of_base for value, of_base in zip(median, base)] for command, median in medians.items()}
    for command, (elapsed, cpu) in medians.items():
        print(f"{command:10} {elapsed:7.2f} s elapsed {ratios[command][0]:5.2f} x    {cpu:7.2f} s of CPU {ratios[command][1]:5.2f} x")
    return int(ratios["findings"][0] > 2 or ratios["report"][0] > 2.7)


if __name__ == "__main__":
    sys.exit(main())
