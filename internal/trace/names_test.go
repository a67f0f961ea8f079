package trace

import (
	"strconv"
	"strings"
	"testing"
)

// TestNames checks that a repeated name takes no additional memory, and that a name that exceeds the limit is an error.
func TestNames(t *testing.T) {
	var n Names
	name := strings.Repeat("n", 1<<20)
	for range 1000 {
		if n.Word(name) != name || n.Err() != nil {
			t.Fatal(n.Err())
		}
	}
	for i := range 127 {
		if n.Word(name + strconv.Itoa(100+i)); n.Err() != nil && i < 126 {
			t.Fatalf("%d names: %v", i+2, n.Err())
		}
	}
	if n.Word(name+"101") != name+"101" || n.Err() == nil {
		t.Error("128 names of a MiB each, but no error")
	}
}
