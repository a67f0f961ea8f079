package jsonscan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// FuzzScan checks that the scanner finds the same values as encoding/json in everything that encoding/json accepts.
// Errors must name a position in the document. A value that is longer than its limit must be refused instead of cut
// short.
func FuzzScan(f *testing.F) {
	for _, s := range []string{`{"a":[1,"x\"]",{}],"b":null}`, ` [ 1 , -2.5e3, true,[[]] ] `, `{"a\u0041":1,}`, `[}`,
		`12`, `"\\"`, `[1 2]`, "{\"a\":\"\n\"}", `["` + strings.Repeat("x", 70000) + `"]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := New(bytes.NewReader(b))
		var got []string
		note := func() error {
			raw, err := s.Raw(64)
			if len(raw) > 64 {
				t.Errorf("a value of %d bytes", len(raw))
			}
			got = append(got, string(raw))
			return err
		}
		err := error(nil)
		switch first, perr := s.Peek(); {
		case perr != nil:
			err = perr
		case first == '{':
			err = s.Object(func(string) error { return note() })
		case first == '[':
			err = s.Array(note)
		default:
			err = note()
		}
		if err != nil {
			place, _, _ := strings.Cut(err.Error(), ":")
			var line, column int
			lines := bytes.Split(b, []byte("\n"))
			if n, serr := fmt.Sscanf(place, "line %d, column %d", &line, &column); n != 2 || serr != nil || line < 1 || line > len(lines) ||
				column < 1 || column > len(lines[line-1])+1 {
				t.Errorf("no place in %d bytes: %v", len(b), err)
			}
		}
		if !json.Valid(b) {
			return
		}
		if err != nil {
			if !errors.Is(err, ErrTooLong) {
				t.Errorf("JSON is refused: %v", err)
			}
			return
		}
		want := values(t, b)
		if len(want) != len(got) {
			t.Fatalf("%d values of %d", len(got), len(want))
		}
		for i := range want {
			if strings.TrimSpace(got[i]) != want[i] {
				t.Errorf("value %d: %q, want %q", i, got[i], want[i])
			}
		}
	})
}

// values returns the texts of the values at the first level of a document.
func values(t *testing.T, b []byte) (list []string) {
	d := json.NewDecoder(bytes.NewReader(b))
	first := bytes.TrimLeft(b, " \t\r\n")[0]
	if first != '{' && first != '[' {
		return []string{strings.TrimSpace(string(b))}
	}
	if _, err := d.Token(); err != nil {
		t.Fatal(err)
	}
	for d.More() {
		if first == '{' {
			if _, err := d.Token(); err != nil {
				t.Fatal(err)
			}
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		list = append(list, string(raw))
	}
	return list
}
