package eval

import (
	"fmt"
	"slices"

	"hocket.example/hocket/ir"
)

// storage holds one buffer of one rank: its numbers, and a record of the elements that were written.
type storage struct {
	m     *machine
	name  string
	rank  int
	dt    ir.DType
	shape []int64

	// from is a function that computes the contents, if the storage is the shard of a value on one rank. It is nil for
	// buffers.
	from func() (*array, error)
	// arr holds the contents. It is nil before the first use and after the last use.
	arr     *array
	written []bool // for each element, whether it was written; nil if all elements were
	// uses counts the remaining tasks that refer to the storage.
	uses  int
	freed bool

	// home and elem identify the allocation to which the storage belongs. home and elem are not set for storage of
	// values.
	home *allocation
	elem int64
}

// view is a region of a storage: a view in the sense of S16, or the whole storage.
type view struct {
	st *storage
	region
}

func (st *storage) all() view { return view{st, dense(st.shape)} }

// open computes or allocates the contents if they are absent.
func (st *storage) open() error {
	if st.arr != nil {
		return nil
	}
	if err := st.m.reserve(st.dt, st.shape); err != nil {
		return err
	}
	if st.from == nil {
		st.arr = newArray(st.dt, st.shape)
		st.written = make([]bool, st.arr.len())
		return nil
	}
	a, err := st.from()
	if err != nil {
		st.m.release(st.dt, st.shape)
		return err
	}
	st.arr = a
	return nil
}

// close releases the contents after the last task that refers to the storage.
func (st *storage) close() {
	if st.uses--; st.uses == 0 && st.arr != nil {
		st.arr, st.written = nil, nil
		st.m.release(st.dt, st.shape)
	}
}

// read returns the view's elements. Reading an element that was never written is an error (S15).
func (v view) read() (*array, error) {
	if err := v.st.open(); err != nil {
		return nil, err
	}
	if v.st.written != nil {
		bad := int64(-1)
		v.runs(func(at, _, n int64) {
			if i := slices.Index(v.st.written[at:at+n], false); i >= 0 && bad < 0 {
				bad = at + int64(i)
			}
		})
		if bad >= 0 {
			return nil, &finding{kind: "lifetime", message: fmt.Sprintf("rank %d reads %%%s%v, which no statement "+
				"has written",
				v.st.rank, v.st.name, unflatten(v.st.shape, bad)), help: "write the element first, or allocate " +
				"the buffer with alloc … zero"}
		}
	}
	return v.st.arr.view(v.region), nil
}

// write stores a in the view.
func (v view) write(a *array) error {
	if a.dt != v.st.dt || !slices.Equal(a.shape, v.shape) {
		return fmt.Errorf("%v%v cannot be written to %%%s, which is %v%v", a.dt, a.shape, v.st.name, v.st.dt, v.shape)
	}
	if err := v.st.open(); err != nil {
		return err
	}
	v.st.arr.put(v.region, a)
	if v.st.written != nil {
		v.runs(func(at, _, n int64) {
			for i := at; i < at+n; i++ {
				v.st.written[i] = true
			}
		})
	}
	return nil
}

// zero sets every element to zero.
func (st *storage) zero() error {
	if err := st.open(); err != nil {
		return err
	}
	return st.all().write(newArray(st.dt, st.shape))
}

// allocation records one execution of an alloc statement. It holds the storages of all ranks, so that put and get of
// other ranks can access them.
type allocation struct {
	ranks map[int][]*storage
}

// at returns element elem of rank's storages, or nil if the rank did not execute the alloc.
func (a *allocation) at(rank int, elem int64) *storage {
	all := a.ranks[rank]
	if elem < 0 || elem >= int64(len(all)) {
		return nil
	}
	return all[elem]
}
