"""Opens merged traces of several ranks in other tools and compares them with the traces they were made of.

    python bench/compare/merged_opens.py MERGED.json.gz MERGED.pftrace SOURCE.tar.gz

The JSON is opened in Holistic Trace Analysis (traceinsight 0.6.1, pandas < 3), the protobuf is decoded with the
schema that the perfetto package publishes. Prints one JSON object with what was counted and `failures`; exits with
1 if there is any failure.
"""

import contextlib
import gzip
import json
import os
import sys
import tarfile
from collections import Counter, defaultdict
from decimal import Decimal

os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # Read by the library when it is imported.

BEGIN, END = 1, 2


def main():
    merged_json, merged_perfetto, archive = sys.argv[1:]
    failures = []
    sources = list(read_sources(archive))
    report = {
        "ranks": len(sources),
        "json": check_json(merged_json, sources, failures),
        "insight": check_insight(merged_json, sources, failures),
        "perfetto": check_perfetto(merged_perfetto, sources, failures),
        "failures": failures,
    }
    print(json.dumps(report, indent=2))
    return 1 if failures else 0


def read_sources(archive):
    with tarfile.open(archive) as members:
        for member in sorted(members.getmembers(), key=lambda member: member.name):
            hidden = any(part.startswith(".") for part in member.name.split("/"))
            if member.isfile() and member.name.endswith(".json") and not hidden:
                yield json.loads(members.extractfile(member).read(), parse_float=Decimal)


def slices_of(trace):
    return [row for row in trace["traceEvents"] if row["ph"] == "X"]


def nanoseconds(trace, value):
    return int(trace.get("baseTimeNanoseconds", 0)) + int(Decimal(value) * 1000)


def span(trace, row):
    start = nanoseconds(trace, row["ts"])
    return (row["name"], start, start + int(Decimal(row["dur"]) * 1000))


def differ(what, expected, got, failures):
    if expected != got:
        failures.append(f"{what}: expected {expected}, got {got}")


# ---- the JSON ----


def check_json(path, sources, failures):
    with gzip.open(path) as file:
        merged = json.loads(file.read(), parse_float=Decimal)
    expected = Counter(row["ph"] for source in sources for row in source["traceEvents"])
    got = Counter(row["ph"] for row in merged["traceEvents"])
    for phase in "Xstfi":
        differ(f"JSON: events of phase {phase}", expected[phase], got[phase], failures)
    spans = Counter(span(source, row) for source in sources for row in slices_of(source))
    if spans != Counter(span(merged, row) for row in slices_of(merged)):
        failures.append("JSON: slices have other names or times than in the sources")
    check_links(merged, sources, failures)
    return {"events": dict(got)}


def check_links(merged, sources, failures):
    """Every kernel still finds the one call that launched it, and no other rank's."""
    pairs = sum(len(links(source)) for source in sources)
    found = links(merged)
    differ("JSON: kernels with their launch", pairs, len(found), failures)
    names = {row["pid"]: row["args"]["name"] for row in merged["traceEvents"] if row["name"] == "process_name"}
    for launch, kernel in found:
        ranks = {names[row["pid"]].split(" · ")[0] for row in (launch, kernel)}
        if len(ranks) != 1:
            failures.append(f"JSON: {launch['name']} of one rank launches {kernel['name']} of another")
            return


def links(trace):
    launches = defaultdict(list)
    for row in slices_of(trace):
        if row["cat"] == "cuda_runtime":
            launches[row["args"]["correlation"]].append(row)
    kernels = [row for row in slices_of(trace) if row["cat"] == "kernel"]
    return [(launch, row) for row in kernels for launch in launches[row["args"]["correlation"]]]


# ---- Holistic Trace Analysis ----


def check_insight(path, sources, failures):
    # The library prints as it goes; standard output is this script's report.
    with contextlib.redirect_stdout(sys.stderr):
        from hta.trace_analysis import TraceAnalysis

        analysis = TraceAnalysis(trace_files={0: os.path.abspath(path)})
        frame = analysis.t.get_trace(0)
        symbols = analysis.t.symbol_table.get_sym_table()
        temporal = analysis.get_temporal_breakdown(visualize=False)
        kernels, _ = analysis.get_gpu_kernel_breakdown(visualize=False)
    said = Counter(symbols[category] for category in frame["cat"])
    expected = Counter(row["cat"] for source in sources for row in slices_of(source))
    for category in ("cpu_op", "cuda_runtime", "kernel", "gpu_memcpy", "gpu_memset", "user_annotation"):
        differ(f"traceinsight: {category}", expected[category], said[category], failures)
    return {
        "rows": dict(said),
        "temporal_breakdown": json.loads(temporal.to_json(orient="records")),
        "kernel_types": json.loads(kernels.to_json(orient="records")),
    }


# ---- Perfetto ----


def check_perfetto(path, sources, failures):
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    trace = Trace()
    with open(path, "rb") as file:
        trace.ParseFromString(file.read())
    tracks, events, flows = decode(trace)
    # Stable, as in Perfetto: events at one time keep the order of the file.
    events.sort(key=lambda event: event[0])
    spans, open_slices = Counter(), defaultdict(list)
    for time, track, kind, name in events:
        if track not in tracks:
            failures.append(f"Perfetto: track {track} has no description")
        if kind == BEGIN:
            open_slices[track].append((name, time))
        elif kind == END:
            name, start = open_slices[track].pop()
            spans[name, start, time] += 1
    if any(open_slices.values()):
        failures.append("Perfetto: slices without an end")
    expected = Counter(span(source, row) for source in sources for row in slices_of(source))
    differ("Perfetto: slices", expected.total(), spans.total(), failures)
    if spans != expected:
        failures.append("Perfetto: slices have other names or times than in the sources")
    arrows = sum(row["ph"] in "stf" for source in sources for row in source["traceEvents"])
    differ("Perfetto: ends of arrows", arrows, flows, failures)
    processes = {name.split(" · ")[0] for name, parent in tracks.values() if parent is None and " · " in name}
    differ("Perfetto: ranks with processes", len(sources), len(processes), failures)
    return {"packets": len(trace.packet), "tracks": len(tracks), "slices": spans.total(), "flows": flows}


def decode(trace):
    tracks, events, flows, names = {}, [], 0, {}
    for packet in trace.packet:
        sequence = packet.trusted_packet_sequence_id
        for entry in packet.interned_data.event_names:
            names[sequence, entry.iid] = entry.name
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            name = track.name or track.process.process_name or track.thread.thread_name
            tracks[track.uuid] = (name, track.parent_uuid if track.HasField("parent_uuid") else None)
        if packet.HasField("track_event"):
            event = packet.track_event
            flows += len(event.flow_ids) + len(event.terminating_flow_ids)
            name = names[sequence, event.name_iid] if event.name_iid else event.name
            events.append((packet.timestamp, event.track_uuid, event.type, name))
    return tracks, events, flows


if __name__ == "__main__":
    sys.exit(main())
