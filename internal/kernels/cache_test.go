package kernels

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// fake is a compiler that returns its input as code.
type fake struct {
	version string
	calls   atomic.Int64
	fail    error
	empty   bool
	during  func()
}

func (f *fake) Version() string { return f.version }

func (f *fake) Compile(source string, options []string) ([]byte, string, error) {
	f.calls.Add(1)
	if f.during != nil {
		f.during()
	}
	if f.fail != nil {
		return nil, "the log", f.fail
	}
	if f.empty {
		return nil, "", nil
	}
	return []byte(f.version + strings.Join(options, " ") + source), "", nil
}

func addition(n int64) Computation {
	x := Operand{Addr: 4096, DType: ir.F32, Shape: []int64{n}, Strides: []int64{1}}
	return Computation{Op: device.Elementwise{Op: ir.OpAdd}, Ins: []Operand{x, x}, Out: x}
}

// addOnce plans an addition with a new library, as a new process would.
func addOnce(t *testing.T, c Compiler, cache *Cache, arch string) []byte {
	t.Helper()
	s, err := New(c, cache).Steps(Target{Arch: arch}, addition(64))
	if err != nil {
		t.Fatal(err)
	}
	if len(s) != 1 || len(s[0].Image) == 0 || s[0].Symbol == "" || s[0].Shape.Block != [3]uint32{256, 1, 1} {
		t.Fatalf("steps %+v", s)
	}
	return s[0].Image
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestCacheKeeps(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there")
	c := &fake{version: "1"}
	first := addOnce(t, c, CacheIn(dir, nil), "sm_90")
	again := addOnce(t, c, CacheIn(dir, nil), "sm_90")
	if c.calls.Load() != 1 || !bytes.Equal(first, again) {
		t.Errorf("%d compilations; equal: %v", c.calls.Load(), bytes.Equal(first, again))
	}
	if n := len(entries(t, dir)); n != 1 {
		t.Errorf("there are %d files for one kernel", n)
	}
	newer := &fake{version: "2"}
	if b := addOnce(t, newer, CacheIn(dir, nil), "sm_90"); newer.calls.Load() != 1 || bytes.Equal(b, first) {
		t.Error("another compiler's code was used")
	}
	if b := addOnce(t, c, CacheIn(dir, nil), "sm_80"); c.calls.Load() != 2 || bytes.Equal(b, first) {
		t.Error("another architecture's code was used")
	}
}

func TestCacheMistrusts(t *testing.T) {
	damage := map[string]func(b []byte) []byte{
		"empty":         func([]byte) []byte { return nil },
		"cut in head":   func(b []byte) []byte { return b[:40] },
		"cut in code":   func(b []byte) []byte { return b[:len(b)-1] },
		"longer":        func(b []byte) []byte { return append(b, 0) },
		"a bit in code": func(b []byte) []byte { b[len(b)-7] ^= 4; return b },
		"a bit in hash": func(b []byte) []byte { b[headBytes-1] ^= 1; return b },
		"length":        func(b []byte) []byte { b[len(magic)+64]++; return b },
		"another key":   func(b []byte) []byte { b[len(magic)] ^= 1; return b },
		"foreign":       func([]byte) []byte { return bytes.Repeat([]byte("ELF?"), 1000) },
		"no code":       func(b []byte) []byte { return seal(string(b[len(magic):len(magic)+64]), nil) },
	}
	for what, f := range damage {
		t.Run(what, func(t *testing.T) {
			dir, c := t.TempDir(), &fake{version: "1"}
			good := addOnce(t, c, CacheIn(dir, nil), "sm_90")
			path := entries(t, dir)[0]
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, f(b), 0o600); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second time, the repaired entry is used
				if got := addOnce(t, c, CacheIn(dir, nil), "sm_90"); !bytes.Equal(got, good) {
					t.Fatalf("wrong code: %q", got)
				}
			}
			if n := c.calls.Load(); n != 2 {
				t.Errorf("%d compilations, want 2", n)
			}
		})
	}
}

// TestCacheUnusable checks that, if the cache folder cannot exist, results are correct, and one message reports the
// reason.
func TestCacheUnusable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	blocked := filepath.Join(t.TempDir(), "blocked")
	var log bytes.Buffer
	cache, c := CacheIn(filepath.Join(file, "below"), slog.New(slog.NewTextHandler(&log, nil))), &fake{version: "1"}
	l := New(c, cache)
	for _, op := range []ir.Op{ir.OpAdd, ir.OpMul, ir.OpSub} {
		p := addition(64)
		p.Op = device.Elementwise{Op: op}
		if _, err := l.Steps(Target{Arch: "sm_90"}, p); err != nil {
			t.Error(err)
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), files.CacheVariable) {
		t.Errorf("%d lines: %s", n, log.String())
	}
	// If a folder has the name of an entry, the entry can neither be read nor replaced.
	log.Reset()
	cache = CacheIn(blocked, slog.New(slog.NewTextHandler(&log, nil)))
	key := keyOf(plain.text(), []string{"--gpu-architecture=sm_90", "--std=c++17"}, "1")
	if err := os.MkdirAll(filepath.Join(cache.path(key, codeEnding), "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, err := newImages(c, cache).get(plain, "sm_90"); err != nil {
		t.Error(err)
	}
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("%d lines: %s", n, log.String())
	}
	if n := len(entries(t, blocked)); n != 1 {
		t.Errorf("%d files remain", n)
	}
}

func TestCacheFolder(t *testing.T) {
	t.Setenv(files.CacheVariable, "/some/where")
	if d := OpenCache(nil).Dir(); d != "/some/where" {
		t.Error(d)
	}
	t.Setenv(files.CacheVariable, "")
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	if d := OpenCache(nil).Dir(); filepath.Base(d) != "kernels" || filepath.Base(filepath.Dir(d)) != "hocket" {
		t.Error(d)
	}
	if (*Cache)(nil).Dir() != "" {
		t.Error("a nil cache has a folder")
	}
}

func TestNoCache(t *testing.T) {
	c := &fake{version: "1"}
	l := New(c, nil)
	for range 3 {
		if _, err := l.Steps(Target{Arch: "sm_90"}, addition(64)); err != nil {
			t.Fatal(err)
		}
	}
	// One kernel serves all extents, except that an extent that is not a multiple of 16 bytes needs another kernel.
	for _, n := range []int64{128, 63} {
		if _, err := l.Steps(Target{Arch: "sm_90"}, addition(n)); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.calls.Load(); n != 2 {
		t.Errorf("%d compilations, want 2", n)
	}
}

func TestCompilesOnce(t *testing.T) {
	c, dir := &fake{version: "1"}, t.TempDir()
	l := New(c, CacheIn(dir, nil))
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if _, err := l.Steps(Target{Arch: "sm_90"}, addition(64)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := c.calls.Load(); n != 1 {
		t.Errorf("%d compilations", n)
	}
}

// plain is code that needs no source files.
var plain = code{symbol: "k", args: "Args", body: "f"}

// TestAhead checks that code that is compiled ahead is compiled once, regardless of the order of the calls, that its
// error is returned to callers of get, and that the number of concurrent compilations is limited.
func TestAhead(t *testing.T) {
	var busy, most atomic.Int64
	c := &fake{version: "1", during: func() {
		n := busy.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(time.Millisecond)
		busy.Add(-1)
	}}
	m := newImages(c, CacheIn(t.TempDir(), nil))
	var codes []code
	for i := range 40 {
		x := plain
		x.symbol = fmt.Sprint("k", i)
		codes = append(codes, x)
		m.ahead(x, "sm_90")
		m.ahead(x, "sm_90")
	}
	for _, x := range codes {
		b, key, err := m.get(x, "sm_90")
		if err != nil || key == "" || !strings.Contains(string(b), x.symbol+"(") {
			t.Errorf("%s: %d bytes, key %q, %v", x.symbol, len(b), key, err)
		}
	}
	if n := c.calls.Load(); n != 40 {
		t.Errorf("%d compilations", n)
	}
	if n := most.Load(); n > int64(compilesAhead())+1 {
		t.Errorf("%d concurrent compilations", n)
	}
	cause := errors.New("line 3: no")
	m = newImages(&fake{version: "1", fail: cause}, nil)
	m.ahead(plain, "sm_90")
	if _, _, err := m.get(plain, "sm_90"); !errors.Is(err, cause) {
		t.Error(err)
	}
}

// TestLibraryAhead checks that, after kernels were compiled ahead, nothing remains to be compiled.
func TestLibraryAhead(t *testing.T) {
	c := &fake{version: "1"}
	l, target := New(c, nil), Target{Arch: "sm_90"}
	two := Meeting{File: "collective_reduce", Args: "ReduceArgs", Body: "reducePull<RedSum, f32, 2, 2>", Symbol: "k", Team: Team{Control: []nvlib.Ptr{1, 2}}, Blocks: 1, Threads: 32}
	l.Ahead(target, addition(64))
	l.MeetingAhead(target, two)
	if _, err := l.Steps(target, addition(128)); err != nil {
		t.Error(err)
	}
	if _, err := l.Meeting(target, two); err != nil {
		t.Error(err)
	}
	l.Ahead(target, Computation{Op: device.Elementwise{Op: ir.OpWait}}) // Steps reports the error
	if n := c.calls.Load(); n != 2 {
		t.Errorf("%d compilations", n)
	}
}

// TestManyProcesses checks that several processes that share a folder find only complete entries.
func TestManyProcesses(t *testing.T) {
	dir := t.TempDir()
	want, _, err := (&fake{version: "1"}).Compile(plain.text(), []string{"--gpu-architecture=sm_90", "--std=c++17"})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				b, _, err := newImages(&fake{version: "1"}, CacheIn(dir, nil)).get(plain, "sm_90")
				if err != nil || !bytes.Equal(b, want) {
					t.Errorf("%q, %v", b, err)
				}
			}
		})
	}
	wg.Wait()
	if n := len(entries(t, dir)); n != 1 {
		t.Errorf("%d files", n)
	}
}

func TestCompilerFails(t *testing.T) {
	cause := errors.New("line 3: no")
	dir := t.TempDir()
	for _, c := range []*fake{{version: "1", fail: cause}, {version: "1", empty: true}} {
		_, err := New(c, CacheIn(dir, nil)).Steps(Target{Arch: "sm_90"}, addition(64))
		if err == nil || !strings.HasPrefix(err.Error(), "add: ") || c.fail != nil && !errors.Is(err, cause) {
			t.Error(err)
		}
	}
	if n := len(entries(t, dir)); n != 0 {
		t.Errorf("%d files of code that did not compile", n)
	}
}

func TestNVRTCMissing(t *testing.T) {
	t.Setenv("HOCKET_LIBNVRTC", filepath.Join(t.TempDir(), "libnvrtc.so"))
	c := NVRTC()
	_, err := New(c, nil).Steps(Target{Arch: "sm_90"}, addition(64))
	var missing *nvlib.LoadError
	if !errors.As(err, &missing) || !strings.Contains(err.Error(), "HOCKET_LIBNVRTC") {
		t.Errorf("%v", err)
	}
	if c.Version() != "none" {
		t.Error(c.Version())
	}
}

// TestBuilds checks that an updated compiler is treated as another compiler, even if its version did not change.
func TestBuilds(t *testing.T) {
	file := filepath.Join(t.TempDir(), "libnvrtc.so.12")
	l := nvlib.Loaded{Name: "libnvrtc", Path: file, Version: "12.8"}
	seen := map[string]bool{buildOf(l): true} // without a file
	for _, content := range []string{"12.8.61", "12.8.93 "} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if build := buildOf(l); seen[build] || build != buildOf(l) || !strings.HasPrefix(build, "libnvrtc 12.8") {
			t.Errorf("%q of %v", build, seen)
		}
		seen[buildOf(l)] = true
	}
}

func TestUnknown(t *testing.T) {
	l := New(&fake{version: "1"}, nil)
	p := addition(64)
	for _, op := range []ir.Op{ir.OpWait, ir.OpReshard, ir.OpAllGather, ir.InvalidOp} {
		p.Op = device.Elementwise{Op: op}
		_, err := l.Steps(Target{Arch: "sm_90"}, p)
		if !errors.Is(err, device.ErrUnsupported) || !strings.HasPrefix(err.Error(), op.String()+": ") {
			t.Errorf("%s: %v", op, err)
		}
	}
}
