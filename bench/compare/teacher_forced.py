#!/usr/bin/env python3
"""Compares rowmill's training with PyTorch's, step by step and over a whole run.

    python bench/compare/teacher_forced.py [--rowmill BINARY] [--folder FOLDER] [--optimizers sgd,adagrad,...]

A DLRM (13 dense inputs, 8 tables, bags of 0 to 4 ids, dot interaction) is trained for 200 steps in PyTorch, in f32. The
tables' rules are torch.optim's SGD, Adagrad and SparseAdam; row-wise Adagrad and FBGEMM's Adam, which PyTorch has not, are
written in PyTorch in reference.py.

Teacher-forced: at steps 0, 10, ... 200 its weights, optimizer states and batch go into rowmill through
`checkpoint import` and a CSV file, both take that one step, and `checkpoint export` brings the result back. Allowed: 1e-6
of the loss, 1e-5 of a tensor's largest magnitude for each gradient, updated weight and updated state. rowmill prints no
gradients; one step of SGD at a learning rate of 2^20 makes the difference of the weights the gradient (the weights
themselves, a millionth of it, round away). Three things f32 cannot say are judged by the same step in f64:
- Samples whose input to some ReLU is nearer to 0 than 2e-6 of its layer's root mean square are taken out of a compared
  batch on both sides: a rounding decides whether they have a gradient. `on_edge` counts them.
- A gradient that is small because its terms cancel (the last bias) may be further off where PyTorch's own is: rowmill's
  distance from f64 is then at most twice PyTorch's. Such gradients are listed as `cancelled`.
- Of the adaptive optimizers, weights are left out whose gradient is noise: where moving it by the tensor's f32 noise (the
  largest distance of PyTorch's gradient from f64) moves the weight by more than half of what is allowed. `left_out` is
  the largest share of all weights in a step.

Free-running: both train 200 steps from the same weights by themselves. SGD: after 20 steps weights and losses within 1e-5
of each other. All: a run amplifies its roundings, the more so where one moves a sample over the edge of a ReLU, and by how
much is a matter of luck: from one start either side may end a hundred times as far off as from another. So both train from
15 starts (weights, ids, dense inputs and labels drawn anew; `--starts`), and each run is held against one in f64 from the
same start on the same batches (root of the sum of squares over all weights, relative). Claimed is that at steps 20, 40, ...
200 the geometric mean of rowmill's distances is at most twice that of PyTorch's: it moves with the share of the starts that
passed an edge, where a median leaps as that share passes a half. The ratio has a 90 % interval, by drawing the starts again
in pairs. The claim is refuted, and the script fails, where all of the interval is above 2; `proven` says that all of it is
at most 2, `undecided` that more starts are needed to tell. Beside it stand the medians, and from how many starts rowmill is
the nearer. (Under SGD PyTorch rounds a row once per id of the batch, because it adds sparse gradients to it one by one;
rowmill sums them first.)

bf16 (`sgd_bf16`): `training.precision = "bf16"` against PyTorch's CPU autocast, whose tables, master weights and updates are
f32 too. Which roundings they make differs (autocast's interaction and layers' outputs are bf16), and each of the 14 products
that a gradient goes through rounds two factors by up to 2^-9, so that no two ways agree in more than a digit or two. Both
are therefore held against the same step in f64, over all compared steps:
- the loss of either is within 2^-9, and rowmill's root mean square distance is at most PyTorch's;
- of each tensor's gradient (distance over length) rowmill's root mean square is at most twice PyTorch's, and at most
  PyTorch's in the geometric mean over tensors, with a tenth for chance;
- the update of the master weights is f32: w - 0.1 g with rowmill's own gradient within 1e-5 of a tensor's largest magnitude.
The free runs are judged as those in f32, each side by its own bf16 runs.

Prints JSON, also of the starts so far on Ctrl-C; exits 1 where anything is further apart. Needs torch, numpy, safetensors.
"""
import argparse
import dataclasses
import datetime
import json
import math
import pathlib
import random
import shutil
import statistics
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file

import doors
import machine
import reference

SHAPE = reference.Shape(
    dense=13, bottom=[64, 32, 16], tables=[1000, 3, 57, 5000, 100, 20, 1, 2000], dim=16, top=[128, 64, 1]
)
BATCH = 128
BAGS = (0, 4)
RATES = {"sgd": 0.1, "adagrad": 0.005, "rowwise_adagrad": 0.005, "adam": 0.001, "sparse_adam": 0.001}
# Of everything but the tables, where the tables' rule is none of torch.optim's for dense parameters.
DENSE = {"rowwise_adagrad": "adagrad", "sparse_adam": "adam"}
EPSILON = 1e-8
GRADIENT_RATE = 2.0**20
EDGE = 2e-6

LOSS_APART = 1e-6
TENSOR_APART = 1e-5
FREE_STEPS = 20
FREE_APART = 1e-5
DISTANCE_RATIO = 2.0
BF16_LOSS_APART = 2.0**-9
BF16_MEAN_RATIO = 1.1
INTERVAL = 0.9
DRAWS = 2000


@dataclasses.dataclass(frozen=True)
class Case:
    """What is trained how."""

    kind: str
    precision: str = "f32"

    @property
    def name(self):
        return self.kind if self.precision == "f32" else f"{self.kind}_{self.precision}"

    def first_model(self, start=0):
        torch.manual_seed(7 + start)
        return reference.Dlrm(SHAPE, self.precision)

    def optimizers(self, model):
        return reference.optimizers(model, self.kind, RATES[self.kind], EPSILON)


CASES = {case.name: case for case in [*map(Case, RATES), Case("sgd", "bf16")]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rowmill", default=doors.BINARY)
    parser.add_argument("--folder", help="where the files go, emptied first (default: a temporary one)")
    parser.add_argument("--cases", default=",".join(CASES), help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--starts", type=int, default=15, help="of the free runs")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--output", help="also write the JSON here")
    arguments = parser.parse_args()
    for name in arguments.cases.split(","):
        if name not in CASES:
            parser.error(f"expected cases of {', '.join(CASES)}, got {name!r}")
    torch.set_num_threads(1)
    torch.sparse.check_sparse_tensor_invariants.disable()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(arguments.folder or temporary)
        if arguments.folder:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        rowmill = doors.Rowmill(arguments.rowmill, folder.resolve())
        report = {"date": datetime.date.today().isoformat(), "commit": doors.commit(), "machine": machine.describe()}
        report |= {"rowmill": rowmill.version(), "torch": torch.__version__, "runs": {}, "failures": []}
        batches = reference.made_batches(SHAPE, BATCH, arguments.steps + 1, BAGS)
        for case in map(CASES.get, arguments.cases.split(",")):
            doors.write_job(rowmill.folder / f"{case.name}.toml", job_of(case, RATES[case.kind]))
            gradient = dataclasses.replace(case, kind="sgd")
            doors.write_job(rowmill.folder / f"{case.name}-gradient.toml", job_of(gradient, GRADIENT_RATE))
            forced = (Forced if case.precision == "f32" else ForcedBf16)(rowmill, case, arguments.every)
            free = Free(rowmill, case)
            failures = forced.run(batches) + free.run(arguments.starts, arguments.steps)
            report["runs"][case.name] = {"teacher_forced": forced.report, "free_running": free.report}
            report["failures"] += [f"{case.name}: {failure}" for failure in failures]
    text = json.dumps(report, indent=2)
    print(text)
    if arguments.output:
        pathlib.Path(arguments.output).write_text(text + "\n")
    return 1 if report["failures"] else 0


def batches_of(start, steps):
    """Of a free run; those of start 0 are the teacher-forced ones."""
    return reference.made_batches(SHAPE, BATCH, steps, BAGS, seed=1 + start)


def job_of(case, rate):
    kind = case.kind
    tables = [{"name": f"t{i}", "rows": rows, "dim": SHAPE.dim} for i, rows in enumerate(SHAPE.tables)]
    columns = [{"column": f"t{i}", "kind": "integer", "separator": " "} for i in range(len(SHAPE.tables))]
    optimizer = lambda kind: {"kind": kind, "learning_rate": rate, "epsilon": EPSILON}
    return {
        "model": {
            "name": "compared",
            "dense_features": SHAPE.dense,
            "bottom": SHAPE.bottom,
            "top": SHAPE.top,
            "interaction": {"kind": "dot"},
            "loss": "bce_with_logits",
            "tables": tables,
        },
        "optimizer": {"sparse": optimizer(kind), "dense": optimizer(DENSE.get(kind, kind))},
        "training": {
            "batch_size": BATCH,
            "precision": case.precision,
            "shuffle_rows": 0,
            "log_every": 1,
            "keep_checkpoints": 1000,
        },
        "data": {
            "format": "csv",
            "hold_out": 0.0,
            "label": {"column": "y"},
            "dense": [{"column": f"d{i}"} for i in range(SHAPE.dense)],
            "categorical": columns,
        },
    }


def weights_of(model):
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


# ---- one step at a time ----


class Forced:
    """PyTorch's run, and rowmill's steps from some of its points."""

    def __init__(self, rowmill, case, every):
        self.rowmill, self.case, self.kind, self.every = rowmill, case, case.kind, every
        worst = {"loss": 0.0, "gradient": 0.0, "weight": 0.0, "state": 0.0}
        self.report = {"steps": 0, "worst": worst, "left_out": 0.0, "on_edge": 0, "cancelled": []}

    def run(self, batches):
        """What is further apart than allowed."""
        model, failures = self.case.first_model(), []
        optimizers = self.case.optimizers(model)
        for number, batch in enumerate(batches):
            if number % self.every != 0:
                reference.step(model, optimizers, batch)
                continue
            before = weights_of(model), reference.states(model, self.kind, optimizers)
            batch = self.off_edge(before[0], batch)
            theirs = {"loss": reference.step(model, optimizers, batch), "gradient": reference.gradients(model)}
            theirs["weight"], theirs["state"] = weights_of(model), reference.states(model, self.kind, optimizers)
            failures += self.step(number, batch, before, theirs)
        return failures + self.over_all_steps()

    def over_all_steps(self):
        return []

    def off_edge(self, weights, batch):
        """Without the samples for which a rounding decides about a ReLU."""
        inputs = reference.before_activations(in_double(weights), batch.double())
        near = [(layer.abs() < EDGE * layer.square().mean().sqrt()).any(dim=1) for layer in inputs]
        kept = ~torch.stack(near).any(dim=0)
        self.report["on_edge"] += int((~kept).sum())
        return batch if kept.all() else batch.in_order(kept.nonzero()[:, 0])

    def step(self, number, batch, before, theirs):
        weights, states = before
        folder = self.rowmill.folder / f"{self.case.name}-{number}"
        folder.mkdir()
        doors.write_rows(folder / "rows.csv", [batch])
        save_file(weights, folder / "weights.safetensors")
        save_file(states, folder / "states.safetensors")
        ours = self.taken(f"{self.case.name}.toml", folder, number)
        moved = self.taken(f"{self.case.name}-gradient.toml", folder, number)
        if moved["loss"] != ours["loss"]:
            raise SystemExit(f"teacher_forced.py: one batch gave two losses, {ours['loss']} and {moved['loss']}")
        difference = lambda name: (weights[name].double() - moved["weight"][name].double()) / GRADIENT_RATE
        ours["gradient"] = {name: difference(name) for name in weights}
        shutil.rmtree(folder)
        return self.judge(number, ours, theirs, (weights, batch))

    def taken(self, config, folder, number):
        """Loss, weights and states after one step of rowmill from the weights and states in `folder`."""
        run = folder / config.removesuffix(".toml")
        files = [folder / "weights.safetensors", "--step", number]
        if not config.endswith("gradient.toml"):
            files += ["--optimizer", folder / "states.safetensors"]
        self.rowmill.run("checkpoint", "import", *files, "--from", "torch", "--config", config, "--run", run)
        steps = ["--set", f"training.steps={number + 1}", "--set", f"training.epochs={number + 1}"]
        lines = self.rowmill.run("train", config, "--train", folder / "rows.csv", "--run", run, "--resume", *steps)
        if lines[-1]["step"] != number + 1:
            raise SystemExit(f"teacher_forced.py: expected one step to {number + 1}, got {lines[-1]}")
        weights, states = run / "weights.safetensors", run / "states.safetensors"
        self.rowmill.run("checkpoint", "export", run, "--to", "torch", weights, "--optimizer", states)
        return {"loss": lines[-1]["loss"], "weight": load_file(weights), "state": load_file(states)}

    def judge(self, number, ours, theirs, before):
        _, exact = exact_step(*before)
        report, failures = self.report, []
        worst = report["worst"]
        report["steps"] += 1
        apart = abs(ours["loss"] - theirs["loss"]) / theirs["loss"]
        worst["loss"] = max(worst["loss"], apart)
        if apart > LOSS_APART:
            failures.append(f"step {number}: loss {apart:.2e} apart")
        kept = {name: ~self.noisy(number, name, theirs, exact) for name in exact}
        values = sum(mask.numel() for mask in kept.values())
        left_out = 1 - sum(mask.sum().item() for mask in kept.values()) / values
        report["left_out"] = max(report["left_out"], left_out)
        for what, masks in (("gradient", {}), ("weight", kept), ("state", {})):
            same_names(ours[what], theirs[what])
            for name, expected in theirs[what].items():
                apart = furthest(ours[what][name], expected, masks.get(name))
                if what == "gradient" and apart > TENSOR_APART:
                    distances = [furthest(side[what][name], exact[name]) for side in (ours, theirs)]
                    found = {"step": number, "tensor": name, "apart": apart}
                    report["cancelled"].append(found | dict(zip(("rowmill", "torch"), distances)))
                    if distances[0] <= DISTANCE_RATIO * distances[1]:
                        continue
                worst[what] = max(worst[what], apart)
                if apart > TENSOR_APART:
                    failures.append(f"step {number}: {what} {name} {apart:.2e} of its largest magnitude apart")
        return failures

    def noisy(self, number, name, theirs, exact):
        """Where f32 noise in the gradient would move the weight by more than half of what is allowed."""
        gradient, state = theirs["gradient"][name], theirs["state"]
        if self.kind == "sgd":
            return torch.zeros_like(gradient, dtype=torch.bool)
        if self.kind in ("adam", "sparse_adam"):
            noise, squares = 0.1 / (1 - 0.9 ** (number + 1)), state[f"{name}.exp_avg_sq"].double()
            squares = squares / (1 - 0.999 ** (number + 1))
        else:
            noise, squares = 1.0, state[f"{name}.sum"].double()
        noise *= (gradient.double() - exact[name]).abs().max()
        root = squares.sqrt().reshape(squares.shape + (1,) * (gradient.dim() - squares.dim())) + EPSILON
        allowed = TENSOR_APART * theirs["weight"][name].abs().max()
        return (gradient != 0) & (RATES[self.kind] * noise / root > allowed / 2)


class ForcedBf16(Forced):
    """The same with products in bf16: both sides against f64."""

    def __init__(self, rowmill, case, every):
        super().__init__(rowmill, case, every)
        self.report = {"steps": 0, "loss": {"rowmill": [], "torch": []}, "update": 0.0}
        self.apart = {"rowmill": {}, "torch": {}}

    def off_edge(self, weights, batch):
        """All samples: too many are within a bf16 rounding of an edge."""
        return batch

    def judge(self, number, ours, theirs, before):
        loss, exact = exact_step(*before)
        self.report["steps"] += 1
        for side, taken in (("rowmill", ours), ("torch", theirs)):
            self.report["loss"][side].append(taken["loss"] / loss - 1)
            same_names(taken["gradient"], exact)
            for name, gradient in taken["gradient"].items():
                apart = ((gradient.double() - exact[name]).norm() / exact[name].norm()).item()
                self.apart[side].setdefault(name, []).append(apart)
        failures = []
        for name, weight in before[0].items():
            expected = weight.double() - RATES[self.kind] * ours["gradient"][name]
            apart = furthest(ours["weight"][name], expected)
            self.report["update"] = max(self.report["update"], apart)
            if apart > TENSOR_APART:
                failures.append(f"step {number}: update of {name} {apart:.2e} of its largest magnitude from f32's")
        return failures

    def over_all_steps(self):
        failures, losses = [], self.report["loss"]
        for side, apart in losses.items():
            if max(map(abs, apart)) > BF16_LOSS_APART:
                failures.append(f"{side}'s loss {max(map(abs, apart)):.2e} from f64's")
        self.report["loss"] = {side: root_mean_square(apart) for side, apart in losses.items()}
        if self.report["loss"]["rowmill"] > self.report["loss"]["torch"]:
            failures.append("losses are further from f64's than PyTorch's")
        self.report["gradients"] = gradients = {}
        for name, apart in self.apart["rowmill"].items():
            row = {"rowmill": root_mean_square(apart), "torch": root_mean_square(self.apart["torch"][name])}
            gradients[name] = row | {"ratio": row["rowmill"] / row["torch"]}
            if gradients[name]["ratio"] > DISTANCE_RATIO:
                failures.append(f"gradients of {name} {gradients[name]['ratio']:.2f} times as far from f64's as PyTorch's")
        ratios = [row["ratio"] for row in gradients.values()]
        self.report["gradients_ratio"] = mean = math.exp(statistics.mean(map(math.log, ratios)))
        if mean > BF16_MEAN_RATIO:
            failures.append(f"gradients are {mean:.2f} times as far from f64's as PyTorch's")
        return failures


def root_mean_square(values):
    return math.sqrt(statistics.mean(value * value for value in values))


def exact_step(weights, batch):
    """Loss and gradients in f64."""
    model = in_double(weights)
    return reference.step(model, [], batch.double()), reference.gradients(model)


def in_double(weights):
    model = reference.Dlrm(SHAPE)
    model.load_state_dict(weights)
    return model.double()


def furthest(ours, expected, kept=None):
    """The largest difference, over the largest magnitude."""
    difference = (ours.double() - expected.double()).abs()
    if kept is not None:
        difference = difference[kept]
    if difference.numel() == 0 or difference.max() == 0:
        return 0.0
    return difference.max().item() / max(expected.double().abs().max().item(), 1e-30)


def same_names(ours, theirs):
    if ours.keys() != theirs.keys():
        raise SystemExit(f"teacher_forced.py: expected the tensors {sorted(theirs)}, got {sorted(ours)}")


# ---- by itself ----


class Free:
    """Whole runs from several starts: rowmill's and PyTorch's, and PyTorch's in f64."""

    def __init__(self, rowmill, case):
        self.rowmill, self.case, self.kind = rowmill, case, case.kind
        self.report = {}

    def run(self, starts, steps):
        apart, failures = {"rowmill": [], "torch": []}, []
        try:
            for start in range(starts):
                failures += self.start(start, steps, apart)
                print(f"{self.case.name}: {start + 1} of {starts} starts", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            # Starts are drawn one by one: those at hand are a smaller comparison, not half of one.
            if not apart["torch"]:
                raise
        self.report |= {"starts": len(apart["torch"]), "distances": []}
        for step in apart["torch"][0]:
            pairs = [(ours[step], theirs[step]) for ours, theirs in zip(apart["rowmill"], apart["torch"])]
            row = {"step": step} | compared(pairs)
            self.report["distances"].append(row)
            if row["verdict"] == "refuted":
                failures.append(f"free run, step {step}: {row['ratio']:.2f} times as far from f64 as PyTorch")
        self.report["each_start"] = {side: [list(run.values()) for run in runs] for side, runs in apart.items()}
        return failures

    def start(self, start, steps, apart):
        """Adds both sides' distances from f64, from one start."""
        batches, failures = batches_of(start, steps), []
        exact = self.torch(Case(self.kind).first_model(start).double(), [batch.double() for batch in batches])[1]
        theirs, ours = self.torch(self.case.first_model(start), batches), self.ours(start, batches)
        if start == 0:
            failures += self.first_steps(ours, theirs)
        found = [{step: distance(weights[step], exact[step]) for step in exact} for _, weights in (ours, theirs)]
        for runs, distances in zip((apart["rowmill"], apart["torch"]), found):
            runs.append(distances)
        return failures

    def first_steps(self, ours, theirs):
        """Of the first steps of both runs, before they drift apart."""
        losses = max(abs(a - b) / b for a, b in zip(ours[0][:FREE_STEPS], theirs[0]))
        pairs = [(ours[1][FREE_STEPS][name], weight) for name, weight in theirs[1][FREE_STEPS].items()]
        weights = max(furthest(*pair) for pair in pairs)
        self.report["first_steps"] = {"losses": losses, "weights": weights}
        if self.case.name == "sgd" and max(losses, weights) > FREE_APART:
            return [f"free run: after {FREE_STEPS} steps losses {losses:.2e}, weights {weights:.2e} apart"]
        return []

    def torch(self, model, batches):
        """Losses of every step, and weights every 20 steps."""
        optimizers = self.case.optimizers(model)
        losses, weights = [], {}
        for number, batch in enumerate(batches, 1):
            losses.append(reference.step(model, optimizers, batch))
            if number % FREE_STEPS == 0:
                weights[number] = weights_of(model)
        return losses, weights

    def ours(self, start, batches):
        folder, config = self.rowmill.folder / f"{self.case.name}-free", f"{self.case.name}.toml"
        folder.mkdir()
        first, run = folder / "weights.safetensors", folder / "run"
        save_file(weights_of(self.case.first_model(start)), first)
        self.rowmill.run("checkpoint", "import", first, "--from", "torch", "--config", config, "--run", run)
        every = ["--set", f"training.checkpoint_every={FREE_STEPS}"]
        rows = folder / "rows.csv"
        doors.write_rows(rows, batches)
        lines = self.rowmill.run("train", config, "--train", rows, "--run", run, "--resume", *every)
        losses = [line["loss"] for line in lines if line.get("event") == "interval"]
        weights = {}
        for step in range(FREE_STEPS, len(batches) + 1, FREE_STEPS):
            out = folder / f"{step}.safetensors"
            self.rowmill.run("checkpoint", "export", run / f"checkpoints/step-{step:012}", "--to", "torch", out)
            weights[step] = load_file(out)
        shutil.rmtree(folder)
        return losses, weights


def compared(pairs):
    """Both sides' distances from the same starts: geometric means, their ratio, and how far it is a matter of luck."""
    ratio = lambda pairs: math.exp(statistics.fmean(math.log(ours / theirs) for ours, theirs in pairs))
    draw = random.Random(5)
    drawn = sorted(ratio(draw.choices(pairs, k=len(pairs))) for _ in range(DRAWS))
    cut = round((1 - INTERVAL) / 2 * DRAWS)
    low, high = drawn[cut], drawn[-1 - cut]
    row = {}
    for side, values in zip(("rowmill", "torch"), zip(*pairs)):
        row |= {side: statistics.geometric_mean(values), f"{side}_median": statistics.median(values)}
    row |= {"ratio": ratio(pairs), "interval": [low, high], "nearer": sum(ours < theirs for ours, theirs in pairs)}
    return row | {"verdict": "proven" if high <= DISTANCE_RATIO else "refuted" if low > DISTANCE_RATIO else "undecided"}


def distance(weights, exact):
    """Root of the sum of squares, over that of the weights."""
    same_names(weights, exact)
    apart = sum((weights[name].double() - exact[name]).square().sum().item() for name in exact)
    whole = sum(exact[name].square().sum().item() for name in exact)
    return (apart / whole) ** 0.5


if __name__ == "__main__":
    sys.exit(main())
