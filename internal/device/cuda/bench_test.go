package cuda

import (
	"fmt"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// BenchmarkIssue times the host's work for operations on streams: a launch, a signal with the wait for it on another
// stream, and a small copy.
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
	must := mustOf(b)
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
	l, err := d.Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpNeg}, Ins: []device.View{v}, Outs: []device.View{u}})
	must(err)
	c, err := d.NewCounters(1)
	must(err)
	const nodes = 1000
	g, err := w.Capture(func() error {
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
	many := make([]device.Launch, nodes)
	for i := range many {
		many[i], err = d.Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpNeg}, Ins: []device.View{v}, Outs: []device.View{u}})
		must(err)
	}
	mark := int64(0)
	marked := func() {
		mark++
		must(streams[0].Begin(mark))
		must(streams[0].Launch(l))
		must(streams[0].End(mark))
	}
	raised := int64(0)
	for name, issue := range map[string]func(){
		"launch": func() { must(streams[0].Launch(l)) },
		"marked": marked,
		"many": func() {
			mark++
			must(streams[0].Begin(mark))
			must(streams[0].Launch(many[mark%nodes]))
			must(streams[0].End(mark))
		},
		"copy": func() { must(streams[0].Copy(u, v)) },
		"edge": func() {
			raised++
			must(streams[0].Launch(l))
			must(streams[0].Signal(c, 0, 1))
			must(streams[1].WaitCounter(c, 0, raised))
		},
	} {
		b.Run(name, func(b *testing.B) { repeat(b, w, issue) })
	}
	w.Observe(nobody{})
	b.Run("observed", func(b *testing.B) { repeat(b, w, marked) })
}

// repeat times only issuing. While the device finishes the issued work, the timer is stopped.
func repeat(b *testing.B, w device.World, issue func()) {
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		issue()
		if i++; i%1000 == 0 {
			b.StopTimer()
			if err := w.Sync(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	}
	if err := w.Sync(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkGraphLaunch times the execution of a graph over all GPUs, each with a chain of small kernels, for each form
// of graph. It reports the host time of the launch, and the time until the host has noticed the end.
func BenchmarkGraphLaunch(b *testing.B) {
	m, err := New(Options{})
	if err != nil {
		b.Skip(err)
	}
	n := m.Caps().MaxRanks
	w, err := m.Open(b.Context(), n)
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	must := mustOf(b)
	var streams []device.Stream
	var launches []device.Launch
	for r := range n {
		s, err := w.Device(r).NewStream(device.StreamOptions{Name: "main"})
		must(err)
		mem, err := w.Device(r).Alloc(1<<20, device.Shared)
		must(err)
		v := device.View{Mem: mem, DType: ir.F32, Shape: []int64{256}, Strides: []int64{1}}
		l, err := w.Device(r).Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpNeg}, Ins: []device.View{v}, Outs: []device.View{v}})
		must(err)
		streams, launches = append(streams, s), append(launches, l)
	}
	for _, kernels := range []int{1, 30, 100} {
		g, err := w.Capture(func() error {
			for range kernels {
				for r, s := range streams {
					must(s.Launch(launches[r]))
				}
			}
			return nil
		})
		must(err)
		for i, form := range g.Forms() {
			g.Choose(i)
			b.Run(fmt.Sprintf("%d GPUs, %d kernels, %s", n, kernels, form), func(b *testing.B) {
				var issued time.Duration
				for b.Loop() {
					began := time.Now()
					must(g.Launch(b.Context()))
					issued += time.Since(began)
					must(w.Sync(b.Context()))
				}
				b.ReportMetric(float64(issued.Nanoseconds())/float64(b.N), "issue-ns/op")
			})
		}
		must(g.Close())
	}
}

// BenchmarkDriver times, one by one, the driver calls that issue work.
func BenchmarkDriver(b *testing.B) {
	m := real(b, Options{})
	opened, err := m.Open(b.Context(), 1)
	if err != nil {
		b.Fatal(err)
	}
	defer opened.Close()
	w := opened.(*world)
	drv, site := w.drv, w.sites[0]
	must := mustOf(b)
	s, err := w.Device(0).NewStream(device.StreamOptions{Name: "main"})
	must(err)
	other, err := w.Device(0).NewStream(device.StreamOptions{Name: "side"})
	must(err)
	mem, err := w.Device(0).Alloc(4096, device.Shared)
	must(err)
	v := device.View{Mem: mem, DType: ir.F32, Shape: []int64{256}, Strides: []int64{1}}
	prepared, err := w.Device(0).Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpNeg}, Ins: []device.View{v}, Outs: []device.View{v}})
	must(err)
	k := prepared.(*launch).steps[0].(*kernelStep).l
	h, o := s.(*stream).h, other.(*stream).h
	must(drv.Bind(site.ctx))
	defer drv.Unbind()
	plain, err := site.clock.Event(false)
	must(err)
	timed, err := site.clock.Event(true)
	must(err)
	must(drv.Record(timed, h))
	must(drv.Record(plain, h))
	for _, call := range []struct {
		name string
		do   func()
	}{
		{"bind", func() { must(drv.Bind(site.ctx)); drv.Unbind() }},
		{"launch", func() { must(drv.Launch(k, h)) }},
		{"record", func() { must(drv.Record(plain, h)) }},
		{"record timed", func() { must(drv.Record(timed, h)) }},
		{"wait", func() { must(drv.WaitEvent(o, plain)) }},
		{"event query", func() { _, err := drv.EventDone(plain); must(err) }},
		{"stream query", func() { _, err := drv.StreamIdle(h); must(err) }},
		{"elapsed", func() { _, err := drv.Elapsed(timed, timed); must(err) }},
	} {
		must(drv.SyncStream(h))
		must(drv.SyncStream(o))
		b.Run(call.name, func(b *testing.B) {
			i := 0
			for b.Loop() {
				call.do()
				if i++; i%500 == 0 {
					b.StopTimer()
					must(drv.SyncStream(h))
					must(drv.SyncStream(o))
					b.StartTimer()
				}
			}
			must(drv.SyncStream(h))
		})
	}
}
