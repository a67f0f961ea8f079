package exec

import (
	"fmt"
	"maps"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

// Direct is what a run takes from the devices, by parameter, and leaves there, by output,
// rather than in the host's memory. One tensor may be both.
type Direct struct {
	In, Out map[string]*DeviceTensor
	// Into are tensors, of the right types and shapes, that receive other outputs.
	Into map[string]*tensor.Tensor
}

// directOf is run i's part of a batch.
func directOf(batch []Direct, i int) Direct {
	if batch == nil {
		return Direct{}
	}
	return batch[i]
}

// left says of what a batch leaves on the devices whether it is there.
func left(batch []Direct, holds bool) {
	for _, d := range batch {
		for _, t := range d.Out {
			t.setContents(holds)
		}
	}
}

// SpoiledError is the error of a run that was to update in place what it was given, and may
// have begun to: it cannot be run again from that.
type SpoiledError struct{ Err error }

// Error says so.
func (e *SpoiledError) Error() string {
	return e.Err.Error() + "; what the run was given to update in place is lost"
}

// Unwrap returns the run's error.
func (e *SpoiledError) Unwrap() error { return e.Err }

// updates reports whether a batch writes to a device tensor whose contents it takes.
func updates(batch []Direct) bool {
	taken, filled := map[*DeviceTensor]bool{}, map[*DeviceTensor]bool{}
	for _, d := range batch {
		for _, t := range d.In {
			taken[t] = taken[t] || !filled[t]
		}
		for _, t := range d.Out {
			filled[t] = true
		}
	}
	for t := range filled {
		if taken[t] {
			return true
		}
	}
	return false
}

// checkBatch lists everything that is wrong with the names, types, shapes and places of the
// tensors of the first run that something is wrong with.
func (p *Program) checkBatch(batch []map[string]*tensor.Tensor, direct []Direct) error {
	filled := map[*DeviceTensor]bool{} // by the runs before
	for i, inputs := range batch {
		d := directOf(direct, i)
		wrong := p.wrongInputs(inputs, d.In)
		for _, name := range slices.Sorted(maps.Keys(d.In)) {
			if t := d.In[name]; !filled[t] && !t.hasContents() {
				wrong = append(wrong, fmt.Sprintf("the device tensor for %s holds nothing: %s", name, howToFill))
			}
		}
		wrong = append(wrong, p.wrongOutputs(d.Out)...)
		wrong = append(wrong, p.wrongResidents(d)...)
		if err := inputError(wrong); err != nil {
			if len(batch) > 1 {
				return fmt.Errorf("run %d of %d: %w", i+1, len(batch), err)
			}
			return err
		}
		for _, t := range d.Out {
			filled[t] = true
		}
	}
	return nil
}

func (p *Program) wrongInputs(inputs map[string]*tensor.Tensor, direct map[string]*DeviceTensor) (wrong []string) {
	for i := range p.inputs {
		io := &p.inputs[i]
		switch t := direct[io.Name]; {
		case t == nil:
			wrong = append(wrong, wrongInput(io, inputs[io.Name])...)
		case inputs[io.Name] != nil:
			wrong = append(wrong, fmt.Sprintf("%s is given twice, in the host's memory and on the devices", io.Name))
		default:
			wrong = append(wrong, p.wrongPlace(io, t)...)
		}
	}
	for _, name := range p.unknown(inputs, direct) {
		wrong = append(wrong, fmt.Sprintf("there is no parameter %s", name))
	}
	return wrong
}

// unknown lists the names that no parameter has. A run has few, and may have many others.
func (p *Program) unknown(inputs map[string]*tensor.Tensor, direct map[string]*DeviceTensor) (names []string) {
	for name := range inputs {
		if _, ok := p.params[name]; !ok {
			names = append(names, name)
		}
	}
	for name := range direct {
		if _, ok := p.params[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (p *Program) wrongOutputs(outputs map[string]*DeviceTensor) (wrong []string) {
	taken := map[*DeviceTensor]string{}
	for _, name := range slices.Sorted(maps.Keys(outputs)) {
		t := outputs[name]
		i := slices.IndexFunc(p.outputs, func(io plan.IO) bool { return io.Name == name })
		if i < 0 {
			wrong = append(wrong, fmt.Sprintf("there is no result %s to leave on the devices", name))
			continue
		}
		if other, twice := taken[t]; twice {
			wrong = append(wrong, fmt.Sprintf("one device tensor is to receive %s and %s", other, name))
		}
		taken[t] = name
		wrong = append(wrong, p.wrongPlace(&p.outputs[i], t)...)
	}
	return wrong
}

// wrongPlace says how a device tensor differs from what it is to be, if it does.
func (p *Program) wrongPlace(io *plan.IO, t *DeviceTensor) []string {
	has := t.io
	if has.DType != io.DType || !slices.Equal(has.Shape, io.Shape) {
		return []string{fmt.Sprintf("%s is %s, and the device tensor for it is %s", io.Name, header(io), header(&has))}
	}
	if len(t.loan.blocks) != p.plan.Ranks {
		return []string{fmt.Sprintf("the device tensor for %s is on %d ranks, and the run on %d", io.Name, len(t.loan.blocks), p.plan.Ranks)}
	}
	for r := range int32(p.plan.Ranks) {
		if want, is := blockText(partOf(io, r)), blockText(partOf(&has, r)); want != is {
			return []string{fmt.Sprintf("%s has, on rank %d, %s, and the device tensor for it %s: tensors on the devices change their layout by no run; make one for %s", io.Name, r, want, is, io.Name)}
		}
	}
	return nil
}

func header(io *plan.IO) *tensor.Tensor { return &tensor.Tensor{DType: io.DType, Shape: io.Shape} }

func blockText(part *plan.IOPart) string {
	if part == nil {
		return "no block"
	}
	return fmt.Sprintf("a block of %v from %v on", part.Ref.Shape, part.Lo)
}

// fillDirect lays the views ready that a run's tensors on the devices are copied from and to.
func (p *Program) fillDirect(f *frame, d Direct) (err error) {
	if f.direct.in, err = p.borrowAll(p.inputs, d.In, true); err != nil {
		return err
	}
	f.direct.out, err = p.borrowAll(p.outputs, d.Out, false)
	return err
}

// borrowAll returns views of device tensors, by block, that are copied from or else to; nil
// where there are none.
func (p *Program) borrowAll(ios []plan.IO, tensors map[string]*DeviceTensor, from bool) ([]device.View, error) {
	if len(tensors) == 0 {
		return nil, nil
	}
	for _, t := range tensors {
		if err := t.lost(); err != nil {
			return nil, t.errorf("%w", err)
		}
	}
	var views []device.View
	for i := range ios {
		t := tensors[ios[i].Name]
		for k, part := range ios[i].Parts {
			if t == nil || p.isResident(ios[i].Name, t) {
				views = append(views, device.View{})
				continue
			}
			v, err := p.borrowBlock(t, k, part.Ref, from)
			if err != nil {
				return nil, t.errorf("%w", err)
			}
			views = append(views, v)
		}
	}
	return views, nil
}

// borrowBlock returns a view of block k of t, for copies from it to ref, or to it from ref.
func (p *Program) borrowBlock(t *DeviceTensor, k int, ref plan.Ref, from bool) (device.View, error) {
	d := p.world.Device(int(ref.Rank))
	b, ok := d.(device.Borrower)
	if !ok {
		return device.View{}, fmt.Errorf("tensors on devices: %w", device.ErrUnsupported)
	}
	mem, err := b.Borrow(t.Block(int(ref.Rank)))
	if err != nil {
		return device.View{}, err
	}
	v := t.view(k, mem)
	if c, ok := d.(device.CopyPreparer); ok && !ref.Dense() {
		dst, err := p.view(ref)
		if err != nil {
			return v, err
		}
		src := v
		if !from {
			dst, src = src, dst
		}
		return v, c.PrepareCopy(dst, src)
	}
	return v, nil
}
