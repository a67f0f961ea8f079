// Command interpreter runs, against hocket, the tests of StableHLO's interpreter and those tests of Shardy that run
// with values. It prints which tests pass, which ones hocket refuses, and which ones have wrong results.
//
//	git clone https://github.com/openxla/stablehlo; git clone https://github.com/openxla/shardy
//	go run ./interpreter stablehlo/stablehlo/tests/interpret shardy/shardy/dialect/sdy/transforms/export/test
//
// A file has several tests, each of which is a function that checks its own results. The constants of a test become
// inputs of the program that hocket runs, on as many CPU ranks as the test's mesh has devices. If hocket refuses
// that program, the constants remain constants.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/graph"
	"hocket.example/hocket/internal/modelprogram"
	"hocket.example/hocket/internal/stablehlo"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// tally counts the tests of a file by outcome.
type tally struct {
	passed, refused, wrong int
	reasons                []string
}

func main() {
	log.SetFlags(0)
	verbose := flag.Bool("v", false, "print why each test is refused")
	flag.Parse()
	if flag.NArg() == 0 {
		log.Fatal("usage: go run ./interpreter [-v] FOLDER…")
	}
	machine, err := hocket.Open(context.Background(), hocket.MachineOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer machine.Close()
	for _, dir := range flag.Args() {
		if err := folder(machine, dir, *verbose); err != nil {
			log.Fatal(err)
		}
	}
}

// folder runs the files of a folder.
func folder(machine *hocket.Machine, dir string, verbose bool) error {
	commit, err := exec.Command("git", "-C", dir, "rev-parse", "HEAD").Output()
	if err != nil {
		commit = []byte("unknown commit")
	}
	fmt.Printf("%s at %s\n", dir, strings.TrimSpace(string(commit)))
	var files, all, part, none, bad int
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".mlir" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !strings.Contains(string(text), "check.expect") {
			return nil
		}
		t := file(machine, filepath.Base(path), string(text))
		files++
		verdict := "passed"
		switch {
		case t.wrong > 0:
			bad++
			verdict = "WRONG"
		case t.refused == 0:
			all++
		case t.passed > 0:
			part++
			verdict = "passed in part"
		default:
			none++
			verdict = "refused"
		}
		name, _ := filepath.Rel(dir, path)
		fmt.Printf("%-70s %3d passed %3d refused %3d wrong  %s\n", name, t.passed, t.refused, t.wrong, verdict)
		if verbose || t.wrong > 0 {
			for _, r := range t.reasons {
				fmt.Println("    " + r)
			}
		}
		return nil
	})
	fmt.Printf("%d files: %d passed, %d passed in part, %d refused, %d wrong\n\n", files, all, part, none, bad)
	return err
}

var renaming = regexp.MustCompile(`sed '?s/(\w+)/(\w+)/g'?`)

// file runs the tests of a file.
func file(machine *hocket.Machine, name, text string) tally {
	// a change that the script of the test makes to the text between two tools
	for _, m := range renaming.FindAllStringSubmatch(text, -1) {
		text = strings.ReplaceAll(text, "@"+m[2], "@"+m[1])
	}
	if strings.Contains(text, "@parallel_") && !strings.Contains(text, "func @sequential_") {
		text = strings.ReplaceAll(text, "@sequential_", "@parallel_")
	}
	var t tally
	for _, part := range strings.Split(text, "// -----") {
		if !strings.Contains(part, "check.expect") {
			continue
		}
		err := test(machine, name, part, true)
		if refused(err) {
			if known := test(machine, name, part, false); known == nil {
				err = nil
			}
		}
		switch {
		case err == nil:
			t.passed++
		case refused(err):
			t.refused++
			t.reasons = append(t.reasons, "refused: "+firstLine(err))
		default:
			t.wrong++
			t.reasons = append(t.reasons, "WRONG: "+firstLine(err))
		}
	}
	return t
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

func refused(err error) bool {
	return errors.Is(err, stablehlo.ErrUnsupported) || errors.Is(err, modelprogram.ErrUnsupported) ||
		errors.Is(err, hocket.ErrUnsupported) || errors.Is(err, graph.ErrTooLarge)
}

// test runs a test.
func test(machine *hocket.Machine, name, text string, given bool) error {
	g, checks, err := stablehlo.ReadTest(name, text, given)
	if err != nil {
		return err
	}
	m, err := modelprogram.Make(name, g, modelprogram.Options{})
	if err != nil {
		return err
	}
	p, err := hocket.New(m.Info.Prog)
	if err != nil {
		return err
	}
	model, err := machine.Load(p, hocket.Binding{}, hocket.LoadOptions{})
	if err != nil {
		return err
	}
	in := map[string]*hocket.Tensor{}
	for _, p := range m.Params {
		data := p.Constant
		for _, v := range g.Inputs {
			if p.Input && v.Name == p.Name {
				data = v.Data
			}
		}
		dt, _ := ir.ParseDType(string(p.DType))
		x, err := tensor.New(dt, p.Shape)
		if err != nil {
			return err
		}
		for i, e := range data.Elems {
			x.SetFloat64(int64(i), e)
		}
		in[p.Name] = (*hocket.Tensor)(x)
	}
	report, err := model.Run(context.Background(), hocket.Args{In: in})
	if err != nil {
		return err
	}
	for i, c := range checks {
		got, want := report.Out[fmt.Sprintf("out%d", 2*i)], report.Out[fmt.Sprintf("out%d", 2*i+1)]
		if err := alike((*tensor.Tensor)(got), (*tensor.Tensor)(want), c); err != nil {
			return err
		}
	}
	return nil
}

// alike compares a result as the check in the test does: integers must be equal, and other numbers close.
func alike(got, want *tensor.Tensor, c stablehlo.Check) error {
	bound := map[ir.DType]float64{ir.F64: 1e-9, ir.F32: 1e-5, ir.F16: 2e-3, ir.BF16: 2e-2}[got.DType]
	if strings.Contains(c.Name, "almost") {
		bound = max(bound, 1e-3)
	}
	step := map[ir.DType]float64{ir.F64: 0x1p-52, ir.F32: 0x1p-23, ir.F16: 0x1p-10, ir.BF16: 0x1p-7}[got.DType]
	bound = max(bound, c.Tolerance, c.ULPs*step)
	if !slices.Equal(got.Shape, want.Shape) {
		return fmt.Errorf("line %d: %s, want %s", c.Line, got, want)
	}
	for i := range got.Len() {
		x, y := got.Float64(i), want.Float64(i)
		same := x == y || math.IsNaN(x) && math.IsNaN(y) || math.Abs(x-y) <= bound*max(1, math.Abs(y)) &&
			!math.IsInf(y, 0)
		if !same {
			return fmt.Errorf("line %d: element %d is %g, want %g", c.Line, i, x, y)
		}
	}
	return nil
}
