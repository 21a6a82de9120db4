#!/bin/sh
#SBATCH --job-name=batch
#SBATCH --array=0-3
#SBATCH --cpus-per-task=2
#SBATCH --signal=TERM@60
#SBATCH --requeue
#SBATCH --output=batch-%a.log
# A batch as an array of jobs: sbatch slurm.sh
# Merge the parts when the array has ended:
#   sbatch --dependency=afterany:JOB --wrap 'amplifier batch merge part-* -o all'
# A job that is requeued, or submitted again with sbatch --array=2 slurm.sh, continues its part.
set -u
part=part-$SLURM_ARRAY_TASK_ID
if [ -e "$part/batch.json" ]; then
    exec srun amplifier batch resume "$part"
fi
exec srun amplifier batch run plan.yaml rows.jsonl -o "$part" --shard auto/4
