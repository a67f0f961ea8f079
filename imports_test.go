package hocket_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const modulePath = "hocket.example/hocket"

// row is one row of ARCHITECTURE.md's table of packages.
type row struct {
	leaf    bool
	imports []string
}

// packageRows reads the table of packages in ARCHITECTURE.md: "| `package` | leaf or imports | what it is |".
func packageRows(t *testing.T) map[string]row {
	t.Helper()
	text, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]row{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 5 || !strings.HasPrefix(strings.TrimSpace(cells[1]), "`") {
			continue
		}
		name := strings.Trim(strings.TrimSpace(cells[1]), "`")
		var r row
		for word := range strings.SplitSeq(cells[2], ",") {
			switch word = strings.Trim(strings.TrimSpace(word), "`"); word {
			case "leaf":
				r.leaf = true
			case "", "–":
			default:
				r.imports = append(r.imports, word)
			}
		}
		out[name] = r
	}
	if len(out) < 10 {
		t.Fatalf("ARCHITECTURE.md's table has only %d packages", len(out))
	}
	return out
}

// TestImports checks that a package imports only the packages in its row of ARCHITECTURE.md's table, packages that the
// table calls leaves, and the standard library. Tests may import more.
func TestImports(t *testing.T) {
	table := packageRows(t)
	seen := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path == "tools" || name == "testdata" || strings.HasPrefix(name, ".") && name != "." {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		pkg := filepath.ToSlash(filepath.Dir(path))
		seen[pkg] = true
		r, listed := table[pkg]
		if !listed {
			t.Errorf("%s: package %s is not in ARCHITECTURE.md's table", path, pkg)
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, im := range f.Imports {
			target, _ := strconv.Unquote(im.Path.Value)
			if why := forbidden(table, r, pkg, target); why != "" {
				t.Errorf("%s imports %s: %s", path, target, why)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range table {
		if !seen[name] {
			t.Errorf("ARCHITECTURE.md lists %s, which has no Go files", name)
		}
	}
}

func forbidden(table map[string]row, r row, pkg, target string) string {
	if target == "C" && pkg != "libhocket" {
		return "cgo is used by libhocket alone"
	}
	if target == "C" || !strings.Contains(strings.Split(target, "/")[0], ".") {
		return "" // standard library
	}
	local, ours := strings.CutPrefix(target, modulePath)
	if !ours {
		if slices.Contains(r.imports, target) {
			return ""
		}
		return "its row does not name this dependency"
	}
	local = strings.TrimPrefix(local, "/")
	if local == "" {
		local = "."
	}
	if table[local].leaf || slices.Contains(r.imports, local) {
		return ""
	}
	return "its row does not name it, and it is no leaf"
}
