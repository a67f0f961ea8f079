package cuda

import (
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// normParts allocates each member's operands.
func normParts(t *testing.T, w *world, dt ir.DType, rows, width int64) []device.NormPart {
	t.Helper()
	var parts []device.NormPart
	for r := range w.Ranks() {
		view := func(shape ...int64) device.View {
			n := int64(1)
			for _, e := range shape {
				n *= e
			}
			mem, err := w.Device(r).Alloc(max(2*n*dt.Size(), 64), device.Shared)
			if err != nil {
				t.Fatal(err)
			}
			return device.View{Mem: mem, DType: dt, Shape: shape, Strides: strided.RowMajor(shape)}
		}
		parts = append(parts, device.NormPart{In: view(rows, width), Residual: view(rows, width), Weight: view(width),
			Sum: view(rows, width), Out: view(rows, width)})
	}
	return parts
}

// later returns v, beginning the given number of bytes later.
func later(v device.View, by int64) device.View {
	v.Off += by
	return v
}

// mostRows returns the largest number of rows for which an all_reduce is fused with the norm, for rows of the given
// number of packs.
func mostRows(members int, packs int64) int64 {
	return coll.NormLimitFor(members, packs).Rows
}

// TestNormDeclines checks operands for which the fused launch of an all_reduce and a norm is refused, and the errors.
func TestNormDeclines(t *testing.T) {
	_, w, team := noted(t, 2, 2)
	for what, c := range map[string]struct {
		rows, width int64
		dt          ir.DType
		change      func(p []device.NormPart) []device.NormPart
		unsupported bool
		Want        string
	}{
		"fine":       {rows: mostRows(2, 64), width: 512, dt: ir.BF16},
		"empty":      {rows: 0, width: 16, dt: ir.BF16},
		"empty rows": {rows: 3, width: 0, dt: ir.BF16, unsupported: true, Want: "operand 0 has gaps"},
		"in place": {rows: 3, width: 16, dt: ir.F32,
			change: func(p []device.NormPart) []device.NormPart {
				p[0].Sum, p[0].Out = p[0].In,
					p[0].Residual
				return p
			}},
		"large": {rows: mostRows(2, 64) + 1, width: 512, dt: ir.BF16, unsupported: true,
			Want: "three launches are faster"},
		"wide":     {rows: 1, width: 16392, dt: ir.BF16, unsupported: true, Want: "rows of 16392 × bf16"},
		"f64":      {rows: 2, width: 16, dt: ir.F64, unsupported: true, Want: "any bits may be data"},
		"odd rows": {rows: 2, width: 12, dt: ir.BF16, unsupported: true, Want: "they are multiples of 16 bytes"},
		"unaligned": {rows: 2, width: 16, dt: ir.BF16, unsupported: true, Want: "operand 1 has gaps",
			change: func(p []device.NormPart) []device.NormPart { p[1].Residual.Off = 8; return p }},
		"gaps": {rows: 2, width: 16, dt: ir.BF16, unsupported: true, Want: "operand 4 has gaps",
			change: func(p []device.NormPart) []device.NormPart { p[1].Out.Strides = []int64{24, 1}; return p }},
		"across": {rows: 4, width: 16, dt: ir.BF16,
			change: func(p []device.NormPart) []device.NormPart { p[0].Sum = p[0].In; p[0].Sum.Off = 32; return p }},
		"many across": {rows: 300, width: 16, dt: ir.BF16, unsupported: true, Want: "more rows than run at once",
			change: func(p []device.NormPart) []device.NormPart { p[0].Sum = p[0].In; p[0].Sum.Off = 32; return p }},
		"unstored": {rows: 300, width: 2048, dt: ir.BF16,
			change: func(p []device.NormPart) []device.NormPart { p[0].Sum = device.View{}; return p }},
		"sum elsewhere": {rows: 2, width: 16, dt: ir.BF16, Want: "member 1",
			change: func(p []device.NormPart) []device.NormPart { p[1].Sum.Mem = nil; return p }},
		"out across": {rows: 300, width: 2048, dt: ir.BF16, unsupported: true, Want: "more rows than run at once",
			change: func(p []device.NormPart) []device.NormPart {
				p[0].Sum, p[0].Out = device.View{}, later(p[0].In, 4096)
				return p
			}},
		"one result": {rows: 4, width: 16, dt: ir.BF16, unsupported: true, Want: "a result overlaps",
			change: func(p []device.NormPart) []device.NormPart { p[0].Sum = p[0].Out; return p }},
		"over weights": {rows: 1, width: 16, dt: ir.BF16, unsupported: true, Want: "a result overlaps",
			change: func(p []device.NormPart) []device.NormPart { p[1].Out.Mem = p[1].Weight.Mem; return p }},
		"integers": {rows: 1, width: 16, dt: ir.I32, Want: "i32[1 16] with weights [16]"},
		"other weights": {rows: 1, width: 16, dt: ir.BF16, Want: "with weights [8]",
			change: func(p []device.NormPart) []device.NormPart { p[1].Weight.Shape = []int64{8}; return p }},
		"other shapes": {rows: 2, width: 16, dt: ir.BF16, Want: "where member 0 adds up",
			change: func(p []device.NormPart) []device.NormPart { p[1].In.Shape = []int64{1, 16}; return p }},
		"other types": {rows: 2, width: 16, dt: ir.BF16, Want: "operand 1 is f16",
			change: func(p []device.NormPart) []device.NormPart { p[1].Residual.DType = ir.F16; return p }},
		"a part missing": {rows: 2, width: 16, dt: ir.BF16, Want: "1 parts for a team of 2",
			change: func(p []device.NormPart) []device.NormPart { return p[:1] }},
		"elsewhere": {rows: 2, width: 16, dt: ir.BF16, Want: "member 1",
			change: func(p []device.NormPart) []device.NormPart { p[1].In.Mem = nil; return p }},
	} {
		parts := normParts(t, w, c.dt, c.rows, c.width)
		if c.change != nil {
			parts = c.change(parts)
		}
		n := &device.Norm{Eps: 1e-5, Parts: parts}
		err := team.SupportsNorm(n)
		_, err2 := team.PrepareNorm(n)
		if (err == nil) != (c.Want == "") || err != nil &&
			(!strings.Contains(err.Error(), c.Want) || errors.Is(err, device.ErrUnsupported) != c.unsupported ||
				err2 == nil || err2.Error() != err.Error()) || err == nil && err2 != nil {
			t.Errorf("%s: got %v and %v, want %q", what, err, err2, c.Want)
		}
	}
	n := &device.Norm{Parts: normParts(t, w, ir.BF16, 2, 16)}
	if err := team.Close(); err != nil {
		t.Error(err)
	}
	if err := team.SupportsNorm(n); err == nil {
		t.Error("a closed team accepts a sum")
	}
}

// TestNormLaunch checks the fused launch of an all_reduce and a norm: on each member a thread block for each row of 16
// KiB, with a thread for each pack.
func TestNormLaunch(t *testing.T) {
	l, w, team := noted(t, 4, 4)
	l.got = nil
	ls, err := team.PrepareNorm(&device.Norm{Eps: 1e-5, Parts: normParts(t, w, ir.BF16, 1, 8192)})
	if err != nil || len(ls) != 4 || len(l.got) != 4 {
		t.Fatalf("%d launches, %d kernels, error %v", len(ls), len(l.got), err)
	}
	for i, m := range l.got {
		if m.Body != "reduceNorm<bf16, 4, 1>" || m.Blocks != 1 || m.Threads != 1024 || m.Team.Rank != i ||
			ls[i] == nil {
			t.Errorf("member %d: %+v", i, m)
		}
	}
	ls, err = team.PrepareNorm(&device.Norm{Eps: 1e-5, Parts: normParts(t, w, ir.BF16, 0, 8192)})
	if err != nil || len(ls) != 4 || ls[0] != nil || len(l.got) != 4 {
		t.Errorf("without rows: %v, %v, %d kernels", ls, err, len(l.got))
	}
}

// TestNormReduced checks the add and norm after an all_reduce that has completed: for any number of rows they are one
// launch on each member, which needs no memory of the team. This launch is refused if a row's result overlaps another
// row's operand.
func TestNormReduced(t *testing.T) {
	l, w, team := noted(t, 4, 4)
	l.got = nil
	n := &device.Norm{Eps: 1e-5, Parts: normParts(t, w, ir.BF16, 200, 8192), Reduced: true}
	before := team.Bytes()
	if _, err := team.PrepareNorm(n); err != nil || len(l.got) != 4 || team.Bytes() != before {
		t.Fatalf("%d kernels, %d bytes, %v", len(l.got), team.Bytes()-before, err)
	}
	for i, m := range l.got {
		if m.Body != "addNorm<bf16, 1>" || m.Blocks != coll.NormRoom(team, 1024) || m.Threads != 1024 {
			t.Errorf("member %d: %+v", i, m)
		}
	}
	n.Parts = normParts(t, w, ir.BF16, 3, 8192)
	n.Parts[1].Sum = n.Parts[1].In
	n.Parts[1].Sum.Off = 16384
	if err := team.SupportsNorm(n); !errors.Is(err, device.ErrUnsupported) {
		t.Errorf("a result that overlaps an operand: %v", err)
	}
}

// TestNormLimits checks that NormLimits is applied as it is written, and that larger sizes are not fused.
func TestNormLimits(t *testing.T) {
	for i, l := range coll.NormLimits {
		switch {
		case l.Rows == 0:
			t.Errorf("limit %+v is empty", l)
		case i > 0 && (l.Members < coll.NormLimits[i-1].Members || l.Members == coll.NormLimits[i-1].Members &&
			l.Packs <= coll.NormLimits[i-1].Packs):
			t.Errorf("limit %+v is out of order: limits must ascend by members, then by packs", l)
		}
	}
	for _, c := range []struct{ members, packs int64 }{{5, 1}, {8, 256}, {4, 4096}} {
		if l := coll.NormLimitFor(int(c.members), c.packs); l != (coll.NormLimit{}) {
			t.Errorf("%d members, %d packs: %+v", c.members, c.packs, l)
		}
	}
	for _, ranks := range []int{2, 3, 4} {
		l, w, team := noted(t, ranks, ranks)
		for _, packs := range []int64{1, 256, 512, 1024, 2048} {
			for _, rows := range []int64{1, mostRows(ranks, packs)} {
				if rows == 0 || rows > mostRows(ranks, packs) {
					continue
				}
				l.got = nil
				ls, err := team.PrepareNorm(&device.Norm{Eps: 1e-5, Parts: normParts(t, w, ir.BF16, rows, 8*packs)})
				if err != nil || len(l.got) != ranks ||
					int64(l.got[0].Blocks) != min(rows, int64(coll.NormRoom(team, packs))) {
					t.Errorf("%d members, %d rows of %d packs: %d kernels, %v", ranks, rows, packs, len(l.got), err)
				}
				for _, x := range ls {
					x.Release()
				}
			}
		}
	}
	// If there are more rows than blocks that run at once, a block processes several rows.
	l, w, team := noted(t, 2, 2)
	for _, s := range team.w.sites {
		s.gpu.SMs = 1
	}
	l.got = nil
	if _, err := team.PrepareNorm(&device.Norm{Parts: normParts(t, w, ir.BF16, 9, 8192)}); err != nil ||
		l.got[0].Blocks != coll.NormRoom(team, 1024) || l.got[0].Blocks >= 9 {
		t.Errorf("9 rows, %d blocks run at once: %d kernels, %v", coll.NormRoom(team, 1024), len(l.got), err)
	}
}

// TestNormAhead checks that exactly the needed kernel is compiled ahead, and that nothing is reserved.
func TestNormAhead(t *testing.T) {
	l, w := seen(t, 2, 2)
	team := teamOf(t, w, "main")
	for _, c := range []struct{ rows, Want int64 }{{1, 1}, {0, 0}, {mostRows(2, 1024) + 1, 0}} {
		n := &device.Norm{Eps: 1e-5, Parts: normParts(t, w, ir.BF16, c.rows, 8192)}
		l.forget()
		before := team.Bytes()
		team.PrepareNormAhead(n)
		if len(l.early) != int(c.Want) || len(l.late) > 0 || team.Bytes() != before {
			t.Errorf("%d rows: %v predicted, %v requested for launches, %d bytes reserved", c.rows, l.early, l.late,
				team.Bytes()-before)
		}
		if _, err := team.PrepareNorm(n); (err == nil) != (c.rows <= mostRows(2, 1024)) {
			t.Errorf("%d rows: %v", c.rows, err)
		}
		for k := range l.late {
			if !l.early[k] {
				t.Errorf("%d rows: %s was not predicted", c.rows, k)
			}
		}
	}
}

// TestNormInPrograms loads programs and checks that each of their all_reduces is fused with the add and norm after it,
// up to the size at which that is slower.
func TestNormInPrograms(t *testing.T) {
	decode, err := os.ReadFile("../../../examples/decode.hkt")
	if err != nil {
		t.Fatal(err)
	}
	most := mostRows(4, 32) // rows of 512 bytes
	for _, c := range []struct {
		text string
		dims map[string]int64
		opts exec.Options
		Want int
	}{
		{string(decode), nil, exec.Options{}, 4},
		{string(decode), map[string]int64{"T": 1}, exec.Options{}, 4},
		{string(decode), map[string]int64{"T": most, "H": 128}, exec.Options{}, 4},
		{string(decode), map[string]int64{"T": most + 1, "H": 128}, exec.Options{}, 0},
		{string(decode), map[string]int64{"H": 18}, exec.Options{}, 0}, // rows of 72 bytes
		{string(decode), map[string]int64{"T": 0}, exec.Options{}, 0},
		{string(decode), nil, exec.Options{Options: image.Options{Algorithm: "ll"}}, 0},
		{string(decode), nil, exec.Options{Options: image.Options{Fixed: true}}, 0},
		{tails, nil, exec.Options{}, 32},
		{strings.Replace(tails, "all_reduce %part", "all_reduce %a", 1), map[string]int64{"P": 4, "T": 4, "H": 1024},
			exec.Options{}, 32},
		{strings.Replace(tails, "over=tp, op=sum", "over=tp, op=sum, algorithm=ll", 1), nil, exec.Options{}, 0},
		{strings.Replace(tails, "over=tp, op=sum", "over=tp, op=sum, ctas=8", 1), nil, exec.Options{}, 0},
	} {
		p := planOf(t, c.text, c.dims)
		if n := len(normsOf(t, p, c.opts)); n != p.Ranks*c.Want {
			t.Errorf("%s, %v, %+v: %d fused launches on %d ranks, want %d on each", p.Func, c.dims, c.opts, n, p.Ranks,
				c.Want)
		}
	}
}

// lastLayer is a program in whose plan %z begins before the operand of the all_reduce and overlaps it.
const lastLayer = `dim P = 2
dim T = 512
mesh tp[P]
func last(%x: bf16[T, 2048], %up: bf16[6144/tp, 2048], %down: bf16[2048, 6144/tp], %w: bf16[2048]) -> bf16[T, 2048] {
  %b = rms_norm %x, %w
  %g = linear %b, %up
  %u = linear %b, %up
  %m = mul (silu %g), %u
  %d: bf16[T, 2048] = linear %m, %down
  %z = add %x, %d
  %n = rms_norm %z, %w
  return %n
}
`

// TestNormUnstored checks that the last all_reduce of a program is fused with the add and the norm, for more rows than
// run at once. The result of the add overlaps the operand of the all_reduce at another address, but only the norm reads
// that result, so it is not stored. If the program returns it, the commands are not fused.
func TestNormUnstored(t *testing.T) {
	returned := strings.NewReplacer("-> bf16[T, 2048]", "-> (bf16[T, 2048], bf16[T, 2048])",
		"return %n", "return %n, %z").Replace(lastLayer)
	for _, c := range []struct {
		text string
		Want int // number of fused launches on each rank
	}{{lastLayer, 1}, {returned, 0}} {
		p := planOf(t, c.text, nil)
		in := &p.Buffers[p.Colls[0].Parts[0].In.Buf]
		if !slices.ContainsFunc(p.Buffers, func(z plan.Buffer) bool {
			return z.Name == "%z" && z.Offset < in.Offset && in.Offset < z.Offset+z.Bytes
		}) {
			t.Errorf("%s: %%z does not begin before the operand of the all_reduce, or does not overlap it", c.text)
		}
		norms := normsOf(t, p, exec.Options{})
		if len(norms) != p.Ranks*c.Want {
			t.Errorf("%s: %d fused launches on %d ranks, want %d on each", c.text, len(norms), p.Ranks, c.Want)
		}
		for _, m := range norms {
			if m.Blocks >= 512 || m.Words[3] != 0 { // the fourth word is the address of the sum
				t.Errorf("%s: %d blocks, arguments %#x", c.text, m.Blocks, m.Words[:5])
			}
		}
	}
}

// normsOf loads a plan on four GPUs and returns its fused launches of all_reduce and norm.
func normsOf(t *testing.T, p *plan.Plan, o exec.Options) (norms []kernels.Meeting) {
	t.Helper()
	t.Setenv("HOCKET_CACHE", t.TempDir())
	l := &meetings{GPU: fakedriver.New(t, 4)}
	sys := system(l.GPU)
	for _, g := range sys.GPUs {
		g.SMs = 132
	}
	loaded, err := exec.Load(t.Context(), newMachine(sys, Options{Kernels: l}), p, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := loaded.Close(); err != nil {
		t.Error(err)
	}
	return slices.DeleteFunc(l.got, func(m kernels.Meeting) bool { return !strings.HasPrefix(m.Body, "reduceNorm<") })
}

// TestNormLayouts plans layers of many sizes, and checks that their all_reduces are fused with norms. The planner may
// place tensors so that results overlap operands; this must not prevent fusion.
func TestNormLayouts(t *testing.T) {
	decode, err := os.ReadFile("../../../examples/decode.hkt")
	if err != nil {
		t.Fatal(err)
	}
	across := 0
	rng := rand.New(rand.NewPCG(1, 2))
	for range 40 {
		dims := map[string]int64{"T": 1 + rng.Int64N(6), "H": 16 * (1 + rng.Int64N(20)), "F": 4 * (1 + rng.Int64N(300)),
			"S": rng.Int64N(60), "KV": 4 * (1 + rng.Int64N(2)), "D": 4 * (1 + rng.Int64N(10))}
		norms := normsOf(t, planOf(t, string(decode), dims), exec.Options{})
		if len(norms) != 4*4 {
			t.Errorf("%v: %d fused launches, want 16", dims, len(norms))
		}
		for _, m := range norms {
			if read := m.Words[len(m.Words)-2]; read != 0 {
				across++
			}
		}
	}
	t.Logf("%d launches with results that overlap operands at another address", across)
	if across == 0 {
		t.Error("no layout had a result that overlaps an operand at another address")
	}
}

func planOf(t *testing.T, text string, dims map[string]int64) *plan.Plan {
	t.Helper()
	p, err := unitOf(t, "test.hkt", text, "").Plan(ir.Binding{Dims: dims})
	if err != nil {
		t.Fatal(err)
	}
	return p
}
