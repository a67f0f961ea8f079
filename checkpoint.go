package hocket

import (
	"errors"
	"fmt"
	"sync"

	"hocket.example/hocket/internal/checkpoint"
)

// Checkpoint is an open checkpoint. Its files are mapped into memory, and only their headers are read until tensors are
// used. The files must not change while they are mapped: a write to a file changes weights, and if a file is truncated
// the operating system kills a process that reads past the file's new end.
type Checkpoint struct {
	open *checkpoint.Checkpoint

	mu   sync.Mutex
	held int // number of users: the caller that opened it, models with weights from it, and readers of these weights
	shut bool
}

// OpenCheckpoint opens a safetensors file, the index of a sharded checkpoint, or a directory. The directory contains
// either a sharded checkpoint with its model.safetensors.index.json, or several safetensors files without an index,
// whose tensors are then combined. The files that an index names must be in the same directory as the index. Symbolic
// links are followed, since caches of checkpoints consist of them.
func OpenCheckpoint(path string) (*Checkpoint, error) {
	c, err := checkpoint.Open(path)
	if err != nil {
		return nil, err
	}
	return &Checkpoint{open: c, held: 1}, nil
}

// Names returns the names of the checkpoint's tensors in sorted order.
func (c *Checkpoint) Names() []string {
	return c.open.Names()
}

// Header returns the type and shape of a tensor, as a Tensor without Data.
func (c *Checkpoint) Header(name string) (*Tensor, error) {
	t, err := c.open.Header(name)
	return (*Tensor)(t), err
}

// Tensor reads one tensor of the checkpoint.
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

// Close closes the checkpoint; later calls of Tensor and BindFrom fail. The files stay mapped while a weight from the
// checkpoint is bound to a model, or a run reads such a weight.
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
	if c == nil || c.open == nil {
		return fmt.Errorf("%w: the Checkpoint is nil or zero: open a checkpoint with OpenCheckpoint", ErrInput)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shut {
		return errors.New("the checkpoint is closed")
	}
	c.held++
	return nil
}

// share adds a user of the checkpoint. It also works after Close, as long as the checkpoint has another user.
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

// Rules describes how the weights of a model are built from the tensors of a checkpoint.
type Rules struct {
	// Weights holds the rules for parameters. A parameter without a rule uses the checkpoint's tensor of the same
	// name, if there is one.
	Weights []WeightRule
	// Inputs names the parameters that are not weights: each run passes them in its arguments, or BindDevice sets them.
	// Prepare returns an error if any other parameter is not bound.
	Inputs []string
}

// WeightRule describes how the weight of one parameter is built from tensors. The operations are done in this order:
// each tensor is transposed and its rows are selected, the tensors of each layer are concatenated, the layers are
// stacked, and the elements are converted.
type WeightRule struct {
	Param string
	// From names the tensors. The * in a name like "model.layers.*.mlp.up_proj.weight" is replaced by the numbers of the
	// layers, from 0 to the last layer for which the checkpoint has that prefix. The layers are stacked along a new first
	// dimension. If From has several names, their tensors are concatenated along Axis.
	From []string
	// Transpose swaps the last two dimensions of each tensor.
	Transpose bool
	// Axis is the dimension along which rows are selected and tensors are concatenated. Dimensions are numbered after
	// Transpose.
	Axis int
	// Lo and Hi select the rows Lo to Hi-1 of each tensor along Axis. If Hi is 0, the selection extends to the last row.
	Lo, Hi int64
	// Cast allows a conversion to the parameter's type, which may round.
	Cast bool
}
