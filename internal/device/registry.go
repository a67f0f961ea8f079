package device

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"hocket.example/hocket/internal/world"
)

// Opener opens a machine. If peers is nil, the machine's worlds belong to this process alone; otherwise the peers share
// them.
type Opener func(peers *world.World) (Machine, error)

// Kind describes a kind of machine. Programs can read the description without opening a machine.
type Kind struct {
	// Name is the kind's name in programs. Default marks the kind that is used if a program names none; only one kind
	// has it.
	Name    string
	Default bool
	Open    Opener
	// OpenScheduled opens a machine that draws the order of work from a seed; nil if the kind does not support this.
	OpenScheduled func(seed int64) (Machine, error)
	// OnHost and Graphs have the same meaning as in Caps. Profiles reports that World.Profile is supported and that
	// CheckLaunches checks kernels on copies.
	OnHost, Graphs, Profiles bool
	// Algorithms describes the kind's own algorithms of collectives; see Teams.
	Algorithms []Algorithm
}

// kinds holds the registered kinds by name.
var kinds struct {
	sync.Mutex
	byName map[string]Kind
}

// Register makes a kind of machine available to Named. A later kind of the same name replaces it. It is meant for the
// init functions of packages that implement a machine.
func Register(k Kind) {
	kinds.Lock()
	defer kinds.Unlock()
	if kinds.byName == nil {
		kinds.byName = map[string]Kind{}
	}
	kinds.byName[k.Name] = k
}

// Kinds returns the registered kinds of machines, sorted by name.
func Kinds() []Kind {
	kinds.Lock()
	defer kinds.Unlock()
	return slices.SortedFunc(maps.Values(kinds.byName), func(a, b Kind) int { return strings.Compare(a.Name, b.Name) })
}

// KindNamed returns the kind with the given name, or the default kind for "". If there is no such kind, the error wraps
// ErrUnsupported and lists the registered kinds.
func KindNamed(name string) (Kind, error) {
	var names []string
	for _, k := range Kinds() {
		if k.Name == name || name == "" && k.Default {
			return k, nil
		}
		names = append(names, k.Name)
	}
	return Kind{}, unknownKind(fmt.Sprintf("there is no machine %q; the registered machines are: %s; a program registers another "+
		"one by importing its package: see MachineOptions.Name", name, strings.Join(names, ", ")))
}

// unknownKind is an error that wraps ErrUnsupported, with a message that does not describe a machine's missing feature.
type unknownKind string

func (e unknownKind) Error() string { return string(e) }

func (unknownKind) Is(target error) bool { return target == ErrUnsupported }

// Named opens a machine of the kind that KindNamed returns.
func Named(name string, peers *world.World) (Machine, error) {
	k, err := KindNamed(name)
	if err != nil {
		return nil, err
	}
	return k.Open(peers)
}

// WhichDo returns a phrase that lists the registered machines for which has returns true, such as "; cuda does", or
// "". Errors about a missing feature end with the phrase.
func WhichDo(has func(Kind) bool) string {
	var names []string
	for _, k := range Kinds() {
		if has(k) {
			names = append(names, k.Name)
		}
	}
	switch len(names) {
	case 0:
		return ""
	case 1:
		return "; " + names[0] + " does"
	}
	return "; " + strings.Join(names, ", ") + " do"
}
