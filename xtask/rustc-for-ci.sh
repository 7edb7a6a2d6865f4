#!/usr/bin/env bash
# Cargo starts the compiler of the workspace's crates through this script. With the profile `ci`,
# tests are compiled without optimization, because they hardly compute themselves, except those of
# `device`, and otherwise take a third of the time of compilation. A profile of cargo cannot tell a
# library from its tests. (A plain `sh` would drop the variable CARGO_BIN_EXE_rowmill-agent because
# of its hyphen.)
case "$*" in
*" crates/device/"*) exec "$@" ;;
*" --test "*/ci/deps*) exec "$@" -C opt-level=0 -C debug-assertions=off ;;
*) exec "$@" ;;
esac
