package nvlib

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"hocket.example/hocket/internal/cabi"
)

const nvrtcLibrary = "NVRTC"

// NVRTC compiles CUDA C++ at run time. The methods of an NVRTC may be called from any goroutine.
type NVRTC struct {
	lib *cabi.Library
	f   nvrtcFuncs
}

type nvrtcFuncs struct {
	version, createProgram, destroyProgram, compileProgram    cabi.Func
	getCUBINSize, getCUBIN, getProgramLogSize, getProgramLog  cabi.Func
	getErrorString, addNameExpression, getLoweredName, getPTX cabi.Func
	getPTXSize                                                cabi.Func
}

func (f *nvrtcFuncs) table() map[string]*cabi.Func {
	return map[string]*cabi.Func{
		"nvrtcVersion":           &f.version,
		"nvrtcCreateProgram":     &f.createProgram,
		"nvrtcDestroyProgram":    &f.destroyProgram,
		"nvrtcCompileProgram":    &f.compileProgram,
		"nvrtcGetCUBINSize":      &f.getCUBINSize,
		"nvrtcGetCUBIN":          &f.getCUBIN,
		"nvrtcGetProgramLogSize": &f.getProgramLogSize,
		"nvrtcGetProgramLog":     &f.getProgramLog,
		"nvrtcGetErrorString":    &f.getErrorString,
		"nvrtcAddNameExpression": &f.addNameExpression,
		"nvrtcGetLoweredName":    &f.getLoweredName,
		"nvrtcGetPTX":            &f.getPTX,
		"nvrtcGetPTXSize":        &f.getPTXSize,
	}
}

var wantNVRTC = want{
	library: "NVIDIA's run-time compiler libnvrtc", env: "HOCKET_LIBNVRTC",
	stem: "libnvrtc.so", versions: []string{".13", ".12"},
	wheels: []string{"nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"},
	help:   "install it (pip install nvidia-cuda-nvrtc, or the CUDA toolkit)",
}

// OpenNVRTC loads libnvrtc.
func OpenNVRTC() (*NVRTC, error) {
	n := &NVRTC{}
	var err error
	n.lib, err = wantNVRTC.load(n.f.table(), nil)
	if err != nil {
		return nil, err
	}
	return n, nil
}

// NVRTCOn is like OpenNVRTC, for a library that is already loaded.
func NVRTCOn(lib *cabi.Library) (*NVRTC, error) {
	n := &NVRTC{lib: lib}
	return n, wantNVRTC.resolve(lib, n.f.table(), nil)
}

// Loaded describes the loaded library.
func (n *NVRTC) Loaded() Loaded {
	major, minor, err := n.Version()
	version := fmt.Sprintf("%d.%d", major, minor)
	if err != nil {
		version = "unknown: " + err.Error()
	}
	return Loaded{Name: "libnvrtc", Path: n.lib.Path("nvrtcVersion"), Version: version}
}

//go:uintptrescapes
func (n *NVRTC) check(f cabi.Func, call string, args ...uintptr) error {
	if code := int32(f.CallPinned(args)); code != 0 {
		text := cabi.GoString(n.f.getErrorString.Call(uintptr(code)))
		return &Error{Library: nvrtcLibrary, Call: call, Code: int(code), Text: text}
	}
	return nil
}

// Version returns the version of NVRTC as two numbers, such as 13, 1.
func (n *NVRTC) Version() (major, minor int, err error) {
	var a, b int32
	err = n.check(n.f.version, "nvrtcVersion", uintptr(unsafe.Pointer(&a)), uintptr(unsafe.Pointer(&b)))
	return int(a), int(b), err
}

// Header is a file that a source can include by its name.
type Header struct{ Name, Text string }

// Compilation describes a source, and the options for compiling it.
type Compilation struct {
	Name    string // the name in messages
	Source  string
	Headers []Header
	Options []string // such as "--gpu-architecture=sm_90a"
	// Kernels are C++ names of kernels whose symbols in the cubin are needed, such as "copy<float>".
	Kernels []string
}

// Compiled is machine code.
type Compiled struct {
	Cubin []byte
	// Symbols maps the names in Kernels to their symbols in the cubin.
	Symbols map[string]string
	Log     string
}

// CompileError is the error for a source that does not compile.
type CompileError struct {
	Name string
	Log  string
	Err  error
}

// Error returns the compiler's log.
func (e *CompileError) Error() string {
	return fmt.Sprintf("compiling %s: %v\n%s", e.Name, e.Err, strings.TrimSpace(e.Log))
}

// Unwrap returns the error with the compiler's status.
func (e *CompileError) Unwrap() error { return e.Err }

// Compile compiles a source to a cubin for the architecture in the options. If the source has errors, the error is a
// *CompileError.
func (n *NVRTC) Compile(c Compilation) (*Compiled, error) {
	prog, err := n.create(c)
	if err != nil {
		return nil, err
	}
	out, err := n.compile(prog, c)
	destroyed := n.check(n.f.destroyProgram, "nvrtcDestroyProgram", uintptr(unsafe.Pointer(&prog)))
	return out, errors.Join(err, destroyed)
}

func (n *NVRTC) create(c Compilation) (uintptr, error) {
	var names, texts []string
	for _, h := range c.Headers {
		names, texts = append(names, h.Name), append(texts, h.Text)
	}
	src, name := cabi.CString(c.Source), cabi.CString(c.Name)
	cn, ct := cabi.NewCStrings(names), cabi.NewCStrings(texts)
	defer cn.Free()
	defer ct.Free()
	var prog uintptr
	err := n.check(n.f.createProgram, "nvrtcCreateProgram", uintptr(unsafe.Pointer(&prog)), uintptr(unsafe.Pointer(&src[0])),
		uintptr(unsafe.Pointer(&name[0])), uintptr(len(names)), ct.Addr(), cn.Addr())
	return prog, err
}

func (n *NVRTC) compile(prog uintptr, c Compilation) (*Compiled, error) {
	for _, k := range c.Kernels {
		name := cabi.CString(k)
		if err := n.check(n.f.addNameExpression, "nvrtcAddNameExpression", prog, uintptr(unsafe.Pointer(&name[0]))); err != nil {
			return nil, err
		}
	}
	opts := cabi.NewCStrings(c.Options)
	defer opts.Free()
	err := n.check(n.f.compileProgram, "nvrtcCompileProgram", prog, uintptr(len(c.Options)), opts.Addr())
	log, lerr := n.text(prog, "nvrtcGetProgramLog", n.f.getProgramLogSize, n.f.getProgramLog)
	if err != nil {
		return nil, &CompileError{Name: c.Name, Log: strings.TrimRight(string(log), "\x00"), Err: err}
	}
	if lerr != nil {
		return nil, lerr
	}
	out := &Compiled{Symbols: map[string]string{}, Log: strings.TrimRight(string(log), "\x00")}
	for _, k := range c.Kernels {
		name, p := cabi.CString(k), uintptr(0)
		if err := n.check(n.f.getLoweredName, "nvrtcGetLoweredName", prog, uintptr(unsafe.Pointer(&name[0])), uintptr(unsafe.Pointer(&p))); err != nil {
			return nil, fmt.Errorf("%s: %w", k, err)
		}
		out.Symbols[k] = cabi.GoString(p)
	}
	out.Cubin, err = n.text(prog, "nvrtcGetCUBIN", n.f.getCUBINSize, n.f.getCUBIN)
	if err == nil && len(out.Cubin) == 0 {
		err = fmt.Errorf("%s: the compiler returned no machine code; use a real architecture such as sm_90a, not a virtual one such as compute_90a",
			c.Name)
	}
	return out, err
}

// text returns the data for which NVRTC has two functions: one returns the size of the data, the other returns the
// data.
func (n *NVRTC) text(prog uintptr, call string, size, content cabi.Func) ([]byte, error) {
	var k uint64
	if err := n.check(size, call+"Size", prog, uintptr(unsafe.Pointer(&k))); err != nil || k == 0 {
		return nil, err
	}
	buf := make([]byte, k)
	err := n.check(content, call, prog, uintptr(unsafe.Pointer(&buf[0])))
	return buf, err
}
