"""How quiet the machine is while something is timed, and which machine it is. Linux; the clock needs x86-64.

`Clock` times dependent multiplications, three cycles each: on a shared machine they at times run at a fraction of what the
core does, and samples taken then say nothing. They wait for each other, so that what shares the core hardly slows them.
`Foreign` is the share of all cores that other processes, and other guests of the host, had meanwhile.
"""
import ctypes
import mmap
import os
import platform
import time

# mov rcx, rdi; again: 8 times imul rax, rax; dec rcx; jnz again; ret
LOOP = bytes.fromhex("4889f9" + 8 * "480fafc0" + "48ffc9" + "75db" + "c3")
CYCLES = 8 * 3
ITERATIONS = 16_000
TICK = os.sysconf("SC_CLK_TCK")


class Clock:
    """GHz as the calling thread sees them, a tenth of a millisecond a reading."""

    def __init__(self):
        if platform.machine() != "x86_64":
            raise SystemExit(f"machine.py: expected x86_64, got {platform.machine()}")
        self.memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self.memory.write(LOOP)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.loop = ctypes.CFUNCTYPE(None, ctypes.c_uint64)(address)

    def ghz(self):
        begin = time.perf_counter_ns()
        self.loop(ITERATIONS)
        return ITERATIONS * CYCLES / (time.perf_counter_ns() - begin)


class Foreign:
    """The share of all cores that went to others than the processes named at the end."""

    def __init__(self, *processes):
        self.processes = processes
        self.own, self.begin, self.wall = self.used(), busy(), time.perf_counter()

    def used(self):
        return sum(map(process_seconds, self.processes))

    def share(self, children=0.0):
        """`children`: seconds of processes that began and ended meanwhile."""
        wall = time.perf_counter() - self.wall
        own = self.used() - self.own + children
        return max(0.0, busy() - self.begin - own) / (wall * os.cpu_count())


def busy():
    """Seconds all cores were not idle, what the host took away included."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICK


def process_seconds(process):
    with open(f"/proc/{process}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def describe():
    with open("/proc/cpuinfo") as file:
        facts = dict(line.split(":", 1) for line in file.read().split("\n\n")[0].replace("\t", "").splitlines())
    return {
        "cpu": facts.get("model name", platform.machine()).strip(),
        "family_model": f"{facts.get('cpu family', '?').strip()}/{facts.get('model', '?').strip()}",
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
