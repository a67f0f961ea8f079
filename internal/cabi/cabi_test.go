package cabi

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"
)

// libcOrSkip returns the C library, which every Linux with a GPU has.
func libcOrSkip(t *testing.T) *Library {
	t.Helper()
	l, err := Open([]string{"libc.so.6"})
	if err != nil {
		t.Skipf("no C library: %v", err)
	}
	return l
}

func lookup(t *testing.T, l *Library, name string) Func {
	t.Helper()
	f, err := l.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestOpenListsWhatWasTried(t *testing.T) {
	_, err := Open([]string{"libnowhere-a.so", "/none/libnowhere-b.so"})
	var open *OpenError
	if !errors.As(err, &open) {
		t.Fatalf("got %v", err)
	}
	if errors.Is(err, ErrNoCalls) != !Callable {
		t.Fatalf("got %v", err)
	}
	if Callable && (len(open.Tried) != 2 || !strings.Contains(err.Error(), "libnowhere-a.so: ") || !strings.Contains(err.Error(), "libnowhere-b.so: ")) {
		t.Errorf("got %v", err)
	}
}

func TestResolveNamesAllThatIsMissing(t *testing.T) {
	l := libcOrSkip(t)
	var a, b, c Func
	err := l.Resolve(map[string]*Func{"zebra_": &a, "abs": &b, "aardvark_": &c})
	var missing *MissingError
	if !errors.As(err, &missing) || !slices.Equal(missing.Names, []string{"aardvark_", "zebra_"}) {
		t.Fatalf("got %v", err)
	}
	if a.Present() || !b.Present() {
		t.Error("abs was not resolved, or what is missing was")
	}
}

func TestCall(t *testing.T) {
	l := libcOrSkip(t)
	if got := int32(lookup(t, l, "abs").Call(uintptr(0xffffffd6))); got != 42 {
		t.Errorf("abs(-42) = %d", got)
	}
	if path := l.Path("abs"); !strings.Contains(path, "libc") || !strings.HasPrefix(path, "/") {
		t.Errorf("the C library's path is %q", path)
	}
}

// deep grows the stack, so that addresses of stack variables change.
func deep(n int) int {
	var pad [256]byte
	if n == 0 {
		return int(pad[0])
	}
	return deep(n-1) + int(pad[n%256])
}

// TestCallWritesBack checks that C functions can write to Go variables, while the stacks of many goroutines grow and
// the garbage collector runs.
func TestCallWritesBack(t *testing.T) {
	set := lookup(t, libcOrSkip(t), "memset")
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				var buf [64]byte
				set.Call(uintptr(unsafe.Pointer(&buf)), uintptr(g+1), 64)
				deep(i % 50)
				if buf[0] != byte(g+1) || buf[63] != byte(g+1) {
					t.Errorf("got %v", buf)
					return
				}
				if i%50 == 0 {
					runtime.GC()
				}
			}
		})
	}
	wg.Wait()
}

func TestEnvironment(t *testing.T) {
	libcOrSkip(t)
	name := fmt.Sprint("HOCKET_CABI_TEST_", rand.Uint64()) // C's environment outlives the test
	if _, ok := Getenv(name); ok {
		t.Fatal("the variable is there already")
	}
	if err := Setenv(name, "a value"); err != nil {
		t.Fatal(err)
	}
	if v, ok := Getenv(name); !ok || v != "a value" {
		t.Errorf("got %q, %v", v, ok)
	}
}

func TestBlock(t *testing.T) {
	for _, size := range []int{1, 8, 17, 4096} {
		b := NewBlock(size)
		if b.Addr(0)&15 != 0 || len(b.Bytes()) != size {
			t.Errorf("a block of %d bytes at %#x has %d", size, b.Addr(0), len(b.Bytes()))
		}
		b.Bytes()[size-1] = 7
		runtime.GC()
		if got := Load[byte](b.Addr(size - 1)); got != 7 {
			t.Errorf("read %d", got)
		}
		b.Free()
	}
	list := []string{"", "one", "two, longer than a word"}
	c := NewCStrings(list)
	for i, want := range list {
		if got := GoString(Load[uintptr](c.Addr() + uintptr(8*i))); got != want {
			t.Errorf("string %d is %q", i, got)
		}
	}
	if Load[uintptr](c.Addr()+24) != 0 {
		t.Error("no null pointer at the end")
	}
	c.Free()
	if got := string(CString("a\x00b")); got != "a\x00" {
		t.Errorf("got %q", got)
	}
	if GoString(0) != "" {
		t.Error("a null pointer is not the empty string")
	}
}

func TestFake(t *testing.T) {
	var seen []uintptr
	l := Fake("libfake", map[string]func([]uintptr) uintptr{"f": func(a []uintptr) uintptr {
		seen = slices.Clone(a)
		Store(a[1], uint32(99))
		return 3
	}})
	var f Func
	if err := l.Resolve(map[string]*Func{"f": &f}); err != nil {
		t.Fatal(err)
	}
	var out uint32
	if r := f.Call(5, uintptr(unsafe.Pointer(&out))); r != 3 || out != 99 || len(seen) != 2 || seen[0] != 5 {
		t.Errorf("f returned %d, wrote %d, saw %v", r, out, seen)
	}
	if _, err := l.Lookup("g"); err == nil {
		t.Error("a fake has what it does not have")
	}
	if l.Path("f") != "libfake" || l.Name() != "libfake" {
		t.Error(l.Path("f"), l.Name())
	}
}

func BenchmarkCall(b *testing.B) {
	l, err := Open([]string{"libc.so.6"})
	if err != nil {
		b.Skip(err)
	}
	abs, err := l.Lookup("abs")
	if err != nil {
		b.Fatal(err)
	}
	args := make([]uintptr, 11)
	for _, n := range []int{1, 11} {
		b.Run(fmt.Sprint("args", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				abs.CallPinned(args[:n])
			}
		})
	}
}
