package schedule_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
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
		{"", "line 1, column 1: the text is empty"},
		{`{"collective":"test","gpus": [`, "line 1, column 31: the text ends in the middle of a value"},
		{`{"collective":"test","gpus": x}`, "line 1, column 30: invalid character 'x'"},
		{strings.Repeat("[", 1<<16), "depth"},
		{`{"collective":"test","gpus":[{"id":"x"}]}`, "line 1, column 36: gpus.id: want a whole number, found string"},
		{`{"collective":"test","gpus":[{"id":1,"input_chunks":1,"output_chunks":1,"threadblocks":[]}]}`,
			"gpus[0] has id 1"},
		{`{"collective":"test","gpus":[{"id":0}]} {}`, "line 1, column 41: there is text after the end"},
		{`{"collective":"test","gpus":[{"id":0,"input_chunks":1,"output_chunks":1,"threadblocks":[],"scratch_chunks":-1}]}`, "rank 0: scratch_chunks is -1, want 0 to 1048576"},
		{`{"collective":"test","gpus":[{"id":0,"input_chunks":1,"output_chunks":1,"threadblocks":[{"id":5,"ops":[]},{"id":5,"ops":[]}]}]}`,
			"rank 0: threadblocks[1] has id 5, as threadblocks[0] has: ids must differ"},
		{`{"collective":"test","gpus":[{"id":0,"scratch_chunks":1048576,"input_chunks":1048576,"output_chunks":1,"threadblocks":[]}]}`, ""},
		{plan(`{"name":"\u001b[31m"}`, ""), `op 0 ("\x1b[31m"): unknown operation`},
		{plan(`{"name":"wait","channel_type":"memory","channel_ids":[0]}`, ""),
			"op 0 (wait): it has channel_ids, but the thread block lacks the key channels"},
		{plan(copies(`,"tbg_info":{"tb_id":2,"tbg_size":2}`, "1"), ""), "tbg_info has block 2 of 2"},
		{plan(copies(`,"tbg_info":{"tb_id":0,"tbg_size":1031}`, "1"), ""), "more than 1024 parts"},
		{plan(copies("", "-1"), ""), "an operand has size -1 and index 0 (its first chunk), want a size from 1 to 1048576"},
		{plan(copies("", "9223372036854775807"), ""), "an operand has size 9223372036854775807 and index 0"},
		{plan(`{"name":"pipeline","iter_context":{"num_chunks":1,"unit_size":1},"ops":[{"name":"pipeline","iter_context":{"num_chunks":1,"unit_size":1},"ops":[{"name":"nop"}]}]}`, ""), "a pipeline within a pipeline"},
		{plan(`{"name":"pipeline","ops":[{"name":"nop"},{"name":"nop"}],"iter_context":{"num_chunks":1048576,"unit_size":1}}`, ""),
			"operations"},
		{plan(`{"name":"sem_acquire","semaphore_ids":[-1]}`, `,"semaphores":[]`), "there is no semaphore -1"},
		{plan(`{"name":"barrier","barrier_id":1}`, ""), "op 0 (barrier): it lacks the key num_threadblocks"},
		{`{"collective":"test","gpus":[{"id":0,"input_chunks":1,"output_chunks":1,"threadblocks":[],"channels":[{"channel_type":"port","connected_to":[7]}]}]}`, "connected to rank 7, but the ranks are 0 to 0"},
		{`<algo coll="test" ngpus="2"><gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0"/></algo>`,
			"ngpus is 2, and the algorithm has 1 gpus"},
		{`<algo coll="test" ngpus="1"><gpu id="0" i_chunks="x" o_chunks="1" s_chunks="0"/></algo>`,
			`line 1: "x" is no whole number`},
		{`<algo coll="test" ngpus="1"><gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0"><tb id="0" send="3" recv="-1" chan="0"/></gpu></algo>`, "its peer is rank 3, but the ranks are 0 to 0"},
		{`<algo coll="test" ngpus="1"><gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0"><tb id="0" send="-1" recv="-1"><step type="s" cnt="1" depid="-1" hasdep="0"/></tb></gpu></algo>`, `there is no buffer ""`},
		{`<algo coll="test" ngpus="1"><gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0"><tb id="0" send="-1" recv="-1"><step s="0" type="nop" depid="0" deps="9" hasdep="0"/></tb></gpu></algo>`, "op 0 (nop): it depends on op 9 of tb 0, which has 1"},
		{`<algo coll="test" ngpus="1"><gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0"><tb id="0" send="-1"`,
			"unexpected EOF"},
		{"<algo coll=\"test\" ngpus=\"1\">\n<gpu id=\"0\" i_chunk=\"4\"/></algo>",
			"line 2: unknown attribute i_chunk of <gpu>: the attributes " +
				"are id, i_chunks, o_chunks, s_chunks"},
		{`<algo coll="test" ngpus="1" ngpu="2"/>`,
			"line 1: unknown attribute ngpu of <algo>: the attributes are name, proto, nchannels, "},
		{`<algo coll="test" ngpus="1"><gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0"><tb id="0" send="-1" recv="-1"><step s="0" type="nop" depid="-1" hasdeps="1"/></tb></gpu></algo>`,
			"line 1: unknown attribute hasdeps of <step>: the attributes are s, type, srcbuf, srcoff, dstbuf, dstoff, cnt, depid, deps, hasdep"},
		{`<algo coll="test" ngpus="1"><gpus/></algo>`,
			"line 1: unknown element <gpus>: the elements are algo, gpu, tb and step"},
		{`<algo coll="test" ngpus="1" redop="sum"><gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0"/></algo>`, ""},
		{`<algo coll="test" ngpus="1" redop="max"><gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0"/></algo>`,
			`redop is "max": only sum is supported`},
		{`<algo coll="test"/>`, "line 1: <algo> lacks the attribute ngpus"},
		{`<algo coll="test" ngpus="1"><gpu id="0" i_chunks="1" s_chunks="0"/></algo>`,
			"line 1: <gpu> lacks the attribute o_chunks"},
		{"<algo coll=\"test\" ngpus=\"1\"><gpu id=\"0\" i_chunks=\"1\" o_chunks=\"1\" s_chunks=\"0\">\n<tb id=\"0\" send=\"0\"/></gpu></algo>",
			"line 2: <tb> lacks the attribute recv"},
		{"{\"num_threads_per_block\":\n0,\"collective\":\"test\",\"gpus\":[{}]}",
			"line 2, column 1: num_threads_per_block: it is 0, want 1 to 1024"},
		{`{"collective":"test","gpus":[{}],"num_threads_per_block":-1}`,
			"line 1, column 58: num_threads_per_block: it is -1, want 1 to 1024"},
		{`{"collective":"test","gpus":[{}],"num_threads_per_block":100000}`,
			"num_threads_per_block: it is 100000, want 1 to 1024"},
		{`{"collective":"test","gpus":[{}],"buffer_alignment":0}`,
			"line 1, column 53: buffer_alignment: it is 0, want at least 1 byte"},
		{`{"collective":"test","gpus":[{}],"buffer_alignment":-16}`,
			"line 1, column 53: buffer_alignment: it is -16, want at least 1 byte"},
		{`{"collective":"test","gpus":[{}],"min_message_size":9,"max_message_size":8}`,
			"line 1, column 74: max_message_size: it is 8, less than min_message_size, which is 9"},
		{"{\"collective\":\"test\",\n\"collective\":\"allreduce\",\"gpus\":[{}]}",
			`line 2, column 1: key "collective" is repeated`},
		{"<algo coll=\"test\" ngpus=\"1\"\n nchannels=\"0\"/>", `line 2: <algo> has nchannels="0", want 1 to 32`},
		{`<algo coll="test" ngpus="1" nchannels="-1"/>`, `line 1: <algo> has nchannels="-1", want 1 to 32`},
		{`<algo coll="test" ngpus="1" nchannels="99"/>`, `line 1: <algo> has nchannels="99", want 1 to 32`},
		{`<algo coll="test" ngpus="1" minBytes="8" maxBytes="7"/>`,
			`line 1: <algo> has minBytes="8", which is more than maxBytes, 7`},
		{`<algo coll="allreduce" ngpus="1"/>`, `line 1: <algo> lacks the attribute inplace`},
		{`<algo coll="allreduce" ngpus="1" inplace="2"/>`, `line 1: <algo> has inplace="2", want 0 or 1`},
		{"<algo coll=\"test\" ngpus=\"1\"\nngpus=\"2\"/>", `line 2: <algo> has the attribute ngpus twice`},
		{`<algo coll="test" ngpus="1" nchannels="1"><gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0"><tb id="0" send="0" recv="-1" chan="5"/></gpu></algo>`,
			`line 1: <tb> has chan="5", but the channels are 0 to 0 (see nchannels)`},
		{`<algo coll="test" ngpus="1"><gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0"><tb id="0" send="0" recv="-1" chan="-1"/></gpu></algo>`,
			`line 1: <tb> has chan="-1", but the channels are 0 to 31 (see nchannels)`},
		{xmlStep("<step s=\"0\" type=\"nop\" depid=\"-1\"\nhasdep=\"7\"/>"),
			`line 2: <step> has hasdep="7", want 0 or 1`},
		{xmlStep("\n loose\n\n"), `line 2: the text "loose" is in no attribute`},
		{xmlStep(`<step s="0" type="nop" depid="-1" hasdep="0"/>`) + "\n\nmore",
			`line 3, after the algorithm's end: the text "more" is in no attribute`},
		{xmlStep("<!-- a comment -->\n"), ""},
		{xmlStep(`<step s="0" type="nop"/>`), "line 1: <step> lacks the attribute depid"},
		{xmlStep(`<step s="0" type="nop" depid="-1"/>`), "line 1: <step> lacks the attribute hasdep"},
		{xmlStep(`<step s="0" type="nop" depid="0" hasdep="0"/>`), "line 1: <step> lacks the attribute deps"},
		{xmlStep(`<step s="0" type="cpy" srcbuf="i" depid="-1" cnt="1" hasdep="0"/>`),
			"line 1: <step> lacks the attribute srcoff"},
		{xmlStep(`<step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" depid="-1" cnt="1" hasdep="0"/>`),
			"line 1: <step> lacks the attribute dstoff"},
		{xmlStep(`<step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" depid="-1" hasdep="0"/>`),
			"line 1: <step> lacks the attribute cnt"},
		{xmlStep(`<step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" depid="-1" cnt="1" hasdep="0"/>`),
			""},
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

// xmlStep returns an algorithm of one rank that consists of a step.
func xmlStep(step string) string {
	return `<algo coll="test" ngpus="1"><gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0"><tb id="0" send="-1" recv="-1">` + step + `</tb></gpu></algo>`
}

// TestAbsentKeys removes each key of a plan, one at a time. If the proof needs the key, the plan must be refused with
// an error that names the key; otherwise the verdict must not change.
func TestAbsentKeys(t *testing.T) {
	operations := `[
		{"name":"put","src_buff":[{"type":"i","index":0,"size":1}],"dst_buff":[{"buffer_id":0,"index":0,"size":1}],"channel_type":"port","channel_ids":[0]},
		{"name":"get","src_buff":[{"buffer_id":0,"index":0,"size":1}],"dst_buff":[{"type":"o","index":0,"size":1}],"channel_type":"memory","tbg_info":{"tb_id":0,"tbg_size":1}},
		{"name":"rre","src_buff":[{"type":"i","index":0,"size":1},{"buffer_id":0,"index":0,"size":1}],"dst_buff":[{"type":"o","index":0,"size":1}],
		 "channel_type":"memory","reduce_op":"sum"},
		{"name":"pipeline","iter_context":{"unit_size":1,"num_chunks":1},"ops":[{"name":"re","src_buff":[{"type":"i","index":0,"size":1}],
		 "dst_buff":[{"type":"s","index":0,"size":1}],"reduce_op":"sum"}]},
		{"name":"barrier","barrier_id":0,"num_threadblocks":1},
		{"name":"sem_release","semaphore_ids":[0]},
		{"name":"glre","channel_type":"switch","channel_ids":[0],"buffer_type":"i","buffer_offset":0,"size":1,"reduce_op":"sum",
		 "dst_chunk":{"rank":0,"type":"o","index":0,"size":1}},
		{"name":"glres","src_buff":[{"switch_channel_id":0,"index":0,"size":1}],"dst_buff":[{"switch_channel_id":0,"index":0,"size":1}],"channel_type":"switch"},
		{"name":"signal","channel_type":"memory","channel_ids":[0]},
		{"name":"nop"}]`
	text := `{"name":"p","collective":"allreduce","protocol":"Simple","inplace":false,"reuse_resources":false,"num_threads_per_block":1024,
		"use_double_scratch_buffer":false,"buffer_alignment":16,"min_message_size":0,"max_message_size":0,"gpus":[{"id":0,"input_chunks":1,"output_chunks":1,
		"scratch_chunks":1,"semaphores":[{"init_value":0}],"remote_buffers":[{"rank":0,"type":"i","access_channel_types":["memory"]}],
		"channels":[{"channel_type":"memory","connected_to":[0]},{"channel_type":"port","connected_to":[0]},
		{"channel_type":"switch","buffer_type":"i","rank_groups":[{"size":1,"ranks":[0]}]}],
		"threadblocks":[{"id":0,"ops":` + operations +
		`,"channels":[{"channel_type":"memory","channel_ids":[0]},{"channel_type":"port","channel_ids":[0]},
		{"channel_type":"switch","channel_ids":[0]}],"remote_buffer_refs":[{"access_channel_type":"memory","remote_buffer_ids":[0]},
		{"access_channel_type":"port","remote_buffer_ids":[0]}]}]}]}`
	var doc any
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	verdict := func() (string, error) {
		out, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		f, err := mscclpp.Parse(out)
		if err != nil {
			return "", err
		}
		p, err := f.Plan()
		if err != nil {
			return "", err
		}
		r := schedule.Check(p, schedule.Options{})
		return fmt.Sprint(r.Verdict, r.Findings), nil
	}
	whole, err := verdict()
	if err != nil {
		t.Fatal(err)
	}
	// the verdict does not depend on these keys; access_channel_types repeats the references
	unneeded := []string{"name", "protocol", "reuse_resources", "num_threads_per_block", "use_double_scratch_buffer",
		"buffer_alignment",
		"min_message_size", "max_message_size", "access_channel_types"}
	removed := 0
	var walk func(v any, path string)
	walk = func(v any, path string) {
		switch v := v.(type) {
		case []any:
			for i := range v {
				walk(v[i], fmt.Sprintf("%s[%d]", path, i))
			}
		case map[string]any:
			op, _ := v["name"].(string)
			for _, key := range slices.Sorted(maps.Keys(v)) {
				was := v[key]
				delete(v, key)
				got, err := verdict()
				optional := path == "" && slices.Contains(unneeded, key) || key == "access_channel_types" ||
					strings.HasSuffix(path, "rank_groups[0]") && key == "size" ||
					strings.HasSuffix(path, "dst_chunk") && key == "rank" ||
					strings.HasPrefix(op, "gl") && (key == "channel_type" || key == "reduce_op") || key == "tbg_info"
				switch {
				case optional && (err != nil || strings.ReplaceAll(got, "()", "") == ""):
					t.Errorf("%s without %s: %v", path, key, err)
				case optional && key != "name" && got != whole:
					t.Errorf("%s without %s: %s\nwant %s", path, key, got, whole)
				case !optional && (err == nil || !strings.Contains(err.Error(), key)):
					t.Errorf("%s without %s: %q, %v, want an error that names the key", path, key, got, err)
				}
				removed++
				v[key] = was
				walk(was, path+"."+key)
			}
		}
	}
	walk(doc, "")
	if removed < 90 {
		t.Errorf("%d keys removed", removed)
	}
}
