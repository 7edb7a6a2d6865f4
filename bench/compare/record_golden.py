#!/usr/bin/env python3
"""Records the golden run of torch.optim.SparseAdam on tables that the trainer's tests follow.

    python bench/compare/record_golden.py FOLDER

Writes NAME.json (what was run, the loss of every step) and NAME.safetensors (`init.*`, `step.S.*`, `final.*`) as
testdata/dlrm_golden/README.md describes them. The tables have torch.optim.SparseAdam, everything else torch.optim.Adam.
Bags have 0 to 4 ids, ids repeat, and no sample looks up the last table in every third step. ε is large enough that a run
which puts it elsewhere ends with other weights. Needs torch, numpy, safetensors.
"""
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file

import reference

NAME = "small_bce_sparse_adam"
SHAPE = reference.Shape(dense=4, bottom=[16, 8], tables=[60, 7, 200, 3, 1], dim=8, top=[16, 1])
BATCH, STEPS, BAGS = 32, 30, (0, 4)
RATE, EPSILON, BETAS = 0.02, 1e-4, (0.9, 0.999)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    torch.sparse.check_sparse_tensor_invariants.disable()
    torch.manual_seed(7)
    model = reference.Dlrm(SHAPE)
    tables = list(model.emb_l.parameters())
    rest = [weight for name, weight in model.named_parameters() if not name.startswith("emb_l.")]
    optimizers = [
        torch.optim.SparseAdam(tables, lr=RATE, betas=BETAS, eps=EPSILON),
        torch.optim.Adam(rest, lr=RATE, betas=BETAS, eps=EPSILON),
    ]
    tensors = weights_of(model, "init")
    losses = []
    for number, batch in enumerate(reference.made_batches(SHAPE, BATCH, STEPS, BAGS)):
        if number % 3 == 0:
            batch.ids[-1], batch.starts[-1] = batch.ids[-1][:0], torch.zeros_like(batch.starts[-1])
        tensors |= batch_of(batch, f"step.{number}")
        losses.append(reference.step(model, optimizers, batch))
    assert {optimizers[0].state[weight]["step"] for weight in tables} == {STEPS}, "a table's steps are the run's"
    tensors |= weights_of(model, "final")
    save_file(tensors, folder / f"{NAME}.safetensors")
    (folder / f"{NAME}.json").write_text(json.dumps(described(losses), indent=1) + "\n")


def described(losses):
    return {
        "name": NAME,
        "torch": torch.__version__,
        "rows": SHAPE.tables,
        "dim": SHAPE.dim,
        "bottom": [SHAPE.dense, *SHAPE.bottom],
        "top": [SHAPE.top_input(), *SHAPE.top],
        "batch": BATCH,
        "max_pooling": BAGS[1],
        "steps": STEPS,
        "loss": "bce",
        "optimizer": "sparse_adam",
        "dense_optimizer": "adam",
        "learning_rate": RATE,
        "epsilon": EPSILON,
        "betas": BETAS,
        "interaction": "dot",
        "interaction_itself": False,
        "losses": losses,
    }


def weights_of(model, when):
    """Copies, the layers numbered without the activations between them."""
    found = {}
    for name, weight in model.named_parameters():
        part, number, *kind = name.split(".")
        number = int(number) if part == "emb_l" else int(number) // 2
        found[".".join([when, part.removesuffix("_l"), str(number), *kind])] = weight.detach().clone()
    return found


def batch_of(batch, step):
    found = {f"{step}.dense": batch.dense, f"{step}.label": batch.labels.unsqueeze(1).clone()}
    for table, (ids, starts) in enumerate(zip(batch.ids, batch.starts)):
        found[f"{step}.indices.{table}"] = ids.clone()
        found[f"{step}.offsets.{table}"] = starts[:-1].clone()
    return found


if __name__ == "__main__":
    main()
