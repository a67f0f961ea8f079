package world

import (
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// FuzzEnv checks that, for any environment, FromEnv returns a valid rank or an error that names a
// variable, and that the same options written as hocket's own variables give the same result.
func FuzzEnv(f *testing.F) {
	f.Add("WORLD_SIZE=4 RANK=3 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 MASTER_ADDR=::1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=x")
	f.Add("SLURM_STEP_NUM_TASKS=8 SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_STEP_TASKS_PER_NODE=4(x2) SLURM_NODEID=1 SLURM_JOB_ID=7")
	f.Add("HOCKET_WORLD_SIZE=3 HOCKET_RANK=1 HOCKET_RUN_ID=a HOCKET_RUN_DIR=/d HOCKET_STALL_TIMEOUT=5s HOCKET_JOIN_TIMEOUT=1m")
	f.Add("OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 PMIX_NAMESPACE=p HOCKET_MEET_FD=3 HOCKET_TLS_CERT=c HOCKET_TLS_KEY=k HOCKET_NODE=n")
	f.Add("WORLD_SIZE=2 RANK=0 LOCAL_WORLD_SIZE=9999999999 MASTER_PORT=-7 MASTER_ADDR=a TORCHELASTIC_RUN_ID=")
	f.Fuzz(func(t *testing.T, text string) {
		env := map[string]string{}
		for _, word := range strings.Fields(text) {
			name, value, _ := strings.Cut(word, "=")
			env[name] = value
		}
		o, err := FromEnv(func(name string) string { return env[name] })
		if err != nil {
			env["HOCKET_RUN_ID"] = "" // the error may advise the user to set this variable
			for name := range env {
				if name != "" && strings.Contains(err.Error(), name) {
					return
				}
			}
			t.Fatalf("the error names no variable of %q: %v", text, err)
		}
		if o.Size < 1 || o.Size > MaxProcesses || o.Rank < 0 || o.Rank >= o.Size || o.Local < 0 || o.Local >= o.Size ||
			o.LocalSize < 1 || o.JoinTimeout < 0 || o.StallTimeout < 0 || o.Size > 1 && o.ID == "" {
			t.Fatalf("%q: %+v", text, o)
		}
		own := map[string]string{"HOCKET_WORLD_SIZE": strconv.Itoa(o.Size), "HOCKET_RANK": strconv.Itoa(o.Rank),
			"HOCKET_LOCAL_RANK": strconv.Itoa(o.Local), "HOCKET_LOCAL_WORLD_SIZE": strconv.Itoa(o.LocalSize),
			"HOCKET_RUN_ID": o.ID, "HOCKET_RUN_DIR": o.Dir, "HOCKET_MEET": o.Meet, "HOCKET_NODE": o.Node,
			"HOCKET_TOKEN": o.Token, "HOCKET_TLS_CERT": o.Cert, "HOCKET_TLS_KEY": o.Key}
		if o.MeetFD != 0 {
			own["HOCKET_MEET_FD"] = strconv.Itoa(o.MeetFD)
		}
		if o.JoinTimeout != 0 {
			own["HOCKET_JOIN_TIMEOUT"] = o.JoinTimeout.String()
		}
		if o.StallTimeout != 0 {
			own["HOCKET_STALL_TIMEOUT"] = o.StallTimeout.String()
		}
		again, err := FromEnv(func(name string) string { return own[name] })
		if err != nil || !reflect.DeepEqual(again, o) {
			t.Errorf("%q:\n got %+v, %v\nwant %+v", text, again, err, o)
		}
	})
}
