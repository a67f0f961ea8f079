package cuda

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device/cuda/process"
	"hocket.example/hocket/internal/device/devicetest"
	"hocket.example/hocket/internal/nvlib"
)

// The tests in this file load and evict plans of two processes, with a small limit for loaded plans, and let one
// process run out of memory.

var roundsFlag = flag.Int("rounds", 200, "how many rounds TestRealPeerRounds has")

// peerRounds is a sequence of loads and runs of plans. Both processes execute the sequence. In its last part, the
// process of rank 1 allocates memory itself, so that loads run out of memory.
type peerRounds struct {
	Rounds int
	Big    int64 // number of rows of a program that does not fit while memory is withheld
	Leave  int64 // bytes that remain free then
}

// roundCache is the limit for loaded plans in bytes, less than the memory of two plans of roundRows.
const roundCache = 8 << 20

var roundRows = []int64{8192, 6144, 7000, 4096, 8190, 5000}

// run executes the sequence. It appends to r the outcome of each step, and the GPU's memory use after each round.
func (x peerRounds) run(t *testing.T, sys *process.Shared, m *hocket.Machine, rank int, r *peerResult) error {
	prog, err := hocket.Parse("peer.hkt", peerProgram)
	if err != nil {
		return err
	}
	opts := hocket.LoadOptions{Gather: true, Cache: roundCache}
	model, err := m.Load(prog, hocket.Binding{Func: "f"}, opts)
	if err != nil {
		return err
	}
	step := func(rows int64) {
		outcome := "right"
		switch err := doubleRows(t, model, prog, rows); {
		case errors.Is(err, hocket.ErrOutOfMemory):
			outcome = "out of memory"
			r.Short = append(r.Short, err.Error())
		case err != nil:
			outcome = err.Error()
		}
		r.Outcomes = append(r.Outcomes, fmt.Sprintf("%d rows: %s", rows, outcome))
	}
	gpu := sys.GPUs[rank]
	for i := range x.Rounds {
		step(roundRows[i%len(roundRows)])
		other, err := m.Load(prog, hocket.Binding{Func: "g", Dims: map[string]int64{"T": 64 << (i % 2)}}, opts)
		if err != nil {
			return err
		}
		if err := errors.Join(other.Prepare(t.Context(), nil), other.Close()); err != nil {
			return err
		}
		if err := gpu.Bound(func() error {
			free, all, err := sys.Driver.MemInfo()
			r.Used = append(r.Used, all-free)
			return err
		}); err != nil {
			return err
		}
	}
	r.Evictions = m.Stats().Plans.Evictions
	giveBack := func() error { return nil }
	if rank == 1 {
		if giveBack, err = withhold(sys.Driver, gpu.Device, gpu.Bound, x.Leave); err != nil {
			return err
		}
	}
	for _, rows := range []int64{roundRows[0], roundRows[1], x.Big, roundRows[2], x.Big} {
		step(rows)
	}
	if err := giveBack(); err != nil {
		return err
	}
	step(x.Big)
	step(roundRows[3])
	return nil
}

// withhold allocates all memory of a device except the number of bytes leave.
func withhold(drv *nvlib.Driver, dev nvlib.Device, bound func(func() error) error, leave int64) (func() error, error) {
	type block struct {
		handle nvlib.MemHandle
		bytes  int64
	}
	var blocks []block
	release := func(until int64) error { // frees allocations
		return bound(func() error {
			for back := int64(0); back < until && len(blocks) > 0; {
				last := blocks[len(blocks)-1]
				if err := drv.ReleaseMem(last.handle); err != nil {
					return err
				}
				back += last.bytes
				blocks = blocks[:len(blocks)-1]
			}
			return nil
		})
	}
	err := bound(func() error {
		for bytes := int64(1 << 30); bytes >= 2<<20; {
			h, err := drv.CreateMem(dev, bytes, false)
			switch {
			case err == nil:
				blocks = append(blocks, block{h, bytes})
			case nvlib.CUDACode(err) == nvlib.CUDAOutOfMemory:
				bytes /= 8
			default:
				return err
			}
		}
		return nil
	})
	return func() error { return release(math.MaxInt64) }, errors.Join(err, release(leave))
}

// doubleRows runs the function f for the given number of rows, and checks the result.
func doubleRows(t *testing.T, model *hocket.Model, prog *hocket.Program, rows int64) error {
	x, err := hocket.NewTensor(prog.IR().Funcs[0].Params[0].Type.DType, rows, 64)
	if err != nil {
		return err
	}
	for i := range len(x.Data) / 4 {
		binary.LittleEndian.PutUint32(x.Data[4*i:], math.Float32bits(float32(int64(i)%997+rows%89)))
	}
	r, err := model.Run(t.Context(), hocket.Args{In: map[string]*hocket.Tensor{"x": x}})
	if err != nil {
		return err
	}
	y := r.Out[r.OutNames[0]]
	for i := range len(x.Data) / 4 {
		want := 2 * float32(int64(i)%997+rows%89)
		if got := math.Float32frombits(binary.LittleEndian.Uint32(y.Data[4*i:])); got != want {
			return fmt.Errorf("element %d is %v, want %v", i, got, want)
		}
	}
	return nil
}

// wantRounds executes the same rounds in two processes, and checks the outcomes.
func wantRounds(t *testing.T, j peerJob) {
	t.Helper()
	all := runPeers(t, 2, j)
	for rank, r := range all {
		if r.Err != "" {
			t.Errorf("process %d: %s", rank, r.Err)
		}
		if least := int64(j.Rounds.Rounds - len(roundRows)); r.Evictions < least {
			t.Errorf("process %d: %d plans were unloaded to make room, want %d", rank, r.Evictions, least)
		}
		const some = 20
		if n := len(r.Used); n < 2*some {
			t.Errorf("process %d: memory use was recorded %d times", rank, n)
		} else {
			first, last := slices.Max(r.Used[:some]), slices.Max(r.Used[n-some:])
			t.Logf("process %d: %d rounds, %d plans evicted, %d MiB in the first %d, %d MiB in the last",
				rank, n, r.Evictions, first>>20, some, last>>20)
			if last > first {
				t.Errorf("process %d: %d bytes more are in use on its GPU at the end", rank, last-first)
			}
		}
		var outcomes []string
		for i := range j.Rounds.Rounds {
			outcomes = append(outcomes, fmt.Sprintf("%d rows: right", roundRows[i%len(roundRows)]))
		}
		for _, s := range []string{"8192 rows: right", "6144 rows: right", "BIG rows: out of memory",
			"7000 rows: right", "BIG rows: out of memory", "BIG rows: right", "4096 rows: right"} {
			outcomes = append(outcomes, strings.ReplaceAll(s, "BIG", fmt.Sprint(j.Rounds.Big)))
		}
		for i, want := range outcomes {
			if i >= len(r.Outcomes) || r.Outcomes[i] != want {
				t.Errorf("process %d: outcomes %q, want %q at index %d", rank, r.Outcomes[min(i, len(r.Outcomes)):], want, i)
				break
			}
		}
	}
	for _, text := range all[0].Short {
		if !strings.Contains(text, "process 1") && !strings.Contains(text, "rank 1") {
			t.Errorf("the error of process 0 does not name the process without memory: %s", text)
		}
	}
}

// TestPeerRounds checks on fake drivers that, if one process runs out of memory, all processes return the same errors,
// and that there are no other errors.
func TestPeerRounds(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long under the race detector")
	}
	t.Parallel()
	wantRounds(t, peerJob{GPUs: 2, PerGPU: 1, Limit: 256 << 20, Rounds: &peerRounds{40, 1 << 16, 24 << 20}})
}

// TestRealPeerRounds checks on two real GPUs, in addition, that memory use does not grow from round to round.
func TestRealPeerRounds(t *testing.T) {
	devicetest.NeedGPUs(t, len(real(t, Options{}).sys.GPUs), 2, nil)
	wantRounds(t, peerJob{Real: true, Rounds: &peerRounds{*roundsFlag, 1 << 19, 96 << 20}})
}
