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

// calls reports to the other processes that this process now runs or loads a function. Their errors name this call.
func (m *Machine) calls(ctx context.Context, fn *function) {
	if peers := m.dev.Peers(); peers != nil {
		peers.Calls(fn.call(ctx))
	}
}

// told reports to the other processes that a call of a model has ended, and its error, which told returns. If another
// process times out while it waits for this process, it includes that error in its own error. If there is no error, it
// reports that this process is between two calls.
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

// call returns a description of a call of a function and the call's place. The place is the one that the
// context.Context contains, or otherwise the position of the function in the program and the line of the calling Go
// code.
func (f *function) call(ctx context.Context) (call, place string) {
	if call, place = world.CallOf(ctx); call != "" {
		return call, place
	}
	var stack [12]uintptr
	n := runtime.Callers(3, stack[:])
	f.places.Lock()
	defer f.places.Unlock()
	if place, ok := f.places.known[stack]; ok {
		return f.def.Name, place
	}
	place = fmt.Sprintf("%s:%d", f.unit.Source.Prog.File, f.def.Pos.Line)
	if at := callerOutside(stack[:n]); at != "" {
		place += ", " + at
	}
	if f.places.known == nil || len(f.places.known) == 100 {
		f.places.known = map[[12]uintptr]string{}
	}
	f.places.known[stack] = place
	return f.def.Name, place
}

// callPlaces caches the places of calls, keyed by the call stack, since each run looks one up.
type callPlaces struct {
	sync.Mutex
	known map[[12]uintptr]string
}

// callerOutside returns the line of Go code that called this package. It returns "" for calls from hocket's own
// commands and its C library, since their users do not know these lines.
func callerOutside(pcs []uintptr) string {
	if ownProgram() {
		return ""
	}
	frames := runtime.CallersFrames(pcs)
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
