package kernels

import (
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// TestSkinnyNVRTC compiles two kernels to machine code: the kernel for few rows with 8-bit weights, in every form that
// it has, and the kernel for scales and values.
func TestSkinnyNVRTC(t *testing.T) {
	n, err := nvlib.OpenNVRTC()
	if err != nil {
		t.Skipf("no NVRTC to compile with: %v", err)
	}
	var text strings.Builder
	for _, name := range []string{"prelude", "map", "warp", "gemm", "skinny", "scaled", "quantize"} {
		text.WriteString(file(name))
	}
	at := func(dt ir.DType, shape ...int64) Operand {
		return Operand{Addr: 1 << 20, DType: dt, Shape: shape, Strides: rowMajor(shape)}
	}
	var seen []string
	for _, dt := range []ir.DType{ir.BF16} {
		for _, m := range []int64{1, 8, 16, 64} {
			for _, k := range []int64{1024, 16384} {
				one, sw, w := at(ir.F32), at(ir.F32, 2, k/128), at(ir.F8E4M3, 256, k)
				for _, p := range []Skinny{{}, {Epilogue: SiluMulEpilogue, Up: &w, UpScales: &sw},
					{More: []SkinnyPart{{Weight: w, Out: at(dt, m, 256), Scales: &sw}}}} {
					p.Ins, p.Out, p.Sliced = []Operand{at(dt, m, k), w, one, sw}, at(dt, m, 256), m > 32
					l, err := plan(p, Target{Arch: "sm_90a", SMs: 132, Block: 227 << 10})
					if err != nil {
						t.Fatal(err)
					}
					if c := l[0].code; !slices.Contains(seen, c.symbol) {
						seen = append(seen, c.symbol)
						text.WriteString(c.entry())
					}
				}
			}
		}
	}
	for _, to := range f8Types {
		p := Computation{Op: device.Quantize{Max: 448}, Ins: []Operand{at(ir.BF16, 8, 256), at(ir.F32, 8, 2)}, Out: at(to, 8, 256)}
		l, err := plan(p, Target{Arch: "sm_90a", SMs: 132, Block: 227 << 10})
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString(l[0].code.entry())
	}
	image, log, err := Using(n).Compile(text.String(), []string{"--gpu-architecture=sm_90a", "--std=c++17"})
	if err != nil {
		t.Fatal(firstLines(err.Error(), 40))
	}
	t.Logf("%d kernels, %d bytes\n%s", len(seen), len(image), log)
}
