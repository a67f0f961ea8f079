package planner

import (
	"runtime"
	"testing"

	"hocket.example/hocket/ir"
)

// TestBytesOfCommands checks that a command of a plan takes at most 1 KiB of host memory.
func TestBytesOfCommands(t *testing.T) {
	for name, src := range scaled {
		b, ds := bound(src, ir.Binding{Dims: map[string]int64{"C": 4000, "T": 16}})
		if ds.HasErrors() {
			t.Fatal(ds)
		}
		var before, planned, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		p, ds := Plan(b, Options{})
		if ds.HasErrors() {
			t.Fatal(ds)
		}
		runtime.ReadMemStats(&planned)
		runtime.GC()
		runtime.ReadMemStats(&after)
		n := int64(len(p.Cmds))
		live := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / n
		all := (int64(planned.TotalAlloc) - int64(before.TotalAlloc)) / n
		t.Logf("%s: of %d commands each takes %d bytes, and planning it %d", name, n, live, all)
		if live > 1<<10 {
			t.Errorf("%s: of %d commands each takes %d bytes", name, n, live)
		}
		runtime.KeepAlive(p)
	}
}
