#!/usr/bin/env python3
"""Sets up the Python environment that the comparisons with PyTorch, TorchRec and FBGEMM run in.

    python3 bench/compare/setup.py [--dry-run] [FOLDER]

FOLDER is a virtual environment, made where it is missing (default: target/venv-compare of this repository). What is
already there in the right version is left alone, so a second run downloads nothing. Says what is downloaded and how
large it is before it starts, refuses a disk that is too small, and at the end imports what the comparisons import.
`--dry-run` stops after the sizes. Versions: requirements.txt beside this file. Needs Python 3.11 on x86-64 Linux.
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements.txt"
DEFAULT = HERE.parents[1] / "target/venv-compare"
# 3.0 GB of wheels unpack to 5.5; pip holds all of them in its temporary folder until they are installed.
KEPT_PER_DOWNLOAD = 1.8
DISK_PER_DOWNLOAD = 1 + KEPT_PER_DOWNLOAD
LARGE = 50e6

# What the comparisons use, each imported and called once in the new environment.
CHECK = """
import importlib.metadata as metadata
import sys
import numpy, safetensors.torch, torch
print("torch", torch.__version__, "numpy", numpy.__version__, "safetensors", metadata.version("safetensors"))
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen as Tables
place = (EmbeddingLocation.HOST, ComputeDevice.CPU)
tables = Tables([(10, 8, *place)], optimizer=EmbOptimType.EXACT_SGD, learning_rate=0.5, device=torch.device("cpu"))
tables.init_embedding_weights_uniform(1.0, 1.0)
pooled = tables(torch.tensor([1, 1, 2]), torch.tensor([0, 2, 3]))
pooled.sum().backward()
assert pooled.detach().sum().item() == 24.0, pooled
assert tables.split_embedding_weights()[0][1].tolist() == [0.0] * 8, "the fused update"
print("fbgemm-gpu-cpu", metadata.version("fbgemm-gpu-cpu"), "one table, one fused update")
import torchrec
from torchrec.models.dlrm import DLRM
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
print("torchrec", metadata.version("torchrec"))
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=DEFAULT)
    parser.add_argument("--dry-run", action="store_true", help="say what would be downloaded and stop")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    if (sys.version_info.major, sys.version_info.minor) != (3, 11):
        sys.exit(f"setup.py: expected Python 3.11, got {sys.version.split()[0]}: the wheels differ by version")
    python = folder / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    wheels = missing(python)
    total = announce(wheels, folder)
    if arguments.dry_run:
        return
    if wheels:
        free = shutil.disk_usage(folder).free
        if free < DISK_PER_DOWNLOAD * total:
            sys.exit(f"setup.py: {folder}: {free / 1e9:.1f} GB are free, {DISK_PER_DOWNLOAD * total / 1e9:.1f} needed")
        pip(python, "install", "--no-deps", "-r", str(REQUIREMENTS))
    print("checking the imports:")
    subprocess.run([str(python), "-W", "ignore", "-c", CHECK], check=True, cwd=folder)
    print(f"ready: {python}")


def pip(python, *words):
    subprocess.run([str(python), "-m", "pip", "--disable-pip-version-check", "-q", *words], check=True)


def missing(python):
    """(name, version, bytes) of each wheel that pip would download."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        pip(python, "install", "--no-deps", "--dry-run", "--report", report.name, "-r", str(REQUIREMENTS))
        wheels = json.load(report)["install"]
    return [
        (wheel["metadata"]["name"], wheel["metadata"]["version"], size_of(wheel["download_info"]["url"]))
        for wheel in wheels
    ]


def size_of(url):
    if url.startswith("file:"):
        return 0
    with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=60) as answer:
        return int(answer.headers["Content-Length"])


def announce(wheels, folder):
    if not wheels:
        print(f"{folder}: every package is there in the pinned version, nothing to download")
        return 0
    total = sum(size for _, _, size in wheels)
    print(f"{folder}: {len(wheels)} packages to download, {total / 1e9:.2f} GB", flush=True)
    for name, version, size in sorted(wheels, key=lambda wheel: -wheel[2]):
        if size >= LARGE:
            print(f"  {name} {version}: {size / 1e6:.0f} MB")
    kept, needed = KEPT_PER_DOWNLOAD * total / 1e9, DISK_PER_DOWNLOAD * total / 1e9
    print(f"on disk about {kept:.1f} GB, {needed:.1f} GB while it is installed", flush=True)
    return total


if __name__ == "__main__":
    main()
