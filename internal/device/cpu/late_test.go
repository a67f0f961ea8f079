package cpu

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// TestLongKernel checks that an attention kernel that would take many seconds stops soon after its context has ended,
// although it has only one head.
func TestLongKernel(t *testing.T) {
	for name, mode := range map[string]Mode{"concurrent": Concurrent, "scheduled": Scheduled} {
		t.Run(name, func(t *testing.T) {
			w, err := New(Options{Mode: mode}).Open(context.WithoutCancel(t.Context()), 1)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			d := w.Device(0)
			view := func(shape ...int64) device.View {
				mem, err := d.Alloc(4*shape[0]*shape[1]*shape[2], device.Private)
				if err != nil {
					t.Fatal(err)
				}
				return device.Dense(mem, ir.F32, shape)
			}
			const tokens, dh = 20000, 16
			k := device.Kernel{Op: device.Attention{Scale: 1}, Ins: []device.View{view(tokens, 1, dh), view(tokens, 1, dh), view(tokens, 1, dh)},
				Outs: []device.View{view(tokens, 1, dh)}}
			out := k.Outs[0].Mem.(*memory).Host()
			for i := range out {
				out[i] = 0xaa // a value that no computed element has
			}
			l, err := d.Prepare(k)
			if err != nil {
				t.Fatal(err)
			}
			s, err := d.NewStream(device.StreamOptions{})
			if err == nil {
				err = s.Launch(l)
			}
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := w.Sync(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
			if !bytes.Contains(out, slices.Repeat([]byte{0xaa}, 4*dh)) {
				t.Error("it computed all")
			}
		})
	}
}
