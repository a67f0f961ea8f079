package cuda

import (
	"fmt"
	"testing"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// moved does, in the memory of a fake driver, what kernels would do for the given moves of the members. It reads all
// sources before it writes any destination.
func moved(t *testing.T, moves []kernels.Move) {
	t.Helper()
	type write struct {
		at   nvlib.Ptr
		data []byte
	}
	var writes []write
	n := len(moves)
	for p := range moves {
		m := &moves[p]
		if m.Kind == kernels.MoveSpread {
			root := &moves[m.Root]
			for i, part := range coll.Parts(m) {
				if from := coll.Parts(root)[i]; p != m.Root || m.Own {
					writes = append(writes, write{part.Dst[p], append([]byte(nil), cabi.Bytes(uintptr(from.Src[m.Root]), int(part.Run))...)})
				}
			}
			continue
		}
		if m.Kind == kernels.ReduceLL || m.Kind == kernels.ReduceLL128 || m.Kind.Pulls() || m.Kind == kernels.ReduceSpread {
			if !m.Own {
				continue
			}
			for k, at := range rowsAt(m, m.Dst[p], m.DstStrides[p]) {
				var parts [][]byte
				for q := range n {
					from, strides := moves[q].Src[p], moves[q].SrcStrides[p]
					if m.Kind == kernels.ReduceSpread {
						from = moves[q].Src[q]
					}
					if m.Kind.Pulls() {
						from, strides = m.Src[q], m.SrcStrides[q]
					}
					parts = append(parts, cabi.Bytes(uintptr(rowsAt(m, from, strides)[k]), int(m.Run)))
				}
				writes = append(writes, write{at, reduced(m.Red, m.DType, parts)})
			}
			continue
		}
		for q := range n {
			gives := m.To>>q&1 != 0 || q == p && m.Own
			if takes := moves[q].From>>p&1 != 0 || q == p && m.Own; gives != takes {
				t.Fatalf("member %d sends to member %d: %t, but the receiver expects a block: %t", p, q, gives, takes)
			}
			if !gives {
				continue
			}
			to, strides := m.Dst[q], m.DstStrides[q]
			if m.Kind == kernels.MoveLL || m.Kind == kernels.MoveLL128 {
				to, strides = moves[q].Dst[p], moves[q].DstStrides[p]
			}
			src, dst := rowsAt(m, m.Src[q], m.SrcStrides[q]), rowsAt(m, to, strides)
			for k := range src {
				writes = append(writes, write{dst[k], append([]byte(nil), cabi.Bytes(uintptr(src[k]), int(m.Run))...)})
			}
		}
	}
	for _, w := range writes {
		copy(cabi.Bytes(uintptr(w.at), len(w.data)), w.data)
	}
}

func rowsAt(m *kernels.Move, at nvlib.Ptr, strides [3]int64) []nvlib.Ptr {
	list := []nvlib.Ptr{at}
	for k, e := range m.Extents {
		var next []nvlib.Ptr
		for i := range e {
			for _, r := range list {
				next = append(next, r+nvlib.Ptr(i*strides[k]))
			}
		}
		list = next
	}
	return list
}

// TestMoveShares plans every operation for every kernel that moves blocks on fake drivers, and executes the members'
// shares in Go.
func TestMoveShares(t *testing.T) {
	for _, team := range [][]int{{0, 1}, {1, 0, 3}, {3, 2, 1, 0}} {
		f := fakedriver.New(t, 4)
		m := newMachine(system(f), Options{Kernels: f})
		for _, named := range coll.MoveAlgorithms {
			t.Run(fmt.Sprint(team, named.Name), func(t *testing.T) {
				w, err := m.Open(t.Context(), 4)
				if err != nil {
					t.Fatal(err)
				}
				a := named.Algorithm.(coll.MoveAlgorithm)
				r := newTeamRig(t, w, "team", team)
				took := 0
				for _, op := range moveOps {
					for _, c := range goCases(op, named.Name, len(team)) {
						r.place(c)
						if r.shares(a, r.cases[len(r.cases)-1]) {
							took++
						} else {
							r.drop()
						}
					}
				}
				if took == 0 && (named.Name != "move-spread" || len(team) > 2) {
					t.Error("no case was accepted")
				}
				r.check("planned")
				r.close()
				r.must(w.Close())
			})
		}
	}
}

// shares runs a case by executing the members' shares in Go. It returns false if the kernel refuses the case.
func (r *teamRig) shares(a coll.MoveAlgorithm, c *rigCase) bool {
	r.t.Helper()
	return r.withShares(a, a, c, func(_ *team, p *coll.MovePlan) { moved(r.t, p.Moves) })
}

// withShares makes the copies of a case, and then calls run with the moves that a plans, in place of the kernels. It
// returns false if the algorithm by refuses the case.
func (r *teamRig) withShares(by coll.Algorithm, a coll.MoveAlgorithm, c *rigCase, run func(tm *team, p *coll.MovePlan)) bool {
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
	taken := col.Empty() || by.Supports(tm, device.Tuning{}, col) == nil
	if taken && !col.Empty() {
		p := &coll.Plan{}
		m, first, err := a.Shares(p, tm, device.Tuning{}, col)
		r.must(err)
		r.hold(p)
		for i, list := range first {
			for _, x := range list {
				st, err := tm.members[i].step(x)
				r.must(err)
				s := tm.members[i].stream
				r.must(s.dev.bound(func() error { return st.run(s) }))
			}
		}
		run(tm, m)
	}
	tm.w.mu.Unlock()
	if taken {
		r.download()
		r.must(r.w.Sync(r.t.Context()))
	}
	return taken
}

// hold allocates a plan's memory.
func (r *teamRig) hold(p *coll.Plan) {
	r.t.Helper()
	for _, x := range p.Memory {
		at, err := r.team.(*team).hold(x)
		r.must(err)
		x.Use(at)
	}
}
