package cuda

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/devicetest"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// TestDraws runs random collectives and compares every byte of all operands, and of the memory around them. It varies
// operations, types, reductions, sizes, offsets, in-place operands, teams and streams, graphs, algorithms and the
// dispatcher's choice. Some members issue late, and launch numbers wrap around. Reduced inputs are small integers,
// whose sums are exact in any order. Inputs that are only moved are random bits.
//
// Kernels take longer to compile than to run. Each world therefore first draws some kinds of kernels (operation, type,
// algorithm, unroll, alignment), and then the properties that vary at run time.

var (
	drawsFlag = flag.Int("draws", 0, "collectives that TestDraws draws in all on GPUs; 0 for some")
	drawSeed  = flag.Uint64("draws.seed", 1, "what TestDraws draws from")
	drawAlgo  = flag.String("draws.algorithm", "", "those that TestDraws draws, as a,b; empty for all")
	drawMost  = flag.Int("draws.kinds", 60,
		"of how many kinds, each with a kernel of its own, TestDraws draws on a world at most")
	drawTime = flag.Duration("draws.time", time.Hour, "TestDraws begins no more batches of a world after this time")
)

func TestDraws(t *testing.T) {
	t.Run("cpu", func(t *testing.T) {
		for _, mode := range []cpu.Mode{cpu.Concurrent, cpu.Scheduled} {
			draw(t, cpu.New(cpu.Options{Mode: mode, Seed: int64(*drawSeed)}), 4, 400,
				drawLimits{kinds: 200, batch: 80, longest: 1 << 13})
		}
	})
	t.Run("fake", func(t *testing.T) { // schedules, with and without graphs
		f := fakedriver.New(t, 2)
		draw(t, newMachine(system(f), Options{Kernels: f, RanksPerGPU: 2}), 4, 200,
			drawLimits{kinds: 100, batch: 40, longest: 1 << 9, plain: true})
	})
	t.Run("gpus", func(t *testing.T) {
		devicetest.NeedGPUs(t, len(real(t, Options{}).sys.GPUs), 2, nil)
		n := 400
		if *drawsFlag > 0 {
			n = *drawsFlag
		}
		limits := drawLimits{kinds: min(max(n/50, 30), *drawMost), batch: 250, longest: 1 << 20, late: true}
		done := map[string]int{}
		for _, per := range []int{1, 2} {
			m := real(t, Options{RanksPerGPU: per, TeamTimeout: 8 * time.Second})
			for name, k := range draw(t, m, per*min(len(m.sys.GPUs), 4), n/2, limits) {
				done[name] += k
			}
		}
		for _, name := range asked() {
			if done[name] == 0 {
				t.Errorf("no collective was drawn by %s, with one or two ranks per GPU", name)
			}
		}
	})
}

// drawLimits limits the random choices: the number of kinds, the number of collectives between two synchronizations,
// the number of elements of the largest operand, and whether members issue late.
type drawLimits struct {
	kinds, batch int
	longest      int64
	late         bool
	plain        bool // without the machine's own algorithms
}

// drawKind is a kind of collective: the properties for which a kernel is compiled.
type drawKind struct {
	lane    int
	op      ir.Op
	red     ir.Red
	dt      ir.DType
	tune    device.Tuning // the requested tuning; if it names no algorithm, the dispatcher chooses
	align   int64         // offsets of operands are multiples of so many elements
	inPlace bool
	alike   bool  // operands have the same offset in the memory of all members
	least   int64 // a number of elements for which an algorithm supports the kind
}

func (k drawKind) String() string {
	return fmt.Sprintf("%s %s %s %+v, starts at multiples of %d, in place %t, alike %t", k.op, k.red, k.dt, k.tune,
		k.align, k.inPlace, k.alike)
}

// drawn is a randomly chosen collective with its operands.
type drawn struct {
	drawKind
	inst  comm.Instance
	count int64   // number of elements of a member's smaller operand
	from  []int64 // by member: offset in the pattern, in elements, from which the member's input is copied
	phase int     // 0 and 2: executed by single calls; 1: within a graph
}

func (d *drawn) String() string {
	var at []string
	for m := range d.inst.Parts {
		p := &d.inst.Parts[m]
		at = append(at, fmt.Sprintf("%d to %d", p.In.Off, p.Out.Off))
	}
	return fmt.Sprintf("%v, %d elements, %+v, root %d, phase %d, bytes %s", d.drawKind, d.count, d.inst.Pin,
		d.inst.Root, d.phase, strings.Join(at, ", "))
}

// drawLane is a team that uses one stream of each member.
type drawLane struct {
	members []device.Member
	probe   device.Team // reports which collectives are supported; nil if the world has no teams
	list    []*drawn    // the collectives of this batch, in the order of issue
	ch      *comm.Channel
}

// drawRig is a world with memory for the operands of a batch.
type drawRig struct {
	*testing.T
	w        device.World
	dispatch *comm.Dispatch
	limits   drawLimits
	rng      *rand.Rand
	lanes    []*drawLane
	kinds    []drawKind
	main     []device.Stream
	arena    []device.Memory
	used     []int64  // by rank: number of bytes in use of its arena
	image    [][]byte // by rank: expected contents of the used part of its arena
	ints     []int8   // pattern from which inputs that are reduced are copied
	encoded  map[ir.DType][]byte
	bits     []byte // pattern from which inputs that are only moved are copied
	done     map[string]int
	opening  time.Duration
}

const (
	drawArena  = 48 << 20
	drawCanary = 64 // bytes between operands
	drawValues = 8  // reduced inputs are integers from -drawValues to drawValues
)

// draw draws and runs collectives. It returns the number of collectives that were drawn for each algorithm.
func draw(t *testing.T, m device.Machine, ranks, n int, limits drawLimits) map[string]int {
	began := time.Now()
	w, err := m.Open(t.Context(), ranks)
	if err != nil {
		t.Fatal(err)
	}
	r := &drawRig{T: t, w: w, limits: limits, rng: rand.New(rand.NewPCG(*drawSeed, uint64(ranks))),
		encoded: map[ir.DType][]byte{}, done: map[string]int{}}
	r.dispatch = comm.NewDispatch(w, m.Caps(), comm.Find(m.Name(), w).Table, comm.Policy{})
	r.open(ranks)
	r.probe(true)
	r.drawKinds(r.names())
	r.probe(false)
	ready := time.Since(began)
	none := 0 // consecutive batches without a collective
	for k := 0; len(r.kinds) > 0 && n > 0 && none < 100 && !t.Failed() && time.Since(began) < *drawTime; k++ {
		did := r.batch(k, min(n, limits.batch), m.Caps().Graphs)
		n -= did
		if none++; did > 0 {
			none = 0
		}
	}
	if none > 0 {
		t.Errorf("no further collectives can be drawn, %d are missing", n)
	}
	r.must(w.Close())
	var did []string
	sum := 0
	for name, k := range r.done {
		did = append(did, fmt.Sprintf("%s %d", name, k))
		sum += k
	}
	slices.Sort(did)
	if sum == 0 && len(r.kinds) > 0 {
		t.Errorf("no collective was drawn: -draws.time=%v was used up by drawing kinds, after %v", *drawTime,
			ready.Round(time.Millisecond))
	}
	t.Logf("%s, %d ranks, %d collectives of %d kinds: %s; %v to draw kinds, %v to make kernels, %v in all", m.Name(),
		ranks, sum, len(r.kinds), strings.Join(did, ", "),
		ready.Round(time.Millisecond), r.opening.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	return r.done
}

func (r *drawRig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *drawRig) sync() {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	r.must(r.w.Sync(ctx))
}

// open allocates arenas, and creates input patterns and lanes: two teams of all ranks, and some of a part of the ranks.
func (r *drawRig) open(ranks int) {
	all := make([]int, ranks)
	for i := range all {
		all[i] = i
		d := r.w.Device(i)
		s, err := d.NewStream(device.StreamOptions{Name: "main"})
		r.must(err)
		mem, err := d.Alloc(drawArena, device.Shared)
		r.must(err)
		r.main, r.arena, r.image = append(r.main, s), append(r.arena, mem), append(r.image, make([]byte, drawArena))
	}
	r.used = make([]int64, ranks)
	teams := [][]int{all, all, {1, 0}}
	if ranks > 2 {
		teams = append(teams, []int{2, 0, 3})
	}
	for k, team := range teams {
		l := &drawLane{}
		for _, rank := range team {
			s, err := r.w.Device(rank).NewStream(device.StreamOptions{Name: fmt.Sprint("lane ", k)})
			r.must(err)
			l.members = append(l.members, device.Member{Rank: rank, Stream: s})
		}
		r.lanes = append(r.lanes, l)
	}
	r.ints = make([]int8, 2*r.limits.longest)
	for i := range r.ints {
		r.ints[i] = int8(r.rng.IntN(2*drawValues+1) - drawValues)
	}
	r.bits = make([]byte, 8*len(r.ints))
	for i := 0; i < len(r.bits); i += 8 {
		binary.LittleEndian.PutUint64(r.bits[i:], r.rng.Uint64())
	}
	// The special values are NaNs with payloads, infinities and -0 of every type, and bit patterns that could be
	// mistaken for flags.
	special := []uint64{0xfffafffafffafffa, ^uint64(0), 0, 1 << 63, 0x8000000080000000, 0x8000800080008000,
		0x7f8000007f800000, 0x7f807f80ff80ff80,
		0x7c007c00fc00fc00, 0x7ff0000000000000, 0x7fc000017f800001, 0x7fff7f81ffc1ff81, 0x0000000200000002,
		0x0002000200020002, 0x0001000100010001}
	for range len(r.bits) / 64 {
		binary.LittleEndian.PutUint64(r.bits[8*r.rng.IntN(len(r.bits)/8):], special[r.rng.IntN(len(special))])
	}
}

// pattern returns the input pattern of an element type in binary form.
func (r *drawRig) pattern(k *drawKind) []byte {
	if !reducing(k.op) {
		return r.bits
	}
	if b, ok := r.encoded[k.dt]; ok {
		return b
	}
	vals := make([]float64, len(r.ints))
	for i, v := range r.ints {
		vals[i] = float64(v)
	}
	b := make([]byte, int64(len(vals))*k.dt.Size())
	tensor.FromFloat64(b, vals, k.dt)
	r.encoded[k.dt] = b
	return b
}

func reducing(op ir.Op) bool {
	return op == ir.OpAllReduce || op == ir.OpReduceScatter || op == ir.OpReduce
}

var drawOps = []ir.Op{ir.OpAllReduce, ir.OpAllReduce, ir.OpReduceScatter, ir.OpAllGather, ir.OpAllToAll, ir.OpBroadcast,
	ir.OpReduce, ir.OpGather, ir.OpScatter, ir.OpPermute}

// probe opens the lanes' teams that report support, or closes them. These teams must not be open during launches,
// because launches may start early only if a team is alone on its devices.
func (r *drawRig) probe(open bool) {
	if len(r.w.TeamAlgorithms()) == 0 {
		return
	}
	for _, l := range r.lanes {
		if open {
			var err error
			l.probe, err = r.w.OpenTeam(l.members)
			r.must(err)
		} else {
			r.must(l.probe.Close())
			l.probe = nil
		}
	}
}

// own reports whether the algorithm is one of the machine's own.
func own(algo string) bool { return algo != "" && !slices.Contains(comm.Schedules(), algo) }

// asked returns the algorithms that the test's flags select.
func asked() []string {
	if *drawAlgo == "" {
		return nil
	}
	return strings.Split(*drawAlgo, ",")
}

// names returns the names of algorithms. For each of them the test draws random collectives.
func (r *drawRig) names() []string {
	if r.limits.plain {
		return comm.Schedules()
	}
	all := append(r.dispatch.Algorithms(), "")
	if _, ok := r.w.(*world); !ok || asked() == nil {
		return all
	}
	for _, name := range asked() {
		if !slices.Contains(all, name) {
			r.Fatalf("-draws.algorithm=%s: there is no %q; there are %s", *drawAlgo, name, strings.Join(all, " "))
		}
	}
	return asked()
}

// drawKinds draws supported kinds of collectives, the same number for each algorithm.
func (r *drawRig) drawKinds(names []string) {
	r.Helper()
	r.byHost(drawParts[0])
	names = slices.Clone(names)
	r.rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for i := 0; len(names) > 0 && len(r.kinds) < r.limits.kinds; {
		k, err := r.drawKind(names[i%len(names)])
		if err != nil {
			r.Log(err)
			names = slices.Delete(names, i%len(names), i%len(names)+1)
			continue
		}
		r.kinds = append(r.kinds, k)
		i++
	}
	if len(r.kinds) == 0 && asked() == nil {
		r.Error("no kinds are drawn")
	}
}

// drawTries limits how many kinds of collectives are drawn to find one that an algorithm supports. For the most
// restrictive algorithms, one kind in 50 is supported.
const drawTries = 2000

// drawKind draws a kind of collective that the algorithm supports. If it finds none, the error lists the last reason
// for each operation.
func (r *drawRig) drawKind(algo string) (drawKind, error) {
	why := map[ir.Op]error{}
	for range drawTries {
		k := drawKind{lane: r.rng.IntN(len(r.lanes)), op: drawOps[r.rng.IntN(len(drawOps))],
			dt:    ir.ArithmeticTypes()[r.rng.IntN(len(ir.ArithmeticTypes()))],
			align: []int64{1, 1, 2, 4, 8, 16}[r.rng.IntN(6)], inPlace: r.rng.IntN(3) == 0}
		if reducing(k.op) {
			k.red = ir.Sum + ir.Red(r.rng.IntN(4))
		}
		k.tune.Algo = algo
		k.alike = r.rng.IntN(4) == 0
		switch {
		case algo == ncclName && k.red == ir.Avg:
			continue // rounds differently
		case own(algo) && algo != ncclName:
			k.tune.Unroll = []int{0, 0, 1, 2, 4, 8}[r.rng.IntN(6)]
		}
		err := r.fits(&k)
		if err == nil {
			return k, nil
		}
		why[k.op] = err
	}
	var reasons []string
	for _, op := range slices.Sorted(maps.Keys(why)) {
		reason := strings.TrimPrefix(why[op].Error(), op.String()+" ")
		if !slices.Contains(reasons, reason) {
			reasons = append(reasons, reason)
		}
	}
	return drawKind{}, fmt.Errorf("none of %d kinds of %q that were drawn can run: %s", drawTries, algo,
		strings.Join(reasons, "; "))
}

// drawSizes are numbers of elements. A kind of collective is tried with one after another until it is supported: any
// number, whole packs, and sizes large enough to be split.
var drawSizes = []int64{1000, 16, 1 << 14, 1 << 16, 1 << 18, 1 << 20}

// fits finds a number of elements for which the kind k is supported, or returns why there is none. It tries three
// random offsets of operands, since one might be suitable by chance.
func (r *drawRig) fits(k *drawKind) (err error) {
	most := r.limits.longest / int64(len(r.lanes[k.lane].members))
	for i, n := range drawSizes {
		if i > 0 && (n > most && drawSizes[i-1] >= most || !own(k.tune.Algo)) {
			break
		}
		err = nil
		for again := 0; err == nil && again < 3; again++ {
			clear(r.used)
			d := r.place(*k, n)
			if d == nil {
				return fmt.Errorf("there is no space for %d elements", n)
			}
			k.least = d.count
			err = r.supports(d)
		}
		if err == nil {
			return nil
		}
	}
	return err
}

// drawParts are sizes of the parts of operands that are transferred through host memory. They replace the measured
// optimum. The first part uses so few thread blocks that they fit together with other lanes; the others are for lanes
// that are alone on their devices.
var drawParts = []coll.HostPart{{Permille: 150, Writers: 1, Readers: 2}, {Permille: 150, Writers: 4, Readers: 8},
	{Permille: 300, Writers: 2, Readers: 3}}

// byHost sets the size of the part that goes through host memory, for all algorithms.
func (r *drawRig) byHost(p coll.HostPart) {
	w, ok := r.w.(*world)
	if !ok {
		return
	}
	w.m.opts.hostParts = &coll.HostParts{
		Operands: p,
		Results:  func(int64) coll.HostPart { return p },
		Moves:    func(ir.Op, int64, int) coll.HostPart { return p },
		Addends:  func(int, int64) coll.HostPart { return p },
		Lamport:  func(int64, int) coll.HostPart { return p },
		SMLimited: func(members int, _ int64) (permille, readers int64) {
			if members != 4 {
				return 0, 0
			}
			return p.Permille, min(p.Readers, 2)
		},
	}
}

// supports returns nil, or the reason why the algorithm that d requests does not support d.
func (r *drawRig) supports(d *drawn) error {
	r.Helper()
	l := r.lanes[d.lane]
	var err error
	if own(d.inst.Pin.Algo) {
		err = l.probe.Supports(d.inst.Pin, &d.inst.Collective)
	} else {
		var ch *comm.Channel
		if ch, err = r.dispatch.Design(l.members, []comm.Instance{d.inst}); err == nil {
			err = ch.Close()
		}
	}
	if err != nil && !errors.Is(err, device.ErrUnsupported) {
		r.Errorf("%v: %v", d, err)
	}
	return err
}

// lengths returns the numbers of elements of the operands of one of n members, member me; -1 for no operand.
func (d *drawn) lengths(me, n int) (in, out int64) {
	c, all := d.count, d.count*int64(n)
	root := me == d.inst.Root
	switch d.op {
	case ir.OpAllGather:
		return c, all
	case ir.OpReduceScatter:
		return all, c
	case ir.OpAllToAll:
		return all, all
	case ir.OpBroadcast:
		if !root {
			return -1, c
		}
	case ir.OpReduce:
		if !root {
			return c, -1
		}
	case ir.OpGather:
		if !root {
			return c, -1
		}
		return c, all
	case ir.OpScatter:
		if !root {
			return -1, c
		}
		return all, c
	}
	return c, c
}

// place draws the properties that vary at run time, and finds space for the operands. It returns nil if there is no
// space.
func (r *drawRig) place(k drawKind, count int64) *drawn {
	members := r.lanes[k.lane].members
	n := len(members)
	d := &drawn{drawKind: k, count: min(count, r.limits.longest/int64(n))}
	c := &d.inst.Collective
	*c = device.Collective{Op: k.op, Red: k.red, Root: r.rng.IntN(n), AnyOrder: true, Together: true}
	d.inst.Shared, d.inst.Pin = true, k.tune
	shift := r.rng.IntN(n)
	skips := [2]int64{r.rng.Int64N(drawSkips), r.rng.Int64N(drawSkips)}
	if k.alike {
		most := int64(0)
		for _, m := range members {
			most = max(most, r.used[m.Rank])
		}
		for _, m := range members {
			r.used[m.Rank] = most
		}
	}
	for me, m := range members {
		if !k.alike {
			skips = [2]int64{r.rng.Int64N(drawSkips), r.rng.Int64N(drawSkips)}
		}
		in, out := d.lengths(me, n)
		p := comm.Part{To: -1, From: -1, Reads: in >= 0, Writes: out >= 0}
		if k.op == ir.OpPermute {
			p.To, p.From = (me+shift)%n, (me+n-shift)%n
		}
		ok := true
		if p.Reads {
			p.In, ok = r.room(m.Rank, &k, in, skips[0])
		}
		if together := p.Reads && p.Writes && k.inPlace; together && in >= out {
			p.Out = block(p.In, out, int64(me), in > out)
		} else if p.Writes && ok {
			p.Out, ok = r.room(m.Rank, &k, out, skips[1])
			if together {
				p.In = block(p.Out, in, int64(me), true)
			}
		}
		if !ok {
			return nil
		}
		d.from = append(d.from, r.rng.Int64N(int64(len(r.ints))-max(in, 0)))
		c.Parts = append(c.Parts, p)
	}
	return d
}

// block returns the i-th block of n elements of a view, or the first one if cut is not set.
func block(v device.View, n, i int64, cut bool) device.View {
	if cut {
		v.Off += i * n * v.DType.Size()
	}
	v.Shape = []int64{n}
	return v
}

// An operand begins fewer than drawSkips alignments after the first possible position.
const drawSkips = 9

// room finds space for an operand of n elements in a rank's arena.
func (r *drawRig) room(rank int, k *drawKind, n, skip int64) (device.View, bool) {
	size := k.dt.Size()
	at := (r.used[rank]+drawCanary+255)&^255 + k.align*skip*size
	end := at + n*size + drawCanary
	if end > drawArena {
		return device.View{}, false
	}
	r.used[rank] = end
	return device.View{Mem: r.arena[rank], Off: at, DType: k.dt, Shape: []int64{n}, Strides: []int64{1}}, true
}

// size draws a number of elements: zero, one, a number near a limit of kernels, any number, and rarely a very large
// one. If a kind accepts only whole packs, or large sizes, most numbers are chosen accordingly.
func (r *drawRig) size(k *drawKind) int64 {
	if k.least > 0 && k.least != drawSizes[0] && r.rng.IntN(4) > 0 {
		most := min(max(4*k.least, 1<<14), r.limits.longest/int64(len(r.lanes[k.lane].members)))
		return int64(float64(k.least)*math.Exp(r.rng.Float64()*math.Log(float64(max(most,
			k.least))/float64(k.least)))) &^ 15
	}
	borders := []int64{2, 3, 7, 8, 9, 15, 17, 63, 64, 65, 255, 257, 479, 480, 481, 511, 513, 1023, 1024, 1025, 2047,
		4095, 4097, 8191, 8192, 8193, 30720, 65537}
	n := int64(math.Exp(r.rng.Float64() * math.Log(1<<14)))
	switch x := r.rng.IntN(64); {
	case x < 4:
		n = 0
	case x < 8:
		n = 1
	case x < 24:
		n = borders[r.rng.IntN(len(borders))]
	case x == 63:
		n = 1 + r.rng.Int64N(r.limits.longest)
	}
	return min(n, r.limits.longest)
}

// fill draws a batch. Few batches use NCCL, whose communicators take long to create. In some batches one lane is alone
// on its devices.
func (r *drawRig) fill(k, n int) {
	r.probe(true)
	defer r.probe(false)
	clear(r.used)
	for _, l := range r.lanes {
		l.list = nil
	}
	r.byHost(drawParts[r.rng.IntN(len(drawParts))])
	only := -1
	if k%3 == 2 {
		only = r.rng.IntN(len(r.lanes))
	}
	var turn []int // takes the kinds one after another, in random order
	for tries := 0; n > 0 && tries < 1000; tries++ {
		if len(turn) == 0 {
			turn = r.rng.Perm(len(r.kinds))
		}
		kind := r.kinds[turn[0]]
		turn = turn[1:]
		if only >= 0 && kind.lane != only || kind.tune.Algo == ncclName && k%16 != 1 {
			continue
		}
		d, room := r.drawOf(kind)
		if !room {
			break
		}
		if d == nil {
			continue
		}
		l := r.lanes[kind.lane]
		l.list = append(l.list, d)
		tries = 0
		n--
	}
}

// drawOf draws a collective of a supported kind. It returns nil if the drawn sizes and offsets are not supported. The
// result room is false if the arenas are full.
func (r *drawRig) drawOf(kind drawKind) (d *drawn, room bool) {
	before := slices.Clone(r.used)
	for range 10 {
		d := r.place(kind, r.size(&kind))
		if d == nil {
			return nil, false
		}
		if own(kind.tune.Algo) && kind.tune.Algo != ncclName {
			d.inst.Pin.Blocks, d.inst.Pin.Threads = []int{0, 0, 1, 3, 8, 16, 64}[r.rng.IntN(7)],
				[]int{0, 0, 64, 256, 512}[r.rng.IntN(5)]
			if r.supports(d) != nil {
				d.inst.Pin = kind.tune
			}
		}
		if r.supports(d) == nil {
			return d, true
		}
		copy(r.used, before) // d was too large, too small or empty for the algorithm
	}
	return nil, true
}

// batch draws up to n collectives, runs them, and returns their number.
func (r *drawRig) batch(k, n int, graphs bool) (did int) {
	r.fill(k, n)
	var lanes []*drawLane
	for _, l := range r.lanes {
		if len(l.list) > 0 {
			lanes = append(lanes, l)
		}
	}
	for _, l := range lanes {
		for _, d := range l.list {
			d.phase = r.rng.IntN(3)
		}
		slices.SortStableFunc(l.list, func(a, b *drawn) int { return a.phase - b.phase })
		r.design(l)
	}
	began := time.Now()
	for _, l := range lanes {
		r.openLane(l)
		for i := range l.list {
			r.done[l.ch.Choice(i).Tuning.Algo]++
		}
		did += len(l.list)
	}
	r.opening += time.Since(began)
	r.nearWrap()
	r.upload(lanes)
	late := -1
	if r.limits.late {
		late = k % r.w.Ranks()
	}
	for phase := range 3 {
		issue := func(only func(rank int) bool) error { return r.issue(lanes, phase, only) }
		if phase == 1 && graphs {
			r.sync()
			g, err := r.w.Capture(func() error { return issue(func(int) bool { return true }) })
			r.must(err)
			r.must(g.Launch(r.Context()))
			defer func() { r.must(g.Close()) }()
			continue
		}
		r.must(issue(func(rank int) bool { return rank != late }))
		if late >= 0 {
			time.Sleep([]time.Duration{time.Millisecond, 50 * time.Millisecond}[k/r.w.Ranks()%2])
			r.must(issue(func(rank int) bool { return rank == late }))
		}
	}
	r.compare(lanes)
	for _, l := range lanes {
		r.must(l.ch.Close())
	}
	return did
}

func (r *drawRig) design(l *drawLane) {
	r.Helper()
	var insts []comm.Instance
	for _, d := range l.list {
		insts = append(insts, d.inst)
	}
	var err error
	l.ch, err = r.dispatch.Design(l.members, insts)
	r.must(err)
}

// openLane opens the lane's channel. It reports an error for each collective that was supported but cannot be prepared,
// and continues without it.
func (r *drawRig) openLane(l *drawLane) {
	r.Helper()
	for range 20 {
		err := l.ch.Open()
		if err == nil {
			return
		}
		var bad *comm.InstanceError
		if !errors.As(err, &bad) {
			r.Fatal(err)
		}
		r.Errorf("%v: %v", l.list[bad.Index], err)
		l.list = slices.Delete(l.list, bad.Index, bad.Index+1)
		r.design(l)
	}
	r.Fatal("too many collectives cannot be prepared")
}

// nearWrap sets the launch numbers of half of the teams to values shortly before they wrap around.
func (r *drawRig) nearWrap() {
	w, ok := r.w.(*world)
	if !ok {
		return
	}
	for _, t := range w.teams {
		if r.rng.IntN(2) == 0 {
			continue
		}
		epoch := math.MaxUint32 - uint32(r.rng.IntN(40))
		for _, m := range t.members {
			r.must(m.set(m.control+kernels.ControlEpochs, epoch, kernels.BlocksMost))
			r.must(m.set(m.control+kernels.ControlBegun, epoch, 1))
		}
	}
}

// issue issues the collectives of one phase of the lanes to the wanted ranks. The collectives of different lanes are
// interleaved.
func (r *drawRig) issue(lanes []*drawLane, phase int, wanted func(rank int) bool) error {
	at := make([]int, len(lanes))
	for left := len(lanes); left > 0; {
		k := r.rng.IntN(len(lanes))
		if at[k] < 0 {
			continue
		}
		l, i := lanes[k], at[k]
		if at[k]++; i == len(l.list) {
			at[k] = -1
			left--
			continue
		}
		if l.list[i].phase != phase {
			continue
		}
		for d := range l.members {
			m := (d + i) % len(l.members)
			if !wanted(l.members[m].Rank) {
				continue
			}
			if err := l.ch.Issue(i, m, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// upload fills the arenas with inputs, and with a fixed pattern (canaries) around them.
func (r *drawRig) upload(lanes []*drawLane) {
	r.Helper()
	for rank, used := range r.used {
		r.used[rank] = (used + 7) &^ 7
		b := r.image[rank][:r.used[rank]]
		for i := range b {
			b[i] = 0xc5
		}
	}
	for _, l := range lanes {
		for _, d := range l.list {
			pattern, size := r.pattern(&d.drawKind), d.dt.Size()
			for m := range d.inst.Parts {
				if p := &d.inst.Parts[m]; p.Reads {
					copy(r.image[l.members[m].Rank][p.In.Off:], pattern[d.from[m]*size:(d.from[m]+p.In.Shape[0])*size])
				}
			}
		}
	}
	for rank, s := range r.main {
		if r.used[rank] > 0 {
			r.must(s.Upload(r.usedOf(rank), r.image[rank][:r.used[rank]]))
		}
	}
	r.sync()
}

func (r *drawRig) usedOf(rank int) device.View {
	return device.View{Mem: r.arena[rank], DType: ir.I32, Shape: []int64{r.used[rank] / 4}, Strides: []int64{1}}
}

// compare compares every byte of the arenas with the expected contents.
func (r *drawRig) compare(lanes []*drawLane) {
	r.Helper()
	r.sync()
	got := make([][]byte, len(r.main))
	for rank, s := range r.main {
		got[rank] = make([]byte, r.used[rank])
		if r.used[rank] > 0 {
			r.must(s.Download(got[rank], r.usedOf(rank)))
		}
	}
	for _, l := range lanes {
		for _, d := range l.list {
			for m, mem := range l.members {
				if p := &d.inst.Parts[m]; p.Writes {
					r.expect(d, m, r.image[mem.Rank][p.Out.Off:][:p.Out.Shape[0]*d.dt.Size()])
				}
			}
		}
	}
	r.sync()
	for rank := range got {
		want := r.image[rank][:r.used[rank]]
		for k, from := 0, 0; k < 3 && !bytes.Equal(got[rank][from:], want[from:]); k++ {
			for got[rank][from] == want[from] {
				from++
			}
			r.Errorf("rank %d, byte %d is %#x, want %#x; %s", rank, from, got[rank][from], want[from],
				r.near(lanes, rank, int64(from)))
			from = min(from+4096, len(want))
		}
	}
}

// near returns a description of the operand that contains a byte of a rank's arena, or of the last one before it.
func (r *drawRig) near(lanes []*drawLane, rank int, at int64) string {
	last, text := int64(-1), "before all operands"
	for _, l := range lanes {
		for i, d := range l.list {
			for m := range d.inst.Parts {
				if l.members[m].Rank != rank {
					continue
				}
				p := &d.inst.Parts[m]
				for _, side := range []struct {
					name  string
					there bool
					v     device.View
				}{{"operand", p.Reads, p.In}, {"result", p.Writes, p.Out}} {
					if off := at - side.v.Off; side.there && off >= 0 && side.v.Off >= last {
						last, text = side.v.Off,
							fmt.Sprintf("byte %d from where the %s of member %d begins, of %d bytes; %v by %+v", off,
								side.name, m, side.v.Shape[0]*d.dt.Size(), d, l.ch.Choice(i))
					}
				}
			}
		}
	}
	return text
}

// expect writes the expected result of member me to the expected contents of its arena.
func (r *drawRig) expect(d *drawn, me int, out []byte) {
	n, size := len(d.inst.Parts), d.dt.Size()
	pattern := r.pattern(&d.drawKind)
	part := func(i int, first, count int64) []byte {
		return pattern[(d.from[i]+first)*size : (d.from[i]+first+count)*size]
	}
	c := d.count
	switch d.op {
	case ir.OpAllGather, ir.OpGather:
		for i := range n {
			copy(out[int64(i)*c*size:], part(i, 0, c))
		}
	case ir.OpAllToAll:
		for i := range n {
			copy(out[int64(i)*c*size:], part(i, int64(me)*c, c))
		}
	case ir.OpBroadcast:
		copy(out, part(d.inst.Root, 0, c))
	case ir.OpScatter:
		copy(out, part(d.inst.Root, int64(me)*c, c))
	case ir.OpPermute:
		copy(out, part(d.inst.Parts[me].From, 0, c))
	default:
		first := int64(0)
		if d.op == ir.OpReduceScatter {
			first = int64(me) * c
		}
		table, least := reducedValues(d.dt, d.red, n)
		for k := range c {
			v := int(r.ints[d.from[0]+first+k])
			for i := 1; i < n; i++ {
				switch x := int(r.ints[d.from[i]+first+k]); d.red {
				case ir.Max:
					v = max(v, x)
				case ir.Min:
					v = min(v, x)
				default:
					v += x
				}
			}
			copy(out[k*size:(k+1)*size], table[int64(v-least)*size:])
		}
	}
}

// reducedValues returns a table of results of reductions, in binary form. Entry i is the result for the sum least + i.
func reducedValues(dt ir.DType, red ir.Red, n int) (table []byte, least int) {
	var vals []float64
	for v := -n * drawValues; v <= n*drawValues; v++ {
		x := float64(v)
		if red == ir.Avg {
			x /= float64(n)
			switch dt.Accum() {
			case ir.F32:
				x = float64(float32(x))
			case ir.I64:
				x = math.Trunc(x)
			}
			if x == 0 {
				x = 0 // replaces -0
			}
		}
		vals = append(vals, tensor.Round(dt, x))
	}
	table = make([]byte, int64(len(vals))*dt.Size())
	tensor.FromFloat64(table, vals, dt)
	return table, -n * drawValues
}

// TestDrawKinds checks on fake drivers that TestDraws can draw every algorithm that is selected: kinds of collectives
// that it supports, and such collectives in a batch. If the algorithm transfers data through host memory, some of the
// collectives must use host memory.
func TestDrawKinds(t *testing.T) {
	for _, c := range []struct {
		gpus, ranks int
		without     map[string]string // algorithms for which nothing can be drawn, with the reason
	}{
		{2, 2, map[string]string{"move-spread": "two others or more", "executor": "it needs a schedule"}},
		{4, 4, map[string]string{"executor": "it needs a schedule"}},
		{2, 4, map[string]string{"executor": "it needs a schedule"}}, // NCCL is drawn on members that do not share a GPU
	} {
		l := &meetings{GPU: fakedriver.New(t, c.gpus)}
		sys := system(l.GPU)
		sys.NCCL, sys.Multicast = (&fakedriver.NCCL{GPU: l.GPU}).Open, true
		for _, g := range sys.GPUs {
			g.SMs = 132
		}
		w, err := newMachine(sys, Options{Kernels: l, RanksPerGPU: c.ranks / c.gpus}).Open(t.Context(), c.ranks)
		if err != nil {
			t.Fatal(err)
		}
		r := &drawRig{T: t, w: w, limits: drawLimits{kinds: 6, longest: 1 << 20},
			rng: rand.New(rand.NewPCG(*drawSeed, 1)), encoded: map[ir.DType][]byte{}}
		r.dispatch = comm.NewDispatch(w, w.(*world).m.Caps(), nil, comm.Policy{})
		r.open(c.ranks)
		names := device.AlgorithmNames(w.TeamAlgorithms())
		for _, name := range names {
			r.probe(true)
			_, err := r.drawKind(name)
			if want := c.without[name]; (err == nil) != (want == "") || err != nil &&
				!strings.Contains(err.Error(), want) {
				t.Errorf("%d ranks on %d GPUs: %v, want %q", c.ranks, c.gpus, err, want)
			}
			if r.kinds = nil; err == nil {
				r.drawKinds([]string{name})
			}
			r.probe(false)
			if err != nil {
				continue
			}
			r.fill(1, 20)
			sum := 0
			for _, lane := range r.lanes {
				sum += len(lane.list)
				for _, d := range lane.list {
					if d.inst.Pin.Algo != name {
						t.Errorf("%v, want %s", d, name)
					}
				}
			}
			if sum < 5 { // five collectives of the largest size have space
				t.Errorf("%d ranks on %d GPUs: a batch has only %d collectives by %s, of kinds %v", c.ranks, c.gpus, sum, name,
					r.kinds)
			}
			for k := 0; strings.HasSuffix(name, "-host") && !r.goesByHost(l); r.fill(1, 20) {
				if k++; k == 20 { // a third of 20 batches use few thread blocks for host memory
					t.Errorf("%d ranks on %d GPUs: no collective by %s uses host memory", c.ranks, c.gpus, name)
					break
				}
			}
		}
		r.kinds, r.limits.kinds = nil, len(names)-len(c.without)
		r.probe(true)
		r.drawKinds(names)
		r.probe(false)
		drawn := map[string]int{}
		for k := 0; k < 4*16; k += 16 { // batches with NCCL
			r.fill(k+1, 60)
			for _, lane := range r.lanes {
				for _, d := range lane.list {
					drawn[d.inst.Pin.Algo]++
				}
			}
		}
		for _, name := range names {
			if drawn[name] == 0 && c.without[name] == "" {
				t.Errorf("%d ranks on %d GPUs: no collective is drawn by %s, of %v", c.ranks, c.gpus, name, drawn)
			}
		}
		r.must(w.Close())
	}
}

// goesByHost reports whether a collective of the batch uses host memory.
func (r *drawRig) goesByHost(l *meetings) bool {
	r.probe(true)
	defer r.probe(false)
	l.got = nil
	for _, lane := range r.lanes {
		for _, d := range lane.list {
			launches, err := lane.probe.Prepare(d.inst.Pin, &d.inst.Collective)
			r.must(err)
			for _, x := range launches {
				if x != nil {
					x.Release()
				}
			}
		}
	}
	return slices.ContainsFunc(l.got, func(m kernels.Meeting) bool {
		s := strings.ToLower(m.Symbol)
		return strings.Contains(s, "host") || strings.Contains(s, "results")
	})
}

// TestTeamMoveAbsent issues a collective on all members but one, for each algorithm that moves or reduces blocks. The
// world then ends in time with an error that names the missing member, and the next world of the same process works.
func TestTeamMoveAbsent(t *testing.T) {
	const timeout = 300 * time.Millisecond
	m := real(t, Options{TeamTimeout: timeout, RanksPerGPU: 2, teamsApart: true})
	devicetest.NeedGPUs(t, len(m.sys.GPUs), 2, nil)
	allByHost(m, coll.HostPart{Permille: 150, Writers: 4, Readers: 8}) // the test's blocks, too, go through host memory
	for k, name := range moveAlgorithmNames() {
		if name == ncclName {
			continue
		}
		n, count := 2, int64(5000)
		switch name {
		case "move-spread":
			n = 4 // the algorithm needs three members; teams have two or four ranks
		case "move-sum-host":
			count = 400_000 // large enough that a few per cent are a chunk
		}
		w, err := m.Open(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		r := &drawRig{T: t, w: w, limits: drawLimits{longest: 4 * count}, rng: rand.New(rand.NewPCG(uint64(k), 1)),
			encoded: map[ir.DType][]byte{}, done: map[string]int{}}
		r.dispatch = comm.NewDispatch(w, m.Caps(), nil, comm.Policy{})
		r.open(n)
		r.probe(true)
		var ds []*drawn
		for _, op := range drawOps[1:] {
			kind := drawKind{op: op, dt: ir.BF16, align: 8, tune: device.Tuning{Algo: name}}
			if reducing(op) {
				kind.red = ir.Sum
			}
			if d := r.place(kind, count); r.supports(d) == nil {
				ds = append(ds, d)
			}
		}
		r.probe(false)
		if len(ds) == 0 {
			t.Errorf("%s accepts no collective", name)
			continue
		}
		l := r.lanes[0]
		l.list = []*drawn{ds[k%len(ds)]}
		r.design(l)
		r.openLane(l)
		r.upload([]*drawLane{l})
		r.must(r.issue([]*drawLane{l}, 0, func(int) bool { return true }))
		r.compare([]*drawLane{l})
		absent := k % 2
		began := time.Now()
		for i := range n {
			if i != absent {
				r.must(l.ch.Issue(0, i, 1))
			}
		}
		err = w.Sync(t.Context())
		var fault *device.Fault
		if took := time.Since(began); !errors.As(err, &fault) || fault.Rank == absent ||
			!strings.Contains(err.Error(), fmt.Sprintf("member %d (rank %d)", absent, absent)) ||
			took > timeout+time.Second {
			t.Errorf("%s by %s: after %v: %v", l.list[0].op, name, took, err)
		}
		t.Logf("%s: %v", l.list[0].op, err)
		r.must(w.Close())
	}
}

// TestFlagHalves checks that the two halves of the flags of the move algorithms have the size that kernels assume.
// Kernels clear one half when launch numbers wrap around, while they use the other half.
func TestFlagHalves(t *testing.T) {
	f := fakedriver.New(t, 1)
	w, err := newMachine(system(f), Options{Kernels: f}).Open(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	a, err := teamOf(t, w.(*world), "main").halves("flags of moves", kernels.MoveFlagBytes)
	if err != nil || a.Bytes != 2*kernels.MoveFlagBytes {
		t.Errorf("%+v, %v: kernels assume halves of %d bytes", a, err, kernels.MoveFlagBytes)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}
