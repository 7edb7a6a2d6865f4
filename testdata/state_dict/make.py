"""Writes the state dicts beside it, as `torch.save` of PyTorch 2.14.1 does: python make.py

A DLRM of facebookresearch/dlrm's names with 2 numbers, a bottom MLP 3-2, one table of 4 rows and a top MLP 2-1.
Value i of every tensor is (i + 1) / 8, which all formats hold exactly.
"""
import collections
import pathlib

import torch

SHAPES = {
    "emb_l.0.weight": (4, 2),
    "bot_l.0.weight": (3, 2),
    "bot_l.0.bias": (3,),
    "bot_l.2.weight": (2, 3),
    "bot_l.2.bias": (2,),
    "top_l.0.weight": (2, 3),
    "top_l.0.bias": (2,),
    "top_l.2.weight": (1, 2),
    "top_l.2.bias": (1,),
}
HERE = pathlib.Path(__file__).parent


def tensor(shape, dtype=torch.float32):
    count = torch.Size(shape).numel()
    return (torch.arange(1, count + 1, dtype=dtype) / 8).reshape(shape)


def state(dtype=torch.float32, prefix=""):
    return collections.OrderedDict((prefix + name, tensor(shape, dtype)) for name, shape in SHAPES.items())


plain = state()
torch.save(plain, HERE / "plain.pt")
torch.save(state(torch.float64, "module.model."), HERE / "wide_wrapped.bin")
torch.save({"epoch": 3, "state_dict": state(torch.bfloat16), "lr": 0.1}, HERE / "checkpoint.pt")
# A tensor that is no weight stands beside the entry of the model, before it.
torch.save({"rng": plain["emb_l.0.weight"], "model": plain, "epoch": 3}, HERE / "beside.pt")
parameters = {name: torch.nn.Parameter(value) for name, value in plain.items()}
# Two tensors of one storage, the second not at its beginning.
storage = torch.cat([torch.zeros(5), plain["emb_l.0.weight"].flatten(), torch.ones(3)])
parameters["emb_l.0.weight"] = storage[5:13].reshape(4, 2)
torch.save(parameters, HERE / "parameters.pt")
strided = dict(plain)
strided["bot_l.0.weight"] = tensor((2, 3)).T
torch.save(strided, HERE / "strided.pt")
torch.save(torch.nn.Linear(1, 1), HERE / "module.pt")
torch.save(plain, HERE / "old.pt", _use_new_zipfile_serialization=False)
