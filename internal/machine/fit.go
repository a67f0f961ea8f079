package machine

import (
	"fmt"
	"slices"
	"strings"
)

// OfHost returns the built-in description of a machine without GPUs, whose devices are the processors of the host.
func OfHost() (*Description, error) {
	for _, name := range Names() {
		if d, err := Load(name); err != nil || d.GPU == "" {
			return d, err
		}
	}
	return nil, fmt.Errorf("there is no built-in description of a machine without GPUs")
}

// Fit returns the built-in description for this many ranks on GPUs of a model, which Description.GPU names. nodes are
// the nodes of the ranks, or nil for one node. Fit prefers, in this order: 1. the same model, or else the one whose
// name starts with the most words of it 2. with several nodes, descriptions with a connection between them 3. the
// nearest number of ranks per node 4. the first by name
//
// fits is false if the description is of another model.
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
