package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/devicetest"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/ir"
)

// allByHost makes a machine transfer a part of blocks of any size through host memory.
func allByHost(m *machine, part coll.HostPart) {
	parts := coll.MeasuredParts()
	parts.Moves = func(ir.Op, int64, int) coll.HostPart { return part }
	m.opts.hostParts = &parts
}

// many gives the fake GPUs so many multiprocessors that kernels can use some thread blocks for host memory.
func many(w *world) {
	for _, s := range w.sites {
		s.gpu.SMs = 64
	}
}

// TestMoveHostShares plans collectives by the algorithm move-host on fake drivers, and executes the members' shares in
// Go.
func TestMoveHostShares(t *testing.T) {
	t.Parallel()
	for _, ranks := range [][]int{{0, 1}, {1, 0, 3}, {3, 2, 1, 0}} {
		f := fakedriver.New(t, 4)
		w, err := newMachine(system(f), Options{Kernels: f}).Open(t.Context(), 4)
		if err != nil {
			t.Fatal(err)
		}
		many(w.(*world))
		allByHost(w.(*world).m, coll.HostPart{Permille: 300, Writers: 2, Readers: 5})
		r := newTeamRig(t, w, "team", ranks)
		took := map[ir.Op]int{}
		for _, op := range moveOps {
			large := teamCase{op: op, dt: ir.BF16, shape: []int64{1 << 20}, shift: 1}
			for _, c := range append(goCases(op, "move-host", len(ranks)), large) {
				r.place(c)
				if !r.sharesByHost(r.cases[len(r.cases)-1]) {
					r.drop()
					continue
				}
				took[op]++
			}
		}
		for _, op := range moveOps {
			if reduces := op == ir.OpReduce || op == ir.OpReduceScatter; reduces != (took[op] == 0) {
				t.Errorf("%d cases of %s were accepted", took[op], op)
			}
		}
		r.check("planned")
		r.close()
		r.must(w.Close())
	}
}

// sharesByHost runs a case by executing the members' shares in Go. It returns false if the case is refused.
func (r *teamRig) sharesByHost(c *rigCase) bool {
	r.t.Helper()
	return r.withShares(coll.HostMove{}, coll.Pushed, c, func(tm *team, p *coll.MovePlan) { r.movedByHost(c, tm, p) })
}

// movedByHost does in Go what the members' kernels would do: it writes host memory and then reads it.
func (r *teamRig) movedByHost(c *rigCase, tm *team, p *coll.MovePlan) {
	r.t.Helper()
	wants := &coll.Plan{}
	shares := coll.RestByHost(wants, tm, p, tm.HostParts().Moves(c.op, 0, 0))
	r.hold(wants)
	stores := make([]kernels.Move, len(p.Moves))
	var puts []func()
	for i := range p.Moves {
		s := shares.Complete(p, i, coll.Area{})
		stores[i] = s.Move
		rest := func(q int) []byte { return cabi.Bytes(uintptr(s.Src[q])+uintptr(s.Run), int(s.Rest)) }
		for q := range p.Moves {
			if s.To>>q&1 != 0 {
				if room := tm.regions["host memory"]; s.Give[q] < room.At[i] || int64(s.Give[q]-room.At[i])+s.Rest > room.Bytes {
					r.t.Fatalf("%v: host memory of member %d has %d bytes, but its peer's %d bytes begin at %d", c.teamCase, i, room.Bytes, s.Rest, s.Give[q]-room.At[i])
				}
				copy(cabi.Bytes(uintptr(s.Give[q]), int(s.Rest)), rest(q))
			}
			if s.From>>q&1 != 0 {
				puts = append(puts, func() { copy(cabi.Bytes(uintptr(s.Put[q]), int(s.Rest)), cabi.Bytes(uintptr(s.Take[q]), int(s.Rest))) })
			}
		}
		if s.Own {
			kept := append([]byte(nil), rest(i)...)
			puts = append(puts, func() { copy(cabi.Bytes(uintptr(s.Put[i]), int(s.Rest)), kept) })
		}
	}
	moved(r.t, stores)
	for _, put := range puts {
		put()
	}
}

// TestMoveHostDeclines checks collectives of which the algorithm move-host transfers nothing through host memory.
func TestMoveHostDeclines(t *testing.T) {
	f := fakedriver.New(t, 2)
	w, err := newMachine(system(f), Options{Kernels: f}).Open(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	for what, x := range map[string]struct {
		op    ir.Op
		shape []int64
		axis  int
		tune  device.Tuning
		Want  string
	}{
		"fine":        {ir.OpAllGather, []int64{8 << 20}, 0, device.Tuning{}, ""},
		"in place":    {ir.OpAllToAll, []int64{8 << 20}, 0, device.Tuning{Blocks: 64, Threads: 256, Unroll: 4}, ""},
		"small":       {ir.OpAllGather, []int64{1 << 20}, 0, device.Tuning{}, "not worth cutting"},
		"rows":        {ir.OpAllGather, []int64{1 << 10, 8 << 10}, 1, device.Tuning{}, "not worth cutting"},
		"a reduction": {ir.OpReduceScatter, []int64{8 << 20}, 0, device.Tuning{}, "it runs all_gather"},
		"unroll":      {ir.OpAllGather, []int64{8 << 20}, 0, device.Tuning{Unroll: 9}, "loads in flight"},
	} {
		r := newTeamRig(t, w, what, []int{0, 1})
		r.place(teamCase{op: x.op, red: ir.Sum, dt: ir.BF16, shape: x.shape, axis: x.axis, split: x.axis, inPlace: what == "in place"})
		x.tune.Algo = "move-host"
		err := r.team.Supports(x.tune, r.cases[0].collective())
		if (err == nil) != (x.Want == "") || err != nil && !strings.Contains(err.Error(), x.Want) {
			t.Errorf("%s: got %v, want %q", what, err, x.Want)
		}
		r.drop()
		r.close()
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestMoveHostAside checks that some thread blocks store over the link, however few blocks there are.
func TestMoveHostAside(t *testing.T) {
	for blocks := range int64(kernels.BlocksMost) {
		writers, readers := coll.HostPart{Permille: 100, Writers: 8, Readers: 24}.Aside(blocks)
		if (writers == 0) != (blocks < 6) || (readers == 0) != (writers == 0) || writers > 8 || readers > 24 || 3*(writers+readers) > blocks {
			t.Errorf("%d writers and %d readers of %d blocks", writers, readers, blocks)
		}
	}
}

// TestMoveHostChain runs very many consecutive collectives by the algorithm move-host in graphs. Each moves the result
// of the previous one plus a constant. If data arrive late, or are those of the previous launch, all later results
// change.
func TestMoveHostChain(t *testing.T) {
	for _, per := range []int{1, 2} {
		m := real(t, Options{RanksPerGPU: per, TeamTimeout: 5 * time.Second})
		devicetest.NeedGPUs(t, len(m.sys.GPUs), 2, nil)
		w, err := m.Open(t.Context(), per*len(m.sys.GPUs))
		if err != nil {
			t.Fatal(err)
		}
		allByHost(m, coll.HostPart{Permille: 400, Writers: 4, Readers: 8})
		for _, op := range []ir.Op{ir.OpAllGather, ir.OpAllToAll} {
			for _, count := range []int64{10001, 300001} {
				for _, last := range []uint32{0, math.MaxUint32 - 57} {
					t.Run(fmt.Sprintf("%d members/%s of %d from %d", w.Ranks(), op, count, last), func(t *testing.T) {
						testMoveChain(t, w.(*world), op, count, last)
					})
				}
			}
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
}

// testMoveChain repeatedly replaces x by the result of a collective of x, plus c. For an all_gather the result is the
// block of another member, a different one each time; for an all_to_all it is all blocks.
func testMoveChain(t *testing.T, w *world, op ir.Op, count int64, last uint32) {
	must := mustOf(t)
	n, rng := w.Ranks(), rand.New(rand.NewPCG(uint64(count), 11))
	blocks := 1
	if op == ir.OpAllToAll {
		blocks = n
	}
	var members []device.Member
	var adds [][]device.Launch // adds[m][b] adds c to block b of the result of member m
	c := &device.Collective{Op: op}
	values := make([][]int32, 2*n) // initial values of x, and of c
	for r := range n {
		d := w.Device(r)
		s, err := d.NewStream(device.StreamOptions{Name: "chain"})
		must(err)
		view := func(elems int64) device.View {
			m, err := d.Alloc(4*elems, device.Shared)
			must(err)
			t.Cleanup(func() { _ = m.Free() })
			return device.View{Mem: m, DType: ir.I32, Shape: []int64{elems}, Strides: []int64{1}}
		}
		x, plus, y := view(count*int64(blocks)), view(count*int64(blocks)), view(count*int64(n))
		for v, to := range map[*device.View]*[]int32{&x: &values[r], &plus: &values[n+r]} {
			raw := make([]byte, 4*count*int64(blocks))
			for i := 0; i < len(raw); i += 4 {
				binary.LittleEndian.PutUint32(raw[i:], rng.Uint32())
			}
			*to = words32(raw)
			must(s.Upload(*v, raw))
		}
		var list []device.Launch
		for b := range n / blocks {
			add, err := d.Prepare(device.Kernel{Op: device.Elementwise{Op: ir.OpAdd}, Ins: []device.View{cut(y, 0, b, x.Shape), plus}, Outs: []device.View{x}})
			must(err)
			list = append(list, add)
		}
		adds, members = append(adds, list), append(members, device.Member{Rank: r, Stream: s})
		c.Parts = append(c.Parts, device.Part{In: x, Out: y, Reads: true, Writes: true})
	}
	must(w.Sync(t.Context()))
	opened, err := w.OpenTeam(members)
	must(err)
	launches, err := opened.Prepare(device.Tuning{Algo: "move-host", Unroll: 2}, c)
	must(err)
	if last != 0 {
		for _, m := range opened.(*team).members {
			must(m.set(m.control+kernels.ControlEpochs, last, kernels.BlocksMost))
		}
	}
	const rounds, times = 100, 8
	// The function of(m, b) returns the index of block b of member m's x. Each count is how often an initial x, or a c,
	// has been added to that block.
	of := func(m, b int) int { return m*blocks + b }
	now := make([][]int32, n*blocks)
	for i := range now {
		now[i] = make([]int32, 2*n*blocks)
		now[i][i] = 1
	}
	from := func(k, m, b int) int {
		if blocks == 1 {
			return of((m+1+k)%n, 0)
		}
		return of(b, m)
	}
	for k := range rounds * times {
		next := make([][]int32, len(now))
		for m := range n {
			for b := range blocks {
				next[of(m, b)] = append([]int32(nil), now[from(k%rounds, m, b)]...)
				next[of(m, b)][n*blocks+of(m, b)]++
			}
		}
		now = next
	}
	g, err := w.Capture(func() error {
		for k := range rounds {
			for r, m := range members {
				must(m.Stream.Launch(launches[r]))
				must(m.Stream.Launch(adds[r][from(k, r, 0)%len(adds[r])]))
			}
		}
		return nil
	})
	must(err)
	for range times {
		must(g.Launch(t.Context()))
	}
	must(w.Sync(t.Context()))
	for r, m := range members {
		raw := make([]byte, 4*count*int64(blocks))
		must(m.Stream.Download(raw, c.Parts[r].In))
		must(w.Sync(t.Context()))
		got := words32(raw)
		for b := range blocks {
			want := make([]int32, count)
			for q, times := range now[of(r, b)] {
				if times == 0 {
					continue
				}
				what := values[q/blocks][q%blocks*int(count):][:count]
				for i := range want {
					want[i] += times * what[i]
				}
			}
			if part := got[b*int(count):][:count]; !slices.Equal(part, want) {
				i := 0
				for part[i] == want[i] {
					i++
				}
				t.Fatalf("member %d, block %d, element %d: got %d, want %d", r, b, i, part[i], want[i])
			}
		}
	}
	must(g.Close())
	for r := range n {
		launches[r].Release()
		for _, l := range adds[r] {
			l.Release()
		}
	}
	must(opened.Close())
}

func words32(raw []byte) []int32 {
	list := make([]int32, len(raw)/4)
	for i := range list {
		list[i] = int32(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return list
}

// TestSweepMoves measures which part of large moves should be transferred through host memory, with how many blocks,
// and how long the alternatives take, with and without graphs, on all GPUs. Like TestSweepAllReduce, it runs only if
// reduceSweep is set. It uses the sizes in sizesVariable.
func TestSweepMoves(t *testing.T) {
	_, each := sweepRanks(t, 60)
	until := time.Now().Add(each)
	dw := openAll(t)
	n := dw.Ranks()
	s := &moveSweep{reduceSweeper: &reduceSweeper{T: t, w: dw.(*world), ranks: n}, rig: newTeamRig(t, dw, "sweep", upTo(n)), until: until}
	for _, bytes := range sweepSizes(t) {
		for _, op := range []ir.Op{ir.OpAllGather, ir.OpAllToAll} {
			s.size(op, bytes)
		}
	}
	s.rig.close()
	s.must(dw.Close())
}

// moveSweep is a world and a team in which collectives that move blocks are measured.
type moveSweep struct {
	*reduceSweeper
	rig   *teamRig
	until time.Time
}

// size measures one operation on operands of one size.
func (s *moveSweep) size(op ir.Op, bytes int64) {
	s.rig.place(teamCase{op: op, dt: ir.BF16, shape: []int64{bytes / 2 / int64(s.ranks)}})
	for _, tune := range []device.Tuning{{Algo: "move-push", Blocks: 128, Threads: 512, Unroll: 8}, {Algo: "move-copy"}, {Algo: ncclName}} {
		s.one(op, bytes, "", tune)
	}
	shares := []int64{60, 75, 90}
	if op == ir.OpAllGather && s.ranks > 2 {
		shares = []int64{105, 115, 125}
	}
	for _, grid := range [][2]int64{{8, 24}, {12, 24}, {16, 24}} {
		for _, permille := range shares {
			part := coll.HostPart{Permille: permille, Writers: grid[0], Readers: grid[1]}
			allByHost(s.w.m, part)
			s.one(op, bytes, fmt.Sprintf("%d ‰ by %d and %d", part.Permille, part.Writers, part.Readers), device.Tuning{Algo: "move-host"})
		}
	}
	s.rig.drop()
}

// one measures and prints the time of a tuning with and without a graph.
func (s *moveSweep) one(op ir.Op, bytes int64, how string, tune device.Tuning) {
	if time.Now().After(s.until) {
		return
	}
	c := s.rig.cases[len(s.rig.cases)-1]
	launches, err := s.rig.team.Prepare(tune, c.collective())
	if err != nil {
		fmt.Printf("%s of %d, %3d MiB %-11s: %v\n", op, s.ranks, bytes>>20, tune.Algo, err)
		return
	}
	round := func() error {
		for r, l := range launches {
			if l == nil {
				continue
			}
			if err := s.rig.members[r].Stream.Launch(l); err != nil {
				return err
			}
		}
		return nil
	}
	many := int(max(1200<<20/bytes, 8))
	graph, err := s.chain(many, round)
	s.must(err)
	eager, err := s.calls(many, round)
	s.must(err)
	fmt.Printf("%s of %d, %3d MiB %-11s %-18s %dx%d/%d: %.1f by graph, %.1f call by call\n", op, s.ranks, bytes>>20, tune.Algo, how, tune.Blocks, tune.Threads, tune.Unroll, graph, eager)
	for _, l := range launches {
		if l != nil {
			l.Release()
		}
	}
}

// calls returns the microseconds per round, for many rounds without a graph.
func (s *moveSweep) calls(many int, round func() error) (float64, error) {
	run := func(times int) (time.Duration, error) {
		began := time.Now()
		for range times * many {
			if err := round(); err != nil {
				return 0, err
			}
		}
		err := s.w.Sync(s.Context())
		return time.Since(began), err
	}
	us, err := perTime(4, 6, run)
	return us / float64(many), err
}
