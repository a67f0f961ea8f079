package hocket

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

// recorded is a flight record as programs that read its JSON see it.
type recorded struct {
	Machine  string
	Programs []struct {
		Func    string
		Ranks   int
		Failure string
		Batches []struct {
			Runs    int
			Began   time.Time
			Seconds *float64
			Error   string
		}
		Streams []struct {
			Rank                int
			Stream, Does        string
			Since               *time.Time
			In                  *struct{ Text string }
			WaitsFor            []int `json:"waits_for"`
			Before, Collectives []struct{ Text string }
		}
	}
}

func readFlight(t *testing.T, dump func(io.Writer) error) (r recorded) {
	t.Helper()
	var b bytes.Buffer
	if err := dump(&b); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b.Bytes(), &r); err != nil {
		t.Fatalf("%v in %s", err, b.String())
	}
	return r
}

// late is a program in which rank 1 computes for long before a collective, in which rank 0 waits.
const late = `mesh tp[2]
func f(%x: f32[1024, 1024]) -> f32[1024, 1024] {
  %y = alloc f32[1024, 1024]
  %z = alloc f32[1024, 1024]
  copy %x into %z
  barrier over=tp
  if rank(tp) == 1 {
    for %i in 0..200 {
      linear %x, %x into %z
    }
  }
  all_reduce %z into %y, over=tp, op=sum
  return %y
}
`

// TestFlightRecord checks that the flight record, at a deadline and during a run, shows each rank's current command,
// its latest commands, and the ranks that it waits for.
func TestFlightRecord(t *testing.T) {
	var failed []recorded
	m, err := Open(t.Context(), MachineOptions{Failed: func(dump func(io.Writer) error) { failed = append(failed, readFlight(t, dump)) }})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	p, err := Parse("late.hkt", late)
	if err != nil {
		t.Fatal(err)
	}
	model, err := m.Load(p, Binding{}, LoadOptions{Grace: -1, NoProve: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := model.Prepare(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	in, err := model.RandomInputs("zeros")
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, r recorded) bool {
		if len(r.Programs) != 1 || r.Machine != "cpu" || r.Programs[0].Func != "f" || r.Programs[0].Ranks != 2 {
			t.Fatalf("%s: %+v", what, r)
		}
		waits, works := false, false
		for _, s := range r.Programs[0].Streams {
			if s.In == nil {
				continue
			}
			last := ""
			if n := len(s.Before); n > 0 {
				last = s.Before[n-1].Text
			}
			waits = waits || s.Rank == 0 && strings.HasPrefix(s.In.Text, "all_reduce %z") && slices.Equal(s.WaitsFor, []int{1}) &&
				strings.HasPrefix(last, "barrier") && len(s.Collectives) == 1 && s.Since != nil
			works = works || s.Rank == 1 && strings.HasPrefix(s.In.Text, "linear %x") && len(s.WaitsFor) == 0 && s.Since != nil
		}
		return waits && works
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { _, err := model.Run(ctx, Args{In: in}); ended <- err }()
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		r := readFlight(t, m.Dump)
		if check("under way", r) {
			if b := r.Programs[0].Batches; len(b) != 1 || b[0].Runs != 1 || b[0].Seconds != nil || b[0].Began.Before(began.Add(-time.Minute)) {
				t.Errorf("batches under way: %+v", b)
			}
			break
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("nothing shows that rank 0 waits for rank 1: %+v", r)
		}
	}
	cancel()
	if err := <-ended; err == nil {
		t.Fatal("the run succeeded")
	}
	if len(failed) != 1 || !check("failed", failed[0]) || !strings.Contains(failed[0].Programs[0].Failure, "cancelled") {
		t.Errorf("of the failure: %+v", failed)
	}
}
