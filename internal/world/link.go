package world

import (
	"os"
	"time"
)

// link represents a connection to another process that transfers whole messages, in order.
type link interface {
	// receive waits for a message. Only one goroutine may call it. The caller closes the
	// descriptors of files that are received with the message.
	receive() (message, []int, error)
	// send sends a message, together with copies of files. send waits at most patience for the other end to read
	// earlier messages.
	send(packet []byte, patience time.Duration, fds ...int) error
	// post sends a message if that is possible without waiting, and drops it otherwise.
	post(packet []byte)
	// hangUp announces that no further messages follow.
	hangUp()
	// close waits a short time until sent messages have been transmitted, and closes the connection.
	close()
	// owner returns the user and process ID at the other end; the process ID is 0 if unknown.
	owner() (uid uint32, pid int, err error)
	// payload returns the number of data bytes that fit in a message.
	payload() int
}

var errTimeout = os.ErrDeadlineExceeded

// take returns the descriptor in *fd and sets *fd to -1, so that closeAll does not close it.
func take(fd *int) int {
	taken := *fd
	*fd = -1
	return taken
}
