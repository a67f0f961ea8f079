package jsontext_test

import (
	"encoding/json"
	"errors"
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
		{"{\"Text\": \"äöü\", \"Textt\": 1}", "line 1, column 17: unknown key \"Textt\": the keys are a, b, m, p, Text"},
		// c is a key of b's elements, and any key may be in m
		{"{\"b\":[{\"c\":1}],\"m\":{\"c\":1},\n\"c\":2}", "line 2, column 1: unknown key \"c\": the keys are a, b, m, p, Text"},
		{"{\"p\":{\"c\":1,\n\"e\":{\"e\":1}}}", "line 2, column 1: unknown key \"e\": the keys are c, d"},
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
	if err := jsontext.Decode([]byte(" {\"a\": 3, \"A\": 4, \"m\": {\"z\": 1}}\n "), &d); err != nil || d.A != 4 || d.M["z"] != 1 {
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
