package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"hocket.example/hocket/internal/trace"
	"hocket.example/hocket/internal/trace/account"
)

// evil contains sequences that control a terminal, reverse the direction of text, and start a new line.
const evil = "\x1b]0;x\x07\x1b[2J\u009b31m\u202e\x7f\nrank 9  1 ms"

// TestControlCharacters checks that control characters in names of every profile format are quoted in text, JSON,
// pages, Chrome's JSON and timelines.
func TestControlCharacters(t *testing.T) {
	for name, files := range hostile(t) {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var paths []string
			for i, text := range files {
				path := filepath.Join(dir, fmt.Sprintf("x.rank%d", i))
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				paths = append(paths, path)
			}
			r, err := account.Files(paths, 0)
			if err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			if err := r.WriteText(&text); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(text.String(), `\x1b`) {
				t.Errorf("the name is not shown:\n%s", text.String())
			}
			j, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			out := map[string]string{"text": text.String(), "JSON": string(j),
				"page": runPage(t, r, Run{Title: "x"})}
			if tr, _ := r.Trace(); tr != nil {
				var b, c bytes.Buffer
				if err := tr.WriteJSON(&b); err != nil {
					t.Fatal(err)
				}
				if err := tr.Draw(&c, trace.Style{Width: 100}); err != nil {
					t.Fatal(err)
				}
				out["Chrome"], out["timeline"] = b.String(), c.String()
			}
			for what, s := range out {
				for i, c := range s {
					if unicode.IsControl(c) && c != '\n' && c != '\t' || unicode.Is(unicode.Bidi_Control, c) {
						t.Fatalf("%s has %q: %q", what, c, s[max(i-40, 0):min(i+20, len(s))])
					}
				}
				if strings.Contains(s, "\nrank 9") || strings.Contains(s, `\u001b`) {
					t.Errorf("%s contains the name unquoted", what)
				}
			}
		})
	}
}

// hostile returns profiles in every format, with evil in all names.
func hostile(t *testing.T) map[string][]string {
	q := func(s string) string {
		b, _ := json.Marshal(s)
		return string(b)
	}
	var kineto, records []string
	for rank := range 2 {
		var events []string
		for i := range 2 {
			at := i * 1000
			events = append(events, fmt.Sprintf(`{"ph":"X","cat":"kernel","name":%s,"pid":%d,"tid":7,"ts":%d,`+
				`"dur":%d,"args":{"stream":7,"correlation":%d}}`,
				q("k"+evil), rank, at, 100+300*rank, i+1),
				fmt.Sprintf(`{"ph":"X","cat":"cuda_runtime","name":%s,"pid":1,"tid":1,"ts":%d,"dur":1,`+
					`"args":{"correlation":%d}}`,
					q("h"+evil), at-1, i+1),
				fmt.Sprintf(`{"ph":"X","cat":"kernel","name":"ncclDevKernel","pid":%d,"tid":7,"ts":%d,"dur":%d,`+
					`"args":{"Collective name":%s,"In msg nelems":%d,"Out msg nelems":8,"dtype":%s,"Process Group `+
					`Description":%s,"Process Group Name":"0","Process Group Ranks":"[0, 1]"}}`,
					rank, at+500*rank+120, 700-500*rank, q("x"+evil), 8+rank, q(fmt.Sprint("F", rank, evil)),
					q("g"+evil)))
		}
		kineto = append(kineto, fmt.Sprintf(`{"distributedInfo":{"rank":%d},"traceEvents":[%s]}`, rank,
			strings.Join(events, ",")))
		records = append(records, fmt.Sprintf(`{"rank":%d,"entries":[{"process_group":["0",%s],`+
			`"collective_seq_id":1,"profiling_name":%s,"input_sizes":[[%d]],"output_sizes":[[4]],`+
			`"input_dtypes":[%s],"state":"completed","time_created_ns":100,"frames":[{"name":%s,"filename":%s,`+
			`"line":3}]}],"pg_config":{"0":{"desc":%s,"ranks":"[0, 1, 2]"}}}`,
			rank, q("g"+evil), q("nccl:x"+evil), 4+rank, q("F"+evil), q("f"+evil), q(evil), q("d"+evil)))
	}
	sqlite, err := os.ReadFile("../trace/nsys/testdata/export.sqlite")
	if err != nil {
		t.Fatal(err)
	}
	database := bytes.ReplaceAll(sqlite, []byte("AllReduce"), []byte("\x1bll\nedu\x07\x7f"))
	own := fmt.Sprintf(`{"hocket":{},"traceEvents":[{"name":"thread_name","ph":"M","pid":0,"tid":0,`+
		`"args":{"name":%[1]s}},`+
		`{"name":%[1]s,"cat":"compute","ph":"X","pid":0,"tid":0,"ts":0,"dur":9,"args":{"run":0,"id":0,`+
		`"statement":%[1]s}},`+
		`{"name":"wait","cat":"sync","ph":"X","pid":0,"tid":0,"ts":9,"dur":9,"args":{"run":0,"id":1,`+
		`"statement":%[1]s,"tie":{"counter":%[1]s,"count":1,"peer":-1}}}]}`,
		q("k"+evil))
	csv := "Start (ns),Duration (ns),CorrId,Device,Strm,Name\n100,200,1,NVIDIA H100 (0),7," +
		"\"k\x1b[31m\u009b\u202e\x7f red\"\n" +
		"500,200,1,NVIDIA H100 (0),7,\"k\x1b[31m\"\n"
	text := "Start (ns)  Duration (ns)  CorrId  GrdX  Device  Ctx  Strm  Name\n----------  ----  ---  ---  ----  " +
		"---  ---  ----\n" +
		"100  200  1  1  NVIDIA H100 (0)  1  7  k\x1b[31m\u009b\n"
	return map[string][]string{"Kineto": kineto, "flight": records, "SQLite": {string(database)}, "own": {own},
		"CSV": {csv}, "text": {text}}
}
