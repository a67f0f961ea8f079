// Command hocket checks, lowers and runs multi-GPU host programs.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/internal/launch"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run executes one command line and returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr *os.File) int {
	ctx, stop := interruptible()
	defer stop()
	a := newApp(args, stdin, stdout, stderr)
	done := make(chan error, 1)
	go func() { done <- a.execute(ctx, args) }()
	err, ended := await(ctx, a.expired, done, grace)
	if !ended && a.bounded.Load() {
		err, ended = <-done, true
	}
	if ended {
		return a.finish(ctx, err)
	}
	// The interrupted command is still running and uses a and files, so the interruption is reported through another
	// app.
	files.RemoveUnfinished()
	a.progress.End()
	if err = ctx.Err(); err == nil {
		err = a.timedOut(nil)
	}
	return leftBehind(args, stdin, stdout, stderr).finish(ctx, err)
}

// leftBehind returns an app that reports the outcome for a command that is still running. The name of the command is
// the first word of args.
func leftBehind(args []string, stdin io.Reader, stdout, stderr *os.File) *app {
	a := newApp(args, stdin, stdout, stderr)
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		a.out.Command = args[0]
	}
	return a
}

// grace is the time within which an interrupted command must end. Planning and evaluation check the context too rarely
// to be waited for without a limit.
const grace = 500 * time.Millisecond

// await returns the command's error. The second result is false if the command was interrupted or timed out, and did
// not end within the grace.
func await(ctx context.Context, expired <-chan struct{}, done <-chan error, grace time.Duration) (error, bool) {
	select {
	case err := <-done:
		return err, true
	case <-ctx.Done():
	case <-expired:
	}
	select {
	case err := <-done:
		return err, true
	case <-time.After(grace):
		return nil, false
	}
}

// interruptible returns a context that the first signal to end cancels: an interrupt, a termination or the hangup of
// the terminal. The second signal ends the process by the signal's default action.
func interruptible() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), launch.EndSignals()...)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
