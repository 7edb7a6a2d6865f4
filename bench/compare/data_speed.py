#!/usr/bin/env python3
"""Times how fast rowmill, Polars, PyArrow and DuckDB turn Criteo text into columns of integers, in turns, on one file.

    python3 -m venv FOLDER && FOLDER/bin/pip install -r bench/compare/data_requirements.txt
    FOLDER/bin/python bench/compare/data_speed.py [--megabytes 250] [--repeats 5] [--threads 2] [--output FOLDER]

Every measurement is a process of its own that has imported its library before the clock starts, and ends with the label,
13 integers and 26 hexadecimal ids a row as columns of numbers, a missing field as 0. The Python parsers must agree on the
sum of every column; that rowmill's columns are right its own tests say. The text is `rowmill data synth --layout criteo`,
in the page cache. Prints one JSON object: seconds of each run, medians, millions of bytes and rows per second, what other
processes took of the cores, and rowmill's speed over each other's. With --output, also writes it to
FOLDER/compare-data-DATE.json.
"""
import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import doors
import machine

INTEGERS = [f"i{k}" for k in range(13)]
IDS = [f"c{k}" for k in range(26)]
NAMES = ["label", *INTEGERS, *IDS]
PARSERS = ("polars", "pyarrow", "duckdb")


def main():
    if sys.argv[1:2] == ["--once"]:
        return once(*sys.argv[2:])
    arguments = parsed()
    with tempfile.TemporaryDirectory(prefix="data-speed-") as folder:
        report = measure(arguments, pathlib.Path(folder))
    text = json.dumps(report, indent=1)
    print(text)
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / f"compare-data-{report['date']}.json").write_text(text + "\n")
    return 0


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rowmill", default=doors.BINARY)
    parser.add_argument("--bench", default=doors.BENCH)
    parser.add_argument("--file", type=pathlib.Path, help="plain Criteo text (default: generated)")
    parser.add_argument("--megabytes", type=int, default=250, help="size of the generated text, about")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=pathlib.Path)
    return parser.parse_args()


def measure(arguments, folder):
    rowmill = doors.Rowmill(arguments.rowmill, folder, arguments.threads)
    bench = doors.Rowmill(arguments.bench, folder, arguments.threads)
    file = (arguments.file or folder / "train.txt").resolve()
    if not arguments.file:
        rowmill.run("data", "synth", file, "--rows", arguments.megabytes * 1_000_000 // 240)
    runs = {name: [] for name in ("rowmill", *PARSERS)}
    for repeat in range(arguments.repeats):
        for name, taken in runs.items():
            foreign, own = machine.Foreign(os.getpid()), os.times()
            said = scan(bench, file) if name == "rowmill" else alone(name, file, arguments.threads)
            after = os.times()
            children = after.children_user + after.children_system - own.children_user - own.children_system
            taken.append(said | {"foreign_cpu": round(foreign.share(children), 3)})
            print(f"{repeat + 1}/{arguments.repeats} {name}: {said['seconds']:.3f} s", file=sys.stderr, flush=True)
    check(runs)
    size, rows = file.stat().st_size, runs["polars"][0]["rows"]
    return report_of(runs, arguments, (size, rows, rowmill.version()))


def report_of(runs, arguments, about):
    size, rows, version = about
    tools = {}
    for name, taken in runs.items():
        seconds = statistics.median(run["seconds"] for run in taken)
        tools[name] = {
            "version": version if name == "rowmill" else taken[0]["version"],
            "seconds": [round(run["seconds"], 4) for run in taken],
            "foreign_cpu": [run["foreign_cpu"] for run in taken],
            "mb_per_s": round(size / 1e6 / seconds, 1),
            "rows_per_s": round(rows / seconds),
        }
    rate = tools["rowmill"]["mb_per_s"]
    return {
        "command": " ".join(["bench/compare/data_speed.py", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "commit": doors.commit(),
        "machine": machine.describe(),
        "threads": arguments.threads,
        "text_bytes": size,
        "rows": rows,
        "tools": tools,
        "rowmill_over": {name: round(rate / tools[name]["mb_per_s"], 2) for name in PARSERS},
    }


def check(runs):
    sums = {name: runs[name][0]["sums"] for name in PARSERS}
    first = sums[PARSERS[0]]
    for name in PARSERS:
        if sums[name] != first:
            wrong = next(column for column, ours, theirs in zip(NAMES, first, sums[name]) if ours != theirs)
            sys.exit(f"data_speed.py: {PARSERS[0]} and {name} read different numbers in column {wrong}")


def scan(bench, file):
    """rowmill's own measurement of the same: text to columns in memory."""
    return {"seconds": file.stat().st_size / 1e6 / bench.run("data", "--file", file, "--repeats", 1)[-1]["scan_mb_per_s"]}


def alone(name, file, threads):
    limits = {"POLARS_MAX_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, "--once", name, str(file), str(threads)]
    ended = subprocess.run(command, env=os.environ | limits, capture_output=True, text=True)
    if ended.returncode != 0:
        sys.exit(f"data_speed.py: {name} ended with {ended.returncode}:\n{ended.stderr.strip()}")
    return json.loads(ended.stdout)


# ---- one parser in its own process ----


def once(name, file, threads):
    parse, version = {"polars": polars, "pyarrow": pyarrow, "duckdb": duckdb}[name](int(threads))
    begin = time.perf_counter()
    columns = parse(file)
    seconds = time.perf_counter() - begin
    sums = [int(column.sum(dtype="int64")) for column in columns]
    print(json.dumps({"seconds": seconds, "rows": len(columns[0]), "sums": sums, "version": version}))


def polars(_):
    import polars as pl

    schema = {name: pl.String if name in IDS else pl.Int32 for name in NAMES}
    number = [pl.col(name).fill_null(0) for name in ("label", *INTEGERS)]
    number += [pl.col(name).str.to_integer(base=16, dtype=pl.Int64, strict=False).fill_null(0).cast(pl.UInt32) for name in IDS]

    def parse(file):
        table = pl.scan_csv(file, separator="\t", has_header=False, schema=schema, quote_char=None)
        table = table.select(number).collect()
        return [table[name].to_numpy() for name in NAMES]

    return parse, pl.__version__


def pyarrow(threads):
    import numpy
    import pyarrow
    from pyarrow import compute, csv

    pyarrow.set_cpu_count(threads)
    types = {name: pyarrow.string() if name in IDS else pyarrow.int32() for name in NAMES}
    digit = numpy.zeros(256, numpy.uint32)
    digit[list(b"0123456789abcdef")] = range(16)

    def ids(column):
        """Arrow has no hexadecimal: eight digits a value, by NumPy on the column's own buffers."""
        parts = []
        for chunk in column.chunks:
            _, offsets, text = chunk.buffers()
            offsets = numpy.frombuffer(offsets, numpy.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
            digits = digit[numpy.frombuffer(text, numpy.uint8)[offsets[0] : offsets[-1]].reshape(-1, 8)]
            values = numpy.zeros(len(chunk), numpy.uint32)
            there = numpy.zeros(len(digits), numpy.uint32)
            for place in range(8):
                there = there << 4 | digits[:, place]
            values[numpy.diff(offsets) > 0] = there
            parts.append(values)
        return numpy.concatenate(parts)

    def parse(file):
        read = csv.ReadOptions(column_names=NAMES, block_size=16 << 20)
        layout = csv.ParseOptions(delimiter="\t", quote_char=False)
        convert = csv.ConvertOptions(column_types=types, strings_can_be_null=False)
        table = csv.read_csv(file, read, layout, convert)
        numbers = [compute.fill_null(table[name], 0).to_numpy() for name in ("label", *INTEGERS)]
        return numbers + [ids(table[name]) for name in IDS]

    return parse, pyarrow.__version__


def duckdb(threads):
    import duckdb

    database = duckdb.connect(config={"threads": threads})
    columns = ", ".join(f"'{name}': '{'VARCHAR' if name in IDS else 'INTEGER'}'" for name in NAMES)
    numbers = [f"coalesce({name}, 0) AS {name}" for name in ("label", *INTEGERS)]
    numbers += [f"coalesce(try_cast('0x' || {name} AS UINTEGER), 0) AS {name}" for name in IDS]

    def parse(file):
        source = f"read_csv(?, delim='\t', header=false, quote='', escape='', columns={{{columns}}})"
        found = database.execute(f"SELECT {', '.join(numbers)} FROM {source}", [file]).fetchnumpy()
        return [found[name] for name in NAMES]

    return parse, duckdb.__version__


if __name__ == "__main__":
    sys.exit(main())
