package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/nvlib"
)

// resolve checks a view. Peers' memory must be shared, and is allowed only
// where peers is set.
func (d *dev) resolve(v device.View, peers bool) (strided.View, error) {
	m, ok := v.Mem.(*memory)
	if !ok || m == nil || m.dev.w != d.w {
		return strided.View{}, fmt.Errorf("a view of memory that is not this world's")
	}
	if m.freed {
		return strided.View{}, fmt.Errorf("a view of memory that was freed")
	}
	if err := device.MayUse(d.rank, m.dev.rank, m.kind, peers); err != nil {
		return strided.View{}, err
	}
	if err := m.dev.site.reach(d); err != nil {
		return strided.View{}, err
	}
	return m.view(v)
}

// view checks that v lies in m.
func (m *memory) view(v device.View) (strided.View, error) {
	n, err := v.Within(m.bytes)
	return strided.View{Mem: m, Addr: m.addr + nvlib.Ptr(v.Off), DType: v.DType, N: n, Shape: v.Shape, Strides: v.Strides}, err
}
