#!/usr/bin/env python3
"""Predicts steps of PyTorch at sizes between two recorded ones (`rowmill predict resize`), and records those sizes to check it.

    target/venv-compare/bin/python bench/compare/predict_resize.py [--rowmill target/release/rowmill] [--output bench/record/MACHINE]
    target/venv-compare/bin/python bench/compare/predict_resize.py --only transformer --rounds 2

Three models are trained on the CPU: a DLRM, a convolutional network and a transformer. Each is recorded at three batch sizes and at three
widths, in rounds: a round records all three sizes, one after the other. Within a round, the step of the middle size is predicted from the other
two recordings. The baseline is a straight line through the mean steps of both. A round whose machine was busy with other processes is marked;
the bar of 10 % counts for quiet rounds. The step of a recorded size, predicted at its own size, must agree with its recording within 2 %.
"""
import argparse
import datetime
import json
import multiprocessing
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import warnings

os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # It reports the missing GPU as an error otherwise.
import torch
from torch import nn
from torch.nn import functional as F

import machine
import records

ERROR_MAX_PCT = 10.0
OWN_SIZE_MAX_PCT = 2.0
# Largest share of all cores that other processes may use in a quiet round.
FOREIGN_MAX = 0.05
# Largest coefficient of variation of the steps of a recording in a quiet round. On a shared host, other guests slow down some steps severalfold.
NOISE_MAX_PCT = 15.0
# Each recording is a process of its own, because the memory that one model has freed changes the speed of the next. This process only forks, so
# it must not compute with PyTorch.
FORK = multiprocessing.get_context("fork")
WARM_STEPS, STEPS = 4, 24


class Dlrm(nn.Module):
    """Eight tables of 100,000 rows and `width` columns, with eight ids per bag."""

    TABLES, ROWS, IDS, DENSE = 8, 100_000, 8, 128

    def __init__(self, width):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(self.ROWS, width, mode="sum", sparse=True) for _ in range(self.TABLES))
        self.bottom = nn.Sequential(nn.Linear(self.DENSE, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        vectors = self.TABLES + 1
        self.top = nn.Sequential(
            nn.Linear(width + vectors * vectors, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def batch(self, size):
        return torch.randn(size, self.DENSE), torch.randint(self.ROWS, (self.TABLES, size, self.IDS)), torch.rand(size).round()

    def loss(self, dense, ids, labels):
        dense = self.bottom(dense)
        vectors = torch.stack([dense, *(table(ids[at]) for at, table in enumerate(self.tables))], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return F.binary_cross_entropy_with_logits(self.top(torch.cat([dense, products], dim=1)).squeeze(1), labels)


class Convolutions(nn.Module):
    """Six convolutions of `width` channels with batch normalization, over images of 32 × 32."""

    def __init__(self, width):
        super().__init__()
        layers, channels = [], 3
        for at in range(6):
            layers += [nn.Conv2d(channels, width, 3, stride=2 if at in (2, 4) else 1, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))

    def batch(self, size):
        return torch.randn(size, 3, 32, 32), torch.randint(10, (size,))

    def loss(self, images, labels):
        return F.cross_entropy(self.layers(images), labels)


class Transformer(nn.Module):
    """Two encoder layers of `width`, over sequences of 64 of 1,000 words."""

    WORDS, LENGTH = 1_000, 64

    def __init__(self, width):
        super().__init__()
        self.words = nn.Embedding(self.WORDS, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, self.WORDS)

    def batch(self, size):
        words = torch.randint(self.WORDS, (size, self.LENGTH + 1))
        return words[:, :-1], words[:, 1:]

    def loss(self, words, following):
        return F.cross_entropy(self.head(self.layers(self.words(words))).flatten(0, 1), following.flatten())


# Batch sizes at one width, and widths at one batch size.
CASES = {
    "dlrm": (Dlrm, (512, 1024, 2048), 64, (32, 64, 128), 1024),
    "convolutions": (Convolutions, (16, 32, 64), 32, (16, 32, 64), 32),
    "transformer": (Transformer, (8, 16, 32), 128, (64, 128, 256), 16),
}


def main():
    arguments = parsed()
    rows = []
    with tempfile.TemporaryDirectory(prefix="predict-resize-") as folder:
        for turn in range(arguments.rounds):
            for case in cases(arguments.only):
                rows.append(one_round(arguments, pathlib.Path(folder), case, turn))
                print("{model:>12} {dimension:<6} round {round}: error {error_pct:6.1f} %, line {line_pct:6.1f} %, "
                      "own sizes {own_pct:4.1f} %, busy {foreign_pct:4.1f} %, noise {noise_pct:5.1f} %".format(**rows[-1]), file=sys.stderr)
    report = {
        "date": datetime.date.today().isoformat(), "machine": machine.describe(), "torch": torch.__version__, "rounds": rows,
        "rowmill": subprocess.run([arguments.rowmill, "--version"], capture_output=True, text=True).stdout.strip(),
        "cases": [summary(case, rows) for case in cases(arguments.only)],
    }
    report["passed"] = {
        "error at most that of the line, every case": all(round(case["error_pct"], 1) <= round(case["line_pct"], 1) for case in report["cases"]),
        f"error at most {ERROR_MAX_PCT:g} %, every case with quiet rounds": all(
            case["quiet_error_pct"] is None or case["quiet_error_pct"] <= ERROR_MAX_PCT for case in report["cases"]),
        f"recorded sizes within {OWN_SIZE_MAX_PCT:g} %": all(case["own_pct"] <= OWN_SIZE_MAX_PCT for case in report["cases"]),
    }
    text = markdown(report)
    print(text)
    if arguments.output:
        records.write(arguments.output, f"predict-resize-{report['date']}", report, text)
    return 0 if all(report["passed"].values()) else 1


def parsed():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rowmill", default="target/release/rowmill")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=CASES, action="append", help="a model (repeatable; default: all)")
    parser.add_argument("--keep", type=pathlib.Path, help="also keep all recordings in this folder")
    parser.add_argument("--output", type=pathlib.Path)
    return parser.parse_args()


def cases(only):
    for model, (_, batches, width, widths, batch) in CASES.items():
        if not only or model in only:
            yield model, "batch", batches, lambda size, width=width: (size, width)
            yield model, "width", widths, lambda size, batch=batch: (batch, size)


def one_round(arguments, folder, case, turn):
    """Records the three sizes of a case, in an order that changes by round, and compares both predictions of the middle one."""
    model, dimension, sizes, shape = case
    foreign, before = machine.Foreign("self"), children_seconds()
    paths = {}
    for at in range(3):
        size = sizes[(at + turn) % 3]
        paths[size] = (arguments.keep or folder) / f"{model}-{dimension}-{size}-{turn}.json"
        paths[size].parent.mkdir(parents=True, exist_ok=True)
        job = FORK.Process(target=record, args=(arguments.threads, CASES[model][0], *shape(size), paths[size]))
        job.start()
        job.join()
        if job.exitcode:
            raise SystemExit(f"{model} with {dimension} {size}: the training ended with code {job.exitcode}")
    foreign_pct = 100.0 * foreign.share(children_seconds() - before)
    small, middle, large = sizes

    def predicted(size):
        words = [paths[small], paths[large], "--sizes", f"{small},{large}", "--to", size, "--measured", paths[size], "--format", "json"]
        done = subprocess.run([arguments.rowmill, "predict", "resize", *map(str, words)], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"rowmill predict resize {' '.join(map(str, words))}: {done.stderr.strip()}")
        return json.loads(done.stdout)[0]

    row, own = predicted(middle), [predicted(size) for size in (small, large)]
    return {
        "model": model, "dimension": dimension, "sizes": sizes, "round": turn, "foreign_pct": foreign_pct,
        "measured_ns": row["measured_ns"], "predicted_ns": row["step_ns"], "error_pct": row["error_pct"], "line_pct": row["baseline_error_pct"],
        "own_pct": max(abs(one["error_pct"]) for one in own), "noise_pct": max(one["noise_pct"] for one in [row, *own]),
    }


def children_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def record(threads, model, size, width, path):
    """Writes a trace of training steps of a model with `width` on batches of `size`."""
    torch.set_num_threads(threads)
    warnings.filterwarnings("ignore", "Warning: Profiler clears events")
    torch.manual_seed(0)
    job = model(width)
    batches = [job.batch(size) for _ in range(4)]
    optimizer = torch.optim.SGD(job.parameters(), lr=0.01)

    def step(at):
        optimizer.zero_grad(set_to_none=True)
        job.loss(*batches[at % len(batches)]).backward()
        optimizer.step()

    for at in range(WARM_STEPS):
        step(at)
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=STEPS)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, schedule=schedule,
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
    ) as profiler:
        for at in range(1 + STEPS):
            step(at)
            profiler.step()


def summary(case, rows):
    model, dimension, sizes, _ = case
    own = [row for row in rows if (row["model"], row["dimension"]) == (model, dimension)]
    quiet = [row for row in own if row["foreign_pct"] <= 100.0 * FOREIGN_MAX and row["noise_pct"] <= NOISE_MAX_PCT]
    middle = lambda rows, key: statistics.median(abs(row[key]) for row in rows) if rows else None  # noqa: E731
    return {
        "model": model, "dimension": dimension, "sizes": sizes, "step_ms": statistics.median(row["measured_ns"] for row in own) / 1e6,
        "error_pct": middle(own, "error_pct"), "line_pct": middle(own, "line_pct"), "own_pct": middle(own, "own_pct"),
        "quiet_rounds": len(quiet), "quiet_error_pct": middle(quiet, "error_pct"), "rounds": len(own),
    }


def markdown(report):
    lines = [
        f"# Steps between two recorded sizes, {report['date']}", "",
        f"{report['rowmill']} and PyTorch {report['torch']} on {report['machine']['cpu']}, {report['machine']['cores']} cores. Errors are medians of "
        "absolute errors over rounds. The line goes through the mean steps of both recordings.", "",
        "| model | sizes | step, ms | error, % | line, % | own sizes, % | quiet rounds | error in quiet rounds, % |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for case in report["cases"]:
        small, middle, large = case["sizes"]
        quiet = "–" if case["quiet_error_pct"] is None else f"{case['quiet_error_pct']:.1f}"
        lines.append(
            f"| {case['model']} | {case['dimension']} {small}, {large} → {middle} | {case['step_ms']:.1f} | {case['error_pct']:.1f} | "
            f"{case['line_pct']:.1f} | {case['own_pct']:.1f} | {case['quiet_rounds']} of {case['rounds']} | {quiet} |")
    lines += ["", *(f"- {'passed' if is_met else 'MISSED'}: {what}" for what, is_met in report["passed"].items())]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
