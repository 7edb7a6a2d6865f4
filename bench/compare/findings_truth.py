#!/usr/bin/env python3
"""Recomputes one figure of every finding in a table of findings from the raw traces.

    python bench/compare/findings_truth.py FIXTURES [TABLE] [--write]

FIXTURES is a folder that holds `traces`; TABLE is testdata/public_findings/README.md unless given.
Prints trace, rule, the figure as the finding gives it, the figure recomputed, and whether they agree
within 2 %. With --write the column *recomputed* of the table is filled, and nothing else of it is
touched. Exits with 1 where a row has no figure here, or where a figure is more than 2 % off and the
last column of the row does not say why ("The figure differs").

The script reads only the JSON that torch.profiler exports (plain, .gz, or .tar.gz with one file per
rank) and shares no code with rowmill. Its rules are its own: where a finding counts by another
definition, a difference is left as it is, and explained in the row. Times are whole nanoseconds; a
time per step is a mean over the steps that the finding names.
"""
import argparse
import bisect
import gzip
import json
import os
import re
import statistics
import sys
import tarfile
from collections import defaultdict
from decimal import Decimal

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset", "mtia_ccp_events"}
CALLS = {"cuda_runtime", "cuda_driver", "Runtime", "mtia_runtime"}
OPERATORS = {"cpu_op", "Operator"}
RANGES = OPERATORS | {"user_annotation"}
LAUNCH = re.compile(r"Launch(Kernel|CooperativeKernel)|ModuleLaunchKernel|GraphLaunch|Memcpy|Memset")
DRIVER_MEMORY = re.compile(r"^(cuda|hip)(Malloc|Free|HostAlloc|HostFree|MallocHost|HostRegister|ModuleLoad)")
WAITING = re.compile(r"Synchronize$|Memcpy")
COLLECTIVE = re.compile(r"nccl", re.I)
LOADER = re.compile(r"^enumerate\(DataLoader\)")


# Reading ---------------------------------------------------------------------------------------

def parse(raw):
    """A JSON document; numbers with a fraction stay text, so that no digit of a time is lost."""
    return json.loads(raw, parse_float=str)


def nanoseconds(microseconds):
    """Microseconds as the JSON has them, a whole number or the text of one with a fraction."""
    if isinstance(microseconds, int):
        return microseconds * 1000
    return int((Decimal(microseconds) * 1000).to_integral_value())


def read_documents(path):
    """The JSON documents in a file: one, or one per member of an archive."""
    if path.endswith((".tar.gz", ".tgz")):
        with tarfile.open(path) as archive:
            members = sorted((m for m in archive.getmembers() if m.isfile()), key=lambda m: m.name)
            return [parse(archive.extractfile(m).read()) for m in members if m.name.endswith(".json")]
    with open(path, "rb") as file:
        raw = file.read()
    return [parse(gzip.decompress(raw) if path.endswith(".gz") else raw)]


class Trace:
    """The rows of one rank, each with `start`, `end` and `args`."""

    def __init__(self, document):
        self.document = document
        self.rows = []
        for row in document["traceEvents"]:
            if row.get("ph") == "X" and row.get("dur") is not None and row.get("cat") != "Trace":
                row["start"], row["dur"] = nanoseconds(row["ts"]), nanoseconds(row["dur"])
                row["end"], row["args"] = row["start"] + row["dur"], row.get("args") or {}
                self.rows.append(row)
        self.rows.sort(key=lambda row: (row["start"], -row["end"]))
        self.device = [row for row in self.rows if row.get("cat") in DEVICE]
        self.calls = [row for row in self.rows if row.get("cat") in CALLS]
        self.ranges = [row for row in self.rows if row.get("cat") in RANGES]
        self.steps = [row for row in self.ranges if row["name"].startswith("ProfilerStep")] or self.optimizer_steps()
        self.call_of = {}
        for call in self.calls:
            if correlation(call) is not None:
                self.call_of.setdefault(correlation(call), call)
        self.work_of = defaultdict(list)
        for work in self.device:
            self.work_of[correlation(work)].append(work)

    def optimizer_steps(self):
        """From the end of one Optimizer.step to the end of the next, where nothing names a step."""
        ends = [row["end"] for row in self.ranges if row["name"].startswith("Optimizer.step#")]
        return [{"name": f"step {at}", "start": start, "end": end, "dur": end - start}
                for at, (start, end) in enumerate(zip(ends, ends[1:]))]

    def span(self):
        return self.rows[0]["start"], max(row["end"] for row in self.rows)

    def window(self, first=0, last=-1):
        """From the start of one step to the end of another."""
        return self.steps[first]["start"], self.steps[last]["end"]

    def named(self, pattern):
        return [row for row in self.ranges if re.search(pattern, row["name"])]

    def distributed(self):
        info = self.document.get("distributedInfo") or {}
        return json.loads(info.replace("'", '"')) if isinstance(info, str) else info

    def claimed_rank(self):
        return self.distributed().get("rank")

    def rank(self):
        return self.distributed().get("rank", 0)

    def world(self):
        return self.distributed().get("world_size")


def correlation(row):
    return row["args"].get("correlation")


# Intervals -------------------------------------------------------------------------------------

def spans(rows):
    return [(row["start"], row["end"]) for row in rows]


def merge(intervals):
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        elif end > start:
            merged.append([start, end])
    return merged


def holes(intervals, start, end):
    """What intervals leave free between start and end."""
    free, at = [], start
    for low, high in merge(intervals):
        if high <= at:
            continue
        if low >= end:
            break
        if low > at:
            free.append((at, low))
        at = high
    if at < end:
        free.append((at, end))
    return free


def common(left, right):
    left, right, both, i, j = merge(left), merge(right), [], 0, 0
    while i < len(left) and j < len(right):
        low, high = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if low < high:
            both.append((low, high))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return both


def without(left, right):
    right = merge(right)
    starts = [low for low, _ in right]
    rest = []
    for low, high in merge(left):
        i = max(0, bisect.bisect_right(starts, low) - 1)
        k = bisect.bisect_left(starts, high)
        rest += holes(right[i:k], low, high)
    return rest


def total(intervals):
    return sum(high - low for low, high in intervals)


def clip(intervals, start, end):
    return [(max(low, start), min(high, end)) for low, high in intervals if high > start and low < end]


# Figures: quality of the recording ---------------------------------------------------------------

def step_count(trace):
    return len(trace.steps)


def step_spread_pct(trace, first=0):
    """The standard deviation of step times (of a sample) over their mean."""
    times = [step["dur"] for step in trace.steps[first:]]
    return 100 * statistics.stdev(times) / statistics.mean(times)


def captured(trace, call):
    """Whether a call lies between the begin and the end of a stream capture of its thread: what is
    launched there does not run."""
    marks = [(mark["start"], "Begin" in mark["name"]) for mark in trace.calls
             if re.search("Stream(Begin|End)Capture", mark["name"]) and mark["tid"] == call["tid"]]
    before = [is_begin for start, is_begin in sorted(marks) if start <= call["start"]]
    return before[-1] if before else not all(is_begin for _, is_begin in sorted(marks)[:1])


def whole_step(trace, step):
    """Whether the launches of a step have their device work recorded (one in a hundred may lack it,
    captured ones launch nothing), it launches any where the trace does, and no device work without a
    recorded launch runs within the span of its own work."""
    launches = [call for call in trace.calls if LAUNCH.search(call["name"])
                and step["start"] <= call["start"] < step["end"] and not captured(trace, call)]
    lost = sum(correlation(call) not in trace.work_of for call in launches)
    own = [work for call in launches for work in trace.work_of.get(correlation(call), [])]
    earlier = [work for work in trace.device if correlation(work) not in trace.call_of
               and work["name"] != "event_wait"]
    low, high = min((w["start"] for w in own), default=0), max((w["end"] for w in own), default=0)
    return (100 * lost <= len(launches) and bool(own or not trace.device)
            and not any(work["end"] > low and work["start"] < high for work in earlier))


def complete_steps(trace):
    return sum(whole_step(trace, step) for step in trace.steps)


def exactly_one_whole_step(traces):
    """Recordings of one step, which is whole."""
    return sum(step_count(trace) == 1 and complete_steps(trace) == 1 for trace in traces)


def first_launches(trace, long=1_000_000):
    """First launches of a kernel that take a millisecond or more, which load its code."""
    seen, loading = set(), []
    for call in trace.calls:
        works = trace.work_of.get(correlation(call), []) if "LaunchKernel" in call["name"] else []
        if works and works[0]["name"] not in seen:
            seen.add(works[0]["name"])
            loading += [call] if call["dur"] >= long else []
    return loading


def long_first_calls(trace, long=10_000_000):
    """First calls of a function that take 10 ms or more and ten times as long as each later one, and
    the first call of all if it takes 10 ms or more. Calls that launch, wait or handle memory do not count."""
    by_name = defaultdict(list)
    for call in trace.calls:
        by_name[call["name"]].append(call)
    first, later = trace.calls[:1], {name: calls[1:] for name, calls in by_name.items()}
    chosen = [calls[0] for name, calls in by_name.items() if calls[0] in first
              or later[name] and calls[0]["dur"] >= 10 * max(call["dur"] for call in later[name])]
    return [call for call in chosen if call["dur"] >= long and correlation(call) not in trace.work_of
            and not DRIVER_MEMORY.search(call["name"]) and not WAITING.search(call["name"])]


def set_up_ns(trace):
    """Time in calls that allocate memory, or free it before the last launch, in first launches, and in
    long first calls."""
    last = max((call["start"] for call in trace.calls if correlation(call) in trace.work_of), default=float("inf"))
    memory = [call for call in trace.calls if DRIVER_MEMORY.search(call["name"])
              and ("Free" not in call["name"] or call["start"] <= last)]
    return total(merge(spans(memory + first_launches(trace) + long_first_calls(trace))))


def work_without_a_call(trace):
    """Device rows that no recorded call launched, waits for events aside."""
    return sum(correlation(work) not in trace.call_of and work["name"] != "event_wait" for work in trace.device)


def work_with_an_operator_pct(trace, window=None):
    """Device work whose launching call lies in an operator of its thread."""
    by_thread = defaultdict(list)
    for row in trace.ranges:
        if row["cat"] in OPERATORS:
            by_thread[row["tid"]].append((row["start"], row["end"]))
    by_thread = {tid: merge(rows) for tid, rows in by_thread.items()}
    low, high = window or (float("-inf"), float("inf"))
    works = [work for work in trace.device if work["end"] > low and work["start"] < high]

    def inside(work):
        call = trace.call_of.get(correlation(work))
        rows = by_thread.get(call["tid"], []) if call else []
        at = bisect.bisect_right(rows, [call["start"], float("inf")]) - 1 if call else -1
        return at >= 0 and rows[at][1] >= call["start"]

    return 100 * sum(map(inside, works)) / len(works)


def rows_past_their_parent(trace):
    """Host rows that end behind the row of their thread they begin in."""
    by_thread, count = defaultdict(list), 0
    for row in trace.ranges + trace.calls:
        by_thread[row["pid"], row["tid"]].append((row["start"], -row["end"]))
    for rows in by_thread.values():
        open_ends = []
        for start, negative_end in sorted(rows):
            end = -negative_end
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            if open_ends and end > open_ends[-1]:
                count += 1
                end = open_ends[-1]
            open_ends.append(end)
    return count


# Figures: the device waits -----------------------------------------------------------------------

def device_gaps(trace, window):
    """Gaps between device work in the window, each with the work that ends it."""
    low = max(window[0], trace.device[0]["start"])
    high = min(window[1], max(work["end"] for work in trace.device))
    starts = [work["start"] for work in trace.device]
    for start, end in holes(spans(trace.device), low, high):
        at = bisect.bisect_left(starts, end)
        yield start, end, trace.device[at] if at < len(starts) else None


def host_bound_idle_ns(trace, window, steps=1, excused=()):
    """Idle time of the device until its next work is launched, in an operator of the host, but
    not in the driver's memory calls, in waits, in copies or in a data loader."""
    until_launch = []
    for start, end, work in device_gaps(trace, window):
        call = trace.call_of.get(correlation(work)) if work else None
        if work and (call is None or call["start"] > start):
            until_launch.append((start, min(end, call["end"]) if call else end))
    operators = [row for row in trace.ranges if row["cat"] in OPERATORS
                 and not row["name"].startswith("ProfilerStep") and not LOADER.search(row["name"])]
    excused = list(excused)
    excused += spans(c for c in trace.calls if DRIVER_MEMORY.search(c["name"]) or WAITING.search(c["name"]))
    excused += spans(trace.named(LOADER.pattern))
    return total(without(common(until_launch, spans(operators)), excused)) / steps


def idle_without_code_loading_ns(trace, window, steps):
    """Host-bound idle time less first launches of kernels, which load their code."""
    return host_bound_idle_ns(trace, window, steps, spans(first_launches(trace)))


def idle_in_ranges_ns(trace, window, pattern, steps=1):
    """Idle time of the device in ranges of that name."""
    idle = holes(spans(trace.device), *window)
    return total(common(idle, spans(trace.named(pattern)))) / steps


def idle_before_graphs_ns(trace, window, steps=1, at_least=50_000):
    """Time without recorded device work before work of a graph whose launch had returned, in gaps in
    which that lasts 50 us or more."""
    queued = 0
    for start, end, work in device_gaps(trace, window):
        call = trace.call_of.get(correlation(work)) if work else None
        if call and "GraphLaunch" in call["name"] and end - max(start, call["end"]) >= at_least:
            queued += end - max(start, call["end"])
    return queued / steps


def fills_moved_to_the_device(trace):
    """Outermost copies to the device directly behind an operator that makes a tensor on the host."""
    top, end = [], 0
    for row in trace.ranges:
        if row["cat"] in OPERATORS and row["start"] >= end:
            top.append(row)
            end = row["end"]
    copies = [c["start"] for c in trace.calls if any("HtoD" in w["name"] for w in trace.work_of[correlation(c)])]
    makes = re.compile(r"^aten::(rand|randn|randint|zeros|ones|full|arange|randperm|bernoulli)")
    return sum(bool(makes.search(a["name"])) and b["name"] == "aten::to"
               and any(b["start"] <= at <= b["end"] for at in copies) for a, b in zip(top, top[1:]))


# Figures: launches -------------------------------------------------------------------------------

def kernels_shorter_than_their_launch(trace):
    """Kernels that take less time than the call that launches them."""
    return sum(sum(work["dur"] for work in trace.work_of[correlation(call)]) < call["dur"]
               for call in trace.calls
               if re.search("LaunchKernel", call["name"]) and correlation(call) in trace.work_of)


def launches_in_range(trace, pattern):
    """Kernels, copies and sets launched in a range of that name, in the one that has most."""
    launches = sorted(c["start"] for c in trace.calls if LAUNCH.search(c["name"]))
    return max(bisect.bisect_left(launches, row["end"]) - bisect.bisect_left(launches, row["start"])
               for row in trace.named(pattern))


def works_per_step(trace):
    """Kernels, copies and sets that the calls within the steps launch."""
    low, high = trace.window()
    calls = (call for call in trace.calls if low <= call["start"] < high)
    return sum(len(trace.work_of.get(correlation(call), [])) for call in calls
               if correlation(call) is not None) / len(trace.steps)


def silence_before_ns(trace, operator, shortest=100_000):
    """Time of the steps in which no thread runs an operator or a call, before operators of a name."""
    rows = [row for row in trace.calls + [row for row in trace.ranges if row["cat"] in ("cpu_op", "Operator")]]
    total_ns = 0
    for step in trace.steps:
        behind = step["start"]
        for row in sorted(rows, key=lambda row: row["start"]):
            if step["start"] <= row["start"] < step["end"]:
                pause = row["start"] - behind
                total_ns += pause if pause >= shortest and row["name"] == operator else 0
                behind = max(behind, row["end"])
    return total_ns / len(trace.steps)


def range_time_ns(trace, pattern, steps=1):
    return sum(row["dur"] for row in trace.named(pattern)) / steps


def zero_fills_ns(trace, steps=1):
    """Time of aten::zero_ in zero_grad."""
    parents = merge(spans(trace.named("zero_grad#")))
    return total(common(parents, spans(trace.named("^aten::zero_$")))) / steps


# Figures: copies ---------------------------------------------------------------------------------

def pageable_copies_ns(trace, window, steps):
    """Time covered by copies of pageable memory and their calls."""
    copies = [w for w in trace.device if "Pageable" in w["name"] and window[0] <= w["start"] < window[1]]
    calls = [trace.call_of[correlation(w)] for w in copies if correlation(w) in trace.call_of]
    return total(merge(spans(copies + calls))) / steps


def small_copies_per_step(trace, window, steps, limit=65536, gap=50_000):
    """Copies on the device of at most 64 KiB that another one follows or precedes in at most 50 µs
    of the host with no other launch between."""
    launches = [c for c in trace.calls if LAUNCH.search(c["name"]) and correlation(c) in trace.work_of
                and window[0] <= c["start"] < window[1]]
    runs = 0
    for tid in {c["tid"] for c in launches}:
        run, last = 0, None
        for call in [c for c in launches if c["tid"] == tid]:
            work = trace.work_of[correlation(call)][0]
            small = "DtoD" in work["name"] and int(work["args"].get("bytes", limit + 1)) <= limit
            if small and run and call["start"] - last <= gap:
                run += 1
            else:
                runs += run if run >= 16 else 0
                run = int(small)
            last = call["end"]
        runs += run if run >= 16 else 0
    return runs / steps


MOVING = re.compile(r"Memcpy DtoD|permute_2D|direct_copy|CatArray|recat_copy|transpose|nchwToNhwc|nhwcToNchw")


def moving_ns(trace, window, steps):
    """Copies on the device and kernels that only copy, by name."""
    return total(clip(spans(w for w in trace.device if MOVING.search(w["name"])), *window)) / steps


# Figures: collectives ----------------------------------------------------------------------------

def exposed_communication_ns(trace, window, steps, chosen=COLLECTIVE.search):
    """Time of collectives without a computing kernel beside them."""
    collectives = clip(spans(w for w in trace.device if COLLECTIVE.search(w["name"]) and chosen(w["name"])), *window)
    kernels = [w for w in trace.device if w["cat"].lower() == "kernel" and not COLLECTIVE.search(w["name"])]
    return total(without(collectives, spans(kernels))) / steps


def devices_window(trace):
    """From the end of the work queued before the recording to the end of all that the steps launch."""
    low, high = trace.window()
    earlier = [work["end"] for work in trace.device if correlation(work) not in trace.call_of]
    own = [work["end"] for work in trace.device
           if low <= trace.call_of.get(correlation(work), {"start": high})["start"] < high]
    return max(earlier), max(own)


def last_by_ns(traces, rank):
    """How much later than the second last a rank starts the collectives that it comes last to."""
    starts = {t.rank(): [w["start"] for w in t.device if COLLECTIVE.search(w["name"])] for t in traces}
    late = 0
    for nth in zip(*starts.values()):
        order = sorted(zip(nth, starts))
        if order[-1][1] == rank:
            late += order[-1][0] - order[-2][0]
    return late


# Figures: kernels --------------------------------------------------------------------------------

PRODUCTS = {"aten::bmm", "aten::mm", "aten::addmm", "aten::baddbmm"}


def misaligned_products_ns(trace, multiple=8):
    """Device time of matrix products one of whose contiguous sizes (not the number of rows alone)
    is no multiple of 8 and above 8: m×k·k×n has its rows of k and n values."""
    by_thread = defaultdict(list)
    for row in trace.ranges:
        if row["name"] in PRODUCTS:
            by_thread[row["tid"]].append(row)
    starts = {tid: [row["start"] for row in rows] for tid, rows in by_thread.items()}
    time = 0
    for work in trace.device:
        call = trace.call_of.get(correlation(work))
        if not call or call["tid"] not in starts or work["cat"] != "kernel":
            continue
        at = bisect.bisect_right(starts[call["tid"]], call["start"]) - 1
        if at < 0 or by_thread[call["tid"]][at]["end"] < call["end"]:
            continue
        dims = [d for d in by_thread[call["tid"]][at]["args"].get("Input Dims", []) if len(d) >= 2][:2]
        if len(dims) == 2 and dims[0][-1] * dims[1][-1] > 1:
            if any(size % multiple and size > multiple for size in (dims[0][-1], dims[1][-1])):
                time += work["dur"]
    return time


def unaligned_kernels_ns(trace, window, steps):
    """Device time of kernels that say that they read one or two numbers at a time."""
    return sum(work["dur"] for work in trace.device
               if window[0] <= work["start"] < window[1] and re.search(r"align[12](?!\d)", work["name"])) / steps


FLOAT_PRODUCT = re.compile(r"sgemm|gemmSN|gemmk1|gemv|dgrad_engine|scudnn|wgrad_alg|implicit_convolve", re.I)


def float_products_pct(trace, window):
    """Share of float32 matrix kernels without tensor cores in the time of computing kernels."""
    kernels = [w for w in trace.device if w["cat"].lower() == "kernel" and not COLLECTIVE.search(w["name"])
               and w["end"] > window[0] and w["start"] < window[1]]
    return 100 * sum(w["dur"] for w in kernels if FLOAT_PRODUCT.search(w["name"])) / sum(w["dur"] for w in kernels)


def waves(work, device):
    args = work["args"]
    blocks, threads = 1, 1
    for size in args["grid"]:
        blocks *= size
    for size in args["block"]:
        threads *= size
    warps = -(-threads // 32)
    limits = [32, (device["maxThreadsPerMultiprocessor"] // 32) // warps]
    if args.get("registers per thread"):
        limits.append(device["regsPerMultiprocessor"] // (-(-args["registers per thread"] // 8) * 8 * 32 * warps))
    if args.get("shared memory"):
        limits.append(device["sharedMemPerMultiprocessor"] // args["shared memory"])
    return blocks / (device["numSms"] * max(1, min(limits)))


def empty_tails_ns(trace, window, steps, most_waves=4, fill=0.3):
    """Time lost in last waves that fill less than 30 % of the device: of n whole waves and a tail,
    the tail takes 1/(n+1) of the kernel and wastes its empty part."""
    device, lost = trace.document["deviceProperties"][0], 0
    for work in trace.device:
        if work["cat"] != "kernel" or COLLECTIVE.search(work["name"]) or "grid" not in work["args"]:
            continue
        if work["end"] <= window[0] or work["start"] >= window[1]:
            continue
        count = waves(work, device)
        whole, tail = int(count), count - int(count)
        if 1 <= count <= most_waves and 0 < tail < fill:
            lost += work["dur"] / (whole + 1) * (1 - tail)
    return lost / steps


# Figures: several recordings given as one job ----------------------------------------------------

def worlds_named(traces):
    """How many world sizes the recordings name."""
    return len({trace.world() for trace in traces} - {None})


def recordings_without_a_rank_of_their_own(traces):
    """Recordings that claim no rank, or one that another before them has claimed."""
    return len(traces) - len({trace.claimed_rank() for trace in traces} - {None})


def rows_past_their_parent_in_all(traces):
    return sum(map(rows_past_their_parent, traces))


# Which figure belongs to which finding -----------------------------------------------------------

ALEXNET = "alexnet"
SIMPLE_ADD = "simple_add"
DLRM = "dlrm8/dlrm_kineto.tar.gz"
LINEAR = "linear/linear_kineto.json.gz"
A100 = "modern/a100_full_queue.json.gz"
H100 = "modern/h100_timesformer.json.gz"
OWL = "modern/mi300_owlv2.json.gz"
MI300_RESNET = "modern/mi300_resnet_act_checkpoint.json.gz"
MTIA = "modern/mtia_inference.json.gz"
WORKERS_0 = "modern/resnet50_2021_workers0.json.gz"
WORKERS_4 = "modern/resnet50_2021_workers4.json.gz"
CAPTURE = "modern/sglang_decode_capture.json.gz"
NCCL = "nccl"
BACKWARD = "odd/backward_thread.json"
EVENT_SYNC = "odd/event_sync_trace.json.gz"
MI250 = "odd/mi250_minitoy_train_ROCm6_2_kineto.json.gz"
RANK_34 = "odd/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz"
NON_GPU = "odd/rank_non_gpu.json.gz"
TRITON = "odd/triton_example.json.gz"
SAMPLED = "timeline_sampled"
CONTROL = "trace_diff/control.json.gz"
TEST = "trace_diff/test.json.gz"


def of_rank(rank, figure):
    return lambda traces: figure(next(t for t in traces if t.rank() == rank))


def of_one(figure):
    return lambda traces: figure(traces[0])


# How a finding's own figure is read: by name from the column *figures*, or by pattern from its
# sentence, with the factor that makes it the unit recomputed here.

def number(name):
    return name, re.compile(rf"(?:^|; ){name}=([\d.]+)"), 8, 1


def sentence(name, pattern, factor=1):
    return name, re.compile(pattern), 7, factor


IDLE, COUNT = number("idle_per_step_ns"), number("count")
EXPOSED, MOVING_TIME = number("exposed_per_step_ns"), number("moving_per_step_ns")
RECORDED = sentence("recorded", r"(\d+) steps? recorded")
COMPLETE = number("count")
RANKS = sentence("ranks_with_one_step", r"1 step recorded \((\d+) of")
SPREAD = sentence("spread_pct", r"vary by ([\d.]+) %")
COVERED = sentence("covered_pct", r"[Oo]nly ([\d.]+) % of the device work")
ORPHANS = sentence("orphans", r"(\d+) pieces of device work have no")
SET_UP = sentence("set_up_ns", r"[Ss]et-up takes ([\d.]+) ms", 1_000_000)
BEFORE_GRAPHS = sentence("before_graphs_ns", r"[Ff]or ([\d.]+) ms per step", 1_000_000)

CHECKS = {
    (ALEXNET, "Q07"): (SET_UP, of_one(set_up_ns)),
    (SIMPLE_ADD, "Q07"): (SET_UP, of_one(set_up_ns)),
    (DLRM, "Q06"): (RECORDED, lambda traces: min(map(step_count, traces))),
    (DLRM, "Q08"): (COVERED, of_rank(1, work_with_an_operator_pct)),
    (DLRM, "L01"): (number("tiny_launches_per_step"), of_rank(5, kernels_shorter_than_their_launch)),
    (DLRM, "H02"): (IDLE, of_rank(6, lambda t: idle_in_ranges_ns(t, t.window(), LOADER.pattern))),
    (DLRM, "K09"): (number("host_per_step_ns"), of_rank(6, lambda t: range_time_ns(t, r"^Optimizer\.step#"))),
    (DLRM, "H01"): (IDLE, of_rank(5, lambda t: host_bound_idle_ns(t, t.span()))),
    (DLRM, "M06"): (number("delay_per_step_ns"), lambda traces: last_by_ns(traces, 7)),
    (LINEAR, "Q06"): (SPREAD, of_one(step_spread_pct)),
    (LINEAR, "H01"): (IDLE, of_one(lambda t: host_bound_idle_ns(t, t.window(), step_count(t)))),
    (LINEAR, "L01"): (number("tiny_launches_per_step"), of_one(lambda t: kernels_shorter_than_their_launch(t) / step_count(t))),
    (LINEAR, "L03"): (number("kernels"), of_one(works_per_step)),
    (LINEAR, "C06"): (number("host_per_step_ns"), of_one(lambda t: zero_fills_ns(t, step_count(t)))),
    (A100, "Q10"): (BEFORE_GRAPHS, of_one(lambda t: idle_before_graphs_ns(t, t.window(1), 4))),
    (A100, "K07"): (number("time_per_step_ns"), of_one(lambda t: unaligned_kernels_ns(t, t.window(1), 4))),
    (A100, "M01"): (EXPOSED, of_one(lambda t: exposed_communication_ns(t, t.window(1), 4))),
    (A100, "C05"): (MOVING_TIME, of_one(lambda t: moving_ns(t, t.window(1), 4))),
    (H100, "Q06"): (RECORDED, of_one(step_count)),
    (H100, "H13"): (number("time_per_step_ns"), of_one(lambda t: silence_before_ns(t, "aten::lift_fresh"))),
    (H100, "K07"): (number("time_per_step_ns"), of_one(misaligned_products_ns)),
    (OWL, "Q06"): (RECORDED, of_one(step_count)),
    (OWL, "H02"): (IDLE, of_one(lambda t: idle_in_ranges_ns(t, t.window(), LOADER.pattern))),
    (OWL, "K07"): (number("time_per_step_ns"), of_one(misaligned_products_ns)),
    (MI300_RESNET, "Q08"): (COVERED, of_one(lambda t: work_with_an_operator_pct(t, t.window()))),
    (MI300_RESNET, "M01"): (EXPOSED, of_one(lambda t: exposed_communication_ns(t, devices_window(t), 3))),
    (MTIA, "Q04"): (COUNT, of_one(rows_past_their_parent)),
    (MTIA, "Q08"): (ORPHANS, of_one(work_without_a_call)),
    (WORKERS_0, "H02"): (IDLE, of_one(lambda t: idle_in_ranges_ns(t, t.window(), LOADER.pattern, 6))),
    (WORKERS_0, "K09"): (number("host_per_step_ns"), of_one(lambda t: range_time_ns(t, r"^Optimizer\.step#", 6))),
    (WORKERS_0, "H01"): (IDLE, of_one(lambda t: host_bound_idle_ns(t, t.window(), 6))),
    (WORKERS_0, "C06"): (number("host_per_step_ns"), of_one(lambda t: zero_fills_ns(t, 6))),
    (WORKERS_0, "C01"): (number("time_per_step_ns"), of_one(lambda t: pageable_copies_ns(t, t.window(), 6))),
    (WORKERS_4, "Q06"): (SPREAD, of_one(step_spread_pct)),
    (WORKERS_4, "H01"): (IDLE, of_one(lambda t: host_bound_idle_ns(t, t.window(), 6))),
    (WORKERS_4, "C01"): (number("time_per_step_ns"), of_one(lambda t: pageable_copies_ns(t, t.window(), 6))),
    (WORKERS_4, "C06"): (number("host_per_step_ns"), of_one(lambda t: zero_fills_ns(t, 6))),
    (CAPTURE, "Q06"): (COMPLETE, of_one(complete_steps)),
    (NCCL, "H01"): (IDLE, of_one(lambda t: host_bound_idle_ns(t, t.window(), 3))),
    (NCCL, "L02"): (number("copies_per_step"), of_one(lambda t: small_copies_per_step(t, t.window(), 3))),
    (BACKWARD, "Q06"): (RECORDED, of_one(step_count)),
    (EVENT_SYNC, "Q06"): (RECORDED, of_one(step_count)),
    (EVENT_SYNC, "Q08"): (COVERED, of_one(work_with_an_operator_pct)),
    (MI250, "Q06"): (COMPLETE, of_one(complete_steps)),
    (MI250, "Q07"): (SET_UP, of_one(set_up_ns)),
    (MI250, "H01"): (IDLE, of_one(lambda t: idle_without_code_loading_ns(t, t.window(), 1))),
    (MI250, "H10"): (number("moves_per_step"), of_one(fills_moved_to_the_device)),
    (RANK_34, "Q06"): (RECORDED, of_one(step_count)),
    (NON_GPU, "Q06"): (RECORDED, of_one(step_count)),
    (TRITON, "Q06"): (RECORDED, of_one(step_count)),
    (SAMPLED, "Q06"): (RECORDED, of_one(step_count)),
    (CONTROL, "M01"): (EXPOSED, of_one(lambda t: exposed_communication_ns(t, t.window(), 6))),
    (CONTROL, "L03"): (number("kernels"), of_one(lambda t: launches_in_range(t, "^## forward:over_arch ##$"))),
    (TEST, "Q06"): (SPREAD, of_one(lambda t: step_spread_pct(t, 1))),
    (TEST, "K06"): (number("time_pct_of_compute"), of_one(lambda t: float_products_pct(t, t.window(1)))),
    (TEST, "C05"): (MOVING_TIME, of_one(lambda t: moving_ns(t, t.window(1), 5))),
    (TEST, "K04"): (number("lost_per_step_ns"), of_one(lambda t: empty_tails_ns(t, t.window(1), 5))),
    ("modern", "Q06"): (RANKS, exactly_one_whole_step),
    ("odd", "Q06"): (RANKS, exactly_one_whole_step),
    ("modern", "Q03"): (COUNT, worlds_named),
    ("modern", "Q04"): (COUNT, rows_past_their_parent_in_all),
    ("modern", "Q09"): (COUNT, recordings_without_a_rank_of_their_own),
    ("odd", "Q03"): (COUNT, lambda traces: 1 + recordings_without_a_rank_of_their_own(traces)),
    ("odd", "Q09"): (COUNT, recordings_without_a_rank_of_their_own),
    ("trace_diff", "Q03"): (COUNT, worlds_named),
}

# Findings of a folder that are those of one of its files.
SAME_AS = {
    "modern": {"Q08": MI300_RESNET, "H02": OWL, "Q10": A100, "M01": A100, "H01": WORKERS_4, "K07": OWL,
               "C06": WORKERS_4, "C05": A100, "H13": H100},
    "odd": {"Q07": MI250, "Q08": EVENT_SYNC, "H01": MI250, "H10": MI250},
    "trace_diff": {"Q06": TEST, "K06": TEST, "C05": TEST, "M01": CONTROL, "K04": TEST, "L03": CONTROL},
    "dlrm8": dict.fromkeys(["Q06", "Q08", "L01", "H02", "K09", "H01", "M06"], DLRM),
}


# The table ---------------------------------------------------------------------------------------

RECOMPUTED, REASON, CELLS = 9, 11, 12


def files_of(path):
    """A file, or the files of a folder by name (not those of folders in it)."""
    if os.path.isfile(path):
        return [path]
    names = sorted(name for name in os.listdir(path) if name.endswith((".json", ".json.gz")))
    return [os.path.join(path, name) for name in names]


def rows_of(lines):
    """Line number and cells of each row, the marks around a trace's name taken off."""
    for at, line in enumerate(lines):
        cells = [cell.strip() for cell in line.strip().split("|")[1:-1]]
        if len(cells) == CELLS and cells[0].startswith("`"):
            yield at, [cells[0].strip("`")] + cells[1:]


class Figures:
    """Figures by trace and rule, each made once, of the traces below one folder. What was read of the
    last trace is kept for the next figure."""

    def __init__(self, folder):
        self.folder, self.made, self.trace, self.read = folder, {}, None, []

    def traces(self, trace):
        if trace != self.trace:
            self.trace, self.read = trace, []
            for path in files_of(os.path.join(self.folder, trace)):
                documents = read_documents(path)
                self.read += [Trace(d) for d in documents if isinstance(d, dict) and "traceEvents" in d]
        return self.read

    def figure(self, trace, rule):
        if (trace, rule) not in self.made:
            self.made[trace, rule] = CHECKS[trace, rule][1](self.traces(trace))
        return self.made[trace, rule]


def compare(figures, cells):
    """Name, given and recomputed figure of a row, and by how many percent the given one is off; None
    where this script has no figure for it."""
    trace, rule = SAME_AS.get(cells[0], {}).get(cells[1], cells[0]), cells[1]
    if (trace, rule) not in CHECKS:
        return None
    name, pattern, column, factor = CHECKS[trace, rule][0]
    found = pattern.search(cells[column])
    if not found:
        return None
    given, own = float(Decimal(found.group(1)) * factor), figures.figure(trace, rule)
    off = 100 * (given - own) / own if own else (0.0 if given == own else float("inf"))
    return name, given, own, off


def plain(value):
    """Up to three decimals, and none where there are none."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def with_cell(line, column, text):
    """The line with one cell replaced and everything else as it was."""
    parts = line.split("|")
    parts[column + 1] = f" {text} "
    return "|".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("fixtures", help="a folder that holds `traces`")
    parser.add_argument("table", nargs="?", default="testdata/public_findings/README.md")
    parser.add_argument("--write", action="store_true", help="fill the column recomputed of the table")
    arguments = parser.parse_args()
    with open(arguments.table, encoding="utf-8", newline="") as file:
        lines = file.read().split("\n")
    figures, wrong, count = Figures(os.path.join(arguments.fixtures, "traces")), 0, 0
    for at, cells in rows_of(lines):
        count += 1
        compared = compare(figures, cells)
        if compared is None:
            print(f"{cells[0]}\t{cells[1]}\tno figure")
            wrong += 1
            continue
        name, given, own, off = compared
        explained = "The figure differs" in cells[REASON]
        says = "agrees" if abs(off) <= 2 else f"{off:+.2f} %, {'explained' if explained else 'NOT EXPLAINED'}"
        wrong += abs(off) > 2 and not explained
        print(f"{cells[0]}\t{cells[1]}\t{name} {plain(given)}\t{plain(own)}\t{says}")
        lines[at] = with_cell(lines[at], RECOMPUTED, f"{name} {plain(own)}; given {plain(given)} ({off:+.2f} %)")
    print(f"{count} rows, {wrong} without a figure or off by more than 2 % without a reason")
    if arguments.write:
        with open(arguments.table, "w", encoding="utf-8", newline="") as file:
            file.write("\n".join(lines))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
