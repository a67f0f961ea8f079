package device

import "fmt"

// TrialError reports that there is too little memory to time the algorithms of a GEMM.
type TrialError struct {
	What  string // the GEMM
	Bytes int64  // required bytes
	Free  int64  // free bytes of the device
	Err   error  // ErrOutOfMemory
}

// Error returns a message with the GEMM, the required memory and the free memory.
func (e *TrialError) Error() string {
	return fmt.Sprintf("timing the algorithms of %s needs %d bytes, but only %d bytes of the device are free: %v", e.What,
		e.Bytes, e.Free, e.Err)
}

// Unwrap returns the cause.
func (e *TrialError) Unwrap() error { return e.Err }
