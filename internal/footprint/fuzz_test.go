package footprint

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// FuzzSnapshot: whatever a file holds, snapshots of torch's or an error come of it.
func FuzzSnapshot(f *testing.F) {
	b, err := os.ReadFile(filepath.Join("testdata", "forum-sync-graph-of-5.rank0.pickle.gz"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("\x80\x02}."))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := ReadSnapshot(bytes.NewReader(b))
		if err != nil {
			return
		}
		for _, s := range all {
			if x := s.Explain(); x.Peak < 0 || x.Bound < 0 {
				t.Errorf("%+v", x)
			}
		}
	})
}
