package grad_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/grad"
	"hocket.example/hocket/internal/longtest"
)

var keeps = []grad.Keep{grad.KeepAll, grad.KeepInputs, grad.KeepAuto}

// programCases holds complete programs of f64.
var programCases = []struct{ name, src string }{
	{"loop", `mesh tp[N]
func f(%x: f64[8/tp, 4], %up: f64[3, 8/tp, 4], %down: f64[3, 4, 8/tp]) -> f64[8/tp, 4] {
  %y = for %l in 0..3 carry %h = %x {
    %g = gelu (linear %h, %up[%l])
    %d: f64[8/tp, 4] = linear %g, %down[%l]
    %z = add %d, %h
    yield %z
  }
  return %y
}`},
	{"loop that shares a weight", `mesh tp[N]
func f(%x: f64[8/tp, 4], %w: f64[4, 4]) -> f64[8/tp, 4] {
  %y = for %l in 2..5 carry %h = %x {
    %g = tanh (linear %h, %w)
    yield %g
  }
  return %y
}`},
	{"loop of two values", `mesh tp[N]
func f(%x: f64[8/tp, 4], %norms: f64[5, 4], %w: f64[2, 4, 4]) -> f64[8/tp, 4] {
  %a0 = rms_norm %x, %norms[0]
  %r1, %a2 = for %l in 0..2 carry %r = %x, %a = %a0 {
    %ro = add %r, (linear %a, %w[%l])
    %b = rms_norm %ro, %norms[2 * %l + 1]
    %rd = add %ro, (silu %b)
    %c = rms_norm %rd, %norms[2 * %l + 2]
    yield %rd, %c
  }
  return %a2
}`},
	{"loop in a loop", `mesh tp[N]
func f(%x: f64[8/tp, 4], %w: f64[2, 4, 4], %v: f64[3, 4]) -> f64[8/tp, 4] {
  %y = for %i in 0..2 carry %h = %x {
    %s = sigmoid %h
    %k = for %j in 0..3 carry %g = %s {
      %m = mul %g, %v[%j]
      %n = tanh (add %m, %s)
      yield %n
    }
    %z = linear %k, %w[%i]
    yield %z
  }
  return %y
}`},
	{"loop with lets and chunks", `mesh tp[N]
func f(%x: f64[4, 8/tp], %w: f64[6, 8/tp]) -> f64[4, 8/tp] {
  %y = for %i in 0..3 carry %h = %x {
    let %k = 2 - %i
    %c = chunk %w, axis=0, %k of 3
    %s = mean %c, axis=0
    %z = mul %h, %s
    yield %z
  }
  return %y
}`},
	{"empty loop", `mesh tp[N]
func f(%x: f64[8/tp, 4], %w: f64[2, 4, 4]) -> f64[8/tp, 4] {
  %y = for %i in 0..0 carry %h = %x {
    %z = linear %h, %w[%i]
    yield %z
  }
  return %y
}`},
	{"calls", `mesh tp[N]
func block(%x: f64[8, 8/tp], %w: f64[8, 8/tp]) -> f64[8, 8/tp] {
  %y = linear %x, %w
  %z: f64[8, 8/tp] = gelu_tanh %y
  return %z
}
func f(%x: f64[8/tp, 8], %w: f64[2, 8, 8/tp]) -> (f64[8/tp, 8], f64[]) {
  %w0 = select %w, axis=0, index=0
  %w1 = select %w, axis=0, index=1
  %y = call block %x, %w0
  %z = call block %y, %w1
  %m = mean %z, axis=(0, 1)
  return %z, %m
}`},
	{"a value used often", `mesh tp[N]
func f(%x: f64[8/tp, 4], %w: f64[8/tp, 4]) -> (f64[8/tp, 4], f64[8/tp, 4]) {
  %y = mul %x, %x
  %z = sub (exp %y), (mul %x, %w)
  %u = div %z, (add (abs %x), (exp %w))
  return %u, %z
}`},
	{"layer", `dim T = 8
dim H = 8
dim D = 2
dim KV = 8
dim F = 8
mesh tp[N]
func f(
  %x: f64[T/tp, H], %norm1: f64[H], %wq: f64[2 * KV * D/tp, H], %wk: f64[KV * D/tp, H], %wv: f64[KV * D/tp, H],
  %wo: f64[H, 2 * KV * D/tp], %norm2: f64[H], %gate: f64[F/tp, H], %up: f64[F/tp, H], %down: f64[H, F/tp],
) -> f64[T/tp, H] {
  %a = rms_norm %x, %norm1
  %q = linear %a, %wq
  %k = linear %a, %wk
  %v = linear %a, %wv
  %qh = reshape %q, shape=(T, 2 * KV, D)
  %kh = reshape %k, shape=(T, KV, D)
  %vh = reshape %v, shape=(T, KV, D)
  %s = attention %qh, %kh, %vh, causal=true
  %sr = reshape %s, shape=(T, 2 * KV * D)
  %o: f64[T/tp, H] = linear %sr, %wo
  %r = add %x, %o
  %b = rms_norm %r, %norm2
  %g = linear %b, %gate
  %u = linear %b, %up
  %m = mul (silu %g), %u
  %d: f64[T/tp, H] = linear %m, %down
  %y = add %r, %d
  return %y
}`},
	{"layers with attention", `mesh tp[N]
func f(%x: f64[8/tp, 8], %wq: f64[2, 16/tp, 8], %wk: f64[2, 8/tp, 8], %wo: f64[2, 8, 16/tp]) -> f64[8/tp, 8] {
  %y = for %l in 0..2 carry %h = %x {
    %q = linear %h, %wq[%l]
    %k = linear %h, %wk[%l]
    %qh = reshape %q, shape=(8, 16, 1)
    %kh = reshape %k, shape=(8, 8, 1)
    %s = attention %qh, %kh, %kh, causal=true, scale=0.5
    %o: f64[8/tp, 8] = linear (reshape %s, shape=(8, 16)), %wo[%l]
    %n = add %h, %o
    yield %n
  }
  return %y
}`},
	{"experts, dense", `mesh ep[N]
func f(%x: f64[8/ep, 4], %score: f64[8/ep, 8], %w1: f64[8/ep, 4, 6], %w2: f64[8/ep, 6, 4]) -> f64[8/ep, 4] {
  %best = max %score, axis=1
  %r = reshape %best, shape=(8, 1)
  %b = broadcast %r, shape=(8, 8)
  %on = eq %score, %b
  %gate = mul %on, (softmax %score)
  %turned = transpose %gate
  %gates = reshape %turned, shape=(8, 8, 1)
  %g = broadcast %gates, shape=(8, 8, 4)
  %xs = broadcast %x, shape=(8, 8, 4)
  %h = matmul %xs, %w1
  %a = relu %h
  %y = matmul %a, %w2
  %z = mul %y, %g
  %sum = sum %z, axis=0
  return %sum
}`},
	{"language model", `mesh tp[N]
func f(%ids: i32[8], %next: i32[8], %table: f64[16/tp, 8], %norm: f64[8], %bias: f64[8]) -> f64[] {
  %e: f64[8, 8] = embedding %ids, %table
  %n = layer_norm %e, %norm, %bias
  %logits = linear %n, %table
  %p: f64[8, 16/tp] = exp %logits
  %s = sum %p, axis=1
  %z = log %s
  %at = reshape %next, shape=(8, 1)
  %wide = broadcast %at, shape=(8, 16)
  %count: i32[16] = iota
  %hit = eq %wide, %count
  %hot: f64[8, 16/tp] = cast %hit
  %picked = sum (mul %hot, %logits), axis=1
  %each = sub %z, %picked
  %loss = mean %each, axis=0
  return %loss
}`},
}

// TestLayoutsGiveTheCollectives checks that gradients are moved only by the collectives that the layouts require.
func TestLayoutsGiveTheCollectives(t *testing.T) {
	for _, c := range []struct{ name, src, of, want string }{
		{"a weight that ranks of dp share is reduced over dp", `mesh dp[2] tp[2]
func f(%x: f64[8/dp, 4], %w: f64[4/tp, 4]) -> f64[8/dp, 4/tp] {
  %y = linear %x, %w
  return %y
}`, "w", "all_reduce dp"},
		{"a weight that is split over dp is gathered, and its gradient scattered", `mesh dp[4]
func f(%x: f64[8/dp, 4], %w: f64[4/dp, 4]) -> f64[8/dp, 4] {
  %all: f64[4, 4] = reshard %w
  %y = linear %x, %all
  return %y
}`, "w", "all_gather dp, reduce_scatter dp"},
		{"rows that a linear gathers are scattered", `mesh tp[4]
func f(%x: f64[8/tp, 4], %w: f64[4/tp, 4]) -> f64[8, 4/tp] {
  %y = linear %x, %w
  return %y
}`, "x", "all_gather tp, reduce_scatter tp"},
		{"rows that two linears gather are scattered once", `mesh tp[4]
func f(%x: f64[8/tp, 4], %w: f64[4/tp, 4], %v: f64[4/tp, 4]) -> (f64[8, 4/tp], f64[8, 4/tp]) {
  %y = linear %x, %w
  %z = linear %x, %v
  return %y, %z
}`, "x", "all_gather tp, reduce_scatter tp"},
		{"the gradient of a reduced sum is what every rank holds", `mesh tp[4]
func f(%x: f64[8, 4/tp], %w: f64[4, 4/tp]) -> f64[8, 4] {
  %y = linear %x, %w
  return %y
}`, "x", "all_reduce tp"},
		{"the gradient of a scattered sum is gathered", `mesh tp[4]
func f(%x: f64[8, 4/tp], %w: f64[4, 4/tp]) -> f64[8/tp, 4] {
  %y = linear %x, %w
  return %y
}`, "x", "reduce_scatter tp, all_gather tp"},
	} {
		p, err := hocket.Parse("test.hkt", c.src)
		if err != nil {
			t.Fatal(err)
		}
		q, err := p.Gradient(hocket.GradientOptions{Wrt: []string{c.of}})
		if err != nil {
			t.Fatal(err)
		}
		l, err := q.Lower(hocket.LowerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var moves []string
		for _, m := range collectives.FindAllStringSubmatch(l.Program.String(), -1) {
			moves = append(moves, m[1]+" "+m[2])
		}
		slices.Sort(moves)
		want := strings.Split(c.want, ", ")
		if slices.Sort(want); !slices.Equal(moves, want) {
			t.Errorf("%s: %v, and not %v\n%s", c.name, moves, want, l.Program)
		}
	}
}

var collectives = regexp.MustCompile(`(all_gather|all_reduce|reduce_scatter|all_to_all) [^\n]*over=(\w+)`)

// localCases holds programs that compute on each rank's own tensors.
var localCases = []struct{ name, src string }{
	{"into and claim", `mesh tp[2]
func f(%x: f64[4/tp, 4], %w: f64[4, 4]) -> f64[4/tp, 4] {
  %b = alloc f64[4/tp, 4]
  linear %x, %w into %b
  relu %b into %b
  %y: f64[4/tp, 4] = claim %b
  %z = mul %y, %y
  return %z
}`},
	{"updated in place", `mesh tp[2]
func f(%x: f64[4/tp, 4], %w: f64[4, 4]) -> f64[4/tp, 4] {
  %b = alloc f64[4/tp, 4]
  scale %x into %b, by=2
  add %b, %x into %b
  neg %b into %b
  return %b
}`},
	{"ranks' own rows", `mesh tp[4]
func f(%x: f64[8, 4], %w: f64[4/tp, 4]) -> f64[8/tp, 4] {
  %c = chunk %x, axis=0, rank(tp) of size(tp)
  %wl = local %w
  %all = alloc f64[4, 4]
  all_gather %wl into %all, over=tp
  %y = linear %c, %all
  %s = sigmoid %y
  return %s
}`},
	{"sums of ranks", `mesh tp[4]
func f(%x: f64[8, 8/tp], %w: f64[4, 8/tp]) -> (f64[8, 4], f64[8/tp, 4]) {
  %p = alloc f64[8, 4]
  linear %x, %w into %p
  %a = alloc f64[8, 4]
  all_reduce %p into %a, over=tp, op=sum
  %r = alloc f64[8/tp, 4]
  reduce_scatter %p into %r, over=tp, op=sum
  %t = tanh %r
  %y: f64[8, 4] = claim %a
  return %y, %t
}`},
	{"blocks to others", `mesh tp[4]
func f(%x: f64[16/tp, 8]) -> (f64[16, 8/tp], f64[16/tp, 8]) {
  %s = local %x
  %b = alloc f64[16, 8/tp]
  all_to_all %s into %b, over=tp, split=1, concat=0
  %e = exp %b
  %n = alloc f64[16/tp, 8]
  permute %s into %n, over=tp, to=(rank(tp) + 1) mod 4, from=(rank(tp) + 3) mod 4
  %m = mul %n, %s
  return %e, %m
}`},
}

// TestLocalPrograms compares the gradients of programs of local tensors, including a dispatch of experts, with
// differences.
func TestLocalPrograms(t *testing.T) {
	src, err := os.ReadFile("../../examples/moe.hkt")
	if err != nil {
		t.Fatal(err)
	}
	moe := strings.NewReplacer("f32", "f64", "dim T = 32", "dim T = 8", "dim H = 16", "dim H = 3", "dim F = 32",
		"dim F = 4").Replace(string(src))
	for _, c := range append(localCases, struct{ name, src string }{"experts", moe}) {
		t.Run(c.name, func(t *testing.T) {
			away(t, c.src, grad.Options{}, 30)
			agrees(t, c.src, hocket.GradientOptions{}, "sequential")
		})
	}
}

// TestPrograms compares the gradients of complete programs with central differences, for every value of Keep. The test
// also compares the results of several ranks with the results of one rank.
func TestPrograms(t *testing.T) {
	odd := int(longtest.Drawn(t) % 2)
	for _, c := range programCases {
		t.Run(c.name, func(t *testing.T) {
			for k, keep := range keeps {
				away(t, strings.ReplaceAll(c.src, "[N]", "[1]"), grad.Options{Keep: keep}, 40)
				for i, n := range []int{1, 2, 4, 8} {
					if !longtest.On() && (i+k)%2 != odd { // two of the four
						continue
					}
					src := strings.ReplaceAll(c.src, "[N]", fmt.Sprintf("[%d]", n))
					agrees(t, src, hocket.GradientOptions{Keep: string(keep)}, "sequential")
				}
			}
		})
	}
}

// TestGradientsOfTheExamplesLower checks that gradients of examples can be lowered, also by strategies.
func TestGradientsOfTheExamplesLower(t *testing.T) {
	for _, name := range []string{"mlp", "llama_layer", "dp_tp_mlp"} {
		src, err := os.ReadFile("../../examples/" + name + ".hkt")
		if err != nil {
			t.Fatal(err)
		}
		agrees(t, string(src), hocket.GradientOptions{}, "sequential", "exchange", "chunked(2)")
	}
}
