// Package measured reads the tables of docs/measured and writes a page for each of them. It has tests only.
package measured

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"hocket.example/hocket/internal/golden"
)

// Topic is one table and how its page shows it.
type Topic struct {
	Name, Title string
	Columns     []string
	// Key names the columns that identify a case. Without it the page lists all rows, newest first.
	Key []string
	// Variant names the column with the algorithm or strategy of hocket's figure.
	Variant string
}

// common are the columns that every table begins with. The last column of every table is the log.
var common = []string{"machine", "driver", "commit", "date"}

func topic(name, title, columns, key, variant string) Topic {
	t := Topic{Name: name, Title: title, Variant: variant}
	t.Columns = append(append(slices.Clone(common), strings.Fields(columns)...), "log")
	t.Key = strings.Fields(key)
	return t
}

// Topics are all tables.
var Topics = []Topic{
	topic("collectives", "Collectives", "who op dtype ranks bytes algorithm chosen issue us iqr wrong link_gbs",
		"op dtype ranks bytes issue", "algorithm"),
	topic("layers", "Layers: a GEMM and a collective",
		"who op m n k ranks strategy issue us iqr bounds bounds_iqr gemm_us gemm_iqr link_gbs", "op m n k ranks issue",
		"strategy"),
	topic("gemm", "GEMM", "who m n k variant us", "m n k", "variant"),
	topic("attention", "Attention", "who batch queries keys heads kv_heads head_dim causal us",
		"batch queries keys heads kv_heads head_dim causal", ""),
	topic("host", "Host", "who what ranks issue us iqr", "what ranks issue", ""),
	topic("links", "Links", "who what issue bytes gbs", "", ""),
	topic("contention", "Collectives beside a GEMM", "who op ranks ctas gemm_sms algorithm slowdown gbs", "", ""),
	topic("nodes", "Between nodes", "who what bytes nodes ranks way issue us iqr predicted_us", "", ""),
	topic("soak", "Soaks", "who ranks seconds runs loads deadlines_missed passes device_first_mib device_last_mib "+
		"malloc_first_mib malloc_last_mib", "", ""),
	topic("tests", "Tests on GPUs", "who package passed failed skipped", "", ""),
	topic("steps", "Whole programs", "who func dims ranks strategy issue us iqr single_us host_us bound_us bound_by",
		"func dims ranks issue",
		"strategy"),
	topic("ops", "Statements furthest from their bound",
		"who func dims ranks strategy issue op line times shapes us iqr bound_us bound_by", "", ""),
	topic("studies", "Studies", "finding", "", ""),
}

// Row is one line of a table, by column. A "-" means that the value was not recorded.
type Row map[string]string

// kinds says what the values of a column look like. Other columns hold any text.
var kinds = map[string]*regexp.Regexp{
	"machine": regexp.MustCompile(`^[1-9]x[A-Z]+\d+$`),
	"driver":  regexp.MustCompile(`^\d+(\.\d+)+$`),
	"commit":  regexp.MustCompile(`^([0-9a-f]{7}|-)$`),
	"date":    regexp.MustCompile(`^\d{4}-\d\d-\d\d$`),
	"issue":   regexp.MustCompile(`^(eager|graph|traced)$`),
	"chosen":  regexp.MustCompile(`^(yes|no|-)$`),
	"causal":  regexp.MustCompile(`^(true|false)$`),
	"dtype":   regexp.MustCompile(`^(bf16|f16|f32)$`),
}

func init() {
	for _, c := range strings.Fields("nodes ranks bytes m n k batch queries keys heads kv_heads head_dim wrong seconds runs " +
		"loads deadlines_missed passes passed failed skipped line times") {
		kinds[c] = regexp.MustCompile(`^(\d+|-)$`)
	}
	for _, c := range strings.Fields("predicted_us single_us host_us bound_us us iqr bounds bounds_iqr gemm_us gemm_iqr " +
		"link_gbs gbs slowdown device_first_mib device_last_mib malloc_first_mib malloc_last_mib") {
		kinds[c] = regexp.MustCompile(`^(-?\d+(\.\d+)?|-)$`)
	}
}

// Read reads a topic's table from a folder and checks every value.
func Read(dir string, t Topic) ([]Row, error) {
	text, err := os.ReadFile(filepath.Join(dir, t.Name+".tsv"))
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	if lines[0] != strings.Join(t.Columns, "\t") {
		return nil, fmt.Errorf("%s: columns are %q, want %q", t.Name, lines[0], t.Columns)
	}
	var rows []Row
	for i, line := range lines[1:] {
		cells := strings.Split(line, "\t")
		if len(cells) != len(t.Columns) {
			return nil, fmt.Errorf("%s:%d: %d cells, want %d", t.Name, i+2, len(cells), len(t.Columns))
		}
		r := Row{}
		for j, c := range t.Columns {
			if kind := kinds[c]; cells[j] == "" || kind != nil && !kind.MatchString(cells[j]) {
				return nil, fmt.Errorf("%s:%d: %s is %q", t.Name, i+2, c, cells[j])
			}
			r[c] = cells[j]
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// key is the values of some columns.
func (r Row) key(columns []string) string {
	var out []string
	for _, c := range columns {
		v := r[c]
		if c == "bytes" {
			v = size(v)
		}
		out = append(out, v)
	}
	return strings.Join(out, " | ")
}

// size is a number of bytes in the unit that keeps it short.
func size(s string) string {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return s
	}
	unit := "B"
	for _, u := range []string{"KiB", "MiB", "GiB"} {
		if n < 1024 {
			break
		}
		n, unit = n/1024, u
	}
	return fmt.Sprintf("%.4g %s", n, unit)
}

func us(r Row) float64 {
	f, _ := strconv.ParseFloat(r["us"], 64)
	return f
}

// figure is one case: hocket's current figure and the newest one of each peer.
type figure struct {
	hocket Row
	peers  map[string]Row
}

// figures finds the current figures of one machine by case, and the names of peers. Rows are in order of time. hocket's
// figure is the fastest variant of the newest commit, among those that a table chose where it chose one.
func figures(t Topic, rows []Row) (order []string, found map[string]*figure, peers []string) {
	found = map[string]*figure{}
	for _, r := range rows {
		k := r.key(t.Key)
		f := found[k]
		if f == nil {
			f = &figure{peers: map[string]Row{}}
			found[k], order = f, append(order, k)
		}
		switch who := r["who"]; {
		case strings.HasPrefix(who, "hocket "):
		case who != "hocket":
			f.peers[who] = r
			if !slices.Contains(peers, who) {
				peers = append(peers, who)
			}
		case f.hocket == nil, f.hocket["chosen"] == r["chosen"] && f.hocket["commit"] != r["commit"],
			f.hocket["chosen"] != "yes" && r["chosen"] == "yes",
			f.hocket["chosen"] == r["chosen"] && us(r) < us(f.hocket):
			f.hocket = r
		}
	}
	slices.Sort(peers)
	return order, found, peers
}

// Page is the text of a topic's page.
func Page(t Topic, rows []Row) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\nGenerated from [%s.tsv](%[2]s.tsv); `go test ./measured -update` in tools rewrites it. "+
		"[README](README.md) explains the columns.\n", t.Title, t.Name)
	byMachine := map[string][]Row{}
	var machines []string
	for _, r := range slices.Backward(rows) {
		m := r["machine"]
		if byMachine[m] == nil {
			machines = append(machines, m)
		}
		byMachine[m] = append(byMachine[m], r)
	}
	for _, m := range machines {
		fmt.Fprintf(&b, "\n## %s\n\n", m)
		if len(t.Key) == 0 {
			list(&b, t, byMachine[m])
			continue
		}
		slices.Reverse(byMachine[m])
		order, found, peers := figures(t, byMachine[m])
		head := append(append(slices.Clone(t.Key), "hocket µs", "by", "commit"), peers...)
		line(&b, append(head, "best peer / hocket"))
		line(&b, slices.Repeat([]string{"---"}, len(head)+1))
		for _, k := range order {
			f := found[k]
			if f.hocket == nil {
				continue
			}
			cells := []string{k, f.hocket["us"], f.hocket[t.Variant], f.hocket["commit"]}
			best := 0.0
			for _, p := range peers {
				r := f.peers[p]
				cells = append(cells, r["us"])
				if p != "GEMM alone" && us(r) > 0 && (best == 0 || us(r) < best) {
					best = us(r)
				}
			}
			ratio := ""
			if best > 0 && us(f.hocket) > 0 {
				ratio = fmt.Sprintf("%.2f", best/us(f.hocket))
			}
			line(&b, append(cells, ratio))
		}
	}
	return b.String()
}

// list writes all rows as they are.
func list(b *strings.Builder, t Topic, rows []Row) {
	var shown []string
	for _, c := range t.Columns {
		if !slices.Contains([]string{"machine", "driver", "log"}, c) {
			shown = append(shown, c)
		}
	}
	line(b, shown)
	line(b, slices.Repeat([]string{"---"}, len(shown)))
	for _, r := range rows {
		line(b, []string{r.key(shown)})
	}
}

func line(b *strings.Builder, cells []string) { fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | ")) }

const dir = "../../docs/measured"

// TestPages checks every table and compares its page.
func TestPages(t *testing.T) {
	for _, topic := range Topics {
		rows, err := Read(dir, topic)
		if err != nil {
			t.Error(err)
			continue
		}
		for i := range len(rows) - 1 {
			if rows[i]["date"] > rows[i+1]["date"] {
				t.Errorf("%s:%d: rows are not in order of date", topic.Name, i+3)
			}
		}
		if topic.Name != "studies" {
			golden.File(t, filepath.Join(dir, topic.Name+".md"), Page(topic, rows))
		}
	}
}

// TestLinks checks that what pages link to in docs/measured is there.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:\s]*measured[^)#\s]*)`)
	for _, pattern := range []string{"../../*.md", "../../docs/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range link.FindAllStringSubmatch(string(text), -1) {
				if _, err := os.Stat(filepath.Join(filepath.Dir(file), m[1])); err != nil {
					t.Errorf("%s: %v", file, err)
				}
			}
		}
	}
}

// TestCurrent checks which figures a page takes.
func TestCurrent(t *testing.T) {
	row := func(who, commit, chosen, us string) Row {
		return Row{"who": who, "commit": commit, "chosen": chosen, "us": us, "op": "all_reduce"}
	}
	topic := Topic{Key: []string{"op"}}
	_, found, peers := figures(topic, []Row{row("hocket", "aaaaaaa", "yes", "5"), row("NCCL", "-", "-", "9"),
		row("hocket", "bbbbbbb", "yes", "6"), row("hocket", "bbbbbbb", "no", "4"), row("NCCL", "-", "-", "8")})
	f := found["all_reduce"]
	if f.hocket["us"] != "6" || f.peers["NCCL"]["us"] != "8" || len(peers) != 1 {
		t.Errorf("hocket %v, peers %v", f.hocket, f.peers)
	}
}
