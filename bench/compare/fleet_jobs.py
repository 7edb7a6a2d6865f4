"""Traces of a real PyTorch job on two "hosts": two agents with socket folders of their own, two ranks
each, asked over TLS by one `rowmill fleet trace`.

    python bench/compare/fleet_jobs.py --rowmill target/release/rowmill --agent target/release/rowmill-agent

The interpreter needs torch 2.15; without it the script says so and ends with 0. The job marks every
step by `record_function`, so that the traces themselves tell whether all ranks recorded the same ones.
Two jobs on the same two hosts are traced at once by `--run`: each report has its own ranks. Then a wrong
token, Ctrl-C, a host that is gone and one that says nothing; at last processes of which one is killed and one may not
write: their ranks are lost with the reason, the other ranks arrive, and nothing is left behind. With --hta
PYTHON, an interpreter with traceinsight 0.6.1 (`pip install traceinsight==0.6.1 'pandas<3'`) opens the four
traces. With --only two-jobs nothing but the two jobs is tried. Ends with 1 if something differs.
"""

import argparse
import gzip
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"

JOB = """
import sys, time
import torch
import torch.distributed as dist
from torch.profiler import record_function
import rowmill_steps
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
rowmill_steps.watch(samples=32)
step = 0
while True:
    with record_function(f"step {step}"):
        optimizer.zero_grad()
        model(torch.randn(32, 64)).sum().backward()
        optimizer.step()
        time.sleep(0.02)
    step += 1
"""

# Processes that do not know of each other: one that is killed leaves the others at work.
SOLO = """
import time
import torch
import rowmill_steps
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
rowmill_steps.watch(samples=32)
while True:
    optimizer.zero_grad()
    model(torch.randn(32, 64)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
"""

HTA = """
import os, sys
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # Read by the library when it is imported.
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
traces = analysis.t.traces
print(sorted(traces), min(len(frame) for frame in traces.values()))
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def certificate(folder):
    key, pem = folder / "key.pem", folder / "certificate.pem"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    more = ["-addext", names, "-addext", "basicConstraints=critical,CA:FALSE", "-keyout", key, "-out", pem]
    subprocess.run(["openssl", *words.split(), *more], check=True, capture_output=True)
    return key, pem


def agent(program, folder, name, key, pem):
    own = folder / name
    (own / "s").mkdir(parents=True)
    token = own / "token"
    token.write_text("0123456789abcdef-" + "ops")
    token.chmod(0o600)
    port = free_port()
    text = f"""
host = "{name}"
socket_dir = "{own}/s"
state_dir = "{own}/state"
audit = "{own}/audit.jsonl"
[listen]
address = "127.0.0.1:{port}"
certificate = "{pem}"
key = "{key}"
[[token]]
name = "ops"
file = "{token}"
verbs = ["status", "trace"]
"""
    (own / "agent.toml").write_text(text)
    return start(program, own), port, own / "s", token


def start(program, own):
    return subprocess.Popen([program, "--config", own / "agent.toml"], stderr=(own / "log").open("a"))


def ranks(python, folder, text, sockets, more=()):
    """A process for each of `sockets`; `more` is (rank, variable, value) for some of them."""
    script = folder / "job.py"
    script.write_text(text)
    port = free_port()
    started = []
    for rank, sockets_of in enumerate(sockets):
        environment = dict(os.environ, KINETO_USE_DAEMON="1", KINETO_IPC_SOCKET_DIR=str(sockets_of))
        environment.update(RANK=str(rank), WORLD_SIZE=str(len(sockets)), LOCAL_RANK=str(rank % 2))
        environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
        environment.update(PYTHONPATH=str(DEPLOY))
        environment.pop("KINETO_ONDEMAND_TRACE_DIR", None)
        environment.update({name: value for of, name, value in more if of == rank})
        log = (folder / f"rank{rank}.log").open("w")
        started.append(subprocess.Popen([python, script], env=environment, stdout=log, stderr=log))
    return started


def command(rowmill, hosts, pem, token, *words):
    reach = ["--hosts", ",".join(hosts), "--ca", pem, "--token-file", token, "--format", "json"]
    return [str(word) for word in [rowmill, "fleet", *words, *reach]]


def fleet(*words):
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=300)


def begin(words, wanted):
    """Starts a command; it comes back when it has said all of `wanted`, with what it has said."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said = ""
    while not all(word in said for word in wanted):
        line = process.stderr.readline()
        if not line:
            break
        said += line
    return process, said


def leftovers(folder):
    """What agents have kept, and folders that were made for processes."""
    spools = [path for host in ("a", "b") for path in (folder / host / "state/traces").glob("*")]
    return [str(path) for path in [*spools, *Path("/tmp").glob("rowmill-*-*-*")]]


def wait_for_ranks(rowmill, hosts, pem, token, wanted):
    end = time.time() + 120
    while time.time() < end:
        said = fleet(rowmill, hosts, pem, token, "status")
        if said.returncode == 0:
            rows = [row for answer in json.loads(said.stdout) for row in answer["status"]["processes"]]
            if len(rows) == wanted and all((row["step"] or 0) > 50 for row in rows):
                return rows
        time.sleep(1)
    raise SystemExit(f"the ranks did not report steps: {said.stdout} {said.stderr}")


def steps(path):
    trace = json.load(gzip.open(path))
    names = {event.get("name", "") for event in trace["traceEvents"] if event.get("ph") == "X"}
    whole = sorted(int(name[5:]) for name in names if re.fullmatch(r"step \d+", name))
    return whole, trace.get("distributedInfo", {})


def check_all(rowmill, hosts, pem, token, out, found):
    said = fleet(rowmill, hosts, pem, token, "trace", "--iterations", "5", "--align", "auto", "-o", out)
    if said.returncode != 0:
        found.append(f"exit code {said.returncode}: {said.stdout}\n{said.stderr}")
        return
    result = json.loads(said.stdout)
    files = sorted(out.glob("rank-*.json.gz"))
    if len(files) != 4 or result["is_aligned"] is not True or not (out / "report.html").exists():
        found.append(f"{len(files)} traces, aligned: {result['is_aligned']}\n{said.stderr}")
        return
    recorded = [steps(path) for path in files]
    if len({tuple(names) for names, _ in recorded}) != 1 or not recorded[0][0]:
        found.append(f"other steps on each rank: {[names for names, _ in recorded]}")
    told = [(info.get("rank"), info.get("world_size")) for _, info in recorded]
    if told != [(rank, 4) for rank in range(4)]:
        found.append(f"distributedInfo: {told}")
    print(f"       steps {recorded[0][0]} on all four ranks")


def pids_of(path):
    return {event.get("pid") for event in json.load(gzip.open(path))["traceEvents"]}


def check_two_jobs(rowmill, hosts, pem, token, jobs, out, found):
    """Two jobs with a rank on each host, traced at the same time by their runs. `jobs` are processes by run."""
    said = fleet(rowmill, hosts, pem, token, "trace", "-o", out / "both")
    if said.returncode == 0 or not all(f"{run} of user" in said.stderr for run in jobs):
        found.append(f"both jobs at once: exit code {said.returncode}, expected a refusal that names them\n{said.stderr}")
    words = ["--iterations", "5", "--align", "auto"]
    started = {
        run: begin(command(rowmill, hosts, pem, token, "trace", "--run", run, *words, "-o", out / run), [])[0]
        for run in jobs
    }
    for run, process in started.items():
        answer, more = process.communicate(timeout=300)
        if process.returncode != 0:
            found.append(f"--run {run}: exit code {process.returncode}: {answer}\n{more}")
            continue
        rows = {row["rank"]: row["pid"] for row in json.loads(answer)["processes"]}
        own = {rank: job.pid for rank, job in enumerate(jobs[run])}
        files = sorted(path.name for path in (out / run).iterdir())
        if rows != own or files != ["merged.pftrace", "rank-0.json.gz", "rank-1.json.gz", "report.html"]:
            found.append(f"--run {run}: processes {rows} and files {files}, expected {own}")
            continue
        for rank, pid in own.items():
            path = out / run / f"rank-{rank}.json.gz"
            info, pids = steps(path)[1], pids_of(path)
            if pid not in pids or (info.get("rank"), info.get("world_size")) != (rank, 2):
                found.append(f"--run {run}: rank {rank} has {info} and processes {pids}, expected {pid}")
        print(f"       --run {run}: a report of ranks 0 and 1, processes {own[0]} and {own[1]}")


def check_lost(rowmill, hosts, pem, token, words, out, found):
    """The first host is well, the second one is not: its row says why."""
    said = fleet(rowmill, hosts, pem, token, "trace", "--timeout", "60s", "-o", out)
    rows = json.loads(said.stdout)["processes"] if said.stdout.strip() else []
    written = [row for row in rows if row["state"] == "written"]
    lost = [row for row in rows if row["state"] == "lost"]
    if said.returncode != 1 or not lost or not all(words in row["reason"] for row in lost):
        found.append(f"exit code {said.returncode}, {rows}; expected lost with {words!r}\n{said.stderr}")
    return written


def check_hta(python, out, found):
    said = subprocess.run([python, "-c", HTA, out], capture_output=True, text=True)
    last = (said.stdout.strip().splitlines() or [""])[-1]
    if said.returncode != 0 or not last.startswith("[0, 1, 2, 3] "):
        found.append(f"traceinsight: {said.returncode} {last} {said.stderr[-2000:]}")
    else:
        print(f"       traceinsight: four ranks, at least {last.split()[-1]} rows each")


def check_interrupted(rowmill, hosts, pem, token, folder, found):
    """Ctrl-C once the processes have their requests: nothing is written, agents keep nothing."""
    before = set(leftovers(folder))
    words = command(rowmill, hosts, pem, token, "trace", "--align", "500", "-o", folder / "interrupted")
    process, said = begin(words, [f"rank {rank}: sent" for rank in range(4)])
    process.send_signal(signal.SIGINT)
    out, more = process.communicate(timeout=60)
    rows = json.loads(out)["processes"] if out.strip() else []
    is_said = rows and all(row["reason"] == "the capture was interrupted" for row in rows)
    if process.returncode != 130 or not is_said or list((folder / "interrupted").glob("*")):
        found.append(f"Ctrl-C: exit code {process.returncode}, {rows}\n{said}{more}")
    end = time.time() + 20
    while time.time() < end and set(leftovers(folder)) - before:
        time.sleep(0.2)
    if left := set(leftovers(folder)) - before:
        found.append(f"Ctrl-C left {sorted(left)}")
    # A request that was read cannot be taken back: until its iteration the process refuses others.
    time.sleep(15)


def check_solo(rowmill, hosts, pem, token, jobs, folder, found):
    """Rank 1 is killed once it has its request, rank 2 may not write; rank 0 is well."""
    words = command(rowmill, hosts, pem, token, "trace", "--align", "500", "-o", folder / "solo")
    process, said = begin(words, ["rank 0: sent", "rank 1: sent", "rank 2: lost"])
    jobs[1].kill()
    jobs[1].wait()
    out, more = process.communicate(timeout=120)
    rows = {row["rank"]: row for row in json.loads(out)["processes"]} if out.strip() else {}
    reasons = {1: "ended before its trace was written", 2: "cannot write its trace"}
    is_right = all(words in (rows[rank]["reason"] or "") for rank, words in reasons.items() if rank in rows)
    if process.returncode != 1 or len(rows) != 3 or rows[0]["state"] != "written" or not is_right:
        found.append(f"killed and unwritable: exit code {process.returncode}, {rows}\n{said}{more}")
    else:
        print(f"       {rows[1]['reason']}; {rows[2]['reason']}")


def report(found):
    for line in found:
        print(f"       {line}")
    return int(bool(found))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rowmill", default="target/release/rowmill")
    parser.add_argument("--agent", default="target/release/rowmill-agent")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--hta", help="an interpreter with traceinsight 0.6.1")
    parser.add_argument("--only", choices=["two-jobs"])
    args = parser.parse_args()
    asked = [args.python, "-c", "import torch; print(torch.__version__)"]
    version = subprocess.run(asked, capture_output=True, text=True).stdout
    if not version.startswith("2.15."):
        print(f"SKIPPED: {args.python} has no torch 2.15, but {version.strip() or 'none'}")
        return 0
    found, processes = [], []
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="fl") as name:
        folder = Path(name)
        try:
            key, pem = certificate(folder)
            one, port_one, sockets_one, token = agent(args.agent, folder, "a", key, pem)
            two, port_two, sockets_two, _ = agent(args.agent, folder, "b", key, pem)
            processes += [one, two]
            hosts = [f"127.0.0.1:{port_one}", f"127.0.0.1:{port_two}"]
            jobs = {}
            for run in ["first", "second"]:
                more = [(rank, "TORCHELASTIC_RUN_ID", run) for rank in range(2)]
                jobs[run] = ranks(args.python, folder, JOB, [sockets_one, sockets_two], more)
                processes += jobs[run]
            wait_for_ranks(args.rowmill, hosts, pem, token, 4)
            check_two_jobs(args.rowmill, hosts, pem, token, jobs, folder / "two", found)
            print(f"{'FAILED' if found else 'ok':6} two jobs on the same two hosts", flush=True)
            for process in [process for job in jobs.values() for process in job]:
                process.kill()
                process.wait()
            if args.only:
                return report(found)
            job = ranks(args.python, folder, JOB, [sockets_one] * 2 + [sockets_two] * 2)
            processes += job
            wait_for_ranks(args.rowmill, hosts, pem, token, 4)
            check_all(args.rowmill, hosts, pem, token, folder / "all", found)
            if args.hta:
                check_hta(args.hta, folder / "all", found)
            print(f"{'FAILED' if found else 'ok':6} four ranks on two hosts", flush=True)
            wrong = folder / "wrong"
            wrong.write_text("fedcba9876543210")
            said = fleet(args.rowmill, hosts, pem, wrong, "trace", "-o", folder / "wrong-out")
            if said.returncode != 1 or "token" not in said.stdout:
                found.append(f"wrong token: {said.returncode} {said.stdout} {said.stderr}")
            check_interrupted(args.rowmill, hosts, pem, token, folder, found)
            two.send_signal(signal.SIGKILL)
            two.wait()
            rows = check_lost(args.rowmill, hosts, pem, token, "refused", folder / "gone", found)
            if len(rows) != 2:
                found.append(f"agent gone: {len(rows)} traces of the other host, expected 2")
            silent = socket.socket()
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            quiet = [hosts[0], f"127.0.0.1:{silent.getsockname()[1]}"]
            rows = check_lost(args.rowmill, quiet, pem, token, "timeout", folder / "silent", found)
            if len(rows) != 2:
                found.append(f"silent host: {len(rows)} traces of the other host, expected 2")
            print(f"{'FAILED' if found else 'ok':6} wrong token, Ctrl-C, agent gone, host silent", flush=True)
            for process in job:
                process.kill()
                process.wait()
            processes.append(start(args.agent, folder / "b"))
            more = [(2, "KINETO_ONDEMAND_TRACE_DIR", "/proc")]
            jobs = ranks(args.python, folder, SOLO, [sockets_one] * 2 + [sockets_two], more)
            processes += jobs
            wait_for_ranks(args.rowmill, hosts, pem, token, 3)
            check_solo(args.rowmill, hosts, pem, token, jobs, folder, found)
            print(f"{'FAILED' if found else 'ok':6} killed, unwritable", flush=True)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
    return report(found)


if __name__ == "__main__":
    sys.exit(main())
