package kernels

import (
	"fmt"
	"math"
	"strings"

	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// User is a launch of a kernel of the user's. File says by its ending what Code is.
type User struct {
	File, Entry string
	Code        []byte
	Shape       nvlib.Shape
	Params      [][]byte
}

// User returns the step that does u: CUDA C++ is compiled, PTX is left to the driver.
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

// Unchanged says with which of a kernel's arguments a tensor was given to it, and where a copy of what it held
// then is.
type Unchanged struct {
	Now, Before Operand
	Argument    int
	Fault       nvlib.Ptr
	Tag         uint64
}

// Unchanged returns the step that compares a tensor without gaps with what it held, byte by byte, and reports
// where they differ.
func (l *Library) Unchanged(t Target, u Unchanged) (Step, error) {
	bytes := u.Now.elements() * u.Now.DType.Size()
	var args words
	args.addr(u.Now.Addr, u.Before.Addr)
	args.ints(bytes, u.Now.DType.Size(), int64(u.Argument))
	args.addr(u.Fault)
	args.bits(u.Tag)
	return l.step(t.Arch, unchanged(args, bytes))
}

func unchanged(args words, bytes int64) launch {
	return launch{blocks: blocksFor(max(1, ceil(bytes, 8))), args: args, code: code{files: []string{"sync", "map", "kept"},
		symbol: symbol("unchanged"), args: "UnchangedArgs", body: "unchanged"}}
}

// Blank is what fills a tensor that a kernel is to write, where undeclared reads are looked for: NaNs, or
// large integers.
func Blank(o Operand) Problem {
	p := Problem{Op: ir.OpFill, Out: o, Value: math.NaN()}
	if o.DType.IsInt() {
		p.Int, p.HasInt = 0x7fffffff, true
	}
	return p
}
