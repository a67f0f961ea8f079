// Package cabi calls C libraries that are found when the program runs: no cgo, no headers, no C compiler. No other
// package imports purego. Only this package and internal/nvlib pass Go pointers to C; nvlib passes them as arguments
// of Func.Call.
//
// The rules that hold in both:
//
//   - A Go pointer becomes a uintptr in the argument list of Func.Call itself, as uintptr(unsafe.Pointer(&x)):
//     the compiler then moves x to the heap and keeps it alive. An address kept in a uintptr variable must be
//     that of a Block, of memory that C owns, or of a device.
//   - C must not keep a pointer into Go memory after the call has returned, except into a Block that lives long
//     enough.
//   - Structures that hold pointers (void**) are built in a Block.
//   - State that a C library keeps per thread (a current context, dlerror) is set and used between
//     runtime.LockOSThread and UnlockOSThread in the calling goroutine: sending single calls to a locked
//     goroutine costs tens of microseconds.
package cabi

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrNoCalls reports that this build cannot call C libraries, because it is not for Linux or was made with the tag
// nocuda.
var ErrNoCalls = errors.New("this build cannot load C libraries (it needs linux on amd64 or arm64, without the tag nocuda)")

// Func is a C function whose arguments all have integer or pointer types. The zero value of Func stands for a function
// that a library does not have.
type Func struct {
	addr uintptr
	fake func(args []uintptr) uintptr
	name *string
}

// FuncAt returns the function at an address that a C library has returned.
func FuncAt(addr uintptr) Func { return Func{addr: addr} }

// Name returns a pointer to the name with which f was looked up, or nil if f was made from an address.
func (f Func) Name() *string { return f.name }

// Present reports whether the library has the function f.
func (f Func) Present() bool { return f.addr != 0 || f.fake != nil }

// Call calls the C function f, which must be present, and returns its result. The upper bits of a result that is
// narrower than a word are undefined.
//
//go:uintptrescapes
func (f Func) Call(args ...uintptr) uintptr { return f.CallPinned(args) }

// CallPinned is like Call, but none of the arguments may point into Go memory that could be moved or freed during the
// call. It does not allocate.
func (f Func) CallPinned(args []uintptr) uintptr {
	if f.fake != nil {
		return f.fake(args)
	}
	return call(f.addr, args)
}

// Library is a loaded library.
type Library struct {
	name   string // the name under which the library was found
	handle uintptr
	fake   map[string]func(args []uintptr) uintptr
}

// Fake returns a library that exists only in this process. Tests use it in place of a real library.
func Fake(name string, funcs map[string]func(args []uintptr) uintptr) *Library {
	return &Library{name: name, fake: funcs}
}

// OpenError reports that a library could not be loaded under any of its names.
type OpenError struct {
	Tried []string // one string for each name: "name: reason"
	Err   error    // for each name, the reason why it could not be loaded: "name: reason"
}

// Error lists the names that were tried.
func (e *OpenError) Error() string {
	if e.Err != nil {
		return e.Err.Error()
	}
	return "tried " + strings.Join(e.Tried, "; ")
}

// Unwrap returns ErrNoCalls if that is the cause of the error.
func (e *OpenError) Unwrap() error { return e.Err }

// Open loads the first library in names that can be loaded. The names are sonames or paths. The error is an *OpenError.
func Open(names []string) (*Library, error) {
	var tried []string
	for _, n := range names {
		h, err := dlopen(n)
		if err == nil {
			return &Library{name: n, handle: h}, nil
		}
		if errors.Is(err, ErrNoCalls) {
			return nil, &OpenError{Err: err}
		}
		tried = append(tried, explain(n, err))
	}
	return nil, &OpenError{Tried: tried}
}

// explain shortens the loader's message, which usually begins with the name.
func explain(name string, err error) string {
	text := strings.TrimPrefix(err.Error(), name+": ")
	return name + ": " + strings.ReplaceAll(text, "\n", " ")
}

// Name returns the name under which the library was found.
func (l *Library) Name() string { return l.name }

// Path returns the file from which the library was loaded. It finds the file by the address of one of the library's
// functions. If the system does not support this, it returns the name under which the library was opened.
func (l *Library) Path(symbol string) string {
	if l.fake == nil {
		if addr, err := dlsym(l.handle, symbol); err == nil {
			if path := mappedFile(addr); path != "" {
				return path
			}
		}
	}
	return l.name
}

// Lookup returns the function with the given name.
func (l *Library) Lookup(name string) (Func, error) {
	if l.fake != nil {
		if f := l.fake[name]; f != nil {
			return Func{fake: f, name: &name}, nil
		}
		return Func{}, fmt.Errorf("%s has no %s", l.name, name)
	}
	addr, err := dlsym(l.handle, name)
	if err != nil {
		return Func{}, err
	}
	return Func{addr: addr, name: &name}, nil
}

// MissingError is an error that lists the functions that a library does not have.
type MissingError struct {
	Library string
	Names   []string
}

// Error returns a message with the library and all functions that it lacks.
func (e *MissingError) Error() string {
	return fmt.Sprintf("%s has no %s", e.Library, strings.Join(e.Names, ", "))
}

// Resolve sets every function of the table. If functions are missing, the error is a *MissingError that names all of
// them.
func (l *Library) Resolve(table map[string]*Func) error {
	var missing []string
	for name, f := range table {
		found, err := l.Lookup(name)
		if err != nil {
			missing = append(missing, name)
			continue
		}
		*f = found
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return &MissingError{Library: l.name, Names: missing}
	}
	return nil
}
