package world

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"hocket.example/hocket/internal/longtest"
)

// TestNodesProxy lets two nodes communicate through a proxy that damages one frame of every
// connection, at any position. Both ends must get an error, and never a wrong result.
func TestNodesProxy(t *testing.T) {
	t.Parallel()
	rounds := longtest.Of(28, 500)
	if testing.Short() {
		rounds = len(harms)
	}
	rng := rand.New(rand.NewPCG(longtest.Drawn(t), 0))
	free := make(chan struct{}, 8) // limits the number of concurrent cases, which mostly wait
	var running sync.WaitGroup
	for i := range rounds {
		p := &harmful{harm: harms[i%len(harms)], up: rng.IntN(2) == 0, at: rng.IntN(50), bit: rng.Uint64()}
		if i%4 == 0 {
			p.at = rng.IntN(4) // the handshake
		}
		free <- struct{}{}
		running.Go(func() {
			defer func() { <-free }()
			if err := p.round(t, fmt.Sprint(t.Name(), i)); err != nil {
				t.Errorf("%v: %v", p, err)
			}
		})
	}
	running.Wait()
	// Without damage the same exchange must succeed.
	if err := (&harmful{at: -1}).round(t, t.Name()); err != nil {
		t.Error(err)
	}
}

// harms are the kinds of damage to a frame.
var harms = []string{"change", "drop", "repeat", "swap", "reflect", "cut", "shorten"}

// harmful is a proxy for connections to rank 0 that damages data.
type harmful struct {
	harm string
	up   bool   // whether to damage a frame sent to rank 0, instead of one that rank 0 sends
	at   int    // number of the frame that is damaged; -1 for none
	bit  uint64 // selects the bit to change

	done atomic.Int32 // number of damaged frames
}

func (p *harmful) String() string { return fmt.Sprintf("%s frame %d, up %v", p.harm, p.at, p.up) }

// round runs a world of two nodes through the proxy once.
func (p *harmful) round(t *testing.T, id string) error {
	all := nodes(t, 1, 1)
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer front.Close()
	go p.serve(front, all[0].Meet)
	all[1].Meet = front.Addr().String()
	errs := make([]error, len(all))
	var group sync.WaitGroup
	for r, o := range all {
		o.ID, o.JoinTimeout, o.StallTimeout = id, time.Minute, 2*time.Second
		if 0 <= p.at && p.at < 10 { // perhaps no process can join
			o.JoinTimeout = 5 * time.Second
		}
		group.Go(func() {
			w, err := Join(context.Background(), o)
			if err != nil {
				errs[r] = err
				return
			}
			errs[r] = exchange(w, 1<<20)
			if err := w.Leave(); errs[r] == nil {
				errs[r] = err
			}
		})
	}
	group.Wait()
	for r, err := range errs {
		switch {
		case errors.Is(err, errOtherBytes):
			return fmt.Errorf("rank %d: %w", r, err)
		case p.at < 0 && err != nil:
			return fmt.Errorf("rank %d: %w", r, err)
		case p.at >= 0 && err == nil:
			return fmt.Errorf("rank %d has a result", r)
		case p.at >= 0 && p.done.Load() == 0:
			return fmt.Errorf("no frame was harmed; rank %d: %w", r, err)
		}
	}
	return nil
}

var errOtherBytes = errors.New("other bytes arrive than were sent")

// exchange lets each of two processes send n bytes to the other.
func exchange(w *World, n int) error {
	ctx, me := context.Background(), w.Process()
	text := func(from int) []byte { return bytes.Repeat([]byte{byte(from), 3, 5, 7}, n/4) }
	wires := w.NewWires(2)
	got := make([]byte, n)
	r, err := w.Expect(1-me, wires+uint64(1-me), got)
	if err != nil {
		return err
	}
	if err := w.Send(ctx, 1-me, wires+uint64(me), text(me)); err != nil {
		return err
	}
	if err := r.Wait(ctx); err != nil {
		return err
	}
	if !bytes.Equal(got, text(1-me)) {
		return errOtherBytes
	}
	_, err = w.Agree(ctx, "end", nil)
	return err
}

func (p *harmful) serve(front net.Listener, to string) {
	for {
		conn, err := front.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", to)
		if err != nil {
			conn.Close()
			continue
		}
		go p.pass(conn, far, p.up)
		go p.pass(far, conn, !p.up)
	}
}

// pass forwards frames, and damages one of them if harm is set.
func (p *harmful) pass(from, to net.Conn, harm bool) {
	defer from.Close()
	defer to.Close()
	in := bufio.NewReader(from)
	var held []byte
	for n := 0; ; {
		frame, err := readFrame(in)
		if err != nil {
			return
		}
		out := [][]byte{frame}
		if held != nil {
			out, held = [][]byte{frame, held}, nil
		}
		if matters := frame[0] != 20; harm && matters { // TLS 1.3 ignores change_cipher_spec records
			if n == p.at {
				p.done.Add(1)
				switch p.harm {
				case "change":
					bit := p.bit % uint64(8*(len(frame)-frameHeader))
					frame[frameHeader+bit/8] ^= 1 << (bit % 8)
				case "drop":
					out = nil
				case "repeat":
					out = [][]byte{frame, frame}
				case "swap":
					out, held = nil, frame
				case "reflect":
					out = nil
					from.Write(frame)
				case "cut":
					return
				case "shorten":
					to.Write(frame[:len(frame)-1-int(p.bit%uint64(len(frame)-1))])
					return
				}
			}
			n++
		}
		for _, b := range out {
			if _, err := to.Write(b); err != nil {
				return
			}
		}
	}
}

const frameHeader = 5

// readFrame reads one TLS record.
func readFrame(in *bufio.Reader) ([]byte, error) {
	frame := make([]byte, frameHeader, 1<<15)
	if _, err := io.ReadFull(in, frame); err != nil {
		return nil, err
	}
	frame = frame[:frameHeader+int(binary.BigEndian.Uint16(frame[3:]))]
	_, err := io.ReadFull(in, frame[frameHeader:])
	return frame, err
}

// TestNodesImpostor checks that an impostor that listens at the meeting address before rank 0 does learns neither the
// token nor any data of the run, and that no process joins it. The impostor only listens, reflects the received data,
// or relays them to rank 0.
func TestNodesImpostor(t *testing.T) {
	own, err := newCertificate()
	if err != nil {
		t.Fatal(err)
	}
	shows := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, InsecureSkipVerify: true}
	for _, tc := range []struct {
		name string
		does func(conn net.Conn, meet string, heard io.Writer)
		want string
	}{
		{"listens", func(conn net.Conn, _ string, heard io.Writer) { _, _ = io.Copy(heard, conn) }, "rank 0: absent"},
		{"speaks TLS", func(conn net.Conn, _ string, heard io.Writer) {
			c := tls.Server(conn, shows)
			_, _ = io.Copy(heard, c)
		}, "rank 0: absent"},
		{"sends back", func(conn net.Conn, _ string, heard io.Writer) {
			c := tls.Server(conn, shows)
			_, _ = io.Copy(c, io.TeeReader(c, heard))
		}, "does not know this run's token: set HOCKET_TOKEN"},
		{"passes on", func(conn net.Conn, meet string, heard io.Writer) {
			far, err := net.Dial("tcp", meet)
			if err != nil {
				return
			}
			defer far.Close()
			near, behind := tls.Server(conn, shows), tls.Client(far, shows)
			if behind.Handshake() != nil { // the impostor does not wait for a proof
				return
			}
			go func() { _, _ = io.Copy(near, behind) }()
			_, _ = io.Copy(behind, io.TeeReader(near, heard))
		}, "does not know this run's token: set HOCKET_TOKEN"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			all := nodes(t, 1, 1)
			front, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var heard safeBuffer
			var serving sync.WaitGroup
			serving.Go(func() {
				for {
					conn, err := front.Accept()
					if err != nil {
						return
					}
					serving.Go(func() {
						defer conn.Close()
						tc.does(conn, all[0].Meet, &heard)
					})
				}
			})
			zero, end := context.WithCancel(t.Context())
			var group sync.WaitGroup
			group.Go(func() {
				if w, err := Join(zero, all[0]); err == nil {
					w.Leave()
					t.Error("rank 0 joins")
				}
			})
			all[1].Meet, all[1].JoinTimeout = front.Addr().String(), 2*time.Second
			w, err := Join(t.Context(), all[1])
			if err == nil {
				w.Leave()
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			end()
			group.Wait()
			front.Close()
			serving.Wait()
			got := heard.Bytes()
			for _, secret := range []string{all[0].Token, all[0].ID, "Host"} {
				if bytes.Contains(got, []byte(secret)) {
					t.Errorf("it learns %q", secret)
				}
			}
			if len(got) == 0 {
				t.Error("no process connected to the impostor")
			}
		})
	}
}

// safeBuffer is a buffer that several goroutines write to.
type safeBuffer struct {
	sync.Mutex
	b bytes.Buffer
}

func (s *safeBuffer) Write(b []byte) (int, error) {
	s.Lock()
	defer s.Unlock()
	return s.b.Write(b)
}

func (s *safeBuffer) Bytes() []byte {
	s.Lock()
	defer s.Unlock()
	return bytes.Clone(s.b.Bytes())
}

// TestProofs checks that the two ends have different proofs, and that other connections and tokens have different
// proofs.
func TestProofs(t *testing.T) {
	a, err := newSecret(Options{Token: "the token of this test"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := newSecret(Options{Token: "the token of that test"})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[[sha256.Size]byte]bool{}
	for _, s := range []*secret{a, a, b} {
		client, server := net.Pipe()
		both := []*tls.Conn{tls.Client(client, s.tls), tls.Server(server, s.tls)}
		var of [2][2][]byte
		var group sync.WaitGroup
		for i, c := range both {
			group.Go(func() {
				var err error
				if of[i][0], of[i][1], err = s.proofs(c); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		for role := range 2 {
			if !bytes.Equal(of[0][role], of[1][role]) || len(of[0][role]) != sha256.Size {
				t.Fatal("the two ends compute different proofs")
			}
			seen[[sha256.Size]byte(of[0][role])] = true
		}
		client.Close()
		server.Close()
	}
	if len(seen) != 6 {
		t.Errorf("%d of 6 proofs are distinct", len(seen))
	}
}

// TestNodesTokenShort checks that a token that is short enough to guess is refused.
func TestNodesTokenShort(t *testing.T) {
	o := Options{Size: 2, ID: "x", Meet: "127.0.0.1:1", Token: "secret"}
	if _, err := Join(t.Context(), o); err == nil || !strings.Contains(err.Error(), "the run's token has 6 bytes, but must have 16") ||
		strings.Contains(err.Error(), "secret;") {
		t.Errorf("got %v", err)
	}
}
