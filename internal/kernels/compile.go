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

// Compiler turns CUDA C++ into machine code.
type Compiler interface {
	// Compile compiles one source. log is what the compiler said; on an error in
	// the source err holds it too.
	Compile(source string, options []string) (image []byte, log string, err error)
	// Version changes when the same source may give other code.
	Version() string
}

// headers is a Compiler that finds the toolkit's headers, which hocket's own sources need none of.
type headers interface{ Headers() []string }

// NVRTC is a Compiler that is NVIDIA's. It loads the library when first used.
func NVRTC() Compiler { return &nvrtc{open: sync.OnceValues(nvlib.OpenNVRTC)} }

// Using is a Compiler that is n.
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

// buildOf distinguishes builds of a library with the same version, as updates of a CUDA toolkit have, by the size of
// the file, if the library is a file.
func buildOf(l nvlib.Loaded) string {
	build := l.Name + " " + l.Version
	if f, err := os.Stat(l.Path); err == nil {
		build += fmt.Sprintf(" of %d bytes", f.Size())
	}
	return build
}

// Headers are the directories near the library that have headers such as cuda_bf16.h: those of a toolkit, or of
// NVIDIA's wheels.
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

// images are the compiled sources of this process, over those on disk.
type images struct {
	compiler Compiler
	cache    *Cache
	busy     chan struct{} // a place for each compilation ahead of need
	mu       sync.Mutex
	made     map[wanted]*image
}

// wanted is machine code by what it is of: the source is put together only where
// it is not there yet.
type wanted struct{ code, arch string }

// image is made once; whoever asks meanwhile waits.
type image struct {
	once sync.Once
	key  string
	b    []byte
	err  error
}

func newImages(c Compiler, cache *Cache) *images {
	return &images{compiler: c, cache: cache, busy: make(chan struct{}, compilesAhead()), made: map[wanted]*image{}}
}

// compilesAhead is how many compilations run at once ahead of need: as there are
// CPUs, but for one that goes on with what needs none.
func compilesAhead() int { return min(max(runtime.GOMAXPROCS(0)-1, 1), 16) }

// of returns the image of c for arch, and whether nobody asked for it before.
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

// ahead begins to make the machine code of c for arch, and returns at once. Who
// gets it meanwhile waits no longer than without: what has not begun is begun
// there.
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
		return nil, fmt.Errorf("the compiler %s gave no machine code", m.compiler.Version())
	}
	m.cache.store(key, codeEnding, b)
	return b, nil
}

// keyOf is the hash of all that machine code depends on; the architecture is
// among the options.
func keyOf(source string, options []string, version string) string {
	h := sha256.New()
	for _, part := range append([]string{version, source}, options...) {
		fmt.Fprintf(h, "%d\n%s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))
}
