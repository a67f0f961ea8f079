package hocket

import (
	"errors"
	"sync"

	"hocket.example/hocket/internal/checkpoint"
)

// Checkpoint is an open checkpoint. Its files are mapped into memory, and only their headers are read until tensors
// are used. The files must not change while they are mapped: writing to them changes weights, and if a file is
// truncated the system kills a process that reads beyond its end.
type Checkpoint struct {
	open *checkpoint.Checkpoint

	mu   sync.Mutex
	held int // holders: the caller, models with weights of it, readers of these weights
	shut bool
}

// OpenCheckpoint opens a safetensors file, the index of a sharded checkpoint, or a directory. The directory holds
// either a sharded checkpoint, with its model.safetensors.index.json, or safetensors files that together hold the
// tensors. Files named by an index must be in the index's directory. Symbolic links are followed, since caches of
// checkpoints consist of them.
func OpenCheckpoint(path string) (*Checkpoint, error) {
	c, err := checkpoint.Open(path)
	if err != nil {
		return nil, err
	}
	return &Checkpoint{open: c, held: 1}, nil
}

// Names returns the tensors' names, sorted.
func (c *Checkpoint) Names() []string {
	return c.open.Names()
}

// Header returns a tensor without its Data: its type and shape.
func (c *Checkpoint) Header(name string) (*Tensor, error) {
	t, err := c.open.Header(name)
	return (*Tensor)(t), err
}

// Tensor reads a tensor.
func (c *Checkpoint) Tensor(name string) (*Tensor, error) {
	if err := c.hold(); err != nil {
		return nil, err
	}
	t, err := c.open.View(name)
	if err == nil {
		t = t.Clone()
	}
	return (*Tensor)(t), errors.Join(err, c.release())
}

// Close closes the checkpoint; Tensor and BindFrom fail afterwards. Its files stay mapped until no model has a weight of
// the checkpoint bound, and no run reads one.
func (c *Checkpoint) Close() error {
	c.mu.Lock()
	shut := c.shut
	c.shut = true
	c.mu.Unlock()
	if shut {
		return nil
	}
	return c.release()
}

func (c *Checkpoint) hold() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shut {
		return errors.New("the checkpoint is closed")
	}
	c.held++
	return nil
}

// share holds a checkpoint once more. It works after Close too, if something else still holds the checkpoint.
func (c *Checkpoint) share() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held++
}

func (c *Checkpoint) release() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held--; c.held > 0 {
		return nil
	}
	return c.open.Close()
}

// Rules describe how the tensors of a checkpoint become a model's weights.
type Rules struct {
	// Weights has the rules by which parameters are made. A parameter without a rule uses the tensor of the same
	// name, if there is one.
	Weights []WeightRule
	// Inputs are the parameters that are not weights: those that each run is given, or that BindDevice sets. Prepare
	// refuses a model if any other parameter is not bound.
	Inputs []string
}

// WeightRule makes one parameter from tensors, in this order: each tensor is transposed and cut, the tensors of a
// layer are concatenated, layers are stacked, and elements are converted.
type WeightRule struct {
	Param string
	// From names the tensors. In "model.layers.*.mlp.up_proj.weight" the * stands for the numbers of the layers, from
	// 0 up to the last that the checkpoint has with that prefix. Layers are stacked along a new first dimension.
	// Several tensors are concatenated along Axis.
	From []string
	// Transpose swaps the last two dimensions of each tensor.
	Transpose bool
	// Axis is the dimension along which tensors are cut and concatenated, counted after Transpose.
	Axis int
	// Lo and Hi cut rows Lo to Hi along Axis out of each tensor. Hi 0 means the end.
	Lo, Hi int64
	// Cast allows a conversion to the parameter's type, which may round.
	Cast bool
}
