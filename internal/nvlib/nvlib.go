// Package nvlib is NVIDIA's libraries as typed Go functions: the driver API, NVRTC, cuBLASLt, NCCL and NVML. Each is
// found and loaded at its first use. The package only makes calls: contexts, lifetimes and threads are the caller's
// responsibility.
//
// Device pointers are Ptr, each kind of handle has its own type, sizes are int64, and a status other than success is
// an *Error that names the library, the call and the library's message.
package nvlib

import (
	"errors"
	"fmt"

	"hocket.example/hocket/internal/cabi"
)

// Error is a status other than success.
type Error struct {
	Library string // "CUDA", "NVRTC", "cuBLASLt", "NCCL", "NVML"
	Call    string
	Code    int
	Text    string // the library's words; may be empty
}

// Error names library, call, code and text.
func (e *Error) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("%s: %s failed with status %d", e.Library, e.Call, e.Code)
	}
	return fmt.Sprintf("%s: %s: %s (%d)", e.Library, e.Call, e.Text, e.Code)
}

// Is reports whether the library ran out of memory, where that is what the target
// says, by a method OutOfMemory.
func (e *Error) Is(target error) bool {
	_, asked := target.(interface{ OutOfMemory() })
	return asked && (e.Library == cudaLibrary && e.Code == CUDAOutOfMemory || e.Library == cublasLibrary && e.Code == CuBLASAllocFailed)
}

// Code returns the status within err that library gave, 0 if there is none.
func Code(err error, library string) int {
	var e *Error
	if errors.As(err, &e) && e.Library == library {
		return e.Code
	}
	return 0
}

// LoadError says that a library could not be loaded, what was tried, and the
// way out.
type LoadError struct {
	Library string
	Env     string // the variable that names the file
	Help    string
	Err     error
}

// Error names the library, what was tried, and the variable that helps.
func (e *LoadError) Error() string {
	s := fmt.Sprintf("%s could not be loaded: %v", e.Library, e.Err)
	if errors.Is(e.Err, cabi.ErrNoCalls) {
		return s
	}
	return fmt.Sprintf("%s; %s, or name the file in %s", s, e.Help, e.Env)
}

// Unwrap returns the cause.
func (e *LoadError) Unwrap() error { return e.Err }

// want describes a library: where it may be, and what it must have.
type want struct {
	library  string // as in messages
	env      string // names the file and ends the search
	stem     string // "libnvrtc.so"
	versions []string
	wheels   []string // folders in site-packages
	help     string
}

// names lists what to try, in order.
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

// load opens the library and resolves its table; symbols that may be absent
// are in the second one.
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
		return w.failed(fmt.Errorf("it is too old or not what it seems: %w", err))
	}
	return nil
}

func (w want) failed(err error) error {
	return &LoadError{Library: w.library, Env: w.env, Help: w.help, Err: err}
}

// Loaded is what doctor tells of a library.
type Loaded struct {
	Name    string
	Path    string
	Version string
}
