package planner

import (
	"errors"
	"testing"

	"hocket.example/hocket/ir"
)

// TestStop checks that planning can be stopped in each of its steps, and that it returns the error of Options.Stop.
func TestStop(t *testing.T) {
	b := mustBind(t, fills(5*askEvery), ir.Binding{})
	enough := errors.New("enough")
	for last := 1; ; last++ {
		asked := 0
		_, ds := Plan(b, Options{Stop: func() error {
			if asked++; asked < last {
				return nil
			}
			return enough
		}})
		if !ds.HasErrors() {
			if asked != last-1 || last < 15 { // planning asks while it unrolls, merges and simulates two runs
				t.Errorf("it was asked %d times, and went on until time %d", asked, last)
			}
			return
		}
		if asked != last || ds[0].Kind != "stopped" || ds[0].Message != "enough" {
			t.Fatalf("told at time %d, it asked %d times and said %v", last, asked, ds)
		}
	}
}
