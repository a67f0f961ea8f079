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

// code describes the source of one kernel: an instance of the templates of some source files.
type code struct {
	files []string // without prelude, in order
	// functors holds the definitions of the elementwise operations that the instance uses. The definitions follow the
	// files, and each occurs once.
	functors []string
	own      string // source text for this instance only, after the functors
	symbol   string
	args     string // type of the kernel's argument: "MapArgs<2, 1>"
	body     string // name of the function that the kernel calls, with template arguments: "map<OpAdd, …>"
	// threads is the largest number of threads of a block, for kernels of teams; 0 for other kernels.
	threads int
	// block is the number of threads of a block; 0 means the usual number. The field residents is the number of thread
	// blocks that must fit on a multiprocessor at once; 0 means any.
	block, residents int
	// cluster is the number of thread blocks of a cluster: see cluster.cuh. 0 and 1 mean that there are no clusters.
	cluster int
	// settles reports whether the body itself waits for the end of the previous kernel. It must do so before it
	// accesses memory that the previous kernel may write.
	settles bool
	// lets reports whether the kernel permits the next one to begin early, if it has few blocks: see letIfSmall.
	lets bool
	raw  string // the complete source, if it does not consist of files
}

// id identifies an instance. The id contains everything on which the source's text depends, except the contents of the
// files.
func (c code) id() string {
	return strings.Join([]string{strings.Join(c.files, " "), strings.Join(c.functors, ""), c.own, c.symbol, c.args, c.body,
		fmt.Sprint(c.threads, c.block, c.residents, c.cluster, c.settles, c.lets), c.raw}, "\x00")
}

// text returns the complete source.
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
	if c.cluster > 1 {
		kernel += fmt.Sprintf(" __cluster_dims__(%d, 1, 1)", c.cluster)
	}
	begin := ""
	if c.lets {
		begin = "  letIfSmall();\n"
	}
	if !c.settles {
		begin += "  settle();\n"
	}
	return fmt.Sprintf("%s\n%s %s(const %s a) {\n%s  %s(a);\n}\n", c.own, kernel, c.symbol, c.args, begin, c.body)
}

// size returns the number of threads of a thread block of the kernel.
func (c code) size() int {
	if c.block > 0 {
		return c.block
	}
	return threads
}

// file returns an embedded source. Tests check that all names of files exist.
func file(name string) string {
	b, err := sources.ReadFile("src/" + name + ".cuh")
	if err != nil {
		return "#error " + err.Error() + "\n"
	}
	return string(b)
}

// ctype returns the name of an element type in the sources.
func ctype(dt ir.DType) string { return dt.String() }

// rawType returns the unsigned integer type, in the sources, of the same size as dt, for elements that are moved but
// not computed with.
func rawType(dt ir.DType) string { return fmt.Sprint("u", 8*dt.Size()) }

// fnType returns the type in which functions such as exp are computed for dt.
func fnType(dt ir.DType) string {
	if dt.Size() <= 2 {
		return "f32"
	}
	return "f64"
}

// words is the argument of a kernel, as words of 8 bytes in the order of the structure's fields.
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
