package gpu

import (
	"fmt"

	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// LoadAll calls Load for each of the steps.
func (g *GPU) LoadAll(drv *nvlib.Driver, steps []kernels.Step) ([]*nvlib.Launch, error) {
	var launches []*nvlib.Launch
	for _, st := range steps {
		l, err := g.Load(drv, st)
		if err != nil {
			return nil, err
		}
		launches = append(launches, l)
	}
	return launches, nil
}

// Load loads the kernel of the step st, and returns a launch of it for drv. The context is current.
func (g *GPU) Load(drv *nvlib.Driver, st kernels.Step) (*nvlib.Launch, error) {
	f, err := g.Function(st.Key, st.Image, st.Symbol)
	if err != nil {
		return nil, err
	}
	if err := g.AllowShared(f, st.Shape.Shared); err != nil {
		return nil, err
	}
	if !g.Early {
		return nvlib.NewLaunch(f, st.Shape, st.Params), nil
	}
	return drv.NewEarlyLaunch(f, st.Shape, st.Params), nil
}

// LoadUser is like Load, for a kernel of the user, whose parameters are declared only in its image. It compares the
// arguments with these declarations, because the driver would read past the arguments if the kernel had more
// parameters. The context is current.
func (g *GPU) LoadUser(drv *nvlib.Driver, st kernels.Step) (*nvlib.Launch, error) {
	f, err := g.Function(st.Key, st.Image, st.Symbol)
	if err != nil {
		return nil, err
	}
	if sizes, ok := drv.ParamSizes(f); ok {
		if len(sizes) != len(st.Params) {
			return nil, fmt.Errorf("the kernel takes %d arguments, and gets %d", len(sizes), len(st.Params))
		}
		for i, n := range sizes {
			if n != len(st.Params[i]) {
				return nil, fmt.Errorf("the kernel's parameter %d has %d bytes, and gets %d", i, n, len(st.Params[i]))
			}
		}
	}
	b := st.Shape.Block
	if threads, most := int(b[0]*b[1]*b[2]), drv.MostThreads(f); most > 0 && threads > most {
		return nil, fmt.Errorf("a block of %d threads: this kernel can run with at most %d on GPU %d", threads, most, g.Device)
	}
	if err := g.AllowShared(f, st.Shape.Shared); err != nil {
		return nil, fmt.Errorf("%d bytes of shared memory: %w", st.Shape.Shared, err)
	}
	return nvlib.NewLaunch(f, st.Shape, st.Params), nil
}
