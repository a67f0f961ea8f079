package ir_test

import (
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
	"hocket.example/hocket/ir/irtest"
	"os"
	"path/filepath"
	"testing"
)

// FuzzParse checks that the parser does not panic for any text, and that the checker does not panic for the part of a
// text that could be read. A text that can be parsed must be printed as the same program with all its comments, and
// formatting its output again must not change it.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/parse/*.txt")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	for seed := range uint64(20) {
		f.Add(irtest.RandomProgram(seed).String())
	}
	f.Add(exchangeText)
	f.Fuzz(func(t *testing.T, src string) {
		p, ds := ir.Parse("fuzz", src)
		if p == nil || len(ds) > ir.MaxDiagnostics {
			t.Fatalf("%d errors", len(ds))
		}
		_ = p.String()
		for _, d := range ds {
			_ = d.String()
		}
		if len(ds) > 0 {
			if _, all := checker.Read("fuzz", src); len(all) < len(ds) || len(all) > ir.MaxDiagnostics {
				t.Fatalf("%d errors in the text, %d in all", len(ds), len(all))
			}
			return
		}
		irtest.RoundTrip(t, "fuzz", src)
		if before, after := ir.CountComments(src), ir.CountComments(p.String()); before != after {
			t.Fatalf("%d comments became %d", before, after)
		}
	})
}

// exchangeText is a program that contains every kind of statement.
const exchangeText = `dim T = 64
dim K
mesh dp[2] tp[4]
mesh d[2] = {0 2}

func plain(%x: bf16[T/(dp, tp), K]) -> bf16[T, K] {
  %y: bf16[T, K] = reshard %x
  return %y
}

func built(%x: bf16[T/(dp, tp), K], %c: inout bf16[T, K]) -> bf16[T, K] refines plain {
  %s = stream[2], priority=high
  %e = event
  %arrived = counter[size(tp)]
  let %n = size(tp)
  %all = alloc[%n] bf16[T, K] symmetric zero
  barrier over=(dp, tp)
  for %i in 0..%n stream(2) {
    on %s[%i mod 2] {
      wait main
      %to = chunk %all[%i], axis=0, rank(tp) of %n
      put %x into %to at tp[%i], engine=ce
      signal %arrived[rank(tp)] at tp[%i]
    }
  }
  if rank(tp) < %n - 1 {
    group { send %x to tp[rank(tp) + 1] }
  } else {
    wait %arrived[0] >= 1
  }
  record %e
  %part = slice %c, axis=1, 0..ceildiv(K, 2)
  fill into %part, value=0.5
  %r = reshape %part, shape=(T * 2, -1)
  %p, %q = call other %r
  free %all
  return %c
}
`
