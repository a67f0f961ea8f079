package fault

// RunError is the error of a run that failed after it had begun. Unwrap returns the cause, for example a context's
// error or an error that wraps ErrDeviceLost.
type RunError struct {
	// Rank and Stream are the rank and stream on which the run failed, and Statement is the statement that failed, with
	// its position. Rank is -1, and Stream and Statement are empty, if the run failed in several places or in an
	// unknown place.
	Rank              int
	Stream, Statement string
	Message           string
	Err               error
}

// Error returns a message that names ranks, streams, and statements with their positions.
func (e *RunError) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *RunError) Unwrap() error { return e.Err }
