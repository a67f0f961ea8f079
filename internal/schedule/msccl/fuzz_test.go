package msccl_test

import (
	"os"
	"testing"

	"hocket.example/hocket/internal/schedule"
	"hocket.example/hocket/internal/schedule/msccl"
)

// FuzzAlgorithm checks that the reader and the checker do not panic for any text, and that an encoded algorithm is read
// as the same algorithm.
func FuzzAlgorithm(f *testing.F) {
	text, err := os.ReadFile("../testdata/pair.xml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`<algo ngpus="1" coll="allgather" nchunksperloop="3"><gpu id="0"><tb id="0" send="0" recv="0"><step type="rrs" cnt="1"/></tb></gpu></algo>`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 1<<14 {
			return
		}
		file, err := msccl.Parse(text)
		if err != nil {
			return
		}
		p, err := file.Plan()
		if err != nil || p.Cells > 1<<16 {
			return
		}
		r := schedule.Check(p, schedule.Options{Launches: 2})
		again, err := file.Encode()
		if err != nil {
			t.Fatal(err)
		}
		back, err := msccl.Parse(again)
		if err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		q, err := back.Plan()
		if err != nil {
			t.Fatal(err)
		}
		if got := schedule.Check(q, schedule.Options{Launches: 2}); got.Verdict != r.Verdict {
			t.Fatalf("written and read again it is %s, and was %s", got.Verdict, r.Verdict)
		}
	})
}
