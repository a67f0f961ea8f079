package certify_test

import (
	"strings"
	"testing"

	"hocket.example/hocket/internal/certify"
	"hocket.example/hocket/internal/certify/issue"
	"hocket.example/hocket/internal/schedule"
)

// TestThreadsOfABlock: what a block's threads do in no order is in none. Each plan goes well if all threads of a block do an
// operation before the next. In packet_threads rank 1 writes over what rank 0 sends in packets, by threads that have not
// seen these packets. In packet_signal its first thread says that all packets are there, and knows of its own only. In
// wait_then_send the thread that waits is to send first what its peer waits for.
func TestThreadsOfABlock(t *testing.T) {
	for name, want := range map[string]string{"packet_threads": "after the read", "packet_signal": "after the read",
		"wait_then_send": "stuck"} {
		p, err := readSchedule(t, "../schedule/testdata/"+name+".json").Plan()
		if err != nil {
			t.Fatal(err)
		}
		verdict := schedule.Race
		if want == "stuck" {
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
