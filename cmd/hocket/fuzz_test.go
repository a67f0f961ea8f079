package main

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"hocket.example/hocket/internal/tensor"
)

const fuzzProgram = `dim T = 4
dim C = 2
mesh tp[C]
func f(%x: f32[T/tp, K]) -> f32[T/tp, K] {
  return %x
}
`

// FuzzBinding runs hocket check with arbitrary dims and definitions. The command must not panic, must return one of the
// documented exit codes, and must explain every failure.
func FuzzBinding(f *testing.F) {
	f.Add("T=8", "K=T*2", "2")
	f.Add("K=-1", "C=size(tp)", "0")
	f.Add("T=9223372036854775807", "K=((T", "65537")
	f.Add("=", "K=C mod 0", "x")
	f.Fuzz(func(t *testing.T, dim, define, ranks string) {
		a, out, errs := testApp(strings.NewReader(fuzzProgram))
		ctx := context.Background()
		code := a.finish(ctx, a.execute(ctx, []string{"check", "-", "--dim", dim, "--define", define, "-n", ranks}))
		switch code {
		case exitDone, exitProgram, exitUsage, exitUndecided:
		default:
			t.Errorf("code %d: %s", code, errs)
		}
		if out.Len()+errs.Len() == 0 {
			t.Errorf("code %d, and nothing said", code)
		}
	})
}

// FuzzInputs parses arbitrary values of --in. An accepted value must have the same meaning after it is printed and
// parsed again.
func FuzzInputs(f *testing.F) {
	f.Add("x=ints:1")
	f.Add("%x=a=b.safetensors#c")
	f.Add("rand:18446744073709551615")
	f.Add("../x.npy")
	f.Fuzz(func(t *testing.T, text string) {
		in, err := parseInputs([]string{text}, 0)
		if err != nil {
			return
		}
		for name, spec := range in.specs {
			again, err := parseInputs([]string{name + "=" + spec.String()}, 0)
			if err != nil || again.specs[name] != spec {
				t.Errorf("%q: %v, %v, want %v", text, again, err, spec)
			}
		}
		if in.rest.Kind > tensor.SpecArange {
			t.Errorf("%q: every parameter from %v", text, in.rest)
		}
	})
}

// FuzzBytes checks that a parsed number of bytes is positive, and stays the same if it is written with a unit and
// parsed again.
func FuzzBytes(f *testing.F) {
	for _, s := range []string{"1048576", "64K", "16MiB", "2GB", "0", "-1", "9223372036854775807", "4194304T", "K",
		"1KK", "i", "1ib", "1.5G", "2 K"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := tensor.ParseSize(text)
		if err != nil {
			if !strings.Contains(err.Error(), strconv.Quote(text)) {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		digits := strings.TrimRight(strings.ToUpper(text), "KMGTIB")
		unit := map[string]int64{"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30,
			"T": 1 << 40}[strings.Trim(strings.ToUpper(text[len(digits):]), "IB ")]
		digits = strings.TrimSpace(digits)
		if x, err := strconv.ParseFloat(digits, 64); strings.Contains(digits, ".") {
			if x *= float64(unit); err != nil || float64(n) < x || float64(n) > x*(1+1e-15)+1 {
				t.Errorf("%q is %d bytes, want %g", text, n, x)
			}
		} else if k, err := strconv.ParseInt(digits, 10, 64); err != nil || k*unit != n || n < 1 || n/unit != k {
			t.Errorf("%q is %d bytes", text, n)
		}
		if again, err := tensor.ParseSize(strconv.FormatInt(n, 10)); err != nil || again != n {
			t.Errorf("%q: %d is read as %d, %v", text, n, again, err)
		}
	})
}
