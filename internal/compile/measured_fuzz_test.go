package compile

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// FuzzMeasured: a choice that is read is of its identity, names a strategy that there is, and is the same once it
// is written and read again; errors name the file.
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
