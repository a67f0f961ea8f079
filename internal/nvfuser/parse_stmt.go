package nvfuser

import (
	"strconv"
	"strings"

	"hocket.example/hocket/ir"
)

// statement reads one statement of a container or kernel.
func (c *cursor) statement() *stmt {
	s := &stmt{pos: c.pos()}
	if c.atTensor() {
		c.definition(s)
		return s
	}
	word := c.word("a statement")
	switch word {
	case "GetCurrentStream":
		c.want("into")
		s.kind, s.stream = stGetStream, c.stream()
	case "Stream":
		s.kind, s.stream = stGetStream, c.streamBody()
		c.want("=")
		c.want("GetCurrentStream")
		c.want("(")
		c.want(")")
	case "SetCurrentStream":
		s.kind, s.stream = stSetStream, c.streamOperand("to")
	case "Synchronize":
		s.kind, s.stream = stSync, c.streamOperand("")
	case "FOR":
		c.loop(s)
	case "IF":
		c.conditional(s)
	case "Communication", "CollectivePermute":
		c.communication(s, word)
	case "P2PCommunication":
		c.p2p(s)
	case "Wait":
		c.wait(s)
	case "StartCoalescing":
		s.kind = stStartGroup
	case "EndCoalescing":
		s.kind, s.id = stEndGroup, c.ident()
	case "ShareMemHandles":
		s.kind = stShareHandles
		c.handles(s)
	case "PostOnStream":
		c.post(s)
	case "Deallocate":
		s.kind = stDeallocate
		c.want("{")
		s.out = c.tensor()
		c.want("}")
	case "LaunchKernel":
		c.fail("LaunchKernel launches a kernel whose text is not in the dump").Help =
			"the dump does not say what the kernel computes; dump the program of MultiDeviceExecutor, which " +
				"prints its HostUnits"
	default:
		if !c.bad {
			c.failAt(s.pos, "this line cannot be read: no supported statement begins with \""+brief(word)+"\"")
		}
	}
	return s
}

// failAt is like fail, but reports the error at a position before the current token.
func (c *words) failAt(pos ir.Pos, message string) {
	if d := c.fail(message); d.Message != "" {
		d.Pos, d.Line = pos, c.r.sourceLine(pos)
	}
}

// ident reads the number of a communication.
func (c *words) ident() string {
	if c.tok.kind != tokNumber {
		c.expected("a number")
		return ""
	}
	return c.advance().text
}

// stream reads "Stream 0x1", "Stream i5" or "Stream ( i5 % n )".
func (c *cursor) stream() streamName {
	c.want("Stream")
	return c.streamBody()
}

func (c *cursor) streamBody() streamName {
	n := streamName{pos: c.pos()}
	if c.tok.kind == tokNumber && strings.HasPrefix(c.tok.text, "0x") {
		if !isName(c.tok.text[1:]) {
			c.expected("an address")
		}
		n.name = c.advance().text
		return n
	}
	n.index = c.scalar()
	if n.index.isInt() {
		// the number is the name that GetCurrentStream gave to a captured stream, or the index of a stream
		n.name = strconv.FormatInt(n.index.val, 10)
	}
	return n
}

// streamOperand reads "to Stream …" or "(Stream …)".
func (c *cursor) streamOperand(before string) streamName {
	if c.got("(") {
		n := c.stream()
		c.want(")")
		return n
	}
	if before != "" {
		c.want(before)
	}
	return c.stream()
}

// loop reads "FOR i in iS0{8}:" or "FOR i from 0 to 3:".
func (c *cursor) loop(s *stmt) {
	s.kind, s.id = stFor, c.name("a loop variable")
	switch {
	case c.got("in"):
		a := c.axis()
		s.index, s.hi = &scalar{pos: a.pos}, a.extent
	case c.got("from"):
		s.fromTo = true
		s.index = c.scalar()
		c.want("to")
		s.hi = c.scalar()
	default:
		c.expected("\"in\" or \"from\"")
	}
	c.want(":")
}

// conditional reads "IF Manual ( a == b ):".
func (c *cursor) conditional(s *stmt) {
	s.kind = stIf
	c.word("the predicate's kind, such as Manual")
	s.index = c.scalar()
	c.want(":")
}

// communication reads "Communication 34 (type=…, team=(…), input=…, output=…)".
func (c *cursor) communication(s *stmt, word string) {
	s.kind, s.id, s.red, s.backend = stComm, c.ident(), ir.Sum, backendNCCL
	if word == "CollectivePermute" {
		s.op = word
	}
	c.fields(func(key string) bool {
		switch strings.ToLower(key) {
		case "type":
			s.op = c.word("a type of communication")
		case "team":
			s.team = c.devices("(", ")")
		case "input":
			s.in = append(s.in, operand{t: c.tensor()})
		case "output":
			s.out = c.tensor()
		case "root", "send_peer":
			s.index = c.scalar()
		case "recv_peer":
			s.hi = c.scalar()
		case "red_op", "reduce_op", "op":
			c.reduction(s)
		case "backend":
			s.backend = c.backend()
		default:
			return false
		}
		return true
	})
	if !c.bad && (s.out == nil || len(s.in) != 1 || s.team == nil || s.op == "") {
		c.failAt(s.pos, "this communication has no type, team, input or output")
	}
}

// backend reads the backend of a communication, for example NCCL. The names of streams contain it.
func (c *words) backend() string {
	if c.tok.kind == tokWord && !isName(c.tok.text) {
		c.expected("a backend")
		return ""
	}
	return c.word("a backend")
}

func (c *words) reduction(s *stmt) {
	word := c.word("a reduction")
	red, ok := ir.ParseRed(strings.ToLower(word))
	if !ok && !c.bad {
		c.fail("the reduction " + brief(word) + " is not supported: use sum, max, min or avg")
	}
	s.red = red
}

// p2p reads "P2PCommunication 30 (type=recv, buffer=…, peer=…)".
func (c *cursor) p2p(s *stmt) {
	s.kind, s.id, s.backend = stP2P, c.ident(), backendNCCL
	c.fields(func(key string) bool {
		switch key {
		case "type":
			s.op = strings.ToLower(c.word("send or recv"))
		case "buffer":
			s.out = c.tensor()
		case "peer":
			s.index = c.scalar()
		case "backend":
			s.backend = c.backend()
		default:
			return false
		}
		return true
	})
	if !c.bad && (s.out == nil || s.index == nil || s.op != "send" && s.op != "recv") {
		c.failAt(s.pos, "this P2PCommunication has no type (send or recv), buffer or peer")
	}
}

// fields reads "(key=value, …)". It calls the function value to read the value of each key.
func (c *words) fields(value func(key string) bool) {
	c.want("(")
	for !c.bad && !c.is(")") {
		pos := c.pos()
		key := c.word("a field's name")
		c.want("=")
		if !c.bad && !value(key) {
			c.failAt(pos, "this statement has the field "+brief(key)+", which is not supported")
		}
		if !c.got(",") {
			break
		}
	}
	c.want(")")
}

// wait reads "Wait Communication 34" or "Wait(Communication 34)".
func (c *cursor) wait(s *stmt) {
	s.kind = stWait
	inside := c.got("(")
	if !c.got("P2PCommunication") && !c.got("EndCoalescing") && !c.got("CollectivePermute") {
		c.want("Communication")
	}
	s.id = c.ident()
	if inside {
		c.want(")")
	}
}

// handles reads the communications of a ShareMemHandles. nvFuser does not print the closing parenthesis of the list.
func (c *cursor) handles(s *stmt) {
	c.want("(")
	for !c.bad && c.got("P2PCommunication") {
		one := &stmt{pos: c.pos()}
		c.p2p(one)
		s.shared = append(s.shared, one)
		if !c.got(",") {
			break
		}
	}
	c.got(")")
}

// post reads "PostOnStream (HostUnit0, Inputs:{…}, Outputs:{…})".
func (c *cursor) post(s *stmt) {
	s.kind = stPost
	c.want("(")
	s.id = c.word("a HostUnit")
	c.want(",")
	c.want("Inputs")
	c.want(":")
	s.ins = c.tensorList("{", "}")
	c.want(",")
	c.want("Outputs")
	c.want(":")
	s.outs = c.tensorList("{", "}")
	c.want(")")
}
