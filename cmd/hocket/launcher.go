package main

import (
	"os"
	"strconv"
)

// launchers are the programs that start one process for each rank, and the
// variables by which these processes learn how many they are and which one each is.
//
// Of Slurm it is the step's number of tasks that counts. SLURM_NTASKS is set for a
// whole allocation, also in the shell of salloc and in a batch script, where hocket
// is one process. Only srun starts several, as tasks of one step, and sets
// SLURM_STEP_NUM_TASKS and SLURM_PROCID for each. A batch script and salloc's
// interactive step have SLURM_PROCID=0, but no step of several tasks.
var launchers = []struct {
	name       string
	size, rank string // environment variables
}{
	{"torchrun", "WORLD_SIZE", "RANK"},
	{"mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
	{"mpiexec", "PMI_SIZE", "PMI_RANK"},
	{"srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},
}

// alone refuses to drive ranks in one of several processes that a launcher
// started: each would run all ranks, on the same GPUs.
func alone() error {
	for _, l := range launchers {
		n, err := strconv.Atoi(os.Getenv(l.size))
		if err != nil || n < 2 {
			continue
		}
		// torchrun's users set WORLD_SIZE by hand, too. Of the others a size without
		// a rank was inherited.
		if rank := os.Getenv(l.rank); rank != "" || l.size == "WORLD_SIZE" {
			return usagef("%s is %d: %s started %d processes, and hocket runs all ranks in one", l.size, n, l.name, n).
				helping("start hocket once, without %s: -n %d runs %d ranks from one process; "+
					"if this is the only process, unset %s", l.name, n, n, l.size)
		}
	}
	return nil
}
