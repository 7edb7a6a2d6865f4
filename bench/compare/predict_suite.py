#!/usr/bin/env python3
"""Predicts within the recorded CPU suite: how much of each workload a calibration covers, and what cures of antipatterns bring.

    python3 bench/compare/predict_suite.py [--rowmill target/release/rowmill] [--output bench/record/MACHINE]

The suite (`bench/record/amd-epyc-2cpu/suite`) is recorded: nothing is measured here, and it takes seconds.

1. Coverage. Each workload is calibrated on one of its recordings. Of another recording of it: the share of its operators' time whose operator
   (by name, sizes aside) the calibration knows, so that it is measured or modeled. Beside it, without a bar, what calibrations of the
   other workloads, and of other models alone, would know of it.
2. Cures. The step before the cure is calibrated and edited (`rowmill predict what-if`); the step after it is never read. The gain is the part
   of the step that goes; measured by the unprofiled medians of `cases/antipatterns.csv`. Absolute gains are not compared: recorded
   steps are up to 1.36 times as long as unrecorded ones. A pair counts where the 5-95 % ranges of its steps do not overlap; of the bag and
   the optimizer pair the figure is asked for anyhow. What no edit can say is named, with the reason, and counts as missed.
"""
import argparse
import csv
import datetime
import io
import json
import pathlib
import subprocess
import sys
import tempfile

import machine
import records

SUITE = pathlib.Path("bench/record/amd-epyc-2cpu/suite")
COVERAGE_MIN_PCT = 95.0
GAIN_ERROR_MAX_PCT = 30.0
AUTOGRAD = "autograd::engine::evaluate_function: "

# One lookup instead of one per table: the ids are no longer taken apart, gradients of one table are accumulated at once.
BAGS = [
    ("remove", "aten::select"),
    ("fuse", "aten::embedding_bag"),
    ("remove", f"{AUTOGRAD}torch::autograd::AccumulateGrad"),
    ("fuse", f"{AUTOGRAD}EmbeddingBagBackward0"),
    ("fuse", "aten::add_"),
]
# One kernel for all parameters: what each needs beside its in-place updates goes, these become one.
OPTIMIZER = [("remove", "aten::item"), ("remove", "aten::sqrt"), ("remove", "aten::div"), ("fuse", "aten::*_")]
# The framework transforms the batch instead of NumPy: a logarithm, a difference and a quotient are passes over it, beside a mean and a deviation.
PASS, MEAN = ("insert", "aten::square"), ("insert", "aten::mean")
TRANSFORM = [("close-gap", "aten::lift_fresh"), PASS, PASS, PASS, MEAN, MEAN]
EDITS = {"many-embedding-bags": BAGS, "unfused-optimizer": OPTIMIZER, "host-transform": TRANSFORM}
# What names the operators of an edit, and what more it needs.
KEYS = {"close-gap": ("before", ""), "insert": ("operator", "after = \"aten::lift_fresh\"\n")}
ASKED_ANYHOW = ["many-embedding-bags", "unfused-optimizer"]
NO_EDIT = {
    "fine-grained-copies": "ranges overlap",
    "periodic-io": "ranges overlap",
    "one-feeder": "ranges overlap",
}


def main():
    arguments = parsed()
    with tempfile.TemporaryDirectory(prefix="predict-suite-") as folder:
        suite = Suite(arguments, pathlib.Path(folder))
        report = {
            "date": datetime.date.today().isoformat(), "machine": machine.describe(), "rowmill": suite.rowmill("--version").strip(),
            "coverage": suite.coverage(), "cures": suite.cures(),
        }
    report["passed"] = {
        "operator time covered >= 95 %, every workload": all(row["covered_pct"] >= COVERAGE_MIN_PCT for row in report["coverage"]),
        "gains within 30 %, every pair that counts": all(row["is_within"] for row in report["cures"] if row["counts"]),
    }
    text = markdown(report)
    print(text)
    if arguments.output:
        records.write(arguments.output, f"predict-suite-{report['date']}", report, text)
    return 0 if all(report["passed"].values()) else 1


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rowmill", default="target/release/rowmill")
    parser.add_argument("--suite", type=pathlib.Path, default=SUITE)
    parser.add_argument("--output", type=pathlib.Path)
    return parser.parse_args()


class Suite:
    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, folder

    def rowmill(self, *words):
        done = subprocess.run([self.arguments.rowmill, *map(str, words)], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"rowmill {' '.join(map(str, words))}: {done.stderr.strip()}")
        return done.stdout

    def calibrated(self, trace):
        path = self.folder / "calibration.json"
        self.rowmill("predict", "calibrate", trace, "--output", path)
        return path

    def operators(self, trace):
        """Operators of a recording, with their time."""
        times = {}
        calibration = json.loads(self.calibrated(trace).read_text())["calibration"]
        for key, samples in calibration["overheads"]:
            if key["class"] == "host_only":
                times[key["name"]] = times.get(key["name"], 0) + sum(samples)
        return times

    def coverage(self):
        """Per workload: the share of its operators' time whose operator is known."""
        folders = sorted(path.parent for path in self.arguments.suite.glob("collect/*/kineto.json.gz"))
        calibrated = {folder.name: self.operators(folder / "kineto.json.gz") for folder in folders}
        rows = []
        for folder in folders:
            workload, model = folder.name, model_of(folder.name)
            taken = self.operators(folder / "execution-kineto.json.gz")
            known = lambda keep: {name for other, names in calibrated.items() if keep(other) for name in names}
            share = lambda names: 100.0 * sum(ns for name, ns in taken.items() if name in names) / sum(taken.values())
            others = known(lambda other: other != workload)
            missing = sorted(set(taken) - others, key=lambda name: -taken[name])
            rows.append({
                "workload": workload, "operators": len(taken), "covered_pct": share(known(lambda other: other == workload)),
                "covered_by_other_workloads_pct": share(others),
                "covered_by_other_models_pct": share(known(lambda other: model_of(other) != model)),
                "unknown_to_others": [{"operator": name, "pct": 100.0 * taken[name] / sum(taken.values())} for name in missing[:3]],
            })
        return rows

    def cures(self):
        with open(self.arguments.suite / "cases/antipatterns.csv") as file:
            cases = {(row["pair"], row["variant"]): row for row in csv.DictReader(file) if row["status"] == "done"}
        rows = []
        for pair in sorted({pair for pair, _ in cases}):
            before, after = cases[pair, "before"], cases[pair, "after"]
            us = lambda row, key: float(row[key])
            gain = 100.0 * (1.0 - us(after, "median_us") / us(before, "median_us"))
            is_apart = us(after, "p95_us") < us(before, "p5_us") or us(before, "p95_us") < us(after, "p5_us")
            row = {"pair": pair, "measured_gain_pct": gain, "ranges_are_apart": is_apart, "counts": is_apart or pair in ASKED_ANYHOW}
            rows.append(row | (self.cure(pair, gain) if pair in EDITS else {
                "predicted_gain_pct": None, "error_pct": None, "is_within": False, "why_not": NO_EDIT.get(pair, "no edit"),
            }))
        return rows

    def cure(self, pair, measured):
        edits = self.folder / "edits.toml"
        edits.write_text("\n".join(table(kind, operators) for kind, operators in EDITS[pair]))
        trace = self.arguments.suite / "cases" / pair / "before.json.gz"
        calibration = self.calibrated(trace)
        text = self.rowmill("predict", "what-if", trace, "--calibration", calibration, "--edits", edits, "--format", "csv")
        row = next(csv.DictReader(io.StringIO(text)))
        predicted = 100.0 * (1.0 - float(row["step_ns"]) / float(row["base_ns"]))
        error = 100.0 * (predicted / measured - 1.0)
        return {"predicted_gain_pct": predicted, "error_pct": error, "is_within": abs(error) <= GAIN_ERROR_MAX_PCT, "why_not": ""}


def table(kind, operators):
    key, more = KEYS.get(kind, ("operators", ""))
    return f"[[edit]]\nkind = \"{kind}\"\n{key} = \"{operators}\"\n{more}"


def model_of(workload):
    return workload.split("-p")[0]


def markdown(report):
    lines = [
        f"# Predictions within the recorded CPU suite, {report['date']}", "", f"{report['rowmill']}; nothing is measured here.", "",
        "| workload | operators | time covered % | by other workloads % | by other models % | unknown to other workloads |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for row in report["coverage"]:
        unknown = ", ".join(f"{one['operator']} {one['pct']:.1f} %" for one in row["unknown_to_others"]) or "none"
        lines.append(
            f"| {row['workload']} | {row['operators']} | {row['covered_pct']:.1f} | {row['covered_by_other_workloads_pct']:.1f} | "
            f"{row['covered_by_other_models_pct']:.1f} | {unknown} |"
        )
    lines += ["", "| pair | measured gain % | predicted gain % | off by % | counts | |", "|---|--:|--:|--:|---|---|"]
    for row in report["cures"]:
        shown = lambda value: "-" if value is None else f"{value:.1f}"
        verdict = "" if not row["counts"] else "within 30 %" if row["is_within"] else "MISSED"
        lines.append(
            f"| {row['pair']} | {row['measured_gain_pct']:.1f} | {shown(row['predicted_gain_pct'])} | {shown(row['error_pct'])} | "
            f"{'yes' if row['counts'] else 'no'} | {' '.join(filter(None, [verdict, row['why_not']]))} |"
        )
    lines += ["", *(f"- {'passed' if passed else 'FAILED'}: {what}" for what, passed in report["passed"].items())]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
