package main

import (
	"context"
	"errors"
	"os"
	"time"

	"hocket.example/hocket"
)

// alone refuses commands for a single process if a launcher started several: each would measure at the same time as the
// others, on the same devices.
func alone() error {
	n, err := hocket.Launched()
	if err != nil {
		return usagef("%w", err)
	}
	if n > 1 {
		return usagef("a launcher started %d processes, and this command drives all ranks from one", n).
			helping("start hocket once, without the launcher: -n %d takes %d ranks", n, n)
	}
	return nil
}

// join makes this process one of those that a launcher started; nil if no launcher did. All processes get the same
// results, so only the first prints and writes them.
func (j *job) join(ctx context.Context) (*hocket.World, error) {
	n, err := hocket.Launched()
	if err != nil {
		return nil, usagef("%w", err)
	}
	if n == 1 {
		return nil, nil
	}
	if j.flags.schedules > 0 {
		return nil, usagef("--schedules draws the order of all ranks in one process; a launcher started %d", n).
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

// within returns a context that also ends when the world of processes does. The returned function takes the command's
// error and returns the error that names the process to blame. It publishes failures of the machine to the other
// processes; errors of a program or its inputs they find themselves.
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
			if code := classify(outer, err).code; code == exitMachine || code == exitInterrupted {
				w.Abort(err)
			}
			w.Failed(err)
			if cause := w.Err(); errors.Is(err, context.Canceled) && cause != nil &&
				!errors.Is(cause, context.Canceled) {
				err = &failure{code: exitMachine, kind: "machine", err: cause}
			}
		}
		_ = w.Leave() // err has the cause
		return err
	}
}
