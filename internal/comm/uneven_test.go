package comm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// unevenSpec holds the additional fields of a spec for uneven collectives.
type unevenSpec struct {
	counted bool
	room    int64 // rows of a member's output
	seed    uint64
	run     int64
}

// roomy returns shape with s.room rows along s.axis.
func (s spec) roomy() []int64 {
	shape := slices.Clone(s.shape)
	shape[s.axis] = s.room
	return shape
}

// counts draws the members' counts such that the rows fit the operands. Counts in device memory change with every run.
func (s spec) counts() [][]int64 {
	stream := uint64(0)
	if s.counted {
		stream = uint64(s.run)
	}
	rng := rand.New(rand.NewPCG(s.seed, stream))
	held, all, comes := s.shape[s.axis], make([][]int64, s.n), make([]int64, s.n)
	for i := range all {
		all[i] = make([]int64, s.n)
		gives := int64(0)
		for j := range all[i] {
			most := min(held-gives, s.room-comes[j])
			if s.op == ir.OpAllGatherV {
				most = min(held, s.room-comes[0])
			}
			c := rng.Int64N(max(most, 0) + 1)
			gives += c
			all[i][j] = c
			if s.op == ir.OpAllGatherV {
				comes[0] += c
			} else if s.op == ir.OpAllToAllV {
				comes[j] += c
			}
		}
		if s.op != ir.OpAllToAllV {
			all[i] = all[0]
		}
	}
	return all
}

// rowsInto computes the rows that member me of an uneven collective gets, directly by the definition of the collective.
func (s spec) rowsInto(out *tensor.Tensor, ins []*tensor.Tensor, me int) {
	counts := s.counts()
	var parts []*tensor.Tensor
	for i, in := range ins {
		lo, shape := make([]int64, len(s.shape)), slices.Clone(s.shape)
		if s.op == ir.OpAllGatherV {
			shape[s.axis] = counts[i][i]
		} else {
			for _, n := range counts[i][:me] {
				lo[s.axis] += n
			}
			shape[s.axis] = counts[i][me]
		}
		p, err := tensor.Slice(in, lo, shape)
		if err != nil {
			panic(err)
		}
		parts = append(parts, p)
	}
	if s.op == ir.OpReduceScatterV {
		sum, _ := tensor.New(s.dt, parts[0].Shape)
		reduceInto(sum, parts, s.red)
		parts = []*tensor.Tensor{sum}
	}
	joinInto(out, parts, s.axis)
}

// placeCounts sets the counts of one member of an uneven collective.
func (r *rig) placeCounts(d device.Device, s spec, me int, p *Part) {
	if !s.counted {
		p.Rows = s.counts()[me]
		return
	}
	kind := device.Private
	if s.shared {
		kind = device.Shared
	}
	m, err := d.Alloc(4*int64(s.n), kind)
	r.must(err)
	p.Counts, p.Counted = packed(m, 0, ir.I32, []int64{int64(s.n)}), true
}

func (r *rig) uploadCounts(st device.Stream, s spec, me int, p *Part) {
	x, err := tensor.New(ir.I32, []int64{int64(s.n)})
	r.must(err)
	tensor.FromInt64(x.Data, s.counts()[me], ir.I32)
	r.must(st.Upload(p.Counts, x.Data))
}

// TestCountsInMemoryThatDoNotFit checks that counts in device memory that do not fit are reported as faults of the
// members that read them, and that nothing outside the result is written.
func TestCountsInMemoryThatDoNotFit(t *testing.T) {
	for _, c := range []struct {
		op     ir.Op
		counts [2][2]float64
		want   string
	}{
		{ir.OpAllToAllV, [2][2]float64{{1, 1}, {-1, 1}}, "counts[0] of member 1 of the team is -1"},
		{ir.OpAllToAllV, [2][2]float64{{1, 1}, {1, 1 << 30}}, "counts[1] of member 1 of the team is 1073741824"},
		{ir.OpAllToAllV, [2][2]float64{{2, 2}, {1, 1}}, "take 4 rows from an operand of 3"},
		{ir.OpAllToAllV, [2][2]float64{{3, 0}, {2, 0}}, "member 0 of the team gets 5 rows, and its result has room for 4"},
		{ir.OpAllGatherV, [2][2]float64{{1, 1}, {1, 2}}, "members must have equal counts"},
		{ir.OpAllGatherV, [2][2]float64{{3, 2}, {3, 2}}, "gets 5 rows"},
		{ir.OpAllGatherV, [2][2]float64{{4, 0}, {4, 0}}, "take 4 rows from an operand of 3"},
		{ir.OpReduceScatterV, [2][2]float64{{2, 2}, {2, 2}}, "take 4 rows from an operand of 3"},
	} {
		w := open(t, cpu.Concurrent, 0, 2)
		s := spec{op: c.op, red: ir.Sum, dt: ir.F32, n: 2, shape: []int64{3, 2}, unevenSpec: unevenSpec{counted: true, room: 4}}
		r := newRig(t, w, "s", teamOf(2), []spec{s})
		for me, st := range r.streams {
			p := &r.parts[0][me]
			r.must(st.Upload(p.In, make([]byte, 24)))
			x, _ := tensor.New(ir.I32, []int64{2})
			tensor.FromFloat64(x.Data, c.counts[me][:], ir.I32)
			r.must(st.Upload(p.Counts, x.Data))
		}
		for me := range r.streams {
			if err := r.ch.Issue(0, me, 0); err != nil && !errors.Is(err, device.ErrAborted) && !errors.As(err, new(*device.Fault)) {
				t.Fatal(err)
			}
		}
		var fault *device.Fault
		if err := w.Sync(context.Background()); !errors.As(err, &fault) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s by %v: %v, want %q", c.op, c.counts, err, c.want)
		}
	}
}

// TestBadUneven checks instances that a channel must refuse.
func TestBadUneven(t *testing.T) {
	w := open(t, cpu.Concurrent, 0, 2)
	base := spec{op: ir.OpAllToAllV, dt: ir.F32, n: 2, shape: []int64{3, 2}, unevenSpec: unevenSpec{room: 4}}
	for want, change := range map[string]func(in *Instance){
		"no dimension 2":                   func(in *Instance) { in.Axis = 2 },
		"operand of shape [3 3]":           func(in *Instance) { in.Parts[1].In.Shape = []int64{3, 3} },
		"operand of shape [4 3]":           func(in *Instance) { in.Parts[1].Out.Shape = []int64{4, 3} },
		"it has 1 counts for a team of":    func(in *Instance) { in.Parts[1].Rows = []int64{1} },
		"but member 0 and this one differ": func(in *Instance) { in.Parts[1].Counted = true },
		"counts[0] of member 1":            func(in *Instance) { in.Parts[1].Rows = []int64{-1, 0} },
		"room for 4": func(in *Instance) {
			in.Parts[0].Rows, in.Parts[1].Rows = []int64{3, 0},
				[]int64{2, 0}
		},
		"it names no valid reduction":      func(in *Instance) { in.Op = ir.OpReduceScatterV },
		"two-shot: not supported":          func(in *Instance) { in.Pin.Algo = "two-shot" },
		"members must have equal counts":   func(in *Instance) { in.Op, in.Parts[1].Rows = ir.OpAllGatherV, []int64{0, 3} },
		"its counts have type f32[2], but": func(in *Instance) { countIn(in, ir.F32, 2) },
		"its counts have type i32[3], but": func(in *Instance) { countIn(in, ir.I32, 3) },
	} {
		r := newRig(t, w, "s", teamOf(2), []spec{base})
		in := r.ch.insts[0]
		in.Parts = slices.Clone(in.Parts)
		in.Parts[0].Rows, in.Parts[1].Rows = []int64{1, 1}, []int64{0, 2}
		change(&in)
		if _, err := plain(w).Design(r.ch.members, []Instance{in}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// countIn moves the counts to device memory with the given element type and length.
func countIn(in *Instance, dt ir.DType, n int64) {
	for i := range in.Parts {
		in.Parts[i].Counted, in.Parts[i].Counts = true, packed(in.Parts[i].In.Mem, 0, dt, []int64{n})
	}
}

// TestUnevenMoved checks the number of bytes received from peers: the bytes of the rows if the counts are known on the
// host, or else the bytes of the whole output.
func TestUnevenMoved(t *testing.T) {
	const n = 3
	w := open(t, cpu.Concurrent, 0, n)
	for _, op := range []ir.Op{ir.OpAllGatherV, ir.OpReduceScatterV, ir.OpAllToAllV} {
		for _, counted := range []bool{false, true} {
			s := spec{op: op, red: ir.Sum, dt: ir.F32, n: n, shape: []int64{5, 2}, unevenSpec: unevenSpec{counted: counted, room: 6, seed: 3}}
			r := newRig(t, w, fmt.Sprint(op, counted), teamOf(n), []spec{s})
			counts := s.counts()
			for me := range n {
				rows := int64(0)
				for from := range n {
					switch {
					case from == me:
					case counted && op == ir.OpReduceScatterV:
						rows += s.room
					case counted:
						rows += s.room / n
					case op == ir.OpAllGatherV:
						rows += counts[0][from]
					default:
						rows += counts[from][me]
					}
				}
				if got := r.ch.Moved(0, me); got != rows*8 {
					t.Errorf("%s, counted %v, member %d moves %d bytes, want %d", op, counted, me, got, rows*8)
				}
			}
		}
	}
}
