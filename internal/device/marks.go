package device

import "fmt"

// Marks are the Begin marks that a stream is within, the innermost last.
type Marks []int64

// Begin adds a mark.
func (m *Marks) Begin(id int64) { *m = append(*m, id) }

// Ends returns why the mark cannot end next, nil if it can.
func (m Marks) Ends(id int64) error {
	if len(m) == 0 || m.Innermost() != id {
		return fmt.Errorf("end of mark %d, which is not the innermost one begun", id)
	}
	return nil
}

// End takes the innermost mark away.
func (m *Marks) End() { *m = (*m)[:len(*m)-1] }

// Innermost returns the innermost mark, -1 for none.
func (m Marks) Innermost() int64 {
	if len(m) == 0 {
		return -1
	}
	return m[len(m)-1]
}
