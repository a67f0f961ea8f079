package cuda

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// TestPieceEnds wants pieces that cover all cells once, each no longer than the one
// before by more than a line.
func TestPieceEnds(t *testing.T) {
	for _, all := range []bool{false, true} {
		for _, bytes := range []int64{pieceLeast / 16, pieceLeast - 3, 3*pieceLeast + 5, 16 << 20, 1<<30 + 17} {
			n, ratio := pieceParts(bytes, all)
			cells := (bytes + 15) / 16
			ends := pieceEnds(cells, n, ratio)
			before, last := cells+8, int64(0)
			for _, e := range ends {
				if e-last > before+8 || e < last {
					t.Errorf("%d cells: %v", cells, ends)
				}
				before, last = e-last, e
			}
			if last != cells || len(ends) > kernels.PiecesMost {
				t.Errorf("%d cells in %d pieces: %v", cells, n, ends)
			}
		}
	}
}

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
			for _, c := range append(goCases(op, a.name, len(ranks)), teamCase{op: op, red: ir.Sum, dt: ir.BF16, shape: []int64{200001}, algo: a.name, off: 3}) {
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
		var sums []*sumStep
		for i, list := range steps {
			want := 2
			if a.all {
				want = 3
			}
			if len(list) != want {
				r.t.Fatalf("%v, member %d: %d steps", c.teamCase, i, len(list))
			}
			sums = append(sums, list[1].(*sumStep))
		}
		p, err := a.plan(tm, device.Tuning{}, col)
		r.must(err)
		r.copySums(p, sums)
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

// copySums does piece after piece of all members, and each copy twice: staging
// memory of one block is no other's.
func (r *teamRig) copySums(p *sumPlan, sums []*sumStep) {
	staging := r.team.(*team).regions["pieces"]
	copied := func(list []nvlib.Rect) {
		for _, c := range list {
			copy(cabi.Bytes(uintptr(c.Dst), int(c.Width)), cabi.Bytes(uintptr(c.Src), int(c.Width)))
		}
	}
	for k := range sums[0].pieces {
		for range 2 {
			for _, s := range sums {
				copied(s.pieces[k].parts)
			}
		}
	}
	for k := range sums[0].pieces {
		for i := range sums {
			m := &p.shares[i]
			lo, hi := m.Bytes(k)
			if lo == hi {
				continue
			}
			var parts [][]byte
			for q := range sums {
				at := m.Src[i]
				if q != i {
					at = staging.at[i] + nvlib.Ptr(int64(q)*p.room) + m.Src[i]&15
				}
				parts = append(parts, slices.Clone(cabi.Bytes(uintptr(at)+uintptr(lo), int(hi-lo))))
			}
			copy(cabi.Bytes(uintptr(m.Dst)+uintptr(lo), int(hi-lo)), reduced(m.Red, m.DType, parts))
		}
		for _, s := range sums {
			copied(s.pieces[k].sums)
		}
	}
}

// TestCopySumOrder wants the words of pieces raised behind their copies and before
// those of the next, and sums pushed in the same order.
func TestCopySumOrder(t *testing.T) {
	l, w, tm := noted(t, 2, 2)
	launches, err := tm.Prepare(device.Tuning{Algo: "copy-sum", Blocks: 8}, summed(t, w, 1<<20, 0, 0))
	if err != nil {
		t.Fatal(err)
	}
	var bodies []string
	for _, m := range l.got[:len(l.got)/2] {
		bodies = append(bodies, fmt.Sprintf("%s %d", m.Body[:strings.Index(m.Body, "<")], m.Blocks))
	}
	want := []string{"moveMeet 1", "raisePieces 1", "sumPieces 8", "raisePieces 1", "sumPieces 8", "raisePieces 1", "sumPieces 8", "moveMeet 1"}
	if !slices.Equal(bodies, want) {
		t.Errorf("kernels of a member: %q, want %q", bodies, want)
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
