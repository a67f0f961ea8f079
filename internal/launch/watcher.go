package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"hocket.example/hocket/fault"
	"hocket.example/hocket/internal/world"
)

// watcher receives reports from the processes of a launch. They report when they have joined and why their world ended.
type watcher struct{ l *world.Launcher }

// newWatcher listens for the processes of the run id. If it cannot listen, the returned watcher does nothing.
func newWatcher(id string, processes []*exec.Cmd) *watcher {
	l, err := world.NewLauncher(id)
	if err != nil {
		return &watcher{}
	}
	for _, c := range processes {
		c.Env = append(c.Env, "HOCKET_LAUNCHER="+l.Address())
	}
	return &watcher{l}
}

func (w *watcher) close() { w.l.Close() }

// exited notifies the processes that wait for this process to join that it has ended.
func (w *watcher) exited(rank int, state *os.ProcessState) {
	w.l.Exited(rank, state.Pid(), "ended ("+state.String()+")")
}

// reported returns a channel that is closed when a process has reported why its world ended.
func (w *watcher) reported() <-chan struct{} { return w.l.Reported() }

// blamed returns the process that the other processes report as the cause of the failure, and the reason. The rank is
// -1 if there is none.
func (w *watcher) blamed() (rank int, why string) {
	var peer *fault.PeerError
	if errors.As(w.l.Cause(), &peer) {
		return peer.Rank, peer.Why
	}
	return -1, ""
}

// failed returns the error of a launch in which a process was the first to fail. If the processes report another
// process as the cause, the error names that process. All processes must have ended; exits is indexed by rank and
// describes how each ended.
func (w *watcher) failed(first exit, exits []exit) error {
	n, cause := len(exits), w.l.Cause()
	blamed, why := -1, ""
	var peer *fault.PeerError
	var disagree *fault.DisagreeError
	switch {
	case errors.As(cause, &peer):
		blamed, why = peer.Rank, peer.Why
	case errors.As(cause, &disagree):
		if blamed = disagree.Odd(); blamed < 0 {
			return &Error{Kind: ofProcess, Code: codeOf(first.state),
				Err: fmt.Errorf("processes disagree on %s", disagree.What)}
		}
		why = fmt.Sprintf("it differs from the others on %s: %s", disagree.What, oddText(disagree))
	}
	if blamed < 0 || blamed >= n || blamed == first.rank && peer != nil {
		return first.failure(n)
	}
	return &Error{Kind: ofProcess, Code: codeOf(exits[blamed].state),
		Err: fmt.Errorf("the failure began in process %d of %d: %s", blamed, n, why)}
}

// oddText describes how one process differs from the others: by its call or, if the calls are equal, by its value.
func oddText(e *fault.DisagreeError) string {
	groups := e.Groups()
	odd, others := groups[0][0], groups[1][0]
	if odd.Rank != e.Odd() {
		odd, others = others, odd
	}
	if odd.Call == "" || odd.Call == others.Call {
		odd.Call = odd.Value
	}
	return odd.String()
}

// codeOf returns the exit code of the process that caused the failure, or 0 if it was killed.
func codeOf(state *os.ProcessState) int { return max(state.ExitCode(), 0) } // the code is -1 without a state
