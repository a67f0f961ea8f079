package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var answer = regexp.MustCompile(`(?s)<pre id="answer">(.*?)</pre>`)

// visit opens an address in a browser and decodes what a script of that page writes into the element answer as JSON.
func visit(t *testing.T, address string, to any) {
	t.Helper()
	if testing.Short() {
		t.Skip("a browser takes seconds to start")
	}
	browser := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if found, err := exec.LookPath(name); err == nil {
			browser = found
			break
		}
	}
	if browser == "" {
		t.Skip("no chromium is on PATH, so the site is not opened in a browser")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--disable-background-networking", "--user-data-dir="+t.TempDir(), "--enable-logging=stderr", "--v=0",
		"--virtual-time-budget=1000000", "--dump-dom", address)
	cmd.WaitDelay = time.Second
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "CONSOLE") {
			t.Errorf("the console says %s", line)
		}
	}
	m := answer.FindSubmatch(out)
	if m == nil {
		t.Fatalf("the page has no answer:\n%s", out)
	}
	if err := json.Unmarshal([]byte(html.UnescapeString(string(m[1]))), to); err != nil {
		t.Fatalf("%v: %s", err, m[1])
	}
}

// folder writes the site to a folder and returns its path.
func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := write("../..", dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The script loads every page in a frame of each width. It lists pages that are wider than the frame, with the elements
// that reach out of it.
const wideScript = `<!DOCTYPE html><title>widths</title><body><script>
const pages = %s, widths = [390, 1000, 1600], found = [];
let opened = 0;
(async () => {
  for (const width of widths) {
    const frame = document.createElement("iframe");
    frame.style.cssText = "border: 0; height: 900px; width: " + width + "px";
    document.body.append(frame);
    for (const page of pages) {
      await new Promise((done) => { frame.onload = done; frame.src = page; });
      const root = frame.contentDocument.documentElement;
      if (frame.contentWindow.innerWidth !== width) found.push(page + " is not " + width + " px wide");
      if (frame.contentDocument.querySelector("main h1")) opened++;
      if (root.scrollWidth > width) {
        const out = [...frame.contentDocument.querySelectorAll("main *")].find((e) => e.getBoundingClientRect().right > width && !e.closest("pre, .wide"));
        found.push(page + " at " + width + " px is " + root.scrollWidth + " px wide: " + (out ? out.outerHTML.slice(0, 200) : "?"));
      }
    }
    frame.remove();
  }
  const pre = document.createElement("pre");
  pre.id = "answer";
  pre.textContent = JSON.stringify({ found, opened });
  document.body.append(pre);
})();
</script></body>`

// TestWidths checks that each page fits in the width of a phone, of a small window and of a large one.
func TestWidths(t *testing.T) {
	dir := folder(t)
	var pages []string
	err := filepath.WalkDir(dir, func(file string, _ os.DirEntry, err error) error {
		if path.Ext(file) == ".html" {
			name, _ := filepath.Rel(dir, file)
			pages = append(pages, filepath.ToSlash(name))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(pages)
	list, err := json.Marshal(pages)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "widths.html"), fmt.Appendf(nil, wideScript, list), 0o600); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer server.Close()
	var got struct {
		Found  []string
		Opened int
	}
	visit(t, server.URL+"/widths.html", &got)
	for _, f := range got.Found {
		t.Error(f)
	}
	if got.Opened != 3*len(pages) {
		t.Errorf("%d pages were opened, want %d at three widths", got.Opened, len(pages))
	}
}

// The script types phrases into the search box and lists the results of each.
const searchScript = `<script>
const phrases = %s;
window.addEventListener("load", async () => {
  const input = document.querySelector("#search input"), box = document.querySelector("#results");
  const out = {};
  for (const phrase of phrases) {
    const changed = new Promise((done) => new MutationObserver((_, o) => { o.disconnect(); done(); }).observe(box, { childList: true }));
    input.focus();
    input.value = phrase;
    input.dispatchEvent(new Event("input"));
    await changed;
    out[phrase] = { says: box.querySelector("p").textContent, hidden: box.hidden, hits: [...box.querySelectorAll("a")].map((a) => a.getAttribute("href")),
      marked: [...box.querySelectorAll("mark")].map((m) => m.textContent.toLowerCase()) };
  }
  const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  input.focus();
  input.value = phrases[0];
  input.dispatchEvent(new Event("input"));
  press("ArrowDown");
  const chosen = document.activeElement.getAttribute("href");
  press("Escape");
  const pre = document.createElement("pre");
  pre.id = "answer";
  pre.textContent = JSON.stringify({ out, chosen, closed: box.hidden, focus: document.activeElement === input });
  document.body.append(pre);
});
</script></body>`

// TestSearch: the search box finds phrases of text, of code and of headings, in a folder that no server serves.
func TestSearch(t *testing.T) {
	dir := folder(t)
	wants := map[string]string{ // what is typed, and the beginning of the first result
		"several nodes":              "../operations.html#several-nodes", // a heading
		"moves data for 78 µs":       "../trace.html#",                   // text that a line break divides
		"%x.g: bf16[T, K] = reshard": "../tutorial.html#1-one-linear",    // code
		"unaligned  REPLAYS":         "../hangs.html#unaligned-replays",  // other case, more spaces
	}
	phrases := slices.Sorted(func(yield func(string) bool) {
		for p := range wants {
			if !yield(p) {
				return
			}
		}
	})
	none := "xyzzy <b>nothing</b>"
	list, err := json.Marshal(append(phrases, none))
	if err != nil {
		t.Fatal(err)
	}
	page := filepath.Join(dir, "measured", "layers.html")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	driven := strings.Replace(string(text), "</body>", fmt.Sprintf(searchScript, strings.ReplaceAll(string(list), "<", `\u003c`)), 1)
	if err := os.WriteFile(page, []byte(driven), 0o600); err != nil {
		t.Fatal(err)
	}
	type result struct {
		Says         string
		Hidden       bool
		Hits, Marked []string
	}
	var got struct {
		Out           map[string]result
		Chosen        string
		Closed, Focus bool
	}
	visit(t, "file://"+page, &got)
	for phrase, want := range wants {
		r := got.Out[phrase]
		if len(r.Hits) == 0 || !strings.HasPrefix(r.Hits[0], want) || r.Hidden {
			t.Errorf("%q finds %q, want %s first", phrase, r.Hits, want)
		}
		for _, word := range strings.Fields(strings.ToLower(phrase)) {
			if !slices.Contains(r.Marked, word) {
				t.Errorf("%q: %q is not marked in the results, only %q", phrase, word, r.Marked)
			}
		}
	}
	if r := got.Out[none]; len(r.Hits) != 0 || r.Says != "No page has all of these words." {
		t.Errorf("%q finds %q and says %q", none, r.Hits, r.Says)
	}
	if !strings.HasPrefix(got.Chosen, wants[phrases[0]]) || !got.Closed || !got.Focus {
		t.Errorf("the arrow key chose %q; escape closed the results: %v, and returned to the box: %v", got.Chosen, got.Closed, got.Focus)
	}
}
