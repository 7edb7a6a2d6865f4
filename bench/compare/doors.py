"""rowmill as its users call it: the commands the comparisons run, and the files that go in and come out.

Knows nothing of PyTorch models or of what is compared.
"""
import json
import pathlib
import shlex
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = ROOT / "target/release/rowmill"
BENCH = ROOT / "target/release/rowmill-bench"


class Failed(Exception):
    """A command that ended with an error; carries what it said."""


class Rowmill:
    """The binary at `path`, run in `folder` on `threads` threads."""

    def __init__(self, path, folder, threads=None):
        self.path, self.folder = pathlib.Path(path).resolve(), pathlib.Path(folder)
        self.threads = [] if threads is None else ["--threads", str(threads)]

    def run(self, *words):
        """The JSON lines a command prints."""
        command = [str(self.path), *map(str, words), *self.threads, "--format", "json"]
        ended = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        if ended.returncode != 0:
            raise Failed(f"{shlex.join(command)}\n{ended.stderr.strip()}")
        return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith(("{", "["))]

    def version(self):
        return subprocess.run([str(self.path), "--version"], capture_output=True, text=True).stdout.strip()


def commit():
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+changes"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip()


def toml(value):
    """A TOML value of plain data; tables are written inline."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def write_job(path, job):
    """A configuration of rowmill: {section: {key: value}}."""
    text = "\n".join(
        f"[{section}]\n" + "\n".join(f"{key} = {toml(value)}" for key, value in keys.items()) + "\n"
        for section, keys in job.items()
    )
    pathlib.Path(path).write_text(text)


def write_rows(path, batches):
    """Batches as CSV: label, dense, one list of ids per table. Every f32 survives the way through text."""
    with open(path, "w") as file:
        first = batches[0]
        dense = [f"d{i}" for i in range(first.dense.shape[1])]
        file.write(",".join(["y", *dense, *(f"t{i}" for i in range(len(first.ids)))]) + "\n")
        for batch in batches:
            for sample, (label, values) in enumerate(zip(batch.labels.tolist(), batch.dense.tolist())):
                lists = [
                    " ".join(map(str, ids[starts[sample] : starts[sample + 1]].tolist()))
                    for ids, starts in zip(batch.ids, batch.starts)
                ]
                file.write(",".join([repr(label), *map(repr, values), *lists]) + "\n")
