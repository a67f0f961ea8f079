package comm

import (
	"context"
	"fmt"
	"testing"

	"hocket.example/hocket/internal/device/cpu"
	_ "hocket.example/hocket/internal/longtest" // collects garbage less often
	"hocket.example/hocket/ir"
)

// BenchmarkAllReduce compares the algorithms on the CPU machine. It times chains of eight
// all_reduces back to back, so that the time includes the waits until staging memory can be reused.
func BenchmarkAllReduce(b *testing.B) {
	for _, n := range []int{2, 4, 8} {
		for _, kib := range []int64{4, 64, 1024} {
			for _, algo := range []string{"staged", "two-shot"} {
				b.Run(fmt.Sprintf("n%d/%dKiB/%s", n, kib, algo), func(b *testing.B) {
					w := open(b, cpu.Concurrent, 0, n)
					s := spec{op: ir.OpAllReduce, red: ir.Sum, dt: ir.F32, n: n, shape: []int64{kib << 8}, algo: algo}
					r := newRig(b, w, "s", teamOf(n), []spec{s})
					var run int64
					for b.Loop() {
						for range 8 {
							for m := range n {
								r.must(r.ch.Issue(0, m, run))
							}
							run++
						}
						r.must(w.Sync(context.Background()))
					}
					b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(8*b.N), "µs/all_reduce")
				})
			}
		}
	}
}
