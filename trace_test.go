package hocket_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/trace/account"
)

// TestTraceSaysWhatWaitsAreFor checks the arrows in the timeline of an exchange: each wait for a counter refers to the
// signal of another rank that ends the wait, and each wait for a stream to the last command that it waits for.
func TestTraceSaysWhatWaitsAreFor(t *testing.T) {
	src, err := os.ReadFile("examples/mlp.hkt")
	if err != nil {
		t.Fatal(err)
	}
	_, m, model := open(string(src), hocket.LoadOptions{Trace: true, Strategy: "exchange"})
	defer m.Close()
	in, err := model.RandomInputs("ints:0")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // counters keep their values from run to run
		report, err := model.Run(t.Context(), hocket.Args{In: in})
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := report.WriteTrace(&b); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "run.json")
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := account.Files([]string{path}, 0)
		if err != nil {
			t.Fatal(err)
		}
		tr, _ := r.Trace()
		chains, signals, streams := tr.Chains(), 0, 0
		for i := range tr.Events {
			e := &tr.Events[i]
			if !e.Waits() {
				continue
			}
			if e.Tie == nil {
				t.Fatalf("%s of rank %d: what it waits for is not recorded", e.Detail, e.Rank)
			}
			d := chains.Released(i)
			if d < 0 {
				t.Fatalf("%s of rank %d waits for nothing", e.Detail, e.Rank)
			}
			by := &tr.Events[d]
			counter, _, _ := strings.Cut(e.Tie.Counter, "[")
			switch {
			case counter == "" && by.Rank == e.Rank && by.Stream == e.Tie.Stream && by.ID < e.ID:
				streams++
			case counter != "" && by.Rank != e.Rank && by.Name == "signal" && by.Tie.Peer == e.Rank &&
				strings.HasPrefix(by.Detail, "signal "+counter+"["):
				signals++
			default:
				t.Errorf("%s of rank %d waits for %s of rank %d, stream %s", e.Detail, e.Rank, by.Detail, by.Rank, by.Stream)
			}
		}
		if signals < 4*6 || streams < 4*2 {
			t.Errorf("%d waits for signals, %d for streams", signals, streams)
		}
		for _, f := range r.Findings {
			if strings.Contains(f.Text, "of an unknown rank") || strings.Contains(f.Text, "shows nothing") {
				t.Error(f.Text)
			}
		}
	}
}
