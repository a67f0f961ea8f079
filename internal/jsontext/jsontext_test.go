package jsontext_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"hocket.example/hocket/internal/jsontext"
)

type document struct {
	A    int            `json:"a"`
	B    []inner        `json:"b"`
	M    map[string]int `json:"m"`
	P    *inner         `json:"p,omitempty"`
	Text string
}

type inner struct {
	C int  `json:"c"`
	D bool `json:"d"`
}

// TestErrors: each error has the line and the column at which the wrong value, key or character begins.
func TestErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "line 1, column 1: the text is empty"},
		{" \n", "line 1, column 1: the text is empty"},
		{"{\n  \"a\": 1,\n  \"b\": [}", "line 3, column 9: invalid character '}' looking for beginning of value"},
		{"{\n  \"a\" 1}", "line 2, column 7: invalid character '1' after object key"},
		{"{\"a\":\n tru", "line 2, column 5: the text ends in the middle of a value"},
		{"{\"a\":\n  \"x\\\"\\\\\"}", "line 2, column 3: a: want a whole number, found string"},
		{"{\"a\":\n 1.5}", "line 2, column 2: a: want a whole number, found number 1.5"},
		{"{\"b\":[{\"c\":1},\n{\"c\":1,\n \"d\": 7}]}", "line 3, column 7: b.d: want true or false, found number"},
		{"{\"b\":\n  {\"c\": 1}}", "line 2, column 3: b: want a list, found object"},
		{"[1]", "line 1, column 1: want an object, found array"},
		{"{\"Text\": \"äöü\", \"Textt\": 1}",
			"line 1, column 17: unknown key \"Textt\": the keys are a, b, m, p, Text"},
		// key c exists only in the elements of b; the map m may have any key
		{"{\"b\":[{\"c\":1}],\"m\":{\"c\":1},\n\"c\":2}",
			"line 2, column 1: unknown key \"c\": the keys are a, b, m, p, Text"},
		{"{\"p\":{\"c\":1,\n\"e\":{\"e\":1}}}", "line 2, column 1: unknown key \"e\": the keys are c, d"},
		{"{\"a\":1,\n \"a\": 2}", "line 2, column 2: key \"a\" is repeated: its object has it twice"},
		{"{\"b\":[{\"c\":1},{\"c\":1,\"d\":true,\"\\u0063\":2}]}",
			"line 1, column 31: key \"c\" is repeated: its object has it twice"},
		{"{\"a\":1}\n\n  {}", "line 3, column 3: there is text after the end of the value"},
	} {
		var d document
		err := jsontext.Decode([]byte(c.text), &d)
		if err == nil || err.Error() != c.want {
			t.Errorf("%q: %v\nwant %s", c.text, err, c.want)
		}
		var e *jsontext.Error
		if !errors.As(err, &e) {
			t.Errorf("%q: the error is no *Error", c.text)
		}
	}
	d := document{}
	if err := jsontext.Decode([]byte(" {\"a\": 3, \"A\": 4, \"m\": {\"z\": 1}}\n "), &d); err != nil || d.A != 4 ||
		d.M["z"] != 1 {
		t.Error(d, err)
	}
}

// TestLocate: errors of json.Unmarshal, which ignores unknown keys, get positions too.
func TestLocate(t *testing.T) {
	for text, want := range map[string]string{
		"{\"x\":\n 1":           "line 2, column 3: the text ends in the middle of a value",
		"{\"a\":\n true}":       "line 2, column 2: a: want a whole number, found bool",
		"{\"x\": 1,\n\"a\":x}":  "line 2, column 5: invalid character 'x' looking for beginning of value",
		"{\"x\": 1}\n{\"x\":1}": "line 2, column 1: invalid character '{' after top-level value",
	} {
		var d document
		err := json.Unmarshal([]byte(text), &d)
		if err == nil {
			t.Fatalf("%q is accepted", text)
		}
		if got := jsontext.Locate([]byte(text), err); got.Error() != want {
			t.Errorf("%q: %v\nwant %s", text, got, want)
		}
	}
}

// TestRepeatedKeys: a key is an error only if the same object already has it, however many keys the object has; string
// values are not keys.
func TestRepeatedKeys(t *testing.T) {
	var many []string
	for i := range 100 {
		many = append(many, fmt.Sprintf("\"k%d\": {\"k1\": [\"k1\", \"k1\", \"}\\\"{\"]}", i))
	}
	text := "{" + strings.Join(many, ",\n") + "}"
	var v any
	if err := jsontext.Decode([]byte(text), &v); err != nil {
		t.Error(err)
	}
	for _, i := range []int{0, 14, 15, 16, 99} {
		again := fmt.Sprintf("%s,\n \"k%d\": 1}", text[:len(text)-1], i)
		want := fmt.Sprintf("line 101, column 2: key \"k%d\" is repeated: its object has it twice", i)
		if err := jsontext.Decode([]byte(again), &v); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestAtKey: the error has the position of the value of the given key, in the outermost object only.
func TestAtKey(t *testing.T) {
	text := []byte("{\"b\": {\"a\": 1},\n \"c\": 1, \"a\":\n  1}")
	for key, want := range map[string]string{"a": "line 3, column 3: a: x", "c": "line 2, column 7: c: x",
		"d": "line 1, column 1: x"} {
		if err := jsontext.AtKey(text, key, errors.New("x")); err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
