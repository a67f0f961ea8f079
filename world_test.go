package hocket_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"hocket.example/hocket"
)

// inProcesses runs f as each of n members of a world, all of them in this process, and returns what each
// returned.
func inProcesses(t *testing.T, n int, f func(w *hocket.World, m *hocket.Machine) error) []error {
	t.Helper()
	errs := make([]error, n)
	dir := t.TempDir()
	var all sync.WaitGroup
	for rank := range n {
		all.Go(func() {
			errs[rank] = func() (err error) {
				w, err := hocket.Join(t.Context(), hocket.JoinOptions{Rank: rank, Size: n, ID: t.Name(), Dir: dir, StallTimeout: 20 * time.Second})
				if err != nil {
					return err
				}
				defer w.Leave()
				m, err := hocket.Open(t.Context(), hocket.MachineOptions{World: w})
				if err != nil {
					return err
				}
				defer m.Close()
				return f(w, m)
			}()
		})
	}
	all.Wait()
	return errs
}

// TestFrozenExamplesInProcesses: every example gives what it gives in one process when its ranks are
// spread over two and four.
func TestFrozenExamplesInProcesses(t *testing.T) {
	files, err := filepath.Glob("examples/*.hkt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, n := range []int{2, 4} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			errs := inProcesses(t, n, func(w *hocket.World, m *hocket.Machine) error {
				for _, file := range files {
					if err := frozenInProcess(t, w, m, filepath.ToSlash(file), 2); err != nil {
						return fmt.Errorf("%s: %w", file, err)
					}
				}
				return nil
			})
			if err := errors.Join(errs...); err != nil {
				t.Error(err)
			}
		})
	}
}

func frozenInProcess(t *testing.T, w *hocket.World, m *hocket.Machine, file string, runs int) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	p, err := hocket.Parse(file, string(text))
	if err != nil {
		return err
	}
	sig, err := p.Bind(hocket.Binding{})
	if err != nil || sig.Ranks < w.Size() {
		return err
	}
	model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{Gather: true})
	if err != nil {
		return err
	}
	var batch []hocket.Args
	for i := range runs {
		in, err := model.RandomInputs(fmt.Sprintf("ints:%d", i))
		if err != nil {
			return err
		}
		batch = append(batch, hocket.Args{In: in})
	}
	reports, err := model.RunBatch(context.Background(), batch)
	if err != nil {
		return err
	}
	wantFrozen(t, file, fmt.Sprintf("process %d of %d", w.Rank(), w.Size()), reports)
	return model.Close()
}
