#!/bin/bash -l
#SBATCH --job-name="a b" -N2 -n 4
#SBATCH --gres=gpu:a100:8 --mem=200G -t 2-00
#SBATCH -a 0-9%4 -x n[01-08,12]
srun hostname
