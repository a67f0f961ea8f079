package exec

import (
	"context"
	"math"
	"testing"

	"hocket.example/hocket/internal/device/cpu"
	_ "hocket.example/hocket/internal/longtest" // collects garbage less often
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// run1 runs a plan of one rank with output y once and returns its first element.
func run1(t *testing.T, seed int64, b *builder, in map[string]*tensor.Tensor) float64 {
	t.Helper()
	b.output()
	res, err := load(t, cpu.Scheduled, seed, b.p, Options{}).Run(context.Background(), in)
	if err != nil {
		t.Fatal(err)
	}
	return res.Outputs["y"].Float64(0)
}

// TestUnwritten checks that a read of memory that no command has written gives a wrong result.
func TestUnwritten(t *testing.T) {
	b := newBuilder(1, ir.F32)
	p := b.buffer("%p", plan.RoleAlloc, 2)
	y := b.result("y", false, 2)
	b.compute(0, "main", ir.OpCopy, b.ref(0, y, 2), b.ref(0, p, 2))
	if got := run1(t, 0, b, nil); !math.IsNaN(got) {
		t.Errorf("got %v, want NaN", got)
	}
}

// TestDeadBuffer checks that a buffer that shares the bytes of a dead buffer is correct if it is ordered after the last
// use of the dead buffer, and that the contents of the dead buffer are overwritten.
func TestDeadBuffer(t *testing.T) {
	for _, reads := range []bool{false, true} {
		b := newBuilder(1, ir.F32)
		x := b.input("x", false, 2)
		p := b.buffer("%p", plan.RoleValue, 2)
		q := b.buffer("%q", plan.RoleValue, 2)
		b.p.Buffers[q].Offset = b.p.Buffers[p].Offset
		y := b.result("y", false, 2)
		b.compute(0, "main", ir.OpRelu, b.ref(0, p, 2), b.ref(0, x, 2))
		b.compute(0, "main", ir.OpRelu, b.ref(0, y, 2), b.ref(0, p, 2)) // the last use of %p
		// if reads is set, no command writes %q, which then has the contents of %p
		if !reads {
			b.compute(0, "%s", ir.OpFill, b.ref(0, q, 2))
			c := &b.p.Cmds[len(b.p.Cmds)-1]
			c.Attr.Numbers = ir.Reals(5)
			fill := *c
			b.p.Cmds = b.p.Cmds[:len(b.p.Cmds)-1]
			b.after(0, "%s", "main")
			b.p.Cmds = append(b.p.Cmds, fill)
			b.after(0, "main", "%s")
		}
		b.compute(0, "main", ir.OpRelu, b.ref(0, y, 2), b.ref(0, q, 2))
		x0 := ints(t, ir.F32, "x", 1, 2)
		for seed := range int64(8) {
			got := run1(t, seed, &builder{p: clonePlan(b.p), dt: b.dt, where: b.where}, map[string]*tensor.Tensor{"x": x0})
			if reads != math.IsNaN(got) || !reads && got != 5 {
				t.Errorf("seed %d: got %v", seed, got)
			}
		}
	}
}

// clonePlan copies the lists of a plan that run1 appends to.
func clonePlan(p *plan.Plan) *plan.Plan {
	c := *p
	c.Cmds = append([]plan.Cmd(nil), p.Cmds...)
	c.Sites = append([]plan.Site(nil), p.Sites...)
	return &c
}

// TestCallerOverwrites checks that, if stream main does not wait for a push of an input, the push sends the data with
// which the caller has overwritten the input, even in a single run.
func TestCallerOverwrites(t *testing.T) {
	pr := programs["exchange"]
	for seed := range int64(200) {
		prog := load(t, cpu.Scheduled, seed, pr.plan(3, "join"), Options{})
		if err := pr.runBatch(t, prog, 3, 1, 1); err != nil {
			return
		}
	}
	t.Error("no schedule shows it")
}
