package kernels

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// everyCode returns an instance of every template for every type that it supports, except templates that the
// architecture does not use.
func everyCode(t *testing.T, arch string) []code {
	t.Helper()
	var all []code
	add := func(p Problem) {
		l, err := plan(p, Target{Arch: arch, Alone: true, Scratch: func(int64, bool) (nvlib.Ptr, error) { return 256, nil }})
		if err != nil {
			t.Errorf("%s: %v", p, err)
		}
		for _, w := range l {
			if !slices.ContainsFunc(all, func(c code) bool { return c.symbol == w.code.symbol }) {
				all = append(all, w.code)
			}
		}
	}
	x := func(dt ir.DType, l layout, shape ...int64) Operand {
		strides, off := l.lay(shape)
		return Operand{Addr: nvlib.Ptr(1<<20 + off*dt.Size()), DType: dt, Shape: shape, Strides: strides}
	}
	for _, dt := range ir.ArithmeticTypes() {
		for _, inner := range []int64{1, 2, 3, 8} {
			ins := slices.Repeat([]Operand{x(dt, layouts[0], 4, inner)}, 2)
			ins = append(ins, slices.Repeat([]Operand{x(ir.I32, layouts[0], 2)}, 2)...)
			for _, room := range []int64{6, 1 << 30} {
				for _, op := range []ir.Op{ir.OpAllGatherV, ir.OpAllToAllV} {
					add(Computation{Op: device.UnevenMove{Op: op}, Ins: ins, Out: x(dt, layouts[0], room, inner)})
				}
				for red := ir.Sum; red <= ir.Avg; red++ {
					add(Computation{Op: device.UnevenReduce{Red: red, Axis: 0}, Ins: ins,
						Out: x(dt, layouts[0], room, inner)})
				}
			}
		}
		for _, l := range layouts[:2] {
			for op, info := range elementwiseOps() {
				if !info.Floats || !dt.IsInt() {
					add(Computation{Op: device.OpOf(op, ir.Attrs{Numbers: someNumbers}), Out: x(dt, l, 4, 8),
						Ins: slices.Repeat([]Operand{x(dt, l, 4, 8)}, info.MinArgs)})
				}
			}
			for _, to := range ir.ArithmeticTypes() {
				add(Computation{Op: device.Cast{}, Out: x(to, l, 4, 8), Ins: []Operand{x(dt, l, 4, 8)}})
			}
			for _, op := range []ir.Op{ir.OpSum, ir.OpMax, ir.OpMin} {
				add(Computation{Op: device.OpOf(op, ir.Attrs{Axes: []int{1}}), Out: x(dt, l, 4),
					Ins: []Operand{x(dt, l, 4, 8000)}})
				add(Computation{Op: device.OpOf(op, ir.Attrs{Axes: []int{0}}), Out: x(dt, l, 800),
					Ins: []Operand{x(dt, l, 1000, 800)}})
			}
			for _, red := range []ir.Red{ir.Sum, ir.Max, ir.Min, ir.Avg} {
				for _, n := range []int{2, 4, 64} {
					add(Computation{Op: device.ReduceOperands{Red: red}, Out: x(dt, l, 4, 8),
						Ins: slices.Repeat([]Operand{x(dt, l, 4, 8)}, n)})
				}
			}
			add(Computation{Op: device.ReduceSlots{Axis: 0}, Out: x(dt.Accum(), l, 4, 8),
				Ins: []Operand{x(dt, l, 3, 4, 8), x(dt.Accum(), l, 4, 8)}})
			add(Computation{Op: device.Linear{}, Out: x(dt, l, 4, 8),
				Ins: []Operand{x(dt, l, 4, 6), x(dt, l, 8, 6), x(dt, l, 8)}})
			add(Computation{Op: device.GroupedLinear{}, Out: x(dt, l, 4, 8),
				Ins: []Operand{x(dt, l, 4, 64), x(dt, l, 2, 8, 64), x(ir.I32, l, 2)}})
			add(Computation{Op: device.IndexCopy{Axis: 1}, Out: x(dt, l, 2, 9, 8),
				Ins: []Operand{x(dt, l, 2, 3, 8), x(ir.I64, l, 2, 3)}})
			add(Computation{Op: device.IndexCopy{}, Out: x(dt, l, 300, 8),
				Ins: []Operand{x(dt, l, 257, 8), x(ir.I64, l, 257)}})
			add(Computation{Op: device.Iota{Axis: 1}, Out: x(dt, l, 4, 8)})
			add(Computation{Op: device.Sorted{Op: ir.OpTopK}, Out: x(dt, l, 4, 2), Ins: []Operand{x(dt, l, 4, 8)}})
			add(Computation{Op: device.Sorted{Op: ir.OpArgTopK}, Out: x(ir.I32, l, 4, 2),
				Ins: []Operand{x(dt, l, 4, 8)}})
			add(Computation{Op: device.Sorted{Op: ir.OpArgsort}, Out: x(ir.I32, l, 4, 8),
				Ins: []Operand{x(dt, l, 4, 8)}})
			add(Computation{Op: device.TakeAlong{}, Out: x(dt, l, 4, 2),
				Ins: []Operand{x(dt, l, 4, 8), x(ir.I64, l, 4, 2)}})
			if dt.IsInt() {
				add(Computation{Op: device.Bincount{}, Out: x(ir.I32, l, 8), Ins: []Operand{x(dt, l, 4, 8)}})
			}
			add(Computation{Op: device.IndexAdd{Rows: 6}, Out: x(dt, l, 6, 8),
				Ins: []Operand{x(dt, l, 4, 8), x(ir.I64, l, 4)}})
			for _, n := range []int64{8, 1 << 17} {
				add(Computation{Op: device.Argmax{Axis: 1}, Out: x(ir.I32, l, 4), Ins: []Operand{x(dt, l, 4, n)}})
			}
			add(Computation{Op: device.Embedding{Rows: 6}, Out: x(dt, l, 4, 8),
				Ins: []Operand{x(ir.I64, l, 4), x(dt, l, 6, 8)}})
		}
		many := x(dt, layouts[0], 1<<36)
		add(Computation{Op: device.Elementwise{Op: ir.OpAdd}, Out: many, Ins: []Operand{many, many}})
		add(Computation{Op: device.Copy{Op: ir.OpTranspose}, Out: x(dt, layouts[0], 40, 70),
			Ins: []Operand{x(dt, layouts[3], 40, 70)}})
		for width := dt.Size(); width <= 16; width *= 2 {
			from := x(dt, layouts[0], 70)
			from.Addr += nvlib.Ptr(width)
			add(Transfer{Out: x(dt, layouts[0], 70), In: from, Blocks: 2})
		}
		if dt.IsInt() {
			continue
		}
		for _, l := range layouts[:2] {
			add(Computation{Op: device.Chain{Links: []device.Link{
				{Op: ir.OpSilu, Args: []int{0}, DType: dt},
				{Op: ir.OpScale, Args: []int{^0}, DType: dt, Numbers: ir.Reals(2)},
				{Op: ir.OpCast, Args: []int{^1}, DType: ir.BF16}, {Op: ir.OpMul, Args: []int{^2, 1}, DType: ir.BF16}}},
				Out: x(ir.BF16, l, 4, 8), Ins: []Operand{x(dt, l, 4, 8), x(ir.BF16, l, 4, 8)}})
			add(Computation{Op: device.Chain{Links: device.SiluMul(dt).Links, Stored: []int{0}}, Out: x(dt, l, 4, 8),
				Stored: []Operand{x(dt, l, 4, 8)}, Ins: []Operand{x(dt, l, 4, 8), x(dt, l, 4, 8)}})
			for _, n := range []int64{8, 4096} {
				add(Computation{Op: device.Softmax{Axis: 1}, Out: x(dt, l, 4, n), Ins: []Operand{x(dt, l, 4, n)}})
				add(Computation{Op: device.RMSNorm{}, Out: x(dt, l, 4, n), Ins: []Operand{x(dt, l, 4, n), x(dt, l, n)}})
				add(Computation{Op: device.NormGrad{Op: ir.OpRMSNormDX}, Out: x(dt, l, 4, n),
					Ins: []Operand{x(dt, l, 4, n), x(dt, l, n), x(dt, l, 4, n)}})
				add(Computation{Op: device.NormGrad{Op: ir.OpRMSNormDW}, Out: x(dt.Accum(), l, n),
					Ins: []Operand{x(dt, l, 4, n), x(dt, l, 4, n)}})
				add(Computation{Op: device.LayerNorm{}, Out: x(dt, l, 4, n),
					Ins: []Operand{x(dt, l, 4, n), x(dt, l, n), x(dt, l, n)}})
			}
		}
		for _, dh := range []int64{8, 128} {
			q := x(dt, layouts[0], 4, 2, dh)
			add(Computation{Op: device.Rope{Rope: ir.Rope{Theta: 1e4}}, Out: q,
				Ins: []Operand{q, x(ir.I32, layouts[0], 4)}})
			add(Computation{Op: device.Rope{}, Out: q,
				Ins: []Operand{q, x(ir.I32, layouts[0], 4), x(ir.F32, layouts[0], dh/4)}})
			add(Computation{Op: device.Ropes{Rope: device.Rope{Rope: ir.Rope{Theta: 1e4}},
				Parts: []device.RopePart{rotates, both, keeps}},
				Ins: []Operand{q, q, q, x(ir.I32, layouts[0], 4), x(ir.I32, layouts[0], 4)}, Stored: []Operand{q, q}, Out: q})
		}
		for _, dh := range []int64{8, 900} {
			q := x(dt, layouts[1], 4, 2, dh)
			add(Computation{Op: device.Attention{}, Out: q, Ins: []Operand{q, q, q}})
			add(Computation{Op: device.Attention{Softcap: 1}, Out: q, Ins: []Operand{q, q, q}})
		}
		for _, m := range []int64{8, 16} {
			for e := NoEpilogue; e <= SiluMulEpilogue && dt.Size() == 2 && !before80(arch); e++ {
				p := Skinny{Epilogue: e, Out: x(dt, layouts[0], m, 4096),
					Ins: []Operand{x(dt, layouts[0], m, 4096), x(dt, layouts[0], 4096, 4096)}}
				if e == SiluMulEpilogue {
					p.Up = &p.Ins[1]
				}
				add(p)
			}
		}
		for _, dh := range []int64{16, 64, 80, 128} { // on tensor cores
			q := x(dt, layouts[0], 4, 2, dh)
			add(Computation{Op: device.Attention{}, Out: q, Ins: []Operand{q, q, q}})
			k := x(dt, layouts[0], 4000, 2, dh)
			add(Computation{Op: device.Attention{}, Out: q, Ins: []Operand{q, k, k}})
			k = x(dt, layouts[0], 4000, 64, dh)
			add(Computation{Op: device.Attention{}, Out: k, Ins: []Operand{k, k, k}})
			if dt.Size() == 2 && !before80(arch) {
				lse := x(ir.F32, layouts[0], 4000, 64)
				add(Computation{Op: device.Attention{LSE: true}, Out: k, Stored: []Operand{lse}, Ins: []Operand{k, k, k}})
			}
		}
	}
	for i, dt := range f8Types {
		for j, l := range layouts[:2] {
			for _, other := range ir.DTypes() {
				add(Computation{Op: device.Cast{}, Out: x(dt, l, 4, 8), Ins: []Operand{x(other, l, 4, 8)}})
				add(Computation{Op: device.Cast{}, Out: x(other, l, 4, 8), Ins: []Operand{x(dt, l, 4, 8)}})
			}
			for _, from := range []ir.DType{ir.BF16, ir.F16, ir.F32, ir.F64} {
				add(Computation{Op: device.Scales{Max: 448}, Out: x(ir.F32, l, 4, 2), Ins: []Operand{x(from, l, 4, 256)}})
				add(Computation{Op: device.Scales{Max: 448}, Out: x(ir.F32, l), Ins: []Operand{x(from, l, 4, 256)}})
				add(Computation{Op: device.Quantize{}, Out: x(dt, l, 4, 256), Ins: []Operand{x(from, l, 4, 256), x(ir.F32, l, 4, 2)}})
			}
			for _, to := range []ir.DType{ir.BF16, ir.F16, ir.F32} {
				add(Computation{Op: device.Linear{}, Out: x(to, l, 4, 8), Ins: []Operand{x(dt, l, 4, 256),
					x(f8Types[(i+j)%2], l, 8, 256), x(ir.F32, l, 4, 2), x(ir.F32, l, 1, 2)}})
			}
			add(Computation{Op: device.Copy{Op: ir.OpCopy}, Out: x(dt, l, 4, 8), Ins: []Operand{x(dt, layouts[1], 4, 8)}})
		}
		add(Computation{Op: device.Copy{Op: ir.OpTranspose}, Out: x(dt, layouts[0], 40, 70), Ins: []Operand{x(dt, layouts[3], 40, 70)}})
		add(Transfer{Out: x(dt, layouts[0], 71), In: x(dt, layouts[1], 71), Blocks: 2})
	}
	all = append(all, Unchanged{}.launch().code, flagJoin(nil).code, orderly("poison", "PoisonArgs", 1, nil).code)
	all = append(all, wiredLaunch("raise", "RaiseArgs", raiseWords).code,
		wiredLaunch("await", "AwaitArgs", awaitWords).code)
	all = append(all, everyReduction()...)
	all = append(all, everyMultimem()...)
	slices.SortFunc(all, func(a, b code) int { return strings.Compare(a.symbol, b.symbol) })
	return all
}

// everyReduction returns an instance of every kind of all_reduce, for every type and every number of members.
func everyReduction() (all []code) {
	for k, kind := range slices.Concat(reduceKinds, lamportKinds) {
		for i, dt := range ir.ArithmeticTypes() {
			if k >= len(reduceKinds) && !Spares(dt) {
				continue
			}
			n := 2 + (i+k)%(TeamMost-1)
			r := AllReduce{By: kind, DType: dt, Red: ir.Sum + ir.Red((i+k)%4), Unroll: 1 << (i % 3), Threads: 64,
				In: make([]nvlib.Ptr, n), Out: make([]nvlib.Ptr, n)}
			for off := range 2 {
				r.In[0] = nvlib.Ptr(16 + int64(off)*dt.Size())
				c := r.Meeting(0).launch().code
				if !slices.ContainsFunc(all, func(o code) bool { return o.symbol == c.symbol }) {
					all = append(all, c)
				}
			}
		}
	}
	two := make([]nvlib.Ptr, 2)
	for i, dt := range ir.ArithmeticTypes() {
		r := AllReduce{By: AllReduceHost{}, DType: dt, Red: ir.Sum + ir.Red(i%4), Unroll: 1 << (i % 3), In: two,
			Out: two}
		all = append(all, r.Meeting(0).launch().code)
		for _, kind := range []ReduceBy{AllReduceScatter{}, AllReduceAddends{}} {
			r.By = kind
			all = append(all, r.Meeting(0).launch().code)
		}
		r.By, r.In = AllReduceResults{}, make([]nvlib.Ptr, 3+i%(TeamMost-2))
		r.Out = r.In
		all = append(all, r.Meeting(0).launch().code)
	}
	for i, dt := range []ir.DType{ir.BF16, ir.F16, ir.F32} {
		r := AllReduce{By: AllReduceLamportHost{}, DType: dt, Red: ir.Sum + ir.Red(i), Unroll: 1 << i, In: two,
			Out: two}
		all = append(all, r.Meeting(0).launch().code)
		r.By, r.In = AllReduceLamportResults{}, make([]nvlib.Ptr, 3+i)
		r.Out = r.In
		all = append(all, r.Meeting(0).launch().code)
	}
	s := gatherByPackets(3)
	for i, dt := range append(ir.ArithmeticTypes(), ir.F8E4M3) {
		if s.Op = ir.OpAllReduce; i == len(ir.ArithmeticTypes()) {
			s.Op = ir.OpAllGather // all_gather is compiled for any element type
		}
		all = append(all, Scheduled{Schedule: s, DType: dt, Cell: 16, Threads: 32}.Meeting(0).launch().code)
	}
	for i, dt := range []ir.DType{ir.BF16, ir.F16, ir.F32} {
		for _, packs := range []int64{200, 2048} {
			for _, members := range []int{1, 2 + i} {
				all = append(all, ReduceNorm{DType: dt, Members: members, Packs: packs}.Meeting().launch().code)
			}
		}
	}
	return all
}

// together returns one source with many kernels.
func together(codes []code) string {
	var s, entries strings.Builder
	s.WriteString(file("prelude"))
	done := map[string]bool{}
	for _, c := range codes {
		for _, f := range c.files {
			if !done[f] {
				done[f] = true
				s.WriteString(file(f))
			}
		}
		for _, f := range c.functors {
			if !done[f] {
				done[f] = true
				entries.WriteString(f)
			}
		}
		entries.WriteString(c.entry())
	}
	return s.String() + entries.String()
}

func TestFilesAreThere(t *testing.T) {
	for _, c := range everyCode(t, "sm_90a") {
		if text := c.text(); strings.Contains(text, "#error") {
			t.Errorf("%s: a file of %v is missing", c.symbol, c.files)
		}
	}
}

// TestSettle checks that kernels that may begin before the previous kernel has ended wait for its end. Only kernels of
// teams wait in their own code, and the kernel that raises and awaits flags between graphs never begins early.
func TestSettle(t *testing.T) {
	for _, c := range everyCode(t, "sm_90a") {
		if slices.Contains(c.files, "collective") || c.body == "join" {
			continue
		}
		if c.settles {
			waits := map[string]string{"skinny": "if (a.constant) settle();", "flash_split": "\n  settle();\n"}
			last := c.files[len(c.files)-1]
			if waits[last] == "" || !strings.Contains(file(last), waits[last]) {
				t.Errorf("%s does not wait by itself", c.symbol)
			}
			continue
		}
		begin := "{\n  settle();\n"
		if c.lets {
			begin = "{\n  letIfSmall();\n  settle();\n"
		}
		if _, body, _ := strings.Cut(c.entry(), "KERNEL"); !strings.Contains(body, begin) {
			t.Errorf("%s does not wait: %s", c.symbol, c.entry())
		}
	}
}

// TestLets checks which kernels permit the next kernel to begin early: the small kernels between the linears of a
// decode step. The kernels that attend to many queries do not permit it.
func TestLets(t *testing.T) {
	lets := map[string]bool{"flashSplit": true, "flashJoin": true, "rope": true, "positions": true, "indexCopy": true}
	found := map[string]bool{}
	for _, c := range everyCode(t, "sm_90a") {
		name, _, _ := strings.Cut(c.body, "<")
		if found[name] = true; c.lets != lets[name] {
			t.Errorf("%s permits the next kernel to begin early: %v, want %v", c.symbol, c.lets, lets[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(lets)) {
		if !found[name] {
			t.Errorf("no kernel %s", name)
		}
	}
}

// TestClang compiles the sources by a compiler that supports CUDA, without a toolkit.
func TestClang(t *testing.T) {
	clang, err := exec.LookPath("clang++")
	if err != nil {
		t.Skip("no clang++ to check CUDA sources with")
	}
	src := filepath.Join(t.TempDir(), "kernels.cu")
	for _, arch := range []string{"sm_70", "sm_80", "sm_90a"} {
		if err := os.WriteFile(src, []byte(together(everyCode(t, arch))), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(clang, "-x", "cuda", "--cuda-gpu-arch="+min(arch, "sm_80"), "-nocudainc", "-nocudalib",
			"--cuda-device-only", "-fsyntax-only", "-std=c++17",
			"-Wall", "-Werror", "-Wno-unknown-cuda-version", "-include", filepath.Join("testdata", "device.h"), src)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, firstLines(string(out), 40))
		}
	}
}

// TestNVRTC compiles the sources to machine code with NVIDIA's compiler, which needs no GPU.
func TestNVRTC(t *testing.T) {
	n, err := nvlib.OpenNVRTC()
	if err != nil {
		t.Skipf("no NVRTC to compile with: %v", err)
	}
	hopper := everyCode(t, "sm_90a")
	older := slices.DeleteFunc(everyCode(t, "sm_80"), func(c code) bool {
		return slices.ContainsFunc(hopper, func(o code) bool { return o.id() == c.id() })
	})
	if len(older) == 0 {
		t.Error("no code is for Hopper only")
	}
	if testing.Short() {
		hopper = hopper[:20]
	}
	// Warnings are permitted, because some kernels use only some of the helpers, and some instances have no elements.
	// CUDA 12 warns about unused functions, about loops that never run, and about comparisons that are never true.
	options := []string{"--std=c++17", "--diag-suppress=177,128,186"}
	for arch, codes := range map[string][]code{"sm_90a": hopper, "sm_80": older} {
		image, log, err := Using(n).Compile(together(codes), append(options, "--gpu-architecture="+arch))
		if err != nil {
			t.Fatalf("%s: %s", arch, firstLines(err.Error(), 40))
		}
		t.Logf("%s: %d kernels, %d bytes", arch, len(codes), len(image))
		if log != "" {
			t.Errorf("%s: %s", arch, firstLines(log, 4000))
		}
	}
}
