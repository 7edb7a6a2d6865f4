#!/usr/bin/env python3
"""Rehearses run.py where there is no GPU: `quick` and `second` as they would run there, with faults that a machine may have.

    python3 bench/gpu/rehearse.py [--folder FOLDER]

Real are the package, the runner, rowmill and its test programs; the kernels run on the emulator, steps on a stub of NVIDIA's
driver. PyTorch, compute-sanitizer and ncu are stand-ins that print what the real ones print. Injected are a wrong kernel, a
test that crashes, one that hangs, a missing library, PyTorch that is ended by the system and a full disk: each must be one row
of the table, and every other row must be there. Needs a C and a C++ compiler; the full disk needs root.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

import run

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STUBS = ROOT / "crates/device/tests/it/cuda"
ACTIVATION = "ops/activation/kernel.cu"

# Stands for a program that is not here; a name ends with what it prints.
DEVICE_TESTS = """#!/bin/sh
case "$*" in
  *--list*) ;;
  *--exact*exchanges_on_the_device*) kill -SEGV $$ ;;
  *--exact*exclusive_sums*) exec sleep 600 ;;
  # The everyday tests run these, which take the emulator long.
  *backward_on_the_device*|*every_operation*) echo "test result: ok. 1 passed"; exit ;;
esac
exec "{real}" "$@"
"""
SANITIZER = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift 2; done
"$@" && echo "========= ERROR SUMMARY: 0 errors"
"""
NCU = """#!/bin/sh
echo "==PROF== Connected to process 1"
echo '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
echo '"0","1","embedding_forward","gpu__time_duration.sum","us","12.5"'
echo '"0","1","embedding_forward","launch__registers_per_thread","register/thread","48"'
"""
PYTHON = """#!{python}
import json, os, pathlib, signal, sys
name, words = pathlib.Path(sys.argv[1]).stem, sys.argv[2:]
if name == "torch_train":
    print(json.dumps({{"device": "stub", "batch_size": 2048}}))
    for variant in ("eager", "graph"):
        print(json.dumps({{"variant": variant, "precision": "f32", "step_ms": 1.5, "step_ms_min": 1.4, "step_ms_max": 1.6}}), flush=True)
    if os.environ.get("REHEARSE_KILL"):
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit()
suite = pathlib.Path(words[words.index("--out") + 1])
suite.mkdir(exist_ok=True)
path = suite / "suite.json"
runs = json.loads(path.read_text())["runs"] if path.exists() else []
stage = {{"microbench": "kernels", "collect": "times"}}[name]
path.write_text(json.dumps({{"runs": runs + [{{"id": f"{{stage}}/stub", "stage": stage, "status": "done", "seconds": 1.0}}]}}))
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "target/gpu-rehearsal")
    folder = parser.parse_args().folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    kernels = ["--kernels", str(ROOT / "target/kernels")] if list((ROOT / "target/kernels").glob("*.cubin")) else []
    subprocess.run([HERE / "pack.sh", "--small", *kernels, folder / "carried"], check=True, stdout=subprocess.DEVNULL)
    package = folder / "package"
    with tarfile.open(folder / "carried/package.tar.gz") as archive:
        archive.extractall(package, filter="data")
    environment = stand_ins(folder, package)
    problems = quick(folder, package, environment) + second(folder, package, environment)
    for problem in problems:
        print(f"rehearse.py: {problem}", file=sys.stderr)
    sys.exit(1 if problems else 0)


def stand_ins(folder, package):
    """What run.py finds in place of a GPU, PyTorch and NVIDIA's tools; the environment that names it."""
    tools, libraries = folder / "tools", folder / "libraries"
    tools.mkdir()
    libraries.mkdir()
    for source, name in (("stub.c", "libcuda.so.1"), ("stub.c", "libcuda.so"), ("stub_blas.c", "libcublasLt.so")):
        compiler = os.environ.get("CC", "gcc")
        subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", libraries / name, STUBS / source], check=True)
    real = package / "device-tests"
    real.rename(package / "device-tests-real")
    wrong = folder / "wrong.cu"
    source = (ROOT / "crates/device/src" / ACTIVATION).read_text()
    wrong.write_text(source.replace("1.0 + e", "1.5 + e"))
    assert wrong.read_text() != source, "the kernel has no constant to change"
    for path, text in (
        (real, DEVICE_TESTS.format(real=package / "device-tests-real")),
        (tools / "compute-sanitizer", SANITIZER),
        (tools / "ncu", NCU),
        (tools / "python", PYTHON.format(python=sys.executable)),
    ):
        path.write_text(text)
        path.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PYTHON": str(tools / "python"),
        "LD_LIBRARY_PATH": str(libraries),
        "ROWMILL_STUB": os.devnull,
        "ROWMILL_SHAPES": "1",
        "ROWMILL_REPLACED": f"{ACTIVATION}={wrong}",
        "REHEARSE_KILL": "1",
    }


def rehearsed(command, package, out, environment, before=()):
    """The rows of the table that run.py prints, by stage, and what it printed."""
    words = [sys.executable, HERE / "run.py", command, "--rehearse", "--package", package, "--out", out]
    ended = subprocess.run([*before, *words], env=environment, stdout=subprocess.PIPE, text=True)
    print(ended.stdout)
    return ended


def quick(folder, package, environment):
    """All faults but the full disk."""
    out = folder / "quick"
    ended = rehearsed("quick", package, out, environment)
    rows = {row["stage"]: row for row in json.loads((out / "results.json").read_text())["rows"]}
    faults = {
        "conformance activations_on_the_device": (run.FAILED, "expected"),
        "conformance exchanges_on_the_device": (run.FAILED, "SIGSEGV"),
        "conformance exclusive_sums_on_the_device_are_exact": (run.TIMED_OUT, "ended after"),
        "NVRTC": (run.FAILED, ""),
        "training PyTorch": (run.FAILED, "SIGKILL"),
    }
    passed = [
        "gpu", "driver", "cuBLASLt", "conformance forward_on_the_device", "conformance losses_on_the_device", "conformance products_on_the_device",
        "golden tiny_mse_sgd", "golden torchrec_dcnv2_adagrad", "bandwidth copy", "training rowmill f32",
        "training rowmill tf32", "training rowmill bf16", "training eager f32", "training graph f32",
        "training rowmill again tf32",
    ]
    problems = [f"quick: expected exit status 1, got {ended.returncode}"] if ended.returncode != 1 else []
    for stage, (verdict, error) in faults.items():
        row = rows.get(stage)
        if not row or row["verdict"] != verdict or error not in row["error"]:
            problems.append(f"quick: {stage}: expected {verdict} and an error with {error!r}, got {row}")
    for stage in passed:
        if rows.get(stage, {}).get("verdict") != run.PASSED:
            problems.append(f"quick: {stage}: expected {run.PASSED}, got {rows.get(stage)}")
    others = [row for stage, row in rows.items() if stage not in faults and row["verdict"] not in (run.PASSED, run.SKIPPED)]
    problems += [f"quick: no fault was injected into {row}" for row in others]
    return problems + small(ended, out)


def second(folder, package, environment):
    """A disk for the results that is full: the table is printed all the same."""
    out = folder / "second"
    out.mkdir()
    healthy = {name: value for name, value in environment.items() if name not in ("ROWMILL_REPLACED", "REHEARSE_KILL")}
    before = ()
    if os.geteuid() == 0:
        fill = f"mount -t tmpfs -o size=64k tmpfs '{out}' && head -c 65536 /dev/zero > '{out}/fill'; exec \"$@\""
        before = ("unshare", "--mount", "sh", "-c", fill, "sh")
    else:
        print("SKIPPED the full disk: needs root")
    ended = rehearsed("second", package, out, healthy, before)
    expected = [f"memcheck {name}" for name in run.KERNELS_UNDER_SANITIZER]
    expected += [f"racecheck {name}" for name in run.KERNELS_UNDER_SANITIZER]
    expected += ["bandwidth copy", "counters embedding_forward", "kernels/stub", "times/stub"]
    # The table is at the end; what was printed while it ran begins with a time.
    table = [line for line in ended.stdout.splitlines() if not re.match(r" *\d+\.\d s ", line)]
    passed = lambda stage: any(line.startswith(stage) and f" {run.PASSED} " in line for line in table)
    problems = [f"second: {stage}: expected a row that passed" for stage in expected if not passed(stage)]
    # Once when it happened, once in the table.
    full = [line for line in table if "No space left" in line and line.startswith("files")]
    if before and len(full) != 2:
        problems.append("second: expected one row for the full disk")
    return problems + small(ended, out)


def small(ended, out):
    """What must come back is little."""
    files = list(out.iterdir())
    problems = [f"{out.name}: expected at most 8 files, got {len(files)}"] if len(files) > 8 else []
    table = ended.stdout[-run.TABLE_CHARACTERS:]
    return problems + ([] if "rows passed in" in table else [f"{out.name}: the table is longer than {run.TABLE_CHARACTERS}"])


if __name__ == "__main__":
    main()
