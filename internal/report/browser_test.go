package report

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	_ "hocket.example/hocket/internal/longtest" // collects garbage less often
)

// chromium returns a browser that can run without a screen.
func chromium(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("a browser takes seconds to start")
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("chromium is not on PATH, so the page's script cannot be tested")
	return ""
}

// visit opens a page at a fragment and returns its document after its script has run. flags are more flags of the
// browser.
func visit(t *testing.T, text, fragment string, flags ...string) *node {
	t.Helper()
	file := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, chromium(t), append(flags, "--headless", "--no-sandbox", "--disable-gpu",
		"--disable-background-networking",
		"--disable-dev-shm-usage", "--enable-logging=stderr", "--v=0", "--user-data-dir="+t.TempDir(), "--dump-dom",
		"file://"+file+"#"+fragment)...)
	cmd.WaitDelay = time.Second
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "CONSOLE") && !strings.Contains(line, "willReadFrequently") { // a hint, not an error
			t.Errorf("the console says %s", line)
		}
	}
	return parse(t, strings.TrimSpace(string(out)))
}

// drive opens a page, runs script in it and returns the document after that. The policy of the page does not allow
// other scripts, so drive removes it.
func drive(t *testing.T, text, script string) *node {
	t.Helper()
	bare := policyTag.ReplaceAllString(text, "")
	if bare == text {
		t.Fatal("the page has no policy")
	}
	const tools = `
const one = (s) => document.querySelector(s);
const col = (name) => one('.col[data-name="' + name + '"]');
const value = (c, name) => [...col(c).querySelectorAll("var")].find((v) => v.textContent === name);
const click = (e) => e.dispatchEvent(new MouseEvent("click", { bubbles: true }));
const key = (k) => (document.activeElement || document.body).dispatchEvent(new KeyboardEvent("keydown", { key: k, bubbles: true, cancelable: true }));
`
	return visit(t, strings.Replace(bare, "</body>", "<script>"+tools+script+"</script></body>", 1), "")
}

var policyTag = regexp.MustCompile(`<meta http-equiv="Content-Security-Policy"[^>]*>`)

// marked lists the texts of the elements that have a CSS class, for each column.
func marked(root *node, element, class string) map[string][]string {
	out := map[string][]string{}
	for _, col := range root.find("section.col") {
		for _, e := range col.find(element + "." + class) {
			out[col.attrs["data-name"]] = append(out[col.attrs["data-name"]], strings.TrimSpace(e.content()))
		}
	}
	return out
}

func TestBrowserValue(t *testing.T) {
	chromium(t)
	text := page(t, lowering(t, "mlp.hkt", mlp, "chunked(2)"))
	root := visit(t, text, "value=%x.g")
	hits := marked(root, "var", "hit")
	if fmt.Sprint(hits) != "map[clean:[%x.g %x.g] decompose:[%x.g %x.g] shard:[%x.g %x.g]]" {
		t.Errorf("hit %v", hits)
	}
	if defs := marked(root, "var", "def"); fmt.Sprint(defs) != "map[clean:[%x.g] decompose:[%x.g] shard:[%x.g]]" {
		t.Errorf("defined %v", defs)
	}
	kin := marked(root, "var", "kin")
	if len(kin["source"]) != 2 || !slices.Contains(kin["overlap"], "%x.g.c.r") ||
		slices.Contains(kin["overlap"], "%x.l") {
		t.Errorf("related %v", kin)
	}
	if status := root.all(func(n *node) bool { return n.attrs["id"] == "selected" })[0].content(); !strings.HasPrefix(status, "%x.g in mlp: shard 2×, clean 2×, decompose 2×; related: ") {
		t.Errorf("it says %q", status)
	}
}

func TestBrowserLine(t *testing.T) {
	chromium(t)
	l := lowering(t, "mlp.hkt", mlp, "chunked(2)")
	l.Prediction = predicted()
	root := visit(t, page(t, l), "line=6")
	from := marked(root, "p", "from")
	if len(from["source"]) != 1 || from["source"][0] != "%h=linear %x, %w   // x is gathered" ||
		len(from["shard"]) != 2 || len(from["overlap"]) < 10 {
		t.Errorf("from line 6: %v", from)
	}
	if notes := root.one(t, "aside").find("article.from"); len(notes) != 2 {
		t.Errorf("%d notes of line 6 are marked, want 2", len(notes))
	}
}

// TestBrowserClicks checks that a click selects an element, that a click on another element moves the selection, and
// that a second click on the same element removes it. A click on a value must select the value and not its line.
func TestBrowserClicks(t *testing.T) {
	chromium(t)
	l := fixed(t)
	l.Prediction = predicted()
	text := page(t, l)
	scenes := []struct {
		script string
		want   string // number of marked values and number of marked lines
	}{
		{`click(value("shard", "%h"))`, "10 0"},
		{`click(value("shard", "%h")); click(value("shard", "%h"))`, "0 0"},
		{`click(value("shard", "%h")); click(value("decompose", "%x.g"))`, "8 0"},
		{`click(value("shard", "%h").parentElement)`, "0 7"},
		{`click(value("shard", "%h")); click(value("shard", "%y").parentElement)`, "0 4"},
		{`click(col("source").querySelector("p"))`, "0 0"}, // a line without an origin
		{`click(one("#side article p"))`, "0 7"},
		{`click(one("#side article var"))`, "8 0"},
		{`click(value("shard", "%h")); key("Escape")`, "0 0"},
	}
	script := "const got = [], all = (s) => document.querySelectorAll(s).length;\n"
	for _, s := range scenes {
		script += s.script + `; got.push(all("var.hit") + " " + all("p.from")); key("Escape");` + "\n"
	}
	root := drive(t, text, script+`document.title = got.join("|");`)
	got := strings.Split(root.one(t, "head").one(t, "title").content(), "|")
	if len(got) != len(scenes) {
		t.Fatalf("got %q", got)
	}
	for i, s := range scenes {
		if got[i] != s.want {
			t.Errorf("%s: marked %s values and lines, want %s", s.script, got[i], s.want)
		}
	}
}

// TestBrowserKeys checks that arrow keys move between columns and stop at the ends, that the enter key and a click on
// the head of a column fold it, and that the key n moves through the selected elements.
func TestBrowserKeys(t *testing.T) {
	chromium(t)
	root := drive(t, page(t, fixed(t)), `
const seen = [];
const note = () => seen.push(document.activeElement.dataset.name + (document.activeElement.classList.contains("folded") ? "-" : "+"));
for (const k of ["ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "Enter", "ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowLeft", "Enter", "Enter"]) { key(k); note(); }
click(col("lost").querySelector(".head b"));
seen.push(col("lost").classList.contains("folded"), col("lost").querySelector(".head").getAttribute("aria-expanded"));
click(value("shard", "%h"));
col("shard").focus();
const now = () => [...col("shard").querySelectorAll(".hit")].findIndex((e) => e.classList.contains("now"));
for (const k of ["n", "n", "n", "p"]) { key(k); seen.push(now()); }
key("w"); key("s");
seen.push(document.body.className, location.hash);
document.title = seen.join(" ");`)
	want := "source+ shard- decompose- overlap- overlap+ decompose- shard- source+ source+ source- source+ true false 0 1 0 1 window nowrap alone #value=mlp%3A%25h"
	if got := root.one(t, "head").one(t, "title").content(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestBrowserKeyboard checks that the keyboard can select a line and then each of its values, and that selecting a note
// selects the note's line.
func TestBrowserKeyboard(t *testing.T) {
	chromium(t)
	l := fixed(t)
	l.Prediction = predicted()
	root := drive(t, page(t, l), `
const seen = [];
const note = () => seen.push(location.hash);
col("source").focus();
for (const k of ["j", "j", "j", "k", "v", "v", "Escape", "v"]) { key(k); note(); }
key("Escape");
one("#side article[data-o]").focus();
key("Enter"); note();
document.title = seen.join(" ");`)
	const want = "#line=5 #line=6 #line=7 #line=6 #value=mlp%3A%25h #value=mlp%3A%25x  #value=mlp%3A%25w #line=6"
	if got := root.one(t, "head").one(t, "title").content(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestBrowserHostile checks that text in a program is not executed as a script and does not break the page's script.
func TestBrowserHostile(t *testing.T) {
	chromium(t)
	evil := `</p></script><script>document.title="taken"</script><img src=x onerror="document.title='taken'">`
	root := visit(t, page(t, lowering(t, "mlp.hkt", strings.Replace(mlp, "x is gathered", evil, 1), "chunked(2)")),
		"value="+url.QueryEscape("mlp:%x.g"))
	if title := root.one(t, "head").one(t, "title").content(); title != "mlp.hkt · hocket opt" {
		t.Errorf("the title became %q", title)
	}
	if len(marked(root, "var", "hit")["shard"]) != 2 || len(root.find("img")) != 0 {
		t.Error("the page is not what it should be")
	}
}

// TestBrowserLong checks that a page of five thousand lines reacts within seconds.
func TestBrowserLong(t *testing.T) {
	chromium(t)
	text := page(t, lowering(t, "layers.hkt", layers(60), "exchange"))
	start := time.Now()
	root := visit(t, text, "value=%x30")
	t.Logf("%d KiB, %v", len(text)>>10, time.Since(start))
	if hits := marked(root, "var", "hit"); len(hits["source"]) != 3 || len(hits["overlap"]) < 2 {
		t.Errorf("hit %v", hits)
	}
	if took := time.Since(start); took > 60*time.Second {
		t.Errorf("it took %v", took)
	}
}
