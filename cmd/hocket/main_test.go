package main

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"hocket.example/hocket/internal/golden"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

func TestMain(m *testing.M) {
	version = func() string { return "test" }
	tuneWithin = 0 // no time limit: the tests of internal/tune test the limit, with a simulated clock
	acrossSizes = []int64{4 << 10, 1 << 20}
	testscript.Main(m, testCommands)
}

// testCommands maps a command's name to the function that the test binary executes if it is called by this name.
var testCommands = map[string]func(){"hocket": main}

// TestScripts runs testdata/script/*.txtar. The scripts call only commands that this test's binary contains.
func TestScripts(t *testing.T) {
	examples, err := filepath.Abs(filepath.Join("..", "..", "examples"))
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		UpdateScripts:       golden.Update(),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("EXAMPLES", examples)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "tensors": tensors, "npy": npy, "hex": hexFile, "cut": cut, "edit": edit, "nest": nest,
			"show": show, "oneobject": oneObject,
		},
	})
}

// exits CODE COMMAND ARGS... runs a command and checks that its exit code is CODE.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// tensors FILE NAME=TYPE=SPEC... writes a safetensors file: x=f32[2,3]=arange.
func tensors(ts *testscript.TestScript, _ bool, args []string) {
	var list []tensor.Named
	for _, a := range args[1:] {
		f := strings.SplitN(a, "=", 3)
		list = append(list, tensor.Named{Name: f[0], Tensor: makeTensor(ts, f[0], f[1], f[2])})
	}
	ts.Check(tensor.WriteSafetensorsFile(ts.MkAbs(args[0]), list, nil))
}

// npy FILE NAME=TYPE=SPEC writes an npy file.
func npy(ts *testscript.TestScript, _ bool, args []string) {
	f := strings.SplitN(args[1], "=", 3)
	var b bytes.Buffer
	ts.Check(tensor.WriteNpy(&b, makeTensor(ts, f[0], f[1], f[2])))
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), b.Bytes(), 0o666))
}

func makeTensor(ts *testscript.TestScript, name, typ, spec string) *tensor.Tensor {
	dtype, rest, _ := strings.Cut(typ, "[")
	var shape []int64
	for _, d := range strings.FieldsFunc(strings.TrimSuffix(rest, "]"), func(r rune) bool { return r == ',' }) {
		n, err := strconv.ParseInt(d, 10, 64)
		ts.Check(err)
		shape = append(shape, n)
	}
	all := ir.DTypes()
	i := slices.IndexFunc(all, func(d ir.DType) bool { return d.String() == dtype })
	if i < 0 {
		ts.Fatalf("no dtype %q", dtype)
	}
	t, err := tensor.New(all[i], shape)
	ts.Check(err)
	s, err := tensor.ParseSpec(spec)
	ts.Check(err)
	ts.Check(tensor.Fill(t, name, s))
	return t
}

// hex FILE DIGITS|TEXT... writes bytes; an argument that starts with a quote is
// text.
func hexFile(ts *testscript.TestScript, _ bool, args []string) {
	var out []byte
	for _, a := range args[1:] {
		if text, ok := strings.CutPrefix(a, `"`); ok {
			out = append(out, text...)
			continue
		}
		b, err := hex.DecodeString(a)
		ts.Check(err)
		out = append(out, b...)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), out, 0o666))
}

// cut FILE N shortens a file to N bytes.
func cut(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	ts.Check(os.Truncate(ts.MkAbs(args[0]), n))
}

// edit PATTERN REGEXP TEXT replaces the matches of REGEXP by TEXT in the files whose names match PATTERN.
func edit(ts *testscript.TestScript, _ bool, args []string) {
	files, err := filepath.Glob(ts.MkAbs(args[0]))
	ts.Check(err)
	if len(files) == 0 {
		ts.Fatalf("no file %s", args[0])
	}
	re, err := regexp.Compile(args[1])
	ts.Check(err)
	for _, name := range files {
		b, err := os.ReadFile(name)
		ts.Check(err)
		if !re.Match(b) {
			ts.Fatalf("%s has nothing like %s", name, args[1])
		}
		ts.Check(os.WriteFile(name, re.ReplaceAll(b, []byte(args[2])), 0o666))
	}
}

// nest FILE N TEXT writes TEXT N times.
func nest(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(strings.Repeat(args[2], n)), 0o666))
}

// show FILE prints the tensors of a safetensors file, one a line.
func show(ts *testscript.TestScript, _ bool, args []string) {
	f, err := tensor.OpenSafetensors(ts.MkAbs(args[0]))
	ts.Check(err)
	defer f.Close()
	for _, name := range f.Names() {
		t, err := f.Read(name)
		ts.Check(err)
		vals := make([]float64, t.Len())
		tensor.ToFloat64(vals, t.Data, t.DType)
		fmt.Fprintln(ts.Stdout(), name, t, vals)
	}
}

// oneobject checks that standard output is one JSON object that has exactly these members at its top level, in this
// order.
func oneObject(ts *testscript.TestScript, _ bool, args []string) {
	got, err := members(ts.ReadFile("stdout"))
	ts.Check(err)
	if !slices.Equal(got, args) {
		ts.Fatalf("the object has %v, want %v", got, args)
	}
}
