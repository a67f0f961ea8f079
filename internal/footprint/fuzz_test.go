package footprint

import (
	"bytes"
	"testing"
)

// FuzzCSV checks that ReadCSV returns an instance or an error for any file.
func FuzzCSV(f *testing.F) {
	f.Add([]byte("id,lower,upper,size\na,0,3,16\nb,1,4,32\n"))
	f.Add([]byte("size,begin,end\n1,2,3\n"))
	f.Add([]byte("\"a\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		in, err := ReadCSV(bytes.NewReader(b))
		if err == nil && len(in.IDs) != len(in.Items) {
			t.Errorf("%d names for %d buffers", len(in.IDs), len(in.Items))
		}
	})
}

// FuzzSnapshot checks that ReadSnapshot returns snapshots or an error for any file, and that the
// snapshots can be explained.
func FuzzSnapshot(f *testing.F) {
	p := forumPlan(f, 2)
	var b bytes.Buffer
	if err := WriteViz(&b, p); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
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
