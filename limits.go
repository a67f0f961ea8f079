package hocket

import (
	"time"

	"hocket.example/hocket/internal/compile"
)

// Limits bound the host resources that planning, proving and loading a program may take. A short text may describe
// very long runs, so set limits for programs that are not trusted. A program that exceeds a limit gets a diagnostic
// of kind "limit". The zero value sets only the language's own limits and the host's free memory.
type Limits struct {
	// Commands bounds the commands of a run, over all ranks.
	Commands int64
	// Memory bounds the host memory of the program's plan, in bytes, estimated at 5 KiB a command.
	Memory int64
	// Ranks bounds the number of ranks.
	Ranks int
	// Time bounds the time to plan the program, and the time to prove it.
	Time time.Duration
}

// Within returns the program with limits. They apply whenever it is checked, explained or loaded.
func (p *Program) Within(l Limits) *Program {
	if p.none() {
		return p
	}
	return &Program{info: p.info, warnings: p.warnings, hints: p.hints, limits: compile.Limits(l)}
}
