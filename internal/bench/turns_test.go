package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/contest"
)

// answering starts a goroutine that answers the given number of requests in a folder, as the peers' program does. Each
// answer has a longer time than the one before. answering returns a function that waits for the goroutine and returns
// the requests.
func answering(t *testing.T, dir, answer string, questions int) func() []string {
	t.Helper()
	var asked []string
	done := make(chan bool)
	go func() {
		defer close(done)
		seen := map[string]bool{}
		for len(asked) < questions && t.Context().Err() == nil {
			time.Sleep(time.Millisecond)
			asks, _ := filepath.Glob(filepath.Join(dir, "*.ask"))
			for _, ask := range asks {
				if seen[ask] {
					continue
				}
				seen[ask] = true
				q, _ := os.ReadFile(ask)
				asked = append(asked, strings.TrimSpace(string(q)))
				at := strings.TrimSuffix(ask, ".ask")
				_ = os.WriteFile(at+".lines", []byte(strings.ReplaceAll(answer, "US", fmt.Sprint(100+len(asked)))),
					0o600)
				_ = os.Rename(at+".lines", at+".answer")
			}
		}
	}()
	return func() []string { <-done; return asked }
}

func TestTurns(t *testing.T) {
	dir := t.TempDir()
	opts := tiny("gemm-rs")
	opts.Rounds, opts.Turns = 3, dir
	opts.Shapes = append(opts.Shapes, Shape{M: 8, N: 4, K: 4})
	asked := answering(t, dir, `{"op": "gemm-rs", "name": "fused", "ranks": 2, "us": US}
{"op": "gemm-rs", "name": "GEMM alone", "ranks": 2, "issued": "graph", "us": 7}`, 10)
	rep, err := Run(t.Context(), "gemm-rs", opts)
	if err != nil {
		t.Fatal(err)
	}
	want := slices.Concat(slices.Repeat([]string{"gemm-rs 24x20x12 bf16"}, 5), slices.Repeat([]string{"gemm-rs 8x4x4 bf16"}, 5))
	if got := asked(); !slices.Equal(got, want) {
		t.Errorf("asked %v", got)
	}
	// Each shape had five answers, of which the first two were warm-ups.
	peer := func(name, shape, issued string, us, spread float64) contest.Peer {
		return contest.Peer{Op: "gemm-rs", Name: name, Ranks: 2, Shape: shape, DType: "bf16", Issued: issued,
			Micros: us, Spread: spread}
	}
	peers := []contest.Peer{
		peer("fused", "24x20x12", "eager", 104, 1), peer("GEMM alone", "24x20x12", "graph", 7, 0),
		peer("fused", "8x4x4", "eager", 109, 1), peer("GEMM alone", "8x4x4", "graph", 7, 0),
	}
	if !slices.Equal(rep.Peers, peers) {
		t.Errorf("got %v", rep.Peers)
	}
	var text bytes.Buffer
	if err := rep.WriteText(&text); err != nil ||
		!strings.Contains(text.String(), "peers, µs: fused 104.0 ±1.0; GEMM alone 7.0\n") {
		t.Errorf("%v\n%s", err, &text)
	}
}

func TestTurnsRefuse(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	silly := t.TempDir()
	answering(t, silly, "hello", 1)
	for name, c := range map[string]struct {
		ctx  context.Context
		dir  string
		want error
	}{
		"no folder":    {t.Context(), filepath.Join(t.TempDir(), "nowhere"), contest.ErrUsage},
		"no figures":   {t.Context(), silly, contest.ErrUsage},
		"ends in time": {ended, t.TempDir(), context.Canceled},
	} {
		turns := &turns{dir: c.dir}
		if err := turns.ask(c.ctx, "ag-gemm", Shape{1, 1, 1}, true); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	opts := tiny("p2p")
	opts.Turns = t.TempDir()
	if _, err := Run(t.Context(), "p2p", opts); !errors.Is(err, contest.ErrUsage) {
		t.Errorf("p2p in turns: %v", err)
	}
}
