//go:build !unix

package files

import "io/fs"

// CheckOwn always returns nil, since file permissions are different on these systems.
func CheckOwn(string) error { return nil }

func isOwn(fs.FileInfo) bool { return true }

func isMine(fs.FileInfo) bool { return true }
