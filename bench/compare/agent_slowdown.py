"""How much rowmill-agent and its hook slow training down: pairs of runs with and without, interleaved.

    python bench/compare/agent_slowdown.py --rowmill target/release/rowmill --agent target/release/rowmill-agent

Without torch in the interpreter, only our own trainer and the hook are measured; with --only-pytorch only
PyTorch's loop and the hook. --batch sets the length of PyTorch's step, which is printed. Each pair is one stretch
of steps without (the agent stopped by SIGSTOP, no hook, no KINETO_USE_DAEMON) and one with all of it, in an
order that changes from pair to pair. PyTorch's two processes are started anew after every few pairs: where
a process's memory lies makes all its steps faster or slower by some per cent. Pairs go on until the 95 % interval of the median of their
differences is within half a per cent, at most 60 or --minutes. Where it is not, the figure is "not
resolved", beside the CPU seconds that the agent spent. For PyTorch the CPU time of a step, of all threads of its
process, is compared as well: other work on the machine changes it less. Wants a machine that does nothing else. Ends with
1 where a slowdown of 1 % or more is resolved, or the hook takes more than 10 microseconds.
"""

import argparse
import importlib.util
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STRETCH_S = 1.0
PAIRS = 60
PAIRS_PER_PROCESS = 4
WITHIN = 0.005
SLOWDOWN = 0.01
HOOK_S = 10e-6

# A DLRM of 26 tables, which does steps for as many seconds as it is told and says how long one took.
JOB = """
import sys, time
import torch
torch.set_num_threads(1)
torch.manual_seed(1)
tables = torch.nn.ModuleList(torch.nn.EmbeddingBag(10000, 16, mode="sum") for _ in range(26))
bottom = torch.nn.Sequential(torch.nn.Linear(13, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
top = torch.nn.Sequential(torch.nn.Linear(351 + 16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
parameters = [*tables.parameters(), *bottom.parameters(), *top.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.01)
if sys.argv[1] == "on":
    import rowmill_steps
    rowmill_steps.watch(samples=int(sys.argv[2]))
rows, columns = torch.tril_indices(27, 27, -1)
batch = int(sys.argv[2])
dense, labels = torch.randn(batch, 13), torch.rand(batch, 1).round()
ids = torch.randint(0, 10000, (26, batch, 1))
def step():
    low = bottom(dense)
    pooled = [table(one) for table, one in zip(tables, ids)]
    all_of = torch.stack([low, *pooled], 1)
    pairs = torch.bmm(all_of, all_of.transpose(1, 2))[:, rows, columns]
    out = top(torch.cat([low, pairs], 1))
    optimizer.zero_grad()
    torch.nn.functional.binary_cross_entropy_with_logits(out, labels).backward()
    optimizer.step()
for _ in range(20):
    step()
print("ready", flush=True)
for line in sys.stdin:
    began, worked, count = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - began < float(line):
        step()
        count += 1
    print((time.perf_counter() - began) / count, (time.process_time() - worked) / count, flush=True)
"""


def start_agent(program, folder):
    (folder / "s").mkdir()
    words = ["--socket-dir", folder / "s", "--state-dir", folder / "state", "--json", folder / "rows.json"]
    agent = subprocess.Popen([program, *words], stderr=(folder / "log").open("w"))
    end = time.time() + 30
    while not (folder / "s/rowmill-steps").exists() and time.time() < end:
        time.sleep(0.05)
    return agent


def with_agent(folder):
    paths = dict(KINETO_USE_DAEMON="1", KINETO_IPC_SOCKET_DIR=str(folder / "s"))
    return dict(os.environ, PYTHONPATH=str(ROOT / "deploy"), **paths)


def without_agent():
    names = ("KINETO_USE_DAEMON", "KINETO_IPC_SOCKET_DIR")
    return {name: value for name, value in os.environ.items() if name not in names}


def cpu_seconds(pid):
    words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def interval(values):
    """The median, and its 95 % interval by resampling."""
    chance = random.Random(1)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(2000))
    return statistics.median(values), medians[50], medians[1949]


def pairs(name, agent, measure, seconds, found):
    """`measure(is_on)` gives the times of one stretch, of which the first decides, the second is CPU time;
    differences as shares of the one without."""
    differences, spent, end = [], cpu_seconds(agent.pid), time.monotonic() + seconds
    without, cpu = [], []
    middle, low, high = 0.0, -1.0, 1.0
    while len(differences) < PAIRS and time.monotonic() < end:
        took = {}
        for is_on in [False, True] if len(differences) % 2 == 0 else [True, False]:
            agent.send_signal(signal.SIGCONT if is_on else signal.SIGSTOP)
            took[is_on] = measure(is_on)
        differences.append(took[True][0] / took[False][0] - 1)
        without.append(took[False][0])
        cpu += [on / off - 1 for on, off in zip(took[True][1:], took[False][1:])]
        if len(differences) >= 10:
            middle, low, high = interval(differences)
            if max(high - middle, middle - low) <= WITHIN:
                break
    agent.send_signal(signal.SIGCONT)
    spent = cpu_seconds(agent.pid) - spent
    is_resolved = max(high - middle, middle - low) <= WITHIN
    told = f"slowdown {middle:+.2%} ({low:+.2%} to {high:+.2%})" if len(differences) >= 10 else "too few pairs"
    verdict = "" if is_resolved else ", not resolved"
    print(f"{name}: {len(differences)} pairs, {told}{verdict}; the agent took {spent:.2f} CPU s", flush=True)
    if len(cpu) >= 10:
        middle_cpu, low_cpu, high_cpu = interval(cpu)
        told = f"{middle_cpu:+.2%} ({low_cpu:+.2%} to {high_cpu:+.2%})"
        print(f"{name}: a step takes {statistics.median(without) * 1e3:.1f} ms without; its CPU time {told}", flush=True)
    if is_resolved and middle >= SLOWDOWN:
        found.append(f"{name}: a slowdown of {middle:.2%}")


def pytorch(agent, folder, batch, seconds, found):
    if importlib.util.find_spec("torch") is None:
        print("SKIPPED PyTorch: this interpreter has no torch")
        return
    (folder / "job.py").write_text(JOB)
    jobs, measured = {}, {False: 0, True: 0}

    def start(is_on):
        environment = with_agent(folder) if is_on else without_agent()
        words = [sys.executable, folder / "job.py", "on" if is_on else "off", str(batch)]
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        jobs[is_on] = subprocess.Popen(words, env=environment, **pipes)
        assert jobs[is_on].stdout.readline() == "ready\n", "the job did not start"

    def end(is_on):
        job = jobs.pop(is_on, None)
        if job is not None:
            job.kill()
            job.wait()

    def measure(is_on):
        if measured[is_on] % PAIRS_PER_PROCESS == 0:
            end(is_on)
            start(is_on)
        measured[is_on] += 1
        jobs[is_on].stdin.write(f"{STRETCH_S}\n")
        jobs[is_on].stdin.flush()
        return [float(word) for word in jobs[is_on].stdout.readline().split()]

    try:
        pairs("PyTorch's loop", agent, measure, seconds, found)
    finally:
        end(False)
        end(True)


def own(rowmill, agent, folder, seconds, found):
    count = iter(range(10**6))

    def measure(is_on):
        run = folder / f"run{next(count)}"
        words = ["train", "dlrm-criteo-kaggle", "--synthetic", "20000", "--run", run]
        words += ["--set", "rows_cap=2000", "--set", "training.steps=150"]
        began = time.perf_counter()
        environment = with_agent(folder) if is_on else without_agent()
        said = subprocess.run([rowmill, *words], env=environment, capture_output=True, text=True)
        if said.returncode != 0:
            raise SystemExit(f"rowmill train: {said.stderr}")
        return [time.perf_counter() - began]

    measure(False)
    pairs("rowmill train", agent, measure, seconds, found)


def hook(folder, found):
    os.environ["KINETO_IPC_SOCKET_DIR"] = str(folder / "s")
    sys.path.insert(0, str(ROOT / "deploy"))
    import rowmill_steps

    took = []
    for _ in range(5000):
        # A step that computes, as training does: a processor that sleeps wakes up slowly.
        end = time.perf_counter() + 0.0005
        while time.perf_counter() < end:
            pass
        began = time.perf_counter()
        rowmill_steps.step(samples=128)
        took.append(time.perf_counter() - began)
    took.sort()
    middle, most = took[len(took) // 2], took[int(0.99 * len(took))]
    print(f"hook: median {middle * 1e6:.1f} us, p99 {most * 1e6:.1f} us a step", flush=True)
    if middle > HOOK_S:
        found.append(f"hook: {middle * 1e6:.1f} us a step")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rowmill", default="target/release/rowmill")
    parser.add_argument("--agent", default="target/release/rowmill-agent")
    parser.add_argument("--minutes", type=float, default=5.0, help="for both loops together")
    parser.add_argument("--batch", type=int, default=128, help="samples of a step of PyTorch's loop")
    parser.add_argument("--only-pytorch", action="store_true")
    args = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="as") as name:
        folder = Path(name)
        agent = start_agent(args.agent, folder)
        try:
            hook(folder, found)
            pytorch(agent, folder, args.batch, args.minutes * (60 if args.only_pytorch else 30), found)
            if not args.only_pytorch:
                own(args.rowmill, agent, folder, args.minutes * 30, found)
        finally:
            agent.send_signal(signal.SIGCONT)
            agent.send_signal(signal.SIGTERM)
            agent.wait()
    for line in found:
        print(f"missed: {line}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
