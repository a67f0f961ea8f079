package cuda

import (
	"fmt"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// BenchmarkIssue times what a call of a stream costs the host: a launch, a
// signal with the wait for it on another stream, a small copy.
func BenchmarkIssue(b *testing.B) {
	m, err := New(Options{})
	if err != nil {
		b.Skip(err)
	}
	w, err := m.Open(b.Context(), 1)
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	d := w.Device(0)
	var streams [2]device.Stream
	for i := range streams {
		streams[i], err = d.NewStream(device.StreamOptions{Name: fmt.Sprint(i)})
		must(err)
	}
	mem, err := d.Alloc(1<<20, device.Shared)
	must(err)
	v := device.View{Mem: mem, DType: ir.F32, Shape: []int64{256}, Strides: []int64{1}}
	u := v
	u.Off = 4096
	l, err := d.Prepare(device.Kernel{Op: ir.OpNeg, Ins: []device.View{v}, Outs: []device.View{u}})
	must(err)
	c, err := d.NewCounters(1)
	must(err)
	const nodes = 1000
	g, err := w.(device.Capturer).Capture(func() error {
		for range nodes {
			must(streams[0].Launch(l))
		}
		return nil
	})
	must(err)
	b.Run(fmt.Sprintf("graph of %d", nodes), func(b *testing.B) {
		for b.Loop() {
			must(g.Launch(b.Context()))
			must(w.Sync(b.Context()))
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*nodes), "ns/node")
	})
	raised := int64(0)
	for name, issue := range map[string]func(){
		"launch": func() { must(streams[0].Launch(l)) },
		"copy":   func() { must(streams[0].Copy(u, v)) },
		"edge": func() {
			raised++
			must(streams[0].Launch(l))
			must(streams[0].Signal(c, 0, 1))
			must(streams[1].WaitCounter(c, 0, raised))
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				issue()
				if i++; i%1000 == 0 {
					b.StopTimer()
					must(w.Sync(b.Context()))
					b.StartTimer()
				}
			}
			must(w.Sync(b.Context()))
		})
	}
}
