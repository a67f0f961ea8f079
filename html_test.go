package hocket_test

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"hocket.example/hocket"
)

// TestWriteHTML checks that the page contains the passes, and the explanation or the reason why there is none.
func TestWriteHTML(t *testing.T) {
	src, err := os.ReadFile("examples/mlp.hkt")
	if err != nil {
		t.Fatal(err)
	}
	p, err := hocket.Parse("mlp.hkt", string(src))
	if err != nil {
		t.Fatal(err)
	}
	opts := hocket.LowerOptions{Strategy: "chunked(2)"}
	l, err := p.Lower(opts)
	if err != nil {
		t.Fatal(err)
	}
	e, err := p.Explain(opts)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range l.Stages {
		if s.Duration <= 0 {
			t.Errorf("%s took %v", s.Pass, s.Duration)
		}
	}
	for _, c := range []struct {
		opts          hocket.HTMLOptions
		shows, misses []string
	}{
		{hocket.HTMLOptions{}, []string{`data-name="overlap"`, "%x.g"}, []string{"Predicted"}},
		{hocket.HTMLOptions{Unexplained: "nobody asked"}, []string{"No prediction: nobody asked"},
			[]string{"timeline of one rank"}},
		{hocket.HTMLOptions{Explanation: e, Unexplained: "not shown"},
			[]string{"mlp on 4 ranks F=512 H=128 T=256", "timeline of one rank", "<td>exchange</td>",
				"all_gather over tp"}, []string{"not shown"}},
	} {
		var b bytes.Buffer
		if err := l.WriteHTML(&b, c.opts); err != nil {
			t.Fatal(err)
		}
		for _, s := range c.shows {
			if !strings.Contains(b.String(), s) {
				t.Errorf("the page lacks %q", s)
			}
		}
		for _, s := range c.misses {
			if strings.Contains(b.String(), s) {
				t.Errorf("the page contains %q", s)
			}
		}
	}
}
