package cuda

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/internal/schedule"
	"hocket.example/hocket/internal/schedule/msccl"
	"hocket.example/hocket/internal/schedule/mscclpp"
	"hocket.example/hocket/ir"
)

// exchangeSchedule returns an all_reduce of two ranks by puts, in place, or by sends.
func exchangeSchedule(t *testing.T, inPlace bool) *device.Schedule {
	t.Helper()
	var f schedule.File
	var err error
	if inPlace {
		text, err := os.ReadFile("../../../examples/schedules/exchange.json")
		mustOf(t)(err)
		f, err = mscclpp.Parse(text)
		mustOf(t)(err)
	} else {
		text := `<algo name="pair" proto="Simple" nchannels="1" nchunksperloop="2" ngpus="2" coll="allreduce" inplace="0">`
		for r := range 2 {
			text += fmt.Sprintf(`<gpu id="%d" i_chunks="2" o_chunks="2" s_chunks="0"><tb id="0" send="%d" recv="%[2]d" chan="0">
<step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="2" depid="-1" deps="-1" hasdep="0"/>
<step s="1" type="rrc" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="2" depid="-1" deps="-1" hasdep="0"/></tb></gpu>`, r, 1-r)
		}
		f, err = msccl.Parse([]byte(text + "</algo>"))
		mustOf(t)(err)
	}
	p, err := f.Plan()
	mustOf(t)(err)
	s, err := schedule.Lower(p)
	mustOf(t)(err)
	if s.Joint != inPlace {
		t.Fatalf("in place: %v", s.Joint)
	}
	return s
}

// TestExecutorLayouts checks in which memory a schedule accesses its operands. It accesses operands in place if their
// parts are whole lines, and otherwise on copies. For a schedule in place the input is copied to the result. Words 0 to
// 15 of a launch are the addresses of inputs and outputs, and word 50 is the size of a part.
func TestExecutorLayouts(t *testing.T) {
	l, w, tm := noted(t, 2, 2)
	for _, c := range []struct {
		inPlace     bool
		count       int64 // number of bf16 elements
		off         int64
		steps       int
		direct      bool
		cell        uint64
		unsupported bool
		red         ir.Red
		order       bool
	}{
		{false, 4096, 0, 1, true, 4096, false, ir.Sum, true},
		{true, 4096, 0, 2, true, 4096, false, ir.Sum, true},
		{false, 4096, 2, 3, false, 4096, false, ir.Sum, true},
		{false, 4095, 0, 3, false, 4096, false, ir.Sum, true},
		{true, 7, 0, 3, false, 16, false, ir.Sum, true},
		{false, 4096, 0, 1, true, 4096, true, ir.Max, true},
		{false, 4096, 0, 1, true, 4096, true, ir.Sum, false},
	} {
		sum := summed(t, w, c.count, c.off, c.off)
		sum.AnyOrder, sum.Red = c.order, c.red
		tune := device.Tuning{Algo: "executor", Schedule: exchangeSchedule(t, c.inPlace)}
		l.got = nil
		launches, err := tm.Prepare(tune, sum)
		if c.unsupported != errors.Is(err, device.ErrUnsupported) {
			t.Errorf("%+v: %v", c, err)
		}
		if err != nil {
			continue
		}
		for m, x := range launches {
			got := l.got[m]
			out, err := w.devices[m].resolve(sum.Parts[m].Out, false)
			mustOf(t)(err)
			place := got.Words[8+m]
			if c.inPlace {
				place = got.Words[m]
			}
			if n := len(x.(*launch).steps); n != c.steps || (nvlib.Ptr(place) == out.Addr) != c.direct || got.Words[50] != c.cell {
				t.Errorf("%+v: %d steps, works at %#x, result at %#x, parts of %d bytes", c, n, place, out.Addr, got.Words[50])
			}
		}
	}
	// Processes must reserve memory in one order, because each computes the addresses of the others' memory.
	sum := summed(t, w, 4096, 0, 0)
	sum.AnyOrder = true
	tune := device.Tuning{Algo: "executor", Schedule: exchangeSchedule(t, false)}
	tune.Schedule.Areas[device.ScheduleScratch] = 1
	var first []string
	for i := range 40 {
		a, c, err := tm.check(tune, sum)
		mustOf(t)(err)
		p, err := a.Plan(tm, tune, c)
		mustOf(t)(err)
		var names []string
		for _, m := range p.Memory {
			names = append(names, m.Name)
		}
		if i == 0 {
			first = names
		} else if !slices.Equal(names, first) {
			t.Fatalf("the order of reservations differs: %q and %q", first, names)
		}
	}
	tune.Schedule.Areas[device.ScheduleScratch] = 1 << 20
	if _, err := tm.Prepare(tune, sum); !errors.Is(err, device.ErrUnsupported) || !strings.Contains(err.Error(), "2 GiB") {
		t.Errorf("4 GiB of scratch: %v", err)
	}
	if _, err := tm.Prepare(device.Tuning{Algo: "executor"}, summed(t, w, 64, 0, 0)); !errors.Is(err, device.ErrUnsupported) {
		t.Errorf("without a schedule: %v", err)
	}
}
