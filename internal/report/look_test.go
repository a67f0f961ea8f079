package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"hocket.example/hocket/internal/trace"
	"hocket.example/hocket/internal/trace/account"
)

// many returns a run of four ranks with more operations than the palette has colours.
func many() *trace.Trace {
	t := &trace.Trace{Ranks: 4}
	for r := range t.Ranks {
		at := int64(1000 * r)
		add := func(name, stream string, class trace.Class, line, group int, long int64) {
			t.Events = append(t.Events, trace.Event{Rank: r, Stream: stream, Name: name, Class: class, Start: at,
				End: at + long, Bytes: 4096, Group: group, Detail: fmt.Sprintf("%s %%x (mlp.hkt:%d:3)", name, line)})
			at += long
		}
		add("input", "main", trace.IO, 5, trace.NoGroup, 900)
		for i := range 20 {
			add(fmt.Sprintf("computation_%d", i), "main", trace.Compute, 6+i%3, trace.NoGroup, int64(2000+3000*i))
		}
		add("all_gather", "main", trace.Comm, 6, 0, 90_000-at%1000)
		for i := range 10 {
			add(fmt.Sprintf("put_%d", i), "%a.very.long.name.of.a.stream[1]", trace.Comm, 6, trace.NoGroup, 4000)
		}
		add("wait", "%a.very.long.name.of.a.stream[1]", trace.Sync, 7, trace.NoGroup, 500)
	}
	t.Sort()
	return t
}

// experts returns the memory of a program whose weights take nearly all of it.
func experts(title string, scratch int64) *MemoryPlan {
	p := &MemoryPlan{Title: title, Subject: "experts on 4 ranks", Sequential: 9 << 30}
	for i := range 60 {
		p.Commands = append(p.Commands, fmt.Sprintf("linear %%x%d, %%w%d", i, i%12))
	}
	at := int64(0)
	add := func(name, role string, size int64, begin, end int) {
		p.Buffers = append(p.Buffers, Buffer{Name: name, Role: role, Line: 7, Offset: at, Bytes: size, Span: size,
			Begin: int32(begin), End: int32(end)})
		at += size
	}
	for i := range 12 {
		add(fmt.Sprintf("%%w%d", i), "input", 768<<20, 0, 59)
	}
	weights := at
	for i, role := range []string{"value", "alloc", "value", "output"} {
		add(fmt.Sprintf("%%x%d", i), role, scratch, 10*i, 10*i+25)
		p.Peak = max(p.Peak, at)
		at = weights + int64(i%2)*scratch
	}
	p.Bound, p.Reserved, p.AtBound = p.Peak-scratch/2, p.Peak, p.Buffers[10:]
	return p
}

// pages returns a page of each kind. Pages that show a program show one of the examples.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	write := func(name string, err error, b *bytes.Buffer) {
		if err != nil {
			t.Fatal(name, err)
		}
		out[name] = b.String()
	}
	for _, name := range []string{"mlp.hkt", "llama/llama.hkt", "moe.hkt"} {
		src, err := os.ReadFile(filepath.Join("..", "..", "examples", filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		l := lowering(t, "examples/"+name, string(src), "sequential")
		l.Prediction, l.Memory = predicted(), experts("sequential", 64<<20)
		l.Prediction.Timeline, l.Prediction.Exposed = many(), 25
		l.Prediction.Timeline.Ranks = 1
		out["opt "+name] = page(t, l)
		var b bytes.Buffer
		write("run "+name, WriteRun(&b, account.Of(many(), 0), Run{Title: "hocket run: f, cpu", Program: string(src)}), &b)
	}
	var refuted, memory, snapshot bytes.Buffer
	order := many()
	order.Virtual = true
	write("refutation", WriteRun(&refuted, account.Of(order, 0), Run{Title: "hocket run: f, cpu", Program: mlp, Bad: []int{6},
		Facts: "refuted", Notes: []string{"two commands may run at the same time", "help: wait"}, Missing: [][2]int{{1, 2}}}),
		&refuted)
	write("memory", WriteMemory(&memory, "memory of experts", []*MemoryPlan{experts("sequential", 64<<20),
		experts("chunked(4)", 64<<20), experts("exchange", 96<<20)}), &memory)
	curve := Curve{Name: "reserved", At: []float64{0, 1, 2}, Bytes: []int64{1 << 30, 3 << 30, 2 << 30}}
	allocated := Curve{Name: "allocated", At: curve.At, Bytes: []int64{1 << 29, 2 << 30, 1 << 30}}
	write("snapshot", WriteSnapshot(&snapshot, "memory of s.pickle", "Device 0: the allocator reserved 3.0 GiB.",
		[]Device{{Title: "device 0", Curves: Curves{Axis: "allocations, 0 to 2", Curves: []Curve{curve, allocated}, Plan: 1 << 30},
			Sites: []Site{{"a/path/to/a/rather/deeply/nested/module/of/a/model.py:31 forward", 1 << 20, 3}}}}), &snapshot)
	return out
}

// inspect is a script that checks the layout of a page in a frame of a given width. It returns faults.
const inspect = `
function inspect(frame) {
  const w = frame.contentWindow, d = frame.contentDocument, faults = [], width = w.innerWidth;
  const seen = (e) => { const b = e.getBoundingClientRect(); return b.width > 0 && b.height > 0; };
  // No element may be wider than the window, except inside of elements that scroll or clip their content.
  if (d.documentElement.scrollWidth > width) faults.push("the page is " + d.documentElement.scrollWidth + " wide");
  for (const e of d.body.querySelectorAll("*")) {
    if (e.ownerSVGElement || !seen(e) || e.getBoundingClientRect().right <= width + 1) continue;
    let cut = false;
    for (let p = e.parentElement; p && !cut; p = p.parentElement) cut = p !== d.body && w.getComputedStyle(p).overflowX !== "visible";
    if (!cut) faults.push(e.tagName + "." + e.className + " ends at " + Math.round(e.getBoundingClientRect().right));
  }
  // All columns of a program must fit in the window, since folded columns are narrow.
  const columns = d.getElementById("columns");
  if (columns && columns.scrollWidth > columns.clientWidth + 1) faults.push("the columns are " + columns.scrollWidth + " wide, in " + columns.clientWidth);
  const times = d.getElementById("exposed");
  if (times && seen(times) && width >= 1400 && times.scrollWidth > times.parentElement.clientWidth + 1)
    faults.push("the ranks' times are " + times.scrollWidth + " wide, in " + times.parentElement.clientWidth);
  // Each colour in a legend must have one meaning, and differ from the background.
  const meaning = new Map();
  for (const chip of d.querySelectorAll(".legend .chip")) {
    if (!seen(chip)) continue;
    const mark = chip.firstElementChild || chip, s = w.getComputedStyle(mark);
    const look = mark.tagName === "rect" ? s.fill : mark.tagName === "line" ? s.stroke + " " + s.strokeDasharray : s.backgroundImage;
    const name = chip.parentElement.textContent.trim().replace(/,? (at most )?[\d.]+ (B|KiB|MiB|GiB|µs|ms|s)\b.*/, "");
    if (meaning.has(look) && meaning.get(look) !== name) faults.push(look + " is " + meaning.get(look) + " and " + name);
    meaning.set(look, name);
    if (look === "none" || look === w.getComputedStyle(d.body).backgroundColor) faults.push(name + " has no colour");
  }
  // Each number must have a unit or a word next to it, or the name of its column above it.
  const bare = /^[-+−]?[\d.,]+$/;
  const walk = d.createTreeWalker(d.body, 4);
  for (let n = walk.nextNode(); n; n = walk.nextNode()) {
    const e = n.parentElement, text = n.textContent.trim();
    if (!bare.test(text) || e.closest("script, style, .f")) continue;
    const cell = e.closest("td"), head = cell && cell.closest("table").tHead;
    const named = head && head.rows.length && head.rows[0].cells[cell.cellIndex].textContent.trim();
    if (!named && bare.test(e.parentElement.textContent.trim())) faults.push("the number " + text + " in " + e.tagName);
  }
  for (const text of w.painted) if (bare.test(text)) faults.push("the number " + text + " in a canvas");
  return [faults, meaning.size, d.querySelectorAll("#verdict").length];
}`

// TestLook opens each page at the widths of a large window, a small one and a phone, on light and on dark background.
// No element may overflow, each colour in a legend must have one meaning, each number must have a unit or a label, and
// each page with numbers must have a verdict.
func TestLook(t *testing.T) {
	chromium(t)
	const watch = `<head><script>
window.painted = [];
const fillText = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...at) { painted.push(String(text)); return fillText.call(this, text, ...at); };
</script>`
	list := pages(t)
	for name, text := range list {
		list[name] = strings.Replace(policyTag.ReplaceAllString(text, ""), "<head>", watch, 1)
	}
	quoted, err := json.Marshal(list) // json.Marshal escapes text that could end the script element
	if err != nil {
		t.Fatal(err)
	}
	for scheme, setting := range map[string]string{"dark": "0", "light": "1"} {
		t.Run(scheme, func(t *testing.T) {
			root := visit(t, `<!DOCTYPE html><html><head><title></title></head><body><script>`+inspect+`
const out = [];
for (const [name, text] of Object.entries(`+string(quoted)+`)) for (const width of [1600, 1400, 1000, 390]) {
  const frame = document.createElement("iframe");
  frame.style = "border:0;height:1000px;width:" + width + "px";
  frame.onload = () => {
    const [faults, colours, verdicts] = inspect(frame);
    out.push([name + ", " + width + " pixels", colours, verdicts, ...faults].join("; "));
    document.title = out.join("\n");
  };
  frame.srcdoc = text;
  document.body.append(frame);
}
</script></body></html>`, "", "--blink-settings=preferredColorScheme="+setting)
			got := strings.Split(root.one(t, "head").one(t, "title").content(), "\n")
			if len(got) != 4*len(list) {
				t.Fatalf("%d frames were inspected, want %d", len(got), 4*len(list))
			}
			for _, line := range got {
				parts := strings.Split(line, "; ")
				if n, _ := strconv.Atoi(parts[1]); n < 2 || parts[2] != "1" {
					t.Errorf("%s: %s colours in legends, %s verdicts", parts[0], parts[1], parts[2])
				}
				for _, fault := range parts[3:] {
					t.Errorf("%s: %s", parts[0], fault)
				}
			}
		})
	}
}

// TestScale checks that the marks of the memory axis have different texts.
func TestScale(t *testing.T) {
	for base := range int64(40) {
		for _, length := range []int64{100, 1 << 12, 40 << 20, 190 << 20, 700 << 20, 3 << 30, 77 << 30} {
			seen := map[string]string{}
			for _, m := range (field{base: base << 30, top: base<<30 + length}).scale() {
				if at, twice := seen[m.Text]; twice {
					t.Errorf("from %d GiB, %d bytes: %s is at %s and at %s", base, length, m.Text, at, m.Y)
				}
				seen[m.Text] = m.Y
			}
		}
	}
}

// TestBrowserPicture: arrow keys in a picture and clicks on its marks show the descriptions of the marks.
func TestBrowserPicture(t *testing.T) {
	chromium(t)
	root := drive(t, pages(t)["memory"], `
const picture = one(".picture"), status = one("#selected"), seen = [];
picture.focus();
for (const k of ["ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft"]) { key(k); seen.push(status.textContent.split(",")[0]); }
click(picture.querySelectorAll("rect")[3]);
seen.push(status.textContent, document.querySelectorAll("rect.now").length);
document.title = seen.join(" | ");`)
	const want = "%w0: 768.0 MiB at 0 B | %w1: 768.0 MiB at 768.0 MiB | %w0: 768.0 MiB at 0 B | %x3: 64.0 MiB at 9.0 GiB | " +
		"%w3: 768.0 MiB at 2.2 GiB, line 7, used by the commands 0 to 59, last by linear %x59, %w11 | 1"
	if got := root.one(t, "head").one(t, "title").content(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestColours checks that the colours of operations differ visibly from each other, on light and on dark background,
// and that white letters are readable on them.
func TestColours(t *testing.T) {
	for ground, of := range map[string]func(tone) string{"light": func(t tone) string { return t.light },
		"dark": func(t tone) string { return t.dark }} {
		var all []string
		for _, class := range []trace.Class{trace.Compute, trace.Comm, trace.Sync, trace.IO} {
			for _, c := range palette[class] {
				all = append(all, of(c))
			}
		}
		for _, r := range roles {
			all = append(all, of(r.tone))
		}
		for i, a := range all {
			for _, b := range all[:i] {
				if d := distance(a, b); d < 0.03 {
					t.Errorf("%s: %s and %s are at a distance of %.3f", ground, a, b, d)
				}
			}
			if l := luminance(a); i < len(all)-len(roles) && 1.05/(l+0.05) < 3.5 {
				t.Errorf("%s: white letters on %s have a contrast of %.1f", ground, a, 1.05/(l+0.05))
			}
		}
	}
}

// linear returns the linear parts of a colour in hexadecimal digits.
func linear(c string) (out [3]float64) {
	n, _ := strconv.ParseUint(c[1:], 16, 32)
	for i := range out {
		v := float64(n>>(16-8*i)&255) / 255
		if out[i] = v / 12.92; v > 0.04045 {
			out[i] = math.Pow((v+0.055)/1.055, 2.4)
		}
	}
	return out
}

func luminance(c string) float64 {
	v := linear(c)
	return 0.2126*v[0] + 0.7152*v[1] + 0.0722*v[2]
}

// distance returns the distance between two colours in the colour space Oklab, in which equal distances look equal.
func distance(a, b string) float64 {
	lab := func(c string) [3]float64 {
		v := linear(c)
		l := math.Cbrt(0.4122214708*v[0] + 0.5363325363*v[1] + 0.0514459929*v[2])
		m := math.Cbrt(0.2119034982*v[0] + 0.6806995451*v[1] + 0.1073969566*v[2])
		s := math.Cbrt(0.0883024619*v[0] + 0.2817188376*v[1] + 0.6299787005*v[2])
		return [3]float64{0.2104542553*l + 0.793617785*m - 0.0040720468*s,
			1.9779984951*l - 2.428592205*m + 0.4505937099*s, 0.0259040371*l + 0.7827717662*m - 0.808675766*s}
	}
	x, y := lab(a), lab(b)
	return math.Hypot(math.Hypot(x[0]-y[0], x[1]-y[1]), x[2]-y[2])
}
