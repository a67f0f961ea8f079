package cuda

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/ir"
)

// stepsProgram is the text of the program in python/tests/steps.py.
const stepsProgram = `dim T = 1
dim H = 8
dim K = 32
mesh tp[2]
func step(%x: f32[T, H], %at: i32[T], %w: f32[H/tp, H], %one: i32[1], %cache: inout f32[K, H/tp], %n: inout i32[1]) -> (f32[T, H], f32[H/tp]) {
  %y = linear %x, %w
  index_copy %y, %at into %cache
  %m = add %n, %one
  copy %m into %n
  %g = all_gather %y, axis=1, over=tp
  %s = sum %cache, axis=0
  return %g, %s
}
`

// steps holds the tensors of eight calls of stepsProgram.
type steps struct{ w, x, y, cache []float32 }

func newSteps() *steps {
	s := &steps{y: make([]float32, 32), cache: make([]float32, 256)}
	for i := range 64 {
		s.w = append(s.w, float32(i%5-2))
	}
	for i := range 32 {
		s.x = append(s.x, float32(i%3-1))
	}
	return s
}

// step computes the expected results of call i.
func (s *steps) step(i int) {
	for t := range 4 {
		for o := range 8 {
			s.y[8*t+o] = 0
			for k := range 8 {
				s.y[8*t+o] += s.x[8*t+k] * s.w[8*o+k]
			}
		}
	}
	copy(s.cache[32*i:], s.y)
}

// next changes the argument x for the next call.
func (s *steps) next() {
	for k := range s.x {
		s.x[k] = float32((int(s.x[k]+s.y[k])%7+7)%7 - 3)
	}
}

// columns returns the four of eight columns that belong to a rank.
func columns(of []float32, rank int) (own []float32) {
	for row := range len(of) / 8 {
		own = append(own, of[8*row+4*rank:][:4]...)
	}
	return own
}

// sums returns the sum of each of a rank's columns.
func (s *steps) sums(rank int) []float32 {
	out := make([]float32, 4)
	for i, v := range columns(s.cache, rank) {
		out[i%4] += v
	}
	return out
}

// store writes elements at an address of the fake GPU, and load reads them.
func store[T any](at uintptr, vals []T) {
	for i, v := range vals {
		cabi.Store(at+uintptr(4*i), v)
	}
}

func load[T any](at uintptr, n int) (vals []T) {
	for i := range n {
		vals = append(vals, cabi.Load[T](at+uintptr(4*i)))
	}
	return vals
}

// TestPeersSteps is the test python/tests/steps.py in Go. A weight and state are bound; they are blocks of the rank,
// used in place. Arguments, one of them inout, have dims of the run. Executions are enqueued on streams, or receive
// blocks in host memory.
func TestPeersSteps(t *testing.T) {
	for _, hosts := range []bool{false, true} {
		errs := peerCalls(t, alike(2, peerJob{GPUs: 2, PerGPU: 1}), stepsProgram, hocket.LoadOptions{},
			func(c *peerCaller) error { return c.steps(hosts) })
		for rank, err := range errs {
			if err != nil {
				t.Errorf("host memory %v, process %d: %v", hosts, rank, err)
			}
		}
	}
}

func (c *peerCaller) steps(hosts bool) error {
	r, want, dims := c.rank, newSteps(), map[string]int64{"T": 4}
	bind := func(name string, words int) (uintptr, error) {
		at := c.at(words)
		d, err := c.model.DeviceTensorAt(c.Context(), name, dims, at)
		if err != nil {
			return 0, err
		}
		return at[r], c.model.BindDevice(name, d)
	}
	w, err := bind("w", 32)
	if err != nil {
		return err
	}
	one, err := bind("one", 1)
	if err != nil {
		return err
	}
	cache, err := bind("cache", 128)
	if err != nil {
		return err
	}
	store(w, want.w[32*r:][:32])
	store(one, []int32{1})
	store(cache, make([]float32, 128))
	x, at, n, g, s := c.at(32), c.at(4), c.at(1), c.at(32), c.at(4)
	store(n[r], []int32{0})
	for i := range 8 {
		positions := []int32{int32(4 * i), int32(4*i + 1), int32(4*i + 2), int32(4*i + 3)}
		store(x[r], want.x)
		store(at[r], positions)
		if hosts && i == 3 { // an invalid position
			bad := slices.Clone(positions)
			bad[2] += 99
			var e *hocket.InputError
			err := c.runOfHost(want, bad, n[r], g[r], s[r], dims)
			if !errors.As(err, &e) || fmt.Sprint(e.Param, e.Index, e.Value, e.Begun) != "at[2] 113 false" || e.Rank != r {
				return fmt.Errorf("with an invalid position: %v", err)
			}
		}
		want.step(i)
		if hosts {
			err = c.runOfHost(want, positions, n[r], g[r], s[r], dims)
		} else {
			err = c.model.Enqueue(c.Context(), hocket.EnqueueArgs{Streams: c.streams, Dims: dims,
				In:  map[string]map[int]uintptr{"x": x, "at": at, "n": n},
				Out: map[string]map[int]uintptr{"g": g, "s": s, "n": n}})
		}
		if err == nil {
			err = c.model.Sync(c.Context())
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		gotG, gotS, gotN, gotCache := load[float32](g[r], 32), load[float32](s[r], 4), load[int32](n[r], 1),
			load[float32](cache, 128)
		if !slices.Equal(gotG, want.y) || !slices.Equal(gotS, want.sums(r)) || gotN[0] != int32(i+1) ||
			!slices.Equal(gotCache, columns(want.cache, r)) {
			return fmt.Errorf("step %d: %v, %v, %v, %v", i, gotG, gotS, gotN, gotCache)
		}
		want.next()
	}
	return nil
}

// runOfHost runs the program on blocks in host memory, and writes the results to the fake GPU.
func (c *peerCaller) runOfHost(want *steps, at []int32, n, g, s uintptr, dims map[string]int64) error {
	blockOf := func(t *hocket.Tensor, err error) map[int]*hocket.Tensor { return map[int]*hocket.Tensor{c.rank: t} }
	floats := func(vals []float32) (out []float64) {
		for _, v := range vals {
			out = append(out, float64(v))
		}
		return out
	}
	positions := []float64{float64(at[0]), float64(at[1]), float64(at[2]), float64(at[3])}
	count := []float64{float64(cabi.Load[int32](n))}
	r, err := c.model.Run(c.Context(), hocket.Args{Dims: dims, InLocal: map[string]map[int]*hocket.Tensor{
		"x":  blockOf(hocket.FromFloats(ir.F32, floats(want.x), 4, 8)),
		"at": blockOf(hocket.FromFloats(ir.I32, positions, 4)), "n": blockOf(hocket.FromFloats(ir.I32, count, 1))}})
	if err != nil {
		return err
	}
	for name, to := range map[string]uintptr{"g": g, "s": s} {
		for i, v := range r.OutLocal[name][c.rank].Floats() {
			cabi.Store(to+uintptr(4*i), float32(v))
		}
	}
	cabi.Store(n, int32(r.OutLocal["n"][c.rank].Floats()[0]))
	return nil
}
