package hocket_test

import (
	"strings"
	"testing"

	"hocket.example/hocket"
)

// cudaRing is a dump that reads, on another stream, the data that a CUDA recv writes. The Wait between the two has no
// effect.
const cudaRing = `%HostIrContainer { (T0_g_float[ideviceIdx.x0{2}, iS1{4}] (DeviceMesh{0 1})) -> (T2_g_float[ideviceIdx.x4{2}, iS5{4}] (DeviceMesh{0 1})) :
  T1_l_float[iS2{4}] (DeviceMesh{0 1}) = ALLOCATE(buffer=T1_l_float[iS2{4}] (DeviceMesh{0 1}), mem_type=global, size=4, zero_init=false, resets_to_zero=false)
  GetCurrentStream into Stream 0
  SetCurrentStream to Stream 1
  Synchronize Stream 0
  ShareMemHandles(P2PCommunication 1 (type=send, buffer=T0_g_float[ideviceIdx.x0{2}, iS1{4}] (DeviceMesh{0 1}), peer=( ( rank + 1 ) % 2 ), backend=CUDA), P2PCommunication 2 (type=recv, buffer=T1_l_float[iS2{4}] (DeviceMesh{0 1}), peer=( ( rank + 1 ) % 2 ), backend=CUDA),
  P2PCommunication 1 (type=send, buffer=T0_g_float[ideviceIdx.x0{2}, iS1{4}] (DeviceMesh{0 1}), peer=( ( rank + 1 ) % 2 ), backend=CUDA)
  P2PCommunication 2 (type=recv, buffer=T1_l_float[iS2{4}] (DeviceMesh{0 1}), peer=( ( rank + 1 ) % 2 ), backend=CUDA)
  SetCurrentStream to Stream 0
  Wait Communication 1
  Wait Communication 2
  Synchronize Stream 1
  T2_g_float[ideviceIdx.x4{2}, iS5{4}] (DeviceMesh{0 1}) = Set( T1_l_float[iS2{4}] (DeviceMesh{0 1}) )
} // %HostIrContainer
`

// TestHints checks that the error about a race with a CUDA recv names the Wait that has no effect, and that the note on
// a program that needs concurrent streams says which part of it was added by hocket.
func TestHints(t *testing.T) {
	checked := func(src string) hocket.Verdict {
		p, _, err := hocket.Import("ring.txt", src, map[string]string{"allocation_cache": "1"})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(p.String(), "// line 8; the Wait in line 11 has no effect") {
			t.Errorf("the recv has no comment:\n%s", p)
		}
		v, err := hocket.Check(p, hocket.Binding{})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	const race = "ring.txt:11:3: note: line 11: Wait Communication 2 has no effect: a CUDA recv copies on the " +
		"stream that posts it"
	v := checked(strings.Replace(cudaRing, "  Wait Communication 2\n  Synchronize Stream 1\n", "  Wait Communication 2\n", 1))
	if said := v.Diagnostics.String(); v.Kind != hocket.Refuted || !strings.Contains(said, race) {
		t.Errorf("%v: want %q, got\n%s", v, race, said)
	}
	v = checked(cudaRing)
	if said := v.Diagnostics.String(); v.Kind != hocket.Proved || strings.Contains(said, "has no effect") ||
		v.SerialSafe == strings.Contains(said, "in nvFuser, this send only signals that its buffer is ready") {
		t.Errorf("%v: %s", v, said)
	}
}
