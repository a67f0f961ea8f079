package device

import (
	"fmt"
	"strings"
)

// Aborted is what every call of a world returns once the world has ended. It
// wraps ErrAborted and the first cause.
type Aborted struct{ Cause error }

// Error names the cause.
func (e *Aborted) Error() string { return "aborted: " + e.Cause.Error() }

// Unwrap returns the cause.
func (e *Aborted) Unwrap() error { return e.Cause }

// Is reports that every Aborted is ErrAborted.
func (e *Aborted) Is(target error) bool { return target == ErrAborted }

// Expired is the end of a context while there was work.
type Expired struct {
	// Err is the context's error, Cause its cause.
	Err, Cause error
	// At says of each stream with work what it does or waits for.
	At []string
}

// Error names the context's error, its cause and up to eight streams.
func (e *Expired) Error() string {
	s := e.Err.Error()
	if e.Cause != nil && e.Cause != e.Err {
		s += " (" + e.Cause.Error() + ")"
	}
	const most = 8
	if n := len(e.At); n > most {
		return fmt.Sprintf("%s; %s; and %d more streams", s, strings.Join(e.At[:most], "; "), n-most)
	}
	return strings.Join(append([]string{s}, e.At...), "; ")
}

// Unwrap returns the context's error and its cause.
func (e *Expired) Unwrap() []error { return []error{e.Err, e.Cause} }

// MarkText names a Begin mark in a sentence about a stream; nothing for -1.
func MarkText(id int64) string {
	if id < 0 {
		return ""
	}
	return fmt.Sprintf(", mark %d", id)
}
