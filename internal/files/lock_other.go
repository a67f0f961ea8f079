//go:build !unix

package files

import "os"

// lock does nothing: no locks are known for this system.
func lock(*os.File) (held, others bool) { return false, false }
