package exec

import (
	"slices"
	"weak"

	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

// weightCache is what stays on the devices from run to run: weights, where no command writes
// to them.
type weightCache struct {
	im     *image.Image
	all    []int // inputs
	inputs []int // this process's commands that upload them
	// contents holds, by input, what is on the devices.
	contents []*resident.Contents
	// skip tells, by input block, what this batch's runs do not upload.
	skip    []bool
	settled settled
}

// settled is what a batch found, and left, of its weights: they fit, and are on the devices.
type settled struct {
	// of are the weights; the zero value for none.
	of weak.Pointer[Weights]
	// changes is the number of resident.Changes then.
	changes uint64
	// rest are the inputs that a run is given otherwise, or that are uploaded for each run.
	rest []int
	// inputs are the commands of rest.
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

// unsettled returns the inputs that a batch has to look at, and whether all others are as the batch before has left
// them.
func (c *weightCache) unsettled(batch []Args, weights *Weights) (ins []int, rest bool) {
	s := &c.settled
	if weights != nil && s.of == weak.Make(weights) && s.changes == resident.Changes() &&
		!slices.ContainsFunc(batch, func(a Args) bool { return a.gives(weights) }) {
		return s.rest, true
	}
	c.settled = settled{}
	return c.all, false
}

// decide decides what the runs of a batch do not upload: what stays and is the same in
// all of them. What they upload the devices no longer hold for those to come.
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

// missing returns the first input, from i on, that stays on the devices and is not there yet, and what take returns
// for it; -1 for none.
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

// settle notes what a batch has left on the devices.
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

// uploads are the commands by which the batch's runs upload inputs, and maybe others, of what is on the devices.
func (c *weightCache) uploads() []int {
	if c.settled.of != (weak.Pointer[Weights]{}) {
		return c.settled.inputs
	}
	return c.inputs
}
