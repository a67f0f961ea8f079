package lower

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/ir"
)

// TestNoReshardMovesTooMuch lowers all reshards of a matrix on some meshes. In the lowered program, no rank may receive
// more than in the cheapest implementation by one or two collectives with local cuts. The test finds this
// implementation by trying all of them. The arrays of the test record the elements that each rank holds, and the
// contributions that they include.
func TestNoReshardMovesTooMuch(t *testing.T) {
	for _, c := range []struct {
		sizes []int64
		rows  int64 // rows of the smallest block that source and destination have
	}{{[]int64{2}, 1}, {[]int64{3}, 2}, {[]int64{2, 2}, 1}, {[]int64{2, 2}, 2}, {[]int64{2, 4}, 1}, {[]int64{3, 2}, 1},
		{[]int64{4, 2}, 1}, {[]int64{2, 3}, 1}, {[]int64{8}, 1}, {[]int64{6}, 2}} {
		t.Run(fmt.Sprint(c.sizes, c.rows), func(t *testing.T) {
			if testing.Short() && len(c.sizes) > 1 && c.rows > 1 {
				t.Skip("some seconds: not in -short")
			}
			g := newGrid(c.sizes)
			for _, src := range g.layouts(true) {
				for _, dst := range g.layouts(false) {
					g.check(t, src, dst, c.rows)
				}
			}
		})
	}
}

// grid is a mesh with axes a0, a1; a rank's coordinates are the digits of its number.
type grid struct {
	sizes []int64
	ranks int64
}

func newGrid(sizes []int64) *grid {
	g := &grid{sizes: sizes, ranks: 1}
	for _, n := range sizes {
		g.ranks *= n
	}
	return g
}

func (g *grid) coord(rank int64, axis int) int64 {
	for _, n := range g.sizes[axis+1:] {
		rank /= n
	}
	return rank % g.sizes[axis]
}

// index is the position of a rank in the order of its coordinates along axes, the first axis major.
func (g *grid) index(rank int64, axes []int) int64 {
	i := int64(0)
	for _, a := range axes {
		i = i*g.sizes[a] + g.coord(rank, a)
	}
	return i
}

func (g *grid) count(axes []int) int64 {
	n := int64(1)
	for _, a := range axes {
		n *= g.sizes[a]
	}
	return n
}

// team returns the ranks that differ from rank along axes only, in their order.
func (g *grid) team(rank int64, axes []int) []int64 {
	out := make([]int64, g.count(axes))
	for r := range g.ranks {
		same := true
		for a := range g.sizes {
			same = same && (slices.Contains(axes, a) || g.coord(r, a) == g.coord(rank, a))
		}
		if same {
			out[g.index(r, axes)] = r
		}
	}
	return out
}

// gridLayout lists the axes that split each of two dimensions, and the axes over which the value is partial (owed).
type gridLayout struct {
	dims [2][]int
	owed []int
}

func (g *grid) layouts(partial bool) []gridLayout {
	out := []gridLayout{{}}
	for a := range g.sizes {
		var next []gridLayout
		for _, l := range out {
			next = append(next, l)
			for d := range l.dims {
				for k := 0; k <= len(l.dims[d]); k++ {
					m := l
					m.dims[d] = slices.Insert(slices.Clone(l.dims[d]), k, a)
					next = append(next, m)
				}
			}
			if partial {
				m := l
				m.owed = append(slices.Clone(l.owed), a)
				next = append(next, m)
			}
		}
		out = next
	}
	return out
}

func (l gridLayout) text(prefix string, extents [2]int64) string {
	var dims []string
	for d, n := range extents {
		s := fmt.Sprint(n)
		if len(l.dims[d]) > 0 {
			var names []string
			for _, a := range l.dims[d] {
				names = append(names, fmt.Sprint(prefix, a))
			}
			s += "/(" + strings.Join(names, ", ") + ")"
		}
		dims = append(dims, s)
	}
	return "i64[" + strings.Join(dims, ", ") + "]"
}

// world holds the array of each rank. An element is its index times a power of two, plus one bit for each contribution
// that it includes.
type world struct {
	rows, cols int64 // of each rank's array
	held       [][]int64
}

const contributions = 256

// spread gives each rank its block.
func (g *grid) spread(l gridLayout, extents [2]int64) world {
	w := world{rows: extents[0] / g.count(l.dims[0]), cols: extents[1] / g.count(l.dims[1])}
	for r := range g.ranks {
		i0, j0 := g.index(r, l.dims[0])*w.rows, g.index(r, l.dims[1])*w.cols
		bits := int64(1) << g.index(r, l.owed)
		if len(l.owed) == 0 {
			bits = 1
		}
		var block []int64
		for i := range w.rows {
			for j := range w.cols {
				block = append(block, ((i0+i)*extents[1]+j0+j)*contributions+bits)
			}
		}
		w.held = append(w.held, block)
	}
	return w
}

// complete marks the elements that include n contributions as complete.
func (w world) complete(n int64) world {
	out := world{rows: w.rows, cols: w.cols}
	all := int64(1)<<n - 1
	for _, h := range w.held {
		c := slices.Clone(h)
		for i := range c {
			if c[i]%contributions == all {
				c[i] = c[i] - all + 1
			}
		}
		out.held = append(out.held, c)
	}
	return out
}

func (w world) size() float64 { return float64(w.rows * w.cols) }

func (w world) key() string {
	b := binary.AppendVarint(nil, w.rows)
	for _, h := range w.held {
		for _, x := range h {
			b = binary.AppendVarint(b, x)
		}
	}
	return string(b)
}

// block returns block i of n blocks of x along dimension d; ok is false if n does not divide the extent.
func (w world) block(x []int64, d int, i, n int64) (rows, cols int64, out []int64, ok bool) {
	rows, cols = w.rows, w.cols
	if d == 0 {
		if rows%n != 0 {
			return 0, 0, nil, false
		}
		rows /= n
		return rows, cols, x[i*rows*cols : (i+1)*rows*cols], true
	}
	if cols%n != 0 {
		return 0, 0, nil, false
	}
	cols /= n
	for r := range rows {
		out = append(out, x[r*w.cols+i*cols:r*w.cols+(i+1)*cols]...)
	}
	return rows, cols, out, true
}

// joined concatenates arrays of rows × cols along d.
func joined(parts [][]int64, rows, cols int64, d int) []int64 {
	var out []int64
	if d == 0 {
		for _, p := range parts {
			out = append(out, p...)
		}
		return out
	}
	for r := range rows {
		for _, p := range parts {
			out = append(out, p[r*cols:(r+1)*cols]...)
		}
	}
	return out
}

// summed adds arrays; ok is false if they hold different elements or would count a contribution twice.
func summed(parts [][]int64) (out []int64, ok bool) {
	out = slices.Clone(parts[0])
	for _, p := range parts[1:] {
		for i, v := range p {
			if v/contributions != out[i]/contributions || v&out[i]%contributions != 0 {
				return nil, false
			}
			out[i] |= v % contributions
		}
	}
	return out, true
}

// reached is the contents of all ranks (a world), and the cost of the operations that lead to them.
type reached struct {
	world
	cost float64
}

// teams returns all ordered selections of axes.
func (g *grid) teams() [][]int {
	if len(g.sizes) == 1 {
		return [][]int{{0}}
	}
	return [][]int{{0}, {1}, {0, 1}, {1, 0}}
}

// cutsOf returns w and all worlds that result from w by local cuts.
func (g *grid) cutsOf(w world) []world {
	out := []world{w}
	for _, axes := range g.teams() {
		for d := range 2 {
			if c, ok := g.each(w, func(r int64) (int64, int64, []int64, bool) {
				return w.block(w.held[r], d, g.index(r, axes), g.count(axes))
			}); ok {
				out = append(out, c)
				if len(axes) == 1 && len(g.sizes) == 2 { // in addition, cut the other dimension along the other axis
					other := []int{1 - axes[0]}
					if c2, ok := g.each(c, func(r int64) (int64, int64, []int64, bool) {
						return c.block(c.held[r], 1-d, g.index(r, other), g.count(other))
					}); ok {
						out = append(out, c2)
					}
				}
			}
		}
	}
	return out
}

// each returns the world in which rank r has the array that f returns for r.
func (g *grid) each(_ world, f func(r int64) (rows, cols int64, x []int64, ok bool)) (world, bool) {
	var out world
	for r := range g.ranks {
		rows, cols, x, ok := f(r)
		if !ok {
			return out, false
		}
		out.rows, out.cols = rows, cols
		out.held = append(out.held, x)
	}
	return out, true
}

// collectives returns the results of all collectives on w, with their costs.
func (g *grid) collectives(w world) []reached {
	var out []reached
	for _, axes := range g.teams() {
		n := float64(g.count(axes))
		parts := func(r int64) [][]int64 {
			var ps [][]int64
			for _, m := range g.team(r, axes) {
				ps = append(ps, w.held[m])
			}
			return ps
		}
		if s, ok := g.each(w, func(r int64) (int64, int64, []int64, bool) {
			x, ok := summed(parts(r))
			return w.rows, w.cols, x, ok
		}); ok {
			out = append(out, reached{s, 2 * w.size() * (n - 1) / n})
			for d := range 2 {
				if c, ok := g.each(s, func(r int64) (int64, int64, []int64, bool) {
					return s.block(s.held[r], d, g.index(r, axes), g.count(axes))
				}); ok {
					out = append(out, reached{c, c.size() * (n - 1)})
				}
			}
		}
		for d := range 2 {
			gathered, _ := g.each(w, func(r int64) (int64, int64, []int64, bool) {
				rows, cols := w.rows, w.cols
				if d == 0 {
					rows *= g.count(axes)
				} else {
					cols *= g.count(axes)
				}
				return rows, cols, joined(parts(r), w.rows, w.cols, d), true
			})
			out = append(out, reached{gathered, gathered.size() * (n - 1) / n})
			if c, ok := g.each(gathered, func(r int64) (int64, int64, []int64, bool) {
				return gathered.block(gathered.held[r], 1-d, g.index(r, axes), g.count(axes))
			}); ok {
				out = append(out, reached{c, c.size() * (n - 1) / n})
			}
		}
	}
	return out
}

// permuted returns the cost of a permute that changes w into the contents want. The cost is infinite unless each rank
// needs the whole array of exactly one rank.
func (w world) permuted(want world) float64 {
	if w.rows != want.rows || w.cols != want.cols {
		return math.Inf(1)
	}
	used := map[int]bool{}
	cost := 0.0
	for r, x := range want.held {
		from := -1
		for s, y := range w.held {
			if slices.Equal(x, y) && !used[s] && (from < 0 || s == r) {
				from = s
			}
		}
		if from < 0 {
			return math.Inf(1)
		}
		used[from] = true
		if from != r {
			cost = w.size()
		}
	}
	return cost
}

// cheapest returns the lowest cost of one or two collectives, with local cuts, that change one
// world (the contents of all ranks) into another. cheapest returns the argument least if no cost is lower.
func (g *grid) cheapest(from, to world, owed int64, least float64) float64 {
	goal := to.key()
	see := func(w world, cost float64) {
		for _, c := range g.cutsOf(w) {
			if c = c.complete(owed); c.key() == goal {
				least = min(least, cost)
			}
			least = min(least, cost+c.permuted(to))
		}
	}
	see(from, 0)
	seen := map[string]float64{}
	for _, c := range g.cutsOf(from) {
		for _, one := range g.collectives(c) {
			if one.cost >= least-1e-9 {
				continue
			}
			see(one.world, one.cost)
			for _, d := range g.cutsOf(one.world) {
				k := d.key()
				if old, ok := seen[k]; ok && old <= one.cost || one.cost >= least {
					continue
				}
				seen[k] = one.cost
				for _, two := range g.collectives(d) {
					if one.cost+two.cost < least-1e-9 {
						see(two.world, one.cost+two.cost)
					}
				}
			}
		}
	}
	return least
}

func (g *grid) check(t *testing.T, src, dst gridLayout, rows int64) {
	t.Helper()
	var extents [2]int64
	for d := range extents {
		extents[d] = lcm(g.count(src.dims[d]), g.count(dst.dims[d])) * rows
	}
	owed := g.count(src.owed)
	got := g.lowered(t, src, dst, extents)
	if got == 0 {
		return
	}
	if want := g.cheapest(g.spread(src, extents), g.spread(dst, extents), owed, got); got > want+1e-9 {
		t.Errorf("%s owed over %v -> %s: %g elements to a rank, %g would do", src.text("a", extents), src.owed,
			dst.text("a", extents), got, want)
	}
}

// lowered returns the number of elements that a rank receives in the lowered reshard.
func (g *grid) lowered(t *testing.T, src, dst gridLayout, extents [2]int64) float64 {
	t.Helper()
	from := &ir.Type{DType: ir.I64, Dims: typeDims(src, extents)}
	for _, a := range src.owed {
		from.Partial = append(from.Partial, ir.Partial{Axis: fmt.Sprintf("a%d", a), Red: ir.Sum})
	}
	at := &place{main: true}
	for a, n := range g.sizes {
		at.axes = append(at.axes, ir.MeshAxis{Name: fmt.Sprintf("a%d", a), Size: ir.Int(n)})
	}
	total := 0.0
	local := func(typ *ir.Type) float64 {
		n := 1.0
		for d, dim := range typ.Dims {
			n *= float64(extents[d])
			for _, a := range dim.Axes {
				n /= float64(g.sizes[a[1]-'0'])
			}
		}
		return n
	}
	for _, s := range at.plan(from, &ir.Type{DType: ir.I64, Dims: typeDims(dst, extents)}) {
		n := 1.0
		for _, a := range s.axes {
			n *= float64(g.sizes[a[1]-'0'])
		}
		switch s.kind {
		case stepCut:
		case stepReduceScatter:
			total += local(s.after) * (n - 1)
		case stepAllReduce:
			total += 2 * local(s.after) * (n - 1) / n
		case stepGather, stepExchange:
			total += local(s.after) * (n - 1) / n
		case stepPermute:
			total += local(s.after)
		}
	}
	return total
}

func typeDims(l gridLayout, extents [2]int64) []ir.Dimension {
	out := make([]ir.Dimension, 2)
	for d := range out {
		out[d].Extent = ir.Int(extents[d])
		for _, a := range l.dims[d] {
			out[d].Axes = append(out[d].Axes, fmt.Sprintf("a%d", a))
		}
	}
	return out
}
