package cuda

import (
	"bytes"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// TestNCCLWindowsOdd wants blocks that NCCL mixes up, and operands that begin where it
// misreads them, kept from its windows by the versions that do, and nothing else.
func TestNCCLWindowsOdd(t *testing.T) {
	for _, tc := range []struct {
		version int32
		op      ir.Op
		dt      ir.DType
		n, off  int64 // elements of a block, and before operands
		ok      bool
	}{
		{22803, ir.OpAllGather, ir.F32, 7, 0, false}, {22803, ir.OpAllGather, ir.F32, 8, 0, true}, {22803, ir.OpAllReduce, ir.F32, 7, 0, true},
		{22803, ir.OpReduceScatter, ir.F32, 7, 0, false}, {22803, ir.OpReduceScatter, ir.F32, 8, 0, true},
		{22703, ir.OpReduceScatter, ir.F32, 7, 0, true}, {22807, ir.OpReduceScatter, ir.F32, 7, 0, true},
		{22703, ir.OpAllGather, ir.F32, 8191, 0, false}, {22807, ir.OpAllGather, ir.F32, 7, 0, true}, {23001, ir.OpAllGather, ir.F32, 8191, 0, true},
		{22803, ir.OpAllGather, ir.BF16, 8, 1, false}, {22803, ir.OpAllGather, ir.BF16, 8, 2, true}, {22803, ir.OpAllGather, ir.F32, 8, 1, true},
		{22703, ir.OpAllReduce, ir.F16, 8, 3, false}, {22907, ir.OpAllReduce, ir.F16, 8, 3, false}, {23003, ir.OpAllReduce, ir.F16, 8, 3, true},
		{22907, ir.OpReduceScatter, ir.BF16, 8, 5, false}, {22907, ir.OpReduceScatter, ir.BF16, 7, 0, false}, {22907, ir.OpReduceScatter, ir.BF16, 6, 0, true},
		{22907, ir.OpAllGather, ir.BF16, 7, 0, true}, {22907, ir.OpAllReduce, ir.BF16, 7, 0, true}, {23003, ir.OpReduceScatter, ir.BF16, 7, 5, true},
	} {
		x, w := ncclWorld(t, 2, 2)
		x.version = tc.version
		r := newTeamRig(t, w, "odd", []int{0, 1})
		c := teamCase{op: tc.op, red: ir.Sum, dt: tc.dt, shape: []int64{tc.n}, off: tc.off, algo: ncclWindowName}
		if took := r.take(c, device.Tuning{}); took != tc.ok {
			t.Errorf("%+v: taken %t", tc, took)
		}
		r.close()
		r.must(w.Close())
	}
}

// TestNCCLWindowsOddReal runs blocks of all lengths from all places by NCCL on windows,
// on GPUs: what is said to be right must be, and what is said to be wrong is logged.
func TestNCCLWindowsOddReal(t *testing.T) {
	m, lib := realWindows(t)
	w, err := m.Open(t.Context(), min(len(m.sys.gpus), 4))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		m.sys.unwary = false
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	r := newTeamRig(t, w, "odd", upTo(w.Ranks()))
	var declined []bool
	for _, op := range []ir.Op{ir.OpAllReduce, ir.OpAllGather, ir.OpReduceScatter} {
		for _, n := range []int64{1, 3, 4, 7, 8, 404, 511, 4096, 1 << 16} {
			for off := range int64(5) {
				c := teamCase{op: op, red: ir.Sum, dt: ir.BF16, shape: []int64{n}, off: off, algo: ncclWindowName}
				m.sys.unwary = true
				if !r.take(c, device.Tuning{}) {
					t.Fatalf("%v: declined", c)
				}
				m.sys.unwary = false
				tune := device.Tuning{Algo: ncclWindowName}
				declined = append(declined, r.team.Supports(tune, r.cases[len(r.cases)-1].collective()) != nil)
			}
		}
	}
	m.sys.unwary = true
	r.prepare(r.cases, device.Tuning{})
	r.upload()
	r.must(r.issue())
	r.download()
	r.must(w.Sync(t.Context()))
	wrong, of := 0, 0
	for k, c := range r.cases {
		bad := 0
		for i := range r.members {
			if !bytes.Equal(c.got[i], c.want(c.ins, i, len(r.members)).Data) {
				bad++
			}
		}
		switch {
		case !declined[k] && bad > 0:
			t.Errorf("NCCL %s: %v: wrong on %d of %d members", lib.Loaded().Version, c.teamCase, bad, len(r.members))
		case declined[k]:
			of++
			wrong += min(bad, 1)
			t.Logf("NCCL %s, declined: %v: wrong on %d of %d members", lib.Loaded().Version, c.teamCase, bad, len(r.members))
		}
	}
	t.Logf("NCCL %s, %d GPUs: %d of %d cases that are declined come out wrong, %d others are right", lib.Loaded().Version, w.Ranks(), wrong, of, len(r.cases)-of)
	r.close()
}
