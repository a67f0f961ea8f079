package peers

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
	procs "hocket.example/hocket/internal/world"
)

// TestPlacesOfGroup checks a group of processes 1 and 2 of three: each uses the GPUs that it has in the world. If the
// processes have different numbers of ranks, Place cannot determine these GPUs and returns an error.
func TestPlacesOfGroup(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for rank := range 3 {
		all.Go(func() {
			ctx := context.Background()
			w, err := procs.Join(ctx, procs.Options{Rank: rank, Size: 3, ID: t.Name(), Dir: dir, JoinTimeout: time.Minute,
				StallTimeout: time.Minute})
			if err != nil {
				t.Error(err)
				return
			}
			defer w.Leave()
			if rank > 0 {
				g, err := procs.JoinGroup(ctx, w, "g", []int{1, 2})
				if err != nil {
					t.Error(err)
					return
				}
				places(t, g)
			}
			if _, err := w.Agree(ctx, "end", nil); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

func places(t *testing.T, g *procs.World) {
	see := []sight{{Host: "a", PCI: "0"}, {Host: "a", PCI: "1"}, {Host: "a", PCI: "2"}, {Host: "a", PCI: "3"},
		{Host: "a", PCI: "4"}, {Host: "a", PCI: "5"}}
	v := &View{seen: [][]sight{see, see}, alike: map[string]bool{"a": true}, own: "a"}
	for ranks, want := range map[int][]string{2: {"1", "2"}, 4: {"2", "3", "4", "5"}, 3: nil} {
		p, err := g.Spread(ranks)
		if err != nil {
			t.Error(err)
			return
		}
		at, err := v.Place(p, &gpu.System{}, ranks, 1)
		if (err == nil) != (want != nil) || err != nil && !errors.Is(err, device.ErrUnsupported) {
			t.Errorf("%d ranks: %v", ranks, err)
		}
		for i := range at {
			if at[i].GPU.PCI != want[i] {
				t.Errorf("%d ranks: rank %d is on GPU %s, want %s", ranks, i, at[i].GPU.PCI, want[i])
			}
		}
	}
}
