#!/bin/sh
# Puts all that bench/gpu/run.sh needs on a machine without Rust and NVRTC into a folder.
#
#   bench/gpu/pack.sh FOLDER
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
[ $# -eq 1 ] || { echo "pack.sh: expected a folder" >&2; exit 2; }
mkdir -p "$1"
to=$(cd "$1" && pwd)
cd "$root"
cargo build --release -p rowmill
cargo xtask kernels --emit "$to/kernels"
# The newest of the test programs that cargo names.
program() {
  cargo test --release -p "$1" --test it --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*\/it-[^"]*\)".*/\1/p' | tail -n 1
}
cp "$(program device)" "$to/device-tests"
cp "$(program train)" "$to/train-tests"
cp target/release/rowmill bench/gpu/run.sh "$to/"
mkdir -p "$to/bench/gpu" "$to/bench/compare" "$to/goldens"
cp bench/gpu/torch_train.py "$to/bench/gpu/"
cp bench/compare/reference.py "$to/bench/compare/"
cp -r bench/collect "$to/bench/"
cp testdata/dlrm_golden/* "$to/goldens/"
git rev-parse HEAD > "$to/commit"
echo "$to is ready: carry it over and call run.sh there"
