package hostmem

import (
	"errors"
	"testing"

	"hocket.example/hocket/fault"
)

// TestCheck checks that a request larger than the free memory gives an error, unless enough memory can be freed first.
func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name                 string
		bytes, before, after int64
		ok, frees            bool
	}{
		{"enough", 1 << 30, 1 << 30, 0, true, false},
		{"after memory was freed", 1 << 30, 1 << 29, 1 << 30, true, true},
		{"too little", 1 << 30, 1 << 29, 1<<30 - 1, false, true},
		{"unknown", 1 << 30, 0, 0, true, false},
		{"small", 1 << 20, 1, 1, true, false},
	} {
		left, freed := c.before, false
		err := check(c.bytes, func() int64 { return left }, func() { left, freed = c.after, true })
		if (err == nil) != c.ok || freed != c.frees || err != nil && !errors.Is(err, fault.ErrOutOfMemory) {
			t.Errorf("%s: %v, freed %v", c.name, err, freed)
		}
	}
}
