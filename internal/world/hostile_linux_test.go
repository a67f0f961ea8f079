package world

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"hocket.example/hocket/internal/longtest"
)

// joining begins to join a world as rank 0. joining returns the path of the process's socket and a channel with the
// result of Join.
func joining(t *testing.T, o Options) (socket string, joined <-chan error, leave func()) {
	t.Helper()
	result := make(chan error, 1)
	var w *World
	go func() {
		var err error
		w, err = Join(context.Background(), o)
		result <- err
	}()
	for range 1000 {
		if found, _ := filepath.Glob(filepath.Join(o.Dir, "*", "0")); len(found) == 1 {
			return found[0], result, func() {
				if w != nil {
					w.Leave()
				}
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("no socket")
	return "", nil, nil
}

// connect connects to a socket whose path may be too long.
func connect(socket string) (*net.UnixConn, error) {
	d, err := openDirectory(filepath.Dir(socket))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	name := filepath.Join("/proc/self/fd", strconv.Itoa(int(d.Fd())), filepath.Base(socket))
	addr := &net.UnixAddr{Name: name, Net: "unixpacket"}
	conn, err := net.DialUnix(addr.Net, nil, addr)
	for i := 0; err != nil && i < 100; i++ { // the socket exists before it accepts connections
		time.Sleep(10 * time.Millisecond)
		conn, err = net.DialUnix(addr.Net, nil, addr)
	}
	return conn, err
}

// TestHostile floods the rendezvous with invalid connections while a process waits there, and then
// lets the other process join.
func TestHostile(t *testing.T) {
	requests := longtest.Of(10000, 100000)
	o := options(t, 2)
	o.JoinTimeout = 5 * time.Minute
	socket, joined, leave := joining(t, o)
	defer func() { leave() }()

	random := make([]byte, 64<<10)
	rand.Read(random)
	other := hello{Protocol: protocol, ID: "another run", Size: 2, member: member{Rank: 1, PID: 1, Host: "x"}}
	far := hello{Protocol: protocol, ID: o.ID, Size: 2, member: member{Rank: 1 << 60, PID: 1, Host: "x"}}
	packets := [][]byte{
		nil, {0}, random[:100], random[:maxMessage], random[:maxMessage+1], random,
		[]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
		[]byte("h{"), []byte("h{}"), []byte("h" + strings.Repeat("[", 4000)), []byte("hnull"),
		append([]byte("x"), bytes.Repeat([]byte{'"'}, 4000)...), // an abort from a process that has not identified itself
		encodeCause(cause{Peer: &PeerError{Why: "false"}}), encodeReady(), encodeBye(),
		agreement{1, "x", nil}.encode(), export{"x"}.encode(),
		other.encode(), far.encode(),
	}
	defer debug.SetGCPercent(debug.SetGCPercent(100)) // as for users
	before := settledHeap(math.MaxInt64)
	var peak, live atomic.Uint64 // largest sizes of the heap: with garbage, and without
	var sending sync.RWMutex     // the senders pause while live memory is measured
	watching := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for i := 1; ; i++ {
			select {
			case <-watching:
				return
			case <-time.After(20 * time.Millisecond):
				peak.Store(max(peak.Load(), heap()))
			}
			if i%10 == 0 {
				sending.Lock()
				live.Store(max(live.Load(), settledHeap(before)))
				sending.Unlock()
			}
		}
	})
	var senders sync.WaitGroup
	for s := range 8 {
		senders.Go(func() {
			var slow []net.Conn // connections that send nothing
			send := func(i int) error {
				sending.RLock()
				defer sending.RUnlock()
				conn, err := connect(socket)
				if err != nil {
					return err
				}
				if packet := packets[i%len(packets)]; packet != nil {
					conn.Write(packet)
				}
				if i%3 == 0 && len(slow) < 100 {
					slow = append(slow, conn)
				} else {
					conn.Close()
				}
				return nil
			}
			for i := s; i < requests; i += 8 {
				if err := send(i); errors.Is(err, syscall.EAGAIN) {
					i -= 8 // the queue of connections is full
					time.Sleep(time.Millisecond)
				} else if err != nil {
					t.Error(err)
					return
				}
			}
			for _, conn := range slow {
				defer conn.Close()
			}
			// A file that arrives without a request must be closed.
			if conn, err := connect(socket); err == nil {
				conn.WriteMsgUnix([]byte("h{}"), syscall.UnixRights(1, 2), nil)
				conn.Close()
			}
		})
	}
	senders.Wait()
	select {
	case err := <-joined:
		t.Fatalf("the flood ends Join: %v", err)
	default:
	}
	second := o
	second.Rank = 1
	w, err := Join(context.Background(), second)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Leave()
	if err := <-joined; err != nil {
		t.Fatal(err)
	}
	close(watching)
	all.Wait()
	live.Store(max(live.Load(), settledHeap(before)))
	grown := func(now uint64) int64 { return int64(now) - int64(before) }
	t.Logf("%d requests: memory grows by %d KiB at most, %d with garbage", requests, grown(live.Load())>>10, grown(peak.Load())>>10)
	// The limits are generous, because the 8 senders are in this process, too, and garbage is collected later if the
	// host is busy.
	if grown(live.Load()) > mostGrown || grown(peak.Load()) > 20<<20 {
		t.Errorf("memory grows by %d bytes, %d with garbage", grown(live.Load()), grown(peak.Load()))
	}
}

// heap returns the memory that the heap occupies, including garbage.
func heap() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// mostGrown is the largest permitted growth of the heap during a flood of connections, in bytes.
const mostGrown = 5 << 20

// settledHeap returns the size of the heap without garbage. Some connections are always waiting to
// be accepted, so it measures again as long as the size exceeds before by more than mostGrown.
func settledHeap(before uint64) (least uint64) {
	for i := range 500 {
		runtime.GC() // the second collection frees what finalizers have released after the first
		runtime.GC()
		if now := heap(); i == 0 || now < least {
			least = now
		}
		if least <= before+mostGrown {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return least
}

// TestStrangers checks that processes that claim to be of the same run, but have another protocol version, another size
// or an impossible rank, are rejected.
func TestStrangers(t *testing.T) {
	for _, tc := range []struct {
		name string
		h    hello
		want string // expected error on both sides; "" if only the stranger is rejected
	}{
		{"protocol", hello{protocol + 1, "", 2, member{Rank: 1, PID: 1, Host: "x"}},
			fmt.Sprintf("ranks disagree on the protocol: the processes run different versions of hocket: rank 0 has %d, rank 1 has %d", protocol, protocol+1)},
		{"size", hello{protocol, "", 3, member{Rank: 1, PID: 1, Host: "x"}},
			"ranks disagree on the size of the world: rank 0 has 2, rank 1 has 3"},
		{"negative", hello{protocol, "", 2, member{Rank: -1, PID: 1, Host: "x"}}, ""},
		{"rank", hello{protocol, "", 2, member{Rank: 2, PID: 1, Host: "x"}}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			o := options(t, 2)
			if tc.want == "" {
				o.JoinTimeout = time.Second
			}
			socket, joined, leave := joining(t, o)
			conn, err := connect(socket)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			tc.h.ID = o.ID
			conn.Write(tc.h.encode())
			l, err := newLink(conn)
			if err != nil {
				t.Fatal(err)
			}
			conn.SetReadDeadline(time.Now().Add(10 * time.Second))
			answer, _, err := l.receive()
			if tc.want != "" {
				if a, ok := answer.(aborted); !ok || a.cause.err().Error() != tc.want {
					t.Errorf("the stranger receives %v, %v; want %q", answer, err, tc.want)
				}
			} else if err == nil {
				t.Errorf("the stranger receives %v", answer)
			}
			err = <-joined
			leave()
			if tc.want == "" {
				tc.want = fmt.Sprintf("rank 1: absent: did not join within 1s; rank 0 waits for run %q in %s", o.ID, o.Dir)
			}
			if err == nil || err.Error() != tc.want {
				t.Errorf("Join: %v, want %q", err, tc.want)
			}
		})
	}
}

// TestProtocols checks the form of a link's first message, which must never change, since all
// versions of the protocol read it.
func TestProtocols(t *testing.T) {
	text := `h{"Protocol":7,"ID":"run","Size":3,"Rank":2,"PID":9,"Host":"h","Later":[1]}`
	m, err := decode([]byte(text))
	if want := (hello{7, "run", 3, member{Rank: 2, PID: 9, Host: "h"}}); err != nil || m != message(want) {
		t.Errorf("got %v, %v; want %v", m, err, want)
	}
	var fields map[string]any
	if err := json.Unmarshal(m.(hello).encode()[1:], &fields); err != nil || len(fields) != 6 {
		t.Errorf("a hello has fields %v, %v", fields, err)
	}
}

// TestMalformed lets a process of the world send invalid messages.
func TestMalformed(t *testing.T) {
	regular, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer regular.Close()
	fd := int(regular.Fd())
	for _, tc := range []struct {
		name   string
		packet []byte
		times  int
		fds    []int
	}{
		{"unknown", []byte{'?', 1, 2}, 1, nil},
		{"too long", make([]byte, maxMessage+1), 1, nil},
		{"truncated agreement", []byte{kindAgreement, 1, 0, 0, 0}, 1, nil},
		{"long step", append([]byte{kindAgreement, 1, 0, 0, 0, 0, 0, 0, 0, 255, 255}, "x"...), 1, nil},
		{"export of nothing", export{"x"}.encode(), 1, nil},
		{"export of two", export{"x"}.encode(), 1, []int{fd, fd}},
		{"export twice", export{"x"}.encode(), 2, []int{fd}},
		{"many files", export{"x"}.encode(), 1, []int{fd, fd, fd, fd, fd}},
		{"second hello", hello{Protocol: protocol}.encode(), 1, nil},
		{"second ready", encodeReady(), 1, nil},
		{"many values", agreement{9, "x", nil}.encode(), maxInbox + 1, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := options(t, 2)
			var all sync.WaitGroup
			for r := range 2 {
				all.Go(func() {
					o := o
					o.Rank = r
					w, err := Join(context.Background(), o)
					if err != nil {
						t.Error(err)
						return
					}
					defer w.Leave()
					if r == 1 {
						for range tc.times {
							if err := w.mesh.sendTo(0, tc.packet, tc.fds...); err != nil {
								t.Error(err)
							}
						}
					}
					select {
					case <-w.Done():
					case <-time.After(10 * time.Second):
						t.Errorf("rank %d: the world has not ended", r)
					}
					var p *PeerError
					if !errors.As(w.Err(), &p) || p.Rank != 1 || !strings.Contains(p.Why, "an invalid message") {
						t.Errorf("rank %d: %v", r, w.Err())
					}
				})
			}
			all.Wait()
		})
	}
}

// TestNoSegment maps exported files that are not segments. These files must be refused, because a process that reads a
// mapped file crashes if the file shrinks.
func TestNoSegment(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	inOne(t, options(t, 2), func(w *World) error {
		if w.Process() == 0 {
			if err := w.Export("file", file); err != nil {
				return err
			}
		} else if s, err := w.Map(context.Background(), 0, "file"); err == nil || !strings.Contains(err.Error(), `its export "file" is not a memory segment`) {
			t.Errorf("got %v, %v", s, err)
		}
		_, err := w.Agree(context.Background(), "end", nil)
		return err
	})
}
