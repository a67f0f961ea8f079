//go:build !unix

package files

import "io/fs"

// CheckOwn is nil where systems have other rights.
func CheckOwn(string) error { return nil }

func isOwn(fs.FileInfo) bool { return true }

func isMine(fs.FileInfo) bool { return true }
