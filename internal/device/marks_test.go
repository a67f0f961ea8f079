package device

import "testing"

func TestMarksNest(t *testing.T) {
	var m Marks
	if got := m.Innermost(); got != -1 {
		t.Errorf("no mark: innermost %d", got)
	}
	m.Begin(3)
	m.Begin(5)
	if m.Innermost() != 5 || m.Ends(5) != nil {
		t.Errorf("marks 3 and 5 begun: innermost %d, end of 5: %v", m.Innermost(), m.Ends(5))
	}
	for _, id := range []int64{3, 7} {
		if m.Ends(id) == nil {
			t.Errorf("marks 3 and 5 begun: %d may end", id)
		}
	}
	m.End()
	m.End()
	if m.Ends(3) == nil || m.Innermost() != -1 {
		t.Error("a mark may end although all have ended")
	}
}
