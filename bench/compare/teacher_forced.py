#!/usr/bin/env python3
"""Compares rowmill's training with PyTorch's, step by step and over a whole run.

    python bench/compare/teacher_forced.py [--rowmill BINARY] [--folder FOLDER] [--optimizers sgd,adagrad,...]

A DLRM (13 dense inputs, 8 tables, bags of 0 to 4 ids, dot interaction) is trained for 200 steps in PyTorch, in f32.

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

Free-running: rowmill trains the same 200 batches from the same weights by itself. SGD: after 20 steps weights and losses
within 1e-5 of PyTorch's. All: at steps 20, 40, ... 200 the distance of the weights from a run in f64 (root of the sum of
squares over all weights, relative) is at most twice PyTorch-f32's own. A run amplifies its roundings, the more so where
one moves a sample over the edge of a ReLU, so both train on three orders of the samples within each batch: rowmill's
distance is the median of the three, PyTorch's own the largest. The ratio of the medians is printed too.

Prints JSON; exits 1 where anything is further apart. Needs torch, numpy, safetensors.
"""
import argparse
import datetime
import json
import pathlib
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
RATES = {"sgd": 0.1, "adagrad": 0.005, "rowwise_adagrad": 0.005, "adam": 0.001}
EPSILON = 1e-8
GRADIENT_RATE = 2.0**20
EDGE = 2e-6
ORDERS = 3

LOSS_APART = 1e-6
TENSOR_APART = 1e-5
FREE_STEPS = 20
FREE_APART = 1e-5
DISTANCE_RATIO = 2.0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rowmill", default=doors.BINARY)
    parser.add_argument("--folder", help="where the files go, emptied first (default: a temporary one)")
    parser.add_argument("--optimizers", default=",".join(RATES))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--output", help="also write the JSON here")
    arguments = parser.parse_args()
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
        doors.write_job(rowmill.folder / "gradient.toml", job_of("sgd", GRADIENT_RATE))
        batches = reference.made_batches(SHAPE, BATCH, arguments.steps + 1, BAGS)
        orders = orders_of(batches[: arguments.steps])
        for order, ordered in enumerate(orders):
            doors.write_rows(rowmill.folder / f"order-{order}.csv", ordered)
        for kind in arguments.optimizers.split(","):
            doors.write_job(rowmill.folder / f"{kind}.toml", job_of(kind, RATES[kind]))
            forced, free = Forced(rowmill, kind, arguments.every), Free(rowmill, kind)
            failures = forced.run(batches) + free.run(orders)
            report["runs"][kind] = {"teacher_forced": forced.report, "free_running": free.report}
            report["failures"] += [f"{kind}: {failure}" for failure in failures]
    text = json.dumps(report, indent=2)
    print(text)
    if arguments.output:
        pathlib.Path(arguments.output).write_text(text + "\n")
    return 1 if report["failures"] else 0


def orders_of(batches):
    """The batches as they are, and with their samples in other orders."""
    generator = torch.Generator().manual_seed(3)
    shuffled = lambda batch: batch.in_order(torch.randperm(BATCH, generator=generator))
    return [batches, *([shuffled(batch) for batch in batches] for _ in range(ORDERS - 1))]


def job_of(kind, rate):
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
        "optimizer": {"sparse": optimizer(kind), "dense": optimizer(kind.removeprefix("rowwise_"))},
        "training": {"batch_size": BATCH, "shuffle_rows": 0, "log_every": 1, "keep_checkpoints": 1000},
        "data": {
            "format": "csv",
            "hold_out": 0.0,
            "label": {"column": "y"},
            "dense": [{"column": f"d{i}"} for i in range(SHAPE.dense)],
            "categorical": columns,
        },
    }


def first_model():
    torch.manual_seed(7)
    return reference.Dlrm(SHAPE)


def weights_of(model):
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


# ---- one step at a time ----


class Forced:
    """PyTorch's run, and rowmill's steps from some of its points."""

    def __init__(self, rowmill, kind, every):
        self.rowmill, self.kind, self.every = rowmill, kind, every
        worst = {"loss": 0.0, "gradient": 0.0, "weight": 0.0, "state": 0.0}
        self.report = {"steps": 0, "worst": worst, "left_out": 0.0, "on_edge": 0, "cancelled": []}

    def run(self, batches):
        """What is further apart than allowed."""
        model, failures = first_model(), []
        optimizers = reference.optimizers(model, self.kind, RATES[self.kind], EPSILON)
        for number, batch in enumerate(batches):
            if number % self.every != 0:
                reference.step(model, optimizers, batch)
                continue
            before = weights_of(model), reference.states(model, self.kind, optimizers)
            batch = self.off_edge(before[0], batch)
            theirs = {"loss": reference.step(model, optimizers, batch), "gradient": reference.gradients(model)}
            theirs["weight"], theirs["state"] = weights_of(model), reference.states(model, self.kind, optimizers)
            failures += self.step(number, batch, before, theirs)
        return failures

    def off_edge(self, weights, batch):
        """Without the samples for which a rounding decides about a ReLU."""
        inputs = reference.before_activations(in_double(weights), batch.double())
        near = [(layer.abs() < EDGE * layer.square().mean().sqrt()).any(dim=1) for layer in inputs]
        kept = ~torch.stack(near).any(dim=0)
        self.report["on_edge"] += int((~kept).sum())
        return batch if kept.all() else batch.in_order(kept.nonzero()[:, 0])

    def step(self, number, batch, before, theirs):
        weights, states = before
        folder = self.rowmill.folder / f"{self.kind}-{number}"
        folder.mkdir()
        doors.write_rows(folder / "rows.csv", [batch])
        save_file(weights, folder / "weights.safetensors")
        save_file(states, folder / "states.safetensors")
        ours = self.taken(f"{self.kind}.toml", folder, number)
        moved = self.taken("gradient.toml", folder, number)
        if moved["loss"] != ours["loss"]:
            raise SystemExit(f"teacher_forced.py: one batch gave two losses, {ours['loss']} and {moved['loss']}")
        difference = lambda name: (weights[name].double() - moved["weight"][name].double()) / GRADIENT_RATE
        ours["gradient"] = {name: difference(name) for name in weights}
        shutil.rmtree(folder)
        return self.judge(number, ours, theirs, exact_gradients(weights, batch))

    def taken(self, config, folder, number):
        """Loss, weights and states after one step of rowmill from the weights and states in `folder`."""
        run = folder / config.removesuffix(".toml")
        files = [folder / "weights.safetensors", "--step", number]
        if config != "gradient.toml":
            files += ["--optimizer", folder / "states.safetensors"]
        self.rowmill.run("checkpoint", "import", *files, "--from", "torch", "--config", config, "--run", run)
        steps = ["--set", f"training.steps={number + 1}", "--set", f"training.epochs={number + 1}"]
        lines = self.rowmill.run("train", config, "--train", folder / "rows.csv", "--run", run, "--resume", *steps)
        if lines[-1]["step"] != number + 1:
            raise SystemExit(f"teacher_forced.py: expected one step to {number + 1}, got {lines[-1]}")
        weights, states = run / "weights.safetensors", run / "states.safetensors"
        self.rowmill.run("checkpoint", "export", run, "--to", "torch", weights, "--optimizer", states)
        return {"loss": lines[-1]["loss"], "weight": load_file(weights), "state": load_file(states)}

    def judge(self, number, ours, theirs, exact):
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
        if self.kind == "adam":
            noise, squares = 0.1 / (1 - 0.9 ** (number + 1)), state[f"{name}.exp_avg_sq"].double()
            squares = squares / (1 - 0.999 ** (number + 1))
        else:
            noise, squares = 1.0, state[f"{name}.sum"].double()
        noise *= (gradient.double() - exact[name]).abs().max()
        root = squares.sqrt().reshape(squares.shape + (1,) * (gradient.dim() - squares.dim())) + EPSILON
        allowed = TENSOR_APART * theirs["weight"][name].abs().max()
        return (gradient != 0) & (RATES[self.kind] * noise / root > allowed / 2)


def exact_gradients(weights, batch):
    """Of the loss in f64."""
    model = in_double(weights)
    reference.step(model, [], batch.double())
    return reference.gradients(model)


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
    """Whole runs: rowmill's and PyTorch's in f32, PyTorch's in f64."""

    def __init__(self, rowmill, kind):
        self.rowmill, self.kind = rowmill, kind
        self.report = {}

    def run(self, orders):
        _, exact = self.torch(first_model().double(), [batch.double() for batch in orders[0]])
        theirs = [self.torch(first_model(), batches) for batches in orders]
        ours = [self.ours(order, len(orders[0])) for order in range(len(orders))]
        failures = self.first_steps(ours[0], theirs[0])
        self.report["distances"] = []
        for step, weights in exact.items():
            far, own = ([distance(run[1][step], weights) for run in runs] for runs in (ours, theirs))
            far_median, own_median = statistics.median(far), statistics.median(own)
            row = {"step": step, "rowmill": far_median, "torch": own_median, "torch_most": max(own)}
            row |= {"ratio": far_median / max(own), "ratio_of_medians": far_median / own_median}
            self.report["distances"].append(row)
            if row["ratio"] > DISTANCE_RATIO:
                failures.append(f"free run, step {step}: {row['ratio']:.2f} times as far from f64 as PyTorch")
        return failures

    def first_steps(self, ours, theirs):
        """Of the first steps of both runs, before they drift apart."""
        losses = max(abs(a - b) / b for a, b in zip(ours[0][:FREE_STEPS], theirs[0]))
        pairs = [(ours[1][FREE_STEPS][name], weight) for name, weight in theirs[1][FREE_STEPS].items()]
        weights = max(furthest(*pair) for pair in pairs)
        self.report["first_steps"] = {"losses": losses, "weights": weights}
        if self.kind == "sgd" and max(losses, weights) > FREE_APART:
            return [f"free run: after {FREE_STEPS} steps losses {losses:.2e}, weights {weights:.2e} apart"]
        return []

    def torch(self, model, batches):
        """Losses of every step, and weights every 20 steps."""
        optimizers = reference.optimizers(model, self.kind, RATES[self.kind], EPSILON)
        losses, weights = [], {}
        for number, batch in enumerate(batches, 1):
            losses.append(reference.step(model, optimizers, batch))
            if number % FREE_STEPS == 0:
                weights[number] = weights_of(model)
        return losses, weights

    def ours(self, order, steps):
        folder, config = self.rowmill.folder / f"{self.kind}-free", f"{self.kind}.toml"
        folder.mkdir()
        first, run = folder / "weights.safetensors", folder / "run"
        save_file(weights_of(first_model()), first)
        self.rowmill.run("checkpoint", "import", first, "--from", "torch", "--config", config, "--run", run)
        every = ["--set", f"training.checkpoint_every={FREE_STEPS}"]
        rows = self.rowmill.folder / f"order-{order}.csv"
        lines = self.rowmill.run("train", config, "--train", rows, "--run", run, "--resume", *every)
        losses = [line["loss"] for line in lines if line.get("event") == "interval"]
        weights = {}
        for step in range(FREE_STEPS, steps + 1, FREE_STEPS):
            out = folder / f"{step}.safetensors"
            self.rowmill.run("checkpoint", "export", run / f"checkpoints/step-{step:012}", "--to", "torch", out)
            weights[step] = load_file(out)
        shutil.rmtree(folder)
        return losses, weights


def distance(weights, exact):
    """Root of the sum of squares, over that of the weights."""
    same_names(weights, exact)
    apart = sum((weights[name].double() - exact[name]).square().sum().item() for name in exact)
    whole = sum(exact[name].square().sum().item() for name in exact)
    return (apart / whole) ** 0.5


if __name__ == "__main__":
    sys.exit(main())
