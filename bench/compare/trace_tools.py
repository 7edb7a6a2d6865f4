"""Times rowmill beside the tools that read the same traces, in turns, on the same file.

    python bench/compare/trace_tools.py --rowmill target/release/rowmill TRACE [--repeats 3]

Tools, each where it is installed: rowmill (one and two threads), Holistic Trace Analysis (`pip install
'traceinsight==0.6.1' 'pandas<3'`), AMD's TraceLens (from its repository; the package of that name on PyPI is
another), Perfetto's trace_processor_shell (on the PATH). Every measurement is a process of its own that loads the
trace and breaks the device's time down, or does the nearest thing the tool offers. Prints one JSON object: seconds of
each run, medians, and millions of bytes of uncompressed text per second; a tool that is missing says so.
"""

import argparse
import gzip
import importlib.util
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HTA = """
import sys, pathlib
from hta.trace_analysis import TraceAnalysis
path = pathlib.Path(sys.argv[1])
TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(path.parent)).get_temporal_breakdown(visualize=False)
"""

TRACELENS = """
import sys
from TraceLens import TreePerfAnalyzer
TreePerfAnalyzer.from_file(sys.argv[1]).get_df_gpu_timeline()
"""

BUSY = "select sum(dur) from slice where category = 'kernel'"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rowmill", required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("trace", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "trace.json"
        plain.write_bytes(text_of(arguments.trace))
        query = Path(folder) / "busy.sql"
        query.write_text(BUSY, encoding="utf-8")
        tools = commands(arguments.rowmill, plain, query)
        report = measure(tools, plain.stat().st_size, arguments.repeats)
    print(json.dumps({"trace": arguments.trace.name, **report}, indent=2))


def text_of(path):
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def commands(rowmill, plain, query):
    """Per tool: its command, or None where it is not installed."""
    def python(module, program):
        return [sys.executable, "-c", program, str(plain)] if importlib.util.find_spec(module) else None

    shell = shutil.which("trace_processor_shell") or shutil.which("trace_processor")
    breakdown = [rowmill, "trace", "breakdown", str(plain), "--format", "json", "--threads"]
    return {
        "rowmill_1_thread": [*breakdown, "1"],
        "rowmill_2_threads": [*breakdown, "2"],
        "traceinsight": python("hta", HTA),
        "TraceLens": python("TraceLens", TRACELENS),
        "trace_processor": [shell, "-q", str(query), str(plain)] if shell else None,
    }


def measure(tools, size, repeats):
    seconds = {name: [] for name, command in tools.items() if command}
    for _ in range(repeats):
        for name in seconds:
            started = time.perf_counter()
            subprocess.run(tools[name], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            seconds[name].append(time.perf_counter() - started)
    return {
        "text_bytes": size,
        "seconds": seconds,
        "median_seconds": {name: statistics.median(runs) for name, runs in seconds.items()},
        "mb_per_s": {name: size / 1e6 / statistics.median(runs) for name, runs in seconds.items()},
        "not_installed": [name for name, command in tools.items() if command is None],
    }


if __name__ == "__main__":
    main()
