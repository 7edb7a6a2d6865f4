#!/bin/sh
# Measures and checks rowmill on a machine that has a GPU and neither Rust nor NVRTC.
#
# On the machine that builds, `bench/gpu/pack.sh FOLDER` puts all that is needed into FOLDER. Then, on the one with the GPU:
#
#   FOLDER/run.sh [STAGE]... [--out OUT] [--dry-run]
#
# Without a stage, all of them in this order. Each is ended after 8 minutes; one that is done is not run again, and the same
# call goes on with one that was ended. OUT (default: out) then has eight files, the suite as suite.tar.gz, beside its folder.
# `--dry-run` says what would run.
#
#   device       rowmill doctor device
#   conformance  every kernel, and cuBLASLt, against the scalar oracles
#   sanitizer    the same under compute-sanitizer, where it is installed
#   goldens      the recorded runs of facebookresearch/dlrm and TorchRec
#   bandwidth    lookup and update of tables beside a copy within the GPU's memory
#   training     rowmill bench train beside PyTorch: eager, compiled, CUDA graph, FBGEMM, TorchRec
#   scaling      rowmill bench train on 1, 2, 4, 8 and 16 threads of this machine's CPU
#   times traces traces-other kernels pairs report
#                the stages of bench/collect/record.py: PyTorch models and kernels, and each antipattern with its cure's gain
#
# No GPU has run any of it yet.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
all="device conformance sanitizer goldens bandwidth training scaling times traces traces-other kernels pairs report"
limit=480
out=out
wanted=
dry=no
inside=
while [ $# -gt 0 ]; do
  case $1 in
    --out) [ $# -gt 1 ] || { echo "run.sh: --out expects a folder" >&2; exit 2; }; out=$2; shift ;;
    --dry-run) dry=yes ;;
    --inside) inside=$2; shift ;;
    --help | -h) sed -n '2,/^set -eu/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    device | conformance | sanitizer | goldens | bandwidth | training | scaling) wanted="$wanted $1" ;;
    times | traces | traces-other | kernels | pairs | report) wanted="$wanted $1" ;;
    *) echo "run.sh: expected one of $all, --out or --dry-run, got $1" >&2; exit 2 ;;
  esac
  shift
done
python=$(command -v "${PYTHON:-python3}" || true)
export ROWMILL_GPU="${ROWMILL_GPU:-0}" ROWMILL_KERNELS="$here/kernels" ROWMILL_GOLDEN="$here/goldens"

# Where and with what a record was made.
provenance() {
  echo "# $(date -u +%Y-%m-%dT%H:%M:%SZ), commit $(cat "$here/commit"), stage $1"
  echo "# $(uname -sr), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) threads"
  nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem,power.limit,mig.mode.current --format=csv,noheader \
    2>/dev/null | sed 's/^/# /' || true
}

device() {
  "$here/rowmill" doctor device --format json
}

conformance() {
  "$here/device-tests" on_the_device --test-threads=1 --nocapture
}

sanitizer() {
  if ! command -v compute-sanitizer >/dev/null; then
    echo "not run: compute-sanitizer is not installed"
    return
  fi
  for tool in memcheck racecheck synccheck; do
    compute-sanitizer --tool "$tool" --error-exitcode 1 "$here/device-tests" on_the_device --test-threads=1
  done
}

goldens() {
  "$here/train-tests" every_run_on_the_emulated_gpu --nocapture
}

bandwidth() {
  "$here/device-tests" --exact cuda::bandwidth::bandwidths --nocapture
}

training() {
  on=cuda:$ROWMILL_GPU
  for more in "" "--tf32"; do
    "$here/rowmill" bench train --config dlrm-default --device "$on" $more --format json
  done
  "$here/rowmill" bench train --config dlrm-default --device "$on" --precision bf16 --format json
  if [ -z "$python" ] || ! "$python" -c 'import torch' 2>/dev/null; then
    echo "not run: PyTorch is not installed"
    return
  fi
  "$python" "$here/bench/gpu/torch_train.py"
}

suite() {
  if [ -z "$python" ] || ! "$python" -c 'import torch' 2>/dev/null; then
    echo "not run: PyTorch is not installed"
    return
  fi
  "$python" "$here/bench/collect/record.py" --device "${ROWMILL_SUITE_DEVICE:-cuda}" --out "$out/suite" --stage "$1"
}

scaling() {
  for threads in 1 2 4 8 16; do
    [ "$threads" -le "$(nproc)" ] || { echo "not run: $threads threads, of which there are $(nproc)"; continue; }
    "$here/rowmill" bench train --config dlrm-default --threads "$threads" --format json
  done
}

# Runs one stage in this process; what it prints is its record.
if [ -n "$inside" ]; then
  case $inside in
    times | traces | traces-other | kernels | pairs | report) suite "$inside" ;;
    *) provenance "$inside"; "$inside" ;;
  esac
  exit
fi

mkdir -p "$out"
for stage in ${wanted:-$all}; do
  case $stage in
    times | traces | traces-other | kernels | pairs) file=$out/suite/.$stage.done ;;
    report) file=$out/suite.tar.gz ;;
    *) file=$out/$stage.txt ;;
  esac
  if [ -e "$file" ]; then
    echo "$stage: $file is there"
    continue
  fi
  if [ "$dry" = yes ]; then
    echo "$stage: would run, at most $limit s, into $file"
    continue
  fi
  echo "$stage ..."
  mkdir -p "$(dirname "$file")"
  status=0
  timeout -k 20 "$limit" sh "$here/run.sh" --inside "$stage" --out "$out" > "$file.part" 2>&1 || status=$?
  if [ "$status" -eq 0 ] && [ "$stage" = report ]; then
    rm "$file.part"
    tar -czf "$file.part" -C "$out" suite
  fi
  if [ "$status" -ne 0 ]; then
    tail -n 20 "$file.part" >&2
    case $status in
      3 | 124 | 137) echo "$stage: not done within its time; the same call goes on with it" >&2 ;;
      *) echo "$stage: failed with status $status; see $file.part" >&2 ;;
    esac
    exit 1
  fi
  mv "$file.part" "$file"
done
