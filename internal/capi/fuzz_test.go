package capi

import (
	"errors"
	"reflect"
	"testing"

	"encoding/json"

	"hocket.example/hocket"
)

// FuzzOptions checks that options are decoded strictly, that errors are input errors, and that
// decoded options stay the same when they are encoded and decoded again.
func FuzzOptions(f *testing.F) {
	f.Add(`{"machine":"cpu","alone":true,"rank":1,"size":2,"id":"x","dir":"/d","timeout":1.5,"stall_timeout":3}`)
	f.Add(``)
	f.Add(`{"machine":1}`)
	f.Add(`{"other":1}`)
	f.Add(`{} {"machine":"cpu"}`)
	f.Fuzz(func(t *testing.T, text string) {
		var o machineOptions
		if err := options(text, &o); err != nil {
			if !errors.Is(err, hocket.ErrInput) {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if text != "" && !json.Valid([]byte(text)) {
			t.Errorf("%q is not JSON, but was decoded as %+v", text, o)
		}
		again, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		var p machineOptions
		if err := options(string(again), &p); err != nil || !reflect.DeepEqual(o, p) {
			t.Errorf("%q: %+v was encoded and decoded as %+v, %v", text, o, p, err)
		}
	})
}
