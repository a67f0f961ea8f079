package cuda

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/doctor"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/device/cuda/nccl"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// fakeNCCL is a libnccl in Go on the memory of a fakeGPU. It wants what the real
// one does: a group holds the calls of all ranks, on streams of their own.
type fakeNCCL struct {
	f       *fakeGPU
	teams   [][]uintptr // communicators by rank
	depth   int
	calls   []fakeCall
	broken  bool // a call of the group failed
	aborted []uintptr
	left    []uintptr // destroyed
	async   int32     // what ncclCommGetAsyncError tells
	version int32     // 0 for one without known mistakes

	shared interface { // with fakes of other processes; nil for this one's alone
		calls(table map[string]func([]uintptr) uintptr)
		give(calls []fakeCall)
	}
}

type fakeCall struct {
	name         string
	in, out, n   uintptr
	dt           nvlib.NCCLType
	red          nvlib.NCCLRed
	peer         int
	comm, stream uintptr
}

// open returns it as a library.
func (x *fakeNCCL) open() (*nvlib.NCCL, error) {
	names := []string{"ncclGetUniqueId", "ncclCommInitRank"}
	table := map[string]func([]uintptr) uintptr{}
	for _, n := range names {
		table[n] = func([]uintptr) uintptr { return 0 }
	}
	table["ncclGetVersion"] = func(a []uintptr) uintptr { return set(a[0], cmp.Or(x.version, 23102)) }
	text := cabi.NewCStrings([]string{"fake trouble"})
	table["ncclGetErrorString"] = func([]uintptr) uintptr { return cabi.Load[uintptr](text.Addr()) }
	table["ncclCommInitAll"] = func(a []uintptr) uintptr {
		x.f.remembered = true
		var comms []uintptr
		for i := range a[1] {
			c := uintptr(1000*(len(x.teams)+1)) + i
			comms = append(comms, c)
			cabi.Store(a[0]+8*i, c)
		}
		x.teams = append(x.teams, comms)
		return 0
	}
	table["ncclCommAbort"] = func(a []uintptr) uintptr {
		x.f.mu.Lock()
		defer x.f.mu.Unlock()
		x.aborted = append(x.aborted, a[0])
		return 0
	}
	table["ncclCommDestroy"] = func(a []uintptr) uintptr {
		x.f.mu.Lock()
		defer x.f.mu.Unlock()
		x.left = append(x.left, a[0])
		return 0
	}
	table["ncclCommGetAsyncError"] = func(a []uintptr) uintptr { return set(a[1], x.async) }
	table["ncclGroupStart"] = func([]uintptr) uintptr { x.depth++; return 0 }
	table["ncclGroupEnd"] = func([]uintptr) uintptr {
		if x.broken {
			x.drop()
			return 5 // ncclInvalidUsage
		}
		x.depth--
		x.end()
		return 0
	}
	add := func(c fakeCall) uintptr {
		if x.depth != 1 {
			x.f.Errorf("%s outside a group", c.name)
		}
		x.calls = append(x.calls, c)
		return 0
	}
	table["ncclAllReduce"] = func(a []uintptr) uintptr {
		return add(fakeCall{"all_reduce", a[0], a[1], a[2], nvlib.NCCLType(a[3]), nvlib.NCCLRed(a[4]), 0, a[5], a[6]})
	}
	table["ncclReduceScatter"] = func(a []uintptr) uintptr {
		return add(fakeCall{"reduce_scatter", a[0], a[1], a[2], nvlib.NCCLType(a[3]), nvlib.NCCLRed(a[4]), 0, a[5], a[6]})
	}
	table["ncclReduce"] = func(a []uintptr) uintptr {
		return add(fakeCall{"reduce", a[0], a[1], a[2], nvlib.NCCLType(a[3]), nvlib.NCCLRed(a[4]), int(a[5]), a[6], a[7]})
	}
	table["ncclBroadcast"] = func(a []uintptr) uintptr {
		return add(fakeCall{"broadcast", a[0], a[1], a[2], nvlib.NCCLType(a[3]), 0, int(a[4]), a[5], a[6]})
	}
	table["ncclAllGather"] = func(a []uintptr) uintptr {
		return add(fakeCall{"all_gather", a[0], a[1], a[2], nvlib.NCCLType(a[3]), 0, 0, a[4], a[5]})
	}
	table["ncclSend"] = func(a []uintptr) uintptr {
		return add(fakeCall{"send", a[0], 0, a[1], nvlib.NCCLType(a[2]), 0, int(a[3]), a[4], a[5]})
	}
	table["ncclRecv"] = func(a []uintptr) uintptr {
		return add(fakeCall{"recv", 0, a[0], a[1], nvlib.NCCLType(a[2]), 0, int(a[3]), a[4], a[5]})
	}
	if x.shared != nil {
		x.shared.calls(table)
	}
	x.f.failing(table, 1, func(name string) {
		x.broken = x.depth > 0
		if name == "ncclGroupEnd" {
			x.drop()
		}
	})
	return nvlib.NCCLOn(cabi.Fake("fake libnccl", table))
}

// drop ends a group in which a call failed: nothing of it is done.
func (x *fakeNCCL) drop() {
	x.depth, x.calls, x.broken = 0, nil, false
}

// rank finds a communicator.
func (x *fakeNCCL) rank(c uintptr) (team, rank int) {
	for t, comms := range x.teams {
		for r, o := range comms {
			if o == c {
				return t, r
			}
		}
	}
	x.f.Errorf("no communicator %d", c)
	return 0, 0
}

// end does a group: what every rank calls, when all streams have come to it.
func (x *fakeNCCL) end() {
	calls := x.calls
	x.calls = nil
	if len(calls) == 0 {
		return
	}
	if x.shared != nil {
		x.shared.give(calls)
		return
	}
	team, _ := x.rank(calls[0].comm)
	n := len(x.teams[team])
	by := make([][]fakeCall, n)
	streams := map[uintptr]int{}
	for _, c := range calls {
		t, r := x.rank(c.comm)
		if o, twice := streams[c.stream]; t != team || twice && o != r {
			x.f.Errorf("calls of two teams in a group, or of two ranks on a stream")
		}
		streams[c.stream] = r
		by[r] = append(by[r], c)
	}
	x.f.mu.Lock()
	defer x.f.mu.Unlock()
	for s := range streams {
		x.f.do(s, func() {}) // that the stream may be given work
	}
	x.f.do(calls[0].stream, func() { x.perform(by) })
}

var fakeSizes = map[nvlib.NCCLType]ir.DType{nvlib.NCCLF32: ir.F32, nvlib.NCCLF64: ir.F64, nvlib.NCCLF16: ir.F16, nvlib.NCCLBF16: ir.BF16, nvlib.NCCLInt32: ir.I32, nvlib.NCCLInt64: ir.I64}

func (x *fakeNCCL) perform(by [][]fakeCall) {
	n := len(by)
	first := by[0]
	if len(first) == 0 || first[0].name == "send" || first[0].name == "recv" {
		x.exchange(by)
		return
	}
	for r := range by {
		if len(by[r]) != 1 || by[r][0].name != first[0].name || by[r][0].n != first[0].n {
			x.f.Fatalf("ranks' calls differ: %+v", by)
		}
	}
	count, dt := int(first[0].n), first[0].dt
	switch first[0].name {
	case "all_gather":
		parts := make([][]byte, n)
		for r := range by {
			parts[r] = append([]byte(nil), cabi.Bytes(by[r][0].in, count)...)
		}
		for r := range by {
			for i, p := range parts {
				copy(cabi.Bytes(by[r][0].out+uintptr(i*count), count), p)
			}
		}
		return
	case "broadcast":
		src := append([]byte(nil), cabi.Bytes(by[first[0].peer][0].in, count)...)
		for r := range by {
			copy(cabi.Bytes(by[r][0].out, count), src)
		}
		return
	}
	t := fakeSizes[dt]
	all := count
	if first[0].name == "reduce_scatter" {
		all *= n
	}
	sum, v := make([]float64, all), make([]float64, all)
	for r := range by {
		tensor.ToFloat64(v, cabi.Bytes(by[r][0].in, all*int(t.Size())), t)
		for k := range v {
			switch {
			case r == 0:
				sum[k] = v[k]
			case first[0].red == nvlib.NCCLMax:
				sum[k] = max(sum[k], v[k])
			case first[0].red == nvlib.NCCLMin:
				sum[k] = min(sum[k], v[k])
			default:
				sum[k] += v[k]
			}
		}
	}
	if first[0].red == nvlib.NCCLAvg {
		for k := range sum {
			sum[k] /= float64(n)
		}
	}
	for r := range by {
		part := sum
		if first[0].name == "reduce_scatter" {
			part = sum[r*count : (r+1)*count]
		}
		if first[0].name != "reduce" || r == first[0].peer {
			tensor.FromFloat64(cabi.Bytes(by[r][0].out, len(part)*int(t.Size())), part, t)
		}
	}
}

// exchange matches sends with receives, in their order for each pair.
func (x *fakeNCCL) exchange(by [][]fakeCall) {
	type pair struct{ from, to int }
	sent := map[pair][][]byte{}
	for r := range by {
		for _, c := range by[r] {
			if c.name == "send" {
				sent[pair{r, c.peer}] = append(sent[pair{r, c.peer}], append([]byte(nil), cabi.Bytes(c.in, int(c.n))...))
			}
		}
	}
	for r := range by {
		for _, c := range by[r] {
			if c.name != "recv" {
				continue
			}
			p := pair{c.peer, r}
			if len(sent[p]) == 0 || len(sent[p][0]) != int(c.n) {
				x.f.Fatalf("rank %d receives %d bytes from %d, which does not send them", r, c.n, c.peer)
			}
			copy(cabi.Bytes(c.out, int(c.n)), sent[p][0])
			sent[p] = sent[p][1:]
		}
	}
	for p, left := range sent {
		if len(left) > 0 {
			x.f.Fatalf("%d sends from %d to %d are not received", len(left), p.from, p.to)
		}
	}
}

// ncclWorld opens a world on fakes.
func ncclWorld(t *testing.T, gpus, ranks int) (*fakeNCCL, device.World) {
	t.Helper()
	f := newFake(t, gpus)
	x := &fakeNCCL{f: f}
	sys := f.system()
	sys.NCCL = x.open
	w, err := newMachine(sys, Options{Kernels: f, RanksPerGPU: ranks / gpus}).Open(t.Context(), ranks)
	if err != nil {
		t.Fatal(err)
	}
	return x, w
}

// TestNCCL runs every op by NCCL, on fakes: in any axis, in place, on teams in
// any order, call by call and within graphs.
func TestNCCL(t *testing.T) {
	for _, team := range [][]int{{0, 1}, {1, 0, 3}, {0, 1, 2, 3}} {
		x, w := ncclWorld(t, 4, 4)
		r := newTeamRig(t, w, "nccl", team)
		took := map[ir.Op]int{}
		for _, op := range append(moveOps, ir.OpAllReduce) {
			for _, c := range goCases(op, ncclName, len(team)) {
				if r.add(c, device.Tuning{}) {
					took[op]++
				}
			}
			if took[op] == 0 {
				t.Errorf("%s: no case was taken", op)
			}
		}
		r.run(2)
		r.close()
		r.must(w.Close())
		if len(x.teams) != 1 || len(x.aborted) > 0 {
			t.Errorf("%d teams of communicators, %d aborted", len(x.teams), len(x.aborted))
		}
	}
}

// TestNCCLAddresses: an address that NCCL may know is not reused, even after its memory is freed.
func TestNCCLAddresses(t *testing.T) {
	x, w := ncclWorld(t, 2, 2)
	r := newTeamRig(t, w, "main", []int{0, 1})
	gone := func(what string, want int, run func()) {
		t.Helper()
		if !r.add(teamCase{op: ir.OpAllGather, dt: ir.F32, shape: []int64{gpu.DeviceSlab / 4}, algo: ncclName}, device.Tuning{}) {
			t.Fatal("declined")
		}
		run()
		r.must(w.Sync(t.Context()))
		memory, addresses := x.f.called["cuMemRelease"], x.f.called["cuMemAddressFree"]
		r.drop()
		if memory, addresses = x.f.called["cuMemRelease"]-memory, x.f.called["cuMemAddressFree"]-addresses; memory != 4 || addresses != want {
			t.Errorf("%s: memory was released %d times, its addresses %d times, want %d", what, memory, addresses, want)
		}
	}
	gone("not run", 4, func() {})
	gone("call by call", 4, func() { r.must(r.issue()) })
	gone("in a graph", 0, func() {
		g, err := w.Capture(r.issue)
		r.must(err)
		r.must(g.Close())
	})
	r.close()
	r.must(w.Close())
}

// TestNCCLMemoryAnew has memory go that NCCL was given within graphs, and less come.
func TestNCCLMemoryAnew(t *testing.T) {
	dw := openAll(t)
	n := dw.Ranks()
	r := newTeamRig(t, dw, "main", upTo(n))
	for _, bytes := range []int64{192 << 20, 80 << 20} { // regions of their own
		for _, op := range []ir.Op{ir.OpAllGather, ir.OpAllToAll} {
			if !r.add(teamCase{op: op, dt: ir.BF16, shape: []int64{bytes / 2 / int64(n)}, algo: ncclName}, device.Tuning{}) {
				t.Skip("there is no NCCL")
			}
			r.upload()
			r.must(dw.Sync(t.Context()))
			g, err := dw.Capture(r.issue)
			r.must(err)
			r.must(g.Launch(t.Context()))
			r.download()
			r.must(dw.Sync(t.Context()))
			r.check(fmt.Sprintf("%s of %d MiB", op, bytes>>20))
			r.must(g.Close())
			r.drop()
		}
	}
	r.close()
	r.must(dw.Close())
}

// TestNCCLIdle has more teams by NCCL at once than communicators are kept for: those
// that were idle longest go, all members' and no others, later teams have those that
// were kept, and where memory is short none is kept.
func TestNCCLIdle(t *testing.T) {
	x, w := ncclWorld(t, 2, 2)
	gather := teamCase{op: ir.OpAllGather, dt: ir.F32, shape: []int64{4}, algo: ncclName}
	gone := func(what string, teams, upTo int) {
		t.Helper()
		left := slices.Sorted(slices.Values(x.left))
		if want := slices.Concat(x.teams[:upTo]...); len(x.teams) != teams || !slices.Equal(left, want) || len(x.aborted) > 0 {
			t.Fatalf("%s: %d teams, %v were destroyed and %v aborted; want %d and %v", what, len(x.teams), left, x.aborted, teams, want)
		}
	}
	open := func(n int) (rigs []*teamRig) {
		for range n {
			r := newTeamRig(t, w, "nccl", []int{0, 1})
			r.add(gather, device.Tuning{})
			r.run(1)
			rigs = append(rigs, r)
		}
		return rigs
	}
	for _, r := range open(nccl.IdleMost + 2) {
		r.close()
	}
	gone("closed", nccl.IdleMost+2, 2)
	rigs := open(nccl.IdleMost)
	gone("again", nccl.IdleMost+2, 2)
	rigs[0].close()
	d := w.Device(0).(*dev)
	d.site.heaps[device.Private].From = short{d.site.heaps[device.Private].From, func() bool { return len(x.left) == 6 }}
	if _, err := d.Alloc(1<<30, device.Private); err != nil {
		t.Fatal(err)
	}
	if left := x.left[4:]; len(left) != 2 {
		t.Errorf("where memory was short %v were destroyed", left)
	}
	for _, r := range rigs[1:] {
		r.close()
	}
	rigs[0].must(w.Close())
	if len(x.left) != 6 || len(x.aborted) > 0 {
		t.Errorf("in the end %v were destroyed, %v aborted", x.left, x.aborted)
	}
}

// short is a source that has no memory until enough says so.
type short struct {
	gpu.Source
	enough func() bool
}

func (s short) Reserve(most, least int64) (*gpu.Region, error) {
	if !s.enough() {
		return nil, &nvlib.Error{Library: "CUDA", Call: "cuMemCreate", Code: nvlib.CUDAOutOfMemory, Text: "none is left"}
	}
	return s.Source.Reserve(most, least)
}

// TestNCCLAbsent has a member never come: a deadlock, which says so.
func TestNCCLAbsent(t *testing.T) {
	_, w := ncclWorld(t, 2, 2)
	r := newTeamRig(t, w, "main", []int{0, 1})
	c := teamCase{op: ir.OpAllGather, dt: ir.F32, shape: []int64{4}, algo: ncclName}
	if !r.add(c, device.Tuning{}) {
		t.Fatal("declined")
	}
	r.must(r.members[1].Stream.Launch(r.cases[0].launches[1]))
	err := w.Sync(t.Context())
	var stuck *device.Deadlock
	if !errors.As(err, &stuck) || !strings.Contains(err.Error(), "rank 1, stream main waits for all_gather by nccl, which has not come up yet on rank 0, stream main") {
		t.Errorf("got %v", err)
	}
	r.must(w.Close())
}

// TestNCCLFails has NCCL tell of an error in work given before.
func TestNCCLFails(t *testing.T) {
	x, w := ncclWorld(t, 2, 2)
	r := newTeamRig(t, w, "main", []int{0, 1})
	r.add(teamCase{op: ir.OpAllGather, dt: ir.F32, shape: []int64{4}, algo: ncclName}, device.Tuning{})
	r.upload()
	r.must(r.issue())
	x.async = 1
	err := w.Sync(t.Context())
	var fault *device.Fault
	if !errors.As(err, &fault) || fault.Rank != 0 || !strings.Contains(err.Error(), "fake trouble") {
		t.Errorf("got %v", err)
	}
	r.must(w.Close())
	if len(x.aborted) != 2 {
		t.Errorf("%d communicators aborted after an error, want 2", len(x.aborted))
	}
}

// TestNCCLHangs: NCCL's first call does not end. Loading ends with its context, or after a
// while with an error that says what to do.
func TestNCCLHangs(t *testing.T) {
	for _, limit := range []time.Duration{20 * time.Millisecond, time.Hour} {
		f := newFake(t, 2)
		sys := f.system()
		sys.NCCL, sys.Patience = (&fakeNCCL{f: f}).open, 5*time.Millisecond
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w, err := newMachine(sys, Options{Kernels: f, TeamTimeout: limit}).Open(ctx, 2)
		if err != nil {
			t.Fatal(err)
		}
		r := newTeamRig(t, w, "main", []int{0, 1})
		c := &device.Collective{Op: ir.OpAllGather}
		for rank := range 2 {
			c.Parts = append(c.Parts, device.Part{Reads: true, Writes: true, In: r.view(rank, ir.F32, []int64{4}, 0), Out: r.view(rank, ir.F32, []int64{8}, 0)})
		}
		f.mu.Lock()
		f.late["cuStreamQuery"] = 1 << 30
		f.mu.Unlock()
		want := "has not ended it after 20ms; NCCL_DEBUG=INFO has NCCL tell what it does, in a new process HOCKET_P2P=off"
		if limit == time.Hour {
			want = context.Canceled.Error()
			time.AfterFunc(20*time.Millisecond, cancel)
		}
		if _, err = r.team.Prepare(device.Tuning{Algo: ncclName}, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		isLost(t, w.Close(), "work still ran")
		f.die()
	}
}

// TestNCCLDeclines lists what NCCL is not used for, and why.
func TestNCCLDeclines(t *testing.T) {
	_, w := ncclWorld(t, 3, 6)
	for what, tc := range map[string]struct {
		ranks []int
		c     device.Collective
		dt    ir.DType
		Want  string
	}{
		"shared": {[]int{0, 3}, device.Collective{Op: ir.OpAllReduce, Red: ir.Sum}, ir.F32, "members 0 and 1 share GPU 0"},
		"order":  {[]int{0, 1, 2}, device.Collective{Op: ir.OpAllReduce, Red: ir.Sum}, ir.BF16, "order=any"},
		"max":    {[]int{0, 1}, device.Collective{Op: ir.OpAllReduce, Red: ir.Max}, ir.F32, "treats NaNs"},
		"avg":    {[]int{0, 1, 2}, device.Collective{Op: ir.OpAllReduce, Red: ir.Avg, AnyOrder: true}, ir.F32, "divides by 3 before it adds"},
		"two":    {[]int{0, 1}, device.Collective{Op: ir.OpAllReduce, Red: ir.Sum}, ir.BF16, ""},
		"ints":   {[]int{0, 1, 2}, device.Collective{Op: ir.OpAllReduce, Red: ir.Sum}, ir.I64, ""},
		"any":    {[]int{0, 1, 2}, device.Collective{Op: ir.OpAllReduce, Red: ir.Max, AnyOrder: true}, ir.F16, ""},
	} {
		r := newTeamRig(t, w, what, tc.ranks)
		for _, rank := range tc.ranks {
			v := r.view(rank, tc.dt, []int64{8}, 0)
			tc.c.Parts = append(tc.c.Parts, device.Part{In: v, Out: v, Reads: true, Writes: true, To: -1, From: -1})
		}
		err := r.team.Supports(device.Tuning{Algo: ncclName}, &tc.c)
		if (err == nil) != (tc.Want == "") || err != nil && (!strings.Contains(err.Error(), tc.Want) || !errors.Is(err, device.ErrUnsupported)) {
			t.Errorf("%s: got %v, want %q", what, err, tc.Want)
		}
		r.close()
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// TestNCCLDeclinesGaps: operands whose extents no copy merges are declined, not refused when
// they are prepared.
func TestNCCLDeclinesGaps(t *testing.T) {
	_, w := ncclWorld(t, 2, 2)
	r := newTeamRig(t, w, "main", []int{0, 1})
	c := &device.Collective{Op: ir.OpAllReduce, Red: ir.Sum}
	for rank := range 2 {
		v := r.view(rank, ir.F32, []int64{1 << 15}, 0)
		v.Shape, v.Strides = nil, nil
		for k := int64(19683 / 3); k > 0; k /= 3 {
			v.Shape, v.Strides = append(v.Shape, 2), append(v.Strides, k)
		}
		c.Parts = append(c.Parts, device.Part{In: v, Out: v, Reads: true, Writes: true, To: -1, From: -1})
	}
	if err := r.team.Supports(device.Tuning{Algo: ncclName}, c); !errors.Is(err, device.ErrUnsupported) || !strings.Contains(err.Error(), "9 dimensions") {
		t.Errorf("got %v", err)
	}
	r.close()
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// TestNCCLMissing wants only NCCL's algorithm to suffer, and to say what was
// searched for.
func TestNCCLMissing(t *testing.T) {
	f := newFake(t, 2)
	sys := f.system()
	missing := fmt.Errorf("no libnccl in the usual places")
	sys.NCCL = func() (*nvlib.NCCL, error) { return nil, missing }
	w, err := newMachine(sys, Options{Kernels: f}).Open(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	r := newTeamRig(t, w, "main", []int{0, 1})
	v := [2]device.View{r.view(0, ir.F32, []int64{8}, 0), r.view(1, ir.F32, []int64{8}, 0)}
	c := &device.Collective{Op: ir.OpAllReduce, Red: ir.Sum}
	for _, v := range v {
		c.Parts = append(c.Parts, device.Part{In: v, Out: v, Reads: true, Writes: true, To: -1, From: -1})
	}
	if err := r.team.Supports(device.Tuning{Algo: ncclName}, c); !errors.Is(err, device.ErrUnsupported) || !errors.Is(err, missing) {
		t.Errorf("got %v", err)
	}
	r.close()
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// TestNCCLMistakesAreTold: doctor reports known bugs of the loaded NCCL, and ops that it computes wrongly with
// multicast are refused.
func TestNCCLMistakesAreTold(t *testing.T) {
	x, w := ncclWorld(t, 2, 2)
	x.version = 22803
	lib, err := x.open()
	if err != nil {
		t.Fatal(err)
	}
	const mistake = "warning: with NVLink multicast blocks of all_gather and reduce_scatter"
	for _, multicast := range []string{doctor.MulticastOff, doctor.MulticastOn} {
		rep := doctor.Report{Multicast: multicast}
		rep.Add("libnccl", lib, nil)
		rep.AddMistakes(lib)
		if text := fmt.Sprint(rep.Lines()); strings.Contains(text, mistake) != (multicast == doctor.MulticastOn) {
			t.Errorf("multicast %s: %s", multicast, text)
		}
	}
	r := newTeamRig(t, w, "order", []int{0, 1})
	for _, on := range []bool{false, true} {
		w.(*world).m.sys.Multicast = on
		for op, want := range map[ir.Op]bool{ir.OpAllGather: !on, ir.OpReduceScatter: !on, ir.OpAllReduce: true, ir.OpBroadcast: true} {
			if took := r.take(teamCase{op: op, red: ir.Sum, dt: ir.F32, shape: []int64{8}, algo: ncclName}, device.Tuning{}); took != want {
				t.Errorf("%s, multicast %t: taken %t", op, on, took)
			}
		}
	}
	w.(*world).m.sys.Multicast = false
	r.close()
	r.must(w.Close())
}
