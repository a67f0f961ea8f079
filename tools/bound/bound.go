// Package bound runs models with bound parameters, as a server does. Its main function is Args.
package bound

import (
	"context"

	"hocket.example/hocket"
)

// Args binds each input to the model's parameter of that name, and returns the arguments for later runs. Results stay on the devices, in
// tensors that the model owns until it is closed.
func Args(ctx context.Context, model *hocket.Model, inputs map[string]*hocket.Tensor) (hocket.Args, error) {
	a := hocket.Args{DeviceOut: map[string]*hocket.DeviceTensor{}}
	for name, t := range inputs {
		if err := model.Bind(name, t); err != nil {
			return a, err
		}
	}
	_, results, err := model.Layouts(ctx, nil, nil)
	if err != nil {
		return a, err
	}
	for _, r := range results {
		if a.DeviceOut[r.Name], err = model.NewDeviceTensor(ctx, r.Name, nil); err != nil {
			return a, err
		}
	}
	return a, nil
}
