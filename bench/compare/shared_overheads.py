"""Makes the overheads of hosts that are shipped with rowmill, in crates/predict/overheads.

Each file holds the host's overheads of one public recording, or of several recordings of one
machine: `rowmill predict calibrate --host-only`, merged and compressed. The recordings of rowmill's
own suite on an H100 have step times without the profiler, so the profiler's cost is subtracted.

    python3 bench/compare/shared_overheads.py --rowmill target/release/rowmill --data ../shared/data
"""

import argparse
import gzip
import json
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUITE = ROOT / "bench/record/nvidia-h100-80gb-hbm3/partial-suite/collect"
# Name of the overheads, with the recordings below the folder `traces` of the public data.
RECORDINGS = {
    "v100-dlrm": ["dlrm8/dlrm_kineto.tar.gz"],
    "v100-compiled": ["trace_diff/test.json.gz"],
    "v100-resnet": [
        "modern/resnet50_2021_workers0.json.gz",
        "modern/resnet50_2021_workers4.json.gz",
    ],
    "a100-dlrm": ["trace_diff/control.json.gz"],
    "a100-full-queue": ["modern/a100_full_queue.json.gz"],
    "h100-timesformer": ["modern/h100_timesformer.json.gz"],
    "mi300x-owlv2": ["modern/mi300_owlv2.json.gz"],
    "mi300x-resnet": ["modern/mi300_resnet_act_checkpoint.json.gz"],
    "rtx2080ti-linear": ["linear/linear_kineto.json.gz"],
}


def calibrate(rowmill, recordings, output):
    """Merges the samples of recordings, given as (path, unrecorded ns or None), into one file."""
    with tempfile.TemporaryDirectory() as folder:
        merged = None
        for number, (path, unrecorded) in enumerate(recordings):
            target = pathlib.Path(folder) / f"{number}.json"
            words = [rowmill, "predict", "calibrate", path, "--output", target]
            if unrecorded:
                words += ["--unrecorded", unrecorded]
            if merged:
                words += ["--merge", merged, "--force"]
            if number + 1 == len(recordings):
                words.append("--host-only")
            subprocess.run([str(word) for word in words], check=True)
            merged = target
        with open(output, "wb") as file:
            # Neither a time nor a name is stored, so that equal input gives equal bytes.
            with gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
                packed.write(merged.read_bytes())


def suite():
    """Lists the recordings of the suite, with the median time of a step without the profiler."""
    for path in sorted(SUITE.glob("*/kineto.json.gz")):
        times = path.with_name("times.json")
        if times.exists():
            yield path, int(1000 * json.loads(times.read_text())["step_us"]["median"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rowmill", default="target/release/rowmill")
    parser.add_argument("--data", default=str(ROOT / "../shared/data"), type=pathlib.Path)
    parser.add_argument("--output", default=ROOT / "crates/predict/overheads", type=pathlib.Path)
    options = parser.parse_args()
    for name, paths in RECORDINGS.items():
        recordings = [(options.data / "traces" / path, None) for path in paths]
        calibrate(options.rowmill, recordings, options.output / f"{name}.json.gz")
    calibrate(options.rowmill, list(suite()), options.output / "h100-suite.json.gz")


if __name__ == "__main__":
    main()
