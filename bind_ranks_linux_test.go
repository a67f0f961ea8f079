package hocket_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

const rowsSource = `mesh tp[2]
func f(%x: f32[4], %w: f32[4/tp, 4]) -> f32[4/tp] {
  %y = matmul %w, (reshape %x, shape=(4, 1))
  %z = reshape %y, shape=(4)
  return %z
}
`

// eachRank calls f in each of two processes of a world, both in this process. ranks[i] are the ranks of process i.
func eachRank(t *testing.T, ranks [][]int, f func(m *hocket.Machine) error) {
	t.Helper()
	dir := t.TempDir()
	var all sync.WaitGroup
	for i, own := range ranks {
		all.Go(func() {
			err := func() error {
				w, err := hocket.Join(t.Context(), hocket.JoinOptions{Rank: i, Size: len(ranks), ID: t.Name(), Dir: dir,
					Ranks: own})
				if err != nil {
					return err
				}
				m, err := hocket.Open(t.Context(), hocket.MachineOptions{World: w})
				if err != nil {
					return errors.Join(err, w.Leave())
				}
				err = f(m)
				return errors.Join(err, m.Close(), w.Leave())
			}()
			if err != nil {
				t.Errorf("process %d: %v", i, err)
			}
		})
	}
	all.Wait()
}

// TestBindFromRanks checks that a process reads the part of the rank that it drives, whatever the number of the process
// is.
func TestBindFromRanks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "w.safetensors")
	if err := tensor.WriteSafetensorsFile(file, []tensor.Named{named(t, "w", ir.F32, 1, 4, 4)}, nil); err != nil {
		t.Fatal(err)
	}
	for _, ranks := range [][][]int{{nil, nil}, {{0}, {1}}, {{1}, {0}}} {
		eachRank(t, ranks, func(m *hocket.Machine) error { return sumsColumns(t, m, file) })
	}
}

// sumsColumns runs rowsSource with inputs of ones and the transposed weight from a file.
func sumsColumns(t *testing.T, m *hocket.Machine, file string) error {
	p, err := hocket.Parse("rows.hkt", rowsSource)
	if err != nil {
		return err
	}
	model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{Gather: true})
	if err != nil {
		return err
	}
	c, err := hocket.OpenCheckpoint(file)
	if err != nil {
		return err
	}
	rules := hocket.Rules{Inputs: []string{"x"},
		Weights: []hocket.WeightRule{{Param: "w", From: []string{"w"}, Transpose: true}}}
	_, err = model.BindFrom(c, rules)
	if err := errors.Join(err, c.Close()); err != nil {
		return err
	}
	x, err := hocket.FromFloats(ir.F32, []float64{1, 1, 1, 1}, 4)
	if err != nil {
		return err
	}
	rep, err := model.Run(t.Context(), hocket.Args{In: map[string]*hocket.Tensor{"x": x}})
	if err != nil {
		return err
	}
	if got, want := rep.Out["z"].Floats(), []float64{28, 32, 36, 40}; !slices.Equal(got, want) {
		return fmt.Errorf("sums of columns %v, want %v", got, want)
	}
	return wantsWhole(t, model, x)
}

// wantsWhole calls the methods that need a whole weight, of which this process has read only a part: first without the
// whole weight in the arguments, then with it.
func wantsWhole(t *testing.T, model *hocket.Model, x *hocket.Tensor) error {
	w, err := hocket.FromFloats(ir.F32, []float64{1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 4, 8, 12, 16}, 4, 4)
	if err != nil {
		return err
	}
	part := hocket.Args{In: map[string]*hocket.Tensor{"x": x}}
	whole := hocket.Args{In: map[string]*hocket.Tensor{"x": x, "w": w}}
	explore := func(a hocket.Args) error {
		return model.Explore(t.Context(), []hocket.Args{a}, hocket.ExploreOptions{Schedules: 1},
			func(int64, []*hocket.Report) error { return nil })
	}
	_, err = model.Reference(t.Context(), part)
	if err := explore(part); !errors.Is(err, hocket.ErrUnsupported) {
		return fmt.Errorf("Explore: %w, want ErrUnsupported", err)
	}
	if !errors.Is(err, hocket.ErrUnsupported) {
		return fmt.Errorf("Reference: %w, want ErrUnsupported", err)
	}
	if err := explore(whole); err != nil {
		return err
	}
	c, err := model.Compare(t.Context(), whole)
	if err == nil && c.Verdict == hocket.Differs {
		err = c.Err()
	}
	return err
}
