package compute

import (
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gemm"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// grains checks a linear with scales, and returns for x and for w which elements share a scale.
func (k *product) grains() (x, w device.Grain, err error) {
	shapes := make([][]int64, len(k.ins))
	for i := range k.ins {
		shapes[i] = k.ins[i].Shape
	}
	return device.CheckScaled(&k.Kernel, k.out.Shape, shapes)
}

// addScaled adds the steps of a linear with scales: by cuBLASLt if it supports the product, else by a kernel without
// tensor cores.
func (b *builder) addScaled(k *product) error {
	if k.Relu {
		return fmt.Errorf("%w: relu of a linear with scales", device.ErrUnsupported)
	}
	if k.Fixed {
		return b.addLibrary(k.kernel)
	}
	if !k.ins[0].DType.IsFloat8() {
		err := b.addDequantizing(k.constant, []*kernel{k.kernel}, nil)
		if errors.Is(err, device.ErrUnsupported) {
			return b.addLibrary(k.kernel)
		}
		return err
	}
	p := gemm.Linear(&k.out, k.ins[:2])
	p.Merge()
	g, ok := p.Problem()
	if !ok || g.Batch > 1 {
		return b.addScaledRows(k)
	}
	g.In, g.Fixed, g.Timed, g.Constant = [2]ir.DType{k.ins[0].DType, k.ins[1].DType}, b.site.FixedProducts, k.Timed, k.constant
	g.FastAccum = k.fast
	if !g.Fixed && k.SMs < b.site.SMs {
		g.SMs = k.SMs
	}
	if taken, err := b.site.GEMMs.TakesScaled(g); err != nil || !taken {
		return b.otherwise(k, err)
	}
	b.scales = nil
	if laid, err := b.layScales(k, &g); err != nil || !laid {
		return b.otherwise(k, err)
	}
	st, err := b.site.GEMMs.Prepare(g)
	if err != nil || st == nil {
		return b.otherwise(k, err)
	}
	for _, c := range b.scales {
		if err := b.AddCopy(c[0], c[1]); err != nil {
			return err
		}
	}
	b.AddProduct(st)
	return nil
}

// addDequantizing adds one kernel that computes several linears of the same operand x, which has elements of 16 bits,
// by weights of 8 bits. The kernel converts the weights while it reads them. If gate is not nil, the kernel stores only
// the gated result: silu of the first result multiplied by the second. No other kernel is measured for comparison,
// because the plain kernel reads the weights several times.
func (b *builder) addDequantizing(constant bool, list []*kernel, gate *kernel) error {
	if !b.site.GEMMs.Few() {
		return fmt.Errorf("%w: the kernel for few rows is disabled", device.ErrUnsupported)
	}
	first := list[0]
	p := first.problem()
	how := kernels.Skinny{Ins: p.Ins, Out: p.Out, Constant: constant, Sliced: true}
	var far bool
	for _, k := range list {
		for i := range k.ins {
			far = far || !b.Reaches(&k.ins[i])
		}
	}
	if far {
		return fmt.Errorf("%w: operands on a GPU without peer access", device.ErrUnsupported)
	}
	for _, k := range list[1:] {
		q := k.problem()
		if gate != nil {
			how.Epilogue, how.Up, how.UpScales, how.Out = kernels.SiluMulEpilogue, &q.Ins[1], &q.Ins[3], gate.out.Operand()
			continue
		}
		how.More = append(how.More, kernels.SkinnyPart{Weight: q.Ins[1], Out: q.Out, Scales: &q.Ins[3]})
	}
	return b.AddProblem(how)
}

// otherwise returns err if it is set; else it adds the plain kernel, for a product that cuBLASLt does not support.
func (b *builder) otherwise(k *product, err error) error {
	if err != nil {
		return err
	}
	return b.addLibrary(k.kernel)
}

// addScaledRows adds the steps of a linear whose operand x consists of groups of rows with gaps between the groups. It
// adds one product for each group.
func (b *builder) addScaledRows(k *product) error {
	x := &k.ins[0]
	if len(x.Shape) < 3 || x.Shape[0] > mostItems {
		return b.addLibrary(k.kernel)
	}
	for i := range x.Shape[0] {
		part := *k.kernel
		part.out, part.ins = index(k.out, i), slices.Clone(k.ins)
		part.ins[0] = index(k.ins[0], i)
		if len(k.ins[2].Shape) > 0 {
			part.ins[2] = index(k.ins[2], i)
		}
		p := *k
		p.kernel = &part
		if err := b.addScaled(&p); err != nil {
			return err
		}
	}
	return nil
}

// index returns the part of v at index i of the first axis, as a view without that axis.
func index(v strided.View, i int64) strided.View {
	v.Addr += nvlib.Ptr(i * v.Strides[0] * v.DType.Size())
	v.N /= v.Shape[0]
	v.Shape, v.Strides = v.Shape[1:], v.Strides[1:]
	return v
}

// layScales sets in g the addresses of the scales, in the layout that cuBLASLt requires, and collects the copies that
// produce this layout. A single scale is repeated for each row or block, and the scale of a row is repeated for each
// block of the row. The result laid is false for scales of rows of w together with scales of blocks of x, for which
// cuBLASLt has no mode.
func (b *builder) layScales(k *product, g *gemm.Problem) (laid bool, err error) {
	gx, gw, err := k.grains()
	if err != nil {
		return false, err
	}
	sx, sw := k.ins[2], k.ins[3]
	if len(sx.Shape) > 2 && !rowsMerge(&sx) {
		m, at, err := b.Scratch(sx.Bytes())
		if err != nil {
			return false, err
		}
		dense := sx.In(m, at)
		b.scales, sx = append(b.scales, [2]strided.View{dense, sx}), dense
	}
	blocks := (g.K + device.ScaleBlock - 1) / device.ScaleBlock
	inBlocks := func(g device.Grain, s *strided.View, rank int) bool {
		return len(s.Shape) == rank && g.Columns == device.ScaleBlock
	}
	byBlocks := inBlocks(gx, &sx, len(k.ins[0].Shape)) || inBlocks(gw, &sw, 2)
	switch {
	case len(sx.Shape)+len(sw.Shape) == 0:
		g.Modes = [2]nvlib.LtScale{nvlib.LtScaleOne, nvlib.LtScaleOne}
		g.Scales = [2]nvlib.Ptr{sx.Addr, sw.Addr}
		return true, nil
	case !byBlocks:
		g.Modes = [2]nvlib.LtScale{nvlib.LtScaleOuter, nvlib.LtScaleOuter}
		if g.Scales[0], err = b.laid(spread(&sx, g.M, 1, k.rowStrides(&sx, false)), 1); err == nil {
			g.Scales[1], err = b.laid(spread(&sw, g.N, 1, stridesOf(&sw, 1)), 1)
		}
		return true, err
	case len(sw.Shape) == 1:
		return false, nil
	}
	g.Modes = [2]nvlib.LtScale{nvlib.LtScaleVec128, nvlib.LtScaleSquares}
	// cuBLASLt wants contiguous scales along the rows of x, and along each row of w, padded to a multiple of 4 blocks.
	x := spread(&sx, g.M, blocks, k.rowStrides(&sx, inBlocks(gx, &sx, len(k.ins[0].Shape))))
	x.Shape, x.Strides = []int64{x.Shape[1], x.Shape[0]}, []int64{x.Strides[1], x.Strides[0]}
	if g.Scales[0], err = b.laid(x, g.M); err != nil {
		return false, err
	}
	w := spread(&sw, (g.N+device.ScaleBlock-1)/device.ScaleBlock, blocks, stridesOf(&sw, 2))
	g.Scales[1], err = b.laid(w, (blocks+3)/4*4)
	return true, err
}

// rowsMerge reports whether all axes of the scales s except the last can be merged to one axis.
func rowsMerge(s *strided.View) bool {
	lead := len(s.Shape) - 1
	step := int64(-1)
	for d := lead - 1; d >= 0; d-- {
		if s.Shape[d] == 1 {
			continue
		}
		if step >= 0 && s.Strides[d] != step {
			return false
		}
		step = s.Strides[d] * s.Shape[d]
	}
	return true
}

// stridesOf returns the strides of a weight's scales: along rows and, if dims is 2, along the blocks of a row. The
// strides are 0 if there is one scale.
func stridesOf(s *strided.View, dims int) [2]int64 {
	switch {
	case len(s.Shape) == 0:
		return [2]int64{}
	case dims == 1:
		return [2]int64{s.Strides[0], 0}
	}
	return [2]int64{s.Strides[0], s.Strides[1]}
}

// rowStrides returns the strides of x's scales along its rows, which merge to one axis, and along the blocks of a row.
func (k *product) rowStrides(s *strided.View, blocks bool) [2]int64 {
	var to [2]int64
	lead := len(s.Shape)
	if blocks {
		lead--
		to[1] = s.Strides[lead]
	}
	for d := lead - 1; d >= 0; d-- {
		if s.Shape[d] > 1 {
			to[0] = s.Strides[d]
			break
		}
	}
	return to
}

// spread returns a view of scales as a matrix with the given strides.
func spread(s *strided.View, rows, cols int64, strides [2]int64) strided.View {
	v := *s
	v.Shape, v.Strides, v.N = []int64{rows, cols}, []int64{strides[0], strides[1]}, rows*cols
	return v
}

// laid returns the address of the elements of v in contiguous rows that begin every stride elements. That is v's own
// address if v has this layout, and otherwise the address of a copy.
func (b *builder) laid(v strided.View, stride int64) (nvlib.Ptr, error) {
	rows, cols := v.Shape[0], v.Shape[1]
	if (rows == 1 || v.Strides[0] == stride) && (cols == 1 || v.Strides[1] == 1) && v.Addr%16 == 0 {
		return v.Addr, nil
	}
	m, at, err := b.Scratch(rows * stride * v.DType.Size())
	if err != nil {
		return 0, err
	}
	to := v.In(m, at)
	to.Strides = []int64{stride, 1}
	b.scales = append(b.scales, [2]strided.View{to, v})
	return at, nil
}
