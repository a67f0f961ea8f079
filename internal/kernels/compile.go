package kernels

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
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
	l := n.Loaded()
	return l.Name + " " + l.Version
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
	mu       sync.Mutex
	made     map[string]*image
}

// image is made once; whoever asks meanwhile waits.
type image struct {
	once sync.Once
	b    []byte
	err  error
}

func newImages(c Compiler, cache *Cache) *images {
	return &images{compiler: c, cache: cache, made: map[string]*image{}}
}

// get returns the machine code of source for arch, and its key.
func (m *images) get(source, arch string) ([]byte, string, error) {
	options := []string{"--gpu-architecture=" + arch, "--std=c++17"}
	key := keyOf(source, options, m.compiler.Version())
	m.mu.Lock()
	i := m.made[key]
	if i == nil {
		i = &image{}
		m.made[key] = i
	}
	m.mu.Unlock()
	i.once.Do(func() { i.b, i.err = m.make(key, source, options) })
	return i.b, key, i.err
}

func (m *images) make(key, source string, options []string) ([]byte, error) {
	if b, ok := m.cache.load(key); ok {
		return b, nil
	}
	b, _, err := m.compiler.Compile(source, options)
	if err != nil {
		return nil, err
	}
	if len(b) == 0 {
		return nil, fmt.Errorf("the compiler %s gave no machine code", m.compiler.Version())
	}
	m.cache.store(key, b)
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
