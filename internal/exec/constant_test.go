package exec

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// linearMachine records whether the weights of the linears that are prepared are constant.
type linearMachine struct {
	device.Machine
	constant *[]bool
}

type linearWorld struct {
	device.World
	constant *[]bool
}

type linearDevice struct {
	device.Device
	constant *[]bool
}

func (m linearMachine) Open(ctx context.Context, ranks int) (device.World, error) {
	w, err := m.Machine.Open(ctx, ranks)
	return linearWorld{w, m.constant}, err
}

func (w linearWorld) Device(rank int) device.Device {
	return linearDevice{w.World.Device(rank), w.constant}
}

func (d linearDevice) Prepare(k device.Kernel) (device.Launch, error) {
	if op, ok := k.Op.(device.Linear); ok {
		*d.constant = append(*d.constant, op.Constant)
	}
	return d.Device.Prepare(k)
}

// TestConstantWeights checks in which plans a linear may read a weight in a device tensor before the previous kernel
// has ended. The weight must be a parameter that is not updated, and the first kernel of the stream must not be a
// kernel of a collective, because such a kernel may begin before the caller's work has ended.
func TestConstantWeights(t *testing.T) {
	for name, c := range map[string]struct {
		inout, resident bool
		first           func(b *builder, x plan.Ref)
		want            bool
	}{
		"after another kernel": {false, true, func(b *builder, x plan.Ref) { b.compute(0, "main", ir.OpNeg, x, x) },
			true},
		"the first kernel": {false, true, func(*builder, plan.Ref) {}, true},
		"after a collective": {false, true, func(b *builder, x plan.Ref) {
			b.collective("main", b.channel("main"), ir.OpAllReduce,
				func(int) plan.CollPart { return plan.CollPart{In: x, Out: x} })
		}, false},
		"after a command without elements and a collective": {false, true, func(b *builder, x plan.Ref) {
			none := b.ref(0, x.Buf, 0, 3)
			b.compute(0, "main", ir.OpNeg, none, none)
			b.collective("main", b.channel("main"), ir.OpAllReduce, func(int) plan.CollPart {
				return plan.CollPart{In: x, Out: x}
			})
		}, false},
		"updated by the program": {true, true, func(*builder, plan.Ref) {}, false},
		"uploaded in each run":   {false, false, func(*builder, plan.Ref) {}, false},
	} {
		b := newBuilder(1, ir.F32)
		w := b.input("w", false, 3, 3)
		x := b.ref(0, b.input("x", false, 2, 3), 2, 3)
		moved := b.ref(0, b.buffer("%moved", plan.RoleValue, 2, 3), 2, 3)
		b.compute(0, "side", ir.OpNeg, moved, x) // on another stream, so that it does not matter
		b.after(0, "main", "side")
		c.first(b, moved)
		weight := b.ref(0, w, 3, 3)
		y := b.ref(0, b.result("y", false, 2, 3), 2, 3)
		b.compute(0, "main", ir.OpLinear, y, moved, weight)
		if c.inout {
			b.p.Inputs[0].Inout = true
			b.p.Outputs = append(b.p.Outputs, b.ioOf("w", w, false, []int64{3, 3}, []int64{3, 3}))
			b.compute(0, "main", ir.OpNeg, weight, weight)
		}
		b.output()
		var constant []bool
		m, s := tensorsOn(0)
		on := linearMachine{m, &constant}
		options := Options{}
		if c.resident {
			d := newDeviceTensor(t, s, loadOn(t, m, b.p, Options{}), "w")
			options.Options = image.Options{Resident: map[string]*resident.DeviceTensor{"w": d}}
		}
		prog := loadOn(t, on, b.p, options)
		if !slices.Equal(constant, []bool{c.want}) {
			t.Errorf("%s: constant weights of linears: %v, want %v\n%s", name, constant, c.want,
				fmt.Sprint(prog.im.Plan))
		}
	}
}
