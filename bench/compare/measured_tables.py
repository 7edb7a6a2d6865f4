"""Writes the measured products and exchanges that rowmill ships, from parquet tables of aiconfigurator (Apache-2.0).

    python3 bench/compare/measured_tables.py ../shared/data crates/kernel_model/models

Needs pyarrow. Products are bf16, and sizes are powers of two. Exchanges are those of 16-bit values. Times of sizes that were
measured several times are their geometric mean.
"""

import collections
import math
import pathlib
import sys

import pyarrow.parquet

SMALLEST_ROWS = 16


def power_of_two(value):
    return value & (value - 1) == 0


def means(rows):
    """Returns the geometric mean of the latencies of each key, in whole nanoseconds."""
    times = collections.defaultdict(list)
    for key, milliseconds in rows:
        times[key].append(math.log(1e6 * milliseconds))
    return [(key, round(math.exp(sum(logs) / len(logs)))) for key, logs in sorted(times.items())]


def products(table):
    for row in table:
        sizes = (row["m"], row["n"], row["k"])
        if row["gemm_dtype"] == "bfloat16" and sizes[0] >= SMALLEST_ROWS and all(map(power_of_two, sizes)):
            yield sizes, row["latency"]


def exchanges(table):
    names = {"alltoall": "all_to_all"}
    for row in table:
        if row["nccl_dtype"] == "half":
            name = names.get(row["op_name"], row["op_name"])
            yield (name, row["num_gpus"], 2 * row["message_size"]), row["latency"]


def main(source, target):
    for folder, header, keep in [("gemm", "m,n,k,ns", products), ("nccl", "exchange,ranks,bytes,ns", exchanges)]:
        for device in ["a100", "h100"]:
            table = pyarrow.parquet.read_table(source / folder / f"{device}_sxm.parquet").to_pylist()
            lines = [",".join(map(str, [*key, ns])) for key, ns in means(keep(table))]
            name = f"{folder}-{device}-sxm.csv"
            (target / name).write_text("\n".join([header, *lines]) + "\n")
            print(f"{name}: {len(lines)} rows")


main(*map(pathlib.Path, sys.argv[1:]))
