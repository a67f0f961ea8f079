package tensor

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/ir"
)

// npyFile concatenates a version, a header and data without checking them.
func npyFile(version byte, header string, data ...byte) []byte {
	b := append([]byte("\x93NUMPY"), version, 0)
	if version == 1 {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(header)))
	} else {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(header)))
	}
	return append(append(b, header...), data...)
}

func readNpy(b []byte) (*Tensor, error) { return ReadNpy(bytes.NewReader(b), int64(len(b))) }

// goldenNpy is the output of numpy.save for arange(6, dtype='<i4').reshape(2, 3) - 1.
var goldenNpy = []byte("\x93NUMPY\x01\x00v\x00{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }" +
	strings.Repeat(" ", 58) + "\n" +
	"\xff\xff\xff\xff\x00\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00\x04\x00\x00\x00")

func TestNpyGolden(t *testing.T) {
	x, err := readNpy(goldenNpy)
	if err != nil {
		t.Fatal(err)
	}
	if x.String() != "i32[2, 3]" || !slices.Equal(floats(x), []float64{-1, 0, 1, 2, 3, 4}) {
		t.Errorf("read %s %v", x, floats(x))
	}
	var w bytes.Buffer
	if err := WriteNpy(&w, x); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(w.Bytes(), goldenNpy) {
		t.Errorf("wrote %q, want %q", w.Bytes(), goldenNpy)
	}
}

func TestNpyRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	path := filepath.Join(t.TempDir(), "x.npy")
	shapes := [][]int64{{}, {0}, {1}, {3}, {5, 7}, {3, 0, 2}, {1, 2, 1, 3}}
	// These headers are just below and just above the limit of version 1.0.
	for rank := 21800; rank < 21850; rank += 7 {
		shapes = append(shapes, slices.Repeat([]int64{1}, rank))
	}
	for _, dt := range []ir.DType{ir.F32, ir.F16, ir.F64, ir.I32, ir.I64} {
		for _, shape := range shapes {
			x, _ := New(dt, shape)
			for i := range x.Data {
				x.Data[i] = byte(rng.Uint32())
			}
			if err := WriteNpyFile(path, x); err != nil {
				t.Fatal(err)
			}
			y, err := ReadNpyFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if y.DType != dt || !slices.Equal(y.Shape, shape) || !bytes.Equal(y.Data, x.Data) {
				t.Errorf("%s is read back as %s %x, want %x", x, y, y.Data, x.Data)
			}
			var w bytes.Buffer
			if err := WriteNpy(&w, x); err != nil || (w.Len()-len(x.Data))%64 != 0 {
				t.Errorf("%s: data at %d, %v", x, w.Len()-len(x.Data), err)
			}
		}
	}
}

func TestNpyWriteRefuses(t *testing.T) {
	var w bytes.Buffer
	x, _ := New(ir.BF16, []int64{2})
	mentions(t, "bf16", WriteNpy(&w, x), "bf16[2]", ".safetensors", "f32")
	mentions(t, "data", WriteNpy(&w, &Tensor{DType: ir.F32}), "want 4")
	x, _ = New(ir.F32, slices.Repeat([]int64{1}, 1<<19))
	mentions(t, "rank", WriteNpy(&w, x), "limit")
	if w.Len() != 0 {
		t.Errorf("%d bytes were written", w.Len())
	}
}

// TestNpyForms checks headers in other spellings that Python also accepts.
func TestNpyForms(t *testing.T) {
	four := []byte{0, 0, 0x80, 0x3f}
	for _, header := range []string{
		"{'descr': '<f4', 'fortran_order': False, 'shape': (), }\n",
		`{"shape":(1,),"fortran_order":True,"descr":"<f4"}`,
		" { 'descr' : '<f4' ,\n 'shape' : ( 1 , 1 , ) , 'fortran_order' : False } \n",
		"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1), }" + strings.Repeat(" ", 70000),
	} {
		for version := byte(1); version <= 3; version++ {
			if version == 1 && len(header) > 65535 {
				continue
			}
			x, err := readNpy(npyFile(version, header, four...))
			if err != nil || x.Float64(0) != 1 {
				t.Errorf("version %d of %.80q: %v, %v", version, header, x, err)
			}
		}
	}
}

// TestNpyFortran checks arrays in Fortran order against the definition of column-major order: the first index varies
// fastest.
func TestNpyFortran(t *testing.T) {
	for _, c := range []struct {
		shape []int64
		tuple string
	}{{[]int64{2, 3}, "(2, 3)"}, {[]int64{3, 1, 5, 2}, "(3, 1, 5, 2)"}, {[]int64{7}, "(7,)"}, {nil, "()"},
		{[]int64{3, 0}, "(3, 0)"}} {
		n, _ := NumElements(c.shape)
		var data []byte
		for i := range n {
			data = binary.LittleEndian.AppendUint64(data, uint64(i))
		}
		x, err := readNpy(npyFile(1, "{'descr': '<i8', 'fortran_order': True, 'shape': "+c.tuple+", }", data...))
		if err != nil {
			t.Fatal(err)
		}
		strides := Strides(c.shape)
		for i := range n {
			want, step := int64(0), int64(1)
			for a, d := range c.shape {
				want += i / strides[a] % d * step
				step *= d
			}
			if got := x.Int64(i); got != want {
				t.Fatalf("%s[%d] = %d, want %d", x, i, got, want)
			}
		}
	}
}

func TestNpyBad(t *testing.T) {
	four := make([]byte, 4)
	dict := func(descr, fortran, shape string) []byte {
		return npyFile(1, "{'descr': "+descr+", 'fortran_order': "+fortran+", 'shape': "+shape+", }", four...)
	}
	for _, c := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty file", nil, "NUMPY"},
		{"magic", []byte("\x93NUMPX\x01\x00\x00\x00\x00\x00"), "NUMPY"},
		{"zip", []byte("PK\x03\x04 and so on"), "NUMPY"},
		{"version 4", npyFile(4, "{}"), "version 4.0"},
		{"version 1.1", []byte("\x93NUMPY\x01\x01\x00\x00\x00\x00"), "version 1.1"},
		{"header over the file", []byte("\x93NUMPY\x01\x00\x03\x00{}"), "only 2 follow"},
		{"huge header", []byte("\x93NUMPY\x02\x00\xff\xff\xff\xff{}"), "4294967295"},
		{"long header", npyFile(2, strings.Repeat(" ", 1<<20+1)), "the limit is 1048576"},
		{"no header", npyFile(1, ""), "found the end, want {"},
		{"empty dict", npyFile(1, "{}"), "three keys"},
		{"missing key", npyFile(1, "{'descr': '<f4', 'shape': ()}"), "three keys"},
		{"unknown key", npyFile(1, "{'descr': '<f4', 'x': ()}"), `unknown key "x"`},
		{"double key", npyFile(1, "{'descr': '<f4', 'descr': '<f4', 'shape': ()}"), "comes twice"},
		{"two commas", npyFile(1, "{'descr': '<f4',, 'shape': ()}"), "want a quoted string"},
		{"no comma", npyFile(1, "{'descr': '<f4' 'shape': ()}"), "want }"},
		{"truncated", npyFile(1, "{'descr': '<f4"), "not closed"},
		{"trailing", npyFile(1, "{'descr': '<f4', 'fortran_order': False, 'shape': ()} x", four...), "follows"},
		{"trailing zero", npyFile(1, "{'descr': '<f4', 'fortran_order': False, 'shape': ()}\x00", four...), "follows"},
		{"number key", npyFile(1, "{1: 2}"), "want a quoted string"},
		{"escape", dict(`'\x3cf4'`, "False", "()"), "escape"},
		{"big-endian", dict("'>f4'", "False", "(1,)"), "big-endian"},
		{"native", dict("'=f4'", "False", "(1,)"), "not supported"},
		{"unsigned", dict("'<u4'", "False", "(1,)"), `"<u4" is not supported`},
		{"object", dict("'|O'", "False", "(1,)"), "not supported"},
		{"structured", dict("[('a', '<f4')]", "False", "(1,)"), "structured"},
		{"order 0", dict("'<f4'", "0", "(1,)"), "True or False"},
		{"number shape", dict("'<f4'", "False", "1"), "want ("},
		{"bare parens", dict("'<f4'", "False", "(1)"), "(1,)"},
		{"list shape", dict("'<f4'", "False", "[1]"), "want ("},
		{"lone comma", dict("'<f4'", "False", "(,)"), "whole number"},
		{"missing comma", dict("'<f4'", "False", "(1 1)"), "comma"},
		{"negative", dict("'<f4'", "False", "(-1,)"), "not negative"},
		{"float", dict("'<f4'", "False", "(1.0,)"), "comma"},
		{"2^63", dict("'<f4'", "False", "(9223372036854775808,)"), "2^63-1"},
		{"wrap", dict("'<f4'", "False", "(4294967296, 4294967296)"), "overflows"},
		{"nested", dict("'<f4'", "False", strings.Repeat("(", 60000)), "whole number"},
		{"data missing", dict("'<f4'", "False", "(2,)"), "4 bytes of data, want 8 for f32[2]"},
		{"data left over", dict("'<f2'", "False", "(1,)"), "4 bytes of data, want 2 for f16[1]"},
		{"huge", dict("'<f8'", "False", "(1099511627776,)"), "want 8796093022208"},
		{"not UTF-8", npyFile(3, "{'descr': '\xff\xfe', 'fortran_order': False, 'shape': ()}"), "not supported"},
	} {
		_, err := readNpy(c.file)
		mentions(t, c.name, err, c.want)
	}
	for n := range goldenNpy {
		if _, err := readNpy(goldenNpy[:n]); err == nil {
			t.Errorf("the first %d of %d bytes are accepted", n, len(goldenNpy))
		}
	}
	if _, err := ReadNpy(bytes.NewReader(nil), -1); err == nil {
		t.Error("a negative size is accepted")
	}
	if _, err := ReadSafetensors(bytes.NewReader(nil), -1); err == nil {
		t.Error("a negative size is accepted")
	}
}

func FuzzNpy(f *testing.F) {
	f.Add(goldenNpy)
	f.Add(npyFile(2, "{'descr': '<f8', 'fortran_order': True, 'shape': (0, 3), }"))
	f.Add(npyFile(3, `{"shape":(1,1,),"fortran_order":True,"descr":"<f2"}`, 1, 2))
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := readNpy(b)
		if err != nil {
			return
		}
		var w bytes.Buffer
		if err := WriteNpy(&w, x); err != nil {
			if strings.Contains(err.Error(), "limit") {
				return // the header that was read has no spaces in its shape
			}
			t.Fatal(err)
		}
		y, err := readNpy(w.Bytes())
		if err != nil || y.DType != x.DType || !slices.Equal(y.Shape, x.Shape) || !bytes.Equal(y.Data, x.Data) {
			t.Fatalf("%s is read back as %v, %v", x, y, err)
		}
	})
}
