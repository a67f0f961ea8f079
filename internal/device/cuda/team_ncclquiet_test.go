package cuda

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// TestNCCLWindowsQuiet wants a write before each call on windows that is behind
// something else, of those versions of NCCL whose kernels do not wait for what is
// before them.
func TestNCCLWindowsQuiet(t *testing.T) {
	for _, tc := range []struct {
		version        int32
		first, between int
	}{{22703, 0, 0}, {22803, 2, 2}, {22809, 2, 2}, {23004, 2, 2}, {23007, 0, 0}} {
		x, w := ncclWorld(t, 2, 2)
		x.version = tc.version
		r := newTeamRig(t, w, "quiet", []int{0, 1})
		if !r.add(teamCase{op: ir.OpAllGather, dt: ir.F32, shape: []int64{64}, algo: ncclWindowName}, device.Tuning{}) {
			t.Fatal("declined")
		}
		writes := func(what string, want int, f func()) {
			before := x.f.called["cuMemsetD32Async"]
			f()
			if got := x.f.called["cuMemsetD32Async"] - before; got != want {
				t.Errorf("NCCL %d: %d writes %s, want %d", tc.version, got, what, want)
			}
		}
		copies := func() {
			for i, m := range r.members {
				p := &r.cases[0].parts[i]
				r.must(m.Stream.Copy(cut(p.Out, 0, 0, p.In.Shape), p.In))
			}
		}
		r.upload()
		writes("before the first call", tc.first, func() { r.must(r.issue()) })
		writes("before calls behind it", 0, func() { r.must(r.issue()); r.must(r.issue()) })
		copies()
		writes("behind copies", tc.between, func() { r.must(r.issue()); r.must(r.issue()) })
		g, err := w.Capture(func() error {
			before := x.f.called["cuMemsetD32Async"]
			err := r.issue()
			if got := x.f.called["cuMemsetD32Async"] - before; got > tc.first {
				t.Errorf("NCCL %d: %d writes in a graph", tc.version, got)
			}
			return err
		})
		r.must(err)
		r.must(g.Launch(t.Context()))
		writes("behind a graph", tc.between, func() { r.must(r.issue()) })
		r.download()
		r.must(w.Sync(t.Context()))
		r.check("quiet")
		r.must(g.Close())
		r.close()
		r.must(w.Close())
	}
}

// TestNCCLWindowsBehindKernels has NCCL gather on windows what a team's kernel adds up
// right before, call by call and as a graph. It logs what comes without the write
// between the two.
func TestNCCLWindowsBehindKernels(t *testing.T) {
	m, lib := realWindows(t)
	n := min(len(m.sys.gpus), 4)
	defer func() { m.sys.unquiet = false }()
	for _, m.sys.unquiet = range []bool{true, false} {
		w, err := m.Open(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		ranks := make([]int, n)
		for i := range ranks {
			ranks[i] = i
		}
		for _, tc := range []struct {
			algo  string
			count int64
		}{{"ll128", 1 << 11}, {"ll128", 1 << 16}, {"push", 1 << 20}, {"push", 1 << 21}} {
			b := behind{newTeamRig(t, w, fmt.Sprint(tc), ranks)}
			b.open(tc.algo, tc.count)
			wrong := b.run(4)
			what := fmt.Sprintf("all_gather on windows (NCCL %s) behind an all_reduce of %d f32 by %s, %d GPUs, unquiet %t: %d of %d results wrong", lib.Loaded().Version, tc.count, tc.algo, n, m.sys.unquiet, wrong, 8*n)
			t.Log(what)
			if wrong > 0 && !m.sys.unquiet {
				t.Error(what)
			}
			b.close()
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// behind is an all_gather on windows whose operand is the result of an all_reduce.
type behind struct{ *teamRig }

func (b *behind) open(algo string, count int64) {
	b.t.Helper()
	b.place(teamCase{op: ir.OpAllReduce, red: ir.Sum, dt: ir.F32, shape: []int64{count}, algo: algo})
	b.place(teamCase{op: ir.OpAllGather, dt: ir.F32, shape: []int64{count}, algo: ncclWindowName})
	for i := range b.members {
		b.cases[1].parts[i].In = b.cases[0].parts[i].Out
	}
	b.prepare(b.cases, device.Tuning{})
}

// run returns how many results were wrong, of so many runs in both ways.
func (b *behind) run(times int) (wrong int) {
	b.t.Helper()
	first, second, n := b.cases[0], b.cases[1], len(b.members)
	g, err := b.w.Capture(b.issue)
	b.must(err)
	for k := range 2 * times {
		first.draw(rand.New(rand.NewPCG(uint64(k), 9)))
		sums := slices.Repeat([]*tensor.Tensor{first.want(first.ins, 0, n)}, n)
		for i, m := range b.members {
			b.must(m.Stream.Upload(first.parts[i].In, first.ins[i].Data))
			for _, v := range []device.View{first.parts[i].Out, second.parts[i].Out} {
				b.must(m.Stream.Upload(v, b.poison(v.Elements()*4)))
			}
		}
		b.must(b.w.Sync(b.t.Context()))
		if k%2 == 0 {
			b.must(b.issue())
		} else {
			b.must(g.Launch(b.t.Context()))
		}
		b.download()
		b.must(b.w.Sync(b.t.Context()))
		want := second.want(sums, 0, n).Data
		for i := range b.members {
			if !bytes.Equal(second.got[i], want) {
				wrong++
			}
		}
	}
	b.must(g.Close())
	return wrong
}

// TestNCCLMistakesAreTold wants doctor to tell what is wrong with an NCCL, and the
// ops declined that it gets wrong with multicast.
func TestNCCLMistakesAreTold(t *testing.T) {
	x, w := ncclWorld(t, 2, 2)
	x.version = 22803
	lib, err := x.open()
	if err != nil {
		t.Fatal(err)
	}
	rep := Report{Multicast: multicastOff}
	rep.add("libnccl", lib, nil)
	rep.mistakes(lib)
	text := fmt.Sprint(rep.Lines())
	for _, part := range []string{"warning: all_gather on windows moves blocks", "NVIDIA/nccl commit 2948185", "nccl-window declines them"} {
		if !strings.Contains(text, part) {
			t.Errorf("%s lacks %q", text, part)
		}
	}
	if strings.Contains(text, "multicast blocks") {
		t.Errorf("%s tells of multicast, which is off", text)
	}
	r := newTeamRig(t, w, "order", []int{0, 1})
	for _, on := range []bool{false, true} {
		w.(*world).m.sys.multicast = on
		for op, want := range map[ir.Op]bool{ir.OpAllGather: !on, ir.OpReduceScatter: !on, ir.OpAllReduce: true, ir.OpBroadcast: true} {
			if took := r.take(teamCase{op: op, red: ir.Sum, dt: ir.F32, shape: []int64{8}, algo: ncclName}, device.Tuning{}); took != want {
				t.Errorf("%s, multicast %t: taken %t", op, on, took)
			}
		}
	}
	w.(*world).m.sys.multicast = false
	r.close()
	r.must(w.Close())
}
