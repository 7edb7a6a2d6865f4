"""What a suite was measured on, without names of hosts, users or folders. Imported before torch: torch reads the
variables set here when it is loaded.
"""
import os
import pathlib
import platform
import re
import subprocess
import sys
import time

# Kineto and the execution-trace observer report every session on stderr.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
# CUPTI that is torn down between profiles does not come back reliably once CUDA graphs ran. It stays loaded instead;
# therefore every stage takes its un-profiled times before its first profile.
os.environ.setdefault("TEARDOWN_CUPTI", "0")
os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
VARIABLES = ("OMP_NUM_THREADS", "CUDA_LAUNCH_BLOCKING", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
             "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG", "CUDA_MODULE_LOADING", "TEARDOWN_CUPTI",
             "DISABLE_CUPTI_LAZY_REINIT")
SMI_FACTS = ("driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.draw", "power.limit",
             "temperature.gpu", "persistence_mode", "compute_mode")
SMI_SECONDS = 15


def describe(device):
    facts = {
        "torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version(),
        "system": platform.system(), "kernel": platform.release(), "architecture": platform.machine(),
        "cpu": cpu_name(), "cpus": os.cpu_count(), "threads": torch.get_num_threads(),
        "memory_gb": round(memory_bytes("MemTotal") / 1e9, 1), "commit": commit(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "precision": precision(),
    }
    if device.kind == "cuda":
        facts["gpu"] = {**device.describe(), **clocks(device)}
    return facts


def precision():
    """What decides whether products of f32 run in TF32, and whether cuDNN searches for its kernels."""
    return {
        "float32_matmul_precision": attempt(torch.get_float32_matmul_precision),
        "cudnn_allow_tf32": attempt(lambda: torch.backends.cudnn.allow_tf32),
        "cudnn_benchmark": attempt(lambda: torch.backends.cudnn.benchmark),
        "cudnn_version": attempt(torch.backends.cudnn.version),
        "deterministic_algorithms": attempt(torch.are_deterministic_algorithms_enabled),
    }


def attempt(read):
    try:
        return read()
    except Exception as error:  # A newer torch may refuse the older name of a flag.
        return f"unknown: {type(error).__name__}"


def clocks(device):
    """Clocks, power and driver as nvidia-smi shows them; it is only read. Empty where there is no nvidia-smi."""
    chosen = ["-i", device.uuid()] if device.uuid() else []
    command = ["nvidia-smi", *chosen, f"--query-gpu={','.join(SMI_FACTS)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=SMI_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in answer.strip().splitlines()[0].split(",")]
    return dict(zip((fact.replace(".", "_") for fact in SMI_FACTS), values))


def cpu_name():
    try:
        found = re.search(r"^model name\s*:\s*(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.machine()


def memory_bytes(name):
    """A line of /proc/meminfo; 0 where there is none."""
    try:
        found = re.search(rf"^{name}:\s*(\d+) kB", pathlib.Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return 1024 * int(found.group(1)) if found else 0


class Others:
    """The share of all CPUs that other processes, and other guests of the host, had since this was made."""

    def __init__(self):
        self.begin = self.now()

    def share(self):
        """None where the system does not say."""
        (busy, own, wall), (busy_before, own_before, wall_before) = self.now(), self.begin
        if busy is None or wall <= wall_before:
            return None
        others = busy - busy_before - (own - own_before)
        return round(max(0.0, others) / ((wall - wall_before) * os.cpu_count()), 3)

    def now(self):
        own = os.times()
        return busy_seconds(), own.user + own.system, time.perf_counter()


def busy_seconds():
    """Seconds all CPUs were not idle, what the host took away included."""
    try:
        fields = pathlib.Path("/proc/stat").read_text().splitlines()[0].split()
    except OSError:
        return None
    user, nice, system, _, _, irq, softirq, steal = map(int, fields[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def commit():
    """Of this repository; None outside of one."""
    try:
        command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=SMI_SECONDS).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def private_paths():
    """Beginnings of paths that a file to be kept must not hold, longest first."""
    paths = {str(ROOT), sys.prefix, sys.base_prefix, os.getcwd(), os.path.expanduser("~")}
    return sorted((path for path in paths if len(path) > 4), key=len, reverse=True)
