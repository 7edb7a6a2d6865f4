"""A real Prometheus scrapes three simulated hosts: agents with stub GPUs, runs that report steps, without GPUs, two runs on one
GPU, one run on two hosts, a driver that fails and returns, an XID and an agent that is silent for a while.

    python bench/compare/agent_prometheus.py --agent target/release/rowmill-agent [--seconds 600]

Standard library, `cc`, `prometheus` and `promtool` only. Waiting times and ranges of the rules are shortened,
so that alerts fire and resolve within the run. Ends with 1 if a rule or a panel's query fails once, or if an
alert does not fire, does not resolve, or fires without a reason.
"""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STUB = ROOT / "crates/agent/tests/it/stub_nvml.c"
RULES = ROOT / "deploy/prometheus/rules.yml"
BOARD = ROOT / "deploy/grafana/fleet.json"
BUSY = "util=60 gpm=1 smactive=0.4 power=200000 energy=1000"
IDLE = "util=0 gpm=1 power=60000 energy=10"
# Scenario of each host while nothing is wrong, and who holds its GPUs.
HOSTS = {
    "a": ([BUSY, IDLE], {"0": "7 ada 1000\n8 bob 1001\n"}),
    "b": ([BUSY, IDLE], {"0": "7 ada 1000\n", "1": "9 eve 1002\n"}),
    "c": ([BUSY], {}),
}
# Alert, host, and when its cause is there: as shares of the run.
EXPECTED = [
    ("GpuHeldIdle", "b", 0.0, 0.7),
    ("GpuLost", "c", 0.15, 0.4),
    ("GpusMissing", "c", 0.15, 0.4),
    ("GpuXid", "b", 0.4, 0.5),
    ("AgentSilent", "127.0.0.1", 0.55, 0.75),
]
# A machine with other work to do reads late, and short ranges show every gap.
TOLERATED = {"GpuUnobserved"}
# Shortened: waiting times, ranges and the offset of silent agents.
WAIT, RANGE, OFFSET = "5s", "20s", "30s"
POLL = """
import os, socket, struct, sys, time
folder = sys.argv[1]
client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
client.bind(f"{folder}/dynoconfigclient-{os.getpid()}")
step = 0
while True:
    step += 1
    now = time.monotonic_ns()
    try:
        client.sendto(struct.pack("<BBHIQQQQ", 1, 1, 0, os.getpid(), step, now, 32, 2**64 - 1), f"{folder}/rowmill-steps")
        client.sendto(struct.pack("<Q32siiqi", 20, b"req", 2, 1, 0, os.getpid()), f"{folder}/dynolog")
        client.recv(4096)
    except OSError:
        pass
    time.sleep(1)
"""


class Host:
    """A folder, an agent and two runs without a GPU."""

    def __init__(self, name, folder, agent, stub):
        self.name, self.folder, self.agent, self.stub = name, folder, agent, stub
        self.port = free_port()
        (folder / "s").mkdir(parents=True)
        (folder / "jobs").mkdir()
        lines, holders = HOSTS[name]
        for gpu, text in holders.items():
            (folder / "jobs" / gpu).write_text(text)
        self.scenario(lines)
        (folder / "agent.toml").write_text(
            f"host = '{name}'\nsocket_dir = '{folder}/s'\nstate_dir = '{folder}/state'\n"
            f"job_mapping = '{folder}/jobs'\nmetrics = '127.0.0.1:{self.port}'\ninterval_s = 1\n"
            f"nvml = '{stub}'\nexpected_gpus = {len(lines)}\naudit = '{folder}/audit.json'\n"
        )
        self.start()
        words = [sys.executable, "-c", POLL, str(folder / "s")]
        environment = [dict(os.environ, TORCHELASTIC_RUN_ID=f"{name}-{run}") for run in range(2)]
        self.runs = [subprocess.Popen(words, env=one) for one in environment]

    def start(self):
        environment = dict(os.environ, ROWMILL_STUB_NVML=str(self.folder / "scenario"))
        words = [self.agent, "--config", str(self.folder / "agent.toml")]
        self.process = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)

    def scenario(self, lines):
        beside = self.folder / "scenario.new"
        text = [line if line.startswith("driver") else f"gpu={at} {line}" for at, line in enumerate(lines)]
        beside.write_text("\n".join(text) + "\n")
        beside.rename(self.folder / "scenario")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=30)

    def end(self):
        for process in [self.process, *self.runs]:
            process.kill()
            process.wait()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def shortened_rules(path):
    text = RULES.read_text()
    text = re.sub(r"for: \d+m", f"for: {WAIT}", text)
    text = re.sub(r"\[\d+m\]", f"[{RANGE}]", text)
    path.write_text(text.replace("offset 1h", f"offset {OFFSET}"))


def start_prometheus(folder, hosts):
    shortened_rules(folder / "rules.yml")
    targets = ", ".join(f"'127.0.0.1:{host.port}'" for host in hosts)
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [rules.yml]\nscrape_configs:\n"
        f"  - job_name: rowmill\n    static_configs: [{{targets: [{targets}]}}]\n"
    )
    port = free_port()
    words = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
    words.append(f"--web.listen-address=127.0.0.1:{port}")
    return subprocess.Popen(words, stderr=subprocess.DEVNULL), f"http://127.0.0.1:{port}"


def fetch(address, path):
    with urllib.request.urlopen(f"{address}{path}", timeout=10) as answer:
        return answer.read().decode()


def query(address, expression):
    """Rows of an expression; an exception if Prometheus refuses it."""
    words = urllib.parse.urlencode({"query": expression})
    return json.loads(fetch(address, f"/api/v1/query?{words}"))["data"]["result"]


def panels():
    """Queries of the board by panel, with its variables filled in as Grafana does."""
    found = []
    for panel in json.loads(BOARD.read_text())["panels"]:
        for target in panel["targets"]:
            text = target["expr"].replace("$__rate_interval", RANGE).replace("$host", ".*")
            found.append((panel["title"], text))
    return found


class Watch:
    """What went wrong, and which alerts fired when."""

    def __init__(self, address, seconds):
        self.address, self.seconds, self.began = address, seconds, time.time()
        self.problems, self.fired, self.looks, self.queries = [], {}, 0, panels()
        self.answered = set()

    def share(self):
        return (time.time() - self.began) / self.seconds

    def look(self):
        self.looks += 1
        share = self.share()
        for title, expression in self.queries:
            try:
                if query(self.address, expression):
                    self.answered.add(expression)
            except OSError as error:
                self.problem(f"panel {title!r}: {error}")
        for group in json.loads(fetch(self.address, "/api/v1/rules"))["data"]["groups"]:
            for rule in group["rules"]:
                if rule.get("lastError"):
                    self.problem(f"rule {rule['name']}: {rule['lastError']}")
        for row in query(self.address, "ALERTS{alertstate='firing'}"):
            labels = row["metric"]
            if "severity" not in labels or "host" not in labels:
                self.problem(f"alert without severity or host: {labels}")
            self.fired.setdefault((labels["alertname"], labels.get("host")), []).append(share)

    def problem(self, text):
        if text not in self.problems:
            print(f"after {time.time() - self.began:.0f} s: {text}", flush=True)
            self.problems.append(text)

    def judge(self):
        for name, host, began, ended in EXPECTED:
            shares = self.fired.pop((name, host), [])
            if not shares:
                self.problem(f"{name} on {host} did not fire")
                continue
            print(f"{name} on {host}: fired from {shares[0]:.2f} to {shares[-1]:.2f} of the run")
            if shares[0] < began:
                self.problem(f"{name} on {host} fired before its cause, at {shares[0]:.2f}")
            if shares[-1] > 0.95:
                self.problem(f"{name} on {host} did not resolve (its cause ended at {ended:.2f})")
        for name, host in self.fired:
            if name in TOLERATED:
                print(f"{name} on {host}: fired; that is tolerated")
                continue
            self.problem(f"{name} on {host} fired without a reason")
        silent = [text for _, text in self.queries if text not in self.answered]
        for text in silent:
            self.problem(f"never a row: {text}")
        text = fetch(self.address, "/metrics")
        failures = re.findall(r"^prometheus_rule_evaluation_failures_total.* (\S+)$", text, re.M)
        count = sum(float(value) for value in failures)
        print(f"{self.looks} looks at {len(self.queries)} queries; failed evaluations: {count:.0f}")
        if count:
            self.problem(f"{count:.0f} evaluations of rules failed")
        return not self.problems


def play(hosts, watch):
    """What happens, at shares of the run."""
    a, b, c = hosts
    xid = [BUSY + " xid=79", IDLE]
    events = [
        (0.15, lambda: c.scenario(["driver=0"])),
        (0.4, lambda: (c.scenario(HOSTS["c"][0]), b.scenario(xid))),
        (0.55, a.stop),
        (0.7, lambda: b.scenario([BUSY + " xid=79", BUSY])),
        (0.75, a.start),
    ]
    while watch.share() < 1:
        while events and events[0][0] <= watch.share():
            events.pop(0)[1]()
        watch.look()
        time.sleep(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agent", required=True)
    parser.add_argument("--seconds", type=int, default=600)
    args = parser.parse_args()
    if args.seconds < 150:
        sys.exit("--seconds: expected at least 150, so that alerts have time to fire and resolve")
    agent = str(Path(args.agent).resolve())
    with tempfile.TemporaryDirectory(prefix="rowmill-", dir="/tmp") as folder:
        folder = Path(folder)
        stub = folder / "stub.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", stub, STUB], check=True)
        hosts, prometheus = [], None
        try:
            hosts = [Host(name, folder / name, agent, stub) for name in HOSTS]
            prometheus, address = start_prometheus(folder, hosts)
            end = time.time() + 60
            while time.time() < end:
                try:
                    if len(query(address, "rowmill_agent_info")) == len(hosts):
                        break
                except OSError:
                    pass
                time.sleep(0.5)
            watch = Watch(address, args.seconds)
            play(hosts, watch)
            is_right = watch.judge()
        finally:
            for host in hosts:
                host.end()
            if prometheus:
                prometheus.kill()
                prometheus.wait()
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
