package kernels

import (
	"fmt"
	"strings"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// User is a launch of a user's kernel. The suffix of File determines the language of Code.
type User struct {
	File, Entry string
	Code        []byte
	Shape       nvlib.Shape
	Params      [][]byte
}

// User returns the step that executes u. CUDA C++ is compiled here; PTX is compiled by the driver.
func (l *Library) User(t Target, u User) (Step, error) {
	s := Step{Image: u.Code, Key: keyOf(string(u.Code), nil, "user"), Symbol: u.Entry, Shape: u.Shape, Params: u.Params}
	if !strings.HasSuffix(u.File, ".cu") {
		return s, nil
	}
	var err error
	text := fmt.Sprintf("#line 1 \"%s\"\n%s", u.File, u.Code)
	if s.Image, s.Key, err = l.images.get(code{raw: text, symbol: u.Entry}, t.Arch); err != nil {
		return Step{}, err
	}
	return s, nil
}

// Unchanged describes memory that must not change while a user's kernel runs.
type Unchanged struct {
	Now, Before nvlib.Ptr // address of the bytes, and of a copy of their expected contents
	Bytes       int64
	// Kind and Argument are the kind and the argument in the fault report of a difference. The report counts elements
	// of Size bytes, beginning with First.
	Kind        FaultKind
	Argument    int
	Size, First int64
	Fault       nvlib.Ptr
	Tag         uint64
}

// Unchanged returns the step of a kernel that compares bytes with their expected contents.
func (l *Library) Unchanged(t Target, u Unchanged) (Step, error) { return l.step(t.Arch, u.launch()) }

func (u Unchanged) launch() launch {
	var args words
	args.addr(u.Now, u.Before)
	args.ints(u.Bytes, u.Size, u.First, int64(u.Argument))
	args.bits(uint64(u.Kind))
	args.addr(u.Fault)
	args.bits(u.Tag)
	return launch{blocks: blocksFor(max(1, ceil(u.Bytes, 8))), args: args, code: code{
		files: []string{"sync", "map", "kept"}, symbol: symbol("unchanged"), args: "UnchangedArgs", body: "unchanged"}}
}

// Blank returns the problem of filling memory with a conspicuous pattern: NaNs in float types, and large integers.
func Blank(at nvlib.Ptr, bytes int64) Computation {
	const pattern = 0x7fff7fff
	return Computation{Op: device.Elementwise{Op: ir.OpFill, Numbers: []ir.Number{ir.Whole(pattern)}},
		Out: Operand{Addr: at, DType: ir.I32, Shape: []int64{bytes / 4}, Strides: []int64{1}}}
}
