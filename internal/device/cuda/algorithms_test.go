package cuda

import (
	"reflect"
	"slices"
	"testing"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
)

// TestAlgorithmsDescribed checks the descriptions of algorithms. Names are unique, including those of schedules. The
// description of each algorithm states which collectives it takes and how it works. The shipped tuning table contains
// the same descriptions for the algorithms that it names, because readers of the table may not have this machine.
func TestAlgorithmsDescribed(t *testing.T) {
	inside, between := comm.Describe()
	all := slices.Concat(inside, between, coll.Infos(), []device.Algorithm{coll.Norm})
	seen := map[string]bool{}
	fresh := &comm.Table{}
	fresh.Describe(coll.Infos())
	for _, a := range all {
		for _, name := range append([]string{a.Name}, a.Formerly...) {
			if seen[name] || name == "" {
				t.Errorf("the name %q is used twice among current and former names of algorithms", name)
			}
			seen[name] = true
		}
		if a.What() == "" || a.How == "" || len(a.Ops) == 0 && a.Name != coll.Norm.Name {
			t.Errorf("%s lacks the description of the collectives that it takes, or of how it works", a.Name)
		}
	}
	described := func(list []device.Algorithm, name string) *device.Algorithm {
		i := slices.IndexFunc(list, func(a device.Algorithm) bool { return a.Name == name })
		if i < 0 {
			return nil
		}
		return &list[i]
	}
	shipped := comm.Shipped()
	for _, a := range shipped.Algorithms {
		if want := described(fresh.Algorithms, a.Name); want == nil || !reflect.DeepEqual(a, *want) {
			t.Errorf("the shipped table describes %+v, want %+v", a, want)
		}
	}
	for _, e := range shipped.Entries {
		for _, b := range e.Brackets {
			for _, x := range b.Best {
				if described(fresh.Algorithms, x.Algo) != nil && described(shipped.Algorithms, x.Algo) == nil {
					t.Errorf("the shipped table names %s and does not describe it", x.Algo)
				}
			}
		}
	}
}
