package checker

import (
	"fmt"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/irtest"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func mustBind(t testing.TB, src string, b ir.Binding) *ir.Bound {
	t.Helper()
	in, ds := Check(irtest.MustParse(t, "bind.hkt", src))
	if len(ds) > 0 {
		t.Fatalf("%s\n%s", ds, src)
	}
	bound, ds := ir.Bind(in, b)
	if len(ds) > 0 {
		t.Fatalf("%s\n%s", ds, src)
	}
	return bound
}

// TestRanksSetTheFreeAxis checks that the option -n has the size of the mesh as its default, must equal that size, and
// determines the axis size that is a dim.
func TestRanksSetTheFreeAxis(t *testing.T) {
	for _, c := range []struct {
		mesh  string
		b     ir.Binding
		ranks int
		dims  string
	}{
		{"mesh tp[4]", ir.Binding{}, 4, ""},
		{"mesh tp[4]", ir.Binding{Ranks: 4}, 4, ""},
		{"", ir.Binding{}, 1, ""},
		{"", ir.Binding{Ranks: 3}, 3, ""},
		{"dim P = 2\nmesh tp[P]", ir.Binding{}, 2, "P=2"},
		{"dim P = 2\nmesh tp[P]", ir.Binding{Ranks: 6}, 6, "P=6"},
		{"dim P\nmesh tp[P]", ir.Binding{Ranks: 1}, 1, "P=1"},
		{"dim P = 2\nmesh dp[3] tp[P]", ir.Binding{Ranks: 12}, 12, "P=4"},
		{"dim P = 2\nmesh tp[P] dp[3]", ir.Binding{Ranks: 12}, 12, "P=4"},
		{"dim P = 2\nmesh tp[P]", ir.Binding{Ranks: 8, Dims: map[string]int64{"P": 8}}, 8, "P=8"},
		{"dim P = 2\ndim Q = 3\nmesh dp[P] tp[Q]", ir.Binding{Ranks: 6}, 6, "P=2 Q=3"},
		{"dim P = 2\ndim Q = 3\nmesh dp[P] tp[Q]", ir.Binding{Ranks: 8, Dims: map[string]int64{"P": 4}}, 8, "P=4 Q=2"},
		{"dim P = 2\nmesh tp[2*P]", ir.Binding{Ranks: 4}, 4, "P=2"},
		{"mesh d[2] = {3 1}", ir.Binding{}, 4, ""},
	} {
		b := mustBind(t, c.mesh+"\nfunc f(%x: f32[4]) { }", c.b)
		var dims []string
		for _, n := range []string{"P", "Q"} {
			if v, ok := b.Dims[n]; ok {
				dims = append(dims, fmt.Sprintf("%s=%d", n, v))
			}
		}
		if got := strings.Join(dims, " "); b.Ranks != c.ranks || got != c.dims {
			t.Errorf("%s %v: %d ranks, %s; want %d, %s", c.mesh, c.b, b.Ranks, got, c.ranks, c.dims)
		}
	}
}

func TestBindKeepsTheCallersDims(t *testing.T) {
	dims := map[string]int64{"T": 8}
	b := mustBind(t, "dim P = 2\nmesh tp[P]\nfunc f(%x: f32[T/tp]) { }", ir.Binding{Ranks: 4, Dims: dims})
	if len(dims) != 1 || b.Dims["T"] != 8 || b.Dims["P"] != 4 {
		t.Errorf("caller's dims %v, bound %v", dims, b.Dims)
	}
}

func TestZeroExtents(t *testing.T) {
	b := mustBind(t, `
dim T = 0
mesh tp[2]
func f(%x: f32[T/tp, 3]) -> f32[T, 3] {
  %y = slice %x, axis=1, 0..2
  for %i in 0..T { %z = slice %x, axis=0, 0..1 }
  return %x
}`, ir.Binding{})
	shape, err := b.LocalShape(b.Func.Params[0].Type, b.Env(1, nil))
	if err != nil || !slices.Equal(shape, []int64{0, 3}) {
		t.Errorf("%v, %v", shape, err)
	}
}

// TestPlacesAgainstBruteForce compares Team, Peer, Coord, Offset and LocalShape with results from enumerated
// coordinates.
func TestPlacesAgainstBruteForce(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 11))
		m := &bruteMesh{}
		total := 1
		for i := range 1 + r.IntN(4) {
			m.axes = append(m.axes, string(rune('a'+i)))
			m.sizes = append(m.sizes, 1+r.IntN(4))
			total *= m.sizes[i]
		}
		world := total
		src := m.text()
		place := ""
		if sub := r.IntN(2) == 0; sub {
			world += r.IntN(4)
			m.ranks = r.Perm(world)[:total]
			src = fmt.Sprintf("mesh main[%d]\n%s = {%s}", world, src, strings.Trim(fmt.Sprint(m.ranks), "[]"))
			place = " @a"
		} else {
			for i := range total {
				m.ranks = append(m.ranks, i)
			}
		}
		g := &brute{Rand: r, meshes: []*bruteMesh{m}}
		split, _ := g.layout(m, 3)
		shape := []int{}
		for d := range split {
			n := r.IntN(3)
			for _, a := range split[d] {
				n *= m.size(a)
			}
			shape = append(shape, n)
		}
		b := mustBind(t, src+"\nfunc f(%x: "+g.typeText(shape, m, split)+place+") { }", ir.Binding{})
		ty := b.Func.Params[0].Type
		if b.Ranks != world || !slices.Equal(b.Devices(ty), m.ranks) {
			t.Fatalf("%s: %d ranks, %v", src, b.Ranks, b.Devices(ty))
		}
		for rank := range world {
			comparePlaces(t, r, b, m, ty, shape, rank)
		}
	}
}

func comparePlaces(t *testing.T, r *rand.Rand, b *ir.Bound, m *bruteMesh, ty *ir.Type, shape []int, rank int) {
	t.Helper()
	i := slices.Index(m.ranks, rank)
	if c, ok := b.Coord(ir.WorldAxis, rank); !ok || c != int64(rank) {
		t.Fatalf("rank(world) of %d is %d", rank, c)
	}
	if b.Holds(ty, rank) != (i >= 0) {
		t.Fatalf("rank %d holds a part: %v", rank, b.Holds(ty, rank))
	}
	if i < 0 {
		_, c := b.Coord("a", rank)
		_, p := b.Peer("a", 0, rank)
		if team := b.Team([]string{"a"}, rank); c || p || team != nil {
			t.Fatalf("rank %d is not in the mesh, yet %v %v %v", rank, c, p, team)
		}
		return
	}
	for _, a := range m.axes {
		if c, ok := b.Coord(a, rank); !ok || int(c) != m.coords(i)[a] {
			t.Fatalf("coordinate %s of rank %d is %d", a, rank, c)
		}
		if n, ok := b.AxisSize(a); !ok || int(n) != m.size(a) {
			t.Fatalf("size(%s) is %d", a, n)
		}
		for k := -1; k <= m.size(a); k++ {
			c := m.coords(i)
			c[a] = k
			p, ok := b.Peer(a, int64(k), rank)
			if in := k >= 0 && k < m.size(a); ok != in || ok && p != m.ranks[m.place(c)] {
				t.Fatalf("%s[%d] of rank %d is %d, %v", a, k, rank, p, ok)
			}
		}
	}
	axes := slices.Clone(m.axes)
	r.Shuffle(len(axes), func(i, j int) { axes[i], axes[j] = axes[j], axes[i] })
	axes = axes[:r.IntN(len(axes)+1)]
	var team []int
	for _, j := range m.team(i, axes) {
		team = append(team, m.ranks[j])
	}
	if got := b.Team(axes, rank); !slices.Equal(got, team) {
		t.Fatalf("team %v of rank %d is %v, not %v", axes, rank, got, team)
	}
	local, err := b.LocalShape(ty, b.Env(rank, nil))
	lo, size, _ := box(shape, m, ty, i)
	off := b.Offset(ty, local, rank)
	for d := range shape {
		if err != nil || int(local[d]) != size[d] || int(off[d]) != lo[d] {
			t.Fatalf("rank %d of %v: %v at %v, %v; want %v at %v", rank, ty, local, off, err, size, lo)
		}
	}
}

// TestChoiceDependsOnTextOnly checks that binding never changes a layout that Check selected (S20).
func TestChoiceDependsOnTextOnly(t *testing.T) {
	const src = `
dim T = 8
dim K = 4
mesh dp[2] tp[2]
func f(%x: f32[T/tp, K], %w: f32[K, K/tp], %b: f32[T, K/dp]) -> f32[T/dp, K] {
  %h = linear %x, %w
  %s = add %h, %b
  %g = mul %b, %x
  %y = add %s, %g
  return %y
}`
	in, ds := Check(irtest.MustParse(t, "s20", src))
	if len(ds) > 0 {
		t.Fatal(ds)
	}
	text := func() string {
		var b strings.Builder
		for _, s := range in.Prog.Funcs[0].Body.Stmts {
			fmt.Fprint(&b, s.Op, in.Natural[s], ":")
			for _, n := range in.Needs[s] {
				fmt.Fprint(&b, " ", n)
			}
			fmt.Fprintln(&b)
		}
		return b.String()
	}
	before := text()
	for _, dims := range []map[string]int64{{"T": 4, "K": 400}, {"T": 4000, "K": 4}, {"T": 0, "K": 0}} {
		if _, ds := ir.Bind(in, ir.Binding{Dims: dims}); len(ds) > 0 {
			t.Fatal(ds)
		}
		if after := text(); after != before {
			t.Errorf("%v changed\n%s\nto\n%s", dims, before, after)
		}
		in2, _ := Check(irtest.MustParse(t, "s20", src))
		if len(in2.Needs) != len(in.Needs) {
			t.Error("another choice the second time")
		}
	}
}

// TestCheckStmtKnowsInstances checks that constraints on loop variables and ranks are checked for each instance of a
// statement, and not before.
func TestCheckStmtKnowsInstances(t *testing.T) {
	b := mustBind(t, `
mesh tp[2]
func f(%x: inout f32[8]) {
  for %i in 0..4 {
    if %i < 2 {
      %y = slice %x, axis=0, %i*4..%i*4+4
      %z = slice %x, axis=0, 0..size(tp)*5-%i
    }
  }
}`, ir.Binding{})
	loop := b.Func.Body.Stmts[0].Body.Stmts[0].Body.Stmts
	for i := range int64(4) {
		env := irtest.Values{Vars: map[string]int64{"i": i}, Sizes: map[string]int64{"tp": 2}}
		if d := b.CheckStmt(loop[0], env); (d != nil) != (i >= 2) {
			t.Errorf("%%i=%d: %v", i, d)
		}
		if d := b.CheckStmt(loop[1], env); (d != nil) != (i < 2) {
			t.Errorf("%%i=%d: %v", i, d)
		}
	}
}
