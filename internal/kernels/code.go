package kernels

import (
	"embed"
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

//go:embed src/*.cuh
var sources embed.FS

// code is an instance of the templates of a file.
type code struct {
	files []string // without prelude, in order
	// functors are the elementwise operations that it uses, defined after the files; each is there once.
	functors []string
	own      string // what is written for this instance alone, after the functors
	symbol   string
	args     string // the type of the argument: "MapArgs<2, 1>"
	body     string // the function with its template arguments: "map<OpAdd, …>"
	// threads is how many a block of a team's kernel has at most; 0 for other kernels.
	threads int
	// block is how many threads a block has, 0 for the usual; residents how many blocks a
	// multiprocessor is to hold, 0 for any.
	block, residents int
	// settles: the body waits by itself for the kernel before it, before it touches what that may write.
	settles bool
	raw     string // the whole text, where it is not made of files
}

// id identifies an instance: it has everything that the text depends on, except the contents of the files.
func (c code) id() string {
	return fmt.Sprintf("%s\x00%s\x00%s\x00%s\x00%s\x00%s\x00%d\x00%d\x00%d\x00%v\x00%s", strings.Join(c.files, " "), strings.Join(c.functors, ""), c.own, c.symbol, c.args, c.body, c.threads, c.block, c.residents, c.settles, c.raw)
}

// text is the complete source.
func (c code) text() string {
	if c.raw != "" {
		return c.raw
	}
	var b strings.Builder
	for _, f := range append([]string{"prelude"}, c.files...) {
		b.WriteString(file(f))
	}
	b.WriteString("\n" + strings.Join(c.functors, ""))
	b.WriteString(c.entry())
	return b.String()
}

func (c code) entry() string {
	if c.threads != 0 {
		return fmt.Sprintf("%s\nextern \"C\" __global__ void __launch_bounds__(%d) %s(const %s a) { %s(a); }\n", c.own, c.threads, c.symbol, c.args, c.body)
	}
	kernel := "KERNEL"
	if c.block > 0 || c.residents > 0 {
		kernel = fmt.Sprintf("KERNEL_OF(%d, %d)", c.size(), max(1, c.residents))
	}
	wait := "  settle();\n"
	if c.settles {
		wait = ""
	}
	return fmt.Sprintf("%s\n%s %s(const %s a) {\n%s  %s(a);\n}\n", c.own, kernel, c.symbol, c.args, wait, c.body)
}

// size is how many threads a block has.
func (c code) size() int {
	if c.block > 0 {
		return c.block
	}
	return threads
}

// file is an embedded source. That every name is there is the tests' business.
func file(name string) string {
	b, err := sources.ReadFile("src/" + name + ".cuh")
	if err != nil {
		return "#error " + err.Error() + "\n"
	}
	return string(b)
}

// ctype is the name of an element type in sources.
func ctype(dt ir.DType) string { return dt.String() }

// rawType is an unsigned integer as large as dt: for bits that are only moved.
func rawType(dt ir.DType) string { return fmt.Sprint("u", 8*dt.Size()) }

// fnType is the type that functions of dt are computed in.
func fnType(dt ir.DType) string {
	if dt.Size() <= 2 {
		return "f32"
	}
	return "f64"
}

// words is a kernel's argument: 8 bytes each, in the order of the structure.
type words []uint64

func (w *words) addr(vs ...nvlib.Ptr) {
	for _, v := range vs {
		*w = append(*w, uint64(v))
	}
}

func (w *words) bits(v uint64) { *w = append(*w, v) }

func (w *words) ints(vs ...int64) {
	for _, v := range vs {
		*w = append(*w, uint64(v))
	}
}

func (w *words) float(v float64) { *w = append(*w, math.Float64bits(v)) }

func (w words) bytes() []byte {
	b := make([]byte, 0, 8*len(w))
	for _, v := range w {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}
