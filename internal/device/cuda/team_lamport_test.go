package cuda

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/devicetest"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/ir"
)

var lamportNames = []string{"lamport", "lamportx2"}

// TestLamportRests checks the memory that lamport kernels receive data in. Before the first launch this memory is
// filled with the bit pattern that is never sent, whatever it contained before, and it is not among the regions that
// kernels clear.
func TestLamportRests(t *testing.T) {
	l := &meetings{GPU: fakedriver.New(t, 2)}
	m := newMachine(system(l.GPU), Options{Kernels: l})
	for range 2 { // the second world reuses the memory of the first
		w, err := m.Open(t.Context(), 2)
		if err != nil {
			t.Fatal(err)
		}
		tm := teamOf(t, w.(*world), "main")
		for _, name := range lamportNames {
			for _, count := range []int64{1000, 1 << 20} {
				launches, err := tm.Prepare(device.Tuning{Algo: name}, summed(t, w.(*world), count, 0, 0))
				if err != nil {
					t.Fatal(err)
				}
				for _, x := range launches {
					x.Release()
				}
				area := tm.regions["lamport"]
				for i, at := range area.At {
					for k, c := range cabi.Bytes(uintptr(at), int(area.Bytes)) {
						if c != 0xff {
							t.Fatalf("%s of %d: member %d: byte %d is %#x", name, count, i, k, c)
						}
					}
				}
			}
		}
		if tm.named != 0 {
			t.Errorf("%d regions are cleared when launch numbers wrap", tm.named)
		}
		for _, at := range tm.regions["lamport"].At {
			clear(cabi.Bytes(uintptr(at), int(tm.regions["lamport"].Bytes)))
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLamportDeclines checks that types in which every bit pattern is valid data are refused.
func TestLamportDeclines(t *testing.T) {
	_, w, tm := noted(t, 2, 2)
	for _, name := range lamportNames {
		for _, dt := range ir.ArithmeticTypes() {
			c := &device.Collective{Op: ir.OpAllReduce, Red: ir.Sum}
			for r := range w.Ranks() {
				m, err := w.Device(r).Alloc(100*dt.Size(), device.Shared)
				if err != nil {
					t.Fatal(err)
				}
				v := device.View{Mem: m, DType: dt, Shape: []int64{100}, Strides: []int64{1}}
				c.Parts = append(c.Parts, device.Part{In: v, Out: v, Reads: true, Writes: true})
			}
			err := tm.Supports(device.Tuning{Algo: name}, c)
			if want := dt == ir.F32 || dt == ir.F16 || dt == ir.BF16; (err == nil) != want || err != nil && !errors.Is(err, device.ErrUnsupported) {
				t.Errorf("%s of %s: %v", name, dt, err)
			}
		}
	}
}

// TestLamportBits reduces random bits, including NaNs with all payloads and many copies of the bit pattern that is
// never sent. The kernels must end, and all members must have the same result as by the algorithm pull.
func TestLamportBits(t *testing.T) {
	m := real(t, Options{TeamTimeout: 4 * time.Second, RanksPerGPU: 2})
	devicetest.NeedGPUs(t, len(m.sys.GPUs), 2, nil)
	ranks := 2 * min(len(m.sys.GPUs), 2)
	w, err := m.Open(t.Context(), ranks)
	if err != nil {
		t.Fatal(err)
	}
	r := newTeamRig(t, w, "lamport", upTo(ranks))
	rng := rand.New(rand.NewPCG(3, 4))
	for _, dt := range []ir.DType{ir.BF16, ir.F16, ir.F32} {
		for red := ir.Sum; red <= ir.Avg; red++ {
			ins := make([][]byte, ranks)
			for i := range ins {
				ins[i] = make([]byte, 1<<18)
				for k := 0; k < len(ins[i]); k += 4 {
					word := rng.Uint32()
					if rng.IntN(3) == 0 {
						word = kernels.Unsent
					}
					binary.LittleEndian.PutUint32(ins[i][k:], word)
				}
			}
			want := r.bitsBy("pull", dt, red, ins)
			for _, name := range lamportNames {
				for i, got := range r.bitsBy(name, dt, red, ins) {
					if !bytes.Equal(got, want[0]) {
						t.Errorf("%s of %s by %s: the result of member %d differs from pull", red, dt, name, i)
					}
				}
			}
		}
	}
	r.close()
	r.must(w.Close())
}

// bitsBy returns each member's result of an all_reduce of random bits by the given algorithm.
func (r *teamRig) bitsBy(algo string, dt ir.DType, red ir.Red, ins [][]byte) (got [][]byte) {
	r.t.Helper()
	c := teamCase{op: ir.OpAllReduce, red: red, dt: dt, shape: []int64{int64(len(ins[0])) / dt.Size()}, algo: algo}
	if !r.add(c, device.Tuning{}) {
		r.t.Fatalf("%s of %s by %s is declined", red, dt, algo)
	}
	rc := r.cases[len(r.cases)-1]
	for i, m := range r.members {
		r.must(m.Stream.Upload(rc.parts[i].In, ins[i]))
	}
	for i, l := range rc.launches {
		r.must(r.members[i].Stream.Launch(l))
	}
	for i, m := range r.members {
		got = append(got, make([]byte, len(ins[i])))
		r.must(m.Stream.Download(got[i], rc.parts[i].Out))
	}
	r.must(r.w.Sync(r.t.Context()))
	r.drop()
	return got
}
