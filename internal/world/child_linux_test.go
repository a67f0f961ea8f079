package world

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"
)

// childVariable is the environment variable with the name of the function in children that a process executes instead
// of running tests.
const childVariable = "HOCKET_TEST_WORLD_CHILD"

// children are the functions that child processes of tests execute. A process exits with the error of its function.
var children = map[string]func(ctx context.Context, o Options) error{}

// exitFailed is the exit code of hocket's commands if another process failed
const exitFailed = 3

func TestMain(m *testing.M) {
	name := os.Getenv(childVariable)
	if name == "" {
		flag.Parse()
		flag.Set("test.parallel", "8") // tests that run in parallel mostly wait
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
