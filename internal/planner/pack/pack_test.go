package pack

import (
	"cmp"
	"encoding/csv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"hocket.example/hocket/internal/longtest"
)

// proveApart fails the test if two conflicting items share a byte.
func proveApart(t *testing.T, items []Item, off []int64) {
	t.Helper()
	if len(off) != len(items) {
		t.Fatalf("%d offsets of %d items", len(off), len(items))
	}
	apart := func(i, j int32) {
		if a, b := &items[i], &items[j]; off[i] < off[j]+b.Size && off[j] < off[i]+a.Size {
			t.Fatalf("items %d and %d overlap", i, j)
		}
	}
	byBegin := make([]int32, len(items))
	for i := range items {
		byBegin[i] = int32(i)
		if off[i] < 0 {
			t.Fatalf("item %d lies at %d", i, off[i])
		}
		for _, j := range items[i].Also {
			apart(int32(i), j)
		}
	}
	slices.SortFunc(byBegin, func(i, j int32) int { return cmp.Compare(items[i].Begin, items[j].Begin) })
	for k, i := range byBegin {
		for _, j := range byBegin[k+1:] {
			if items[j].Begin >= items[i].End {
				break
			}
			if items[j].Begin < items[j].End {
				apart(i, j)
			}
		}
	}
}

// perfect cuts a rectangle of 2^20 bytes by the given number of steps into n items, which therefore can be packed
// without a gap.
func perfect(seed uint64, n int, steps int32) []Item {
	r := rand.New(rand.NewPCG(seed, 7))
	type rect struct {
		t0, t1 int32
		o0, o1 int64
	}
	rs := []rect{{0, steps, 0, 1 << 20}}
	for len(rs) < n {
		k := r.IntN(len(rs))
		x := rs[k]
		switch {
		case r.IntN(2) == 0 && x.t1-x.t0 > 1:
			c := x.t0 + 1 + r.Int32N(x.t1-x.t0-1)
			rs[k].t1 = c
			rs = append(rs, rect{c, x.t1, x.o0, x.o1})
		case x.o1-x.o0 > 1:
			c := x.o0 + 1 + r.Int64N(x.o1-x.o0-1)
			rs[k].o1 = c
			rs = append(rs, rect{x.t0, x.t1, c, x.o1})
		}
	}
	r.Shuffle(n, func(i, j int) { rs[i], rs[j] = rs[j], rs[i] })
	items := make([]Item, n)
	for i, x := range rs {
		items[i] = Item{Size: x.o1 - x.o0, Begin: x.t0, End: x.t1}
	}
	return items
}

// TestPerfectPackings packs items that can be packed without a gap. With many steps, cuts rarely share a step. With few
// steps, many pairs of items match that are not neighbours in the perfect packing.
func TestPerfectPackings(t *testing.T) {
	for _, c := range []struct {
		n        int
		lifetime int32
		steps    int64
		percent  float64
	}{
		{2, 1 << 20, 1e6, 0}, {30, 1 << 20, 10e6, 0}, {100, 1 << 20, 100e6, 0}, {300, 1 << 20, 100e6, 0},
		{1000, 1 << 20, 100e6, 1}, {2000, 1 << 20, 100e6, 1},
		{100, 200, 100e6, 5}, {300, 200, 100e6, 5}, {1000, 200, 100e6, 10}, {2000, 200, 100e6, 10},
	} {
		for seed := range uint64(2) {
			items := perfect(seed, c.n, c.lifetime)
			off := Search(items, 0, c.steps)
			proveApart(t, items, off)
			over := 100 * float64(Height(items, off)-1<<20) / (1 << 20)
			t.Logf("n=%d of %d steps, seed %d: %.2f %% over", c.n, c.lifetime, seed, over)
			if over > c.percent {
				t.Errorf("n=%d of %d steps, seed %d: %.2f %% over the optimum, want at most %v", c.n, c.lifetime, seed, over,
					c.percent)
			}
		}
	}
}

// TestJoin checks that joining keeps the load and that a packing of the blocks is a packing of the items.
func TestJoin(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 9))
		items := make([]Item, 1+r.IntN(200))
		for i := range items {
			b := r.Int32N(20)
			items[i] = Item{Size: 256 * r.Int64N(6), Begin: b, End: b + r.Int32N(8)}
		}
		j := newJoiner(items, 1e6)
		for range 3 {
			j.stack(mostChance)
			j.chain(mostChance)
			blocks := j.blocks()
			load, _ := Load(items)
			if got, _ := Load(blocks); got != load {
				t.Fatalf("seed %d: a load of %d became %d", seed, load, got)
			}
			off := Search(blocks, 0, 0)
			unfolded := j.unfold(off)
			proveApart(t, items, unfolded)
			if h := Height(items, unfolded); h > Height(blocks, off) {
				t.Errorf("seed %d: blocks end at %d, items at %d", seed, Height(blocks, off), h)
			}
		}
		if len(items) > 100 && len(j.left) > len(items)/4*3 {
			t.Errorf("seed %d: %d blocks left of %d items", seed, len(j.left), len(items))
		}
	}
}

// TestRandomIntervals packs intervals with random begins. The sizes of the intervals are uniformly distributed or are
// powers of two, and many or few of them are live at once. The limit of steps is the one for a CSV file of buffers, or
// 0 if so many items are live at once that the search finds no improvement.
func TestRandomIntervals(t *testing.T) {
	drawn := longtest.Drawn(t) % 2
	for _, c := range []struct {
		n        int
		mean     float64 // life, in steps
		steps    int64
		longOnly bool
	}{
		{2_000, 50, 600e6, false}, {2_000, 500, 600e6, false}, {10_000, 500, 0, false}, {10_000, 50, 600e6, true},
		{50_000, 50, 600e6, true}, {50_000, 500, 0, true},
	} {
		for seed := range uint64(2) {
			if !longtest.On() && (c.longOnly || seed != drawn) {
				continue
			}
			r := rand.New(rand.NewPCG(seed, 11))
			items := make([]Item, c.n)
			for i := range items {
				b, size := r.Int32N(int32(c.n)), 256*(1+r.Int64N(4096))
				if seed%2 == 1 {
					size = 256 << r.IntN(12)
				}
				life := 1 + r.Int32N(int32(2*c.mean)) // lifetimes are uniform, or exponential if their mean is short
				if c.mean < 100 {
					life = 1 + int32(r.ExpFloat64()*c.mean)
				}
				items[i] = Item{Size: size, Begin: b, End: b + life}
			}
			off := Search(items, 0, c.steps)
			proveApart(t, items, off)
			load, _ := Load(items)
			over := 100 * float64(Height(items, off)-load) / float64(load)
			t.Logf("n=%d mean life %v seed %d: %.2f %% over", c.n, c.mean, seed, over)
			if over > 4 {
				t.Errorf("n=%d mean life %v seed %d: %.2f %% over what lives at once, want at most 4", c.n, c.mean,
					seed, over)
			}
		}
	}
}

// TestForwardAndBackward packs the buffers of a forward and a backward pass of 32 layers. The forward pass of each
// layer stores the data that its backward pass needs, and each operation has a temporary buffer.
func TestForwardAndBackward(t *testing.T) {
	const layers, ops = 32, 12
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 5))
		var sizes, temps [ops]int64 // alike in each layer
		for k := range ops {
			sizes[k], temps[k] = 256*(1+r.Int64N(1<<14)), 256*r.Int64N(1<<12)
		}
		var items []Item
		for l := range int32(layers) {
			for k := range int32(ops) {
				forward, backward := l*ops+k, 2*layers*ops-1-(l*ops+k)
				life := Item{Size: sizes[k], Begin: forward, End: forward + 2}
				if k%3 != 0 { // kept
					life.End = backward + 1
				}
				items = append(items, life, Item{Size: temps[k], Begin: forward, End: forward + 1},
					Item{Size: sizes[k], Begin: backward, End: backward + 2},
					Item{Size: temps[k], Begin: backward, End: backward + 1})
			}
		}
		off := Search(items, 0, 8<<20)
		proveApart(t, items, off)
		load, _ := Load(items)
		if h := Height(items, off); float64(h) > 1.01*float64(load) {
			t.Errorf("seed %d: %d bytes of %d buffers, %.2f %% over what lives at once", seed, h, len(items),
				100*float64(h-load)/float64(load))
		}
	}
}

// TestMinimalloc packs the instances of google/minimalloc. Each instance fits into 1,048,576 bytes, and into its load.
func TestMinimalloc(t *testing.T) {
	dir := filepath.Join("..", "..", "..", "..", "shared", "corpus", "minimalloc")
	if _, err := os.Stat(dir); err != nil {
		t.Skip("no instances here: ", err)
	}
	for _, name := range []string{"A", "B", "C", "D", "E", "F"} {
		f, err := os.Open(filepath.Join(dir, name+".1048576.csv"))
		if err != nil {
			t.Fatal(err)
		}
		rows, err := csv.NewReader(f).ReadAll()
		if f.Close(); err != nil {
			t.Fatal(err)
		}
		var items []Item
		for _, r := range rows[1:] {
			var v [4]int64
			for k := range v {
				if v[k], err = strconv.ParseInt(r[k], 10, 64); err != nil {
					t.Fatal(err)
				}
			}
			items = append(items, Item{Size: v[3], Begin: int32(v[1]), End: int32(v[2])})
		}
		off := Search(items, 0, 300e6)
		proveApart(t, items, off)
		h := Height(items, off)
		t.Logf("%s: %d bytes, %.2f %% over", name, h, 100*float64(h-1<<20)/(1<<20))
		if load, _ := Load(items); h > load {
			t.Errorf("%s: %d bytes, and %d live at once", name, h, load)
		}
	}
}

// TestRandomItems checks that equal items are packed equally, and that conflicts in Also are respected in the same way
// as overlapping lifetimes.
func TestRandomItems(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 3))
		n := 1 + r.IntN(60)
		items := make([]Item, n)
		for i := range items {
			b := r.Int32N(40)
			items[i] = Item{Size: 256 * r.Int64N(20), Begin: b, End: b + r.Int32N(12)}
		}
		for range r.IntN(2 * n) {
			i, j := r.IntN(n), r.IntN(n)
			if i != j && !slices.Contains(items[i].Also, int32(j)) {
				items[i].Also = append(items[i].Also, int32(j))
				items[j].Also = append(items[j].Also, int32(i))
			}
		}
		fit := Search(items, 0, 0)
		proveApart(t, items, fit)
		off := Search(items, 0, 1e5)
		proveApart(t, items, off)
		if Height(items, off) > Height(items, fit) {
			t.Errorf("seed %d: searching made it worse", seed)
		}
		if !slices.Equal(off, Search(items, 0, 1e5)) {
			t.Errorf("seed %d: packed otherwise the second time", seed)
		}
		if load, _ := Load(items); Height(items, off) < load {
			t.Errorf("seed %d: %d bytes, and %d live at once", seed, Height(items, off), load)
		}
	}
}
