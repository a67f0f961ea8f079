package certify_test

import (
	"fmt"
	"strings"
	"testing"

	"hocket.example/hocket/internal/certify"
	"hocket.example/hocket/internal/certify/issue"
	"hocket.example/hocket/internal/schedule"
	"hocket.example/hocket/internal/schedule/mscclpp"
)

// TestThreadsOfABlock checks that actions of a block's threads are not ordered by the order of the block's operations.
// Each plan would be correct if all threads of a block completed an operation before the next. In packet_threads,
// threads of rank 1 overwrite the data that rank 0 sends in packets, although these threads have not read the packets.
// In packet_signal, the first thread of rank 1 signals that all packets have arrived, although it knows only that its
// own packets have arrived. In wait_then_send, the waiting thread must itself send the data for which its peer waits.
func TestThreadsOfABlock(t *testing.T) {
	for name, want := range map[string]string{"packet_threads": "after the read", "packet_signal": "after the read",
		"wait_then_send": "deadlocks"} {
		p, err := readSchedule(t, "../schedule/testdata/"+name+".json").Plan()
		if err != nil {
			t.Fatal(err)
		}
		verdict := schedule.Race
		if want == "deadlocks" {
			verdict = schedule.Deadlock
		}
		if r := schedule.Check(p, schedule.Options{}); r.Verdict != verdict {
			t.Errorf("%s: %s, want %s", name, r.Verdict, verdict)
		}
		s, err := certify.Schedule(p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := issue.Certificate(&s.Statement); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

// TestMissingOutputs checks that a plan is wrong if a rank lacks an output that the collective defines.
func TestMissingOutputs(t *testing.T) {
	for _, c := range []struct {
		collective string
		in, out    int
		says       string
	}{
		{"allreduce", 2, 0, "rank 0 has 0 output chunks, and all_reduce gives it 2"},
		{"allreduce", 0, 0, "no rank has an input chunk, so there is nothing that all_reduce could give"},
		{"allgather", 2, 0, "rank 0 has 0 output chunks, and all_gather gives it 4"},
		{"reducescatter", 2, 0, "rank 0 has 0 output chunks, and reduce_scatter gives it 1"},
		{"alltoall", 2, 0, "rank 0 has 0 output chunks, and all_to_all gives it 2"},
		{"broadcast", 2, 0, "rank 0 has 0 output chunks, and broadcast gives it 2"},
		{"sendrecv", 2, 0, "rank 0 has 0 output chunks, and sendrecv gives it 2"},
	} {
		text := fmt.Sprintf(`{"name":"x","collective":%q,"inplace":false,"gpus":[{"id":0,"input_chunks":%d,"output_chunks":%d,"threadblocks":[]},`+
			`{"id":1,"input_chunks":%[2]d,"output_chunks":%[3]d,"threadblocks":[]}]}`, c.collective, c.in, c.out)
		f, err := mscclpp.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		p, err := f.Plan()
		if err != nil {
			t.Fatal(err)
		}
		if r := schedule.Check(p, schedule.Options{}); r.Verdict != schedule.Wrong || r.Findings[0].Message != c.says {
			t.Errorf("%s: %s %v, want %q", text, r.Verdict, r.Findings, c.says)
		}
		if _, _, err := certificateOf(p); err == nil {
			t.Errorf("%s has a certificate", text)
		}
	}
}
