package cuda

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/ir"
)

// userSource has a correct kernel, and kernels with undeclared accesses.
const userSource = `
extern "C" __global__ void scale(const float* x, float* y, long long n, float s) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = s * x[i];
}
extern "C" __global__ void meddle(float* x, float* y, long long n, float s) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = s * x[i];
  if (i == 1) x[i] = 7;
}
extern "C" __global__ void overrun(const float* x, float* y, long long n, float s) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = s * x[i];
  if (i == 0) y[n + 4] = 1;
}
extern "C" __global__ void peek(const float* x, float* y, long long n, float s) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = s * x[i] + (i == 2 ? y[i] : 0.0f);
}`

// userPTX is PTX code, for any GPU, of a kernel that stores s to y[0].
const userPTX = `.version 7.0
.target sm_50
.address_size 64
.visible .entry put(.param .u64 y, .param .f32 s)
{
	.reg .b64 %rd<3>;
	.reg .f32 %f<2>;
	ld.param.u64 %rd1, [y];
	ld.param.f32 %f1, [s];
	cvta.to.global.u64 %rd2, %rd1;
	st.global.f32 [%rd2], %f1;
	ret;
}
`

// users returns the kernels of the test's files as Go functions.
func users() map[string]func([][]byte) {
	word := func(p [][]byte, i int) uintptr { return uintptr(binary.LittleEndian.Uint64(p[i])) }
	float := func(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }
	scale := func(p [][]byte, peeks bool) {
		for i := range word(p, 2) {
			y := float(p[3]) * cabi.Load[float32](word(p, 0)+4*i)
			if peeks && i == 2 {
				y += cabi.Load[float32](word(p, 1) + 4*i)
			}
			cabi.Store(word(p, 1)+4*i, y)
		}
	}
	return map[string]func([][]byte){
		"u.cu:scale": func(p [][]byte) { scale(p, false) },
		"u.cu:peek":  func(p [][]byte) { scale(p, true) },
		"u.cu:overrun": func(p [][]byte) {
			scale(p, false)
			cabi.Store(word(p, 1)+4*(word(p, 2)+4), float32(1))
		},
		"u.cu:meddle": func(p [][]byte) { scale(p, false); cabi.Store(word(p, 0)+4, float32(7)) },
		"u.ptx:put":   func(p [][]byte) { cabi.Store(word(p, 0), float(p[1])) },
	}
}

// TestUserKernels launches kernels of the user on the fake driver.
func TestUserKernels(t *testing.T) {
	f := fakedriver.New(t, 1)
	f.Users = users()
	userKernels(t, newMachine(system(f), Options{Kernels: f}))
}

// TestRealUserKernels is TestUserKernels on a GPU.
func TestRealUserKernels(t *testing.T) {
	m := real(t, Options{})
	userKernels(t, m)
	w, _ := streamed(t, m, 1, "main")
	defer func() { _ = w.Close() }()
	mem, err := w.Device(0).Alloc(1<<10, device.Private)
	mustOf(t)(err)
	x := device.Dense(mem, ir.F32, []int64{64})
	for want, u := range map[string]device.UserKernel{
		"4 arguments, and gets 2": {File: "u.cu", Entry: "scale"},
		"named symbol not found":  {File: "u.cu", Entry: "none"},
		`identifier "oops"`: {File: "u.cu", Entry: "scale",
			Code: []byte("extern \"C\" __global__ void scale(float* y) {\n  y[0] = oops;\n}")},
		"u.cu(2)": {File: "u.cu", Entry: "scale",
			Code: []byte("extern \"C\" __global__ void scale(float* y) {\n  y[0] = oops;\n}")},
		"parameter 1 has 4 bytes": {File: "u.ptx", Entry: "put", Code: []byte(userPTX),
			Params: []device.UserParam{{In: -1, Out: 0}, {In: -1, Out: -1, DType: ir.F64}}},
	} {
		if u.Code == nil {
			u.Code = []byte(userSource)
		}
		if u.Params == nil {
			u.Params = []device.UserParam{{In: -1, Out: 0}, {In: -1, Out: -1, DType: ir.I32}}
		}
		u.Grid, u.Block = [3]int64{1, 1, 1}, [3]int64{1, 1, 1}
		_, err := w.Device(0).Prepare(device.Kernel{Op: &u, Outs: []device.View{x}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

func userKernels(t *testing.T, m *machine) {
	const n = 300
	must := mustOf(t)
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(i) - 7
	}
	run := func(entry string, checked, graph bool) ([]float32, error) {
		w, streams := streamed(t, m, 1, "main")
		defer func() { must(w.Close()) }()
		s := streams[0]
		tensor := func() device.View {
			mem, err := w.Device(0).Alloc(4*n, device.Private)
			must(err)
			return device.View{Mem: mem, DType: ir.F32, Shape: []int64{n}, Strides: strided.RowMajor([]int64{n})}
		}
		in, out := tensor(), tensor()
		l, err := w.Device(0).Prepare(device.Kernel{Op: &device.UserKernel{
			File: "u.cu", Entry: entry, Code: []byte(userSource), Grid: [3]int64{2, 1, 1},
			Block:   [3]int64{256, 1, 1},
			Checked: checked,
			Params: []device.UserParam{{In: 0, Out: -1}, {In: -1, Out: 0},
				{In: -1, Out: -1, DType: ir.I64, Bits: n},
				{In: -1, Out: -1, DType: ir.F32, Bits: math.Float64bits(1.5)}}}, Ins: []device.View{in}, Outs: []device.View{out}})
		must(err)
		must(s.Upload(in, bytesOf(x)))
		must(s.Upload(out, make([]byte, 4*n)))
		must(w.Sync(t.Context()))
		if graph {
			g, err := w.Capture(func() error { return errors.Join(s.Begin(3), s.Launch(l), s.End(3)) })
			must(err)
			for range 2 {
				must(g.Launch(t.Context()))
			}
		} else {
			must(errors.Join(s.Begin(3), s.Launch(l), s.End(3)))
		}
		if err := w.Sync(t.Context()); err != nil {
			return nil, err
		}
		b := make([]byte, 4*n)
		must(s.Download(b, out))
		must(w.Sync(t.Context()))
		got := make([]float32, n)
		for i := range got {
			got[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		}
		return got, nil
	}
	want := make([]float32, n)
	for i := range want {
		want[i] = 1.5 * x[i]
	}
	for _, graph := range []bool{false, true} {
		for _, checked := range []bool{false, true} {
			if got, err := run("scale", checked, graph); err != nil || !slices.Equal(got, want) {
				t.Errorf("scale, checked %v, graph %v: %v, %v", checked, graph, got, err)
			}
		}
		if got, err := run("peek", false, graph); err != nil || got[2] != got[2] {
			t.Errorf("peek, unchecked: %v, %v", got, err)
		}
		if got, err := run("peek", true, graph); err != nil || got[2] == got[2] || got[3] != want[3] {
			t.Errorf("peek, checked: reads of an output should return NaN, got %v, %v", got, err)
		}
		for entry, says := range map[string]string{"meddle": "it writes element 1 of argument 0",
			"overrun": "beyond the end of argument 1, by at least 17 bytes"} {
			_, err := run(entry, true, graph)
			var fault *device.Fault
			if !errors.As(err, &fault) || fault.Rank != 0 || fault.ID != 3 ||
				!strings.Contains(err.Error(), "u.cu:"+entry+": ") || !strings.Contains(err.Error(), says) {
				t.Errorf("%s, checked: %v", entry, err)
			}
		}
	}
	w, s := streamed(t, m, 1, "main")
	mem, err := w.Device(0).Alloc(4, device.Private)
	must(err)
	out := device.Dense(mem, ir.F32, nil)
	l, err := w.Device(0).Prepare(device.Kernel{Op: &device.UserKernel{File: "u.ptx", Entry: "put", Code: []byte(userPTX),
		Grid: [3]int64{1, 1, 1}, Block: [3]int64{1, 1, 1},
		Params: []device.UserParam{{In: -1, Out: 0},
			{In: -1, Out: -1, DType: ir.F32, Bits: math.Float64bits(-2.5)}}}, Outs: []device.View{out}})
	must(err)
	b := make([]byte, 4)
	must(errors.Join(s[0].Launch(l), s[0].Download(b, out), w.Sync(t.Context())))
	if got := math.Float32frombits(binary.LittleEndian.Uint32(b)); got != -2.5 {
		t.Errorf("PTX: got %v", got)
	}
	must(w.Close())
}

func bytesOf(x []float32) []byte {
	var b []byte
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}
