package modeltest

import (
	"encoding/binary"
	"errors"
	"fmt"

	"hocket.example/hocket"
)

// Outside accesses the blocks of device tensors without hocket's functions. The access is complete when a method
// returns.
type Outside interface {
	Put(b hocket.DeviceBlock, data []byte) error
	Get(b hocket.DeviceBlock, data []byte) error
}

// inProcess accesses blocks that are in the process's own memory.
type inProcess struct{}

func (inProcess) Put(b hocket.DeviceBlock, data []byte) error {
	return all(copy(b.Host, data), b, data)
}
func (inProcess) Get(b hocket.DeviceBlock, data []byte) error {
	return all(copy(data, b.Host), b, data)
}

func all(copied int, b hocket.DeviceBlock, data []byte) error {
	if copied != len(data) || copied != len(b.Host) {
		return fmt.Errorf("a block of %v elements has %d bytes, want %d", b.Shape, len(b.Host), len(data))
	}
	return nil
}

// part returns the bytes of the block b of a tensor whose values are vals. A block has rows of two elements, or is a
// vector.
func part(b hocket.DeviceBlock, vals []int32) []byte {
	first, n := b.From[0], b.Shape[0]
	if len(b.Shape) == 2 {
		first, n = 2*first, 2*n
	}
	var data []byte
	for _, v := range vals[first : first+n] {
		data = binary.NativeEndian.AppendUint32(data, uint32(v))
	}
	return data
}

var errOutside = errors.New("others failed")

// reaches reports whether code outside of hocket can access a tensor's blocks.
func (w *walk) reaches(d *onDevice) bool {
	return w.others != Outside(inProcess{}) || d.Blocks()[0].Host != nil
}

// fill lets code outside of hocket fill a tensor. One time in four, that code reports an error.
func (w *walk) fill() {
	w.t.Helper()
	i := w.rand.IntN(len(w.pool))
	if !w.reaches(w.pool[i]) {
		return
	}
	d := w.pool[i]
	d.vals = w.values(d.layout, d.rows)
	fails := w.rand.IntN(4) == 0
	w.did("fill %d, fails: %v", i, fails)
	err := d.Fill(w.t.Context(), func(blocks []hocket.DeviceBlock) error {
		for _, b := range blocks {
			if err := w.others.Put(b, part(b, d.vals)); err != nil {
				return err
			}
			if fails {
				return errOutside
			}
		}
		return nil
	})
	if fails {
		d.vals = nil
	}
	if fails != errors.Is(err, errOutside) || !fails && err != nil {
		w.t.Errorf("filled by others, which is to fail: %v: %v", fails, err)
	}
}

// view lets code outside of hocket read a tensor.
func (w *walk) view(d *onDevice) {
	w.t.Helper()
	if !w.reaches(d) {
		return
	}
	seen := 0
	err := d.View(w.t.Context(), func(blocks []hocket.DeviceBlock) error {
		for _, b := range blocks {
			want := part(b, d.vals)
			got := make([]byte, len(want))
			if err := w.others.Get(b, got); err != nil {
				return err
			}
			if string(got) != string(want) {
				return fmt.Errorf("rank %d has %v, want %v", b.Rank, got, want)
			}
			seen++
		}
		return nil
	})
	switch {
	case d.vals == nil:
		if !errors.Is(err, hocket.ErrNoContents) {
			w.t.Errorf("view of what holds nothing: %v", err)
		}
	case err != nil || seen != 2:
		w.t.Errorf("viewed by others, %d blocks: %v", seen, err)
	}
}
