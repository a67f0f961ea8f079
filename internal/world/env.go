package world

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// launcher names the environment variables through which a launcher passes a process its rank and the world's size.
type launcher struct {
	name                         string
	size, rank, local, localSize string
	node                         string   // the node's number; "" if the launcher sets none
	id                           []string // variables that together identify the run; unset variables are skipped
}

// launchers lists the launchers in the order in which they are tried. For Slurm, the variables of a job step are used.
// SLURM_NTASKS is not used, because it describes the whole allocation: it is set in a batch script, too, which is a
// single process.
var launchers = []launcher{
	{"hocket", "HOCKET_WORLD_SIZE", "HOCKET_RANK", "HOCKET_LOCAL_RANK", "HOCKET_LOCAL_WORLD_SIZE", "", nil},
	{"torchrun", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
		[]string{"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"}},
	{"mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
		"OMPI_COMM_WORLD_LOCAL_SIZE", "", []string{"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
	{"srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID",
		[]string{"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"}},
}

// FromEnv reads this process's rank and the world's size from the environment: from HOCKET_*, or from the variables of
// torchrun, Open MPI's mpirun or Slurm's srun, in this order. If none of these variables is set, the world has one
// process. The following variables apply with every launcher: HOCKET_RUN_ID, HOCKET_RUN_DIR, HOCKET_JOIN_TIMEOUT,
// HOCKET_STALL_TIMEOUT, and for several nodes HOCKET_MEET, HOCKET_NODE, HOCKET_TOKEN, HOCKET_TLS_CERT and
// HOCKET_TLS_KEY.
func FromEnv(getenv func(string) string) (Options, error) {
	o := Options{Size: 1, LocalSize: 1, ID: getenv("HOCKET_RUN_ID"), Dir: getenv("HOCKET_RUN_DIR"),
		Meet: getenv("HOCKET_MEET"), Node: getenv("HOCKET_NODE"), Token: getenv("HOCKET_TOKEN"),
		Launcher: getenv("HOCKET_LAUNCHER"),
		Cert:     getenv("HOCKET_TLS_CERT"), Key: getenv("HOCKET_TLS_KEY")}
	if text := getenv("HOCKET_MEET_FD"); text != "" {
		fd, err := strconv.Atoi(text)
		if err != nil || fd < 3 {
			return Options{}, fmt.Errorf("HOCKET_MEET_FD is %q, but must be a file descriptor of 3 or more", text)
		}
		o.MeetFD = fd
	}
	for _, d := range []struct {
		name string
		to   *time.Duration
	}{{"HOCKET_JOIN_TIMEOUT", &o.JoinTimeout}, {"HOCKET_STALL_TIMEOUT", &o.StallTimeout}} {
		if err := readDuration(getenv, d.name, d.to); err != nil {
			return Options{}, err
		}
	}
	for _, l := range launchers {
		if getenv(l.size) == "" || l.name == "srun" && getenv(l.rank) == "" {
			continue
		}
		if err := l.read(getenv, &o); err != nil {
			return Options{}, err
		}
		return o, nil
	}
	for _, l := range launchers[:2] { // the variables of mpirun and srun are never set by hand
		if rank := getenv(l.rank); rank != "" {
			return Options{}, fmt.Errorf("%s is %s, but %s is not set, so this process would be the only one: set %s to the number of "+
				"processes, or unset %s", l.rank, rank, l.size, l.size, l.rank)
		}
	}
	return o, nil
}

func readDuration(getenv func(string) string, name string, to *time.Duration) error {
	text := getenv(name)
	if text == "" {
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return fmt.Errorf("%s is %q, but must be a positive duration such as 30s", name, text)
	}
	*to = d
	return nil
}

func (l launcher) read(getenv func(string) string, o *Options) error {
	number := func(name string, low, high int) (int, error) {
		text := getenv(name)
		n, err := strconv.Atoi(text)
		switch {
		case text == "":
			return 0, fmt.Errorf("%s is %s, but %s is not set: start all processes with one launcher, or unset %s",
				l.size, getenv(l.size), name, l.size)
		case err != nil || n < low || n > high:
			return 0, fmt.Errorf("%s is %q, but must be a number from %d to %d", name, text, low, high)
		}
		return n, nil
	}
	var err error
	if o.Size, err = number(l.size, 1, MaxProcesses); err != nil {
		return err
	}
	if o.Rank, err = number(l.rank, 0, o.Size-1); err != nil {
		return err
	}
	o.Local, o.LocalSize = o.Rank, o.Size
	if getenv(l.local) != "" {
		if o.Local, err = number(l.local, 0, o.Size-1); err != nil {
			return err
		}
	}
	if text := getenv(l.localSize); text != "" {
		// Slurm writes "4(x2)" for two nodes with four tasks each, and a list if the nodes differ.
		first, _, _ := strings.Cut(text, "(")
		first, _, _ = strings.Cut(first, ",")
		if o.LocalSize, err = strconv.Atoi(first); err != nil || o.LocalSize < 1 {
			return fmt.Errorf("%s is %q, but must be a number of processes", l.localSize, text)
		}
	}
	if text := getenv("MASTER_PORT"); l.name == "torchrun" && text != "" && o.ID == "" {
		if port, err := strconv.ParseUint(text, 10, 16); err != nil || port == 0 {
			return fmt.Errorf("MASTER_PORT is %q, but must be a number from 1 to 65535", text)
		}
	}
	if o.ID == "" {
		o.ID = l.runID(getenv)
	}
	if number := getenv(l.node); number != "" && o.Node == "" {
		o.Node = l.name + " node " + number
	}
	if l.name == "torchrun" && o.LocalSize < o.Size && o.Meet == "" {
		// torch itself uses MASTER_PORT, so take the next port.
		if port, err := strconv.Atoi(getenv("MASTER_PORT")); err == nil && getenv("MASTER_ADDR") != "" {
			o.Meet = net.JoinHostPort(getenv("MASTER_ADDR"), strconv.Itoa(port+1))
		}
	}
	if o.ID == "" && o.Size > 1 {
		set := "HOCKET_RUN_ID in all processes to the same text, and to a new text for each run"
		if l.name == "torchrun" {
			set = "MASTER_ADDR and MASTER_PORT to the same values in all processes, and to another port for each job, or " + set
		}
		return fmt.Errorf("%s is %d, but no variable names the run that the processes join: set %s", l.size, o.Size,
			set)
	}
	return nil
}

// runID joins the values of the variables that identify a run. runID returns "" if none of the variables is set.
func (l launcher) runID(getenv func(string) string) string {
	var parts []string
	for _, name := range l.id {
		if v := getenv(name); v != "" {
			parts = append(parts, v)
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return l.name + " " + strings.Join(parts, " ")
}
