#!/bin/sh
# Runs run.py beside this file with the Python that has PyTorch: `run.sh --help` explains the commands.
exec "${PYTHON:-python3}" "$(dirname "$0")/run.py" "$@"
