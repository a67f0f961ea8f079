package trace

import (
	"fmt"

	"hocket.example/hocket/internal/names"
)

// MaxNames is the largest total size in bytes of the names of one profile, over all of its files.
const MaxNames = 128 << 20

// nameBytes is the memory of a name in addition to its bytes.
const nameBytes = 64

// Names stores each name in a profile's events once. All readers of a profile share this one limit on memory: names can
// be as long as their files, and files can be a thousand times larger once they are unpacked. After the limit is
// reached, Err returns an error and names are lost, so readers must check it after each event. The zero value is ready
// to use.
type Names struct {
	known map[string]string
	spent int64
}

// Word returns s in the form of names.Quoted, stored only once.
func (n *Names) Word(s string) string {
	if w, ok := n.known[s]; ok || s == "" {
		return w
	}
	s = string([]byte(s)) // a copy, so that the text around it can be freed
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

// Err returns an error if the limit is exceeded.
func (n *Names) Err() error {
	if n.spent > MaxNames {
		return fmt.Errorf("the names have more than %d MiB: profile fewer iterations, or fewer ranks at once", MaxNames>>20)
	}
	return nil
}
