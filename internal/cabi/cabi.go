// Package cabi calls C libraries that are found when the program runs: no cgo, no headers, no C compiler. It is the
// only package that imports purego. Go pointers are passed to C only here and, as arguments of Func.Call, in
// internal/nvlib.
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

// ErrNoCalls says that this build cannot call C libraries: it is not for
// Linux, or was made with the tag nocuda.
var ErrNoCalls = errors.New("this build cannot load C libraries (it needs linux on amd64 or arm64, without the tag nocuda)")

// Func is a C function whose arguments are all of integer or pointer type. The
// zero Func is absent.
type Func struct {
	addr uintptr
	fake func(args []uintptr) uintptr
	name *string
}

// FuncAt returns the function at an address that a C library gave.
func FuncAt(addr uintptr) Func { return Func{addr: addr} }

// Name points to the name that f was looked up by; nil for a function at an address.
func (f Func) Name() *string { return f.name }

// Present reports whether f can be called.
func (f Func) Present() bool { return f.addr != 0 || f.fake != nil }

// Call calls f, which must be present, and returns its result. Results
// narrower than a word have undefined upper bits.
//
//go:uintptrescapes
func (f Func) Call(args ...uintptr) uintptr { return f.CallPinned(args) }

// CallPinned is Call for arguments none of which points into Go memory that
// could move or be freed meanwhile: it does not allocate.
func (f Func) CallPinned(args []uintptr) uintptr {
	if f.fake != nil {
		return f.fake(args)
	}
	return call(f.addr, args)
}

// Library is a loaded library.
type Library struct {
	name   string // as it was found
	handle uintptr
	fake   map[string]func(args []uintptr) uintptr
}

// Fake returns a library that exists only in this process: tests put it in the
// place of a real one.
func Fake(name string, funcs map[string]func(args []uintptr) uintptr) *Library {
	return &Library{name: name, fake: funcs}
}

// OpenError says that none of the names of a library could be loaded.
type OpenError struct {
	Tried []string // one a name: "name: why not"
	Err   error    // ErrNoCalls, or nil
}

// Error lists what was tried.
func (e *OpenError) Error() string {
	if e.Err != nil {
		return e.Err.Error()
	}
	return "tried " + strings.Join(e.Tried, "; ")
}

// Unwrap returns ErrNoCalls where that is the cause.
func (e *OpenError) Unwrap() error { return e.Err }

// Open loads the first of names, sonames or paths, that can be loaded. Its
// error is an *OpenError.
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

// explain shortens the loader's message, which mostly begins with the name.
func explain(name string, err error) string {
	text := strings.TrimPrefix(err.Error(), name+": ")
	return name + ": " + strings.ReplaceAll(text, "\n", " ")
}

// Name returns the name under which the library was found.
func (l *Library) Name() string { return l.name }

// Path returns the file from which the library was loaded, found by the address of one of its functions; if the system
// does not provide that, the name under which it was opened.
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

// Lookup returns the function of that name.
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

// MissingError says which functions a library lacks.
type MissingError struct {
	Library string
	Names   []string
}

// Error names the library and all that it lacks.
func (e *MissingError) Error() string {
	return fmt.Sprintf("%s has no %s", e.Library, strings.Join(e.Names, ", "))
}

// Resolve sets every function of the table. Where some are missing, the error
// is a *MissingError that names them all.
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
