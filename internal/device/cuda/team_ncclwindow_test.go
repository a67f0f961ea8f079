package cuda

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/devicetest"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// fakeWindows is what a fakeNCCL has of members' memory.
type fakeWindows struct {
	made   map[uintptr]fakeWindow // by handle
	asked  []fakeWindow           // in the group under way
	most   int                    // that there were at once
	groups int
	fail   uintptr       // what the end of a group with windows returns
	stuck  chan struct{} // where not nil, it does not return before
}

type fakeWindow struct{ comm, at, bytes, handle, flags uintptr }

func (x *fakeNCCL) windowCalls(table map[string]func([]uintptr) uintptr) {
	if x.windows.made == nil {
		x.windows.made = map[uintptr]fakeWindow{}
	}
	table["ncclCommWindowRegister"] = func(a []uintptr) uintptr {
		if x.depth != 1 || a[4] != 1 || a[1]%4096 != 0 {
			x.f.Errorf("a window %v outside a group, not symmetric or not aligned", a)
		}
		x.windows.asked = append(x.windows.asked, fakeWindow{a[0], a[1], a[2], a[3], a[4]})
		return 0
	}
	table["ncclCommWindowDeregister"] = func(a []uintptr) uintptr {
		w, ok := x.windows.made[a[1]]
		if !ok || w.comm != a[0] {
			x.f.Errorf("communicator %d has no window %d", a[0], a[1])
		}
		delete(x.windows.made, a[1])
		return 0
	}
}

// endWindows makes the windows of a group: one of each rank, alike.
func (x *fakeNCCL) endWindows() uintptr {
	w := &x.windows
	asked := w.asked
	w.asked = nil
	if len(asked) == 0 {
		return 0
	}
	if w.stuck != nil {
		<-w.stuck
		return 1
	}
	if w.fail != 0 {
		return w.fail
	}
	team, _ := x.rank(asked[0].comm)
	if len(asked) != len(x.teams[team]) {
		x.f.Errorf("%d windows for %d ranks", len(asked), len(x.teams[team]))
	}
	w.groups++
	for i, a := range asked {
		if a.bytes != asked[0].bytes || a.comm != x.teams[team][i] {
			x.f.Errorf("windows %+v", asked)
		}
		for _, o := range w.made {
			if o.comm == a.comm && a.at < o.at+o.bytes && o.at < a.at+a.bytes {
				x.f.Errorf("window %+v over %+v", a, o)
			}
		}
		h := uintptr(7000 + 10*w.groups + i)
		w.made[h] = a
		cabi.Store(a.handle, h)
	}
	w.most = max(w.most, len(w.made))
	return 0
}

// TestNCCLWindows runs what NCCL has kernels on windows for, on fakes, call by call
// and within graphs, and wants the memory registered while it is there and its
// team is.
func TestNCCLWindows(t *testing.T) {
	for _, team := range [][]int{{0, 1}, {1, 0, 3}} {
		x, w := ncclWorld(t, 4, 4)
		for range 2 { // the second gets the first's communicators
			r := newTeamRig(t, w, "windows", team)
			took := map[ir.Op]int{}
			for _, op := range []ir.Op{ir.OpAllReduce, ir.OpAllGather, ir.OpReduceScatter} {
				for _, c := range goCases(op, ncclWindowName, len(team)) {
					if r.add(c, device.Tuning{}) {
						took[op]++
					}
				}
				if took[op] == 0 {
					t.Errorf("%s: no case was taken", op)
				}
			}
			if len(x.windows.made) != len(team) {
				t.Errorf("%d windows for one region of %d members", len(x.windows.made), len(team))
			}
			r.run(2)
			r.close()
			if len(x.windows.made) != len(team) {
				t.Errorf("%d windows are left of a team whose memory is still there", len(x.windows.made))
			}
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if len(x.windows.made) != 0 {
			t.Errorf("%d windows are left of a world that is closed", len(x.windows.made))
		}
		if len(x.teams) != 1 || x.windows.groups != 1 {
			t.Errorf("%d teams, %d groups of windows", len(x.teams), x.windows.groups)
		}
	}
}

// windowed makes an all_reduce of bytes at so many bytes in memory of their own on
// ranks 0 and 1.
func windowed(r *teamRig, bytes int64, dt ir.DType) *device.Collective {
	c := &device.Collective{Op: ir.OpAllReduce, Red: ir.Sum, Together: true}
	for _, m := range r.members {
		n := bytes / dt.Size()
		p := device.Part{In: r.view(m.Rank, dt, []int64{n}, 0), Out: r.view(m.Rank, dt, []int64{n}, 0), Reads: true, Writes: true, To: -1, From: -1}
		c.Parts = append(c.Parts, p)
	}
	return c
}

// TestNCCLWindowsGo wants a window gone before its memory is.
func TestNCCLWindowsGo(t *testing.T) {
	x, w := ncclWorld(t, 2, 2)
	r := newTeamRig(t, w, "main", []int{0, 1})
	c := windowed(r, deviceSlab+4096, ir.F32) // regions of their own
	launches, err := r.team.Prepare(device.Tuning{Algo: ncclWindowName}, c)
	r.must(err)
	if len(x.windows.made) != 4 {
		t.Errorf("%d windows of an operand and a result on two members", len(x.windows.made))
	}
	if x.windows.most < 6 {
		t.Errorf("at most %d windows: the trial run had none", x.windows.most)
	}
	for i, left := range []int{2, 2, 0, 0} {
		p := c.Parts[i%2]
		v := []device.View{p.In, p.Out}[i/2]
		r.must(v.Mem.Free())
		if len(x.windows.made) != left {
			t.Errorf("after %d of 4 operands are freed %d windows are left, want %d", i+1, len(x.windows.made), left)
		}
	}
	for _, l := range launches {
		l.Release()
	}
	r.must(r.team.Close())
	r.must(w.Close())
}

// TestNCCLWindowsStay has a world take over communicators whose windows are another's, which
// is closed afterwards: it cannot take back what it no longer finds.
func TestNCCLWindowsStay(t *testing.T) {
	x, w := ncclWorld(t, 2, 2)
	next, err := w.(*world).m.Open(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	tune := device.Tuning{Algo: ncclWindowName}
	first, second := newTeamRig(t, w, "first", []int{0, 1}), newTeamRig(t, next, "second", []int{0, 1})
	for i, r := range []*teamRig{first, first, second} {
		_, err := r.team.Prepare(tune, windowed(r, 64, ir.F32))
		r.must(err)
		if i < 2 { // the next team gets the communicators
			r.must(r.team.Close())
			r.team = teamOf(t, r.w.(*world), "again")
		}
	}
	if len(x.teams) != 1 || x.windows.groups != 2 {
		t.Errorf("%d teams, %d groups of windows", len(x.teams), x.windows.groups)
	}
	first.must(w.Close())
	for _, m := range x.windows.made {
		_, rank := x.rank(m.comm)
		if next.(*world).devices[rank].site.heaps[device.Shared].regionOf(nvlib.Ptr(m.at)) == nil {
			t.Errorf("NCCL still has %d bytes at %#x of a world that is closed", m.bytes, m.at)
		}
	}
	second.must(next.Close())
	if len(x.windows.made) != 0 {
		t.Errorf("%d windows are left", len(x.windows.made))
	}
}

// TestNCCLWithAndWithout wants NCCL's two algorithms apart: what is not to use
// windows has communicators that know none.
func TestNCCLWithAndWithout(t *testing.T) {
	x, w := ncclWorld(t, 2, 2)
	r := newTeamRig(t, w, "main", []int{0, 1})
	c := windowed(r, 64, ir.F32)
	for _, name := range []string{ncclWindowName, ncclName, ncclWindowName} {
		if _, err := r.team.Prepare(device.Tuning{Algo: name}, c); err != nil {
			t.Fatal(err)
		}
	}
	if len(x.teams) != 2 {
		t.Errorf("%d teams of communicators", len(x.teams))
	}
	with := map[int]bool{}
	for _, m := range x.windows.made {
		team, _ := x.rank(m.comm)
		with[team] = true
	}
	if len(with) != 1 {
		t.Errorf("windows in %d teams of communicators", len(with))
	}
	r.must(r.team.Close())
	r.must(w.Close())
}

// TestNCCLWindowsDecline lists what windows are not for, and why.
func TestNCCLWindowsDecline(t *testing.T) {
	x, w := ncclWorld(t, 2, 2)
	r := newTeamRig(t, w, "main", []int{0, 1})
	for what, tc := range map[string]struct {
		change func(c *device.Collective)
		want   string
	}{
		"fine":    {func(*device.Collective) {}, ""},
		"op":      {func(c *device.Collective) { c.Op = ir.OpBroadcast }, "no kernels on windows for broadcast"},
		"max":     {func(c *device.Collective) { c.Red, c.AnyOrder = ir.Max, true }, "no kernels on windows for a max of f32"},
		"type":    {func(c *device.Collective) { retype(c, ir.I32) }, "no kernels on windows for a sum of i32"},
		"apart":   {func(c *device.Collective) { c.Parts[1].In.Off += 4 }, "do not lie alike"},
		"private": {func(c *device.Collective) { c.Parts[0].Out.Mem = r.private(0, 1<<12) }, "cannot be shared with other processes"},
	} {
		c := windowed(r, 64, ir.F32)
		for i := range c.Parts {
			c.Parts[i].In.Shape, c.Parts[i].Out.Shape = []int64{8}, []int64{8}
		}
		tc.change(c)
		err := r.team.Supports(device.Tuning{Algo: ncclWindowName}, c)
		if (err == nil) != (tc.want == "") || err != nil && (!strings.Contains(err.Error(), tc.want) || !errors.Is(err, device.ErrUnsupported)) {
			t.Errorf("%s: got %v, want %q", what, err, tc.want)
		}
	}
	if len(x.windows.made) != 0 {
		t.Error("asking makes windows")
	}
	r.must(w.Close())
}

func (r *teamRig) private(rank int, bytes int64) device.Memory {
	m, err := r.w.Device(rank).Alloc(bytes, device.Private)
	r.must(err)
	return m
}

// TestNCCLWindowsFail has NCCL refuse a window, or never come back from making it:
// once, and then nobody asks it again.
func TestNCCLWindowsFail(t *testing.T) {
	for _, stuck := range []bool{false, true} {
		t.Run(fmt.Sprint("stuck ", stuck), func(t *testing.T) {
			x, w := ncclWorld(t, 2, 2)
			want := "fake trouble"
			if x.windows.fail = 5; stuck {
				want = "did not come back"
				x.windows.stuck = make(chan struct{})
			}
			w.(*world).m.sys.windows.patience = 20 * time.Millisecond
			r := newTeamRig(t, w, "main", []int{0, 1})
			c := windowed(r, 64, ir.F32)
			tune := device.Tuning{Algo: ncclWindowName}
			r.must(r.team.Supports(tune, c))
			if _, err := r.team.Prepare(tune, c); !errors.Is(err, device.ErrUnsupported) || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v", err)
			}
			if err := r.team.Supports(tune, c); !errors.Is(err, device.ErrUnsupported) || !strings.Contains(err.Error(), want) {
				t.Errorf("afterwards %v", err)
			}
			if stuck {
				close(x.windows.stuck)
			}
			r.must(r.team.Close())
			r.must(w.Close())
			if (len(x.aborted) > 0) != stuck {
				t.Errorf("%d communicators were aborted", len(x.aborted))
			}
		})
	}
}

// TestNCCLWindowsUnalike has other memory lie about in the heaps, on each member
// elsewhere: operands that lie alike are taken all the same.
func TestNCCLWindowsUnalike(t *testing.T) {
	x, w := ncclWorld(t, 4, 4)
	r := newTeamRig(t, w, "windows", []int{0, 1, 2, 3})
	c := teamCase{op: ir.OpAllGather, dt: ir.F32, shape: []int64{1024}, algo: ncclWindowName}
	if !r.take(c, device.Tuning{}) {
		t.Fatal("declined")
	}
	for _, m := range r.members {
		for i := range m.Rank {
			_ = r.view(m.Rank, ir.F32, []int64{1000 * int64(i+1)}, 0)
		}
	}
	r.prepare(r.cases, device.Tuning{})
	r.run(1)
	r.close()
	r.must(w.Close())
	if len(x.aborted) > 0 {
		t.Errorf("%d communicators were aborted", len(x.aborted))
	}
}

// realWindows returns a machine of two GPUs or more, and an NCCL with windows; without
// them the test is skipped.
func realWindows(t *testing.T) (*machine, *nvlib.NCCL) {
	t.Helper()
	m := real(t, Options{TeamTimeout: 5 * time.Second})
	devicetest.NeedGPUs(t, len(m.sys.gpus), 2, nil)
	lib, err := m.sys.nccl()
	if err != nil || !lib.HasWindows() {
		t.Skipf("no NCCL with windows: %v", err)
	}
	return m, lib
}
