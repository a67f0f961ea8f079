package compile

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// FuzzMeasured checks that a choice that can be read has the requested identity, names an existing strategy, and is
// unchanged after it is written and read again. Errors must name the file.
func FuzzMeasured(f *testing.F) {
	f.Add([]byte(`{"identity":"x","strategy":"chunked(4)","us":{"sequential":2.5,"chunked(4)":1}}`))
	f.Add([]byte(`{"identity":"y","strategy":"chunked(4)"}`))
	f.Add([]byte(`{"identity":"x","strategy":"auto"}`))
	f.Add([]byte(`{"identity":"x","strategy":"f#1 exchange"}`))
	f.Add([]byte(`{"identity":"x","strategy":`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(dir, "choice.json")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := ReadMeasured(path, "x")
		if err != nil && !strings.Contains(err.Error(), path) {
			t.Errorf("it does not name the file: %v", err)
		}
		if m == nil {
			return
		}
		if m.Identity != "x" || CheckStrategy(m.Strategy) != nil {
			t.Errorf("it read %+v", m)
		}
		if err := m.Write(path); err != nil {
			t.Fatal(err)
		}
		again, err := ReadMeasured(path, "x")
		if err != nil || !reflect.DeepEqual(m, again) {
			t.Errorf("%+v has become %+v, %v", m, again, err)
		}
	})
}
