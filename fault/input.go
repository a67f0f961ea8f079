package fault

import (
	"errors"
	"fmt"
	"strings"
)

// ErrInput is wrapped by errors about invalid arguments of a run.
var ErrInput = errors.New("wrong inputs")

// InputError says that an element of an integer parameter is invalid for an op: an id, a position, a length or a
// count. errors.Is reports that it is ErrInput.
type InputError struct {
	Param     string
	Rank      int     // the rank that uses the element
	Index     []int64 // index of the element in the global tensor, or in the rank's block if the argument was the block
	Value     int64
	Low, High int64  // the op accepts Low ≤ Value < High
	Why       string // the reason, if the value is in that range
	Where     string // the statement and its position
	Run       int    // number of the run in a batch, from 0
	// Begun reports that the run had begun, so tensors that it updates in place may be partly updated. If it is not
	// set, no tensor has changed.
	Begun bool
}

// Error returns a message with the element, the permitted range, the statement and the rank.
func (e *InputError) Error() string {
	why := fmt.Sprintf("the value must be from %d to %d", e.Low, e.High-1)
	if e.Why != "" {
		why = e.Why
	}
	index := strings.ReplaceAll(fmt.Sprint(e.Index), " ", ", ") // as in the types of tensors
	what := fmt.Sprintf("%v: %%%s%s is %d", ErrInput, e.Param, index, e.Value)
	if e.Run > 0 {
		what += fmt.Sprintf(" in run %d of the batch", e.Run+1)
	}
	state := "the run was not started, and no tensor has changed"
	if e.Begun {
		state = "the run had already begun, so tensors that it updates in place may be partly updated"
	}
	return fmt.Sprintf("%s, which is invalid on rank %d: %s: %s; %s", what, e.Rank, e.Where, why, state)
}

// Is reports whether target is ErrInput.
func (e *InputError) Is(target error) bool { return target == ErrInput }
