package tensor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"
)

const metadataKey = "__metadata__"

// These limits of a header are much larger than the headers of checkpoints, and small enough that the header can be
// read at once.
const (
	mostEntries = 1 << 17 // largest number of tensors in a file, and of entries of metadata
	mostDims    = 64      // largest number of dimensions of a tensor, as in numpy and torch
)

// parseSafetensors parses the JSON header token by token: encoding/json would silently accept duplicate keys, and the
// error about a value of the wrong form must have the position where the value starts.
func parseSafetensors(header []byte) (*Safetensors, error) {
	if len(header) == 0 || header[0] != '{' {
		return nil, fmt.Errorf("it must start with {")
	}
	if !utf8.Valid(header) {
		return nil, fmt.Errorf("it is not UTF-8")
	}
	s := &Safetensors{entries: map[string]safetensorsEntry{}}
	p := headerParser{json.NewDecoder(bytes.NewReader(header))}
	p.UseNumber()
	if err := p.object(func(key string) error { return s.member(p, key) }); err != nil {
		return nil, fmt.Errorf("%w (near byte %d)", err, p.InputOffset())
	}
	// Read to the end of the header, because the format allows padding.
	if _, err := p.Token(); err != io.EOF {
		return nil, fmt.Errorf("something follows its closing } (near byte %d)", p.InputOffset())
	}
	return s, nil
}

// member reads the value of one key of the header.
func (s *Safetensors) member(p headerParser, key string) error {
	var err error
	if key == metadataKey {
		if s.meta, err = p.metadata(); err != nil {
			return fmt.Errorf("%s: %w", metadataKey, err)
		}
		return nil
	}
	if s.entries[key], err = p.entry(); err != nil {
		return fmt.Errorf("tensor %s: %w", quote(key), err)
	}
	return nil
}

type headerParser struct{ *json.Decoder }

// object reads an object, and calls member to read the value of each key. It refuses duplicate
// keys.
func (p headerParser) object(member func(key string) error) error {
	if err := p.delim('{'); err != nil {
		return err
	}
	seen := map[string]bool{}
	for p.More() {
		key, err := p.str()
		if err != nil {
			return err
		}
		if len(seen) == mostEntries {
			return fmt.Errorf("more than %d keys", mostEntries)
		}
		if seen[key] {
			return fmt.Errorf("key %s comes twice", quote(key))
		}
		seen[key] = true
		if err := member(key); err != nil {
			return err
		}
	}
	return p.delim('}')
}

func (p headerParser) metadata() (map[string]string, error) {
	meta := map[string]string{}
	err := p.object(func(key string) error {
		v, err := p.str()
		if err != nil {
			return fmt.Errorf("%s: %w", quote(key), err)
		}
		meta[key] = v
		return nil
	})
	return meta, err
}

func (p headerParser) entry() (safetensorsEntry, error) {
	var e safetensorsEntry
	var offsets []int64
	keys := 0
	err := p.object(func(key string) (err error) {
		keys++
		switch key {
		case "dtype":
			e.dtype, err = p.str()
		case "shape":
			e.shape, err = p.ints()
		case "data_offsets":
			offsets, err = p.ints()
		default:
			return fmt.Errorf("unknown key %s", quote(key))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		return nil
	})
	switch {
	case err != nil:
		return e, err
	case keys != 3:
		return e, fmt.Errorf("want the three keys dtype, shape and data_offsets")
	case len(offsets) != 2:
		return e, fmt.Errorf("data_offsets has %d numbers, want 2", len(offsets))
	}
	e.begin, e.end = offsets[0], offsets[1]
	return e, nil
}

// ints reads an array of non-negative numbers that fit in an int64.
func (p headerParser) ints() ([]int64, error) {
	if err := p.delim('['); err != nil {
		return nil, err
	}
	list := []int64{}
	for p.More() {
		tok, err := p.Token()
		if err != nil {
			return nil, err
		}
		num, ok := tok.(json.Number)
		if !ok {
			return nil, fmt.Errorf("found %s, want a number", tokenText(tok))
		}
		v, err := strconv.ParseUint(num.String(), 10, 63)
		if err != nil {
			return nil, fmt.Errorf("found %s, want a whole number from 0 to 2^63-1", quote(num.String()))
		}
		if len(list) == mostDims {
			return nil, fmt.Errorf("more than %d numbers", mostDims)
		}
		list = append(list, int64(v))
	}
	return list, p.delim(']')
}

func (p headerParser) str() (string, error) {
	tok, err := p.next()
	if err != nil {
		return "", err
	}
	s, ok := tok.(string)
	if !ok {
		return "", fmt.Errorf("found %s, want a string", tokenText(tok))
	}
	return s, nil
}

func (p headerParser) delim(want json.Delim) error {
	tok, err := p.next()
	if err != nil {
		return err
	}
	if tok != want {
		return fmt.Errorf("found %s, want %s", tokenText(tok), want)
	}
	return nil
}

// next returns the next token. The end of the header gives an error.
func (p headerParser) next() (json.Token, error) {
	tok, err := p.Token()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return tok, err
}

func tokenText(tok json.Token) string {
	if s, ok := tok.(string); ok {
		return quote(s)
	}
	if tok == nil {
		return "null"
	}
	return fmt.Sprint(tok)
}
