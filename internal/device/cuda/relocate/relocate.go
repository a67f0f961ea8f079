// Package relocate prepares kernels before the addresses of their operands are known. Place and PlaceNorm give the
// operands placeholder addresses, at which no memory is mapped. Find finds the words in the kernels' arguments that
// hold such an address. Before every launch Call.Aim replaces these words with the operands' real addresses.
package relocate

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// Operand is a function that returns a view for the k-th operand of a member, with the shape of v. The kernel may also
// read up to tail bytes before the operand.
type Operand func(member, k int, v device.View, tail int64) device.View

// The constants are the placeholder address of the first operand, and the distance between the placeholder addresses of
// consecutive operands.
const (
	placeholder = 1 << 59
	stride      = 1 << 44
)

// Address returns the placeholder address of the k-th operand.
func Address(k int) nvlib.Ptr { return nvlib.Ptr(placeholder + k*stride) }

// Place returns a copy of c in which views without memory are replaced by views that the function operand returns. If
// inPlace is set, results use the memory of inputs.
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

// PlaceNorm is like Place for a device.Norm.
func PlaceNorm(n *device.Norm, sumIsResidual, outIsIn bool, operand Operand) *device.Norm {
	placed := &device.Norm{Eps: n.Eps, Reduced: n.Reduced, Parts: append([]device.NormPart(nil), n.Parts...)}
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

// Call holds the kernels of a collective. The addresses of its operands are replaced in their arguments before each
// launch.
type Call struct {
	Kernels []*nvlib.Launch
	moves   []relocation
}

// relocation describes a word of a kernel's arguments that holds an address inside an operand: off is the distance in
// bytes from the operand's beginning.
type relocation struct {
	kernel  *nvlib.Launch
	word    int
	operand int
	off     uint64
}

// Find finds the argument words of the kernels that hold placeholder addresses. tails[k] is the number of bytes before
// operand k that the kernels may read.
func Find(kernels []*nvlib.Launch, tails []int64) *Call {
	c := &Call{Kernels: kernels}
	for _, k := range kernels {
		for i := range k.Words() {
			at := k.Word(i)
			operand := int(at/stride) - placeholder/stride
			if at >= placeholder && operand < len(tails) {
				c.moves = append(c.moves, relocation{k, i, operand, at%stride - uint64(tails[operand])})
			}
		}
	}
	return c
}

// At replaces an address inside an operand with a placeholder address: it returns the address in the given operands.
// Other addresses are returned unchanged.
func At(at nvlib.Ptr, operands []uintptr, tails []int64) nvlib.Ptr {
	operand := int(at/stride) - placeholder/stride
	if at < placeholder || operand >= len(operands) {
		return at
	}
	return nvlib.Ptr(operands[operand]) + at%stride - nvlib.Ptr(tails[operand])
}

// Aim writes the addresses of the given operands to the kernels' arguments.
func (c *Call) Aim(operands []uintptr) {
	for _, m := range c.moves {
		m.kernel.SetWord(m.word, uint64(operands[m.operand])+m.off)
	}
}
