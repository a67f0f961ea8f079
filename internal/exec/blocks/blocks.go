// Package blocks splits global tensors in host memory into the blocks of ranks, and joins blocks to global tensors.
//
// Cut returns the bytes to upload for one block. A Receiver receives one output. Blocks that are contiguous in the
// global tensor are received directly into it, and other blocks into temporary storage.
package blocks

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/fault"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

// ErrInput is wrapped by errors about the arguments of a run.
var ErrInput = fault.ErrInput

// InputError joins the messages about the arguments of a run into one error; nil if there are none.
func InputError(wrong []string) error {
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrInput, strings.Join(wrong, "; "))
}

// Wrong lists the differences between t and the tensor that io requires; nil if there are none.
func Wrong(io *plan.IO, t *tensor.Tensor) []string {
	switch {
	case t == nil:
		return []string{fmt.Sprintf("%s is missing", io.Name)}
	case t.Check() != nil:
		return []string{fmt.Sprintf("%s: %v", io.Name, t.Check())}
	case t.DType != io.DType || !slices.Equal(t.Shape, io.Shape):
		return []string{fmt.Sprintf("%s is %s, want %s", io.Name, t, Header(io))}
	}
	return nil
}

// Header returns a tensor with io's type and shape, without data.
func Header(io *plan.IO) *tensor.Tensor { return &tensor.Tensor{DType: io.DType, Shape: io.Shape} }

// Cut returns the bytes of t's block. The result is t's own memory if the block's bytes are contiguous, and otherwise a
// copy. The copy is stored in the tensor spare or, if spare is nil, in a new tensor. The second result is the spare for
// the next call; it is nil if no copy was needed and spare is nil.
func Cut(t *tensor.Tensor, part *plan.IOPart, spare *tensor.Tensor) (data []byte, storage *tensor.Tensor, err error) {
	if own := tensor.Window(t, part.Lo, part.Ref.Shape); own != nil {
		return own, spare, nil
	}
	if spare == nil {
		if spare, err = tensor.New(t.DType, part.Ref.Shape); err != nil {
			return nil, nil, err
		}
	}
	return spare.Data, spare, tensor.CopyBox(spare, make([]int64, len(part.Lo)), t, part.Lo, part.Ref.Shape)
}
