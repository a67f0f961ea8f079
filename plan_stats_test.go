package hocket_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/ir"
)

const doubling = `dim T = 4
mesh tp[2]
func f(%x: f32[T/tp, 4]) -> f32[T/tp, 4] {
  %y = add %x, %x
  return %y
}
`

// doubled runs the program doubling for T rows and checks the result.
func doubled(t *testing.T, model *hocket.Model, rows int64, first float64) error {
	t.Helper()
	x := make([]float64, rows*4)
	for i := range x {
		x[i] = first + float64(i%97)
	}
	in, err := hocket.FromFloats(ir.F32, x, rows, 4)
	if err != nil {
		t.Fatal(err)
	}
	rep, err := model.Run(t.Context(), hocket.Args{In: map[string]*hocket.Tensor{"x": in}})
	if err != nil {
		return err
	}
	for _, out := range rep.Out {
		for i, v := range out.Floats() {
			if v != 2*x[i] {
				return fmt.Errorf("T=%d: element %d is %v, want %v", rows, i, v, 2*x[i])
			}
		}
	}
	return nil
}

func loadDoubling(t *testing.T, opts hocket.LoadOptions) (*hocket.Machine, *hocket.Model) {
	t.Helper()
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	p, err := hocket.Parse("f.hkt", doubling)
	if err != nil {
		t.Fatal(err)
	}
	model, err := m.Load(p, hocket.Binding{}, opts)
	if err != nil {
		t.Fatal(err)
	}
	return m, model
}

// TestHardCache runs a model for a thousand random T with a hard limit of the cache, and checks that the cache never
// exceeds the limit, that results are right, and that the counters are consistent.
func TestHardCache(t *testing.T) {
	const bound = 256 << 10
	m, model := loadDoubling(t, hocket.LoadOptions{Cache: bound, HardCache: true})
	r := rand.New(rand.NewPCG(1, 2))
	seen := map[int64]bool{}
	const runs = 1000
	for k := range runs {
		rows := 2 * (1 + r.Int64N(400))
		seen[rows] = true
		if err := doubled(t, model, rows, float64(k)); err != nil {
			t.Fatal(err)
		}
		if s := m.Stats().Plans; s.Bytes > bound {
			t.Fatalf("run %d: the plans hold %d bytes, more than %d", k, s.Bytes, int64(bound))
		}
	}
	s := m.Stats().Plans
	t.Logf("%+v", s)
	switch {
	case s.MostBytes > bound || s.MostBytes < bound/2:
		t.Errorf("the plans held up to %d bytes of %d", s.MostBytes, int64(bound))
	case s.Hits+s.Misses != runs:
		t.Errorf("%d hits and %d misses of %d runs", s.Hits, s.Misses, runs)
	case s.Misses-s.Evictions != int64(s.Plans):
		t.Errorf("%d misses and %d evictions leave %d plans", s.Misses, s.Evictions, s.Plans)
	case s.Misses-s.Reloads != int64(len(seen)):
		t.Errorf("%d misses, of which %d reloads, of %d sizes", s.Misses, s.Reloads, len(seen))
	case s.Hits == 0 || s.Reloads == 0:
		t.Errorf("%+v", s)
	}
	if err := doubled(t, model, 100_000, 1); !errors.Is(err, hocket.ErrBudget) {
		t.Errorf("a plan larger than the cache: %v", err)
	}
	if err := doubled(t, model, 8, 1); err != nil {
		t.Error(err)
	}
}

// TestCacheOff checks that no plan stays loaded after its run if the cache is off.
func TestCacheOff(t *testing.T) {
	m, model := loadDoubling(t, hocket.LoadOptions{Cache: -1})
	for range 3 {
		if err := doubled(t, model, 8, 1); err != nil {
			t.Fatal(err)
		}
	}
	if s := m.Stats().Plans; s.Hits != 0 || s.Misses != 3 || s.Evictions != 3 || s.Reloads != 2 || s.Plans != 0 ||
		s.Bytes != 0 {
		t.Errorf("%+v", s)
	}
}
