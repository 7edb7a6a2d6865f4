#!/bin/sh
# Packs everything that bench/gpu/run.py needs on a machine that has a GPU but neither Rust nor NVRTC.
#
#   bench/gpu/pack.sh [--small] [--kernels KERNELS] FOLDER
#
# FOLDER gets package.tar.gz, run.sh and run.py. --small keeps the kernels of A100 and H100 alone (sm_80, sm_90a); without it,
# all architectures travel. KERNELS has what `cargo xtask kernels --emit` wrote; by default it is written now. Prints the command to run there. Needs what `cargo xtask kernels` needs, and binutils' strip.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
small=no kernels=
while :; do
  case ${1:-} in
    --small) small=yes; shift ;;
    --kernels) kernels=$(cd "${2:?--kernels expects a folder}" && pwd); shift 2 ;;
    *) break ;;
  esac
done
case $#:${1:-} in 1:[!-]*) ;; *) echo "pack.sh: expected [--small] [--kernels KERNELS] FOLDER" >&2; exit 2 ;; esac
mkdir -p "$1"
to=$(cd "$1" && pwd)
cd "$root"
files=$(mktemp -d)
trap 'rm -rf "$files"' EXIT
# `cargo xtask ci` has compiled everything with another profile.
profile=${ROWMILL_PROFILE:-release}
cargo build --profile "$profile" -p rowmill -p bench
mkdir "$files/kernels"
if [ -n "$kernels" ]; then
  cp "$kernels"/*.cubin "$files/kernels/"
else
  cargo xtask kernels --profile "$profile" --emit "$files/kernels"
fi
# The newest of the test programs that cargo names. The whole workspace: alone, the crate would be built with other features.
program() {
  cargo test --profile "$profile" --workspace --test it --no-run --message-format=json |
    sed -n "s|.*crates/$1/tests/it/main.rs.*\"executable\":\"\([^\"]*/it-[^\"]*\)\".*|\1|p" | tail -n 1
}
strip -o "$files/device-tests" "$(program device)"
strip -o "$files/train-tests" "$(program train)"
strip -o "$files/rowmill" "target/$profile/rowmill"
strip -o "$files/rowmill-bench" "target/$profile/rowmill-bench"
if [ "$small" = yes ]; then
  find "$files/kernels" -name '*.cubin' ! -name '*-sm_80-*' ! -name '*-sm_90a-*' -delete
fi
mkdir -p "$files/bench/compare" "$files/goldens"
cp -r bench/gpu bench/collect "$files/bench/"
cp bench/compare/reference.py "$files/bench/compare/"
cp testdata/dlrm_golden/*.json testdata/dlrm_golden/*.safetensors "$files/goldens/"
git describe --always --dirty --abbrev=40 > "$files/commit"
tar -C "$files" -czf "$to/package.tar.gz" .
cp bench/gpu/run.sh bench/gpu/run.py "$to/"
case $to in "$root"/*) shown=${to#"$root"/} ;; *) shown=$to ;; esac
bytes=$(wc -c < "$to/package.tar.gz")
limit=$((56 * 1024 * 1024))
echo "$shown: $((bytes / 1024 / 1024)).$((bytes / 104858 % 10)) MiB"
if [ "$small" = yes ] && [ "$bytes" -gt "$limit" ]; then
  echo "pack.sh: expected at most 56 MiB, got $bytes bytes" >&2
  exit 1
fi
echo "Carry $shown to the machine with the GPU. Run there, with a limit of 270 s each:"
echo "  $shown/run.sh quick --out quick"
echo "  $shown/run.sh second --out second"
