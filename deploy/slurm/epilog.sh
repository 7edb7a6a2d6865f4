#!/bin/sh
# Slurm epilog (Epilog=, as root): removes the job from the files of its GPUs.
folder=${ROWMILL_JOBS:-/run/rowmill-jobs}
[ -d "$folder" ] || exit 0
(
    # Prologs and epilogs of other jobs change the same files at the same time.
    flock 9
    for file in "$folder"/*; do
        [ -f "$file" ] || continue
        # The file is replaced by a rename, so that readers see the old or the new file, never a part.
        awk -v job="$SLURM_JOB_ID" '$1 != job' "$file" >"$folder/.new" || continue
        if [ -s "$folder/.new" ]; then mv "$folder/.new" "$file"; else rm -f "$file" "$folder/.new"; fi
    done
) 9>"$folder/.lock"
# An epilog that fails would drain the node.
exit 0
