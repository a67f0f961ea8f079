package acceptance_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/longtest"
)

// TestRandomHostPrograms writes correct host programs. The programs must be proved, and their results must equal the
// evaluator's in repeated runs under many schedules.
func TestRandomHostPrograms(t *testing.T) {
	first := longtest.Seed(t)
	for seed := first; seed < first+uint64(tries()); seed++ {
		src := randomExplicit(seed)
		p, err := hocket.Parse("random.hkt", src)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, src)
		}
		if v, err := hocket.Check(p, hocket.Binding{}); err != nil || v.Kind != hocket.Proved {
			t.Fatalf("seed %d: %v, %v\n%s%s", seed, v.Kind, err, v.Diagnostics, src)
		}
		if err := rightUnderSchedules(p, seed); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, src)
		}
	}
}

// TestRandomMutants changes a statement of random correct programs. If the changed program is still proved, its results
// must be right; otherwise the program must be refused with a reason. Both must occur.
func TestRandomMutants(t *testing.T) {
	count := map[string]int{}
	first := 3 * longtest.Seed(t)
	for seed := first; seed < first+uint64(3*tries()); seed++ {
		src := broken(randomExplicit(seed/3), rand.New(rand.NewPCG(seed, 3)))
		p, err := hocket.Parse("random.hkt", src)
		if err != nil {
			count["no program"]++
			continue
		}
		v, err := hocket.Check(p, hocket.Binding{})
		switch {
		case err != nil:
			t.Fatalf("seed %d: %v\n%s", seed, err, src)
		case v.Kind != hocket.Proved:
			count[v.Kind.String()]++
			if len(v.Diagnostics) == 0 {
				t.Fatalf("seed %d: the verdict %v has no reason\n%s", seed, v.Kind, src)
			}
			continue
		}
		count["proved"]++
		var mismatch *hocket.MismatchError // the proof does not cover the layout that a claim declares
		if err := rightUnderSchedules(p, seed); err != nil && !errors.As(err, &mismatch) {
			t.Fatalf("seed %d: %v\n%s", seed, err, src)
		}
	}
	for _, kind := range []string{"no program", "refuted", "proved"} {
		if count[kind] == 0 {
			t.Errorf("no mutant is %s: %v", kind, count)
		}
	}
}

// TestEmptyUsesNeedNoOrder checks that a stream that the main stream does not wait for may use a result as an operand
// if it accesses none of the result's bytes.
func TestEmptyUsesNeedNoOrder(t *testing.T) {
	p, err := hocket.Parse("empty.hkt", `func f(%x: f32[2]) -> f32[2] {
  %s = stream
  %y = alloc f32[2]
  copy %x into %y
  on %s {
    wait main
    %none = slice %y, axis=0, 1..1
    fill into %none, value=7
  }
  return %y
}`)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := hocket.Check(p, hocket.Binding{}); err != nil || v.Kind != hocket.Proved {
		t.Fatalf("%v, %v: %v", v.Kind, err, v.Diagnostics)
	}
	for seed := range uint64(10) {
		if err := rightUnderSchedules(p, seed); err != nil {
			t.Fatal(err)
		}
	}
}

func tries() int {
	if testing.Short() {
		return 30
	}
	return longtest.Of(100, 3000)
}

// rightUnderSchedules runs p three times back to back under several schedules, and compares every
// result with the reference.
func rightUnderSchedules(p *hocket.Program, seed uint64) error {
	ctx := context.Background()
	m, err := hocket.Open(ctx, hocket.MachineOptions{})
	if err != nil {
		return err
	}
	defer m.Close()
	model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{})
	if err != nil {
		return err
	}
	var batch []hocket.Args
	var refs []*hocket.Reference
	for _, spec := range []string{"ints:1", "ints:2", "arange"} {
		in, err := model.RandomInputs(spec)
		if err != nil {
			return err
		}
		batch = append(batch, hocket.Args{In: in})
		ref, err := model.Reference(ctx, batch[len(refs)])
		if err != nil {
			return err
		}
		refs = append(refs, ref)
	}
	opts := hocket.ExploreOptions{Schedules: 4, Seed: int64(seed) * 4}
	return model.Explore(ctx, batch, opts, func(_ int64, reports []*hocket.Report) error {
		for i, rep := range reports {
			if err := refs[i].Compare(rep).Err(); err != nil {
				return err
			}
		}
		return nil
	})
}
