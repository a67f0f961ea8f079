package modeltest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"
)

// OnNodes makes the processes of a world believe that they run on several nodes, in order of rank. The returned
// function must be called before a process starts: it sets the process's node and the address where all processes meet.
// Rank 0 inherits the socket that the others dial.
func OnNodes(t testing.TB, nodes, processes int) func(rank int, p *exec.Cmd) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	meeting, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = meeting.Close() })
	return func(rank int, p *exec.Cmd) {
		node := rank * nodes / processes
		p.Env = append(p.Env, "HOCKET_MEET="+l.Addr().String(), "HOCKET_TOKEN=a token of tests", fmt.Sprint("HOCKET_NODE=", node),
			fmt.Sprintf("NCCL_HOSTID=%s-%d", l.Addr(), node)) // limits NCCL's shared memory to a node
		if rank == 0 {
			p.ExtraFiles = []*os.File{meeting}
			p.Env = append(p.Env, "HOCKET_MEET_FD=3")
		}
	}
}
