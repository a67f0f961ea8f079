//go:build linux && !nocuda && (amd64 || arm64)

package cabi

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Callable reports whether this build can call C libraries.
const Callable = true

// call calls the C function with package purego. It copies the arguments, so that the caller may reuse its slice.
func call(addr uintptr, args []uintptr) uintptr {
	r, _, _ := purego.SyscallN(addr, args...)
	return r
}

// dlopen locks the goroutine to its thread, because dlerror, which purego calls after a failure, returns the last error
// of the calling thread.
func dlopen(name string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

func dlsym(handle uintptr, name string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	addr, err := purego.Dlsym(handle, name)
	if err == nil && addr == 0 {
		return 0, fmt.Errorf("%s: it is null", name)
	}
	return addr, err
}

var libc = sync.OnceValues(func() (*Library, error) { return Open([]string{"libc.so.6"}) })

// Setenv sets a variable in C's environment, which is separate from that of os.Setenv. Libraries that are loaded later
// see the variable. No other thread may read C's environment during the call.
func Setenv(name, value string) error {
	lib, err := libc()
	if err != nil {
		return fmt.Errorf("the C library: %w", err)
	}
	setenv, err := lib.Lookup("setenv")
	if err != nil {
		return err
	}
	n, v := CString(name), CString(value)
	if r := int32(setenv.Call(uintptr(unsafe.Pointer(&n[0])), uintptr(unsafe.Pointer(&v[0])), 1)); r != 0 {
		return fmt.Errorf("setenv %s failed", name)
	}
	return nil
}

// Getenv returns a variable of C's environment. It returns false if the variable is not set.
func Getenv(name string) (string, bool) {
	lib, err := libc()
	if err != nil {
		return "", false
	}
	getenv, err := lib.Lookup("getenv")
	if err != nil {
		return "", false
	}
	n := CString(name)
	p := getenv.Call(uintptr(unsafe.Pointer(&n[0])))
	return GoString(p), p != 0
}

// mappedFile returns the file that is mapped at addr.
func mappedFile(addr uintptr) string {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if path, err := mappingAt(line, addr); err == nil {
			return path
		}
	}
	return ""
}

var errElsewhere = errors.New("the address is not in this mapping")

// mappingAt reads a line of /proc/self/maps: "lo-hi perms offset device inode path".
func mappingAt(line string, addr uintptr) (string, error) {
	fields := strings.Fields(line)
	if len(fields) < 6 {
		return "", errElsewhere
	}
	lo, hi, _ := strings.Cut(fields[0], "-")
	l, err := strconv.ParseUint(lo, 16, 64)
	if err != nil {
		return "", err
	}
	h, err := strconv.ParseUint(hi, 16, 64)
	if err != nil {
		return "", err
	}
	if a := uint64(addr); a < l || a >= h {
		return "", errElsewhere
	}
	return strings.Join(fields[5:], " "), nil
}
