package kernels

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// Skinny is a linear of 1 to 32 rows. Its kernel takes as long as reading the weight. Ins holds x, the weight, and the
// bias if there is one.
type Skinny struct {
	Ins      []Operand
	Out      Operand
	Epilogue Epilogue
	// Constant reports that no kernel that may still be running when this one begins writes a weight. The weights are
	// then read before the previous kernel has ended.
	Constant bool
	// Up is used with SiluMulEpilogue: the result is silu(x·wᵀ) times x·Upᵀ. It has the shape of the first weight.
	Up *Operand
	// Sliced permits any number of rows of x. Each row of the result has the same bits as if it were computed alone.
	Sliced bool
	// More holds further linears of x, without bias and epilogue. All results have the same bits as in separate
	// launches.
	More []SkinnyPart
}

// SkinnyPart is a weight and the result of x multiplied by it.
type SkinnyPart struct{ Weight, Out Operand }

// MostSkinnyParts is the largest number of linears of one x in one launch.
const MostSkinnyParts = 3

// Epilogue is an operation on a result before it is stored. The bits are the same as with a separate operation.
type Epilogue int

const (
	NoEpilogue Epilogue = iota
	ReluEpilogue
	// SiluMulEpilogue multiplies silu of the GEMM's result by the result of the GEMM with Skinny.Up. There is no bias.
	SiluMulEpilogue
)

var epilogueNames = []string{"skinnyStore", "skinnyRelu", "skinnySiluMul"}

const (
	skinnyRows  = 32 // largest number of rows of a block
	skinnyWarps = 8  // number of warps of a block; the bits of results depend on it
	// skinnyTurn is the number of columns that a warp processes at a time.
	skinnyTurn = 64
	// skinnyMost is the largest extent, because the kernel counts in 32 bits.
	skinnyMost = 1 << 30
	// skinnyRoom is the shared memory in bytes up to which one of Hopper's multiprocessors holds two blocks.
	skinnyRoom = 112 << 10
)

// skinnyForm holds parameters that do not affect the bits of the result. tiles is the number of groups of eight weight
// rows of a block. steps is the number of loads, of 64 columns each, that fit into a warp's shared memory.
type skinnyForm struct{ tiles, steps int64 }

// shared returns the shared memory of a block for the given number of rows of x.
func (f skinnyForm) shared(rows int64) int64 {
	return skinnyWarps * f.steps * (8*f.tiles + rows) * skinnyTurn * 2
}

// forms returns the forms for a linear, the best one first. Up to 16 rows they were measured on an H100 with bf16. A
// block that is large enough to fill a multiprocessor alone reads x less often. Such blocks are faster if each
// processes many columns and, with more than eight rows, if they distribute the weight evenly over all multiprocessors
// in one wave. With 32 rows each block reads x from the L2 cache, so the number of blocks is the smallest one that
// fills the multiprocessors.
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

// skinnyLinear is a linear in the form that its kernel needs: out[m, n] = x[m, k]·w[n, k].
type skinnyLinear struct {
	how     Skinny
	dt      ir.DType
	m, n, k int64 // n is the sum over all parts
	rows    int64 // rows of a block: 8, 16 or 32
	x       nvlib.Ptr
	xm      int64
	parts   []skinnyPart
}

// skinnyPart corresponds to SkinnyPart of the source, without its first block.
type skinnyPart struct {
	out, w, up, bias nvlib.Ptr
	n, om, wn, upn   int64
}

func (Skinny) String() string { return ir.OpLinear.String() }

func (s Skinny) operands() (Operand, []Operand) { return s.Out, s.Ins }

// newSkinny returns the linear in the form that the kernel needs. The error wraps device.ErrUnsupported if the GPU
// kernel does not support the linear.
func newSkinny(how Skinny, j *job) (*skinnyLinear, error) {
	s := &skinnyLinear{how: how, dt: j.Out.DType}
	if s.how.Epilogue < NoEpilogue || s.how.Epilogue > SiluMulEpilogue {
		return nil, fmt.Errorf("there is no epilogue with number %d", s.how.Epilogue)
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
		return refuseSkinny(fmt.Sprintf("rows of %d elements, which is not a multiple of 8", s.k))
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
		return refuseSkinny("rows that are not aligned to 16 bytes")
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
			return refuseSkinny("rows that are not aligned to 16 bytes")
		}
	}
	return s, nil
}

func refuseSkinny(what string) (*skinnyLinear, error) {
	return nil, fmt.Errorf("%w: the kernel for few rows does not support %s", device.ErrUnsupported, what)
}

// outs returns the results.
func (s *skinnyLinear) outs(j *job) []Operand {
	all := []Operand{j.Out}
	for _, p := range s.how.More {
		all = append(all, p.Out)
	}
	return all
}

// checkParts checks the operands of the further linears and weights, which are not in the job.
func (s *skinnyLinear) checkParts(j *job, ins []Operand) error {
	more := slices.Clone(s.how.More)
	up, gated := s.how.Up, s.how.Epilogue == SiluMulEpilogue
	if (up != nil) != gated || gated && len(ins) == 3 {
		return fmt.Errorf("a second weight needs the silu-mul epilogue, and must not be combined with biases")
	}
	if gated {
		more = append(more, SkinnyPart{*up, j.Out})
	}
	if n := len(s.how.More); n >= MostSkinnyParts || n > 0 &&
		(s.how.Epilogue != NoEpilogue || len(ins) == 3) {
		return fmt.Errorf("%d further linears cannot be combined with epilogue %d and %d operands", n, s.how.Epilogue,
			len(ins))
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

// moves16 reports whether the given number of rows of 2-byte elements, stride elements apart, begin at multiples of 16
// bytes.
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
		return nil, fmt.Errorf("%w: the kernel needs more than the %d bytes of shared memory that a block may have",
			device.ErrUnsupported, j.block)
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
		p, first := skinnyPart{}, int64(skinnyMost) // after all blocks
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
