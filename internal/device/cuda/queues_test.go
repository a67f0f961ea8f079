package cuda

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/process"
)

// queuesChild is set in the environment of the child processes that measure with a given number of hardware queues.
const queuesChild = "HOCKET_TEST_QUEUES"

// TestQueuesReal runs kernels that wait for each other, in a child process for each number of hardware queues. It looks
// for waits that time out because, in a hardware queue, they precede the work that they wait for.
func TestQueuesReal(t *testing.T) {
	if os.Getenv(queuesChild) != "" {
		weaveQueues(t)
		return
	}
	real(t, Options{})
	for _, queues := range []string{"32", "8", "1"} {
		t.Run(queues, func(t *testing.T) {
			child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestQueuesReal$", "-test.v", "-test.timeout=60s")
			child.Env = append(os.Environ(), queuesChild+"=1", process.QueuesVariable+"="+queues)
			out, err := child.CombinedOutput()
			t.Logf("%s", out)
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func weaveQueues(t *testing.T) {
	began := time.Now()
	r := newWeaver(t)
	mustOf(t)(r.drv.Bind(r.ctx[0])) // the context stays current on this thread
	queues, err := strconv.Atoi(os.Getenv(process.QueuesVariable))
	mustOf(t)(err)
	t.Logf("%d queues, %d devices, ready after %v", queues, len(r.ctx), time.Since(began))
	for _, part := range []func(t *testing.T, r *weaver, queues int){weaveStreams, weaveBranches, weaveGraphs, weaveExchanges, weaveGatherings} {
		began = time.Now()
		part(t, r, queues)
		t.Logf("took %v", time.Since(began))
	}
	mustOf(t)(r.drv.HostFree(r.board))
}

// weaveStreams counts concurrent streams. Streams are assigned to hardware queues in the order of their creation.
func weaveStreams(t *testing.T, r *weaver, queues int) {
	const n = 64
	p := wide(n, "sws", -1, "")
	r.bound = 4 * briefly
	side := func(beside, every int) int {
		r.clear()
		gpus := make([]int, n*every)
		others := r.newStreams(make([]int, beside))
		streams := r.newStreams(gpus)
		for _, s := range slices.Concat(others, streams) {
			r.kernel(0, weaveOp{kind: 's'}, s)
			mustOf(r)(r.drv.SyncStream(s))
		}
		for i := range streams { // destroys the streams between
			if i%every > 0 {
				mustOf(r)(r.drv.DestroyStream(streams[i]))
			}
		}
		for _, o := range p.ops {
			o.on *= every
			r.give(weave{gpus: gpus}, streams, o, func(int) {})
		}
		for i := range n {
			mustOf(r)(r.drv.SyncStream(streams[i*every]))
			mustOf(r)(r.drv.DestroyStream(streams[i*every]))
		}
		r.freeStreams(make([]int, beside), others)
		return r.arrived()
	}
	got := [4]int{side(0, 1), side(queues+8, 1), side(0, 2), side(0, 4)}
	t.Logf("of %d streams %d run concurrently, %d if there are %d other streams, %d if every second stream is used, %d if every fourth is", n, got[0], got[1], queues+8, got[2], got[3])
	if got[0] < min(queues, 32) {
		t.Errorf("%d streams run concurrently, want %d", got[0], queues)
	}
}

// weaveBranches checks that branches of a graph on one device do not share hardware queues, however long the branches
// are: as many run concurrently as the device can run kernels.
func weaveBranches(t *testing.T, r *weaver, queues int) {
	for _, bodies := range [][2]string{{"wss", "sr"}, {"wsss", strings.Repeat("s", 40) + "r"}, {strings.Repeat("s", 10) + "wss", strings.Repeat("s", 60) + "r"}, {strings.Repeat("ws", 20), strings.Repeat("s", 60) + "r"}} {
		for _, last := range []bool{true, false} {
			var late []int
			for _, n := range []int{2, 8, 9, 17, 32, 33, 64, 65, 96, 112, 127, 128, 129} {
				raiser := 0
				if last {
					raiser = n - 1
				}
				if r.bound = long; n > mostWaits+1 {
					r.bound = briefly
				}
				r.clear()
				g := r.record(wide(n, bodies[0], raiser, bodies[1]), true, -1)
				if r.launchAll(g); r.gaveUp() {
					late = append(late, n)
				}
				r.free(g)
			}
			if len(late) > 0 && late[0] <= mostWaits+1 {
				t.Errorf("some of %d branches do not run concurrently", late[0])
			}
			t.Logf("a graph of branches %q and one branch %q, which is the last: %v: timeouts with %v branches", bodies[0], bodies[1], last, late)
		}
	}
}

// weaveGraphs runs several graphs concurrently on a device. Kernels in the last graph raise the flags for which the
// others wait.
func weaveGraphs(t *testing.T, r *weaver, queues int) {
	r.bound = 4 * briefly
	for _, branches := range []int{1, 2, 4} {
		var late []int
		for _, n := range []int{2, 3, 4, 6, 8, 9, 12, 16, 17, 24, 31, 32, 33, 48} {
			if n*branches > 100 {
				break
			}
			r.clear()
			var list []recorded
			for i := range n {
				if i < n-1 {
					list = append(list, r.record(wide(branches, "sws", -1, ""), true, -1))
				} else {
					list = append(list, r.record(wide(branches, "sss", 0, "srs"), true, -1))
				}
			}
			if r.launchAll(list...); r.gaveUp() {
				late = append(late, n)
			}
			r.free(list...)
		}
		t.Logf("concurrent graphs of %d branches: timeouts with %v graphs", branches, late)
		if len(late) > 0 {
			t.Errorf("some of %d graphs of %d branches do not run concurrently", late[0], branches)
		}
	}
}

// weaveExchanges runs exchanges between two devices as streams, and as a graph for each device: alone, two in sequence,
// and two in different orders on the two devices. The last case cannot occur between worlds, because they hold the
// co-residency lock one after another, so its timeouts are only logged.
func weaveExchanges(t *testing.T, r *weaver, queues int) {
	const rounds, room = 4, 3000
	if len(r.ctx) < 2 {
		t.Log("exchanges need two devices")
		return
	}
	r.bound = long
	for _, streams := range []int{1, 2, 4, 8, 16, 32, 56} {
		late := map[string]int{}
		note := func(name string) {
			if r.gaveUp() {
				late[name]++
			}
		}
		for round := range uint64(rounds) {
			rng := rand.New(rand.NewPCG(uint64(streams), round))
			a, b := exchange(rng, 2, streams, 10), exchange(rng, 2, streams, 10).moved(room)
			r.clear()
			r.eagerly(a)
			note("streams")
			r.clear()
			x, y := r.record(a, false, 0), r.record(b, false, room)
			for range 2 {
				r.launchAll(x)
				note("alone")
				r.launchAll(x, y)
				note("two")
				clear(cabi.Bytes(uintptr(r.board), boardBytes))
				r.launch(x, 0)
				r.launch(y, 0)
				r.launch(y, 1)
				r.launch(x, 1)
				r.sync(x.gpus, x.origins)
				r.sync(y.gpus, y.origins)
				note("across")
			}
			r.free(x, y)
		}
		t.Logf("exchanges of 2 × %d streams per device: timeouts %v of %d rounds as streams, and twice as many as graphs", streams, late, rounds)
		if late["streams"]+late["alone"] > 0 {
			t.Errorf("exchanges of %d streams had timeouts: %v", streams, late)
		}
	}
}

// weaveGatherings runs kernels that wait for each other (meet), as streams and as one graph over all devices. If such
// kernels are issued as a group, they never time out. If they are issued one by one, they time out only if the model of
// the queues predicts a deadlock.
func weaveGatherings(t *testing.T, r *weaver, queues int) {
	for _, size := range [][2]int{{1, 2}, {1, 4}, {1, 10}, {2, 1}, {2, 2}, {2, 5}, {2, 17}, {4, 9}} {
		ranks, streams := size[0], size[1]
		late := map[string]int{}
		const rounds = 4
		for round := range uint64(rounds) {
			for _, together := range []bool{true, false} {
				rng := rand.New(rand.NewPCG(uint64(streams), round))
				p := gathering(rng, len(r.ctx), ranks, streams, 10, together)
				how := map[bool]string{true: "together", false: "one by one"}[together]
				locks := p.locksUp(queues)
				if locks {
					late[how+", by model"]++
				}
				if r.bound = long; locks {
					r.bound = briefly
				}
				r.clear()
				r.eagerly(p)
				if r.gaveUp() {
					late[how]++
				}
				if r.gaveUp() && !locks {
					t.Errorf("round %d, %s: a wait timed out, but the model of the queues predicts no deadlock", round, how)
				}
				if r.bound = long; !together {
					r.bound = briefly
				}
				r.clear()
				g := r.record(p, true, -1)
				if r.launchAll(g); r.gaveUp() {
					late[how+", graph"]++
				}
				r.free(g)
			}
		}
		t.Logf("%d ranks per device of %d streams that meet: timeouts %v of %d rounds", ranks, streams, fmt.Sprint(late), rounds)
		if late["together"]+late["together, graph"] > 0 {
			t.Errorf("kernels that were issued together did not meet: %v", late)
		}
	}
}

// TestWeaves executes the patterns of work (weaves) one operation at a time in the order of issue. In this order, the
// waits of an exchange find their flags raised, and so do the waits of branches if the first branch raises the flag.
func TestWeaves(t *testing.T) {
	f := fakedriver.New(t, 2)
	word := func(params uintptr, i int) uintptr { return cabi.Load[uintptr](params + uintptr(8*i)) }
	at := func(params uintptr, i int) uintptr {
		return cabi.Load[uintptr](word(params, 0)) + 4*uintptr(cabi.Load[uint32](word(params, i)))
	}
	met, meets := 0, 0
	f.Named["await_flags"] = func(params uintptr) {
		board := cabi.Load[uintptr](word(params, 0))
		if cabi.Load[uint32](word(params, 3)) != 0 { // the last of the kernels finds all flags raised
			cabi.Store(at(params, 3), uint32(1))
			meets++
		}
		all := true
		for i := range cabi.Load[uint32](word(params, 2)) {
			all = all && cabi.Load[uint32](at(params, 1)+32*uintptr(i)) != 0
		}
		switch {
		case cabi.Load[uint32](word(params, 3)) == 0 && !all:
			cabi.Store(board, uint32(1))
		case cabi.Load[uint32](word(params, 3)) != 0 && all:
			met++
		}
	}
	f.Named["raise_flag"] = func(params uintptr) { cabi.Store(at(params, 1), uint32(1)) }
	f.Named["spend"] = func(uintptr) {}
	r := newWeaverOn(t, system(f).Driver, 2, func(string) []byte { return []byte("fake") })
	for _, graph := range []bool{true, false} {
		for _, raiser := range []int{0, 8} {
			r.clear()
			p := wide(9, "sws", raiser, "sssr")
			if graph {
				g := r.record(p, true, -1)
				r.launchAll(g)
				r.free(g)
			} else {
				r.eagerly(p)
			}
			if r.gaveUp() != (raiser == 8) {
				t.Errorf("graph %v, branch %d raises: a wait preceded the raise: %v", graph, raiser, r.gaveUp())
			}
		}
	}
	for seed := range uint64(20) {
		r.clear()
		x := exchange(rand.New(rand.NewPCG(seed, 1)), 2, 4, 8)
		if r.eagerly(x); r.gaveUp() || r.waits == 0 {
			t.Errorf("seed %d: one of %d waits preceded its raise", seed, r.waits)
		}
		for _, together := range []bool{true, false} {
			r.clear()
			met, meets = 0, 0
			p := gathering(rand.New(rand.NewPCG(seed, 2)), 2, 2, 3, 8, together)
			if r.eagerly(p); met == 0 || meets != 4*met {
				t.Errorf("seed %d: %d kernels, %d of them the last of 4 that meet", seed, meets, met)
			}
			between := false
			for i := range p.ops[1:] {
				a, b := p.ops[i], p.ops[i+1]
				between = between || a.kind == 'm' && a.own < 3 && (b.kind != 'm' || b.n != a.n)
			}
			if between == together {
				t.Errorf("seed %d: issued together: %v, other work between: %v", seed, together, between)
			}
		}
	}
	mustOf(t)(r.drv.HostFree(r.board))
}

// TestQueuesHold checks the model of hardware queues that streams share. In the model, work that waits only for work
// issued before it, or together with it, never deadlocks. Kernels that wait for each other and are issued one by one
// sometimes deadlock, unless each stream has its own queue. Waits that are issued before the kernel that raises their
// flag sometimes deadlock, too.
func TestQueuesHold(t *testing.T) {
	for _, queues := range []int{1, 2, 3, 5, 8, 32} {
		apart := 0
		for seed := range uint64(30) {
			rng := rand.New(rand.NewPCG(seed, uint64(queues)))
			if exchange(rng, 2+int(seed%3), 4, 8).locksUp(queues) {
				t.Errorf("%d queues, seed %d: an exchange deadlocks", queues, seed)
			}
			ranks, streams := 1+int(seed%3), 1+int(seed%5)
			if gathering(rng, 2, ranks, streams, 8, true).locksUp(queues) {
				t.Errorf("%d queues, seed %d: kernels that meet and are issued together deadlock", queues, seed)
			}
			if gathering(rng, 2, ranks, streams, 8, false).locksUp(queues) {
				apart++
			}
		}
		if (apart == 0) != (queues == 32) {
			t.Errorf("%d queues: %d of 30 cases deadlock if kernels that meet are issued one by one", queues, apart)
		}
		for _, branches := range []int{queues, queues + 1} {
			if got := wide(branches, "ws", branches-1, "r").locksUp(queues); got != (branches > queues) {
				t.Errorf("%d queues: %d branches of which the last raises the flag deadlock: %v", queues, branches, got)
			}
		}
	}
}
