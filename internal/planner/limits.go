package planner

import "hocket.example/hocket/ir"

// Limits of a plan (LANGUAGE S21). They bound time and memory for any program,
// however small its text.
const (
	maxCommands   = 10_000_000
	maxIterations = 10_000_000 // of loops, over all ranks
	maxCalls      = 1_000_000
	maxStatements = 100_000_000
	maxBuffers    = 10_000_000
	maxCallDepth  = 1000
	maxStreams    = 8192 // over all ranks: the width of a vector clock
	maxCounters   = 10_000_000
	maxPathBytes  = 1 << 28 // of the numbers of the iterations that commands are in
	maxBytes      = 1 << 48 // of one buffer
	maxArena      = 1 << 52
)

const (
	// longPlan is how many commands a plan has of which it is asked whether there is memory
	// for it.
	longPlan = 20_000
	// commandBytes is what the host needs for a command until it has been run: it is
	// planned, proved, loaded and issued. Measured: 3.0 to 4.2 GiB for a million, and some room.
	commandBytes = 5 << 10
)

// bound lowers the limit of commands to what the host has memory for.
func (w *world) bound() {
	if w.room == nil {
		return
	}
	if free := w.room(); free > 0 {
		w.mostCommands = min(w.mostCommands, w.commands+free/commandBytes)
	}
}

// askEvery is how many steps planning takes before it asks whether to go on: some
// milliseconds' worth.
const askEvery = 1 << 12

// goOn returns an error where planning is to stop.
func (w *world) goOn() error {
	if w.asked++; w.stop == nil || w.asked%askEvery != 0 {
		return nil
	}
	if err := w.stop(); err != nil {
		return w.b.Info.Prog.Diag("stopped", ir.Pos{}, "%v", err)
	}
	return nil
}

// spend counts n more towards a limit and refuses to pass it. The check comes
// before the work, so a loop of 2⁶² iterations is refused at once.
func (u *emitter) spend(used *int64, n, limit int64, what string, pos ir.Pos) error {
	if n > limit-*used {
		return u.errf("limit", pos, "", "the plan would have more than %d %s", limit, what)
	}
	*used += n
	return nil
}
