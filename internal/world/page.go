package world

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"
)

// The page is memory that all processes of a world share. Its first word ends the world: it is
// there for those that cannot read a socket, such as kernels on a GPU. Each process writes only
// its own slot of the rest, so that others can see that it lives and what it does.
//
//	0      abort word, 32 bits: not 0 once the world has ended
//	8      claim: who sets it first writes the cause
//	16     length of the cause
//	64     cause
//	8192   slots, one a process:
//	       0    heartbeats
//	       8    steps
//	       16   command
//	       64   the last steps: number, length, text
const (
	pageHeader = 8 << 10
	pageSlot   = 8 << 10

	atAbort   = 0
	atClaim   = 8
	atLength  = 16
	atCause   = 64
	slotBeats = 0
	slotSteps = 8
	slotAt    = 16
	slotRing  = 64

	ringSteps = 32
	stepBytes = 128
	stepText  = stepBytes - 16
)

type page struct {
	*Segment
	size int // processes
}

func pageBytes(size int) int { return pageHeader + size*pageSlot }

func newPage(size int) (*page, error) {
	s, err := NewSegment(pageBytes(size))
	if err != nil {
		return nil, err
	}
	return &page{s, size}, nil
}

// Page returns memory that all processes of the world share. Its first four bytes are 0 until
// the world ends. The rest is the package's own.
func (w *World) Page() []byte { return w.page.Bytes() }

// word returns a word of shared memory. All access is atomic, and in one order for all.
func word(mem []byte, at int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&mem[at : at+8][0]))
}

func (p *page) abortWord() *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&p.Bytes()[atAbort]))
}

// abort sets the abort word. It returns the cause that counts, the first one, and whether that
// is c.
func (p *page) abort(c cause) (first cause, own bool) {
	if word(p.Bytes(), atClaim).CompareAndSwap(0, 1) {
		phase("claimed")
		text := c.encode()
		copyIn(p.Bytes()[atCause:pageHeader], text)
		word(p.Bytes(), atLength).Store(uint64(len(text)))
		p.abortWord().Store(1)
		return c, true
	}
	// Another process is about to write its cause, unless it has died just now.
	for range 50 {
		if first, ok := p.cause(); ok {
			return first, false
		}
		time.Sleep(time.Millisecond)
	}
	p.abortWord().Store(1)
	return c, true
}

// cause returns why the world has ended, if it has.
func (p *page) cause() (cause, bool) {
	if p.abortWord().Load() == 0 {
		return cause{}, false
	}
	n := min(word(p.Bytes(), atLength).Load(), maxCause)
	c, err := decodeCause(copyOut(p.Bytes()[atCause:pageHeader], int(n)))
	if err != nil {
		c = cause{} // it still has ended
	}
	return c, true
}

// slot returns what a process writes.
func (p *page) slot(rank int) []byte { return p.Bytes()[pageHeader+rank*pageSlot:][:pageSlot] }

func (p *page) beat(rank int)            { word(p.slot(rank), slotBeats).Add(1) }
func (p *page) beats(rank int) uint64    { return word(p.slot(rank), slotBeats).Load() }
func (p *page) steps(rank int) uint64    { return word(p.slot(rank), slotSteps).Load() }
func (p *page) at(rank int, command int) { word(p.slot(rank), slotAt).Store(uint64(command)) }

// ring returns the place of a step.
func (p *page) ring(rank int, step uint64) []byte {
	return p.slot(rank)[slotRing+int(step%ringSteps)*stepBytes:][:stepBytes]
}

// record writes that a process begins a step, and returns the text that others see.
func (p *page) record(rank int, step uint64, what string) string {
	if len(what) > stepText {
		sum := sha256.Sum256([]byte(what))
		what = strings.ToValidUTF8(what[:stepText-24], "") + "… " + hex.EncodeToString(sum[:8])
	}
	r := p.ring(rank, step)
	word(r, 0).Store(0) // until all of it is written
	word(r, 8).Store(uint64(len(what)))
	copyIn(r[16:], []byte(what))
	word(r, 0).Store(step)
	p.at(rank, 0)
	word(p.slot(rank), slotSteps).Store(step)
	return what
}

// recorded returns the text of a step of a process, if the process has begun it and not so many
// others since that it is overwritten.
func (p *page) recorded(rank int, step uint64) (string, bool) {
	r := p.ring(rank, step)
	if word(r, 0).Load() != step {
		return "", false
	}
	text := string(copyOut(r[16:], int(min(word(r, 8).Load(), stepText))))
	return text, word(r, 0).Load() == step
}

// last says what a process did last.
func (p *page) last(rank int) string {
	n := p.steps(rank)
	text, ok := p.recorded(rank, n)
	if n == 0 || !ok {
		return "before its first step"
	}
	return fmt.Sprintf("in step %d (%s) at command %d", n, text, word(p.slot(rank), slotAt).Load())
}

// copyIn writes text to shared memory, whole words at a time: others may read it meanwhile.
func copyIn(mem, text []byte) {
	for at := 0; at < len(text); at += 8 {
		var b [8]byte
		copy(b[:], text[at:])
		word(mem, at).Store(*(*uint64)(unsafe.Pointer(&b)))
	}
}

// copyOut reads n bytes of shared memory.
func copyOut(mem []byte, n int) []byte {
	text := make([]byte, 0, n+8)
	for at := 0; at < n; at += 8 {
		v := word(mem, at).Load()
		text = append(text, (*[8]byte)(unsafe.Pointer(&v))[:]...)
	}
	return text[:n]
}
