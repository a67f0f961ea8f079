package hocket

import (
	"time"

	"hocket.example/hocket/internal/compile"
)

// Limits bounds the host resources that planning, proving and loading a program may use. A short program can describe
// very long runs, so set limits for programs from untrusted sources. A program that exceeds a limit gets a diagnostic
// of kind "limit". The zero value applies only the limits of the language and of the host's free memory.
type Limits struct {
	// Commands is the largest number of commands of a run, summed over all ranks.
	Commands int64
	// Memory is the largest amount of host memory for the program's plan, in bytes. The amount is estimated at 5 KiB per
	// command.
	Memory int64
	// Ranks is the largest number of ranks.
	Ranks int
	// Time is the longest time for planning the program, and also the longest time for proving it.
	Time time.Duration
}

// Within returns the program with the given limits. The limits apply when it is checked, explained or loaded.
func (p *Program) Within(l Limits) *Program {
	if p.none() {
		return p
	}
	return &Program{info: p.info, warnings: p.warnings, hints: p.hints, limits: compile.Limits(l)}
}
