package hocket_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	mostMethods = 40
	mostOfType  = 45 // largest number of methods of a type together with functions whose first parameter has the type
	mostLines   = 7000
)

// bindings are types with a method for each function of a library written in C.
var bindings = map[string]bool{"internal/nvlib Driver": true}

// oversized lists the types and packages that still exceed a limit, with their number of methods and functions, or of
// lines. The list may only shrink.
var oversized = map[string]int{
	"internal/schedule sim":       45,
	"internal/device/cuda stream": 59,
	"internal/device/cuda world":  73,
	"internal/device/cuda":        7060, // with host memory that processes without peer access share
}

// forTests are packages that only tests use. In test suites, the first parameter of most functions is the object under
// test.
var forTests = regexp.MustCompile(`/(devicetest|modeltest|fakedriver|irtest)$`)

// ofType is the number of methods of a type, and of functions that have it as their first parameter.
type ofType struct{ methods, functions int }

// TestSizes keeps types and packages small enough to read. No type has more than mostMethods methods, nor more than
// mostOfType methods together with functions of its package whose first parameter has the type. No package has more
// than mostLines lines without tests. The types of bindings are exempt, and packages that only tests use.
func TestSizes(t *testing.T) {
	lines, types, declared := map[string]int{}, map[string]ofType{}, map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && path != "."):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		pkg := filepath.ToSlash(filepath.Dir(path))
		if forTests.MatchString(pkg) {
			return nil
		}
		lines[pkg] += bytes.Count(text, []byte("\n"))
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if s, ok := s.(*ast.TypeSpec); ok {
						declared[pkg+" "+s.Name.Name] = true
					}
				}
			case *ast.FuncDecl:
				if d.Recv != nil {
					name := pkg + " " + typeName(d.Recv.List[0].Type)
					n := types[name]
					n.methods++
					types[name] = n
				} else if params := d.Type.Params.List; len(params) > 0 {
					name := pkg + " " + typeName(params[0].Type)
					n := types[name]
					n.functions++
					types[name] = n
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if lines["internal/device/cuda"] == 0 || types["internal/exec Program"].methods == 0 {
		t.Fatal("the packages are not found")
	}
	exceeds := map[string]int{}
	for name, n := range types {
		if all := n.methods + n.functions; declared[name] && !bindings[name] &&
			(n.methods > mostMethods || all > mostOfType) {
			exceeds[name] = all
			if all > oversized[name] {
				t.Errorf("%s has %d methods and is the first parameter of %d functions; at most %d and together %d are allowed",
					name, n.methods, n.functions, mostMethods, mostOfType)
			}
		}
	}
	for name, n := range lines {
		if n > mostLines {
			exceeds[name] = n
			if n > oversized[name] {
				t.Errorf("package %s has %d lines, more than %d", name, n, mostLines)
			}
		}
	}
	for name, most := range oversized {
		switch n, ok := exceeds[name]; {
		case !ok:
			t.Errorf("%s exceeds no limit: remove it from oversized", name)
		default:
			t.Logf("%s exceeds a limit: %d, at most %d", name, n, most)
		}
	}
}

// typeName returns the name of a type of the same package, or of the type that a pointer points to; "" for other types.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.IndexListExpr:
		return typeName(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
