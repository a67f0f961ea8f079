package kernels

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"hocket.example/hocket/internal/nvlib"
)

// Compiler compiles CUDA C++ to machine code.
type Compiler interface {
	// Compile compiles one source. The result log is the compiler's output; after an error in the source, err contains
	// it, too.
	Compile(source string, options []string) (image []byte, log string, err error)
	// Version returns a string that changes whenever the same source may compile to different code.
	Version() string
}

// headers is a Compiler that locates the toolkit's headers. hocket's own sources include none of them.
type headers interface{ Headers() []string }

// NVRTC returns a Compiler that uses NVIDIA's NVRTC library, which it loads when first used.
func NVRTC() Compiler { return &nvrtc{open: sync.OnceValues(nvlib.OpenNVRTC)} }

// Using returns a Compiler that uses the given NVRTC.
func Using(n *nvlib.NVRTC) Compiler {
	return &nvrtc{open: func() (*nvlib.NVRTC, error) { return n, nil }}
}

type nvrtc struct{ open func() (*nvlib.NVRTC, error) }

func (c *nvrtc) Version() string {
	n, err := c.open()
	if err != nil {
		return "none"
	}
	return buildOf(n.Loaded())
}

// buildOf returns a string that identifies the build of a library. Updates of a CUDA toolkit can have the same version.
// Therefore the string includes the size of the library's file, if there is a file.
func buildOf(l nvlib.Loaded) string {
	build := l.Name + " " + l.Version
	if f, err := os.Stat(l.Path); err == nil {
		build += fmt.Sprintf(" of %d bytes", f.Size())
	}
	return build
}

// Headers returns the directories near the library that contain headers such as cuda_bf16.h. The directories belong to
// a CUDA toolkit or to NVIDIA's wheels.
func (c *nvrtc) Headers() []string {
	n, err := c.open()
	if err != nil {
		return nil
	}
	var dirs []string
	lib := filepath.Dir(n.Loaded().Path)
	for _, near := range []string{"../include", "../../cuda_runtime/include", "../../include"} {
		dir := filepath.Join(lib, near)
		if _, err := os.Stat(filepath.Join(dir, "cuda_bf16.h")); err == nil {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

func (c *nvrtc) Compile(source string, options []string) ([]byte, string, error) {
	n, err := c.open()
	if err != nil {
		return nil, "", err
	}
	out, err := n.Compile(nvlib.Compilation{Name: "hocket.cu", Source: source, Options: options})
	if err != nil {
		return nil, "", err
	}
	return out.Cubin, out.Log, nil
}

// images holds the machine code of this process. It also reads and writes machine code in the cache on disk.
type images struct {
	compiler Compiler
	cache    *Cache
	busy     chan struct{} // limits the number of concurrent compilations that ahead starts
	mu       sync.Mutex
	made     map[wanted]*image
}

// wanted identifies machine code by the id of its source, so that the source is generated only if the code does not
// exist yet.
type wanted struct{ code, arch string }

// image is machine code. It is compiled once; other callers wait meanwhile.
type image struct {
	once sync.Once
	key  string
	b    []byte
	err  error
}

func newImages(c Compiler, cache *Cache) *images {
	return &images{compiler: c, cache: cache, busy: make(chan struct{}, compilesAhead()), made: map[wanted]*image{}}
}

// compilesAhead returns the largest number of concurrent compilations that ahead starts. It is the number of CPUs
// minus one; the remaining CPU is for other work.
func compilesAhead() int { return min(max(runtime.GOMAXPROCS(0)-1, 1), 16) }

// of returns the image of c for arch. The result fresh reports whether this is the first request for the image.
func (m *images) of(c code, arch string) (i *image, fresh bool) {
	w := wanted{c.id(), arch}
	m.mu.Lock()
	defer m.mu.Unlock()
	if i = m.made[w]; i == nil {
		i, fresh = &image{}, true
		m.made[w] = i
	}
	return i, fresh
}

// get returns the machine code of c for arch, and its key.
func (m *images) get(c code, arch string) ([]byte, string, error) {
	i, _ := m.of(c, arch)
	i.once.Do(func() { m.make(i, c, arch) })
	return i.b, i.key, i.err
}

// ahead starts to compile c for arch and returns without waiting. It never delays a call of get: if the compilation
// has not begun yet, get compiles the code itself.
func (m *images) ahead(c code, arch string) {
	i, fresh := m.of(c, arch)
	if !fresh {
		return
	}
	go func() {
		m.busy <- struct{}{}
		defer func() { <-m.busy }()
		i.once.Do(func() { m.make(i, c, arch) })
	}()
}

func (m *images) make(i *image, c code, arch string) {
	source, options := c.text(), []string{"--gpu-architecture=" + arch, "--std=c++17"}
	if h, ok := m.compiler.(headers); ok && c.raw != "" {
		for _, dir := range h.Headers() {
			options = append(options, "--include-path="+dir)
		}
	}
	i.key = keyOf(source, options, m.compiler.Version())
	i.b, i.err = m.load(i.key, source, options)
}

func (m *images) load(key, source string, options []string) ([]byte, error) {
	if b, ok := m.cache.load(key, codeEnding); ok {
		return b, nil
	}
	b, _, err := m.compiler.Compile(source, options)
	if err != nil {
		return nil, err
	}
	if len(b) == 0 {
		return nil, fmt.Errorf("the compiler %s returned no machine code", m.compiler.Version())
	}
	m.cache.store(key, codeEnding, b)
	return b, nil
}

// keyOf returns the key of machine code: a hash of everything on which the code depends. The options include the
// architecture.
func keyOf(source string, options []string, version string) string {
	h := sha256.New()
	for _, part := range append([]string{version, source}, options...) {
		fmt.Fprintf(h, "%d\n%s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))
}
