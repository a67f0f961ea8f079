package machine

import (
	"fmt"
	"slices"
	"strings"
)

// OfHost returns the shipped description of machines whose devices are the host's processors: the one that names no GPU.
func OfHost() (*Description, error) {
	for _, name := range Names() {
		if d, err := Load(name); err != nil || d.GPU == "" {
			return d, err
		}
	}
	return nil, fmt.Errorf("no description is shipped of a machine without GPUs")
}

// Fit returns the shipped description for so many ranks on GPUs of a model, which Description.GPU names. nodes are
// the ranks' nodes, nil for one. It prefers, in this order: the model, or the one whose name begins with the most
// of its words; with several nodes, descriptions with a tier between them; the nearest number of ranks on one node;
// the first by name. fits is false where the description is of another model.
func Fit(gpu string, ranks int, nodes []int) (best *Description, fits bool, err error) {
	near := ranks
	if nodes != nil {
		near = 0
		on := map[int]int{}
		for _, n := range nodes {
			on[n]++
			near = max(near, on[n])
		}
	}
	model := strings.Fields(gpu)
	var most []int
	for _, name := range Names() {
		d, err := Load(name)
		if err != nil {
			return nil, false, err
		}
		if d.GPU == "" {
			continue
		}
		points := []int{0, 0, -max(d.Ranks-near, near-d.Ranks)}
		for i, word := range strings.Fields(d.GPU) {
			if i == len(model) || word != model[i] {
				break
			}
			points[0]++
		}
		if nodes != nil && d.Across != nil {
			points[1] = 1
		}
		if best == nil || slices.Compare(points, most) > 0 {
			best, most = d, points
		}
	}
	return best, best.GPU == gpu, nil
}
