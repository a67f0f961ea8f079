package kernels

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// Skinny is how a linear of 1 to 32 rows is computed by a kernel that takes as long as
// the weight takes to read. Ins are x, the weight, and the bias if there is one.
type Skinny struct {
	Ins      []Operand
	Out      Operand
	Epilogue Epilogue
	// Constant: no kernel that may still be running when this one begins writes a
	// weight. They are then read before the kernel before this one has ended.
	Constant bool
	// Up, of SiluMulEpilogue, is the weight whose products multiply, of the other's shape.
	Up *Operand
	// Sliced takes x of any number of rows: of each the bits that it has alone.
	Sliced bool
	// More are further linears of x without a bias, with no epilogue: rows of all results have the bits that they have
	// alone.
	More []SkinnyPart
}

// SkinnyPart is a weight and the result of x by it.
type SkinnyPart struct{ Weight, Out Operand }

// MostSkinnyParts is how many linears of one x are one launch, at most.
const MostSkinnyParts = 3

// Epilogue is what is done to a product before it is stored. All of them have the bits
// that separate operations have.
type Epilogue int

const (
	NoEpilogue Epilogue = iota
	ReluEpilogue
	// SiluMulEpilogue multiplies silu of the product by the product by Skinny.Up. There is no bias.
	SiluMulEpilogue
)

var epilogueNames = []string{"skinnyStore", "skinnyRelu", "skinnySiluMul"}

const (
	skinnyRows  = 32 // of a block, at most
	skinnyWarps = 8  // of a block. Bits depend on it.
	// skinnyTurn is how many columns a warp takes at a time.
	skinnyTurn = 64
	// skinnyMost bounds extents, which the kernel counts in 32 bits.
	skinnyMost = 1 << 30
	// skinnyRoom is how much shared memory a block may take so that a multiprocessor of
	// Hopper holds two.
	skinnyRoom = 112 << 10
)

// skinnyForm is a choice on which no bit depends: how many times eight rows of the weight a
// block has, and for how many turns of its warps it has room.
type skinnyForm struct{ tiles, steps int64 }

// shared is the shared memory of a block, for rows of x.
func (f skinnyForm) shared(rows int64) int64 {
	return skinnyWarps * f.steps * (8*f.tiles + rows) * skinnyTurn * 2
}

// forms lists the forms for a linear, the best first: up to 16 rows measured on an H100, bf16. Blocks that
// fill a multiprocessor alone read x less often. They pay where each has many turns, and, with
// more than eight rows, where they spread the weight evenly over all multiprocessors at once. Of 32 rows x comes from
// the L2 cache as often as there are blocks, so there are as few as fill the multiprocessors.
func (s *skinnyLinear) forms(sms int64) []skinnyForm {
	plain := s.how.Epilogue != SiluMulEpilogue
	switch {
	case s.rows == 32 && plain && s.n <= 16*sms:
		return []skinnyForm{{2, 4}, {2, 2}}
	case s.rows == 32 && plain && s.n <= 24*sms:
		return []skinnyForm{{3, 3}, {2, 2}}
	case s.rows == 32 && plain && s.n <= 32*sms:
		return []skinnyForm{{4, 3}, {2, 2}}
	case s.rows == 32:
		return []skinnyForm{{8, 2}, {4, 2}, {2, 2}}
	case s.rows == 8 && plain && s.k >= 8*skinnyWarps*skinnyTurn:
		return []skinnyForm{{4, 5}, {2, 4}, {2, 2}}
	case s.rows == 8:
		return []skinnyForm{{2, 4}, {2, 2}}
	case plain && 16*sms < s.n && s.n <= 24*sms:
		return []skinnyForm{{3, 5}, {2, 3}, {2, 2}}
	}
	return []skinnyForm{{2, 3}, {2, 2}}
}

// skinnyLinear is a linear as its kernel takes it: out[m, n] = x[m, k]·w[n, k].
type skinnyLinear struct {
	how     Skinny
	dt      ir.DType
	m, n, k int64 // n of all parts together
	rows    int64 // of a block: 8, 16 or 32
	x       nvlib.Ptr
	xm      int64
	parts   []skinnyPart
}

// skinnyPart is SkinnyPart of the source, but for its first block.
type skinnyPart struct {
	out, w, up, bias nvlib.Ptr
	n, om, wn, upn   int64
}

func (Skinny) String() string { return ir.OpLinear.String() }

func (s Skinny) operands() (Operand, []Operand) { return s.Out, s.Ins }

// newSkinny returns how as the kernel takes it. The error wraps device.ErrUnsupported where it does
// not.
func newSkinny(how Skinny, j *job) (*skinnyLinear, error) {
	s := &skinnyLinear{how: how, dt: j.Out.DType}
	if s.how.Epilogue < NoEpilogue || s.how.Epilogue > SiluMulEpilogue {
		return nil, fmt.Errorf("there is no epilogue %d", s.how.Epilogue)
	}
	ins := j.Ins
	var shapes [][]int64
	for _, in := range ins {
		shapes = append(shapes, in.Shape)
	}
	if err := device.CheckLinear(j.Out.Shape, shapes); err != nil {
		return nil, err
	}
	if err := j.alike(); err != nil {
		return nil, err
	}
	x, w := ins[0], ins[1]
	last := len(x.Shape) - 1
	s.m, s.k = 1, x.Shape[last]
	for _, n := range x.Shape[:last] {
		s.m *= n
	}
	if err := s.checkParts(j, ins); err != nil {
		return nil, err
	}
	for _, o := range s.outs(j) {
		s.n += o.Shape[last]
	}
	if s.m == 0 || s.n == 0 {
		return s, nil
	}
	switch {
	case before80(j.arch):
		return refuseSkinny(j.arch)
	case s.dt.Size() != 2:
		return refuseSkinny(s.dt.String())
	case s.m > skinnyRows && !s.how.Sliced || s.m > skinnyMost || s.n > skinnyMost || s.k > skinnyMost:
		return refuseSkinny(fmt.Sprintf("%dx%dx%d", s.m, s.n, s.k))
	case s.k == 0 || s.k%8 != 0:
		return refuseSkinny(fmt.Sprintf("rows of %d elements, no multiple of 8", s.k))
	}
	all := append(s.outs(j), x)
	strides := make([][]int64, len(all))
	for i, o := range all {
		if o.Strides[last] != 1 && o.Shape[last] > 1 {
			return refuseSkinny("elements with gaps")
		}
		strides[i] = o.Strides[:last]
	}
	lead := shared(x.Shape[:last], strides...)
	if len(lead) == 0 {
		lead = []axis{{1, make([]int64, len(all))}}
	}
	if len(lead) > 1 {
		return refuseSkinny("rows at irregular distances")
	}
	step, parts := lead[0].s, 1+len(s.how.More)
	if !moves16(x.Addr, s.m, step[parts]) {
		return refuseSkinny("rows that do not begin at multiples of 16 bytes")
	}
	s.x, s.xm = x.Addr, step[parts]
	s.rows = skinnyRows
	for s.rows > 8 && 2*s.m <= s.rows {
		s.rows /= 2
	}
	first := skinnyPart{out: j.Out.Addr, w: w.Addr, n: j.Out.Shape[last], om: step[0], wn: w.Strides[0]}
	if len(ins) == 3 {
		first.bias = ins[2].Addr
		if ins[2].Strides[0] != 1 && ins[2].Shape[0] > 1 {
			return refuseSkinny("biases with gaps")
		}
	}
	weights := []Operand{w}
	if up := s.how.Up; up != nil {
		first.up, first.upn = up.Addr, up.Strides[0]
		weights = append(weights, *up)
	}
	s.parts = []skinnyPart{first}
	for i, p := range s.how.More {
		s.parts = append(s.parts, skinnyPart{out: p.Out.Addr, w: p.Weight.Addr, n: p.Out.Shape[last], om: step[1+i],
			wn: p.Weight.Strides[0]})
		weights = append(weights, p.Weight)
	}
	for _, w := range weights {
		if w.Strides[1] != 1 || !moves16(w.Addr, w.Shape[0], w.Strides[0]) {
			return refuseSkinny("rows that do not begin at multiples of 16 bytes")
		}
	}
	return s, nil
}

func refuseSkinny(what string) (*skinnyLinear, error) {
	return nil, fmt.Errorf("%w: the kernel for few rows does not take %s", device.ErrUnsupported, what)
}

// outs are the results.
func (s *skinnyLinear) outs(j *job) []Operand {
	all := []Operand{j.Out}
	for _, p := range s.how.More {
		all = append(all, p.Out)
	}
	return all
}

// checkParts looks at what the problem itself does not have.
func (s *skinnyLinear) checkParts(j *job, ins []Operand) error {
	more := slices.Clone(s.how.More)
	up, gated := s.how.Up, s.how.Epilogue == SiluMulEpilogue
	if (up != nil) != gated || gated && len(ins) == 3 {
		return fmt.Errorf("a second weight, a product that it multiplies and no bias belong together")
	}
	if gated {
		more = append(more, SkinnyPart{*up, j.Out})
	}
	if n := len(s.how.More); n >= MostSkinnyParts || n > 0 &&
		(s.how.Epilogue != NoEpilogue || len(ins) == 3) {
		return fmt.Errorf("%d more linears behind epilogue %d and %d operands", n, s.how.Epilogue, len(ins))
	}
	for _, p := range more {
		for _, o := range []Operand{p.Weight, p.Out} {
			if err := o.check(); err != nil {
				return err
			}
			if o.DType != s.dt {
				return fmt.Errorf("%s beside %s", o.DType, s.dt)
			}
		}
		if err := device.CheckLinear(p.Out.Shape, [][]int64{ins[0].Shape, p.Weight.Shape}); err != nil {
			return err
		}
	}
	return nil
}

// moves16 reports whether so many rows of 2-byte elements, a stride apart, begin at multiples of 16 bytes.
func moves16(at nvlib.Ptr, rows, stride int64) bool {
	return at%16 == 0 && (rows == 1 || stride%8 == 0)
}

func (how Skinny) plan(j *job) ([]launch, error) {
	s, err := newSkinny(how, j)
	if err != nil || s.m == 0 || s.n == 0 {
		return nil, err
	}
	forms := s.forms(int64(j.sms))
	i := slices.IndexFunc(forms, func(f skinnyForm) bool { return j.lends(f.shared(s.rows)) })
	if i < 0 {
		return nil, fmt.Errorf("%w: blocks may have %d bytes of shared memory", device.ErrUnsupported, j.block)
	}
	return s.launches(forms[i])
}

func (s *skinnyLinear) launches(f skinnyForm) ([]launch, error) {
	columns := 8 * f.tiles
	if s.how.Epilogue == SiluMulEpilogue {
		columns /= 2
	}
	var args words // SkinnyArgs
	args.addr(s.x)
	slices := ceil(s.m, skinnyRows)
	args.ints(s.m, s.k, s.xm, truth(s.how.Constant), slices)
	blocks := int64(0)
	for i := range MostSkinnyParts {
		p, first := skinnyPart{}, int64(skinnyMost) // behind all blocks
		if i < len(s.parts) {
			p, first = s.parts[i], blocks
			blocks += ceil(p.n, columns)
		}
		args.addr(p.out, p.w, p.up, p.bias)
		args.ints(p.n, p.om, p.wn, p.upn, first)
	}
	grid, err := exactGrid(blocks * slices)
	residents, late := 2, false
	if f.shared(s.rows) > skinnyRoom {
		residents, late = 1, true
	}
	epilogue, several, form := epilogueNames[s.how.Epilogue], len(s.parts) > 1 || slices > 1,
		fmt.Sprintf("r%dt%ds%d", s.rows, f.tiles, f.steps)
	if several {
		form += "p"
	}
	return []launch{{blocks: grid, shared: uint32(f.shared(s.rows)), args: args, code: code{
		files:  []string{"map", "warp", "skinny"},
		symbol: symbol(epilogue, ctype(s.dt), form),
		args:   "SkinnyArgs",
		body: fmt.Sprintf("skinny<%s, %d, %d, %d, %d, %v, %s, %v>", ctype(s.dt), s.rows, f.tiles, skinnyWarps, f.steps,
			late, epilogue,
			several),
		residents: residents,
		settles:   true,
	}}}, err
}
