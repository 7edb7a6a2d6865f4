#!/bin/sh
# Slurm prolog (Prolog=, as root): writes for rowmill-agent and dcgm-exporter which job holds which GPU.
# A line is `job user uid`, followed by `array_task` for a task of an array.
folder=${ROWMILL_JOBS:-/run/rowmill-jobs}
mkdir -p "$folder" && chmod 755 "$folder"
task=${SLURM_ARRAY_TASK_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
uid=$SLURM_JOB_UID
line="$SLURM_JOB_ID ${SLURM_JOB_USER:-$uid} $uid${task:+ $task}"
(
    # Prologs and epilogs of other jobs change the same files at the same time.
    flock 9
    for gpu in $(printf '%s' "${SLURM_JOB_GPUS:-}" | tr ',' ' '); do
        case $gpu in *[!0-9-]*) continue ;; esac
        printf '%s\n' "$line" >>"$folder/$gpu"
    done
) 9>"$folder/.lock"
# A prolog that fails would drain the node.
exit 0
