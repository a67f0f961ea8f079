package hocket_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	mostMethods = 40
	mostLines   = 7000
)

// TestSizes keeps the types and packages that run programs small enough to read: no type has more than mostMethods
// methods, no package more than mostLines lines without tests.
func TestSizes(t *testing.T) {
	lines, methods := map[string]int{}, map[string]int{}
	for _, top := range []string{".", "internal/exec", "internal/device", "internal/world"} {
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && (top == "." && path != top || d.Name() == "devicetest"):
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
			lines[pkg] += bytes.Count(text, []byte("\n"))
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil {
					methods[pkg+" "+receiver(fn.Recv.List[0].Type)]++
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if lines["internal/device/cuda"] == 0 || methods["internal/exec Program"] == 0 {
		t.Fatal("the packages are not found")
	}
	for name, n := range methods {
		if n > mostMethods {
			t.Errorf("%s has %d methods, more than %d", name, n, mostMethods)
		}
	}
	for name, n := range lines {
		if n > mostLines {
			t.Errorf("%s has %d lines, more than %d", name, n, mostLines)
		}
	}
}

// receiver names the type of a method's receiver.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return "?"
}
