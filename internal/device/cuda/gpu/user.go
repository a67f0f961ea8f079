package gpu

import (
	"fmt"

	"hocket.example/hocket/internal/nvlib"
)

// UserLaunch returns a launch of a kernel whose parameters only its file knows, with these as its arguments: the driver
// would read past them if the kernel had more parameters. The context is current.
func (g *GPU) UserLaunch(drv *nvlib.Driver, f nvlib.Function, shape nvlib.Shape, params [][]byte) (*nvlib.Launch, error) {
	if sizes, ok := drv.ParamSizes(f); ok {
		if len(sizes) != len(params) {
			return nil, fmt.Errorf("it takes %d arguments, and gets %d", len(sizes), len(params))
		}
		for i, n := range sizes {
			if n != len(params[i]) {
				return nil, fmt.Errorf("its parameter %d has %d bytes, and gets %d", i, n, len(params[i]))
			}
		}
	}
	b := shape.Block
	if threads, most := int(b[0]*b[1]*b[2]), drv.MostThreads(f); most > 0 && threads > most {
		return nil, fmt.Errorf("a block of %d threads: this kernel runs at most %d on GPU %d", threads, most, g.Device)
	}
	if err := g.AllowShared(f, shape.Shared); err != nil {
		return nil, fmt.Errorf("%d bytes of shared memory: %w", shape.Shared, err)
	}
	return nvlib.NewLaunch(f, shape, params), nil
}
