package fakedriver

import (
	"bytes"
	"crypto/rand"
	"encoding/gob"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
	"unsafe"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/nvlib"
)

// sharedNCCL lets NCCL fakes in several processes execute collectives together. Each rank writes its calls and their
// input data to a file in a shared directory. Once the files of all ranks exist, each rank computes its results.
type sharedNCCL struct {
	x    *NCCL
	dir  string
	Hang bool // communicators never become ready

	mu    sync.Mutex
	comms map[uintptr]*sharedComm
}

// sharedComm is one rank's communicator.
type sharedComm struct {
	dir        string
	rank, size int
	calls      int // number of groups that have begun to run
	gone       bool
}

// sharedCall is a call in the form in which it is written for other processes.
type sharedCall struct {
	Name string
	N    uintptr
	DT   nvlib.NCCLType
	Red  nvlib.NCCLRed
	Peer int
	Data []byte // input data
	Out  int    // number of bytes of output
}

// Share makes x execute collectives with the fakes of other processes that share dir.
func (x *NCCL) Share(dir string) *sharedNCCL {
	s := &sharedNCCL{x: x, dir: dir, comms: map[uintptr]*sharedComm{}}
	x.shared = s
	return s
}

func (s *sharedNCCL) calls(table map[string]func([]uintptr) uintptr) {
	table["ncclGetUniqueId"] = func(a []uintptr) uintptr {
		rand.Read(cabi.Bytes(a[0], len(nvlib.UniqueID{})))
		return 0
	}
	table["ncclCommInitAll"] = func([]uintptr) uintptr {
		s.x.GPU.Error("communicators of this process alone")
		return 5
	}
	table["ncclCommInitRankConfig"] = func(a []uintptr) uintptr {
		size, magic, blocking := cabi.Load[uint64](a[3]), cabi.Load[uint32](a[3]+8), cabi.Load[int32](a[3]+16)
		if size != 40 || magic != 0xcafebeef || blocking != 0 {
			s.x.GPU.Errorf("an ncclConfig_t has size %d, magic number %x, blocking %d", size, magic, blocking)
		}
		words := a[6:22]
		id := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(nvlib.UniqueID{}))
		s.mu.Lock()
		defer s.mu.Unlock()
		c := &sharedComm{dir: filepath.Join(s.dir, hex.EncodeToString(id[:16])), rank: int(a[2]), size: int(a[1])}
		handle := uintptr(7000 + len(s.comms))
		s.comms[handle] = c
		if err := os.MkdirAll(c.dir, 0o700); err != nil {
			s.x.GPU.Error(err)
		}
		if !s.Hang {
			s.leave(c.file("here", c.rank), nil)
		}
		s.x.GPU.Remembered = true
		cabi.Store(a[0], handle)
		return nvlib.NCCLInProgress
	}
	table["ncclCommGetAsyncError"] = func(a []uintptr) uintptr {
		s.mu.Lock()
		defer s.mu.Unlock()
		c := s.comms[a[0]]
		if c == nil {
			s.x.GPU.Errorf("no communicator %d", a[0])
			return 5
		}
		if !c.all("here") {
			return Set(a[1], int32(nvlib.NCCLInProgress))
		}
		return Set(a[1], s.x.Async)
	}
	for _, name := range []string{"ncclCommAbort", "ncclCommDestroy"} {
		first := table[name]
		table[name] = func(a []uintptr) uintptr {
			s.mu.Lock()
			s.comms[a[0]].gone = true
			s.mu.Unlock()
			return first(a)
		}
	}
}

func (c *sharedComm) file(what string, rank int) string {
	return filepath.Join(c.dir, fmt.Sprintf("%s %d", what, rank))
}

// all is a predicate: it reports whether all ranks have written their file.
func (c *sharedComm) all(what string) bool {
	for r := range c.size {
		if _, err := os.Stat(c.file(what, r)); errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}

// leave writes a file atomically.
func (s *sharedNCCL) leave(path string, data []byte) {
	err := os.WriteFile(path+".tmp", data, 0o600)
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		s.x.GPU.Error(err)
	}
}

// reads returns how many bytes the call reads in a team of n ranks; the method writes returns how many it writes.
func (c *Call) reads(n int) int {
	return c.bytes(n, c.name == "reduce_scatter", c.name != "recv")
}

func (c *Call) writes(n int) int {
	return c.bytes(n, c.name == "all_gather", c.name != "send")
}

func (c *Call) bytes(n int, times, any bool) int {
	size := 1
	if dt, ok := elementTypes[c.dt]; ok {
		size = int(dt.Size())
	}
	switch bytes := int(c.n) * size; {
	case !any:
		return 0
	case times:
		return bytes * n
	default:
		return bytes
	}
}

// give issues the calls of a group; they may be of several ranks of this process.
func (s *sharedNCCL) give(calls []Call) {
	by := map[uintptr][]Call{}
	var order []uintptr
	for _, c := range calls {
		if by[c.comm] == nil {
			order = append(order, c.comm)
		}
		by[c.comm] = append(by[c.comm], c)
	}
	s.x.GPU.Mu.Lock()
	defer s.x.GPU.Mu.Unlock()
	for _, handle := range order {
		list := by[handle]
		s.mu.Lock()
		c := s.comms[handle]
		s.mu.Unlock()
		var what string // a number that differs in each launch of a graph
		s.x.GPU.do(list[0].stream, func() {
			s.mu.Lock()
			c.calls++
			what = fmt.Sprint("call ", c.calls)
			s.mu.Unlock()
			s.post(c, what, list)
		})
		s.x.GPU.Queues.Give(list[0].stream, Task{
			wait: func(time.Time) bool { return c.all(what) || s.isGone(c) },
			Do: func() {
				if !s.isGone(c) {
					s.compute(c, what, list)
				}
			},
		})
	}
}

func (s *sharedNCCL) isGone(c *sharedComm) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.gone
}

// post writes the file that holds a rank's calls.
func (s *sharedNCCL) post(c *sharedComm, what string, list []Call) {
	var out []sharedCall
	for i := range list {
		x := &list[i]
		data := bytes.Clone(cabi.Bytes(x.in, x.reads(c.size)))
		out = append(out, sharedCall{x.name, x.n, x.dt, x.red, x.peer, data, x.writes(c.size)})
	}
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(out); err != nil {
		s.x.GPU.Error(err)
	}
	s.leave(c.file(what, c.rank), b.Bytes())
}

// compute performs the calls of all ranks. It uses copies of the other ranks' data.
func (s *sharedNCCL) compute(c *sharedComm, what string, own []Call) {
	by := make([][]Call, c.size)
	var blocks []*cabi.Block
	block := func(data []byte, n int) uintptr {
		b := cabi.NewBlock(max(n, len(data), 1))
		copy(b.Bytes(), data)
		blocks = append(blocks, b)
		return b.Addr(0)
	}
	for r := range by {
		if r == c.rank {
			by[r] = own
			continue
		}
		data, err := os.ReadFile(c.file(what, r))
		var list []sharedCall
		if err == nil {
			err = gob.NewDecoder(bytes.NewReader(data)).Decode(&list)
		}
		if err != nil {
			s.x.GPU.Error(err)
			return
		}
		for _, x := range list {
			by[r] = append(by[r], Call{x.Name, block(x.Data, 0), block(nil, x.Out), x.N, x.DT, x.Red, x.Peer, 0, 0})
		}
	}
	s.x.perform(by)
	for _, b := range blocks {
		b.Free()
	}
}

// CalledShared reports whether a collective of that name was called on fakes that share dir.
func CalledShared(t *testing.T, dir, name string) bool {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "*", "call *"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range list {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(data, append([]byte{byte(len(name))}, name...)) {
			return true
		}
	}
	return false
}
