package fault

import (
	"errors"
	"fmt"
)

// ErrInput is wrapped by errors about what a run was given.
var ErrInput = errors.New("wrong inputs")

// InputError says which element of an integer parameter an op cannot take: an id, a position, a length or a count. It
// is ErrInput.
type InputError struct {
	Param     string
	Rank      int     // the rank that would use it
	Index     []int64 // of the element: in the whole tensor, or in the rank's block if that was given
	Value     int64
	Low, High int64  // the op takes Low ≤ Value < High
	Why       string // the reason where the value is in that range
	Where     string // the statement, and its place
	Run       int    // of a batch, from 0
	// Begun says that the run had begun: what it updates in place may hold a part of it. Otherwise nothing has changed.
	Begun bool
}

// Error names the element, the range, the statement and the rank.
func (e *InputError) Error() string {
	why := fmt.Sprintf("the value must be from %d to %d", e.Low, e.High-1)
	if e.Why != "" {
		why = e.Why
	}
	what := fmt.Sprintf("%v: %%%s%v is %d", ErrInput, e.Param, e.Index, e.Value)
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
