package kernelfile

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"reflect"
	"strings"
	"testing"
)

func TestSource(t *testing.T) {
	p, v := Param{Size: 8, Pointer: true}, func(n int) Param { return Param{Size: n, Value: n > 0} }
	for text, want := range map[string]Kernels{
		`extern "C" __global__ void f(const float* x, float *y, int n) {}`:                                                    {"f": {p, p, v(4)}},
		`__global__ void __launch_bounds__(256, 2) g(unsigned long long n, const double a, size_t m, long k);`:                {"g": {v(8), v(8), v(8), v(8)}},
		"// __global__ void no(int)\n/* __global__ void nor(int) */ extern \"C\"\n__global__\nvoid\nh()\n{ g<<<1, 2>>>(3); }": {"h": {}},
		`__global__ void one(void) {} __global__ void two(T x, int a[3], std::pair<int, int> q, __nv_bfloat16 b) {}`:          {"one": {}, "two": {{}, p, {}, {}}},
		`__global__ void open(int a`:                       {},
		`static __device__ float f(float x) { return x; }`: {},
		`__global__`: {},
	} {
		got, err := Parse("k.cu", []byte(text))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n%v, %v; want %v", text, got, err, want)
		}
	}
}

func TestPTX(t *testing.T) {
	text := `.version 8.3
.visible .entry add(
	.param .u64 .ptr .global .align 1 add_param_0,
	.param .u64 add_param_1, // of two
	.param .u32 add_param_2,
	.param .align 8 .b8 add_param_3[24],
	.param .f64 add_param_4
)
.reqntid 128
{ ret; }
.entry none() { ret; }
.func helper(.param .b32 x) { ret; }
`
	want := Kernels{"none": {}, "add": {{Size: 8, Pointer: true}, {Size: 8}, {Size: 4, Value: true},
		{Size: 24, Value: true}, {Size: 8}}}
	if got, err := Parse("k.ptx", []byte(text)); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
}

// elfFile returns a small ELF file with the given sections.
func elfFile(machine elf.Machine, sections map[string][]byte) []byte {
	var names, data bytes.Buffer
	const head, entry = 64, 64
	names.WriteByte(0)
	headers := []elf.Section64{{}}
	add := func(name string, kind elf.SectionType, b []byte) {
		headers = append(headers, elf.Section64{Name: uint32(names.Len()), Type: uint32(kind),
			Off: uint64(head + data.Len()), Size: uint64(len(b))})
		names.WriteString(name + "\x00")
		data.Write(b)
	}
	for name, b := range sections {
		kind := elf.SHT_PROGBITS
		if strings.HasPrefix(name, ".nv") {
			kind = elf.SHT_LOPROC
		}
		add(name, kind, b)
	}
	headers = append(headers, elf.Section64{Name: uint32(names.Len()), Type: uint32(elf.SHT_STRTAB),
		Off: uint64(head + data.Len())})
	names.WriteString(".shstrtab\x00")
	headers[len(headers)-1].Size = uint64(names.Len())
	data.Write(names.Bytes())
	h := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: 1, Shoff: uint64(head + data.Len()),
		Ehsize: head, Shentsize: entry,
		Shnum: uint16(len(headers)), Shstrndx: uint16(len(headers) - 1)}
	copy(h.Ident[:], "\x7fELF\x02\x01\x01")
	var out bytes.Buffer
	_ = binary.Write(&out, binary.LittleEndian, h)
	out.Write(data.Bytes())
	_ = binary.Write(&out, binary.LittleEndian, headers)
	return out.Bytes()
}

// infoOf returns a .nv.info section for parameters of the given sizes. Like compilers, it writes
// the last parameter first.
func infoOf(sizes ...int) []byte {
	b := []byte{3, 0x1b, 0xff, 0} // a record of another kind, whose value is within the record
	for i := len(sizes) - 1; i >= 0; i-- {
		b = append(b, sized, paramInfo, 12, 0)
		b = binary.LittleEndian.AppendUint32(b, 0)
		b = binary.LittleEndian.AppendUint16(b, uint16(i))
		b = binary.LittleEndian.AppendUint16(b, uint16(8*i))
		b = binary.LittleEndian.AppendUint32(b, uint32(sizes[i])<<18|0x1f000)
	}
	return b
}

func TestCubin(t *testing.T) {
	b := elfFile(machine, map[string][]byte{".text.k": {1}, ".nv.info.k": infoOf(8, 8, 4), ".text.bare": {1},
		".text.cut": {1}, ".nv.info.cut": infoOf(8)[:10], ".nv.info": {}})
	want := Kernels{"k": {{Size: 8}, {Size: 8}, {Size: 4}}, "bare": nil, "cut": nil}
	if got, err := Parse("k.cubin", b); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	for _, bad := range [][]byte{nil, []byte("ELF"), elfFile(elf.EM_X86_64, map[string][]byte{".text.k": {1}}),
		b[:100]} {
		if got, err := Parse("k.cubin", bad); err == nil || !strings.Contains(err.Error(), "no cubin") {
			t.Errorf("%d bytes: %v, %v", len(bad), got, err)
		}
	}
}

// TestManyGlobals checks that parsing text without kernels takes time proportional to its length.
func TestManyGlobals(t *testing.T) {
	for _, text := range []string{strings.Repeat("__global__ ", 1<<17), strings.Repeat("__global__ (", 1<<17)} {
		if k, err := Parse("k.cu", []byte(text+"void k(int a) {}")); err != nil || len(k) > 1 {
			t.Errorf("%d kernels, %v", len(k), err)
		}
	}
}

// FuzzParse checks that any file is read or refused, without a crash.
func FuzzParse(f *testing.F) {
	f.Add(0, elfFile(machine, map[string][]byte{".text.k": {1}, ".nv.info.k": infoOf(8, 4)}))
	f.Add(1, []byte(".entry f(.param .u64 x"))
	f.Add(2, []byte("__global__ void f(int x, )) ("))
	f.Fuzz(func(_ *testing.T, kind int, b []byte) {
		_, _ = Parse([]string{"k.cubin", "k.ptx", "k.cu"}[uint(kind)%3], b)
	})
}

// TestTriton reads a cubin that Triton compiled with CUDA 13 for compute capability 9.0 from
// examples/launch/triton_swish.py. The kernel's parameters are x, y, n and two addresses of scratch memory.
func TestTriton(t *testing.T) {
	b, err := os.ReadFile("testdata/triton_sm90.cubin")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse("k.cubin", b)
	sizes := []int{}
	for _, p := range got["swish"] {
		sizes = append(sizes, p.Size)
	}
	if want := []int{8, 8, 4, 8, 8}; err != nil || !reflect.DeepEqual(sizes, want) {
		t.Errorf("%v, %v; want parameters of %v bytes", got, err, want)
	}
}
