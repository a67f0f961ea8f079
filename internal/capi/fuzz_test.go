package capi

import (
	"errors"
	"reflect"
	"testing"

	"encoding/json"

	"hocket.example/hocket"
)

// FuzzOptions: options are read strictly, or refused as input; those that are read are the same once they are
// written and read again.
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
			t.Errorf("%q is no JSON, and was read as %+v", text, o)
		}
		again, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		var p machineOptions
		if err := options(string(again), &p); err != nil || !reflect.DeepEqual(o, p) {
			t.Errorf("%q: %+v has become %+v, %v", text, o, p, err)
		}
	})
}
