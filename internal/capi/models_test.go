package capi

import (
	"encoding/json"
	"strings"
	"testing"
)

const archive = `"../../testdata/layers.pt2"`

// TestExport loads an archive with a state that persists between calls, and compares the model with
// its reference.
func TestExport(t *testing.T) {
	l, machine := opened(t)
	m, err := l.Load(machine, "",
		`{"export": `+archive+`, "ranks": 2, "plan": {"layers.*.up": "colwise", "layers.*.down": "rowwise"}}`)
	if err != nil {
		t.Fatal(err)
	}
	text, err := l.Description(t.Context(), m, true)
	var d description
	if err == nil {
		err = json.Unmarshal([]byte(text), &d)
	}
	if err != nil || d.Proof != "proved" || len(d.Inputs) != 1 || d.Inputs[0] != "x" || len(d.States) != 1 ||
		d.States[0] != "total" || len(d.Weights["layers.up"]) != 2 || !strings.Contains(d.Text, "/tp") {
		t.Fatalf("%v: %s", err, text)
	}
	x := Tensor{Name: "x", Rank: -1, DType: "f32", Shape: []int64{2, 4}, Data: floats(1, 2, 3, 4, 5, 6, 7, 8)}
	call := func() string {
		t.Helper()
		y := Tensor{Name: "out0", Rank: -1, DType: "f32", Shape: []int64{2, 4}, Data: make([]byte, 32)}
		run, err := l.Run(m, nil, []Tensor{x}, []Tensor{y}, "")
		if err == nil {
			err = waited(t, l, run)
		}
		if err != nil {
			t.Fatal(err)
		}
		return string(y.Data)
	}
	first := call()
	run, err := l.Compare(m, nil, []Tensor{x}, "")
	if err == nil {
		err = waited(t, l, run)
	}
	if err != nil {
		t.Fatal(err)
	}
	found, err := l.Comparison(m)
	var c comparison
	if err == nil {
		err = json.Unmarshal([]byte(found), &c)
	}
	if err != nil || c.Verdict != "within" || len(c.Results) != 2 || c.Results[1].Name != "total" ||
		len(c.Layers) == 0 {
		t.Errorf("%v: %s", err, found)
	}
	if second := call(); second == first {
		t.Error("the state does not change")
	}
	if err := l.Reset(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if call() != first {
		t.Error("Reset does not restore the state")
	}
	if err := l.Close(m); err != nil {
		t.Error(err)
	}
}

// TestExportRefused checks the kinds of errors for options that do not fit the archive.
func TestExportRefused(t *testing.T) {
	l, machine := opened(t)
	for options, want := range map[string]string{
		`{"export": "../../README.md"}`:                                   "input",
		`{"export": "no.pt2"}`:                                            "machine",
		`{"plan": {"a": "colwise"}}`:                                      "input",
		`{"export": ` + archive + `, "plan": {"a": "sideways"}}`:          "input",
		`{"export": ` + archive + `, "weights": ["no.safetensors"]}`:      "input",
		`{"export": ` + archive + `, "strategy": "fast"}`:                 "input",
		`{"export": ` + archive + `, "weights": ["../../testdata/none"]}`: "input",
	} {
		if _, err := l.Load(machine, "", options); err == nil || kindOfError(err) != want {
			t.Errorf("%s: %v (%s), want %s", options, err, kindOfError(err), want)
		}
	}
	if err := l.Reset(t.Context(), 12345); kindOfError(err) != "handle" {
		t.Error(err)
	}
	if _, err := l.Comparison(12345); kindOfError(err) != "handle" {
		t.Error(err)
	}
	if _, err := l.Compare(12345, nil, nil, ""); kindOfError(err) != "handle" {
		t.Error(err)
	}
	if _, err := l.Description(t.Context(), 12345, false); kindOfError(err) != "handle" {
		t.Error(err)
	}
}

// kindOfError returns the kind of an error that callers see; "" for nil.
func kindOfError(err error) string {
	if err == nil {
		return ""
	}
	var f failure
	if json.Unmarshal([]byte(Describe(err)), &f) != nil {
		return "?"
	}
	return f.Kind
}
