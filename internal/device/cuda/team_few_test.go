package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/device/devicetest"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// scattered returns a reduce_scatter of bf16 along an axis of [rows, 64].
func scattered(t *testing.T, w *world, rows int64, axis int) *device.Collective {
	t.Helper()
	c := &device.Collective{Op: ir.OpReduceScatter, Red: ir.Sum, Axis: axis}
	for r := range w.Ranks() {
		view := func(shape []int64) device.View {
			m, err := w.Device(r).Alloc(2*shape[0]*shape[1], device.Shared)
			if err != nil {
				t.Fatal(err)
			}
			return device.View{Mem: m, DType: ir.BF16, Shape: shape, Strides: []int64{shape[1], 1}}
		}
		out := []int64{rows, 64}
		out[axis] /= int64(w.Ranks())
		c.Parts = append(c.Parts, device.Part{In: view([]int64{rows, 64}), Out: view(out), Reads: true, Writes: true})
	}
	return c
}

// TestFewLaunch checks that an untuned SM-limited launch has few blocks and, for any number of members, several stages
// in flight.
func TestFewLaunch(t *testing.T) {
	for members := 2; members <= kernels.TeamMost; members++ {
		blocks, threads, unroll := coll.SMLimitedLaunch(device.Tuning{}, members)
		for _, c := range []struct{ shared, least int }{{227 << 10, 4}, {163 << 10, 4}, {99 << 10, 2}} { // of Hopper, A100 and L40S
			if stages := kernels.SMLimitedStages(c.shared, members, threads, unroll); blocks > 8 || threads%32 != 0 || stages < c.least {
				t.Errorf("%d members: %d blocks of %d threads with unroll %d have %d stages in %d bytes", members, blocks, threads, unroll, stages, c.shared)
			}
		}
	}
}

// TestFewShared checks that a thread block of an SM-limited kernel uses no more shared memory than the device with the
// smallest limit permits, and that the kernel is refused if two stages do not fit.
func TestFewShared(t *testing.T) {
	l, w, tm := noted(t, 2, 2)
	for _, c := range []struct {
		algo string
		c    *device.Collective
	}{{"few", summed(t, w, 1<<20, 0, 0)}, {"move-few", scattered(t, w, 1<<14, 0)}} {
		for shared, want := range map[int]int{227 << 10: 192 << 10, 163 << 10: 160 << 10, 99 << 10: 96 << 10, 48 << 10: 0} {
			l.got, w.sites[1].gpu.BlockShared = nil, shared
			tune := device.Tuning{Algo: c.algo, Threads: 512, Unroll: 2}
			if err := tm.Supports(tune, c.c); (err == nil) != (want > 0) || err != nil && !errors.Is(err, device.ErrUnsupported) {
				t.Errorf("%s with %d bytes: %v", c.algo, shared, err)
			}
			if want == 0 {
				continue
			}
			if _, err := tm.Prepare(tune, c.c); err != nil {
				t.Fatal(err)
			}
			for i, m := range l.got {
				if m.Shared != want {
					t.Errorf("%s with %d bytes available: member %d uses %d bytes", c.algo, shared, i, m.Shared)
				}
			}
		}
	}
}

// TestFewGrids checks that an SM-limited kernel has no more thread blocks than there are multiprocessors with free
// shared memory, however few threads the blocks have.
func TestFewGrids(t *testing.T) {
	l, w, tm := noted(t, 2, 4)
	for _, c := range []struct {
		algo string
		c    *device.Collective
	}{{"few", summed(t, w, 1<<20, 0, 0)}, {"move-few", scattered(t, w, 1<<14, 0)}} {
		for blocks, want := range map[int]int{0: 8, 4: 4, 200: 66} {
			l.got = nil
			launches, err := tm.Prepare(device.Tuning{Algo: c.algo, Blocks: blocks, Threads: 64}, c.c)
			if err != nil {
				t.Fatal(err)
			}
			if len(l.got) != len(tm.members) {
				t.Errorf("%s, %d blocks: %d kernels for %d members", c.algo, blocks, len(l.got), len(tm.members))
			}
			for i, m := range l.got {
				if m.Blocks != want || m.Threads != 64 || m.Shared < 64*4*16 {
					t.Errorf("%s, %d blocks: member %d: %d blocks of %d with %d bytes", c.algo, blocks, i, m.Blocks, m.Threads, m.Shared)
				}
			}
			for _, x := range launches {
				x.Release()
			}
		}
	}
}

// TestFewHosts checks that an SM-limited kernel transfers results through host memory if measurements showed a benefit.
// These results consist of whole tiles that are all written before the last tiles of the launch.
func TestFewHosts(t *testing.T) {
	for _, c := range []struct {
		members, blocks int
		count           int64
		readers         int64
	}{{2, 8, 32 << 20, 0}, {4, 8, 32 << 20, 2}, {4, 8, 1 << 20, 0}, {4, 4, 32 << 20, 0}, {4, 8, 16<<20 + 5, 2}, {8, 8, 32 << 20, 0}} {
		_, threads, unroll := coll.SMLimitedLaunch(device.Tuning{}, c.members)
		r := &kernels.AllReduce{DType: ir.BF16, Count: c.count, Threads: threads, Unroll: unroll, Blocks: c.blocks, In: make([]nvlib.Ptr, c.members)}
		coll.ShareOut(r, int64(c.members))
		host := coll.SMLimitedTiles(coll.MeasuredParts(), r)
		if host.Readers != c.readers || (host.Split > 0) != (c.readers > 0) {
			t.Errorf("%+v: %d tiles per block, %d blocks that read", c, host.Split, host.Readers)
		}
		last := ((host.Split-1)*host.Writers + 1) * (int64(c.blocks) - host.Readers) * kernels.SMLimitedTile(threads)
		if least := c.count/8 - int64(c.members-1)*r.Share; host.Split > 0 && last > least*9/10 {
			t.Errorf("%+v: the last tile ends at pack %d of %d", c, last, least)
		}
	}
}

// TestSweepFew measures which part of an SM-limited all_reduce should be transferred through host memory, and how many
// blocks should read from it. The test uses the first number of ranks in reduceSweepWorlds. Like TestSweepAllReduce, it
// runs only if reduceSweep is set.
func TestSweepFew(t *testing.T) {
	worlds, each := sweepRanks(t, 60)
	ranks := worlds[0]
	s := newReduceSweep(t, ranks, false, time.Now())
	until := time.Now().Add(each)
	parts := coll.MeasuredParts()
	s.w.m.opts.hostParts = &parts
	one := func(mib, permille, readers int64, tune device.Tuning) {
		if time.Now().After(until) {
			return
		}
		parts.SMLimited = func(int, int64) (int64, int64) { return permille, readers }
		us, err := s.time(tune, mib<<20)
		fmt.Printf("all_reduce of %d, %2d MiB %s %dx%d/%d, %d ‰ by host, read by %d: %.2f %v\n", ranks, mib, tune.Algo, tune.Blocks, tune.Threads, tune.Unroll, permille, readers, us, err)
	}
	for _, mib := range []int64{64, 32, 16} {
		one(mib, 0, 0, device.Tuning{Algo: "push", Blocks: 132, Threads: 1024, Unroll: 1})
		one(mib, 0, 0, device.Tuning{Algo: "push-host", Blocks: 132, Threads: 1024})
		for _, b := range []int{8, 4, 6, 7, 12, 16} {
			one(mib, 0, 0, device.Tuning{Algo: "few", Blocks: b})
		}
		for _, p := range []int64{50, 80, 110, 140, 170, 200, 230, 260} {
			for _, readers := range []int64{1, 2, 3} {
				one(mib, p, readers, device.Tuning{Algo: "few", Blocks: 8})
			}
		}
		for _, p := range []int64{0, 110, 170, 230} {
			one(mib, p, min(p, 2), device.Tuning{Algo: "few", Blocks: 8, Threads: 1024, Unroll: 1})
			one(mib, p, min(p, 2), device.Tuning{Algo: "few", Blocks: 8, Threads: 512, Unroll: 2})
			one(mib, p, min(p, 2), device.Tuning{Algo: "few", Blocks: 8, Threads: 256, Unroll: 4})
			one(mib, p, min(p, 4), device.Tuning{Algo: "few", Blocks: 16})
		}
	}
}

// TestFewDeclines checks which tunings and operands SM-limited kernels refuse, and the reasons.
func TestFewDeclines(t *testing.T) {
	_, w, tm := noted(t, 2, 2)
	for what, tc := range map[string]struct {
		tune device.Tuning
		c    *device.Collective
		Want string
	}{
		"sum":                     {device.Tuning{Algo: "few"}, summed(t, w, 1000, 0, 0), ""},
		"blocks":                  {device.Tuning{Algo: "move-few"}, scattered(t, w, 64, 0), ""},
		"large blocks":            {device.Tuning{Algo: "move-few", Threads: 1024}, scattered(t, w, 64, 0), ""},
		"gaps":                    {device.Tuning{Algo: "move-few"}, scattered(t, w, 64, 1), "not contiguous"},
		"shared memory":           {device.Tuning{Algo: "few", Threads: 1024, Unroll: 4}, summed(t, w, 1000, 0, 0), "more shared memory than there is"},
		"shared memory of blocks": {device.Tuning{Algo: "move-few", Threads: 1024, Unroll: 4}, scattered(t, w, 64, 0), "more shared memory than a block has"},
		"threads":                 {device.Tuning{Algo: "move-few", Threads: 2048}, scattered(t, w, 64, 0), "2048 threads"},
	} {
		if err := tm.Supports(tc.tune, tc.c); (err == nil) != (tc.Want == "") || err != nil && !strings.Contains(err.Error(), tc.Want) {
			t.Errorf("%s: got %v, want %q", what, err, tc.Want)
		}
	}
}

// TestFewBits checks that sums of random bits, including NaNs, infinities and subnormal numbers, are the same by
// SM-limited kernels as by other kernels.
func TestFewBits(t *testing.T) {
	m := real(t, Options{TeamTimeout: 4 * time.Second})
	devicetest.NeedGPUs(t, len(m.sys.GPUs), 2, nil)
	w, err := m.Open(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	r := newTeamRig(t, w, "few", upTo(2))
	rng := rand.New(rand.NewPCG(1, 2))
	bits := make([]byte, 1<<20)
	for _, dt := range []ir.DType{ir.BF16, ir.F16, ir.F32} {
		for range 4 {
			var got [2][]byte
			var ins [2][]byte
			for i := range ins {
				for k := range bits {
					bits[k] = byte(rng.Uint32())
				}
				ins[i] = bytes.Clone(bits)
			}
			for k, algo := range []string{"few", "pull"} {
				c := teamCase{op: ir.OpAllReduce, red: ir.Sum, dt: dt, shape: []int64{int64(len(bits)) / dt.Size()}, algo: algo}
				if !r.add(c, device.Tuning{}) {
					t.Fatalf("%s of %s is declined", algo, dt)
				}
				rc := r.cases[len(r.cases)-1]
				for i, member := range r.members {
					r.must(member.Stream.Upload(rc.parts[i].In, ins[i]))
				}
				for i, l := range rc.launches {
					r.must(r.members[i].Stream.Launch(l))
				}
				both := [2][]byte{make([]byte, len(bits)), make([]byte, len(bits))}
				for i, member := range r.members {
					r.must(member.Stream.Download(both[i], rc.parts[i].Out))
				}
				r.must(r.w.Sync(t.Context()))
				if !bytes.Equal(both[0], both[1]) {
					t.Errorf("%s: results by %s differ in bits", dt, algo)
				}
				got[k] = both[0]
				r.drop()
			}
			if !bytes.Equal(got[0], got[1]) {
				for i := range got[0] {
					if got[0][i] != got[1][i] {
						at := i &^ int(dt.Size()-1)
						t.Fatalf("%s: the sum of % x and % x is % x, and was % x", dt, ins[0][at:at+int(dt.Size())], ins[1][at:at+int(dt.Size())], got[0][at:at+int(dt.Size())], got[1][at:at+int(dt.Size())])
					}
				}
			}
		}
	}
	r.close()
	r.must(w.Close())
}
