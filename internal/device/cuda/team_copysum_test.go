package cuda

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/devicetest"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

func init() { copySumLeast = 512 } // so that what is drawn comes by it

// TestCopySums has Go do what members' shares of sums say, on fakes: the copies, and
// what kernels would add up.
func TestCopySums(t *testing.T) {
	for _, ranks := range [][]int{{0, 1}, {1, 0, 3}, {3, 2, 1, 0}} {
		_, w := seen(t, 4, 4)
		r := newTeamRig(t, w, "team", ranks)
		for _, a := range copyAlgorithms {
			sum, ok := a.teamAlgorithm.(copySum)
			if !ok {
				continue
			}
			op, took := ir.OpReduceScatter, 0
			if sum.all {
				op = ir.OpAllReduce
			}
			for _, c := range append(casesOf(op, a.name, len(ranks), [][]int64{{1}, {8191}, {20480}, {5, 6007}, {40007}, {16, 2560}, {36000}}), teamCase{op: op, red: ir.Sum, dt: ir.BF16, shape: []int64{200001}, algo: a.name, off: 3}) {
				r.place(c)
				if r.summed(sum, r.cases[len(r.cases)-1]) {
					took++
				} else {
					r.drop()
				}
			}
			if took < 4 {
				t.Errorf("%s took %d cases", a.name, took)
			}
		}
		r.check("planned")
		r.close()
	}
}

// summed runs a case by its members' steps; false where it is declined.
func (r *teamRig) summed(a copySum, c *rigCase) bool {
	r.t.Helper()
	tm := r.team.(*team)
	all := r.cases
	r.cases = []*rigCase{c}
	defer func() { r.cases = all }()
	r.upload()
	r.must(r.w.Sync(r.t.Context()))
	tm.w.mu.Lock()
	col, err := tm.resolve(c.collective())
	r.must(err)
	taken := a.supports(tm, device.Tuning{}, col) == nil
	if taken {
		steps, err := a.prepare(tm, device.Tuning{}, col)
		r.must(err)
		p, err := a.plan(tm, device.Tuning{}, col)
		r.must(err)
		r.copySums(p, steps)
		for _, list := range steps {
			for _, st := range list {
				st.free()
			}
		}
	}
	tm.w.mu.Unlock()
	if taken {
		r.download()
		r.must(r.w.Sync(r.t.Context()))
	}
	return taken
}

// copySums does the copies of all members twice, since staging memory of one block is
// no other's, adds up, and gives the sums.
func (r *teamRig) copySums(p *sumPlan, steps [][]step) {
	tm := r.team.(*team)
	staging, n := tm.regions["copied blocks"], len(steps)
	at := func(i, q int) nvlib.Ptr {
		switch {
		case q == i:
			return p.in[i][i]
		case p.shares[i].Watched && q == (i+1)%n:
			return tm.regions["watched blocks"].at[i]
		}
		return staging.at[i] + nvlib.Ptr(slot(i, q, n)*p.room) + p.in[i][i]&15
	}
	moved := func(dst, src nvlib.Ptr, n int64) {
		copy(cabi.Bytes(uintptr(dst), int(n)), cabi.Bytes(uintptr(src), int(n)))
	}
	for range 2 {
		for i, list := range steps {
			for _, c := range list[1].(*sumStep).parts {
				moved(c.Dst, c.Src, c.Width)
			}
			for q := range n { // what kernels store
				if cut := p.shares[q].EngineBytes(); q != i {
					moved(at(q, i)+nvlib.Ptr(cut), p.in[i][q]+nvlib.Ptr(cut), p.shares[q].Run-cut)
				}
			}
		}
	}
	for i := range steps {
		m := &p.shares[i]
		if m.Run == 0 {
			continue
		}
		var parts [][]byte
		for q := range n {
			parts = append(parts, slices.Clone(cabi.Bytes(uintptr(at(i, q)), int(m.Run))))
		}
		copy(cabi.Bytes(uintptr(m.Dst), int(m.Run)), reduced(m.Red, m.DType, parts))
	}
	for i, list := range steps {
		if len(list) < 3 {
			continue
		}
		given := list[2].(*pushStep)
		copies := slices.Clone(given.own)
		for _, b := range given.beside {
			copies = append(copies, b.list...)
		}
		for _, c := range copies {
			moved(c.Dst, c.Src, c.Width)
		}
		if given.kernel != nil {
			for q := range n {
				moved(p.out[q][i], p.shares[i].Dst, p.shares[i].Run-copies[0].Width)
			}
		}
	}
}

// TestCopySumKernels wants a member's kernels in their order: the words of copies
// behind them, and as many blocks as were asked for.
func TestCopySumKernels(t *testing.T) {
	for _, c := range []struct {
		tune device.Tuning
		want []string
	}{
		{device.Tuning{Algo: "copy-sum", Blocks: 8}, []string{"moveMeet 1", "raiseCopied 1", "sumCopied 8", "moveMeet 1"}},
		{device.Tuning{Algo: "copy-sum"}, []string{"moveMeet 1", "raiseCopied 1", "moveStore 64", "raiseCopied 1", "sumCopied 64", "moveStore 64", "moveMeet 1"}},
		{device.Tuning{Algo: "copy-sum", Blocks: 256, Threads: 1024}, []string{"moveMeet 1", "raiseCopied 1", "moveStore 128", "raiseCopied 1", "sumCopied 128", "moveStore 128", "moveMeet 1"}},
	} {
		l, w, tm := noted(t, 2, 2)
		launches, err := tm.Prepare(c.tune, summed(t, w, 1<<20, 0, 0))
		if err != nil {
			t.Fatal(err)
		}
		var bodies []string
		for _, m := range l.got[:len(l.got)/2] {
			bodies = append(bodies, fmt.Sprintf("%s %d", m.Body[:strings.Index(m.Body, "<")], m.Blocks))
		}
		if !slices.Equal(bodies, c.want) {
			t.Errorf("%+v: kernels of a member: %q, want %q", c.tune, bodies, c.want)
		}
		for range 2 { // events can be used again
			for i, x := range launches {
				if err := tm.members[i].stream.Launch(x); err != nil {
					t.Error(err)
				}
			}
		}
		for _, x := range launches {
			x.Release()
		}
	}
}

// TestCopySumDeclines lists what is declined, and that the reason says so.
func TestCopySumDeclines(t *testing.T) {
	_, w, tm := noted(t, 2, 2)
	over := summed(t, w, 1<<16, 0, 0)
	for i := range over.Parts {
		over.Parts[i].Out = over.Parts[i].In
		over.Parts[i].Out.Off += 64
		over.Parts[i].In.Shape, over.Parts[i].Out.Shape = []int64{1<<16 - 64}, []int64{1<<16 - 64}
	}
	integers := summed(t, w, 1<<16, 0, 0)
	integers.Red = ir.Avg
	for i := range integers.Parts {
		for _, v := range []*device.View{&integers.Parts[i].In, &integers.Parts[i].Out} {
			v.DType, v.Shape = ir.I32, []int64{1 << 15}
		}
	}
	for what, tc := range map[string]struct {
		tune device.Tuning
		c    *device.Collective
		want string
	}{
		"sum":      {device.Tuning{Algo: "copy-sum"}, summed(t, w, 1<<16, 0, 0), ""},
		"blocks":   {device.Tuning{Algo: "move-copy-sum"}, scattered(t, w, 1<<10, 0), ""},
		"odd":      {device.Tuning{Algo: "copy-sum"}, summed(t, w, 1<<16, 2, 6), ""},
		"little":   {device.Tuning{Algo: "copy-sum"}, summed(t, w, 100, 0, 0), "not worth a copy"},
		"gaps":     {device.Tuning{Algo: "move-copy-sum"}, scattered(t, w, 1<<10, 1), "do not lie together"},
		"op":       {device.Tuning{Algo: "move-copy-sum"}, summed(t, w, 1<<16, 0, 0), "reduce_scatter only"},
		"other op": {device.Tuning{Algo: "copy-sum"}, scattered(t, w, 1<<10, 0), "all_reduce only"},
		"overlap":  {device.Tuning{Algo: "copy-sum"}, over, "overlaps the operand"},
		"integers": {device.Tuning{Algo: "copy-sum"}, integers, "average of integers"},
		"threads":  {device.Tuning{Algo: "copy-sum", Threads: 48}, summed(t, w, 1<<16, 0, 0), "48 threads"},
		"grid":     {device.Tuning{Algo: "copy-sum", Blocks: -1}, summed(t, w, 1<<16, 0, 0), "-1 blocks"},
	} {
		if err := tm.Supports(tc.tune, tc.c); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", what, err, tc.want)
		}
	}
}

// TestSweepCopySum measures how sums by copy engines should be launched, on all GPUs.
// It needs sweepVariable as TestTeamSweep does, and stops early after
// reduceSweepSeconds.
func TestSweepCopySum(t *testing.T) {
	if os.Getenv(sweepVariable) == "" {
		t.Skipf("%s is not set", sweepVariable)
	}
	m := real(t, Options{TeamTimeout: 4 * time.Second})
	gpus := len(m.sys.gpus)
	devicetest.NeedGPUs(t, gpus, 2, nil)
	dw, err := m.Open(t.Context(), gpus)
	if err != nil {
		t.Fatal(err)
	}
	w := dw.(*world)
	r := newTeamRig(t, w, "sweep", upTo(gpus))
	tm := newGraphTimer(t, w)
	percent := enginePercent
	defer func() { enginePercent = percent }()
	seconds, err := strconv.Atoi(os.Getenv(reduceSweepSeconds))
	if err != nil {
		seconds = 60
	}
	until := time.Now().Add(time.Duration(seconds) * time.Second)
	for _, c := range []struct {
		op     ir.Op
		algo   string
		others []string
	}{{ir.OpReduceScatter, "move-copy-sum", []string{"move-pull", "move-few"}}, {ir.OpAllReduce, "copy-sum", []string{"push", "pull", "few"}}} {
		for _, bytes := range sweepSizes(t) {
			elems := bytes / 2
			if c.op == ir.OpReduceScatter {
				elems /= int64(gpus)
			}
			one := func(algo string, tune device.Tuning) {
				if time.Now().After(until) {
					return
				}
				if r.add(teamCase{op: c.op, red: ir.Sum, dt: ir.BF16, shape: []int64{elems}, algo: algo}, tune) {
					fmt.Printf("%-14s %9d %-13s %3d %% by engines, watched %t, %3dx%d/%d: %8.2f\n", c.op, bytes, algo, enginePercent, watching, tune.Blocks, tune.Threads, tune.Unroll,
						tm.micros(r, r.cases[len(r.cases)-1], 10))
					r.drop()
				}
			}
			for _, o := range c.others {
				one(o, device.Tuning{})
			}
			for _, on := range []bool{true, false} {
				watching = on
				for _, b := range []int{64, 128, 192, 256} {
					one(c.algo, device.Tuning{Blocks: b})
				}
				watching = true
			}
			for _, p := range []int64{100, 95, 80} {
				enginePercent = p
				one(c.algo, device.Tuning{})
				one(c.algo, device.Tuning{Blocks: 256})
			}
			enginePercent = percent
			for _, threads := range []int{256, 512, 1024} {
				for _, unroll := range []int{1, 2, 4} {
					one(c.algo, device.Tuning{Threads: threads, Unroll: unroll})
				}
			}
			one(c.algo, device.Tuning{Blocks: 8})
		}
	}
	r.close()
	r.must(w.Close())
}
