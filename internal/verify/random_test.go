package verify_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// randomProgram is a small program as data: the test generates the program's text from these data, and the oracle
// executes them without reading the text. All ranks are on one axis, tp. Buffers are symmetric, with one block of two
// elements for each rank. Counter k has one element for each rank and is raised only on stream k. Either rank i raises
// element i, or the rank at a fixed distance from rank i does.
type randomProgram struct {
	ranks   int
	streams int // with main, which is 0
	buffers int // the first is returned
	events  int
	loops   []int // trip counts of loops 1, 2, …
	steps   []randomStep
}

type stepKind int

const (
	doUse       stepKind = iota // read %x, write b
	doFill                      // write b
	doRelu                      // read a, write b
	doPut                       // copy a to b on the peer
	doGet                       // copy a on the peer to b
	doSignal                    // raise the stream's counter on the peer
	doWait                      // wait until counter k is at least value
	doRecord                    // record event k
	doEvent                     // wait for event k
	doStream                    // wait for the work issued to stream k so far
	doBarrier                   // all ranks
	doReduce                    // all_reduce a into b
	doPermute                   // send a to the peer, receive b from the rank at the same distance before
	doBroadcast                 // broadcast a of rank k into b
	doTransfer                  // like doPermute, as a send and a recv in one group
	doSend                      // send a to the peer
	doRecv                      // receive b from the rank at the same distance before
)

// randomStep is one statement. Consecutive steps of the same loop are the body of that loop.
type randomStep struct {
	kind     stepKind
	stream   int
	a, b     randomPart
	peer     spot // always turned
	elem     spot
	k, value int
	loop     int  // 0 for none
	only     int  // the rank that alone executes the step; -1 for all
	not      bool // set if all ranks except that one execute the step
}

// spot is a number below the number of ranks. The number is the sum of at, of the rank if turned is set, and of the
// loop's variable if moving is set.
type spot struct {
	at             int
	turned, moving bool
}

func (p spot) value(rank, i, ranks int) int {
	v := p.at
	if p.turned {
		v += rank
	}
	if p.moving {
		v += i
	}
	return v % ranks
}

func (p spot) text(ranks int) string {
	s := fmt.Sprint(p.at)
	if p.turned {
		s = "rank(tp) + " + s
	}
	if p.moving {
		s += " + %i"
	}
	return fmt.Sprintf("(%s) mod %d", s, ranks)
}

// randomPart is a buffer, or one block of a buffer.
type randomPart struct {
	buffer int
	whole  bool
	spot
}

// newRandomProgram generates a program from motifs, which are common correct patterns, and then adds mistakes.
func newRandomProgram(r *rand.Rand, ranks, motifs, mistakes int) *randomProgram {
	p := &randomProgram{ranks: ranks, streams: 2 + r.IntN(2), buffers: 2 + r.IntN(2), events: 2}
	p.add(randomStep{kind: doUse, b: randomPart{whole: true}})
	for b := 1; b < p.buffers; b++ {
		p.add(randomStep{kind: doFill, b: randomPart{buffer: b, whole: true}})
	}
	for s := 1; s < p.streams; s++ {
		p.add(randomStep{kind: doStream, stream: s})
	}
	for range motifs {
		p.motif(r)
	}
	for s := 1; s < p.streams; s++ {
		p.add(randomStep{kind: doStream, k: s})
	}
	for range mistakes {
		p.mistake(r)
	}
	return p
}

func (p *randomProgram) add(steps ...randomStep) {
	for _, s := range steps {
		s.only = -1
		p.steps = append(p.steps, s)
	}
}

func (p *randomProgram) part(r *rand.Rand) randomPart {
	return randomPart{r.IntN(p.buffers), r.IntN(4) == 0, spot{at: r.IntN(p.ranks), turned: r.IntN(3) > 0}}
}

// pair returns two parts of the same shape.
func (p *randomProgram) pair(r *rand.Rand) (a, b randomPart) {
	a, b = p.part(r), p.part(r)
	b.whole = a.whole
	if r.IntN(3) == 0 {
		b = a
	}
	return a, b
}

// motif adds a pattern of statements that is correct unless it interferes with another pattern.
func (p *randomProgram) motif(r *rand.Rand) {
	n, s := p.ranks, 1+r.IntN(p.streams-1)
	a, b := p.pair(r)
	ahead := 1 + r.IntN(max(n-1, 1))
	peer := spot{at: ahead, turned: true}
	back := spot{at: (n - ahead%n) % n, turned: true}
	mine := spot{turned: true}
	last := p.buffers - 1
	fork, join := randomStep{kind: doStream, stream: s}, randomStep{kind: doStream, k: s}
	switch r.IntN(12) {
	case 0: // work on a stream
		p.add(fork, randomStep{kind: doRelu, stream: s, a: a, b: b}, join)
	case 1: // a put that is announced
		p.add(randomStep{kind: doBarrier}, fork,
			randomStep{kind: doPut, stream: s, a: randomPart{0, false, mine}, b: randomPart{1, false, mine},
				peer: peer},
			randomStep{kind: doSignal, stream: s, elem: mine, peer: peer},
			randomStep{kind: doWait, k: s, elem: back, value: 1},
			randomStep{kind: doRelu, a: randomPart{1, false, back}, b: randomPart{last, false, back}}, join)
	case 2: // an exchange: each rank puts its block to all ranks, then reads the blocks of all ranks
		p.loops = append(p.loops, n-1, n-1)
		l := len(p.loops)
		next := spot{at: 1, turned: true, moving: true}
		p.add(randomStep{kind: doBarrier}, fork,
			randomStep{kind: doPut, stream: s, a: randomPart{0, false, mine}, b: randomPart{1, false, mine}, peer: next,
				loop: l - 1},
			randomStep{kind: doSignal, stream: s, elem: mine, peer: next, loop: l - 1},
			randomStep{kind: doWait, k: s, elem: next, value: 1, loop: l},
			randomStep{kind: doRelu, a: randomPart{1, false, next}, b: randomPart{last, false, next}, loop: l}, join)
	case 3: // a ring of transfers
		p.add(fork, randomStep{kind: doTransfer, stream: s, a: randomPart{0, false, mine},
			b: randomPart{1, false, back}, peer: peer}, join)
	case 4: // a collective on a stream; main waits for an event after it
		p.add(fork, randomStep{kind: doReduce, stream: s, a: a, b: b}, randomStep{kind: doRecord, stream: s, k: 1},
			randomStep{kind: doEvent, k: 1}, randomStep{kind: doRelu, a: b, b: b})
	case 5:
		p.add(randomStep{kind: doPermute, a: a, b: b, peer: peer})
	case 6: // collectives of some chunks on a stream while other chunks are computed
		l := len(p.loops) + 1
		p.loops = append(p.loops, n)
		at := spot{moving: true}
		p.add(randomStep{kind: doRelu, a: randomPart{0, false, at}, b: randomPart{last, false, at}, loop: l},
			randomStep{kind: doStream, stream: s, loop: l},
			randomStep{kind: doReduce, stream: s, a: randomPart{last, false, at}, b: randomPart{last, false, at},
				loop: l})
		p.add(join)
	case 7:
		p.add(randomStep{kind: doBroadcast, stream: s, k: r.IntN(n), a: a, b: b}, join)
	case 8: // a get between two barriers
		p.add(randomStep{kind: doBarrier}, randomStep{kind: doGet, a: a, b: b, peer: peer}, randomStep{kind: doBarrier})
	case 9: // a send and its recv on two different streams
		p.add(fork, randomStep{kind: doSend, stream: s, a: randomPart{0, false, mine}, peer: peer},
			randomStep{kind: doRecv, b: randomPart{1, false, back}, peer: peer}, join)
	case 10:
		p.add(randomStep{kind: doRelu, a: a, b: b})
	case 11: // a credit is passed around the ring of ranks
		p.add(randomStep{kind: doSignal, elem: mine, peer: peer},
			randomStep{kind: doWait, k: 0, elem: back, value: 1 + p.signals(0)})
	}
}

// signals returns the number of signals of a counter so far.
func (p *randomProgram) signals(k int) int {
	n := 0
	for _, s := range p.steps {
		if s.kind == doSignal && s.stream == k {
			n++
		}
	}
	return n
}

// mistake makes a random change, which may make the program incorrect.
func (p *randomProgram) mistake(r *rand.Rand) {
	i := r.IntN(len(p.steps))
	s := &p.steps[i]
	switch r.IntN(14) {
	case 0, 1, 2:
		p.steps = append(p.steps[:i], p.steps[i+1:]...)
	case 3:
		if j := r.IntN(len(p.steps)); s.loop == 0 && p.steps[j].loop == 0 {
			p.steps[i], p.steps[j] = p.steps[j], p.steps[i]
		}
	case 4:
		s.a.at = (s.a.at + 1) % p.ranks
	case 5:
		s.b.turned = !s.b.turned
	case 6:
		s.peer.at = r.IntN(p.ranks)
	case 7:
		s.only, s.not = r.IntN(p.ranks), r.IntN(2) == 0
	case 9: // separates a send and a recv that must be posted together
		if s.kind == doTransfer {
			recv := *s
			s.kind, recv.kind = doSend, doRecv
			p.steps = append(p.steps[:i+1], append([]randomStep{recv}, p.steps[i+1:]...)...)
		}
	case 10, 11, 12: // swaps two adjacent steps
		if i+1 < len(p.steps) && s.loop == p.steps[i+1].loop {
			p.steps[i], p.steps[i+1] = p.steps[i+1], p.steps[i]
		}
	case 13: // issues a collective in another order on one rank
		q := *s
		if s.kind == doReduce || s.kind == doBarrier || s.kind == doPermute {
			s.only, s.not = 0, true
			q.only, q.not = 0, false
			q.stream = r.IntN(p.streams)
			p.steps = append(p.steps, q)
		}
	case 8:
		if s.kind != doSignal { // a signal must remain on its stream, since only one stream raises a counter
			s.stream = r.IntN(p.streams)
		}
	}
}

// text returns the text of the program.
func (p *randomProgram) text() string {
	var b strings.Builder
	size := 2 * p.ranks
	fmt.Fprintf(&b, "mesh tp[%d]\nfunc f(%%x: f32[%d]) -> f32[%d] {\n", p.ranks, size, size)
	for s := 1; s < p.streams; s++ {
		fmt.Fprintf(&b, "  %%s%d = stream\n", s)
	}
	for s := range p.streams {
		fmt.Fprintf(&b, "  %%c%d = counter[%d]\n", s, p.ranks)
	}
	fmt.Fprintf(&b, "  %%e = event[%d]\n", p.events)
	for i := range p.buffers {
		fmt.Fprintf(&b, "  %%b%d = alloc f32[%d] symmetric\n", i, size)
	}
	in := 0
	for i := range p.steps {
		s := &p.steps[i]
		if s.loop != in {
			if in > 0 {
				b.WriteString("  }\n")
			}
			if in = s.loop; in > 0 {
				fmt.Fprintf(&b, "  for %%i in 0..%d {\n", p.loops[in-1])
			}
		}
		p.write(&b, s, i)
	}
	if in > 0 {
		b.WriteString("  }\n")
	}
	b.WriteString("  return %b0\n}\n")
	return b.String()
}

func (p *randomProgram) write(b *strings.Builder, s *randomStep, number int) {
	if s.only >= 0 {
		cmp := "=="
		if s.not {
			cmp = "!="
		}
		fmt.Fprintf(b, "  if rank(tp) %s %d {\n", cmp, s.only)
		defer b.WriteString("  }\n")
	}
	if s.stream > 0 {
		fmt.Fprintf(b, "  on %%s%d {\n", s.stream)
		defer b.WriteString("  }\n")
	}
	name := func(part randomPart, word string) string {
		if part.whole {
			return fmt.Sprintf("%%b%d", part.buffer)
		}
		v := fmt.Sprintf("%%%s%d", word, number)
		fmt.Fprintf(b, "    %s = chunk %%b%d, axis=0, %s of %d\n", v, part.buffer, part.text(p.ranks), p.ranks)
		return v
	}
	a := func() string { return name(s.a, "p") }
	to := func() string { return name(s.b, "q") }
	n := p.ranks
	peer := s.peer.text(n)
	back := fmt.Sprintf("(rank(tp) + %d) mod %d", (n-s.peer.at%n)%n, n)
	if s.peer.moving {
		back = fmt.Sprintf("(rank(tp) + %d - %%i) mod %d", 2*n-s.peer.at%n, n)
	}
	switch s.kind {
	case doUse:
		fmt.Fprintf(b, "    relu %%x into %%b%d\n", s.b.buffer)
	case doFill:
		fmt.Fprintf(b, "    fill into %s, value=1\n", to())
	case doRelu:
		fmt.Fprintf(b, "    relu %s into %s\n", a(), to())
	case doPut:
		fmt.Fprintf(b, "    put %s into %s at tp[%s]\n", a(), to(), peer)
	case doGet:
		fmt.Fprintf(b, "    get %s at tp[%s] into %s\n", a(), peer, to())
	case doSignal:
		fmt.Fprintf(b, "    signal %%c%d[%s] at tp[%s]\n", s.stream, s.elem.text(n), peer)
	case doWait:
		fmt.Fprintf(b, "    wait %%c%d[%s] >= %d\n", s.k, s.elem.text(n), s.value)
	case doRecord:
		fmt.Fprintf(b, "    record %%e[%d]\n", s.k)
	case doEvent:
		fmt.Fprintf(b, "    wait %%e[%d]\n", s.k)
	case doStream:
		on := "main"
		if s.k > 0 {
			on = fmt.Sprintf("%%s%d", s.k)
		}
		fmt.Fprintf(b, "    wait %s\n", on)
	case doBarrier:
		b.WriteString("    barrier over=tp\n")
	case doReduce:
		fmt.Fprintf(b, "    all_reduce %s into %s, over=tp, op=sum\n", a(), to())
	case doPermute:
		fmt.Fprintf(b, "    permute %s into %s, over=tp, to=%s, from=%s\n", a(), to(), peer, back)
	case doBroadcast:
		fmt.Fprintf(b, "    broadcast %s into %s, over=tp, root=%d\n", a(), to(), s.k)
	case doTransfer:
		from, into := a(), to()
		fmt.Fprintf(b, "    group {\n      send %s to tp[%s]\n      recv %s from tp[%s]\n    }\n", from, peer, into,
			back)
	case doSend:
		fmt.Fprintf(b, "    send %s to tp[%s]\n", a(), peer)
	case doRecv:
		fmt.Fprintf(b, "    recv %s from tp[%s]\n", to(), back)
	}
}
