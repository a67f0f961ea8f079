package strided

import "hocket.example/hocket/internal/nvlib"

// Launches keeps the launches of copies by kernels for the next time. The zero value has none.
type Launches struct{ kept map[key][]*nvlib.Launch }

// key identifies copies that share a launch.
type key struct {
	on       any // what they are loaded on
	dst, src nvlib.Ptr
	size     int64 // of an element
	dims     [MaxDims]Dim
}

func keyOf(on any, dst, src *View, dims []Dim) key {
	k := key{on: on, dst: dst.Addr, src: src.Addr, size: dst.DType.Size()}
	copy(k.dims[:], dims)
	return k
}

// Get returns the launches that copy on what they were kept for; false if there are none.
func (l *Launches) Get(on any, dst, src *View, dims []Dim) ([]*nvlib.Launch, bool) {
	list, ok := l.kept[keyOf(on, dst, src, dims)]
	return list, ok
}

// mostKept bounds the copies that are kept.
const mostKept = 4096

// Keep keeps launches.
func (l *Launches) Keep(on any, dst, src *View, dims []Dim, list []*nvlib.Launch) {
	if l.kept == nil || len(l.kept) >= mostKept {
		l.kept = map[key][]*nvlib.Launch{}
	}
	l.kept[keyOf(on, dst, src, dims)] = list
}
