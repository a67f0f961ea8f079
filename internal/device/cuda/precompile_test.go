package cuda

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// seers is a kernel library that records which kernels are compiled ahead, and which are requested for launches.
type seers struct {
	meetings
	early, late map[string]bool
}

func name(m kernels.Meeting) string {
	return m.File + " " + m.Symbol + " " + m.Body + fmt.Sprint(m.Threads)
}

func (l *seers) Meeting(t kernels.Target, m kernels.Meeting) (kernels.Step, error) {
	l.late[name(m)] = true
	return l.meetings.Meeting(t, m)
}

func (l *seers) MeetingAhead(_ kernels.Target, m kernels.Meeting) { l.early[name(m)] = true }

func (l *seers) Steps(t kernels.Target, p kernels.Problem) ([]kernels.Step, error) {
	l.note(l.late, p)
	return l.meetings.Steps(t, p)
}

func (l *seers) Ahead(_ kernels.Target, p kernels.Problem) { l.note(l.early, p) }

func (l *seers) note(to map[string]bool, p kernels.Problem) {
	texts, _ := kernels.Sources(p)
	for _, s := range texts {
		to[s] = true
	}
}

func (l *seers) forget() { l.early, l.late = map[string]bool{}, map[string]bool{} }

func seen(t *testing.T, gpus, ranks int) (*seers, *world) {
	t.Helper()
	l := &seers{meetings: meetings{GPU: fakedriver.New(t, gpus)}}
	l.forget()
	w, err := newMachine(system(l.GPU), Options{Kernels: l, RanksPerGPU: ranks / gpus}).Open(t.Context(), ranks)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return l, w.(*world)
}

// TestTeamAhead checks, for every launch of a team, that exactly the kernels that it needs are compiled ahead, and that
// compiling ahead reserves and loads nothing.
func TestTeamAhead(t *testing.T) {
	for _, ranks := range [][]int{{0, 1}, {2, 0, 3}} {
		l, w := seen(t, 2, 4)
		many(w)
		allByHost(w.m, coll.HostPart{Permille: 300, Writers: 2, Readers: 5})
		r := newTeamRig(t, w, "main", ranks)
		team := r.team.(*team)
		took := map[string]int{}
		for _, a := range slices.Concat(coll.ReduceAlgorithms, coll.MoveAlgorithms, coll.SumAlgorithms, coll.RoutedAlgorithms) {
			for _, op := range append([]ir.Op{ir.OpAllReduce}, moveOps...) {
				for _, c := range moveCases(op, a.Name, len(ranks)) {
					r.place(c)
					col := r.cases[len(r.cases)-1].collective()
					l.forget()
					before := team.Bytes()
					team.PrepareAhead(device.Tuning{Algo: a.Name}, col)
					if team.Bytes() != before || len(l.late) > 0 {
						t.Errorf("%v: the prediction reserved %d bytes and loaded %d kernels", c, team.Bytes()-before, len(l.late))
					}
					early := l.early
					l.forget()
					r.drop()
					if !r.add(c, device.Tuning{}) {
						if len(early) > 0 {
							t.Errorf("%v: kernels %v were predicted for a collective that is declined", c, early)
						}
						continue
					}
					for k := range l.late {
						if !early[k] {
							t.Errorf("%v: %s was not predicted", c, k)
						}
					}
					if len(early) != len(l.late) {
						t.Errorf("%v: %d kernels predicted, %d needed", c, len(early), len(l.late))
					}
					took[a.Name] += len(early)
					r.drop()
				}
			}
		}
		for _, a := range slices.Concat(coll.ReduceAlgorithms, coll.MoveAlgorithms, coll.SumAlgorithms, coll.RoutedAlgorithms) {
			if took[a.Name] == 0 && (a.Name != "move-spread" || len(ranks) > 2) && (a.Name != "push-host" && a.Name != "lamport-host" || len(ranks) == 2) {
				t.Errorf("no kernel of %s was needed", a.Name)
			}
		}
		team.PrepareAhead(device.Tuning{Algo: "magic"}, &device.Collective{})
		r.close()
	}
}

// TestDeviceAhead checks that the kernels of operations are compiled ahead, including those of copies that no copy
// engine can do, and that nothing is compiled ahead for products.
func TestDeviceAhead(t *testing.T) {
	l, w := seen(t, 1, 1)
	d := w.Device(0)
	mem, err := d.Alloc(1<<16, device.Private)
	if err != nil {
		t.Fatal(err)
	}
	at := func(off int64, shape, strides []int64) device.View {
		return device.View{Mem: mem, Off: off, DType: ir.F32, Shape: shape, Strides: strides}
	}
	flat := func(off int64) device.View { return at(off, []int64{64}, []int64{1}) }
	square := func(off, s0, s1 int64) device.View { return at(off, []int64{32, 32}, []int64{s0, s1}) }
	for what, tc := range map[string]struct {
		k    device.Kernel
		Want int
	}{
		"add":       {device.Kernel{Op: device.Elementwise{Op: ir.OpAdd}, Ins: []device.View{flat(0), flat(1024)}, Outs: []device.View{flat(2048)}}, 1},
		"reduction": {device.Kernel{Op: device.ReduceOperands{Red: ir.Sum}, Ins: []device.View{flat(0), flat(1024)}, Outs: []device.View{flat(2048)}}, 1},
		"copy":      {device.Kernel{Op: device.Copy{Op: ir.OpCopy}, Ins: []device.View{flat(0)}, Outs: []device.View{flat(2048)}}, 0},
		"transpose": {device.Kernel{Op: device.Copy{Op: ir.OpCopy}, Ins: []device.View{square(0, 1, 32)}, Outs: []device.View{square(8192, 32, 1)}}, 1},
		"linear":    {device.Kernel{Op: device.Linear{}, Ins: []device.View{square(0, 32, 1), square(8192, 32, 1)}, Outs: []device.View{square(16384, 32, 1)}}, 0},
		"broken":    {device.Kernel{Op: device.Elementwise{Op: ir.OpAdd}, Ins: []device.View{flat(1 << 20)}, Outs: []device.View{flat(0)}}, 0},
	} {
		l.forget()
		d.(*dev).PrepareAhead(tc.k)
		early := l.early
		if len(early) != tc.Want {
			t.Errorf("%s: %d kernels predicted, want %d", what, len(early), tc.Want)
		}
		if tc.Want == 0 {
			continue
		}
		p, err := d.Prepare(tc.k)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		for k := range l.late {
			if !early[k] {
				t.Errorf("%s: not predicted: %s", what, k[len(k)-200:])
			}
		}
		p.Release()
	}
	w.end(fmt.Errorf("over"))
	l.forget()
	d.(*dev).PrepareAhead(device.Kernel{Op: device.Elementwise{Op: ir.OpAdd}, Ins: []device.View{flat(0), flat(1024)}, Outs: []device.View{flat(2048)}})
	if len(l.early) > 0 {
		t.Error("a world that has ended predicts kernels")
	}
}

// TestNCCLAhead checks that other kernels and libraries load while NCCL is loaded, and that no kernel is compiled for
// NCCL.
func TestNCCLAhead(t *testing.T) {
	l, w := seen(t, 2, 2)
	begun := make(chan bool, 1)
	w.m.sys.NCCL = func() (*nvlib.NCCL, error) { begun <- true; return nil, errors.New("it was only tried") }
	teamOf(t, w, "main").PrepareAhead(device.Tuning{Algo: ncclName}, &device.Collective{})
	<-begun // the test hangs if loading does not begin
	if len(l.early)+len(l.late) > 0 {
		t.Errorf("kernels requested ahead: %v, for launches: %v; want none", l.early, l.late)
	}
}
