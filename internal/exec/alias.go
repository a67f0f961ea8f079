package exec

import (
	"maps"
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

// sharedInto are the tensors to receive outputs that share bytes with another tensor of the
// batch: what is given to a run may be read when outputs of one before it come, and what
// one rank is given when those of another do. Not so where a single run updates in place
// what every rank has a part of its own of: then spoils is set, since what it was given may
// be gone when it fails. skip tells which blocks are on the devices before the runs begin.
func (s signature) sharedInto(
	batch []Args, weights *Weights, ins []int, skip []bool,
) (shared map[*tensor.Tensor]bool, spoils bool) {
	shared = map[*tensor.Tensor]bool{}
	var into []*tensor.Tensor
	for _, a := range batch {
		into = slices.AppendSeq(into, maps.Values(a.Into))
	}
	if len(into) == 0 {
		return shared, false
	}
	given := map[*tensor.Tensor]bool{}
	for _, a := range batch {
		for _, parts := range a.InLocal {
			for _, t := range parts {
				given[t] = true
			}
		}
		take := func(name string, t *tensor.Tensor) {
			switch b := s.im.FirstBlock[name]; {
			case t == nil:
			case b < len(skip) && skip[b]:
			case len(batch) == 1 && s.updates(name, t, a.Into):
				spoils = true
			default:
				given[t] = true
			}
		}
		for name, t := range a.In {
			take(name, t)
		}
		for _, i := range ins {
			if name := s.im.Inputs[i].Name; a.In[name] == nil {
				take(name, a.host(name, weights))
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
func (s signature) updates(input string, t *tensor.Tensor, into map[string]*tensor.Tensor) bool {
	for output, o := range into {
		if o == t && s.inPlace(input, output) {
			return true
		}
	}
	return false
}

// inPlace reports whether each rank has the same block of an input and of an output, and no
// other rank has it.
func (s signature) inPlace(input, output string) bool {
	is := func(name string) func(io plan.IO) bool { return func(io plan.IO) bool { return io.Name == name } }
	i, o := slices.IndexFunc(s.im.Inputs, is(input)), slices.IndexFunc(s.im.Outputs, is(output))
	if i < 0 || o < 0 {
		return false
	}
	same := func(a, b plan.IOPart) bool {
		return a.Ref.Rank == b.Ref.Rank && slices.Equal(a.Lo, b.Lo) && slices.Equal(a.Ref.Shape, b.Ref.Shape)
	}
	parts := s.im.Outputs[o].Parts
	for k := range parts {
		if slices.ContainsFunc(parts[:k], func(part plan.IOPart) bool { return slices.Equal(part.Lo, parts[k].Lo) }) {
			return false
		}
	}
	return slices.EqualFunc(s.im.Inputs[i].Parts, parts, same)
}
