package cuda

import (
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// scattered is a reduce_scatter of bf16 along an axis of [rows, 64] on each member.
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

// TestFewLaunch wants a launch that nobody tuned to have few blocks and, whatever
// the members, several stages under way.
func TestFewLaunch(t *testing.T) {
	for members := 2; members <= kernels.TeamMost; members++ {
		blocks, threads, unroll := fewLaunch(device.Tuning{}, members)
		if stages := kernels.FewStages(members, threads, unroll); blocks > 8 || threads%32 != 0 || stages < 4 {
			t.Errorf("%d members: %d blocks of %d threads with unroll %d have %d stages", members, blocks, threads, unroll, stages)
		}
	}
}

// TestFewGrids wants as many blocks as multiprocessors have shared memory for,
// however few threads they have.
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

// TestFewShares wants each element to be added up by one member, which gives it to
// all others.
func TestFewShares(t *testing.T) {
	for _, members := range []int{2, 3, 8} {
		for _, count := range []int64{1, 63, 64, 65, 1000, 4099} {
			r := &kernels.AllReduce{DType: ir.BF16, Count: count}
			for q := range members {
				r.In, r.Out = append(r.In, nvlib.Ptr(q+1)<<30), append(r.Out, nvlib.Ptr(q+1)<<32)
			}
			shareOut(r, int64(members))
			next := int64(0)
			for me := range members {
				own, gather := shareOf(r, me)
				if from := int64(own.In[0]-r.In[0]) / 2; from != next || own.Count*2 != gather.Run || own.Count*2 > r.Share*16 {
					t.Fatalf("%d of %d members adds up %d of %d from %d, after %d, and gives %d bytes", me, members, own.Count, count, from, next, gather.Run)
				}
				for q := range members {
					at := nvlib.Ptr(2 * next)
					if own.In[q] != r.In[q]+at || gather.Src[q] != r.Out[me]+at || gather.Dst[q] != r.Out[q]+at || gather.To>>q&1 != 0 != (q != me && own.Count > 0) {
						t.Fatalf("%d of %d members: %+v, %+v", me, members, own, gather)
					}
				}
				next += own.Count
			}
			if next != count {
				t.Errorf("%d members add up %d of %d", members, next, count)
			}
		}
	}
}

// TestFewDeclines looks at what is declined, and that the reason says so.
func TestFewDeclines(t *testing.T) {
	_, w, tm := noted(t, 2, 2)
	for what, tc := range map[string]struct {
		tune device.Tuning
		c    *device.Collective
		want string
	}{
		"sum":                     {device.Tuning{Algo: "few"}, summed(t, w, 1000, 0, 0), ""},
		"blocks":                  {device.Tuning{Algo: "move-few"}, scattered(t, w, 64, 0), ""},
		"large blocks":            {device.Tuning{Algo: "move-few", Threads: 1024}, scattered(t, w, 64, 0), ""},
		"gaps":                    {device.Tuning{Algo: "move-few"}, scattered(t, w, 64, 1), "do not lie together"},
		"shared memory":           {device.Tuning{Algo: "few", Threads: 1024, Unroll: 4}, summed(t, w, 1000, 0, 0), "more shared memory than there is"},
		"shared memory of blocks": {device.Tuning{Algo: "move-few", Threads: 1024, Unroll: 4}, scattered(t, w, 64, 0), "more shared memory than there is"},
		"threads":                 {device.Tuning{Algo: "move-few", Threads: 2048}, scattered(t, w, 64, 0), "2048 threads"},
	} {
		if err := tm.Supports(tc.tune, tc.c); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", what, err, tc.want)
		}
	}
}
