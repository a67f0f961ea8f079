package ir

import (
	"math"
	"testing"
)

// exchange builds a program with every statement that the builder makes.
func exchange() *Program {
	b := NewBuilder("built")
	t, k := b.DimDefault("T", 64), b.Dim("K")
	b.Mesh(Axis("dp", Int(2)), Axis("tp", Int(4)))
	b.SubMesh([]int64{0, 2}, Axis("d", Int(2)))
	x, full := Tensor(BF16, Dimn(t, "dp", "tp"), Dimn(k)), Tensor(BF16, Dimn(t), Dimn(k))
	b.Func("plain", []*Param{In("x", x)}, []*Type{full}, "", func(b *BlockBuilder) {
		b.Return(b.Value("y", full, OpReshard, []Place{V("x")}))
	})
	b.Func("built", []*Param{In("x", x), InOut("c", full)}, []*Type{full}, "plain", func(b *BlockBuilder) {
		s := b.Declare("s", OpStream, Int(2), WordAttr("priority", "high"))
		e := b.Declare("e", OpEvent, nil)
		arrived := b.Declare("arrived", OpCounter, Size("tp"))
		n := b.Let("n", Size("tp"))
		all := b.Alloc("all", n, full, Symmetric|Zero)
		b.Do(OpBarrier, Place{}, nil, Over("dp", "tp"))
		b.For("i", Int(0), n, 2, func(b *BlockBuilder, i *Expr) {
			b.On(At(s.Name, Mod(i, Int(2))), func(b *BlockBuilder) {
				b.Do(OpWait, Place{}, []Place{Main()})
				to := b.Chunk("to", At(all.Name, i), 0, Rank("tp"), n)
				b.Transfer(OpPut, V("x"), to, "tp", i, WordAttr("engine", "ce"))
				b.Transfer(OpSignal, At(arrived.Name, Rank("tp")), Place{}, "tp", i)
			})
		})
		b.If(Rank("tp"), LT, Sub(n, Int(1)), func(b *BlockBuilder) {
			b.Group(func(b *BlockBuilder) {
				b.Transfer(OpSend, V("x"), Place{}, "tp", Add(Rank("tp"), Int(1)))
			})
		}, func(b *BlockBuilder) { b.WaitAtLeast(At(arrived.Name, Int(0)), Int(1)) })
		b.Do(OpRecord, Place{}, []Place{e})
		part := b.Slice("part", V("c"), 1, Int(0), CeilDiv(k, Int(2)))
		b.Do(OpFill, part, nil, NumberAttr("value", 0.5))
		b.Value("r", nil, OpReshape, []Place{part}, ExprsAttr("shape", Mul(t, Int(2)), Int(-1)))
		b.Call([]string{"p", "q"}, "other", V("r"))
		b.Append(&Stmt{Op: OpFree, Args: []Place{all}})
		b.Return(V("c"))
	})
	return b.Program()
}

const exchangeText = `dim T = 64
dim K
mesh dp[2] tp[4]
mesh d[2] = {0 2}

func plain(%x: bf16[T/(dp, tp), K]) -> bf16[T, K] {
  %y: bf16[T, K] = reshard %x
  return %y
}

func built(%x: bf16[T/(dp, tp), K], %c: inout bf16[T, K]) -> bf16[T, K] refines plain {
  %s = stream[2], priority=high
  %e = event
  %arrived = counter[size(tp)]
  let %n = size(tp)
  %all = alloc[%n] bf16[T, K] symmetric zero
  barrier over=(dp, tp)
  for %i in 0..%n stream(2) {
    on %s[%i mod 2] {
      wait main
      %to = chunk %all[%i], axis=0, rank(tp) of %n
      put %x into %to at tp[%i], engine=ce
      signal %arrived[rank(tp)] at tp[%i]
    }
  }
  if rank(tp) < %n - 1 {
    group { send %x to tp[rank(tp) + 1] }
  } else {
    wait %arrived[0] >= 1
  }
  record %e
  %part = slice %c, axis=1, 0..ceildiv(K, 2)
  fill into %part, value=0.5
  %r = reshape %part, shape=(T * 2, -1)
  %p, %q = call other %r
  free %all
  return %c
}
`

func TestBuilder(t *testing.T) {
	p := exchange()
	if got := p.String(); got != exchangeText {
		t.Fatalf("got\n%s\nwant\n%s", got, exchangeText)
	}
	if q := mustParse(t, "built", exchangeText); !Equal(p, q) {
		t.Fatalf("parsed:\n%s", q)
	}
}

func TestBuilderFolds(t *testing.T) {
	x := Var("x")
	for want, e := range map[string]*Expr{
		"7":                       Add(Int(3), Int(4)),
		"%x":                      Add(Int(0), Sub(Mul(Int(1), x), Int(0))),
		"1":                       Mod(Int(-7), Int(4)),
		"2":                       CeilDiv(Int(7), Int(4)),
		"-2":                      FloorDiv(Int(-7), Int(4)),
		"3":                       MinOf(Int(3), MaxOf(Int(2), Int(5))),
		"%x * 0":                  Mul(x, Int(0)),
		"5 mod 0":                 Mod(Int(5), Int(0)),
		"9223372036854775807 + 1": Add(Int(math.MaxInt64), Int(1)),
		"extent(%x, 1)":           FloorDiv(Extent("x", 1), Int(1)),
	} {
		if got := e.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
