package footprint

import (
	"bytes"
	"compress/gzip"
	"slices"
	"strings"
	"testing"
)

// TestWaitingBySite checks the number of waiting bytes for each call that allocated some, at the moment when the most
// bytes wait.
func TestWaitingBySite(t *testing.T) {
	frames := func(list ...any) []any { return list }
	frame := func(file string, line int64, name string) fields {
		return fields{{"filename", file}, {"line", line}, {"name", name}}
	}
	forward := frames(frame("??", 0, "at::native::linear"),
		frame("/usr/lib/python3/site-packages/torch/nn/functional.py", 10, "linear"),
		frame("/home/u/train.py", 31, "forward"), frame("/home/u/train.py", 50, "main"))
	reduce := frames(frame("/usr/lib/python3.12/threading.py", 7, "run"), frame(`C:\work\model<b>.py`, 8, "reduce"))
	event := func(action string, addr, size int64, stack []any) fields {
		return fields{{"action", action}, {"addr", addr}, {"size", size}, {"stream", int64(0)}, {"frames", stack}}
	}
	const mib = int64(1 << 20)
	events := []any{
		event("segment_alloc", 0, 16*mib, frames()),
		event("alloc", 0, 2*mib, forward), event("alloc", 2*mib, mib, reduce), event("alloc", 3*mib, 4*mib, forward),
		event("free_requested", 0, 2*mib, frames()), // waits: 2
		event("free_requested", 3*mib, 4*mib, frames()),
		event("free_requested", 2*mib, mib, frames()), // waits: 7, the most
		event("free_completed", 0, 2*mib, frames()),
		event("alloc", 0, 2*mib, reduce),
		event("free_requested", 0, mib, frames()), // 6
	}
	segment := fields{
		{"address", int64(0)}, {"total_size", 16 * mib}, {"stream", int64(0)}, {"device", int64(0)},
		{"blocks", []any{fields{{"size", mib}, {"state", "active_pending_free"}, {"frames", reduce}},
			fields{{"size", mib}, {"state", "active_allocated"}, {"frames", reduce}},
			fields{{"size", mib}, {"state", "active_pending_free"}, {"frames", reduce}},
			fields{{"size", 4 * mib}, {"state", "active_pending_free"}, {"frames", forward}}}},
	}
	all := snapshotOf(t, fields{{"segments", []any{segment}}, {"device_traces", []any{events}}})
	x := all[0].Explain()
	want := []SiteBytes{{"train.py:31 forward", 6 * mib, 2}, {"model<b>.py:8 reduce", mib, 1}}
	if x.Waiting != 7*mib || !slices.Equal(x.WaitingBySite, want) {
		t.Errorf("%d bytes wait, %+v; want %+v", x.Waiting, x.WaitingBySite, want)
	}
	var page bytes.Buffer
	if err := WriteSnapshotHTML(&page, "a & b", []*Explanation{x}); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"a &amp; b", `<td class="left">train.py:31 forward</td><td>6.0 MiB</td><td>2</td>`,
		"model&lt;b&gt;.py:8 reduce",
		"waiting for other streams, at most 7.0 MiB"} {
		if !strings.Contains(page.String(), part) {
			t.Errorf("the page has no %q", part)
		}
	}
}

// TestWaitingWithoutStacks checks that the waiting bytes of a snapshot without stacks are counted.
func TestWaitingWithoutStacks(t *testing.T) {
	x := recorded(t, "record_stream-eager").Explain()
	if len(x.WaitingBySite) != 1 || x.WaitingBySite[0].Site != "" || x.WaitingBySite[0].Bytes != x.Waiting {
		t.Errorf("%d waits, %+v", x.Waiting, x.WaitingBySite)
	}
}

// TestNoHistory explains a snapshot whose device has a segment of 16 MiB and no trace. At the end of the run, 4 MiB are
// allocated and 3 MiB wait, so 16 − 4 − 3 = 9 MiB are free. Lifetimes are unknown, so there is no plan.
func TestNoHistory(t *testing.T) {
	const mib = int64(1 << 20)
	segment := fields{
		{"address", int64(0)}, {"total_size", 16 * mib}, {"stream", int64(0)}, {"device", int64(0)},
		{"blocks", []any{fields{{"size", 4 * mib}, {"state", "active_allocated"}},
			fields{{"size", 3 * mib}, {"state", "active_pending_free"}},
			fields{{"size", 9 * mib}, {"state", "inactive"}}}},
	}
	all := snapshotOf(t, fields{{"segments", []any{segment}}, {"device_traces", []any{[]any{}}}})
	x := all[0].Explain()
	if !x.NoHistory || x.Planned() || x.ReservedPeak != 16*mib || x.AllocatedPeak != 4*mib || x.Waiting != 3*mib || x.Free != 9*mib {
		t.Errorf("%+v", x)
	}
	if recorded(t, "record_stream-eager").Explain().NoHistory {
		t.Error("a snapshot with a trace has no history")
	}
}

// TestOtherFiles checks that the error for a timeline names its command, also if the file is gzipped and begins with
// spaces.
func TestOtherFiles(t *testing.T) {
	const text = " \n{\"schemaVersion\": 1, \"traceEvents\": []}"
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{text, z.String()} {
		if _, err := ReadSnapshot(strings.NewReader(content)); err == nil ||
			!strings.Contains(err.Error(), "it is a timeline: hocket trace explains it") {
			t.Errorf("%v", err)
		}
	}
}

// TestWaitingBefore explains a snapshot that begins while three blocks of 2 MiB wait: two events complete their frees,
// and the third waits until the end. A block of 1 MiB in the trace is freed without waiting. At most 6 MiB in 3 blocks
// wait, and picture and text agree.
func TestWaitingBefore(t *testing.T) {
	const mib = int64(1 << 20)
	event := func(action string, addr, size int64) fields {
		return fields{{"action", action}, {"addr", addr}, {"size", size}, {"stream", int64(0)}}
	}
	segment := fields{
		{"address", int64(0)}, {"total_size", 16 * mib}, {"stream", int64(0)}, {"device", int64(0)},
		{"blocks", []any{fields{{"size", 4 * mib}, {"state", "inactive"}}, fields{{"size", 2 * mib}, {"state",
			"active_pending_free"}},
			fields{{"size", 10 * mib}, {"state", "inactive"}}}},
	}
	all := snapshotOf(t, fields{{"segments", []any{segment}}, {"device_traces", []any{[]any{event("alloc", 8*mib, mib),
		event("free_requested", 8*mib, mib), event("free_completed", 8*mib, mib), event("explode", 0, 1),
		event("free_completed", 0, 2*mib),
		event("free_completed", 2*mib, 2*mib)}}}})
	x := all[0].Explain()
	if want := []SiteBytes{{"", 6 * mib, 3}}; x.Waiting != 6*mib || !slices.Equal(x.WaitingBySite, want) {
		t.Errorf("%d bytes wait, %+v; want %+v", x.Waiting, x.WaitingBySite, want)
	}
	var page, text bytes.Buffer
	if err := WriteSnapshotHTML(&page, "a", []*Explanation{x}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(page.String(), "up to 6.0 MiB waited") || !strings.Contains(page.String(),
		"waiting for other streams, at most 6.0 MiB") {
		t.Error("the sentence or the legend of the page does not say 6.0 MiB")
	}
	x.WriteText(&text)
	if !strings.Contains(text.String(), "ignored    1         events of the unknown action explode: the sums may "+
		"lack them\n") {
		t.Error(text.String())
	}
}
