package nvlib

import (
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/cabi"
)

// ncclOf returns a fake NCCL that can only report the given version. If the version is 0, it cannot report it either.
func ncclOf(t *testing.T, version int32) *NCCL {
	t.Helper()
	table := map[string]func([]uintptr) uintptr{}
	for name := range (&ncclFuncs{}).table() {
		table[name] = func([]uintptr) uintptr { return 0 }
	}
	table["ncclGetVersion"] = func(a []uintptr) uintptr {
		cabi.Store(a[0], version)
		if version == 0 {
			return 1
		}
		return 0
	}
	n, err := NCCLOn(cabi.Fake("fake libnccl", table))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestNCCLMistakes checks that each version of NCCL has the bugs that are known for it, and the bugs of multicast only
// with multicast.
func TestNCCLMistakes(t *testing.T) {
	for version, want := range map[int32][]Mistake{
		0:     {SwitchedOrder}, // NCCL does not report its version
		21705: {},
		21800: {SwitchedOrder},
		22803: {SwitchedOrder},
		23102: {SwitchedOrder},
	} {
		n := ncclOf(t, version)
		for _, multicast := range []bool{true, false} {
			var got []Mistake
			for _, k := range n.Mistakes(multicast) {
				got = append(got, k.Mistake)
			}
			should := slices.DeleteFunc(slices.Clone(want), func(m Mistake) bool { return m == SwitchedOrder && !multicast })
			if !slices.Equal(got, should) {
				t.Errorf("%d, multicast %t: %v, want %v", version, multicast, got, should)
			}
		}
	}
	if n := ncclOf(t, 22807); n.Mistaken(SwitchedOrder, false) != nil || n.Mistaken(SwitchedOrder, true) == nil {
		t.Error("Mistaken does not return a row of the table")
	}
}

// TestNCCLMistakesTold checks that the description of every known bug is complete and that its text contains the
// versions.
func TestNCCLMistakesTold(t *testing.T) {
	for _, k := range ncclMistakes {
		if k.What == "" || k.Instead == "" || k.Source == "" || k.Before > 0 && k.Before <= k.From {
			t.Errorf("%+v", k)
		}
	}
	list := ncclOf(t, 22803).Mistakes(true)
	if s := list[0].String(); !strings.Contains(s, "in all versions since 2.18.0") || !strings.Contains(s, list[0].Instead) {
		t.Errorf("%s", s)
	}
	k := KnownMistake{From: 22700, Before: 22807}
	if s := k.String(); !strings.Contains(s, "from 2.27.0 to before 2.28.7") {
		t.Errorf("%s", s)
	}
}
