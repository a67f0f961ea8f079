package comm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

func call(t testing.TB, s device.Stream, f func()) {
	t.Helper()
	if err := s.Call(f); err != nil {
		t.Fatal(err)
	}
}

// ring is a set of n ranks, each with a tensor to send to the next rank and a tensor to receive.
type ring struct {
	w       device.World
	streams []device.Stream
	src     []device.View
	dst     []device.View
	pairs   *Pairs
}

func newRing(t *testing.T, mode cpu.Mode, seed int64, n int, shape []int64) *ring {
	t.Helper()
	r := &ring{w: open(t, mode, seed, n)}
	for rank := range n {
		d := r.w.Device(rank)
		s, err := d.NewStream(device.StreamOptions{Name: "main"})
		if err != nil {
			t.Fatal(err)
		}
		r.streams = append(r.streams, s)
		for _, list := range []*[]device.View{&r.src, &r.dst} {
			m, err := d.Alloc(256, device.Shared)
			if err != nil {
				t.Fatal(err)
			}
			*list = append(*list, packed(m, 0, ir.I32, shape))
		}
	}
	pairs := make([]Pair, n)
	for i := range pairs {
		to := (i + 1) % n
		pairs[i] = Pair{SrcRank: i, DstRank: to, Src: r.src[i], Dst: r.dst[to]}
	}
	var err error
	if r.pairs, err = OpenPairs(r.w, pairs); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRingOfGroups(t *testing.T) {
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			for seed := range int64(30) {
				n := 1 + int(seed)%8
				r := newRing(t, mode, seed, n, []int64{3})
				var got [][]*tensor.Tensor
				groups := make([]*Group, n)
				for i, s := range r.streams {
					groups[i] = group(t, r.pairs, i, s, Post{Pair: i, Send: true}, Post{Pair: (i + n - 1) % n})
				}
				for run := range int64(3) {
					outs := make([]*tensor.Tensor, n)
					for i, s := range r.streams {
						x, _ := tensor.New(ir.I32, []int64{3})
						for e := range x.Len() {
							x.SetInt64(e, 100*run+10*int64(i)+e)
						}
						outs[i], _ = tensor.New(ir.I32, []int64{3})
						must(t, s.Upload(r.src[i], x.Data))
						must(t, groups[i].Issue(0, run))
						must(t, s.Download(outs[i].Data, r.dst[i]))
						src, dst := r.src[i].Mem, r.dst[i].Mem
						call(t, s, func() { src.Poison(0, 256); dst.Poison(0, 256) })
					}
					got = append(got, outs)
				}
				settle(t, r.w)
				for run, outs := range got {
					for i, out := range outs {
						from := (i + n - 1) % n
						want := []int32{int32(100*run + 10*from), int32(100*run + 10*from + 1), int32(100*run + 10*from + 2)}
						if !slices.Equal(out.Int32s(), want) {
							t.Fatalf("seed %d, run %d, rank %d: got %v, want %v", seed, run, i, out.Int32s(), want)
						}
					}
				}
			}
		})
	}
}

func group(t testing.TB, p *Pairs, rank int, s device.Stream, posts ...Post) *Group {
	t.Helper()
	g, err := p.Group(rank, s, posts)
	must(t, err)
	return g
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestFacingSends checks that two ranks that send to each other outside a group are reported as a deadlock without
// delay.
func TestFacingSends(t *testing.T) {
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			r := newRing(t, mode, 1, 2, []int64{3})
			for i, s := range r.streams {
				must(t, group(t, r.pairs, i, s, Post{Pair: i, Send: true}).Issue(0, 0))
				must(t, group(t, r.pairs, i, s, Post{Pair: 1 - i}).Issue(0, 0))
			}
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			var dead *device.Deadlock
			if err := r.w.Sync(ctx); !errors.As(err, &dead) || len(dead.Blocked) != 2 {
				t.Errorf("got %v, want a deadlock of two streams", err)
			}
		})
	}
}

// TestGroupOrder checks that the transfers of a group progress independently of each other. Rank 0 receives from rank
// 2, whose message waits for the message of rank 1, and from rank 1.
func TestGroupOrder(t *testing.T) {
	for seed := range int64(8) {
		w := open(t, cpu.Scheduled, seed, 3)
		var streams []device.Stream
		var views []device.View
		for rank := range 3 {
			s, err := w.Device(rank).NewStream(device.StreamOptions{})
			must(t, err)
			m, err := w.Device(rank).Alloc(256, device.Shared)
			must(t, err)
			streams, views = append(streams, s), append(views, packed(m, 0, ir.F32, []int64{2}))
		}
		p, err := OpenPairs(w, []Pair{
			{SrcRank: 2, DstRank: 0, Src: views[2], Dst: views[0]},
			{SrcRank: 1, DstRank: 0, Src: views[1], Dst: packed(views[0].Mem, 64, ir.F32, []int64{2})},
			{SrcRank: 1, DstRank: 2, Src: views[1], Dst: packed(views[2].Mem, 64, ir.F32, []int64{2})},
		})
		must(t, err)
		both := group(t, p, 0, streams[0], Post{Pair: 0}, Post{Pair: 1})
		for run := range int64(2) {
			must(t, both.Issue(0, run))
			for _, post := range []Post{{Pair: 1, Send: true}, {Pair: 2, Send: true}} {
				must(t, group(t, p, 1, streams[1], post).Issue(0, run))
			}
			for _, post := range []Post{{Pair: 2}, {Pair: 0, Send: true}} {
				must(t, group(t, p, 2, streams[2], post).Issue(0, run))
			}
		}
		settle(t, w)
	}
}

func TestPairsRefused(t *testing.T) {
	w := open(t, cpu.Concurrent, 0, 2)
	m, err := w.Device(0).Alloc(256, device.Shared)
	must(t, err)
	a := packed(m, 0, ir.F32, []int64{2, 3})
	for want, b := range map[string]device.View{
		"rank 0 sends f32, rank 1 receives i32":               packed(m, 0, ir.I32, []int64{2, 3}),
		"rank 0 sends 6 elements, rank 1 receives 5 elements": packed(m, 0, ir.F32, []int64{5}),
	} {
		if _, err := OpenPairs(w, []Pair{{SrcRank: 0, DstRank: 1, Src: a, Dst: b}}); err == nil || fmt.Sprint(err) != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
