package comm

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// Algorithm is one way to run collectives. It has no state: everything it
// knows of a channel it gets from a Build.
type Algorithm interface {
	// Name is what algorithm= pins.
	Name() string
	// Supports returns nil, or why in cannot be run this way on a machine
	// with these capabilities.
	Supports(in *Instance, caps device.Caps) error
	// Staging returns the bytes of staging memory that each member needs.
	Staging(in *Instance) int64
	// Build adds the steps of every member.
	Build(b *Build)
}

// algorithms lists all of them; the first supports every collective.
var algorithms = []Algorithm{staged{}, twoShot{}}

// twoShotFrom is the size in bytes from which an all_reduce moves less data in
// two shots. A measured table per machine will take its place.
const twoShotFrom = 64 << 10

// Choose returns the algorithm for an instance: the pinned one, else by size.
// The choice depends on the instance alone, so all ranks agree on it.
func Choose(in *Instance, caps device.Caps) (Algorithm, error) {
	if in.Algo != "" {
		return pinned(in, caps)
	}
	if in.Op == ir.OpAllReduce && len(in.Parts) > 2 && in.Bytes() >= twoShotFrom {
		if a := (twoShot{}); a.Supports(in, caps) == nil {
			return a, nil
		}
	}
	return staged{}, nil
}

func pinned(in *Instance, caps device.Caps) (Algorithm, error) {
	i := slices.IndexFunc(algorithms, func(a Algorithm) bool { return a.Name() == in.Algo })
	if i < 0 {
		return nil, fmt.Errorf("%s: there is no algorithm %q; there are %s", in.Op, in.Algo, strings.Join(Algorithms(), ", "))
	}
	a := algorithms[i]
	if err := a.Supports(in, caps); err != nil {
		return nil, fmt.Errorf("%s: algorithm %s: %w", in.Op, in.Algo, err)
	}
	return a, nil
}

// Algorithms returns the names that algorithm= takes.
func Algorithms() []string {
	names := make([]string, len(algorithms))
	for i, a := range algorithms {
		names[i] = a.Name()
	}
	return names
}
