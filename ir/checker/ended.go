package checker

import (
	"hocket.example/hocket/ir"
	"slices"
)

// ended records, in the order of the text, where buffers were freed or claimed. Before the else branch of an if is
// checked, the records of its then branch are removed; this takes time proportional to the number of removed
// records.
type ended struct {
	at  map[*ir.Sym]bufferEnd
	log []*ir.Sym
}

// bufferEnd records how and where a buffer was freed or claimed.
type bufferEnd struct {
	pos     ir.Pos
	claimed bool // false if the buffer was freed
}

func (e *ended) set(s *ir.Sym, how bufferEnd) {
	if _, known := e.at[s]; known {
		return
	}
	if e.at == nil {
		e.at = map[*ir.Sym]bufferEnd{}
	}
	e.at[s] = how
	e.log = append(e.log, s)
}

func (e *ended) mark() int { return len(e.log) }

// undo removes the records made since mark, and returns a function that restores them.
func (e *ended) undo(mark int) (redo func()) {
	gone := slices.Clone(e.log[mark:])
	how := make([]bufferEnd, len(gone))
	for i, s := range gone {
		how[i] = e.at[s]
		delete(e.at, s)
	}
	e.log = e.log[:mark]
	return func() {
		for i, s := range gone {
			e.set(s, how[i])
		}
	}
}

// freed reports whether the memory of s was freed, and where.
func (e *ended) freed(s *ir.Sym) (ir.Pos, bool) {
	how, known := e.at[s.Root()]
	return how.pos, known && !how.claimed
}

// claimed reports whether the memory of s was claimed as a value, and where.
func (e *ended) claimed(s *ir.Sym) (ir.Pos, bool) {
	how, known := e.at[s.Root()]
	return how.pos, known && how.claimed
}
