#!/bin/bash
# A bulk profile as a Slurm array: each task does its part of the work into its own table.
#
#   sbatch deploy/jobs/profile-slurm.sh /path/to/models /path/to/results
#
# How many parts is the length of the array; `poplar-triton` has to be on PATH. A task that is preempted or killed
# is queued again and goes on where it was. The command at the end of docs/profile.md makes one table of all.
#SBATCH --job-name=poplar-profile
#SBATCH --array=0-15
#SBATCH --cpus-per-task=8
#SBATCH --mem=16G
#SBATCH --time=04:00:00
#SBATCH --requeue
set -euo pipefail

models=$1 results=$2
mkdir -p "$results"
# Slurm's limits of memory are not those that a container sees: each model gets its share of --mem.
exec poplar-triton profile "$models" \
    --sweep batch_size=1,2,4,8,16 --sweep target=c600,bow \
    --time_limit 600 \
    --jobs "$SLURM_CPUS_PER_TASK" --memory_limit "$((SLURM_MEM_PER_NODE / SLURM_CPUS_PER_TASK))" \
    --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" \
    --output "$results/part-$SLURM_ARRAY_TASK_ID"
