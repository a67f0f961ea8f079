package planner

import "hocket.example/hocket/ir"

// Limits of a plan (docs/language.md, S21). The limits bound the time and memory of planning for every program, because
// even a short text can result in a large plan.
const (
	maxCommands   = 10_000_000
	maxIterations = 10_000_000 // maximum number of loop iterations, over all ranks
	maxCalls      = 1_000_000
	maxStatements = 100_000_000
	maxBuffers    = 10_000_000
	maxCallDepth  = 1000
	maxStreams    = 8192 // maximum number of streams, over all ranks; it is the width of a vector clock
	maxCounters   = 10_000_000
	maxPathBytes  = 1 << 28 // maximum number of bytes for the iteration numbers of all commands
	maxBytes      = 1 << 48 // maximum number of bytes of one buffer
	maxArena      = 1 << 52
)

const (
	// longPlan is the number of commands at which Options.Room is called. Options.Room then reports whether the host
	// has enough memory for the plan.
	longPlan = 20_000
	// commandBytes is an upper estimate of the bytes of host memory that planning, proving, loading and issuing one
	// command need. A million commands took between 3.0 and 4.2 GiB when measured.
	commandBytes = 5 << 10
)

// bound lowers the maximum number of commands to the number for which the host has enough memory.
func (w *world) bound() {
	if w.room == nil {
		return
	}
	if free := w.room(); free > 0 {
		w.mostCommands = min(w.mostCommands, w.commands+free/commandBytes)
	}
}

// askEvery is the number of planning steps between two calls of Options.Stop. This number of steps takes a few
// milliseconds.
const askEvery = 1 << 12

// goOn returns an error if Options.Stop returns one. goOn calls Stop once in askEvery calls.
func (w *world) goOn() error {
	if w.asked++; w.stop == nil || w.asked%askEvery != 0 {
		return nil
	}
	if err := w.stop(); err != nil {
		return w.b.Info.Prog.Diag("stopped", ir.Pos{}, "%v", err)
	}
	return nil
}

// spend adds n to the counter used and returns an error if the sum exceeds limit. It is called before the counted work
// is done, so a loop of 2⁶² iterations is refused immediately.
func (u *emitter) spend(used *int64, n, limit int64, what string, pos ir.Pos) error {
	if n > limit-*used {
		return u.errf("limit", pos, "", "the plan would have more than %d %s, the limit", limit, what)
	}
	*used += n
	return nil
}
