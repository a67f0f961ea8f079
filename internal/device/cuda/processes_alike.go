package cuda

import (
	"fmt"
	"maps"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
)

// The functions of this file describe, as text, the properties that must be equal in all processes of a node. The
// processes compare these texts when a plan is loaded. If one process launched a team's kernel with a different grid,
// or used a different address for the data that its peer writes, the kernel would wait until it times out or overwrite
// other data.

// describe records a text that describes the kernels of all members. The text does not contain the kernels' arguments,
// because these are addresses that differ between processes.
func (t *team) describe(list [][]coll.Action) {
	if t.w.peers == nil {
		return
	}
	for i, m := range t.members {
		if m.dev.site.far {
			continue
		}
		for _, x := range list[i] {
			if k, ok := x.(coll.Kernel); ok {
				t.kernels = append(t.kernels, fmt.Sprintf("rank %d: kernel %s of %d × %d threads, %d bytes shared",
					m.dev.rank, k.Symbol, k.Blocks, k.Threads, k.Shared))
			}
		}
	}
}

// matched returns texts that must be equal in all processes: they describe the memory of all GPUs that other processes
// map, and the memory and launches of teams on those GPUs. The caller holds mu.
func matched(w *world) (lines []string) {
	for _, s := range w.all {
		if s.far { // the processes of the site's node compare its texts
			continue
		}
		lines = append(lines, fmt.Sprintf("%s: %s", s.key, s.heaps[device.Shared].Layout()))
	}
	for _, t := range w.teams {
		var ranks []int
		for _, m := range t.members {
			ranks = append(ranks, m.dev.rank)
		}
		team := fmt.Sprintf("the team of ranks %v", ranks)
		for i, m := range t.members {
			if m.dev.site.far {
				continue
			}
			lines = append(lines, fmt.Sprintf("%s: rank %d meets the others at %s", team, ranks[i],
				m.dev.site.heaps[device.Shared].Place(m.control)))
		}
		for _, name := range slices.Sorted(maps.Keys(t.regions)) {
			a := t.regions[name]
			line := fmt.Sprintf("%s: %s of %d bytes", team, name, a.Bytes)
			for i, at := range a.At {
				if t.members[i].dev.site.far {
					continue
				}
				line += fmt.Sprintf(", of rank %d at %s", ranks[i], t.members[i].dev.site.heaps[device.Shared].Place(at))
			}
			lines = append(lines, line)
		}
		for _, k := range t.kernels {
			lines = append(lines, team+", "+k)
		}
	}
	return lines
}
