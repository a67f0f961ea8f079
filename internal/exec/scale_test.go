package exec

import (
	"context"
	"fmt"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// long returns a plan of about n commands on 4 ranks, with computations, reductions and events.
func long(n int) *plan.Plan {
	const ranks = 4
	b := newBuilder(ranks, ir.F32)
	x := b.input("x", false, 4)
	y := b.result("y", false, 4)
	ch := b.channel("main")
	for i := 0; len(b.p.Cmds) < n; i++ {
		b.iter = []int64{int64(i)}
		for r := range ranks {
			b.after(r, "%s", "main")
			b.compute(r, "%s", ir.OpRelu, b.ref(r, y, 4), b.ref(r, x, 4))
			b.after(r, "main", "%s")
		}
		b.collective("main", ch, ir.OpAllReduce, func(r int) plan.CollPart {
			return plan.CollPart{In: b.ref(r, y, 4), Out: b.ref(r, y, 4)}
		})
	}
	b.iter = nil
	b.output()
	return b.p
}

// BenchmarkLoad measures the time of Load per command, which should not depend on the number of commands.
func BenchmarkLoad(b *testing.B) {
	for _, n := range []int{1000, 10000, 100000} {
		p := long(n)
		for _, m := range []device.Machine{nullMachine{}, cpu.New(cpu.Options{}), cpu.New(cpu.Options{Mode: cpu.Scheduled})} {
			b.Run(fmt.Sprint(n, m.Name(), m.Caps().Virtual), func(b *testing.B) {
				for b.Loop() {
					prog, err := Load(context.Background(), m, p, Options{})
					if err != nil {
						b.Fatal(err)
					}
					_ = prog.Close()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(p.Cmds)), "ns/command")
			})
		}
	}
}

// BenchmarkRun measures the time of a run per command on the CPU machine.
func BenchmarkRun(b *testing.B) {
	for _, n := range []int{1000, 10000, 100000} {
		p := long(n)
		for name, mode := range modes {
			for _, traced := range []bool{false, true} {
				b.Run(fmt.Sprint(n, name, traced), func(b *testing.B) {
					prog := load(b, mode, 0, p, Options{Trace: traced})
					in := map[string]*tensor.Tensor{"x": ints(b, ir.F32, "x", 1, 4)}
					for b.Loop() {
						if _, err := prog.Run(context.Background(), in); err != nil {
							b.Fatal(err)
						}
					}
					b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(p.Cmds)), "ns/command")
				})
			}
		}
	}
}
