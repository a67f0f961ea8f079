package trace

import (
	"fmt"

	"hocket.example/hocket/internal/names"
)

// MaxNames is how many bytes the names of one profile may have, over all of its files.
const MaxNames = 128 << 20

// nameBytes is what a name takes in addition to its bytes.
const nameBytes = 64

// Names holds each name that a profile's events have once. It is the one budget of bytes that all readers of a
// profile share: names can be as long as their files, and files unpack to a thousand times their size. Once the
// budget is spent, Err is set and names are lost, so readers must look at it after each event. The zero value is
// ready to use.
type Names struct {
	known map[string]string
	spent int64
}

// Word returns s as it is held: as names.Quoted shows it.
func (n *Names) Word(s string) string {
	if w, ok := n.known[s]; ok || s == "" {
		return w
	}
	s = string([]byte(s)) // without the text that it is a part of
	word := names.Quoted(s)
	size := len(s) + nameBytes
	if word != s {
		size += len(word)
	}
	if n.Spend(size) != nil {
		return ""
	}
	if n.known == nil {
		n.known = map[string]string{}
	}
	n.known[s] = word
	return word
}

// Spend counts bytes that are kept with the names.
func (n *Names) Spend(bytes int) error {
	n.spent += int64(bytes)
	return n.Err()
}

// Err reports that the budget is spent.
func (n *Names) Err() error {
	if n.spent > MaxNames {
		return fmt.Errorf("the names have more than %d MiB: profile fewer iterations, or fewer ranks at once", MaxNames>>20)
	}
	return nil
}
