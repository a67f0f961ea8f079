package report

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"hocket.example/hocket/internal/trace"
	"hocket.example/hocket/internal/trace/account"
	"hocket.example/hocket/internal/trace/flight"
)

// large returns a trace of n events on eight ranks with two streams each.
func large(n int) *trace.Trace {
	rng := rand.New(rand.NewPCG(1, 2))
	t := &trace.Trace{Ranks: 8}
	for r := range t.Ranks {
		at := int64(0)
		for i := range n / 16 {
			long := rng.Int64N(20_000) + 100
			t.Events = append(t.Events, trace.Event{Rank: r, Stream: "main", Name: fmt.Sprintf("linear_%d", i%30),
				Class:  trace.Compute,
				Detail: fmt.Sprintf("linear (mlp.hkt:%d:3)", i%7+2), Start: at, End: at + long, Group: trace.NoGroup})
			at += long + 50
		}
		for i := range n / 16 {
			start := int64(i)*10_000 + rng.Int64N(5_000)
			t.Events = append(t.Events, trace.Event{Rank: r, Stream: "%s", Name: "all_reduce", Class: trace.Comm,
				Bytes: 1 << 20,
				Start: start, End: int64(i)*10_000 + 8_000, Group: i})
		}
	}
	t.Sort()
	return t
}

func runPage(t testing.TB, r *account.Report, o Run) string {
	t.Helper()
	var b bytes.Buffer
	if err := WriteRun(&b, r, o); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestSelfContained checks that the page loads nothing and that text from a profile cannot become markup.
func TestRunSelfContained(t *testing.T) {
	tr := large(64)
	tr.Events[0].Name, tr.Events[0].Detail = "</script><script>alert(1)</script>", "<!--<img src=x onerror=alert(1)>"
	text := runPage(t, account.Of(tr, 0), Run{Title: "<b>title</b>", Program: "a < b\n</td><script>"})
	if m := regexp.MustCompile(`(?i)(src|href)\s*=\s*"?(https?:|//)|@import|url\(`).FindString(text); m != "" {
		t.Errorf("it refers to %q", m)
	}
	if n := strings.Count(text, "<script"); n != 2 {
		t.Errorf("%d scripts; want the data and the page's own", n)
	}
	for _, s := range []string{"<b>title", "<img", "a < b"} {
		if strings.Contains(text, s) {
			t.Errorf("%q stands unescaped", s)
		}
	}
}

// TestProgramCost checks that the cost of a line is the sum of its events on all ranks.
func TestProgramCost(t *testing.T) {
	tr := &trace.Trace{Ranks: 2}
	for r := range 2 {
		tr.Events = append(tr.Events,
			trace.Event{Rank: r, Stream: "main", Name: "linear", Detail: "linear %x (m.hkt:2:3)", Class: trace.Compute,
				Start: 0, End: 30_000, Group: trace.NoGroup},
			trace.Event{Rank: r, Stream: "main", Name: "gelu", Detail: "gelu %h (m.hkt:3:3)", Class: trace.Compute,
				Start: 30_000, End: 40_000, Group: trace.NoGroup})
	}
	lines, _ := program(account.Of(tr, 0), Run{Program: "func f() {\n  linear\n  gelu\n}\n"})
	if len(lines) != 4 || lines[1].Cost != "60.0 µs" || lines[1].Share != "75.0%" || lines[2].Cost != "20.0 µs" ||
		lines[0].Cost != "" || !lines[1].Hot || lines[2].Hot {
		t.Errorf("%+v", lines)
	}
}

// driveRun opens the page of a run in a browser, runs a script in it, and returns what the script put into the title.
// If the page has errors, the result begins with them.
func driveRun(t *testing.T, text, script string) string {
	t.Helper()
	const watch = `<head><script>
const faults = [];
window.onerror = (m) => { faults.push(String(m)); };
console.error = (...m) => { faults.push(m.join(" ")); };
</script>`
	text = strings.Replace(text, "<head>", watch, 1)
	return drive(t, text, `
const press = (key) => document.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
let out = "";
try { `+script+` } catch (e) { faults.push(String(e)); }
draw();
document.title = faults.length ? "faults: " + faults.join("; ") : String(out);`).one(t, "head").one(t,
		"title").content()
}

// TestBrowserRunLarge checks that a page with 100,000 events opens within a time limit, and that every key does what
// the page says. The limit is ten times the specified one, because the machine may be busy.
func TestBrowserRunLarge(t *testing.T) {
	r := account.Of(large(100_000), 0)
	text := runPage(t, r, Run{Title: "large"})
	got := driveRun(t, text, `
const before = () => [from, to].map(Math.round).join();
const steps = [];
const change = (name, key, want) => { const a = [from, to]; press(key); if (!want(a, [from, to])) faults.push(name + ": " + a + " to " + [from, to]); };
change("zoom in", "ArrowUp", (a, b) => b[1] - b[0] < a[1] - a[0]);
change("zoom in", "w", (a, b) => b[1] - b[0] < a[1] - a[0]);
change("move right", "ArrowRight", (a, b) => b[0] > a[0] && Math.abs((b[1] - b[0]) - (a[1] - a[0])) < 1);
change("move left", "ArrowLeft", (a, b) => b[0] < a[0]);
change("zoom out", "ArrowDown", (a, b) => b[1] - b[0] > a[1] - a[0]);
press("/");
if (document.activeElement.id !== "search") faults.push("/ does not search");
$("search").value = "linear_29"; search("linear_29");
change("next hit", "n", (a, b) => b[1] - b[0] < a[1] - a[0]);
if (chosen < 0 || names[ev.name[chosen]] !== "linear_29") faults.push("n chose " + chosen);
const one = chosen; press("n"); press("p");
if (chosen !== one) faults.push("p does not go back");
press("c");
if (!$("path").checked) faults.push("c does not show the critical path");
press("Escape");
if (chosen !== -1 || hits.length) faults.push("Escape leaves the search");
change("all", "0", (a, b) => b[0] <= 0 && b[1] >= whole);
document.querySelectorAll("#collectives th button")[4].click();
const cells = [...document.querySelectorAll("#collectives tbody tr")].map((tr) => tr.children[0].textContent);
document.querySelectorAll("#collectives tbody tr")[0].click();
if (chosen < 0 || "all_reduce " + (ev.group[chosen] + 1) !== cells[0]) faults.push("a row leads elsewhere");
out = [ev.start.length, lanes.length, document.querySelectorAll("#collectives tbody tr").length, document.body.dataset.ready].join(" ");
`)
	words := strings.Fields(got)
	if len(words) != 4 || words[0] != "100000" || words[1] != "16" || words[2] != "200" {
		t.Fatalf("events, lanes, rows, milliseconds: %s", got)
	}
	ms, err := strconv.Atoi(words[3])
	if err != nil || ms > 20_000 {
		t.Errorf("open after %s ms; want 2000, tenfold on a busy machine", words[3])
	}
	t.Logf("%d bytes, open after %d ms", len(text), ms)
}

// TestBrowserFlight checks the page of flight records: the page must begin with the diagnosis, have a row for every
// part that it shows, and number the calls as torch does.
func TestBrowserFlight(t *testing.T) {
	var records []*flight.Record
	for rank := range 2 {
		records = append(records, &flight.Record{Rank: rank, Entries: []flight.Entry{{Op: "all_reduce", Group: "0",
			Seq: 41, In: 8, Out: 8,
			State: "completed", Created: 1}, {Op: "all_reduce", Group: "0", Seq: 42, In: 8 + int64(rank), Out: 8,
			State: "started", Created: 9}}})
	}
	got := driveRun(t, runPage(t, account.OfFlight(records), Run{Title: "flight"}), `
const seen = [...document.querySelectorAll("main section")].filter((e) => e.offsetHeight > 0);
for (const e of seen) if (!e.querySelector("tbody tr, article")) faults.push(e.textContent.trim().slice(0, 40) + " is empty");
out = document.getElementById("verdict").textContent.trim() + " | " + seen.map((e) => e.querySelector("h2").textContent.trim()).join(", ") +
  " | " + [...document.querySelectorAll("#collectives tbody tr")].map((r) => r.cells[0].textContent).sort().join(", ");`)
	const want = "Call 42 of group \"0\", all_reduce: rank 1 has all_reduce of 9 elements in and 8 out, rank 0 has 8 " +
		"elements in and 8 out. | " +
		"Collectives | all_reduce, call 41, all_reduce, call 42"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestAgainstOnPage checks that the page of a run shows the comparison with an older profile.
func TestAgainstOnPage(t *testing.T) {
	of := func(long int64) *account.Report {
		return account.Of(&trace.Trace{Ranks: 1, Events: []trace.Event{{Stream: "main", Name: "gemm",
			Class: trace.Compute, Start: 0,
			End: long, Group: trace.NoGroup}}}, 0)
	}
	r, old := of(30_000), of(20_000) // half as long again
	text := runPage(t, r, Run{Title: "a", Against: r.Against(old), Unlike: []string{"the ranks differ"}})
	for _, want := range []string{"Compared with the older profile", `<p class="problem">the ranks differ</p>`,
		`<td class="left">gemm, per call</td><td>20.0 µs</td><td>30.0 µs</td><td>&#43;50.0 %</td><td>1</td>`} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %s", want)
		}
	}
	if strings.Contains(runPage(t, r, Run{Title: "a"}), "Compared with") {
		t.Error("a page without an older profile has a comparison")
	}
}

// TestBrowserRunSplit checks that waiting and transfer of a collective are drawn separately and described.
func TestBrowserRunSplit(t *testing.T) {
	tr := &trace.Trace{Ranks: 2, Events: []trace.Event{
		{Rank: 0, Stream: "main", Name: "all_reduce", Class: trace.Comm, Start: 0, End: 100_000, Group: 0},
		{Rank: 1, Stream: "main", Name: "gelu", Class: trace.Compute, Start: 0, End: 60_000, Group: trace.NoGroup},
		{Rank: 1, Stream: "main", Name: "all_reduce", Class: trace.Comm, Start: 60_000, End: 100_000, Group: 0},
	}}
	got := driveRun(t, runPage(t, account.Of(tr, 0), Run{Title: "split", Missing: [][2]int{{1, 2}}}), `
draw();
const ratio = canvas.width / width;
const pixel = (t, l, dy) => [...pen.getImageData(Math.round(x(t) * ratio), Math.round((laneY[l] + (dy || 4)) * ratio), 1, 1).data].slice(0, 3).join();
const first = pixel(30000, 0), second = pixel(80000, 0), other = pixel(80000, 1), gelu = pixel(30000, 1);
out = [first !== second, second === other, gelu !== first && gelu !== second, describe(0).replaceAll("\n", " | ")].join(" ");
`)
	if want := "true true true all_reduce: 100 µs, from 0.0 µs; rank 0, main | waited 60.0 µs, then transfer of 40.0 µs"; !strings.HasPrefix(got, want) {
		t.Errorf("%s", got)
	}
}
