package planner

import (
	"strings"
	"testing"

	"hocket.example/hocket/internal/golden"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"

	"hocket.example/hocket/internal/plan"
)

// bound parses, checks and binds src. It returns the first error that any of these stages reports.
func bound(src string, bind ir.Binding) (*ir.Bound, ir.Diagnostics) {
	prog, ds := ir.Parse("test.hkt", src)
	if ds.HasErrors() {
		return nil, ds
	}
	info, ds := checker.Check(prog)
	if ds.HasErrors() {
		return nil, ds
	}
	return ir.Bind(info, bind)
}

func mustBind(t testing.TB, src string, bind ir.Binding) *ir.Bound {
	t.Helper()
	b, ds := bound(src, bind)
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	return b
}

// try plans src. It returns the first error that any stage reports.
func try(src string, bind ir.Binding) (*plan.Plan, *Stats, ir.Diagnostics) {
	stats := &Stats{}
	b, ds := bound(src, bind)
	if ds.HasErrors() {
		return nil, stats, ds
	}
	p, ds := Plan(b, Options{Stats: stats})
	return p, stats, ds
}

// mustPlan plans src and proves the layout of its plan by brute force.
func mustPlan(t testing.TB, src string, bind ir.Binding) (*plan.Plan, *Stats) {
	t.Helper()
	p, stats, ds := try(src, bind)
	if ds.HasErrors() {
		t.Fatalf("planning:\n%s\n%s", ds, src)
	}
	if len(p.Cmds) <= 3000 {
		if err := verifyLayout(p); err != nil {
			t.Fatalf("layout: %v\n%s", err, p)
		}
	}
	checkWorldList(t, p)
	return p, stats
}

// refused plans src and requires an error of the given kind whose text contains all words.
func refused(t *testing.T, src string, bind ir.Binding, kind string, words ...string) ir.Diagnostics {
	t.Helper()
	p, _, ds := try(src, bind)
	if !ds.HasErrors() {
		t.Fatalf("planned, but should be refused (%s):\n%s", kind, p)
	}
	if ds[0].Kind != kind {
		t.Errorf("kind %q, want %q:\n%s", ds[0].Kind, kind, ds)
	}
	for _, w := range words {
		if !strings.Contains(ds.String(), w) {
			t.Errorf("the error does not say %q:\n%s", w, ds)
		}
	}
	return ds
}

// checkWorldList checks that the order of p.Cmds is as the documentation of Plan.Cmds promises.
func checkWorldList(t testing.TB, p *plan.Plan) {
	t.Helper()
	recorded := map[int32]bool{}
	signals := map[elemOf]int64{}
	total := map[elemOf]int64{}
	for i := range p.Cmds {
		if c := &p.Cmds[i]; c.Kind == plan.Signal {
			total[elemOf{c.Counter, c.Peer, c.Elem}]++
		}
	}
	for i := range p.Cmds {
		c := &p.Cmds[i]
		if p.Streams[c.Stream].Rank != c.Rank {
			t.Fatalf("command %d of rank %d is on a stream of rank %d", i, c.Rank, p.Streams[c.Stream].Rank)
		}
		switch c.Kind {
		case plan.Record:
			if recorded[c.Event] {
				t.Fatalf("event %d is recorded twice", c.Event)
			}
			recorded[c.Event] = true
		case plan.WaitEvent:
			if !recorded[c.Event] {
				t.Fatalf("command %d waits for event %d before its record", i, c.Event)
			}
		case plan.Signal:
			signals[elemOf{c.Counter, c.Peer, c.Elem}]++
		case plan.WaitCounter:
			if late := signals[elemOf{c.Counter, c.Rank, c.Elem}] < c.Value; late != c.Late {
				t.Fatalf("command %d: late is %v, want %v", i, c.Late, late)
			}
		}
	}
	if len(recorded) != p.Events {
		t.Fatalf("%d events are recorded, the plan has %d", len(recorded), p.Events)
	}
	for k, n := range total {
		if c := p.Counters[k.counter]; c.PerRun[int(k.rank)*int(c.Len)+int(k.elem)] != n {
			t.Fatalf("counter %s: PerRun does not count its %d signals", c.Name, n)
		}
	}
}

const rowParallel = `
dim T = 24
dim K = 64
dim N = 16
dim C = 5
mesh tp[2]

func row_parallel_chunked(%x: bf16[T, K/tp], %w: bf16[N, K/tp]) -> bf16[T, N] {
  %s = stream[2]
  %y = alloc bf16[T, N]
  for %j in 0..2 {
    on %s[%j] { wait main }
  }
  for %i in 0..C {
    on %s[%i mod 2] {
      %xi = chunk %x, axis=0, %i of C
      %yi = chunk %y, axis=0, %i of C
      %p = alloc bf16[extent(%xi, 0), N]
      linear %xi, %w into %p
      all_reduce %p into %yi, over=tp, op=sum
    }
  }
  for %j in 0..2 { wait %s[%j] }
  return %y
}
`

const exchangeSource = `
dim T = 64
dim K = 32
dim N = 64
dim P = 4
mesh tp[P]

func ag_linear_exchange(%x: bf16[T/tp, K], %w: bf16[N/tp, K]) -> bf16[T, N/tp] {
  let %n = size(tp)
  let %r = rank(tp)
  %push = stream
  %here = counter[size(tp)]
  %all = alloc bf16[T, K] symmetric
  %y = alloc bf16[T, N/tp]

  barrier over=tp
  on %push {
    wait main
    for %i in 1..%n {
      let %d = (%r + %n - %i) mod %n
      %to = chunk %all, axis=0, %r of %n
      put %x into %to at tp[%d]
      signal %here[%r] at tp[%d]
    }
  }
  for %i in 0..%n {
    let %j = (%r + %i) mod %n
    %yj = chunk %y, axis=0, %j of %n
    if %i == 0 {
      linear %x, %w into %yj
    } else {
      %xj = chunk %all, axis=0, %j of %n
      wait %here[%j] >= 1
      linear %xj, %w into %yj
    }
  }
  wait %push
  return %y
}
`

func TestGoldenPlans(t *testing.T) {
	golden.File(t, "testdata/row_parallel.plan", mustPlanText(t, rowParallel, ir.Binding{Dims: map[string]int64{"C": 3}}))
	golden.File(t, "testdata/exchange.plan", mustPlanText(t, exchangeSource, ir.Binding{Ranks: 2}))
}

func mustPlanText(t *testing.T, src string, bind ir.Binding) string {
	p, _ := mustPlan(t, src, bind)
	return p.String()
}
