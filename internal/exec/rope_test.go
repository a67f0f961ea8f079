package exec

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// ropesRig builds plans of ropes and index_copies of three tokens with two heads of four elements.
type ropesRig struct {
	*builder
	at, later plan.Ref   // positions 0, 1, 2 and 1, 2, 3
	x         []plan.Ref // values of the tokens
	caches    []plan.Ref // of five rows
}

func newRopesRig() *ropesRig {
	r := &ropesRig{builder: newBuilder(1, ir.F32)}
	for i, at := range []*plan.Ref{&r.at, &r.later} {
		*at = r.ref(0, r.buffer(fmt.Sprintf("%%at%d", i), plan.RoleValue, 3), 3)
		at.DType = ir.I32
		r.compute(0, "main", ir.OpIota, *at)
		r.p.Cmds[len(r.p.Cmds)-1].Attr = ir.Attrs{Numbers: []ir.Number{ir.Whole(int64(i))}, Axes: []int{0}}
	}
	filled := func(name string, rows int64) plan.Ref {
		in := r.ref(0, r.input(name, false, rows, 2, 4), rows, 2, 4)
		v := r.ref(0, r.buffer("%"+name+"v", plan.RoleValue, rows, 2, 4), rows, 2, 4)
		r.compute(0, "main", ir.OpNeg, v, in)
		return v
	}
	for i := range 3 {
		r.x, r.caches = append(r.x, filled(fmt.Sprint("x", i), 3)), append(r.caches, filled(fmt.Sprint("c", i), 5))
	}
	return r
}

// value returns a new buffer for the result of a rope.
func (r *ropesRig) value() plan.Ref {
	return r.ref(0, r.buffer(fmt.Sprintf("%%t%d", len(r.p.Buffers)), plan.RoleValue, 3, 2, 4), 3, 2, 4)
}

func (r *ropesRig) rope(out, x, at plan.Ref, theta float64) {
	r.compute(0, "main", ir.OpRope, out, x, at)
	r.p.Cmds[len(r.p.Cmds)-1].Attr.Numbers = ir.Rope{Theta: theta}.Numbers()
}

// two adds a rope by the first positions and base 10000, and one of another tensor by the given ones.
func (r *ropesRig) two(at plan.Ref, theta float64) []plan.Ref {
	q, k := r.value(), r.value()
	r.rope(q, r.x[0], r.at, 1e4)
	r.rope(k, r.x[1], at, theta)
	return []plan.Ref{q, k}
}

func (r *ropesRig) keep(cache, x, at plan.Ref) {
	r.compute(0, "main", ir.OpIndexCopy, cache, x, at, cache)
	r.p.Cmds[len(r.p.Cmds)-1].Attr.Axes = []int{0}
}

// done makes results of values and caches.
func (r *ropesRig) done(values ...plan.Ref) *plan.Plan {
	for i, v := range append(values, r.caches...) {
		r.compute(0, "main", ir.OpNeg, r.ref(0, r.result(fmt.Sprint("y", i), false, v.Shape...), v.Shape...), v)
	}
	r.after(0, "main", "third")
	r.output()
	return r.p
}

// ropesPlan is a rank's ropes and index_copies, mixed with other commands, whose buffers share bytes with buffers that
// are no longer read.
func ropesPlan(rng *rand.Rand) *plan.Plan {
	r := newRopesRig()
	pick := func() plan.Ref { return r.x[len(r.x)-1-rng.IntN(3)] }
	for range 2 + rng.IntN(8) {
		at, theta, x := r.at, 1e4, pick()
		if rng.IntN(8) == 0 {
			at = r.later
		}
		if rng.IntN(8) == 0 {
			theta = 500
		}
		switch n := rng.IntN(16); {
		case n == 0:
			r.after(0, "third", "main")
		case n == 1:
			out := r.value()
			r.compute(0, "main", ir.OpNeg, out, x)
			r.x = append(r.x, out)
		case n < 10:
			out := r.value()
			if rng.IntN(6) == 0 {
				out = pick() // this memory may be the operand of an earlier command
			}
			if !out.Same(x) {
				r.rope(out, x, at, theta)
				r.x = append(r.x, out)
			}
		default:
			r.keep(r.caches[rng.IntN(3)], x, at)
			if rng.IntN(2) == 0 {
				r.x = append(r.x, r.x[0]) // x is read less often
			}
		}
	}
	return r.done(pick())
}

// TestRopesSameBits runs random plans with and without common launches of ropes and index_copies, on a machine that
// gives wrong results if these depend on each other.
func TestRopesSameBits(t *testing.T) {
	found := map[string]int{}
	for seed := range uint64(400) {
		taking := sameBits(t, seed, ropesPlan(rand.New(rand.NewPCG(seed, 9))))
		if n := *taking.surprise; n > 0 {
			t.Errorf("seed %d: %d kernels were not precompiled", seed, n)
		}
		for what, n := range taking.ropes {
			found[what] += n
		}
	}
	for _, what := range []string{"rope+rope", "rope+copy", "copy+copy", "both", "both+rope", "rope+rope+copy"} {
		if found[what] < 5 {
			t.Errorf("only %d groups of %s in all plans: %v", found[what], what, found)
		}
	}
}

// TestRopesFound checks which ropes and index_copies are combined into one launch.
func TestRopesFound(t *testing.T) {
	for name, c := range map[string]struct {
		emit func(r *ropesRig) []plan.Ref // returns the values that are read later
		want string
	}{
		"queries, keys and values": {func(r *ropesRig) []plan.Ref {
			q, k := r.value(), r.value()
			r.rope(q, r.x[0], r.at, 1e4)
			r.rope(k, r.x[1], r.at, 1e4)
			r.keep(r.caches[0], k, r.at)
			r.keep(r.caches[1], r.x[2], r.at)
			return []plan.Ref{q}
		}, "map[rope+both+copy:1]"},
		"keys that are read again": {func(r *ropesRig) []plan.Ref {
			q, k := r.value(), r.value()
			r.rope(q, r.x[0], r.at, 1e4)
			r.rope(k, r.x[1], r.at, 1e4)
			r.keep(r.caches[0], k, r.at)
			r.keep(r.caches[1], r.x[2], r.at)
			return []plan.Ref{q, k}
		}, "map[copy+copy:1 rope+rope:1]"},
		"keys that are stored twice": {func(r *ropesRig) []plan.Ref {
			k := r.value()
			r.rope(k, r.x[1], r.at, 1e4)
			r.keep(r.caches[0], k, r.at)
			r.keep(r.caches[1], k, r.at)
			return nil
		}, "map[copy+copy:1]"},
		"keys at other rows than their angles": {func(r *ropesRig) []plan.Ref {
			k := r.value()
			r.rope(k, r.x[1], r.at, 1e4)
			r.keep(r.caches[0], k, r.later)
			return nil
		}, "map[both:1]"},
		"one cache": {func(r *ropesRig) []plan.Ref {
			r.keep(r.caches[0], r.x[0], r.at)
			r.keep(r.caches[0], r.x[1], r.at)
			return nil
		}, "map[]"},
		"other rows": {func(r *ropesRig) []plan.Ref {
			r.keep(r.caches[0], r.x[0], r.at)
			r.keep(r.caches[1], r.x[1], r.later)
			return nil
		}, "map[]"},
		"caches of other lengths": {func(r *ropesRig) []plan.Ref {
			r.keep(r.caches[0], r.x[0], r.at)
			r.keep(rows(r.caches[1], 0, 4), r.x[1], r.at)
			return nil
		}, "map[]"},
		"other angles":    {func(r *ropesRig) []plan.Ref { return r.two(r.at, 500) }, "map[]"},
		"other positions": {func(r *ropesRig) []plan.Ref { return r.two(r.later, 1e4) }, "map[]"},
		"other tokens": {func(r *ropesRig) []plan.Ref {
			q, k := r.value(), r.value()
			r.rope(q, r.x[0], r.at, 1e4)
			r.rope(rows(k, 0, 2), rows(r.x[1], 0, 2), rows(r.at, 0, 2), 1e4)
			return []plan.Ref{q}
		}, "map[]"},
		"one after the other": {func(r *ropesRig) []plan.Ref {
			q, k := r.value(), r.value()
			r.rope(q, r.x[0], r.at, 1e4)
			r.rope(k, q, r.at, 1e4)
			return []plan.Ref{k}
		}, "map[]"},
		"into an operand": {func(r *ropesRig) []plan.Ref {
			q := r.value()
			r.rope(q, r.x[0], r.at, 1e4)
			r.rope(r.x[0], r.x[1], r.at, 1e4)
			return []plan.Ref{q}
		}, "map[]"},
		"into memory that an operand had": {func(r *ropesRig) []plan.Ref {
			q, k := r.value(), r.value()
			r.rope(q, r.x[0], r.at, 1e4)
			r.p.Buffers[k.Buf].Offset = r.p.Buffers[r.x[0].Buf].Offset
			r.rope(k, r.x[1], r.at, 1e4)
			return []plan.Ref{q, k}
		}, "map[]"},
		"keys in memory that the queries had, which are not stored": {func(r *ropesRig) []plan.Ref {
			q, k := r.value(), r.value()
			r.rope(q, r.x[0], r.at, 1e4)
			r.p.Buffers[k.Buf].Offset = r.p.Buffers[r.x[0].Buf].Offset
			r.rope(k, r.x[1], r.at, 1e4)
			r.keep(r.caches[0], k, r.at)
			return []plan.Ref{q}
		}, "map[rope+both:1]"},
		"keys in memory that the queries had, and into one cache": {func(r *ropesRig) []plan.Ref {
			q, k := r.value(), r.value()
			r.rope(q, r.x[0], r.at, 1e4)
			r.p.Buffers[k.Buf].Offset = r.p.Buffers[r.x[0].Buf].Offset
			r.rope(k, r.x[1], r.at, 1e4)
			r.keep(r.caches[0], k, r.at)
			r.keep(r.caches[0], r.x[2], r.at)
			return []plan.Ref{q}
		}, "map[rope+both:1]"},
		"something between": {func(r *ropesRig) []plan.Ref {
			q, k := r.value(), r.value()
			r.rope(q, r.x[0], r.at, 1e4)
			r.after(0, "third", "main")
			r.rope(k, r.x[1], r.at, 1e4)
			return []plan.Ref{q, k}
		}, "map[]"},
		"five": {func(r *ropesRig) (all []plan.Ref) {
			for i := range 5 {
				all = append(all, r.value())
				r.rope(all[i], r.x[i%3], r.at, 1e4)
			}
			return all
		}, "map[rope+rope+rope+rope:1]"},
	} {
		r := newRopesRig()
		values := c.emit(r)
		if m := sameBits(t, 1, r.done(values...)); fmt.Sprint(m.ropes) != c.want {
			t.Errorf("%s: %v, want %s", name, m.ropes, c.want)
		}
	}
}

// TestRopesOfManyTokens checks that index_copies of more than 256 positions are not part of a group.
func TestRopesOfManyTokens(t *testing.T) {
	const text = `dim T = %d
mesh tp[1]
func f(%%q: f32[T, 2, 4], %%k: f32[T, 1, 4], %%v: f32[T, 1, 4],
    %%keys: inout f32[300, 1, 4], %%values: inout f32[300, 1, 4]) -> f32[T, 2, 4] {
  %%at: i32[T] = iota
  %%qr = rope %%q, %%at, theta=10000
  %%kr = rope %%k, %%at, theta=10000
  index_copy %%kr, %%at into %%keys, axis=0
  index_copy %%v, %%at into %%values, axis=0
  return %%qr
}
`
	for tokens, want := range map[int]string{256: "map[rope+both+copy:1]", 257: "map[rope+rope:1]"} {
		if m := sameBits(t, 3, planOf(t, fmt.Sprintf(text, tokens))); fmt.Sprint(m.ropes) != want {
			t.Errorf("%d tokens: %v, want %s", tokens, m.ropes, want)
		}
	}
}
