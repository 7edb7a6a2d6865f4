#!/usr/bin/env python3
"""Predicts steps of rowmill's own trainer on this CPU without a trace of any of them, writes the predictions down, and only then measures.

    python3 bench/compare/predict_learned.py [--rowmill target/release/rowmill] [--output bench/record/MACHINE]
    python3 bench/compare/predict_learned.py --hardware cpu       by what `rowmill predict learn --output cpu` learned before
    python3 bench/compare/predict_learned.py --quick              a third of the cases, fewer steps

As predict_evidence.py, with its cases, its rules and its columns, but for where prices come from: `rowmill predict learn` times the operations
of made-up configurations, and `rowmill predict step --hardware` prices the steps by them. None of the configurations measured here is among
those learned from. The bar of an error is 15 %.
"""
import json
import pathlib
import sys

import predict_evidence
from predict_evidence import say


class Learned(predict_evidence.Evidence):
    """Prices of made-up configurations in place of a calibration by recordings."""

    error_bar_pct = 15.0
    before = "predict-learned-before.json"
    # Its intervals add up what every operation may be off by: they are wide, and say nothing of how steps spread.
    judged = ("rejected share", "every row is measured", "each error", "order of pairs", "medians within")

    def calibrate(self):
        self.hardware = self.arguments.hardware or self.folder / "cpu"
        if not self.arguments.hardware:
            say("measuring made-up configurations")
            self.rowmill("predict", "learn", "--configurations", self.arguments.configurations, "--output", self.hardware)
        learned = json.loads((self.hardware / "hardware.json").read_text())
        self.clock_ghz = learned["machine"]["spec"]["clock_mhz"] / 1e3
        self.stream_gb_per_s = learned["stream_gb_per_s"]
        self.calibrated = [{"steps": learned["steps"], "stream_gb_per_s": self.stream_gb_per_s}]

    def prediction(self, run):
        options = [f"--set={key}={value}" for key, value in run["set"].items()]
        text = self.rowmill(
            "predict", "step", "--model", run["config"], "--hardware", self.hardware, "--batch-size", run["batch"],
            "--pooling", run["pooling"], "--ranks", run["ranks"], *options, "--format", "json",
        )
        row = json.loads(text)[0]
        numbers = {key: row[key] for key in ("step_ns", "low_ns", "high_ns", "measured_pct")}
        return {**numbers, "median_ns": row["step_ns"], "modeled_pct": row["outside_pct"], "unknown_pct": 0.0}


def main():
    parser = predict_evidence.parser(__doc__)
    parser.add_argument("--hardware", type=pathlib.Path, help="folder of rowmill predict learn (default: learn now)")
    parser.add_argument("--configurations", type=int, default=300, help="made-up configurations to measure")
    return predict_evidence.run(Learned, predict_evidence.parsed(parser), "predict-learned")


if __name__ == "__main__":
    sys.exit(main())
