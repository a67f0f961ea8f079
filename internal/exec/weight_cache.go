package exec

import (
	"slices"
	"weak"

	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

// weightCache records the inputs that stay on the devices between runs. The inputs that stay are weights that no
// command writes.
type weightCache struct {
	im     *image.Image
	all    []int // indices of all inputs
	inputs []int // indices of this process's commands that upload inputs
	// contents holds, by input, the contents of the input's device memory.
	contents []*resident.Contents
	// skip reports, by input block, that the runs of this batch do not upload the block.
	skip    []bool
	settled settled
}

// settled records that the weights of a batch were checked and are on the devices.
type settled struct {
	// of points to the weights that were checked; the zero value if there are none.
	of weak.Pointer[Weights]
	// changes is the value of resident.Changes at the time of the check.
	changes uint64
	// rest lists the inputs that are not weights, or that are uploaded for each run.
	rest []int
	// inputs lists the commands that upload the inputs in rest.
	inputs []int
}

func newWeightCache(im *image.Image) *weightCache {
	c := &weightCache{im: im, skip: make([]bool, blocksOf(im.Inputs))}
	for i, w := range im.Shared {
		c.all = append(c.all, i)
		if w != nil {
			c.contents = append(c.contents, &w.Contents)
		} else {
			c.contents = append(c.contents, &resident.Contents{})
		}
	}
	for _, i := range im.Own {
		if im.Cmds[i].Kind == plan.Input {
			c.inputs = append(c.inputs, i)
		}
	}
	return c
}

// unsettled returns the inputs of a batch that must be checked. The result rest reports whether all other inputs are
// unchanged since the previous batch.
func (c *weightCache) unsettled(batch []Args, weights *Weights) (ins []int, rest bool) {
	s := &c.settled
	if weights != nil && s.of == weak.Make(weights) && s.changes == resident.Changes() &&
		!slices.ContainsFunc(batch, func(a Args) bool { return a.gives(weights) }) {
		return s.rest, true
	}
	c.settled = settled{}
	return c.all, false
}

// decide determines the blocks that the runs of a batch do not upload: blocks that remain on the devices and are the
// same in all runs. The device memory of the other inputs is marked as changed.
func (c *weightCache) decide(batch []Args, weights *Weights, ins []int) {
	for _, i := range ins {
		name := c.im.Inputs[i].Name
		b := c.im.FirstBlock[name]
		t := weights.Tensor(name)
		other := func(a Args) bool { return a.host(name, weights) != t }
		stays := t != nil && c.im.Uploads[i] != nil && !slices.ContainsFunc(batch, other)
		if !stays {
			c.contents[i].Forget()
		}
		for range c.im.Inputs[i].Parts {
			c.skip[b] = stays || c.im.Residents[i] != nil
			b++
		}
	}
}

// missing returns the first input, from index i on, that stays on the devices and has not been uploaded yet. It also
// returns the input's tensor, which it gets from the function take. The index is -1 if there is no such input.
func (c *weightCache) missing(i int, take func(name string) *tensor.Tensor) (int, *tensor.Tensor) {
	for ; i < len(c.im.Inputs); i++ {
		io := &c.im.Inputs[i]
		if len(io.Parts) == 0 || !c.skip[c.im.FirstBlock[io.Name]] || c.im.Residents[i] != nil {
			continue
		}
		if t := take(io.Name); !c.contents[i].Are(t) {
			return i, t
		}
	}
	return -1, nil
}

// settle records the weights that a batch has uploaded.
func (c *weightCache) settle(batch []Args, weights *Weights) {
	c.settled = settled{}
	if weights == nil || slices.ContainsFunc(batch, func(a Args) bool { return a.gives(weights) }) {
		return
	}
	s := settled{of: weak.Make(weights), changes: resident.Changes()}
	for i := range c.im.Inputs {
		if weights.of[c.im.Inputs[i].Name] == nil || c.im.Uploads[i] == nil || c.im.Residents[i] != nil {
			s.rest = append(s.rest, i)
		}
	}
	for _, i := range c.inputs {
		if !c.skip[c.im.Cmds[i].Part] {
			s.inputs = append(s.inputs, i)
		}
	}
	c.settled = s
}

// uploads returns the commands by which the batch's runs upload inputs. The list may include commands for blocks that
// are already on the devices.
func (c *weightCache) uploads() []int {
	if c.settled.of != (weak.Pointer[Weights]{}) {
		return c.settled.inputs
	}
	return c.inputs
}
