package cuda

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/internal/tune"
	procs "hocket.example/hocket/internal/world"
	"hocket.example/hocket/ir"
)

// NVLink multicast is tested only on the fake driver; no test enables it on a real GPU.

// optedIn opens a world of a user who has enabled multicast, with a team of all ranks. Kernels of teams are only
// recorded.
func optedIn(t *testing.T, gpus, ranks int) (*meetings, *world, *team) {
	t.Helper()
	l, w, tm := noted(t, gpus, ranks)
	w.m.sys.Multicast = true
	return l, w, tm
}

// anySum returns an all_reduce with the sum in any order.
func anySum(t *testing.T, w *world, count int64) *device.Collective {
	c := summed(t, w, count, 0, 0)
	c.AnyOrder = true
	return c
}

var byMultimem = device.Tuning{Algo: "multimem"}

// TestMultimemSupports checks the reason of each refusal, and that the driver is not queried if multicast is not
// enabled.
func TestMultimemSupports(t *testing.T) {
	for name, c := range map[string]struct {
		ranks  int // number of each of 2 GPUs; 0 means 2
		broken func(l *meetings, w *world, tm *team, c *device.Collective)
		tune   device.Tuning
		why    string // empty if it is supported
	}{
		"taken": {},
		"not opted": {broken: func(_ *meetings, w *world, _ *team, _ *device.Collective) { w.m.sys.Multicast = false },
			why: "HOCKET_MULTICAST=on enables it"},
		"in order": {broken: func(_ *meetings, _ *world, _ *team, c *device.Collective) { c.AnyOrder = false },
			why: "order=any"},
		"maximum": {broken: func(_ *meetings, _ *world, _ *team, c *device.Collective) { c.Red = ir.Max },
			why: "no max of bf16"},
		"average": {broken: func(_ *meetings, _ *world, _ *team, c *device.Collective) { c.Red = ir.Avg },
			why: "no avg of bf16"},
		"integers": {broken: func(_ *meetings, _ *world, _ *team, c *device.Collective) { typed(c, ir.I32) },
			why: "no sum of i32"},
		"f64": {broken: func(_ *meetings, _ *world, _ *team, c *device.Collective) { typed(c, ir.F64) },
			why: "no sum of f64"},
		"f16": {broken: func(_ *meetings, _ *world, _ *team, c *device.Collective) { typed(c, ir.F16) }},
		"f32": {broken: func(_ *meetings, _ *world, _ *team, c *device.Collective) { typed(c, ir.F32) }},
		"another op": {broken: func(_ *meetings, _ *world, _ *team, c *device.Collective) { c.Op = ir.OpReduce },
			why: "it runs all_reduce only"},
		"old GPU": {broken: func(l *meetings, _ *world, _ *team, _ *device.Collective) { l.Multicast.Unable = 1 },
			why: "GPU 1 does not support NVLink multicast"},
		"old driver": {broken: func(_ *meetings, w *world, _ *team, _ *device.Collective) {
			w.drv = driverWithout(t, "cuMulticastBindMem")
		}, why: "the driver has no cuMulticastBindMem"},
		"shared GPU":  {ranks: 4, why: "share GPU 0"},
		"bad unroll":  {tune: device.Tuning{Unroll: 3}, why: "unroll 3"},
		"bad threads": {tune: device.Tuning{Threads: 33}, why: "33 threads"},
	} {
		t.Run(name, func(t *testing.T) {
			l, w, tm := optedIn(t, 2, max(c.ranks, 2))
			sum := anySum(t, w, 1000)
			drv := w.drv
			if c.broken != nil {
				c.broken(l, w, tm, sum)
			}
			asked := l.Called["cuDeviceGetAttribute"]
			c.tune.Algo = "multimem"
			err := tm.Supports(c.tune, sum)
			w.drv = drv
			if c.why == "" && err != nil || c.why != "" &&
				(!errors.Is(err, device.ErrUnsupported) || !strings.Contains(err.Error(), c.why)) {
				t.Errorf("%v", err)
			}
			if !w.m.sys.Multicast && l.Called["cuDeviceGetAttribute"] != asked {
				t.Error("the driver was queried without the opt-in")
			}
		})
	}
}

// typed changes the element type of a collective's operands. Their size in bytes does not decrease.
func typed(c *device.Collective, dt ir.DType) {
	for i := range c.Parts {
		for _, v := range []*device.View{&c.Parts[i].In, &c.Parts[i].Out} {
			v.Shape, v.DType = []int64{v.Shape[0] * v.DType.Size() / dt.Size()}, dt
		}
	}
}

// driverWithout returns a fake driver that lacks a function.
func driverWithout(t *testing.T, name string) *nvlib.Driver {
	f := fakedriver.New(t, 1)
	table := f.Calls()
	f.Multicast.Calls(f, table)
	delete(table, name)
	d, err := nvlib.DriverOn(cabi.Fake("old libcuda", table))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestMultimemPrepare checks the driver calls that create multicast memory, in order, and the launches. A second launch
// of the same size creates nothing, a larger one creates more memory, and closing the team undoes everything.
func TestMultimemPrepare(t *testing.T) {
	l, w, tm := optedIn(t, 2, 2)
	l.Multicast.Watched = true
	must := mustOf(t)
	prepare := func(count int64) {
		t.Helper()
		launches, err := tm.Prepare(byMultimem, anySum(t, w, count))
		must(err)
		for _, la := range launches {
			la.Release()
		}
	}
	only := func(list []string) (out []string) {
		for i, name := range list {
			if i == 0 || name != list[i-1] || strings.HasPrefix(name, "cuMulticast") {
				out = append(out, strings.TrimPrefix(name, "cu"))
			}
		}
		return out
	}
	sum := anySum(t, w, 1<<20) // this memory is allocated before the calls are recorded
	l.Multicast.Log = nil
	launches, err := tm.Prepare(byMultimem, sum)
	must(err)
	mapped := []string{"MemAddressReserve", "MemMap", "MemSetAccess"}
	bound := append([]string{"MemCreate", "MulticastBindMem"}, mapped...)
	want := slices.Concat([]string{"MulticastGetGranularity", "MulticastCreate", "MulticastAddDevice",
		"MulticastAddDevice"}, bound, bound, mapped)
	if got := only(l.Multicast.Log); !slices.Equal(got, want) {
		t.Errorf("created by calls %v, want %v", got, want)
	}
	mc := tm.joints[0]
	if mc.Bytes != fakedriver.Grain || len(mc.Own) != 2 {
		t.Errorf("the object has %d bytes of %d members", mc.Bytes, len(mc.Own))
	}
	for dev := range int32(2) {
		own, all := l.Reach.Of(uintptr(mc.Own[dev])), l.Reach.Of(uintptr(mc.All))
		if !own.Access[dev] || own.Access[1-dev] || own.Owner != dev || !all.Access[dev] ||
			own.Bytes != uintptr(mc.Bytes) || all.Bytes != own.Bytes {
			t.Errorf("device %d: %+v, %+v", dev, own, all)
		}
	}
	for i, m := range l.got[len(l.got)-2:] {
		reduce := kernels.AllReduce{DType: ir.BF16, Unroll: 1, Blocks: m.Blocks, Threads: 512, Count: 1 << 20,
			Share: 1 << 16, Data: mc.Own,
			In: pointers(tm, sum, true), Out: pointers(tm, sum, false), Flags: tm.regions["flags"].At,
			FlagHalf: tm.regions["flags"].Bytes / 2, Slots: 2 * kernels.BlocksMost}
		want := kernels.Multimem{AllReduce: reduce, All: mc.All}.Meeting(i)
		if m.Symbol != want.Symbol || m.Body != want.Body || !slices.Equal(m.Words, want.Words) || m.Blocks != 128 ||
			m.Threads != 512 {
			t.Errorf("member %d launches %+v, want %+v", i, m, want)
		}
	}
	for _, la := range launches {
		la.Release()
	}
	l.Multicast.Log = nil
	prepare(1 << 20)
	if len(tm.joints) != 1 || slices.ContainsFunc(l.Multicast.Log,
		func(s string) bool { return strings.HasPrefix(s, "cuMulticast") }) {
		t.Errorf("after a second launch: %d objects, calls %v", len(tm.joints), l.Multicast.Log)
	}
	prepare(9 << 20)
	if len(tm.joints) != 2 || tm.joints[1].Bytes != 32<<20 || tm.Bytes() < 36<<20 {
		t.Errorf("after a larger launch: %d objects of up to %d bytes, the team has %d", len(tm.joints),
			tm.joints[len(tm.joints)-1].Bytes, tm.Bytes())
	}
	l.Multicast.Log = nil
	must(tm.Close())
	undone := []string{"MemUnmap", "MemAddressFree", "MulticastUnbind", "MemRelease"}
	once := slices.Concat(undone[:2], undone, undone, []string{"MemRelease"})
	if got, want := only(l.Multicast.Log), only(slices.Concat(once, once)); !slices.Equal(got[:len(want)], want) {
		t.Errorf("undone by calls %v, want %v", got, want)
	}
	if len(l.Multicast.Objects) != 0 {
		t.Errorf("%d objects are left", len(l.Multicast.Objects))
	}
}

// pointers returns the addresses of a collective's inputs or results.
func pointers(tm *team, c *device.Collective, in bool) (list []nvlib.Ptr) {
	r, err := tm.resolve(c)
	if err != nil {
		return nil
	}
	for _, p := range r.Operands {
		if in {
			list = append(list, p.In.Addr)
		} else {
			list = append(list, p.Out.Addr)
		}
	}
	return list
}

// TestMultimemFails makes each call fail once. The error of Prepare names the call, nothing stays allocated, and the
// world still works. Closing a world together with its team also undoes everything.
func TestMultimemFails(t *testing.T) {
	for n, call := 1, "first"; call != ""; n++ {
		l, w, tm := optedIn(t, 2, 2)
		sum := anySum(t, w, 1<<20)
		if _, err := tm.Prepare(device.Tuning{Algo: "pull"}, sum); err != nil { // allocates the flags first
			t.Fatal(err)
		}
		left := l.Left()
		call, l.Failure = "", 801
		l.At(n, func(name string) bool { call = name; return true })
		launches, err := tm.Prepare(byMultimem, sum)
		l.Nth = nil
		switch {
		case call == "": // there are not so many
			if err != nil || n < 20 {
				t.Errorf("%d calls, %v", n-1, err)
			}
		case call == "cuDeviceGetAttribute" && errors.Is(err, device.ErrUnsupported): // so the device says
		case err == nil || nvlib.CUDACode(err) != 801 || !strings.Contains(err.Error(), "multimem") ||
			!strings.Contains(err.Error(), strings.TrimSuffix(call, "_v2")):
			t.Errorf("call %d, %s: %v", n, call, err)
		case !releases(call) && (l.Left() != left || len(tm.joints) != 0 || len(l.Multicast.Objects) != 0):
			t.Errorf("call %d, %s: allocated objects are %s, before %s", n, call, l.Left(), left)
		}
		for _, la := range launches {
			la.Release()
		}
		if launches, err = tm.Prepare(byMultimem, sum); err != nil {
			t.Errorf("after call %d, %s, failed: %v", n, call, err)
		}
		for _, la := range launches {
			la.Release()
		}
	}
}

// TestMultimemAhead checks that kernels of the algorithm multimem can be compiled ahead, and that no multicast object
// is created for that.
func TestMultimemAhead(t *testing.T) {
	l, w, tm := optedIn(t, 2, 2)
	sum := anySum(t, w, 1000)
	a, r, err := tm.check(byMultimem, sum)
	if err != nil {
		t.Fatal(err)
	}
	early := &earlyMeetings{meetings: l}
	w.m.opts.Kernels = early
	p, err := a.Plan(tm, byMultimem, r)
	if err == nil {
		tm.compileAhead(p)
	}
	if err != nil || len(early.ahead) != 2 || !strings.HasPrefix(early.ahead[0].Body, "reduceMultimem<bf16, 2,") {
		t.Errorf("%v, %+v", err, early.ahead)
	}
	if l.Called["cuMulticastCreate"] != 0 {
		t.Error("a multicast object was created")
	}
}

type earlyMeetings struct {
	*meetings
	ahead []kernels.Meeting
}

func (*earlyMeetings) Ahead(kernels.Target, kernels.Problem) {}
func (l *earlyMeetings) MeetingAhead(_ kernels.Target, m kernels.Meeting) {
	l.ahead = append(l.ahead, m)
}

// preferring returns a tuned table in which multimem is the first choice for sums of bf16 of two members.
func preferring() *comm.Table {
	return &comm.Table{Version: comm.TableVersion,
		Entries: []comm.Entry{{Op: "all_reduce", Reduction: "sum", Elem: 2, Members: 2,
			Brackets: []comm.Bracket{{Best: []comm.Timed{{Tuning: byMultimem},
				{Tuning: device.Tuning{Algo: "pull"}}}}}}}}
}

// TestMultimemChosen checks that multimem is never chosen unless the user has enabled multicast, whatever a table or
// policy says, and that requesting it then returns an error. If multicast is enabled, multimem may be chosen for sums
// in any order, and for nothing else.
func TestMultimemChosen(t *testing.T) {
	for _, c := range []struct {
		opted, any bool
		policy     comm.Policy
		Want       string
	}{
		{false, false, comm.Policy{}, "pull"},
		{false, true, comm.Policy{}, "pull"},
		{false, true, comm.Policy{Algorithm: "multimem"}, "pull"},
		{true, false, comm.Policy{}, "pull"},
		{true, false, comm.Policy{Algorithm: "multimem"}, "pull"},
		{true, true, comm.Policy{}, "multimem"},
		{true, true, comm.Policy{Fixed: true}, "pull"},
		{true, true, comm.Policy{Algorithm: "multimem"}, "multimem"},
	} {
		l, w, tm := optedIn(t, 2, 2)
		w.m.sys.Multicast = c.opted
		var members []comm.Member
		for _, m := range tm.members {
			members = append(members, comm.Member{Rank: m.dev.rank, Stream: m.stream})
		}
		must := mustOf(t)
		must(tm.Close())
		in := comm.Instance{Collective: *summed(t, w, 1<<16, 0, 0), Shared: true}
		in.AnyOrder = c.any
		for i := range in.Parts {
			in.Parts[i].To, in.Parts[i].From = -1, -1
		}
		d := comm.NewDispatch(w, w.m.Caps(), preferring(), c.policy)
		ch, err := d.Design(members, []comm.Instance{in})
		must(err)
		must(ch.Open())
		if got := ch.Choice(0); got.Tuning.Algo != c.Want {
			t.Errorf("%+v: %+v is chosen", c, got)
		}
		must(ch.Close())
		if made := l.Called["cuMulticastCreate"]; (made > 0) != (c.Want == "multimem") {
			t.Errorf("%+v: %d multicast objects were created", c, made)
		}
		in.Pin = byMultimem
		ch, err = d.Design(members, []comm.Instance{in})
		if wrong := (err == nil) != (c.opted && c.any); wrong || err != nil &&
			!strings.Contains(err.Error(), map[bool]string{false: "HOCKET_MULTICAST", true: "order=any"}[c.opted]) {
			t.Errorf("%+v: pinned: %v", c, err)
		}
		if err == nil {
			must(ch.Close())
		}
	}
	for _, e := range comm.Shipped().Entries {
		for _, b := range e.Brackets {
			if slices.ContainsFunc(b.Best, func(x comm.Timed) bool { return x.Algo == byMultimem.Algo }) {
				t.Errorf("the shipped table names multimem for %s", e.Op)
			}
		}
	}
}

// TestMultimemTuned checks that the tuner creates no multicast objects unless the user has enabled multicast. If it is
// enabled, the tuner creates them in trials; the fake driver cannot execute multimem.
func TestMultimemTuned(t *testing.T) {
	t.Setenv(files.CacheVariable, t.TempDir())
	for _, opted := range []bool{false, true} {
		f := fakedriver.New(t, 2)
		sys := system(f)
		sys.Multicast = opted
		name := fmt.Sprint("fake with multicast ", opted)
		device.Register(device.Kind{Name: name,
			Open: func(*procs.World) (device.Machine, error) { return newMachine(sys, Options{Kernels: f}), nil }})
		tuned, err := tune.Tune(t.Context(),
			tune.Options{Machine: name, Ranks: 2, Ops: []ir.Op{ir.OpAllReduce}, Sizes: []int64{4096}})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range tuned.Table.Entries {
			for _, b := range e.Brackets {
				if slices.ContainsFunc(b.Best, func(x comm.Timed) bool { return x.Algo == byMultimem.Algo }) {
					t.Error("multimem is in the tuned table")
				}
			}
		}
		if made := f.Called["cuMulticastCreate"]; (made > 0) != opted {
			t.Errorf("opted in: %v, %d multicast objects were created", opted, made)
		}
	}
}
