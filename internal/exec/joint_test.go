package exec

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// linearsPlan is a rank's linears of few values, mixed with other commands, whose buffers share bytes with buffers that
// are no longer read.
func linearsPlan(rng *rand.Rand) *plan.Plan {
	b := newBuilder(1, ir.BF16)
	x, w, v := b.input("x", false, 4, 6), b.input("w", false, 6, 6), b.input("v", false, 6, 6)
	weights := []plan.Ref{b.ref(0, w, 6, 6), b.ref(0, v, 6, 6)}
	all := []plan.Ref{b.ref(0, x, 4, 6)}
	fresh := func() plan.Ref {
		return b.ref(0, b.buffer(fmt.Sprintf("%%t%d", len(b.p.Cmds)), plan.RoleValue, 4, 6), 4, 6)
	}
	pick := func() plan.Ref { return all[len(all)-1-rng.IntN(min(3, len(all)))] }
	for range 2 + rng.IntN(4) {
		if rng.IntN(4) == 0 {
			b.after(0, "third", "main")
		}
		in, last := pick(), len(all)
		for range 1 + rng.IntN(4) {
			out := fresh()
			if rng.IntN(6) == 0 {
				out = pick() // this memory may be the linear's operand
			}
			if rng.IntN(8) == 0 {
				in = pick()
			}
			if !out.Same(in) {
				b.compute(0, "main", ir.OpLinear, out, in, weights[rng.IntN(2)])
				all = append(all, out)
			}
		}
		if len(all) > last+1 && rng.IntN(2) == 0 {
			act, out := fresh(), fresh()
			if rng.IntN(3) == 0 {
				out = pick()
			}
			b.compute(0, "main", ir.OpSilu, act, all[len(all)-2])
			b.compute(0, "main", ir.OpMul, out, act, all[len(all)-1])
			if rng.IntN(3) > 0 {
				all = all[:last]
			}
			all = append(all, out)
		}
	}
	final := b.result("out", false, 4, 6)
	b.compute(0, "main", ir.OpNeg, b.ref(0, final, 4, 6), all[len(all)-1])
	b.after(0, "main", "third")
	b.output()
	return b.p
}

// TestJointsSameBits runs random plans with and without joint launches of linears, on a machine that gives wrong
// results if the linears depend on each other.
func TestJointsSameBits(t *testing.T) {
	joints := map[string]int{}
	for seed := range uint64(300) {
		p := linearsPlan(rand.New(rand.NewPCG(seed, 7)))
		taking := sameBits(t, seed, p)
		for what, n := range taking.joints {
			joints[what] += n
		}
	}
	for _, what := range []string{"2", "3", "gated"} {
		if joints[what] < 20 {
			t.Errorf("only %d groups of %s in all plans: %v", joints[what], what, joints)
		}
	}
}

// TestJointsFound checks which linears are combined into one launch.
func TestJointsFound(t *testing.T) {
	type rig struct {
		*builder
		x, y, w, v plan.Ref
		out        plan.Ref
	}
	value := func(r rig, name string) plan.Ref { return r.ref(0, r.buffer(name, plan.RoleValue, 4, 6), 4, 6) }
	linear := func(r rig, out, x, w plan.Ref) { r.compute(0, "main", ir.OpLinear, out, x, w) }
	gate := func(r rig) (a, b, s plan.Ref) { // two linears, and a buffer for the result of a silu
		a, b, s = value(r, "a"), value(r, "b"), value(r, "s")
		linear(r, a, r.x, r.w)
		linear(r, b, r.x, r.v)
		return a, b, s
	}
	for name, c := range map[string]struct {
		emit func(r rig)
		want string
	}{
		"two": {func(r rig) {
			a, b := value(r, "a"), value(r, "b")
			linear(r, a, r.x, r.w)
			linear(r, b, r.x, r.v)
			r.compute(0, "main", ir.OpAdd, r.out, a, b)
		}, "map[2:1]"},
		"four": {func(r rig) {
			for i := range 4 {
				linear(r, value(r, fmt.Sprint(i)), r.x, r.w)
			}
			linear(r, r.out, r.y, r.w)
		}, "map[3:1]"},
		"five": {func(r rig) {
			for i := range 5 {
				linear(r, value(r, fmt.Sprint(i)), r.x, r.w)
			}
			linear(r, r.out, r.y, r.w)
		}, "map[2:1 3:1]"},
		"other operands": {func(r rig) {
			linear(r, value(r, "a"), r.x, r.w)
			linear(r, r.out, r.y, r.w)
		}, "map[]"},
		"one after the other": {func(r rig) {
			a := value(r, "a")
			linear(r, a, r.x, r.w)
			linear(r, r.out, a, r.w)
		}, "map[]"},
		"something between": {func(r rig) {
			a := value(r, "a")
			linear(r, a, r.x, r.w)
			r.compute(0, "main", ir.OpNeg, value(r, "b"), a)
			linear(r, r.out, r.x, r.v)
		}, "map[]"},
		"somebody may look between": {func(r rig) {
			linear(r, value(r, "a"), r.x, r.w)
			r.after(0, "side", "main")
			linear(r, r.out, r.x, r.v)
			r.after(0, "main", "side")
		}, "map[]"},
		"one result": {func(r rig) {
			linear(r, r.out, r.x, r.w)
			linear(r, r.out, r.x, r.v)
		}, "map[]"},
		"gated": {func(r rig) {
			a, b, s := gate(r)
			r.compute(0, "main", ir.OpSilu, s, a)
			r.compute(0, "main", ir.OpMul, r.out, s, b)
		}, "map[gated:1]"},
		"gated, into what is read": {func(r rig) {
			a, b, s := gate(r)
			r.compute(0, "main", ir.OpSilu, s, a)
			r.compute(0, "main", ir.OpMul, r.x, s, b)
			linear(r, r.out, r.x, r.v)
		}, "map[2:1]"},
		"gated, and read again": {func(r rig) {
			a, b, s := gate(r)
			r.compute(0, "main", ir.OpSilu, s, a)
			r.compute(0, "main", ir.OpMul, value(r, "m"), s, b)
			r.compute(0, "main", ir.OpAdd, r.out, b, b)
		}, "map[2:1]"},
		"the second's silu": {func(r rig) {
			a, b, s := gate(r)
			r.compute(0, "main", ir.OpSilu, s, b)
			r.compute(0, "main", ir.OpMul, r.out, s, a)
		}, "map[2:1]"},
		"in turns in one place": {func(r rig) {
			a, b := value(r, "a"), value(r, "b")
			linear(r, a, r.x, r.w)
			linear(r, b, r.x, r.v)
			r.p.Buffers[b.Buf].Offset = r.p.Buffers[a.Buf].Offset
			linear(r, r.out, r.y, r.v)
		}, "map[]"},
	} {
		b := newBuilder(1, ir.BF16)
		r := rig{builder: b}
		r.x, r.y = b.ref(0, b.input("x", false, 4, 6), 4, 6), b.ref(0, b.input("y", false, 4, 6), 4, 6)
		r.w, r.v = b.ref(0, b.input("w", false, 6, 6), 6, 6), b.ref(0, b.input("v", false, 6, 6), 6, 6)
		r.out = b.ref(0, b.result("out", false, 4, 6), 4, 6)
		c.emit(r)
		b.output()
		m := newChainMachine(false)
		loadOn(t, m, b.p, Options{})
		if got := fmt.Sprint(m.joints); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
