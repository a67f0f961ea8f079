package hocket

import (
	"strings"
	"testing"
)

// TestReportDetours checks that the report's table says which data went through the host, and why.
func TestReportDetours(t *testing.T) {
	for _, list := range [][]string{nil, {"GPUs 0-1: the driver offers no peer access", "GPUs 0-2: a setting"}} {
		var b strings.Builder
		if err := (&Report{Ranks: 3, Detours: list}).WriteTable(&b); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(b.String(), "through the host  GPUs 0-"); got != len(list) {
			t.Errorf("%d lines for %d reasons:\n%s", got, len(list), &b)
		}
		for _, why := range list {
			if !strings.Contains(b.String(), why) {
				t.Errorf("%q is not in\n%s", why, &b)
			}
		}
	}
}

// TestReportGuesses checks that the report's table names the GEMMs whose algorithm was not timed.
func TestReportGuesses(t *testing.T) {
	var b strings.Builder
	if err := (&Report{Guesses: []string{"2x3x4 bf16", "5x6x7 f32"}}).WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"not timed", "GEMM 2x3x4 bf16", "GEMM 5x6x7 f32", "no memory was free"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, &b)
		}
	}
}
