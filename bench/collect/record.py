#!/usr/bin/env python3
"""Makes a whole suite: every stage of collect.py, microbench.py and cases.py in a process of its own, then the report.

    python bench/collect/record.py --device cuda --out DIR                  all of it, about 20 minutes of one GPU
    python bench/collect/record.py --device cuda --out DIR --stage traces   one stage
    python bench/collect/record.py --device cpu --quick --out DIR           a few minutes on two cores

Stages, and how long each may take on a GPU before it stops between two runs and says so (exit status 3; the same call goes
on with what is missing); a CPU may take an hour for each:
    times           4 min   collect.py --stage times
    traces          5 min   collect.py --stage traces
    traces-other    5 min   collect.py --stage traces-other
    kernels         6 min   microbench.py
    pairs           4 min   cases.py
    report          none    report.py --write: README.md and steps.svg (no GPU is used)
"""
import argparse
import contextlib
import pathlib
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
# Script, its own arguments, seconds after which no run is begun.
STAGES = {
    "times": ("collect.py", ["--stage", "times"], 240),
    "traces": ("collect.py", ["--stage", "traces"], 300),
    "traces-other": ("collect.py", ["--stage", "traces-other"], 300),
    "kernels": ("microbench.py", [], 360),
    "pairs": ("cases.py", [], 240),
    "report": ("report.py", ["--write"], None),
}
CPU_SECONDS = 3600
INTERRUPTED = 130
GRACE_SECONDS = 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what runs the models (default: cpu)")
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR", help="the suite")
    parser.add_argument("--quick", action="store_true", help="small sizes and few of them: minutes on two cores")
    parser.add_argument("--seed", default="1", help="of weights and batches (default: 1)")
    parser.add_argument("--stage", action="append", choices=list(STAGES), help="only this one; may be repeated")
    parser.add_argument("--retry-failed", action="store_true", help="run again what failed or found no memory")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    begin, worst = time.monotonic(), 0
    for stage in arguments.stage or STAGES:
        status = run(stage, arguments)
        print(f"=== {stage}: exit status {status}, {time.monotonic() - begin:.0f} s since the start", file=sys.stderr)
        if status not in (0, 3):
            sys.exit(status)
        worst = max(worst, status)
    sys.exit(worst)


def run(stage, arguments):
    script, own, seconds = STAGES[stage]
    seconds = seconds if arguments.device == "cuda" else CPU_SECONDS
    if stage == "report":
        command = [str(arguments.out), *own]
    else:
        command = ["--device", arguments.device, "--out", str(arguments.out), "--seed", arguments.seed, *own,
                   "--limit", str(seconds)]
        command += ["--quick"] * arguments.quick + ["--retry-failed"] * arguments.retry_failed
    process = subprocess.Popen([sys.executable, str(HERE / script), *command])
    try:
        return process.wait()
    except KeyboardInterrupt:
        # From a terminal the stage got it too; time to keep what was finished, and otherwise to be told.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
        process.terminate()
        process.wait()
        return INTERRUPTED


if __name__ == "__main__":
    main()
