package nvfuser

import (
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/ir"
)

// handleRing returns one step of a ring of three ranks: each rank sends T0 to the next rank and receives T1 from the
// previous one.
func handleRing(change ...string) string {
	const m = " (DeviceMesh{0 1 2})"
	const t0, t1 = "T0_g_float[ideviceIdx.x0{3}, iS1{4}]" + m, "T1_l_float[iS3{4}]" + m
	const out = "T2_g_float[ideviceIdx.x4{3}, iS5{4}]" + m
	const send = "P2PCommunication 7 (type=send, buffer=" + t0 + ", peer=( ( rank + 1 ) % 3 ), backend=CUDA)"
	const recv = "P2PCommunication 8 (type=recv, buffer=" + t1 + ", peer=( ( rank + 2 ) % 3 ), backend=CUDA)"
	text := "%HostIrContainer { (" + t0 + ") -> (" + out + ") :\n" +
		"  " + t1 + " = ALLOCATE(buffer=" + t1 + ", mem_type=global, size=4, zero_init=false, resets_to_zero=false)\n" +
		"  ShareMemHandles(" + send + ", " + recv + ",\n  " + send + "\n  " + recv + "\n" +
		"  Wait Communication 7\n  Wait Communication 8\n" +
		"  " + out + " = Set( " + t1 + " )\n} // %HostIrContainer\n"
	return strings.NewReplacer(append(change, "SEND", send, "RECV", recv)...).Replace(text)
}

// TestHandles checks that a handle may be used only if both sides have exchanged it after the allocation of its buffer.
func TestHandles(t *testing.T) {
	const alloc = "  T1_l_float[iS3{4}] (DeviceMesh{0 1 2}) = ALLOCATE(buffer=T1_l_float[iS3{4}] (DeviceMesh{0 1 2}), mem_type=global, size=4, zero_init=false, resets_to_zero=false)\n"
	lines := strings.SplitAfter(handleRing(), "\n")
	share := lines[2]
	one := func(rank, text string) string { // text that only some ranks execute: "== 0" selects rank 0
		return "  IF Manual ( rank " + rank + " ):\n  " + text
	}
	for _, c := range []struct{ old, new, place, want string }{
		{share, "", "3:3:", "communication 7 has no handle of rank 1's buffer"},
		{"ShareMemHandles(P2PCommunication 7", "ShareMemHandles(P2PCommunication 99", "4:3:",
			"communication 7 has no handle"},
		{alloc + share, share + alloc, "2:", "rank 0 exchanges a handle of T1 before the ALLOCATE of that tensor"},
		{share, one("!= 0", share), "5:3:", "communication 7 has no handle of rank 1's buffer"},
		{share, strings.Replace(share, "( rank + 1 )", "( rank + 3 )", 1), "3:",
			"rank 0 exchanges a handle with rank 0"},
		// The receiver exchanges handles with a rank that is not the one from which it receives.
		{share, strings.Replace(share, "( rank + 2 )", "( rank + 1 )", 1), "5:3:",
			"communication 8 has no handle of rank 2's buffer"},
		// In the next cases, one rank or two ranks execute an additional ShareMemHandles, whose handles are not used,
		// and the others do not.
		{"  Wait Communication 7\n", one("!= 2",
			strings.NewReplacer("nication 7", "nication 9", "nication 8", "nication 10", "( rank + 1 ) % 3", "1 - rank",
				"( rank + 2 ) % 3", "1 - rank").Replace(share)), "7:5:",
			"hang: rank 1 waits in the barrier of ShareMemHandles for rank 2, which has no handles to exchange"},
		{"  Wait Communication 7\n", one("== 0", strings.ReplaceAll(share, "nication 7", "nication 9")), "",
			"hang: rank 0 waits in ShareMemHandles for a handle of rank 1"},
	} {
		src := strings.Replace(handleRing(), c.old, c.new, 1)
		if src == handleRing() {
			t.Fatalf("%q is not in the dump", c.old)
		}
		_, _, ds := Import("d.txt", src, nil)
		if !ds.HasErrors() {
			t.Errorf("%s: it is read:\n%s", c.want, src)
			continue
		}
		found := false
		for _, d := range ds {
			found = found || strings.HasPrefix(d.Error(), "d.txt:"+c.place) && strings.Contains(d.Message, c.want)
		}
		if !found {
			t.Errorf("want %s: %s\ngot:\n%s", c.place, c.want, ds)
		}
	}
}

// TestAllocationCache checks that a rank with a new buffer exchanges its handle again, and that a peer that has the
// handle in its cache does not take part.
func TestAllocationCache(t *testing.T) {
	for cached, want := range map[string]string{
		"":  "warning: without nvFuser's allocation cache, ShareMemHandles hangs",
		"0": "error: hang: in the second run, if ALLOCATE returns new memory on rank 0 only, rank 0 waits in ShareMemHandles for a handle of rank 2",
		"1": "",
	} {
		defines := map[string]string{cacheDefine: cached}
		if cached == "" {
			defines = nil
		}
		_, rest, ds := Import("d.txt", handleRing(), defines)
		ds = withoutHints(ds)
		if len(rest) > 0 || want == "" && len(ds) > 0 || !strings.Contains(ds.String(), want) ||
			ds.HasErrors() != (cached == "0") {
			t.Errorf("%q: want %q, got %s (left %v)", cached, want, ds, rest)
		}
	}
	// Buffers that the caller owns keep their addresses.
	lines := strings.SplitAfter(handleRing(), "\n")
	inputs := lines[0] + strings.ReplaceAll(strings.Join(lines[2:6], "")+lines[6], "T1_l_float[iS3{4}]",
		"T2_g_float[ideviceIdx.x4{3}, iS5{4}]") + lines[8]
	if _, _, ds := Import("d.txt", inputs, nil); ds.HasErrors() || strings.Contains(ds.String(), "allocation cache") {
		t.Errorf("%s\n%s", ds, inputs)
	}
}

// withoutHints removes the hints that Import adds for a later proof.
func withoutHints(ds ir.Diagnostics) ir.Diagnostics {
	return slices.DeleteFunc(ds, func(d *ir.Diagnostic) bool { return strings.HasSuffix(d.Kind, Hint) })
}
