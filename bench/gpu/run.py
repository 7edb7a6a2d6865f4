#!/usr/bin/env python3
"""Checks and measures rowmill on a machine with a GPU, in at most four minutes a call.

    bench/gpu/run.sh quick  [--package FOLDER] [--out OUT]     first: what works, and how fast it is
    bench/gpu/run.sh second [--package FOLDER] [--out OUT]     then: sanitizers, counters, records for predictions

The machine needs NVIDIA's driver and Python 3, but neither Rust nor NVRTC: `bench/gpu/pack.sh FOLDER` makes the package on
another machine. PyTorch is optional: it is what the step is compared with, and it brings NVRTC and cuBLASLt.

quick (240 s):
  libraries    driver, NVRTC, cuBLASLt and NCCL, with versions and where they are
  conformance  every kernel against its scalar oracle, each test in a process of its own
  goldens      the recorded runs of facebookresearch/dlrm and TorchRec, each in a process of its own
  bandwidth    a copy within the GPU's memory, and three lookups and updates beside it
  training     steps of dlrm-default in f32, TF32 and bf16 beside PyTorch: eager, in a CUDA graph, compiled
second (240 s):
  sanitizer    memcheck and racecheck of compute-sanitizer on four kernels
  bandwidth    all shapes of the table in docs/measurements.md
  counters     ncu on the kernels of a lookup and its update
  trace        a recorded PyTorch DLRM and its step times
  kernels      PyTorch's kernels whose times are only estimated so far: microbenchmarks of bench/collect

Every stage has a limit of its own; a failure ends nothing but its stage. The table is written anew after each row, so that
a machine that is taken away leaves what was measured. OUT (default: out) gets table.txt, results.json and log.txt, and from
`second` also suite.tar.gz. Exit status: 0 every row passed, 1 some did not, 2 wrong call, 130 interrupted.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import csv
import glob
import io
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import site
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zlib

HERE = pathlib.Path(__file__).resolve().parent
TOTAL_SECONDS = 240
# What a stage may still need after its limit: ending its processes, writing the table.
GRACE_SECONDS = 5
TABLE_CHARACTERS = 10_000
LOG_BYTES = 12 << 20
# Of one process; the end is kept.
OUTPUT_BYTES = 1 << 20
# Processes that wait for a GPU's start-up at the same time.
PARALLEL = 4

INTERRUPTED = 130
PASSED, FAILED, TIMED_OUT, SKIPPED, NOT_RUN = "passed", "FAILED", "TIMED OUT", "skipped", "not run"

KERNELS_UNDER_SANITIZER = ["forward_on_the_device", "backward_on_the_device", "interactions_on_the_device", "exclusive_sums"]
COUNTERS = {
    "gpu__time_duration.sum": "time",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "DRAM",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "SM",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy",
    "launch__registers_per_thread": "registers",
}
# Kernels that prediction has only formulas for, as bench/collect/kernels.py names them.
MICROBENCHMARKS = ["embedding_*", "concat", "transpose", "tril_*", "batch_norm", "memcpy_*"]
# Stages of a suite by ours.
SUITE_STAGES = {"kernels": ["kernels"], "trace": ["times", "traces"]}
TRACED_MODEL = "dlrm-default-p1-bags-b2048"

Row = collections.namedtuple("Row", "stage verdict figure error")
Ended = collections.namedtuple("Ended", "verdict text seconds error")


# Processes that are running. Once ENDING is set, no more are started.
RUNNING = set()
ENDING = threading.Event()


class Interrupted(BaseException):
    """The machine or the user ends the run."""


def main():
    arguments = parsed()
    os.umask(0o022)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, interrupt)
    report = Report(arguments.out, arguments.command)
    scratch = None
    try:
        scratch = pathlib.Path(tempfile.mkdtemp(prefix="rowmill-gpu-"))
        run = Run(unpacked(arguments.package, scratch), scratch, report, arguments.rehearse)
        report.results["provenance"] = run.provenance()
        for stage, limit in STAGES[arguments.command]:
            run.stage(stage, limit)
    except Interrupted:
        report.add([Row("run", NOT_RUN, "", "interrupted: the stages behind this row were not run")])
        return INTERRUPTED
    except OSError as error:
        report.add([Row("package", FAILED, "", str(error))])
    finally:
        report.write()
        shutil.rmtree(scratch or "", ignore_errors=True)
        say(report.table())
    return 0 if all(row.verdict in (PASSED, SKIPPED) for row in report.rows) and not report.problem else 1


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=list(STAGES))
    parser.add_argument("--package", type=pathlib.Path, help="the folder that pack.sh filled, or its unpacked content "
                        "(default: this script's folder, or target/gpu of the repository)")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out"), help="where the results go (default: out)")
    parser.add_argument("--rehearse", action="store_true", help="small shapes, the kernels on the emulator: for a machine "
                        "without a GPU, or with a stub of its driver")
    arguments = parser.parse_args()
    arguments.package = arguments.package or (HERE if (HERE / "package.tar.gz").exists() else HERE.parents[1] / "target/gpu")
    if not any((arguments.package / name).exists() for name in ("package.tar.gz", "rowmill")):
        parser.error(f"--package: expected a folder with package.tar.gz, got {arguments.package}; "
                     "hint: bench/gpu/pack.sh --small FOLDER makes one")
    return arguments


def interrupt(number, frame):
    for other in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    ENDING.set()
    for process in list(RUNNING):
        end(process)
    raise Interrupted


def end(process):
    """Ends a program and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def say(text):
    """Prints a line. A closed pipe or a full disk must not end the run."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


def unpacked(package, scratch):
    """The folder with the package's files."""
    if (package / "rowmill").exists():
        return package.resolve()
    to = scratch / "package"
    path = package / "package.tar.gz"
    try:
        with tarfile.open(path) as archive:
            archive.extractall(to, filter="data")
    except (EOFError, tarfile.TarError, zlib.error) as error:
        problem = (str(error).splitlines() or [type(error).__name__])[0]
        raise OSError(f"{path}: expected a whole package, got {path.stat().st_size} bytes ({problem}); hint: copy it again")
    except OSError as error:
        raise OSError(f"{path}: cannot be unpacked into {to}: {error.strerror or error}; hint: TMPDIR names another folder")
    return to


class Report:
    """The rows, results and log, and their files, which are replaced whole."""

    def __init__(self, out, command):
        self.out, self.command = out, command
        self.rows, self.results, self.log, self.logged, self.problem = [], {}, [], 0, None
        self.began = time.monotonic()
        self.lock = threading.Lock()

    def add(self, rows):
        """Saves rows at once, so that they survive whatever ends the run later."""
        with self.lock:
            self.rows += rows
            for row in rows:
                say(f"{time.monotonic() - self.began:6.1f} s  {line(row, (28, 9))}")
            self.write()

    def keep_log(self, title, text):
        entry = f"=== {title}\n{text.rstrip()}\n\n"
        if self.logged + len(entry) <= LOG_BYTES:
            self.log.append(entry)
            self.logged += len(entry)

    def write(self):
        """Writes all files anew. A disk that refuses them costs a row, not what is known."""
        results = {"command": self.command, **self.results, "rows": [row._asdict() for row in self.rows]}
        files = {"table.txt": self.table() + "\n", "results.json": json.dumps(results, indent=1) + "\n",
                 "log.txt": "".join(self.log)}
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                part = self.out / f".{name}.part"
                try:
                    part.write_text(text)
                    part.replace(self.out / name)
                finally:
                    part.unlink(missing_ok=True)
        except OSError as error:
            self.refused(error)

    def refused(self, error):
        """One row for all files that could not be written."""
        if not self.problem:
            self.problem = Row("files", FAILED, "", f"{self.out}: {error.strerror or error}")
            say(line(self.problem, (28, 9)))

    def table(self):
        """One line a row, at most TABLE_CHARACTERS in all: errors are cut first, then rows that passed are left out."""
        rows = self.rows + ([self.problem] if self.problem else [])
        widths = [max([len(row[column]) for row in rows] + [0]) for column in range(2)]
        lines = [line(row, widths) for row in rows]
        for most in (200, 120, 80):
            if sum(map(len, lines)) + len(lines) <= TABLE_CHARACTERS:
                break
            lines = [text[:most] for text in lines]
        passed = sum(row.verdict == PASSED for row in rows)
        end = f"{passed} of {len(rows)} rows passed in {time.monotonic() - self.began:.0f} s"
        if sum(map(len, lines)) + len(lines) + len(end) > TABLE_CHARACTERS:
            lines = [text for row, text in zip(rows, lines) if row.verdict != PASSED]
            end += "; those that passed are in results.json"
        return "\n".join([*lines, end])[:TABLE_CHARACTERS]


def line(row, widths):
    tail = "  ".join(part for part in (row.figure, row.error) if part)
    return f"{row.stage:<{widths[0]}}  {row.verdict:<{widths[1]}}  {tail}".rstrip()


class Run:
    """The package on this machine: how its programs are started."""

    def __init__(self, package, scratch, report, rehearse):
        self.package, self.scratch, self.report, self.rehearse = package, scratch, report, rehearse
        # An emulated kernel may share its processor with anything.
        self.patience = 1.5 if rehearse else 1
        self.until = report.began + TOTAL_SECONDS - GRACE_SECONDS
        self.stage_until = self.until
        self.python = os.path.abspath(shutil.which(os.environ.get("PYTHON", "")) or sys.executable)
        self.device = "cuda:0"
        self.environment = {
            **os.environ,
            "ROWMILL_KERNELS": str(package / "kernels"),
            "ROWMILL_GOLDEN": str(package / "goldens"),
            "ROWMILL_CUDA_LIBRARIES": os.pathsep.join(cuda_libraries()),
            "TMPDIR": str(scratch),
            "PYTHONUNBUFFERED": "1",
        }
        if not rehearse:
            self.environment["ROWMILL_GPU"] = "0"

    def stage(self, name, limit):
        """Runs a stage, within its limit and what is left of the whole time."""
        now = time.monotonic()
        self.stage_until = min(now + limit * self.patience, self.until)
        if self.stage_until - now < 1:
            rows = [Row(name, NOT_RUN, "", f"no time is left of {TOTAL_SECONDS} s")]
        else:
            try:
                rows = getattr(self, name)()
            except Exception as error:  # A mistake in reading a stage's output must not cost the stages behind it.
                rows = [Row(name, FAILED, "", f"{type(error).__name__}: {error}")]
        self.report.add(rows)

    def start(self, title, command, limit=None, **environment):
        """Runs a program to its end, or ends it and all that it started."""
        seconds = max(0.1, min((limit or TOTAL_SECONDS) * self.patience, self.stage_until - time.monotonic()))
        began = time.monotonic()
        if ENDING.is_set():
            return Ended(NOT_RUN, "", 0.0, "interrupted")
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                           env={**self.environment, **environment}, cwd=self.scratch, start_new_session=True)
            except OSError as error:
                return Ended(FAILED, "", 0.0, f"{command[0]}: {error.strerror}")
            RUNNING.add(process)
            try:
                status = process.wait(seconds)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                end(process)
                RUNNING.discard(process)
                # A process that waits for a dead GPU cannot be ended; it is left behind.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_SECONDS / 2)
            output.seek(max(0, output.seek(0, os.SEEK_END) - OUTPUT_BYTES))
            text = output.read().decode(errors="replace")
        took = time.monotonic() - began
        self.report.keep_log(f"{title}: {' '.join(map(str, command))}", text)
        if status is None:
            return Ended(TIMED_OUT, text, took, f"ended after {took:.0f} s")
        if status:
            return Ended(FAILED, text, took, first_error(text, status))
        return Ended(PASSED, text, took, "")

    def provenance(self):
        """Where and with what a record is made."""
        query = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit,temperature.gpu,mig.mode.current"
        smi = self.start("nvidia-smi", ["nvidia-smi", f"--query-gpu={query}", "--format=csv"], 10)
        cpu = re.search(r"model name[^:]*: (.*)", text_of("/proc/cpuinfo"))
        return {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "commit": text_of(self.package / "commit").strip(),
            "system": f"{platform.system()} {platform.release()}",
            "cpu": cpu[1] if cpu else platform.processor(),
            "threads": os.cpu_count(),
            "nvidia_smi": smi.text.splitlines() if smi.verdict == PASSED else smi.error,
            "rehearsal": self.rehearse,
        }

    # ---- stages: each returns rows ----

    def libraries(self):
        ended = self.start("libraries", [self.package / "rowmill", "doctor", "device", "--format", "json"], 30)
        found = json_report(ended.text)
        if not found:
            return [Row("libraries", ended.verdict, "", ended.error or "no report")]
        self.report.results["libraries"] = found
        rows = [Row("gpu", PASSED, f"{gpu['name']}, {gpu['architecture']}, {gpu['total_bytes'] / 2**30:.0f} GiB, kernels of "
                    f"{gpu['compiled_sources']} of {gpu['sources']} sources are compiled", "") for gpu in found["devices"]]
        if found.get("problem"):
            rows.append(Row("gpu", FAILED, "", found["problem"]))
        for one in found.get("libraries", []):
            problem = one.get("problem")
            figure = " ".join(part for part in (one.get("version"), one.get("path")) if part)
            # Ranks do not exchange by NCCL yet.
            missing = SKIPPED if one["library"] == "NCCL" else FAILED
            rows.append(Row(one["library"], missing if problem else PASSED, figure, problem or ""))
        return rows

    def conformance(self):
        # Kernels of a rehearsal end within seconds, and one of them hangs on purpose.
        return self.tests("conformance", "device-tests", "on_the_device", 12 if self.rehearse else 30)

    def tests(self, stage, program, pattern, limit):
        """Every test of this name in a process of its own, several at a time."""
        program = self.package / program
        listed = self.start(f"{stage}: list", [program, pattern, "--list"], 20)
        names = re.findall(r"^(\S+): test$", listed.text, re.M)
        if not names:
            return [Row(stage, FAILED, "", listed.error or f"no test has {pattern} in its name")]
        short = lambda name: re.sub("_ha(s|ve)_the_bytes_of_the_oracle$", "", name.rsplit("::", 1)[-1])
        jobs = [(f"{stage} {short(name)}", [program, "--exact", name, "--nocapture"], {}) for name in names]
        return self.side_by_side(jobs, limit)

    def side_by_side(self, jobs, limit, *proofs):
        """A row for each test program, several running at a time. What ran no test, or lacks one of `proofs`, has failed."""
        proofs = [r"test result: ok\. [1-9]", *proofs]

        def row(job):
            title, command, environment = job
            ended = self.start(title, command, limit, **environment)
            skipped = re.search(r"^SKIPPED.*", ended.text, re.M)
            if ended.verdict == PASSED and skipped:
                return Row(title, SKIPPED, "", skipped[0])
            missing = [proof for proof in proofs if not re.search(proof, ended.text)]
            if ended.verdict == PASSED and missing:
                return Row(title, FAILED, "", f"it ended well, but its output lacks {missing[0]!r}")
            return Row(title, ended.verdict, f"{ended.seconds:.1f} s", ended.error)

        with concurrent.futures.ThreadPoolExecutor(PARALLEL) as pool:
            for done in concurrent.futures.as_completed([pool.submit(row, job) for job in jobs]):
                self.report.add([done.result()])
        return []

    def goldens(self):
        runs = sorted(path.stem for path in (self.package / "goldens").glob("*.json"))
        command = [self.package / "train-tests", "golden_runs_match_on_the_emulated_gpu", "--nocapture"]
        return self.side_by_side([(f"golden {name}", command, {"ROWMILL_GOLDEN_RUN": name}) for name in runs], 30)

    def bandwidth(self):
        shapes = "tiny" if self.rehearse else ("quick" if self.report.command == "quick" else "all")
        test = ["--exact", "cuda::bandwidth::bandwidths", "--nocapture"]
        ended = self.start("bandwidth", [self.package / "device-tests", *test], ROWMILL_BANDWIDTH=shapes)
        records = json_lines(ended.text)
        self.report.results["bandwidth"] = records
        rows = []
        for one in records:
            if "copied_bytes_per_second" in one:
                rows.append(Row("bandwidth copy", PASSED, f"{one['copied_bytes_per_second'] / 1e9:.0f} GB/s read and written", ""))
                continue
            what = f"bandwidth T{one['tables']} E{one['rows']} D{one['dim']} L{one['ids_per_bag']} " \
                   f"{one['law']} {8 * one['bytes_per_value']} bits"
            if "problem" in one:
                rows.append(Row(what, SKIPPED, "", one["problem"]))
                continue
            shares = [f"{name} {1e3 * one[side]['seconds']:.3f} ms, {one[side]['bytes'] / one[side]['seconds'] / 1e9:.0f} GB/s, "
                      f"{one[side]['share']:.0%} of the copy" for name, side in (("lookup", "forward"), ("update", "backward"))]
            rows.append(Row(what, PASSED, "; ".join(shares), ""))
        return rows + self.rest("bandwidth", ended, bool(records))

    def rest(self, stage, ended, has_rows):
        """A row for a program that failed behind the rows it left, or that left none."""
        if ended.verdict == PASSED and has_rows:
            return []
        return [Row(stage, FAILED if ended.verdict == PASSED else ended.verdict, "",
                    ended.error or "nothing was measured")]

    def training(self):
        """Ours before PyTorch and after, so that a change of the GPU's clocks is seen."""
        for precision in ("f32", "tf32", "bf16"):
            self.report.add([self.own_training(precision, "training rowmill")])
        script = [self.python, self.package / "bench/gpu/torch_train.py"] + self.small(["--quick"])
        # What is left when it ends is for one more run of ours.
        ended = self.start("training PyTorch", script, self.stage_until - time.monotonic() - 20)
        rows = []
        records = json_lines(ended.text)
        self.report.results["training_pytorch"] = records
        measured = [one for one in records if "variant" in one]
        for one in measured:
            verdict, figure = (FAILED, "") if "problem" in one else (PASSED, spread(one))
            rows.append(Row(f"training {one['variant']} {one['precision']}", verdict, figure, one.get("problem", "")))
        rows += self.rest("training PyTorch", ended, bool(measured))
        return rows + [self.own_training("tf32", "training rowmill again")]

    def own_training(self, precision, title):
        products = {"f32": [], "tf32": ["--tf32"], "bf16": ["--precision", "bf16"]}[precision]
        size = ["--rows-cap", "1000", "--batch-size", "64", "--repeats", "1"] if self.rehearse else ["--repeats", "5"]
        # The host's own pauses are part of a step that is started by the host: no sample is rejected.
        command = [self.package / "rowmill-bench", "train", "--config", "dlrm-default", "--device", self.device, *products,
                   *size, "--wait-every", "10", "--steps", "4", "--clock-share-min", "0", "--foreign-cpu-max", "1",
                   "--format", "json"]
        title = f"{title} {precision}"
        ended = self.start(title, command, 25)
        measured = json_report(ended.text)
        if not measured:
            return Row(title, FAILED if ended.verdict == PASSED else ended.verdict, "", ended.error or "no figures")
        self.report.results.setdefault("training_rowmill", []).append({"title": title, **measured})
        return Row(title, ended.verdict, spread(measured), ended.error)

    def small(self, words):
        """Options of a rehearsal alone."""
        return words if self.rehearse else []

    def sanitizer(self):
        if not (program := find_tool("compute-sanitizer")):
            return [Row("sanitizer", SKIPPED, "", "SKIPPED: compute-sanitizer is not installed")]
        jobs = []
        for tool in ("memcheck", "racecheck"):
            for pattern in KERNELS_UNDER_SANITIZER:
                command = [program, "--tool", tool, "--error-exitcode", "1", self.package / "device-tests", pattern,
                           "--test-threads=1"]
                jobs.append((f"{tool} {pattern}", command, {"ROWMILL_SHAPES": "1"}))
        return self.side_by_side(jobs, 45, r"(ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards)")

    def counters(self):
        if not (program := find_tool("ncu")):
            return [Row("counters", SKIPPED, "", "SKIPPED: ncu is not installed")]
        command = [program, "--csv", "--clock-control", "none", "--metrics", ",".join(COUNTERS),
                   self.package / "device-tests", "--exact", "cuda::bandwidth::bandwidths"]
        ended = self.start("counters", command, ROWMILL_BANDWIDTH="tiny" if self.rehearse else "one")
        found = counted(ended.text)
        self.report.results["counters"] = found
        rows = [Row(f"counters {name}", PASSED, ", ".join(f"{COUNTERS[key]} {value}" for key, value in values.items()), "")
                for name, values in found.items()]
        return rows + self.rest("counters", ended, bool(found))

    def kernels(self):
        only = [word for name in MICROBENCHMARKS for word in ("--only", name)]
        return self.collect("kernels", "microbench.py", [*only, *(["--budget", "40"] if not self.rehearse else [])])

    def trace(self):
        stages = ["--stage", "times", "--stage", "traces"]
        return self.collect("trace", "collect.py", ["--only", TRACED_MODEL, *stages])

    def collect(self, stage, script, words):
        """A script of bench/collect; its suite is kept as an archive."""
        suite = self.scratch / "suite"
        command = [self.python, self.package / "bench/collect" / script, "--out", suite, *words,
                   "--device", "cpu" if self.rehearse else "cuda", *self.small(["--quick"])]
        ended = self.start(stage, command)
        with contextlib.suppress(OSError):
            self.report.out.mkdir(parents=True, exist_ok=True)
        rows = []
        if suite.exists():
            try:
                listed = json.loads(text_of(suite / "suite.json"))["runs"]
            except (KeyError, ValueError) as error:
                listed, rows = [], [Row(stage, FAILED, "", f"suite.json: {error}")]
            rows += [Row(one["id"], *verdict_of(one)) for one in listed if one["stage"] in SUITE_STAGES[stage]]
            try:
                pack(suite, self.report.out / "suite.tar.gz")
            except OSError as error:
                self.report.refused(error)
        return rows + self.rest(stage, ended, bool(rows))


STAGES = {
    "quick": [("libraries", 20), ("conformance", 60), ("goldens", 35), ("bandwidth", 40), ("training", 120)],
    "second": [("sanitizer", 75), ("bandwidth", 75), ("counters", 30), ("trace", 40), ("kernels", 60)],
}


def spread(measured):
    return f"{measured['step_ms']:.3f} ms ({measured['step_ms_min']:.3f} to {measured['step_ms_max']:.3f})"


def find_tool(name):
    """The path of a tool of NVIDIA, in PATH or where its installers put it."""
    places = ["/usr/local/cuda*/bin", "/usr/local/cuda*/compute-sanitizer", "/opt/nvidia/nsight-compute/*"]
    folders = [folder for place in places for folder in sorted(glob.glob(place), reverse=True)]
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))


def verdict_of(run):
    """Verdict, figure and error of a run of a suite."""
    verdict = {"done": PASSED, "skipped": SKIPPED}.get(run["status"], FAILED)
    shapes = f"{run['shapes']} shapes in " if "shapes" in run else ""
    return verdict, f"{shapes}{run.get('seconds', 0):.0f} s", run.get("reason") or ("" if verdict == PASSED else run["status"])


def pack(folder, to):
    part = to.with_name(f".{to.name}.part")
    try:
        with tarfile.open(part, "w:gz") as archive:
            archive.add(folder, folder.name)
        part.replace(to)
    finally:
        part.unlink(missing_ok=True)


def cuda_libraries():
    """Folders of CUDA's libraries in this interpreter's packages, with those that are named already before them."""
    named = os.environ.get("ROWMILL_CUDA_LIBRARIES", "").split(os.pathsep)
    packages = [*site.getsitepackages(), site.getusersitepackages(), *sys.path]
    found = [folder for one in dict.fromkeys(packages) if one for folder in sorted(glob.glob(f"{one}/nvidia/*/lib"))]
    return [folder for folder in dict.fromkeys([*named, *found]) if folder]


def first_error(text, status):
    """The line that says why a program failed."""
    if panic := re.search(r"panicked at [^\n]*\n(.*)", text):
        return panic[1].strip()
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    # Shells report a signal of their child so.
    if status > 128 and status - 128 in [one.value for one in signal.Signals]:
        return f"ended by {signal.Signals(status - 128).name}"
    lines = [one.strip() for one in text.splitlines() if one.strip()]
    if raised := [one for one in lines if re.match(r"\w*(Error|Exception): ", one)]:
        return raised[-1]
    said = [one for one in lines if re.search(r"=+ (Invalid|Error|Race)|error|no space", one, re.I)]
    return (said or lines[-1:] or [f"exit status {status}"])[0]


def json_report(text):
    """The JSON object that begins a line, among messages; None without one."""
    if begin := re.search(r"^\{", text, re.M):
        with contextlib.suppress(ValueError):
            return json.JSONDecoder().raw_decode(text, begin.start())[0]
    return None


def json_lines(text):
    """Every line that is a JSON object."""
    found = []
    for one in text.splitlines():
        with contextlib.suppress(ValueError):
            value = json.loads(one)
            if isinstance(value, dict):
                found.append(value)
    return found


def counted(text):
    """The counters of each kernel, of its last launch, from ncu's CSV."""
    lines = text.splitlines()
    head = next((number for number, one in enumerate(lines) if one.startswith('"ID"')), None)
    found = {}
    if head is None:
        return found
    for row in csv.DictReader(io.StringIO("\n".join(lines[head:]))):
        if row.get("Metric Name") in COUNTERS:
            value = f"{row['Metric Value']} {row['Metric Unit']}".strip()
            found.setdefault(row["Kernel Name"], {})[row["Metric Name"]] = value
    return found


def text_of(path):
    try:
        return pathlib.Path(path).read_text(errors="replace")
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
