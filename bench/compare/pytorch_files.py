#!/usr/bin/env python3
"""Takes a model from rowmill to PyTorch and back, in every form that `rowmill checkpoint import` reads.

    python bench/compare/pytorch_files.py --rowmill target/release/rowmill

In a folder with `run`, `rows.txt` and `probabilities.txt` as `cargo xtask ci --full` makes them: exports the run with
its loader, scores rows with the loaded module, saves its weights as torch.save does (f32, f64 behind `module.`, within a
checkpoint), imports each, and compares the scores. A pickle that would run a program must be refused and not run.
Prints JSON; exits 1 on any difference. Needs torch and numpy, not safetensors.
"""
import argparse
import importlib.util
import itertools
import json
import os
import pathlib
import pickle
import subprocess
import sys
import zipfile

import criteo
import torch

TOLERANCE = 1e-5


class Runs:
    def __reduce__(self):
        return os.system, ("touch was_run",)


def rowmill(program, *words, code=0):
    done = subprocess.run([program, *words], capture_output=True, text=True)
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stderr}"
    return done


def module_of(path):
    spec = importlib.util.spec_from_file_location("rowmill_model", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scored(module, path, expected):
    model = module.load(path)
    dense, ids = (torch.tensor(values) for values in zip(*criteo.prepared("rows.txt")))
    offsets = torch.arange(len(ids))
    sizes = [table.shape[0] for table in model.tables]
    bags = [(ids[:, i] % size, offsets) for i, size in enumerate(sizes)]
    with torch.no_grad():
        got = model(dense.float(), bags)
    return (got - expected[: len(got)]).abs().max().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rowmill", default="rowmill")
    program = parser.parse_args().rowmill
    with open("probabilities.txt") as file:
        text = file.read()
    expected = torch.tensor([float(line) for line in text.splitlines()])
    apart, states = {}, {}
    for names in ["torch", "torchrec"]:
        path, loader = f"loaded_{names}.safetensors", "rowmill_model.py"
        rowmill(program, "checkpoint", "export", "run", "--to", names, path, "--loader", loader)
        module = module_of(loader)
        apart[names] = scored(module, path, expected)
        states[names] = module.read(path)[1]
    config = rowmill(program, "train", "dlrm-criteo-kaggle", "--set", "rows_cap=2000", "--print-config").stdout
    pathlib.Path("pytorch.toml").write_text(config)
    forms = {
        "plain.pt": lambda state: state,
        "wrapped.bin": lambda state: {f"module.{name}": value.double() for name, value in state.items()},
        "checkpoint.pt": lambda state: {"epoch": 1, "model_state_dict": state},
    }
    same = {}
    for names, (file, form) in itertools.product(states, forms.items()):
        torch.save(form(states[names]), file)
        run = f"back_{names}_{file}"
        rowmill(program, "checkpoint", "import", file, "--from", names, "--config", "pytorch.toml", "--run", run)
        same[run] = rowmill(program, "score", run, "rows.txt").stdout == text
    with zipfile.ZipFile("runs.pt", "w") as archive:
        archive.writestr("runs/data.pkl", pickle.dumps({"a": Runs()}, protocol=2))
    words = ["checkpoint", "import", "runs.pt", "--from", "torch", "--config", "pytorch.toml", "--run", "never"]
    refused = rowmill(program, *words, code=1).stderr
    is_refused = "posix.system" in refused and not os.path.exists("was_run")
    print(json.dumps({"largest_difference": apart, "same_scores": same, "refused": is_refused}))
    good = all(value < TOLERANCE for value in apart.values()) and all(same.values()) and is_refused
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
