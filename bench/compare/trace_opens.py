"""Opens rowmill's own traces in Holistic Trace Analysis (traceinsight 0.6.1, pandas < 3) and checks their rows.

    python bench/compare/trace_opens.py DIR_OR_FILE...

Kineto files are found below each folder; each folder that holds some is opened as a whole, as its users do.
Prints one JSON object: per folder what the three analyses said, per file what was counted, and `failures`.
Exits with 1 if there is any failure, and if no Kineto file is found.
"""

import contextlib
import json
import os
import re
import sys
import traceback
from collections import defaultdict
from decimal import Decimal
from pathlib import Path

os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # Read by the library when it is imported.

ET_SCHEMA = "1.1.1-chakra.0.0.4"
THREE_DECIMALS = re.compile(r"-?\d+\.\d{3}")
# The library adds microseconds as floats; a nanosecond more or less per million is its own rounding.
TOLERANCE_US = Decimal("0.01")


def main():
    failures = []
    kineto, execution, folders = {}, {}, defaultdict(list)
    for path in files(sys.argv[1:], failures):
        content = json.loads(path.read_text(encoding="utf-8"), parse_float=text_of_float)
        if isinstance(content, dict) and "traceEvents" in content:
            kineto[path] = content
            folders[path.parent].append(path)
        elif isinstance(content, dict) and "nodes" in content:
            execution[path] = content
    if not kineto:
        failures.append("no Kineto trace found in: " + (" ".join(sys.argv[1:]) or "no arguments"))

    report = {"files": [], "folders": [], "failures": failures}
    busy_ns = {}
    for path, content in kineto.items():
        facts = check_rows(content, lambda text, path=path: failures.append(f"{path}: {text}"))
        busy_ns[path] = facts["busy_ns_by_step"]
        report["files"].append({"file": str(path), **facts})
    for path, content in execution.items():
        facts = check_execution_trace(
            content, kineto, lambda text, path=path: failures.append(f"{path}: {text}")
        )
        report["files"].append({"file": str(path), **facts})
        if path.parent in folders:
            failures.append(f"{path}: lies beside Kineto traces, where it would be read as rank 0")
    for folder, paths in folders.items():
        report["folders"].append(open_folder(folder, paths, kineto, busy_ns, failures))
    print(json.dumps(report, indent=2))
    return 1 if failures else 0


def files(arguments, failures):
    for argument in map(Path, arguments):
        if not argument.exists():
            failures.append(f"{argument}: does not exist")
            continue
        yield from sorted(argument.rglob("*.json")) if argument.is_dir() else [argument]


def text_of_float(text):
    """Times are kept as text, so that every digit is the file's own."""
    return Decimal(text) if THREE_DECIMALS.fullmatch(text) else float(text)


def nanoseconds(value, fail):
    if not isinstance(value, Decimal):
        fail(f"time {value!r} does not have exactly three decimals")
        return int(round(float(value) * 1000))
    return int(value * 1000)


# ---- the rows themselves ----


def check_rows(content, fail):
    slices = []
    for row in content["traceEvents"]:
        if row["ph"] == "X":
            start, length = (nanoseconds(row[key], fail) for key in ("ts", "dur"))
            slices.append((row, start, start + length))
    check_tracks(slices, fail)
    kernels = by_correlation(slices, "kernel", fail)
    launches = by_correlation(slices, "cuda_runtime", fail)
    check_launches(kernels, launches, fail)
    busy = check_busy(slices, kernels, fail)
    for key in ("schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds"):
        if key not in content:
            fail(f"has no {key}")
    return {
        "format": "kineto",
        "rank": content.get("distributedInfo", {}).get("rank"),
        "slices": len(slices),
        "kernels": len(kernels),
        "busy_ns_by_step": busy,
    }


def check_tracks(slices, fail):
    """Slices of one track nest or are apart; kernels are apart."""
    tracks = defaultdict(list)
    for row, start, end in slices:
        tracks[row["pid"], row["tid"]].append((start, -end, row))
    for track, rows in tracks.items():
        open_slices = []
        for start, negative_end, row in sorted(rows, key=lambda item: item[:2]):
            while open_slices and open_slices[-1][0] <= start:
                open_slices.pop()
            if -negative_end <= start:
                fail(f"{row['name']} at {start} ns lasts {-negative_end - start} ns")
            if open_slices:
                end, outer = open_slices[-1]
                if -negative_end > end:
                    fail(f"{row['name']} at {start} ns outlasts {outer['name']} around it on {track}")
                if row["cat"] == "kernel" or outer["cat"] == "kernel":
                    fail(f"{row['name']} at {start} ns overlaps {outer['name']} on {track}")
            open_slices.append((-negative_end, row))


def by_correlation(slices, category, fail):
    found = {}
    for row, start, end in slices:
        if row["cat"] == category:
            correlation = row["args"]["correlation"]
            if correlation in found:
                fail(f"correlation {correlation} belongs to two rows of category {category}")
            found[correlation] = (row, start, end)
    return found


def check_launches(kernels, launches, fail):
    if not kernels:
        fail("has no kernel rows")
    for correlation in kernels.keys() ^ launches.keys():
        fail(f"correlation {correlation} lacks its kernel or its launch")
    for correlation in kernels.keys() & launches.keys():
        (_, kernel_start, _), (_, _, launch_end) = kernels[correlation], launches[correlation]
        if launch_end != kernel_start:
            fail(f"launch {correlation} ends {kernel_start - launch_end} ns before its kernel starts")


def check_busy(slices, kernels, fail):
    """Kernel rows of each step sum to the busy time that the recorder counted as it went."""
    busy, inside = {}, 0
    for row, begin, end in slices:
        if not row["name"].startswith("ProfilerStep#"):
            continue
        within = [k for k in kernels.values() if begin <= k[1] and k[2] <= end]
        inside += len(within)
        total = sum(kernel_end - kernel_start for _, kernel_start, kernel_end in within)
        busy[row["name"]] = total
        if total != row["args"]["busy_ns"]:
            fail(f"{row['name']}: kernels sum to {total} ns, busy {row['args']['busy_ns']} ns")
    if inside != len(kernels):
        fail(f"{len(kernels) - inside} kernels lie in no step")
    return busy


# ---- the execution trace ----


def check_execution_trace(content, kineto, fail):
    if content.get("schema") != ET_SCHEMA:
        fail(f"schema: expected {ET_SCHEMA}, got {content.get('schema')}")
    nodes = content["nodes"]
    ids = {node["id"] for node in nodes}
    if len(ids) != len(nodes):
        fail("two nodes share an id")
    for node in nodes:
        if node["ctrl_deps"] not in ids:
            fail(f"node {node['id']}: parent {node['ctrl_deps']} does not exist")
    names = {}
    for node in nodes:
        rf_id = next(item["value"] for item in node["attrs"] if item["name"] == "rf_id")
        if rf_id:
            names[rf_id] = node["name"]
    linked = [path for path, other in kineto.items() if is_linked(names, other)]
    if not linked:
        fail("its rf_ids match the Record function ids of no Kineto trace")
    return {"format": "execution trace", "nodes": len(nodes), "linked": [str(p) for p in linked]}


def is_linked(names, kineto):
    rows = {
        row["args"]["Record function id"]: row["name"]
        for row in kineto["traceEvents"]
        if "Record function id" in row.get("args", {})
    }
    return bool(names) and all(rows.get(rf_id) == name for rf_id, name in names.items())


# ---- the three analyses ----


def open_folder(folder, paths, kineto, busy_ns, failures):
    said = {"folder": str(folder)}
    try:
        # The library prints as it goes; standard output is this script's report.
        with contextlib.redirect_stdout(sys.stderr):
            analyse(folder, paths, kineto, busy_ns, said)
    except BaseException as error:  # Its assertions and exits are what is being looked for.
        if isinstance(error, KeyboardInterrupt):
            raise
        traceback.print_exc()
        failures.append(f"{folder}: {type(error).__name__}: {error}")
    return said


def analyse(folder, paths, kineto, busy_ns, said):
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_dir=str(folder))
    ranks = {kineto[path]["distributedInfo"]["rank"]: path for path in paths}
    require(sorted(analysis.t.get_ranks()) == sorted(ranks), f"ranks {sorted(ranks)} expected")

    temporal = analysis.get_temporal_breakdown(visualize=False)
    said["temporal_breakdown"] = records(temporal)
    for row in said["temporal_breakdown"]:
        seen = steps_seen(busy_ns[ranks[row["rank"]]])
        expected = Decimal(sum(seen)) / 1000
        busy = Decimal(row["compute_time(us)"]) + Decimal(row["non_compute_time(us)"])
        require(
            abs(busy - expected) <= TOLERANCE_US,
            f"rank {row['rank']}: expected {expected} us busy, the library says {busy} us",
        )

    idle = analysis.get_idle_time_breakdown(ranks=sorted(ranks), visualize=False)[0]
    said["idle_time_breakdown"] = records(idle)
    waits = sum(row["idle_time"] for row in said["idle_time_breakdown"])
    gaps = sum(row["idle_time(us)"] for row in said["temporal_breakdown"])
    # It rounds each row to hundredths of a microsecond.
    rounding = 0.005 * len(said["idle_time_breakdown"])
    require(
        abs(waits - gaps) <= float(TOLERANCE_US) + rounding,
        f"idle {waits} us by categories, {gaps} us by the temporal breakdown",
    )

    said["critical_path"] = []
    for rank, path in sorted(ranks.items()):
        last = len(steps_seen(busy_ns[path])) - 1
        for instance in sorted({0, last}):
            graph, success = analysis.critical_path_analysis(rank, "ProfilerStep", instance)
            require(success, f"rank {rank}: no critical path in step instance {instance}")
            kinds = defaultdict(int)
            for _, _, edge in graph.edges(data="object"):
                kinds[edge.type.name] += 1
            require(kinds["KERNEL_LAUNCH_DELAY"] > 0, f"rank {rank}: launches not recognised")
            said["critical_path"].append(
                {
                    "rank": rank,
                    "instance": instance,
                    "nodes_on_path": len(graph.critical_path_nodes),
                    "bound_by_percent": dict(graph.summary()),
                    "edges": dict(kinds),
                }
            )


def steps_seen(busy):
    """The library leaves the last of several steps out."""
    values = list(busy.values())
    return values[:-1] if len(values) > 1 else values


def records(frame):
    return json.loads(frame.to_json(orient="records", double_precision=6))


def require(condition, text):
    if not condition:
        raise AssertionError(text)


if __name__ == "__main__":
    sys.exit(main())
