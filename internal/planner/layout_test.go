package planner

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"hocket.example/hocket/ir"

	"hocket.example/hocket/internal/plan"
)

// TestChunkBuffersAreReusedPerWorker checks that a worker's chunk buffers, which its stream orders, share memory: two
// workers need two buffers.
func TestChunkBuffersAreReusedPerWorker(t *testing.T) {
	for _, chunks := range []int64{1, 2, 3, 5, 7, 24, 400} {
		p, _ := mustPlan(t, rowParallel, ir.Binding{Dims: map[string]int64{"C": chunks, "T": 2400}})
		rows := (2400 + chunks - 1) / chunks
		one := plan.Aligned(rows * 16 * 2)
		want := p.Memory.Inputs + plan.Aligned(2400*16*2) + min(chunks, 2)*one
		if p.ArenaBytes != want {
			t.Errorf("C=%d: arena of %d bytes, want %d", chunks, p.ArenaBytes, want)
		}
		if p.Memory.Peak != p.ArenaBytes || p.Memory.Bound > p.Memory.Peak {
			t.Errorf("C=%d: memory %+v", chunks, p.Memory)
		}
	}
}

// TestReservedIsLiveForLinearsAndAllReduces plans a program from a forum thread: linears, each followed by an
// all_reduce.
func TestReservedIsLiveForLinearsAndAllReduces(t *testing.T) {
	for _, layers := range []int{1, 2, 8, 31, 1000} {
		p, _ := mustPlan(t, layersSource(layers), ir.Binding{})
		if p.Memory.Peak != p.Memory.Bound {
			t.Errorf("%d layers: peak %d, live at once %d", layers, p.Memory.Peak, p.Memory.Bound)
		}
		want := p.Memory.Inputs + int64(min(layers, 2))*plan.Aligned(96*64*2)
		if p.Memory.Peak != want {
			t.Errorf("%d layers: peak %d, want %d", layers, p.Memory.Peak, want)
		}
	}
}

func layersSource(layers int) string {
	var b strings.Builder
	b.WriteString("dim T = 96\ndim H = 64\nmesh tp[2]\n\nfunc f(%x: bf16[T, H], %w: bf16[H, H]) -> bf16[T, H] {\n")
	prev := "x"
	for i := range layers {
		fmt.Fprintf(&b, "  %%a%d = alloc bf16[T, H]\n  linear %%%s, %%w into %%a%d\n  all_reduce %%a%d into %%a%d, over=tp, op=sum\n", i, prev, i, i, i)
		prev = fmt.Sprintf("a%d", i)
	}
	fmt.Fprintf(&b, "  return %%%s\n}\n", prev)
	return b.String()
}

// TestRemotePutsAreUses checks that a peer's put is a use of its destination. Without the barrier, a put of the next
// run may arrive at any time, so its destination shares memory with no other buffer.
func TestRemotePutsAreUses(t *testing.T) {
	const src = `
mesh tp[2]
func f(%x: f32[64]) -> f32[64] {
  %c = counter
  %a = alloc f32[64] symmetric
  BARRIER
  %r = alloc f32[64]
  put %x into %a at tp[1 - rank(tp)]
  signal %c at tp[1 - rank(tp)]
  wait %c >= 1
  copy %a into %r
  %b = alloc f32[64]
  copy %r into %b
  %y = alloc f32[64]
  copy %b into %y
  return %y
}
`
	offsets := func(src string) map[string]int64 {
		p, _ := mustPlan(t, src, ir.Binding{})
		m := map[string]int64{}
		for _, b := range p.Buffers {
			m[b.Name] = b.Offset
		}
		return m
	}
	with := offsets(strings.Replace(src, "BARRIER", "barrier over=tp", 1))
	without := offsets(strings.Replace(src, "BARRIER", "", 1))
	if with["%b"] != with["%a"] {
		t.Errorf("with a barrier %%b should lie where %%a was: %v", with)
	}
	for _, n := range []string{"%r", "%b", "%y"} {
		if without[n] == without["%a"] {
			t.Errorf("without a barrier %s lies on %%a, which a peer may write any time: %v", n, without)
		}
	}
}

// TestUnorderedStreamsDoNotShare checks that buffers of two unordered streams do not share memory, regardless of the
// host order.
func TestUnorderedStreamsDoNotShare(t *testing.T) {
	const src = `
func f(%x: f32[64]) -> f32[64] {
  %s = stream
  %y = alloc f32[64]
  FORK
  on %s {
    %a = alloc f32[64]
    copy %x into %a
    %a2 = alloc f32[64]
    copy %a into %a2
  }
  JOIN
  %b = alloc f32[64]
  copy %x into %b
  copy %b into %y
  return %y
}
`
	for _, c := range []struct {
		fork, join string
		share      bool
	}{
		{"", "", false},
		{"", "wait %s", false}, // the next run's %a is not ordered after this run's %b
		{"on %s { wait main }", "", false},
		{"on %s { wait main }", "wait %s", true},
	} {
		p, _ := mustPlan(t, strings.NewReplacer("FORK", c.fork, "JOIN", c.join).Replace(src), ir.Binding{})
		want := int64(5 * 256)
		if c.share {
			want = 3 * 256
		}
		if p.ArenaBytes != want {
			t.Errorf("fork %q join %q: arena of %d bytes, want %d", c.fork, c.join, p.ArenaBytes, want)
		}
	}
}

func TestHostBuffersHaveTheirOwnOffsets(t *testing.T) {
	p, _ := mustPlan(t, `
func f(%x: f32[100]) -> f32[100] {
  %h = alloc f32[100] host
  %g = alloc f32[100] host
  %y = alloc f32[100]
  copy %x into %h
  copy %h into %g
  copy %g into %y
  return %y
}
`, ir.Binding{})
	if p.HostBytes != 2*512 || p.ArenaBytes != 2*512 {
		t.Errorf("host %d, arena %d", p.HostBytes, p.ArenaBytes)
	}
}

// TestRanksShareOffsets checks that a buffer is one plan.Buffer on all ranks, with the largest size that a rank needs.
func TestRanksShareOffsets(t *testing.T) {
	p, _ := mustPlan(t, `
mesh tp[3]
func f(%x: f32[64]) -> f32[64] {
  %big = alloc f32[1000 * (rank(tp) + 1)]
  %y = alloc f32[64]
  fill into %big, value=1
  copy %x into %y
  return %y
}
`, ir.Binding{})
	for _, b := range p.Buffers {
		if b.Name == "%big" && b.Bytes != 3000*4 {
			t.Errorf("%%big has %d bytes", b.Bytes)
		}
	}
	if len(p.Buffers) != 3 {
		t.Errorf("%d buffers", len(p.Buffers))
	}
}

// TestWhatMeetingsTeach checks whether a collective or a transfer orders earlier work of another rank (S5): one rank
// fills %a, and then another rank overwrites %a by a put.
func TestWhatMeetingsTeach(t *testing.T) {
	all := func(from, to int) bool { return true }
	for _, c := range []struct {
		stmt string
		want func(from, to int) bool
	}{
		{"barrier over=tp", all},
		{"all_reduce %x into %y, over=tp, op=sum", all},
		{"all_gather %x into %g, over=tp", all},
		{"reduce_scatter %g into %x2, over=tp, op=sum", all},
		{"all_to_all %g into %g2, over=tp", all},
		{"broadcast %x into %y, over=tp, root=1", func(from, to int) bool { return from == 1 }},
		{"scatter %g into %x2, over=tp, root=2", func(from, to int) bool { return from == 2 }},
		{"reduce %x into %y, over=tp, root=1, op=sum", func(from, to int) bool { return to == 1 }},
		{"gather %x into %g, over=tp, root=0", func(from, to int) bool { return to == 0 }},
		{"permute %x into %y, over=tp, to=(rank(tp) + 1) mod 3, from=(rank(tp) + 2) mod 3", func(from, to int) bool { return to == (from+1)%3 }},
		{"group { send %x to tp[(rank(tp) + 1) mod 3]\n recv %y from tp[(rank(tp) + 2) mod 3] }", all},
		{"if rank(tp) == 0 { send %x to tp[1] }\n if rank(tp) == 1 { recv %y from tp[0] }", func(from, to int) bool { return from < 2 && to < 2 }},
		{"signal %c at tp[(rank(tp) + 1) mod 3]\n wait %c >= 1", func(from, to int) bool { return to == (from+1)%3 }},
		{"let %nothing = 0", func(from, to int) bool { return false }},
	} {
		for from := range 3 {
			for to := range 3 {
				src := fmt.Sprintf(`
mesh tp[3]
func f(%%x: f32[6]) -> f32[6] {
  %%c = counter
  %%y = alloc f32[6]
  %%x2 = alloc f32[6]
  %%g = alloc f32[18]
  %%g2 = alloc f32[18]
  fill into %%g, value=1
  %%a = alloc f32[6] symmetric
  %%b = alloc f32[6] symmetric
  if rank(tp) == %d { fill into %%a, value=1 }
  %s
  if rank(tp) == %d { put %%x into %%b at tp[%d] }
  barrier over=tp
  copy %%x into %%y
  return %%y
}
`, from, c.stmt, to, from)
				p, _ := mustPlan(t, src, ir.Binding{})
				u, err := simulate(new(world), p, &Stats{})
				if err != nil {
					t.Fatal(err)
				}
				var a, b int32
				for i, buf := range p.Buffers {
					switch buf.Name {
					case "%a":
						a = int32(i)
					case "%b":
						b = int32(i)
					}
				}
				if got, want := u.mayShare(a, b), from == to || c.want(from, to); got != want {
					t.Errorf("%s: rank %d knows of rank %d's work: %v, want %v", c.stmt, to, from, got, want)
				}
			}
		}
	}
}

// TestOnlineLayoutRemembersEachRank checks that a range of memory records its last user on each rank: %z exists on rank
// 1 only, and %b, which replaces it on rank 0, must not remove it from the record.
func TestOnlineLayoutRemembersEachRank(t *testing.T) {
	p, _ := mustPlan(t, `
mesh tp[2]
func f(%in: f32[6]) -> f32[6] {
  %s = stream
  %x = alloc f32[6]
  fill into %x, value=1
  on %s { wait main
    %z = alloc f32[6]
    if rank(tp) == 1 { fill into %z, value=1 } }
  %q = alloc f32[6] host // in host memory: it makes rank 0's list of commands as long as rank 1's
  if rank(tp) == 0 {
    for %i in 0..4 { fill into %q, value=1 }
  }
  %b = alloc f32[6]
  if rank(tp) == 0 { fill into %b, value=1 }
  %k = alloc f32[6] host
  for %i in 0..4 { fill into %k, value=1 }
  %c = alloc f32[6]
  if rank(tp) == 1 { fill into %c, value=1 }
  wait %s
  return %in
}
`, ir.Binding{})
	relayOut(p, online)
	if err := verifyLayout(p); err != nil {
		t.Errorf("%v\n%s", err, p)
	}
	if want := p.Memory.Inputs + 2*256; p.ArenaBytes != want {
		t.Errorf("arena of %d bytes, want %d", p.ArenaBytes, want)
	}
}

// randomProgram returns a program with buffers of random sizes. Random streams of random ranks use the buffers, with
// random waits, signals and barriers in between.
func randomProgram(t *rapid.T) string {
	ranks := rapid.IntRange(1, 3).Draw(t, "ranks")
	streams := rapid.IntRange(1, 3).Draw(t, "streams")
	var b strings.Builder
	fmt.Fprintf(&b, "mesh tp[%d]\nfunc f(%%x: f32[8]) -> f32[8] {\n  %%s = stream[%d]\n  %%y = alloc f32[8]\n", ranks, streams)
	buffers := rapid.IntRange(1, 8).Draw(t, "buffers")
	for i := range buffers {
		size := rapid.SampledFrom([]int{0, 1, 60, 64, 65, 128, 500}).Draw(t, "size")
		fmt.Fprintf(&b, "  %%b%d = alloc f32[%d] symmetric\n  %%n%d = counter\n", i, size, i)
	}
	stream := func() string {
		k := rapid.IntRange(-1, streams-1).Draw(t, "stream")
		if k < 0 {
			return "main"
		}
		return fmt.Sprintf("%%s[%d]", k)
	}
	steps := rapid.IntRange(0, 24).Draw(t, "steps")
	next := 0
	signals := make([]int, buffers)
	for range steps {
		on := stream()
		buf := rapid.IntRange(next, min(next+1, buffers-1)).Draw(t, "buffer")
		if rapid.IntRange(0, 3).Draw(t, "advance") == 0 {
			next = min(next+1, buffers-1)
		}
		var line string
		switch rapid.IntRange(0, 12).Draw(t, "kind") {
		case 0, 1, 2:
			line = fmt.Sprintf("fill into %%b%d, value=1", buf)
		case 3, 4:
			line = "wait " + stream()
		case 5:
			line = "barrier over=tp"
		case 6:
			line = fmt.Sprintf("put %%b%d into %%b%d at tp[(rank(tp) + 1) mod size(tp)]", buf, buf)
		case 7:
			line = fmt.Sprintf("signal %%n%d at tp[(rank(tp) + 1) mod size(tp)]", buf)
			signals[buf]++
		case 8:
			if signals[buf] == 0 {
				continue
			}
			line = fmt.Sprintf("wait %%n%d >= %d", buf, rapid.IntRange(1, signals[buf]).Draw(t, "value"))
		case 9, 10:
			line = fmt.Sprintf("if rank(tp) == %d { fill into %%b%d, value=1 }", rapid.IntRange(0, ranks-1).Draw(t, "rank"), buf)
		case 11:
			line = fmt.Sprintf("all_reduce %%b%d into %%b%d, over=tp, op=sum", buf, buf)
		case 12:
			line = fmt.Sprintf("%s %%b%d into %%b%d, over=tp, root=%d", rapid.SampledFrom([]string{"broadcast", "reduce"}).Draw(t, "op"),
				buf, buf, rapid.IntRange(0, ranks-1).Draw(t, "root"))
			if strings.HasPrefix(line, "reduce") {
				line += ", op=sum"
			}
		}
		fmt.Fprintf(&b, "  on %s { %s }\n", on, line)
	}
	b.WriteString("  copy %x into %y\n  return %y\n}\n")
	return b.String()
}

func TestRandomProgramsHaveProvedLayouts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src := randomProgram(t)
		p, _, ds := try(src, ir.Binding{})
		if ds.HasErrors() {
			if ds[0].Kind == "deadlock" || ds[0].Kind == "match" {
				return
			}
			t.Fatalf("%s\n%s", ds, src)
		}
		if err := verifyLayout(p); err != nil {
			t.Fatalf("%v\n%s\n%s", err, src, p)
		}
		for name, place := range map[string]func(*plan.Plan, *usage, []item, *Stats) []item{
			"online": online,
			"pairwise": func(p *plan.Plan, u *usage, items []item, stats *Stats) []item {
				return bestLayout(p, u, items, 0, stats)
			},
		} {
			q := *p
			q.Buffers = append([]plan.Buffer(nil), p.Buffers...)
			relayOut(&q, place)
			if err := verifyLayout(&q); err != nil {
				t.Fatalf("%s: %v\n%s\n%s", name, err, src, &q)
			}
		}
	})
}

// relayOut computes the layout of a plan again with the method place.
func relayOut(p *plan.Plan, place func(*plan.Plan, *usage, []item, *Stats) []item) {
	stats := &Stats{}
	p.ArenaBytes = 0
	for i := range p.Buffers {
		p.Buffers[i].First, p.Buffers[i].Last = -1, -1
	}
	u, err := simulate(new(world), p, stats)
	if err != nil {
		panic(err)
	}
	var items []item
	for i, b := range p.Buffers {
		if b.Role != plan.RoleInput && b.Space == plan.Arena && b.Bytes > 0 {
			items = append(items, item{buf: int32(i), size: plan.Aligned(b.Bytes)})
		}
	}
	slices.SortStableFunc(items, func(a, b item) int { return int(p.Buffers[a.buf].First - p.Buffers[b.buf].First) })
	for _, it := range place(p, u, items, stats) {
		p.Buffers[it.buf].Offset = p.Memory.Inputs + it.off
		p.ArenaBytes = max(p.ArenaBytes, p.Buffers[it.buf].Offset+it.size)
	}
}

// TestVerifyLayoutFindsOverlaps checks that verifyLayout finds errors: each pair of buffers that the planner separates
// is given the same offset.
func TestVerifyLayoutFindsOverlaps(t *testing.T) {
	p, _ := mustPlan(t, rowParallel, ir.Binding{Dims: map[string]int64{"C": 6}})
	u, err := simulate(new(world), p, &Stats{})
	if err != nil {
		t.Fatal(err)
	}
	apart := 0
	for i := range p.Buffers {
		for j := range i {
			q := *p
			q.Buffers = append([]plan.Buffer(nil), p.Buffers...)
			q.ArenaBytes = 1 << 20
			top := int64(1 << 12)
			for k := range q.Buffers {
				q.Buffers[k].Offset = top
				top += plan.Aligned(q.Buffers[k].Bytes)
			}
			q.Buffers[i].Offset = q.Buffers[j].Offset
			input := q.Buffers[i].Role == plan.RoleInput || q.Buffers[j].Role == plan.RoleInput
			may := !input && u.mayShare(int32(i), int32(j))
			if err := verifyLayout(&q); (err == nil) != may {
				t.Errorf("%s on %s: may share is %v, verify says %v", q.Buffers[i].Name, q.Buffers[j].Name, may, err)
			}
			if !may {
				apart++
			}
		}
	}
	if apart < 5 {
		t.Errorf("only %d pairs conflict", apart)
	}
	q := *p
	q.ArenaBytes -= plan.Align
	if verifyLayout(&q) == nil {
		t.Error("a buffer behind the arena's end was not found")
	}
}

// TestClocksAgreeWithTheExplicitGraph checks that the planner's clocks and the explicit graph agree for every pair of
// buffers.
func TestClocksAgreeWithTheExplicitGraph(t *testing.T) {
	agreed := [2]int{}
	rapid.Check(t, func(t *rapid.T) {
		src := randomProgram(t)
		p, _, ds := try(src, ir.Binding{})
		if ds.HasErrors() {
			return
		}
		u, err := simulate(new(world), p, &Stats{})
		if err != nil {
			t.Fatal(err)
		}
		g := newOrderGraph(p)
		if err := g.close(); err != nil {
			t.Fatal(err)
		}
		users := make([]map[int32][]int, len(p.Buffers))
		for i := range p.Cmds {
			refs(p, &p.Cmds[i], func(r *plan.Ref) {
				if users[r.Buf] == nil {
					users[r.Buf] = map[int32][]int{}
				}
				users[r.Buf][r.Rank] = append(users[r.Buf][r.Rank], i)
			})
		}
		for a := range p.Buffers {
			for b := range a {
				if p.Buffers[a].Role == plan.RoleInput || p.Buffers[b].Role == plan.RoleInput {
					continue
				}
				want := true
				for rank, x := range users[a] {
					if y := users[b][rank]; len(y) > 0 {
						want = want && (g.alternate(x, y) || g.alternate(y, x))
					}
				}
				if got := u.mayShare(int32(a), int32(b)); got != want {
					t.Fatalf("%s and %s: clocks say %v, the graph %v\n%s\n%s", p.Buffers[a].Name, p.Buffers[b].Name, got, want, src, p)
				}
				if want {
					agreed[1]++
				} else {
					agreed[0]++
				}
			}
		}
	})
	if agreed[0] < 20 || agreed[1] < 20 {
		t.Errorf("too few pairs of either kind: %v", agreed)
	}
}

// manySizes returns a program of one stream with n buffers of many sizes. Each buffer is read a second time after up to
// a dozen further buffers have been written.
func manySizes(seed uint64, n int) string {
	r := rand.New(rand.NewPCG(seed, 77))
	var b strings.Builder
	b.WriteString("func f(%x: f32[64]) -> f32[64] {\n  %acc = alloc f32[64]\n  copy %x into %acc\n")
	until := map[int]int{}
	for i := range n + 12 {
		if i < n {
			size := 64 * (1 + r.Int64N(64))
			if r.IntN(4) == 0 {
				size = 64 * (1 + r.Int64N(1000))
			}
			fmt.Fprintf(&b, "  %%b%d = alloc f32[%d]\n  fill into %%b%d, value=%d\n", i, size, i, i)
			until[i] = i + r.IntN(12)
		}
		for k := max(0, i-12); k <= i; k++ {
			if end, there := until[k]; there && end <= i {
				fmt.Fprintf(&b, "  %%s%d = slice %%b%d, axis=0, 0..64\n  add %%acc, %%s%d into %%acc\n", k, k, k)
				delete(until, k)
			}
		}
	}
	return b.String() + "  return %acc\n}\n"
}

// TestLayoutsAreTight checks that a plan needs little more memory than is live at once, for few buffers and for many.
func TestLayoutsAreTight(t *testing.T) {
	for _, c := range []struct {
		buffers, seeds int
		most           float64
	}{{30, 60, 1.25}, {60, 60, 1.15}, {500, 3, 1.1}, {1000, 3, 1.06}, {3000, 1, 1.06}} {
		for seed := range c.seeds {
			p, _, ds := try(manySizes(uint64(seed), c.buffers), ir.Binding{})
			if ds.HasErrors() {
				t.Fatal(ds)
			}
			if got := float64(p.Memory.Peak) / float64(p.Memory.Bound); got > c.most {
				t.Errorf("%d buffers, seed %d: %d bytes, %.2f times the %d that are live at once, at most %g",
					c.buffers, seed, p.Memory.Peak, got, p.Memory.Bound, c.most)
			}
			if err := verifyLayout(p); c.buffers < 500 && err != nil {
				t.Errorf("%d buffers, seed %d: %v", c.buffers, seed, err)
			}
		}
	}
}

// TestOnlineForgets checks that the online layout, which is used if there are too many pairs of buffers to compare,
// frees ranges that it joined from many pieces.
func TestOnlineForgets(t *testing.T) {
	p, _, ds := try(manySizes(1, 4000), ir.Binding{})
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	relayOut(p, online)
	if got := float64(p.ArenaBytes) / float64(p.Memory.Bound); got > 1.35 {
		t.Errorf("%d bytes, %.1f times what is live at once", p.ArenaBytes, got)
	}
	if err := verifyLayout(p); err != nil {
		t.Error(err)
	}
}
