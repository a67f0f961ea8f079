package lower

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// TestNoRankFetchesTooMuch lowers and runs all reshards of a matrix between two meshes or on one sub-mesh, and counts
// the elements that ranks receive. A rank may receive only the elements of its block that it does not hold yet. If the
// value is partial, the elements of the best single collective, with local cuts, are permitted in addition.
func TestNoRankFetchesTooMuch(t *testing.T) {
	for _, c := range []struct {
		from, to string // sizes of the axes, and the ranks of a sub-mesh
		rows     int64
		long     bool
	}{
		{"2", "2:1 0", 1, false}, {"4", "1:2", 1, false}, {"4:3 0 2 1", "1:2", 1, false},
		{"2 2:3 0 2 1", "1:2", 1, false}, {"3:3 0 2", "1:1", 2, false}, {"4", "3:1 0 3", 1, false},
		{"1:1", "4", 1, false},
		{"3", "2:0 2", 2, false}, {"2:2 1", "3", 2, false}, {"2 2", "2:1 3", 1, false}, {"3:0 1 2", "2 2", 1, false},
		{"2:0 1", "2:2 3", 1, false}, {"3:0 2 1", "2:1 5", 2, false}, {"1:0", "3:0 1 2", 1, false},
		{"5:0 1 2 3 4", "4:4 3 6 2", 1, false},
		{"2 2:0 1 2 3", "2 2:2 5 1 0", 1, false}, {"4", "2 2:3 1 0 2", 1, false}, {"2 2:3 2 0 1", "same", 1, false},
		{"3:2 4 1", "same", 1, false}, {"2 3:5 1 4 2 0 3", "same", 1, false},
		{"2 3", "2 2:0 4 5 1", 1, true}, {"2 4", "2 2:0 5 6 3", 1, true}, {"2 2:6 1 2 4", "2 4", 1, true},
		{"2 3:5 1 4 2 0 3", "3 2:1 2 3 4 5 6", 1, true}, {"2 4", "4 2:7 6 5 4 3 2 1 0", 1, true},
	} {
		t.Run(fmt.Sprint(c.from, " to ", c.to), func(t *testing.T) {
			if c.long && !longtest.On() {
				t.Skip("it takes seconds: only with make long")
			}
			newTrip(t, c.from, c.to, c.rows).check(t)
		})
	}
}

// trip describes all reshards from one mesh to another.
type trip struct {
	from, to   *grid
	fromRanks  []int64 // by position on the grid
	toRanks    []int64
	rows       int64
	sameMesh   bool
	reduceOnto int64 // the rank of a mesh of one rank, if all ranks can reduce to it; otherwise -1
	header     string
}

// newTrip reads meshes like "2 2" (main), "2:1 3" (sub-mesh), "same".
func newTrip(t *testing.T, from, to string, rows int64) *trip {
	w := &trip{rows: rows, sameMesh: to == "same", reduceOnto: -1}
	mesh := func(prefix, text string) (*grid, []int64) {
		sizes, devices, sub := strings.Cut(text, ":")
		g := newGrid(numbers(t, sizes))
		w.header += "mesh"
		for a, n := range g.sizes {
			w.header += fmt.Sprintf(" %s%d[%d]", prefix, a, n)
		}
		ranks := make([]int64, g.ranks)
		for r := range ranks {
			ranks[r] = int64(r)
		}
		if sub {
			w.header += " = {" + devices + "}"
			ranks = numbers(t, devices)
		}
		w.header += "\n"
		return g, ranks
	}
	w.from, w.fromRanks = mesh("a", from)
	if w.to, w.toRanks = w.from, w.fromRanks; !w.sameMesh {
		w.to, w.toRanks = mesh("b", to)
	}
	if len(w.toRanks) == 1 && slices.Contains(w.fromRanks, w.toRanks[0]) {
		w.reduceOnto = w.toRanks[0]
	}
	return w
}

func numbers(t *testing.T, text string) []int64 {
	var out []int64
	for _, f := range strings.Fields(text) {
		var n int64
		if _, err := fmt.Sscan(f, &n); err != nil {
			t.Fatal(err)
		}
		out = append(out, n)
	}
	return out
}

// change is one reshard of a trip.
type change struct {
	src, dst gridLayout
	extents  [2]int64
}

func (w *trip) check(t *testing.T) {
	var changes []change
	text := w.header
	for _, src := range w.from.layouts(true) {
		for _, dst := range w.to.layouts(false) {
			c := change{src: src, dst: dst}
			for d := range c.extents {
				c.extents[d] = lcm(w.from.count(src.dims[d]), w.to.count(dst.dims[d])) * w.rows
			}
			text += w.function(fmt.Sprint("f", len(changes)), c)
			changes = append(changes, c)
		}
	}
	p := lowerText(t, text)
	last, ds := ir.Parse("lowered.hkt", p.Stages[len(p.Stages)-1].Text)
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	info, ds := checker.Check(last)
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	for i, c := range changes {
		got := received(t, info, fmt.Sprint("f", i))
		want := w.cheapest(c)
		if !got.within(want) {
			t.Errorf("%s owed over %v -> %s: %v, and %v would do", c.src.text("a", c.extents), c.src.owed,
				c.dst.text("b", c.extents), got, want)
		}
	}
}

// function returns the program for one reshard. A partial value is computed as a sum over a dimension that is split
// over the owed axes.
func (w *trip) function(name string, c change) string {
	at := func(own bool, prefix string) string {
		if own {
			return " @" + prefix + "0"
		}
		return ""
	}
	fromSub, to := strings.Contains(strings.SplitN(w.header, "\n", 2)[0], "{"), "b"
	toSub := strings.Contains(strings.SplitN(w.header, "\n", 2)[1], "{")
	if w.sameMesh {
		to, toSub = "a", fromSub
	}
	src, dst := c.src.text("a", c.extents), c.dst.text(to, c.extents)+at(toSub, to)
	if len(c.src.owed) == 0 {
		return fmt.Sprintf("func %s(%%x: %s) -> %s { return %%x }\n", name, src+at(fromSub, "a"), dst)
	}
	var axes []string
	for _, a := range c.src.owed {
		axes = append(axes, fmt.Sprint("a", a))
	}
	src = fmt.Sprintf("i64[%d/(%s), %s", w.from.count(c.src.owed), strings.Join(axes, ","),
		strings.TrimPrefix(src, "i64[")) + at(fromSub, "a")
	return fmt.Sprintf("func %s(%%x: %s) -> %s {\n  %%y = sum %%x, axis=0\n  return %%y\n}\n", name, src, dst)
}

// traffic holds the maximum number of elements that one rank receives, and the number of elements that all ranks
// receive.
type traffic struct{ most, total float64 }

func trafficOf(byRank map[int64]float64) traffic {
	var out traffic
	for _, n := range byRank {
		out.most, out.total = max(out.most, n), out.total+n
	}
	return out
}

// within reports whether a is not larger than b. It compares the maximum first.
func (a traffic) within(b traffic) bool {
	const equal = 1e-6
	return a.most < b.most-equal || a.most < b.most+equal && a.total < b.total+equal
}

// received runs a lowered function on the test's machine and returns its traffic.
func received(t *testing.T, info *ir.Info, name string) traffic {
	b, ds := ir.Bind(info, ir.Binding{Func: name})
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	m := newMachine(b)
	in := b.Func.Params[0].Type
	whole := newArray(mustShape(t, b, in))
	ranks := make([]int, b.Ranks)
	for r := range ranks {
		ranks[r] = r
		if b.Holds(in, r) {
			m.held[r]["x"] = shardOf(t, b, whole, in, r)
		}
	}
	m.run(b.Func.Body, ranks)
	return trafficOf(m.received)
}

// cheapest returns the lowest traffic of all implementations of a reshard that the test considers.
func (w *trip) cheapest(c change) traffic {
	from, to := w.from.spread(c.src, c.extents), w.to.spread(c.dst, c.extents)
	if len(c.src.owed) == 0 {
		return w.fetched(from, to, 0)
	}
	best := traffic{math.Inf(1), math.Inf(1)}
	try := func(h world, cost float64) {
		if n := w.from.count(c.src.owed); h.isComplete(n) {
			if got := w.fetched(h.complete(n), to, cost); got.within(best) {
				best = got
			}
		}
	}
	for _, cut := range w.from.cutsOf(from) {
		for _, one := range w.from.collectives(cut) {
			for _, h := range w.from.cutsOf(one.world) {
				try(h, one.cost)
			}
		}
	}
	if n := float64(w.from.ranks - 1); w.reduceOnto >= 0 && len(c.src.owed) == len(w.from.sizes) {
		if got := (traffic{to.size(), to.size() * n}); got.within(best) {
			best = got
		}
	}
	return best
}

// isComplete reports whether all elements include n contributions.
func (w world) isComplete(n int64) bool {
	return !slices.ContainsFunc(slices.Concat(w.held...), func(x int64) bool { return x%contributions != 1<<n-1 })
}

// fetched returns the traffic if each rank of the target fetches the elements that it lacks. Before, each source rank
// has received cost elements. The traffic is infinite if no rank has a needed element.
func (w *trip) fetched(from, to world, cost float64) traffic {
	byRank, holds, exists := map[int64]float64{}, map[int64]map[int64]bool{}, map[int64]bool{}
	for i, r := range w.fromRanks {
		byRank[r] = cost
		holds[r] = map[int64]bool{}
		for _, x := range from.held[i] {
			holds[r][x], exists[x] = true, true
		}
	}
	for i, r := range w.toRanks {
		for _, x := range to.held[i] {
			switch {
			case !exists[x]:
				return traffic{math.Inf(1), math.Inf(1)}
			case !holds[r][x]:
				byRank[r]++
			}
		}
	}
	return trafficOf(byRank)
}

// TestOneRankAndAllMoveNoMore checks that transfers between one rank and all ranks have the lowest traffic even if the
// text does not give the size of the main mesh.
func TestOneRankAndAllMoveNoMore(t *testing.T) {
	const owed = "\n  %y = sum %x, axis=0\n  return %y\n"
	for _, c := range []struct {
		name, types, body string
		want              traffic // elements moved; a value has 24 elements, and mesh z is rank 1 of 4
	}{
		{"scatter", "i64[6, 4] @z -> i64[6, 4/(a, b)]", " return %x ", traffic{6, 18}},
		{"scatter in another order", "i64[4, 6] @z -> i64[4/(b, a), 6]", " return %x ", traffic{6, 18}},
		{"scatter by two dimensions", "i64[6, 4] @z -> i64[6/a, 4/b]", " return %x ", traffic{6, 18}},
		{"scatter crosswise", "i64[6, 4] @z -> i64[6/b, 4/a]", " return %x ", traffic{6, 18}},
		{"scatter, and share", "i64[6, 4] @z -> i64[6/a, 4]", " return %x ", traffic{12, 36}},
		{"scatter columns, and share", "i64[6, 4] @z -> i64[6, 4/b]", " return %x ", traffic{12, 36}},
		{"gather", "i64[6, 4/(a, b)] -> i64[6, 4] @z", " return %x ", traffic{18, 18}},
		{"gather two dimensions", "i64[6/a, 4/b] -> i64[6, 4] @z", " return %x ", traffic{18, 18}},
		{"gather from those beside it", "i64[6, 4/a] -> i64[6, 4] @z", " return %x ", traffic{12, 12}},
		{"gather, and give a block on", "i64[6/b, 4/a] -> i64[6/d, 4] @d", " return %x ", traffic{18, 30}},
		{"reduce, then gather", "i64[2/a, 6, 4/b] -> i64[6, 4] @z", owed, traffic{24, 36}},
		{"reduce to those beside it", "i64[2/b, 6, 4] -> i64[6, 4] @z", owed, traffic{24, 48}},
		{"reduce, gather, and give a block on", "i64[2/b, 6, 4/a] -> i64[6/d, 4] @d", owed, traffic{24, 48}},
		{"keep", "i64[6, 4] -> i64[6, 4] @z", " return %x ", traffic{0, 0}},
		{"broadcast", "i64[6, 4] @z -> i64[6, 4]", " return %x ", traffic{24, 72}},
		{"reduce", "i64[4/(a, b), 6, 4] -> i64[6, 4] @z", owed, traffic{24, 72}},
		{"two ranks hold it", "i64[6/d, 4] @d -> i64[6, 4/(a, b)]", " return %x ", traffic{12, 30}},
		{"two ranks hold it, blocks are shared", "i64[6/d, 4] @d -> i64[6/a, 4]", " return %x ", traffic{12, 48}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in, out, _ := strings.Cut(c.types, "->")
			res := lowerText(t, "dim A = 2\nmesh a[A] b[2]\nmesh z[1] = {1}\nmesh d[2] = {1 2}\nfunc f(%x: "+in+") ->"+out+" {"+c.body+"}\n")
			p, ds := ir.Parse("lowered.hkt", res.Stages[len(res.Stages)-1].Text)
			if ds.HasErrors() {
				t.Fatal(ds)
			}
			info, ds := checker.Check(p)
			if ds.HasErrors() {
				t.Fatal(ds)
			}
			if got := received(t, info, "f"); !got.within(c.want) || !c.want.within(got) {
				t.Errorf("%v, want %v\n%s", got, c.want, p)
			}
		})
	}
}

// TestManyRanks checks that the text of a lowered reshard remains short for meshes of any size.
func TestManyRanks(t *testing.T) {
	list := func(n int) string {
		words := make([]string, n)
		for i := range words {
			words[i] = fmt.Sprint(i)
		}
		return strings.Join(words, " ")
	}
	for _, c := range []struct {
		ranks, sub int
		types      string
		pieces     bool // ranks send and receive
	}{
		{64, 8, "i64[64/m, 64] -> i64[64, 64/s] @s", true},
		{1024, 8, "i64[1024/s, 4] @s -> i64[1024/m, 4]", true},
		{1024, 8, "i64[1024/m, 64] -> i64[1024, 64] @s", false},
		{1024, 512, "i64[1024/m, 1024] -> i64[1024, 1024/s] @s", true},
		{2048, 8, "i64[2048/m, 64] -> i64[2048/s, 64] @s", true},
		{2048, 8, "i64[2048/s, 64] @s -> i64[2048/m, 64]", true},
	} {
		in, out, _ := strings.Cut(c.types, "->")
		res := lowerText(t, fmt.Sprintf("mesh m[%d]\nmesh s[%d] = {%s}\nfunc f(%%x: %s) ->%s { return %%x }\n", c.ranks,
			c.sub, list(c.sub), in, out))
		text := res.Stages[len(res.Stages)-1].Text
		if n := strings.Count(text, "recv"); n > maxPieces || (n > 0) != c.pieces {
			t.Errorf("%d ranks, %s: %d receives", c.ranks, c.types, n)
		}
	}
}
