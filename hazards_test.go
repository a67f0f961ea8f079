package hocket_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/ir"
)

// The hazards of nvFuser's Host IR that docs/memory.md lists, each as a test that would fail or hang here if hocket
// had it.

// hazard is a program loaded on the CPU machine.
type hazard struct {
	t     *testing.T
	m     *hocket.Machine
	model *hocket.Model
}

func loadHazard(t *testing.T, src string, opts hocket.LoadOptions) *hazard {
	t.Helper()
	p, err := hocket.Parse("hazard.hkt", src)
	if err != nil {
		t.Fatal(err)
	}
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	model, err := m.Load(p, hocket.Binding{}, opts)
	if err != nil {
		t.Fatal(err)
	}
	return &hazard{t, m, model}
}

// run returns the results for inputs of one dimension each, by the name of the parameter.
func (h *hazard) run(in map[string][]float64) map[string][]float64 {
	h.t.Helper()
	args := hocket.Args{In: map[string]*hocket.Tensor{}}
	for name, vals := range in {
		x, err := hocket.FromFloats(ir.F32, vals, int64(len(vals)))
		if err != nil {
			h.t.Fatal(err)
		}
		args.In[name] = x
	}
	rep, err := h.model.Run(h.t.Context(), args)
	if err != nil {
		h.t.Fatal(err)
	}
	out := map[string][]float64{}
	for name, x := range rep.Out {
		out[name] = x.Floats()
	}
	return out
}

// one returns the only result.
func (h *hazard) one(a ...float64) []float64 {
	h.t.Helper()
	for _, v := range h.run(map[string][]float64{"a": a}) {
		return v
	}
	return nil
}

func wantFloats(t *testing.T, got []float64, want ...float64) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// checked returns the verdict of Check and its first error.
func checked(t *testing.T, src string) (hocket.VerdictKind, string) {
	t.Helper()
	p, err := hocket.Parse("hazard.hkt", src)
	if err != nil {
		t.Fatal(err)
	}
	v, err := hocket.Check(p, hocket.Binding{})
	if err != nil {
		t.Fatal(err)
	}
	if len(v.Diagnostics) == 0 {
		return v.Kind, ""
	}
	return v.Kind, v.Diagnostics[0].Message
}

const h7 = `mesh tp[2]
func f(%a: f32[8/tp]) -> f32[8/tp] {
  %al = local %a
  %c = counter
  %s = alloc f32[4] symmetric
  barrier over=tp
  put %al into %s at tp[1 - rank(tp)]
  signal %c at tp[1 - rank(tp)]
  wait %c >= 1
  %p = alloc f32[8/tp]
  copy %s into %p
  return %p
}
`

// TestHazardH1 checks that ranks can put into each other's memory even if the plan is unloaded and reloaded for every
// run.
func TestHazardH1(t *testing.T) {
	h := loadHazard(t, doubling, hocket.LoadOptions{Cache: -1})
	for k, rows := range []int64{8, 16, 8, 4, 8} {
		if err := doubled(t, h.model, rows, float64(k)); err != nil {
			t.Fatal(err)
		}
	}
	g := loadHazard(t, h7, hocket.LoadOptions{Cache: -1})
	for k := range 5 {
		x := float64(10 * k)
		wantFloats(t, g.one(x, x+1, x+2, x+3, x+4, x+5, x+6, x+7), x+4, x+5, x+6, x+7, x, x+1, x+2, x+3)
	}
	if s := g.m.Stats().Plans; s.Misses != 5 || s.Evictions != 5 {
		t.Errorf("the plan was not loaded anew: %+v", s)
	}
}

// TestHazardH2 checks that two transfers between the same ranks in one group both arrive at their own destinations.
func TestHazardH2(t *testing.T) {
	h := loadHazard(t, `mesh tp[2]
func f(%a: f32[8/tp], %b: f32[8/tp]) -> (f32[8/tp], f32[8/tp]) {
  %al = local %a
  %bl = local %b
  %p = alloc f32[8/tp]
  %q = alloc f32[8/tp]
  group {
    send %al to tp[1 - rank(tp)]
    send %bl to tp[1 - rank(tp)]
    recv %p from tp[1 - rank(tp)]
    recv %q from tp[1 - rank(tp)]
  }
  return %p, %q
}
`, hocket.LoadOptions{})
	for range 3 {
		out := h.run(map[string][]float64{"a": {1, 2, 3, 4, 5, 6, 7, 8}, "b": {11, 12, 13, 14, 15, 16, 17, 18}})
		wantFloats(t, out["p"], 5, 6, 7, 8, 1, 2, 3, 4)
		wantFloats(t, out["q"], 15, 16, 17, 18, 11, 12, 13, 14)
	}
}

// TestHazardH3 checks that ranks 2 and 3 do not take part in an exchange between ranks 0 and 1.
func TestHazardH3(t *testing.T) {
	const src = `mesh tp[4]
func f(%a: f32[16/tp]) -> f32[16/tp] {
  %al = local %a
  %p = alloc f32[16/tp]
  copy %al into %p
  if rank(tp) < 2 {
    group {
      send %al to tp[1 - rank(tp)]
      recv %p from tp[1 - rank(tp)]
    }
  }
  return %p
}
`
	h := loadHazard(t, src, hocket.LoadOptions{})
	wantFloats(t, h.one(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 4, 5, 6, 7, 0, 1, 2, 3, 8, 9, 10,
		11, 12, 13, 14, 15)
	p, err := hocket.Parse("hazard.hkt", src)
	if err != nil {
		t.Fatal(err)
	}
	m, err := p.PlanMemory(hocket.LowerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range m.Ops(3) {
		if !strings.HasPrefix(op, "copy") && !strings.HasPrefix(op, "return") && !strings.HasPrefix(op, "%a") {
			t.Errorf("rank 3 takes part in %q", op)
		}
	}
}

// TestHazardH4 checks that closing a model frees all resources of its plans, however many there were.
func TestHazardH4(t *testing.T) {
	m, model := loadDoubling(t, hocket.LoadOptions{Cache: 64 << 10, HardCache: true})
	for k := range int64(60) {
		if err := doubled(t, model, 2+2*(k*37%100), float64(k)); err != nil {
			t.Fatal(err)
		}
	}
	if s := m.Stats().Plans; s.MostBytes > 64<<10 || s.Bytes == 0 {
		t.Errorf("%+v", s)
	}
	if err := model.Close(); err != nil {
		t.Fatal(err)
	}
	if s := m.Stats().Plans; s.Bytes != 0 || s.Plans != 0 {
		t.Errorf("after its model was closed: %+v", s)
	}
}

// TestHazardH5 checks that tensors with equal values are not confused with each other, and that different values do not
// cause another load of the plan.
func TestHazardH5(t *testing.T) {
	h := loadHazard(t, h7, hocket.LoadOptions{})
	wantFloats(t, h.one(1, 1, 1, 1, 1, 1, 1, 1), 1, 1, 1, 1, 1, 1, 1, 1)
	wantFloats(t, h.one(1, 1, 1, 1, 1, 1, 1, 1), 1, 1, 1, 1, 1, 1, 1, 1)
	wantFloats(t, h.one(1, 1, 1, 1, 2, 2, 2, 2), 2, 2, 2, 2, 1, 1, 1, 1)
	if s := h.m.Stats().Plans; s.Misses != 1 || s.Hits != 2 {
		t.Errorf("%+v", s)
	}
}

// TestHazardH6 checks that signals are counted, so that none is lost, and that a wait for more signals than there are
// is refused.
func TestHazardH6(t *testing.T) {
	const src = `mesh tp[2]
func f(%a: f32[4]) -> f32[4] {
  %c = counter
  signal %c at tp[1 - rank(tp)]
  wait %c >= 2
  %p = alloc f32[4]
  copy %a into %p
  return %p
}
`
	kind, message := checked(t, src)
	if kind != hocket.Refuted || !strings.Contains(message, ">= 2, but the counter is signalled only 1 times") {
		t.Errorf("%v: %s", kind, message)
	}
	signal := "  signal %c at tp[1 - rank(tp)]\n"
	h := loadHazard(t, strings.Replace(src, signal, signal+signal, 1), hocket.LoadOptions{})
	for range 20 {
		wantFloats(t, h.one(1, 2, 3, 4), 1, 2, 3, 4)
	}
}

// TestHazardH7 checks that Check refutes a program in which a peer's put of the next run can overwrite a value that
// this run still reads, unless a wait or barrier orders the two.
func TestHazardH7(t *testing.T) {
	if kind, message := checked(t, h7); kind != hocket.Proved {
		t.Errorf("%v: %s", kind, message)
	}
	kind, message := checked(t, strings.Replace(h7, "  barrier over=tp\n", "", 1))
	if kind != hocket.Refuted || !strings.Contains(message, "next run") {
		t.Errorf("%v: %s", kind, message)
	}
}

// TestHazardH8 checks that a machine can be closed while its ranks use each other's memory.
func TestHazardH8(t *testing.T) {
	for range 10 {
		h := loadHazard(t, h7, hocket.LoadOptions{})
		x, err := hocket.FromFloats(ir.F32, make([]float64, 8), 8)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			for {
				if _, err := h.model.Run(t.Context(), hocket.Args{In: map[string]*hocket.Tensor{"a": x}}); err != nil {
					done <- err
					return
				}
			}
		}()
		if err := h.m.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, hocket.ErrClosed) {
			t.Errorf("the run that was under way: %v", err)
		}
	}
}

// TestHazardH9 checks that a put into a part of a buffer writes only that part.
func TestHazardH9(t *testing.T) {
	h := loadHazard(t, `mesh tp[2]
func f(%a: f32[16/tp]) -> f32[16/tp] {
  %al = local %a
  %c = counter
  %s = alloc f32[16/tp] symmetric
  barrier over=tp
  copy %al into %s
  barrier over=tp
  %from = slice %al, axis=0, 2..4
  %to = slice %s, axis=0, 5..7
  put %from into %to at tp[1 - rank(tp)]
  signal %c at tp[1 - rank(tp)]
  wait %c >= 1
  return %s
}
`, hocket.LoadOptions{})
	wantFloats(t, h.one(0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15, 16, 17), 0, 1, 2, 3, 4, 12, 13, 7, 10,
		11, 12, 13, 14, 2, 3, 17)
}

// TestHazardH10 checks that all ranks execute the same rooted collective, whatever tensors a run has.
func TestHazardH10(t *testing.T) {
	h := loadHazard(t, `mesh tp[2]
func f(%a: f32[8/tp]) -> f32[8/tp] {
  %al = local %a
  %p = alloc f32[8/tp]
  copy %al into %p
  %r = alloc f32[4]
  reduce %al into %r, over=tp, op=sum, root=1
  if rank(tp) == 1 { copy %r into %p }
  return %p
}
`, hocket.LoadOptions{})
	for k := range 4 {
		x := float64(k)
		wantFloats(t, h.one(x, x, x, x, 1, 2, 3, 4), x, x, x, x, x+1, x+2, x+3, x+4)
	}
	if s := h.m.Stats().Plans; s.Misses != 1 {
		t.Errorf("%+v", s)
	}
}

// TestHazardH11 checks that a rank can wait only for its own counter.
func TestHazardH11(t *testing.T) {
	_, err := hocket.Parse("hazard.hkt", `mesh tp[2]
func f(%a: f32[4]) -> f32[4] {
  %c = counter
  signal %c at tp[1 - rank(tp)]
  wait %c >= 1 at tp[0]
  %p = alloc f32[4]
  copy %a into %p
  return %p
}
`)
	if want := `5:16: expected end of line, found "at"`; err == nil || !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("waiting for a peer's counter: %v", err)
	}
}
