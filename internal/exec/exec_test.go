package exec

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"hocket.example/hocket/fault"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/trace"
	"hocket.example/hocket/ir"
)

// chunked is an overlapped row-parallel layer: y = Σ_r x_r·w_rᵀ, in chunks of rows on two worker streams. leave names a
// synchronisation to omit.
func chunked(ranks int, leave string) *plan.Plan {
	const T, K, N, C = 5, 3, 4, 3
	b := newBuilder(ranks, ir.F32)
	x := b.input("x", true, int64(ranks)*T, K) // each rank's [T, K]
	w := b.input("w", true, int64(ranks)*N, K)
	y := b.result("y", false, T, N)
	chans := []int32{b.channel("%s[0]"), b.channel("%s[1]")}
	names := []string{"%s[0]", "%s[1]"}
	for r := range ranks {
		for _, s := range names {
			if leave != "fork" {
				b.after(r, s, "main")
			}
		}
	}
	for i := range C {
		b.iter = []int64{int64(i)}
		lo, hi := min(int64(i)*2, T), min(int64(i+1)*2, T)
		s := names[i%2]
		p := b.buffer(fmt.Sprintf("%%p@%d", i), plan.RoleValue, hi-lo, N)
		for r := range ranks {
			b.compute(r, s, ir.OpLinear, b.ref(r, p, hi-lo, N), rows(b.ref(r, x, T, K), lo, hi), b.ref(r, w, N, K))
		}
		b.collective(s, chans[i%2], ir.OpAllReduce, func(r int) plan.CollPart {
			return plan.CollPart{In: b.ref(r, p, hi-lo, N), Out: rows(b.ref(r, y, T, N), lo, hi)}
		})
	}
	b.iter = nil
	for r := range ranks {
		for _, s := range names {
			if leave != "join" {
				b.after(r, "main", s)
			}
		}
	}
	b.output()
	return b.p
}

// wantChunked computes the results of the layer directly by its formula.
func wantChunked(ranks int, in map[string]*tensor.Tensor) []float64 {
	const T, K, N = 5, 3, 4
	y := make([]float64, T*N)
	for r := range int64(ranks) {
		for t := range int64(T) {
			for n := range int64(N) {
				for k := range int64(K) {
					y[t*N+n] += in["x"].Float64((r*T+t)*K+k) * in["w"].Float64((r*N+n)*K+k)
				}
			}
		}
	}
	return y
}

func chunkedInputs(t testing.TB, ranks int, seed uint64) map[string]*tensor.Tensor {
	return map[string]*tensor.Tensor{
		"x": ints(t, ir.F32, "x", seed, int64(ranks)*5, 3),
		"w": ints(t, ir.F32, "w", seed, int64(ranks)*4, 3),
	}
}

func floats(x *tensor.Tensor) []float64 {
	vs := make([]float64, x.Len())
	for i := range vs {
		vs[i] = x.Float64(int64(i))
	}
	return vs
}

// exchange is a plan that gathers rows by pushes that are signalled with counters, and scales them: y = 2·x, whole on
// every rank. leave names a synchronisation to omit.
func exchange(ranks int, leave string) *plan.Plan {
	const T, K = 2, 3
	b := newBuilder(ranks, ir.F32)
	x := b.input("x", true, int64(ranks)*T, K)
	all := b.buffer("%all", plan.RoleAlloc, int64(ranks)*T, K)
	y := b.result("y", false, int64(ranks)*T, K)
	here := b.counter("here", ranks)
	whole := []int64{int64(ranks) * T, K}
	part := func(rank int, buf int32, j int) plan.Ref {
		return rows(b.ref(rank, buf, whole...), int64(j)*T, int64(j+1)*T)
	}
	if ch := b.channel("main"); leave != "barrier" {
		b.barrier(ch)
	}
	for r := range ranks {
		if leave != "fork" {
			b.after(r, "%push", "main")
		}
		for i := range ranks {
			d := (r + i) % ranks
			b.put(r, "%push", part(d, all, r), b.ref(r, x, T, K))
			b.signal(r, "%push", here, r, d)
		}
	}
	for r := range ranks {
		for i := range ranks {
			j := (r + i) % ranks
			if leave != "wait" {
				b.waitCounter(r, "main", here, j, 1)
			}
			b.compute(r, "main", ir.OpAdd, part(r, y, j), part(r, all, j), part(r, all, j))
		}
		if leave != "join" {
			b.after(r, "main", "%push")
		}
	}
	b.output()
	return b.p
}

func exchangeInputs(t testing.TB, ranks int, seed uint64) map[string]*tensor.Tensor {
	return map[string]*tensor.Tensor{"x": ints(t, ir.F32, "x", seed, int64(ranks)*2, 3)}
}

func wantExchange(_ int, in map[string]*tensor.Tensor) []float64 {
	vs := floats(in["x"])
	for i := range vs {
		vs[i] *= 2
	}
	return vs
}

type program struct {
	plan   func(ranks int, leave string) *plan.Plan
	inputs func(t testing.TB, ranks int, seed uint64) map[string]*tensor.Tensor
	want   func(ranks int, in map[string]*tensor.Tensor) []float64
	syncs  []string
}

var programs = map[string]program{
	"chunked":  {chunked, chunkedInputs, wantChunked, []string{"fork", "join"}},
	"exchange": {exchange, exchangeInputs, wantExchange, []string{"fork", "wait", "join", "barrier"}},
}

// runBatch runs k runs back to back and returns an error unless all outputs are right.
func (pr program) runBatch(t testing.TB, prog *Program, ranks, k int, seed uint64) error {
	t.Helper()
	batch := make([]map[string]*tensor.Tensor, k)
	for i := range batch {
		batch[i] = pr.inputs(t, ranks, seed+uint64(i))
	}
	results, err := prog.RunBatch(context.Background(), Inputs(batch), nil)
	if err != nil {
		return err
	}
	for i, r := range results {
		if got, want := floats(r.Outputs["y"]), pr.want(ranks, batch[i]); !slices.Equal(got, want) {
			return fmt.Errorf("run %d: got %v, want %v", i, got, want)
		}
	}
	return nil
}

// TestPrograms checks correct plans on 1 to 5 ranks, in two batches of several runs with new inputs, in many orders of
// execution.
func TestPrograms(t *testing.T) {
	seeds := 60
	if testing.Short() {
		seeds = 10
	}
	for name, pr := range programs {
		for modeName, mode := range modes {
			t.Run(name+"/"+modeName, func(t *testing.T) {
				for seed := range seeds {
					ranks := 1 + seed%5
					prog := load(t, mode, int64(seed), pr.plan(ranks, ""), Options{})
					for again := range 2 {
						if err := pr.runBatch(t, prog, ranks, 3, uint64(10*again)); err != nil {
							t.Fatalf("seed %d, %d ranks: %v", seed, ranks, err)
						}
					}
				}
			})
		}
	}
}

// TestMissingSync checks that each omitted synchronisation gives a wrong result for some seed.
func TestMissingSync(t *testing.T) {
	for name, pr := range programs {
		for _, leave := range pr.syncs {
			t.Run(name+"/"+leave, func(t *testing.T) {
				for seed := range 400 {
					prog := load(t, cpu.Scheduled, int64(seed), pr.plan(3, leave), Options{})
					if err := pr.runBatch(t, prog, 3, 3, 1); err != nil {
						t.Logf("seed %d: %v", seed, err)
						return
					}
				}
				t.Error("no schedule shows it")
			})
		}
	}
}

// TestMismatch checks that different copies of an output are reported as an error that names the ranks and the first
// element.
func TestMismatch(t *testing.T) {
	b := newBuilder(3, ir.I32)
	x := b.input("x", true, 6)
	y := b.result("y", false, 2)
	for r := range 3 {
		b.compute(r, "main", ir.OpCopy, b.ref(r, y, 2), b.ref(r, x, 2))
	}
	b.output()
	in, _ := tensor.New(ir.I32, []int64{6})
	copy(in.Int32s(), []int32{7, 1, 7, 1, 7, 5})
	_, err := load(t, cpu.Concurrent, 0, b.p, Options{}).Run(context.Background(), map[string]*tensor.Tensor{"x": in})
	const want = "output y: ranks 0 and 2 should hold the same elements, but 1 differ; the first, at [1], is 1 on rank 0 and 5 on rank 2"
	var m *fault.MismatchError
	if !errors.As(err, &m) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestInputErrors checks that one error lists all faults of the inputs, and that the program is usable afterwards.
func TestInputErrors(t *testing.T) {
	prog := load(t, cpu.Concurrent, 0, chunked(2, ""), Options{})
	in := map[string]*tensor.Tensor{"x": ints(t, ir.F32, "x", 1, 9, 3), "z": ints(t, ir.F32, "z", 1, 1)}
	_, err := prog.Run(context.Background(), in)
	const want = "wrong inputs: x is f32[9, 3], want f32[10, 3]; w is missing; the program has no parameter z"
	if !errors.Is(err, blocks.ErrInput) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if err := programs["chunked"].runBatch(t, prog, 2, 1, 1); err != nil {
		t.Error(err)
	}
}

// TestDeadlock checks that a wait that nothing satisfies is detected without delay in both modes, that the error names
// the statement, and that the program cannot be used afterwards.
func TestDeadlock(t *testing.T) {
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			b := newBuilder(2, ir.F32)
			c := b.counter("here", 2)
			b.iter = []int64{3, 1}
			b.waitCounter(1, "%push", c, 1, 2)
			prog := load(t, mode, 1, b.p, Options{})
			_, err := prog.Run(context.Background(), nil)
			const want = "deadlock: no stream can continue; rank 1, stream %push: wait %here[1] >= 2 (hand.hkt:1:3, iteration " +
				"3, 1) waits for "
			var dead *device.Deadlock
			if !errors.As(err, &dead) || !strings.HasPrefix(err.Error(), want) {
				t.Fatalf("got %v, want %s", err, want)
			}
			if _, err := prog.Run(context.Background(), nil); !errors.Is(err, ErrUnusable) {
				t.Errorf("after a failure: got %v", err)
			}
		})
	}
}

// TestFacingSends checks that two ranks that send to each other deadlock, unless each groups its send with its receive.
func TestFacingSends(t *testing.T) {
	for _, grouped := range []bool{false, true} {
		b := newBuilder(2, ir.F32)
		x := b.input("x", true, 4)
		y := b.result("y", true, 4)
		for r := range 2 {
			b.p.Pairs = append(b.p.Pairs, plan.Pair{Src: b.ref(r, x, 2), Dst: b.ref(1-r, y, 2)})
		}
		for r := range int32(2) {
			send, recv := plan.P2P{Pair: r, Send: true}, plan.P2P{Pair: 1 - r}
			if grouped {
				b.emit(int(r), "main", ir.OpGroup, "group", plan.Cmd{Kind: plan.Group, Group: []plan.P2P{send, recv}})
				continue
			}
			b.emit(int(r), "main", ir.OpSend, "send %x to tp[1 - rank(tp)]", plan.Cmd{Kind: plan.Group, Group: []plan.P2P{send}})
			b.emit(int(r), "main", ir.OpRecv, "recv %y", plan.Cmd{Kind: plan.Group, Group: []plan.P2P{recv}})
		}
		b.output()
		prog := load(t, cpu.Concurrent, 0, b.p, Options{})
		x0 := ints(t, ir.F32, "x", 1, 4)
		res, err := prog.Run(context.Background(), map[string]*tensor.Tensor{"x": x0})
		if grouped {
			if err != nil {
				t.Fatal(err)
			}
			if got := floats(res.Outputs["y"]); !slices.Equal(append(got[2:], got[:2]...), floats(x0)) {
				t.Errorf("grouped: got %v of %v", got, floats(x0))
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), "rank 0, stream main: send %x to tp[1 - rank(tp)] (hand.hkt:3:3) waits for") {
			t.Errorf("ungrouped: got %v", err)
		}
	}
}

// sleepy is a machine that does not detect deadlocks.
type sleepy struct{ device.Machine }

type sleepyWorld struct {
	device.World
	asleep bool
}

func (m sleepy) Open(ctx context.Context, ranks int) (device.World, error) {
	w, err := m.Machine.Open(ctx, ranks)
	if err != nil {
		return nil, err
	}
	return &sleepyWorld{World: w}, nil
}

func (w *sleepyWorld) Sync(ctx context.Context) error {
	if !w.asleep {
		w.asleep = true // Load's
		return w.World.Sync(ctx)
	}
	<-ctx.Done()
	return &device.Expired{Err: ctx.Err(), At: []device.Standing{{Stream: "main", Does: "waits for counter 0 ≥ 1 (now 0)"}}}
}

// TestTimeout checks that the error of a run that takes too long names the wait that blocked it.
func TestTimeout(t *testing.T) { synctest.Test(t, testTimeout) }

func testTimeout(t *testing.T) {
	b := newBuilder(1, ir.F32)
	c := b.counter("here", 1)
	b.waitCounter(0, "main", c, 0, 1)
	prog, err := Load(context.Background(), sleepy{cpu.New(cpu.Options{})}, b.p, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err = prog.Run(ctx, nil)
	const want = "the time limit was reached; rank 0, stream main: wait %here[0] >= 1 (hand.hkt:1:3) waits for counter 0 ≥ 1 (now 0)"
	if !errors.Is(err, context.DeadlineExceeded) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestBudget(t *testing.T) {
	p := chunked(2, "")
	_, err := Load(context.Background(), cpu.New(cpu.Options{}), p, Options{Options: image.Options{MaxArena: p.ArenaBytes + 100}})
	const want = "the plan needs 2.5 KiB of device memory on each rank (arena 1.5 KiB, staging of collectives 1.0 KiB), more than the budget of 1.6 KiB"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	const early = "the plan needs 1.5 KiB of device memory on each rank, without the staging of collectives, more than the budget of 100 B"
	if _, err = Load(context.Background(), cpu.New(cpu.Options{}), p, Options{Options: image.Options{MaxArena: 100}}); err == nil || err.Error() != early {
		t.Errorf("got %v, want %s", err, early)
	}
	if _, err := Load(context.Background(), cpu.New(cpu.Options{}), p, Options{Options: image.Options{MaxArena: 2560}}); err != nil {
		t.Error(err)
	}
}

func TestClosed(t *testing.T) {
	prog := load(t, cpu.Concurrent, 0, chunked(2, ""), Options{})
	if err := prog.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := prog.Run(context.Background(), chunkedInputs(t, 2, 1)); !errors.Is(err, ErrUnusable) {
		t.Errorf("got %v", err)
	}
}

// TestTrace checks that a trace has one event per command, with its name, class and bytes, separately for each run.
func TestTrace(t *testing.T) {
	p := exchange(2, "")
	prog := load(t, cpu.Concurrent, 0, p, Options{Trace: true})
	in := exchangeInputs(t, 2, 1)
	if _, err := prog.Run(context.Background(), in); err != nil {
		t.Fatal(err)
	}
	results, err := prog.RunBatch(context.Background(), Inputs([]map[string]*tensor.Tensor{in, in}), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		names, puts := map[string]int{}, map[trace.Class]int64{}
		for _, e := range r.Trace.Events {
			names[e.Name]++
			if e.Run != int64(i+1) || e.End < e.Start {
				t.Errorf("event %+v in run %d", e, i+1)
			}
			if e.Name == "put" {
				puts[e.Class] += e.Bytes
			}
		}
		if want := (map[trace.Class]int64{trace.Comm: 2 * 24, trace.Compute: 2 * 24}); !maps.Equal(puts, want) {
			t.Errorf("bytes put: %v, want %v (a put to the own rank is not communication)", puts, want)
		}
		want := map[string]int{"input": 2, "barrier": 2, "put": 4, "signal": 4, "wait": 8, "add": 4, "output": 2}
		if fmt.Sprint(names) != fmt.Sprint(want) {
			t.Errorf("events %v, want %v", names, want)
		}
	}
}

// TestTraceOfEnds checks Options.Ends: the trace has, for each stream, the first and the last command of each part of
// the plan, and no command outside of all parts.
func TestTraceOfEnds(t *testing.T) {
	const ranks = 3
	p := exchange(ranks, "")
	part := func(c int) int {
		switch p.Cmds[c].Kind {
		case plan.Copy:
			return 0
		case plan.Compute:
			return 1
		}
		return -1
	}
	want := map[int64]bool{}
	for s := range p.Streams {
		for n := range 2 {
			var of []int
			for c := range p.Cmds {
				if int(p.Cmds[c].Stream) == s && part(c) == n {
					of = append(of, c)
				}
			}
			if len(of) > 0 {
				want[int64(of[0])], want[int64(of[len(of)-1])] = true, true
			}
		}
	}
	prog := load(t, cpu.Concurrent, 0, p, Options{Trace: true, Ends: part})
	for range 2 {
		res, err := prog.Run(context.Background(), exchangeInputs(t, ranks, 1))
		if err != nil {
			t.Fatal(err)
		}
		got := map[int64]bool{}
		for _, e := range res.Trace.Events {
			got[e.ID] = true
		}
		if !maps.Equal(got, want) || len(got) != 4*ranks {
			t.Errorf("events of commands %v, want %v: two puts and two additions of each rank", got, want)
		}
	}
}

// TestExplain checks that the error about a machine's fault uses the program's names.
func TestExplain(t *testing.T) {
	p := chunked(3, "")
	prog := load(t, cpu.Concurrent, 0, p, Options{})
	var linear int64
	for i := range p.Cmds {
		if c := &p.Cmds[i]; c.Kind == plan.Compute && c.Rank == 2 && slices.Equal(c.Iter, []int64{1}) {
			linear = int64(i)
		}
	}
	line := p.Sites[p.Cmds[linear].Site].Pos.Line
	cause := errors.New("illegal address")
	for run, suffix := range []string{"", ", run 1"} {
		err := symbolizer{prog.im}.explain(fmt.Errorf("sync: %w", &device.Fault{Rank: 2, Stream: "%s[1]", ID: linear + int64(run*len(p.Cmds)), Err: cause}), false)
		want := fmt.Sprintf("rank 2, stream %%s[1]: linear (hand.hkt:%d:3, iteration 1%s): illegal address", line, suffix)
		if err.Error() != want || !errors.Is(err, cause) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	for want, fault := range map[string]device.Fault{
		"outside of any command": {ID: -1},
		fmt.Sprintf("one of the commands from %s to %s (to find it, trace the run): illegal", prog.im.Plan.Where(2),
			prog.im.Plan.Where(linear)): {ID: 2, Last: linear},
	} {
		fault.Err = cause
		if err := (symbolizer{prog.im}).explain(&fault, false); !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
