package world

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
)

// childVariable names what a process of the test binary does instead of running tests.
const childVariable = "HOCKET_TEST_WORLD_CHILD"

// children are the functions that such processes run. A process ends with the function's error.
var children = map[string]func(ctx context.Context, o Options) error{}

// the exit code of the command line
const exitFailed = 3

func TestMain(m *testing.M) {
	name := os.Getenv(childVariable)
	if name == "" {
		os.Exit(m.Run())
	}
	o, err := FromEnv(os.Getenv)
	if err == nil {
		err = children[name](context.Background(), o)
	}
	if err != nil {
		kind := "error"
		var p *PeerError
		var d *DisagreeError
		switch {
		case errors.As(err, &d):
			kind = "disagree"
		case errors.As(err, &p):
			kind = fmt.Sprint("peer ", p.Rank)
		}
		fmt.Printf("%s: %v\n", kind, err)
		os.Exit(exitFailed)
	}
}
