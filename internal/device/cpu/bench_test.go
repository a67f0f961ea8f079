package cpu_test

import (
	"context"
	"fmt"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/ir"
)

// bench is a one-rank world with a stream and memory for views.
type bench struct {
	b *testing.B
	w device.World
	d device.Device
	s device.Stream
}

func newBench(b *testing.B, mode cpu.Mode) *bench {
	w, err := cpu.New(cpu.Options{Mode: mode}).Open(b.Context(), 1)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = w.Close() })
	s, err := w.Device(0).NewStream(device.StreamOptions{Name: "main"})
	if err != nil {
		b.Fatal(err)
	}
	return &bench{b, w, w.Device(0), s}
}

func (b *bench) tensor(dt ir.DType, shape ...int64) device.View {
	n := dt.Size()
	strides := make([]int64, len(shape))
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = n / dt.Size()
		n *= shape[i]
	}
	mem, err := b.d.Alloc(n, device.Private)
	if err != nil {
		b.b.Fatal(err)
	}
	v := device.View{Mem: mem, DType: dt, Shape: shape, Strides: strides}
	b.run(device.Kernel{Op: device.Elementwise{Op: ir.OpFill, Numbers: ir.Reals(1)}, Outs: []device.View{v}})
	return v
}

// run launches k and waits for it.
func (b *bench) run(k device.Kernel) {
	l, err := b.d.Prepare(k)
	if err == nil {
		err = b.s.Launch(l)
	}
	if err == nil {
		err = b.w.Sync(context.Background())
	}
	if err != nil {
		b.b.Fatal(err)
	}
}

func BenchmarkGemm(b *testing.B) {
	const n = 1024
	for _, dt := range []ir.DType{ir.F32, ir.BF16, ir.F64} {
		b.Run(fmt.Sprintf("%d/%s", n, dt), func(b *testing.B) {
			m := newBench(b, cpu.Concurrent)
			x, w, y := m.tensor(dt, n, n), m.tensor(dt, n, n), m.tensor(dt, n, n)
			for b.Loop() {
				m.run(device.Kernel{Op: device.Linear{}, Ins: []device.View{x, w}, Outs: []device.View{y}})
			}
			b.ReportMetric(2*n*n*n*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}

func BenchmarkElementwise(b *testing.B) {
	const n = 1 << 20
	for _, op := range []ir.Op{ir.OpAdd, ir.OpRelu, ir.OpGelu, ir.OpCopy} {
		for _, dt := range []ir.DType{ir.F32, ir.BF16, ir.F16, ir.I32} {
			if op == ir.OpGelu && dt == ir.I32 {
				continue
			}
			b.Run(fmt.Sprintf("%s/%s", op, dt), func(b *testing.B) {
				m := newBench(b, cpu.Concurrent)
				ins := []device.View{m.tensor(dt, n), m.tensor(dt, n)}
				k := device.Kernel{Op: device.OpOf(op, ir.Attrs{}), Ins: ins[:op.Info().MinArgs], Outs: []device.View{m.tensor(dt, n)}}
				for b.Loop() {
					m.run(k)
				}
				bytes := float64(n*int(dt.Size())) * float64(len(k.Ins)+1)
				b.ReportMetric(bytes*float64(b.N)/b.Elapsed().Seconds()/1e9, "GB/s")
			})
		}
	}
}

func BenchmarkSum(b *testing.B) {
	const n = 1024
	for _, dt := range []ir.DType{ir.F32, ir.BF16} {
		for axis := range 2 {
			b.Run(fmt.Sprintf("axis%d/%s", axis, dt), func(b *testing.B) {
				m := newBench(b, cpu.Concurrent)
				k := device.Kernel{Op: device.ReduceAxes{Op: ir.OpSum, Axes: []int{axis}}, Ins: []device.View{m.tensor(dt, n, n)},
					Outs: []device.View{m.tensor(dt, n)}}
				for b.Loop() {
					m.run(k)
				}
			})
		}
	}
}

func BenchmarkRows(b *testing.B) {
	const n = 1024
	for _, dt := range []ir.DType{ir.F32, ir.BF16} {
		for _, op := range []ir.Op{ir.OpSoftmax, ir.OpRMSNorm, ir.OpLayerNorm} {
			b.Run(fmt.Sprintf("%s/%s", op, dt), func(b *testing.B) {
				m := newBench(b, cpu.Concurrent)
				x, w := m.tensor(dt, n, n), m.tensor(dt, n)
				k := device.Kernel{Op: device.OpOf(op, ir.Attrs{Numbers: ir.Reals(1e-6), Axes: []int{1}}), Ins: []device.View{x, w, w}[:op.Info().MinArgs],
					Outs: []device.View{m.tensor(dt, n, n)}}
				for b.Loop() {
					m.run(k)
				}
			})
		}
	}
}

func BenchmarkAttention(b *testing.B) {
	const t, h, d = 256, 8, 64
	for _, dt := range []ir.DType{ir.F32, ir.BF16} {
		b.Run(dt.String(), func(b *testing.B) {
			m := newBench(b, cpu.Concurrent)
			k := device.Kernel{Op: device.Attention{Scale: 0.125, Causal: true}, Ins: []device.View{m.tensor(dt, t, h, d), m.tensor(dt, t, h/4, d), m.tensor(dt, t, h/4, d)},
				Outs: []device.View{m.tensor(dt, t, h, d)}}
			for b.Loop() {
				m.run(k)
			}
			b.ReportMetric(2*t*t*h*d*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}

func BenchmarkReduction(b *testing.B) {
	const n = 1 << 20
	for _, dt := range []ir.DType{ir.F32, ir.BF16} {
		b.Run(fmt.Sprintf("8/%s", dt), func(b *testing.B) {
			m := newBench(b, cpu.Concurrent)
			k := device.Kernel{Op: device.ReduceOperands{Red: ir.Sum}, Outs: []device.View{m.tensor(dt, n)}}
			for range 8 {
				k.Ins = append(k.Ins, m.tensor(dt, n))
			}
			for b.Loop() {
				m.run(k)
			}
		})
	}
}

func BenchmarkTranspose(b *testing.B) {
	const n = 1024
	m := newBench(b, cpu.Concurrent)
	x, y := m.tensor(ir.F32, n, n), m.tensor(ir.F32, n, n)
	x.Strides = []int64{1, n}
	for b.Loop() {
		m.run(device.Kernel{Op: device.Copy{Op: ir.OpCopy}, Ins: []device.View{x}, Outs: []device.View{y}})
	}
}

func BenchmarkLaunch(b *testing.B) {
	for mode, name := range map[cpu.Mode]string{cpu.Concurrent: "concurrent", cpu.Scheduled: "scheduled"} {
		b.Run(name, func(b *testing.B) {
			m := newBench(b, mode)
			l, err := m.d.Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpFill}, Outs: []device.View{m.tensor(ir.F32, 0)}})
			if err != nil {
				b.Fatal(err)
			}
			const batch = 1000
			for b.Loop() {
				for range batch {
					if err := m.s.Launch(l); err != nil {
						b.Fatal(err)
					}
				}
				if err := m.w.Sync(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/batch, "ns/launch")
		})
	}
}
