package kernels

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/internal/schedule"
	"hocket.example/hocket/internal/schedule/msccl"
	"hocket.example/hocket/internal/schedule/mscclpp"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/testcorpus"
	"hocket.example/hocket/ir"
)

func lowered(t *testing.T, path string) (*device.Schedule, error) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var f schedule.File
	if msccl.IsAlgorithm(string(text)) {
		f, err = msccl.Parse(text)
	} else {
		f, err = mscclpp.Parse(text)
	}
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Plan()
	if err != nil {
		t.Fatal(err)
	}
	return schedule.Lower(p)
}

// ofCorpus returns the schedules of other tools in the corpus, for at most the given number of ranks, that are listed
// as correct.
func ofCorpus(t *testing.T, ranks int) []string {
	t.Helper()
	dir := testcorpus.Folder(t, "schedules")
	if dir == "" {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(dir, "verdicts.json"))
	if err != nil {
		t.Fatal(err)
	}
	var verdicts map[string]struct {
		Verdict string `json:"verdict"`
	}
	if err := json.Unmarshal(text, &verdicts); err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, folder := range []string{"plans", "xml"} {
		files, err := filepath.Glob(filepath.Join(dir, folder, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			n := strings.Count(string(text), `"input_chunks"`) + strings.Count(string(text), "<gpu ")
			if verdicts[filepath.Base(f)].Verdict == "ok" && n <= ranks && n > 1 {
				list = append(list, f)
			}
		}
	}
	return list
}

// TestSchedules executes schedules of other tools as kernels, three launches each, and compares the results with simple
// computations.
func TestSchedules(t *testing.T) {
	t.Parallel()
	list := []string{"../../examples/schedules/exchange.json", "../schedule/testdata/pair.xml"}
	own, all := len(list), ofCorpus(t, 4)
	if longtest.On() {
		list = append(list, all...)
	} else {
		for _, f := range all {
			if slices.Contains([]string{"sn_allreduce_pkt_n2.json", "et_reduce_nvls_pipeline_n2.json", "mn_reducescatter_g1.json",
				"mn_allgather_pkt_g1.json"}, filepath.Base(f)) {
				list = append(list, f)
			}
		}
	}
	groups := map[int][]*device.Schedule{}
	for i, path := range list { // the first schedules are hocket's own
		s, err := lowered(t, path)
		if err != nil && i < own {
			t.Fatalf("%s: %v", path, err)
		} else if err != nil {
			t.Logf("%s: %v", filepath.Base(path), err)
			continue
		}
		s.Name = filepath.Base(path)
		groups[s.Members] = append(groups[s.Members], s)
	}
	for members, list := range groups {
		for i := 0; i < len(list); i += 12 {
			testSchedules(t, members, list[i:min(i+12, len(list))], FirstEpoch+uint32(i%2)*(math.MaxUint32-6))
		}
	}
}

func testSchedules(t *testing.T, members int, list []*device.Schedule, epoch uint32) {
	b := newTeamBench(t, members, epoch)
	rng := rand.New(rand.NewPCG(uint64(members), uint64(len(list))))
	var packets, words int64
	for _, s := range list {
		packets, words = max(packets, int64(s.Areas[device.SchedulePackets])*2*32), max(words, ScheduleWords(s))
	}
	packetAt, wordAt := b.halves(roundTo(packets, 16), staleBefore(epoch)), b.halves(roundTo(words, 16), 0)
	var checks []func(int)
	for _, s := range list {
		for turn := range 2 {
			k := &Scheduled{Schedule: s, DType: []ir.DType{ir.F32, ir.BF16}[turn], Cell: 16 << turn, Threads: 32, Words: wordAt,
				WordHalf: roundTo(words, 16), PacketHalf: roundTo(packets, 16)}
			k.At[device.SchedulePackets] = packetAt
			checks = append(checks, b.addSchedule(k, rng))
		}
	}
	b.runChecks(2, checks)
}

// addSchedule launches a schedule on all members, and returns a function that checks the results.
func (b *teamBench) addSchedule(k *Scheduled, rng *rand.Rand) func(seed int) {
	s, per := k.Schedule, int64(k.Cell)/k.DType.Size()
	sizes := s.Areas
	sizes[device.ScheduleIn], sizes[device.ScheduleOut] = s.In, s.Out
	if s.Joint {
		sizes[device.ScheduleIn], sizes[device.ScheduleOut] = s.Size, 0
	}
	ins, outs := make([][]float64, s.Members), make([]Operand, s.Members)
	for m := range s.Members {
		for area, cells := range sizes {
			if device.ScheduleArea(area) != device.SchedulePackets {
				k.At[area] = append(k.At[area], b.alloc(int64(max(cells, 1))*k.Cell))
			}
		}
		in, out := k.At[device.ScheduleIn][m], k.At[device.ScheduleOut][m]
		if s.Joint {
			in, out = in+nvlib.Ptr(int64(s.InAt[m])*k.Cell), k.At[device.ScheduleIn][m]+nvlib.Ptr(int64(s.OutAt[m])*k.Cell)
		}
		for range int64(s.In) * per {
			ins[m] = append(ins[m], float64(rng.IntN(33)-16))
		}
		enc := make([]byte, int64(len(ins[m]))*k.DType.Size())
		tensor.FromFloat64(enc, ins[m], k.DType)
		copy(b.mem[int64(in)-memoryAt:], enc)
		outs[m] = Operand{Addr: out, DType: k.DType, Shape: []int64{int64(s.Out) * per}, Strides: []int64{1}}
	}
	for m := range s.Members {
		b.launch(m, k.Meeting(m))
	}
	return func(seed int) {
		n := int64(s.In) * per
		for m, o := range outs {
			for i, got := range b.vals(o) {
				want := 0.0
				switch i := int64(i); s.Op {
				case ir.OpAllReduce, ir.OpReduceScatter:
					if s.Op == ir.OpReduceScatter {
						i += int64(m) * int64(s.Out) * per
					}
					for r := range ins {
						want += ins[r][i]
					}
				case ir.OpAllGather:
					want = ins[i/n][i%n]
				case ir.OpAllToAll:
					each := n / int64(s.Members)
					want = ins[i/each][int64(m)*each+i%each]
				}
				if got != want {
					b.t.Fatalf("seed %d: %s of %s, member %d, element %d: got %v, want %v", seed, s.Name, k.DType, m, i, got, want)
				}
			}
		}
	}
}

// gatherByPackets returns an all_gather in which each member sends its cell to all members as packets, which they
// unpack.
func gatherByPackets(members int) *device.Schedule {
	s := &device.Schedule{Name: "gather", Op: ir.OpAllGather, Members: members, Blocks: 1, In: 1, Out: members,
		Closes: true}
	s.Areas[device.SchedulePackets] = members
	for m := range members {
		var steps []device.ScheduleStep
		move := func(from, to device.ScheduleSpan) {
			steps = append(steps, device.ScheduleStep{Kind: device.ScheduleMove, Cells: 1, Packed: true,
				From: []device.ScheduleSpan{from}, To: []device.ScheduleSpan{to}})
		}
		for to := range members {
			move(device.ScheduleSpan{Area: device.ScheduleIn, Member: m},
				device.ScheduleSpan{Area: device.SchedulePackets, Member: to, Cell: m})
		}
		for from := range members {
			move(device.ScheduleSpan{Area: device.SchedulePackets, Member: m, Cell: from},
				device.ScheduleSpan{Area: device.ScheduleOut, Member: m, Cell: from})
		}
		s.Steps = append(s.Steps, [][]device.ScheduleStep{steps})
	}
	return s
}

// TestScheduleLate starts all members but one: they time out and report which member they waited for.
func TestScheduleLate(t *testing.T) {
	t.Parallel()
	s := gatherByPackets(3)
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	b := newTeamBench(t, 3, FirstEpoch)
	b.timeout = 3 * time.Microsecond
	packets, words := roundTo(3*2*16, 16), roundTo(ScheduleWords(s), 16)
	k := &Scheduled{Schedule: s, DType: ir.F32, Cell: 16, Threads: 32, PacketHalf: packets, WordHalf: words}
	k.At[device.SchedulePackets], k.Words = b.halves(packets, staleBefore(FirstEpoch)), b.halves(words, 0)
	b.addSchedule(k, rand.New(rand.NewPCG(1, 2)))
	b.runLate("schedule")
}

// TestScheduleCheck checks that a step that accesses memory outside the schedule's areas is refused.
func TestScheduleCheck(t *testing.T) {
	s, err := lowered(t, "../../examples/schedules/exchange.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	moves := 0
	for _, blocks := range s.Steps {
		for _, steps := range blocks {
			for i := range steps {
				st := &steps[i]
				spoil := func(what string, field *int, v int) {
					old := *field
					*field = v
					if s.Check() == nil {
						t.Errorf("%s %d was accepted", what, v)
					}
					*field = old
				}
				switch st.Kind {
				case device.ScheduleMove:
					moves++
					spoil("cells", &st.Cells, 1<<20)
					spoil("cells", &st.Cells, -1)
					spoil("source", &st.From[0].Cell, s.In)
					spoil("member", &st.To[0].Member, s.Members)
				case device.ScheduleRaise, device.ScheduleAwait:
					spoil("counter", &st.Counter, s.Counters)
					spoil("counter", &st.Counter, -1)
					spoil("member", &st.Member, -1)
					spoil("thread", &st.Thread, 32)
				}
			}
		}
	}
	if moves == 0 {
		t.Error("the schedule has no moves to test")
	}
	s.Blocks, s.Steps = 0, make([][][]device.ScheduleStep, s.Members)
	if s.Check() == nil {
		t.Error("a schedule without blocks was accepted")
	}
}
