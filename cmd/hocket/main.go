// Command hocket checks, lowers and runs multi-GPU host programs.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run executes one command line and returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr *os.File) int {
	ctx, stop := interruptible()
	defer stop()
	a := newApp(args, stdin, stdout, stderr)
	return a.finish(ctx, a.execute(ctx, args))
}

// interruptible returns a context that the first interrupt cancels. The second
// one ends the process, as if nobody had asked to be told.
func interruptible() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
