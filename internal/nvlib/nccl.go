package nvlib

import (
	"fmt"
	"runtime"
	"unsafe"

	"hocket.example/hocket/internal/cabi"
)

const ncclLibrary = "NCCL"

// NCCLInProgress is the status of NCCL for work that is not done and has not failed.
const NCCLInProgress = 7

// Comm is a communicator of NCCL: a rank's membership in a team.
type Comm uintptr

// NCCLType is an element type of NCCL.
type NCCLType int32

// Element types.
const (
	NCCLInt8  NCCLType = 0
	NCCLInt32 NCCLType = 2
	NCCLInt64 NCCLType = 4
	NCCLF16   NCCLType = 6
	NCCLF32   NCCLType = 7
	NCCLF64   NCCLType = 8
	NCCLBF16  NCCLType = 9
)

// NCCLRed is a reduction of NCCL.
type NCCLRed int32

// Reductions.
const (
	NCCLSum NCCLRed = 0
	NCCLMax NCCLRed = 2
	NCCLMin NCCLRed = 3
	NCCLAvg NCCLRed = 4
)

// NCCL is the library.
type NCCL struct {
	lib *cabi.Library
	f   ncclFuncs
	// Multicast describes how NCCL's variable for NVLink multicast was set in C's environment.
	Multicast string
	watch     *Watch // monitors the calls of the owner; nil if none does
}

// Watched returns the library for an owner whose calls w monitors. If w is nil, calls are not monitored.
func (n *NCCL) Watched(w *Watch) *NCCL { return &NCCL{n.lib, n.f, n.Multicast, w} }

type ncclFuncs struct {
	getVersion, getErrorString, getLastError            cabi.Func
	getUniqueID, commInitRank, commInitAll              cabi.Func
	commInitRankConfig                                  cabi.Func
	commDestroy, commAbort, commGetAsyncError           cabi.Func
	groupStart, groupEnd                                cabi.Func
	allReduce, broadcast, reduce, allGather, redScatter cabi.Func
	send, recv                                          cabi.Func
}

func (f *ncclFuncs) table() map[string]*cabi.Func {
	return map[string]*cabi.Func{
		"ncclGetVersion":        &f.getVersion,
		"ncclGetErrorString":    &f.getErrorString,
		"ncclGetUniqueId":       &f.getUniqueID,
		"ncclCommInitRank":      &f.commInitRank,
		"ncclCommInitAll":       &f.commInitAll,
		"ncclCommDestroy":       &f.commDestroy,
		"ncclCommAbort":         &f.commAbort,
		"ncclCommGetAsyncError": &f.commGetAsyncError,
		"ncclGroupStart":        &f.groupStart,
		"ncclGroupEnd":          &f.groupEnd,
		"ncclAllReduce":         &f.allReduce,
		"ncclBroadcast":         &f.broadcast,
		"ncclReduce":            &f.reduce,
		"ncclAllGather":         &f.allGather,
		"ncclReduceScatter":     &f.redScatter,
		"ncclSend":              &f.send,
		"ncclRecv":              &f.recv,
	}
}

func (f *ncclFuncs) optional() map[string]*cabi.Func {
	return map[string]*cabi.Func{
		"ncclGetLastError":       &f.getLastError,
		"ncclCommInitRankConfig": &f.commInitRankConfig, // since 2.14
	}
}

var wantNCCL = want{
	library: "NVIDIA's collectives library libnccl", env: "HOCKET_LIBNCCL",
	stem: "libnccl.so", versions: []string{".2"},
	wheels: []string{"nvidia/nccl/lib"},
	help:   "install it (pip install nvidia-nccl-cu13)",
}

// multicastVariable set to 0 turns NVLink multicast off in NCCL.
const multicastVariable = "NCCL_NVLS_ENABLE"

// OpenNCCL loads libnccl. If multicast is not set, it first makes sure that NCCL will not use NVLink multicast, which
// can make GPUs unusable on a shared host. NCCL reads C's environment (not Go's) once.
func OpenNCCL(multicast bool) (*NCCL, error) {
	if !multicast && cabi.Callable {
		if err := cabi.Setenv(multicastVariable, "0"); err != nil {
			return nil, wantNCCL.failed(fmt.Errorf("%s=0 could not be set: %w", multicastVariable, err))
		}
		if v, _ := cabi.Getenv(multicastVariable); v != "0" {
			return nil, wantNCCL.failed(fmt.Errorf("%s is %q after it was set to 0", multicastVariable, v))
		}
	}
	n := &NCCL{}
	var err error
	if n.lib, err = wantNCCL.load(n.f.table(), n.f.optional()); err != nil {
		return nil, err
	}
	n.Multicast = "as the environment says"
	if v, ok := cabi.Getenv(multicastVariable); ok {
		n.Multicast = multicastVariable + "=" + v
	}
	return n, nil
}

// NCCLOn is like OpenNCCL, for a library that is already loaded.
func NCCLOn(lib *cabi.Library) (*NCCL, error) {
	n := &NCCL{lib: lib}
	return n, wantNCCL.resolve(lib, n.f.table(), n.f.optional())
}

// Loaded describes the loaded library.
func (n *NCCL) Loaded() Loaded {
	v, err := n.Version()
	version := fmt.Sprintf("%s (%s)", versionText(v), n.Multicast)
	if err != nil {
		version = "unknown: " + err.Error()
	}
	return Loaded{Name: "libnccl", Path: n.lib.Path("ncclGetVersion"), Version: version}
}

//go:uintptrescapes
func (n *NCCL) check(f cabi.Func, call string, args ...uintptr) error {
	return n.result(call, int32(n.watch.Call(f, args)))
}

// result converts the status of a call to an error. Work in progress is not an error: see Settled for communicators
// that do not block.
func (n *NCCL) result(call string, code int32) error {
	if code == 0 || code == NCCLInProgress {
		return nil
	}
	text := cabi.GoString(n.f.getErrorString.Call(uintptr(code)))
	if n.f.getLastError.Present() {
		if last := cabi.GoString(n.f.getLastError.Call(0)); last != "" {
			text += ": " + last
		}
	}
	return &Error{Library: ncclLibrary, Call: call, Code: int(code), Text: text}
}

// Version returns the version of NCCL as a number, such as 22809 for 2.28.9.
func (n *NCCL) Version() (int, error) {
	var v int32
	err := n.check(n.f.getVersion, "ncclGetVersion", uintptr(unsafe.Pointer(&v)))
	return int(v), err
}

// UniqueID identifies a team of communicators that is being formed.
type UniqueID [128]byte

// NewUniqueID returns a new identifier for a team.
func (n *NCCL) NewUniqueID() (UniqueID, error) {
	var id UniqueID
	err := n.check(n.f.getUniqueID, "ncclGetUniqueId", uintptr(unsafe.Pointer(&id)))
	return id, err
}

// InitAll creates communicators for a team of GPUs of this process, with one member each.
func (n *NCCL) InitAll(devs []Device) ([]Comm, error) {
	comms := make([]Comm, len(devs))
	err := n.check(n.f.commInitAll, "ncclCommInitAll", uintptr(unsafe.Pointer(&comms[0])), uintptr(len(devs)),
		uintptr(unsafe.Pointer(&devs[0])))
	return comms, err
}

// InitRank creates a communicator: the device of the current context becomes member rank of a team of the given size.
// Between GroupStart and GroupEnd one thread can initialize several members. NCCL writes the communicator to the
// address comm when the group ends. The address must be in a cabi.Block.
func (n *NCCL) InitRank(comm uintptr, size int, id UniqueID, rank int) error {
	words := *(*[16]uintptr)(unsafe.Pointer(&id))
	if runtime.GOARCH == "arm64" { // large structures are passed by reference
		return n.check(n.f.commInitRank, "ncclCommInitRank", comm, uintptr(size), uintptr(unsafe.Pointer(&id)),
			uintptr(rank))
	}
	// On amd64 the id is passed on the stack, after the six register arguments, of which three are used.
	args := append([]uintptr{comm, uintptr(size), uintptr(rank), 0, 0, 0}, words[:]...)
	return n.result("ncclCommInitRank", int32(n.watch.Call(n.f.commInitRank, args)))
}

// ncclConfig configures the creation of a communicator: ncclConfig_t of NCCL 2.17. Later versions use defaults for the
// fields that this version lacks.
type ncclConfig struct {
	size                            uint64
	magic, version                  uint32
	blocking, cga, minCTAs, maxCTAs int32
	netName                         uintptr
}

const (
	ncclConfigMagic   = 0xcafebeef
	ncclConfigVersion = 21700
	ncclUndefined     = -1 << 31
)

// InitRankAside is like InitRank, for a communicator whose calls do not block. InitRankAside and all calls on the
// communicator return before their work is done, and Settled reports when it is done. A member that does not arrive
// therefore does not block the host.
func (n *NCCL) InitRankAside(comm uintptr, size int, id UniqueID, rank int) error {
	if !n.f.commInitRankConfig.Present() {
		return &Error{Library: ncclLibrary, Call: "ncclCommInitRankConfig", Code: -1,
			Text: "this version of NCCL has no ncclCommInitRankConfig; 2.14 and later do"}
	}
	config := cabi.NewBlock(int(unsafe.Sizeof(ncclConfig{})))
	defer config.Free()
	cabi.Store(config.Addr(0), ncclConfig{size: uint64(unsafe.Sizeof(ncclConfig{})), magic: ncclConfigMagic,
		version: ncclConfigVersion, blocking: 0, cga: ncclUndefined, minCTAs: ncclUndefined,
		maxCTAs: ncclUndefined, netName: 0})
	words := *(*[16]uintptr)(unsafe.Pointer(&id))
	if runtime.GOARCH == "arm64" { // large structures are passed by reference
		return n.check(n.f.commInitRankConfig, "ncclCommInitRankConfig", comm, uintptr(size),
			uintptr(unsafe.Pointer(&id)),
			uintptr(rank), config.Addr(0))
	}
	args := append([]uintptr{comm, uintptr(size), uintptr(rank), config.Addr(0), 0, 0}, words[:]...)
	return n.result("ncclCommInitRankConfig", int32(n.watch.Call(n.f.commInitRankConfig, args)))
}

// Settled reports whether calls that do not block have completed on the host, or how they failed.
func (n *NCCL) Settled(c Comm) (bool, error) {
	var code int32
	if err := n.check(n.f.commGetAsyncError, "ncclCommGetAsyncError", uintptr(c),
		uintptr(unsafe.Pointer(&code))); err != nil {
		return false, err
	}
	return code != NCCLInProgress, n.result("work given before", code)
}

// Destroy frees a communicator after its work is done.
func (n *NCCL) Destroy(c Comm) error {
	return n.check(n.f.commDestroy, "ncclCommDestroy", uintptr(c))
}

// Abort frees a communicator at once, and aborts its work. Its work stays unfinished.
func (n *NCCL) Abort(c Comm) error { return n.check(n.f.commAbort, "ncclCommAbort", uintptr(c)) }

// AsyncError returns the error of earlier work on the devices; nil if there is none.
func (n *NCCL) AsyncError(c Comm) error {
	var code int32
	if err := n.check(n.f.commGetAsyncError, "ncclCommGetAsyncError", uintptr(c),
		uintptr(unsafe.Pointer(&code))); err != nil {
		return err
	}
	if code == NCCLInProgress {
		return nil
	}
	return n.result("work given before", code)
}

// GroupStart starts a group: calls on one thread that NCCL issues together.
func (n *NCCL) GroupStart() error { return n.check(n.f.groupStart, "ncclGroupStart") }

// GroupEnd ends a group and issues its calls.
func (n *NCCL) GroupEnd() error { return n.check(n.f.groupEnd, "ncclGroupEnd") }

// AllReduce reduces count elements of every member to the dst of every member.
func (n *NCCL) AllReduce(src, dst Ptr, count int64, t NCCLType, red NCCLRed, c Comm, s Stream) error {
	return n.check(n.f.allReduce, "ncclAllReduce", uintptr(src), uintptr(dst), uintptr(count), uintptr(t), uintptr(red),
		uintptr(c), uintptr(s))
}

// Reduce reduces count elements of every member to the dst of the member root.
func (n *NCCL) Reduce(src, dst Ptr, count int64, t NCCLType, red NCCLRed, root int, c Comm, s Stream) error {
	return n.check(n.f.reduce, "ncclReduce", uintptr(src), uintptr(dst), uintptr(count), uintptr(t), uintptr(red),
		uintptr(root), uintptr(c), uintptr(s))
}

// Broadcast copies count elements from the src of the member root to the dst of every member.
func (n *NCCL) Broadcast(src, dst Ptr, count int64, t NCCLType, root int, c Comm, s Stream) error {
	return n.check(n.f.broadcast, "ncclBroadcast", uintptr(src), uintptr(dst), uintptr(count), uintptr(t),
		uintptr(root), uintptr(c), uintptr(s))
}

// AllGather copies count elements from the src of every member to the dst of every member.
func (n *NCCL) AllGather(src, dst Ptr, count int64, t NCCLType, c Comm, s Stream) error {
	return n.check(n.f.allGather, "ncclAllGather", uintptr(src), uintptr(dst), uintptr(count), uintptr(t), uintptr(c),
		uintptr(s))
}

// ReduceScatter reduces over the team. Member i receives the i-th block of count elements of the result.
func (n *NCCL) ReduceScatter(src, dst Ptr, count int64, t NCCLType, red NCCLRed, c Comm, s Stream) error {
	return n.check(n.f.redScatter, "ncclReduceScatter", uintptr(src), uintptr(dst), uintptr(count), uintptr(t),
		uintptr(red), uintptr(c), uintptr(s))
}

// Send sends count elements to another member. The calls of Send and Recv between two members match in order.
func (n *NCCL) Send(src Ptr, count int64, t NCCLType, peer int, c Comm, s Stream) error {
	return n.check(n.f.send, "ncclSend", uintptr(src), uintptr(count), uintptr(t), uintptr(peer), uintptr(c),
		uintptr(s))
}

// Recv receives what Send sends.
func (n *NCCL) Recv(dst Ptr, count int64, t NCCLType, peer int, c Comm, s Stream) error {
	return n.check(n.f.recv, "ncclRecv", uintptr(dst), uintptr(count), uintptr(t), uintptr(peer), uintptr(c),
		uintptr(s))
}
