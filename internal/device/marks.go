package device

import "fmt"

// Marks is the stack of a stream's Begin marks that have not ended. The innermost mark is the last element.
type Marks []int64

// Begin adds a mark.
func (m *Marks) Begin(id int64) { *m = append(*m, id) }

// Ends returns nil if id is the innermost mark, and otherwise an error that says why the mark cannot end now.
func (m Marks) Ends(id int64) error {
	if len(m) == 0 || m.Innermost() != id {
		return fmt.Errorf("cannot end mark %d: it is not the innermost mark that was begun", id)
	}
	return nil
}

// End removes the innermost mark.
func (m *Marks) End() { *m = (*m)[:len(*m)-1] }

// Innermost returns the innermost mark, -1 for none.
func (m Marks) Innermost() int64 {
	if len(m) == 0 {
		return -1
	}
	return m[len(m)-1]
}
