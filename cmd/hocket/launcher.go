package main

import (
	"context"
	"errors"
	"os"
	"time"

	"hocket.example/hocket"
)

// alone returns an error if a launcher has started several processes of a command that must be a single process. Each
// process would otherwise measure at the same time as the others, on the same devices.
func alone() error {
	n, err := hocket.Launched()
	if err != nil {
		return usagef("%w", err)
	}
	if n > 1 {
		return usagef("a launcher started %d processes, but this command runs all ranks in one process", n).
			helping("start hocket once, without the launcher; use -n %d for %d ranks", n, n)
	}
	return nil
}

// join joins the world of the processes that a launcher has started. It returns nil if no launcher has. All processes
// get the same results, so only the first prints and writes them.
func (j *job) join(ctx context.Context) (*hocket.World, error) {
	n, err := hocket.Launched()
	if err != nil {
		return nil, usagef("%w", err)
	}
	if n == 1 {
		return nil, nil
	}
	if j.flags.schedules > 0 {
		return nil, usagef("--schedules explores the order of all ranks in one process, but a launcher started %d processes", n).
			helping("start hocket once, without the launcher")
	}
	var opts hocket.JoinOptions
	if os.Getenv("HOCKET_STALL_TIMEOUT") == "" { // so a stalled wait is reported before the command's own limit
		opts.StallTimeout = min(30*time.Second, j.flags.runLimit()*2/3)
	}
	w, err := hocket.Join(ctx, opts)
	if err != nil {
		return nil, &failure{code: exitMachine, kind: "machine", err: err}
	}
	j.first, j.processes = w.Rank() == 0, w.Size()
	if !j.first {
		j.app.mute()
	}
	return w, nil
}

// within returns a context that also ends when the world of processes ends. The returned function converts the
// command's error to an error that names the process that caused it. That function also publishes failures of the
// machine to the other processes; each process finds errors of a program or its inputs by itself.
func within(ctx context.Context, w *hocket.World) (context.Context, func(err error) error) {
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-w.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func(err error) error {
		cancel()
		if err != nil {
			cause := w.Err() // before Abort
			if code := classify(outer, err).code; code == exitMachine || code == exitInterrupted {
				w.Abort(err)
			}
			w.Failed(err)
			ended := errors.Is(err, context.Canceled) || errors.Is(err, hocket.ErrClosed)
			if ended && cause != nil && !errors.Is(cause, context.Canceled) {
				err = &failure{code: exitMachine, kind: "machine", err: cause}
			}
		}
		_ = w.Leave() // err contains the cause
		return err
	}
}
