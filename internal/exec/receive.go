package exec

import (
	"bytes"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

// reception is how one output comes to the host: each block to its place in the global
// tensor, if its bytes lie together there, else to storage of its own. Where ranks hold
// the same block the first one's is taken, and the others' compared with it.
type reception struct {
	io    *plan.IO
	first []int // by part: the first that has the same block

	whole  *tensor.Tensor   // nil where nothing comes
	blocks []*tensor.Tensor // by part
	own    []*tensor.Tensor // by part: storage, where it was needed
}

func newReception(io *plan.IO) reception {
	r := reception{io: io, blocks: make([]*tensor.Tensor, len(io.Parts)), own: make([]*tensor.Tensor, len(io.Parts))}
	for k := range io.Parts {
		r.first = append(r.first, slices.IndexFunc(io.Parts, func(o plan.IOPart) bool { return slices.Equal(o.Lo, io.Parts[k].Lo) }))
	}
	return r
}

// forget lets go of what is the caller's.
func (r *reception) forget() {
	r.whole = nil
	clear(r.blocks)
}

// aim lays the blocks ready that make up whole.
func (r *reception) aim(whole *tensor.Tensor) error {
	r.whole = whole
	for k := range r.io.Parts {
		part := &r.io.Parts[k]
		if r.first[k] == k {
			if data := tensor.Window(whole, part.Lo, part.Ref.Shape); data != nil {
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

// finish puts the blocks together that have come. Where ranks hold the same block, their
// bytes must be equal: that is what the layout in the signature claims (S2, S14).
func (r *reception) finish() error {
	for k := range r.io.Parts {
		part, j := &r.io.Parts[k], r.first[k]
		if j < k && !bytes.Equal(r.blocks[j].Data, r.blocks[k].Data) {
			return differ(r.io, &r.io.Parts[j], part, r.blocks[j], r.blocks[k])
		}
		if j < k || r.own[k] == nil {
			continue
		}
		if err := tensor.Paste(r.whole, r.own[k], part.Lo); err != nil {
			return fmt.Errorf("output %s: %w", r.io.Name, err)
		}
	}
	return nil
}

// aim lays ready what the host receives of a run's outputs, in tensors of the caller's
// that are not shared where he has some.
func (p *Program) aim(f *frame, d Direct, shared map[*tensor.Tensor]bool) error {
	b := 0
	for i := range f.out {
		r := &f.out[i]
		get := f.get[b : b+len(r.blocks)]
		b += len(r.blocks)
		if d.Out[r.io.Name] != nil { // left on the devices
			r.forget()
			clear(r.own)
			clear(get)
			continue
		}
		whole := d.Into[r.io.Name]
		if whole == nil || shared[whole] {
			var err error
			if whole, err = tensor.New(r.io.DType, r.io.Shape); err != nil {
				return err
			}
		}
		if err := r.aim(whole); err != nil {
			return err
		}
		for k, block := range r.blocks {
			get[k] = block.Data
		}
	}
	return nil
}

// sharedInto are the tensors to receive outputs that share bytes with another tensor of the
// batch: what is given to a run may be read when outputs of one before it come.
func sharedInto(batch []map[string]*tensor.Tensor, direct []Direct) map[*tensor.Tensor]bool {
	var into, all []*tensor.Tensor
	for _, d := range direct {
		for _, t := range d.Into {
			into = append(into, t)
		}
	}
	if len(into) == 0 {
		return nil
	}
	all = append(all, into...)
	for _, in := range batch {
		for _, t := range in {
			all = append(all, t)
		}
	}
	shared := map[*tensor.Tensor]bool{}
	for i, t := range into {
		for k, o := range all {
			if i != k && tensor.Overlap(t, o) {
				shared[t] = true
			}
		}
	}
	return shared
}

// assemble makes the global outputs of one run, in the tensors that the caller has for them.
func assemble(f *frame, d Direct) (map[string]*tensor.Tensor, error) {
	outs := make(map[string]*tensor.Tensor, len(f.out))
	for i := range f.out {
		r := &f.out[i]
		if r.whole == nil {
			continue
		}
		if err := r.finish(); err != nil {
			return nil, err
		}
		out := r.whole
		if into := d.Into[r.io.Name]; into != nil && into != out {
			copy(into.Data, out.Data)
			out = into
		}
		outs[r.io.Name] = out
	}
	return outs, nil
}

// MismatchError says that two ranks hold different contents of one block of an
// output, though the signature's layout says that they are copies.
type MismatchError struct {
	Output         string
	RankA, RankB   int
	Index          []int64 // global index of the first element that differs
	ValueA, ValueB float64
	Count          int64 // elements that differ
}

// Error names the output, the ranks and the first element.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("output %s: ranks %d and %d should hold the same elements, but %d differ; the first, at %v, is %v on rank %d and %v on rank %d",
		e.Output, e.RankA, e.RankB, e.Count, e.Index, e.ValueA, e.RankA, e.ValueB, e.RankB)
}

func differ(io *plan.IO, a, b *plan.IOPart, x, y *tensor.Tensor) error {
	e := &MismatchError{Output: io.Name, RankA: int(a.Ref.Rank), RankB: int(b.Ref.Rank)}
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
