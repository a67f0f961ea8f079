package nvfuser

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "hocket.example/hocket/internal/longtest" // collects garbage less often
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// FuzzDump checks that reading any text terminates, either with a program that can be printed and parsed again, or with
// diagnostics that have positions in the text.
func FuzzDump(f *testing.F) {
	f.Add(container(copyT1), "i9=(rank+1)%8")
	f.Add(container("  GetCurrentStream into Stream 0\n  FOR i9 in iS0{i0}:\n    SetCurrentStream to Stream ( i9 % numberOfStreams )\n    IF Manual ( rank == i9 ):\n      Synchronize Stream 0\n  SetCurrentStream to Stream 0\n"+copyT1), "")
	f.Add("%HostIrContainer { (T0_g[ iS0{i0} ] (DeviceMesh{0 2})) -> (T1_g[ iS1{i0} ] (DeviceMesh{0 2})) :\n  PostOnStream (HostUnit0, Inputs:{T0_g[ iS0{i0} ], }, Outputs:{T1_g[ iS1{i0} ], })\nHostUnit0: [...]\n}\nIndex definitions:\n i3 = i0 * 2;\n", "i3=i3")
	dir := os.Getenv("HOCKET_CORPUS")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "corpus", "nvfuser")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			f.Fatal(err)
		}
		f.Add(string(src), "i84=(rank+streamIdx)%8")
	}
	f.Fuzz(func(t *testing.T, src, define string) {
		if len(src) > 1<<16 {
			t.Skip()
		}
		name, value, _ := strings.Cut(define, "=")
		p, _, ds := Import("d.txt", src, map[string]string{name: value})
		lines := int32(strings.Count(src, "\n") + 1)
		for _, d := range ds {
			if d.Pos.Line > lines || d.Message == "" {
				t.Fatalf("a finding beyond the text: %s", d)
			}
			_ = d.String()
		}
		if (p == nil) != ds.HasErrors() {
			t.Fatalf("a program with errors, or none without: %s", ds)
		}
		if p == nil {
			return
		}
		if _, ds = checker.Check(p); ds.HasErrors() {
			return
		}
		again, ds := ir.Parse("again.hkt", p.String())
		if ds.HasErrors() {
			t.Fatalf("%s\n%s", ds, p)
		}
		if again.String() != p.String() {
			t.Fatalf("printed anew it is another program:\n%s\n%s", p, again)
		}
	})
}
