package capi

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket"
)

const program = `dim T
mesh tp[2]
func f(%x: f32[T, 2], %w: f32[4/tp, 2]) -> f32[T, 4] {
  %y = linear %x, %w
  return %y
}`

func floats(vals ...float32) []byte {
	var b []byte
	for _, v := range vals {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func opened(t *testing.T) (*Library, int64) {
	t.Helper()
	l := New()
	h, who, err := l.Open(t.Context(), `{"alone": true}`)
	if err != nil || who != (Joined{Size: 1}) {
		t.Fatalf("%+v, %v", who, err)
	}
	t.Cleanup(func() {
		if err := l.Close(h); err != nil {
			t.Error(err)
		}
	})
	return l, h
}

// waited waits until a run ends, and returns its error.
func waited(t *testing.T, l *Library, run int64) error {
	t.Helper()
	for range 1000 {
		if over, err := l.Wait(run, 100*time.Millisecond); over {
			return err
		}
	}
	t.Fatal("the run does not end")
	return nil
}

func TestRun(t *testing.T) {
	l, machine := opened(t)
	m, err := l.Load(machine, program, `{"name": "p.hkt"}`)
	if err != nil {
		t.Fatal(err)
	}
	if names, err := l.Parameters(m); err != nil || names != `["x","w"]` {
		t.Errorf("parameters: %s, %v", names, err)
	}
	text, err := l.Layouts(t.Context(), m, `{"shapes": {"x": [3, 2]}}`)
	if err != nil {
		t.Fatal(err)
	}
	var got layouts
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	w := got.In[1]
	if w.Name != "w" || w.DType != "f32" ||
		fmt.Sprint(w.Shape, w.Blocks) != "[4 2] [{0 [0 0] [2 2]} {1 [2 0] [2 2]}]" ||
		got.Out[0].Name != "y" || fmt.Sprint(got.Out[0].Shape) != "[3 4]" {
		t.Errorf("layouts: %s", text)
	}
	x := Tensor{"x", -1, "f32", []int64{1, 2}, floats(3, 5)}
	ws := Tensor{"w", -1, "f32", []int64{4, 2}, floats(1, 0, 0, 1, 1, 1, 2, -1)}
	y := Tensor{"y", -1, "f32", []int64{1, 4}, make([]byte, 16)}
	want := string(floats(3, 5, 8, 1))
	run, err := l.Run(m, nil, []Tensor{x, ws}, []Tensor{y}, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := waited(t, l, run); err != nil || string(y.Data) != want {
		t.Errorf("%v, %v", y.Data, err)
	}
	if _, err := l.Wait(run, 0); !errors.Is(err, ErrHandle) {
		t.Errorf("Wait for a run that has ended: %v", err)
	}
	// Bind w, then pass it to a run as well, then remove the binding.
	if err := l.Bind(m, nil, ws); err != nil {
		t.Fatal(err)
	}
	clear(y.Data)
	if run, err = l.Run(m, nil, []Tensor{x}, []Tensor{y}, ""); err != nil || waited(t, l, run) != nil ||
		string(y.Data) != want {
		t.Errorf("bound: %v, %v", y.Data, err)
	}
	if _, err := l.Run(m, nil, []Tensor{x, x}, nil, ""); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("twice: %v", err)
	}
	if err := l.Bind(m, nil, Tensor{Name: "w"}); err != nil {
		t.Fatal(err)
	}
	if run, err = l.Run(m, nil, []Tensor{x}, []Tensor{y}, ""); err != nil {
		t.Fatal(err)
	}
	if err := waited(t, l, run); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("unbound: %v", err)
	}
}

// TestSharedMemory checks that a run is refused if tensors that it writes share memory. A tensor that the run only
// reads may share memory with them.
func TestSharedMemory(t *testing.T) {
	l, machine := opened(t)
	m, err := l.Load(machine, "func f(%x: f32[2], %k: inout f32[2], %v: inout f32[2]) -> f32[2] {\n"+
		"  %kx = add %x, %k\n  copy %kx into %k\n  %vx = mul %x, %v\n  copy %vx into %v\n  %y = add %kx, %vx\n  return %y\n}", "")
	if err != nil {
		t.Fatal(err)
	}
	of := func(name string, data []byte) Tensor { return Tensor{name, -1, "f32", []int64{2}, data} }
	all := floats(1, 2, 3, 4, 5, 6, 7, 8)
	x, k, v, y := all[:8], all[8:16], all[16:24], all[24:]
	call := func(x, k, v, y []byte) error {
		run, err := l.Run(m, nil, []Tensor{of("x", x), of("k", k), of("v", v)},
			[]Tensor{of("y", y), of("k", k), of("v", v)}, "")
		if err == nil {
			err = waited(t, l, run)
		}
		return err
	}
	const says = " share memory, and the run writes "
	for want, err := range map[string]error{
		"k and v" + says + "k: pass a separate tensor for each": call(x, k, k, y),
		"y and v" + says + "y": call(x, k, v, all[20:28]),
	} {
		if !errors.Is(err, hocket.ErrInput) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if err := call(x, k, v, y); err != nil || !bytes.Equal(all, floats(1, 2, 4, 6, 5, 12, 9, 18)) {
		t.Errorf("separate tensors: %v, %v", err, all)
	}
	if err := call(all[4:12], k, v, y); err != nil || !bytes.Equal(all, floats(1, 2, 6, 10, 10, 48, 16, 58)) {
		t.Errorf("a tensor that is read, and shares memory with one that is written: %v, %v", err, all)
	}
}

func TestCancel(t *testing.T) {
	l, machine := opened(t)
	m, err := l.Load(machine, "mesh d[2]\nfunc f(%x: f32[4096/d, 1024], %w: f32[4096, 1024]) -> f32[4096/d, 4096] {\n  %y = linear %x, %w\n  return %y\n}", "")
	if err != nil {
		t.Fatal(err)
	}
	x := Tensor{"x", -1, "f32", []int64{4096, 1024}, make([]byte, 16<<20)}
	w := Tensor{"w", -1, "f32", []int64{4096, 1024}, make([]byte, 16<<20)}
	run, err := l.Run(m, nil, []Tensor{x, w}, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Cancel(run); err != nil {
		t.Fatal(err)
	}
	if err := waited(t, l, run); err != nil && !strings.Contains(Describe(err), `"kind":"cancelled"`) {
		t.Errorf("got %s", Describe(err))
	}
}

func TestWrong(t *testing.T) {
	l, machine := opened(t)
	kindOf := func(err error) string {
		if err == nil {
			return "none"
		}
		var f failure
		if json.Unmarshal([]byte(Describe(err)), &f) != nil || f.Message == "" {
			t.Errorf("%s is not a valid description of an error", Describe(err))
		}
		return f.Kind
	}
	m, err := l.Load(machine, program, `{"dims": {"T": 1}}`)
	if err != nil {
		t.Fatal(err)
	}
	_, bad := l.Load(machine, "func f(", "")
	_, unknown := l.Load(machine, program, `{"speed": 1}`)
	_, wrongType := l.Load(machine, program, `{"dims": {"T": "x"}}`)
	_, noStrategy := l.Load(machine, program, `{"strategy": "fast"}`)
	_, noMachine := l.Load(m, program, "")
	_, noModel := l.Run(machine, nil, nil, nil, "")
	_, _, opens := l.Open(t.Context(), `{"machine": "abacus", "alone": true}`)
	_, noDType := l.Run(m, nil, []Tensor{{Name: "x", Rank: -1, DType: "f3"}}, nil, "")
	short, _ := l.Run(m, nil, []Tensor{{Name: "x", Rank: -1, DType: "f32", Shape: []int64{1, 2},
		Data: make([]byte, 3)}},
		nil, "")
	_, layouts := l.Layouts(context.Background(), m, `{"dims": {"T": -1}}`)
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"program": {bad, "program"}, "option": {unknown, "input"}, "machine": {noMachine, "handle"},
		"option's type": {wrongType, "input"}, "strategy": {noStrategy, "input"},
		"model":        {noModel, "handle"},
		"element type": {noDType, "input"}, "dims": {layouts, "input"}, "closed twice": {l.Close(12345), "handle"},
		"cancel": {l.Cancel(m), "handle"},
		"bind":   {l.Bind(m, nil, Tensor{Name: "q", DType: "f32", Data: []byte{}}), "input"},
		"peer":   {&hocket.PeerError{Rank: 1}, "peer"}, "disagree": {&hocket.DisagreeError{What: "x"}, "disagree"},
	} {
		if got := kindOf(tc.err); got != tc.want {
			t.Errorf("%s: kind %s, want %s: %v", name, got, tc.want, tc.err)
		}
	}
	if opens == nil {
		t.Error("an unknown machine is opened")
	}
	if short != 0 {
		if err := waited(t, l, short); !errors.Is(err, hocket.ErrInput) {
			t.Errorf("too few bytes: %v", err)
		}
	}
}

// TestOpenOptions checks that Open refuses options that do not fit together, and names of algorithms that do not exist.
func TestOpenOptions(t *testing.T) {
	for text, want := range map[string]string{
		`{"rank": 1}`:                              "option rank is 1, but size is not given",
		`{"size": 0}`:                              "option size is 0",
		`{"size": 2, "id": "x"}`:                   "rank is not given",
		`{"size": 2, "rank": 2, "id": "x"}`:        "option rank is 2, but must be from 0 to 1",
		`{"size": 2, "rank": -1, "id": "x"}`:       "option rank is -1",
		`{"size": 2, "rank": 0, "alone": true}`:    "alone is true",
		`{"machine": "cpu", "algorithm": "rings"}`: `option algorithm: unknown algorithm "rings"; the algorithms are staged, `,
	} {
		if _, _, err := New().Open(t.Context(), text); !errors.Is(err, hocket.ErrInput) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	for _, text := range []string{`{"size": 1}`, `{"size": 1, "rank": 0}`,
		`{"machine": "cpu", "alone": true, "algorithm": "two-shot"}`} {
		l := New()
		h, who, err := l.Open(t.Context(), text)
		if err != nil || who.Size != 1 {
			t.Errorf("%s: %+v, %v", text, who, err)
			continue
		}
		if err := l.Close(h); err != nil {
			t.Error(err)
		}
	}
}
