#!/bin/sh
# Stages for a machine that has a GPU and neither Rust nor NVRTC. Prepare on the machine that builds:
#
#   cargo xtask kernels --emit carried/kernels
#   cp "$(cargo test --release -p device --test it --no-run --message-format=json |
#         sed -n 's/.*"executable":"\([^"]*\/it-[^"]*\)".*/\1/p')" carried/conformance
#   cp bench/gpu/run.sh target/release/rowmill carried/
#
# Then, there: carried/run.sh [STAGE] [OUT]. Without a stage, all of them, each once: a stage that has left
# its file in OUT (default: out) is not run again.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
stages=${1:-device conformance sanitizer}
out=${2:-out}
mkdir -p "$out"

# Which GPU, and its driver.
device() {
  "$here/rowmill" doctor device --format json
}

# Every kernel against its scalar oracle, byte for byte.
conformance() {
  ROWMILL_GPU=0 ROWMILL_KERNELS="$here/kernels" "$here/conformance" on_the_device --test-threads=1
}

# The same under compute-sanitizer, where it is installed.
sanitizer() {
  if ! command -v compute-sanitizer >/dev/null; then
    echo "not run: compute-sanitizer is not installed"
    return
  fi
  for tool in memcheck racecheck synccheck; do
    ROWMILL_GPU=0 ROWMILL_KERNELS="$here/kernels" compute-sanitizer --tool "$tool" --error-exitcode 1 \
      "$here/conformance" on_the_device --test-threads=1
  done
}

for stage in $stages; do
  case $stage in
    device | conformance | sanitizer) ;;
    *) echo "run.sh: expected device, conformance or sanitizer, got $stage" >&2; exit 2 ;;
  esac
  if [ -e "$out/$stage.txt" ]; then
    echo "$stage: $out/$stage.txt is there"
    continue
  fi
  echo "$stage ..."
  if "$stage" > "$out/$stage.part" 2>&1; then
    mv "$out/$stage.part" "$out/$stage.txt"
  else
    cat "$out/$stage.part" >&2
    echo "$stage: failed; see $out/$stage.part" >&2
    exit 1
  fi
done
