package exec

import (
	"bytes"
	"fmt"
	"maps"
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
	spare  *tensor.Tensor   // what whole is where the caller's tensor cannot be it
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
			r.spare = nil
			clear(r.own)
			clear(get)
			continue
		}
		whole, err := r.receiver(d.Into[r.io.Name], shared)
		if err == nil {
			err = r.aim(whole)
		}
		if err != nil {
			return err
		}
		for k, block := range r.blocks {
			get[k] = block.Data
		}
	}
	return nil
}

// receiver returns what an output comes to, into where the caller has that.
func (r *reception) receiver(into *tensor.Tensor, shared map[*tensor.Tensor]bool) (*tensor.Tensor, error) {
	if into == nil || !shared[into] {
		r.spare = nil
	}
	if into == nil {
		return tensor.New(r.io.DType, r.io.Shape)
	}
	if !shared[into] {
		return into, nil
	}
	var err error
	if r.spare == nil {
		r.spare, err = tensor.New(r.io.DType, r.io.Shape)
	}
	return r.spare, err
}

// sharedInto are the tensors to receive outputs that share bytes with another tensor of the
// batch: what is given to a run may be read when outputs of one before it come, and what
// one rank is given when those of another do. Not so where a single run updates in place
// what every rank has a part of its own of: then spoils is set, since what it was given may
// be gone when it fails.
func (p *Program) sharedInto(batch []map[string]*tensor.Tensor, direct []Direct) (shared map[*tensor.Tensor]bool, spoils bool) {
	shared = map[*tensor.Tensor]bool{}
	var into []*tensor.Tensor
	for _, d := range direct {
		into = slices.AppendSeq(into, maps.Values(d.Into))
	}
	if len(into) == 0 {
		return shared, false
	}
	given := map[*tensor.Tensor]bool{}
	for _, in := range batch {
		for name, t := range in {
			switch b := p.params[name]; {
			case b < len(p.lasting.rests) && p.lasting.rests[b]: // it is on the devices before the runs begin
			case len(batch) == 1 && p.updates(name, t, direct[0].Into):
				spoils = true
			default:
				given[t] = true
			}
		}
	}
	for i, meets := range tensor.Overlaps(slices.AppendSeq(slices.Clone(into), maps.Keys(given))) {
		if meets && i < len(into) {
			shared[into[i]] = true
		}
	}
	return shared, spoils
}

// updates reports whether a run may write an output to the very tensor that it is given as
// an input.
func (p *Program) updates(input string, t *tensor.Tensor, into map[string]*tensor.Tensor) bool {
	for output, o := range into {
		if o == t && p.inPlace(input, output) {
			return true
		}
	}
	return false
}

// inPlace reports whether each rank has the same block of an input and of an output, and no
// other rank has it.
func (p *Program) inPlace(input, output string) bool {
	is := func(name string) func(io plan.IO) bool { return func(io plan.IO) bool { return io.Name == name } }
	i, o := slices.IndexFunc(p.inputs, is(input)), slices.IndexFunc(p.outputs, is(output))
	if i < 0 || o < 0 {
		return false
	}
	same := func(a, b plan.IOPart) bool {
		return a.Ref.Rank == b.Ref.Rank && slices.Equal(a.Lo, b.Lo) && slices.Equal(a.Ref.Shape, b.Ref.Shape)
	}
	parts := p.outputs[o].Parts
	for k := range parts {
		if slices.ContainsFunc(parts[:k], func(part plan.IOPart) bool { return slices.Equal(part.Lo, parts[k].Lo) }) {
			return false
		}
	}
	return slices.EqualFunc(p.inputs[i].Parts, parts, same)
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
			tensor.CopyBytes(into.Data, out.Data)
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
	// Proved says that the plan of the run was proved: then no wait is missing. Either the
	// program has ranks compute what differs, since what a layout claims of them is not
	// proved, or copies differed that a device tensor had before, or a device computed
	// wrongly.
	Proved bool
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
