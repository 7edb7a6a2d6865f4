#!/bin/sh
# Slurm epilog (Epilog=, as root): the job holds its GPUs no longer.
folder=${ROWMILL_JOBS:-/run/rowmill-jobs}
for file in "$folder"/*; do
    [ -f "$file" ] || continue
    grep -v "^$SLURM_JOB_ID " "$file" >"$file.new" 2>/dev/null
    if [ -s "$file.new" ]; then mv "$file.new" "$file"; else rm -f "$file" "$file.new"; fi
done
exit 0
