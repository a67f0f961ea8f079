package mscclpp_test

import (
	"os"
	"testing"

	"hocket.example/hocket/internal/schedule"
	"hocket.example/hocket/internal/schedule/mscclpp"
)

// FuzzPlan checks that the reader and the checker do not panic for any text, and that an encoded plan is read as the
// same plan.
func FuzzPlan(f *testing.F) {
	text, err := os.ReadFile("../../../examples/schedules/exchange.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"collective":"test","gpus":[{"id":0,"threadblocks":[{"ops":[{"name":"pipeline","iter_context":{"num_chunks":2},"ops":[{"name":"nop"}]}]}]}]}`))
	f.Add([]byte(`{"collective":"test","gpus":[{"id":0,"input_chunks":1,"threadblocks":[{"ops":[{"name":"copy","tbg_info":{"tb_id":0,"tbg_size":3},"src_buff":[{"type":"i","size":1}],"dst_buff":[{"type":"i","index":0,"size":1}]}]}]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 1<<14 {
			return
		}
		file, err := mscclpp.Parse(text)
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
		back, err := mscclpp.Parse(again)
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
