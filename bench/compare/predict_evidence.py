#!/usr/bin/env python3
"""Predicts steps of rowmill's own trainer that were never run, writes the predictions down, and only then measures them.

    python3 bench/compare/predict_evidence.py [--rowmill target/release/rowmill] [--output bench/record/MACHINE]
    python3 bench/compare/predict_evidence.py --quick            a third of the cases, fewer steps

1. Records `dlrm-default` and `dlrm-ddp` at B = 512 and 2048 (`rowmill-bench train --trace`), each three times in processes of their own, and
   calibrates on these alone: what recordings of one configuration differ by is how much runs differ.
2. Predicts base and change of every case (`rowmill predict step --model`) and writes all predictions to predictions.json, synced,
   with a checksum that the record repeats.
3. Measures base and change in turns: every turn is a process of its own, base first in even turns, the change in odd ones.

Rule of acceptance, fixed here before anything is measured: a single step counts if `rowmill-bench train` accepts it, that is if its
apparent clock was at least 90 % of the best of the calibration and other programs took at most 10 % of the cores; a turn on
several ranks (`rowmill train`, which does not look at its clock) counts as a whole, by the same share of other programs. The
rejected share is printed; above 30 % the record says so. A row is unmeasured where the medians of its turns lie farther apart
than its bar of 10 %, or no step counts.

A virtual machine moves its cores without saying so: two cores of one cache read memory at half the rate of two that have one each, and steps
are up to 10 % shorter (docs/measurements.md). Such a place is a machine of its own. So a step counts only if its process found the bandwidth
of memory within 15 % of that of the first recording, and a turn begins only when it is; the time spent waiting for that is printed. A recording
or a turn that ends elsewhere is made again, and its steps are rejected ones.

Columns: predicted (median of 400 draws) and measured median step, error of the prediction, of "as long as the base" and of "linear in B" (the
base's measured step times the ratio of the batches), whether the measured median and how many single steps lie within the
90 % interval, and noise_pct, the coefficient of variation of the accepted steps.
"""
import argparse
import csv
import datetime
import hashlib
import io
import itertools
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import machine
import records

BAR_PCT = 10.0
REJECTED_MAX_PCT = 30.0
FOREIGN_MAX = 0.1
CLOCK_SHARE_MIN = 0.9

# How far the bandwidth of memory may be from that of the first recording.
STREAM_APART_MAX = 0.15
# How long to wait for that before one recording or turn.
WAIT_S = 240
# Ended elsewhere, or most of its steps disturbed, a recording or a turn is made again.
TRIES = 3
# Recordings of each configuration, one after another over all of them: minutes apart, as runs are.
CALIBRATION_ROUNDS = 3
CALIBRATED = [("dlrm-default", 512), ("dlrm-default", 2048), ("dlrm-ddp", 512), ("dlrm-ddp", 2048)]


def run_of(config, batch, pooling=1, ranks=1, **keys):
    """What a step trains; `keys` are configuration keys with `__` for a dot."""
    return {
        "config": config,
        "batch": batch,
        "pooling": pooling,
        "ranks": ranks,
        "set": {key.replace("__", "."): value for key, value in keys.items()},
    }


def tables(rows, dim, first_rows=None):
    rest = f'{{ name = "t{{1..7}}", rows = {rows}, dim = {dim} }}'
    return f'[{{ name = "t0", rows = {first_rows or rows}, dim = {dim} }}, {rest}]'


DEFAULT, DDP = "dlrm-default", "dlrm-ddp"
CASES = {
    "B 1024": (run_of(DEFAULT, 512), run_of(DEFAULT, 1024)),
    "mlperf": (run_of(DEFAULT, 512), run_of("dlrm-mlperf", 512)),
    "pooling 8": (run_of(DDP, 2048), run_of(DDP, 2048, pooling=8)),
    "B 4096": (run_of(DEFAULT, 2048), run_of(DEFAULT, 4096)),
    "D 128": (run_of(DEFAULT, 512), run_of(DEFAULT, 512, model__bottom="[512, 128]", model__tables=tables(10**6, 128))),
    "one table x4": (run_of(DDP, 2048), run_of(DDP, 2048, model__tables=tables(80_000, 128, 320_000))),
    "top MLP halved": (run_of(DEFAULT, 512), run_of(DEFAULT, 512, model__top="[512, 512, 512, 1]")),
    "top MLP widened": (run_of(DDP, 512), run_of(DDP, 512, model__top="[1024, 1024, 512, 256, 1]")),
    "row-wise Adagrad": (run_of(DDP, 2048), run_of(DDP, 2048, optimizer__sparse__kind="rowwise_adagrad")),
    "2 ranks": (run_of(DDP, 2048), run_of(DDP, 2048, ranks=2)),
}
QUICK = ["B 1024", "mlperf", "pooling 8"]
# Of three cases the other figures say little.
QUICK_JUDGED = ("rejected share", "every row is measured", "each error")


def main():
    return run(Evidence, parsed(parser(__doc__)), "predict")


def run(evidence_of, arguments, record):
    """Calibrates, predicts, then measures; the exit code. The record's files are called `record` and the date."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="predict-evidence-", dir=arguments.scratch) as folder:
        evidence = evidence_of(arguments, pathlib.Path(folder))
        evidence.calibrate()
        evidence.predict()
        evidence.measure()
        report = evidence.report(time.monotonic() - begun)
    text = markdown(report)
    print(text)
    if arguments.output:
        records.write(arguments.output, f"{record}-{report['date']}{'-quick' if arguments.quick else ''}", report, text)
    return 0 if all(report["passed"].values()) else 1


def parser(text):
    parser = argparse.ArgumentParser(description=text.split("\n\n")[0])
    parser.add_argument("--rowmill", default="target/release/rowmill")
    parser.add_argument("--bench", default="target/release/rowmill-bench")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), help="only these")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--turns", type=int, default=3, help="processes of base and of change")
    parser.add_argument("--steps", type=int, default=8, help="timed steps of a turn")
    parser.add_argument("--minutes", type=float, default=18, help="begin no further turn after the first later than this")
    parser.add_argument("--scratch", type=pathlib.Path, help="folder for runs (default: the system's)")
    parser.add_argument("--output", type=pathlib.Path)
    return parser


def parsed(parser):
    arguments = parser.parse_args()
    if arguments.quick and not arguments.cases:
        arguments.cases = QUICK
    return arguments


def output_of(binary, *words):
    """What a command prints; ends the program where the command fails."""
    done = subprocess.run([binary, *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{binary} {' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


class Evidence:
    """One run: what was calibrated, predicted and taken."""

    error_bar_pct = BAR_PCT
    # What its predictions are written into, beside the record.
    before = "predict-before.json"
    # How the checks begin that decide.
    judged = ("",)

    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, folder
        self.names = arguments.cases or list(CASES)
        self.clock_ghz = 0.0
        self.stream_gb_per_s = None
        self.waited_s = 0.0
        self.again = []
        self.steps = {}
        self.begun = time.monotonic()

    def rowmill(self, *words):
        return output_of(self.arguments.rowmill, *words)

    def bench(self, run, *words):
        options = [f"--set={key}={value}" for key, value in run["set"].items()]
        text = output_of(
            self.arguments.bench, "train", "--config", run["config"], "--batch-size", run["batch"], "--pooling", run["pooling"], *options,
            "--clock-share-min", CLOCK_SHARE_MIN, "--foreign-cpu-max", FOREIGN_MAX, "--format", "json", *words,
        )
        return json.loads(text)

    def calibrate(self):
        self.calibration, merged = self.folder / "calibration.json", []
        self.calibrated = []
        for number, (config, batch) in enumerate(CALIBRATED * CALIBRATION_ROUNDS):
            say(f"recording {config}, B = {batch}")
            traces = self.folder / f"calibration-{number}"
            for _ in range(TRIES):
                self.wait()
                found = self.bench(run_of(config, batch), "--steps", 6, "--repeats", 2, "--trace", traces)
                if found["trusted"] and self.is_here(found["stream_limit_gb_per_s"]):
                    break
            self.stream_gb_per_s = self.stream_gb_per_s or found["stream_limit_gb_per_s"]
            accepted = [step["ms"] for step in found["steps"] if step["accepted"]]
            self.calibrated.append(
                {"config": config, "batch": batch, "step_ms": found["step_ms"], "steps": len(found["steps"]),
                 "accepted": len(accepted), "trusted": found["trusted"], "stream_gb_per_s": found["stream_limit_gb_per_s"]}
            )
            clocks = [step["apparent_clock_ghz"] for step in found["steps"]]
            self.clock_ghz = max([self.clock_ghz, *clocks])
            part = self.folder / f"calibration-{number}.json"
            self.rowmill("predict", "calibrate", traces, *merged, "--output", part)
            merged = ["--merge", part]
        os.replace(part, self.calibration)

    def stream(self):
        """What all cores read from memory now, GB/s."""
        return self.bench(run_of(DDP, 64), "--steps", 1, "--repeats", 1)["stream_limit_gb_per_s"]

    def is_here(self, gb_per_s):
        """Whether the cores are where they were when the first recording was made."""
        return self.stream_gb_per_s is None or abs(gb_per_s / self.stream_gb_per_s - 1.0) <= STREAM_APART_MAX

    def wait(self):
        """Until the cores are there again, at most WAIT_S."""
        begun = time.monotonic()
        while self.stream_gb_per_s and not self.is_here(self.stream()) and time.monotonic() - begun < WAIT_S:
            time.sleep(2.0)
        self.waited_s += time.monotonic() - begun

    def predict(self):
        self.predicted = {}
        for name, pair in ((name, CASES[name]) for name in self.names):
            for side, run in zip(("base", "change"), pair):
                self.predicted[f"{name}/{side}"] = self.prediction(run)
        text = json.dumps({"at": now(), "predicted": self.predicted}, indent=1)
        path = self.folder / "predictions.json"
        with open(path, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        self.checksum = hashlib.sha256(text.encode()).hexdigest()
        if self.arguments.output:
            self.arguments.output.mkdir(parents=True, exist_ok=True)
            (self.arguments.output / self.before).write_text(text + "\n")
        say(f"predictions written, SHA-256 {self.checksum}; now measuring")

    def prediction(self, run):
        """Of the slowest rank's step, in ns, and on what it rests, in %."""
        options = [f"--set={key}={value}" for key, value in run["set"].items()]
        text = self.rowmill(
            "predict", "step", "--model", run["config"], "--calibration", self.calibration, "--batch-size", run["batch"],
            "--pooling", run["pooling"], "--ranks", run["ranks"], *options, "--draws", 400, "--format", "csv",
        )
        rows = list(csv.DictReader(io.StringIO(text)))
        slowest = max(rows, key=lambda row: int(row["step_ns"]))
        numbers = ("step_ns", "median_ns", "low_ns", "high_ns", "measured_pct", "modeled_pct", "unknown_pct")
        return {key: float(slowest[key]) for key in numbers}

    def measure(self):
        for turn in range(self.arguments.turns):
            if turn > 0 and time.monotonic() - self.begun > 60 * self.arguments.minutes:
                say(f"out of time after {turn} turns")
                break
            for name in self.names:
                pair = list(zip(("base", "change"), CASES[name]))
                ranked = any(run["ranks"] > 1 for run in CASES[name])
                for side, run in pair if turn % 2 == 0 else reversed(pair):
                    say(f"turn {turn + 1} of {self.arguments.turns}: {name}, {side}")
                    for _ in range(TRIES):
                        self.wait()
                        taken = self.ranks_turn(run) if ranked else self.turn(run)
                        if 2 * sum(accepted for _, accepted in taken) >= len(taken):
                            break
                        self.again.append({"side": f"{name}/{side}", "steps": taken})
                    else:
                        self.again.pop()
                    self.steps.setdefault(f"{name}/{side}", []).append(taken)

    def turn(self, run):
        floor = CLOCK_SHARE_MIN * self.clock_ghz
        found = self.bench(run, "--steps", self.arguments.steps, "--repeats", 1, "--clock-ghz-min", f"{floor:.4f}")
        is_here = self.is_here(found["stream_limit_gb_per_s"])
        return [(step["ms"], step["accepted"] and is_here) for step in found["steps"]]

    def ranks_turn(self, run):
        """Steps of `rowmill train`, recorded; all or none count."""
        count, batch = self.arguments.steps, run["batch"]
        folder = self.folder / "ranks"
        options = [f"--set={key}={value}" for key, value in run["set"].items()]
        foreign, before = machine.Foreign(os.getpid()), children()
        self.rowmill(
            "train", run["config"], "--set", f"batch_size={batch}", *options, "--synthetic", batch * (count + 6),
            "--set", "evaluate_every=1000000", "--set", "data.hold_out=0", "--ranks", run["ranks"],
            "--run", folder / "run", "--trace", folder / "trace", "--trace-steps", f"3..{count + 3}",
        )
        accepted = foreign.share(children() - before) <= FOREIGN_MAX and self.is_here(self.stream())
        lengths = []
        for path in sorted((folder / "trace").glob("kineto_rank*.json")):
            events = json.loads(path.read_text())["traceEvents"]
            steps = [event["dur"] / 1e3 for event in events if event.get("name", "").startswith("ProfilerStep#")]
            lengths.append(steps)
        subprocess.run(["rm", "-rf", str(folder)], check=True)
        return [(max(steps), accepted) for steps in zip(*lengths)]

    def report(self, seconds):
        rows = [self.row(name) for name in self.names]
        every = [step for turns in self.steps.values() for turn in turns for step in turn]
        every += [step for turn in self.again for step in turn["steps"]]
        rejected = 100.0 * sum(not accepted for _, accepted in every) / max(1, len(every))
        measured = [row for row in rows if row["is_measured"]]
        errors = [abs(row["error_pct"]) for row in measured]
        # Only rows that change something: beside no change, "as long as the base" is right by chance.
        moving = [row for row in measured if abs(row["unchanged_error_pct"]) > 5.0]
        of = lambda key: geomean([abs(row[key]) for row in moving])
        ordered, pairs = order(measured)
        single = [row["single_steps"] for row in measured]
        inside, total = sum(one[0] for one in single), sum(one[1] for one in single)
        summary = {
            "rejected_pct": rejected,
            "geomean_error_pct": geomean(errors),
            "worst_error_pct": max(errors, default=math.nan),
            "moving_geomean_error_pct": of("error_pct"),
            "moving_geomean_unchanged_error_pct": of("unchanged_error_pct"),
            "moving_geomean_linear_error_pct": of("linear_error_pct"),
            "pairs_in_order": [ordered, pairs],
            "medians_within_interval": [sum(row["is_within"] for row in measured), len(measured)],
            "single_steps_within_interval": [inside, total],
            "waited_s": self.waited_s,
            "stream_gb_per_s": self.stream_gb_per_s,
            "unmeasured": [row["case"] for row in rows if not row["is_measured"]],
        }
        passed = {
            "rejected share <= 30 %": rejected <= REJECTED_MAX_PCT,
            "every row is measured": len(measured) == len(rows),
            f"each error <= {self.error_bar_pct:.0f} %": bool(errors) and max(errors) <= self.error_bar_pct,
            "geomean <= 5 %": summary["geomean_error_pct"] <= 5.0,
            "at most half of unchanged": 2 * of("error_pct") <= of("unchanged_error_pct"),
            "at most half of linear in B": 2 * of("error_pct") <= of("linear_error_pct"),
            "order of pairs over 5 % apart": 0 < pairs == ordered,
            "medians within the interval >= 80 %": bool(measured) and summary["medians_within_interval"][0] >= 0.8 * len(measured),
            "single steps within the interval 85-95 %": bool(total) and 0.85 <= inside / total <= 0.95,
        }
        judged = QUICK_JUDGED if self.arguments.quick else self.judged
        passed = {what: passed[what] for what in passed if what.startswith(judged)}
        return {
            "date": datetime.date.today().isoformat(), "machine": machine.describe(), "seconds": round(seconds),
            "rowmill": self.rowmill("--version").strip(), "turns": min(map(len, self.steps.values())), "steps": self.arguments.steps,
            "predictions_sha256": self.checksum, "clock_ghz_best": self.clock_ghz, "calibrated": self.calibrated,
            "summary": summary, "passed": passed, "rows": rows, "predicted": self.predicted,
            "taken": self.steps, "taken_again": self.again,
        }

    def row(self, name):
        base, change = CASES[name]
        predicted = self.predicted[f"{name}/change"]
        sides = {side: self.side(f"{name}/{side}") for side in ("base", "change")}
        measured, of_base = sides["change"]["median"], sides["base"]["median"]
        error = lambda ms: 100.0 * (ms - measured) / measured
        steps = [ms for turn in self.steps[f"{name}/change"] for ms, accepted in turn if accepted]
        low, high = predicted["low_ns"] / 1e6, predicted["high_ns"] / 1e6
        return {
            "case": name,
            "predicted_ms": predicted["median_ns"] / 1e6, "low_ms": low, "high_ms": high, "measured_ms": measured,
            "base_predicted_ms": self.predicted[f"{name}/base"]["median_ns"] / 1e6, "base_measured_ms": of_base,
            "error_pct": error(predicted["median_ns"] / 1e6),
            "unchanged_error_pct": error(of_base),
            "linear_error_pct": error(of_base * change["batch"] / base["batch"]),
            "is_within": low <= measured <= high,
            "single_steps": [sum(low <= ms <= high for ms in steps), len(steps)],
            "noise_pct": sides["change"]["noise_pct"], "turns_apart_pct": sides["change"]["apart_pct"],
            "measured_pct": predicted["measured_pct"], "modeled_pct": predicted["modeled_pct"],
            "unknown_pct": predicted["unknown_pct"],
            "is_measured": all(side["is_measured"] for side in sides.values()),
        }

    def side(self, key):
        turns = [[ms for ms, accepted in turn if accepted] for turn in self.steps[key]]
        kept = [ms for turn in turns for ms in turn]
        if not kept:
            # Shown, never counted.
            kept = [ms for turn in self.steps[key] for ms, _ in turn]
            turns = []
        median = statistics.median(kept)
        medians = [statistics.median(turn) for turn in turns if turn]
        apart = 100.0 * (max(medians) - min(medians)) / median if medians else math.inf
        deviation = statistics.pstdev(kept)
        return {
            "median": median, "noise_pct": 100.0 * deviation / statistics.fmean(kept), "apart_pct": apart,
            "is_measured": apart <= BAR_PCT,
        }


def order(rows):
    """Pairs of changes whose measured steps are over 5 % apart, and how many the predictions put in the same order."""
    right = pairs = 0
    for a, b in itertools.combinations(rows, 2):
        if max(a["measured_ms"], b["measured_ms"]) > 1.05 * min(a["measured_ms"], b["measured_ms"]):
            pairs += 1
            right += (a["measured_ms"] < b["measured_ms"]) == (a["predicted_ms"] < b["predicted_ms"])
    return right, pairs


def geomean(errors):
    """Of absolute errors in percent; those below 0.04 % count as that."""
    return math.exp(statistics.fmean(math.log(max(error, 0.04)) for error in errors)) if errors else math.nan


def children():
    used = os.times()
    return used.children_user + used.children_system


def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def say(text):
    print(f"{now()} {text}", file=sys.stderr, flush=True)


def markdown(report):
    summary = report["summary"]
    lines = [
        f"# Predicted before measured, {report['date']}",
        "",
        f"{report['rowmill']} on {report['machine']['cpu']}, {report['machine']['cores']} cores; {report['turns']} turns of "
        f"{report['steps']} steps, {report['seconds']} s. Predictions: SHA-256 {report['predictions_sha256']}.",
        "",
        "| case | predicted ms | interval | measured ms | error % | unchanged % | linear in B % | within | single steps within | "
        "noise % | modeled % | |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        inside, total = row["single_steps"]
        lines.append(
            f"| {row['case']} | {row['predicted_ms']:.1f} | {row['low_ms']:.1f} to {row['high_ms']:.1f} | "
            f"{row['measured_ms']:.1f} | {row['error_pct']:.1f} | {row['unchanged_error_pct']:.1f} | "
            f"{row['linear_error_pct']:.1f} | {'yes' if row['is_within'] else 'no'} | {inside} of {total} | "
            f"{row['noise_pct']:.1f} | {row['modeled_pct']:.0f} | {'' if row['is_measured'] else 'unmeasured'} |"
        )
    lines += ["", *(f"- {key.replace('_', ' ')}: {shown(value)}" for key, value in summary.items()), ""]
    lines += [f"- {'passed' if passed else 'FAILED'}: {what}" for what, passed in report["passed"].items()]
    return "\n".join(lines)


def shown(value):
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, list) and len(value) == 2 and all(isinstance(one, int) for one in value):
        return f"{value[0]} of {value[1]}"
    return ", ".join(value) or "none" if isinstance(value, list) else str(value)


if __name__ == "__main__":
    sys.exit(main())
