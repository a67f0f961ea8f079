package nvfuser

import (
	"strconv"
	"strings"

	"hocket.example/hocket/ir"
)

// A communication runs on a stream of its communicator, concurrently with the stream that posts it. The
// communicator's stream first waits for the posting stream. An event records the end of the communication, and the
// Wait statement of the dump waits for this event.

const (
	backendNCCL = "NCCL"
	backendCUDA = "CUDA"
)

// posted describes a communication that was posted. A later Wait may wait for the communication.
type posted struct {
	event string
	ranks rankSet // the ranks that post the communication
	// group is the number of the EndCoalescing that completes the communication. group is "" if the communication is
	// not coalesced.
	group string
	// inOrder reports that the communication ran on the stream that posted it. If so, a Wait for the communication has
	// no effect.
	inOrder bool
}

// post emits a communication on a stream, and records an event after it.
func (t *comms) post(s *stmt, to streamRef, ranks rankSet, emit func()) {
	from := t.current(s.pos)
	p := t.completes(s, ranks)
	t.cur = to
	t.emit(&ir.Stmt{Op: ir.OpWait, Pos: s.pos, Args: []ir.Place{waited(from, s.pos)}}, ranks)
	emit()
	t.emit(&ir.Stmt{Op: ir.OpRecord, Pos: s.pos, Args: []ir.Place{place(p.event, s.pos)}}, ranks)
	t.cur = from
}

// completes declares the event that records the end of a communication.
func (t *comms) completes(s *stmt, ranks rankSet) *posted {
	p := &posted{event: "done" + s.id, ranks: ranks}
	t.posted[s.id] = p
	if !t.declared[p.event] {
		t.declared[p.event] = true
		event := &ir.Stmt{Op: ir.OpEvent, Pos: s.pos, Results: []ir.Name{{Pos: s.pos, Text: p.event}}}
		t.headStmts = append(t.headStmts, event)
	}
	return p
}

// postedLater handles a Wait in a loop for a transfer that the loop posts after the Wait. The Wait waits for the
// transfer of an earlier iteration. If some iteration has a Wait before any such transfer was posted, the proof of the
// program reports this.
func (t *comms) postedLater(id string) *posted {
	var found *posted
	var see func(list []*stmt)
	see = func(list []*stmt) {
		for i := 0; i < len(list) && found == nil; i++ {
			if s := list[i]; s.kind == stP2P {
				end, copies := copier(list, i)
				for _, x := range list[i:end] {
					if x.kind == stP2P && x.id == id {
						found = t.completes(x, x.out.mesh.ranks())
						found.inOrder = x.backend == backendCUDA && x.op == copies
					}
				}
				i = end - 1
			}
			see(list[i].body)
			see(list[i].alt)
		}
	}
	if len(t.around) > 0 {
		see(t.around[0].body)
	}
	return found
}

// waitComm translates the statement Wait: the current stream waits for the end of the communication.
func (t *comms) waitComm(s *stmt) {
	p := t.posted[s.id]
	if p == nil {
		p = t.postedLater(s.id)
	}
	switch {
	case p == nil:
		t.errorf(s.pos, "this waits for communication %s, which was not posted", s.id).Help =
			"post the communication above its Wait"
	case p.group != "":
		d := t.errorf(s.pos, "this waits for communication %s, which is coalesced and completes with its group", s.id)
		d.Help = "wait for EndCoalescing: Wait(Communication " + p.group + ")"
	case p.inOrder:
		t.idle = append(t.idle, s)
	default:
		t.emit(&ir.Stmt{Op: ir.OpWait, Pos: s.pos, Args: []ir.Place{place(p.event, s.pos)}}, p.ranks)
	}
}

// Hint is the suffix of the kind of a warning that Import does not report itself. A warning with this suffix explains a
// possible finding of the proof. If the proof finds an error at the same position and of the same kind without the
// suffix, for example "race", the notes of the warning are added to that error.
const Hint = " hint"

// hint adds a note for findings of the given kind at a statement.
func (t *comms) hint(kind string, at *ir.Stmt, n ir.Note) {
	d := t.errorf(at.Pos, "%s", n.Message)
	d.Severity, d.Kind, d.Notes = ir.Warning, kind+Hint, []ir.Note{n}
}

// idleWaits adds hints for Waits that have no effect. Each hint is at the transfer for which the Wait waits.
func (t *comms) idleWaits() {
	for _, s := range t.idle {
		for _, x := range t.copies[s.id] {
			line := strconv.Itoa(int(s.pos.Line))
			x.Comments.Trail += "; the Wait in line " + line + " has no effect"
			t.hint("race", x, ir.Note{Pos: s.pos, Message: "line " + line + ": Wait Communication " + s.id +
				" has no effect: a CUDA " + x.Op.String() + " copies on the stream that posts it"})
		}
	}
}

// commStream returns the stream of a communicator. For each backend, there is one communicator per list of devices.
func (t *streams) commStream(m *mesh, backend string, pos ir.Pos) streamRef {
	axis := ir.WorldAxis
	if tm := t.teamOf(m); tm != nil {
		axis = tm.axis
	}
	name := strings.ToLower(backend) + "_" + axis
	t.declareStream(name, nil, pos)
	return streamRef{key: name, place: place(name, pos)}
}

// pairStream returns the stream on which this rank communicates with the peer of a send or recv. NCCL has one stream
// for each pair of ranks. With CUDA, the signal that a buffer is ready does not wait for other communications, so each
// communication has a separate stream.
func (t *streams) pairStream(s *stmt) streamRef {
	name, peer := strings.ToLower(s.backend)+"_p2p", t.expr(s.index)
	if s.backend == backendCUDA {
		name = "cuda_p2p" + s.id
	}
	t.declareStream(name, num(s.pos, t.world), s.pos)
	at := ir.At(name, peer)
	at.Pos = s.pos
	return streamRef{key: name + " " + peer.String(), place: at}
}

// declareStream declares a stream, or an array of count streams, at the beginning of the function.
func (t *output) declareStream(name string, count *ir.Expr, pos ir.Pos) {
	if !t.declared[name] {
		t.declared[name] = true
		s := &ir.Stmt{Op: ir.OpStream, Pos: pos, Results: []ir.Name{{Pos: pos, Text: name}}, Count: count}
		t.headStmts = append(t.headStmts, s)
	}
}

// everyDevice returns the mesh of all devices, on which sends and recvs are executed.
func (t *output) everyDevice() *mesh {
	m := &mesh{}
	for d := range t.world {
		m.devices = append(m.devices, d)
	}
	return m
}

// waited returns a stream as the operand of a wait at pos.
func waited(s streamRef, pos ir.Pos) ir.Place {
	p := s.place
	p.Pos = pos
	return p
}
