package certify_test

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"hocket.example/hocket/internal/certify"
	"hocket.example/hocket/internal/certify/issue"
)

// exchange returns the statement of the example schedule, and its certificate.
func exchange(t testing.TB) (*certify.ScheduleStatement, string) {
	t.Helper()
	p, err := readSchedule(t, "../../examples/schedules/exchange.json").Plan()
	if err != nil {
		t.Fatal(err)
	}
	s, err := certify.Schedule(p)
	if err != nil {
		t.Fatal(err)
	}
	c, err := issue.Certificate(&s.Statement)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return s, string(text)
}

// accepted returns nil if a text is a valid certificate of a statement, and otherwise the reason why it is rejected.
func accepted(s *certify.ScheduleStatement, text string) error {
	c, err := certify.Parse([]byte(text))
	if err == nil {
		err = certify.CheckSchedule(s, c)
	}
	return err
}

// TestHostileCertificates checks that certificates that were made to exploit the checker are rejected with a
// description of the error.
func TestHostileCertificates(t *testing.T) {
	s, right := exchange(t)
	if err := accepted(s, right+"\n"); err != nil {
		t.Fatal(err)
	}
	for n := range right { // cut off anywhere
		if accepted(s, right[:n]) == nil {
			t.Errorf("its first %d of %d bytes are accepted", n, len(right))
		}
	}
	with := func(key, value string) string {
		at := strings.Index(right, `"`+key+`":`) + len(key) + 3
		end := at
		for depth := 0; end < len(right); end++ {
			switch right[end] {
			case '[', '{':
				depth++
			case ']', '}':
				depth--
			}
			if depth == 0 && (right[end+1] == ',' || right[end+1] == '}') {
				break
			}
		}
		return right[:at] + value + right[end+1:]
	}
	order := with("order", "ORDER")
	ordered := func(list string) string { return strings.Replace(order, "ORDER", list, 1) }
	const unlike = "not in the form of a certificate"
	for _, c := range []struct{ text, want string }{
		{"", "end of JSON input"},
		{"null", unlike},
		{"{}", unlike},
		{strings.Repeat("[", 1<<20), "depth"},
		{`{"order":` + strings.Repeat(`{"order":`, 1<<16), "depth"},
		{right + "{}", "after top-level value"},
		{strings.Replace(right, "{", `{"more":1,`, 1), unlike},
		{strings.Replace(right, "{", `{"plan":"",`, 1), unlike},
		{strings.Replace(right, `"plan"`, `"PLAN"`, 1), unlike},
		{strings.Replace(right, `"of":{`, `"of":{"0":1,"0":1,`, 1), unlike},
		{with("format", `"hocket certificate 1"`), "format"},
		{with("plan", `"`+strings.Repeat("0", 64)+`"`), "is for another plan"},
		{with("plan", `"`+strings.Repeat("x", 1<<20)+`"`), "is for another plan"},
		{ordered("[]"), "the order omits"},
		{ordered("null"), "the order omits"},
		{ordered("[[-1,1]]"), "chain -1"},
		{ordered("[[0,-1]]"), "-1 more events of chain 0"},
		{ordered("[[0,0]]"), "0 more events of chain 0"},
		{ordered(fmt.Sprintf("[[%d,1]]", s.Chains)), "more events of chain"},
		{ordered("[[0,2147483647]]"), "2147483647 more events"},
		{ordered("[[0,2147483648]]"), "cannot unmarshal"},
		{ordered("[[0,1e3]]"), "cannot unmarshal"},
		{ordered("[[0]]"), "unlike"},
		{ordered("[[0,1,1]]"), "unlike"},
		{ordered(`["x"]`), "cannot unmarshal"},
		{with("matches", "[]"), "list of matches differs"},
		{with("matches", "[-1]"), "list of matches differs"},
		{with("clocks", "[]"), "is not ordered after"},
		{with("clocks", `[{"event":-1,"of":null}]`), "is not ordered after"},
		{with("clocks", `[{"event":0,"of":{"1":1}}]`), "does not show that event 1 of thread 1 precedes it"},
		{with("clocks", `[{"event":0,"of":{"-2147483648":1}}]`), "does not show that event"},
		{with("clocks", `[{"event":0,"of":{"2147483647":2147483647}}]`), "does not show that event"},
		{with("clocks", fmt.Sprintf(`[{"event":0,"of":{"%d":0}}]`, 2*s.Threads)), "does not show that event"},
		{with("reuses", `[{"event":0,"of":{"0":1}}]`), "list of reuses differs"},
	} {
		if c.want == "unlike" {
			c.want = unlike
		}
		if err := accepted(s, c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.100s: %v, want %q", c.text, err, c.want)
		}
	}
}

// TestCyclesHaveNoCertificate checks that chains that wait for each other have no certificate, with any order that a
// certificate claims.
func TestCyclesHaveNoCertificate(t *testing.T) {
	s := &certify.Statement{Plan: "p", Chains: 2, Threads: 2, Counters: 2, Events: []certify.Event{
		{Chain: 0, Thread: 0, Waits: []certify.Wait{{Counter: 1, N: 1}}, Adds: []certify.Add{{Counter: 0}}},
		{Chain: 1, Thread: 1, Waits: []certify.Wait{{Counter: 0, N: 1}}, Adds: []certify.Add{{Counter: 1}}},
	}}
	if _, err := issue.Certificate(s); err == nil || !strings.Contains(err.Error(), "2 events can never run") {
		t.Error(err)
	}
	for _, order := range [][][2]int32{{{0, 1}, {1, 1}}, {{1, 1}, {0, 1}}} {
		c := &certify.Certificate{Format: certify.Format, Plan: "p", Order: order, Matches: []int32{1, 0},
			Clocks: []certify.Past{{Event: 0, Of: map[int32]int32{1: 1}}, {Event: 1, Of: map[int32]int32{0: 1}}}}
		if err := certify.Check(s, c); err == nil || !strings.Contains(err.Error(), "but only 0 adds precede it") {
			t.Error(err)
		}
	}
}

// FuzzCertificate passes any text to the decoder and the checker. The decoder and the checker must not panic, and may
// use memory only in proportion to the length of the text.
func FuzzCertificate(f *testing.F) {
	s, right := exchange(f)
	f.Add(right)
	f.Add(strings.Replace(right, "[[", "[[0,1],[", 1))
	f.Add(`{"format":"hocket certificate 2","plan":"","order":[[0,1],[1,2]],"matches":[1],"clocks":[{"event":0,"of":{"1":1}}],"reuses":null}`)
	f.Add(`{"clocks":[` + strings.Repeat(`{},`, 1000) + `{}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1<<16 {
			return
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		c, err := certify.Parse([]byte(text))
		runtime.ReadMemStats(&after)
		if got, most := after.TotalAlloc-before.TotalAlloc, uint64(1<<16+200*len(text)); got > most {
			t.Errorf("%d bytes of text take %d of memory", len(text), got)
		}
		if err != nil {
			return
		}
		if c.Format == certify.Format {
			c.Plan = s.Plan // so that the checks after the first one are reached
		}
		if err := certify.CheckSchedule(s, c); err == nil && text != right {
			var first certify.Certificate
			if err := json.Unmarshal([]byte(right), &first); err != nil {
				t.Fatal(err)
			}
			if len(c.Order) == 0 || len(c.Matches) != len(first.Matches) {
				t.Errorf("accepted: %s", text)
			}
		}
	})
}
