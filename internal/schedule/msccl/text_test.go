package msccl_test

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"hocket.example/hocket/internal/schedule"
	"hocket.example/hocket/internal/schedule/msccl"
)

// TestEncodeKeepsText repairs algorithms with comments and unusual spaces, and compares the result with the edited
// text.
func TestEncodeKeepsText(t *testing.T) {
	text, err := os.ReadFile("../testdata/pair.xml")
	if err != nil {
		t.Fatal(err)
	}
	right := strings.Replace(string(text), ">\n", "> <!-- by hand -->\n\n", 1) + "<!-- end -->\n"
	parse := func(text string) *msccl.File {
		t.Helper()
		f, err := msccl.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	if got, err := parse(right).Encode(); err != nil || string(got) != right {
		t.Errorf("%v\n%s\nwant\n%s", err, got, right)
	}
	i := strings.Index(right, `hasdep="1"`)
	if i < 0 {
		t.Fatal("no step reports")
	}
	wrong := right[:i] + `hasdep = '0'` + right[i+len(`hasdep="1"`):]
	f := parse(wrong)
	p, err := f.Plan()
	if err != nil {
		t.Fatal(err)
	}
	o := schedule.Options{Launches: 2}
	r := schedule.Check(p, o)
	fix, _, ok := schedule.Fix(f, r, o)
	if !ok {
		t.Fatal(r.Verdict, fix.Text)
	}
	if got, err := fix.File.Encode(); err != nil || string(got) != right {
		t.Errorf("%v, %s\n%s\nwant\n%s", err, fix.Text, got, right)
	}
}

// TestEncodeInserts checks an insertion: the new step stands before the step that it delays, with the same indentation.
func TestEncodeInserts(t *testing.T) {
	const text = `<algo coll="test" ngpus="1">
  <gpu id="0" i_chunks="1" o_chunks="1" s_chunks="1">
    <tb id="0" send="-1" recv="-1">
      <step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0" cnt="1" depid="-1" hasdep="0"/>
    </tb>
    <tb id="1" send="-1" recv="-1">
      <!-- too early -->
      <step s="0" type="cpy" srcbuf="s" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" hasdep="0"></step>
    </tb>
  </gpu>
</algo>`
	f, err := msccl.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Plan()
	if err != nil {
		t.Fatal(err)
	}
	o := schedule.Options{Launches: 1}
	fix, _, ok := schedule.Fix(f, schedule.Check(p, o), o)
	if !ok {
		t.Fatal(fix.Text)
	}
	got, err := fix.File.Encode()
	want := strings.Replace(text, `hasdep="0"/>`, `hasdep="1"/>`, 1)
	want = strings.Replace(want, `depid="-1" hasdep="0"></step>`, `depid="0" hasdep="0" deps="0"></step>`, 1)
	if err != nil || !bytes.Equal(got, []byte(want)) {
		t.Errorf("%v, %s\n%s\nwant\n%s", err, fix.Text, got, want)
	}
}

// TestEncodeNewStep checks a step that gets a second dependence: a nop with the new one stands before it.
func TestEncodeNewStep(t *testing.T) {
	const text = `<algo coll="test" ngpus="1">
  <gpu id="0" i_chunks="2" o_chunks="2" s_chunks="2">
    <tb id="0" send="-1" recv="-1">
      <step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0" cnt="1" depid="-1" hasdep="1"/>
    </tb>
    <tb id="1" send="-1" recv="-1">
      <step s="0" type="cpy" srcbuf="i" srcoff="1" dstbuf="s" dstoff="1" cnt="1" depid="-1" hasdep="0"/>
    </tb>
    <tb id="2" send="-1" recv="-1">
      <!-- both -->
      <step s="0" type="cpy" srcbuf="s" srcoff="0" dstbuf="o" dstoff="0" cnt="2" depid="0" deps="0" hasdep="0"/>
    </tb>
  </gpu>
</algo>
`
	f, err := msccl.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Plan()
	if err != nil {
		t.Fatal(err)
	}
	o := schedule.Options{Launches: 1}
	fix, _, ok := schedule.Fix(f, schedule.Check(p, o), o)
	if !ok {
		t.Fatal(fix.Text)
	}
	got, err := fix.File.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`cnt="1" depid="-1" hasdep="1"/>`,
		"\n      <!-- both -->\n      <step s=\"0\" type=\"nop\"", "\n      <step s=\"1\" type=\"cpy\" srcbuf=\"s\""} {
		if !strings.Contains(string(got), want) {
			t.Errorf("%s\nlacks %s", got, want)
		}
	}
	if back, err := msccl.Parse(got); err != nil {
		t.Error(err)
	} else if p, err := back.Plan(); err != nil || schedule.Check(p, o).Verdict != schedule.OK {
		t.Error(err)
	}
}
