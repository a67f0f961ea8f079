package nvlib

import (
	"unsafe"

	"hocket.example/hocket/internal/cabi"
)

// NVTX is the library with which a program labels its work for profilers. A thread's labels can be nested.
type NVTX struct {
	f nvtxFuncs
}

type nvtxFuncs struct{ push, pop cabi.Func }

func (f *nvtxFuncs) table() map[string]*cabi.Func {
	return map[string]*cabi.Func{"nvtxRangePushA": &f.push, "nvtxRangePop": &f.pop}
}

var wantNVTX = want{
	library: "NVIDIA's library of names for profilers libnvToolsExt", env: "HOCKET_LIBNVTX",
	stem: "libnvToolsExt.so", versions: []string{".1"}, wheels: []string{"nvidia/nvtx/lib"},
	help: "it comes with CUDA 12, and as the wheel nvidia-nvtx-cu12",
}

// OpenNVTX loads libnvToolsExt.
func OpenNVTX() (*NVTX, error) {
	n := &NVTX{}
	_, err := wantNVTX.load(n.f.table(), nil)
	if err != nil {
		return nil, err
	}
	return n, nil
}

// NVTXOn is like OpenNVTX, for a library that is already loaded.
func NVTXOn(lib *cabi.Library) (*NVTX, error) {
	n := &NVTX{}
	return n, wantNVTX.resolve(lib, n.f.table(), nil)
}

// Push begins a label: it labels the work that this thread issues until Pop. The goroutine must be locked to its
// thread.
func (n *NVTX) Push(name string) {
	c := cabi.CString(name)
	n.push(uintptr(unsafe.Pointer(&c[0])))
}

//go:uintptrescapes
func (n *NVTX) push(args ...uintptr) { n.f.push.CallPinned(args) }

// Pop ends the innermost label of the thread.
func (n *NVTX) Pop() { n.f.pop.Call() }
