package world

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestFromEnv(t *testing.T) {
	torchrun := "WORLD_SIZE=4 RANK=2 LOCAL_RANK=2 LOCAL_WORLD_SIZE=4 MASTER_ADDR=localhost MASTER_PORT=29500 " +
		"TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=1"
	for _, tc := range []struct {
		name, env string
		want      Options
		err       string
	}{
		{"nothing", "", Options{Size: 1, LocalSize: 1}, ""},
		{"hocket", "HOCKET_WORLD_SIZE=3 HOCKET_RANK=1 HOCKET_RUN_ID=a HOCKET_RUN_DIR=/d HOCKET_STALL_TIMEOUT=5s HOCKET_JOIN_TIMEOUT=1m",
			Options{Rank: 1, Size: 3, Local: 1, LocalSize: 3, ID: "a", Dir: "/d", StallTimeout: 5 * time.Second,
				JoinTimeout: time.Minute}, ""},
		{"torchrun", torchrun, Options{Rank: 2, Size: 4, Local: 2, LocalSize: 4, ID: "torchrun none localhost 29500 1"},
			""},
		{"hocket before torchrun", torchrun + " HOCKET_WORLD_SIZE=2 HOCKET_RANK=0 HOCKET_RUN_ID=a",
			Options{Size: 2, LocalSize: 2, ID: "a"}, ""},
		{"an ID beside torchrun", torchrun + " HOCKET_RUN_ID=b",
			Options{Rank: 2, Size: 4, Local: 2, LocalSize: 4, ID: "b"}, ""},
		{"by hand, alone", "WORLD_SIZE=1 RANK=0", Options{Size: 1, LocalSize: 1}, ""},
		{"two nodes", "WORLD_SIZE=4 RANK=3 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=x",
			Options{Rank: 3, Size: 4, Local: 1, LocalSize: 2, ID: "torchrun x"}, ""},
		{"two nodes of torchrun", "WORLD_SIZE=4 RANK=3 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 MASTER_ADDR=::1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=x HOCKET_TOKEN=t",
			Options{Rank: 3, Size: 4, Local: 1, LocalSize: 2, ID: "torchrun x ::1 29500", Meet: "[::1]:29501",
				Node: "torchrun node 1", Token: "t"}, ""},
		{"two nodes of Slurm", "SLURM_STEP_NUM_TASKS=8 SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_STEP_TASKS_PER_NODE=4(x2) SLURM_NODEID=1 SLURM_JOB_ID=7 " +
			"HOCKET_MEET=a:1 HOCKET_TLS_CERT=c HOCKET_TLS_KEY=k HOCKET_MEET_FD=3",
			Options{Rank: 5, Size: 8, Local: 1, LocalSize: 4, ID: "srun 7", Meet: "a:1", Node: "srun node 1", Cert: "c",
				Key: "k", MeetFD: 3}, ""},
		{"a node by name", "HOCKET_WORLD_SIZE=2 HOCKET_RANK=0 HOCKET_RUN_ID=a HOCKET_NODE=n",
			Options{Size: 2, LocalSize: 2, ID: "a", Node: "n"}, ""},
		{"no descriptor", "HOCKET_MEET_FD=1", Options{}, `HOCKET_MEET_FD is "1"`},
		{"mpirun", "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=prterun-h-1@1",
			Options{Rank: 1, Size: 2, Local: 1, LocalSize: 2, ID: "mpirun prterun-h-1@1"}, ""},
		{"srun", "SLURM_STEP_NUM_TASKS=8 SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_STEP_TASKS_PER_NODE=4(x2) SLURM_JOB_ID=7 SLURM_STEP_ID=0",
			Options{Rank: 5, Size: 8, Local: 1, LocalSize: 4, ID: "srun 7 0"}, ""},
		{"a batch script", "SLURM_NTASKS=8 SLURM_PROCID=0 SLURM_JOB_ID=7", Options{Size: 1, LocalSize: 1}, ""},
		{"no rank", "WORLD_SIZE=4", Options{}, "RANK is not set"},
		{"no size", "RANK=1 LOCAL_RANK=1", Options{}, "RANK is 1, but WORLD_SIZE is not set"},
		{"no size of hocket", "HOCKET_RANK=1", Options{}, "HOCKET_RANK is 1, but HOCKET_WORLD_SIZE is not set"},
		{"no ID", "WORLD_SIZE=4 RANK=0", Options{},
			"WORLD_SIZE is 4, but no variable names the run that the processes join: set MASTER_ADDR and MASTER_PORT"},
		{"no ID of hocket", "HOCKET_WORLD_SIZE=4 HOCKET_RANK=0", Options{}, "set HOCKET_RUN_ID"},
		{"a port by name", "WORLD_SIZE=4 RANK=0 MASTER_ADDR=a MASTER_PORT=abc", Options{},
			`MASTER_PORT is "abc", but must be a number from 1 to 65535`},
		{"a port too large", "WORLD_SIZE=4 RANK=0 MASTER_ADDR=a MASTER_PORT=70000", Options{},
			`MASTER_PORT is "70000"`},
		{"port zero", "WORLD_SIZE=4 RANK=0 MASTER_ADDR=a MASTER_PORT=0", Options{}, `MASTER_PORT is "0"`},
		{"no number", "HOCKET_WORLD_SIZE=two HOCKET_RANK=0", Options{},
			`HOCKET_WORLD_SIZE is "two", but must be a number from 1 to 256`},
		{"too large", "WORLD_SIZE=4 RANK=4", Options{}, `RANK is "4", but must be a number from 0 to 3`},
		{"negative", "WORLD_SIZE=4 RANK=-1", Options{}, `RANK is "-1"`},
		{"overflow", "WORLD_SIZE=99999999999999999999 RANK=0", Options{}, "WORLD_SIZE is"},
		{"local", "WORLD_SIZE=4 RANK=1 LOCAL_RANK=x", Options{}, `LOCAL_RANK is "x"`},
		{"duration", "HOCKET_STALL_TIMEOUT=5", Options{},
			`HOCKET_STALL_TIMEOUT is "5", but must be a positive duration such as 30s`},
		{"negative duration", "HOCKET_JOIN_TIMEOUT=-5s", Options{}, "HOCKET_JOIN_TIMEOUT"},
	} {
		env := map[string]string{}
		for _, word := range strings.Fields(tc.env) {
			name, value, _ := strings.Cut(word, "=")
			env[name] = value
		}
		got, err := FromEnv(func(name string) string { return env[name] })
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: %v, want an error with %q", tc.name, err, tc.err)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s:\n got %+v, %v\nwant %+v", tc.name, got, err, tc.want)
		}
	}
}
