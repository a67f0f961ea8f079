package acceptance_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hocket.example/hocket"
)

// inlineDump is a dump written for this test. The dumps have every type of communication, on meshes whose devices are
// not simply numbered 0, 1, 2, …
type inlineDump struct {
	name, src string
	want      func(in map[string]tens) tens
}

// comm returns a dump of one Communication; a and b are the printed axes of its operand and its
// result, with their meshes.
func comm(fields, a, b string) string {
	in, out := "T0_g_float["+a, "T1_g_float["+b
	return fmt.Sprintf("%%HostIrContainer { (%s) -> (%s) :\n  Communication 3 (%s, input=%s, output=%s, backend=NCCL)\n  Wait(Communication 3)\n} // %%HostIrContainer\n",
		in, out, fields, in, out)
}

func on(devices string) string { return "] (DeviceMesh{" + devices + "})" }

// whole returns T0 unchanged.
func whole(in map[string]tens) tens { return in["T0"] }

var inlineDumps = []inlineDump{
	{"allgather", comm("type=Allgather, team=(0 2 3)", "ideviceIdx.x0{3}, iS1{4}"+on("0 2 3"),
		"iS2{3}, iS3{4}"+on("0 2 3")), whole},
	{"allgather along another axis", comm("type=Allgather, team=(0 1)", "iS0{3}, ideviceIdx.x1{2}, iS2{4}"+on("0 1"),
		"iS3{3}, iS4{2}, iS5{4}"+on("0 1")), whole},
	{"allreduce", comm("type=Allreduce, team=(1 3)", "ideviceIdx.x0{2}, iS1{5}"+on("1 3"), "rS2{2}, iS3{5}"+on("1 3")),
		func(in map[string]tens) tens { return in["T0"].sumAxis(0) }},
	{"reduce scatter", comm("type=ReduceScatter, team=(0 1 2)", "ideviceIdx.x0{3}, iS1{3}, iS2{2}"+on("0 1 2"),
		"rS3{3}, ideviceIdx.x4{3}, iS5{2}"+on("0 1 2")),
		func(in map[string]tens) tens { return in["T0"].sumAxis(0) }},
	{"broadcast", comm("type=Broadcast, team=(2 0 1), root=2", "iS0{4}"+on("2"), "iS1{4}"+on("0 1")), whole},
	{"reduce", comm("type=Reduce, team=(0 1 2), root=1", "ideviceIdx.x0{3}, iS1{4}"+on("0 1 2"),
		"rS2{3}, iS3{4}"+on("1")), func(in map[string]tens) tens { return in["T0"].sumAxis(0) }},
	{"gather", comm("type=Gather, team=(0 1), root=1", "ideviceIdx.x0{2}, iS1{4}"+on("0 1"), "iS2{2}, iS3{4}"+on("1")),
		whole},
	{"gather by a root apart", comm("type=Gather, team=(1 2 0), root=0", "ideviceIdx.x0{2}, iS1{4}"+on("1 2"),
		"iS2{2}, iS3{4}"+on("0")), whole},
	{"scatter", comm("type=Scatter, team=(0 1 2), root=0", "iS0{3}, iS1{4}"+on("0"),
		"ideviceIdx.x2{3}, iS3{4}"+on("0 1 2")), whole},
	{"scatter by a root apart", comm("type=Scatter, team=(1 2 0), root=0", "iS0{2}, iS1{4}"+on("0"),
		"ideviceIdx.x2{2}, iS3{4}"+on("1 2")), whole},
	{"sendrecv", comm("type=SendRecv, team=(2 5), root=5", "iS0{4}"+on("5"), "iS1{4}"+on("2")), whole},
	{"sendrecv to itself", comm("type=SendRecv, team=(3), root=3", "iS0{4}"+on("3"), "iS1{4}"+on("3")), whole},
	{"all to all", comm("type=AllToAll, team=(0 1 2)", "ideviceIdx.x0{3}, iS1{3}, iS2{2}"+on("0 1 2"),
		"iS3{3}, ideviceIdx.x4{3}, iS5{2}"+on("0 1 2")), whole},
	{"all to all back", comm("type=AllToAll, team=(0 1 2)", "iS0{3}, ideviceIdx.x1{3}, iS2{2}"+on("0 1 2"),
		"ideviceIdx.x3{3}, iS4{3}, iS5{2}"+on("0 1 2")), whole},
	{"a ring of sends", "%HostIrContainer { (T0_g_float[ideviceIdx.x0{3}, iS1{4}] (DeviceMesh{0 1 2})) -> (T1_g_float[ideviceIdx.x2{3}, iS3{4}] (DeviceMesh{0 1 2})) :\n" +
		"  ShareMemHandles(P2PCommunication 7 (type=send, buffer=T0_g_float[ideviceIdx.x0{3}, iS1{4}] (DeviceMesh{0 1 2}), peer=( ( rank + 1 ) % 3 ), backend=CUDA), " +
		"P2PCommunication 8 (type=recv, buffer=T1_g_float[ideviceIdx.x2{3}, iS3{4}] (DeviceMesh{0 1 2}), peer=( ( rank + 2 ) % 3 ), backend=CUDA), \n" +
		"  P2PCommunication 7 (type=send, buffer=T0_g_float[ideviceIdx.x0{3}, iS1{4}] (DeviceMesh{0 1 2}), peer=( ( rank + 1 ) % 3 ), backend=CUDA)\n" +
		"  P2PCommunication 8 (type=recv, buffer=T1_g_float[ideviceIdx.x2{3}, iS3{4}] (DeviceMesh{0 1 2}), peer=( ( rank + 2 ) % 3 ), backend=CUDA)\n" +
		"  Wait Communication 8\n  Wait Communication 7\n} // %HostIrContainer\n",
		func(in map[string]tens) tens {
			out := newTens(3, 4)
			each(out, func(ix []int64) float64 { return in["T0"].at((ix[0]+2)%3, ix[1]) })
			return out
		}},
	{"in place", "%HostIrContainer { (T0_g_float[iS0{4}], T1_g_float[iS1{4}]) -> (T0_g_float[iS0{4}]) :\n  T0_g_float[iS0{4}] = T1_g_float[iS1{4}] + T1_g_float[iS1{4}]\n} // %HostIrContainer\n",
		func(in map[string]tens) tens {
			out := newTens(4)
			each(out, func(ix []int64) float64 { return 2 * in["T1"].at(ix...) })
			return out
		}},
	{"ragged chunks", "%HostIrContainer { (T0_g_float[iS0{7}, iS1{3}]) -> (T1_g_float[iS2{7}, iS3{3}]) :\n  FOR i9 from 0 to 3:\n" +
		"    T2_l_float[istreamIdx4{3}, iS5{( ceilDiv(7, 3) )}, iS6{3}] = ShardByStream(T0_g_float[iS0{7}, iS1{3}], stream_index = i9)\n" +
		"    T3_l_float[istreamIdx7{3}, iS8{( ceilDiv(7, 3) )}, iS9{3}] = ShardByStream(T1_g_float[iS2{7}, iS3{3}], stream_index = i9)\n" +
		"    T3_l_float[istreamIdx7{3}, iS8{( ceilDiv(7, 3) )}, iS9{3}] = Set( T2_l_float[istreamIdx4{3}, iS5{( ceilDiv(7, 3) )}, iS6{3}] )\n} // %HostIrContainer\n", whole},
	{"pointwise", "%HostIrContainer { (T0_g_float[iS0{3}, iS1{4}], T1_g_float[bS2{1}, iS3{4}]) -> (T5_g_float[iS8{3}, iS9{4}]) :\n" +
		"  T2_g_float[iS4{3}, iS5{4}]\n     = T0_g_float[iS0{3}, iS1{4}]\n     * T1_g_float[bS2{1}, iS3{4}];\n" +
		"  T3_g_float[iS6{3}, iS7{4}]\n     = T2_g_float[iS4{3}, iS5{4}]\n     - double(2);\n" +
		"  T5_g_float[iS8{3}, iS9{4}]\n     = -T3_g_float[iS6{3}, iS7{4}];\n} // %HostIrContainer\n",
		func(in map[string]tens) tens {
			out := newTens(3, 4)
			each(out, func(ix []int64) float64 { return 2 - in["T0"].at(ix...)*in["T1"].at(0, ix[1]) })
			return out
		}},
	{"a reduction to each rank, of an axis that was reduced away", "%HostIrContainer { (T0_g_float[ideviceIdx.x0{2}, istreamIdx1{2}, iS2{5}] (DeviceMesh{0 1})) -> (T1_g_float[rS3{2}, ideviceIdx.x4{2}, iS5{5}] (DeviceMesh{0 1})) :\n" +
		"  FOR i9 in istreamIdx1{2}:\n" +
		"    T2_l_float[ideviceIdx.x6{2}, iS7{5}] (DeviceMesh{0 1})\n       = HirAliasSelect( T0_g_float[ideviceIdx.x0{2}, istreamIdx1{2}, iS2{5}] (DeviceMesh{0 1}), axis = istreamIdx1{2}, index = i9 )\n" +
		"    T3_l_float[ideviceIdx.x8{2}, iS9{5}] (DeviceMesh{0 1})\n       = HirAliasSelect( T1_g_float[rS3{2}, ideviceIdx.x4{2}, iS5{5}] (DeviceMesh{0 1}), axis = rS3{2}, index = i9 )\n" +
		"    Communication 7 (type=Reduce, team=(0 1), root=i9, input=T2_l_float[ideviceIdx.x6{2}, iS7{5}] (DeviceMesh{0 1}), output=T3_l_float[ideviceIdx.x8{2}, iS9{5}] (DeviceMesh{0 1}), backend=NCCL)\n" +
		"    Wait(Communication 7)\n} // %HostIrContainer\n",
		func(in map[string]tens) tens { return in["T0"].sumAxis(0) }},
	{"a matrix times a batch", "%HostIrContainer { (T0_g_float[iS0{2}, iS1{3}], T1_g_float[iS2{4}, iS3{3}, iS4{5}]) -> (T2_g_float[iS5{4}, iS6{2}, iS7{5}, rS8{3}]) :\n" +
		"  T2_g_float[iS5{4}, iS6{2}, iS7{5}, rS8{3}]\n     = matmul(T0_g_float[iS0{2}, iS1{3}],\n              T1_g_float[iS2{4}, iS3{3}, iS4{5}])\n} // %HostIrContainer\n",
		func(in map[string]tens) tens {
			out := newTens(4, 2, 5)
			each(out, func(ix []int64) float64 {
				v := 0.0
				for k := range int64(3) {
					v += in["T0"].at(ix[1], k) * in["T1"].at(ix[0], k, ix[2])
				}
				return v
			})
			return out
		}},
	matmulDump("batches of one matrix", "iS0{2}, iS1{3}, iS2{4}, iS3{5}", "bS4{1}, bS5{1}, iS6{5}, iS7{3}",
		"iS8{2}, iS9{3}, iS10{4}, iS11{3}"),
	matmulDump("a batch that repeats a matrix of each", "iS0{2}, bS1{1}, iS2{4}, iS3{5}", "iS4{3}, iS6{5}, iS7{2}",
		"iS8{2}, iS9{3}, iS10{4}, iS11{2}"),
	matmulDump("both operands repeat", "iS0{2}, bS1{1}, iS2{4}, iS3{5}", "bS4{1}, iS5{3}, iS6{5}, iS7{2}",
		"iS8{2}, iS9{3}, iS10{4}, iS11{2}"),
	matmulDump("one matrix times a batch", "bS1{1}, iS2{4}, iS3{5}", "iS4{3}, iS6{5}, iS7{2}",
		"iS9{3}, iS10{4}, iS11{2}"),
	{"a matmul of selected repeats", "%HostIrContainer { (T0_g_float[iS0{3}, iS1{2}, iS2{4}, iS3{5}], T1_g_float[bS4{1}, bS5{1}, iS6{5}, iS7{2}]) -> (T2_g_float[iStream8{3}, iS9{2}, iS10{4}, iS11{2}, rS12{5}]) :\n" +
		"  T2_g_float[iStream8{3}, iS9{2}, iS10{4}, iS11{2}, rS12{5}] = ALLOCATE(buffer=T2_g_float[iStream8{3}, iS9{2}, iS10{4}, iS11{2}, rS12{5}], mem_type=global, size=48, zero_init=false, resets_to_zero=false)\n" +
		"  FOR i9 in iStream8{3}:\n" +
		"    T3_l_float[iS13{2}, iS14{4}, iS15{5}]\n       = HirAliasSelect( T0_g_float[iS0{3}, iS1{2}, iS2{4}, iS3{5}], axis = iS0{3}, index = i9 )\n" +
		"    T4_l_float[bS16{1}, iS17{5}, iS18{2}]\n       = HirAliasSelect( T1_g_float[bS4{1}, bS5{1}, iS6{5}, iS7{2}], axis = bS4{1}, index = i9 )\n" +
		"    T5_l_float[iS19{2}, iS20{4}, iS21{2}, rS22{5}]\n       = HirAliasSelect( T2_g_float[iStream8{3}, iS9{2}, iS10{4}, iS11{2}, rS12{5}], axis = iStream8{3}, index = i9 )\n" +
		"    T5_l_float[iS19{2}, iS20{4}, iS21{2}, rS22{5}]\n       = matmul(T3_l_float[iS13{2}, iS14{4}, iS15{5}],\n                T4_l_float[bS16{1}, iS17{5}, iS18{2}])\n} // %HostIrContainer\n",
		matmulAll},
	{"slices", "%HostIrContainer { (T0_g_float[iS0{5}, iS1{4}]) -> (T1_g_float[iS2{2}, iS3{3}]) :\n" +
		"  T1_g_float[iS2{2}, iS3{3}]\n     = Set( T2_l_float[iS4{2}, iS5{3}] )\n} // %HostIrContainer\n",
		func(in map[string]tens) tens {
			out := newTens(2, 3)
			each(out, func(ix []int64) float64 { return in["T0"].at(ix[0]+2, ix[1]+1) })
			return out
		}},
}

// matmulDump returns a dump of one matmul. The arguments are the axes of the operands and the result, as nvFuser prints
// them.
func matmulDump(name, a, b, out string) inlineDump {
	a, b, out = "T0_g_float["+a+"]", "T1_g_float["+b+"]", "T2_g_float["+out+", rS12{5}]"
	return inlineDump{name, fmt.Sprintf("%%HostIrContainer { (%s, %s) -> (%s) :\n  %s\n     = matmul(%s,\n              %s)\n} // %%HostIrContainer\n",
		a, b, out, out, a, b), matmulAll}
}

// matmulAll multiplies as torch.matmul does: batch dimensions are aligned at the end, and
// dimensions of extent 1 are broadcast.
func matmulAll(in map[string]tens) tens {
	a, b := in["T0"], in["T1"]
	batch := max(len(a.shape), len(b.shape)) - 2
	// extent returns the extent of x in the result's batch dimension i; index returns the index of x in that dimension.
	extent := func(x tens, i int) int64 {
		if i -= batch + 2 - len(x.shape); i >= 0 {
			return x.shape[i]
		}
		return 1
	}
	index := func(x tens, ix []int64) []int64 {
		var at []int64
		for i := batch + 2 - len(x.shape); i < batch; i++ {
			at = append(at, ix[i]%extent(x, i))
		}
		return at
	}
	var shape []int64
	for i := range batch {
		shape = append(shape, max(extent(a, i), extent(b, i)))
	}
	out := newTens(append(shape, a.shape[len(a.shape)-2], b.shape[len(b.shape)-1])...)
	each(out, func(ix []int64) float64 {
		v := 0.0
		for k := range a.shape[len(a.shape)-1] {
			v += a.at(append(index(a, ix), ix[batch], k)...) * b.at(append(index(b, ix), k, ix[batch+1])...)
		}
		return v
	})
	return out
}

func init() {
	last := &inlineDumps[len(inlineDumps)-1]
	last.src = strings.Replace(last.src, "  T1_g",
		"  T2_l_float[iS4{2}, iS5{3}]\n     = slice( T0_g_float[iS0{5}, iS1{4}], { {2, 4, 1} {1, 4, 1} } )\n  T1_g", 1)
}

// TestCommunications runs the dumps of each type of communication, concurrently and under random schedules.
func TestCommunications(t *testing.T) {
	for _, c := range inlineDumps {
		t.Run(c.name, func(t *testing.T) {
			p, err := hocket.Parse("d.txt", c.src)
			if err != nil {
				t.Fatalf("%v\n%s", err, c.src)
			}
			d := dumpCase{file: c.name, parsed: p, want: c.want}
			d.run(t, 2, 5)
		})
	}
}

// TestNvfuserPage runs the example of docs/nvfuser.md, and checks that the page shows what import
// prints for it.
func TestNvfuserPage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "nvfuser.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```\n%Host")
	src, _, found := strings.Cut("%Host"+rest, "```")
	if !found {
		t.Fatal("the page shows no dump")
	}
	p, err := hocket.Parse("host_ir.txt", src)
	if err != nil {
		t.Fatal(err)
	}
	if want := "$ hocket import host_ir.txt\n" + p.String() + "```"; !strings.Contains(string(page), want) {
		t.Errorf("the page does not show\n%s", p)
	}
	dumpCase{file: "host_ir.txt", parsed: p, want: func(in map[string]tens) tens {
		x, w := in["T0"], in["T1"]
		out := newTens(4, 6, 16)
		each(out, func(ix []int64) float64 {
			v := 0.0
			for d := range int64(2) {
				for k := range int64(8) {
					v += x.at(ix[0], ix[1], d, k) * w.at(d, ix[2], k)
				}
			}
			return v
		})
		return out
	}}.run(t, 2, 10)
}
