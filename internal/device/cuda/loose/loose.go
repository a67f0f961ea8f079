// Package loose has launches whose operands have no memory yet. Place and PlaceNorm give an operation operands where
// nothing lies; Find finds the words of its kernels that name them; and before every launch Call.Aim moves these to
// where the operands then are.
package loose

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// Operand is the k-th operand of a member, of v's shape, with tail bytes before it that may be read.
type Operand func(member, k int, v device.View, tail int64) device.View

// Operands lie where no memory is, so far from each other.
const (
	looseAt    = 1 << 59
	looseBytes = 1 << 44
)

// Address is that of the k-th operand.
func Address(k int) nvlib.Ptr { return nvlib.Ptr(looseAt + k*looseBytes) }

// Place gives parts of c operands where they have none. inPlace has results lie over inputs.
func Place(c *device.Collective, inPlace bool, tail [2]int64, operand Operand) *device.Collective {
	placed := *c
	placed.Parts = append([]device.Part(nil), c.Parts...)
	for i := range placed.Parts {
		p := &placed.Parts[i]
		if p.Reads && p.In.Mem == nil {
			p.In = operand(i, 0, p.In, tail[0])
		}
		switch {
		case !p.Writes || p.Out.Mem != nil:
		case inPlace && p.Reads:
			p.Out.Mem, p.Out.Off = p.In.Mem, p.In.Off
		default:
			p.Out = operand(i, 1, p.Out, tail[1])
		}
	}
	return &placed
}

// PlaceNorm is Place for a normalised sum.
func PlaceNorm(n *device.Norm, sumIsResidual, outIsIn bool, operand Operand) *device.Norm {
	placed := &device.Norm{Eps: n.Eps, Parts: append([]device.NormPart(nil), n.Parts...)}
	for i := range placed.Parts {
		p := &placed.Parts[i]
		for k, v := range []*device.View{&p.In, &p.Residual, &p.Weight, &p.Sum, &p.Out} {
			*v = operand(i, k, *v, 0)
		}
		if sumIsResidual {
			p.Sum = p.Residual
		}
		if outIsIn {
			p.Out = p.In
		}
	}
	return placed
}

// Call is kernels that name loose operands.
type Call struct {
	Kernels []*nvlib.Launch
	moves   []relocation
}

// relocation is a word of a kernel's arguments that lies in a loose operand, so many bytes behind its beginning.
type relocation struct {
	kernel  *nvlib.Launch
	word    int
	operand int
	off     uint64
}

// Find finds the words that name operands with such tails.
func Find(kernels []*nvlib.Launch, tails []int64) *Call {
	c := &Call{Kernels: kernels}
	for _, k := range kernels {
		for i := range k.Words() {
			at := k.Word(i)
			operand := int(at/looseBytes) - looseAt/looseBytes
			if at >= looseAt && operand < len(tails) {
				c.moves = append(c.moves, relocation{k, i, operand, at%looseBytes - uint64(tails[operand])})
			}
		}
	}
	return c
}

// Aim has the kernels work on operands at these addresses.
func (c *Call) Aim(operands []uintptr) {
	for _, m := range c.moves {
		m.kernel.SetWord(m.word, uint64(operands[m.operand])+m.off)
	}
}
