"""Live capture of real PyTorch processes on CPUs: every rank's trace, and every way to lose one.

    python bench/compare/capture_jobs.py --rowmill target/release/rowmill [--python PYTHON]

PYTHON needs torch 2.15.0; without it the script says so and ends with 0. Each case starts a small
job, runs `rowmill capture` beside it and compares what it says with what has to come out. Ends with
1 if a case differs.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

JOB = """
import os, sys, time
import torch
import torch.distributed as dist
kind = sys.argv[1]
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if kind == "busy":
    from torch.profiler import ProfilerActivity, profile
    profiler = profile(activities=[ProfilerActivity.CPU])
    profiler.start()
end = time.time() + 90
while time.time() < end:
    optimizer.zero_grad()
    model(torch.randn(32, 64)).sum().backward()
    if kind != "nostep":
        optimizer.step()
    time.sleep(0.02)
"""

# name, kind of job, ranks, options of capture, exit code, state, words of the reason
CASES = [
    ("two ranks, iterations", "plain", 2, ["--iterations", "5"], 0, "written", ""),
    ("two ranks, duration", "plain", 2, ["--duration", "300ms"], 0, "written", ""),
    ("busy", "busy", 1, ["--timeout", "15s"], 1, "lost", "busy"),
    ("killed", "plain", 1, ["--align", "1000000"], 1, "lost", "ended before"),
    ("unwritable folder", "unwritable", 1, [], 1, "lost", "no such folder"),
    ("missing step", "nostep", 1, ["--timeout", "20s"], 1, "lost", "makes no step"),
    ("start too near", "plain", 1, ["--duration", "300ms", "--start-in", "1s"], 1, "lost", "too near"),
]


def job(python, folder, kind, ranks):
    script = folder / "job.py"
    script.write_text(JOB)
    environment = dict(os.environ, KINETO_USE_DAEMON="1", KINETO_IPC_SOCKET_DIR=str(folder), OMP_NUM_THREADS="1")
    environment.pop("KINETO_ONDEMAND_TRACE_DIR", None)
    if kind == "unwritable":
        environment["KINETO_ONDEMAND_TRACE_DIR"] = "/no/such/folder/"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [python, *launcher, str(script), kind]
    log = (folder / "job.log").open("w")
    return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)


def run(rowmill, python, case):
    _, kind, ranks, options, code, state, words = case
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="cap") as name:
        folder = Path(name)
        process = job(python, folder, kind, ranks)
        try:
            # Let it train first: before the first step there are no iterations to count.
            time.sleep(12)
            command = [os.path.abspath(rowmill), "capture", "--all", "--processes", str(ranks), "--socket-dir", "."]
            command += ["-o", str(folder / "out"), "--format", "json", *options]
            capture = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder)
            if words == "ended before":
                time.sleep(12)
                os.killpg(process.pid, signal.SIGKILL)
            out, said = capture.communicate(timeout=180)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if not out.strip():
            return [f"no result\n{said}"]
        return differences(json.loads(out), said, capture.returncode, case)


def differences(result, said, returned, case):
    _, kind, ranks, _, code, state, words = case
    found = []
    rows = result["processes"]
    if returned != code:
        found.append(f"exit code {returned}, expected {code}")
    if len(rows) != ranks:
        found.append(f"{len(rows)} processes, expected {ranks}")
    for row in rows:
        if row["state"] != state or words not in (row["reason"] or ""):
            found.append(f"process {row['pid']}: {row['state']}, {row['reason']}; expected {state} {words!r}")
    if state == "written" and ranks > 1:
        if result["is_aligned"] is not True:
            found.append("the ranks did not record the same span")
        if not result["report"] or not result["merged"]:
            found.append("no report or no merged timeline")
    return found + ([said] if found else [])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rowmill", default="target/release/rowmill")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", help="cases whose name contains this")
    args = parser.parse_args()
    version = subprocess.run(
        [args.python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True
    )
    if not version.stdout.startswith("2.15."):
        print(f"SKIPPED: {args.python} has no torch 2.15, but {version.stdout.strip() or 'none'}")
        return 0
    failed = 0
    for case in CASES:
        if args.only and args.only not in case[0]:
            continue
        began = time.time()
        found = run(args.rowmill, args.python, case)
        failed += bool(found)
        print(f"{'FAILED' if found else 'ok':6} {case[0]:24} {time.time() - began:5.1f} s", flush=True)
        for line in found:
            print(f"       {line}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
