package cuda

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/ir"
)

// decoding rotates queries and keys, and copies keys and values to positions.
const decoding = `dim T = 3
dim S = 9
mesh tp[1]
func f(%q: f32[T, 4, 8], %k: f32[T, 2, 8], %v: f32[T, 2, 8], %at: i32[T],
    %keys: f32[S, 2, 8], %values: f32[S, 2, 8]) -> (
    f32[T, 4, 8], f32[S, 2, 8], f32[S, 2, 8]) {
  %kc = alloc f32[S, 2, 8]
  %vc = alloc f32[S, 2, 8]
  copy %keys into %kc
  copy %values into %vc
  %qr = rope %q, %at, theta=10000
  %kr = rope %k, %at, theta=10000
  index_copy %kr, %at into %kc, axis=0
  index_copy %v, %at into %vc, axis=0
  %ks: f32[S, 2, 8] = claim %kc
  %vs: f32[S, 2, 8] = claim %vc
  return %qr, %ks, %vs
}
`

// TestRopesOfProgram checks the results of a program whose ropes and index_copies are one launch, and the name of that
// launch in a trace.
func TestRopesOfProgram(t *testing.T) {
	in := map[string]*hocket.Tensor{}
	for name, shape := range map[string][]int64{"q": {3, 4, 8}, "k": {3, 2, 8}, "v": {3, 2, 8}, "keys": {9, 2, 8},
		"values": {9, 2, 8}} {
		vals := make([]float64, shape[0]*shape[1]*shape[2])
		for i := range vals {
			vals[i] = float64((i*37+len(name))%64) / 8
		}
		x, err := hocket.FromFloats(ir.F32, vals, shape...)
		mustOf(t)(err)
		in[name] = x
	}
	at, err := hocket.FromFloats(ir.I32, []float64{7, -1, 2}, 3)
	mustOf(t)(err)
	in["at"] = at
	run := func(m *hocket.Model) *hocket.Report {
		r, err := m.Run(t.Context(), hocket.Args{In: in})
		mustOf(t)(err)
		return r
	}
	want := run(modeltest.Load(t, modeltest.Open(t, cpu.New(cpu.Options{})), decoding, hocket.LoadOptions{}))
	for _, opts := range []hocket.LoadOptions{{Trace: true}, {Graph: true}} {
		got := run(modeltest.Load(t, fakeMachine(t, fakedriver.New(t, 1)), decoding, opts))
		for name, w := range want.Out {
			for i, v := range got.Out[name].Floats() {
				if math.Abs(v-w.Floats()[i]) > 1e-5 {
					t.Fatalf("%+v: element %d of %s is %v, want %v", opts, i, name, v, w.Floats()[i])
				}
			}
		}
		if opts.Trace {
			var b bytes.Buffer
			mustOf(t)(got.WriteTrace(&b))
			if !strings.Contains(b.String(), `"rope+rope+index_copy+index_copy"`) {
				t.Errorf("the trace does not name the launch:\n%s", b.String())
			}
		}
	}
}
