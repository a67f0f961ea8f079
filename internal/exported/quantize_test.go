package exported

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"hocket.example/hocket/internal/modelprogram"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// e4m3 returns the number with the given code: a sign, 4 bits of exponent and 3 of mantissa.
func e4m3(code int) float64 {
	digits, exp := float64(code&7), code>>3&15
	if exp > 0 {
		digits += 8
	}
	v := math.Ldexp(digits, max(exp, 1)-10)
	if code&0x7f == 0x7f {
		v = math.NaN()
	}
	if code >= 0x80 {
		return -v
	}
	return v
}

// nearest returns the numbers of f8e4m3 that are nearest to v: one, or two if v is in the middle.
func nearest(v float64) map[float64]bool {
	best, all := math.Inf(1), map[float64]bool{}
	for code := range 256 {
		x := e4m3(code)
		switch d := math.Abs(x - v); {
		case d < best:
			best, all = d, map[float64]bool{x: true}
		case d == best:
			all[x] = true
		}
	}
	return all
}

// quantizedContent returns the contents of a parameter that stacks the given weights of a source.
func quantizedContent(t *testing.T, m *memory, form string, scales bool, split int, dt ir.DType, names ...string) *Content {
	t.Helper()
	c := &Content{Param: modelprogram.Param{Name: "w", Split: split,
		Quantized: &modelprogram.Quantized{Form: form, Scales: scales}}}
	var headers []*tensor.Tensor
	files := m.files()
	for _, name := range names {
		h := &tensor.Tensor{DType: dt, Shape: m.tensors[name].Shape}
		p, err := pieceOf(files, name, dt, h.Shape)
		if err != nil {
			t.Fatal(err)
		}
		c.pieces, headers = append(c.pieces, p), append(headers, h)
	}
	c.Header = tensor.Tensor{DType: ir.F8E4M3, Shape: headers[0].Shape}
	if scales {
		c.Header = tensor.Tensor{DType: ir.F32, Shape: modelprogram.ScalesShape(form, headers[0].Shape)}
	}
	c.Header.Shape = append([]int64{int64(len(names))}, c.Header.Shape...)
	if err := c.setWeights(headers); err != nil {
		t.Fatal(err)
	}
	return c
}

// files maps the name of each tensor of the source to the source.
func (m *memory) files() map[string]Source {
	files := map[string]Source{}
	for name := range m.tensors {
		files[name] = m
	}
	return files
}

// random adds a tensor of random numbers to the source.
func (m *memory) random(rng *rand.Rand, name string, dt ir.DType, shape ...int64) *tensor.Tensor {
	x, err := tensor.New(dt, shape)
	if err != nil {
		panic(err)
	}
	for i := range x.Len() {
		x.SetFloat64(i, min(math.Exp(rng.NormFloat64()*2), 400)*(2*rng.Float64()-1))
	}
	if m.tensors == nil {
		m.tensors = map[string]*tensor.Tensor{}
	}
	m.tensors[name] = x
	return x
}

// group returns the index of the scale of an element of a matrix.
func group(form string, cols, i, j int64) int64 {
	return map[string]int64{"fp8-tensor": 0, "fp8-row": i, "fp8-block": i/128*((cols+127)/128) + j/128}[form]
}

// TestQuantize compares quantized weights with values that the test computes. The last blocks of the matrices are not
// full, and one row is zero.
func TestQuantize(t *testing.T) {
	const rows, cols = 130, 300
	for _, dt := range []ir.DType{ir.BF16, ir.F32} {
		m := &memory{}
		names := []string{"l.0.weight", "l.1.weight"}
		for i, name := range names {
			w := m.random(rand.New(rand.NewPCG(uint64(i), 8)), name, dt, rows, cols)
			for j := range int64(cols) {
				w.SetFloat64(129*cols+j, 0)
			}
		}
		for _, form := range modelprogram.Forms {
			s, err := quantizedContent(t, m, form, true, -1, dt, names...).Read(0, 0)
			if err != nil {
				t.Fatal(err)
			}
			q, err := quantizedContent(t, m, form, false, -1, dt, names...).Read(0, 0)
			if err != nil {
				t.Fatal(err)
			}
			per := s.Len() / 2
			for l, name := range names {
				w, most := m.tensors[name], map[int64]float64{}
				for i := range w.Len() {
					g := group(form, cols, i/cols, i%cols)
					most[g] = max(most[g], math.Abs(w.Float64(i)))
				}
				if int64(len(most)) != per {
					t.Fatalf("%s: %d scales, want %d", form, per, len(most))
				}
				for i := range w.Len() {
					g := group(form, cols, i/cols, i%cols)
					scale := float64(max(float32(most[g])/448, 1e-12))
					if got := s.Float64(int64(l)*per + g); got != scale {
						t.Fatalf("%s %s: scale %d is %g, want %g", dt, form, g, got, scale)
					}
					want := nearest(float64(float32(w.Float64(i)) / float32(scale)))
					if got := q.Float64(int64(l)*rows*cols + i); !want[got] {
						t.Fatalf("%s %s: element %d, %g, is %g of scale %g, want %v", dt, form, i, w.Float64(i), got, scale, want)
					}
				}
			}
		}
	}
}

// TestQuantizeRows checks that a rank gets the same rows as if it quantized the whole parameter, and that it reads no
// other rows unless scales depend on them.
func TestQuantizeRows(t *testing.T) {
	const rows, cols = 512, 40
	m := &memory{}
	m.random(rand.New(rand.NewPCG(1, 9)), "a.weight", ir.BF16, rows, cols)
	for _, form := range modelprogram.Forms {
		for _, scales := range []bool{false, true} {
			split := 1
			if scales && form == "fp8-tensor" {
				split = -1
			}
			c := quantizedContent(t, m, form, scales, split, ir.BF16, "a.weight")
			whole, err := c.Read(0, 0)
			if err != nil {
				t.Fatal(err)
			}
			m.read = 0
			got, err := c.Read(1, 2)
			if err != nil {
				t.Fatal(err)
			}
			want := int64(rows * cols * 2)
			if form != "fp8-tensor" {
				want /= 2
			}
			if m.read != want {
				t.Errorf("%s, scales %t: %d bytes were read, want %d", form, scales, m.read, want)
			}
			half := len(whole.Data) / 2
			if split < 0 {
				half = 0
			}
			if string(got.Data[half:]) != string(whole.Data[half:]) {
				t.Errorf("%s, scales %t: rank 1's part differs from that of the whole", form, scales)
			}
		}
	}
}

// TestScaledFiles checks that 8-bit tensors with scales in files become weights of the archive's type, whether a weight
// is one tensor or packs several. If the weight is quantized in the form of the file, it keeps the file's values and
// scales.
func TestScaledFiles(t *testing.T) {
	const rows, cols = 130, 300
	for _, c := range []struct {
		form, suffix string
		scales       *tensor.Tensor
		at           func(i, j int64) int64
	}{
		{"fp8-block", "_scale_inv", header(2, 3), func(i, j int64) int64 { return i/128*3 + j/128 }},
		{"fp8-row", "_scale", header(rows, 1), func(i, _ int64) int64 { return i }},
		{"fp8-tensor", "_scale", header(), func(_, _ int64) int64 { return 0 }},
	} {
		rng, m := rand.New(rand.NewPCG(3, 3)), &memory{}
		name := func(e int) string { return fmt.Sprintf("mlp.experts.%d.down_proj.weight", e) }
		for e := range 2 {
			m.random(rng, name(e), ir.F8E4M3, rows, cols)
			s := m.random(rng, name(e)+c.suffix, ir.F32, c.scales.Shape...)
			for i := range s.Len() {
				s.SetFloat64(i, math.Abs(s.Float64(i))/256)
			}
		}
		want := func(e int, i int64, dt ir.DType) float64 {
			s := m.tensors[name(e)+c.suffix].Float64(c.at(i/cols, i%cols))
			return tensor.Round(dt, m.tensors[name(e)].Float64(i)*s)
		}
		pieces, err := find(m.files(), []string{"m.mlp.experts.down_proj"},
			&tensor.Tensor{DType: ir.BF16, Shape: []int64{2, rows, cols}})
		if err != nil {
			t.Fatal(err)
		}
		packed := Content{Param: modelprogram.Param{Split: -1}, pieces: pieces,
			Header: tensor.Tensor{DType: ir.BF16, Shape: []int64{2, rows, cols}}}
		got, err := packed.Read(0, 0)
		if err != nil {
			t.Fatal(err)
		}
		packed.Param.Split = 2 // each read begins or ends inside a row
		part, err := packed.Read(1, 2)
		if err != nil {
			t.Fatal(err)
		}
		for e := range 2 {
			for i := range int64(rows * cols) {
				at, v := int64(e)*rows*cols+i, want(e, i, ir.BF16)
				if got.Float64(at) != v || i%cols >= cols/2 && part.Float64(at) != v {
					t.Fatalf("%s: expert %d, element %d is %g and %g, want %g", c.form, e, i, got.Float64(at), part.Float64(at), v)
				}
			}
		}
		var used []string
		for _, p := range pieces {
			used = append(used, p.sources()...)
		}
		if text := strings.Join(used, " "); text != strings.Join([]string{name(0), name(0) + c.suffix, name(1), name(1) + c.suffix}, " ") {
			t.Errorf("used %s", text)
		}
		// A file with one scale for the tensor also gives the scales of blocks of 128 by 128.
		for _, form := range []string{c.form, map[string]string{"fp8-tensor": "fp8-block"}[c.form]} {
			if form == "" {
				continue
			}
			q, err := quantizedContent(t, m, form, false, -1, ir.BF16, name(0), name(1)).Read(0, 0)
			if err != nil {
				t.Fatal(err)
			}
			s, err := quantizedContent(t, m, form, true, -1, ir.BF16, name(0), name(1)).Read(0, 0)
			if err != nil {
				t.Fatal(err)
			}
			per := s.Len() / 2
			for e := range 2 {
				for i := range int64(rows * cols) {
					scale := m.tensors[name(e)+c.suffix].Float64(c.at(i/cols, i%cols))
					if v := q.Float64(int64(e)*rows*cols + i); v != m.tensors[name(e)].Float64(i) {
						t.Fatalf("%s as %s: expert %d, element %d is %g", c.form, form, e, i, v)
					}
					if v := s.Float64(int64(e)*per + group(form, cols, i/cols, i%cols)); v != scale {
						t.Fatalf("%s as %s: expert %d has the scale %g of element %d, want %g", c.form, form, e, v, i, scale)
					}
				}
			}
		}
	}
}

// TestScaledFilesRefuse checks the errors about scales that do not fit, and 8-bit tensors without scales.
func TestScaledFilesRefuse(t *testing.T) {
	for says, scales := range map[string]*tensor.Tensor{
		`"a.weight_scale_inv" cannot be the scales of "a.weight": f32[3, 2] does not fit f8e4m3[130, 300]`: header(3, 2),
		`"a.weight" is f8e4m3[130, 300], want bf16[130, 300]`:                                              nil,
	} {
		m := &memory{}
		m.random(rand.New(rand.NewPCG(4, 4)), "a.weight", ir.F8E4M3, 130, 300)
		if scales != nil {
			m.random(rand.New(rand.NewPCG(4, 5)), "a.weight_scale_inv", ir.F32, scales.Shape...)
		}
		_, err := find(m.files(), []string{"m.a.weight"}, &tensor.Tensor{DType: ir.BF16, Shape: []int64{130, 300}})
		if !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v; want one that says %s", err, says)
		}
	}
}
