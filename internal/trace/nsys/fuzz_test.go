package nsys

import (
	"bytes"
	"os"
	"testing"

	"hocket.example/hocket/internal/trace"
)

// FuzzSQLite checks that the events read from any exported database belong to existing ranks and end after they start.
func FuzzSQLite(f *testing.F) {
	whole, err := os.ReadFile("testdata/export.sqlite")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint32(100), []byte{5})
	f.Add(uint32(3*512+8), []byte{1, 200, 1, 200, 1, 200})
	f.Fuzz(func(t *testing.T, at uint32, with []byte) {
		b := bytes.Clone(whole)
		copy(b[int(at)%len(b):], with)
		tr, err := readDatabase(bytes.NewReader(b), int64(len(b)), 0, new(trace.Names))
		if err != nil {
			return
		}
		for _, e := range tr.Events {
			if e.Rank < 0 || e.Rank >= tr.Ranks || e.End < e.Start {
				t.Errorf("%d ranks, and %+v", tr.Ranks, e)
			}
		}
	})
}
