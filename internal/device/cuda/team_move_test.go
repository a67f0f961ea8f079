package cuda

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/device/devicetest"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// teamCase describes a collective of a team. The shapes of operands, the inputs and the expected results follow from
// it.
type teamCase struct {
	op          ir.Op
	red         ir.Red
	dt          ir.DType
	shape       []int64 // shape of a member's smaller operand
	axis, split int
	root, shift int
	off         int64 // elements before each operand
	inPlace     bool  // the smaller operand is the member's block of the larger one
	algo        string
}

func (c teamCase) String() string {
	return fmt.Sprintf("%s %s %s %v axis %d split %d root %d shift %d off %d in place %t by %s",
		c.op, c.red, c.dt, c.shape, c.axis, c.split, c.root, c.shift, c.off, c.inPlace, c.algo)
}

func (c teamCase) larger(axis, n int) []int64 {
	l := slices.Clone(c.shape)
	l[axis] *= int64(n)
	return l
}

// shapes returns the shapes of the operands of one of n members, member me; nil for none.
func (c teamCase) shapes(me, n int) (in, out []int64) {
	in, out = c.shape, c.shape
	switch c.op {
	case ir.OpAllGather:
		out = c.larger(c.axis, n)
	case ir.OpReduceScatter:
		in = c.larger(c.axis, n)
	case ir.OpAllToAll:
		in, out = c.larger(c.split, n), c.larger(c.axis, n)
	case ir.OpBroadcast:
		if me != c.root {
			in = nil
		}
	case ir.OpReduce:
		if me != c.root {
			out = nil
		}
	case ir.OpGather:
		if out = nil; me == c.root {
			out = c.larger(c.axis, n)
		}
	case ir.OpScatter:
		if in = nil; me == c.root {
			in = c.larger(c.axis, n)
		}
	}
	return in, out
}

// again reports whether an in-place collective has the same result when it is repeated.
func (c teamCase) again() bool {
	return c.op == ir.OpAllGather || c.op == ir.OpGather || c.op == ir.OpScatter || c.op == ir.OpBroadcast
}

// want computes the result of member me in float64, which represents all values used here exactly.
func (c teamCase) want(ins []*tensor.Tensor, me, n int) *tensor.Tensor {
	_, shape := c.shapes(me, n)
	if shape == nil {
		return nil
	}
	out, err := tensor.New(c.dt, shape)
	if err != nil {
		panic(err)
	}
	block := func(t *tensor.Tensor, axis, i int) *tensor.Tensor {
		lo, ext := make([]int64, len(t.Shape)), slices.Clone(t.Shape)
		ext[axis] /= int64(n)
		lo[axis] = int64(i) * ext[axis]
		b, err := tensor.Slice(t, lo, ext)
		if err != nil {
			panic(err)
		}
		return b
	}
	paste := func(b *tensor.Tensor, axis, i int) {
		lo := make([]int64, len(shape))
		lo[axis] = int64(i) * b.Shape[axis]
		if err := tensor.Paste(out, b, lo); err != nil {
			panic(err)
		}
	}
	switch c.op {
	case ir.OpAllGather, ir.OpGather:
		for i := range n {
			paste(ins[i], c.axis, i)
		}
	case ir.OpAllToAll:
		for i := range n {
			paste(block(ins[i], c.split, me), c.axis, i)
		}
	case ir.OpBroadcast:
		copy(out.Data, ins[c.root].Data)
	case ir.OpScatter:
		copy(out.Data, block(ins[c.root], c.axis, me).Data)
	case ir.OpPermute:
		copy(out.Data, ins[(me+n-c.shift)%n].Data)
	default:
		var parts [][]byte
		for i := range n {
			part := ins[i]
			if c.op == ir.OpReduceScatter {
				part = block(part, c.axis, me)
			}
			parts = append(parts, part.Data)
		}
		copy(out.Data, reduced(c.red, c.dt, parts))
	}
	return out
}

// reduced reduces the members' inputs in order, with one rounding.
func reduced(red ir.Red, dt ir.DType, parts [][]byte) []byte {
	sum := make([]float64, int64(len(parts[0]))/dt.Size())
	x := make([]float64, len(sum))
	for q, part := range parts {
		tensor.ToFloat64(x, part, dt)
		for i, v := range x {
			switch {
			case q == 0:
				sum[i] = v
			case red == ir.Max:
				sum[i] = max(sum[i], v)
			case red == ir.Min:
				sum[i] = min(sum[i], v)
			default:
				sum[i] += v
			}
		}
	}
	if red == ir.Avg {
		for i := range sum {
			sum[i] /= float64(len(parts))
		}
	}
	data := make([]byte, len(parts[0]))
	tensor.FromFloat64(data, sum, dt)
	return data
}

// teamRig is a team of a world, and cases whose operands are on the devices of the team.
type teamRig struct {
	t       *testing.T
	w       device.World
	members []device.Member
	team    device.Team
	rng     *rand.Rand
	cases   []*rigCase

	poisoned []byte
}

type rigCase struct {
	teamCase
	parts    []device.Part
	launches []device.Launch
	ins      []*tensor.Tensor
	got      [][]byte
}

func newTeamRig(t *testing.T, w device.World, name string, ranks []int) *teamRig {
	r := &teamRig{t: t, w: w, rng: rand.New(rand.NewPCG(uint64(len(ranks)), 3))}
	for _, rank := range ranks {
		s, err := w.Device(rank).NewStream(device.StreamOptions{Name: name})
		r.must(err)
		r.members = append(r.members, device.Member{Rank: rank, Stream: s})
	}
	var err error
	r.team, err = w.OpenTeam(r.members)
	r.must(err)
	return r
}

func (r *teamRig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// view allocates a dense tensor at an offset in new memory.
func (r *teamRig) view(rank int, dt ir.DType, shape []int64, off int64) device.View {
	r.t.Helper()
	n := int64(1)
	for _, e := range shape {
		n *= e
	}
	mem, err := r.w.Device(rank).Alloc((n+off+64)*dt.Size(), device.Shared)
	r.must(err)
	return device.View{Mem: mem, Off: off * dt.Size(), DType: dt, Shape: shape, Strides: strided.RowMajor(shape)}
}

func cut(v device.View, axis, i int, shape []int64) device.View {
	v.Off += int64(i) * shape[axis] * v.Strides[axis] * v.DType.Size()
	v.Shape = shape
	return v
}

// place allocates a case's operands.
func (r *teamRig) place(c teamCase) {
	r.t.Helper()
	n := len(r.members)
	rc := &rigCase{teamCase: c, got: make([][]byte, n), launches: make([]device.Launch, n)}
	for me, m := range r.members {
		in, out := c.shapes(me, n)
		p := device.Part{Reads: in != nil, Writes: out != nil, To: -1, From: -1}
		if c.op == ir.OpPermute {
			p.To, p.From = (me+c.shift)%n, (me+n-c.shift)%n
		}
		together := c.inPlace && p.Reads && p.Writes
		smaller := c.op == ir.OpReduceScatter || c.op == ir.OpScatter // the smaller operand is the result of the case
		if p.Writes && !(together && smaller) {
			p.Out = r.view(m.Rank, c.dt, out, c.off)
		}
		if p.Reads && (!together || smaller) {
			p.In = r.view(m.Rank, c.dt, in, c.off)
		}
		switch {
		case !together:
		case smaller:
			p.Out = cut(p.In, c.axis, me, c.shape)
		case c.op == ir.OpAllGather || c.op == ir.OpGather:
			p.In = cut(p.Out, c.axis, me, c.shape)
		default:
			p.In = p.Out
			p.In.Shape, p.In.Strides = in, strided.RowMajor(in)
		}
		rc.parts = append(rc.parts, p)
	}
	r.cases = append(r.cases, rc)
}

func (c *rigCase) collective() *device.Collective {
	return &device.Collective{Op: c.op, Red: c.red, Root: c.root, Axis: c.axis, Split: c.split, Parts: c.parts, AnyOrder: true, Together: true}
}

// add prepares a case. It returns false if the algorithm refuses the case.
func (r *teamRig) add(c teamCase, tune device.Tuning) bool {
	r.t.Helper()
	if !r.take(c, tune) {
		return false
	}
	r.prepare(r.cases[len(r.cases)-1:], tune)
	return true
}

// take is add without preparing. It only starts the compilation of the kernels.
func (r *teamRig) take(c teamCase, tune device.Tuning) bool {
	r.place(c)
	x := r.cases[len(r.cases)-1].collective()
	tune.Algo = c.algo
	if err := r.team.Supports(tune, x); err != nil {
		r.drop()
		return false
	}
	r.team.PrepareAhead(tune, x)
	return true
}

// prepare prepares the cases that were accepted with the tuning tune.
func (r *teamRig) prepare(cases []*rigCase, tune device.Tuning) {
	r.t.Helper()
	for _, c := range cases {
		var err error
		tune.Algo = c.algo
		if c.launches, err = r.team.Prepare(tune, c.collective()); err != nil {
			r.t.Fatalf("%v: %v", c.teamCase, err)
		}
	}
}

// upload writes new inputs for all cases, and poisons results.
func (r *teamRig) upload() {
	r.t.Helper()
	seed := r.rng.Uint64()
	inParallel(len(r.cases), func(k int) { r.cases[k].draw(rand.New(rand.NewPCG(seed, uint64(k)))) })
	for _, c := range r.cases {
		for i, m := range r.members {
			if p := &c.parts[i]; p.Writes {
				r.must(m.Stream.Upload(p.Out, r.poison(p.Out.Elements()*c.dt.Size())))
			}
			if c.ins[i] != nil {
				r.must(m.Stream.Upload(c.parts[i].In, c.ins[i].Data))
			}
		}
	}
}

// draw draws new inputs.
func (c *rigCase) draw(rng *rand.Rand) {
	c.ins = make([]*tensor.Tensor, len(c.parts))
	for i := range c.parts {
		if p := &c.parts[i]; p.Reads {
			c.ins[i] = &tensor.Tensor{DType: c.dt, Shape: p.In.Shape, Data: make([]byte, p.In.Elements()*c.dt.Size())}
			drawElements(c.ins[i].Data, c.dt, rng)
		}
	}
}

// drawElements draws elements from -8 to 7, sixteen from each random number.
func drawElements(data []byte, dt ir.DType, rng *rand.Rand) {
	values := make([]float64, 16)
	for k := range values {
		values[k] = float64(k - 8)
	}
	size := int(dt.Size())
	table := make([]byte, 16*size)
	tensor.FromFloat64(table, values, dt)
	for len(data) > 0 {
		bits := rng.Uint64()
		for range min(16, len(data)/size) {
			at := int(bits%16) * size
			copy(data, table[at:at+size])
			data, bits = data[size:], bits/16
		}
	}
}

// poison returns n bytes that are NaNs. All calls of poison return the same memory.
func (r *teamRig) poison(n int64) []byte {
	if int64(len(r.poisoned)) < n {
		r.poisoned = bytes.Repeat([]byte{0xff, 0x7f}, int(n+1)/2)
	}
	return r.poisoned[:n]
}

// inParallel calls f with the numbers from 0 to n-1, on all processors.
func inParallel(n int, f func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}

// issue issues all launches to all members, with the ranks in a varying order.
func (r *teamRig) issue() error {
	for k, c := range r.cases {
		for d := range r.members {
			i := (d + k) % len(r.members)
			if l := c.launches[i]; l != nil {
				if err := r.members[i].Stream.Launch(l); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (r *teamRig) download() {
	r.t.Helper()
	for _, c := range r.cases {
		for i, m := range r.members {
			if p := &c.parts[i]; p.Writes {
				c.got[i] = make([]byte, p.Out.Elements()*c.dt.Size())
				r.must(m.Stream.Download(c.got[i], p.Out))
			}
		}
	}
}

func (r *teamRig) check(how string) {
	r.t.Helper()
	n := len(r.members)
	inParallel(n*len(r.cases), func(k int) {
		c, i := r.cases[k/n], k%n
		if !c.parts[i].Writes {
			return
		}
		if want := c.want(c.ins, i, n); !bytes.Equal(c.got[i], want.Data) {
			k := 0
			for c.got[i][k] == want.Data[k] {
				k++
			}
			r.t.Errorf("%s, %v, member %d: byte %d of %d is %#x, want %#x", how, c.teamCase, i, k, len(want.Data), c.got[i][k], want.Data[k])
		}
	})
}

// run executes all cases several times, without a graph and with one.
func (r *teamRig) run(times int) {
	r.t.Helper()
	for k := range times {
		r.upload()
		r.must(r.issue())
		r.download()
		r.must(r.w.Sync(r.t.Context()))
		r.check(fmt.Sprint("call by call, run ", k))
	}
	g, err := r.w.Capture(r.issue)
	r.must(err)
	for k := range times {
		r.upload()
		r.must(g.Launch(r.t.Context()))
		r.download()
		r.must(r.w.Sync(r.t.Context()))
		r.check(fmt.Sprint("graph, run ", k))
	}
	// Launches of one graph follow each other, interleaved with single calls.
	r.upload()
	r.must(g.Launch(r.t.Context()))
	r.must(g.Launch(r.t.Context()))
	r.must(r.issue())
	r.must(g.Launch(r.t.Context()))
	r.download()
	r.must(r.w.Sync(r.t.Context()))
	all := r.cases
	r.cases = slices.DeleteFunc(slices.Clone(all), func(c *rigCase) bool { return c.inPlace && !c.again() })
	r.check("graphs and calls")
	r.cases = all
	r.must(g.Close())
}

func (r *teamRig) close() {
	for _, c := range r.cases {
		for _, l := range c.launches {
			if l != nil {
				l.Release()
			}
		}
	}
	r.must(r.team.Close())
}

// moveOps are the collectives other than all_reduce.
var moveOps = []ir.Op{ir.OpAllGather, ir.OpReduceScatter, ir.OpAllToAll, ir.OpBroadcast, ir.OpReduce, ir.OpGather, ir.OpScatter, ir.OpPermute}

// moveCases returns cases of an operation for an algorithm.
func moveCases(op ir.Op, algo string, n int) []teamCase {
	list := casesOf(op, algo, n, [][]int64{{1}, {7}, {8191}, {4096}, {1 << 17}, {3, 5}, {2, 3, 4}, {64, 256}, {30, 1002}})
	if algo == "move-spread" { // needs more than one launch
		list = append(list, teamCase{op: op, dt: ir.BF16, shape: []int64{coll.MostInLL128/2 + 5001}, root: n - 1, algo: algo})
	}
	if algo == "move-host" { // has many chunks
		list = append(list, teamCase{op: op, dt: ir.BF16, shape: []int64{3<<20 + 5001}, root: n - 1, shift: 1, algo: algo})
	}
	if algo == "move-sum-host" { // this case is large enough to be split between the link and host memory
		c := teamCase{op: op, red: ir.Sum, dt: ir.BF16, shape: []int64{3<<17 + 8}, algo: algo}
		list = append(list, c)
		c.inPlace = true
		list = append(list, c)
	}
	return list
}

// goCases is like moveCases, without tensors that are slow to compute in Go.
func goCases(op ir.Op, algo string, n int) []teamCase {
	return casesOf(op, algo, n, [][]int64{{1}, {7}, {8191}, {512}, {4096}, {3, 5}, {2, 3, 4}, {16, 128}, {6, 502}})
}

func casesOf(op ir.Op, algo string, n int, shapes [][]int64) []teamCase {
	var list []teamCase
	types := ir.ArithmeticTypes()
	if op.Info().AttrSpec("op") == nil {
		types = ir.DTypes()
	}
	for k, shape := range shapes {
		for axis := range shape {
			dt := types[(k+axis+len(op.String()))%len(types)]
			if k >= 7 {
				dt = ir.BF16
			}
			c := teamCase{op: op, red: ir.Sum, dt: dt, shape: shape, axis: axis, split: (axis + k) % len(shape), root: k % n, shift: 1 + k%max(n-1, 1), algo: algo}
			if !dt.IsInt() || k%2 == 0 {
				c.red = []ir.Red{ir.Sum, ir.Max, ir.Min, ir.Avg}[k%4]
			}
			if dt.IsInt() && c.red == ir.Avg {
				c.red = ir.Sum
			}
			list = append(list, c)
			c.inPlace, c.off = true, int64(k%3)
			list = append(list, c)
		}
	}
	return list
}

// TestTeamMoves runs every operation by every algorithm that accepts it, on teams of all ranks and of some.
func TestTeamMoves(t *testing.T) {
	for _, per := range []int{1, 2} {
		m := real(t, Options{RanksPerGPU: per, TeamTimeout: 4 * time.Second})
		allByHost(m, coll.HostPart{Permille: 300, Writers: 2, Readers: 5})
		gpus := len(m.sys.GPUs)
		if gpus < 2 {
			devicetest.NeedGPUs(t, gpus, 2, nil)
		}
		ranks := gpus * per
		teams := [][]int{upTo(ranks)}
		switch {
		case per > 1:
			teams = append(teams, []int{gpus, 0, 1}) // the first two share a GPU
		case ranks > 2:
			teams = append(teams, []int{1, 0}, []int{2, 0, 3})
		default:
			teams = append(teams, []int{1, 0})
		}
		for i, team := range teams {
			every := 1 // only part of the cases for other teams, because kernels take long to compile
			switch {
			case per > 1:
				every = 3
			case i > 0:
				every = 2
			}
			for _, algo := range moveAlgorithmNames() {
				t.Run(fmt.Sprintf("%d a GPU/%v/%s", per, team, algo), func(t *testing.T) {
					w, err := m.Open(t.Context(), ranks)
					if err != nil {
						t.Fatal(err)
					}
					r := newTeamRig(t, w, "team", team)
					took := 0
					for k, op := range append(moveOps, ir.OpAllReduce) {
						for j, c := range moveCases(op, algo, len(team)) {
							if (j+k+i)%every != 0 {
								continue
							}
							if r.take(c, device.Tuning{}) {
								took++
							}
						}
					}
					r.prepare(r.cases, device.Tuning{})
					t.Logf("%d cases were accepted", took)
					if took == 0 && !(algo == ncclName && per > 1) && !(algo == "move-spread" && len(team) < 3) {
						t.Error("no case was accepted")
					}
					if took > 0 {
						r.run(2)
					}
					r.close()
					r.must(w.Close())
				})
			}
		}
	}
}

func moveAlgorithmNames() []string {
	names := []string{ncclName}
	for _, a := range slices.Concat(coll.MoveAlgorithms, coll.SumAlgorithms, coll.RoutedAlgorithms) {
		names = append(names, a.Name)
	}
	return names
}

// TestTeamMix runs collectives on three channels of one team concurrently, with all algorithms.
func TestTeamMix(t *testing.T) {
	m := real(t, Options{TeamTimeout: 4 * time.Second})
	allByHost(m, coll.HostPart{Permille: 300, Writers: 2, Readers: 5})
	devicetest.NeedGPUs(t, len(m.sys.GPUs), 2, nil)
	w, err := m.Open(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	var rigs []*teamRig
	for k := range 3 {
		r := newTeamRig(t, w, fmt.Sprint("channel", k), []int{k % 2, 1 - k%2})
		rigs = append(rigs, r)
	}
	for k, r := range rigs {
		for i := range 24 {
			algo := moveAlgorithmNames()[(i+k)%len(moveAlgorithmNames())]
			op := moveOps[(i*5+k)%len(moveOps)]
			r.add(teamCase{op: op, red: ir.Sum, dt: ir.BF16, shape: []int64{int64(1000 + 3000*i), 8}, root: i % 2, shift: 1, algo: algo}, device.Tuning{})
		}
	}
	for range 20 {
		for _, r := range rigs {
			r.upload()
		}
		for range 3 {
			for _, r := range rigs {
				r.must(r.issue())
			}
		}
		for _, r := range rigs {
			r.download()
		}
		if err := w.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, r := range rigs {
			r.check("three channels")
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}
