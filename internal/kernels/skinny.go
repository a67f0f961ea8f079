package kernels

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// Skinny is how a linear of 1 to 16 rows is computed by a kernel that takes as long as
// the weight takes to read. The operands of the problem are x, the weight, the bias if
// there is one, and what the epilogue needs.
type Skinny struct {
	Epilogue Epilogue
	// Constant: no kernel that may still be running when this one begins writes the
	// weight. It is then read before the kernel before this one has ended.
	Constant bool
}

// Epilogue is what is done to a product before it is stored. All of them have the bits
// that separate operations have.
type Epilogue int

const (
	NoEpilogue Epilogue = iota
	ReluEpilogue
	// AddEpilogue adds the last operand, of the result's shape.
	AddEpilogue
	// SiluMulEpilogue takes a weight of twice as many rows as the result has columns, and
	// so many biases: the result is silu of the first half times the second half.
	SiluMulEpilogue
)

var epilogueNames = []string{"skinnyStore", "skinnyRelu", "skinnyAdd", "skinnySiluMul"}

const (
	skinnyRows  = 16 // at most
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

// forms lists the forms for a linear, the best first: measured on an H100, bf16. Blocks that
// fill a multiprocessor alone read x less often. They pay where each has many turns, and, with
// more than eight rows, where they spread the weight evenly over all multiprocessors at once.
func (s *skinnyLinear) forms(sms int64) []skinnyForm {
	plain := s.how.Epilogue != SiluMulEpilogue
	switch {
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
	m, n, k int64
	rows    int64 // of tensor cores' operands: 8 or 16
	args    words // SkinnyArgs
}

// newSkinny returns j as the kernel takes it. The error wraps device.ErrUnsupported where it does
// not.
func newSkinny(j *job) (*skinnyLinear, error) {
	s := &skinnyLinear{how: *j.Skinny, dt: j.Out.DType}
	if s.how.Epilogue < NoEpilogue || s.how.Epilogue > SiluMulEpilogue || j.Op != ir.OpLinear {
		return nil, fmt.Errorf("epilogue %d of %s", s.how.Epilogue, j.Op)
	}
	ins, residual := j.Ins, Operand{}
	if s.how.Epilogue == AddEpilogue {
		if len(ins) == 0 || !slices.Equal(ins[len(ins)-1].Shape, j.Out.Shape) {
			return nil, fmt.Errorf("nothing of shape %v to add", j.Out.Shape)
		}
		ins, residual = ins[:len(ins)-1], ins[len(ins)-1]
	}
	var shapes [][]int64
	for _, in := range ins {
		shapes = append(shapes, in.Shape)
	}
	product := slices.Clone(j.Out.Shape)
	if last := len(product) - 1; s.how.Epilogue == SiluMulEpilogue && last >= 0 {
		product[last] *= 2
	}
	if err := device.CheckLinear(product, shapes); err != nil {
		return nil, err
	}
	if err := j.alike(); err != nil {
		return nil, err
	}
	x, w := ins[0], ins[1]
	last := len(x.Shape) - 1
	s.m, s.n, s.k = 1, j.Out.Shape[last], x.Shape[last]
	for _, n := range x.Shape[:last] {
		s.m *= n
	}
	if s.m == 0 || s.n == 0 {
		return s, nil
	}
	refuse := func(what string) (*skinnyLinear, error) {
		return nil, fmt.Errorf("%w: the kernel for few rows does not take %s", device.ErrUnsupported, what)
	}
	switch {
	case before80(j.arch):
		return refuse(j.arch)
	case s.dt.Size() != 2:
		return refuse(s.dt.String())
	case s.m > skinnyRows || s.n > skinnyMost || s.k > skinnyMost:
		return refuse(fmt.Sprintf("%dx%dx%d", s.m, s.n, s.k))
	case s.k == 0 || s.k%8 != 0:
		return refuse(fmt.Sprintf("rows of %d elements, no multiple of 8", s.k))
	}
	all := []Operand{j.Out, x}
	if residual.Addr != 0 {
		all = append(all, residual)
	}
	strides := make([][]int64, len(all))
	for i, o := range all {
		if o.Strides[last] != 1 && o.Shape[last] > 1 {
			return refuse("elements with gaps")
		}
		strides[i] = o.Strides[:last]
	}
	lead := shared(x.Shape[:last], strides...)
	if len(lead) == 0 {
		lead = []axis{{1, make([]int64, len(all))}}
	}
	if len(lead) > 1 {
		return refuse("rows at irregular distances")
	}
	step := lead[0].s
	if w.Strides[1] != 1 || !moves16(w.Addr, w.Shape[0], w.Strides[0]) || !moves16(x.Addr, s.m, step[1]) {
		return refuse("rows that do not begin at multiples of 16 bytes")
	}
	s.rows = 8 * ceil(s.m, 8)
	var bias nvlib.Ptr
	if len(ins) == 3 {
		bias = ins[2].Addr
		if ins[2].Strides[0] != 1 && ins[2].Shape[0] > 1 {
			return refuse("biases with gaps")
		}
	}
	s.args.addr(j.Out.Addr, x.Addr, w.Addr, bias, residual.Addr)
	s.args.ints(s.m, s.n, s.k, step[0], step[1], w.Strides[0], step[len(step)-1], truth(s.how.Constant))
	return s, nil
}

// moves16 reports whether so many rows of 2-byte elements, a stride apart, begin at multiples of 16 bytes.
func moves16(at nvlib.Ptr, rows, stride int64) bool {
	return at%16 == 0 && (rows == 1 || stride%8 == 0)
}

func skinny(j *job) ([]launch, error) {
	s, err := newSkinny(j)
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
	grid, err := exactGrid(ceil(s.n, columns))
	residents, late := 2, false
	if f.shared(s.rows) > skinnyRoom {
		residents, late = 1, true
	}
	epilogue := epilogueNames[s.how.Epilogue]
	return []launch{{blocks: grid, shared: uint32(f.shared(s.rows)), args: s.args, code: code{
		files:     []string{"map", "warp", "skinny"},
		symbol:    symbol(epilogue, ctype(s.dt), fmt.Sprintf("r%dt%ds%d", s.rows, f.tiles, f.steps)),
		args:      "SkinnyArgs",
		body:      fmt.Sprintf("skinny<%s, %d, %d, %d, %d, %v, %s>", ctype(s.dt), s.rows, f.tiles, skinnyWarps, f.steps, late, epilogue),
		residents: residents,
		settles:   true,
	}}}, err
}
