package world

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"math"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hocket.example/hocket/internal/longtest"
)

// meeting listens at an address where processes of several nodes can meet. Process 0 inherits the socket.
func meeting(t testing.TB) (addr string, file *os.File) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if file, err = l.(*net.TCPListener).File(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return l.Addr().String(), file
}

// nodes returns the options of each process in a world whose nodes have the given numbers of processes.
func nodes(t testing.TB, sizes ...int) []Options {
	t.Helper()
	o := options(t, 0)
	o.Token = "a secret of this run"
	addr, file := meeting(t)
	o.Meet = addr
	var all []Options
	for node, size := range sizes {
		for range size {
			o := o
			o.Rank, o.Node = len(all), fmt.Sprint(node)
			all = append(all, o)
		}
	}
	for r := range all {
		all[r].Size = len(all)
	}
	fd, err := unix.Dup(int(file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	all[0].MeetFD = fd
	return all
}

// inNodes runs f in every process of a world of several nodes. All processes are simulated by goroutines of this
// process.
func inNodes(t testing.TB, all []Options, f func(w *World) error) {
	t.Helper()
	var group sync.WaitGroup
	for r, o := range all {
		group.Go(func() {
			w, err := Join(context.Background(), o)
			if err != nil {
				t.Errorf("rank %d: %v", r, err)
				return
			}
			ended := f(w)
			if ended != nil && ended != errEnded {
				t.Errorf("rank %d: %v", r, ended)
			}
			if err := w.Leave(); (err != nil) != (ended == errEnded) {
				t.Errorf("rank %d: left the world: %v", r, err)
			}
		})
	}
	group.Wait()
	if left, err := os.ReadDir(all[0].Dir); err != nil || len(left) > 0 {
		t.Errorf("left in the folder: %v, %v", left, err)
	}
}

// TestNodes checks that processes know their node, share memory within it, agree, compare steps,
// and send bytes to other nodes.
func TestNodes(t *testing.T) {
	for _, sizes := range [][]int{{1, 1}, {2, 2}, {1, 3, 2}} {
		t.Run(fmt.Sprint(sizes), func(t *testing.T) {
			inNodes(t, nodes(t, sizes...), func(w *World) error { return crossing(w, sizes) })
		})
	}
}

func crossing(w *World, sizes []int) error {
	ctx := context.Background()
	me, size := w.Process(), w.Processes()
	first := 0 // the first process of this node
	for node, n := range sizes {
		if me >= first+n {
			first += n
			continue
		}
		if w.Node(me) != node || w.Nodes() != len(sizes) || w.Local() != me-first {
			return fmt.Errorf("rank %d is number %d of node %d of %d", me, w.Local(), w.Node(me), w.Nodes())
		}
		break
	}
	for i := range 5 {
		if err := w.Same(ctx, "the number", fmt.Sprint(i)); err != nil {
			return err
		}
		if err := w.Step(fmt.Sprint("step ", i)); err != nil {
			return err
		}
	}
	// Memory is shared only within a node.
	s, err := NewSegment(8)
	if err != nil {
		return err
	}
	defer s.Close()
	copy(s.Bytes(), fmt.Sprint(me))
	if err := w.Share("memory", s); err != nil {
		return err
	}
	for r := range size {
		if r == me {
			continue
		}
		m, err := w.Map(ctx, r, "memory")
		if w.Node(r) != w.Node(me) {
			if err == nil || !strings.Contains(err.Error(), "nodes share no memory") {
				return fmt.Errorf("memory of another node: %v", err)
			}
			continue
		}
		if err != nil {
			return err
		}
		if m.Bytes()[0] != byte('0'+r) {
			return fmt.Errorf("the memory of rank %d contains %q", r, m.Bytes())
		}
		m.Close()
	}
	// Every process sends bytes of several lengths to every process, including itself.
	wires := w.NewWires(size * size)
	for _, n := range []int{0, 1, MaxValue, tcpPayload + 1, 1 << 20} {
		text := func(from, to int) []byte { return bytes.Repeat([]byte{byte(from*16 + to), byte(n)}, n)[:n] }
		got := make([][]byte, size)
		receipts := make([]*Receipt, size)
		for r := range size {
			got[r] = make([]byte, n)
			if receipts[r], err = w.Expect(r, wires+uint64(r*size+me), got[r]); err != nil {
				return err
			}
		}
		for d := range size {
			to := (me + d) % size
			if err := w.Send(ctx, to, wires+uint64(me*size+to), text(me, to)); err != nil {
				return err
			}
		}
		for r := range size {
			if err := receipts[r].Wait(ctx); err != nil {
				return err
			}
			if !bytes.Equal(got[r], text(r, me)) {
				return fmt.Errorf("%d bytes from %d to %d arrive otherwise", n, r, me)
			}
		}
	}
	_, err = w.Agree(ctx, "end", nil)
	return err
}

// TestNodesDiffer checks that steps that differ between nodes are reported with both values, even if the later process
// begins its step before it has received the value of the other process.
func TestNodesDiffer(t *testing.T) {
	inNodes(t, nodes(t, 1, 1), func(w *World) error {
		if err := w.Step("load"); err != nil {
			return err
		}
		_ = w.Step(fmt.Sprint("batch of ", w.Process())) // the process that finds the difference reports it
		select {
		case <-w.Done():
		case <-time.After(10 * time.Second):
			return errors.New("the world goes on")
		}
		want := "ranks disagree on step 3: rank 0 has batch of 0, rank 1 has batch of 1"
		if err := w.Err(); err.Error() != want {
			return fmt.Errorf("got %v, want %s", err, want)
		}
		return errEnded
	})
}

// TestNodesLists checks that lists are compared within each node, and that all processes get an error that names the
// node whose processes have different lists.
func TestNodesLists(t *testing.T) {
	inNodes(t, nodes(t, 2, 2), func(w *World) error {
		ctx := context.Background()
		mine := []string{"alike", fmt.Sprint("on node ", w.Node(w.Process()))}
		if err := w.SameListOfNode(ctx, "the list", mine); err != nil {
			return err
		}
		if w.Process() == 3 {
			mine = append(mine, "more")
		}
		err := w.SameListOfNode(ctx, "the list", mine)
		if want := "ranks disagree on the list: rank 2 has nothing more, rank 3 has more"; err == nil ||
			err.Error() != want {
			return fmt.Errorf("got %v, want %s", err, want)
		}
		if err := w.SameList(ctx, "the list", mine[1:2]); err == nil ||
			!strings.Contains(err.Error(), "ranks 2-3 have on node 1") {
			return fmt.Errorf("lists that differ between nodes: %v", err)
		}
		return nil
	})
}

// TestNodesLengths checks that a process is reported if it sends another number of bytes than the
// receiver expects.
func TestNodesLengths(t *testing.T) {
	inNodes(t, nodes(t, 1, 1), func(w *World) error {
		wire := w.NewWires(1)
		var err error
		if w.Process() == 0 {
			err = w.Send(context.Background(), 1, wire, make([]byte, 3))
		} else {
			var r *Receipt
			if r, err = w.Expect(0, wire, make([]byte, 4)); err == nil {
				err = r.Wait(context.Background())
			}
		}
		var d *DisagreeError
		if !errors.As(err, &d) || !strings.Contains(err.Error(), "rank 0 has 3 to send, rank 1 has 4 to receive") {
			return fmt.Errorf("got %v", err)
		}
		return errEnded
	})
}

// TestNodesAbort checks that an abort on one node ends the world on the other node, with the cause
// given to Abort.
func TestNodesAbort(t *testing.T) {
	inNodes(t, nodes(t, 2, 2), func(w *World) error {
		_, _ = w.Agree(context.Background(), "begin", nil) // all have joined; this may fail, because rank 2 may already have aborted
		if w.Process() == 2 {
			w.Abort(errors.New("out of memory"))
		}
		select {
		case <-w.Done():
		case <-time.After(10 * time.Second):
			return errors.New("it does not learn of the abort")
		}
		var p *PeerError
		if err := w.Err(); w.Process() != 2 && (!errors.As(err, &p) || p.Rank != 2 || p.Why != "out of memory") {
			return fmt.Errorf("got %v", err)
		}
		if w.mesh.page.Bytes()[0] == 0 {
			return errors.New("the abort word is not set")
		}
		return errEnded
	})
}

// certificate writes a new certificate and its key to files.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a run"},
		NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := map[string]*pem.Block{"cert": {Type: "CERTIFICATE", Bytes: der},
		"key": {Type: "PRIVATE KEY", Bytes: secret}}
	for name, block := range files {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "cert"), filepath.Join(dir, "key")
}

// TestSecretFiles checks that a secret file that is not a regular file is refused, instead of
// blocking or being read without limit.
func TestSecretFiles(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, "/dev/zero", filepath.Dir(fifo), fifo + ".none"} {
		if _, err := newSecret(Options{Cert: path, Key: path}); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestNodesTLS checks that with a certificate all traffic is encrypted, and that a process without
// the certificate cannot join.
func TestNodesTLS(t *testing.T) {
	all := nodes(t, 1, 2)
	cert, key := certificate(t)
	var seen atomic.Int64
	tap(t, func(b []byte) {
		seen.Add(int64(len(b)))
		if bytes.Contains(b, []byte("a secret")) || bytes.Contains(b, []byte("TestNodesTLS")) {
			t.Error("the token or the run's name is transmitted unencrypted")
		}
	})
	for r := range all {
		all[r].Cert, all[r].Key = cert, key
	}
	stranger := all[1]
	stranger.Cert, stranger.Key = certificate(t)
	stranger.JoinTimeout = 500 * time.Millisecond
	if _, err := Join(context.Background(), stranger); err == nil || !strings.Contains(err.Error(), "rank 0: absent") {
		t.Errorf("dialing with another certificate: %v", err)
	}
	inNodes(t, all, func(w *World) error { return crossing(w, []int{1, 2}) })
	if seen.Load() == 0 {
		t.Error("nothing went over TCP")
	}
}

// TestTLSMismatch checks that, if processes have different certificates, the errors of both processes state the reason.
// It is not enough that a later connection was refused, because process 0 had given up.
func TestTLSMismatch(t *testing.T) {
	for _, tc := range []struct {
		name      string
		zero, one bool // whether each process has a certificate; the two certificates differ
		want      [2]string
	}{
		{"in process 0", true, false, [2]string{"was rejected: the peer has another certificate", ""}},
		{"in process 1", false, true, [2]string{"was rejected: ", ""}},
		{"two", true, true, [2]string{"was rejected: ", "the peer has another certificate"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			all := nodes(t, 1, 1)
			var group sync.WaitGroup
			for r, has := range []bool{tc.zero, tc.one} {
				o := all[r]
				o.JoinTimeout = time.Second
				if has {
					o.Cert, o.Key = certificate(t)
				}
				group.Go(func() {
					w, err := Join(context.Background(), o)
					if err == nil {
						w.Leave()
						t.Errorf("rank %d joins", r)
						return
					}
					t.Logf("rank %d: %v", r, err)
					hint := []string{"rank 1: absent", "HOCKET_TLS_CERT"}[r]
					if !strings.Contains(err.Error(), tc.want[r]) || !strings.Contains(err.Error(), hint) ||
						strings.Contains(err.Error(), "refused") {
						t.Errorf("rank %d: %v, want %q and %q", r, err, tc.want[r], hint)
					}
				})
			}
			group.Wait()
		})
	}
}

// tap calls show with everything that processes in this test write to other nodes.
func tap(t *testing.T, show func([]byte)) {
	old := dialNet
	t.Cleanup(func() { dialNet = old })
	dialNet = func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := old(ctx, addr)
		return &tapped{conn, show}, err
	}
}

type tapped struct {
	net.Conn
	show func([]byte)
}

func (c *tapped) Write(b []byte) (int, error) {
	c.show(b)
	return c.Conn.Write(b)
}

// TestNodesRefuse checks that a process that does not fit is refused with the cause, before the
// join timeout.
func TestNodesRefuse(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(o *Options)
		zero   string // error that process 0 reports
		one    string
	}{
		{"absent", nil, "rank 1: absent: did not join within 1s", ""},
		{"token", func(o *Options) { o.Token = "the secret of another run" }, "rank 1: absent: did not join within 1s",
			"does not know this run's token: set HOCKET_TOKEN"},
		{"size", func(o *Options) { o.Size = 3 }, "ranks disagree on the size of the world: rank 0 has 2, rank 1 has 3",
			"the size of the world"},
		{"run", func(o *Options) { o.ID = "another run" }, "rank 1: absent",
			"rank 0: absent: did not join at 127.0.0.1"},
		{"no token", func(o *Options) { o.Token = "" }, "rank 1: absent", "set HOCKET_TOKEN"},
		{"no key", func(o *Options) { o.Cert = "x" }, "rank 1: absent", "set HOCKET_TLS_CERT and HOCKET_TLS_KEY"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			all := nodes(t, 1, 1)
			for r := range all {
				all[r].JoinTimeout = time.Second
			}
			var group sync.WaitGroup
			try := func(o Options, want string) {
				w, err := Join(context.Background(), o)
				if err == nil {
					w.Leave()
				}
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("rank %d: %v, want %q", o.Rank, err, want)
				}
			}
			group.Go(func() { try(all[0], tc.zero) })
			if tc.change != nil {
				tc.change(&all[1])
				group.Go(func() { try(all[1], tc.one) })
			}
			group.Wait()
		})
	}
	o := options(t, 4)
	o.LocalSize = 2
	if _, err := Join(context.Background(), o); err == nil || !strings.Contains(err.Error(), "set HOCKET_MEET") {
		t.Errorf("nowhere to meet: %v", err)
	}
}

// TestNodesHostile floods the address where nodes meet: with garbage, with invalid messages, with
// connections that send nothing, and with impossible lengths. The processes of the run must join
// nevertheless.
func TestNodesHostile(t *testing.T) {
	requests := longtest.Of(3000, 50000)
	all := nodes(t, 1, 1)
	for r := range all {
		all[r].JoinTimeout = 5 * time.Minute
	}
	joined := make(chan error, 1)
	var first *World
	go func() {
		var err error
		first, err = Join(context.Background(), all[0])
		joined <- err
	}()
	random := make([]byte, 64<<10)
	rand.Read(random)
	framed := func(messages ...[]byte) (b []byte) {
		for _, m := range messages {
			b = append(binary.LittleEndian.AppendUint32(b, uint32(len(m))), m...)
		}
		return b
	}
	secretOf := func(o Options) *secret {
		s, err := newSecret(o)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	wrong := all[0]
	wrong.Token = "the secret of another run"
	stranger, friend := secretOf(wrong), secretOf(all[0])
	self := hello{Protocol: protocol, ID: all[0].ID, Size: 2, member: member{Rank: 0, PID: 1, Host: "x"}}
	far := self
	far.Rank = 1 << 60
	type packet struct {
		from  *secret // TLS configuration; nil for a connection without TLS
		bytes []byte
	}
	var packets []packet
	for _, b := range [][]byte{
		nil, {0}, random[:100], random,
		[]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
		{0xff, 0xff, 0xff, 0xff, 'k'}, {0, 0, 0, 0}, append([]byte{22, 3, 1, 64, 0}, random[:1<<14]...),
		framed(self.encode()),
	} {
		packets = append(packets, packet{nil, b})
	}
	packets = append(packets, packet{stranger, nil}, packet{stranger, framed(self.encode())})
	for _, b := range [][]byte{
		nil, {0, 0, 0, 0}, {0xff, 0xff, 0xff, 0xff, 'k'}, random[:100],
		framed([]byte("n{")), framed(random[:maxMessage]),
		framed(arrival{far, "x", "1"}.encode()), framed(arrival{self, "x", "1"}.encode()),
		framed(arrival{self, "", "port"}.encode()),
		framed(far.encode()), framed(encodeBye()), framed(data{1, random[:100]}.append(nil)),
	} {
		packets = append(packets, packet{friend, b})
	}
	before := settledHeap(math.MaxInt64)
	var live atomic.Uint64
	var sending sync.RWMutex // the senders pause while live memory is measured
	watching := make(chan struct{})
	var watcher, senders sync.WaitGroup
	watcher.Go(func() {
		for {
			select {
			case <-watching:
				return
			case <-time.After(time.Second):
				sending.Lock()
				live.Store(max(live.Load(), settledHeap(before)))
				sending.Unlock()
			}
		}
	})
	for s := range 8 {
		senders.Go(func() {
			var slow []net.Conn
			send := func(i int) error {
				sending.RLock()
				defer sending.RUnlock()
				conn, err := net.Dial("tcp", all[0].Meet)
				if err != nil {
					return err
				}
				p := packets[i%len(packets)]
				if p.from != nil {
					if c, err := p.from.dial(context.Background(), conn); err == nil {
						conn = c
					} // otherwise the connection was closed in favour of newer ones, or for a wrong token
				}
				conn.Write(p.bytes)
				if i%3 == 0 && len(slow) < 50 {
					slow = append(slow, conn)
				} else {
					conn.Close()
				}
				return nil
			}
			for i := s; i < requests; i += 8 {
				if err := send(i); err != nil {
					t.Error(err)
					return
				}
			}
			for _, conn := range slow {
				conn.Close()
			}
		})
	}
	senders.Wait()
	close(watching)
	watcher.Wait()
	live.Store(max(live.Load(), settledHeap(before)))
	select {
	case err := <-joined:
		t.Fatalf("the flood ends Join: %v", err)
	default:
	}
	w, err := Join(context.Background(), all[1])
	if err != nil {
		t.Fatal(err)
	}
	defer w.Leave()
	if err := <-joined; err != nil {
		t.Fatal(err)
	}
	defer first.Leave()
	grown := int64(live.Load()) - int64(before)
	if t.Logf("memory grows by %d KiB", grown>>10); grown > mostGrown {
		t.Errorf("memory grows by %d bytes", grown)
	}
}

// cut represents a network that can silently stop transmitting data.
type cut struct {
	once sync.Once
	now  chan struct{}
}

// cutNet makes connections between nodes pass through a network that can be cut.
func cutNet(t *testing.T) *cut {
	c := &cut{now: make(chan struct{})}
	old := dialNet
	t.Cleanup(func() { dialNet = old })
	dialNet = func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := old(ctx, addr)
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { conn.Close() })
		return &cutConn{Conn: conn, cut: c, closed: make(chan struct{})}, nil
	}
	return c
}

// cutConn is a connection that transmits no data after its network is cut. Closing it is not transmitted either.
type cutConn struct {
	net.Conn
	cut    *cut
	closed chan struct{}
}

func (c *cutConn) dead() bool {
	select {
	case <-c.cut.now:
		return true
	default:
		return false
	}
}

func (c *cutConn) Write(b []byte) (int, error) {
	if c.dead() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.dead() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *cutConn) Close() error {
	close(c.closed)
	if c.dead() {
		return c.Conn.SetReadDeadline(time.Unix(1, 0))
	}
	return c.Conn.Close()
}

// TestNodesCut checks that, if the network between nodes drops everything, both sides detect this within the stall
// timeout T plus 5 s, even in the middle of a message that one of them waits for.
func TestNodesCut(t *testing.T) {
	const stall = time.Second
	all := nodes(t, 1, 1)
	for r := range all {
		all[r].StallTimeout = stall
	}
	c := cutNet(t)
	var at atomic.Int64
	begun := make(chan struct{})
	inNodes(t, all, func(w *World) error {
		ctx := context.Background()
		wire := w.NewWires(1)
		if _, err := w.Agree(ctx, "begin", nil); err != nil {
			return err
		}
		var err error
		if w.Process() == 1 {
			close(begun)
		}
		<-begun
		if w.Process() == 0 {
			c.once.Do(func() {
				at.Store(time.Now().UnixNano())
				close(c.now)
			})
			err = w.Send(ctx, 1, wire, make([]byte, 8<<20))
		} else {
			<-c.now
			var r *Receipt
			if r, err = w.Expect(0, wire, make([]byte, 8<<20)); err == nil {
				err = r.Wait(ctx)
			}
		}
		took := time.Duration(time.Now().UnixNano() - at.Load())
		var p *PeerError
		if !errors.As(err, &p) || p.Rank != 1-w.Process() || !strings.Contains(p.Why, "stalled") {
			return fmt.Errorf("got %v", err)
		}
		if took > 10*(stall+5*time.Second) {
			return fmt.Errorf("it takes %v", took)
		}
		t.Logf("rank %d detects it after %v", w.Process(), took.Round(time.Millisecond))
		return errEnded
	})
}
