package schedule_test

import (
	"strings"
	"testing"

	"hocket.example/hocket/internal/schedule"
	"hocket.example/hocket/internal/schedule/msccl"
	"hocket.example/hocket/internal/schedule/mscclpp"
)

// TestHostileFiles checks that files that cannot be read are refused with a position, and that files that are too large
// are refused before a plan is built.
func TestHostileFiles(t *testing.T) {
	plan := func(ops, more string) string {
		return `{"collective":"test","gpus":[{"id":0,"input_chunks":4,"output_chunks":4,"scratch_chunks":4,"threadblocks":[{"id":0,"ops":[` + ops + `]}]` + more + `}]}`
	}
	copies := func(tbg, size string) string {
		return `{"name":"copy","src_buff":[{"type":"i","index":0,"size":` + size +
			`}],"dst_buff":[{"type":"o","index":0,"size":` + size + `}]` + tbg + `}`
	}
	for _, c := range []struct{ text, want string }{
		{"", "no JSON of an execution plan, at byte 0: EOF"},
		{`{"collective":"test","gpus": [`, "no JSON of an execution plan, at byte 30: unexpected EOF"},
		{`{"collective":"test","gpus": x}`, "no JSON of an execution plan, at byte 30: invalid character 'x'"},
		{strings.Repeat("[", 1<<16), "depth"},
		{`{"collective":"test","gpus":[{"id":"x"}]}`, "want a whole number, found string"},
		{`{"collective":"test","gpus":[{"id":1}]}`, "gpus[0] has id 1"},
		{`{"collective":"test","gpus":[{"id":0}]} {}`, "text after the end"},
		{`{"collective":"test","gpus":[{"id":0,"scratch_chunks":-1}]}`, "a buffer of -1 chunks"},
		{`{"collective":"test","gpus":[{"id":0,"scratch_chunks":1048576,"input_chunks":1048576}]}`, ""},
		{plan(`{"name":"\u001b[31m"}`, ""), `op 0 ("\x1b[31m"): unknown operation`},
		{plan(`{"name":"wait","channel_type":"memory","channel_ids":[0]}`, ""),
			"op 0 (wait): the thread block has no memory channels"},
		{plan(copies(`,"tbg_info":{"tb_id":2,"tbg_size":2}`, "1"), ""), "tbg_info has block 2 of 2"},
		{plan(copies(`,"tbg_info":{"tb_id":0,"tbg_size":1031}`, "1"), ""), "more than 1024 parts"},
		{plan(copies("", "-1"), ""), "an operand of -1 chunks"},
		{plan(copies("", "9223372036854775807"), ""), "an operand of 9223372036854775807 chunks"},
		{plan(`{"name":"pipeline","ops":[{"name":"pipeline"}]}`, ""), "a pipeline within a pipeline"},
		{plan(`{"name":"pipeline","ops":[{"name":"nop"},{"name":"nop"}],"iter_context":{"num_chunks":1048576}}`, ""),
			"operations"},
		{plan(`{"name":"sem_acquire","semaphore_ids":[-1]}`, ""), "there is no semaphore -1"},
		{plan(`{"name":"barrier","barrier_id":1}`, ""), "num_threadblocks is missing"},
		{`{"collective":"test","gpus":[{"id":0,"channels":[{"channel_type":"port","connected_to":[7]}]}]}`, "connected to rank 7, but the ranks are 0 to 0"},
		{`<algo coll="test" ngpus="2"><gpu id="0"/></algo>`, "ngpus is 2, and the algorithm has 1 gpus"},
		{`<algo coll="test" ngpus="1"><gpu id="0" i_chunks="x"/></algo>`, `line 1: "x" is no whole number`},
		{`<algo coll="test" ngpus="1"><gpu id="0"><tb id="0" send="3"/></gpu></algo>`, "its peer is rank 3, but the ranks are 0 to 0"},
		{`<algo coll="test" ngpus="1"><gpu id="0"><tb id="0" send="-1" recv="-1"><step type="s" cnt="1" depid="-1"/></tb></gpu></algo>`, `there is no buffer ""`},
		{`<algo coll="test" ngpus="1"><gpu id="0"><tb id="0" send="-1" recv="-1"><step s="0" type="nop" depid="0" deps="9"/></tb></gpu></algo>`, "op 0 (nop): it depends on op 9 of tb 0, which has 1"},
		{`<algo coll="test" ngpus="1"><gpu id="0"><tb id="0" send="-1"`, "unexpected EOF"},
		{"<algo coll=\"test\" ngpus=\"1\">\n<gpu id=\"0\" i_chunk=\"4\"/></algo>", "line 2: unknown attribute i_chunk of <gpu>: the attributes " +
			"are id, i_chunks, o_chunks, s_chunks"},
		{`<algo coll="test" ngpus="1" ngpu="2"/>`, "line 1: unknown attribute ngpu of <algo>: the attributes are name, proto, nchannels, "},
		{`<algo coll="test" ngpus="1"><gpu id="0"><tb id="0" send="-1" recv="-1"><step s="0" type="nop" depid="-1" hasdeps="1"/></tb></gpu></algo>`,
			"line 1: unknown attribute hasdeps of <step>: the attributes are s, type, srcbuf, srcoff, dstbuf, dstoff, cnt, depid, deps, hasdep"},
		{`<algo coll="test" ngpus="1"><gpus/></algo>`, "line 1: unknown element <gpus>: the elements are algo, gpu, tb and step"},
		{`<algo coll="test" ngpus="1" redop="sum"><gpu id="0"/></algo>`, ""},
		{`<algo coll="test" ngpus="1" redop="max"><gpu id="0"/></algo>`, `redop is "max": only sum is supported`},
	} {
		var f schedule.File
		var err error
		if msccl.IsAlgorithm(c.text) {
			f, err = msccl.Parse([]byte(c.text))
		} else {
			f, err = mscclpp.Parse([]byte(c.text))
		}
		if err == nil {
			_, err = f.Plan()
		}
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%.80s: %v", c.text, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%.80s: %v, want %q", c.text, err, c.want)
		}
	}
}
