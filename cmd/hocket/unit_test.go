package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// members returns the keys of a JSON object, in order. The argument text must consist of one JSON object.
func members(text string) ([]string, error) {
	d := json.NewDecoder(strings.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("it starts with %v (%v)", t, err)
	}
	var keys []string
	for d.More() {
		k, err := d.Token()
		if err != nil {
			return nil, err
		}
		keys = append(keys, k.(string))
		var skip json.RawMessage
		if err := d.Decode(&skip); err != nil {
			return nil, err
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("something follows the object")
	}
	return keys, nil
}

func testApp(stdin io.Reader) (*app, *bytes.Buffer, *bytes.Buffer) {
	var out, errs bytes.Buffer
	a := &app{}
	a.expired, a.stdin, a.stdout, a.text = make(chan struct{}), stdin, &checkedWriter{w: &out}, &out
	a.stderr, a.columns = &errs, 100
	return a, &out, &errs
}

// TestUnsaid checks that, if a result cannot be encoded as JSON, the output is one object with this reason, and the
// exit code is 4.
func TestUnsaid(t *testing.T) {
	a, out, errs := testApp(nil)
	endless := math.Inf(1)
	a.json, a.out.Hocket, a.out.Command = true, "v", "run"
	a.out.Overlap = []overlap{{Op: "all_reduce", ExposedUS: &endless}}
	if code := a.finish(context.Background(), nil); code != exitHocket || errs.Len() > 0 {
		t.Errorf("it ends with %d, and says %q", code, errs)
	}
	keys, err := members(out.String())
	if err != nil || !slices.Equal(keys, []string{"hocket", "command", "exit", "diagnostics"}) {
		t.Errorf("%v, %v", keys, err)
	}
	for _, want := range []string{`"exit": 4`, `"kind": "internal"`,
		"cannot be printed as JSON: json: unsupported value: +Inf"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in %s", want, out)
		}
	}
}

func TestParseBytes(t *testing.T) {
	for s, want := range map[string]int64{"1": 1, "64K": 64 << 10, "64k": 64 << 10, "16M": 16 << 20, "2G": 2 << 30,
		"3T": 3 << 40, "5KiB": 5 << 10, "7MB": 7 << 20,
		"1.5G": 3 << 29, "262.5 KiB": 268800, "0.0005K": 1, "2 K": 2048} {
		if got, err := tensor.ParseSize(s); err != nil || got != want {
			t.Errorf("%s: %d, %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "K", "0", "-1", "1.5", "1e3K", "1.2.3K", "99999999T", ".K", "1X",
		"9223372036854775807K", "99999999999999999999", "1KK",
		"K1", "1M\t", " 1M", "1M ", "1  M", "+1", "1ib", "1\u212a"} {
		if got, err := tensor.ParseSize(s); err == nil {
			t.Errorf("%q: %d, want an error", s, got)
		}
	}
}

func TestInputBytesSaturate(t *testing.T) {
	sig := func(shape ...int64) *hocket.Signature {
		return &hocket.Signature{In: []hocket.Port{{DType: ir.F32, Shape: shape}, {DType: ir.BF16, Shape: []int64{3}}}}
	}
	if got := inputBytes(sig(5, 7), 2); got != 2*(4*35+2*3) {
		t.Errorf("%d", got)
	}
	if got := inputBytes(sig(0, 1<<40), 1); got != 6 {
		t.Errorf("%d of an empty tensor", got)
	}
	if got := inputBytes(sig(1<<40, 1<<40), 1); got != ^uint64(0) {
		t.Errorf("%d, want saturation", got)
	}
}

func TestPaint(t *testing.T) {
	d := &ir.Diagnostic{File: "p.hkt", Pos: ir.Pos{Line: 3, Col: 1}, Message: "it is wrong", Line: "x", Help: "write y",
		Notes: []ir.Note{{Message: "here"}}}
	got := paint(d.String(), d.Severity)
	want := bold + "p.hkt:3:1: " + red + "error: " + plain + bold + "it is wrong" + plain + "\n    x\n    ^\n" +
		cyan + "note: " + plain + "here\n" + cyan + "help: " + plain + "write y\n"
	want = strings.Replace(want, cyan+"note: "+plain+"here", "p.hkt: note: here", 1)
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// An interrupt cancels the context, ends a command that waits for its input,
// and leads to exit code 130.
func TestInterrupt(t *testing.T) {
	ctx, stop := interruptible()
	defer stop()
	r, w := io.Pipe()
	defer w.Close()
	a, _, errs := testApp(r)
	done := make(chan int)
	go func() { done <- a.finish(ctx, a.execute(ctx, []string{"check", "-"})) }()
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Signal(os.Interrupt)
	}
	if err != nil {
		t.Skipf("no interrupt can be sent here: %v", err)
	}
	if code := <-done; code != exitInterrupted || !strings.Contains(errs.String(), "interrupted") {
		t.Errorf("code %d, %s", code, errs)
	}
}

// The JSON output must name the command that was interrupted, even if the command is still running.
func TestLeftBehind(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if code := leftBehind([]string{"run", "p.hkt", "--json"}, nil, f, f).finish(ctx,
		ctx.Err()); code != exitInterrupted {
		t.Errorf("code %d", code)
	}
	text, err := os.ReadFile(f.Name())
	if err != nil || !strings.Contains(string(text), `"command": "run"`) {
		t.Errorf("%s (%v)", text, err)
	}
}

type panics struct{}

func (panics) Write([]byte) (int, error) { panic("the writer broke") }

func TestPanicIsReported(t *testing.T) {
	a, _, errs := testApp(nil)
	a.text = panics{}
	ctx := context.Background()
	if code := a.finish(ctx, a.execute(ctx, []string{"version"})); code != exitHocket {
		t.Errorf("code %d", code)
	}
	for _, want := range []string{"error: internal error: the writer broke", "please report it", "unit_test.go"} {
		if !strings.Contains(errs.String(), want) {
			t.Errorf("no %q in %s", want, errs)
		}
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestFullOutputIsReported(t *testing.T) {
	for _, args := range [][]string{{"doctor"}, {"doctor", "--json"}, {"check", "nothing", "--json"}} {
		a, _, errs := testApp(nil)
		a.stdout = &checkedWriter{w: full{}}
		a.text = a.stdout
		ctx := context.Background()
		if code := a.finish(ctx, a.execute(ctx, args)); code != exitMachine ||
			strings.Count(errs.String(), "no space left") != 1 {
			t.Errorf("%v: code %d, %s", args, code, errs)
		}
	}
}

func TestClassify(t *testing.T) {
	ctx := context.Background()
	wrong := hocket.Diagnostics{{Kind: "type", Message: "m"}}
	fault := hocket.Diagnostics{{Kind: "type"}, {Kind: "internal"}}
	for i, c := range []struct {
		err  error
		code int
	}{
		{nil, exitDone},
		{fmt.Errorf("lower: %w", wrong), exitProgram},
		{fault, exitHocket},
		{errors.New("cobra"), exitUsage},
		{ofMachine(fmt.Errorf("x: %w", hocket.ErrInput)), exitUsage},
		{ofMachine(errors.New("no memory")), exitMachine},
		{ofMachine(fmt.Errorf("x: %w", device.ErrDeviceLost)), exitMachine},
		{ofMachine(wrong), exitProgram},
		{ofMachine(fmt.Errorf("x: %w", hocket.ErrDiffers)), exitHocket},
		{ofMachine(fmt.Errorf("x: %w", &hocket.MismatchError{})), exitHocket},
		{ofMachine(fmt.Errorf("x: %w", &device.Deadlock{})), exitProgram},
		{ofMachine(&ir.Diagnostic{Kind: "lifetime"}), exitProgram},
		{ofReference(&ir.Diagnostic{Kind: "lifetime"}), exitProgram},
		{ofReference(&ir.Diagnostic{Kind: "limit"}), exitMachine},
		{ofHocket(errors.New("a pass broke")), exitHocket},
		{ofHocket(wrong), exitProgram},
	} {
		if got := classify(ctx, c.err); got.code != c.code {
			t.Errorf("%d: code %d of %v, want %d", i, got.code, c.err, c.code)
		}
	}
}

// TestHelpOfMismatch checks that, if copies of a result differ, the advice does not suggest a missing wait if the plan
// was proved.
func TestHelpOfMismatch(t *testing.T) {
	for proved, want := range map[bool]string{true: "no wait is missing", false: "usual cause is a missing wait"} {
		if got := classify(t.Context(), ofMachine(&hocket.MismatchError{Proved: proved})); !strings.Contains(got.help,
			want) {
			t.Errorf("proved %v: %q", proved, got.help)
		}
	}
}

// Reading a program must end after maxProgram bytes, even if the reader returns more.
func TestProgramSizeIsBounded(t *testing.T) {
	_, err := readText(context.Background(), "zeros", zeros{})
	var f *failure
	if !errors.As(err, &f) || f.code != exitProgram || !strings.Contains(err.Error(), "larger than 64.0 MiB") {
		t.Errorf("%v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestQuoted(t *testing.T) {
	for s, want := range map[string]string{
		"a/b.hkt": "a/b.hkt", "T=4096": "T=4096", "C=ceildiv(T,16)": "'C=ceildiv(T,16)'", "": "''", "it's": `'it'\''s'`,
		"w.safetensors#w": "'w.safetensors#w'",
	} {
		if got := quoted(s); got != want {
			t.Errorf("%q: %s, want %s", s, got, want)
		}
	}
}

// If an interrupted command ignores its context, the caller does not wait for it. If it ends in time, its error is
// returned.
func TestAwait(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	cancel()
	if _, ended := await(ctx, nil, done, time.Millisecond); ended {
		t.Error("what goes on has ended")
	}
	want := errors.New("stopped")
	time.AfterFunc(time.Millisecond, func() { done <- want })
	if err, ended := await(ctx, nil, done, time.Minute); !ended || err != want {
		t.Errorf("%v, %v", err, ended)
	}
	done <- want
	if err, ended := await(context.Background(), nil, done, 0); !ended || err != want {
		t.Errorf("%v, %v", err, ended)
	}
}
