package sim

import (
	"testing"

	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// TestAttentionWithLSE checks that attention_lse takes no time on a GPU if an attention of the same queries and keys
// precedes it directly and tensor cores compute it, and that bounds count no multiplications for it.
func TestAttentionWithLSE(t *testing.T) {
	predict := func(m *machine.Description, dt ir.DType, lse, apart bool) (us, flops float64) {
		p := &plan.Plan{Program: "f.hkt", Func: "f", Ranks: 1, Streams: []plan.Stream{{Name: "main"}}, Main: []int32{0}}
		ref := func(name string, dt ir.DType, shape ...int64) plan.Ref {
			n, err := tensor.Bytes(dt, shape)
			if err != nil {
				t.Fatal(err)
			}
			p.Buffers = append(p.Buffers, plan.Buffer{Name: name, Role: plan.RoleValue, Offset: p.ArenaBytes, Bytes: n})
			p.ArenaBytes += plan.Aligned(n)
			return plan.Ref{Buf: int32(len(p.Buffers) - 1), DType: dt, Shape: shape, Strides: tensor.Strides(shape)}
		}
		add := func(op ir.Op, out plan.Ref, ins ...plan.Ref) {
			p.Sites = append(p.Sites, plan.Site{Op: op, Text: op.String()})
			p.Cmds = append(p.Cmds, plan.Cmd{Kind: plan.Compute, Op: op, Ins: ins, Outs: []plan.Ref{out}, Peer: -1,
				Site: int32(len(p.Sites) - 1), Attr: ir.Attrs{Causal: true, Numbers: ir.Reals(0.1)}})
		}
		q, k, v := ref("q", dt, 8192, 16, 128), ref("k", dt, 8192, 4, 128), ref("v", dt, 8192, 4, 128)
		add(ir.OpAttention, ref("y", dt, 8192, 16, 128), q, k, v)
		if apart {
			add(ir.OpNeg, ref("n", dt, 1), ref("o", dt, 1))
		}
		if lse {
			add(ir.OpAttentionLSE, ref("lse", dt.Accum(), 8192, 16), q, k)
		}
		line, err := Plan(p, m)
		if err != nil {
			t.Fatal(err)
		}
		return line.Time, NewBounds(p, m).Whole().Compute
	}
	gpu, other := h200(t), *h200(t)
	other.GPU = ""
	for name, c := range map[string]struct {
		m           *machine.Description
		dt          ir.DType
		apart       bool
		free, bound bool
	}{
		"bf16": {gpu, ir.BF16, false, true, true}, "f32": {gpu, ir.F32, false, false, true},
		"apart": {gpu, ir.BF16, true, false, false}, "no GPU": {&other, ir.BF16, false, false, true},
	} {
		alone, least := predict(c.m, c.dt, false, c.apart)
		both, flops := predict(c.m, c.dt, true, c.apart)
		if (both == alone) != c.free || both < alone {
			t.Errorf("%s: %.1f µs, and with attention_lse %.1f µs", name, alone, both)
		}
		if (flops == least) != c.bound || flops < least {
			t.Errorf("%s: bound %.1f µs, and with attention_lse %.1f µs", name, least, flops)
		}
	}
}
