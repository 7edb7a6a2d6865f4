"""Attacks on rowmill-agent by an unprivileged user of the host and by peers without a token, all at once, while
other users' polls, orders and samples and scrapes go on.

    python bench/compare/agent_attacks.py --agent target/release/rowmill-agent [--torch PYTHON] [--seconds 60]
        [--judge] [--record FOLDER]

Needs root, standard library and `openssl` only; without root or openssl the script says so and ends with 0.
With --torch, an interpreter with torch 2.14 or newer, a PyTorch job of a third user trains meanwhile, and that
user orders a trace of it every ten seconds.
Everything is on loopback. The user plants links and takes socket names before the agent starts; floods both
datagram sockets; holds half-sent requests at every endpoint; starts processes with megabytes of environment;
sends orders that wait an hour, samples for a minute and traces that fill the spool. Peers shake hands without a
token from several addresses. Judged: memory, the longest scrape, lost polls, the bytes of spool and audit, and
that every trace of the job arrives.
"""

import argparse
import encodings.idna  # noqa: F401 - names of hosts need it, and the attacker cannot read where it may lie.
import gzip
import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import machine
import records

# The bars.
RESIDENT_MAX = 64 << 20
SCRAPE_MAX_S = 1.0
POLLS_LOST_MAX = 0.02
AUDIT_MIB, SPOOL_MIB, SPOOL_USER_MIB = 4, 32, 16
# Who attacks, and who works.
ATTACKER, WORKER, TRAINER = 65534, 54321, 54322
# Seconds from one order for a trace of the real job to the next, and for which one may wait.
TRACE_EVERY_S, TRACE_PATIENCE_S = 10, 60
TOKEN = "0123456789abcdef-attacks"
ADDRESSES = [f"127.0.0.{last}" for last in range(2, 10)]


# A step of about 30 ms on one core.
JOB = """
import time
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
batch = torch.randn(256, 512)
while True:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""


def poll(pid):
    return struct.pack("<Q32siiqi", 20, b"req", 2, 1, 0, pid)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Place:
    """The agent's folder, ports and certificate."""

    def __init__(self, folder):
        self.folder, self.sockets = folder, folder / "s"
        self.metrics, self.dynolog, self.tls = free_port(), free_port(), free_port()
        folder.chmod(0o755)
        self.sockets.mkdir()
        self.sockets.chmod(0o1777)
        names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
        words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
        files = ["-keyout", folder / "key.pem", "-out", folder / "certificate.pem"]
        subprocess.run(["openssl", *words.split(), "-addext", names, *files], check=True, capture_output=True)
        token = folder / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        (folder / "agent.toml").write_text(f"""
socket_dir = "{self.sockets}"
state_dir = "{folder}/state"
metrics = "127.0.0.1:{self.metrics}"
dynolog = "127.0.0.1:{self.dynolog}"
audit = "{folder}/audit.jsonl"
audit_mib = {AUDIT_MIB}
spool_mib = {SPOOL_MIB}
spool_user_mib = {SPOOL_USER_MIB}
[listen]
address = "0.0.0.0:{self.tls}"
certificate = "{folder}/certificate.pem"
key = "{folder}/key.pem"
[[token]]
name = "ops"
file = "{token}"
verbs = ["status", "trace"]
""")

    def start(self, program, *more):
        log = (self.folder / "log").open("a")
        return subprocess.Popen([program, "--config", self.folder / "agent.toml", *more], stderr=log)


def fork_as(user, work, *arguments):
    """A process of `user` that does one thing until it is ended; in a group of its own with its children."""
    pid = os.fork()
    if pid:
        return pid
    os.setpgid(0, 0)
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    try:
        work(*arguments)
    except BaseException as error:  # noqa: BLE001 - the child must end here, whatever happens.
        print(f"{work.__name__}: {error!r}", file=sys.stderr, flush=True)
    os._exit(1)


def again(work, pause=0.0):
    """Does something for ever; what fails is tried again."""
    while True:
        try:
            work()
        except OSError:
            time.sleep(0.001)
        time.sleep(pause)


def http(place, verb, path, body=b""):
    """A request at the agent's own socket; status and answer."""
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(90)
        stream.connect(str(place.sockets / "rowmill/agent"))
        head = f"{verb} {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        stream.sendall(head.encode() + b"Connection: close\r\n\r\n" + body)
        answer = b"".join(iter(lambda: stream.recv(65536), b""))
    head, _, rest = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]) if head else 0, rest


def order(token, ahead_ms=0, pids=(), patience_s=20):
    when = {"kind": "iterations", "count": 1, "align": 1}
    wanted = {"token": token, "when": when, "size_max": 64 << 20, "patience_ms": patience_s * 1000, "pids": list(pids)}
    return json.dumps(wanted | {"not_before_unix_ms": int(time.time() * 1000) + ahead_ms}).encode()


# --- what the attacker does ---


def flood(target, message, name):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        if name:
            client.bind(name)
        client.connect(target)
        again(lambda: client.send(message))


def hold_half(place):
    held = []

    def one():
        control = socket.socket(socket.AF_UNIX)
        control.connect(str(place.sockets / "rowmill/agent"))
        control.send(b"POST /v1/traces HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n")
        held.append(control)
        for port in [place.metrics, place.dynolog, place.tls]:
            client = socket.create_connection(("127.0.0.1", port), source_address=(ADDRESSES[len(held) % 8], 0))
            client.send(b"GET /metrics HTTP/1.1\r\nHost: a\r\n"[: 3 if port == place.dynolog else 64])
            held.append(client)
        del held[: max(0, len(held) - 800)]

    again(one, 0.002)


def crowd(place):
    """Processes with a large environment and a long command that ask once, forty at a time."""
    script = f"import socket, struct, os, time\ns = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
    script += f"s.bind('{place.sockets}/dynoconfigclient-' + str(os.getpid()))\n"
    script += f"s.sendto(struct.pack('<Q32siiqi', 20, b'req', 2, 1, 0, 7), '{place.sockets}/dynolog')\ntime.sleep(8)"
    environment = {f"SLURM_{number}": "x" * 100_000 for number in range(10)} | {"SLURM_JOB_NAME": "\x1b[2J" * 20_000}
    # The attacker may not be able to read the interpreter that runs this.
    python = next(path for path in ["/usr/bin/python3", sys.executable] if os.access(path, os.X_OK))
    started = []

    def one():
        started.append(subprocess.Popen([python, "-S", "-c", script, "y" * 100_000], env=environment))
        if len(started) > 40:
            started.pop(0).wait()

    again(one, 0.05)


def traced(place, name):
    """A process that polls, and writes four megabytes wherever a trace is wanted."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    client.bind(str(place.sockets / f"dynoconfigclient-{name}"))
    client.settimeout(0.2)
    done = set()

    def one():
        client.sendto(poll(os.getpid()), str(place.sockets / "dynolog"))
        text = client.recv(8192)[40:].decode()
        values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        if "REQUEST_TRACE_ID" in values and values["REQUEST_TRACE_ID"] not in done:
            done.add(values["REQUEST_TRACE_ID"])
            path = values["ACTIVITIES_LOG_FILE"].replace(".json", f"_{os.getpid()}.json")
            with open(path + ".tmp", "wb") as file:
                file.write(b'{"trace_id": "%s", "x": "' % values["REQUEST_TRACE_ID"].encode())
                file.write(os.urandom(2 << 20).hex().encode() + b'"}')
            os.rename(path + ".tmp", path)

    again(one, 0.2)


def fill_orders(place, ahead_ms):
    again(lambda: http(place, "POST", "/v1/traces", order(f"a-{os.urandom(8).hex()}", ahead_ms)), 0.01)


def fill_samples(place):
    body = json.dumps({"pids": [os.getpid()], "length_ms": 60_000, "every_ms": 10}).encode()
    again(lambda: http(place, "POST", "/v1/samples", body), 0.01)


def plant(place):
    """Exchanges whatever can be exchanged in the socket folder."""

    def one():
        for name in ["dynolog", "rowmill", "rowmill-steps"]:
            for attempt in [os.unlink, os.rmdir, lambda path: os.symlink("/etc/passwd", path)]:
                try:
                    attempt(str(place.sockets / name))
                except OSError:
                    pass

    again(one, 0.01)


def shake(place, address):
    """Handshakes without a token, and requests for long paths."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    request = b"GET /" + b"x" * 8000 + b"\x1b HTTP/1.1\r\nHost: a\r\n\r\n"
    request = request.replace(b"\x1b", b"%1b")

    def one():
        with socket.create_connection(("127.0.0.1", place.tls), 5, (address, 0)) as plain:
            with context.wrap_socket(plain) as stream:
                for _ in range(50):
                    stream.sendall(request)
                    if not stream.recv(4096):
                        break

    again(one, 0.001)


def attacks(place):
    step = struct.pack("<BBHIQQQQ", 1, 1, 0, 1, 1, 1, 1, 1)
    sockets = place.sockets
    works = [(flood, str(sockets / "dynolog"), poll(1), str(sockets / f"dynoconfigclient-f{n}")) for n in range(2)]
    works += [(flood, str(sockets / "rowmill-steps"), step, None), (hold_half, place), (crowd, place)]
    works += [(traced, place, "attacker"), (fill_orders, place, 3_500_000), (fill_orders, place, 0)]
    works += [(fill_samples, place), (plant, place)] + [(shake, place, address) for address in ADDRESSES[:4]]
    return [fork_as(ATTACKER, *work) for work in works]


def before(place, program, found):
    """What was planted before the agent starts: it refuses the one, and starts in spite of the other."""
    victim, planted = place.folder / "victim", place.folder / "planted"
    (victim / "kept").mkdir(parents=True)
    planted.mkdir()
    (planted / "traces").symlink_to(victim)
    os.chown(planted, ATTACKER, ATTACKER)
    agent = place.start(program, "--state-dir", str(planted))
    if agent.wait(30) != 2 or not (victim / "kept").exists():
        found.append("a state folder of another user: expected to be refused, with nothing removed")

    def squat():
        (place.sockets / "rowmill").mkdir()
        held = socket.socket(socket.AF_UNIX)
        held.bind(str(place.sockets / "rowmill/agent"))
        held.listen()
        names = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
        for name, taken in zip(["dynolog", "rowmill-steps"], names):
            taken.bind(str(place.sockets / name))
        time.sleep(3600)

    squatter = fork_as(ATTACKER, squat)
    while not (place.sockets / "rowmill-steps").exists():
        time.sleep(0.05)
    return squatter


# --- what others do meanwhile ---


def worker(place, seconds, out):
    """Another user's process: polls as Kineto does, one order, and one sample. Writes what it got."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    client.bind(str(place.sockets / "dynoconfigclient-worker"))
    got = {"polls": 0, "lost": 0, "tries": 0, "orders": 0, "samples": 0}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        asked = time.monotonic()
        got["polls"] += 1
        client.setblocking(False)
        for turn in range(10):
            try:
                client.sendto(poll(os.getpid()), str(place.sockets / "dynolog"))
                break
            except BlockingIOError:
                got["tries"] += 1
                time.sleep(0.01 * 2**turn)
        client.settimeout(0.09)
        try:
            client.recv(8192)
        except TimeoutError:
            got["lost"] += 1
        try:
            if got["orders"] == 0:
                got["orders"] += http(place, "POST", "/v1/traces", order("of-the-worker", 1000))[0] == 201
            elif got["samples"] == 0:
                wanted = {"pids": [os.getpid()], "length_ms": 200, "every_ms": 50}
                got["samples"] += http(place, "POST", "/v1/samples", json.dumps(wanted).encode())[0] == 200
        except OSError:
            pass
        time.sleep(max(0.0, 0.5 - (time.monotonic() - asked)))
    os.write(out, json.dumps(got).encode())
    os._exit(0)


def start_job(place, python):
    """A real PyTorch job of a user of its own."""
    words = "import sys, torch; print(*sys.version_info[:2], sep='.'); print(torch.__path__[0])"
    version, library = subprocess.run([python, "-c", words], check=True, capture_output=True, text=True).stdout.split()
    # The user may not be able to read the interpreter, but another one of the same version loads the library too.
    known = [python, os.path.realpath(python), f"/usr/bin/python{version}"]
    asked = ["setpriv", f"--reuid={TRAINER}", f"--regid={TRAINER}", "--clear-groups"]
    readable = [one for one in known if subprocess.run([*asked, "test", "-x", one], check=False).returncode == 0]
    if not readable:
        sys.exit(f"--torch: expected an interpreter that user {TRAINER} can run, got {', '.join(known)}")
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(library).parent), "OMP_NUM_THREADS": "1"}
    environment |= {"KINETO_USE_DAEMON": "1", "KINETO_IPC_SOCKET_DIR": str(place.sockets)}
    log = (place.folder / "job.log").open("w")
    words = [*asked, readable[0], "-c", JOB]
    return subprocess.Popen(words, env=environment, cwd="/tmp", stdout=log, stderr=log, start_new_session=True)


def wait_for_job(place, pid):
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            rows = json.loads(http(place, "GET", "/v1/status")[1])["processes"]
            if any(row["pid"] == pid and row["is_free"] for row in rows):
                return
        except OSError:
            pass
        time.sleep(0.5)
    sys.exit(f"the PyTorch job did not ask for traces: {(place.folder / 'job.log').read_text()[-2000:]}")


def trace_once(place, pid, token):
    """Orders a trace of a process and fetches it: seconds that took, bytes, and what went wrong."""
    began, state = time.monotonic(), {}
    problem = lambda what: {"seconds": time.monotonic() - began, "bytes": 0, "problem": what}
    while True:
        if time.monotonic() - began > TRACE_PATIENCE_S + 30:
            return problem(f"no end of the order: {state}")
        try:
            if not state:
                status, answer = http(place, "POST", "/v1/traces", order(token, 0, [pid], TRACE_PATIENCE_S))
                if status != 201:
                    return problem(f"refused: {status} {answer.decode()}")
            state = json.loads(http(place, "GET", f"/v1/traces/{token}")[1])
            if not state["is_over"]:
                time.sleep(0.2)
                continue
            row = state["rows"][0]
            if row["state"] != "written":
                return problem(f"{row['state']}: {row['reason']}")
            name = row["file"]["name"]
            trace = gzip.decompress(http(place, "GET", f"/v1/traces/{token}/{name}")[1])
            took, rows = time.monotonic() - began, json.loads(trace)["traceEvents"]
            http(place, "DELETE", f"/v1/traces/{token}")
            has_own = any(row.get("pid") == pid for row in rows)
            return {"seconds": took, "bytes": len(trace), "problem": "" if has_own else "not of the process"}
        except OSError:
            # As many others want to connect; the next try may be luckier.
            time.sleep(0.1)


def trace_job(place, pid, seconds, out):
    """Traces the real job every ten seconds; writes what became of each trace."""
    began, traces = time.monotonic(), []
    while time.monotonic() - began < seconds - TRACE_EVERY_S / 2:
        traces.append(trace_once(place, pid, f"of-the-job-{len(traces)}"))
        due = -(-(time.monotonic() - began) // TRACE_EVERY_S) * TRACE_EVERY_S
        time.sleep(max(0.0, began + due - time.monotonic()))
    os.write(out, json.dumps(traces).encode())
    os._exit(0)


def scrape(place):
    began = time.perf_counter()
    page = urllib.request.urlopen(f"http://127.0.0.1:{place.metrics}/metrics", timeout=30).read().decode()
    return time.perf_counter() - began, page


def remote_status(place, context):
    request = urllib.request.Request(
        f"https://localhost:{place.tls}/v1/status", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    return urllib.request.urlopen(request, timeout=10, context=context).status == 200


def status_line(pid, name):
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) << 10


def tree_bytes(folder):
    return sum(file.lstat().st_size for file in folder.rglob("*") if not file.is_dir())


def audit_bytes(place):
    return sum(file.stat().st_size for file in place.folder.glob("audit.jsonl*"))


def watch(place, agent, seconds, figures):
    context = ssl.create_default_context(cafile=str(place.folder / "certificate.pem"))
    end, took, turn = time.monotonic() + seconds, [], 0
    while time.monotonic() < end and agent.poll() is None:
        began = time.monotonic()
        try:
            took.append(scrape(place)[0])
        except OSError as error:
            figures["scrapes_failed"].append(str(error))
        if turn % 5 == 0:
            try:
                figures["remote"].append(remote_status(place, context))
            except OSError as error:
                figures["remote"].append(str(error))
        figures["spool"] = max(figures["spool"], tree_bytes(place.folder / "state/traces"))
        figures["audit"] = max(figures["audit"], audit_bytes(place))
        turn += 1
        time.sleep(max(0.0, 1.0 - (time.monotonic() - began)))
    figures["scrapes"], figures["scrape_max_s"] = len(took), max(took, default=99.0)
    figures["scrape_median_s"] = sorted(took)[len(took) // 2] if took else 99.0


def judge(figures, found):
    work = figures["worker"]
    if figures["resident_peak"] > RESIDENT_MAX:
        found.append(f"memory: expected at most {RESIDENT_MAX >> 20} MiB")
    if figures["scrapes_failed"] or figures["scrape_max_s"] > SCRAPE_MAX_S:
        found.append(f"scrapes: expected every one within {SCRAPE_MAX_S} s")
    if work["lost"] > POLLS_LOST_MAX * work["polls"]:
        found.append(f"polls: expected at most {POLLS_LOST_MAX:.0%} lost")
    if not work["orders"] or not work["samples"]:
        found.append("another user's order and sample: expected both to be accepted")
    if lost := [trace for trace in figures["traces"] if trace["problem"]]:
        found.append(f"traces of the real job: expected all {len(figures['traces'])} to arrive, lost {lost}")
    if figures["torch"] and not figures["traces"]:
        found.append("traces of the real job: expected some, got none")
    if figures["remote"].count(True) < len(figures["remote"]):
        found.append("status over TLS with a token: expected every one to be answered")
    if figures["spool"] > SPOOL_MIB << 20:
        found.append(f"spool: expected at most {SPOOL_MIB} MiB")
    if figures["audit"] > AUDIT_MIB << 20:
        found.append(f"audit: expected at most {AUDIT_MIB} MiB")


def traces_of(figures):
    traces = figures["traces"]
    if not figures["torch"]:
        return "not run: no --torch"
    arrived = [trace["seconds"] for trace in traces if not trace["problem"]]
    return f"{len(arrived)} of {len(traces)}, longest {max(arrived, default=0.0):.1f} s (torch {figures['torch']})"


def table(figures, found):
    work, mib = figures["worker"], lambda count: f"{count / 2**20:.1f} MiB"
    rows = [
        ("memory, peak", mib(figures["resident_peak"]), f"<= {RESIDENT_MAX >> 20} MiB"),
        ("scrapes", f"{figures['scrapes']}, {len(figures['scrapes_failed'])} failed", "none failed"),
        ("longest scrape", f"{figures['scrape_max_s']:.3f} s (median {figures['scrape_median_s']:.3f})", f"<= {SCRAPE_MAX_S} s"),
        ("polls of another user", f"{work['polls']}, {work['lost']} lost", f"<= {POLLS_LOST_MAX:.0%} lost"),
        ("order, sample of another user", f"{work['orders']}, {work['samples']}", "1, 1"),
        ("traces of a real PyTorch job", traces_of(figures), "all arrive"),
        ("status over TLS", f"{figures['remote'].count(True)} of {len(figures['remote'])}", "all"),
        ("spool, peak", mib(figures["spool"]), f"<= {SPOOL_MIB} MiB"),
        ("audit, peak", mib(figures["audit"]), f"<= {AUDIT_MIB} MiB"),
        ("messages dropped", f"{figures['dropped']:.0f}", "counted"),
        ("agent's CPU", f"{figures['cpu_share']:.0%} of a core", "-"),
        ("idle afterwards", f"{figures['idle_share']:.2%} of a core, {mib(figures['resident_after'])}", "-"),
    ]
    lines = [f"# Attacks on rowmill-agent, {figures['seconds']} s", "", "| | found | bar |", "|---|---|---|"]
    lines += [f"| {name} | {value} | {bar} |" for name, value, bar in rows]
    lines += ["", f"Load of the machine: {figures['load']}.", *[f"Missed: {line}." for line in found]]
    return "\n".join(lines)


def end_group(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    os.waitpid(pid, 0)


def run(args, place, figures, found):
    squatter = before(place, args.agent, found)
    agent = place.start(args.agent)
    started, job = [squatter], None
    try:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                # Until the page is there, whoever took the socket's name may still hold it.
                if scrape(place) and http(place, "GET", "/v1/status")[0] == 200:
                    break
            except OSError:
                time.sleep(0.1)
        else:
            found.append("taken socket names: expected the agent to start in spite of them")
            print((place.folder / "log").read_text()[-2000:], file=sys.stderr)
            return
        job = start_job(place, args.torch) if args.torch else None
        if job:
            wait_for_job(place, job.pid)
        reader, writer = os.pipe()
        busy, worked = time.monotonic(), machine.process_seconds(agent.pid)
        started += attacks(place)
        fork_as(WORKER, worker, place, args.seconds, writer)
        os.close(writer)
        # Made here, so that no attacker holds it open.
        traces_reader, traces_writer = os.pipe()
        if job:
            fork_as(TRAINER, trace_job, place, job.pid, args.seconds, traces_writer)
        os.close(traces_writer)
        watch(place, agent, args.seconds, figures)
        figures["cpu_share"] = (machine.process_seconds(agent.pid) - worked) / (time.monotonic() - busy)
        figures["load"] = Path("/proc/loadavg").read_text().strip()
        # The last trace may have begun late: the attacks go on until it is there.
        with os.fdopen(traces_reader) as pipe:
            figures["traces"] = json.loads(pipe.read() or "[]")
        if job and job.poll() is not None:
            log = (place.folder / "job.log").read_text(errors="replace")[-2000:]
            found.append(f"the real job: expected it to go on, ended with {job.returncode}\n{log}")
        while started:
            end_group(started.pop())
        with os.fdopen(reader) as pipe:
            figures["worker"] |= json.loads(pipe.read() or "{}")
        if agent.poll() is not None:
            found.append("the agent ended")
            return
        page = scrape(place)[1]
        line = next((line for line in page.splitlines() if 'outcome="dropped"' in line), "0 0")
        figures["dropped"] = float(line.split()[-1])
        figures["resident_peak"] = status_line(agent.pid, "VmHWM:")
        time.sleep(6)
        idle, worked = time.monotonic(), machine.process_seconds(agent.pid)
        time.sleep(10)
        figures["idle_share"] = (machine.process_seconds(agent.pid) - worked) / (time.monotonic() - idle)
        figures["resident_after"] = status_line(agent.pid, "VmRSS:")
    finally:
        for pid in started:
            end_group(pid)
        if job:
            job.kill()
            job.wait()
        agent.send_signal(signal.SIGTERM)
        agent.wait()


def torch_version(python):
    if not python:
        return ""
    words = [python, "-c", "import torch; print(torch.__version__)"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", default="target/release/rowmill-agent", type=lambda path: str(Path(path).resolve()))
    parser.add_argument("--torch", metavar="PYTHON", type=os.path.abspath, help="an interpreter with torch: trace a real job meanwhile")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--judge", action="store_true", help="end with 1 where a bar is missed")
    parser.add_argument("--record", type=Path, help="write figures to this folder, in one named after the machine")
    args = parser.parse_args()
    if os.getuid() != 0:
        print("SKIPPED attacks on the agent: needs root")
        return 0
    found = []
    figures = {"seconds": args.seconds, "scrapes_failed": [], "remote": [], "spool": 0, "audit": 0, "dropped": 0.0}
    figures |= {"worker": {"polls": 0, "lost": 0, "tries": 0, "orders": 0, "samples": 0}, "resident_peak": 0}
    figures |= {"scrapes": 0, "scrape_max_s": 99.0, "scrape_median_s": 99.0, "load": ""}
    figures |= {"traces": [], "torch": torch_version(args.torch)}
    figures |= {"cpu_share": 0.0, "idle_share": 0.0, "resident_after": 0}
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="aa") as name:
        try:
            place = Place(Path(name))
        except FileNotFoundError:
            print("SKIPPED attacks on the agent: openssl is not there")
            return 0
        run(args, place, figures, found)
    judge(figures, found)
    text = table(figures, found)
    print(text, flush=True)
    if args.record:
        about = machine.describe()
        report = {"machine": about, "figures": figures, "missed": found}
        name = f"agent-attacks-{time.strftime('%Y-%m-%d')}"
        records.write(args.record / records.folder_name(about), name, report, text)
    return int(bool(found) and args.judge)


if __name__ == "__main__":
    sys.exit(main())
