package device

import "hocket.example/hocket/ir"

// ContentError says which element of an integer operand a kernel cannot take.
type ContentError struct {
	Op      ir.Op
	Element int64 // its number in the operand; negative where that is not known
	Value   int64
	Text    string
}

// Error says what is wrong with the element.
func (e *ContentError) Error() string { return e.Text }
