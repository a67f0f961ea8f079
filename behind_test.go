package hocket_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/modeltest"
)

// TestGemmBeforeGather checks that every strategy overlaps a GEMM with the all_gather of its result, for various
// shapes, that the lowered program is proved, and that its results match the reference. The first case is the layer of
// nvFuser's issue 5325.
func TestGemmBeforeGather(t *testing.T) {
	m := modeltest.Open(t, cpu.New(cpu.Options{}))
	for _, c := range []struct{ body, refused string }{
		{"func f(%x: f32[T/tp, 6], %w: f32[10, 6]) -> f32[T, 10] {\n  %y = linear %x, %w\n  return %y\n}", ""},
		{"func f(%x: f32[T/tp, 6], %w: f32[6, 10]) -> f32[T, 10] {\n  %y = matmul %x, %w\n  %z = gelu %y\n  return %z\n}", ""},
		{"func f(%x: f32[T/(dp, tp), 6], %w: f32[10, 6], %b: f32[10]) -> f32[T, 10] {\n  %y = linear %x, %w, %b\n  return %y\n}", ""},
		{"func f(%x: f32[T, 6], %w: f32[12/tp, 6]) -> f32[T, 12] {\n  %y = linear %x, %w\n  return %y\n}", "exchange"},
		{"func f(%x: f32[3, T/tp, 6], %w: f32[10, 6]) -> f32[3, T, 10] {\n  %y = linear %x, %w\n  return %y\n}", "exchange"},
	} {
		for _, rows := range []int64{4, 8, 36, 92} {
			p, err := hocket.Parse("behind.hkt", fmt.Sprintf("dim T = %d\nmesh dp[2] tp[2]\n%s\n", rows, c.body))
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range []string{"chunked", "chunked(7)", "exchange", "exchange(2)", "ahead"} {
				// a chunk can only be sent after it has been computed
				want := map[string]string{"chunked": "chunked(4)", "ahead": "exchange"}[s]
				if want == "" {
					want = s
				}
				model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{Strategy: s})
				if c.refused != "" && strings.HasPrefix(want, c.refused) {
					if err == nil || !strings.Contains(err.Error(), "applies to no collective") {
						t.Errorf("%s, %s: %v", c.body, s, err)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				lines, err := model.Overlapped(nil)
				if err != nil || len(lines) != 1 || lines[0].Strategy != want || !strings.HasSuffix(lines[0].Pair, "+ all_gather") {
					t.Errorf("%s, %s: %v, %v", c.body, s, lines, err)
				}
				in, err := model.RandomInputs("ints:1")
				if err != nil {
					t.Fatal(err)
				}
				args := hocket.Args{In: in}
				reports, err := model.RunBatch(context.Background(), []hocket.Args{args, args, args})
				if err != nil {
					t.Fatalf("%s, %d rows, %s: %v", c.body, rows, s, err)
				}
				ref, err := model.Reference(context.Background(), args)
				if err != nil {
					t.Fatal(err)
				}
				for _, rep := range reports {
					if v := ref.Compare(rep); v.Verdict > hocket.Within || rep.Proof != hocket.Proved {
						t.Errorf("%s, %d rows, %s: %v; %s", c.body, rows, s, v, rep.Unproved)
					}
				}
				if err := model.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	}
}
