"""How fast rowmill's collectives over MPI are beside a C loop over the same library (comm_loop.c).

Usage: python3 bench/compare/comm_against_c.py target/release/rowmill [ROUNDS]

Needs mpicc and mpirun of Open MPI, of MPICH or of both (Debian: libopenmpi-dev, libmpich-dev). Both
programs run in turns with two ranks; a row is the median over rounds. Exit code 1 where rowmill is
below 70 % of the C loop from 1 MiB on.
"""
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

SIZES = [8, 1 << 20, 4 << 20, 16 << 20]
SHARE_MIN = 0.7
LAUNCHERS = {
    "Open MPI": ("openmpi", ["--allow-run-as-root", "--oversubscribe"]),
    "MPICH": ("mpich", []),
}


def lines(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def compare(rowmill, name, rounds, folder):
    suffix, options = LAUNCHERS[name]
    loop = os.path.join(folder, suffix)
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "comm_loop.c")
    subprocess.run([f"mpicc.{suffix}", "-O3", "-o", loop, source], check=True)
    launch = [f"mpirun.{suffix}", *options, "-n", "2"]
    sizes = [str(size) for size in SIZES]
    bench = [rowmill, "doctor", "links", "--format", "json", "--repeats", "3", "--verbs", "all_to_all", "all_reduce"]
    times = {"c": {}, "rowmill": {}}
    for _ in range(rounds):
        for row in lines([*launch, loop, *sizes]):
            times["c"].setdefault((row["verb"], row["bytes"]), []).append(row["us"])
        for row in lines([*launch, *bench, "--sizes", *sizes])[0]["worlds"][0]["points"]:
            times["rowmill"].setdefault((row["verb"], row["bytes"]), []).append(row["us"])
    slow = []
    for key, c in times["c"].items():
        c, own = statistics.median(c), statistics.median(times["rowmill"][key])
        share = c / own
        print(f"{name:9} {key[0]:11} {key[1]:9} B  C {c:9.1f} µs  rowmill {own:9.1f} µs  {100 * share:6.1f} %")
        if key[1] >= 1 << 20 and share < SHARE_MIN:
            slow.append(key)
    return slow


def main():
    rowmill, rounds = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5
    slow, compared = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for name, (suffix, _) in LAUNCHERS.items():
            if shutil.which(f"mpicc.{suffix}") is None or shutil.which(f"mpirun.{suffix}") is None:
                print(f"SKIPPED: no mpicc.{suffix} or mpirun.{suffix}")
                continue
            compared += 1
            slow += compare(rowmill, name, rounds, folder)
    sys.exit(1 if slow or compared == 0 else 0)


main()
