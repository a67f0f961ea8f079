//go:build !unix

package files

import "os"

// lock does nothing, because file locks are not implemented for this system.
func lock(*os.File) (held, others bool) { return false, false }
