package comm

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/ir"
)

var modes = map[string]cpu.Mode{"concurrent": cpu.Concurrent, "scheduled": cpu.Scheduled}

// TestEveryCollective runs each op with each element type on 1 to 8 ranks, with tensors of odd sizes, of one element
// and of none, along each axis, and with output and input in the same and in different memory.
func TestEveryCollective(t *testing.T) {
	shapes := [][]int64{{3}, {5, 7}, {0, 4}, {1, 3, 2}}
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			for n := 1; n <= 8; n++ {
				var specs []spec
				for _, op := range collectives {
					for d, dt := range ir.ArithmeticTypes() {
						shape := shapes[(d+n+int(op))%len(shapes)]
						specs = append(specs, spec{op: op, red: ir.Sum + ir.Red((d+n)%4), dt: dt, n: n, shape: shape,
							axis: (d + n) % len(shape), split: d % len(shape), root: (d + 1) % n, shift: d % n, overlap: overlap((d + n) % 4),
							unevenSpec: unevenSpec{counted: (d+n)%2 == 0, room: int64(d + n + int(op)%3), seed: uint64(d)}})
					}
				}
				w := open(t, mode, int64(n), n)
				r := newRig(t, w, "s", teamOf(n), specs)
				for run := range int64(2) {
					for i := range specs {
						r.issue(i, run)
					}
				}
				settle(t, w)
				r.check()
			}
		})
	}
}

// TestEverySchedule runs chains of each schedule with every collective that it supports, over several runs without a
// barrier, under many orders of execution: data that a member writes for the next collective must not overwrite data of
// the current one that others still read.
func TestEverySchedule(t *testing.T) {
	seeds := int64(150)
	if testing.Short() {
		seeds = 30
	}
	if *onCUDA { // CUDA worlds take longer to open, and have no random order of execution
		seeds = 8
	}
	for _, name := range Schedules() {
		t.Run(name, func(t *testing.T) {
			ran := ranBy[name]
			for seed := range seeds {
				rng := rand.New(rand.NewPCG(uint64(seed), 11))
				n := 2 + rng.IntN(3)
				specs := randomSpecs(rng, n, 3)
				for i := range specs {
					s := &specs[i]
					s.algo, s.shared = name, true
					if s.op != ir.OpAllReduce && rng.IntN(2) == 0 {
						s.op = ir.OpAllReduce
					}
					s.shape[0] = max(s.shape[0], 7)
				}
				w := open(t, cpu.Scheduled, seed, n)
				r := newRig(t, w, "s", teamOf(n), specs)
				for run := range int64(3) {
					for i := range specs {
						r.issue(i, run)
					}
				}
				settle(t, w)
				r.check()
			}
			if got := ranBy[name] - ran; got < int(seeds)/2 {
				t.Errorf("only %d instances ran by the schedule", got)
			}
		})
	}
}

// TestMain lowers the sizes of pieces and chunks, so that the small tensors of the tests have several pieces and
// chunks.
func TestMain(m *testing.M) {
	flag.Parse()
	chunkBytes, acrossTwoShotFrom = 64, 64
	os.Exit(m.Run())
}

func teamOf(n int) []int {
	team := make([]int, n)
	for i := range team {
		team[i] = i
	}
	return team
}

// TestRandomSequences runs random sequences of collectives back to back, over several runs without synchronisation
// between them, on two channels of one team and one channel of a sub-team concurrently, under many orders of execution.
func TestRandomSequences(t *testing.T) {
	seeds := 200
	if testing.Short() {
		seeds = 24
	}
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			for seed := range int64(seeds) {
				rng := rand.New(rand.NewPCG(uint64(seed), 1))
				n := 1 + rng.IntN(8)
				w := open(t, mode, seed, n)
				rigs := []*rig{
					newRig(t, w, "a", teamOf(n), randomSpecs(rng, n, 1+rng.IntN(5))),
					newRig(t, w, "b", teamOf(n), randomSpecs(rng, n, rng.IntN(4))),
				}
				if n > 2 {
					team := rng.Perm(n)[:2+rng.IntN(n-2)]
					rigs = append(rigs, newRig(t, w, "c", team, randomSpecs(rng, len(team), 2)))
				}
				for run := range int64(3) {
					for _, r := range rigs {
						for i := range r.specs {
							r.issue(i, run)
						}
					}
				}
				settle(t, w)
				for _, r := range rigs {
					r.check()
				}
				if t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
		})
	}
	for _, name := range Schedules() {
		if ranBy[name] < seeds/16 {
			t.Errorf("%d instances ran by %s: too few for a test", ranBy[name], name)
		}
	}
}

func randomSpecs(rng *rand.Rand, n, count int) []spec {
	specs := make([]spec, count)
	for i := range specs {
		specs[i] = randomSpec(rng, n)
	}
	return specs
}

// TestSameBits checks that every schedule of an all_reduce gives the same bits as staged, for values whose sum depends
// on the order of the additions.
func TestSameBits(t *testing.T) {
	for _, dt := range ir.ArithmeticTypes() {
		for n := 1; n <= 8; n++ {
			for _, count := range []int64{0, 1, int64(n) - 1, int64(n), 13, 517} {
				var rigs []*rig
				w := open(t, cpu.Concurrent, 0, n)
				for _, algo := range Schedules() {
					s := spec{op: ir.OpAllReduce, red: ir.Avg, dt: dt, n: n, shape: []int64{count}, algo: algo, shared: true}
					r := newRig(t, w, algo, teamOf(n), []spec{s})
					if got := r.ch.Algorithm(0); got != algo {
						t.Fatalf("pinned %s, got %s", algo, got)
					}
					r.issue(0, 0)
					rigs = append(rigs, r)
				}
				settle(t, w)
				for _, r := range rigs {
					r.check()
				}
			}
		}
	}
}

// TestMoved checks the number of bytes that each schedule moves.
func TestMoved(t *testing.T) {
	const n, count = 4, 1000
	w := open(t, cpu.Concurrent, 0, n)
	one, two := int64((n-1)*count*4), int64(2*(n-1)*count/n*4)
	for algo, want := range map[string]int64{"staged": one, "one-shot-push": one, "direct": one, "two-shot": two, "two-shot-push": two, "direct-two-shot": two, "chunked": two} {
		s := spec{op: ir.OpAllReduce, red: ir.Sum, dt: ir.F32, n: n, shape: []int64{count}, algo: algo, shared: true}
		r := newRig(t, w, algo, teamOf(n), []spec{s})
		for m := range n {
			if got := r.ch.Moved(0, m); got != want {
				t.Errorf("%s: member %d moves %d bytes, want %d", algo, m, got, want)
			}
		}
	}
}

// TestDispatch checks that the choice of the algorithm depends on the size.
func TestDispatch(t *testing.T) {
	for count, want := range map[int64]string{10: "staged", 1 << 16: "two-shot"} {
		w := open(t, cpu.Concurrent, 0, 4)
		s := spec{op: ir.OpAllReduce, red: ir.Sum, dt: ir.BF16, n: 4, shape: []int64{count}}
		if got := newRig(t, w, "s", teamOf(4), []spec{s}).ch.Algorithm(0); got != want {
			t.Errorf("%d elements: algorithm %s, want %s", count, got, want)
		}
	}
}

// TestRefusals checks that instances that cannot be run give an error and do not panic.
func TestRefusals(t *testing.T) {
	base := func(n int) *rig {
		return newRig(t, open(t, cpu.Concurrent, 0, n), "s", teamOf(n),
			[]spec{{op: ir.OpAllGather, red: ir.Sum, dt: ir.F32, n: n, shape: []int64{2, 3}}})
	}
	tests := map[string]struct {
		change func(*Instance)
		want   string
	}{
		"name":   {func(in *Instance) { in.Pin.Algo = "magic" }, `all_gather: unknown algorithm "magic"; the algorithms are ` + strings.Join(Schedules(), ", ")},
		"op":     {func(in *Instance) { in.Pin.Algo = "two-shot" }, "all_gather: algorithm two-shot: not supported by this machine: it runs all_reduce only"},
		"team":   {func(in *Instance) { in.Parts = in.Parts[:2] }, "all_gather: 2 parts for a team of 3"},
		"axis":   {func(in *Instance) { in.Axis = 2 }, "all_gather: there is no dimension 2 in shape [2 3]"},
		"shape":  {func(in *Instance) { in.Axis = 1 }, "all_gather: member 0 has an operand of shape [6 3], want [2 9]"},
		"root":   {func(in *Instance) { in.Op, in.Root = ir.OpReduce, 3 }, "reduce: root 3 is outside the team of 3"},
		"input":  {func(in *Instance) { in.Parts[1].Reads = false }, "all_gather, member 1: it has no input"},
		"output": {func(in *Instance) { in.Parts[2].Writes = false }, "all_gather, member 2: it has no output"},
		"type":   {func(in *Instance) { in.Parts[2].In.DType = ir.I32 }, "all_gather, member 2: the operands of the team differ in element type"},
		"red": {func(in *Instance) { in.Op, in.Red = ir.OpReduceScatter, ir.NoRed }, "reduce_scatter: it names no valid " +
			"reduction (sum, max, min or avg)"},
		"no op": {func(in *Instance) { in.Op = ir.OpAdd }, "add is not a collective"},
		"permute": {func(in *Instance) { in.Op, in.Parts[0].To, in.Parts[1].From = ir.OpPermute, 1, 2 },
			"permute: member 0 sends to 1, which does not receive from it"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := base(3)
			in := spec{op: ir.OpAllGather, red: ir.Sum}.instance()
			in.Parts = append([]Part(nil), r.parts[0]...)
			for i := range in.Parts {
				in.Parts[i].To, in.Parts[i].From = -1, -1
			}
			tc.change(&in)
			_, err := plain(r.ch.world).Design(r.ch.members, []Instance{in})
			// A machine whose teams have launches for whole collectives lists more algorithms.
			if err == nil || err.Error() != tc.want && !(*onCUDA && name == "name" && strings.HasPrefix(err.Error(), tc.want)) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

// TestStartBeforeEnd checks that all members start before any member ends, for the collectives that guarantee it (rule
// S5), also for tensors without elements.
func TestStartBeforeEnd(t *testing.T) {
	for _, op := range []ir.Op{ir.OpAllReduce, ir.OpAllGather, ir.OpReduceScatter, ir.OpAllToAll, ir.OpBarrier} {
		for _, rows := range []int64{0, 3} {
			for seed := range int64(20) {
				const n = 3
				w := open(t, cpu.Scheduled, seed, n)
				r := newRig(t, w, "s", teamOf(n), []spec{{op: op, red: ir.Sum, dt: ir.F32, n: n, shape: []int64{rows, 2}}})
				started := 0
				for run := range int64(2) {
					for me, s := range r.streams {
						call(t, s, func() { started++ })
						r.must(r.ch.Issue(0, me, run))
						call(t, s, func() {
							if started < n*int(run+1) {
								t.Errorf("%s of %d rows, seed %d, run %d: member %d ends after %d starts", op, rows, seed, run, me, started)
							}
						})
					}
				}
				settle(t, w)
			}
		}
	}
}

// TestRootedFlow checks that the root of a broadcast, and a non-root member of a reduce, end although no other member
// starts.
func TestRootedFlow(t *testing.T) {
	for op, first := range map[ir.Op]int{ir.OpBroadcast: 0, ir.OpScatter: 0, ir.OpReduce: 1, ir.OpGather: 1} {
		t.Run(fmt.Sprint(op), func(t *testing.T) {
			const n = 3
			w := open(t, cpu.Scheduled, 1, n)
			r := newRig(t, w, "s", teamOf(n), []spec{{op: op, red: ir.Sum, dt: ir.F32, n: n, shape: []int64{4}}})
			r.must(r.ch.Issue(0, first, 0))
			settle(t, w) // this reports a deadlock if the member waited for the others
		})
	}
}

// TestRunAhead checks that the root of rooted collectives can finish two instances, one for each half of its staging,
// before another member has begun, but no more than two.
func TestRunAhead(t *testing.T) {
	for ahead := 1; ahead <= 3; ahead++ {
		const n = 2
		w := open(t, cpu.Scheduled, 1, n)
		s := spec{op: ir.OpBroadcast, dt: ir.F32, n: n, shape: []int64{4}}
		r := newRig(t, w, "s", teamOf(n), []spec{s, s, s})
		for i := range ahead {
			r.must(r.ch.Issue(i, 0, 0))
		}
		if err := w.Sync(context.Background()); (err == nil) != (ahead <= 2) {
			t.Errorf("%d broadcasts ahead: %v", ahead, err)
		}
	}
}

// TestMutatedInstances changes instances at random and checks that each gives an error or a channel, and that none
// panics.
func TestMutatedInstances(t *testing.T) {
	count := 4000
	if testing.Short() {
		count = 500
	}
	const n = 3
	w := open(t, cpu.Concurrent, 0, n)
	r := newRig(t, w, "s", teamOf(n), nil)
	refused := 0
	for seed := range count {
		rng := rand.New(rand.NewPCG(uint64(seed), 5))
		s := randomSpec(rng, n)
		in := s.instance()
		for me := range n {
			var mem device.Memory
			in.Parts = append(in.Parts, r.place(w.Device(me), s, me, &mem))
		}
		mutate(rng, &in)
		c, err := plain(w).Design(r.ch.members, []Instance{in})
		if err == nil {
			if err = c.Open(); err == nil {
				err = c.Close()
			}
		}
		if err != nil {
			refused++
		}
	}
	if refused < count/4 || refused == count {
		t.Errorf("%d of %d mutated instances refused: most mutations have no effect", refused, count)
	}
}

func mutate(rng *rand.Rand, in *Instance) {
	number := []int{-2, -1, 0, 1, 2, 3, 4, 1 << 40}[rng.IntN(8)]
	p := &in.Parts[rng.IntN(len(in.Parts))]
	v := &p.In
	if rng.IntN(2) == 0 {
		v = &p.Out
	}
	switch rng.IntN(9) {
	case 0:
		in.Root = number
	case 1:
		in.Axis = number
	case 2:
		in.Split = number
	case 3:
		in.Red = ir.Red(uint8(number))
	case 4:
		p.To, p.From = number, p.To
	case 5:
		in.Op = ir.Ops()[rng.IntN(len(ir.Ops()))]
	case 6:
		v.DType = ir.DType(rng.IntN(7))
	case 7:
		p.Reads, p.Writes = p.Writes, p.Reads
	case 8:
		v.Shape = append([]int64{int64(number)}, v.Shape...)
		v.Strides = append([]int64{1}, v.Strides...)
	}
}
