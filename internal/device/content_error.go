package device

import "hocket.example/hocket/ir"

// ContentError reports an element of an integer operand whose value a kernel has refused.
type ContentError struct {
	Op      ir.Op
	Element int64 // index of the element in the operand; negative if it is not known
	Value   int64
	Text    string
}

// Error returns the description of the fault.
func (e *ContentError) Error() string { return e.Text }
