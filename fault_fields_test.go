package hocket_test

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket"
)

// TestFaultFields checks that the comments of errors that are defined in package fault list their fields, since go doc
// shows only the name of the other package.
func TestFaultFields(t *testing.T) {
	text, err := os.ReadFile("bind.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []any{hocket.InputError{}, hocket.RunError{}, hocket.MismatchError{}} {
		typ := reflect.TypeOf(e)
		_, comment, found := strings.Cut(string(text), "\n// "+typ.Name()+" is ")
		comment, _, _ = strings.Cut(comment, "\ntype "+typ.Name()+" = ")
		words := strings.FieldsFunc(comment, func(r rune) bool { return strings.ContainsRune(" ,.:\n/", r) })
		for i := range typ.NumField() {
			if name := typ.Field(i).Name; !found || !slices.Contains(words, name) {
				t.Errorf("the comment of %s does not list %s", typ.Name(), name)
			}
		}
	}
}
