package world

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// Processes send each other packets of one message each. The first byte says what it is.
const (
	kindHello     = 'h' // JSON of a hello, both ways: the first message of a link
	kindAborted   = 'x' // JSON of a cause
	kindReady     = 'r' // from process 0 with the page's file
	kindBye       = 'b'
	kindAgreement = 'a' // sequence number, length of the step, step, value
	kindExport    = 'e' // a key, with a file

	// protocol changes when the meaning of messages or of the page does.
	protocol = 1

	maxStep    = 256
	maxKey     = 256
	maxMessage = 1 + 8 + 2 + maxStep + MaxValue
)

var kinds = map[byte]string{kindReady: "ready", kindAgreement: "agreement"}

type (
	message any

	// hello says who a process is. Its JSON is the same in all protocols.
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

	// malformed is what was received in place of a message.
	malformed struct{ error }
)

func (h hello) encode() []byte {
	text, err := json.Marshal(h)
	if err != nil {
		panic(err) // numbers and strings
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

// text names the call for people.
func (a agreement) text() string { return fmt.Sprintf("%q (agreement %d)", a.step, a.seq) }

func (e export) encode() []byte { return append([]byte{kindExport}, e.key...) }

// decode reads a message. What it returns shares no memory with packet.
func decode(packet []byte) (message, error) {
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
	}
	return nil, fmt.Errorf("a malformed message of kind %s", strconv.QuoteRune(rune(kind)))
}

// encodeRanks writes the ranks that a process owns.
func encodeRanks(ranks []int) ([]byte, error) {
	text, err := json.Marshal(ranks)
	if err == nil && len(text) > MaxValue {
		err = errors.New("more ranks of the program than a process can own")
	}
	return text, err
}

func decodeRanks(text []byte) (ranks []int, err error) {
	err = json.Unmarshal(text, &ranks)
	for _, r := range ranks {
		if r < 0 {
			err = fmt.Errorf("rank %d", r)
		}
	}
	return ranks, err
}
