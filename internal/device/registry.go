package device

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"hocket.example/hocket/internal/world"
)

// Opener makes a machine: for one process, or, where peers are given, for worlds that are spread over them.
type Opener func(peers *world.World) (Machine, error)

// makers are the machines that packages have registered, by name.
var makers struct {
	sync.Mutex
	byName map[string]Opener
}

// Register makes a machine available to Named under a name; a later one of the
// same name takes its place. It is for init functions of packages that are
// imported for it.
func Register(name string, open Opener) {
	makers.Lock()
	defer makers.Unlock()
	if makers.byName == nil {
		makers.byName = map[string]Opener{}
	}
	makers.byName[name] = open
}

// Named makes the machine registered under name. Where there is none the error
// wraps ErrUnsupported and lists those that there are.
func Named(name string, peers *world.World) (Machine, error) {
	makers.Lock()
	open := makers.byName[name]
	names := slices.Sorted(maps.Keys(makers.byName))
	makers.Unlock()
	if open == nil {
		more := ""
		if !slices.Contains(names, "cuda") {
			more = "; importing hocket.example/hocket/cuda adds cuda"
		}
		return nil, fmt.Errorf("machine %q: %w; there is: %s%s", name, ErrUnsupported, strings.Join(append([]string{"cpu"}, names...), ", "), more)
	}
	return open(peers)
}
