package device

import "fmt"

// Marks is the stack of Begin marks that a stream is inside, the innermost one last.
type Marks []int64

// Begin adds a mark.
func (m *Marks) Begin(id int64) { *m = append(*m, id) }

// Ends returns the reason why the mark cannot end next; nil if it can.
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
