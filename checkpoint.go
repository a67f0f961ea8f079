package hocket

import (
	"errors"
	"sync"

	"hocket.example/hocket/internal/checkpoint"
)

// Checkpoint is an open checkpoint: its files are mapped into memory, and nothing but their
// headers is read before it is used. The files must not change while they are mapped: what is
// written there changes weights, and the system ends a process that reads a file past where it
// was cut off.
type Checkpoint struct {
	open *checkpoint.Checkpoint

	mu   sync.Mutex
	held int // by the caller, by models with weights of it, and by what reads these
	shut bool
}

// OpenCheckpoint opens a safetensors file, the index of a sharded checkpoint, or a directory:
// that of a sharded checkpoint, with its model.safetensors.index.json, or one whose
// safetensors files hold the tensors between them. Files that an index names lie beside it;
// symbolic links are followed, as caches of checkpoints consist of them.
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

// Header returns a tensor without its Data: what type it has.
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

// Close closes the checkpoint: Tensor and BindFrom fail from then on. Files that models have
// weights of stay mapped until the last of these models is closed.
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

// share holds a checkpoint that is held already, though its caller may have closed it.
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

// Rules say how the tensors of a checkpoint become a model's weights.
type Rules struct {
	// Weights says what parameters are made of. A parameter without a rule is the tensor of its
	// name, if there is one.
	Weights []WeightRule
	// Inputs are the parameters that are no weights: what each run is given, or BindDevice sets.
	// Prepare refuses a model of which another parameter is not bound.
	Inputs []string
}

// WeightRule makes one parameter of tensors. In this order, each tensor is transposed and cut,
// those of a layer are concatenated, layers are stacked, and elements converted.
type WeightRule struct {
	Param string
	// From names the tensors. In "model.layers.*.mlp.up_proj.weight" the * stands for the
	// numbers of layers from 0, as many as the checkpoint has of that prefix; layers are stacked
	// along a new first dimension. Several tensors are concatenated along Axis.
	From []string
	// Transpose swaps the last two dimensions of each tensor.
	Transpose bool
	// Axis is the dimension that is cut and concatenated, of a tensor as it is once transposed.
	Axis int
	// Lo and Hi cut rows Lo to Hi along Axis out of each tensor. Where Hi is 0 it is the end.
	Lo, Hi int64
	// Cast allows a conversion to the parameter's type, which rounds.
	Cast bool
}
