package tensor

import (
	"fmt"
	"strconv"
	"strings"
)

// parseNpyHeader reads the Python dictionary of an npy header, such as
//
//	{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
//
// which must have these three keys, once each, in any order. The parser accepts only the Python literals that occur in
// such a dictionary.
func parseNpyHeader(text string) (npyHeader, error) {
	var h npyHeader
	p := npyParser{text: text}
	err := p.dict(&h)
	if err != nil {
		return h, fmt.Errorf("%w (at byte %d)", err, p.pos)
	}
	return h, nil
}

type npyParser struct {
	text string
	pos  int
}

func (p *npyParser) dict(h *npyHeader) error {
	if err := p.expect('{'); err != nil {
		return err
	}
	seen := map[string]bool{}
	for p.peek() != '}' {
		key, err := p.str()
		if err != nil {
			return err
		}
		if seen[key] {
			return fmt.Errorf("key %s comes twice", quote(key))
		}
		seen[key] = true
		if err := p.expect(':'); err != nil {
			return err
		}
		if err := p.member(h, key); err != nil {
			return err
		}
		if p.peek() != ',' {
			break
		}
		p.pos++
	}
	if err := p.expect('}'); err != nil {
		return err
	}
	if p.peek() != 0 || p.pos < len(p.text) {
		return fmt.Errorf("something follows the closing }")
	}
	if len(seen) != 3 {
		return fmt.Errorf("want the three keys 'descr', 'fortran_order' and 'shape'")
	}
	return nil
}

func (p *npyParser) member(h *npyHeader, key string) (err error) {
	switch key {
	case "descr":
		return p.descr(h)
	case "fortran_order":
		h.fortran, err = p.boolean()
	case "shape":
		h.shape, err = p.tuple()
	default:
		return fmt.Errorf("unknown key %s", quote(key))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

func (p *npyParser) descr(h *npyHeader) error {
	if p.peek() == '[' {
		return fmt.Errorf("descr: structured arrays are not supported, want one of <f4 <f2 <f8 <i4 <i8")
	}
	s, err := p.str()
	if err != nil {
		return fmt.Errorf("descr: %w", err)
	}
	dt, ok := npyDTypes[s]
	if !ok && strings.HasPrefix(s, ">") {
		return fmt.Errorf("descr: %s is big-endian, want little-endian; convert it with a.astype(a.dtype.newbyteorder('<'))", quote(s))
	}
	if !ok {
		return fmt.Errorf("descr: dtype %s is not supported, want one of <f4 <f2 <f8 <i4 <i8", quote(s))
	}
	h.dt = dt
	return nil
}

func (p *npyParser) boolean() (bool, error) {
	p.peek()
	for word, v := range map[string]bool{"True": true, "False": false} {
		if strings.HasPrefix(p.text[p.pos:], word) {
			p.pos += len(word)
			return v, nil
		}
	}
	return false, p.found("True or False")
}

// tuple reads (), (3,), (3, 4) or (3, 4,). It refuses (3), which Python reads as a number.
func (p *npyParser) tuple() ([]int64, error) {
	if err := p.expect('('); err != nil {
		return nil, err
	}
	list := []int64{}
	comma := true
	for p.peek() != ')' {
		if !comma {
			return nil, p.found("a comma or )")
		}
		v, err := p.integer()
		if err != nil {
			return nil, err
		}
		list = append(list, v)
		if comma = p.peek() == ','; comma {
			p.pos++
		}
	}
	p.pos++
	if len(list) == 1 && !comma {
		return nil, fmt.Errorf("found (%d), want a tuple: (%d,)", list[0], list[0])
	}
	return list, nil
}

func (p *npyParser) integer() (int64, error) {
	p.peek()
	end := p.pos
	for end < len(p.text) && '0' <= p.text[end] && p.text[end] <= '9' {
		end++
	}
	if end == p.pos {
		return 0, p.found("a whole number that is not negative")
	}
	digits := p.text[p.pos:end]
	v, err := strconv.ParseUint(digits, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("extent %s is over 2^63-1", quote(digits))
	}
	p.pos = end
	return int64(v), nil
}

// str reads a quoted string without escapes, which do not occur in valid headers.
func (p *npyParser) str() (string, error) {
	q := p.peek()
	if q != '\'' && q != '"' {
		return "", p.found("a quoted string")
	}
	rest := p.text[p.pos+1:]
	end := strings.IndexByte(rest, q)
	if end < 0 {
		return "", fmt.Errorf("a string is not closed")
	}
	if strings.ContainsAny(rest[:end], "\\\n") {
		return "", fmt.Errorf("string %s has an escape or a line break", quote(rest[:end]))
	}
	p.pos += end + 2
	return rest[:end], nil
}

func (p *npyParser) expect(c byte) error {
	if p.peek() != c {
		return p.found(string(c))
	}
	p.pos++
	return nil
}

// peek skips spaces and returns the next byte, or 0 at the end of the text.
func (p *npyParser) peek() byte {
	for ; p.pos < len(p.text); p.pos++ {
		switch c := p.text[p.pos]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

func (p *npyParser) found(want string) error {
	if p.pos == len(p.text) {
		return fmt.Errorf("found the end, want %s", want)
	}
	return fmt.Errorf("found %s, want %s", quote(p.text[p.pos:min(p.pos+12, len(p.text))]), want)
}
