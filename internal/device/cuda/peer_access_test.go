package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/doctor"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/device/cuda/nccl"
	"hocket.example/hocket/internal/device/devicetest"
	"hocket.example/hocket/ir"
)

// all is true for all pairs of devices; some returns a function that is true for the given pairs.
func all(a, b int32) bool { return a != b }

func some(pairs ...[2]int32) func(a, b int32) bool {
	return func(a, b int32) bool { return slices.Contains(pairs, [2]int32{min(a, b), max(a, b)}) }
}

// TestFakeApart runs the device test suite on GPUs without peer access. The fake driver fails the test if a GPU uses
// memory to which it has no access.
func TestFakeApart(t *testing.T) {
	t.Parallel()
	for name, apart := range map[string]func(a, b int32) bool{"all": all,
		"some": some([2]int32{0, 1}, [2]int32{0, 3})} {
		if name == "all" && testing.Short() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			devicetest.Run(t, func(t *testing.T) device.Machine {
				f := fakedriver.New(t, 4)
				f.Plain, f.Reach.Apart = true, apart
				return newMachine(system(f), Options{Kernels: f})
			})
		})
	}
}

// TestReach checks each reason for which GPUs have no peer access, that other pairs have it, and that the reason is
// reported.
func TestReach(t *testing.T) {
	for name, tc := range map[string]struct {
		setting string
		prepare func(f *fakedriver.GPU)
		says    string // reported reason why GPUs 0 and 2 have no peer access; empty if they have
	}{
		"none": {"", func(*fakedriver.GPU) {}, ""},
		"on":   {"on", func(*fakedriver.GPU) {}, ""},
		"the driver's": {"", func(f *fakedriver.GPU) { f.Reach.Apart = some([2]int32{0, 2}) },
			"GPUs 0-2: the driver offers no peer access"},
		"one way only": {"", func(f *fakedriver.GPU) {
			f.Reach.Apart = func(a, b int32) bool {
				return a == 2 &&
					b == 0
			}
		}, "GPUs 0-2: the driver offers no peer access"},
		"the user's pair": {"1-3,2-0", func(*fakedriver.GPU) {}, "GPUs 0-2: HOCKET_P2P=1-3,2-0 disables peer access between them"},
		"the user's":      {"off", func(*fakedriver.GPU) {}, "GPUs 0-1 0-2 1-2: HOCKET_P2P=off disables peer access between them"},
		"mangled pushes": {"", func(f *fakedriver.GPU) {
			f.Reach.Mangles = func(a, b int32) bool {
				return a == 0 &&
					b == 2
			}
		}, "GPUs 0-2: a transfer from GPU 0 to GPU 2: other bytes arrived"},
		"mangled pulls": {"", func(f *fakedriver.GPU) {
			f.Reach.Mangles = func(a, b int32) bool {
				return a == 2 &&
					b == 0
			}
		}, "GPUs 0-2: a transfer from GPU 0 to GPU 2: other bytes came back"},
		"mangled on a bus": {"", func(f *fakedriver.GPU) { f.Reach.Mangles = some([2]int32{0, 2}) },
			"check the IOMMU and the ACS"},
		"no mapping": {"", func(f *fakedriver.GPU) { f.Reach.Refuses = some([2]int32{0, 2}) },
			"GPUs 0-2: a transfer from GPU 0 to GPU 2: CUDA: cuMemSetAccess"},
	} {
		t.Run(name, func(t *testing.T) {
			f := fakedriver.New(t, 3)
			tc.prepare(f)
			sys := system(f)
			var err error
			if sys.Reach, err = gpu.NewReach(tc.setting); err != nil {
				t.Fatal(err)
			}
			m := newMachine(sys, Options{Kernels: f})
			for range 2 { // the second world uses the results of the first world's test transfers
				w, err := m.Open(t.Context(), 3)
				if err != nil {
					t.Fatal(err)
				}
				got := strings.Join(w.(*world).Detours(), "\n")
				if (got == "") != (tc.says == "") || !strings.Contains(got, tc.says) {
					t.Errorf("got %q, want %q", got, tc.says)
				}
				if err := w.(*world).Apart(2, 0); (err == nil) != (tc.says == "") || err != nil &&
					!errors.Is(err, device.ErrUnsupported) {
					t.Errorf("ranks 2 and 0: %v", err)
				}
				if err := w.(*world).Apart(0, 1); err != nil && tc.setting != "off" {
					t.Errorf("ranks 0 and 1: %v", err)
				}
				if got := twice(t, w); got != 6 {
					t.Errorf("the program returns %v, want 6", got)
				}
				if err := w.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestBadSetting checks that the error about a wrong value of HOCKET_P2P lists the permitted values.
func TestBadSetting(t *testing.T) {
	for _, v := range []string{"no", "0", "0-", "0-0", "-1-2", "0-1,", "0-1-2"} {
		if _, err := gpu.NewReach(v); err == nil || !strings.Contains(err.Error(), "HOCKET_P2P="+v+" is invalid: set it to on, off") {
			t.Errorf("%s: %v", v, err)
		}
	}
}

// TestTrialFails checks test transfers that make a GPU unusable. The error names the pair and advice, it is returned
// soon, and nothing stays allocated.
func TestTrialFails(t *testing.T) {
	for name, tc := range map[string]struct {
		fail func(f *fakedriver.GPU)
		says []string
		lost bool
	}{
		"address": {func(f *fakedriver.GPU) { f.Kills["cuMemcpyAsync"] = 700 },
			[]string{"a transfer from GPU 0 to GPU 1: GPU 0, fake, was lost", "a new process with HOCKET_P2P=0-1"}, true},
		"hang": {func(f *fakedriver.GPU) { f.Late["cuStreamQuery"] = 1 << 30 },
			[]string{"a transfer from GPU 0 to GPU 1: ", "the transfer has not ended after 30ms", "a new process with HOCKET_P2P=0-1"}, true},
		"memory": {func(f *fakedriver.GPU) { f.Returns["cuMemHostAlloc"] = 2 },
			[]string{"a transfer from GPU 0 to GPU 1: CUDA: cuMemHostAlloc"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := fakedriver.New(t, 2)
			sys := system(f)
			sys.Patience = 30 * time.Millisecond
			tc.fail(f)
			_, err := newMachine(sys, Options{Kernels: f}).Open(t.Context(), 2)
			if err == nil || errors.Is(err, device.ErrDeviceLost) != tc.lost {
				t.Fatalf("got %v", err)
			}
			for _, s := range tc.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("got %v, want %q", err, s)
				}
			}
			if name == "hang" {
				f.Dead = 1 // a transfer that hangs keeps its memory
			}
		})
	}
}

// TestTrialLoses checks which of two GPUs is reported as lost if a test transfer between them fails.
func TestTrialLoses(t *testing.T) {
	for ill := range int32(2) {
		f := fakedriver.New(t, 2)
		f.Ills[ill] = 700
		t.Cleanup(func() { f.Dead = 1 }) // its memory is not freed
		m := newMachine(system(f), Options{Kernels: f})
		_, err := m.Open(t.Context(), 2)
		isLost(t, err, fmt.Sprintf("GPU %d, fake, was lost", ill), "a transfer from GPU 0 to GPU 1",
			"a new process with HOCKET_P2P=0-1")
		if m.sys.GPUs[ill].Lost.Load() == nil || m.sys.GPUs[1-ill].Lost.Load() != nil {
			t.Errorf("GPU %d fails: lost: %v, %v", ill, m.sys.GPUs[0].Lost.Load(), m.sys.GPUs[1].Lost.Load())
		}
	}
}

// TestApartGraphs checks that GPUs without peer access use one graph over all GPUs, and that a graph for each GPU,
// which needs flags, is refused.
func TestApartGraphs(t *testing.T) {
	f := fakedriver.New(t, 2)
	f.Reach.Apart = all
	sys := system(f)
	for graphs, want := range map[string]string{"": "one", formOne: "one",
		formEach: "GPUs 0-1: the driver offers no peer access"} {
		w, err := newMachine(sys, Options{Kernels: f, Graphs: graphs}).Open(t.Context(), 2)
		if err != nil {
			t.Fatal(err)
		}
		g, err := w.Capture(func() error { return nil })
		switch {
		case graphs == formEach:
			if !errors.Is(err, device.ErrUnsupported) || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		case err != nil:
			t.Fatal(err)
		case !slices.Equal(g.Forms(), []string{want}):
			t.Errorf("%q: forms %v", graphs, g.Forms())
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestApartTeams checks that kernels of a team are used only if its members have peer access.
func TestApartTeams(t *testing.T) {
	f := fakedriver.New(t, 3)
	f.Reach.Apart = some([2]int32{0, 1})
	w, err := newMachine(system(f), Options{Kernels: f}).Open(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	var parts []device.Part
	var members []device.Member
	for r := range 3 {
		s, err := w.Device(r).NewStream(device.StreamOptions{})
		if err != nil {
			t.Fatal(err)
		}
		mem, err := w.Device(r).Alloc(1<<16, device.Shared)
		if err != nil {
			t.Fatal(err)
		}
		members = append(members, device.Member{Rank: r, Stream: s})
		parts = append(parts, device.Part{Reads: true, Writes: true, In: words(mem, 0, 256),
			Out: words(mem, 4096, 512)})
	}
	for _, pair := range [][2]int{{0, 1}, {0, 2}, {1, 2}} {
		team, err := w.(*world).OpenTeam([]device.Member{members[pair[0]], members[pair[1]]})
		if err != nil {
			t.Fatal(err)
		}
		c := &device.Collective{Op: ir.OpAllGather, Parts: []device.Part{parts[pair[0]], parts[pair[1]]}}
		_, err = team.Prepare(device.Tuning{Algo: "move-copy"}, c)
		if pair == [2]int{0, 1} {
			if !errors.Is(err, device.ErrUnsupported) ||
				!strings.Contains(err.Error(), "GPU 0 and GPU 1 cannot access each other's memory (the driver") {
				t.Errorf("got %v", err)
			}
		} else if err != nil {
			t.Errorf("%v: %v", pair, err)
		}
		if err := team.Close(); err != nil {
			t.Error(err)
		}
	}
	in := comm.Instance{Shared: true, Collective: device.Collective{Op: ir.OpAllReduce, Red: ir.Sum}}
	for _, p := range parts[:2] {
		p.Out = words(p.Out.Mem, 4096, 256)
		in.Parts = append(in.Parts, p)
	}
	ch, err := comm.NewDispatch(w, device.Caps{}, comm.Shipped(), comm.Policy{}).Design(members[:2],
		[]comm.Instance{in})
	if err != nil {
		t.Fatal(err)
	}
	x := ch.Choice(0)
	if x.Tuning.Algo != "one-shot-push" || x.By != "default" || len(x.Declined) == 0 {
		t.Errorf("%+v", x)
	}
	for _, why := range x.Declined {
		if !strings.HasPrefix(why, "nccl: ") &&
			!strings.Contains(why, "GPU 0 and GPU 1 cannot access each other's memory (the driver offers no peer access") {
			t.Errorf("declined: %s", why)
		}
	}
	if err := ch.Close(); err != nil {
		t.Error(err)
	}
	if id := w.(*world).Identity(); !strings.Contains(id, "links shn/hsn/nns") {
		t.Errorf("identity %s", id)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// words returns a view of count words of the memory mem, which begins at byte off.
func words(mem device.Memory, off, count int64) device.View {
	return device.View{Mem: mem, Off: off, DType: ir.I32, Shape: []int64{count}, Strides: []int64{1}}
}

// TestDetours checks copies of views of all kinds between three GPUs, of which the last has no peer access to the
// others. Streams of each rank issue the copies, in one or many pieces, directly and with a graph. Every byte of the
// destination must be correct, including those between its elements.
func TestDetours(t *testing.T) {
	defer func(n int64) { hostStagedPiece = n }(hostStagedPiece)
	hostStagedPiece = 16 << 10
	f := fakedriver.New(t, 3)
	f.Reach.Apart = some([2]int32{0, 2}, [2]int32{1, 2})
	m := newMachine(system(f), Options{Kernels: f})
	testDetours(t, m, 3)
	f.Reach.Apart = all
	m.sys.Reach, _ = gpu.NewReach("")
	testOnAndOn(t, m, func() { f.Order = fakedriver.NewOrder() })
}

// TestStagedOperands computes a sum with data of a peer without peer access. The peer reads the result as soon as an
// event signals that it is ready.
func TestStagedOperands(t *testing.T) {
	f := fakedriver.New(t, 2)
	f.Reach.Apart = all
	must := mustOf(t)
	w, streams := streamed(t, newMachine(system(f), Options{Kernels: f}), 2, "s")
	var at [2][2]device.View
	for r := range streams {
		mem, err := w.Device(r).Alloc(8192, device.Shared)
		must(err)
		at[r] = [2]device.View{words(mem, 0, 1000), words(mem, 4096, 1000)}
	}
	own, out, far, back := at[0][0], at[0][1], at[1][0], at[1][1]
	l, err := w.Device(0).Prepare(device.Kernel{Op: device.ReduceOperands{Red: ir.Sum}, Ins: []device.View{own, far},
		Outs: []device.View{out}})
	must(err)
	sent, got := bytes.Repeat([]byte{3, 0, 0, 0}, 1000), make([]byte, 4000)
	must(errors.Join(streams[0].Upload(own, sent), streams[1].Upload(far, sent), w.Sync(t.Context())))
	f.Order = fakedriver.NewOrder()
	done, err := w.Device(0).NewEvent()
	must(err)
	must(errors.Join(streams[0].Launch(l), streams[0].Record(done), streams[1].Wait(done), streams[1].Copy(back, out),
		streams[1].Download(got, back)))
	must(w.Sync(t.Context()))
	if want := bytes.Repeat([]byte{6, 0, 0, 0}, 1000); !bytes.Equal(got, want) {
		t.Errorf("got %v", got[:8])
	}
	must(w.Close())
}

// TestRealDetours is TestDetours on real GPUs with peer access disabled.
func TestRealDetours(t *testing.T) {
	m := real(t, Options{})
	devicetest.NeedGPUs(t, len(m.sys.GPUs), 2, nil)
	r := m.sys.Reach
	defer func() { m.sys.Reach = r }()
	var err error
	if m.sys.Reach, err = gpu.NewReach("off"); err != nil {
		t.Fatal(err)
	}
	testDetours(t, m, min(len(m.sys.GPUs), 3)) // the issuing rank may be neither source nor destination
	testOnAndOn(t, m, func() {})
}

// testOnAndOn copies data through a chain of buffers on two GPUs, on one stream, and synchronizes only before the final
// download. If a copy does not wait for the previous one, or for its buffer in host memory, the downloaded data are
// wrong. The function begin is called while nothing runs.
func testOnAndOn(t *testing.T, m *machine, begin func()) {
	for _, places := range [][]int{{1, 1, 0, 0, 1}, {1, 0, 0, 1, 1}} {
		testHandedOn(t, m, places, begin)
	}
}

// testHandedOn is like testOnAndOn, for a chain of buffers that belong to the given ranks. The first and the last of
// these ranks must be 1.
func testHandedOn(t *testing.T, m *machine, places []int, begin func()) {
	count := 9 * hostStagedPiece / 4
	must := mustOf(t)
	w, streams := streamed(t, m, 2, "s")
	at := make([]device.View, len(places))
	for i := range at {
		mem, err := w.Device(places[i]).Alloc(4*count, device.Shared)
		must(err)
		at[i] = words(mem, 0, count)
	}
	sent, got := make([]byte, 4*count), make([]byte, 4*count)
	for round := range 8 {
		begin()
		for i := range sent {
			sent[i] = byte(i*(2*round+1) + i>>7)
		}
		for i := range at {
			at[i].Mem.Poison(0, 4*count)
		}
		by := streams[round%2]
		e, err := w.Device(round % 2).NewEvent()
		must(err)
		begun, err := w.Device(1).NewEvent()
		must(err)
		must(errors.Join(streams[1].Upload(at[0], sent), streams[1].Record(begun), by.Wait(begun)))
		for i := range len(places) - 1 {
			must(by.Copy(at[i+1], at[i]))
		}
		must(errors.Join(by.Record(e), streams[1].Wait(e), streams[1].Download(got, at[len(at)-1])))
		must(w.Sync(t.Context()))
		if !bytes.Equal(got, sent) {
			t.Errorf("round %d: wrong data at the end of the chain", round)
		}
		e.Release()
		begun.Release()
	}
	must(w.Close())
}

func testDetours(t *testing.T, m *machine, ranks int) {
	most := 3 * hostStagedPiece
	must := mustOf(t)
	w, streams := streamed(t, m, ranks, "s")
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	rng := rand.New(rand.NewPCG(3, 9))
	var mems []device.Memory
	for r := range ranks {
		mem, err := w.Device(r).Alloc(most, device.Shared)
		must(err)
		mems = append(mems, mem)
	}
	host := func() []byte {
		b := make([]byte, most)
		for i := 0; i < len(b); i += 8 {
			v := rng.Uint64()
			for k := range 8 {
				b[i+k] = byte(v >> (8 * k))
			}
		}
		return b
	}
	whole := func(r int) device.View {
		return device.View{Mem: mems[r], DType: ir.I32, Shape: []int64{most / 4}, Strides: []int64{1}}
	}
	k := most / (4 * 160) // number of rows of blocks
	views := []struct {
		name     string
		dt       ir.DType
		off      int64
		shape    []int64
		dst, src []int64
	}{
		{"one element", ir.I32, 4, []int64{1, 1}, []int64{7, 1}, []int64{1, 1}},
		{"a piece", ir.BF16, 0, []int64{hostStagedPiece / 2}, []int64{1}, []int64{1}},
		{"a piece and more", ir.BF16, 6, []int64{hostStagedPiece/2 + 1}, []int64{1}, []int64{1}},
		{"pieces", ir.BF16, 2, []int64{5, hostStagedPiece/4 - 1}, []int64{hostStagedPiece/4 - 1, 1},
			[]int64{hostStagedPiece/4 - 1, 1}},
		{"rows", ir.F32, 256, []int64{hostStagedPiece / 1600, 300}, []int64{1024, 1}, []int64{512, 1}},
		{"long rows", ir.F32, 0, []int64{2, hostStagedPiece / 3}, []int64{hostStagedPiece / 3, 1},
			[]int64{hostStagedPiece/3 + 5, 1}},
		{"columns", ir.I32, 8, []int64{60, 50}, []int64{1, 60}, []int64{64, 1}},
		{"blocks", ir.I32, 0, []int64{5, k, 30}, []int64{31 * k, 30, 1}, []int64{30, 160, 1}},
	}
	before, from := host(), host()
	for _, v := range views {
		for dst := range ranks {
			for src := range ranks {
				for by := range ranks {
					if dst == src {
						continue
					}
					before := slices.Clone(before)
					must(streams[dst].Upload(whole(dst), before))
					must(streams[src].Upload(whole(src), from))
					must(w.Sync(t.Context()))
					d := device.View{Mem: mems[dst], Off: v.off, DType: v.dt, Shape: v.shape, Strides: v.dst}
					s := device.View{Mem: mems[src], Off: v.off, DType: v.dt, Shape: v.shape, Strides: v.src}
					if (dst+src)%2 == 0 { // otherwise only small pieces are possible
						must(w.Device(by).PrepareCopy(d, s))
					}
					issue := func() error { return streams[by].Copy(d, s) }
					if (dst+src+by)%2 == 0 {
						g, err := w.Capture(issue)
						must(err)
						issue = func() error {
							return errors.Join(g.Launch(t.Context()), w.Sync(t.Context()),
								g.Close())
						}
					}
					must(issue())
					must(w.Sync(t.Context()))
					got := make([]byte, most)
					must(streams[dst].Download(got, whole(dst)))
					must(w.Sync(t.Context()))
					size := v.dt.Size()
					eachStretch(v.shape, v.dst, v.src, func(to, at, n int64) {
						copy(before[v.off+to*size:], from[v.off+at*size:][:n*size])
					})
					if !bytes.Equal(got, before) {
						at := 0
						for got[at] == before[at] {
							at++
						}
						t.Errorf("%s from rank %d to rank %d by rank %d: byte %d is %#x, want %#x", v.name, src, dst,
							by, at, got[at], before[at])
					}
				}
			}
		}
	}
}

// eachStretch calls f for each interval of elements that is contiguous in two views, with its position in both and its
// length.
func eachStretch(shape, a, b []int64, f func(a, b, n int64)) {
	switch {
	case len(shape) == 0:
		f(0, 0, 1)
	case len(shape) == 1 && a[0] == 1 && b[0] == 1:
		f(0, 0, shape[0])
	default:
		for i := range shape[0] {
			eachStretch(shape[1:], a[1:], b[1:], func(x, y, n int64) { f(x+i*a[0], y+i*b[0], n) })
		}
	}
}

// TestApartNCCL checks collectives by NCCL on GPUs without peer access. If the driver's report is wrong, NCCL's peer
// access is disabled. If NCCL has used peer access before, NCCL is refused.
func TestApartNCCL(t *testing.T) {
	before, set := cabi.Getenv(nccl.PeersVariable)
	if !set {
		before = "0"
	}
	tell := func(v string) {
		if err := cabi.Setenv(nccl.PeersVariable, v); err != nil && cabi.Callable {
			t.Fatal(err)
		}
	}
	defer tell(before)
	for _, tc := range []struct {
		setting string
		mangled bool // the transfer between GPUs 0 and 1 fails; a world opens them after a world of GPUs 0 and 2
		says    string
		may     bool
	}{
		{setting: "", may: true},
		{setting: "0-1"},
		{mangled: true, may: true, says: "NCCL already used peers' memory"},
	} {
		tell("0")
		f := fakedriver.New(t, 3)
		x := &fakedriver.NCCL{GPU: f}
		sys := system(f)
		sys.NCCL = x.Open
		var err error
		if sys.Reach, err = gpu.NewReach(tc.setting); err != nil {
			t.Fatal(err)
		}
		m := newMachine(sys, Options{Kernels: f})
		open := func(ranks int) (*teamRig, device.World) {
			w, err := m.Open(t.Context(), ranks)
			if err != nil {
				t.Fatal(err)
			}
			return newTeamRig(t, w, "nccl", []int{0, ranks - 1}), w
		}
		c := teamCase{op: ir.OpAllReduce, red: ir.Sum, dt: ir.F32, shape: []int64{40}, algo: ncclName}
		first := func() {
			r, w := open(3)
			if !r.add(c, device.Tuning{}) {
				t.Fatal("NCCL was declined for GPUs 0 and 2")
			}
			r.run(1)
			r.close()
			r.must(w.Close())
		}
		first()
		if v, _ := cabi.Getenv(nccl.PeersVariable); sys.NCCLs.UsesPeers() != tc.may || cabi.Callable &&
			(v == "0") != tc.may {
			t.Errorf("%+v: NCCL may use peers' memory: %v, and %s=%s", tc, sys.NCCLs.UsesPeers(), nccl.PeersVariable, v)
		}
		if tc.mangled { // set the result that a later test transfer would have
			sys.Reach.Why[gpu.Couple{0, 1}] = errors.New("other bytes arrived")
			sys.Reach.Deceit = true
		}
		r, w := open(2)
		r.place(c)
		_, err = r.team.Prepare(device.Tuning{Algo: ncclName}, r.cases[0].collective())
		if (err == nil) != (tc.says == "") || err != nil &&
			(!errors.Is(err, device.ErrUnsupported) || !strings.Contains(err.Error(), tc.says)) {
			t.Errorf("%+v: got %v", tc, err)
		}
		r.close()
		r.must(w.Close())
		first() // works as before
	}
}

// TestReportedReach checks reports of GPUs without peer access. A report has the driver's answer immediately, and a
// failed transfer once one was tried.
func TestReportedReach(t *testing.T) {
	f := fakedriver.New(t, 3)
	f.Reach.Apart, f.Reach.Mangles = some([2]int32{0, 1}), some([2]int32{1, 2})
	sys := system(f)
	text := func(try bool) string {
		var r doctor.Report
		sys.AddGPUs(&r, nil, try)
		if r.Missing != "" {
			t.Error(r.Missing)
		}
		return fmt.Sprint(r.Lines())
	}
	for _, want := range []string{"[gpu 1 fake, sm_91a, 1024 GiB, 1:0; GPU 0 through the host; GPU 2 by pcie]",
		"[through the host GPUs 0-1: the driver", "[between processes host memory, and NCCL for collectives if it is " +
			"installed: GPUs 0-1: the driver"} {
		if got := text(false); !strings.Contains(got, want) || strings.Contains(got, "GPUs 1-2") {
			t.Errorf("before a transfer: %s, want %s", got, want)
		}
	}
	for _, try := range []bool{true, false} {
		got := text(try)
		for _, want := range []string{"GPU 0 through the host; GPU 2 through the host",
			"[through the host GPUs 0-1: the driver", "[through the host GPUs 1-2: a transfer from GPU 1"} {
			if !strings.Contains(got, want) {
				t.Errorf("after one: %s, want %s", got, want)
			}
		}
	}
	f.Kills["cuCtxSetCurrent"] = 719
	sys.Reach.Why = map[gpu.Couple]error{}
	var r doctor.Report
	if sys.AddGPUs(&r, nil, true); !strings.Contains(r.Missing, "was lost at") ||
		!strings.Contains(r.Missing, "HOCKET_P2P=0-2") {
		t.Errorf("a lost GPU: %q", r.Missing)
	}
}
