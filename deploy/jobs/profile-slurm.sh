#!/bin/bash
# A bulk profile as a Slurm array: each task does its part of the work into its own table.
#
#   sbatch deploy/jobs/profile-slurm.sh /path/to/models /path/to/results
#
# The number of parts is the length of the array. `poplar-triton` must be on PATH. A preempted or killed task is queued
# again and resumes its work. Combine the tables with the command at the end of docs/profile.md.
#SBATCH --job-name=poplar-profile
#SBATCH --array=0-15
#SBATCH --cpus-per-task=8
#SBATCH --mem=16G
#SBATCH --time=04:00:00
#SBATCH --requeue
set -euo pipefail

models=$1 results=$2
mkdir -p "$results"
# Slurm's memory limit is not visible as a container limit, so each model gets its share of --mem explicitly.
exec poplar-triton profile "$models" \
    --sweep batch_size=1,2,4,8,16 --sweep target=c600,bow \
    --time_limit 600 \
    --jobs "$SLURM_CPUS_PER_TASK" --memory_limit "$((SLURM_MEM_PER_NODE / SLURM_CPUS_PER_TASK))" \
    --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" \
    --output "$results/part-$SLURM_ARRAY_TASK_ID"
