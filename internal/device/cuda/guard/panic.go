package guard

import (
	"fmt"
	"runtime/debug"
)

// Recovered calls a function of the user, and returns its panic as an error.
func Recovered(f func()) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case error:
			err = fmt.Errorf("a call panicked: %w", p)
		default:
			err = fmt.Errorf("a call panicked: %v\n%s", p, debug.Stack())
		}
	}()
	f()
	return nil
}
