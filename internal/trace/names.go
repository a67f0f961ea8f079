package trace

import (
	"fmt"

	"hocket.example/hocket/internal/names"
)

// MaxNames is the largest total size in bytes of the names of one profile, over all of its files.
const MaxNames = 128 << 20

// nameBytes is the memory of a name in addition to its bytes.
const nameBytes = 64

// Names stores each name in the events of a profile once. All readers of a profile share one Names, and thereby a limit
// on memory. The limit is necessary because a name can be as long as its file, and files can be a thousand times larger
// after they are unpacked. When it is exceeded, Err returns an error and further names are lost, so readers must check
// Err after each event. The zero value is ready to use.
type Names struct {
	known map[string]string
	spent int64
}

// Word returns s in the form of names.Quoted. Equal texts are stored only once.
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

// Spend adds the size of other data, in bytes, to the memory that the limit of the names restricts.
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
