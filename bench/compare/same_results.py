"""Whether two builds of rowmill compute the same numbers on all recordings of a folder.

    python bench/compare/same_results.py BEFORE AFTER [--fixtures ../shared/data] [--jobs 2]

Runs every verb of `trace` and the verbs of `predict` that need nothing but a recording, with `--format json`, on each recording with
both programs, and compares all numbers in their order. Texts and the names of keys may differ, because wording may change: verbs whose
texts differ are only counted. Then trains ten small models with both and compares the bytes of their checkpoints. Prints each verb and
recording whose numbers or exit status differ and each model whose weights do, and exits with 1 if there is one.
"""
import argparse
import hashlib
import itertools
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TRACE = ["breakdown", "idle", "kernels", "ops", "overlap", "launches", "queue", "memory", "steps", "collectives", "stragglers",
         "critical-path", "findings", "doctor"]
PREDICT = ["calibrate --overheads", "next", "next --by finding", "evaluate"]
VERBS = [("trace", verb) for verb in TRACE] + [("predict", *verb.split()) for verb in PREDICT]
MODELS = [[], ["training.precision=bf16"], ["batch_size=97"], *([f"optimizer.sparse.kind={kind}"] for kind in
          ("sgd", "rowwise_adagrad", "sparse_adam", "adam", "lamb")), ["ranks=2"], ["ranks=4"]]
LARGEST = 60_000_000


def recordings(root):
    """Each recording, and each folder of several, which are the ranks of a job."""
    files = sorted(path for path in (root / "traces").rglob("*") if path.suffix in (".json", ".gz", ".tgz"))
    parents = [path.parent for path in files]
    jobs = sorted({folder for folder in parents if parents.count(folder) > 1})
    cases = sorted((root / "cases").rglob("*.json*"))
    return jobs + [path for path in files + cases if path.stat().st_size < LARGEST]


def numbers(value):
    """All numbers and truth values of a document, in their order."""
    if isinstance(value, dict):
        return itertools.chain.from_iterable(map(numbers, value.values()))
    if isinstance(value, list):
        return itertools.chain.from_iterable(map(numbers, value))
    return [] if isinstance(value, str) else [value]


def answer(program, verb, path):
    """Exit status, numbers and text of a command. Documents that stand one to a line are read as a list."""
    done = subprocess.run([program, *verb, str(path), "--format", "json"], capture_output=True, text=True, timeout=600)
    try:
        document = json.loads(done.stdout)
    except ValueError:
        lines = done.stdout.splitlines()
        try:
            document = [json.loads(line) for line in lines]
        except ValueError:
            document = lines
    return done.returncode, list(numbers(document)), done.stdout


def weights(program, settings):
    """Digest of the tensors that a program writes for a small model."""
    ranks = [setting.split("=")[1] for setting in settings if setting.startswith("ranks=")]
    options = [part for setting in settings if not setting.startswith("ranks=") for part in ("--set", setting)]
    options += ["--ranks", *ranks] if ranks else []
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [program, "train", "adult-income", "--synthetic", "8192", "--run", str(run), *options]
        subprocess.run(command, check=True, capture_output=True, timeout=600)
        files = sorted((run / "checkpoints").rglob("*.safetensors"))
        assert files, f"{' '.join(command)} wrote no checkpoint"
        return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def compare(task, before, after):
    verb, path = task
    old, new = answer(before, verb, path), answer(after, verb, path)
    name = f"{' '.join(verb):22} {path}"
    if old[0] != new[0]:
        return "differs", f"{name}: exit status {old[0]}, now {new[0]}"
    if old[1] != new[1]:
        pairs = [pair for pair in itertools.zip_longest(old[1], new[1]) if pair[0] != pair[1]]
        return "differs", f"{name}: {len(pairs)} of {len(old[1])} numbers, first {pairs[0][0]}, now {pairs[0][1]}"
    return ("same", None) if old[2] == new[2] else ("worded", name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--fixtures", type=Path, default=Path("../shared/data"))
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    tasks = list(itertools.product(VERBS, recordings(args.fixtures)))
    counts = {"same": 0, "worded": 0, "differs": 0}
    with ThreadPoolExecutor(args.jobs) as pool:
        for kind, line in pool.map(lambda task: compare(task, args.before, args.after), tasks):
            counts[kind] += 1
            if kind == "differs":
                print(line)
    print(f"{len(tasks)} commands: {counts['same']} print the same bytes, {counts['worded']} the same numbers in other words, "
          f"{counts['differs']} differ")
    other = [settings for settings in MODELS if weights(args.before, settings) != weights(args.after, settings)]
    print(f"{len(MODELS)} models: {len(MODELS) - len(other)} with the same weights", *(f"differs: {settings}" for settings in other), sep="\n")
    return int(counts["differs"] > 0 or bool(other))


if __name__ == "__main__":
    sys.exit(main())
