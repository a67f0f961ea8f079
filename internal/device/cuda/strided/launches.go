package strided

import "hocket.example/hocket/internal/nvlib"

// Launches is a cache of launches of kernels that copy. The zero value is an empty cache.
type Launches struct{ kept map[key][]*nvlib.Launch }

// key identifies copies that share a launch.
type key struct {
	on       any // the device on which the kernels are loaded
	dst, src nvlib.Ptr
	size     int64 // size of an element in bytes
	dims     [MaxDims]Dim
}

func keyOf(on any, dst, src *View, dims []Dim) key {
	k := key{on: on, dst: dst.Addr, src: src.Addr, size: dst.DType.Size()}
	copy(k.dims[:], dims)
	return k
}

// Get returns the cached launches of a copy on a device; false if there are none.
func (l *Launches) Get(on any, dst, src *View, dims []Dim) ([]*nvlib.Launch, bool) {
	list, ok := l.kept[keyOf(on, dst, src, dims)]
	return list, ok
}

// mostKept is the largest number of copies whose launches are cached. A full cache is emptied.
const mostKept = 4096

// Keep adds the launches of a copy to the cache.
func (l *Launches) Keep(on any, dst, src *View, dims []Dim, list []*nvlib.Launch) {
	if l.kept == nil || len(l.kept) >= mostKept {
		l.kept = map[key][]*nvlib.Launch{}
	}
	l.kept[keyOf(on, dst, src, dims)] = list
}
