package calls

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// stub is a world of two ranks that records its calls. This process has the second rank.
type stub struct {
	device.Calls
	did       []string
	capturing bool
	keeping   int   // number of calls of Keep that have not ended
	changed   bool  // whether the state of the caller's thread has changed outside of Keep
	loose     bool  // whether operands may be loose
	norms     int64 // largest number of rows of a norm that one launch supports
	taken     uintptr
	bytes     int64         // of it
	released  int           // number of calls that were released
	parts     []device.Part // tuning and operands of the collective that was prepared last
}

func (s *stub) TeamAlgorithms() []device.Algorithm {
	return []device.Algorithm{{Name: "slow", Ops: device.Even}, {Name: "fast", Ops: device.Even}, {Name: "other", Ops: device.Even}}
}
func (s *stub) Adopt(at []uintptr, bytes int64) (all []device.Memory, err error) {
	for _, p := range at {
		if p%16 != 0 {
			return nil, device.ErrAddress
		}
		all = append(all, &stubMemory{at: p, bytes: bytes})
	}
	return all, nil
}
func (s *stub) Err() error { return nil }

// Keep lets Prepare and Capturing change the state of the caller's thread, until the returned function is called.
func (s *stub) Keep() func() {
	s.keeping++
	return func() { s.keeping-- }
}

// changes records that the state of the caller's thread changes, for wants.
func (s *stub) changes() { s.changed = s.changed || s.keeping == 0 }

func (s *stub) Close() error                    { return nil }
func (s *stub) note(format string, args ...any) { s.did = append(s.did, fmt.Sprintf(format, args...)) }
func (s *stub) Copy(stream, dst, src uintptr, bytes int64) error {
	s.note("copy %d bytes from %d to %d on %d", bytes, src, dst, stream)
	return nil
}

func (s *stub) Prepare(t device.Tuning, c *device.Collective, inPlace bool, tail [2]int64) (device.Call, error) {
	s.changes()
	p := c.Parts[1]
	loose := p.Reads && p.In.Mem == nil || p.Writes && p.Out.Mem == nil
	if t.Algo == "slow" || loose && !s.loose {
		return nil, fmt.Errorf("%s: %w", t.Algo, device.ErrUnsupported)
	}
	s.note("prepare %s of %v by %s, in place %v, tails %v, loose %v", c.Op, p.In.Shape, t.Algo, inPlace, tail, loose)
	s.parts = c.Parts
	return &stubCall{s}, nil
}

func (s *stub) PrepareNorm(n *device.Norm, sumIsResidual, outIsIn bool) (device.Call, error) {
	s.changes()
	rows, width := n.Parts[1].In.Shape[0], n.Parts[1].In.Shape[1]
	if width%8 != 0 || !n.Reduced && rows > s.norms {
		return nil, device.ErrUnsupported
	}
	s.note("prepare a norm of %d rows, sum is residual %v, out is in %v, reduced %v", rows, sumIsResidual, outIsIn,
		n.Reduced)
	return &stubCall{s}, nil
}

type stubCall struct{ s *stub }

func (c *stubCall) Do(stream uintptr, operands ...uintptr) error {
	c.s.note("do %v on %d", operands, stream)
	return nil
}
func (c *stubCall) Release() { c.s.released++ }

type stubDevice struct {
	device.Device
	s    *stub
	rank int
}

func (d *stubDevice) Alloc(bytes int64, kind device.MemKind) (device.Memory, error) {
	d.s.taken += 1 << 20
	d.s.bytes += bytes
	return &stubMemory{at: d.s.taken, bytes: bytes}, nil
}

type stubMemory struct {
	device.DefaultMemory
	at    uintptr
	bytes int64
}

func (m *stubMemory) Bytes() int64     { return m.bytes }
func (m *stubMemory) Free() error      { return nil }
func (m *stubMemory) Address() uintptr { return m.at }

// pair has only those methods of stub that the interface World contains.
type pair struct {
	device.World
	s *stub
}

func (w pair) Close() error                  { return nil }
func (w pair) Ranks() int                    { return 2 }
func (w pair) Local(rank int) bool           { return rank == 1 }
func (w pair) Device(rank int) device.Device { return &stubDevice{s: w.s, rank: rank} }

func (w pair) Transport() string                  { return "" }
func (w pair) HostShared() bool                   { return false }
func (w pair) TeamAlgorithms() []device.Algorithm { return w.s.TeamAlgorithms() }

func opened(s *stub) *Group {
	w := pair{s: s}
	return &Group{world: w, calls: s, rank: 1, made: map[key]*prepared{},
		isCapturing: func(uintptr) (bool, error) { s.changes(); return s.capturing, nil },
		dispatch:    comm.NewDispatch(w, device.Caps{}, nil, comm.Policy{})}
}

func (s *stub) wants(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(s.did, want) {
		t.Errorf("did\n%s\nwant\n%s", strings.Join(s.did, "\n"), strings.Join(want, "\n"))
	}
	s.did = nil
	if s.changed || s.keeping != 0 {
		t.Errorf("the state of the caller's thread was changed %t, and %d calls of Keep have not ended", s.changed, s.keeping)
	}
}

// TestLoose checks that a kind of call is prepared once, and then runs on operands at any address.
func TestLoose(t *testing.T) {
	s := &stub{loose: true}
	g := opened(s)
	do := func(c Call) {
		t.Helper()
		if err := g.Do(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	c := Call{Op: ir.OpAllReduce, Red: ir.Sum, DType: ir.BF16, Count: 64, Stream: 7, In: 4096, Out: 8192}
	do(c)
	s.wants(t, "prepare all_reduce of [64] by fast, in place false, tails [0 0], loose true", "do [4096 8192] on 7")
	c.In, c.Stream = 16384, 9
	do(c)
	s.wants(t, "do [16384 8192] on 9")
	c.In = c.Out
	do(c)
	s.wants(t, "prepare all_reduce of [64] by fast, in place true, tails [0 0], loose true", "do [8192 8192] on 9")
	c.In = 4098 // not a multiple of 16
	do(c)
	s.wants(t, "prepare all_reduce of [64] by fast, in place false, tails [2 0], loose true", "do [4098 8192] on 9")
	s.capturing = true
	do(c)
	s.wants(t, "do [4098 8192] on 9")
	c.Count = 128
	if err := g.Do(t.Context(), c); !errors.Is(err, ErrCapturing) ||
		!strings.Contains(err.Error(), "all_reduce of bf16[128] sum") {
		t.Errorf("an unprepared call while captured: %v", err)
	}
	s.wants(t)
}

// TestStaged checks that operands that no algorithm can use in place are copied through staging
// memory, which grows.
func TestStaged(t *testing.T) {
	s := &stub{}
	g := opened(s)
	c := Call{Op: ir.OpAllGather, DType: ir.F32, Count: 8, Stream: 7, In: 4096, Out: 8192}
	if err := g.Do(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	// Memory is allocated rank by rank: this process's blocks are the second and the fourth.
	s.wants(t, "prepare all_gather of [8] by fast, in place false, tails [0 0], loose false",
		"copy 32 bytes from 4096 to 2097152 on 7", "do [2097152 4194304] on 7",
		"copy 64 bytes from 4194304 to 8192 on 7")
	c.Count = 4
	if err := g.Do(t.Context(), c); err != nil || s.taken != 4<<20 {
		t.Errorf("%v, taken up to %d", err, s.taken)
	}
	s.did = nil
	// The root of a broadcast copies nothing out, the other rank copies nothing in.
	for root, want := range []string{"copy 16 bytes from 4194304 to 4096 on 7",
		"copy 16 bytes from 4096 to 2097152 on 7"} {
		c := Call{Op: ir.OpBroadcast, Root: root, DType: ir.F32, Count: 4, Stream: 7, In: 4096, Out: 4096}
		if err := g.Do(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if copies := slices.DeleteFunc(s.did,
			func(x string) bool { return !strings.HasPrefix(x, "copy") }); !slices.Equal(copies, []string{want}) {
			t.Errorf("broadcast from %d: %v, want %s", root, copies, want)
		}
		s.did = nil
	}
}

// TestEmpty checks that operands in memory of the group are used in place.
func TestEmpty(t *testing.T) {
	s := &stub{}
	g := opened(s)
	at, err := g.Empty(t.Context(), 1024)
	if err != nil || at != 2<<20 {
		t.Fatal(at, err)
	}
	c := Call{Op: ir.OpAllReduce, Red: ir.Max, DType: ir.F32, Count: 8, In: at + 64, Out: at + 64}
	if err := g.Do(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	s.wants(t, "prepare all_reduce of [8] by fast, in place true, tails [0 0], loose false",
		"do [2097216 2097216] on 0")
	c.In = at
	if err := g.Do(t.Context(), c); err != nil || !strings.HasPrefix(s.did[0], "prepare") {
		t.Errorf("a call at another address: %v, %v", s.did, err)
	}
}

// TestOwnBlock checks that the operand of an all_gather may be the rank's block of the result, and the result of a
// reduce_scatter the rank's block of the operand.
func TestOwnBlock(t *testing.T) {
	s := &stub{loose: true}
	g := opened(s)
	at, err := g.Empty(t.Context(), 1024)
	if err != nil {
		t.Fatal(err)
	}
	gather := Call{Op: ir.OpAllGather, DType: ir.F32, Count: 8, In: at + 64 + 32, Out: at + 64}
	if err := g.Do(t.Context(), gather); err != nil {
		t.Fatal(err)
	}
	s.wants(t, "prepare all_gather of [8] by fast, in place false, tails [0 0], loose false", "do [2097248 2097216] on 0")
	inPlace := func(whole, own func(device.Part) device.View) {
		t.Helper()
		for r, p := range s.parts {
			if a, b := whole(p).Off, own(p).Off; a != 64 || b != 64+32*int64(r) {
				t.Errorf("rank %d: the whole is at %d and the block at %d", r, a, b)
			}
		}
	}
	in, out := func(p device.Part) device.View { return p.In }, func(p device.Part) device.View { return p.Out }
	inPlace(out, in)
	scatter := Call{Op: ir.OpReduceScatter, Red: ir.Sum, DType: ir.F32, Count: 16, In: at + 64, Out: at + 64 + 32}
	if err := g.Do(t.Context(), scatter); err != nil {
		t.Fatal(err)
	}
	s.wants(t, "prepare reduce_scatter of [16] by fast, in place false, tails [0 0], loose false", "do [2097216 2097248] on 0")
	inPlace(in, out)
	gather.In, gather.Out = 64+32, 64 // in no area: through staging
	if err := g.Do(t.Context(), gather); err != nil {
		t.Fatal(err)
	}
	s.wants(t, "prepare all_gather of [8] by fast, in place false, tails [0 0], loose false",
		"copy 32 bytes from 96 to 4194304 on 0", "do [4194304 6291456] on 0", "copy 64 bytes from 6291456 to 64 on 0")
}

// TestAdopted checks that adopted memory is used in place, and so is memory adopted later at the
// same address.
func TestAdopted(t *testing.T) {
	s := &stub{}
	g := opened(s)
	if err := g.Adopt(t.Context(), []uintptr{1 << 30, 1<<31 + 4}, 256); !errors.Is(err, ErrInput) {
		t.Errorf("at an odd place: %v", err)
	}
	for range 2 {
		if err := g.Adopt(t.Context(), []uintptr{1 << 30, 1 << 31}, 256); err != nil {
			t.Fatal(err)
		}
		c := Call{Op: ir.OpAllReduce, Red: ir.Sum, DType: ir.F32, Count: 8, Stream: 3, In: 1<<31 + 32, Out: 1<<31 + 32}
		if err := g.Do(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		s.wants(t, "prepare all_reduce of [8] by fast, in place true, tails [0 0], loose false",
			fmt.Sprintf("do [%d %d] on 3", c.In, c.In))
	}
	if s.taken != 0 {
		t.Errorf("%d more bytes were allocated", s.taken)
	}
}

// TestNorm checks that a norm that one launch does not support becomes an all_reduce into the
// result, followed by one launch.
func TestNorm(t *testing.T) {
	s := &stub{loose: true, norms: 4}
	g := opened(s)
	n := Norm{DType: ir.BF16, Rows: 4, Width: 8, Stream: 7, In: 4096, Residual: 8192, Weight: 12288, Sum: 8192, Out: 16384}
	do := func(want ...string) {
		t.Helper()
		if err := g.DoNorm(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		s.wants(t, want...)
	}
	do("prepare a norm of 4 rows, sum is residual true, out is in false, reduced false",
		"do [4096 8192 12288 8192 16384] on 7")
	n.Rows = 5
	do("prepare a norm of 5 rows, sum is residual true, out is in true, reduced true",
		"prepare all_reduce of [40] by fast, in place false, tails [0 0], loose true", "do [4096 16384] on 7",
		"do [16384 8192 12288 8192 16384] on 7")
	s.capturing = true
	do("do [4096 16384] on 7", "do [16384 8192 12288 8192 16384] on 7")
	s.capturing = false
	n.Width = 4
	if err := g.DoNorm(t.Context(), n); !errors.Is(err, device.ErrUnsupported) {
		t.Errorf("rows of 8 bytes: %v", err)
	}
	s.wants(t)
}

func TestRefused(t *testing.T) {
	g := opened(&stub{loose: true})
	for name, c := range map[string]Call{
		"reduction":  {Op: ir.OpAllReduce, DType: ir.F32, Count: 1, In: 64, Out: 64},
		"type":       {Op: ir.OpAllGather, Count: 1, In: 64, Out: 128},
		"negative":   {Op: ir.OpAllGather, DType: ir.F32, Count: -1, In: 64, Out: 128},
		"no operand": {Op: ir.OpAllGather, DType: ir.F32, Count: 1, Out: 128},
		"unaligned":  {Op: ir.OpAllGather, DType: ir.F32, Count: 1, In: 66, Out: 128},
		"uneven":     {Op: ir.OpAllToAll, DType: ir.F32, Count: 3, In: 64, Out: 128},
		"root":       {Op: ir.OpBroadcast, DType: ir.F32, Count: 1, Root: 2, In: 64, Out: 64},
		"overlap":    {Op: ir.OpAllToAll, DType: ir.F32, Count: 8, In: 64, Out: 80},
		"in place":   {Op: ir.OpAllGather, DType: ir.F32, Count: 8, In: 64, Out: 64},
	} {
		if err := g.Do(t.Context(), c); !errors.Is(err, ErrInput) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := g.Do(t.Context(), Call{Op: ir.OpLinear}); !errors.Is(err, device.ErrUnsupported) {
		t.Errorf("no collective: %v", err)
	}
	if _, err := g.Empty(t.Context(), 0); !errors.Is(err, ErrInput) {
		t.Errorf("no bytes: %v", err)
	}
	n := Norm{DType: ir.BF16, Rows: 1, Width: 8, In: 16, Residual: 32, Weight: 48, Sum: 64, Out: 80}
	for name, spoil := range map[string]func(*Norm){
		"operand": func(n *Norm) { n.Weight = 0 }, "width": func(n *Norm) { n.Width = 0 },
		"type": func(n *Norm) { n.DType = 0 },
	} {
		bad := n
		spoil(&bad)
		if err := g.DoNorm(t.Context(), bad); !errors.Is(err, ErrInput) {
			t.Errorf("norm, %s: %v", name, err)
		}
	}
}
