// Package jsonscan reads a JSON document of any length, one value at a time. The package needs memory for only one
// value.
package jsonscan

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"hocket.example/hocket/internal/jsontext"
)

// Scanner reads a JSON document from its start to its end.
type Scanner struct {
	r   *bufio.Reader
	buf []byte
	// line and column, from 1, are the position of the next byte. columnBefore is the column of the last byte that was
	// read.
	line, column, columnBefore int
	last                       byte // last is the last byte that was read
	beginLine, beginColumn     int  // position at which the value begins that Raw returned last
}

// New returns a scanner of r.
func New(r io.Reader) *Scanner { return &Scanner{r: bufio.NewReaderSize(r, 1<<16), line: 1, column: 1} }

// ErrTooLong is wrapped by errors about a value that is longer than its limit.
var ErrTooLong = errors.New("longer than its limit")

// errorf prefixes an error with its position.
func (s *Scanner) errorf(format string, args ...any) error {
	return fmt.Errorf("line %d, column %d: %w", s.line, s.column, fmt.Errorf(format, args...))
}

func (s *Scanner) next() (byte, error) {
	b, err := s.r.ReadByte()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, s.errorf("the document is cut short: %w", err)
	}
	s.columnBefore, s.last = s.column, b
	switch {
	case b == '\n':
		s.line, s.column = s.line+1, 1
	case b&0xc0 != 0x80: // count characters of UTF-8 by their first bytes
		s.column++
	}
	return b, nil
}

func (s *Scanner) back() {
	_ = s.r.UnreadByte() // undo the last call of next
	if s.column = s.columnBefore; s.last == '\n' {
		s.line--
	}
}

// Peek returns the first byte of the next value without reading it.
func (s *Scanner) Peek() (byte, error) {
	for {
		b, err := s.next()
		if err != nil {
			return 0, err
		}
		if b != ' ' && b != '\t' && b != '\n' && b != '\r' {
			s.back()
			return b, nil
		}
	}
}

// take reads the byte c, which may follow white space.
func (s *Scanner) take(c byte) error {
	b, err := s.Peek()
	if err != nil {
		return err
	}
	if b != c {
		return s.errorf("%q where %q is expected", b, c)
	}
	_, err = s.next()
	return err
}

// Object calls field with each key of an object. field must read the value.
func (s *Scanner) Object(field func(key string) error) error {
	return s.members('{', '}', func() error {
		raw, err := s.Raw(1 << 16)
		if err != nil {
			return err
		}
		if len(raw) < 2 || raw[0] != '"' {
			return s.errorf("%.20q is not a key", raw)
		}
		key := string(raw[1 : len(raw)-1])
		if err := s.take(':'); err != nil {
			return err
		}
		return field(key)
	})
}

// End returns an error if anything except white space follows the value that was read last.
func (s *Scanner) End() error {
	b, err := s.Peek()
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	if err == nil {
		help := "remove it"
		if b == '{' || b == '[' {
			help = "the file has several documents; give one in each file"
		}
		err = s.errorf("%q follows the end of the document: %s", b, help)
	}
	return err
}

// Array calls element for each element of an array. The function element must read the element.
func (s *Scanner) Array(element func() error) error { return s.members('[', ']', element) }

func (s *Scanner) members(open, shut byte, each func() error) error {
	if err := s.take(open); err != nil {
		return err
	}
	for first := true; ; first = false {
		b, err := s.Peek()
		if err != nil {
			return err
		}
		if b == shut {
			_, err := s.next()
			return err
		}
		if !first {
			if err := s.take(','); err != nil {
				return err
			}
			if b, err = s.Peek(); err != nil {
				return err
			}
			if b == shut { // a superfluous comma, which some programs write
				continue
			}
		}
		if err := each(); err != nil {
			return err
		}
	}
}

// Raw returns the text of the next value. The returned text is valid until the next call of Raw. Raw checks that the
// brackets in the text match, but not that it is otherwise valid JSON.
func (s *Scanner) Raw(limit int) ([]byte, error) {
	s.buf = s.buf[:0]
	if _, err := s.Peek(); err != nil {
		return nil, err
	}
	s.beginLine, s.beginColumn = s.line, s.column
	err := s.value(func(b byte) error {
		if len(s.buf) >= limit {
			return s.errorf("a value of more than %d bytes: %w", limit, ErrTooLong)
		}
		s.buf = append(s.buf, b)
		return nil
	})
	return s.buf, err
}

// Begin describes the position of the value that Raw returned last, such as "line 3, column 7".
func (s *Scanner) Begin() string {
	return fmt.Sprintf("line %d, column %d", s.beginLine, s.beginColumn)
}

// Decode decodes the text that Raw returned last. Errors of Decode have a position in the document.
func (s *Scanner) Decode(raw []byte, into any) error {
	err := json.Unmarshal(raw, into)
	if err == nil {
		return nil
	}
	e := jsontext.Locate(raw, err)
	if e.Line == 1 {
		e.Column += s.beginColumn - 1
	}
	e.Line += s.beginLine - 1
	return e
}

// Skip reads the next value and discards it.
func (s *Scanner) Skip() error { return s.value(func(byte) error { return nil }) }

func (s *Scanner) value(keep func(b byte) error) error {
	if _, err := s.Peek(); err != nil {
		return err
	}
	depth, text, escaped, begun := 0, false, false, false
	for {
		b, err := s.next()
		if err != nil {
			if depth == 0 && begun && !text {
				return nil // a number at the end of the document
			}
			return err
		}
		switch {
		case text:
			text, escaped = escaped || b != '"', !escaped && b == '\\'
		case b == '"':
			text = true
		case b == '{' || b == '[':
			depth++
		case (b == '}' || b == ']') && depth > 0:
			depth--
		case depth == 0 && (b == ',' || b == ':' || b == '}' || b == ']' || b == ' ' || b == '\n' || b == '\t' ||
			b == '\r'):
			if !begun {
				s.back()
				return s.errorf("%q, where a value is expected", b)
			}
			s.back()
			return nil
		}
		begun = true
		if err := keep(b); err != nil {
			return err
		}
		if depth == 0 && !text && (b == '"' || b == '}' || b == ']') {
			return nil
		}
	}
}
