package exec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"weak"

	"hocket.example/hocket/fault"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/exec/contents"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/world"
)

// inputChecker checks the contents of a batch's integer inputs before its first run begins. A wrong id then neither
// makes the program unusable nor corrupts the state that runs update.
//
// Inputs in device tensors are downloaded for the check, unless they were checked before or a run has written them.
// Values that a run has written are computed, and only kernels check them.
type inputChecker struct {
	im      *image.Image
	peers   *world.World // the other processes; nil if all ranks belong to this process
	binder  *binder
	issuer  *issuer
	all     []*contents.Check // of all ranks
	own     []ownCheck
	checked map[*contents.Check]origin
	// whole reports, by input, whether all ranks have the same block. Each process checks an input that is whole for
	// all ranks. sum is the checksum of the whole inputs in host memory. Processes compare the checksum instead of the
	// errors that they find, because they find the same error if their inputs are equal.
	whole []bool
	sum   uint32
}

// ownCheck is a check that this process makes on the block of one of its ranks.
type ownCheck struct {
	*contents.Check
	part int
	on   int // the rank of the block
	// named is the rank that errors name. If several ranks make the same check, named is a rank of this process.
	named int
}

// origin identifies one version of the contents of a device tensor.
type origin struct {
	t      weak.Pointer[resident.DeviceTensor]
	number uint64
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func newInputChecker(im *image.Image, peers *world.World, b *binder, s *issuer) *inputChecker {
	c := &inputChecker{im: im, peers: peers, binder: b, issuer: s, all: contents.Of(im.Plan, im.Inputs),
		checked: map[*contents.Check]origin{}}
	for i := range im.Inputs {
		parts := im.Inputs[i].Parts
		differs := func(p plan.IOPart) bool {
			return !slices.Equal(p.Lo, parts[0].Lo) || !slices.Equal(p.Ref.Shape, parts[0].Ref.Shape)
		}
		c.whole = append(c.whole, len(parts) == im.Plan.Ranks && !slices.ContainsFunc(parts, differs))
	}
	for _, k := range c.all {
		parts := im.Inputs[k.Input].Parts
		part := slices.IndexFunc(parts, func(p plan.IOPart) bool { return im.World.Local(int(p.Ref.Rank)) })
		switch {
		case c.whole[k.Input] && part >= 0: // all processes make these checks
			i := slices.IndexFunc(c.own, func(o ownCheck) bool { return o.Same(k) })
			if i < 0 {
				c.own = append(c.own, ownCheck{k, part, int(parts[part].Ref.Rank), k.Rank})
			} else if local := im.World.Local; local(k.Rank) && !local(c.own[i].named) {
				c.own[i].named = k.Rank
			}
		case im.World.Local(k.Rank):
			c.own = append(c.own, ownCheck{k, k.Part, k.Rank, k.Rank})
		default:
			k.Forget()
		}
	}
	return c
}

// check returns an error if the contents of an input of the bound batch are invalid. ins lists the inputs in host
// memory to check. All processes return the same error. The result ended reports whether the world has failed.
func (c *inputChecker) check(ctx context.Context, batch *Batch, ins []int) (ended bool, err error) {
	if len(c.all) == 0 {
		return false, nil
	}
	wrong, err := c.wrong(ctx, batch, ins, true)
	if err == nil && c.peers != nil && c.mayDiffer(batch) {
		wrong, err = c.agree(ctx, wrong)
	}
	if err == nil && wrong != nil {
		return false, wrong
	}
	return err != nil, err
}

// mayDiffer reports whether processes may find different errors.
func (c *inputChecker) mayDiffer(batch *Batch) bool {
	return slices.ContainsFunc(c.all, func(k *contents.Check) bool {
		onDevice := func(a Args) bool { return a.DeviceIn[k.Name()] != nil }
		return !c.whole[k.Input] || slices.ContainsFunc(batch.Runs, onDevice)
	})
}

// wrong returns the first error in the inputs of this process's ranks; nil if there is none. Device tensors are
// downloaded for the check only if download is set.
func (c *inputChecker) wrong(ctx context.Context, batch *Batch, ins []int, download bool) (*fault.InputError, error) {
	c.sum = 0
	filled := map[*resident.DeviceTensor]bool{} // device tensors that earlier runs of the batch write
	for i, a := range batch.Runs {
		for _, k := range c.own {
			data, t, err := c.host(i, a, k, batch.Weights, ins)
			if d := a.DeviceIn[k.Name()]; d != nil && data == nil && download && !filled[d] {
				data, t, err = c.device(ctx, i, k, d)
			}
			if err != nil {
				return nil, err
			}
			if data == nil {
				continue
			}
			if name := k.Name(); c.peers != nil && c.whole[k.Input] && (a.In[name] != nil || a.InLocal[name] != nil) {
				c.sum = crc32.Update(c.sum, castagnoli, data)
			}
			if wrong := k.Wrong(data, a.InLocal[k.Name()] == nil); wrong != nil {
				wrong.Run, wrong.Rank = i, k.named
				return wrong, nil
			}
			if t.number != 0 {
				c.checked[k.Check] = t
			}
		}
		for _, t := range a.DeviceOut {
			filled[t] = true
		}
	}
	return nil, nil
}

// host returns the block of an input that a run reads from host memory; nil if the run does not read it from there.
func (c *inputChecker) host(run int, a Args, k ownCheck, weights *Weights, ins []int) ([]byte, origin, error) {
	io := &c.im.Inputs[k.Input]
	if data := c.binder.frames[run].in[c.im.FirstBlock[io.Name]+k.part]; data != nil {
		return data, origin{}, nil
	}
	t := a.host(io.Name, weights)
	if t == nil || !slices.Contains(ins, k.Input) {
		return nil, origin{}, nil
	}
	data, _, err := blocks.Cut(t, &io.Parts[k.part], nil)
	return data, origin{}, err
}

// device downloads the block that a run reads from a device tensor; it returns nil if the block need not be checked.
func (c *inputChecker) device(
	ctx context.Context, run int, k ownCheck, t *resident.DeviceTensor,
) ([]byte, origin, error) {
	computed, number := t.Origin()
	is := origin{weak.Make(t), number}
	if computed || number != 0 && c.checked[k.Check] == is {
		return nil, origin{}, nil
	}
	io := &c.im.Inputs[k.Input]
	ref := io.Parts[k.part].Ref
	from := c.im.View(ref) // if t is a resident
	if c.im.Residents[k.Input] != t {
		from = c.binder.frames[run].deviceIn[c.im.FirstBlock[io.Name]+k.part]
	}
	data := make([]byte, ref.Bytes())
	if len(data) == 0 {
		return nil, origin{}, nil
	}
	if err := c.im.World.Stage([]int64{ref.Bytes()}, 1); err != nil {
		return nil, origin{}, err
	}
	err := c.issuer.within(ctx, func() error {
		return c.im.Streams[c.im.Plan.Main[k.on]].Download(data, from)
	})
	if err == nil {
		err = c.im.World.Sync(ctx)
	}
	return data, is, err
}

// agree returns the error of the first process that found one, so that all processes return the same error.
func (c *inputChecker) agree(ctx context.Context, found *fault.InputError) (*fault.InputError, error) {
	value := []byte{}
	if found != nil {
		short := *found
		if len(short.Where) > world.MaxValue/4 {
			short.Where = short.Where[:world.MaxValue/4]
		}
		var err error
		if value, err = json.Marshal(&short); err != nil {
			return nil, err
		}
	}
	all, err := c.peers.Agree(ctx, fmt.Sprintf("inputs of %s", c.im.Plan.Func), value)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(v []byte) bool { return len(v) > 0 })
	if i < 0 {
		return nil, nil
	}
	if i == c.peers.Process() {
		return found, nil
	}
	found = &fault.InputError{}
	return found, json.Unmarshal(all[i], found)
}

// met returns an error that names the parameter whose contents a kernel has refused in a run; nil if the program
// computed the value.
func (c *inputChecker) met(cause error) *fault.InputError {
	var f *device.Fault
	var content *device.ContentError
	if !errors.As(cause, &f) || !errors.As(cause, &content) {
		return nil
	}
	if f.ID >= 0 && f.Last <= f.ID {
		k := contents.Behind(c.im.Plan, c.im.Inputs, int(f.ID%int64(len(c.im.Plan.Cmds))))
		if k == nil {
			return nil
		}
		return k.Met(content.Element, content.Value, content.Text)
	}
	var of *contents.Check // this is the only check of an operand of the op
	for _, k := range c.all {
		if k.Rank != f.Rank || k.Op != content.Op {
			continue
		}
		if of != nil && of.Input != k.Input {
			return nil
		}
		of = k
	}
	if of == nil || c.computes(content) {
		return nil
	}
	return of.Met(content.Element, content.Value, content.Text)
}

// computes reports whether one of the operands to which a content error may refer is computed.
func (c *inputChecker) computes(content *device.ContentError) bool {
	for i := range c.im.Plan.Cmds {
		if cmd := &c.im.Plan.Cmds[i]; cmd.Kind == plan.Compute && cmd.Op == content.Op &&
			contents.Behind(c.im.Plan, c.im.Inputs, i) == nil {
			return true
		}
	}
	return false
}
