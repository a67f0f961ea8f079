package nvlib

import (
	"unsafe"

	"hocket.example/hocket/internal/cabi"
)

const (
	funcMaxThreads       = 0
	funcMaxDynamicShared = 8
)

// LoadModule loads machine code (a cubin, or PTX that ends with a byte 0) into the current context.
func (d *Driver) LoadModule(image []byte) (Module, error) {
	if len(image) == 0 {
		return 0, &Error{Library: cudaLibrary, Call: "cuModuleLoadData", Code: CUDAInvalidImage, Text: "the image is empty"}
	}
	b := cabi.NewBlock(len(image) + 1)
	defer b.Free()
	copy(b.Bytes(), image)
	var m Module
	err := d.check(d.f.moduleLoadData, "cuModuleLoadData", uintptr(unsafe.Pointer(&m)), b.Addr(0))
	return m, err
}

// Function returns a kernel of the module.
func (d *Driver) Function(m Module, name string) (Function, error) {
	n := cabi.CString(name)
	var f Function
	err := d.check(d.f.moduleGetFunction, "cuModuleGetFunction", uintptr(unsafe.Pointer(&f)), uintptr(m), uintptr(unsafe.Pointer(&n[0])))
	return f, err
}

// LoadFunction loads the code of the kernel f on the device now. Otherwise the driver loads it at the first launch.
// Drivers before CUDA 12.4 do not have this call; they load the code when Function is called (CUDA C Programming Guide
// 12.2, "Lazy Loading").
func (d *Driver) LoadFunction(f Function) error {
	if !d.f.funcLoad.Present() {
		return nil
	}
	return d.check(d.f.funcLoad, "cuFuncLoad", uintptr(f))
}

// FunctionLoaded reports whether the code of the kernel f is on the device. The result ok is false if the driver cannot
// report this.
func (d *Driver) FunctionLoaded(f Function) (loaded, ok bool, err error) {
	if !d.f.funcIsLoaded.Present() {
		return false, false, nil
	}
	var state int32
	err = d.check(d.f.funcIsLoaded, "cuFuncIsLoaded", uintptr(unsafe.Pointer(&state)), uintptr(f))
	return state == 1, true, err
}

// ParamSizes returns the sizes in bytes of the parameters of the kernel f. The result ok is false if the driver cannot
// report them, as before CUDA 12.4.
func (d *Driver) ParamSizes(f Function) (sizes []int, ok bool) {
	if !d.f.funcGetParamInfo.Present() {
		return nil, false
	}
	for i := 0; ; i++ {
		var at, size uint64
		err := d.check(d.f.funcGetParamInfo, "cuFuncGetParamInfo", uintptr(f), uintptr(i), uintptr(unsafe.Pointer(&at)), uintptr(unsafe.Pointer(&size)))
		if err != nil {
			return sizes, CUDACode(err) == CUDAInvalidValue // there are no more parameters
		}
		sizes = append(sizes, int(size))
	}
}

// MostThreads returns the largest number of threads with which the kernel f can be launched in a thread block, or 0 if
// the driver does not report it.
func (d *Driver) MostThreads(f Function) int {
	var n int32
	if !d.f.funcGetAttribute.Present() || d.check(d.f.funcGetAttribute, "cuFuncGetAttribute", uintptr(unsafe.Pointer(&n)), funcMaxThreads, uintptr(f)) != nil {
		return 0
	}
	return int(n)
}

// AllowShared permits launches of the kernel f to use the given number of bytes of dynamic shared memory.
func (d *Driver) AllowShared(f Function, bytes int) error {
	return d.check(d.f.funcSetAttribute, "cuFuncSetAttribute", uintptr(f), funcMaxDynamicShared, uintptr(bytes))
}

// Launch is a kernel with its arguments. It can be launched many times.
type Launch struct {
	block  *cabi.Block
	args   [11]uintptr
	config *cabi.Block // launch configuration for launches that may start early; nil for other launches
	early  [4]uintptr
	blocks int
	words  int // size of the kernel's first parameter in words of eight bytes
}

// Shape holds the sizes of the grid and of the thread blocks of a launch.
type Shape struct {
	Grid, Block [3]uint32
	Shared      uint32 // dynamic shared memory in bytes
}

// NewLaunch returns a launch of the kernel f. The params are the bytes of each argument, in the order of the kernel's
// parameters.
func NewLaunch(f Function, s Shape, params [][]byte) *Launch {
	size := 8 * (len(params) + 1)
	for _, p := range params {
		size += (len(p) + 15) &^ 15
	}
	l := &Launch{block: cabi.NewBlock(size + 16), blocks: int(s.Grid[0]) * int(s.Grid[1]) * int(s.Grid[2])}
	if len(params) == 1 { // words can be set later only if there is a single parameter
		l.words = len(params[0]) / 8
	}
	at := (8*(len(params)+1) + 15) &^ 15
	for i, p := range params {
		cabi.Store(l.block.Addr(8*i), l.block.Addr(at))
		copy(l.block.Bytes()[at:], p)
		at += (len(p) + 15) &^ 15
	}
	l.args = [11]uintptr{uintptr(f), uintptr(s.Grid[0]), uintptr(s.Grid[1]), uintptr(s.Grid[2]),
		uintptr(s.Block[0]), uintptr(s.Block[1]), uintptr(s.Block[2]), uintptr(s.Shared), 0, l.block.Addr(0), 0}
	return l
}

// launchEarly is CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION.
const launchEarly = 6

// NewEarlyLaunch returns a launch that can also be passed to LaunchEarly.
func (d *Driver) NewEarlyLaunch(f Function, s Shape, params [][]byte) *Launch {
	l := NewLaunch(f, s, params)
	if !d.f.launchKernelEx.Present() {
		return l
	}
	// CUlaunchConfig consists of 7 words of 4 bytes, the stream, the address of the attributes and their number. One
	// CUlaunchAttribute follows: its number and its value.
	l.config = cabi.NewBlock(64 + 72)
	for i, v := range []uint32{s.Grid[0], s.Grid[1], s.Grid[2], s.Block[0], s.Block[1], s.Block[2], s.Shared} {
		cabi.Store(l.config.Addr(4*i), v)
	}
	cabi.Store(l.config.Addr(40), uint64(l.config.Addr(64)))
	cabi.Store(l.config.Addr(48), uint32(1))
	cabi.Store(l.config.Addr(64), uint32(launchEarly))
	cabi.Store(l.config.Addr(72), uint32(1))
	l.early = [4]uintptr{l.config.Addr(0), uintptr(f), l.block.Addr(0), 0}
	return l
}

// Blocks returns the number of thread blocks of the launch.
func (l *Launch) Blocks() int { return l.blocks }

// Words returns the size of the launch's first parameter in words of eight bytes.
func (l *Launch) Words() int { return l.words }

// Word returns word i of the launch's first parameter.
func (l *Launch) Word(i int) uint64 { return cabi.Load[uint64](l.block.Addr(16 + 8*i)) }

// SetWord changes word i of the launch's first parameter for later launches.
func (l *Launch) SetWord(i int, v uint64) { cabi.Store(l.block.Addr(16+8*i), v) }

// Free frees the memory of the launch.
func (l *Launch) Free() {
	l.block.Free()
	if l.config != nil {
		l.config.Free()
	}
}

// Launch launches l on stream s, which must belong to the current context. Only one goroutine at a time may launch l.
// Launch does not allocate.
func (d *Driver) Launch(l *Launch, s Stream) error {
	l.args[8] = uintptr(s)
	return d.result("cuLaunchKernel", d.call(d.f.launchKernel, l.args[:]))
}

// LaunchEarly is like Launch, but l may begin before the previous kernel on s has ended, if that kernel allows it. The
// kernel of l must then itself wait for the end of the previous kernel. If the driver does not support this,
// LaunchEarly is the same as Launch.
func (d *Driver) LaunchEarly(l *Launch, s Stream) error {
	if l.config == nil {
		return d.Launch(l, s)
	}
	cabi.Store(l.config.Addr(32), uint64(s))
	return d.result("cuLaunchKernelEx", d.call(d.f.launchKernelEx, l.early[:]))
}
