package devicetest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// RunTeams runs the tests of device.Teams on machines that the function open returns. Machines that the function hasty
// returns have a timeout of some tenths of a second for a member that does not arrive. Machines without teams are
// skipped.
func RunTeams(t *testing.T, open, hasty func(t *testing.T) device.Machine) {
	run(t, open, []test{
		{"AllReduce", testTeamAllReduce},
		{"InTurn", testTeamInTurn},
		{"Graph", testTeamGraph},
		{"AtOnce", testTeamsAtOnce},
		{"SameBits", testTeamSameBits},
		{"Norm", testTeamNorm},
		{"BadTeams", testBadTeams},
	})
	run(t, open, []test{{"Aborted", testTeamAborted}})
	run(t, hasty, []test{{"Late", testTeamLate}})
}

// teams returns the test's world if the world has teams, and skips the test otherwise.
func (r *rig) teams() device.Teams {
	r.Helper()
	if len(r.w.TeamAlgorithms()) == 0 {
		r.Skip("this machine's teams have no algorithms")
	}
	return r.w
}

// team opens a team of ranks, on their main streams.
func (r *rig) team(ranks ...int) device.Team {
	r.Helper()
	var members []device.Member
	for _, rank := range ranks {
		members = append(members, device.Member{Rank: rank, Stream: r.mainOf(rank)})
	}
	t, err := r.teams().OpenTeam(members)
	if errors.Is(err, device.ErrUnsupported) {
		r.Skip(err)
	}
	r.must(err)
	return t
}

// reduction is an all-reduce under test.
type reduction struct {
	dt    ir.DType
	red   ir.Red
	count int64
	in    []device.View // by member
	out   []device.View
	edges []device.View // memory around out
	ins   []host
}

const edge = 64 // number of bytes before and after a result that must not change

// draw allocates the operands of an all-reduce. The operands of member i begin offs[i] elements after a multiple of
// 256 bytes.
func (r *rig) draw(rng *rand.Rand, ranks []int, dt ir.DType, red ir.Red, count int64, offs []int64, inPlace bool) *reduction {
	r.Helper()
	x := &reduction{dt: dt, red: red, count: count}
	lay := func(off int64) layout {
		return layout{"", func(shape []int64) ([]int64, int64) { return rowMajor(shape, 0), off }}
	}
	for i, rank := range ranks {
		off := 256/dt.Size() + offs[i]
		in := r.room(rank, device.Shared, lay(off), dt, []int64{count + 256})
		in.Shape = []int64{count}
		out := in
		if !inPlace {
			out = r.room(rank, device.Shared, lay(off+offs[(i+1)%len(offs)]), dt, []int64{count + 256})
			out.Shape = []int64{count}
		}
		whole := device.View{Mem: out.Mem, Off: out.Off - edge, DType: ir.I32, Shape: []int64{edge / 4}, Strides: []int64{1}}
		whole.Off &^= 3
		x.in, x.out, x.edges = append(x.in, in), append(x.out, out), append(x.edges, whole)
	}
	x.refill(r, rng, ranks)
	return x
}

// refill gives the operands new values, and fills the results and the memory around them with other values.
func (x *reduction) refill(r *rig, rng *rand.Rand, ranks []int) {
	r.Helper()
	x.ins = nil
	for i, rank := range ranks {
		x.out[i].Mem.Poison(0, x.out[i].Mem.Bytes())
		h := random(rng, x.dt, x.count)
		x.ins = append(x.ins, h)
		r.must(r.mainOf(rank).Upload(x.in[i], h.bytes()))
	}
}

// collective returns the collective for the team.
func (x *reduction) collective() *device.Collective {
	c := &device.Collective{Op: ir.OpAllReduce, Red: x.red}
	for i := range x.in {
		c.Parts = append(c.Parts, device.Part{In: x.in[i], Out: x.out[i], Reads: true, Writes: true, To: -1, From: -1})
	}
	return c
}

// want returns the reduction in the order of the members, computed in the accumulator and rounded once.
func (x *reduction) want() []float64 {
	want := make([]float64, x.count)
	for i := range want {
		v := x.ins[0].vals[i]
		for _, h := range x.ins[1:] {
			switch x.red {
			case ir.Max:
				v = max(v, h.vals[i])
			case ir.Min:
				v = min(v, h.vals[i])
			default:
				v = accumulated(x.dt, v+h.vals[i])
			}
		}
		if x.red == ir.Avg {
			v = accumulated(x.dt, v/float64(len(x.ins)))
		}
		want[i] = tensor.Round(x.dt, v)
	}
	return want
}

// accumulated rounds v to the accumulator type of dt.
func accumulated(dt ir.DType, v float64) float64 {
	switch dt.Accum() {
	case ir.F32:
		return float64(float32(v))
	case ir.I64:
		return math.Trunc(v)
	}
	return v
}

// check compares all results, bit for bit, and the memory before and after them.
func (x *reduction) check(r *rig, what string, ranks []int) {
	r.Helper()
	want := x.want()
	var got, around []read
	for i, rank := range ranks {
		got = append(got, r.get(r.mainOf(rank), x.out[i]))
		behind := x.edges[i]
		behind.Off = (x.out[i].Off + x.count*x.dt.Size() + 3) &^ 3
		around = append(around, r.get(r.mainOf(rank), x.edges[i]), r.get(r.mainOf(rank), behind))
	}
	r.sync()
	for i := range ranks {
		r.equal(fmt.Sprintf("%s: member %d", what, i), got[i].vals(), want)
	}
	for i, a := range around {
		if !r.m.Caps().Poison {
			continue
		}
		if slices.ContainsFunc(a.b, func(b byte) bool { return b != a.b[0] && b != a.b[1] }) {
			r.Errorf("%s: member %d: bytes around the result were overwritten", what, i/2)
		}
	}
}

// run launches x on team t.
func (x *reduction) run(r *rig, t device.Team, tune device.Tuning, ranks []int) []device.Launch {
	r.Helper()
	launches, err := t.Prepare(tune, x.collective())
	r.must(err)
	for i, l := range launches {
		if l != nil {
			r.must(r.mainOf(ranks[i]).Launch(l))
		}
	}
	return launches
}

// release releases the launches and the operands.
func (x *reduction) release(r *rig, launches []device.Launch) {
	r.Helper()
	for i, l := range launches {
		if l != nil {
			l.Release()
		}
		r.must(x.in[i].Mem.Free())
		if x.out[i].Mem != x.in[i].Mem {
			r.must(x.out[i].Mem.Free())
		}
	}
}

// supported reports whether t supports x with tune. The test does not fail if t does not support it.
func (x *reduction) supported(r *rig, t device.Team, tune device.Tuning) bool {
	r.Helper()
	err := t.Supports(tune, x.collective())
	if err != nil && !errors.Is(err, device.ErrUnsupported) {
		r.Errorf("%s of %d × %s by %s: %v", x.red, x.count, x.dt, tune.Algo, err)
	}
	return err == nil
}

var teamTypes = []ir.DType{ir.BF16, ir.F16, ir.F32, ir.I32, ir.I64, ir.F64}

// testTeamAllReduce checks random all-reduces with every algorithm: types, sizes, tunings, operands that begin at any
// element, and teams of some of the ranks.
func testTeamAllReduce(r *rig) {
	most := r.some(4)
	r.open(most)
	names := device.AlgorithmNames(r.teams().TeamAlgorithms())
	counts := []int64{0, 1, 2, 7, 8, 9, 63, 64, 65, 479, 480, 481, 1023, 4097, 30000, 65536, 100003}
	for members := max(2, most-1); members <= most; members++ {
		ranks := make([]int, members)
		for i := range ranks {
			ranks[i] = (i*(most-1) + members) % most // any order
		}
		slices.Sort(ranks)
		if ranks = slices.Compact(ranks); len(ranks) < 2 {
			continue
		}
		t := r.team(ranks...)
		for _, name := range names {
			rng, done := seeded(name, members), 0
			for k := range 6 {
				dt, red := teamTypes[k%len(teamTypes)], ir.Sum+ir.Red(rng.IntN(4))
				offs := make([]int64, len(ranks))
				if k%3 == 0 {
					for i := range offs {
						offs[i] = rng.Int64N(5)
					}
				}
				x := r.draw(rng, ranks, dt, red, counts[rng.IntN(len(counts))], offs, k%2 == 0)
				tune := device.Tuning{Algo: name, Blocks: []int{0, 1, 3, 16}[rng.IntN(4)], Threads: []int{0, 64, 256}[rng.IntN(3)], Unroll: []int{0, 1, 2, 4}[rng.IntN(4)]}
				if !x.supported(r, t, tune) {
					r.sync() // uploads must end before the memory is reused
					x.release(r, make([]device.Launch, len(ranks)))
					continue
				}
				done++
				launches := x.run(r, t, tune, ranks)
				what := fmt.Sprintf("%+v, %s of %d × %s on %v, offsets %v", tune, red, x.count, dt, ranks, offs)
				for range 2 {
					x.check(r, what, ranks)
					x.refill(r, rng, ranks)
					for i, l := range launches {
						if l != nil {
							r.must(r.mainOf(ranks[i]).Launch(l))
						}
					}
				}
				x.check(r, what, ranks)
				x.release(r, launches)
				if r.Failed() {
					return
				}
			}
			r.Logf("%d members: %s: %d reductions", len(ranks), name, done)
		}
		r.must(t.Close())
	}
}

// testTeamInTurn launches many algorithms one after another without a sync between them. Each launch works on the
// result of the previous one: x becomes x plus the sum of all members' x. The numbers are integers, in which an error
// persists.
func testTeamInTurn(r *rig) {
	ranks := r.ranks(r.some(4))
	r.open(len(ranks))
	t := r.team(ranks...)
	rng := seeded("in turn")
	const count, rounds = 20011, 400
	var launches [][]device.Launch
	var names []string
	vals := make([][]int32, len(ranks))
	var in, out []device.View
	for i, rank := range ranks {
		h := random(rng, ir.I32, count)
		in, out = append(in, r.put(rank, h)), append(out, r.empty(rank, ir.I32, count))
		vals[i] = make([]int32, count)
		for k, v := range h.vals {
			vals[i][k] = int32(v)
		}
	}
	x := &reduction{dt: ir.I32, red: ir.Sum, count: count, in: in, out: out}
	for _, name := range device.AlgorithmNames(r.teams().TeamAlgorithms()) {
		for _, blocks := range []int{2, 0} {
			if tune := (device.Tuning{Algo: name, Blocks: blocks}); x.supported(r, t, tune) {
				l, err := t.Prepare(tune, x.collective())
				r.must(err)
				launches, names = append(launches, l), append(names, name)
			}
		}
	}
	var adds []device.Launch
	for i, rank := range ranks {
		l, err := r.w.Device(rank).Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpAdd}, Ins: []device.View{in[i], out[i]}, Outs: []device.View{in[i]}})
		r.must(err)
		adds = append(adds, l)
	}
	for round := range rounds {
		pick := launches[rng.IntN(len(launches))]
		for _, i := range rng.Perm(len(ranks)) {
			r.must(r.mainOf(ranks[i]).Launch(pick[i]))
			r.must(r.mainOf(ranks[i]).Launch(adds[i]))
			if round%40 == 0 {
				time.Sleep(time.Millisecond) // the next member is late
			}
		}
		for k := range count {
			var sum int32
			for i := range vals {
				sum += vals[i][k]
			}
			for i := range vals {
				vals[i][k] += sum
			}
		}
		if round%100 == 0 {
			r.sync()
		}
	}
	for i, rank := range ranks {
		got := r.contents(rank, in[i])
		for k := range got {
			if int32(got[k]) != vals[i][k] {
				r.Fatalf("member %d, element %d: got %v, want %v; by %s", i, k, int32(got[k]), vals[i][k], strings.Join(names, ", "))
			}
		}
	}
}

func (r *rig) ranks(n int) []int {
	if n < 2 {
		r.Skip("a team needs two ranks")
	}
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// testTeamGraph replays a graph with several launches of every algorithm, each time with other operands, between
// launches outside the graph.
func testTeamGraph(r *rig) {
	ranks := r.ranks(r.some(4))
	r.open(len(ranks))
	c := r.capturer()
	t := r.team(ranks...)
	rng := seeded("graph")
	for _, name := range device.AlgorithmNames(r.teams().TeamAlgorithms()) {
		x := r.draw(rng, ranks, ir.BF16, ir.Sum, 12345, make([]int64, len(ranks)), false)
		tune := device.Tuning{Algo: name}
		if !x.supported(r, t, tune) {
			continue
		}
		launches := x.run(r, t, tune, ranks)
		x.check(r, name, ranks)
		g, err := c.Capture(func() error {
			for range 5 {
				for i, l := range launches {
					r.must(r.mainOf(ranks[i]).Launch(l))
				}
			}
			return nil
		})
		r.must(err)
		for round := range 6 {
			x.refill(r, rng, ranks)
			r.sync()
			r.must(g.Launch(r.Context()))
			r.must(g.Launch(r.Context()))
			x.check(r, fmt.Sprintf("%s, replay %d", name, round), ranks)
			if round%2 == 0 {
				for i, l := range launches {
					r.must(r.mainOf(ranks[i]).Launch(l))
				}
			}
		}
		r.must(g.Close())
	}
}

// testTeamsAtOnce runs two teams of the same ranks on separate streams concurrently, and issues their work in opposite
// orders.
func testTeamsAtOnce(r *rig) {
	ranks := r.ranks(2)
	r.open(2)
	a := r.team(ranks...)
	others := map[int]device.Stream{}
	var members []device.Member
	for _, rank := range ranks {
		others[rank] = r.stream(rank, "other")
		members = append(members, device.Member{Rank: rank, Stream: others[rank]})
	}
	b, err := r.teams().OpenTeam(members)
	r.must(err)
	rng := seeded("at once")
	for _, name := range device.AlgorithmNames(r.teams().TeamAlgorithms()) {
		x := r.draw(rng, ranks, ir.F32, ir.Sum, 1<<20, []int64{0, 0}, false)
		y := r.draw(rng, ranks, ir.F32, ir.Sum, 1<<20, []int64{0, 0}, false)
		tune := device.Tuning{Algo: name}
		if !x.supported(r, a, tune) {
			continue
		}
		r.sync()
		lx, err := a.Prepare(tune, x.collective())
		r.must(err)
		ly, err := b.Prepare(tune, y.collective())
		r.must(err)
		for range 20 {
			r.must(r.mainOf(0).Launch(lx[0]))
			r.must(others[0].Launch(ly[0]))
			r.must(others[1].Launch(ly[1]))
			r.must(r.mainOf(1).Launch(lx[1]))
		}
		r.sync()
		x.check(r, name+", first team", ranks)
		y.check(r, name+", second team", ranks)
	}
}

// testTeamSameBits compares the results of all algorithms and numbers of blocks for floats whose sums depend on the
// order of additions.
func testTeamSameBits(r *rig) {
	ranks := r.ranks(r.some(4))
	r.open(len(ranks))
	t := r.team(ranks...)
	for _, dt := range []ir.DType{ir.BF16, ir.F32} {
		rng := seeded("bits", dt)
		x := r.draw(rng, ranks, dt, ir.Sum, 50021, make([]int64, len(ranks)), false)
		for i := range x.ins {
			for k := range x.ins[i].vals {
				x.ins[i].vals[k] = tensor.Round(dt, rng.NormFloat64()*math.Ldexp(1, rng.IntN(24)))
			}
			r.must(r.mainOf(ranks[i]).Upload(x.in[i], x.ins[i].bytes()))
		}
		for _, name := range device.AlgorithmNames(r.teams().TeamAlgorithms()) {
			for _, blocks := range []int{1, 7, 0} {
				if tune := (device.Tuning{Algo: name, Blocks: blocks}); x.supported(r, t, tune) {
					x.run(r, t, tune, ranks)
					x.check(r, fmt.Sprintf("%s of %s, %d blocks", name, dt, blocks), ranks)
				}
			}
		}
	}
}

// testTeamNorm compares a Norm with its three separate operations, bit for bit. Results are in separate memory, in the
// memory of operands, and in memory that overlaps operands. Some Norms do not store the sum.
func testTeamNorm(r *rig) {
	ranks := r.ranks(r.some(4))
	r.open(len(ranks))
	t := r.team(ranks...)
	n := t
	for i, c := range []struct {
		dt       ir.DType
		rows     int64
		width    int64
		unstored bool // the sum is not stored
	}{
		{ir.BF16, 1, 8, false}, {ir.BF16, 1, 4096, false}, {ir.BF16, 2, 2048, false}, {ir.BF16, 30, 16, false},
		{ir.F16, 3, 1032, false}, {ir.F32, 2, 1020, false}, {ir.BF16, 0, 16, false}, {ir.F64, 1, 1022, false},
		{ir.BF16, 8, 512, false}, {ir.BF16, 2, 2040, false},
		// some machines decline these
		{ir.BF16, 3, 8192, false}, {ir.BF16, 8, 4096, false}, {ir.F16, 17, 1032, false}, {ir.F32, 9, 1028, false},
		{ir.BF16, 3, 8184, false},
		{ir.F32, 300, 1028, false}, {ir.BF16, 290, 2064, false}, // more rows than a GPU processes at once
		{ir.F32, 2, 1020, true}, {ir.BF16, 3, 2048, true}, {ir.BF16, 2, 2040, true}, {ir.BF16, 290, 2064, true},
		{ir.F16, 300, 1032, true},
	} {
		what := fmt.Sprintf("%s[%d %d], stored: %t", c.dt, c.rows, c.width, !c.unstored)
		rng := seeded("norm", what)
		residual, weight := random(rng, c.dt, c.rows, c.width), random(rng, c.dt, c.width)
		x := &reduction{dt: c.dt, red: ir.Sum, count: c.rows * c.width}
		var parts []device.NormPart
		for _, rank := range ranks {
			h := random(rng, c.dt, c.rows, c.width)
			p := device.NormPart{In: r.put(rank, h), Residual: r.put(rank, residual), Weight: r.put(rank, weight)}
			p.Sum, p.Out = r.empty(rank, c.dt, c.rows, c.width), r.empty(rank, c.dt, c.rows, c.width)
			switch i % 5 {
			case 4:
				p.Sum, p.Out = r.below(rank, &p.In, h), r.below(rank, &p.Residual, residual)
			case 1:
				p.Sum, p.Out = p.Residual, p.In
			case 2:
				p.Sum, p.Out = p.In, p.Residual
			case 3:
				p.Sum = p.In
			}
			if c.unstored {
				p.Sum = device.View{}
			}
			parts = append(parts, p)
			x.in, x.out = append(x.in, r.put(rank, h)), append(x.out, r.empty(rank, c.dt, c.rows, c.width))
		}
		launches, err := n.PrepareNorm(&device.Norm{Eps: 1e-5, Parts: parts})
		if errors.Is(err, device.ErrUnsupported) {
			r.Log(err)
			continue
		}
		r.must(err)
		var wants [][2][]float64
		x.run(r, t, device.Tuning{Algo: device.AlgorithmNames(r.teams().TeamAlgorithms())[0]}, ranks)
		for i, rank := range ranks {
			s, res, w := r.mainOf(rank), r.put(rank, residual), r.empty(rank, c.dt, c.rows, c.width)
			r.launch(s, rank, device.Kernel{Op: device.Elementwise{Op: ir.OpAdd}, Ins: []device.View{x.out[i], res}, Outs: []device.View{res}})
			r.launch(s, rank, device.Kernel{Op: device.RMSNorm{Eps: 1e-5}, Ins: []device.View{res, parts[i].Weight}, Outs: []device.View{w}})
			wants = append(wants, [2][]float64{r.contents(rank, res), r.contents(rank, w)})
		}
		for i, rank := range ranks {
			if launches[i] != nil {
				r.must(r.mainOf(rank).Launch(launches[i]))
			}
		}
		for i, rank := range ranks {
			if parts[i].Stores() {
				r.equal(fmt.Sprintf("%s: member %d: sum", what, i), r.contents(rank, parts[i].Sum), wants[i][0])
			}
			r.equal(fmt.Sprintf("%s: member %d: normalised", what, i), r.contents(rank, parts[i].Out), wants[i][1])
		}
	}
}

// below moves a tensor to memory that is one row larger, and returns a view of the same shape that begins one row after
// the tensor.
func (r *rig) below(rank int, v *device.View, h host) device.View {
	all := r.empty(rank, h.dt, h.shape[0]+1, h.shape[1])
	all.Shape = h.shape
	r.must(r.mainOf(rank).Upload(all, h.bytes()))
	*v = all
	all.Off += h.shape[1] * h.dt.Size()
	return all
}

// testBadTeams checks operations that must be refused.
func testBadTeams(r *rig) {
	ranks := r.ranks(2)
	r.open(2)
	w := r.teams()
	t := r.team(ranks...)
	_, err := w.OpenTeam([]device.Member{{Rank: 0, Stream: r.mainOf(1)}})
	r.refused("another rank's stream", err)
	_, err = w.OpenTeam([]device.Member{{Rank: 0, Stream: r.mainOf(0)}, {Rank: 0, Stream: r.stream(0, "more")}})
	r.refused("a rank twice", err)
	x := r.draw(seeded("bad"), ranks, ir.F32, ir.Sum, 100, []int64{0, 0}, false)
	r.refused("an unknown algorithm", t.Supports(device.Tuning{Algo: "none of these"}, x.collective()))
	for _, name := range device.AlgorithmNames(w.TeamAlgorithms()) {
		tune := device.Tuning{Algo: name}
		if !x.supported(r, t, tune) {
			continue
		}
		c := x.collective()
		c.Parts = c.Parts[:1]
		r.refused(name+": one part for two members", t.Supports(tune, c))
		c = x.collective()
		c.Parts[0].In.Shape = []int64{99}
		r.refused(name+": other sizes on other members", t.Supports(tune, c))
		c = x.collective()
		c.Parts[0].In = c.Parts[1].In
		r.refused(name+": another rank's memory", t.Supports(tune, c))
		l, err := t.Prepare(tune, x.collective())
		r.must(err)
		r.refused(name+": a member's launch on another's stream", r.mainOf(1).Launch(l[0]))
		r.refused(name+": a member's launch on another stream of its rank", r.stream(0, "side").Launch(l[0]))
	}
	if t.Bytes() <= 0 {
		r.Errorf("a team holds %d bytes", t.Bytes())
	}
	r.sync()
	r.must(t.Close())
	r.refused("a closed team", t.Supports(device.Tuning{Algo: device.AlgorithmNames(w.TeamAlgorithms())[0]}, x.collective()))
}

// testTeamAborted aborts a world in which members wait for a member that does not arrive. The waiting members must
// stop long before their timeout, and another world must work afterwards.
func testTeamAborted(r *rig) {
	ranks := r.ranks(2)
	r.open(2)
	for _, name := range device.AlgorithmNames(r.teams().TeamAlgorithms()) {
		t := r.team(ranks...)
		x := r.draw(seeded(name), ranks, ir.F32, ir.Sum, 5000, make([]int64, len(ranks)), false)
		if !x.supported(r, t, device.Tuning{Algo: name}) {
			continue
		}
		launches := x.run(r, t, device.Tuning{Algo: name}, ranks)
		x.check(r, name, ranks)
		r.must(r.mainOf(0).Launch(launches[0]))
		time.Sleep(5 * time.Millisecond)
		began := time.Now()
		r.w.Abort(errors.New("enough"))
		if err := r.syncs(); !errors.Is(err, device.ErrAborted) {
			r.Errorf("%s: after an abort: %v", name, err)
		}
		r.must(r.w.Close())
		if took := time.Since(began); took > 3*time.Second {
			r.Errorf("%s: a wait ended %v after the abort", name, took)
		}
		r.open(2)
	}
}

// testTeamLate omits one member's launch: the world must end with a fault that names the member, and another world must
// still work.
func testTeamLate(r *rig) {
	ranks := r.ranks(r.some(3))
	r.open(len(ranks))
	names := device.AlgorithmNames(r.teams().TeamAlgorithms())
	for k, name := range names {
		t := r.team(ranks...)
		x := r.draw(seeded(name), ranks, ir.F32, ir.Sum, 5000, make([]int64, len(ranks)), false)
		if !x.supported(r, t, device.Tuning{Algo: name}) {
			continue
		}
		launches := x.run(r, t, device.Tuning{Algo: name}, ranks)
		r.sync()
		x.check(r, name, ranks)
		late := k % len(ranks)
		for i, l := range launches {
			if i != late {
				r.must(r.mainOf(ranks[i]).Launch(l))
			}
		}
		err := r.syncs()
		var fault *device.Fault
		var stuck *device.Deadlock
		want := fmt.Sprintf("member %d (rank %d)", late, ranks[late])
		switch {
		case errors.As(err, &stuck) && strings.Contains(err.Error(), fmt.Sprintf("rank %d", ranks[late])): // held back on the host
		case !errors.As(err, &fault):
			r.Fatalf("%s: got %v, want a fault", name, err)
		case fault.Rank == ranks[late] || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), name):
			r.Errorf("%s: got %v, which does not name %s", name, err, want)
		}
		r.Log(err)
		r.must(r.w.Close())
		r.open(len(ranks))
	}
}
