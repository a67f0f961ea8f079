package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// judged returns what judge prints of a table.
func judged(t *testing.T, again string, lines ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rows.tsv")
	text := strings.ReplaceAll(strings.Join(lines, "\n"), " ", "\t") + "\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := judge(&b, []string{file}, again); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// layer is a row that measure writes.
func layer(strategy, us, predicted, alone string) string {
	return "2xH100 1.0 0123456 2026-11-27 hocket gemm-rs 1024 8192 8192 2 " + strategy + " graph " + us +
		" 1.0 100.0 50.0 25.0 50.0 25.0 12.5 " + predicted + " " + alone + " exchange x"
}

func TestJudge(t *testing.T) {
	head := "machine driver commit date who op m n k ranks strategy issue us iqr gemm_us gemm2_us gemm4_us " +
		"wire_us wire2_us wire4_us predicted_us alone_us auto log"
	rows := []string{head, layer("sequential", "150.0", "145.0", "150.0"), head,
		layer("chunked(2)", "160.0", "150.0", "165.0"),
		layer("exchange", "120.0", "-", "121.0")}
	got := judged(t, "", rows...)
	for _, want := range []string{"2xH100 at 0123456, graph: 3 rows\n",
		"the table: 2 predictions, median error 6.2 %, nine of ten within 6.2 %, bias -4.8 %: MISSES 7, 20 and 3 %\n",
		"alone: 3 predictions, median error 0.8 %, nine of ten within 3.1 %, bias +1.3 %: meets 7, 20 and 3 %\n",
		"auto: within 3 % of the fastest on 1 of 1 layers: meets 95 %\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	got = judged(t, "h100x2", append(rows, layer("exchange(2)", "110.0", "-", "1.0"))...)
	for _, want := range []string{"sequential     1  median   0.0 %",
		"exchange took 120.0 µs (iqr 1.0), 9.1 % more than exchange(2) (110.0, iqr 1.0)\n", "MISSES 95 %\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
}

func TestJudgeNodes(t *testing.T) {
	head := "machine driver commit date who what bytes nodes ranks way issue us iqr predicted_us log"
	row := func(commit, way, us, iqr, predicted string) string {
		return "2xH100 1.0 " + commit + " 2026-11-27 hocket GEMM 2097152 2 2 " + way + " eager " + us + " " + iqr +
			" " +
			predicted + " x"
	}
	old := row("0000000", "sequential", "100", "5", "900")
	got := judged(t, "", head, old, row("0123456", "sequential", "100", "5", "124"),
		row("0123456", "auto:sequential", "104",
			"1", "124"))
	if want := "of sequential and chunked: meets; auto not slower than sequential: meets\n"; !strings.Contains(got,
		want) {
		t.Errorf("%q is not in\n%s", want, got)
	}
	got = judged(t, "", head, old, row("0123456", "sequential", "100", "5", "126"),
		row("0123456", "auto:sequential", "106",
			"1", "126"))
	if want := "of sequential and chunked: MISSES; auto not slower than sequential: MISSES\n"; !strings.Contains(got,
		want) {
		t.Errorf("%q is not in\n%s", want, got)
	}
}
