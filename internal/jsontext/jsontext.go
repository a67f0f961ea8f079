// Package jsontext decodes JSON that people write, with errors that give the line and the column.
package jsontext

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode/utf8"
)

// Error is an error in a JSON text, with its position.
type Error struct {
	Line, Column int // from 1; Column counts characters
	// Field is the path of keys to a value of the wrong type, joined by dots; empty for other errors.
	Field string
	err   error
}

func (e *Error) Error() string {
	at := fmt.Sprintf("line %d, column %d: ", e.Line, e.Column)
	if e.Field != "" {
		at += e.Field + ": "
	}
	return at + e.err.Error()
}

func (e *Error) Unwrap() error { return e.err }

// Decode decodes a text that consists of one value. An unknown key of a struct, a key that an object has twice, and
// text after the value are errors. All errors are of type *Error.
func Decode(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		if key, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
			return unknown(text, key, reflect.TypeOf(into))
		}
		return Locate(text, err)
	}
	end := d.InputOffset()
	if _, err := d.Token(); err != io.EOF {
		rest := text[end:]
		return at(text, end+int64(len(rest)-len(bytes.TrimLeft(rest, " \t\r\n"))),
			errors.New("there is text after the end of the value"))
	}
	if err := repeated(text); err != nil {
		return err
	}
	return nil
}

// AtKey returns an error at the value of a key of the outermost object, or at the beginning if the object lacks the
// key.
func AtKey(text []byte, key string, err error) *Error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.Token()
	for d.More() {
		token, fault := d.Token()
		if fault != nil {
			break
		}
		end := d.InputOffset()
		var value json.RawMessage
		if d.Decode(&value) != nil {
			break
		}
		if token == key {
			e := at(text, end+int64(bytes.Index(text[end:], value)), err)
			e.Field = key
			return e
		}
	}
	return at(text, 0, err)
}

// repeated returns an error at the first key that its object already has, or nil. The text is valid JSON.
func repeated(text []byte) *Error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber() // numbers are not converted
	var value func() *Error
	value = func() *Error {
		begin, _ := d.Token()
		switch begin {
		case json.Delim('{'):
			has := map[string]bool{}
			for d.More() {
				after := d.InputOffset()
				name, _ := d.Token()
				key := name.(string)
				if has[key] {
					return at(text, after+int64(bytes.IndexByte(text[after:], '"')),
						fmt.Errorf("key %.40q is repeated: its object has it twice", key))
				}
				has[key] = true
				if e := value(); e != nil {
					return e
				}
			}
		case json.Delim('['):
			for d.More() {
				if e := value(); e != nil {
					return e
				}
			}
		default:
			return nil
		}
		d.Token() // consumes the closing bracket of the object or list
		return nil
	}
	return value()
}

// Locate adds the position to an error that json.Unmarshal has returned for a text.
func Locate(text []byte, err error) *Error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind):
		e := at(text, begin(text, kind.Offset), fmt.Errorf("want %s, found %s", kindName(kind.Type), kind.Value))
		e.Field = kind.Field
		return e
	case len(bytes.TrimSpace(text)) == 0:
		return at(text, 0, errors.New("the text is empty"))
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &syntax) &&
		syntax.Offset >= int64(len(text)) &&
		strings.Contains(err.Error(), "unexpected end"):
		return at(text, int64(len(text)), errors.New("the text ends in the middle of a value"))
	case errors.As(err, &syntax):
		return at(text, syntax.Offset-1, err)
	}
	return at(text, 0, err)
}

// at returns err with the line and column of an offset in bytes.
func at(text []byte, offset int64, err error) *Error {
	line, column := Position(text, offset)
	return &Error{Line: line, Column: column, err: err}
}

// Position returns the line and the column, from 1, of an offset in bytes.
func Position(text []byte, offset int64) (line, column int) {
	before := text[:max(0, min(offset, int64(len(text))))]
	begin := bytes.LastIndexByte(before, '\n') + 1
	return 1 + bytes.Count(before, []byte("\n")), 1 + utf8.RuneCount(before[begin:])
}

// begin returns the offset at which a value begins, if end is the offset at which json reports its wrong type. json
// reports the end of strings, numbers and literals, and the byte after the opening bracket of objects and arrays.
func begin(text []byte, end int64) int64 {
	i := max(0, min(end, int64(len(text)))-1)
	switch {
	case i >= int64(len(text)), text[i] == '{', text[i] == '[':
		return i
	case text[i] == '"':
		for i--; i > 0; i-- {
			escapes := int64(0)
			for j := i - 1; j >= 0 && text[j] == '\\'; j-- {
				escapes++
			}
			if text[i] == '"' && escapes%2 == 0 {
				break
			}
		}
		return max(i, 0)
	}
	for i > 0 && bytes.IndexByte([]byte(" \t\r\n:,[{"), text[i-1]) < 0 {
		i--
	}
	return i
}

// kindName describes the JSON values of a Go type.
func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Pointer:
		return kindName(t.Elem())
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	return "a whole number"
}

// unknown returns the error about the first key, quoted in the argument, that a struct of the type does not have.
func unknown(text []byte, quoted string, t reflect.Type) *Error {
	var key string
	if json.Unmarshal([]byte(quoted), &key) != nil {
		key = strings.Trim(quoted, `"`)
	}
	s := search{d: json.NewDecoder(bytes.NewReader(text)), key: key}
	if err := s.value(t); err != nil || !s.found {
		return at(text, 0, fmt.Errorf("unknown key %.40q", key))
	}
	return at(text, begin(text, s.end), fmt.Errorf("unknown key %.40q: the keys are %s", key,
		strings.Join(s.keys, ", ")))
}

// search finds an unknown key in a JSON text. It compares the keys of each object with the fields of the struct into
// which the object is decoded.
type search struct {
	d     *json.Decoder
	key   string
	found bool
	end   int64    // offset in bytes of the key's end
	keys  []string // the known keys
}

// value reads a JSON value that has the Go type t, or any type if t is nil.
func (s *search) value(t reflect.Type) error {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	token, err := s.d.Token()
	if err != nil {
		return err
	}
	switch token {
	case json.Delim('['):
		var elem reflect.Type
		if t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) {
			elem = t.Elem()
		}
		for s.d.More() && !s.found {
			if err := s.value(elem); err != nil {
				return err
			}
		}
	case json.Delim('{'):
		for s.d.More() && !s.found {
			if err := s.member(t); err != nil {
				return err
			}
		}
	default:
		return nil
	}
	if s.found {
		return nil
	}
	_, err = s.d.Token()
	return err
}

// member reads a key of an object and its value.
func (s *search) member(t reflect.Type) error {
	token, err := s.d.Token()
	if err != nil {
		return err
	}
	name, _ := token.(string)
	var elem reflect.Type
	switch {
	case t == nil:
	case t.Kind() == reflect.Map:
		elem = t.Elem()
	case t.Kind() == reflect.Struct:
		keys := keysOf(t)
		if elem = keys.typeOf(name); elem == nil && name == s.key {
			s.found, s.end, s.keys = true, s.d.InputOffset(), keys.names
			return nil
		}
	}
	return s.value(elem)
}

// keys are the keys that a struct has, in the order of its fields.
type keys struct {
	names []string
	types []reflect.Type
}

func keysOf(t reflect.Type) (k keys) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
			continue
		case f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct:
			inner := keysOf(f.Type)
			k.names, k.types = append(k.names, inner.names...), append(k.types, inner.types...)
			continue
		case name == "":
			name = f.Name
		}
		k.names, k.types = append(k.names, name), append(k.types, f.Type)
	}
	return k
}

// typeOf returns the Go type of a key's value, or nil if the struct lacks the key.
func (k keys) typeOf(name string) reflect.Type {
	for i, have := range k.names {
		if strings.EqualFold(have, name) { // as json compares them
			return k.types[i]
		}
	}
	return nil
}
