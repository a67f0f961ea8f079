package world

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync/atomic"
	"unsafe"
)

// The page is memory that all processes of a node share. The first word of the page reports that the world has ended.
// It is for code that cannot read a socket, such as kernels on a GPU. Each process writes only to its own slot in the
// rest of the page. The slot shows the other processes whether the process is alive, and its current activity.
//
//	0      abort word, 32 bits: 0, or 1 + the process that ended the world
//	4096   slots, one a process:
//	       0     heartbeats
//	       8     steps
//	       16    command
//	       24    length of the cause that this process has, or had too late
//	       32    length of the error that the process's last call ended with; 0 where it did not fail
//	       40    1 while the process is between two calls
//	       64    the last steps: number, lengths of texts, what the step is, the call, its place
//	       12352 cause
//	       16384 error
//	       18432 what the process waits for: see wait
const (
	pageHeader = 4 << 10
	pageSlot   = 20 << 10

	slotBeats   = 0
	slotSteps   = 8
	slotAt      = 16
	slotLength  = 24
	slotFailing = 32
	slotIdle    = 40
	slotRing    = 64
	slotCause   = slotRing + ringSteps*stepBytes // maxCause bytes
	slotError   = 16 << 10                       // maxError bytes
	slotWait    = 18 << 10

	ringSteps = 32
	stepBytes = 384
	stepHead  = 32
	stepText  = 112 // largest size in bytes of a step's description, and of the position of a call
	callText  = 128

	maxError = 1 << 10
)

// entry is the record of a step. The description (what) must be the same in all processes. The program's call and the
// position of that call (place) may differ between processes.
type entry struct{ what, call, place string }

// text returns the name of the call, or the description of the step if the call is unknown.
func (e entry) text() string {
	switch {
	case e.call == "":
		return e.what
	case e.place == "":
		return e.call
	}
	return e.call + " at " + e.place
}

type page struct {
	*Segment
	size int            // number of processes
	far  map[int][]byte // copies of the slots of processes on other nodes, as received in messages, in private memory
}

func pageBytes(size int) int { return pageHeader + size*pageSlot }

func newPage(size int) (*page, error) {
	s, err := NewSegment(pageBytes(size))
	if err != nil {
		return nil, err
	}
	return &page{Segment: s, size: size}, nil
}

// word32 returns a 32-bit word of shared memory.
func word32(mem []byte, at int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&mem[at : at+4][0]))
}

// word returns a word of shared memory. All accesses are atomic and sequentially consistent.
func word(mem []byte, at int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&mem[at : at+8][0]))
}

func (p *page) abortWord() *atomic.Uint32 { return word32(p.Bytes(), 0) }

// abort ends the world with the cause c of the process rank, unless the world has already ended. abort returns the
// first cause, which is valid, and reports whether that is c. Each process calls abort once.
func (p *page) abort(rank int, c cause) (first cause, own bool) {
	text := c.encode()
	s := p.slot(rank)
	copyIn(s[slotCause:], text)
	word(s, slotLength).Store(uint64(len(text)))
	phase("within abort")
	if p.abortWord().CompareAndSwap(0, uint32(rank)+1) {
		return c, true
	}
	first, _ = p.cause()
	return first, false
}

// cause returns the cause for which the world has ended, if it has ended.
func (p *page) cause() (cause, bool) {
	by := p.abortWord().Load()
	switch {
	case by == 0:
		return cause{}, false
	case by > uint32(p.size):
		return cause{}, true
	}
	s := p.slot(int(by) - 1)
	n := min(word(s, slotLength).Load(), maxCause)
	c, err := decodeCause(copyOut(s[slotCause:], int(n)))
	if err != nil {
		c = cause{} // the cause is malformed, but the world has ended
	}
	return c, true
}

// slot returns the slot of a process on the page.
func (p *page) slot(rank int) []byte {
	if s := p.far[rank]; s != nil {
		return s
	}
	return p.Bytes()[pageHeader+rank*pageSlot:][:pageSlot]
}

func (p *page) beat(rank int)            { word(p.slot(rank), slotBeats).Add(1) }
func (p *page) beats(rank int) uint64    { return word(p.slot(rank), slotBeats).Load() }
func (p *page) steps(rank int) uint64    { return word(p.slot(rank), slotSteps).Load() }
func (p *page) idle(rank int)            { word(p.slot(rank), slotIdle).Store(1) }
func (p *page) at(rank int, command int) { word(p.slot(rank), slotAt).Store(uint64(command)) }

// ring returns the memory of a step's record in the slot of a process. The records are a ring buffer.
func (p *page) ring(rank int, step uint64) []byte {
	return p.slot(rank)[slotRing+int(step%ringSteps)*stepBytes:][:stepBytes]
}

// separate puts the slot of a process into this process's private memory.
func (p *page) separate(rank int) {
	if p.far == nil {
		p.far = map[int][]byte{}
	}
	words := make([]uint64, pageSlot/8)
	p.far[rank] = unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), pageSlot)
}

// pulse returns the parts of a process's slot that are sent to processes of other nodes.
func (p *page) pulse(rank int) pulse {
	s := p.slot(rank)
	m := pulse{beats: p.beats(rank), steps: p.steps(rank), at: word(s, slotAt).Load(), idle: word(s, slotIdle).Load()}
	e, _ := p.recorded(rank, m.steps)
	m.texts = [pulseTexts]string{e.what, e.call, e.place, p.failing(rank)}
	return m
}

// storePulse stores a pulse of a process on another node. storePulse returns the number of the step if the process has
// begun a new one, and otherwise 0.
func (p *page) storePulse(rank int, m pulse) (step uint64) {
	s := p.slot(rank)
	word(s, slotBeats).Store(m.beats)
	if m.steps > p.steps(rank) {
		step = m.steps
		p.record(rank, m.steps, entry{m.texts[0], m.texts[1], m.texts[2]})
	}
	p.at(rank, int(m.at))
	p.fails(rank, m.texts[3])
	word(s, slotIdle).Store(m.idle)
	return step
}

// record writes the record of a step that a process begins, and returns the record in the form in which other processes
// read it.
func (p *page) record(rank int, step uint64, e entry) entry {
	if len(e.what) > stepText {
		sum := sha256.Sum256([]byte(e.what))
		e.what = strings.ToValidUTF8(e.what[:stepText-24], "") + "… " + hex.EncodeToString(sum[:8])
	}
	e.call, e.place = cutText(e.call, callText), lastOf(e.place, stepText)
	r := p.ring(rank, step)
	word(r, 0).Store(0) // the record is invalid until it is completely written
	set(word(r, 8), uint64(len(e.what)))
	set(word(r, 16), uint64(len(e.call)))
	set(word(r, 24), uint64(len(e.place)))
	copyIn(r[stepHead:], e.what)
	copyIn(r[stepHead+stepText:], e.call)
	copyIn(r[stepHead+stepText+callText:], e.place)
	word(r, 0).Store(step)
	s := p.slot(rank)
	set(word(s, slotAt), 0)
	set(word(s, slotIdle), 0)
	word(s, slotSteps).Store(step)
	return e
}

// recorded returns the record of a process's step, if the process has begun it and the record has
// not been overwritten by later steps.
func (p *page) recorded(rank int, step uint64) (entry, bool) {
	r := p.ring(rank, step)
	if word(r, 0).Load() != step {
		return entry{}, false
	}
	text := func(length, at, most int) string {
		return string(copyOut(r[at:], int(min(word(r, length).Load(), uint64(most)))))
	}
	e := entry{text(8, stepHead, stepText), text(16, stepHead+stepText, callText),
		text(24, stepHead+stepText+callText, stepText)}
	return e, word(r, 0).Load() == step
}

// matches returns false if a process's step has been recorded with a description other than what. It does not allocate,
// and reads one cache line of the other process if the description is short.
func (p *page) matches(rank int, step uint64, what string) bool {
	r := p.ring(rank, step)
	if word(r, 0).Load() != step {
		return true
	}
	same := min(word(r, 8).Load(), stepText) == uint64(len(what))
	for at := 0; same && at < len(what); at += 8 {
		same = word(r[stepHead:], at).Load() == wordOf(what, at)
	}
	return same || word(r, 0).Load() != step // the record may have been overwritten meanwhile
}

// fails writes the error of a process's last call; "" if it succeeded.
func (p *page) fails(rank int, why string) {
	s := p.slot(rank)
	if why == "" && word(s, slotFailing).Load() == 0 {
		return
	}
	why = cutText(why, maxError)
	copyIn(s[slotError:], why)
	word(s, slotFailing).Store(uint64(len(why)))
}

// failing returns the error of a process's last call; "" if it succeeded.
func (p *page) failing(rank int) string {
	s := p.slot(rank)
	n := min(word(s, slotFailing).Load(), maxError)
	return strings.ToValidUTF8(string(copyOut(s[slotError:], int(n))), "")
}

// cutText shortens a text to at most limit bytes by removing its end.
func cutText(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit-len("…")], "") + "…"
}

// lastOf shortens a text to its last bytes, because the end of a path is more informative than its beginning.
func lastOf(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return "…" + strings.ToValidUTF8(s[len(s)-limit+len("…"):], "")
}

// progress is a value that changes whenever a process makes progress.
type progress struct{ steps, at uint64 }

func (p *page) progress(rank int) progress {
	return progress{p.steps(rank), word(p.slot(rank), slotAt).Load()}
}

// last describes a process's last activity.
func (p *page) last(rank int) string {
	n := p.steps(rank)
	e, ok := p.recorded(rank, n)
	if n == 0 || !ok || n == 1 && e.call == "" { // in the first step all processes state the ranks that they own
		return "before its first call"
	}
	at := word(p.slot(rank), slotAt).Load()
	text := fmt.Sprintf("in step %d (%s) at command %d", n, e.what, at)
	switch {
	case word(p.slot(rank), slotIdle).Load() != 0 && e.call == "":
		text = fmt.Sprintf("after %s (step %d)", e.what, n)
	case word(p.slot(rank), slotIdle).Load() != 0:
		text = "after " + e.text()
	case e.call != "" && at == 0:
		text = "in " + e.text()
	case e.call != "":
		text = fmt.Sprintf("in %s (command %d)", e.text(), at)
	}
	if why := p.failing(rank); why != "" {
		text += "; its last call failed: " + why
	}
	return text
}

// step describes a step of a process by the program's call or, if the call is unknown, by the number of the step.
func (p *page) step(rank int, step uint64) string {
	e, ok := p.recorded(rank, step)
	switch {
	case !ok:
		return fmt.Sprintf("step %d", step)
	case e.call != "":
		return e.text()
	}
	return fmt.Sprintf("step %d (%s)", step, e.what)
}

// copyIn writes text to shared memory in whole words, since others may read it at the same time. Only this process
// writes there. Words that do not change are not stored, because a store takes the cache line from the readers.
func copyIn[T string | []byte](mem []byte, text T) {
	for at := 0; at < len(text); at += 8 {
		set(word(mem, at), wordOf(text, at))
	}
}

// set stores a value in a word that only this process writes, unless the word already has that value.
func set(w *atomic.Uint64, v uint64) {
	if w.Load() != v {
		w.Store(v)
	}
}

// wordOf returns the eight bytes of a text at an offset. Bytes after the text's end are zero.
func wordOf[T string | []byte](text T, at int) uint64 {
	var b [8]byte
	copy(b[:], text[at:])
	return *(*uint64)(unsafe.Pointer(&b))
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
