package device

import "fmt"

// TrialError says that there is no memory to time the algorithms of a product in.
type TrialError struct {
	What  string // the product
	Bytes int64  // that it takes
	Free  int64  // of the device
	Err   error  // ErrOutOfMemory
}

// Error names the product and says what there is.
func (e *TrialError) Error() string {
	return fmt.Sprintf("timing the algorithms of %s takes %d bytes, and %d of the device are free: %v", e.What, e.Bytes, e.Free, e.Err)
}

// Unwrap returns the cause.
func (e *TrialError) Unwrap() error { return e.Err }
