package kernels

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// teamBench runs launches of a team's members on a CPU, one stream for each member. The seed determines the order in
// which threads continue. A member may run ahead of others as far as the kernels permit.
type teamBench struct {
	*bench
	control, record []nvlib.Ptr
	abort           nvlib.Ptr
	timeout         time.Duration
	streams         [][]Meeting
	regions         int
	joined          []joined
}

// joined emulates multicast memory: one address for the memory of several members.
type joined struct {
	at, bytes int64
	parts     []nvlib.Ptr
}

func newTeamBench(t *testing.T, members int, epoch uint32) *teamBench {
	b := &teamBench{bench: newBench(t), timeout: time.Hour, streams: make([][]Meeting, members)}
	b.abort = b.zeros(8)
	for range members {
		c := b.zeros(ControlBytes)
		for i := range BlocksMost {
			b.word32(c+ControlEpochs+nvlib.Ptr(4*i), epoch)
		}
		b.control = append(b.control, c)
		b.record = append(b.record, b.zeros(FaultBytes))
	}
	return b
}

func (b *teamBench) zeros(n int64) nvlib.Ptr {
	at := b.alloc(n)
	clear(b.mem[int64(at)-memoryAt:])
	return at
}

func (b *teamBench) word32(at nvlib.Ptr, v uint32) {
	binary.LittleEndian.PutUint32(b.mem[int64(at)-memoryAt:], v)
}

func (b *teamBench) word64(at nvlib.Ptr, v uint64) {
	binary.LittleEndian.PutUint64(b.mem[int64(at)-memoryAt:], v)
}

// halves allocates, on every member, a region of two halves, filled with the value of an outdated flag.
func (b *teamBench) halves(half int64, stale uint32) []nvlib.Ptr {
	var at []nvlib.Ptr
	for m := range b.streams {
		p := b.zeros(2 * half)
		for i := int64(0); i < 2*half; i += 4 {
			b.word32(p+nvlib.Ptr(i), stale)
		}
		entry := b.control[m] + ControlRegions + 4 + nvlib.Ptr(16*b.regions)
		b.word64(entry, uint64(p))
		b.word64(entry+8, uint64(half))
		b.word32(b.control[m]+ControlRegions, uint32(b.regions+1))
		at = append(at, p)
	}
	b.regions++
	return at
}

func (b *teamBench) launch(member int, m Meeting) {
	m.Team = Team{Rank: member, Control: b.control, Abort: b.abort, Record: b.record[member], Timeout: b.timeout.Nanoseconds()}
	b.streams[member] = append(b.streams[member], m)
}

// teamProgram returns a program with all kernels, and the numbers of the kernels by symbol.
func (b *teamBench) teamProgram() (string, map[string]uint64) {
	var s, table strings.Builder
	index, files := map[string]uint64{}, map[string]bool{}
	s.WriteString("#include \"emulate_meeting.h\"\n" + file("prelude"))
	for _, m := range slices.Concat(b.streams...) {
		c := m.launch().code
		if _, done := index[c.symbol]; done {
			continue
		}
		for _, f := range c.files {
			if !files[f] {
				s.WriteString(file(f))
			}
			files[f] = true
		}
		s.WriteString(c.entry())
		index[c.symbol] = uint64(len(index))
		fmt.Fprintf(&table, "{[](const u64* w) { %s(*(const %s*)w); }, true},\n", c.symbol, c.args)
	}
	fmt.Fprintf(&s, "#include \"emulate_meeting_main.h\"\nEntry entries[] = {\n%s};\n", table.String())
	return s.String(), index
}

// runTeam runs all streams once for each seed, each time with the same initial memory contents, and calls check on the
// result.
func (b *teamBench) runTeam(seeds int, check func(seed int)) {
	b.t.Helper()
	text, index := b.teamProgram()
	exe := b.compile(text)
	before := slices.Clone(b.mem)
	for seed := range seeds {
		var in bytes.Buffer
		put := func(v ...uint64) { _ = binary.Write(&in, binary.LittleEndian, v) }
		put(memoryAt, uint64(len(before)))
		in.Write(before)
		put(uint64(len(b.joined)))
		for _, j := range b.joined {
			put(uint64(j.at), uint64(j.bytes), uint64(len(j.parts)))
			for _, p := range j.parts {
				put(uint64(p))
			}
		}
		put(uint64(seed), uint64(len(b.streams)))
		for _, s := range b.streams {
			put(uint64(len(s)))
			for _, m := range s {
				l := m.launch()
				put(index[l.code.symbol], uint64(m.Blocks), uint64(m.Threads), uint64(len(l.args)))
				put(l.args...)
			}
		}
		ctx, cancel := context.WithTimeout(b.t.Context(), 10*time.Minute)
		cmd := exec.CommandContext(ctx, exe)
		var out, errs bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = &in, &out, &errs
		err := cmd.Run()
		cancel()
		if err != nil || out.Len() != len(before) {
			b.t.Fatalf("seed %d: the kernels failed: %v, %d of %d bytes\n%s", seed, err, out.Len(), len(before), errs.String())
		}
		b.mem = out.Bytes()
		check(seed)
	}
}

// reduceCase is an all_reduce by any of the algorithms.
type reduceCase struct {
	kind            ReduceBy
	dt              ir.DType
	red             ir.Red
	unroll          int
	count           int64
	blocks, threads int
	odd             bool // operands are not aligned
	inPlace         bool
}

func (c reduceCase) String() string {
	return fmt.Sprintf("%s %s %s unroll=%d count=%d %dx%d odd=%v inplace=%v", c.kind, c.dt, c.red, c.unroll, c.count, c.blocks, c.threads, c.odd, c.inPlace)
}

// size sets the values that the host determines: the share of each member, and the required bytes.
func (c reduceCase) size(members int64) (r AllReduce, half int64) {
	bytes := c.count * c.dt.Size()
	r = AllReduce{By: c.kind, DType: c.dt, Red: c.red, Unroll: c.unroll, Blocks: c.blocks, Threads: c.threads, Count: c.count}
	rows := 512 * int64(c.unroll)
	switch c.kind.(type) {
	case AllReduceLL:
		r.Share = ceil(bytes, 8)
		half = members * r.Share * 16
	case AllReduceLL2:
		r.Share = ceil(ceil(bytes, 8), members)
		half = 2 * members * r.Share * 16
	case AllReduceLL128:
		r.Share = ceil(ceil(bytes, 16), LL128Packs(c.unroll))
		half = members * r.Share * rows
		r.Blocks = int(min(int64(r.Blocks), r.Share))
	case AllReduceLL128x2:
		r.Share = ceil(ceil(ceil(bytes, 16), LL128Packs(c.unroll)), members)
		half = 2 * members * r.Share * rows
		r.Blocks = int(min(int64(r.Blocks), r.Share))
	case AllReducePush:
		r.Share = ceil(ceil(bytes, 16), members)
		chunks := ceil(r.Share, int64(c.threads*c.unroll))
		r.Blocks = int(min(int64(r.Blocks), chunks))
		r.Slots = chunks + BlocksMost
		half = members * r.Share * 16
	default:
		r.Share = ceil(ceil(bytes, 16), members)
		r.Slots = 2 * BlocksMost
	}
	switch c.kind.(type) {
	case AllReduceLL, AllReduceLL2:
		r.Blocks = int(min(int64(r.Blocks), ceil(r.Share, int64(c.threads*c.unroll))))
	}
	return r, half
}

// addReduce adds the launches of c on all members, and returns a function that checks the results.
func (b *teamBench) addReduce(c reduceCase, rng *rand.Rand, data, flags []nvlib.Ptr, half, flagHalf int64) func(seed int) {
	members := len(b.streams)
	r, _ := c.size(int64(members))
	r.Data, r.Half, r.Flags, r.FlagHalf = data, half, flags, flagHalf
	off := int64(0)
	if c.odd {
		off = 1
	}
	lay := layout{"", func(s []int64) ([]int64, int64) { return rowMajor(s), off }}
	var ins [][]float64
	var outs []Operand
	for range members {
		vals := make([]float64, c.count)
		for i := range vals {
			vals[i] = tensor.Round(c.dt, float64(rng.IntN(2001)-1000)/8)
			if c.dt.IsInt() {
				vals[i] = float64(rng.IntN(2001) - 1000)
			}
		}
		in := b.put(c.dt, lay, vals, c.count)
		out := in
		if !c.inPlace {
			out = b.room(c.dt, lay, c.count)
		}
		ins, outs = append(ins, vals), append(outs, out)
		r.In, r.Out = append(r.In, in.Addr), append(r.Out, out.Addr)
	}
	for m := range members {
		b.launch(m, r.Meeting(m))
	}
	want := make([]float64, c.count)
	x := make([]float64, members)
	for i := range want {
		for m := range x {
			x[m] = ins[m][i]
		}
		want[i] = folded(c.dt, c.red, x)
	}
	return func(seed int) {
		for m, o := range outs {
			got := b.vals(o)
			for i := range want {
				if math.Float64bits(got[i]) != math.Float64bits(want[i]) {
					b.t.Fatalf("seed %d, %s, member %d of %d, element %d: got %v, want %v", seed, c, m, members, i, got[i], want[i])
				}
			}
		}
	}
}

// folded returns the result of the reduction: the operands in the order of the members, computed in the accumulator's
// type and rounded once.
func folded(dt ir.DType, red ir.Red, x []float64) float64 {
	acc := func(v float64) float64 {
		if dt.Accum() == ir.F32 {
			return float64(float32(v))
		}
		return v
	}
	v := x[0]
	for _, y := range x[1:] {
		switch red {
		case ir.Max:
			v = max(v, y)
		case ir.Min:
			v = min(v, y)
		default:
			v = acc(v + y)
		}
	}
	if red == ir.Avg {
		if v = v / float64(len(x)); dt.IsInt() {
			return math.Trunc(v) + 0
		}
		v = acc(v)
	}
	return tensor.Round(dt, v)
}

var reduceKinds = []ReduceBy{AllReduceLL{}, AllReduceLL2{}, AllReduceLL128{}, AllReduceLL128x2{}, AllReducePush{}, AllReducePull{},
	AllReduceSMLimited{}}

// TestAllReduce runs mixed sequences of all_reduces on 2, 3 and 8 members, through the same memory, in random orders.
func TestAllReduce(t *testing.T) {
	ofTeams(t, []int{2, 3, TeamMost}, testAllReduce)
}

func testAllReduce(t *testing.T, members int, epoch uint32) {
	b := newTeamBench(t, members, epoch)
	rng := drawn(b.t, uint64(members), uint64(epoch))
	var cases []reduceCase
	var halves = map[string]int64{}
	var flagHalf int64
	place := map[string]string{"LL": "ll", "LL2": "ll", "LL128": "ll128", "LL128x2": "ll128", "Push": "staging"}
	for _, kind := range reduceKinds {
		for range 3 {
			c := reduceCase{kind: kind, dt: []ir.DType{ir.F32, ir.F16, ir.BF16, ir.I32, ir.I64}[rng.IntN(5)], red: ir.Sum + ir.Red(rng.IntN(4)),
				unroll: []int{1, 2, 4}[rng.IntN(3)], count: int64(1 + rng.IntN(2000)), blocks: 1 + rng.IntN(3), threads: 32 * (1 + rng.IntN(2))}
			if rng.IntN(4) == 0 {
				c.count = int64(1 + rng.IntN(9))
			}
			at := place[kind.String()]
			c.odd = rng.IntN(2) == 0 && at != "staging" && at != ""
			c.inPlace = rng.IntN(2) == 0
			cases = append(cases, c)
			r, half := c.size(int64(members))
			halves[at] = max(halves[at], half)
			flagHalf = max(flagHalf, int64(members)*r.Slots*4)
		}
	}
	rng.Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
	data := map[string][]nvlib.Ptr{}
	for _, name := range []string{"ll", "ll128"} {
		data[name] = b.halves(roundTo(halves[name], 16), staleBefore(epoch))
	}
	for range members {
		data["staging"] = append(data["staging"], b.alloc(halves["staging"]))
	}
	flags := b.halves(roundTo(flagHalf, 16), staleBefore(epoch))
	var checks []func(int)
	for _, c := range cases {
		name := place[c.kind.String()]
		if name == "" {
			name = "staging"
		}
		checks = append(checks, b.addReduce(c, rng, data[name], flags, roundTo(halves[name], 16), roundTo(flagHalf, 16)))
	}
	b.runChecks(2, checks)
}

func roundTo(n, to int64) int64 { return ceil(n, to) * to }

// TestLate starts all members but one: they time out and report which member they waited for.
func TestLate(t *testing.T) {
	t.Parallel()
	for _, kind := range reduceKinds {
		b := newTeamBench(t, 3, FirstEpoch)
		b.timeout = 3 * time.Microsecond
		c := reduceCase{kind: kind, dt: ir.F32, red: ir.Sum, unroll: 1, count: 200, blocks: 2, threads: 32}
		r, half := c.size(3)
		data, flags := b.halves(roundTo(max(half, 16), 16), 0), b.halves(roundTo(max(12*r.Slots, 16), 16), 0)
		b.addReduce(c, rand.New(rand.NewPCG(1, 2)), data, flags, roundTo(max(half, 16), 16), roundTo(max(12*r.Slots, 16), 16))
		b.runLate(kind.String())
	}
}

// runLate starts two of three members, without member 1. The members that wait for it must report it.
func (b *teamBench) runLate(what string) {
	b.streams[1] = nil
	b.runTeam(2, func(seed int) {
		told := 0
		for m := range 3 {
			f, ok := ReadFault(b.mem[int64(b.record[m])-memoryAt:])
			if !ok {
				continue
			}
			told++
			if m == 1 || f.Kind != FaultTimeout || f.Words[0] != FirstEpoch+1 || f.Words[1] != 1 || f.Words[2] < b.timeout.Nanoseconds() {
				b.t.Errorf("%s, seed %d: member %d reported %+v", what, seed, m, f)
			}
		}
		if told == 0 {
			b.t.Errorf("%s, seed %d: no member reported the absent member", what, seed)
		}
	})
}

// TestMeetingsHash checks that MeetingsHash covers every source file of kernels in which members wait for each other.
// Measurements of teams are valid only while these files are unchanged.
func TestMeetingsHash(t *testing.T) {
	meetings := 0
	for _, c := range everyCode(t, "sm_90a") {
		if c.threads == 0 {
			continue
		}
		meetings++
		for _, f := range c.files {
			if f != "sync" && !strings.HasPrefix(f, "collective") {
				t.Errorf("%s uses %s, which is not in the hash", c.symbol, f)
			}
		}
	}
	if meetings == 0 {
		t.Error("there are no kernels in which members wait for each other")
	}
	if got := string(withoutComments([]byte("// a\nint x; // b\n  // c\nint y;\n"))); got != "\nint x;\nint y;\n" {
		t.Errorf("without comments: %q", got)
	}
	comments := regexp.MustCompile(`\s*//[^\n]*`)
	for name, b := range map[string][]byte{"move": []byte(file("collective_move")), "ends in a comment": []byte("x; // y")} {
		if got, want := withoutComments(b), comments.ReplaceAll(b, nil); !bytes.Equal(got, want) {
			t.Errorf("%s without comments: %q, want %q", name, got, want)
		}
	}
}
