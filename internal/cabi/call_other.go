//go:build !linux || nocuda || !(amd64 || arm64)

package cabi

// Callable reports whether this build can call C libraries.
const Callable = false

// call is never called, since no library can be opened.
func call(uintptr, []uintptr) uintptr { return 0 }

func dlopen(string) (uintptr, error)         { return 0, ErrNoCalls }
func dlsym(uintptr, string) (uintptr, error) { return 0, ErrNoCalls }
func mappedFile(uintptr) string              { return "" }

// Setenv sets a variable in C's environment.
func Setenv(string, string) error { return ErrNoCalls }

// Getenv reads C's environment.
func Getenv(string) (string, bool) { return "", false }
