package verify_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
)

var programs = flag.Int("programs", 5000, "how many random programs are executed in every order")

// oracle executes a random program in every order that a machine may choose, over two consecutive runs. It models
// streams as FIFOs. For each operation, the oracle knows the conditions under which the operation may end, and the
// blocks that the operation accesses while it runs. It uses no clocks, no happens-before edges and no planner.
//
// Operations that access no memory are executed as soon as possible. Operations without accesses cannot prevent another
// operation from starting or ending, and a state in which they are complete shows every fault that the state before
// them shows.
type oracle struct {
	p       *randomProgram
	ops     []oracleOp
	streams [][]int // element rank·streams + stream: the ops of this stream
	pos     []int   // for each op: its position in its stream
	after   [][]uint64
	signals map[[3]int][]int // for each counter, rank and element: the ops that raise the element
	meet    bool             // set if all members of a collective end together, whatever data they need
	fault   string
}

type oracleOp struct {
	step         *randomStep
	rank, stream int
	reads        uint64
	writes       uint64
	within       bool // set if the operation's reads and writes, which happen at the same time, overlap
	// The operation ends when count operations of the stream `behind` are complete in its run.
	behind, count int
	// The operation ends when its partners have started in its run.
	partners []int
	elem     [3]int
}

// block returns the bit that represents one block of a rank's buffer. The last buffer is %x.
func (p *randomProgram) block(rank, buffer, at int) uint64 {
	return 1 << ((rank*(p.buffers+1)+buffer)*p.ranks + at)
}

func (p *randomProgram) blocks(rank int, part randomPart, on, i int) uint64 {
	if !part.whole {
		return p.block(rank, part.buffer, part.value(on, i, p.ranks))
	}
	out := uint64(0)
	for at := range p.ranks {
		out |= p.block(rank, part.buffer, at)
	}
	return out
}

// expand makes the operations of all ranks. It returns "", or the reason why no machine could execute them.
func (o *oracle) expand() string {
	p := o.p
	o.streams = make([][]int, p.ranks*p.streams)
	o.signals = map[[3]int][]int{}
	colls := make([][]int, p.ranks)
	lanes := map[[3]int][]int{} // maps a source and a destination to the sends (0) and recvs (1) between them
	for rank := range p.ranks {
		all := randomPart{whole: true}
		x := randomPart{buffer: p.buffers, whole: true}
		o.add(rank, 0, &oracleOp{behind: -1, writes: p.blocks(rank, x, 0, 0)})
		recorded := map[int][2]int{}
		for from := 0; from < len(p.steps); {
			to, trips := from+1, 1
			if l := p.steps[from].loop; l > 0 {
				trips = p.loops[l-1]
				for to < len(p.steps) && p.steps[to].loop == l {
					to++
				}
			}
			for i := range trips {
				for k := from; k < to; k++ {
					s := &p.steps[k]
					if s.only >= 0 && (rank == s.only) == s.not {
						continue
					}
					if why := o.expandStep(s, rank, i, recorded, colls, lanes); why != "" {
						return why
					}
				}
			}
			from = to
		}
		o.add(rank, 0, &oracleOp{behind: -1, reads: p.blocks(rank, all, 0, 0), writes: p.blocks(rank, all, 0, 0)})
	}
	return o.match(colls, lanes)
}

func (o *oracle) add(rank, stream int, op *oracleOp) int {
	op.rank, op.stream = rank, rank*o.p.streams+stream
	n := len(o.ops)
	o.pos = append(o.pos, len(o.streams[op.stream]))
	o.streams[op.stream] = append(o.streams[op.stream], n)
	o.ops = append(o.ops, *op)
	return n
}

func (o *oracle) expandStep(s *randomStep, rank, i int, recorded map[int][2]int, colls [][]int,
	lanes map[[3]int][]int) string {
	p := o.p
	peer := s.peer
	peer.turned = true
	ahead := peer.value(rank, i, p.ranks)
	before := (2*rank - ahead + p.ranks) % p.ranks
	mineA, mineB := p.blocks(rank, s.a, rank, i), p.blocks(rank, s.b, rank, i)
	op := &oracleOp{step: s, behind: -1}
	switch s.kind {
	case doUse:
		op.reads = p.blocks(rank, randomPart{buffer: p.buffers, whole: true}, 0, 0)
		op.writes = p.blocks(rank, randomPart{buffer: s.b.buffer, whole: true}, 0, 0)
	case doFill:
		op.writes = mineB
	case doRelu:
		op.reads, op.writes = mineA, mineB
	case doPut:
		op.reads, op.writes = mineA, p.blocks(ahead, s.b, rank, i)
	case doGet:
		op.reads, op.writes = p.blocks(ahead, s.a, rank, i), mineB
	case doSignal:
		op.elem = [3]int{s.stream, ahead, s.elem.value(rank, i, p.ranks)}
		for _, other := range o.signals[op.elem] {
			if o.ops[other].rank != rank {
				return "an element is raised by two ranks"
			}
		}
		o.signals[op.elem] = append(o.signals[op.elem], o.add(rank, s.stream, op))
		return ""
	case doWait:
		op.elem = [3]int{s.k, rank, s.elem.value(rank, i, p.ranks)}
	case doRecord:
		recorded[s.k] = [2]int{rank*p.streams + s.stream, len(o.streams[rank*p.streams+s.stream])}
		return ""
	case doEvent:
		at, ok := recorded[s.k]
		if !ok {
			return "waits for an event that was not recorded"
		}
		op.behind, op.count = at[0], at[1]
	case doStream:
		op.behind = rank*p.streams + s.k
		op.count = len(o.streams[op.behind])
	case doBarrier, doReduce, doPermute, doBroadcast:
		if s.kind != doBarrier {
			op.reads, op.writes = mineA, mineB
		}
		if s.kind == doBroadcast && rank != s.k {
			op.reads = 0
		}
		colls[rank] = append(colls[rank], o.add(rank, s.stream, op))
		return ""
	case doTransfer, doSend, doRecv:
		if s.kind != doRecv {
			op.reads = mineA
		}
		if s.kind != doSend {
			op.writes = mineB
		}
		op.within = op.reads&op.writes != 0
		n := o.add(rank, s.stream, op)
		if s.kind != doRecv {
			k := [3]int{0, rank, ahead}
			lanes[k] = append(lanes[k], n)
		}
		if s.kind != doSend {
			k := [3]int{1, before, rank}
			lanes[k] = append(lanes[k], n)
		}
		return ""
	}
	o.add(rank, s.stream, op)
	return ""
}

// match determines the operations that take part together in collectives and transfers.
func (o *oracle) match(colls [][]int, lanes map[[3]int][]int) string {
	for rank := range colls {
		if len(colls[rank]) != len(colls[0]) {
			return "ranks issue different numbers of collectives"
		}
	}
	for rank := range colls {
		for k, n := range colls[rank] {
			a, b := o.ops[colls[0][k]].step, o.ops[n].step
			if a.kind != b.kind || a.kind != doBarrier && a.a.whole != b.a.whole || a.kind == doBroadcast &&
				a.k != b.k || a.kind == doPermute && a.peer.at%o.p.ranks != b.peer.at%o.p.ranks {
				return "collectives do not match"
			}
			for other := range colls {
				m := colls[other][k]
				from := (rank + o.p.ranks - a.peer.at%o.p.ranks) % o.p.ranks
				if o.meet || a.kind == doBarrier || a.kind == doReduce || a.kind == doBroadcast && other == a.k ||
					a.kind == doPermute && other == from {
					o.ops[n].partners = append(o.ops[n].partners, m)
				}
			}
		}
	}
	for k, mine := range lanes {
		theirs := lanes[[3]int{1 - k[0], k[1], k[2]}]
		if len(mine) != len(theirs) {
			return "transfers do not match"
		}
		for i, n := range mine {
			if o.ops[n].step.a.whole != o.ops[theirs[i]].step.a.whole {
				return "transfers do not match"
			}
			o.ops[n].partners = append(o.ops[n].partners, theirs[i])
		}
	}
	for i := range o.ops {
		if s := o.ops[i].step; s != nil && s.kind == doWait && s.value > len(o.signals[o.ops[i].elem]) {
			return "waits for more signals than there are"
		}
	}
	return ""
}

const (
	oracleBits   = 6
	oracleStates = 20_000
)

func (o *oracle) at(state uint64, stream int) (done int, active bool) {
	v := int(state >> (oracleBits * stream) & (1<<oracleBits - 1))
	return v / 2, v%2 == 1
}

// explore visits every state. It returns "" if there is no fault, a description of a fault, or "too large".
func (o *oracle) explore() string {
	if why := o.expand(); why != "" {
		return why
	}
	o.after = make([][]uint64, len(o.streams))
	for s, ops := range o.streams {
		if 4*len(ops) >= 1<<oracleBits || len(o.streams)*oracleBits > 64 || o.p.ranks*o.p.ranks*(o.p.buffers+1) > 64 {
			return "too large"
		}
		o.after[s] = make([]uint64, len(ops)+1)
		for i, n := range ops {
			o.after[s][i+1] = o.after[s][i] | o.ops[n].writes
		}
	}
	seen := map[uint64]bool{0: true}
	todo := []uint64{0}
	for len(todo) > 0 && o.fault == "" {
		state := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if len(seen) > oracleStates {
			return "too large"
		}
		for _, next := range o.visit(state) {
			if !seen[next] {
				seen[next] = true
				todo = append(todo, next)
			}
		}
	}
	return o.fault
}

// visit returns the successors of a state, and records a fault that the state shows.
func (o *oracle) visit(state uint64) (next []uint64) {
	left, written := false, uint64(0)
	var active []*oracleOp
	for s, ops := range o.streams {
		done, on := o.at(state, s)
		written |= o.after[s][min(done, len(ops))]
		if done >= 2*len(ops) {
			continue
		}
		left = true
		op := &o.ops[ops[done%len(ops)]]
		run := done / len(ops)
		step := state + 1<<(oracleBits*s)
		switch touches := op.reads|op.writes != 0; {
		case !touches && !on && len(op.partners) == 0:
			if o.mayEnd(state, op, run) {
				return []uint64{step + 1<<(oracleBits*s)}
			}
		case !touches && (!on || o.mayEnd(state, op, run)):
			return []uint64{step}
		case !on || o.mayEnd(state, op, run):
			next = append(next, step)
		}
		if on {
			active = append(active, op)
		}
	}
	for i, a := range active {
		for _, b := range active[:i] {
			if a.writes&(b.reads|b.writes)|b.writes&a.reads != 0 {
				o.fault = "a race"
			}
		}
		if a.within {
			o.fault = "a race within an op"
		}
		if a.reads&^written != 0 {
			o.fault = "a read of what nobody wrote"
		}
	}
	if left && len(next) == 0 && o.fault == "" {
		o.fault = "a deadlock"
	}
	return next
}

func (o *oracle) mayEnd(state uint64, op *oracleOp, run int) bool {
	if op.behind >= 0 {
		done, _ := o.at(state, op.behind)
		return done >= run*len(o.streams[op.behind])+op.count
	}
	for _, n := range op.partners {
		s := o.ops[n].stream
		done, on := o.at(state, s)
		if at := run*len(o.streams[s]) + o.pos[n]; done < at || done == at && !on {
			return false
		}
	}
	if op.step == nil || op.step.kind != doWait {
		return true
	}
	raised := 0
	for _, n := range o.signals[op.elem] {
		s := o.ops[n].stream
		done, _ := o.at(state, s)
		for r := range 2 {
			if done > r*len(o.streams[s])+o.pos[n] {
				raised++
			}
		}
	}
	return raised >= op.step.value+run*len(o.signals[op.elem])
}

// judge returns the oracle's verdict on a program. For deadlocks it assumes that all members of a collective end
// together; for other faults it assumes that a member ends when its data have arrived.
func judge(p *randomProgram) string {
	if why := (&oracle{p: p}).explore(); why != "" {
		return why
	}
	return (&oracle{p: p, meet: true}).explore()
}

// TestRandomProgramsAgainstOracle compares the checker's verdicts on random programs with the results of executing them
// in every order.
func TestRandomProgramsAgainstOracle(t *testing.T) {
	n, seed := longtest.Of(*programs, 1_000_000), longtest.Seed(t)
	if testing.Short() {
		n = 1000
	}
	t.Logf("%d programs of seed %d", n, seed)
	var mu sync.Mutex
	counts := map[string]int{}
	var wg sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	for w := range workers {
		wg.Go(func() {
			mine := map[string]int{}
			for i := w; i < n && !t.Failed(); i += workers {
				r := rand.New(rand.NewPCG(seed, uint64(i)))
				p := newRandomProgram(r, 2+r.IntN(5)/4, 1+r.IntN(2), r.IntN(5))
				mine[agrees(t, p, fmt.Sprintf("program %d of seed %d", i, seed))]++
			}
			mu.Lock()
			for k, v := range mine {
				counts[k] += v
			}
			mu.Unlock()
		})
	}
	wg.Wait()
	t.Log(counts)
	if right := counts["nothing"]; !t.Failed() &&
		(right < n/8 || right > n*3/4 || counts["too large"] > n/4 || counts["a race"] < n/50 ||
			counts["a deadlock"] < n/200) {
		t.Errorf("the programs are too much alike: %v", counts)
	}
}

// agrees checks that the checker and the oracle agree, and returns the oracle's verdict.
func agrees(t *testing.T, p *randomProgram, name string) string {
	found := judge(p)
	if found == "too large" {
		return found
	}
	text := p.text()
	prog, ds := ir.Parse("random.hkt", text)
	if ds.HasErrors() {
		t.Errorf("%s: %v\n%s", name, ds, text)
		return found
	}
	got, why := verify.Refuted, ""
	lowered, plan, err := build(prog, ir.Binding{})
	if err == nil {
		r := verify.Plan(plan, verify.Options{FaultsOnly: true})
		got, why = r.Verdict, r.Reason+r.Diagnostics(lowered).Error()
	} else {
		why = err.Error()
	}
	if want := (found == ""); (got == verify.Proved) != want || got == verify.Unknown {
		t.Errorf("%s: the oracle found %q, and it is %v: %s\n%s", name, found, got, why, text)
	}
	if found == "" {
		return "nothing"
	}
	return found
}
