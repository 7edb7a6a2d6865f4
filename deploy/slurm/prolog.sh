#!/bin/sh
# Slurm prolog (Prolog=, as root): notes for rowmill-agent and dcgm-exporter who holds which GPU.
folder=${ROWMILL_JOBS:-/run/rowmill-jobs}
mkdir -p "$folder" && chmod 755 "$folder"
for gpu in $(printf '%s' "${SLURM_JOB_GPUS:-}" | tr ',' ' '); do
    case $gpu in *[!0-9-]*) continue ;; esac
    printf '%s %s\n' "$SLURM_JOB_ID" "${SLURM_JOB_USER:-$SLURM_JOB_UID}" >>"$folder/$gpu"
done
exit 0
