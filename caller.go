package hocket

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"

	"hocket.example/hocket/internal/world"
)

// calls tells the other processes of a world, for their errors, that this process runs or loads a function.
func (m *Machine) calls(ctx context.Context, fn *function) {
	if peers := m.dev.Peers(); peers != nil {
		peers.Calls(fn.call(ctx))
	}
}

// told tells them how a call of a model ended: they learn of it if they then wait for this process in vain.
func (m *Model) told(ctx context.Context, err error) error {
	err = m.machine.why(ctx, err)
	if peers := m.machine.dev.Peers(); peers != nil {
		failed := err
		if err != nil {
			call, place := m.fn.call(ctx)
			failed = fmt.Errorf("%s at %s: %w", call, place, err)
		}
		peers.Failed(failed)
	}
	return err
}

// call names a call of a function, and its place: what the context says, or the function and where it begins in the
// program, and the line of Go.
func (f *function) call(ctx context.Context) (call, place string) {
	if call, place = world.CallOf(ctx); call != "" {
		return call, place
	}
	p := f.unit.Source.Prog
	place = fmt.Sprintf("%s:%d", p.File, f.def.Pos.Line)
	if at := callerOutside(); at != "" {
		place += ", " + at
	}
	return f.def.Name, place
}

// callerOutside returns the line of Go that called this package; "" in hocket's own commands and library, whose users
// know no lines of it.
func callerOutside() string {
	if ownProgram() {
		return ""
	}
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		f, more := frames.Next()
		if !strings.HasPrefix(f.Function, "hocket.example/hocket.") && f.Function != "" {
			return fmt.Sprintf("%s:%d", f.File, f.Line)
		}
		if !more {
			return ""
		}
	}
}

var ownProgram = sync.OnceValue(func() bool {
	info, ok := debug.ReadBuildInfo()
	return !ok || strings.HasPrefix(info.Path, "hocket.example/hocket/cmd/") ||
		info.Path == "hocket.example/hocket/libhocket"
})
