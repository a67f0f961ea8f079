package hocket

import (
	"time"

	"hocket.example/hocket/internal/compile"
)

// Limits bound what a program takes of the host before it runs: to plan, prove and load it.
// A short text may stand for very long runs, so programs that are not trusted want limits.
// What is beyond one is a diagnostic of kind "limit". In the zero value only those of the
// language count, and the host's free memory.
type Limits struct {
	// Commands is how many commands a run may have, over all ranks.
	Commands int64
	// Memory is how many bytes of the host's memory its plan may take, by an estimate of 5 KiB
	// a command.
	Memory int64
	// Ranks is how many ranks it may have.
	Ranks int
	// Time is how long planning it may take, and proving it.
	Time time.Duration
}

// Within returns the program with limits, which hold for whatever is made of it: when it is
// checked, explained, loaded.
func (p *Program) Within(l Limits) *Program {
	if p.none() {
		return p
	}
	return &Program{info: p.info, warnings: p.warnings, limits: compile.Limits(l)}
}
