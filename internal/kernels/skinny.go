package kernels

import (
	"fmt"
	"math/bits"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// Skinny is a linear of 1 to 32 rows, computed by hocket's kernel for few rows. The kernel takes as long as it takes to
// read the weight from memory. Ins holds x, the weight, and the bias if there is one. If the weight is f8e4m3, Ins
// holds x, the weight, and the scales of both.
type Skinny struct {
	Ins      []Operand
	Out      Operand
	Epilogue Epilogue
	// Constant reports that weights are constant: no kernel that may still be running when this one begins writes them.
	// The weights are then read before the previous kernel has ended.
	Constant bool
	// With SiluMulEpilogue, Up is a second weight: the result is silu(x·wᵀ) times x·Upᵀ. Up has the shape of the first
	// weight.
	Up *Operand
	// UpScales holds the scales of Up, if the weight has scales.
	UpScales *Operand
	// Sliced permits any number of rows of x. Each row of the result has the same bits as if it were computed alone.
	Sliced bool
	// More holds further linears of the operand x, without bias and epilogue. All results have the same bits as in
	// separate launches.
	More []SkinnyPart
}

// SkinnyPart is a further weight and the result of x multiplied by it. Scales holds the scales of the weight, if it has
// any.
type SkinnyPart struct {
	Weight, Out Operand
	Scales      *Operand
}

// MostSkinnyParts is the largest number of linears of one operand x in one launch.
const MostSkinnyParts = 3

// Epilogue is an operation that is applied to a result before the result is stored. The bits are the same as with a
// separate operation.
type Epilogue int

const (
	NoEpilogue Epilogue = iota
	ReluEpilogue
	// SiluMulEpilogue multiplies silu of the GEMM's result by the result of the GEMM with Skinny.Up. There is no bias.
	SiluMulEpilogue
)

var epilogueNames = []string{"skinnyStore", "skinnyRelu", "skinnySiluMul"}

const (
	skinnyRows  = 32 // largest number of rows of a thread block
	skinnyWarps = 8  // number of warps of a thread block; the bits of results depend on it
	// skinnyTurn is the number of bytes of a weight's row that a warp processes at a time: 64 columns, or as many as
	// share a scale.
	skinnyTurn = 128
	// skinnyMost is the largest extent of an axis, because the kernel counts in 32 bits.
	skinnyMost = 1 << 30
	// skinnyHalf is the largest number of rows of bf16 that are converted to f16 to be multiplied by 8-bit weights.
	// With more rows, the conversion of x takes longer than it saves in the conversion of weights.
	skinnyHalf = 3
	// skinnyRoom is a size of shared memory in bytes: one of Hopper's multiprocessors holds two thread blocks that use
	// up to so much.
	skinnyRoom = 112 << 10
)

// skinnyForm holds parameters that do not affect the bits of the result. The field tiles is the number of groups of
// eight weight rows of a block. The field steps is the number of loads, of 128 bytes of each row, that fit into a
// warp's shared memory.
type skinnyForm struct{ tiles, steps int64 }

// shared returns the size in bytes of a thread block's shared memory for the given number of rows of x. A row of x has
// two bytes for each element of a weight's row. With 8-bit weights, each row of a weight and of x has a scale, and the
// data that a warp loads at a time begin at a multiple of 128 bytes.
func (f skinnyForm) shared(rows, size int64) int64 {
	load := (8*f.tiles + rows*2/size) * skinnyTurn
	if size == 1 {
		load += ceil((8*f.tiles+rows)*4, 128) * 128
	}
	return skinnyWarps * f.steps * load
}

// forms returns the forms for a linear, the best one first. For up to 16 rows, the forms were measured on an H100 with
// bf16. A thread block that is large enough to fill a multiprocessor alone reads x less often. Blocks of this size are
// faster if each processes many columns and, with more than eight rows, if they distribute the weight evenly over all
// multiprocessors in one wave. With 32 rows each thread block reads x from the L2 cache, so the number of blocks is the
// smallest one that fills the multiprocessors.
func (s *skinnyLinear) forms(sms int64) []skinnyForm {
	plain := s.how.Epilogue != SiluMulEpilogue
	switch {
	case s.size == 1: // measured on an H200 with 1 and 8 rows
		return []skinnyForm{{4, 2}, {2, 2}}
	case s.rows == 32 && plain && s.n <= 16*sms:
		return []skinnyForm{{2, 4}, {2, 2}}
	case s.rows == 32 && plain && s.n <= 24*sms:
		return []skinnyForm{{3, 3}, {2, 2}}
	case s.rows == 32 && plain && s.n <= 32*sms:
		return []skinnyForm{{4, 3}, {2, 2}}
	case s.rows == 32:
		return []skinnyForm{{8, 2}, {4, 2}, {2, 2}}
	case s.rows == 8 && plain && s.k >= 8*skinnyWarps*skinnyTurn/2:
		return []skinnyForm{{4, 5}, {2, 4}, {2, 2}}
	case s.rows == 8:
		return []skinnyForm{{2, 4}, {2, 2}}
	case plain && 16*sms < s.n && s.n <= 24*sms:
		return []skinnyForm{{3, 5}, {2, 3}, {2, 2}}
	}
	return []skinnyForm{{2, 3}, {2, 2}}
}

// skinnyLinear is a linear in the form in which the kernel for few rows needs it: out[m, n] = x[m, k]·w[n, k].
type skinnyLinear struct {
	how     Skinny
	dt      ir.DType
	m, n, k int64 // n is the sum of the weights' rows over all parts
	rows    int64 // number of rows of a thread block: 8, 16 or 32
	x       nvlib.Ptr
	xm      int64
	size    int64 // size in bytes of an element of the weights
	sx      skinnyScale
	parts   []skinnyPart
}

// skinnyScale corresponds to the structure SkinnyScale of the source.
type skinnyScale struct {
	at               nvlib.Ptr
	shift, row, turn int64
}

// skinnyScaleOf returns the scales s of a tensor with the shape of, or false if they are not at regular distances.
func skinnyScaleOf(of []int64, s Operand) (skinnyScale, bool) {
	g, err := device.GrainOf(of, s.Shape)
	if err != nil {
		return skinnyScale{}, false
	}
	scale, lead := skinnyScale{at: s.Addr}, len(s.Shape)
	if lead == 0 {
		return scale, true
	}
	if lead == len(of) {
		lead--
		scale.turn = s.Strides[lead]
	}
	if g.Rows == device.ScaleBlock {
		scale.shift = int64(bits.TrailingZeros(device.ScaleBlock))
	}
	switch rows := shared(s.Shape[:lead], s.Strides[:lead]); {
	case len(rows) == 1 && slices.IsSortedFunc(s.Strides[:lead], func(a, b int64) int { return int(b - a) }):
		scale.row = rows[0].s[0]
	case len(rows) > 0:
		return scale, false
	}
	return scale, true
}

func (w *words) scale(s skinnyScale) {
	w.addr(s.at)
	w.ints(s.shift, s.row, s.turn)
}

// skinnyPart corresponds to the structure SkinnyPart of the source, without the number of its first thread block.
type skinnyPart struct {
	out, w, up, bias nvlib.Ptr
	n, om, wn, upn   int64
	sw, sup          skinnyScale
}

func (Skinny) String() string { return ir.OpLinear.String() }

func (s Skinny) operands() (Operand, []Operand) { return s.Out, s.Ins }

// newSkinny returns the linear in the form that the kernel needs. The error wraps device.ErrUnsupported if the GPU
// kernel does not support the linear.
func newSkinny(how Skinny, j *job) (*skinnyLinear, error) {
	s := &skinnyLinear{how: how, dt: j.Out.DType, size: 2}
	if s.how.Epilogue < NoEpilogue || s.how.Epilogue > SiluMulEpilogue {
		return nil, fmt.Errorf("there is no epilogue with number %d", s.how.Epilogue)
	}
	ins := j.Ins
	var shapes [][]int64
	for _, in := range ins {
		shapes = append(shapes, in.Shape)
	}
	scaled := len(ins) == 4
	if scaled {
		if _, _, err := checkScaled(j); err != nil {
			return nil, err
		}
		if s.size = 1; ins[0].DType != s.dt || ins[1].DType != ir.F8E4M3 {
			return refuseSkinny(fmt.Sprintf("%s by %s to %s", ins[0].DType, ins[1].DType, s.dt))
		}
	} else {
		if err := device.CheckLinear(j.Out.Shape, shapes); err != nil {
			return nil, err
		}
		if err := j.alike(); err != nil {
			return nil, err
		}
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
	case s.k == 0 || s.k%(16/s.size) != 0:
		return refuseSkinny(fmt.Sprintf("rows of %d elements, which is not a multiple of %d", s.k, 16/s.size))
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
	if !moves16(x.Addr, s.m, step[parts], 2) {
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
	if scaled {
		var ok [2]bool
		s.sx, ok[0] = skinnyScaleOf(x.Shape, ins[2])
		if first.sw, ok[1] = skinnyScaleOf(w.Shape, ins[3]); ok != [2]bool{true, true} {
			return refuseSkinny("scales at irregular distances")
		}
	}
	weights := []Operand{w}
	if up := s.how.Up; up != nil {
		first.up, first.upn = up.Addr, up.Strides[0]
		weights = append(weights, *up)
		if s.how.UpScales != nil {
			first.sup, _ = skinnyScaleOf(up.Shape, *s.how.UpScales) // scales of a matrix are always at regular distances
		}
	}
	s.parts = []skinnyPart{first}
	for i, p := range s.how.More {
		part := skinnyPart{out: p.Out.Addr, w: p.Weight.Addr, n: p.Out.Shape[last], om: step[1+i],
			wn: p.Weight.Strides[0]}
		if p.Scales != nil {
			part.sw, _ = skinnyScaleOf(p.Weight.Shape, *p.Scales)
		}
		s.parts = append(s.parts, part)
		weights = append(weights, p.Weight)
	}
	for _, w := range weights {
		if w.Strides[1] != 1 || !moves16(w.Addr, w.Shape[0], w.Strides[0], s.size) {
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

// checkParts checks the operands of s.how.More and of the second weight, which are not in the job.
func (s *skinnyLinear) checkParts(j *job, ins []Operand) error {
	more := slices.Clone(s.how.More)
	up, gated := s.how.Up, s.how.Epilogue == SiluMulEpilogue
	if (up != nil) != gated || gated && len(ins) == 3 {
		return fmt.Errorf("a second weight needs the silu-mul epilogue, and must not be combined with biases")
	}
	if gated {
		more = append(more, SkinnyPart{*up, j.Out, s.how.UpScales})
	}
	if n := len(s.how.More); n >= MostSkinnyParts || n > 0 &&
		(s.how.Epilogue != NoEpilogue || len(ins) == 3) {
		return fmt.Errorf("%d further linears cannot be combined with epilogue %d and %d operands", n, s.how.Epilogue,
			len(ins))
	}
	for _, p := range more {
		for i, o := range []Operand{p.Weight, p.Out} {
			if err := o.check(); err != nil {
				return err
			}
			if want := []ir.DType{ins[1].DType, s.dt}[i]; o.DType != want {
				return fmt.Errorf("%s beside %s", o.DType, want)
			}
		}
		if (p.Scales != nil) != (len(ins) == 4) {
			return fmt.Errorf("some of the weights have scales, and others do not")
		}
		if p.Scales != nil {
			if err := p.Scales.check(); err != nil {
				return err
			}
			if _, err := device.GrainOf(p.Weight.Shape, p.Scales.Shape); err != nil || p.Scales.DType != ir.F32 {
				return fmt.Errorf("scales of type %s%v do not fit a weight of shape %v", p.Scales.DType, p.Scales.Shape, p.Weight.Shape)
			}
		}
		if err := device.CheckLinear(p.Out.Shape, [][]int64{ins[0].Shape, p.Weight.Shape}); err != nil {
			return err
		}
	}
	return nil
}

// moves16 reports whether rows begin at multiples of 16 bytes: the given number of rows, at distances of stride
// elements, of elements of size bytes.
func moves16(at nvlib.Ptr, rows, stride, size int64) bool {
	return at%16 == 0 && (rows == 1 || stride*size%16 == 0)
}

func (how Skinny) plan(j *job) ([]launch, error) {
	s, err := newSkinny(how, j)
	if err != nil || s.m == 0 || s.n == 0 {
		return nil, err
	}
	forms := s.forms(int64(j.sms))
	i := slices.IndexFunc(forms, func(f skinnyForm) bool { return j.lends(f.shared(s.rows, s.size)) })
	if i < 0 {
		return nil, fmt.Errorf("%w: the kernel needs more than the %d bytes of shared memory that a block may have",
			device.ErrUnsupported, j.block)
	}
	return s.launches(j, forms[i])
}

func (s *skinnyLinear) launches(j *job, f skinnyForm) ([]launch, error) {
	columns := 8 * f.tiles
	if s.how.Epilogue == SiluMulEpilogue {
		columns /= 2
	}
	var args words // SkinnyArgs
	args.addr(s.x)
	slices, shared := ceil(s.m, skinnyRows), f.shared(s.rows, s.size)
	args.ints(s.m, s.k, s.xm, truth(s.how.Constant), slices)
	args.scale(s.sx)
	blocks := int64(0)
	for i := range MostSkinnyParts {
		p, first := skinnyPart{}, int64(skinnyMost) // after all blocks
		if i < len(s.parts) {
			p, first = s.parts[i], blocks
			blocks += ceil(p.n, columns)
		}
		args.addr(p.out, p.w, p.up, p.bias)
		args.ints(p.n, p.om, p.wn, p.upn, first)
		args.scale(p.sw)
		args.scale(p.sup)
	}
	residents, late := 2, false
	if shared > skinnyRoom {
		residents, late = 1, true
	}
	// With more thread blocks than run at once, each block computes the columns of several. It loads the weights of the
	// next columns while it adds up the sums of its warps, which then need separate memory.
	loop, with := false, shared+skinnyWarps*s.rows*(8*f.tiles+8)*4
	if most := int64(residents * j.sms); len(s.parts) == 1 && slices == 1 && s.size == 2 && s.rows <= 16 && !late &&
		most > 0 && blocks > most && with <= skinnyRoom && j.lends(with) {
		loop, blocks, shared = true, most, with
	}
	grid, err := exactGrid(blocks * slices)
	epilogue, several, form := epilogueNames[s.how.Epilogue], len(s.parts) > 1 || slices > 1,
		fmt.Sprintf("r%dt%ds%d", s.rows, f.tiles, f.steps)
	if several {
		form += "p"
	}
	if loop {
		form += "l"
	}
	half := s.size == 1 && s.dt == ir.BF16 && s.m <= skinnyHalf
	weight, files := ctype(s.dt), []string{"map", "warp", "skinny"}
	if s.size == 1 {
		weight = ctype(ir.F8E4M3)
		form, files = form+"_"+weight, []string{"map", "warp", "gemm", "skinny"}
	}
	if half {
		form += "h"
	}
	return []launch{{blocks: grid, shared: uint32(shared), args: args, code: code{
		files:  files,
		symbol: symbol(epilogue, ctype(s.dt), form),
		args:   "SkinnyArgs",
		body: fmt.Sprintf("skinny<%s, %s, %v, %d, %d, %d, %d, %v, %s, %v, %v>", ctype(s.dt), weight, half, s.rows, f.tiles,
			skinnyWarps, f.steps, late, epilogue, several, loop),
		residents: residents,
		settles:   true,
	}}}, err
}
