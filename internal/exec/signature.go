package exec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

// signature is what a program wants of its arguments.
type signature struct{ im *image.Image }

// check lists everything that is wrong with the names, types, shapes and places of the
// tensors of the first run that something is wrong with.
func (s signature) check(batch []Args, weights *Weights, ins []int) error {
	filled := map[*resident.DeviceTensor]bool{} // by the runs before
	for i, a := range batch {
		wrong := s.wrongInputs(a, weights, ins)
		for _, name := range slices.Sorted(maps.Keys(a.DeviceIn)) {
			if t := a.DeviceIn[name]; !filled[t] && !t.HasContents() {
				wrong = append(wrong, fmt.Sprintf("the device tensor for %s holds nothing: %s", name, resident.HowToFill))
			}
		}
		wrong = append(wrong, s.wrongOutputs(a.DeviceOut)...)
		wrong = append(wrong, s.wrongResidents(a)...)
		wrong = append(wrong, s.wrongEnqueued(a)...)
		if err := blocks.InputError(wrong); err != nil {
			if len(batch) > 1 {
				return fmt.Errorf("run %d of %d: %w", i+1, len(batch), err)
			}
			return err
		}
		for _, t := range a.DeviceOut {
			filled[t] = true
		}
	}
	return nil
}

func (s signature) wrongInputs(a Args, weights *Weights, ins []int) (wrong []string) {
	for _, i := range ins {
		io := &s.im.Inputs[i]
		switch t := a.DeviceIn[io.Name]; {
		case a.InAt[io.Name] != nil && (t != nil || a.In[io.Name] != nil):
			wrong = append(wrong, fmt.Sprintf("%s is given twice, by addresses and otherwise", io.Name))
		case a.InAt[io.Name] != nil:
			wrong = append(wrong, s.wrongAt(io, a.InAt[io.Name])...)
		case a.InLocal[io.Name] != nil:
			wrong = append(wrong, s.wrongLocal(io, a)...)
		case t == nil:
			if given := a.host(io.Name, weights); given != nil || s.hasPart(io) {
				wrong = append(wrong, blocks.Wrong(io, given)...)
			}
		case a.In[io.Name] != nil:
			wrong = append(wrong, fmt.Sprintf("%s is given twice, in the host's memory and on the devices", io.Name))
		default:
			wrong = append(wrong, t.Unlike(io, s.im.Plan.Ranks)...)
		}
	}
	for _, name := range s.unknown(a) {
		wrong = append(wrong, fmt.Sprintf("there is no parameter %s", name))
	}
	return wrong
}

// hasPart reports whether a rank of this process has a block of an input, or none of any process has.
func (s signature) hasPart(io *plan.IO) bool {
	local := func(part plan.IOPart) bool { return s.im.World.Local(int(part.Ref.Rank)) }
	return len(io.Parts) == 0 || slices.ContainsFunc(io.Parts, local)
}

// wrongLocal says what is wrong with blocks for io.
func (s signature) wrongLocal(io *plan.IO, a Args) (wrong []string) {
	if a.In[io.Name] != nil || a.DeviceIn[io.Name] != nil {
		wrong = append(wrong, fmt.Sprintf("%s is given twice, in blocks and otherwise", io.Name))
	}
	given := a.InLocal[io.Name]
	for _, rank := range slices.Sorted(maps.Keys(given)) {
		if rank < 0 || rank >= s.im.Plan.Ranks || !s.im.World.Local(rank) || io.Of(int32(rank)) == nil {
			wrong = append(wrong, fmt.Sprintf("%s: rank %d has no block of it in this process", io.Name, rank))
		}
	}
	for _, part := range io.Parts {
		rank := int(part.Ref.Rank)
		if !s.im.World.Local(rank) {
			continue
		}
		name := fmt.Sprintf("the block of %s for rank %d", io.Name, rank)
		block := plan.IO{Name: name, DType: io.DType, Shape: part.Ref.Shape}
		for _, text := range blocks.Wrong(&block, given[rank]) {
			if t := given[rank]; t != nil && t.Check() == nil {
				text += s.wayOut(io, t)
			}
			wrong = append(wrong, text)
		}
	}
	return wrong
}

// wayOut says what to give in place of a tensor that is no block of io.
func (s signature) wayOut(io *plan.IO, t *tensor.Tensor) string {
	var dims []string
	for _, d := range s.im.Plan.Dims {
		dims = append(dims, fmt.Sprintf("%s=%d", d.Name, d.Value))
	}
	is := "is"
	if t.DType == io.DType && slices.Equal(t.Shape, io.Shape) {
		is = "is that as a whole, which is"
	}
	return fmt.Sprintf(": %s %s %s where %s; each process gives the block of its rank, and the run other dims if it is for others",
		io.Name, is, blocks.Header(io), strings.Join(dims, ", "))
}

// unknown lists the names that no parameter has. A run has few, and may have many others.
func (s signature) unknown(a Args) (names []string) {
	look := func(name string) {
		if _, ok := s.im.FirstBlock[name]; !ok {
			names = append(names, name)
		}
	}
	for name := range a.In {
		look(name)
	}
	for name := range a.InLocal {
		look(name)
	}
	for name := range a.DeviceIn {
		look(name)
	}
	for name := range a.InAt {
		look(name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (s signature) wrongOutputs(outputs map[string]*resident.DeviceTensor) (wrong []string) {
	taken := map[*resident.DeviceTensor]string{}
	for _, name := range slices.Sorted(maps.Keys(outputs)) {
		t := outputs[name]
		i := slices.IndexFunc(s.im.Outputs, func(io plan.IO) bool { return io.Name == name })
		if i < 0 {
			wrong = append(wrong, fmt.Sprintf("there is no result %s to leave on the devices", name))
			continue
		}
		if other, twice := taken[t]; twice {
			wrong = append(wrong, fmt.Sprintf("one device tensor is to receive %s and %s", other, name))
		}
		taken[t] = name
		wrong = append(wrong, t.Unlike(&s.im.Outputs[i], s.im.Plan.Ranks)...)
	}
	return wrong
}

// wrongResidents says which residents a run is to be given otherwise: it would find, and
// change, what lies there.
func (s signature) wrongResidents(a Args) (wrong []string) {
	for i, t := range s.im.Residents {
		if io := &s.im.Inputs[i]; t != nil && !a.UsesOnlyAs(t, io.Name, io.Inout) {
			wrong = append(wrong, fmt.Sprintf("%s lies in a device tensor, and the run is to use that otherwise", io.Name))
		}
	}
	return wrong
}

// wrongAt says what is wrong with addresses for an input or output.
func (s signature) wrongAt(io *plan.IO, at map[int]uintptr) (wrong []string) {
	for _, rank := range slices.Sorted(maps.Keys(at)) {
		part := (*plan.IOPart)(nil)
		if rank >= 0 && rank < s.im.Plan.Ranks && s.im.World.Local(rank) {
			part = io.Of(int32(rank))
		}
		switch size := uintptr(io.DType.Size()); {
		case part == nil:
			wrong = append(wrong, fmt.Sprintf("%s: rank %d has no block of it in this process", io.Name, rank))
		case at[rank]%size != 0:
			wrong = append(wrong, fmt.Sprintf("%s: the address %#x for rank %d is no multiple of %d", io.Name, at[rank],
				rank, size))
		}
	}
	for _, part := range io.Parts {
		if r := int(part.Ref.Rank); s.im.World.Local(r) && at[r] == 0 && part.Ref.Bytes() > 0 {
			wrong = append(wrong, fmt.Sprintf("%s: there is no address for the block of rank %d, %s%v", io.Name, r,
				io.DType, part.Ref.Shape))
		}
	}
	return wrong
}

// wrongEnqueued says what of a run that is enqueued would have to do with the host's memory.
func (s signature) wrongEnqueued(a Args) (wrong []string) {
	if !a.Enqueued {
		return nil
	}
	for name := range a.OutAt {
		if !slices.ContainsFunc(s.im.Outputs, func(io plan.IO) bool { return io.Name == name }) {
			wrong = append(wrong, fmt.Sprintf("there is no result %s", name))
		}
	}
	slices.Sort(wrong)
	for i := range s.im.Outputs {
		io := &s.im.Outputs[i]
		switch _, at := a.OutAt[io.Name]; {
		case (at || a.Lend[io.Name] != nil) && a.DeviceOut[io.Name] != nil, at && a.Lend[io.Name] != nil:
			wrong = append(wrong, fmt.Sprintf("result %s is to be left twice, at addresses, in a device tensor or lent",
				io.Name))
		case at:
			wrong = append(wrong, s.wrongAt(io, a.OutAt[io.Name])...)
		case a.Lend[io.Name] != nil && a.DeviceOut[io.Name] == nil:
		case a.DeviceOut[io.Name] == nil:
			wrong = append(wrong, fmt.Sprintf("there is no place on the devices for result %s", io.Name))
		}
	}
	return wrong
}

// sharedInto returns the tensors for outputs that share bytes with another tensor of the batch. Arguments of a run may
// be read while outputs of an earlier run arrive, and those of one rank while outputs of another arrive. A single run
// may update in place a tensor of which every rank has its own part: then spoils is set, since the argument may be
// lost if the run fails. skip says which blocks are on the devices before the runs begin.
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
