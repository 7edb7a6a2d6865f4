#!/usr/bin/env python3
"""Times single kernels over log-scale sweeps of shapes: what a performance model of kernels is fitted to and judged by.

    python bench/collect/microbench.py --device cuda --out DIR [--budget 300] [--only 'gemm*']
    python bench/collect/microbench.py --device cpu --quick --out DIR
    python bench/collect/microbench.py --list                              the kernels, with the number of shapes of each

Per kernel one file, microbench/KERNEL.csv: op, shape, dtype, the name of the kernel that took most of the time, median, p5
and p95 in µs, samples, what timed them, and how many kernels one call ran. Shapes come in a seeded random order and the
budget is shared among the kernels that are left, so that a short budget thins every sweep evenly.

On a GPU a time is the sum of the durations of the kernels and copies that one call ran, as CUPTI recorded them: no launch
and no gap is in it. 5 calls warm up, 30 are timed, the GPU idle before each; buffers stay the same, so that what fits into
the L2 cache is timed there; only ids of lookups change. `*_latency*` is the wall clock of one call and the wait for it,
`launch_call` the host's call of the launch, `launch_delay` from its begin to the kernel's on an idle GPU. On a CPU all is wall
clock, and the kernel is the ATen operator with most time of its own. A kernel that was finished is not run again.
"""
import contextlib
import csv
import io
import pathlib
import random
import sys
import tempfile
import time

import environment
import activity
import collect
import device as devices
import kernels
import measure
import profiles
import suite
import torch
from torch.profiler import profile, record_function

COLUMNS = ("op", "shape", "dtype", "kernel", "median_us", "p5_us", "p95_us", "samples", "timer", "kernels")
WARM_UP = 5
SAMPLES = 30
# One profile covers this many shapes: starting one costs more than timing a shape.
GROUP = 16
BYTES_MOST = 4 << 30
QUICK_BYTES_MOST = 16 << 20
MEMORY_SHARE = 0.2
CPU_SECONDS_MOST = 0.1


def main():
    arguments = parsed()
    chosen = [one for one in kernels.KERNELS if is_chosen(one, arguments.only)]
    if arguments.list:
        for one in chosen:
            print(f"{one.name:<34} {len(one.shapes(BYTES_MOST)):5} shapes  {', '.join(one.dtypes)}"
                  f"{'  ' + one.only + ' only' if one.only else ''}")
        return
    with suite.outcome():
        device = devices.named(arguments.device)
        with collect.open_suite(arguments) as kept:
            if arguments.retry_failed:
                kept.forget_failed()
            run_all(chosen, kept, device, arguments)


def run_all(chosen, kept, device, arguments):
    suite.say(f"microbench: {len(chosen)} kernels on {device.kind}, {arguments.budget} s for all")
    kept.begin_stage("kernels", "microbench", environment.describe(device), arguments.limit)
    until = time.monotonic() + arguments.budget
    left = [one for one in chosen if not kept.has(f"microbench/{one.name}")]
    for at, kernel in enumerate(left):
        run = f"microbench/{kernel.name}"
        if kernel.only not in (None, device.kind):
            kept.skip(run, f"needs --device {kernel.only}", stage="kernels")
            continue
        share = max(0.0, until - time.monotonic()) / sum(one.only in (None, device.kind) for one in left[at:])
        kept.perform(run, device, lambda: sweep(kernel, run, share, kept, device, arguments), stage="kernels")


def sweep(kernel, run, seconds, kept, device, arguments):
    """Times shapes until they or the seconds are over; at least one group."""
    torch.manual_seed(arguments.seed)
    until = time.monotonic() + seconds
    most = QUICK_BYTES_MOST if arguments.quick else min(BYTES_MOST, int(MEMORY_SHARE * device.free_bytes()))
    points = [(shape, dtype) for dtype in kernel.dtypes for shape in kernel.shapes(most)
              if dtype != "tf32" or device.kind == "cuda"]
    random.Random(arguments.seed).shuffle(points)
    rows, at, warmed, lost = [], 0, False, Lost()
    size = 1 if device.kind == "cpu" or kernel.wall else GROUP
    while at < len(points) and (at == 0 or time.monotonic() < until):
        group = [Point(kernel, shape, dtype) for shape, dtype in points[at : at + size]]
        at += size
        if not warmed:
            # The first call loads libraries and modules; it is not the sweep's.
            timed(group[:1], device, Lost())
            warmed = True
        rows += timed(group, device, lost)
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(sorted(rows))
    kept.add(run, f"microbench/{kernel.name}.csv", table.getvalue().encode(), "microbench", op=kernel.name)
    if not rows:
        raise profiles.NoKernels(f"no shape was measured ({lost.problem or 'no work of the GPU was recorded'}); "
                                 "hint: CUPTI must be usable")
    measured = len({row[1:3] for row in rows})
    return {"shapes": measured, "shapes_in_sweep": len(points), "shapes_out_of_memory": lost.memory,
            "shapes_incomplete": min(at, len(points)) - measured - lost.memory, "first_problem": lost.problem}


class Point:
    """One shape of a kernel in one type."""

    def __init__(self, kernel, shape, dtype):
        self.kernel, self.shape, self.dtype = kernel, shape, dtype

    def make(self, device):
        return self.kernel.make(self.shape, self.dtype, device)

    def row(self, samples, name, timer, count, op=None):
        spread = measure.percentiles(samples)
        text = " ".join(f"{axis}={size}" for axis, size in self.shape.items())
        return (op or self.kernel.name, text, self.dtype, name, spread["median"], spread["p5"], spread["p95"],
                len(samples), timer, count)


class Lost:
    """Shapes that could not be timed: how many found no memory, and what stopped the first of the others."""

    memory, problem = 0, None

    def count(self, error, device):
        """Raises again what leaves the device unusable."""
        if devices.is_out_of_memory(error):
            self.memory += 1
            device.forget()
        else:
            device.synchronize()
            self.problem = self.problem or suite.first_line(error)


@contextlib.contextmanager
def products_in(dtype):
    """TF32 where it is asked for, and whatever it was before afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def timed(group, device, lost):
    """Rows of the points."""
    if device.kind == "cuda" and not group[0].kernel.wall:
        return on_gpu(group, device, lost)
    measured = walled if group[0].kernel.wall else on_cpu
    rows = []
    for point in group:
        try:
            with products_in(point.dtype):
                rows.append(measured(point, device))
        except RuntimeError as error:
            lost.count(error, device)
    return rows


def walled(point, device):
    """Wall clock of a call and the wait for it; the device idle before."""
    run = point.make(device)
    for i in range(WARM_UP):
        run(i)
    return point.row(measure.synchronized(run, device, SAMPLES), "", "wall clock, synchronized", "")


def on_cpu(point, device):
    run = point.make(device)
    run(0)
    begin = time.perf_counter()
    run(1)
    one = time.perf_counter() - begin
    samples = measure.free_running(run, device, max(5, min(SAMPLES, int(CPU_SECONDS_MOST / one))))[0]
    timeline = activity.Timeline(recorded([(point, run)], device, 1, Lost()))
    name = busiest_operator(timeline)
    return point.row(samples, name, device.timer, "")


def on_gpu(group, device, lost):
    """All points in one profile, each call under an annotation of its own."""
    timeline = activity.Timeline(recorded([(point, None) for point in group], device, SAMPLES, lost))
    return [row for number, point in enumerate(group) for row in rows_of(number, point, timeline)]


def recorded(points, device, samples, lost):
    """The text of a profile in which call `i` of point `n` runs under the annotation `call#n#i`."""
    measure.profiled_before = True
    with profile(activities=list(device.activities)) as profiler:
        for number, (point, run) in enumerate(points):
            try:
                with products_in(point.dtype):
                    call(number, run or point.make(device), device, samples)
            except RuntimeError as error:
                lost.count(error, device)
    with tempfile.TemporaryDirectory(prefix="rowmill-") as folder:
        path = pathlib.Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return path.read_bytes()


def call(number, run, device, samples):
    for i in range(WARM_UP if samples > 1 else 0):
        run(i)
    device.synchronize()
    for i in range(samples):
        with record_function(f"call#{number}#{i}"):
            run(i)
        device.synchronize()


def rows_of(number, point, timeline):
    """Rows of a point: per call the sum of what it ran; for `launch` the host's side of it too.

    None where the profile has lost the work of a call: a time that lacks a kernel is worse than no time.
    """
    calls = [[] for _ in range(SAMPLES)]
    marks = sorted((one for one in timeline.annotations if one["name"].startswith(f"call#{number}#")),
                   key=lambda one: one["ts"])
    for work in timeline.device:
        start = timeline.launch_of(work)
        mark = start and activity.around(marks, start["ts"])
        if mark:
            calls[int(mark["name"].rsplit("#", 1)[1])].append((work, start))
    if not all(calls):
        return []
    by_name = {}
    for work, _ in (pair for one in calls for pair in one):
        by_name[work["name"]] = by_name.get(work["name"], 0.0) + work["dur"]
    name, timer = max(sorted(by_name), key=by_name.get), "duration of kernels"
    count = round(sum(map(len, calls)) / SAMPLES, 2)
    rows = [point.row([sum(work["dur"] for work, _ in one) for one in calls], name, timer, count)]
    if point.kernel.name == "launch":
        firsts = [min(one, key=lambda pair: pair[1]["ts"]) for one in calls]
        rows.append(point.row([start["dur"] for _, start in firsts], name, "duration of the host's call", count,
                              "launch_call"))
        rows.append(point.row([work["ts"] - start["ts"] for work, start in firsts], name,
                              "from the call's begin to the kernel's", count, "launch_delay"))
    return rows


def busiest_operator(timeline):
    """The operator with most time of its own."""
    own, open_spans = {}, []
    for span in sorted(timeline.operators, key=lambda one: (one["pid"], one["tid"], one["ts"], -one["dur"])):
        while open_spans and not (span["tid"] == open_spans[-1]["tid"] and span["ts"] < activity.end(open_spans[-1])):
            open_spans.pop()
        if open_spans:
            own[open_spans[-1]["name"]] -= span["dur"]
        own[span["name"]] = own.get(span["name"], 0.0) + span["dur"]
        open_spans.append(span)
    return max(sorted(own), key=own.get) if own else ""


def is_chosen(kernel, patterns):
    return any(pathlib.PurePath(kernel.name).match(pattern) for pattern in patterns or ["*"])


def parsed():
    parser = collect.parser_of(__doc__)
    parser.add_argument("--budget", type=collect.natural, metavar="SECONDS",
                        help="for all kernels together (default: 300; with --quick 25)")
    parser.add_argument("--only", action="append", metavar="PATTERN",
                        help="only kernels such as 'memcpy*'; may be repeated (default: all)")
    parser.add_argument("--list", action="store_true", help="print the kernels and stop")
    arguments = collect.completed(parser.parse_args())
    arguments.budget = arguments.budget or (25 if arguments.quick else 300)
    for pattern in arguments.only or []:
        if not any(is_chosen(one, [pattern]) for one in kernels.KERNELS):
            parser.error(f"--only: expected a pattern that a kernel of --list matches, got {pattern!r}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
