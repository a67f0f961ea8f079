//go:build !unix

package files

const nonblocking, nofollow = 0, 0
