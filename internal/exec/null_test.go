package exec

import (
	"context"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// nullMachine does nothing and takes no time, so that measurements show the cost of package exec itself.
type (
	nullMachine struct{ device.DefaultMachine }
	nullWorld   struct {
		device.DefaultWorld
		ranks int
	}
	nullDevice struct {
		device.DefaultDevice
		rank int
	}
	nullStream struct {
		device.DefaultStream
		ops *int
	}
	nullMemory struct {
		device.DefaultMemory
		n int64
	}
	nullEvent    struct{}
	nullCounters struct{ n int }
)

var nullOps int

func (nullMachine) Name() string { return "null" }
func (nullMachine) Caps() device.Caps {
	return device.Caps{MaxRanks: 64, DTypes: ir.DTypes()}
}
func (nullMachine) Open(_ context.Context, ranks int) (device.World, error) {
	return nullWorld{ranks: ranks}, nil
}
func (w nullWorld) Ranks() int                 { return w.ranks }
func (w nullWorld) Device(r int) device.Device { return nullDevice{rank: r} }
func (nullWorld) Sync(context.Context) error   { return nil }
func (nullWorld) Abort(error)                  {}
func (nullWorld) Close() error                 { return nil }
func (d nullDevice) Rank() int                 { return d.rank }
func (nullDevice) Alloc(n int64, _ device.MemKind) (device.Memory, error) {
	return &nullMemory{n: n}, nil
}
func (nullDevice) NewStream(device.StreamOptions) (device.Stream, error) {
	return &nullStream{ops: &nullOps}, nil
}
func (nullDevice) NewEvent() (device.Event, error)                  { return nullEvent{}, nil }
func (nullDevice) NewCounters(n int) (device.Counters, error)       { return nullCounters{n}, nil }
func (nullDevice) Prepare(device.Kernel) (device.Launch, error)     { return nullEvent{}, nil }
func (nullEvent) Release()                                          {}
func (c nullCounters) Len() int                                     { return c.n }
func (nullCounters) Release()                                       {}
func (m *nullMemory) Bytes() int64                                  { return m.n }
func (*nullMemory) Free() error                                     { return nil }
func (*nullStream) Name() string                                    { return "null" }
func (s *nullStream) did() error                                    { *s.ops++; return nil }
func (s *nullStream) Launch(device.Launch) error                    { return s.did() }
func (s *nullStream) Copy(_, _ device.View) error                   { return s.did() }
func (s *nullStream) Upload(device.View, []byte) error              { return s.did() }
func (s *nullStream) Download([]byte, device.View) error            { return s.did() }
func (s *nullStream) Record(device.Event) error                     { return s.did() }
func (s *nullStream) Wait(device.Event) error                       { return s.did() }
func (s *nullStream) Signal(device.Counters, int, int64) error      { return s.did() }
func (s *nullStream) WaitCounter(device.Counters, int, int64) error { return s.did() }
func (s *nullStream) Begin(int64) error                             { return s.did() }
func (s *nullStream) End(int64) error                               { return s.did() }

// TestIssueAllocates checks that issuing a run allocates nothing.
func TestIssueAllocates(t *testing.T) {
	for name, pr := range programs {
		t.Run(name, func(t *testing.T) {
			prog, err := Load(context.Background(), nullMachine{}, pr.plan(4, ""), Options{})
			if err != nil {
				t.Fatal(err)
			}
			in := pr.inputs(t, 4, 1)
			if err := prog.binder.bind(Inputs([]map[string]*tensor.Tensor{in}), nil, prog.weights.all); err != nil {
				t.Fatal(err)
			}
			nullOps = 0
			allocs := testing.AllocsPerRun(100, func() {
				if err := prog.issuer.runs(prog.binder.frames[:1]); err != nil {
					t.Fatal(err)
				}
			})
			if allocs != 0 || nullOps < 100*len(prog.im.Cmds) {
				t.Errorf("%v allocations in a run of %d commands, %d stream operations in all", allocs, len(prog.im.Cmds), nullOps)
			}
		})
	}
}

// BenchmarkIssue measures the host time of a run, per command.
func BenchmarkIssue(b *testing.B) {
	prog, err := Load(context.Background(), nullMachine{}, chunked(8, ""), Options{})
	if err != nil {
		b.Fatal(err)
	}
	if err := prog.binder.bind(Inputs([]map[string]*tensor.Tensor{chunkedInputs(b, 8, 1)}), nil, prog.weights.all); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := prog.issuer.runs(prog.binder.frames[:1]); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(prog.im.Cmds)), "ns/command")
}
