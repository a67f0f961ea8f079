package lower

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
	"pgregory.net/rapid"
)

// TestReshardsMoveTheRightElements draws random layouts on meshes with one to three axes and lowers the reshard from
// one layout to the other. The test compares the shard of each rank with the expected shard, element by element.
func TestReshardsMoveTheRightElements(t *testing.T) {
	for _, kind := range []string{"one mesh", "main to sub", "sub to main", "sub to sub", "one sub-mesh",
		"one mesh, sizes open", "main to sub, sizes open", "sub to main, sizes open"} {
		t.Run(kind, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { drawCase(t, kind).check(t) })
		})
	}
}

// testMesh is a mesh of a random program.
type testMesh struct {
	name  string // "" for the main mesh, else its first axis
	axes  []string
	sizes []int64
	text  string
}

// drawMesh draws a random mesh. The argument ranks is 0 for a main mesh. For a sub-mesh, ranks is the number of all
// ranks, from which some are drawn in random order.
func drawMesh(t *rapid.T, prefix string, ranks int64) testMesh {
	m := testMesh{text: "mesh"}
	places := int64(1)
	for i := range rapid.IntRange(1, 3).Draw(t, "axes") {
		most := int64(3)
		if ranks > 0 {
			most = min(most, ranks/places)
		}
		n := rapid.Int64Range(1, max(most, 1)).Draw(t, "size")
		places *= n
		m.axes, m.sizes = append(m.axes, fmt.Sprintf("%s%d", prefix, i)), append(m.sizes, n)
		m.text += fmt.Sprintf(" %s[%d]", m.axes[i], n)
	}
	if ranks > 0 {
		all := make([]int64, ranks)
		for i := range all {
			all[i] = int64(i)
		}
		devices := rapid.Permutation(all).Draw(t, "devices")[:places]
		m.name = m.axes[0]
		m.text += fmt.Sprintf(" = {%s}", strings.Trim(fmt.Sprint(devices), "[]"))
	}
	return m
}

func (m testMesh) ranks() int64 {
	n := int64(1)
	for _, s := range m.sizes {
		n *= s
	}
	return n
}

// layout draws a random layout: the dimension that each of the given axes splits, in random order.
func (m testMesh) layout(t *rapid.T, dims int, axes []string) [][]string {
	out := make([][]string, dims)
	for _, a := range rapid.Permutation(axes).Draw(t, "order") {
		if d := rapid.IntRange(-1, dims-1).Draw(t, "dim"); d >= 0 {
			out[d] = append(out[d], a)
		}
	}
	return out
}

func (m testMesh) parts(axes []string) int64 {
	n := int64(1)
	for _, a := range axes {
		n *= m.sizes[slices.Index(m.axes, a)]
	}
	return n
}

func (m testMesh) typ(extents []int64, layout [][]string) string {
	var b strings.Builder
	b.WriteString("i64[")
	for i, n := range extents {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprint(&b, n)
		if len(layout[i]) > 0 {
			fmt.Fprintf(&b, "/(%s)", strings.Join(layout[i], ","))
		}
	}
	b.WriteString("]")
	if m.name != "" {
		b.WriteString(" @" + m.name)
	}
	return b.String()
}

// testCase is one reshard. If red is set, the source value is partial over some axes.
type testCase struct {
	source string
	red    string
	ranks  int
}

func drawCase(t *rapid.T, kind string) testCase {
	var from, to testMesh
	var text string
	sub := func(prefix string, of int64) testMesh {
		m := drawMesh(t, prefix, of)
		text += m.text + "\n"
		return m
	}
	c := testCase{ranks: rapid.IntRange(1, 7).Draw(t, "ranks")}
	kind, open := strings.CutSuffix(kind, ", sizes open")
	switch kind {
	case "one mesh":
		from = sub("m", 0)
		to = from
	case "one sub-mesh":
		from = sub("a", int64(c.ranks))
		to = from
	case "sub to sub":
		from, to = sub("a", int64(c.ranks)), sub("b", int64(c.ranks))
	case "main to sub":
		from = sub("m", 0)
		to = sub("a", from.ranks())
	case "sub to main":
		to = sub("m", 0)
		from = sub("a", to.ranks())
	}
	if strings.Contains(kind, "main") || kind == "one mesh" {
		c.ranks = int(max(from.ranks(), to.ranks()))
	}

	dims := rapid.IntRange(0, 3).Draw(t, "dims")
	owed := rapid.SliceOfDistinct(rapid.SampledFrom(from.axes), rapid.ID[string]).Draw(t, "partial")
	c.red = rapid.SampledFrom([]string{"", "sum", "max"}).Draw(t, "reduction")
	if c.red == "" {
		owed = nil
	}
	rest := slices.DeleteFunc(slices.Clone(from.axes), func(a string) bool { return slices.Contains(owed, a) })
	have, want := from.layout(t, dims, rest), to.layout(t, dims, to.axes)
	extents := make([]int64, dims)
	for i := range extents {
		p, q := from.parts(have[i]), to.parts(want[i])
		extents[i] = lcm(p, q) * rapid.Int64Range(0, 2).Draw(t, "rows")
	}

	body := "  return %x\n"
	if c.red != "" {
		extents, have = append([]int64{from.parts(owed)}, extents...), append([][]string{owed}, have...)
		body = "  %y = " + c.red + " %x, axis=0\n  return %y\n"
	}
	if open {
		text = openSizes(text)
	}
	c.source = fmt.Sprintf("%sfunc f(%%x: %s) -> %s {\n%s}\n", text, from.typ(extents, have),
		to.typ(extents[len(extents)-dims:], want), body)
	return c
}

var meshSize = regexp.MustCompile(`\[(\d+)\]`)

// openSizes replaces the sizes of the main mesh by dims.
func openSizes(text string) string {
	dims, out := "", ""
	for line := range strings.Lines(text) {
		if !strings.Contains(line, "{") {
			line = meshSize.ReplaceAllStringFunc(line, func(s string) string {
				name := fmt.Sprint("S", strings.Count(dims, "dim"))
				dims += fmt.Sprintf("dim %s = %s\n", name, strings.Trim(s, "[]"))
				return "[" + name + "]"
			})
		}
		out += line
	}
	return dims + out
}

func lcm(a, b int64) int64 {
	g, r := a, b
	for r != 0 {
		g, r = r, g%r
	}
	return a / g * b
}

func (c testCase) check(t rapid.TB) {
	t.Logf("-n %d\n%s", c.ranks, c.source)
	p, ds := ir.Parse("case.hkt", c.source)
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	res, err := Run(p, Options{})
	if err != nil {
		t.Fatal(err)
	}
	text := res.Stages[len(res.Stages)-1].Text
	t.Log(text)
	if p, ds = ir.Parse("lowered.hkt", text); ds.HasErrors() {
		t.Fatal(ds)
	}
	info, ds := checker.Check(p)
	if ds.HasErrors() || !info.Explicit() {
		t.Fatalf("explicit: %v, %v", info.Explicit(), ds)
	}
	b, ds := ir.Bind(info, ir.Binding{Ranks: c.boundRanks(p)})
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	c.compare(t, b)
}

// boundRanks returns the number of ranks for which the program is bound. Without a main mesh, the number of ranks is
// determined by the device lists of the sub-meshes.
func (c testCase) boundRanks(p *ir.Program) int {
	for _, m := range p.Meshes {
		if !m.HasDevices {
			return c.ranks
		}
	}
	return 0
}

// compare runs the bound function on numbered elements.
func (c testCase) compare(t rapid.TB, b *ir.Bound) {
	m := newMachine(b)
	in, out := b.Func.Params[0].Type, b.Func.Results[0]
	whole := newArray(mustShape(t, b, in))
	for i := range whole.at {
		*whole.at[i] = int64(i*i%1009 + i)
	}
	ranks := make([]int, b.Ranks)
	for r := range ranks {
		ranks[r] = r
		if b.Holds(in, r) {
			m.held[r]["x"] = shardOf(t, b, whole, in, r)
		}
	}
	m.run(b.Func.Body, ranks)
	for _, q := range []map[pair][]*array{m.sends, m.recvs} {
		for p, left := range q {
			if len(left) > 0 {
				t.Fatalf("transfer %v has no other half", p)
			}
		}
	}
	want := whole
	if c.red != "" {
		want = reduceFirst(whole, c.red)
	}
	for r := range ranks {
		got := m.held[r][m.returned]
		if !b.Holds(out, r) {
			continue
		}
		w := shardOf(t, b, want, out, r)
		if got == nil || !slices.Equal(got.values(), w.values()) || !slices.Equal(got.shape, w.shape) {
			t.Fatalf("rank %d holds %v, want %v", r, got, w.values())
		}
	}
}

func mustShape(t rapid.TB, b *ir.Bound, typ *ir.Type) []int64 {
	shape, err := b.GlobalShape(typ, b.Env(0, nil))
	if err != nil {
		t.Fatal(err)
	}
	return shape
}

// shardOf cuts rank's block of a value out of the whole, dimension by
// dimension and axis by axis, major first.
func shardOf(t rapid.TB, b *ir.Bound, whole *array, typ *ir.Type, rank int) *array {
	out := whole
	for d, dim := range typ.Dims {
		for _, ax := range dim.Axes {
			n, _ := b.AxisSize(ax)
			c, ok := b.Coord(ax, rank)
			if !ok {
				t.Fatalf("rank %d has no place on %s", rank, ax)
			}
			out = out.block(d, c, n)
		}
	}
	return out
}

// TestEveryPairOfSplits reshards from p to q blocks for all small p and q, along the outermost and along an inner
// dimension, between overlapping sub-meshes.
func TestEveryPairOfSplits(t *testing.T) {
	list := func(lo, n int) string {
		words := make([]string, n)
		for i := range words {
			words[i] = fmt.Sprint((lo + 5*i) % 7) // all numbers differ, because 5 and 7 have no common factor
		}
		return strings.Join(words, " ")
	}
	for p := 1; p <= 6; p++ {
		for q := 1; q <= 6; q++ {
			for _, shape := range [][2]string{{"[60/a, 3]", "[60/b, 3]"}, {"[3, 60/a]", "[3, 60/b]"},
				{"[60/a, 60]", "[60, 60/b]"}} {
				c := testCase{source: fmt.Sprintf("mesh a[%d] = {%s}\nmesh b[%d] = {%s}\nfunc f(%%x: i64%s @a) -> i64%s @b { return %%x }\n",
					p, list(0, p), q, list(2, q), shape[0], shape[1])}
				c.check(t)
			}
		}
	}
}

// TestAxesChangeOrder reshards from each order of three axes to every other order. The axes have different sizes, so an
// axis between two exchanged axes selects other blocks, although its own position is unchanged.
func TestAxesChangeOrder(t *testing.T) {
	orders := append(permutations([]string{"a", "b", "c"}), []string{"a", "b", "c"})
	for _, sizes := range [][3]int{{2, 3, 1}, {3, 2, 2}, {1, 2, 3}, {2, 2, 2}} {
		for _, from := range orders {
			for _, to := range orders {
				c := testCase{ranks: sizes[0] * sizes[1] * sizes[2], source: fmt.Sprintf(
					"mesh a[%d] b[%d] c[%d]\nfunc f(%%x: i64[24/(%s)]) -> i64[24/(%s)] { return %%x }\n",
					sizes[0], sizes[1], sizes[2], strings.Join(from, ","), strings.Join(to, ","))}
				c.check(t)
			}
		}
	}
}
