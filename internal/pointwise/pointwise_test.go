package pointwise

import (
	"testing"

	"hocket.example/hocket/ir"
)

// TestEveryOperationHasARow checks that every elementwise operation of the language has a row in the table. Machines
// could not run an operation without a row.
func TestEveryOperationHasARow(t *testing.T) {
	for _, op := range ir.Ops() {
		info := op.Info()
		row, ok := Of(op)
		moved := op == ir.OpCast || op == ir.OpCopy
		if ok != (info.Elementwise && !moved) {
			t.Errorf("%s: elementwise is %v, but it has a row: %v", op, info.Elementwise, ok)
		}
		if !ok {
			continue
		}
		if row.Float == nil || row.CUDA == "" || (row.Int == nil) != info.Floats {
			t.Errorf("%s: incomplete row: Float %v, Int %v, CUDA %q", op, row.Float != nil, row.Int != nil, row.CUDA)
		}
		if info.MaxArgs > 3 {
			t.Errorf("%s has %d operands; the CUDA expression has names for three", op, info.MaxArgs)
		}
	}
}
