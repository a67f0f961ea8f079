package kernels

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// bench runs problems on a CPU. It compiles the same source text that a GPU's compiler gets, with a few additional
// definitions, to a program that contains all kernels of the problems.
type bench struct {
	t        *testing.T
	arch     string                                // architecture of the emulated GPU; empty for the newest
	crowded  bool                                  // whether Target.Alone is false
	block    int                                   // size in bytes of a thread block's shared memory; 0 for no limit
	plan     func(Problem, *job) ([]launch, error) // if set, replaces the method plan of the problems
	mem      []byte
	launches []launch
	checks   []func()
}

// memoryAt is the address at which the program has the bench's memory.
const memoryAt = 0x200000000000

func newBench(t *testing.T) *bench { return &bench{t: t} }

// alloc reserves bytes, aligned to 256, that are initially filled with a conspicuous pattern.
func (b *bench) alloc(n int64) nvlib.Ptr {
	at := nvlib.Ptr(memoryAt + len(b.mem))
	for range (n + 255) / 256 * 128 {
		b.mem = append(b.mem, 0xff, 0x7f)
	}
	return at
}

func (b *bench) scratch(n int64, zeros bool) (nvlib.Ptr, error) {
	at := b.alloc(n)
	if zeros {
		clear(b.mem[at-memoryAt:])
	}
	return at, nil
}

// add plans p, and calls f to check the results after everything has run.
func (b *bench) add(what string, p Problem, f func()) {
	b.t.Helper()
	do := Problem.plan
	if b.plan != nil {
		do = b.plan
	}
	j, err := newJob(p, Target{Arch: b.arch, Block: b.block, Alone: !b.crowded, Scratch: b.scratch})
	var l []launch
	if err == nil {
		l, err = do(p, j)
	}
	if err != nil {
		b.t.Errorf("%s: %v", what, err)
		return
	}
	b.launches = append(b.launches, l...)
	b.checks = append(b.checks, f)
}

// run compiles, runs, and checks.
func (b *bench) run() {
	b.t.Helper()
	text, index := b.program()
	exe := b.compile(text)
	var in bytes.Buffer
	for _, v := range []uint64{memoryAt, uint64(len(b.mem))} {
		_ = binary.Write(&in, binary.LittleEndian, v)
	}
	in.Write(b.mem)
	_ = binary.Write(&in, binary.LittleEndian, uint64(len(b.launches)))
	for _, l := range b.launches {
		_ = binary.Write(&in, binary.LittleEndian, []uint64{index[l.code.symbol], uint64(l.blocks), uint64(len(l.args))})
		_ = binary.Write(&in, binary.LittleEndian, []uint64(l.args))
	}
	ctx, cancel := context.WithTimeout(b.t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe)
	cmd.Stdin = &in
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil || out.Len() != len(b.mem) {
		b.t.Fatalf("the kernels failed: %v, %d of %d bytes\n%s", err, out.Len(), len(b.mem), errs.String())
	}
	b.mem = out.Bytes()
	for _, f := range b.checks {
		f()
	}
}

// program returns a program with all kernels, and the numbers of the kernels by symbol.
func (b *bench) program() (string, map[string]uint64) {
	var s, table strings.Builder
	index, files := map[string]uint64{}, map[string]bool{"prelude": true}
	s.WriteString("#include \"emulate.h\"\n" + file("prelude"))
	for _, l := range b.launches {
		c := l.code
		if _, done := index[c.symbol]; done {
			continue
		}
		meets := false
		for _, f := range c.files {
			if !files[f] {
				s.WriteString(file(f))
			}
			files[f] = true
			meets = meets || strings.Contains(file(f), "__syncthreads")
		}
		for _, f := range c.functors {
			if !files[f] {
				s.WriteString(f)
			}
			files[f] = true
		}
		s.WriteString(c.entry())
		index[c.symbol] = uint64(len(index))
		fmt.Fprintf(&table, "{[](const u64* w) { %s(*(const %s*)w); }, %v, %d},\n", c.symbol, c.args, meets, c.size())
	}
	fmt.Fprintf(&s, "#include \"emulate_main.h\"\nEntry entries[] = {\n%s};\n", table.String())
	return s.String(), index
}

func (b *bench) compile(text string) string {
	b.t.Helper()
	cxx, err := exec.LookPath("g++")
	if err != nil {
		b.t.Skip("no g++ to run kernels on the CPU with")
	}
	data, err := filepath.Abs("testdata")
	if err != nil {
		b.t.Fatal(err)
	}
	src, exe := filepath.Join(b.t.TempDir(), "kernels.cc"), filepath.Join(b.t.TempDir(), "kernels")
	if err := os.WriteFile(src, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
	// With -Og, compiling and running together take a fifth less than with -O1. The compilers of some systems add checks
	// to optimized code that fail for jumps between stacks.
	out, err := exec.Command(cxx, "-std=c++17", "-Og", "-fno-exceptions", "-U_FORTIFY_SOURCE", "-Wno-unknown-pragmas", "-I", data, "-o", exe, src).CombinedOutput()
	if err != nil {
		b.t.Fatalf("%v\n%s", err, firstLines(string(out), 30))
	}
	return exe
}

func firstLines(s string, n int) string {
	lines := strings.SplitAfterN(s, "\n", n+1)
	return strings.Join(lines[:min(n, len(lines))], "")
}

// layout returns strides and an offset for a shape, in elements.
type layout struct {
	name string
	lay  func(shape []int64) (strides []int64, off int64)
}

var layouts = []layout{
	{"dense", func(s []int64) ([]int64, int64) { return rowMajor(s), 0 }},
	{"gaps", func(s []int64) ([]int64, int64) { return spaced(s, 3), 5 }},
	{"wide gaps", func(s []int64) ([]int64, int64) { return spaced(s, 16-last(s)%8), 8 }},
	{"reversed", func(s []int64) ([]int64, int64) {
		back := slices.Clone(s)
		slices.Reverse(back)
		strides := rowMajor(back)
		slices.Reverse(strides)
		return strides, 1
	}},
}

func last(s []int64) int64 {
	if len(s) == 0 {
		return 1
	}
	return s[len(s)-1]
}

// spaced returns strides that leave gap unused elements after each innermost row.
func spaced(shape []int64, gap int64) []int64 {
	strides, step := make([]int64, len(shape)), int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = step
		step *= max(shape[i], 1)
		if i == len(shape)-1 {
			step += gap
		}
	}
	return strides
}

// room allocates memory for an operand.
func (b *bench) room(dt ir.DType, l layout, shape ...int64) Operand {
	strides, off := l.lay(shape)
	end := off + 1
	for i, e := range shape {
		end += max(e-1, 0) * strides[i]
	}
	at := b.alloc(end * dt.Size())
	return Operand{Addr: at + nvlib.Ptr(off*dt.Size()), DType: dt, Shape: shape, Strides: strides}
}

// put allocates memory for an operand and writes its elements.
func (b *bench) put(dt ir.DType, l layout, vals []float64, shape ...int64) Operand {
	o := b.room(dt, l, shape...)
	enc := make([]byte, int64(len(vals))*dt.Size())
	tensor.FromFloat64(enc, vals, dt)
	for i, at := range places(o) {
		copy(b.mem[at:], enc[int64(i)*dt.Size():][:dt.Size()])
	}
	return o
}

// places returns, for the elements of o in row-major order, their indices in memory.
func places(o Operand) []int64 {
	at := []int64{int64(o.Addr) - memoryAt}
	for d, n := range o.Shape {
		var next []int64
		for _, a := range at {
			for i := range n {
				next = append(next, a+i*o.Strides[d]*o.DType.Size())
			}
		}
		at = next
	}
	return at
}

// vals returns o's elements.
func (b *bench) vals(o Operand) []float64 {
	size := o.DType.Size()
	at := places(o)
	raw := make([]byte, 0, int64(len(at))*size)
	for _, a := range at {
		raw = append(raw, b.mem[a:a+size]...)
	}
	v := make([]float64, len(at))
	tensor.ToFloat64(v, raw, o.DType)
	return v
}
