package exec

import (
	"cmp"
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

// signature checks arguments against a program's requirements.
type signature struct{ im *image.Image }

// check checks the names, types, shapes and locations of tensors, and returns an error that lists all faults of the
// first run that has any.
func (s signature) check(batch []Args, weights *Weights, ins []int) error {
	filled := map[*resident.DeviceTensor]bool{} // device tensors that earlier runs of the batch write
	for i, a := range batch {
		wrong := s.wrongInputs(a, weights, ins)
		wrong = append(wrong, s.wrongOutputs(a.DeviceOut)...)
		wrong = append(wrong, s.wrongResidents(a)...)
		wrong = append(wrong, s.wrongEnqueued(a)...)
		wrong = append(wrong, s.wrongInto(a)...)
		if err := cmp.Or(blocks.InputError(wrong), noContents(a, filled)); err != nil {
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

// noContents returns an error about the first device tensor that a run reads and that has no contents. filled holds the
// tensors that earlier runs of the batch write.
func noContents(a Args, filled map[*resident.DeviceTensor]bool) error {
	if len(a.DeviceIn) == 0 {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(a.DeviceIn)) {
		switch t := a.DeviceIn[name]; {
		case filled[t] || t.HasContents():
		case t.Lost() != nil:
			return t.Errorf("%w", t.Lost())
		default:
			return fmt.Errorf("the device tensor for %s has %w: %s", name, resident.ErrNoContents, resident.HowToFill)
		}
	}
	return nil
}

func (s signature) wrongInputs(a Args, weights *Weights, ins []int) (wrong []string) {
	for _, i := range ins {
		io := &s.im.Inputs[i]
		switch t := a.DeviceIn[io.Name]; {
		case a.InAt[io.Name] != nil && (t != nil || a.In[io.Name] != nil):
			wrong = append(wrong, fmt.Sprintf("%s is passed twice, as addresses and in another form: pass only one",
				io.Name))
		case a.InAt[io.Name] != nil:
			wrong = append(wrong, s.wrongAt(io, a.InAt[io.Name])...)
		case a.InLocal[io.Name] != nil:
			wrong = append(wrong, s.wrongLocal(io, a)...)
		case t == nil:
			if given := a.host(io.Name, weights); given != nil || s.hasPart(io) {
				for _, text := range blocks.Wrong(io, given) {
					if given != nil && a.In[io.Name] == nil {
						text = "the bound tensor " + text
					}
					wrong = append(wrong, text)
				}
			}
		case a.In[io.Name] != nil:
			wrong = append(wrong, fmt.Sprintf("%s is passed twice, in host memory and on the devices: pass only one",
				io.Name))
		default:
			wrong = append(wrong, t.Unlike(io, s.im.Plan.Ranks)...)
		}
	}
	for _, name := range s.unknown(a) {
		wrong = append(wrong, fmt.Sprintf("the program has no parameter %s%s", name, s.meant(name)))
	}
	return wrong
}

// meant returns a hint if a name differs from the name of a parameter only in case or by a % before it; otherwise it
// returns "".
func (s signature) meant(name string) string {
	for _, io := range s.im.Inputs {
		if strings.EqualFold(strings.TrimPrefix(name, "%"), io.Name) {
			return fmt.Sprintf(" (the parameter is called %s in arguments)", io.Name)
		}
	}
	return ""
}

// hasPart reports whether a rank of this process has a block of an input. It also returns true if no rank of any
// process has a block of the input.
func (s signature) hasPart(io *plan.IO) bool {
	local := func(part plan.IOPart) bool { return s.im.World.Local(int(part.Ref.Rank)) }
	return len(io.Parts) == 0 || slices.ContainsFunc(io.Parts, local)
}

// wrongLocal returns the faults in the blocks passed for io.
func (s signature) wrongLocal(io *plan.IO, a Args) (wrong []string) {
	if a.In[io.Name] != nil || a.DeviceIn[io.Name] != nil {
		wrong = append(wrong, fmt.Sprintf("%s is passed twice, as blocks and in another form: pass only one", io.Name))
	}
	given := a.InLocal[io.Name]
	for _, rank := range slices.Sorted(maps.Keys(given)) {
		if rank < 0 || rank >= s.im.Plan.Ranks || !s.im.World.Local(rank) || io.Of(int32(rank)) == nil {
			wrong = append(wrong, fmt.Sprintf("%s: a block is passed for rank %d, but this process has no block of it for this rank", io.Name, rank))
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

// wayOut describes the tensor that the caller should pass instead of t, which is not a block of io.
func (s signature) wayOut(io *plan.IO, t *tensor.Tensor) string {
	var dims []string
	for _, d := range s.im.Plan.Dims {
		dims = append(dims, fmt.Sprintf("%s=%d", d.Name, d.Value))
	}
	is := "is"
	if t.DType == io.DType && slices.Equal(t.Shape, io.Shape) {
		is = "as a whole is"
	}
	return fmt.Sprintf(": %s %s %s where %s; each process must pass the block of its rank, and a run for other dims must "+
		"set them", io.Name, is, blocks.Header(io), strings.Join(dims, ", "))
}

// unknown returns the names in a run's arguments that are not parameters. It iterates over the arguments, because there
// can be many more parameters.
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
	if len(outputs) == 0 {
		return nil
	}
	taken := map[*resident.DeviceTensor]string{}
	for _, name := range slices.Sorted(maps.Keys(outputs)) {
		t := outputs[name]
		i := slices.IndexFunc(s.im.Outputs, func(io plan.IO) bool { return io.Name == name })
		if i < 0 {
			wrong = append(wrong, fmt.Sprintf("a device tensor is passed for result %s, but the program has no such result", name))
			continue
		}
		if other, twice := taken[t]; twice {
			wrong = append(wrong, fmt.Sprintf("the same device tensor is passed for results %s and %s", other, name))
		}
		taken[t] = name
		wrong = append(wrong, t.Unlike(&s.im.Outputs[i], s.im.Plan.Ranks)...)
	}
	return wrong
}

// wrongResidents returns the faults in the use of resident device tensors. A run reads and writes a resident device
// tensor in place, so it must not use the tensor in any other way.
func (s signature) wrongResidents(a Args) (wrong []string) {
	for i, t := range s.im.Residents {
		if io := &s.im.Inputs[i]; t != nil && !a.UsesOnlyAs(t, io.Name, io.Inout) {
			wrong = append(wrong, fmt.Sprintf("%s is resident in a device tensor, which the run's arguments use for something "+
				"else too", io.Name))
		}
	}
	return wrong
}

// wrongAt returns the faults in the addresses of an input or output.
func (s signature) wrongAt(io *plan.IO, at map[int]uintptr) (wrong []string) {
	for rank := range at {
		part := (*plan.IOPart)(nil)
		if rank >= 0 && rank < s.im.Plan.Ranks && s.im.World.Local(rank) {
			part = io.Of(int32(rank))
		}
		switch size := uintptr(io.DType.Size()); {
		case part == nil:
			wrong = append(wrong, fmt.Sprintf("%s: a block is passed for rank %d, but this process has no block of it for this rank", io.Name, rank))
		case at[rank]%size != 0:
			wrong = append(wrong, fmt.Sprintf("%s: the address %#x for rank %d is not a multiple of %d", io.Name,
				at[rank],
				rank, size))
		}
	}
	slices.Sort(wrong)
	for _, part := range io.Parts {
		if r := int(part.Ref.Rank); s.im.World.Local(r) && at[r] == 0 && part.Ref.Bytes() > 0 {
			wrong = append(wrong, fmt.Sprintf("%s: no address is passed for the block of rank %d, %s%v", io.Name, r,
				io.DType, part.Ref.Shape))
		}
	}
	return wrong
}

// wrongEnqueued returns the faults in the arguments of an enqueued run, which must not use host memory.
func (s signature) wrongEnqueued(a Args) (wrong []string) {
	if !a.Enqueued {
		return nil
	}
	for name := range a.OutAt {
		if !slices.ContainsFunc(s.im.Outputs, func(io plan.IO) bool { return io.Name == name }) {
			wrong = append(wrong, fmt.Sprintf("the program has no result %s", name))
		}
	}
	slices.Sort(wrong)
	wrong = append(wrong, s.wrongUpdates(a)...)
	for i := range s.im.Outputs {
		io := &s.im.Outputs[i]
		switch _, at := a.OutAt[io.Name]; {
		case (at || a.Lend[io.Name] != nil) && a.DeviceOut[io.Name] != nil, at && a.Lend[io.Name] != nil:
			wrong = append(wrong, fmt.Sprintf("result %s has more than one destination: choose addresses, a device tensor or "+
				"lending",
				io.Name))
		case at:
			wrong = append(wrong, s.wrongAt(io, a.OutAt[io.Name])...)
		case a.Lend[io.Name] != nil && a.DeviceOut[io.Name] == nil:
		case a.DeviceOut[io.Name] == nil:
			wrong = append(wrong, fmt.Sprintf("result %s has no destination on the devices: pass addresses or a device "+
				"tensor, or lend it", io.Name))
		}
	}
	return wrong
}

// wrongInto returns a fault for each argument in host memory that the run updates in place and that shares memory with
// another such argument. Arguments that are only read are copied before the run writes.
func (s signature) wrongInto(a Args) (wrong []string) {
	if len(a.Into) < 2 {
		return nil
	}
	var updated []string
	for _, name := range slices.Sorted(maps.Keys(a.Into)) {
		t := a.In[name]
		if t == nil || !tensor.ShareBytes(t.Data, a.Into[name].Data) {
			continue
		}
		for _, other := range updated {
			if tensor.ShareBytes(t.Data, a.In[other].Data) {
				wrong = append(wrong, tensor.SharesMemory(other, name))
			}
		}
		updated = append(updated, name)
	}
	return wrong
}

// wrongUpdates returns a fault if an enqueued run updates arguments at addresses that share memory with each other. It
// returns immediately if the run updates no argument.
func (s signature) wrongUpdates(a Args) (wrong []string) {
	updates := false
	for name := range a.OutAt {
		updates = updates || a.InAt[name] != nil
	}
	if !updates {
		return nil
	}
	type block struct {
		name    string
		rank    int
		lo, hi  uintptr
		updated bool
	}
	var all []block
	for i := range s.im.Inputs {
		io := &s.im.Inputs[i]
		for rank, lo := range a.InAt[io.Name] {
			if part := io.Of(int32(rank)); part != nil {
				all = append(all, block{io.Name, rank, lo, lo + uintptr(part.Ref.Bytes()),
					a.OutAt[io.Name][rank] == lo})
			}
		}
	}
	for _, u := range all {
		for _, o := range all {
			if u.updated && o.updated && o.name < u.name && o.rank == u.rank && o.lo < u.hi && u.lo < o.hi {
				wrong = append(wrong, tensor.SharesMemory(o.name, u.name))
			}
		}
	}
	slices.Sort(wrong)
	return slices.Compact(wrong)
}

// sharedInto returns the tensors for outputs that share bytes with another tensor of the batch. Arguments of a run may
// be read while outputs of an earlier run arrive. Within a run, arguments of one rank may be read while outputs of
// another rank arrive. A single run may update a tensor in place if no two ranks have the same part of the tensor. In
// this case the result spoils is true, because the argument may be lost if the run fails. skip reports which blocks are
// on the devices before the runs begin.
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

// updates reports whether a run may write an output to the tensor from which it reads the given input.
func (s signature) updates(input string, t *tensor.Tensor, into map[string]*tensor.Tensor) bool {
	for output, o := range into {
		if o == t && s.inPlace(input, output) {
			return true
		}
	}
	return false
}

// inPlace reports whether each rank has the same block of an input and of an output, and no other rank has that block.
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
