"""Recomputes the main figure of each finding on the public traces from the raw JSON, without any code of rowmill.

    python bench/compare/findings_truth.py FIXTURES [TABLE] [--write]

FIXTURES is the folder that holds `traces` (the tests' ROWMILL_FIXTURES); TABLE is by default
docs/findings-on-public-traces.md. For each of its rows, this reads the trace, recomputes what the rule of the row counts
or adds up, compares that with the row's figures, and prints a line:

    trace  rule  figure  given  recomputed  agrees

`--write` puts the same into the table's column *recomputed*. Times are integer nanoseconds: decimals are read as
text, so that no digit is rounded. What is said is held against the rows of the file alone: categories, names, times,
correlation ids, arguments. A figure agrees if it differs by at most 2 % (or 1 of a count below 50); `savings` come from
what-ifs on a dependency graph and are not recomputed. Exits with 1 if a figure does not agree.
"""

import bisect
import collections
import gzip
import io
import json
import re
import sys
import tarfile
from decimal import Decimal
from pathlib import Path

KERNEL, COPY, SET, OPERATOR, RANGE, CALL = "kernel", "copy", "set", "operator", "range", "call"
KINDS = {
    "kernel": KERNEL, "Kernel": KERNEL, "gpu_memcpy": COPY, "Memcpy": COPY, "gpu_memset": SET, "Memset": SET,
    "cpu_op": OPERATOR, "Operator": OPERATOR, "user_annotation": RANGE,
    "cuda_runtime": CALL, "Runtime": CALL, "cuda_driver": CALL, "mtia_runtime": CALL,
}
DEVICE = {KERNEL, COPY, SET}
STEP = re.compile(r"ProfilerStep#(\d+)$")
SET_UP = {
    "cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaMallocHost", "cudaFreeHost", "cudaModuleLoadData", "cuModuleLoadData",
    "cuModuleLoadDataEx", "cudaHostRegister", "hipMalloc", "hipFree", "hipHostMalloc", "hipModuleLoad",
    "Runtime Triggered Module Loading", "Lazy Function Loading",
}
SYNC = re.compile(r"(cuda|cu|hip)(Stream|Device|Event|Ctx|Thread)Synchronize|^synchronizeStream$")
INPUT = ("DataLoader", "load_batch", "copy_batch", "next_batch", "get_batch")
LAUNCH = re.compile(
    r"^(cuda|cu|hip)((Drv|Ext|ExtModule|Module)?Launch(Cooperative)?Kernel(Ex|ExC|MultiDevice)?|GraphLaunch"
    r"|Memcpy(Async|PeerAsync|WithStream|FromSymbol|ToSymbol)?|Memset(Async)?)(_pt[sd][zs])?(_v\d+)?$"
)
COMMUNICATION = (
    "nccl", "rccl", "hccl", "oneccl", "msccl", "nvshmem", "void deep_ep::", "deep_ep::", "void vllm::cross_device_reduce",
    "void sglang::cross_device_reduce", "void c10d::symmetric_memory", "void symm_mem::",
)


class Row:
    __slots__ = ("kind", "name", "start", "end", "pid", "tid", "args", "category", "order")

    def __init__(self, event, base, order):
        self.category = event.get("cat", "")
        self.name = str(event.get("name", ""))
        self.kind = kind_of(self.category, self.name)
        self.start = nanoseconds(event["ts"]) + base
        self.end = self.start + max(0, nanoseconds(event.get("dur", 0)))
        self.pid, self.tid = event.get("pid"), event.get("tid")
        self.args = event.get("args") or {}
        self.order = order

    @property
    def duration(self):
        return self.end - self.start

    def number(self, *keys):
        for key in keys:
            if isinstance(self.args.get(key), (int, Decimal)):
                return int(self.args[key])
        return None

    @property
    def device(self):
        return self.number("device") if self.number("device") is not None else self.pid

    @property
    def stream(self):
        return self.number("stream") if self.number("stream") is not None else self.tid


def kind_of(category, name):
    if category == "mtia_ccp_events":
        return {"dma_request": COPY, "event_wait": "wait"}.get(name, KERNEL)
    return KINDS.get(category, "other")


def nanoseconds(value):
    return int(Decimal(str(value)) * 1000)


def union(spans):
    merged = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def length(spans):
    return sum(end - start for start, end in spans)


def intersection(a, b):
    found, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            found.append([start, end])
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return found


def difference(a, b):
    return subtract(a, intersection(a, b))


def subtract(a, inside):
    found, at = [], 0
    for start, end in a:
        here = start
        while at < len(inside) and inside[at][1] <= end:
            if here < inside[at][0]:
                found.append([here, inside[at][0]])
            here = inside[at][1]
            at += 1
        if here < end:
            found.append([here, end])
    return found


class Trace:
    """One rank's file, with the window a finding looked at."""

    def __init__(self, document, name):
        self.name = name
        self.document = document if isinstance(document, dict) else {"traceEvents": document}
        base = int(self.document.get("baseTimeNanoseconds", 0) or 0)
        events = self.document["traceEvents"]
        self.rows = [
            Row(event, base, order)
            for order, event in enumerate(events)
            if event.get("ph") == "X" and "ts" in event and "dur" in event
        ]
        info = self.document.get("distributedInfo") or {}
        self.rank = info.get("rank")
        self.world = info.get("world_size")
        self.link()
        self.window()

    def link(self):
        def correlation(row):
            return row.number("correlation")

        self.calls = collections.defaultdict(list)
        for row in self.rows:
            if row.kind == CALL and correlation(row) is not None:
                self.calls[correlation(row)].append(row)
        self.work = collections.defaultdict(list)
        for row in self.rows:
            if row.kind in DEVICE and correlation(row) is not None:
                self.work[correlation(row)].append(row)
        self.correlation = correlation

    def call(self, row):
        """The call that launched a row: a kernel launch before other calls of the id."""
        known = self.calls.get(self.correlation(row), [])
        launches = [call for call in known if LAUNCH.match(call.name)] or known
        return min(launches, key=lambda call: call.order) if launches else None

    def is_whole(self, row, is_first, is_last):
        """A first step in which work ran whose launch is missing, and a last one of whose launches one has no work, were
        cut by the recording."""
        if is_first and self.has_links:
            orphans = (one for one in self.rows if one.kind in DEVICE and row.start <= one.start < row.end)
            if any(self.call(one) is None for one in orphans):
                return False
        if is_last and self.has_links:
            calls = (one for one in self.rows if one.kind == CALL and row.start <= one.start < row.end)
            if any(LAUNCH.match(one.name) and not self.work.get(self.correlation(one)) for one in calls):
                return False
        return row.args.get("finished") is not False

    def window(self):
        """The whole steps; everything recorded where there are fewer than two."""
        steps = {}
        for row in self.rows:
            found = STEP.match(row.name)
            if found and row.kind in (OPERATOR, RANGE):
                steps.setdefault(int(found.group(1)), row)
        self.all_steps = sorted(steps.values(), key=lambda row: row.start)
        self.has_links = any(row.kind in DEVICE and self.call(row) is not None for row in self.rows)
        last = len(self.all_steps) - 1
        self.whole = [row for at, row in enumerate(self.all_steps) if self.is_whole(row, at == 0, at == last)]
        self.steps = self.whole if len(self.whole) >= 2 else self.all_steps
        lost = [row.start for row in self.rows]
        zero = int(self.document.get("baseTimeNanoseconds", 0) or 0)
        is_lost = lost and min((t for t in lost if t != zero), default=0) > zero + 86_400_000_000_000
        self.lost = zero if is_lost else None
        if len(self.whole) >= 2:
            self.start, self.end = self.steps[0].start, self.steps[-1].end
        else:
            counted = [row for row in self.rows if row.category not in ("overhead", "Trace") and row.start != self.lost]
            self.start = min((row.start for row in counted), default=0)
            self.end = max((row.end for row in counted), default=0)
        self.device_rows = sorted(
            (row for row in self.rows if row.kind in DEVICE and row.start < self.end and row.end > self.start
             and row.start != self.lost),
            key=lambda row: (row.start, row.order),
        )
        self.step_count = max(1, len(self.steps))
        self.busy_ = None

    def length(self):
        return self.end - self.start

    def clip(self, row):
        return [max(row.start, self.start), min(row.end, self.end)]

    def union(self, rows):
        return union(self.clip(row) for row in rows)

    def busy(self):
        if self.busy_ is None:
            self.busy_ = self.union(self.device_rows)
        return self.busy_

    def inside(self, row):
        return self.start <= row.start < self.end

    def named(self, test, kinds):
        return [row for row in self.rows if row.kind in kinds and self.inside(row) and test(row.name)]

    def outermost(self, rows):
        found, ends = [], {}
        for row in sorted(rows, key=lambda row: (row.start, -row.end)):
            key = (row.pid, row.tid)
            if row.start >= ends.get(key, row.start):
                found.append(row)
                ends[key] = row.end
        return found

    def within(self, outer, kinds, test=lambda name: True):
        """Rows of the host inside rows of the same thread."""
        threads = self.threads()
        found = {}
        for row in outer:
            rows, starts = threads[(row.pid, row.tid)]
            at = bisect.bisect_left(starts, row.start)
            while at < len(rows) and rows[at].start <= row.end:
                one = rows[at]
                if one.end <= row.end and one is not row and one.kind in kinds and test(one.name):
                    found[one.order] = one
                at += 1
        return list(found.values())

    def threads(self):
        if not hasattr(self, "threads_"):
            threads = collections.defaultdict(list)
            for row in self.rows:
                if row.kind in (OPERATOR, RANGE, CALL):
                    threads[(row.pid, row.tid)].append(row)
            self.threads_ = {}
            for key, rows in threads.items():
                rows.sort(key=lambda row: (row.start, -row.end, row.order))
                self.threads_[key] = (rows, [row.start for row in rows])
        return self.threads_

    def around(self, row, kinds=(OPERATOR, RANGE)):
        """What encloses a row of the host, the innermost first."""
        rows, starts = self.threads()[(row.pid, row.tid)]
        at = bisect.bisect_right(starts, row.start)
        before = rows[max(0, at - 4000):at]
        found = [one for one in before if one.end >= row.end and one is not row and one.kind in kinds]
        return sorted(found, key=lambda one: one.duration)

    def launched_in(self, outer):
        """Device rows whose launching call lies inside one of some rows of the host."""
        calls = {row.order for row in self.within(outer, (CALL,))}
        found = []
        for row in self.device_rows:
            call = self.call(row)
            if call is not None and call.order in calls:
                found.append(row)
        return found

    def kernels(self):
        return [row for row in self.device_rows if row.kind == KERNEL]

    def compute(self):
        return [row for row in self.kernels() if not is_communication(row)]

    def communication(self):
        return [row for row in self.device_rows if is_communication(row)]

    def gaps(self):
        """Stretches without work of a device, with the row that ends each; window's edges aside."""
        found = []
        devices = collections.defaultdict(list)
        for row in self.device_rows:
            devices[row.device].append(row)
        for device, rows in devices.items():
            until = None
            for row in rows:
                if until is not None and row.start > max(until, self.start):
                    found.append((max(until, self.start), min(row.start, self.end), row))
                until = max(until or 0, row.end)
        return found


def step(row):
    return int(STEP.match(row.name).group(1))


def is_communication(row):
    return row.kind == KERNEL and ("Collective name" in row.args or row.name.startswith(COMMUNICATION))


# ---- reading ----


def documents(path):
    if path.is_dir():
        # As the command line does: files directly inside, traces by their content.
        for one in sorted(path.iterdir()):
            if one.is_file():
                yield from documents(one)
        return
    data = path.read_bytes()
    if path.name.endswith((".tar.gz", ".tgz")):
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in sorted(archive.getmembers(), key=lambda member: member.name):
                if member.isfile():
                    yield from parsed(archive.extractfile(member).read(), member.name)
        return
    yield from parsed(data, path.name)


def parsed(data, name):
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        document = json.loads(data.decode("utf-8", "replace"), parse_float=Decimal, strict=False)
    except (ValueError, EOFError, OSError):
        return
    if isinstance(document, dict) and isinstance(document.get("traceEvents"), list):
        yield name, document


def traces(path):
    found = [Trace(document, name) for name, document in documents(path)]
    return found


# ---- the rules ----
#
# Each takes the traces of the row's job, cut to its window, and gives {figure: value}: figures have the names of the row's.
# Of several ranks, the one with most of it is told.


def most(per_rank, by):
    return max(per_rank, key=lambda figures: figures[by]) if per_rank else {}


def l08(job):
    def of(trace):
        idle = 0
        for start, end, row in trace.gaps():
            call = trace.call(row)
            if call is None:
                continue
            if call.start <= start and end - start < 30_000:
                continue
            launched = min(max(call.end, start), end)
            rest = end - launched
            is_delay = start < launched and rest < 30_000
            if not is_delay and rest > (end - start) / 2:
                idle += end - start
        return {"idle_per_step_ns": idle / trace.step_count, "idle": idle}

    return most([of(trace) for trace in job], "idle")


def host_work(trace):
    """Idle time in which the launching thread runs operators or calls: neither waits nor fetches."""
    spans = {}
    for key, (rows, _) in trace.threads().items():
        own = [(span, row) for span, row in innermost(rows) if row.kind in (OPERATOR, CALL) and not STEP.match(row.name)]
        work = union(span for span, _ in own)
        sync = union((row.start, row.end) for row in rows if row.kind == CALL and SYNC.search(row.name))
        fetch = union((row.start, row.end) for row in rows if any(part in row.name for part in INPUT))
        spans[key] = difference(difference(work, sync), fetch)
    apart = union(
        (row.start, row.end) for row in trace.rows if row.category == "overhead" or row.name in SET_UP and not steady(trace, row)
    )
    idle = collections.defaultdict(list)
    for start, end, row in trace.gaps():
        call = trace.call(row)
        if call is None or call.start <= start and end - start < 30_000:
            continue
        launched = min(max(call.end, start), end)
        idle[(call.pid, call.tid)].append((start, launched))
    total = 0
    for key, gaps in idle.items():
        total += length(difference(intersection(union(gaps), spans.get(key, [])), apart))
    devices = len({row.device for row in trace.device_rows}) or 1
    return total / devices


def innermost(rows):
    """Stretches of a thread with the innermost row of each; `rows` by start, longer ones first."""
    found, open_rows, at = [], [], None

    def until(time):
        nonlocal at
        while open_rows and open_rows[-1].end <= time:
            row = open_rows.pop()
            if at < row.end:
                found.append(((at, row.end), row))
                at = row.end
        if open_rows and at < time:
            found.append(((at, time), open_rows[-1]))
            at = time

    for row in rows:
        if open_rows:
            until(row.start)
        at = row.start
        open_rows.append(row)
    if open_rows:
        until(max(row.end for row in rows))
    return found


def steady(trace, row):
    steps = [one for one in trace.steps if one.start <= row.start < one.end]
    return bool(steps) and steps[0] is not trace.steps[0]


def h01(job):
    return most(
        [{"idle_per_step_ns": host_work(trace) / trace.step_count, "idle_pct": 100 * host_work(trace) / max(1, trace.length())}
         for trace in job], "idle_per_step_ns")


def h02(job):
    def of(trace):
        threads = {(call.pid, call.tid) for row in trace.device_rows for call in [trace.call(row)] if call}
        rows = trace.named(lambda name: any(part in name for part in INPUT), (OPERATOR, RANGE))
        rows = [row for row in trace.outermost(rows) if (row.pid, row.tid) in threads]
        spans = [trace.clip(row) for row in rows]
        waited = sum(length(difference([span], trace.busy())) for span in spans if span[0] < span[1])
        return {"idle_per_step_ns": waited / trace.step_count, "fetching_per_step_ns": length(spans) / trace.step_count,
                "idle_pct": 100 * waited / max(1, trace.length())}

    return most([of(trace) for trace in job], "idle_per_step_ns")


def l01(job):
    def of(trace):
        streams, kernels, tiny, periods, lost = collections.defaultdict(list), 0, 0, 0, 0
        for key, works in trace.work.items():
            row = works[0]
            call = trace.call(row)
            if len(works) == 1 and row.kind == KERNEL and call is not None and trace.inside(call):
                streams[(row.device, row.stream)].append((call, row))
                kernels += 1
        for launches in streams.values():
            launches.sort(key=lambda one: (one[0].start, one[0].order))
            before = None
            for call, row in launches:
                began = before is None or max(before[1].start, before[0].end) <= call.start
                if began and row.duration < call.duration:
                    tiny += 1
                    period = call.start - before[0].start if before else call.duration
                    periods += period
                    lost += max(0, period - row.duration)
                before = (call, row)
        idle = sum(end - start for start, end, _ in trace.gaps())
        return {"tiny_launches_per_step": tiny / trace.step_count, "tiny_launch_pct": 100 * tiny / max(1, kernels),
                "launch_period_ns": periods / max(1, tiny), "idle_pct": 100 * idle / max(1, trace.length()),
                "lost": min(lost, idle)}

    return most([of(trace) for trace in job], "lost")


def k09(job):
    def of(trace):
        regions = trace.outermost(
            trace.named(lambda name: name.startswith("Optimizer.step#") or "_single_tensor_" in name, (OPERATOR, RANGE)))
        many = [row for row in regions if len(trace.launched_in([row])) > 32]
        count = sum(len(trace.launched_in([row])) for row in many)
        host = sum(row.duration for row in many)
        return {"kernels_each": count // max(1, len(many)), "host_per_step_ns": host / trace.step_count}

    return most([of(trace) for trace in job], "host_per_step_ns")


def c06(job):
    def of(trace):
        regions = trace.outermost(trace.named(lambda name: "zero_grad" in name, (OPERATOR, RANGE)))
        fills = trace.within(regions, (OPERATOR,), lambda name: name in ("aten::zero_", "aten::_foreach_zero_"))
        work = trace.launched_in(fills)
        return {"fills_each": len(fills) / max(1, len(regions)),
                "host_per_step_ns": sum(row.duration for row in fills) / trace.step_count,
                "device_per_step_ns": sum(row.duration for row in work) / trace.step_count}

    return most([of(trace) for trace in job], "host_per_step_ns")


def c01(job):
    def of(trace):
        copies = [row for row in trace.device_rows if row.kind == COPY and "Pageable" in row.name]
        calls = [trace.call(row) for row in copies]
        longest = [max(row.duration, call.duration if call else 0) for row, call in zip(copies, calls)]
        moved = sum(row.number("bytes") or 0 for row in copies)
        device = sum(row.duration for row in copies)
        return {"copies_per_step": len(copies) / trace.step_count, "time_per_step_ns": sum(longest) / trace.step_count,
                "blocked_max_ns": max((call.duration for call in calls if call), default=0),
                "gb_per_s": moved / max(1, device)}

    return most([of(trace) for trace in job], "time_per_step_ns")


def c02(job):
    def of(trace):
        calls = trace.named(
            lambda name: re.match(r"(cuda|hip)Mem(cpy|set)(2D|3D|Peer|WithStream|DtoH|HtoD)?$", name) is not None, (CALL,))
        return {"calls_per_step": len(calls) / trace.step_count,
                "blocked_per_step_ns": sum(row.duration for row in calls) / trace.step_count}

    return most([of(trace) for trace in job], "blocked_per_step_ns")


MOVERS = {"aten::copy_", "aten::cat", "aten::_cat", "aten::contiguous", "aten::clone", "aten::stack", "aten::_to_copy",
          "aten::transpose_copy"}
MOVER = re.compile(
    r"CatArrayBatchedCopy|direct_copy_kernel|copy_device_to_device|transpose|nchwToNhwc|nhwcToNchw|permute_2D")


def owner(trace, row):
    call = trace.call(row)
    around = trace.around(call, (OPERATOR,)) if call else []
    return around[0] if around else None


def c05(job):
    def of(trace):
        compute = trace.compute()
        copies = [row for row in trace.device_rows if row.kind == COPY and "DtoD" in row.name]

        def moves(row):
            known = owner(trace, row)
            return MOVER.search(row.name) or known is not None and known.name in MOVERS

        moving = [row for row in compute if moves(row)] + copies
        total = sum(row.duration for row in compute + copies)
        spent = sum(row.duration for row in moving)
        return {"moving_per_step_ns": spent / trace.step_count, "moving_pct": 100 * spent / max(1, total), "moving": spent}

    return most([of(trace) for trace in job], "moving")


PRODUCT = re.compile(r"[gG]emm|GEMM|conv|Conv|scudnn|[wd]grad|Cijk_|nvjet")
NO_PRODUCT = re.compile(r"nchwToNhwc|nhwcToNchw|im2col|[cC]onvert|copy|reduce|embedding|elementwise")
UNITS = re.compile(r"s884|h884|s1688|h1688|s16816|h16816|tensor_?op|tensor16x8|hmma|gmma|xmma|tf32|_MI\d|xdl|gtcx|nvjet")
THIN = re.compile(r"gemv|gemmk1|gemmSN|grouped_direct|depthwise|cgemm")


def is_product(row):
    return bool(PRODUCT.search(row.name.replace("fbgemm", ""))) and not NO_PRODUCT.search(row.name)


def k06(job):
    def of(trace):
        # Only devices that have tensor cores or matrix cores.
        major = max((device.get("computeMajor") or 0 for device in trace.document.get("deviceProperties") or []), default=0)
        if major < 7:
            return {"time_per_step_ns": 0, "time_pct_of_compute": 0}
        plain = [row for row in trace.compute() if is_product(row) and not UNITS.search(row.name)
                 and not THIN.search(row.name)]
        spent = sum(row.duration for row in plain)
        total = sum(row.duration for row in trace.compute())
        return {"time_per_step_ns": spent / trace.step_count, "time_pct_of_compute": 100 * spent / max(1, total)}

    return most([of(trace) for trace in job], "time_per_step_ns")


STEP_OF = {"c10::Half": 8, "c10::BFloat16": 8}


def k07(job):
    def of(trace):
        spent = 0
        for row in trace.compute():
            known = owner(trace, row) if is_product(row) else None
            if known is None:
                continue
            dims, types = known.args.get("Input Dims") or [], known.args.get("Input type") or []
            matrices = [(size, of) for size, of in zip(dims, types)
                        if isinstance(size, list) and len(size) >= 2 and all(isinstance(n, int) for n in size)][-2:]
            if len(matrices) < 2 or matrices[0][1] not in STEP_OF:
                continue
            if any(n % STEP_OF[matrices[0][1]] for size, _ in matrices for n in size[-2:]):
                spent += row.duration
        return {"time_per_step_ns": spent / trace.step_count}

    return most([of(trace) for trace in job], "time_per_step_ns")


def k04(job):
    def of(trace):
        devices = {device.get("id"): device for device in trace.document.get("deviceProperties") or []}
        lost = count = 0
        for row in trace.compute():
            device, grid, block = devices.get(row.device), row.args.get("grid"), row.args.get("block")
            occupancy = row.args.get("est. achieved occupancy %")
            if not device or not grid or not block or not occupancy:
                continue
            threads = block[0] * block[1] * block[2]
            resident = round(float(occupancy) / 100 * (device.get("maxThreadsPerMultiprocessor") or 2048) / threads)
            wave = resident * device.get("numSms", 0)
            waves = grid[0] * grid[1] * grid[2] / wave if wave else 0
            tail = waves % 1
            if 1 < waves < 4 and 0 < tail < 0.3:
                count += 1
                lost += row.duration * (1 - waves / -(-waves // 1))
        return {"kernels_per_step": count / trace.step_count, "lost_per_step_ns": lost / trace.step_count}

    return most([of(trace) for trace in job], "lost_per_step_ns")


def m01(job):
    def of(trace):
        exposed = length(difference(trace.union(trace.communication()), trace.union(trace.compute())))
        return {"exposed_per_step_ns": exposed / trace.step_count, "exposed_pct": 100 * exposed / max(1, trace.length())}

    return most([of(trace) for trace in job], "exposed_per_step_ns")


EXCHANGE = ("sparse_data_dist", "all2all_data", "input_dist", "KJTAllToAll", "KJTList", "SplitsAllToAll", "sdd_preprocess",
            "all2all_id")


def m02(job):
    def of(trace):
        def is_input(row):
            call = trace.call(row)
            return call is not None and any(part in one.name for one in trace.around(call) for part in EXCHANGE)

        rows = [row for row in trace.communication() if is_input(row)]
        exposed = length(difference(trace.union(rows), trace.union(trace.compute())))
        return {"collectives_per_step": len(rows) / trace.step_count, "exposed_per_step_ns": exposed / trace.step_count}

    return most([of(trace) for trace in job], "exposed_per_step_ns")


def m06(job):
    """Collectives matched over ranks by their order on each rank."""
    orders = [sorted(trace.communication(), key=lambda row: row.start) for trace in job]
    fewest = min(len(order) for order in orders)
    last, delay = collections.Counter(), collections.Counter()
    for at in range(fewest):
        arrivals = sorted((order[at].start, trace.rank) for order, trace in zip(orders, job))
        last[arrivals[-1][1]] += 1
        delay[arrivals[-1][1]] += arrivals[-1][0] - arrivals[-2][0]
    rank = max(last, key=lambda one: (last[one], delay[one]))
    steps = job[0].step_count
    return {"rank": rank, "times_last": last[rank], "collectives": fewest, "delay_per_step_ns": delay[rank] / steps}


def l02(job):
    def of(trace):
        issued = []
        for row in trace.device_rows:
            call = trace.call(row) if row.kind == COPY else None
            if call is not None and len(trace.work[trace.correlation(row)]) == 1:
                around = trace.around(call)
                direction = re.search(r"(HtoD|DtoH|DtoD)", row.name)
                issued.append((call, row, (direction and direction.group(1), around[0].name if around else "")))
        issued.sort(key=lambda one: (str(one[0].tid), one[0].start))
        runs = []
        for one in issued:
            last = runs[-1][-1] if runs else None
            is_same = last and last[2] == one[2] and last[0].tid == one[0].tid and one[0].start - last[0].end < 50_000
            if is_same:
                runs[-1].append(one)
            else:
                runs.append([one])
        runs = [run for run in runs if len(run) >= 16
                and sorted(row.number("bytes") or 0 for _, row, _ in run)[len(run) // 2] < 65_536]
        copies = sum(map(len, runs))
        moved = sum(row.number("bytes") or 0 for run in runs for _, row, _ in run)
        lost = sum(max(0, run[-1][0].end - run[0][0].start - int(sum(r.number("bytes") or 0 for _, r, _ in run) / 25) - 5_000)
                   for run in runs)
        return {"copies_per_step": copies / trace.step_count, "runs_per_step": len(runs) / trace.step_count,
                "bytes_mean": moved / max(1, copies), "lost_per_step_ns": lost / trace.step_count}

    return most([of(trace) for trace in job], "lost_per_step_ns")


def l03(job, key):
    name = key.split(":", 1)[1]

    def of(trace):
        rows = trace.outermost(trace.named(lambda one: one == name, (OPERATOR, RANGE)))
        work = [trace.launched_in([row]) for row in rows]
        runs = max(1, len(rows))
        host = sum(row.duration for row in rows)
        device = sum(row.duration for rows in work for row in rows)
        kernels = len(work[0]) if work else 0
        # What launching graphs in its place would save, where the host takes longer than the device.
        gain = host - len(rows) * (10_000 + 100 * kernels) if host > device else 0
        return {"kernels": kernels, "runs_per_step": len(rows) / trace.step_count, "host_ns": host / runs,
                "device_ns": device / runs, "gain": gain}

    return most([of(trace) for trace in job], "gain")


def h09(job):
    def of(trace):
        queries = trace.named(lambda name: name.endswith("EventQuery"), (CALL,))
        records = trace.named(lambda name: name.endswith("EventRecord"), (CALL,))
        spent = sum(row.duration for row in queries + records)
        return {"queries_per_step": len(queries) / trace.step_count, "time_pct": 100 * spent / max(1, trace.length())}

    return most([of(trace) for trace in job], "time_pct")


FILLS = {"aten::fill_", "aten::zero_", "aten::normal_", "aten::uniform_", "aten::random_", "aten::bernoulli_", "aten::arange",
         "aten::randperm"}


def h10(job):
    """Moves to the device directly behind a sibling whose innermost operator fills a tensor."""
    def of(trace):
        count = 0
        for rows, _ in trace.threads().values():
            operators = [row for row in rows if row.kind in (OPERATOR, RANGE)]
            for at, row in enumerate(operators):
                if row.name not in ("aten::to", "aten::_to_copy") or not trace.inside(row):
                    continue
                if any(one.name in ("aten::to", "aten::_to_copy") for one in trace.around(row)):
                    continue
                copies = [one for one in trace.launched_in([row]) if one.kind == COPY and "HtoD" in one.name]
                before = operators[at - 1] if at else None
                if copies and before is not None and before.name in FILLS and before.end <= row.start:
                    count += 1
        return {"moves_per_step": count / trace.step_count}

    return most([of(trace) for trace in job], "moves_per_step")


# ---- the quality of recordings ----


def q(job, key, text):
    kind = key.split(":", 1)[1]
    first = job[0]
    if kind == "few-steps":
        few = next((trace for trace in job if trace.all_steps and len(trace.whole) < 3), first)
        given = re.search(r"(\d+) whole steps of (\d+) recorded", text)
        return {"whole": len(few.whole), "recorded": len(few.all_steps)}, {"whole": int(given[1]), "recorded": int(given[2])}
    if kind == "unsteady-steps":
        trace = max((trace for trace in job if trace.steps), key=spread)
        lengths = sorted(row.duration for row in trace.steps)
        given = re.search(r"vary by ([\d.]+) %: ([\d.]+) ms to ([\d.]+) ms", text)
        return (
            {"spread_pct": spread(trace), "least_ms": lengths[0] / 1e6, "most_ms": lengths[-1] / 1e6},
            {"spread_pct": float(given[1]), "least_ms": float(given[2]), "most_ms": float(given[3])},
        )
    if kind == "lost-device-rows":
        best = (0, 0)
        for trace in job:
            launches = [row for row in trace.rows if row.kind == CALL and LAUNCH.match(row.name)]
            lost = [row for row in launches if not trace.work.get(trace.correlation(row))]
            if any(row.kind in DEVICE for row in trace.rows):
                best = max(best, (len(lost), len(launches)))
        given = re.search(r"(\d+) of (\d+) launches", text)
        return {"lost": best[0], "launches": best[1]}, {"lost": int(given[1]), "launches": int(given[2])}
    if kind == "low-coverage":
        trace = next((trace for trace in job if trace.device_rows and coverage(trace) < 90), first)
        orphans = re.search(r"(\d+) pieces of device work have no", text)
        given = {"covered_pct": float(re.search(r"Only ([\d.]+) %", text)[1])}
        found = {"covered_pct": coverage(trace)}
        if orphans:
            found["orphans"] = sum(trace.call(row) is None for row in trace.device_rows)
            given["orphans"] = int(orphans[1])
        return found, given
    if kind == "warm-up":
        trace = first
        rows = [row for row in trace.rows if row.name in SET_UP and trace.inside(row)]
        return {"set-up_ms": length(union((row.start, row.end) for row in rows)) / 1e6}, {
            "set-up_ms": float(re.search(r"take ([\d.]+) ms", text)[1])}
    if kind == "mixed-jobs":
        worlds = sorted({trace.world for trace in job if trace.world})
        given = re.search(r"worlds of ([\d, ]+) ranks", text)[1]
        return {"worlds": ",".join(map(str, worlds))}, {"worlds": given.replace(" ", "")}
    if kind == "missing-ranks":
        given = re.search(r"(\d+) of (\d+) ranks", text)
        return {"there": len(job), "of": max(trace.world or 0 for trace in job)}, {"there": int(given[1]), "of": int(given[2])}
    if kind == "profiler-messages":
        return {"errors": max(len(trace.document.get("ERROR") or []) for trace in job)}, {
            "errors": int(re.search(r"(\d+) × ERROR", text)[1])}
    if kind == "duplicate-ranks":
        ranks = [trace.rank for trace in job]
        return {"distinct": len(set(ranks)) == len(ranks) and None not in ranks}, {"distinct": False}
    if kind == "mixed-steps":
        numbers = {tuple(map(step, trace.all_steps)) for trace in job}
        return {"the same steps": len(numbers) == 1}, {"the same steps": False}
    if kind == "bad-nesting":
        trace = max(job, key=lambda trace: overhang(trace)[1])
        count, longest = overhang(trace)
        given = re.search(r"(\d+) host rows reach past their parent, by up to ([\d.]+) ms", text)
        return {"rows": count, "longest_ms": longest / 1e6}, {"rows": int(given[1]), "longest_ms": float(given[2])}
    return {}, {}


def overhang(trace):
    """Rows of the host that begin inside an earlier row and end behind it."""
    count = longest = 0
    for rows, _ in trace.threads().values():
        open_rows = []
        for row in rows:
            while open_rows and open_rows[-1] <= row.start:
                open_rows.pop()
            if open_rows and row.end > open_rows[-1]:
                count += 1
                longest = max(longest, row.end - open_rows[-1])
                open_rows.append(open_rows[-1])
            else:
                open_rows.append(row.end)
    return count, longest


def spread(trace):
    """Standard deviation over the mean of the steps' lengths, in percent."""
    lengths = [row.duration for row in trace.steps]
    mean = sum(lengths) / len(lengths)
    return 100 * (sum((one - mean) ** 2 for one in lengths) / max(1, len(lengths) - 1)) ** 0.5 / mean


def coverage(trace):
    """Device work whose launch lies inside an operator, or whose external id names one, in percent."""
    ids = {row.number("External id", "external id") for row in trace.rows if row.kind in (OPERATOR, RANGE)}
    found = 0
    for row in trace.device_rows:
        known = owner(trace, row) is not None
        found += known or row.number("External id", "external id") in ids - {None}
    return 100 * found / max(1, len(trace.device_rows))


RULES = {
    "L08": l08, "H01": h01, "H02": h02, "L01": l01, "K09": k09, "C06": c06, "C01": c01, "C02": c02, "C05": c05, "K06": k06,
    "K07": k07, "K04": k04, "M01": m01, "M02": m02, "M06": m06, "L02": l02, "H09": h09, "H10": h10,
}


# ---- the table ----


def cells(line):
    return line.rstrip("\n")[2:-2].split(" | ") if line.startswith("| `") else None


def given_figures(text):
    return {name: float(value) for name, _, value in (part.partition("=") for part in text.split("; ")) if value}


def agrees(found, given):
    if isinstance(given, (str, bool)):
        return found == given
    slack = 1 if abs(given) < 50 and float(given).is_integer() else 0
    return abs(found - given) <= max(0.02 * abs(given), slack, 0.002)


def recomputed(job, row):
    _, rule, key, _, _, _, _, text, figures = row[:9]
    key = key.strip("`").replace("¦", "|")
    if rule.startswith("Q"):
        return q(job, key, text)
    given = given_figures(figures)
    if rule == "L03":
        found = l03(job, key)
    else:
        found = RULES[rule](job) if rule in RULES else {}
    shared = [name for name in given if name in found]
    return {name: found[name] for name in shared}, {name: given[name] for name in shared}


def shown(value):
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def main():
    arguments = [one for one in sys.argv[1:] if one != "--write"]
    if not arguments:
        print(__doc__)
        return 2
    folder = Path(arguments[0]) / "traces"
    table = Path(arguments[1]) if len(arguments) > 1 else Path("docs/findings-on-public-traces.md")
    lines = table.read_text(encoding="utf-8").splitlines()
    jobs, wrong, without = {}, 0, 0
    for at, line in enumerate(lines):
        row = cells(line)
        if row is None:
            continue
        name = row[0].strip("`")
        if name not in jobs:
            jobs.clear()
            jobs[name] = traces(folder / name)
        found, given = recomputed(jobs[name], row)
        parts = []
        for figure, value in found.items():
            good = agrees(value, given[figure])
            wrong += not good
            print(f"{name}\t{row[1]}\t{figure}\t{shown(given[figure])}\t{shown(value)}\t{'yes' if good else 'NO'}")
            parts.append(f"{figure} {shown(value)}{'' if good else ' (not as given)'}")
        if not found:
            without += 1
            print(f"{name}\t{row[1]}\t-\t-\t-\tnot recomputed")
        row[9] = "; ".join(parts)
        lines[at] = "| " + " | ".join(row) + " |"
    print(f"{wrong} figures do not agree; {without} rows were not recomputed", file=sys.stderr)
    if "--write" in sys.argv:
        table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
