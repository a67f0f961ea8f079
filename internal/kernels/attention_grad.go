package kernels

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// gradBlocks is a number of thread blocks: with fewer, flashDKV splits the query heads that use one key head into
// parts. gradRows is the number of rows, or of keys, of a thread block.
const gradBlocks, gradRows = 256, 128

// attentionGrad plans attention_lse, attention_dq and attention_dkv.
func attentionGrad(j *job, op device.AttentionGrad) ([]launch, error) {
	if err := device.CheckAttentionGrad(op, j.Out.DType, j.Out.Shape, j.types(), j.shapes()); err != nil {
		return nil, err
	}
	if j.Out.elements() == 0 {
		return nil, nil
	}
	q, k := j.Ins[0], j.Ins[1]
	all := append([]Operand{j.Out}, j.Ins...)
	for len(all) < 7 { // attention_lse does not read the other operands
		all = append(all, Operand{Strides: make([]int64, len(q.Shape))})
	}
	b := len(q.Shape) - 3
	both := int64(0)
	if op.Op == ir.OpAttentionDKV {
		both, all[0].Strides = j.Out.Strides[0], j.Out.Strides[1:]
	}
	var strides [][]int64
	for _, o := range all {
		strides = append(strides, o.Strides[:b])
	}
	lead, err := padded(shared(q.Shape[:b], strides...), len(all))
	if err != nil {
		return nil, err
	}
	g := &graded{op: op, dt: ctype(q.DType), lead: lead, all: all, both: both, tq: q.Shape[b], tk: k.Shape[b],
		heads: q.Shape[b+1], share: q.Shape[b+1] / k.Shape[b+1], dh: q.Shape[b+2], batches: 1}
	for _, n := range q.Shape[:b] {
		g.batches *= n
	}
	if g.onTensorCores(j) {
		g.hopper = j.arch == "sm_90a" && (g.dh == 64 || g.dh == 128)
		return g.flash(j)
	}
	return g.plain()
}

// graded describes a gradient of an attention in the form that its kernels need.
type graded struct {
	op                       device.AttentionGrad
	dt                       string
	lead                     []axis
	all                      []Operand // the result, then q, k, v, dy, lse and delta
	both                     int64
	tq, tk, heads, share, dh int64
	batches                  int64
	hopper                   bool // whether Hopper's tensor cores compute it
}

// args returns GradArgs. The query heads that use one key head are split into the given number of parts, each for one
// thread block.
func (g *graded) args(parts int64) words {
	var w words
	for _, o := range g.all {
		w.addr(o.Addr)
	}
	w.float(g.op.Scale)
	w.ints(g.tq, g.tk, g.heads, g.share/parts, g.dh, truth(g.op.Causal), g.both)
	for i, o := range g.all {
		n := 3
		if i > 4 {
			n = 2
		}
		s := append(slices.Clone(o.Strides[len(g.batchDims()):]), 0)
		w.ints(s[:n]...)
	}
	w.ints(extents(g.lead)...)
	for i := range g.all {
		w.ints(column(g.lead, i)...)
	}
	return w
}

// batchDims returns the leading extents.
func (g *graded) batchDims() []int64 { return g.all[1].Shape[:len(g.all[1].Shape)-3] }

// plain returns a launch with one block for each query of each head, or for each key.
func (g *graded) plain() ([]launch, error) {
	if g.dh > 4*threads {
		return nil, fmt.Errorf("%w: heads of %d dimensions; at most %d are supported", device.ErrUnsupported, g.dh, 4*threads)
	}
	per := int64(1)
	for per*threads < g.dh {
		per *= 2
	}
	n := g.batches * g.tq * g.heads
	if g.op.Op == ir.OpAttentionDKV {
		n = g.batches * g.tk * (g.heads / g.share)
	}
	grid, err := exactGrid(n)
	name := g.kernel("attention")
	return []launch{{blocks: grid, args: g.args(1), code: code{
		files:  []string{"sync", "map", "rows", "attention", "attention_grad"},
		symbol: symbol(name, g.dt, fmt.Sprintf("b%dp%d", len(g.lead), per)),
		args:   fmt.Sprintf("GradArgs<%d>", len(g.lead)),
		body:   fmt.Sprintf("%s<%s, %d, %d>", name, g.dt, len(g.lead), per),
	}}}, err
}

func (g *graded) kernel(name string) string {
	switch g.op.Op {
	case ir.OpAttentionLSE:
		return name + "LSE"
	case ir.OpAttentionDQ:
		return name + "DQ"
	}
	return name + "DKV"
}

// flash returns a launch on tensor cores and, for attention_dkv in several parts, a second launch that adds the parts.
func (g *graded) flash(j *job) ([]launch, error) {
	kvs := g.heads / g.share * g.batches
	if g.op.Op != ir.OpAttentionDKV {
		blocks := ceil(g.tq*g.share, gradRows) * kvs
		if g.hopper {
			blocks = ceil(g.tq, gradRows) * g.heads * g.batches
		}
		grid, err := exactGrid(blocks)
		return []launch{g.launch(g.kernel("flash"), "GradArgs", grid, g.args(1))}, err
	}
	parts := int64(1)
	for n := int64(2); n <= g.share && ceil(g.tk, gradRows)*kvs*parts < gradBlocks; n++ {
		if g.share%n == 0 {
			parts = n
		}
	}
	grid, err := exactGrid(ceil(g.tk, gradRows) * kvs * parts)
	if err != nil {
		return nil, err
	}
	args := g.args(parts)
	n := 2 * kvs * g.tk * g.dh // elements of the result
	if parts == 1 {
		args.addr(0)
	} else {
		sums, err := j.scratch(parts*n*4, false)
		if err != nil {
			return nil, err
		}
		args.addr(sums)
	}
	args.ints(parts)
	all := []launch{g.launch("flashDKV", "FlashGradArgs", grid, args)}
	if parts > 1 {
		grid, err = exactGrid(ceil(n/4, threads))
		all = append(all, launch{blocks: grid, args: args, code: g.code("flashGradJoin", "FlashGradArgs")})
	}
	return all, err
}

// launch returns a launch of a kernel that multiplies on tensor cores.
func (g *graded) launch(name, args string, grid uint32, w words) launch {
	l := launch{blocks: grid, args: w}
	dkv := g.op.Op == ir.OpAttentionDKV
	if !g.hopper {
		if dkv {
			// The shared memory has the layout GradRoom: 128 rows of values, two tiles of 32 rows of queries and of
			// gradients, and three numbers for each row.
			l.shared = uint32((gradRows+4*32)*(g.dh*2+16) + 6*32*4)
		}
		l.code = g.code(name, args)
		return l
	}
	// The shared memory has the layout GradHopperRoom: two tiles of 128 rows, three stages of two tiles of 64 rows, and
	// two numbers for each row of a stage. The shared memory of flashLSEHopper has four tiles of 128 rows.
	l.shared = uint32((2*gradRows+3*2*64)*g.dh*2 + 3*2*64*4)
	if g.op.Op == ir.OpAttentionLSE {
		l.shared = uint32(4 * gradRows * g.dh * 2)
	}
	l.code = g.code(name+"Hopper", args, "flash_rows", "warpgroup", "flash_join", "flash_hopper", "flash_grad_hopper")
	l.code.block = hopperThreads
	return l
}

func (g *graded) code(body, args string, files ...string) code {
	return code{
		files:  append([]string{"sync", "map", "rows", "attention", "attention_grad", "warp", "flash_grad"}, files...),
		symbol: symbol(body, g.dt, fmt.Sprintf("b%dd%d", len(g.lead), g.dh)),
		args:   fmt.Sprintf("%s<%d>", args, len(g.lead)),
		body:   fmt.Sprintf("%s<%s, %d, %d>", body, g.dt, len(g.lead), g.dh),
	}
}

// onTensorCores reports whether tensor cores can compute the gradient g. Operands must be 2-byte floats, heads must fit
// into registers, and rows must permit accesses of 16 bytes.
func (g *graded) onTensorCores(j *job) bool {
	if j.Ins[0].DType.Size() != 2 || g.dh%16 != 0 || g.dh > 128 || before80(j.arch) || g.tk > flashKeys ||
		g.tq*g.share >= flashMost {
		return false
	}
	moved := map[ir.Op][]int{ir.OpAttentionLSE: {1, 2}, ir.OpAttentionDQ: {0, 1, 2, 3, 4}, ir.OpAttentionDKV: {0, 1, 2, 3, 4}}
	for _, i := range moved[g.op.Op] {
		o, b := g.all[i], len(g.batchDims())
		n, heads := g.tq, g.heads
		if i == 2 || i == 3 || i == 0 && g.op.Op == ir.OpAttentionDKV {
			n, heads = g.tk, g.heads/g.share
		}
		if o.Strides[b+2] != 1 || uint64(o.Addr)%16 != 0 || n > 1 && o.Strides[b]%8 != 0 ||
			heads > 1 && o.Strides[b+1]%8 != 0 || g.both%8 != 0 ||
			slices.ContainsFunc(g.lead, func(a axis) bool { return a.s[i]%8 != 0 }) {
			return false
		}
	}
	return true
}
