package device

import (
	"fmt"
	"go/token"
	"maps"
	"slices"
	"strings"
	"sync"

	"hocket.example/hocket/internal/world"
)

// Opener makes a machine: for one process, or, where peers are given, for worlds that are spread over them.
type Opener func(peers *world.World) (Machine, error)

// Kind is a kind of machine: what a program knows of it without opening one.
type Kind struct {
	// Name is what programs call it. One of all kinds is the Default of those that name none.
	Name    string
	Default bool
	Open    Opener
	// OpenScheduled makes a machine that draws the order of work from a seed; nil where there is none.
	OpenScheduled func(seed int64) (Machine, error)
	// OnHost, Graphs: as of its Caps. Profiles: World.Profile works, and CheckLaunches of kernels is by copies.
	OnHost, Graphs, Profiles bool
	// Algorithms describe its own ways to run collectives; see Teams.
	Algorithms []Algorithm
}

// kinds are those that packages have registered, by name.
var kinds struct {
	sync.Mutex
	byName map[string]Kind
}

// Register makes a kind of machine available to Named; a later one of the
// same name takes its place. It is for init functions of packages that are
// imported for it.
func Register(k Kind) {
	kinds.Lock()
	defer kinds.Unlock()
	if kinds.byName == nil {
		kinds.byName = map[string]Kind{}
	}
	kinds.byName[k.Name] = k
}

// Kinds lists the kinds of machines that are registered, by name.
func Kinds() []Kind {
	kinds.Lock()
	defer kinds.Unlock()
	return slices.SortedFunc(maps.Values(kinds.byName), func(a, b Kind) int { return strings.Compare(a.Name, b.Name) })
}

// KindNamed returns the kind of a name, or the default one for "". Where there is none the error
// wraps ErrUnsupported and lists those that there are.
func KindNamed(name string) (Kind, error) {
	var names []string
	for _, k := range Kinds() {
		if k.Name == name || name == "" && k.Default {
			return k, nil
		}
		names = append(names, k.Name)
	}
	more := ""
	if token.IsIdentifier(name) {
		more = "; a program adds a machine by importing its package, as hocket.example/hocket/" + name
	}
	return Kind{}, fmt.Errorf("machine %q: %w; there is: %s%s", name, ErrUnsupported, strings.Join(names, ", "), more)
}

// Named makes a machine of the kind that KindNamed returns.
func Named(name string, peers *world.World) (Machine, error) {
	k, err := KindNamed(name)
	if err != nil {
		return nil, err
	}
	return k.Open(peers)
}

// WhichDo names for an error the registered machines that have what another lacks: "; cuda does", or nothing.
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
