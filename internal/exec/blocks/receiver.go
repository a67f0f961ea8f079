package blocks

import (
	"bytes"
	"fmt"
	"slices"

	"hocket.example/hocket/fault"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

// Receiver receives one output on the host. If several ranks hold the same block, the Receiver uses the block of the
// first rank and compares the other ranks' blocks with it. A Receiver is reused for later runs.
//
// Blocks of other processes' ranks may not be received. If some elements of the output are missing because of that, the
// output consists of blocks only, without a global tensor.
type Receiver struct {
	io    *plan.IO
	first []int // by part of the output: the first received part with the same block; -1 if the part is not received
	parts bool  // whether some elements of the output are not received

	whole  *tensor.Tensor   // nil if nothing is received
	into   *tensor.Tensor   // the caller's tensor, if it passed one
	blocks []*tensor.Tensor // by part
	own    []*tensor.Tensor // by part of the output: separate memory, if the part needs it
	spare  *tensor.Tensor   // memory for the global tensor, if the caller's tensor cannot be used
}

// NewReceiver returns a receiver for an output without absent blocks. receives reports the ranks whose blocks are
// received.
func NewReceiver(io *plan.IO, receives func(rank int) bool) *Receiver {
	r := &Receiver{io: io, blocks: make([]*tensor.Tensor, len(io.Parts)), own: make([]*tensor.Tensor, len(io.Parts))}
	for k := range io.Parts {
		first := slices.IndexFunc(io.Parts, func(o plan.IOPart) bool {
			return slices.Equal(o.Lo, io.Parts[k].Lo) && receives(int(o.Ref.Rank))
		})
		r.parts = r.parts || first < 0
		if !receives(int(io.Parts[k].Ref.Rank)) {
			first = -1
		}
		r.first = append(r.first, first)
	}
	return r
}

// Whole reports whether all elements are received, so that there is a global tensor.
func (r *Receiver) Whole() bool { return !r.parts }

// IO returns the output.
func (r *Receiver) IO() *plan.IO { return r.io }

// Skip makes the receiver ignore the next run's output, and frees memory.
func (r *Receiver) Skip() {
	r.Forget()
	r.spare = nil
	clear(r.own)
}

// Forget drops references to the caller's tensors.
func (r *Receiver) Forget() {
	r.whole, r.into = nil, nil
	clear(r.blocks)
}

// Expect prepares for the next run's output. The output is stored in the tensor into or, if into is nil, in a new
// tensor. shared reports that other operations may still read the memory of into when blocks arrive. If shared is set,
// the receiver uses separate memory, from which Finish copies.
func (r *Receiver) Expect(into *tensor.Tensor, shared bool) error {
	if r.parts && into != nil {
		return InputError([]string{fmt.Sprintf(
			"other processes hold blocks of result %s: set Gather, or read the local blocks", r.io.Name)})
	}
	if into == nil || !shared {
		r.spare = nil
	}
	r.into, r.whole = into, into
	var err error
	switch {
	case r.parts:
		clear(r.own) // the caller of the run owns these blocks
	case into == nil:
		r.whole, err = tensor.New(r.io.DType, r.io.Shape)
	case shared && r.spare == nil:
		r.spare, err = tensor.New(r.io.DType, r.io.Shape)
	}
	if shared && into != nil {
		r.whole = r.spare
	}
	if err != nil {
		return err
	}
	return r.place()
}

// place chooses the memory of each block.
func (r *Receiver) place() error {
	for k := range r.io.Parts {
		part := &r.io.Parts[k]
		if r.first[k] < 0 {
			continue
		}
		if r.first[k] == k && r.whole != nil {
			if data := tensor.Window(r.whole, part.Lo, part.Ref.Shape); data != nil {
				r.blocks[k], r.own[k] = &tensor.Tensor{DType: r.io.DType, Shape: part.Ref.Shape, Data: data}, nil
				continue
			}
		}
		if r.own[k] == nil {
			var err error
			if r.own[k], err = tensor.New(r.io.DType, part.Ref.Shape); err != nil {
				return err
			}
		}
		r.blocks[k] = r.own[k]
	}
	return nil
}

// Blocks returns the number of blocks.
func (r *Receiver) Blocks() int { return len(r.blocks) }

// Block returns the memory for the bytes of part k; nil if part k is not received.
func (r *Receiver) Block(k int) []byte {
	if r.blocks[k] == nil {
		return nil
	}
	return r.blocks[k].Data
}

// Finish joins the received blocks and returns the global tensor; nil if some elements were not received. If several
// ranks hold the same block, the layout in the signature requires that their bytes are equal (rules S2 and S14). If the
// bytes differ, Finish returns a *fault.MismatchError.
func (r *Receiver) Finish() (*tensor.Tensor, error) {
	for k := range r.io.Parts {
		part, j := &r.io.Parts[k], r.first[k]
		if j < 0 || r.blocks[k] == nil {
			continue
		}
		if j < k && !bytes.Equal(r.blocks[j].Data, r.blocks[k].Data) {
			return nil, differ(r.io, &r.io.Parts[j], part, r.blocks[j], r.blocks[k])
		}
		if j < k || r.own[k] == nil || r.whole == nil {
			continue
		}
		if err := tensor.Paste(r.whole, r.own[k], part.Lo); err != nil {
			return nil, fmt.Errorf("output %s: %w", r.io.Name, err)
		}
	}
	if r.whole != nil && r.into != nil && r.into != r.whole {
		tensor.CopyBytes(r.into.Data, r.whole.Data)
		return r.into, nil
	}
	return r.whole, nil
}

// Part returns block k as it was received, or nil if it was not received. The caller then owns the block, which may be
// a part of the global tensor.
func (r *Receiver) Part(k int) *tensor.Tensor {
	t := r.blocks[k]
	if t != nil && t == r.own[k] && !r.parts { // otherwise the next run would reuse the memory
		return t.Clone()
	}
	return t
}

func differ(io *plan.IO, a, b *plan.IOPart, x, y *tensor.Tensor) error {
	e := &fault.MismatchError{Output: io.Name, RankA: int(a.Ref.Rank), RankB: int(b.Ref.Rank)}
	size := io.DType.Size()
	for i := range x.Len() {
		if bytes.Equal(x.Data[i*size:(i+1)*size], y.Data[i*size:(i+1)*size]) {
			continue
		}
		if e.Count++; e.Count == 1 {
			e.Index, e.ValueA, e.ValueB = globalIndex(a, x.Shape, i), x.Float64(i), y.Float64(i)
		}
	}
	return e
}

func globalIndex(part *plan.IOPart, shape []int64, i int64) []int64 {
	at := slices.Clone(part.Lo)
	for axis := len(shape) - 1; axis >= 0; axis-- {
		at[axis] += i % shape[axis]
		i /= shape[axis]
	}
	return at
}
