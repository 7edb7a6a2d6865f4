"""Compares what `rowmill` gains by removing all device work with the waits of the host that raw rows show.

    python bench/compare/host_waits.py ROWMILL TRACE_OR_FOLDER...

Reads the rows of Chrome JSON without any code of rowmill. The host waits in calls that synchronize, in copies
that return when the copy has ended, and in MTIA's runtime calls. A wait counts for as long as device work ran
in it that ended before the call did, and no other thread worked meanwhile. If no device takes any time, the
window must be shorter by at least that, within a tenth or one point of the window. It may be shorter by more,
because launches into a full queue wait as well. A pause between two rows of a thread counts as work of that
thread if it ends with a row, so the sum is a lower bound. Prints one JSON object per recording, and exits
with 1 if a gain is too small or larger than the time in which devices ran.
"""

import gzip
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from pathlib import Path

HOST = ("cpu_op", "operator", "runtime", "driver")
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset", "mtia_ccp_events")
BLOCKING_COPIES = ("cudaMemcpy", "hipMemcpy", "hipMemcpyWithStream")
# Clocks of device and host agree to a few microseconds.
CLOCK_US = 5.0


def main():
    rowmill, names = sys.argv[1], sys.argv[2:]
    if not names:
        sys.exit(__doc__)
    failures = 0
    for name, content in recordings(names):
        rows = duration_rows(content)
        expected, thread_count = gainable_us(rows)
        if not any(is_device(row) for row in rows):
            continue
        window_us, gained_us = gain_of_rowmill(rowmill, content)
        verdict = judge(expected, gained_us, window_us, rows)
        if thread_count > 1:
            verdict = f"cannot tell: {thread_count} threads wait"
        failures += verdict.startswith("gains")
        milliseconds = {"window_ms": window_us, "waits_ms": expected, "gain_ms": gained_us}
        result = {key: round(value / 1e3, 2) for key, value in milliseconds.items()}
        print(json.dumps({"trace": name, **result, "verdict": verdict}), flush=True)
    sys.exit(failures > 0)


def recordings(names):
    for name in names:
        path = Path(name)
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            for member, text in texts(file):
                try:
                    content = json.loads(text)
                except ValueError:
                    continue
                if isinstance(content, dict) and content.get("traceEvents"):
                    yield member, content


def texts(file):
    if file.name.endswith((".tar.gz", ".tgz")):
        with tarfile.open(file) as archive:
            for member in sorted(archive.getmembers(), key=lambda member: member.name):
                if member.isfile() and ".json" in member.name:
                    yield f"{file.name}/{member.name}", unzip(archive.extractfile(member).read())
    elif ".json" in file.name:
        yield f"{file.parent.name}/{file.name}", unzip(file.read_bytes())


def unzip(data):
    return gzip.open(io.BytesIO(data)).read() if data[:2] == b"\x1f\x8b" else data


def duration_rows(content):
    rows = [dict(row) for row in content["traceEvents"] if row.get("ph") == "X" and float(row.get("ts", 0)) > 0]
    for row in rows:
        row["start"] = float(row["ts"])
        row["end"] = row["start"] + float(row.get("dur", 0))
    return rows


def is_device(row):
    return row.get("cat", "").lower() in DEVICE and row["name"] != "event_wait"


def is_host(row):
    return any(part in row.get("cat", "").lower() for part in HOST)


def gainable_us(rows):
    """Microseconds in which a thread waited for device work that ran, and no other thread worked; and how many
    threads waited for a tenth of the longest waits or more."""
    device = [row for row in rows if is_device(row)]
    copies = defaultdict(list)
    for row in device:
        if "memcpy" in row["cat"].lower():
            copies[row.get("args", {}).get("correlation")].append(row)
    threads = defaultdict(list)
    for row in filter(is_host, rows):
        threads[row["pid"], row["tid"]].append(row)
    device.sort(key=lambda row: row["start"])
    works, waits = {}, {}
    for thread, of_thread in threads.items():
        calls = [row for row in of_thread if waits_for_device(row, copies)]
        waits[thread] = union(part for call in calls for part in awaited(call, device))
        # An operator around a wait does no work meanwhile.
        works[thread] = minus(union((row["start"], row["end"]) for row in of_thread), waits[thread])
    gained = []
    for thread, parts in waits.items():
        others = union(part for other, of_other in works.items() if other != thread for part in of_other)
        gained.extend(minus(parts, others))
    longest = max((length(parts) for parts in waits.values()), default=0)
    count = sum(length(parts) > longest / 10 for parts in waits.values())
    return length(union(gained)), count


def waits_for_device(call, copies):
    name = call["name"].split("_v")[0]
    category = call["cat"].lower()
    if "runtime" not in category and "driver" not in category:
        return False
    # MTIA's calls contain their device work, or wait for a call of another thread that does.
    if category == "mtia_runtime" or "Synchronize" in name or name in BLOCKING_COPIES:
        return True
    if "Memcpy" not in name:
        return False
    linked = copies.get(call.get("args", {}).get("correlation"), [])
    return any(is_blocking(copy["name"]) and copy["end"] <= call["end"] + CLOCK_US for copy in linked)


def is_blocking(copy):
    return "Pageable" in copy or "DtoH" in copy or "DeviceToHost" in copy


def awaited(call, device):
    """The parts of a call in which device work ran that ended before the call did."""
    for row in device:
        if row["start"] >= call["end"]:
            break
        if row["end"] > call["start"] and row["end"] <= call["end"] + CLOCK_US:
            yield max(row["start"], call["start"]), min(row["end"], call["end"])


def union(parts):
    merged = []
    for start, end in sorted(parts):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def minus(parts, others):
    """Both are unions; what of `parts` no part of `others` covers."""
    rest, at = [], 0
    for start, end in parts:
        while at > 0 and others[at - 1][1] > start:
            at -= 1
        while at < len(others) and others[at][0] < end:
            if others[at][1] > start:
                if others[at][0] > start:
                    rest.append((start, others[at][0]))
                start = max(start, others[at][1])
            at += 1
        if start < end:
            rest.append((start, end))
    return rest


def length(parts):
    return sum(end - start for start, end in parts)


def gain_of_rowmill(rowmill, content):
    """Window and gain, both in microseconds, without the time of any device."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        command = [rowmill, "trace", "critical-path", path, "--window", "all", "--format", "json"]
        ran = subprocess.run([*command, "--what-if", "kernel=~. x0"], check=True, capture_output=True)
    window = find_windows(json.loads(ran.stdout))[-1]
    return window["window_ns"] / 1e3, window["saving_ns"] / 1e3


def find_windows(value):
    """The rows with a saving, wherever the report keeps them."""
    if isinstance(value, dict):
        if "saving_ns" in value and "window_ns" in value:
            return [value]
        value = list(value.values())
    return [row for part in value for row in find_windows(part)] if isinstance(value, list) else []


def judge(expected, gained, window, rows):
    tolerance = max(expected / 10, window / 100)
    busy = length(union((row["start"], row["end"]) for row in rows if is_device(row)))
    if gained < expected - tolerance:
        return "gains too little"
    return "agrees" if gained <= busy + tolerance else "gains more than devices ran"


if __name__ == "__main__":
    main()
