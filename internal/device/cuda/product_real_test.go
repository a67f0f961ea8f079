package cuda

import (
	"errors"
	"math"
	"slices"
	"testing"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gemm"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// put writes values to device memory; fetch reads them. The context is current.
func (s *site) put(at nvlib.Ptr, dt ir.DType, vals []float64) error {
	return s.through(int64(len(vals))*dt.Size(), func(buf nvlib.Ptr, n int64) error {
		tensor.FromFloat64(cabi.Bytes(uintptr(buf), int(n)), vals, dt)
		var args [4]uintptr
		return s.w.drv.Copy(at, buf, n, 0, &args)
	}, nil)
}

func (s *site) fetch(at nvlib.Ptr, dt ir.DType, elems int64) ([]float64, error) {
	vals := make([]float64, elems)
	err := s.through(elems*dt.Size(), func(buf nvlib.Ptr, n int64) error {
		var args [4]uintptr
		return s.w.drv.Copy(buf, at, n, 0, &args)
	}, func(b []byte) { tensor.ToFloat64(vals, b, dt) })
	return vals, err
}

// through calls f, which copies from or to a pinned buffer, and then calls the function then with the buffer's
// contents.
func (s *site) through(n int64, f func(buf nvlib.Ptr, n int64) error, then func([]byte)) error {
	pinned := s.heaps[device.Pinned]
	buf, err := pinned.Alloc(n)
	if err != nil {
		return err
	}
	err = errors.Join(f(buf, n), s.w.drv.SyncStream(0))
	if err == nil && then != nil {
		then(cabi.Bytes(uintptr(buf), int(n)))
	}
	return errors.Join(err, pinned.Free(buf, n))
}

func prepareGemm(d *dev, g gemm.Problem) (st *gemm.Launch, err error) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	err = d.bound(func() error {
		st, err = d.site.gemms.Prepare(g)
		return err
	})
	return st, err
}

// TestReluEpilogue checks that a relu that cuBLASLt applies to a product has the same results as the language's relu
// for numbers and NaN.
func TestReluEpilogue(t *testing.T) {
	m := real(t, Options{})
	world, err := m.Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer world.Close()
	d := world.Device(0).(*dev)
	for _, dt := range []ir.DType{ir.BF16, ir.F16, ir.F32} {
		const rows, n, k = 256, 256, 128
		var addrs [3]nvlib.Ptr
		for i, elems := range []int64{rows * k, n * k, rows * n} {
			mem, err := d.alloc(elems*dt.Size(), device.Private)
			if err != nil {
				t.Fatal(err)
			}
			addrs[i] = mem.addr
		}
		x := make([]float64, rows*k)
		for i := range x {
			x[i] = math.Sin(float64(i))
		}
		x[5*k+3], x[7*k+2], x[9*k] = math.NaN(), math.Inf(1), math.Inf(-1)
		results := map[bool][]float64{}
		for _, relu := range []bool{false, true} {
			g := gemm.Problem{DType: dt, Out: addrs[2], A: addrs[0], B: addrs[1], Batch: 1, M: rows, N: n, K: k, Om: n, On: 1, Am: k, Ak: 1, Bk: 1, Bn: k, Relu: relu}
			err := d.bound(func() error {
				if err := d.site.fill(addrs[1], n*k*dt.Size(), gemm.NoiseOf(dt), 0); err != nil {
					return err
				}
				return d.site.put(addrs[0], dt, x)
			})
			if err != nil {
				t.Fatal(err)
			}
			results[relu] = multiplied(t, d, g, rows*n)
		}
		nans := 0
		for i, v := range results[false] {
			got := results[true][i]
			switch {
			case math.IsNaN(v):
				nans++
				if !math.IsNaN(got) {
					t.Fatalf("%s: element %d is %v, not NaN", dt, i, got)
				}
			case got != math.Max(v, 0) || got == 0 && math.Signbit(got):
				t.Fatalf("%s: element %d is %v, relu of %v", dt, i, got, v)
			}
		}
		if nans == 0 {
			t.Errorf("%s: no NaN among the results", dt)
		}
	}
}

// TestTF32 checks that products of f32 round their operands to TF32 only if that was requested.
func TestTF32(t *testing.T) {
	for _, tf32 := range []bool{false, true} {
		m := real(t, Options{TF32: tf32})
		world, err := m.Open(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		d := world.Device(0).(*dev)
		const n = 512
		var addrs [3]nvlib.Ptr
		for i := range addrs {
			mem, err := d.alloc(n*n*4, device.Private)
			if err != nil {
				t.Fatal(err)
			}
			addrs[i] = mem.addr
		}
		x := make([]float64, n*n)
		for i := range x {
			x[i] = tensor.Round(ir.F32, math.Sin(float64(i)))
		}
		if err := d.bound(func() error {
			return errors.Join(d.site.put(addrs[0], ir.F32, x), d.site.put(addrs[1], ir.F32, x))
		}); err != nil {
			t.Fatal(err)
		}
		g := gemm.Problem{DType: ir.F32, Out: addrs[2], A: addrs[0], B: addrs[1], Batch: 1, M: n, N: n, K: n, Om: n, On: 1, Am: n, Ak: 1, Bk: 1, Bn: n}
		out := multiplied(t, d, g, n*n)
		worst := 0.0
		for i := range n {
			for j := range n {
				want, size := 0.0, 0.0
				for k := range n {
					want += x[i*n+k] * x[j*n+k]
					size += math.Abs(x[i*n+k] * x[j*n+k])
				}
				worst = max(worst, math.Abs(out[i*n+j]-want)/size)
			}
		}
		t.Logf("tf32 %v: off by up to %.2g of the sum of magnitudes", tf32, worst)
		if !tf32 && !(worst < 0x1p-18) || tf32 && !(worst > 0x1p-18 && worst < 0x1p-9) {
			t.Errorf("tf32 %v: off by %g", tf32, worst)
		}
		if err := world.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBiasOnce checks every algorithm that cuBLASLt suggests for a product with a bias. The sums are exact in f32, so
// the results show whether the product is rounded before the bias is added.
func TestBiasOnce(t *testing.T) {
	m := real(t, Options{})
	world, err := m.Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer world.Close()
	d := world.Device(0).(*dev)
	const rows, n, k = 512, 768, 512
	for _, dt := range []ir.DType{ir.BF16, ir.F16} {
		var addrs [4]nvlib.Ptr
		for i, elems := range []int64{rows * k, n * k, rows * n, n} {
			mem, err := d.alloc(elems*dt.Size(), device.Private)
			if err != nil {
				t.Fatal(err)
			}
			addrs[i] = mem.addr
		}
		values := func(count, salt int, step float64) []float64 {
			v := make([]float64, count)
			for i := range v {
				h := uint64(i*7+salt) * 0x9e3779b97f4a7c15 >> 40
				v[i] = []float64{-1, 1}[h&1] * (1 + step*float64(h>>1&1))
			}
			return v
		}
		x, w := values(rows*k, 1, 0x1p-7), values(n*k, 2, 0x1p-7)
		bias := make([]float64, n)
		for i := range bias {
			bias[i] = tensor.Round(dt, float64(i%97)-48+float64(i%5)/8)
		}
		var found []nvlib.LtResult
		var st *gemm.Launch
		if err := d.bound(func() (err error) {
			err = errors.Join(d.site.put(addrs[0], dt, x), d.site.put(addrs[1], dt, w), d.site.put(addrs[3], dt, bias))
			if err != nil {
				return err
			}
			l, ok := gemm.Problem{DType: dt, Out: addrs[2], A: addrs[0], B: addrs[1], Bias: addrs[3], Batch: 1, M: rows, N: n, K: k, Om: n, On: 1, Am: k, Ak: 1, Bk: 1, Bn: k}.CuBLASLt()
			if !ok {
				t.Fatal("cuBLASLt does not take it")
			}
			lib, h, err := d.site.gpu.LtHandle()
			if err != nil {
				return err
			}
			st = d.site.gemms.NewStep(lib, h, l)
			if err = st.Describe(); err != nil {
				return err
			}
			la := st.Layouts
			found, err = lib.Heuristic(h, st.Desc, la[0], la[1], la[2], la[2], nvlib.Wish{Workspace: gemm.WorkspaceBytes, Align: l.Alignments()}, 2*gemm.MostCandidates)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		ws, err := d.alloc(gemm.WorkspaceBytes, device.Private)
		if err != nil {
			t.Fatal(err)
		}
		want := make([]float64, rows*n)
		for i := range want {
			sum := bias[i%n]
			for l := range k {
				sum += x[i/n*k+l] * w[i%n*k+l]
			}
			want[i] = tensor.Round(dt, sum)
		}
		twice := 0
		for c, f := range found {
			var out []float64
			if err := d.bound(func() (err error) {
				p := st.NewProduct(f.Algo, st.Problem.B, st.Problem.A, st.Problem.Out)
				defer p.Free()
				if err = st.Library.Multiply(p, ws.addr, int64(f.Workspace), 0); err == nil {
					out, err = d.site.fetch(addrs[2], dt, rows*n)
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
			wrong := 0
			for i := range want {
				if out[i] != want[i] {
					wrong++
				}
			}
			if wrong > 0 {
				twice++
				t.Logf("%s: algorithm %d rounds before and after adding the bias: %d of %d elements differ", dt, c, wrong, rows*n)
				if c == 0 {
					t.Errorf("%s: the first suggestion rounds before and after adding the bias", dt)
				}
			}
		}
		t.Logf("%s: %d of %d algorithms round before and after adding the bias", dt, twice, len(found))
		st.Free()
		if !slices.Equal(multiplied(t, d, st.Problem.Problem, rows*n), want) {
			t.Errorf("%s: the picked algorithm rounds before and after adding the bias", dt)
		}
	}
}

// multiplied prepares the product g, runs it on a new stream, and returns the elements of the result.
func multiplied(t *testing.T, d *dev, g gemm.Problem, elements int64) []float64 {
	t.Helper()
	st, err := prepareGemm(d, g)
	if err != nil || st == nil {
		t.Fatal(st, err)
	}
	defer st.Free()
	s, err := d.NewStream(device.StreamOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var out []float64
	if err := d.bound(func() error {
		err := errors.Join((gemmLaunch{st}).run(s.(*stream)), d.w.drv.SyncStream(s.(*stream).h))
		if err == nil {
			out, err = d.site.fetch(g.Out, g.DType, elements)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return out
}
