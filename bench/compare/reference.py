"""The DLRM that rowmill is compared with, in plain PyTorch: model, made batches, optimizers.

Parameters have the names of facebookresearch/dlrm (`bot_l.0.weight`, `emb_l.0.weight`, `top_l.0.weight`). Knows nothing
of rowmill. Needs torch and numpy.
"""
import dataclasses

import numpy as np
import torch
from torch import nn


@dataclasses.dataclass
class Shape:
    """What a DLRM with the dot interaction is built of; `top` without its input."""

    dense: int
    bottom: list
    tables: list
    dim: int
    top: list

    def top_input(self):
        vectors = len(self.tables) + 1
        return self.dim + vectors * (vectors - 1) // 2


@dataclasses.dataclass
class Batch:
    """Dense inputs `[B, dense]`, labels `[B]`, per table all ids and `[B + 1]` starts of the samples' bags."""

    dense: torch.Tensor
    labels: torch.Tensor
    ids: list
    starts: list


    def in_order(self, samples):
        """The same samples in another order."""
        ids, starts = [], []
        for own, first in zip(self.ids, self.starts):
            bags = [own[first[sample] : first[sample + 1]] for sample in samples]
            ids.append(torch.cat(bags))
            starts.append(torch.tensor([0, *np.cumsum([len(bag) for bag in bags])]))
        return Batch(self.dense[samples], self.labels[samples], ids, starts)

    def double(self):
        return dataclasses.replace(self, dense=self.dense.double(), labels=self.labels.double())


def layers(widths, last):
    parts = []
    for i, (inputs, outputs) in enumerate(zip(widths, widths[1:])):
        parts.append(nn.Linear(inputs, outputs))
        if last or i + 2 < len(widths):
            parts.append(nn.ReLU())
    return nn.Sequential(*parts)


class Dense(nn.Module):
    """Everything but the tables."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.bot_l = layers([shape.dense, *shape.bottom], last=True)
        self.top_l = layers([shape.top_input(), *shape.top], last=False)
        vectors = len(shape.tables) + 1
        high, low = torch.tril_indices(vectors, vectors, -1)
        # Of the flattened products of all vectors: those of each with the ones before it.
        self.register_buffer("pairs", high * vectors + low, persistent=False)

    def interact(self, dense, pooled):
        vectors = torch.cat([dense, pooled], dim=1).view(len(dense), -1, self.shape.dim)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return torch.cat([dense, products.index_select(1, self.pairs)], dim=1)

    def forward(self, dense, pooled):
        """Logits, `[B]`."""
        return self.top_l(self.interact(self.bot_l(dense), pooled)).squeeze(1)


class Dlrm(Dense):
    """The whole model, its tables as EmbeddingBags with sparse gradients; in bf16 all but those under autocast."""

    def __init__(self, shape, precision="f32"):
        super().__init__(shape)
        self.precision = precision
        bag = lambda rows: nn.EmbeddingBag(rows, shape.dim, mode="sum", sparse=True, _weight=initial(rows, shape.dim))
        self.emb_l = nn.ModuleList(map(bag, shape.tables))

    def pool(self, batch):
        pooled = [bag(ids, starts[:-1]) for bag, ids, starts in zip(self.emb_l, batch.ids, batch.starts)]
        return torch.cat(pooled, dim=1)

    def loss(self, batch):
        pooled = self.pool(batch)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.precision == "bf16"):
            logits = self(batch.dense, pooled)
        return nn.functional.binary_cross_entropy_with_logits(logits.to(batch.labels.dtype), batch.labels)


def initial(rows, dim):
    return torch.empty(rows, dim).uniform_(-(rows**-0.5), rows**-0.5)


def made_batches(shape, size, count, bags=(1, 1), seed=1):
    """Uniform ids; each bag holds `bags[0]..=bags[1]` of them."""
    rng = np.random.default_rng(seed)
    batches = []
    for _ in range(count):
        lists, starts = [], []
        for rows in shape.tables:
            lengths = rng.integers(bags[0], bags[1], size, endpoint=True)
            starts.append(torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)])))
            lists.append(torch.from_numpy(rng.integers(0, rows, lengths.sum())))
        dense = torch.from_numpy(rng.random((size, shape.dense), dtype=np.float32))
        labels = torch.from_numpy((rng.random(size) < 0.25).astype(np.float32))
        batches.append(Batch(dense, labels, lists, starts))
    return batches


class RowOptimizer(torch.optim.Optimizer):
    """Updates the rows a sparse gradient touches, and only those; repeated ids are summed first."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                gradient = weight.grad.coalesce()
                self.update(weight, gradient.indices()[0], gradient.values(), group)


class RowwiseAdagrad(RowOptimizer):
    """`m += mean(g²); w −= η g / (√m + ε)`, one `m` per row."""

    def __init__(self, tables, lr, eps):
        super().__init__(tables, {"lr": lr, "eps": eps})
        for weight in tables:
            self.state[weight]["sum"] = torch.zeros(len(weight), dtype=weight.dtype)

    def update(self, weight, rows, values, group):
        sums = self.state[weight]["sum"]
        sums[rows] += values.square().mean(dim=1)
        scale = sums[rows].sqrt().add_(group["eps"]).unsqueeze(1)
        weight.index_add_(0, rows, values / scale, alpha=-group["lr"])


class RowAdam(RowOptimizer):
    """FBGEMM's Adam, with the bias correction of the run's step. torch.optim.SparseAdam puts ε elsewhere."""

    def __init__(self, tables, lr, eps, betas=(0.9, 0.999)):
        super().__init__(tables, {"lr": lr, "eps": eps, "betas": betas})
        self.steps = 0

    def step(self):
        self.steps += 1
        super().step()

    def update(self, weight, rows, values, group):
        state, (keep, keep_square) = self.state[weight], group["betas"]
        for name in ("exp_avg", "exp_avg_sq"):
            state.setdefault(name, torch.zeros_like(weight))
        mean = state["exp_avg"][rows] * keep + values * (1 - keep)
        square = state["exp_avg_sq"][rows] * keep_square + values.square() * (1 - keep_square)
        state["exp_avg"][rows], state["exp_avg_sq"][rows] = mean, square
        root = (square / (1 - keep_square**self.steps)).sqrt().add_(group["eps"])
        weight.index_add_(0, rows, mean / (1 - keep**self.steps) / root, alpha=-group["lr"])


STATES = {
    "sgd": [],
    "adagrad": ["sum"],
    "rowwise_adagrad": ["sum"],
    "adam": ["exp_avg", "exp_avg_sq"],
    "sparse_adam": ["exp_avg", "exp_avg_sq"],
}


def optimizers(model, kind, rate, epsilon=1e-8):
    """Of the tables and of everything else, which under row-wise Adagrad has Adagrad and under SparseAdam Adam."""
    tables = list(model.emb_l.parameters())
    rest = [weight for name, weight in model.named_parameters() if not name.startswith("emb_l.")]
    if kind == "sgd":
        return [torch.optim.SGD(tables, lr=rate), torch.optim.SGD(rest, lr=rate)]
    if kind == "adam":
        return [RowAdam(tables, rate, epsilon), torch.optim.Adam(rest, lr=rate, eps=epsilon)]
    if kind == "sparse_adam":
        return [torch.optim.SparseAdam(tables, lr=rate, eps=epsilon), torch.optim.Adam(rest, lr=rate, eps=epsilon)]
    dense = torch.optim.Adagrad(rest, lr=rate, eps=epsilon)
    if kind == "adagrad":
        return [torch.optim.Adagrad(tables, lr=rate, eps=epsilon), dense]
    return [RowwiseAdagrad(tables, rate, epsilon), dense]


def states(model, kind, optimizers):
    """Optimizer states by name, `WEIGHT.sum`; zeros where an optimizer has none yet."""
    found = {}
    kept = {weight: state for optimizer in optimizers for weight, state in optimizer.state.items()}
    for name, weight in model.named_parameters():
        for state in STATES[kind]:
            value = kept.get(weight, {}).get(state)
            found[f"{name}.{state}"] = torch.zeros_like(weight) if value is None else value.detach().clone()
    return found


def step(model, optimizers, batch):
    """One step; the loss before it. The gradients stay in the parameters."""
    for weight in model.parameters():
        weight.grad = None
    loss = model.loss(batch)
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    return loss.item()


def gradients(model):
    """Of the last step, dense copies by name."""
    return {name: weight.grad.to_dense().clone() for name, weight in model.named_parameters()}


def before_activations(model, batch):
    """What goes into each ReLU, `[B, width]` per layer."""
    inputs, hooks = [], []
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            hooks.append(module.register_forward_hook(lambda _, given, __: inputs.append(given[0].detach())))
    with torch.no_grad():
        model.loss(batch)
    for hook in hooks:
        hook.remove()
    return inputs
