package hocket_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	_ "hocket.example/hocket/cuda"
	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
)

// namesAllowed lists the files in which the name of an algorithm or machine may occur, and why. In addition, the name
// of an algorithm may occur in the literal that describes the algorithm, in any file.
var namesAllowed = []struct {
	place string   // a file, or a folder with all files in it
	names []string // nil for all
	why   string
}{
	{"internal/stablehlo", []string{"across"}, "a word of StableHLO's text"},
	{"cuda", nil, "the machine cuda"},
	{"internal/device/cuda", nil, "the machine cuda"},
	{"internal/device/cpu", nil, "the machine cpu"},
	{"cmd/hocket/doctor.go", []string{"cpu"}, "the command line's default"},
	{"cmd/hocket/launch.go", []string{"cuda"}, "examples of the command line"},
	{"cmd/hocket/tune.go", []string{"cuda"}, "examples of the command line"},
	{"internal/launch", []string{"tcp"}, "the protocol"},
	{"internal/world", []string{"tcp"}, "the protocol"},
	{"internal/modeltest/nodes.go", []string{"tcp"}, "the protocol"},
	{"cmd/hocket", []string{"across"}, "the tier between nodes, in its flag and file"},
	{"internal/compile/across.go", []string{"across"}, "the tier between nodes, in its file"},
	{"examples", []string{"cpu", "cuda"}, "programs with a command line of their own"},
	{"tools", nil, "programs with a command line of their own, which measure what they name"},
	{"internal/lower/strategy.go", []string{"chunked"}, "a strategy"},
	{"internal/compile/strategy.go", []string{"chunked"}, "a strategy"},
	{"internal/sim/layer.go", []string{"chunked"}, "a strategy"},
	{"internal/modeltest/modeltest.go", []string{"cuda"}, "opens the machine cuda for tests"},
	{"internal/contest/peers.go", []string{"nccl"}, "what torch and vLLM call NCCL in their figures"},
	{"internal/contest/abacus", []string{"nccl"}, "a machine for tests, with algorithms of its own"},
}

// machineNamed matches the name of a machine as a word in a literal. It does not match a name next to a hyphen or a
// point, as in paths and in flags of other programs.
func machineNamed(name string) *regexp.Regexp {
	return regexp.MustCompile(`(^|[^-./\w=])` + name + `($|[^-./\w])`)
}

// nameUse is a literal that contains the name of an algorithm or machine.
type nameUse struct {
	pos  token.Position
	name string
}

// namesUsed lists the literals of a file that are the name of an algorithm, that contain such a name if it has a digit
// or hyphen, or that contain the name of a machine. It skips imports, tags and descriptions of algorithms.
func namesUsed(fset *token.FileSet, file *ast.File, algorithms, machines []string) (uses []nameUse) {
	odd := func(name string) bool { return strings.ContainsAny(name, "-0123456789") }
	words := map[string]*regexp.Regexp{}
	for _, name := range algorithms {
		if odd(name) {
			words[name] = regexp.MustCompile(`(^|[^-\w])` + name + `($|[^-\w])`)
		}
	}
	for _, name := range machines {
		words[name] = machineNamed(name)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.Field:
			n.Tag = nil
		case *ast.CompositeLit:
			switch t := n.Type.(type) {
			case *ast.SelectorExpr:
				if x, ok := t.X.(*ast.Ident); ok && x.Name == "device" && t.Sel.Name == "Algorithm" {
					return false
				}
			case *ast.Ident:
				if t.Name == "Info" {
					return false
				}
			}
		case *ast.BasicLit:
			if n.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(n.Value)
			if err != nil {
				return true
			}
			for _, name := range slices.Concat(algorithms, machines) {
				if text == name || words[name] != nil && words[name].MatchString(text) {
					uses = append(uses, nameUse{fset.Position(n.Pos()), name})
				}
			}
		}
		return true
	})
	return uses
}

// namesToCheck returns the names of all algorithms and machines of this program.
func namesToCheck() (algorithms, machines []string) {
	inside, between := comm.Describe()
	all := slices.Concat(inside, between)
	for _, k := range device.Kinds() {
		if len(k.Algorithms) > 0 { // others are registered by tests
			machines, all = append(machines, k.Name), append(all, k.Algorithms...)
		}
	}
	for _, a := range all {
		algorithms = append(append(algorithms, a.Name), a.Formerly...)
	}
	return algorithms, machines
}

// TestNames checks that generic packages contain no names of algorithms of collectives, and that only the packages cuda
// and cpu and the command line's default contain names of machines: algorithms and machines describe their own
// properties. Every exception in namesAllowed must be needed.
func TestNames(t *testing.T) {
	algorithms, machines := namesToCheck()
	if len(algorithms) < 30 || len(machines) < 2 {
		t.Fatalf("there are %v of %v", algorithms, machines)
	}
	needed := map[int]map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		path = filepath.ToSlash(path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, u := range namesUsed(fset, file, algorithms, machines) {
			i := slices.IndexFunc(namesAllowed, func(a struct {
				place string
				names []string
				why   string
			}) bool {
				return (path == a.place || strings.HasPrefix(path, a.place+"/")) &&
					(a.names == nil || slices.Contains(a.names, u.name))
			})
			if i < 0 {
				t.Errorf("%s names %s: ask what it says of itself (device.Algorithm, device.Kind, device.Caps)", u.pos,
					u.name)
				continue
			}
			if needed[i] == nil {
				needed[i] = map[string]bool{}
			}
			needed[i][u.name] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range namesAllowed {
		if needed[i] == nil || a.names != nil && len(needed[i]) < len(a.names) {
			t.Errorf("%s may name %v, and names %v: allow no more", a.place, a.names,
				slices.Sorted(maps.Keys(needed[i])))
		}
	}
}

// TestNamesUsed checks that namesUsed finds names that are added to a file, and nothing else.
func TestNamesUsed(t *testing.T) {
	for text, want := range map[string]string{
		`x == "push"`:              "push",
		`f("pull", "push", "gpu")`: "push gpu",
		`"push" + "it"`:            "push",
		"`push`":                   "push",
		`[]string{"push"}`:         "push",
		`"pushes, and a push"`:     "",
		`"by move-push: %w"`:       "move-push",
		`"move-push-sum"`:          "",
		`"use -m gpu"`:             "gpu",
		`"gpu: no room"`:           "gpu",
		`"/usr/local/gpu/lib"`:     "",
		`"torch.gpu.memory"`:       "",
		`"--trace=gpu"`:            "",
		`"gpus"`:                   "",
		`device.Algorithm{Name: "push", How: "as move-push"}`: "",
		`[]Entry{{Info{Name: "push"}, f("push")}}`:            "push",
		`struct{ A int "push" }{}`:                            "",
		`'p' + 3`:                                             "",
	} {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, "x.go", "package x\nimport \"push\"\nvar _ = g("+text+")\n", 0)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, u := range namesUsed(fset, file, []string{"push", "move-push"}, []string{"gpu"}) {
			got = append(got, u.name)
			if u.pos.Line != 3 {
				t.Errorf("%s: at %s", text, u.pos)
			}
		}
		if fmt.Sprint(strings.Join(got, " ")) != want {
			t.Errorf("%s: found %q, want %q", text, got, want)
		}
	}
}
