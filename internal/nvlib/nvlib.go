// Package nvlib provides NVIDIA's libraries as typed Go functions: the driver API, NVRTC, cuBLASLt, NCCL and NVML. Each
// library is found and loaded at its first use. The package only makes calls. Contexts, lifetimes and threads are the
// responsibility of the caller.
//
// Device pointers are Ptr, each kind of handle has its own type, sizes are int64, and a status other than success is an
// *Error that names the library, the call and the library's message.
package nvlib

import (
	"errors"
	"fmt"

	"hocket.example/hocket/internal/cabi"
)

// Error is the error of a call that returned a status other than success.
type Error struct {
	Library string // "CUDA", "NVRTC", "cuBLASLt", "NCCL", "NVML"
	Call    string
	Code    int
	Text    string // the library's message; may be empty
}

// Error returns a message with the library, the call, the code and the text.
func (e *Error) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("%s: %s failed with status %d", e.Library, e.Call, e.Code)
	}
	return fmt.Sprintf("%s: %s: %s (%d)", e.Library, e.Call, e.Text, e.Code)
}

// Is reports whether the library ran out of memory, if target has a method OutOfMemory.
func (e *Error) Is(target error) bool {
	_, asked := target.(interface{ OutOfMemory() })
	return asked && (e.Library == cudaLibrary && e.Code == CUDAOutOfMemory || e.Library == cublasLibrary && e.Code == CuBLASAllocFailed)
}

// Code returns the status that the library of the given name returned, from the error err; 0 if there is none.
func Code(err error, library string) int {
	var e *Error
	if errors.As(err, &e) && e.Library == library {
		return e.Code
	}
	return 0
}

// LoadError is the error of a library that could not be loaded. It says what was tried, and how to fix it.
type LoadError struct {
	Library string
	Env     string // the environment variable that can name the file
	Help    string
	Err     error
}

// Error returns a message with the library, what was tried, and the variable that can name the
// file.
func (e *LoadError) Error() string {
	s := fmt.Sprintf("%s could not be loaded: %v", e.Library, e.Err)
	if errors.Is(e.Err, cabi.ErrNoCalls) {
		return s
	}
	return fmt.Sprintf("%s; %s, or name the file in %s", s, e.Help, e.Env)
}

// Unwrap returns the cause.
func (e *LoadError) Unwrap() error { return e.Err }

// want describes a library: its possible locations and the functions that it must have.
type want struct {
	library  string // the name in messages
	env      string // environment variable that names the file; if it is set, no other file is tried
	stem     string // file name without version, such as "libnvrtc.so"
	versions []string
	wheels   []string // folders of the library in Python's site-packages
	help     string
}

// names returns the files to try, in order.
func (w want) names(env func(string) string, roots []string) []string {
	if file := env(w.env); file != "" {
		return []string{file}
	}
	var names []string
	for _, v := range w.versions {
		names = append(names, w.stem+v)
	}
	return append(names, w.files(roots)...)
}

// load opens the library and looks up its functions. Functions in the second table may be missing.
func (w want) load(table, optional map[string]*cabi.Func) (*cabi.Library, error) {
	lib, err := cabi.Open(w.names(environment, searchRoots()))
	if err != nil {
		return nil, w.failed(err)
	}
	return lib, w.resolve(lib, table, optional)
}

func (w want) resolve(lib *cabi.Library, table, optional map[string]*cabi.Func) error {
	for name, f := range optional {
		if found, err := lib.Lookup(name); err == nil {
			*f = found
		}
	}
	if err := lib.Resolve(table); err != nil {
		return w.failed(fmt.Errorf("the library is too old, or is a different library: %w", err))
	}
	return nil
}

func (w want) failed(err error) error {
	return &LoadError{Library: w.library, Env: w.env, Help: w.help, Err: err}
}

// Loaded describes a loaded library, for hocket doctor.
type Loaded struct {
	Name    string
	Path    string
	Version string
}
