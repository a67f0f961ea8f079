// Package jsonscan reads a JSON document of any length, one value at a time. It needs memory for only one value.
package jsonscan

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// Scanner reads a document from the start.
type Scanner struct {
	r      *bufio.Reader
	offset int64
	buf    []byte
}

// New returns a scanner of r.
func New(r io.Reader) *Scanner { return &Scanner{r: bufio.NewReaderSize(r, 1<<16)} }

// ErrTooLong is wrapped by errors about a value that is longer than its limit.
var ErrTooLong = errors.New("longer than its limit")

// errorf prefixes an error with its position.
func (s *Scanner) errorf(format string, args ...any) error {
	return fmt.Errorf("byte %d: %w", s.offset, fmt.Errorf(format, args...))
}

func (s *Scanner) next() (byte, error) {
	b, err := s.r.ReadByte()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, s.errorf("the document is cut short: %w", err)
	}
	s.offset++
	return b, nil
}

func (s *Scanner) back() {
	_ = s.r.UnreadByte() // the byte that next has just read
	s.offset--
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

// Array calls element for each element of an array. element must read it.
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

// Raw returns the text of the next value. The text is valid until the next call. Raw checks that the brackets in
// the text match, but not that it is otherwise valid JSON.
func (s *Scanner) Raw(limit int) ([]byte, error) {
	s.buf = s.buf[:0]
	err := s.value(func(b byte) error {
		if len(s.buf) >= limit {
			return s.errorf("a value of more than %d bytes: %w", limit, ErrTooLong)
		}
		s.buf = append(s.buf, b)
		return nil
	})
	return s.buf, err
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
