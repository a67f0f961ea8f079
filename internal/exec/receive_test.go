package exec

import (
	"testing"

	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// TestReceives: results come straight to where they belong, in a tensor of the caller's or
// a new one, unless the batch has something else there.
func TestReceives(t *testing.T) {
	prog := load(t, cpu.Concurrent, 0, chunked(2, ""), Options{})
	in := chunkedInputs(t, 2, 1)
	mine, err := tensor.New(ir.F32, prog.outputs[0].Shape)
	if err != nil {
		t.Fatal(err)
	}
	into := Direct{Into: map[string]*tensor.Tensor{"y": mine}}
	for name, c := range map[string]struct {
		direct   []Direct
		straight bool
	}{
		"none":             {nil, false},
		"the caller's":     {[]Direct{into}, true},
		"of two runs":      {[]Direct{into, into}, false},
		"of the other run": {[]Direct{{}, into}, false},
	} {
		batch := []map[string]*tensor.Tensor{in}
		for len(batch) < len(c.direct) {
			batch = append(batch, in)
		}
		if err := prog.fillFrames(batch, c.direct, nil); err != nil {
			t.Fatal(err)
		}
		f := prog.frames[0]
		for b, get := range f.get {
			to, first := &tensor.Tensor{DType: ir.F32, Data: get}, b == 0 // the other is compared with it
			if r := f.out[0]; (r.own[b] == nil) != first || tensor.Overlap(to, r.whole) != first || tensor.Overlap(to, mine) != (first && c.straight) {
				t.Errorf("%s: block %d comes to storage of its own: %v, to the caller's: %v", name, b, r.own[b] != nil, tensor.Overlap(to, mine))
			}
		}
		results, err := prog.RunBatchDirect(t.Context(), batch, c.direct, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range results {
			got, want := r.Outputs["y"], directOf(c.direct, i).Into["y"]
			if want != nil && got != want {
				t.Errorf("%s: run %d: another tensor", name, i)
			}
			for j := range results[:i] {
				if before := results[j].Outputs["y"]; before != got && tensor.Overlap(before, got) {
					t.Errorf("%s: runs %d and %d share bytes", name, j, i)
				}
			}
		}
		if f.out[0].whole != nil || f.get[0] != nil {
			t.Errorf("%s: what is the caller's is kept", name)
		}
	}
}
