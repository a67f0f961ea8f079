package world

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// Processes send packets to each other, each of which contains one message. The first byte is the kind of the message.
const (
	kindHello     = 'h' // the first message of a link, in both directions: a hello as JSON
	kindAborted   = 'x' // JSON of a cause
	kindReady     = 'r' // the sender has all its links; process 0 of a node adds the page's file
	kindBye       = 'b'
	kindAgreement = 'a' // sequence number, length of the step's text, the step's text, value
	kindExport    = 'e' // a key, with a file
	kindPulse     = 'p' // a slot of the page, for other nodes: heartbeats, steps, command, idle, texts with lengths
	kindArrival   = 'n' // an arrival as JSON: one to process 0, and then from process 0 one for each process
	kindWanted    = 'w' // number of a wire, number of bytes
	kindData      = 'd' // number of a wire, data

	// protocol is the version of the protocol. The version changes when the meaning of messages or of the page changes.
	protocol = 3
	// pulseTexts is the number of texts in a pulse, and mostText the largest length in bytes of each text.
	pulseTexts = 4
	mostText   = maxError

	maxStep    = 256
	maxKey     = 256
	minToken   = 16 // in bytes; a shorter token could be found from a proof by trying all tokens
	maxToken   = 1 << 10
	dataHeader = 1 + 8
	tcpPayload = 32<<10 - 4 - dataHeader // data bytes in a message between nodes: a message fills two TLS records
	maxMessage = 1 + 8 + 2 + maxStep + MaxValue
)

var kinds = map[byte]string{kindAgreement: "agreement"}

type (
	message any

	// hello identifies a process. The JSON of a hello is the same in all versions of the protocol.
	hello struct {
		Protocol int
		ID       string // of the run
		Size     int
		member
	}
	aborted   struct{ cause cause }
	ready     struct{}
	bye       struct{}
	agreement struct {
		seq   uint64
		step  string
		value []byte
	}
	export struct{ key string }
	pulse  struct {
		beats, steps, at, idle uint64
		texts                  [pulseTexts]string // the last step's description, call and place; the last call's error
	}
	arrival struct {
		hello
		Node string // name of the node
		Addr string // address where the process listens; in an arrival sent to process 0, only the port
	}
	wanted struct{ wire, bytes uint64 }
	data   struct {
		wire  uint64
		bytes []byte // a part of the received packet, not a copy
	}

	// malformed is the error for a packet that is not a valid message.
	malformed struct{ error }
)

func (h hello) encode() []byte {
	text, err := json.Marshal(h)
	if err != nil {
		panic(err) // cannot fail, because the value contains only numbers and strings
	}
	return append([]byte{kindHello}, text...)
}

func encodeCause(c cause) []byte { return append([]byte{kindAborted}, c.encode()...) }

func encodeReady() []byte { return []byte{kindReady} }

func encodeBye() []byte { return []byte{kindBye} }

func (a agreement) encode() []byte {
	b := make([]byte, 0, 11+len(a.step)+len(a.value))
	b = append(b, kindAgreement)
	b = binary.LittleEndian.AppendUint64(b, a.seq)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(a.step)))
	b = append(b, a.step...)
	return append(b, a.value...)
}

// text describes the call of Agree, for messages.
func (a agreement) text() string { return fmt.Sprintf("%q (agreement %d)", a.step, a.seq) }

func (e export) encode() []byte { return append([]byte{kindExport}, e.key...) }

func (p pulse) encode() []byte {
	b := []byte{kindPulse}
	for _, v := range []uint64{p.beats, p.steps, p.at, p.idle} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	for _, text := range p.texts {
		b = append(binary.LittleEndian.AppendUint16(b, uint16(len(text))), text...)
	}
	return b
}

// decodePulse decodes a pulse without its first byte.
func decodePulse(body []byte) (p pulse, ok bool) {
	if len(body) < 4*8 {
		return p, false
	}
	u := binary.LittleEndian.Uint64
	p.beats, p.steps, p.at, p.idle, body = u(body), u(body[8:]), u(body[16:]), u(body[24:]), body[32:]
	for i := range p.texts {
		if len(body) < 2 {
			return p, false
		}
		n := int(binary.LittleEndian.Uint16(body))
		if body = body[2:]; n > mostText || n > len(body) {
			return p, false
		}
		p.texts[i], body = string(body[:n]), body[n:]
	}
	return p, len(body) == 0
}

func (a arrival) encode() []byte {
	text, err := json.Marshal(a)
	if err != nil {
		panic(err) // cannot fail, because the value contains only numbers and strings
	}
	return append([]byte{kindArrival}, text...)
}

func (m wanted) encode() []byte {
	b := binary.LittleEndian.AppendUint64([]byte{kindWanted}, m.wire)
	return binary.LittleEndian.AppendUint64(b, m.bytes)
}

func (d data) append(b []byte) []byte {
	return append(binary.LittleEndian.AppendUint64(append(b, kindData), d.wire), d.bytes...)
}

// decode decodes a message. The result shares no memory with packet, except for data.
func decode(packet []byte) (message, error) {
	if len(packet) > dataHeader && len(packet) <= dataHeader+tcpPayload && packet[0] == kindData {
		return data{binary.LittleEndian.Uint64(packet[1:]), packet[dataHeader:]}, nil
	}
	if len(packet) == 0 || len(packet) > maxMessage {
		return nil, fmt.Errorf("a packet of %d bytes", len(packet))
	}
	kind, body := packet[0], packet[1:]
	switch kind {
	case kindHello:
		var h hello
		if err := json.Unmarshal(body, &h); err != nil {
			return nil, err
		}
		return h, nil
	case kindAborted:
		c, err := decodeCause(body)
		return aborted{c}, err
	case kindReady:
		if len(body) == 0 {
			return ready{}, nil
		}
	case kindBye:
		if len(body) == 0 {
			return bye{}, nil
		}
	case kindAgreement:
		if len(body) < 10 {
			break
		}
		a := agreement{seq: binary.LittleEndian.Uint64(body)}
		n := int(binary.LittleEndian.Uint16(body[8:]))
		body = body[10:]
		if n > maxStep || n > len(body) || len(body)-n > MaxValue {
			break
		}
		a.step = string(body[:n])
		a.value = append([]byte{}, body[n:]...)
		return a, nil
	case kindExport:
		if 0 < len(body) && len(body) <= maxKey {
			return export{string(body)}, nil
		}
	case kindPulse:
		if p, ok := decodePulse(body); ok {
			return p, nil
		}
	case kindArrival:
		var a arrival
		if err := json.Unmarshal(body, &a); err != nil {
			return nil, err
		}
		return a, nil
	case kindWanted:
		if len(body) == 16 {
			u := binary.LittleEndian.Uint64
			return wanted{u(body), u(body[8:])}, nil
		}
	}
	return nil, fmt.Errorf("a malformed message of kind %s", strconv.QuoteRune(rune(kind)))
}

// membership is the information that each process sends to the others when all have joined.
type membership struct {
	Build build
	Ranks []int // the ranks of the program that the process owns
}

func (m membership) encode() ([]byte, error) {
	text, err := json.Marshal(m)
	if err == nil && len(text) > MaxValue {
		err = errors.New("more ranks of the program than a process can own")
	}
	return text, err
}

func decodeMembership(text []byte) (m membership, err error) {
	err = json.Unmarshal(text, &m)
	for _, r := range m.Ranks {
		if r < 0 {
			err = fmt.Errorf("rank %d", r)
		}
	}
	return m, err
}
