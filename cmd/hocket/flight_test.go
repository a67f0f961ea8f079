package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

const longProgram = `mesh tp[2]
func f(%x: f32[1024/tp, 1024], %w: f32[1024, 1024]) -> f32[1024/tp, 1024] {
  %l = local %x
  %y = alloc f32[512, 1024]
  for %i in 0..5000 {
    linear %l, %w into %y
  }
  %z: f32[1024/tp, 1024] = claim %y
  return %z
}
`

// TestTimeoutFlight checks that a run that exceeds --timeout writes its flight record.
func TestTimeoutFlight(t *testing.T) {
	dir := t.TempDir()
	program, flight := filepath.Join(dir, "long.hkt"), filepath.Join(dir, "flight.json")
	if err := os.WriteFile(program, []byte(longProgram), 0o600); err != nil {
		t.Fatal(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	// If the time limit passes before a kernel has begun, there is no flight record, or an empty one. The test then
	// repeats the run with a longer limit.
	var last []byte
	for wait := 100 * time.Millisecond; wait < time.Minute; wait *= 4 {
		ctx, cancel := context.WithCancelCause(t.Context())
		args := []string{"run", program, "--flight", flight}
		a := newApp(args, null, null, null)
		done := make(chan error, 1)
		go func() { done <- a.execute(ctx, args) }()
		for a.progress.Current() != "running the program" {
			select {
			case err := <-done:
				t.Fatalf("the run has ended: %v", err)
			case <-time.After(5 * time.Millisecond):
			}
		}
		time.Sleep(wait)
		cancel(errLimit)
		if err := <-done; err == nil {
			t.Fatal("the run has ended well")
		}
		if last, err = os.ReadFile(flight); err == nil && bytes.Contains(last, []byte(`"func": "f"`)) &&
			bytes.Contains(last, []byte("runs linear")) {
			return
		}
	}
	t.Errorf("the last record is %s", last)
}
