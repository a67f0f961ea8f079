package world

import (
	"os"
	"time"
)

// link represents a connection to another process that transfers whole messages, in order.
type link interface {
	// receive waits for a message. One goroutine receives. The caller closes the descriptors of files that
	// come with it.
	receive() (message, []int, error)
	// send sends a message, and with it copies of files. It waits at most patience for the other end to
	// read what is there.
	send(packet []byte, patience time.Duration, fds ...int) error
	// post sends a message if the other end can take it now.
	post(packet []byte)
	// hangUp sends, after everything sent before, that nothing more follows.
	hangUp()
	// close ends the link, soon after what was sent is on its way.
	close()
	// owner returns the user and the process at the other end; a process of 0 is not known.
	owner() (uid uint32, pid int, err error)
	// payload is how many bytes of data go into a message.
	payload() int
}

var errTimeout = os.ErrDeadlineExceeded

// take takes a descriptor over from who would close it.
func take(fd *int) int {
	taken := *fd
	*fd = -1
	return taken
}
