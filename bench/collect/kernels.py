"""The kernels that microbench.py times, each with the shapes it is swept over. Knows neither clocks nor files.

A sweep is a list of dictionaries; `make(shape, dtype, device)` gives a function of the repetition's number.
"""
import dataclasses
import itertools
import math

import torch
from torch.nn import functional as F

FLOATS = ("float32", "bfloat16")
# TF32: the same tensors as float32, their products rounded to 10 bits on the tensor cores; a GPU's affair.
PRODUCTS = ("float32", "tf32", "bfloat16")
# Ids of a lookup change from one repetition to the next, as they do in training.
ID_SETS = 4


@dataclasses.dataclass(frozen=True)
class Kernel:
    """`only`: the kind of device it is for, None for both. `wall`: the wall clock is what counts, not the device's."""

    name: str
    sweep: object
    make: object
    dtypes: tuple = ("float32",)
    only: str | None = None
    wall: bool = False
    counted: object = None

    def shapes(self, bytes_most):
        return [shape for shape in self.sweep() if self.counted is None or self.counted(shape) <= bytes_most]


def grid(**axes):
    return [dict(zip(axes, values)) for values in itertools.product(*axes.values())]


def powers(first, last, step=1):
    return [1 << exponent for exponent in range(first, last + 1, step)]


def tensor(device, dtype, *sizes):
    bits = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    return torch.randn(*sizes, device=device.torch, dtype=bits)


def floats(*names):
    """Bytes of one float32 tensor of these sizes."""
    return lambda shape: 4 * math.prod(shape[name] for name in names)


# ---- products ----


def gemm(shape, dtype, device):
    left, right = tensor(device, dtype, shape["m"], shape["k"]), tensor(device, dtype, shape["k"], shape["n"])
    return lambda i: torch.mm(left, right)


def bmm(shape, dtype, device):
    vectors = tensor(device, dtype, shape["b"], shape["t"], shape["d"])
    return lambda i: torch.bmm(vectors, vectors.transpose(1, 2))


# ---- embeddings ----


def lookups(shape, device):
    """(weights of all tables `[T·E, D]`, several sets of ids `[T·B·L]`, starts `[T·B]`)."""
    tables, rows = shape["t"], shape["e"]
    weight = tensor(device, "float32", tables * rows, shape["d"])
    each = shape["b"] * shape["l"]
    first = rows * torch.arange(tables, device=device.torch).repeat_interleave(each)
    ids = [torch.randint(rows, (tables * each,), device=device.torch) + first for _ in range(ID_SETS)]
    return weight, ids, torch.arange(0, tables * each, shape["l"], device=device.torch)


def embedding_forward(shape, dtype, device):
    weight, ids, starts = lookups(shape, device)
    return lambda i: F.embedding_bag(ids[i % ID_SETS], weight, starts, mode="sum")


def embedding_backward(shape, dtype, device):
    """The sparse gradient and its SGD update, as one step of training does it."""
    weight, ids, starts = lookups(shape, device)
    weight.requires_grad_()
    outputs = [F.embedding_bag(one, weight, starts, mode="sum", sparse=True) for one in ids]
    gradient = torch.ones_like(outputs[0])

    def run(i):
        (sparse,) = torch.autograd.grad(outputs[i % ID_SETS], weight, gradient, retain_graph=True)
        weight.data.add_(sparse, alpha=-0.01)

    return run


def embedding_bytes(shape):
    rows = shape["t"] * shape["e"] * shape["d"]
    looked_up = shape["t"] * shape["b"] * shape["l"]
    return 4 * rows + ID_SETS * looked_up * (8 + 4 * shape["d"]) * 2


def embeddings():
    return grid(e=[1_000, 100_000, 1_000_000], t=[1, 8, 26], b=powers(7, 12), l=[1, 10, 100], d=[32, 64, 128])


# ---- memory ----


def concat(shape, dtype, device):
    parts = [tensor(device, dtype, shape["b"], shape["d"]) for _ in range(shape["t"])]
    return lambda i: torch.cat(parts, dim=1)


def transpose(shape, dtype, device):
    given = tensor(device, dtype, shape["b"], shape["t"], shape["d"])
    return lambda i: given.transpose(1, 2).contiguous()


def tril(shape, device):
    size = shape["t"]
    products = tensor(device, "float32", shape["b"], size, size)
    return products, *torch.tril_indices(size, size, -1, device=device.torch)


def tril_forward(shape, dtype, device):
    products, high, low = tril(shape, device)
    return lambda i: products[:, high, low]


def tril_backward(shape, dtype, device):
    products, high, low = tril(shape, device)
    output = products.requires_grad_()[:, high, low]
    gradient = torch.ones_like(output)
    return lambda i: torch.autograd.grad(output, products, gradient, retain_graph=True)


def copy(source, target):
    return lambda i: target.copy_(source, non_blocking=True)


def host_tensor(shape):
    return torch.ones(shape["bytes"], dtype=torch.uint8)


def device_tensor(shape, device):
    return torch.ones(shape["bytes"], dtype=torch.uint8, device=device.torch)


def to_device_pinned(shape, dtype, device):
    return copy(device.pinned(host_tensor(shape)), device_tensor(shape, device))


def to_device_pageable(shape, dtype, device):
    return copy(host_tensor(shape), device_tensor(shape, device))


def to_host_pinned(shape, dtype, device):
    return copy(device_tensor(shape, device), device.pinned(host_tensor(shape)))


def to_host_pageable(shape, dtype, device):
    return copy(device_tensor(shape, device), host_tensor(shape))


def on_device(shape, dtype, device):
    return copy(device_tensor(shape, device), device_tensor(shape, device))


def copies():
    return grid(bytes=powers(8, 28))


def latencies():
    return grid(bytes=powers(2, 24, 2))


# ---- element by element, norms, convolutions ----


def relu(shape, dtype, device):
    given = tensor(device, dtype, shape["n"])
    return lambda i: torch.relu(given)


def add(shape, dtype, device):
    left, right = tensor(device, dtype, shape["n"]), tensor(device, dtype, shape["n"])
    return lambda i: left + right


def sigmoid(shape, dtype, device):
    given = tensor(device, dtype, shape["n"])
    return lambda i: torch.sigmoid(given)


def softmax(shape, dtype, device):
    given = tensor(device, dtype, shape["rows"], shape["columns"])
    return lambda i: torch.softmax(given, dim=1)


def layer_norm(shape, dtype, device):
    given = tensor(device, dtype, shape["rows"], shape["columns"])
    return lambda i: F.layer_norm(given, (shape["columns"],))


def batch_norm(shape, dtype, device):
    given = tensor(device, dtype, shape["b"], shape["c"], shape["hw"], shape["hw"])
    mean, variance = torch.zeros(shape["c"], device=device.torch), torch.ones(shape["c"], device=device.torch)
    return lambda i: F.batch_norm(given, mean, variance, training=True)


def batch_norm_backward(shape, dtype, device):
    given = tensor(device, dtype, shape["b"], shape["c"], shape["hw"], shape["hw"]).requires_grad_()
    mean, variance = torch.zeros(shape["c"], device=device.torch), torch.ones(shape["c"], device=device.torch)
    output = F.batch_norm(given, mean, variance, training=True)
    gradient = torch.ones_like(output)
    return lambda i: torch.autograd.grad(output, given, gradient, retain_graph=True)


def conv2d_forward(shape, dtype, device):
    """A convolution whose window may be rectangular and whose stride may exceed 1."""
    images = tensor(device, dtype, shape["b"], shape["c"], shape["h"], shape["w"])
    weight = tensor(device, dtype, shape["k"], shape["c"], shape["rh"], shape["rw"])
    stride, padding = shape["stride"], (shape["ph"], shape["pw"])
    return lambda i: F.conv2d(images, weight, stride=stride, padding=padding)


def conv2d_shapes():
    """Layers of ResNet-50 and Inception-V3 that are not 3 x 3 with stride 1."""
    layers = [
        # channels in and out, height and width, window, stride, padding
        (3, 64, 224, 224, 7, 7, 2, 3, 3), (64, 256, 56, 56, 1, 1, 1, 0, 0), (256, 64, 56, 56, 1, 1, 1, 0, 0),
        (256, 512, 56, 56, 1, 1, 2, 0, 0), (128, 128, 56, 56, 3, 3, 2, 1, 1), (512, 128, 28, 28, 1, 1, 1, 0, 0),
        (512, 1024, 28, 28, 1, 1, 2, 0, 0), (256, 256, 28, 28, 3, 3, 2, 1, 1), (1024, 256, 14, 14, 1, 1, 1, 0, 0),
        (1024, 2048, 14, 14, 1, 1, 2, 0, 0), (512, 512, 14, 14, 3, 3, 2, 1, 1), (512, 2048, 7, 7, 1, 1, 1, 0, 0),
        (3, 32, 299, 299, 3, 3, 2, 0, 0), (32, 32, 149, 149, 3, 3, 1, 0, 0), (48, 64, 35, 35, 5, 5, 1, 2, 2),
        (288, 384, 35, 35, 3, 3, 2, 0, 0), (128, 128, 17, 17, 1, 7, 1, 0, 3), (128, 192, 17, 17, 7, 1, 1, 3, 0),
        (160, 160, 17, 17, 1, 7, 1, 0, 3), (192, 192, 17, 17, 7, 1, 1, 3, 0), (192, 320, 17, 17, 3, 3, 2, 0, 0),
        (384, 384, 8, 8, 1, 3, 1, 0, 1), (384, 384, 8, 8, 3, 1, 1, 1, 0), (2048, 320, 8, 8, 1, 1, 1, 0, 0),
    ]
    names = ("c", "k", "h", "w", "rh", "rw", "stride", "ph", "pw")
    return [{"b": batch, **dict(zip(names, layer))} for batch in (4, 16, 64) for layer in layers]


def conv_forward(shape, dtype, device):
    images = tensor(device, dtype, shape["b"], shape["c"], shape["hw"], shape["hw"])
    weight = tensor(device, dtype, shape["k"], shape["c"], shape["r"], shape["r"])
    return lambda i: F.conv2d(images, weight, padding=shape["r"] // 2)


def conv_backward(shape, dtype, device):
    """Of images and weights."""
    images = tensor(device, dtype, shape["b"], shape["c"], shape["hw"], shape["hw"]).requires_grad_()
    weight = tensor(device, dtype, shape["k"], shape["c"], shape["r"], shape["r"]).requires_grad_()
    output = F.conv2d(images, weight, padding=shape["r"] // 2)
    gradient = torch.ones_like(output)
    return lambda i: torch.autograd.grad(output, (images, weight), gradient, retain_graph=True)


def conv_shapes():
    return grid(b=[4, 16, 64], c=[64, 256], k=[64, 256], hw=[7, 14, 28, 56], r=[1, 3])


def conv_bytes(shape):
    return 16 * shape["b"] * (shape["c"] + shape["k"]) * shape["hw"] ** 2


# ---- overheads ----


def launch(shape, dtype, device):
    """A kernel on one element: what is left is the host's call."""
    one = tensor(device, dtype, 1)
    return lambda i: one.add_(1.0)


def interactions():
    return grid(b=powers(7, 13), t=[9, 27, 65], d=[32, 64, 128])


def elements():
    return grid(n=powers(10, 27))


def tables():
    return grid(rows=powers(8, 16, 2), columns=powers(6, 12, 2))


KERNELS = (
    Kernel("embedding_forward", embeddings, embedding_forward, counted=embedding_bytes),
    Kernel("embedding_backward", embeddings, embedding_backward, counted=embedding_bytes),
    Kernel("gemm", lambda: grid(m=powers(7, 13), n=powers(5, 13, 2), k=powers(4, 13)), gemm, PRODUCTS,
           counted=lambda shape: 4 * (shape["m"] * shape["n"] + shape["k"] * (shape["m"] + shape["n"]))),
    Kernel("bmm", interactions, bmm, PRODUCTS, counted=floats("b", "t", "d")),
    Kernel("concat", interactions, concat, counted=floats("b", "t", "d")),
    Kernel("transpose", interactions, transpose, counted=floats("b", "t", "d")),
    Kernel("tril_forward", lambda: grid(b=powers(7, 13), t=[9, 27, 65]), tril_forward, counted=floats("b", "t", "t")),
    Kernel("tril_backward", lambda: grid(b=powers(7, 13), t=[9, 27, 65]), tril_backward, counted=floats("b", "t", "t")),
    Kernel("relu", elements, relu, FLOATS, counted=floats("n")),
    Kernel("add", elements, add, FLOATS, counted=floats("n")),
    Kernel("sigmoid", elements, sigmoid, counted=floats("n")),
    Kernel("softmax", tables, softmax, FLOATS, counted=floats("rows", "columns")),
    Kernel("layer_norm", tables, layer_norm, FLOATS, counted=floats("rows", "columns")),
    Kernel("batch_norm", lambda: grid(b=[4, 16, 64], c=[64, 256, 1024], hw=[7, 14, 28, 56]), batch_norm,
           counted=floats("b", "c", "hw", "hw")),
    Kernel("batch_norm_backward", lambda: grid(b=[4, 16, 64], c=[64, 256, 1024], hw=[7, 14, 28, 56]),
           batch_norm_backward, counted=floats("b", "c", "hw", "hw")),
    Kernel("conv2d_forward", conv2d_shapes, conv2d_forward, FLOATS,
           counted=lambda shape: 16 * shape["b"] * (shape["c"] + shape["k"]) * shape["h"] * shape["w"]),
    Kernel("conv_forward", conv_shapes, conv_forward, FLOATS, counted=conv_bytes),
    Kernel("conv_backward", conv_shapes, conv_backward, FLOATS, counted=conv_bytes),
    Kernel("memcpy_to_device_pinned", copies, to_device_pinned, ("uint8",), "cuda", counted=lambda one: one["bytes"]),
    Kernel("memcpy_to_device_pageable", copies, to_device_pageable, ("uint8",), "cuda",
           counted=lambda one: one["bytes"]),
    Kernel("memcpy_to_host_pinned", copies, to_host_pinned, ("uint8",), "cuda", counted=lambda one: one["bytes"]),
    Kernel("memcpy_to_host_pageable", copies, to_host_pageable, ("uint8",), "cuda", counted=lambda one: one["bytes"]),
    Kernel("memcpy_on_device", copies, on_device, ("uint8",), counted=lambda one: one["bytes"]),
    Kernel("launch", lambda: [{"n": 1}], launch),
    Kernel("launch_latency", lambda: [{"n": 1}], launch, only="cuda", wall=True),
    Kernel("copy_latency_to_device_pinned", latencies, to_device_pinned, ("uint8",), "cuda", True),
    Kernel("copy_latency_to_device_pageable", latencies, to_device_pageable, ("uint8",), "cuda", True),
    Kernel("copy_latency_to_host_pinned", latencies, to_host_pinned, ("uint8",), "cuda", True),
    Kernel("copy_latency_to_host_pageable", latencies, to_host_pageable, ("uint8",), "cuda", True),
)
