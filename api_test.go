package hocket_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/golden"
)

// publicPackages lists the folders of the packages that other modules may import.
var publicPackages = []string{".", "cuda", "fault", "ir", "ir/checker"}

// TestAPI compares the exported API of the public packages with testdata/api.txt; -update rewrites this file. No
// exported declaration may use a type of an internal package, because no documentation shows such a type's fields and
// methods.
func TestAPI(t *testing.T) {
	var b strings.Builder
	fset := token.NewFileSet()
	imports := compiled(t, fset)
	for _, dir := range publicPackages {
		pkg := typeCheck(t, fset, imports, dir)
		fmt.Fprintf(&b, "package %s\n", pkg.Path())
		for _, line := range exported(pkg) {
			fmt.Fprintf(&b, "  %s\n", line)
			if strings.Contains(line, "internal/") || strings.Contains(line, "/internal") {
				t.Errorf("%s exports a type of an internal package: %s", pkg.Path(), line)
			}
		}
	}
	golden.File(t, filepath.Join("testdata", "api.txt"), b.String())
}

// compiled imports packages from the export data that the compiler wrote.
func compiled(t *testing.T, fset *token.FileSet) types.Importer {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}"}
	for _, dir := range publicPackages {
		args = append(args, "./"+dir)
	}
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), "\t")
		files[path] = file
	}
	return importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(files[path]) })
}

// typeCheck reads a package without its tests.
func typeCheck(t *testing.T, fset *token.FileSet, imports types.Importer, dir string) *types.Package {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "_test.go") || !builds(string(text)) {
			continue
		}
		f, err := parser.ParseFile(fset, name, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	path := "hocket.example/hocket"
	if dir != "." {
		path += "/" + dir
	}
	pkg, err := (&types.Config{Importer: imports}).Check(path, fset, files, nil)
	if err != nil {
		t.Fatal(err)
	}
	return pkg
}

// builds reports whether every build contains the file; the API consists of the declarations that all builds have.
func builds(text string) bool { return !strings.Contains(text, "//go:build nocuda") }

// exported lists what a package exports: names with their types, fields, methods.
func exported(pkg *types.Package) []string {
	short := func(p *types.Package) string {
		if p == pkg {
			return ""
		}
		if strings.Contains(p.Path(), "internal") {
			return p.Path()
		}
		return p.Name()
	}
	var lines []string
	scope := pkg.Scope()
	for _, name := range scope.Names() {
		obj := scope.Lookup(name)
		if !obj.Exported() {
			continue
		}
		switch x := obj.(type) {
		case *types.Const:
			lines = append(lines, fmt.Sprintf("const %s %s", name, types.TypeString(x.Type(), short)))
		case *types.Var:
			lines = append(lines, fmt.Sprintf("var %s %s", name, types.TypeString(x.Type(), short)))
		case *types.Func:
			lines = append(lines, fmt.Sprintf("func %s%s", name, signature(x, short)))
		case *types.TypeName:
			lines = append(lines, typeLines(x, short)...)
		}
	}
	return lines
}

func signature(f *types.Func, short types.Qualifier) string {
	return strings.TrimPrefix(types.TypeString(f.Type(), short), "func")
}

func typeLines(x *types.TypeName, short types.Qualifier) []string {
	if x.IsAlias() {
		return []string{fmt.Sprintf("type %s = %s", x.Name(), types.TypeString(types.Unalias(x.Type()), short))}
	}
	var lines []string
	switch u := x.Type().Underlying().(type) {
	case *types.Struct:
		lines = append(lines, fmt.Sprintf("type %s struct", x.Name()))
		for f := range u.Fields() {
			if f.Exported() {
				lines = append(lines, fmt.Sprintf("field %s.%s %s", x.Name(), f.Name(),
					types.TypeString(f.Type(), short)))
			}
		}
	case *types.Interface:
		lines = append(lines, fmt.Sprintf("type %s interface", x.Name()))
		for m := range u.Methods() {
			if m.Exported() {
				lines = append(lines, fmt.Sprintf("method %s.%s%s", x.Name(), m.Name(), signature(m, short)))
			}
		}
		return lines
	default:
		lines = append(lines, fmt.Sprintf("type %s %s", x.Name(), types.TypeString(u, short)))
	}
	var methods []string
	for m := range x.Type().(*types.Named).Methods() {
		if m.Exported() {
			_, pointer := m.Signature().Recv().Type().(*types.Pointer)
			star := ""
			if pointer {
				star = "*"
			}
			methods = append(methods, fmt.Sprintf("method (%s%s) %s%s", star, x.Name(), m.Name(), signature(m, short)))
		}
	}
	slices.SortFunc(methods, cmp.Compare[string])
	return append(lines, methods...)
}

// TestExamples checks that the main types of the API each have an example.
func TestExamples(t *testing.T) {
	have := map[string]bool{}
	files, err := filepath.Glob("example*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				have[fn.Name.Name] = true
			}
		}
	}
	for _, name := range []string{"Program", "Machine", "Model", "Report", "Tensor", "DeviceTensor", "Reference",
		"Verdict",
		"Explanation", "MemoryPlan", "Checkpoint", "World", "Diagnostics", "Check"} {
		if !have["Example"+name] {
			t.Errorf("%s has no example", name)
		}
	}
}
