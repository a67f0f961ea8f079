package tensor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/ir"
)

// safetensorsFile concatenates a header and data without checking them.
func safetensorsFile(header string, data ...byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

func readSafetensors(b []byte) (*Safetensors, error) {
	return ReadSafetensors(bytes.NewReader(b), int64(len(b)))
}

// The golden file contains 1, -2 in f32 and 3, -1, 0.5 in bf16.
const goldenSafetensorsHeader = `{"__metadata__":{"by":"hand"},"a/../w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},` +
	`"b<\n":{"dtype":"BF16","shape":[1,3],"data_offsets":[8,14]}}    `

var goldenSafetensors = append([]byte{0x98, 0, 0, 0, 0, 0, 0, 0}, goldenSafetensorsHeader+
	"\x00\x00\x80\x3f\x00\x00\x00\xc0"+"\x40\x40\x80\xbf\x00\x3f"...)

func TestSafetensorsGolden(t *testing.T) {
	s, err := readSafetensors(goldenSafetensors)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Names(); !slices.Equal(got, []string{"a/../w", "b<\n"}) {
		t.Errorf("names %q", got)
	}
	if got := s.Metadata(); !maps.Equal(got, map[string]string{"by": "hand"}) {
		t.Errorf("metadata %q", got)
	}
	a, err := s.Read("a/../w")
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.Read("b<\n")
	if err != nil {
		t.Fatal(err)
	}
	if a.String() != "f32[2]" || !slices.Equal(floats(a), []float64{1, -2}) || b.String() != "bf16[1, 3]" ||
		!slices.Equal(floats(b), []float64{3, -1, 0.5}) {
		t.Errorf("read %s %v and %s %v", a, floats(a), b, floats(b))
	}
	if dtype, shape, ok := s.Info("b<\n"); dtype != "BF16" || !slices.Equal(shape, []int64{1, 3}) || !ok {
		t.Errorf("info %s %v %v", dtype, shape, ok)
	}
	var w bytes.Buffer
	// The tensor with narrower elements is passed first, but written last.
	if err := WriteSafetensors(&w, []Named{{"b<\n", b}, {"a/../w", a}}, map[string]string{"by": "hand"}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(w.Bytes(), goldenSafetensors) {
		t.Errorf("wrote\n%q, want\n%q", w.Bytes(), goldenSafetensors)
	}
}

// TestSafetensorsRoundTrip writes tensors of every type in odd, empty and scalar shapes and reads
// them back.
func TestSafetensorsRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	path := filepath.Join(t.TempDir(), "x.safetensors")
	var all []Named
	for _, dt := range ir.DTypes() {
		for _, shape := range [][]int64{{}, {0}, {1}, {3}, {5, 7}, {3, 0, 2}, {1, 2, 1, 3}} {
			x, _ := New(dt, shape)
			for i := range x.Data {
				x.Data[i] = byte(rng.Uint32())
			}
			all = append(all, Named{fmt.Sprintf("../%s é%v", dt, shape), x})
		}
	}
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if err := WriteSafetensorsFile(path, all, nil); err != nil {
		t.Fatal(err)
	}
	s, err := OpenSafetensors(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.Metadata() != nil || len(s.Names()) != len(all) || s.base%8 != 0 {
		t.Errorf("metadata %v, %d names, data at %d", s.Metadata(), len(s.Names()), s.base)
	}
	for _, want := range all {
		got, err := s.Read(want.Name)
		if err != nil {
			t.Fatal(err)
		}
		if got.DType != want.Tensor.DType || !slices.Equal(got.Shape, want.Tensor.Shape) ||
			!bytes.Equal(got.Data, want.Tensor.Data) {
			t.Errorf("%s is read back as %s %x, want %x", want.Tensor, got, got.Data, want.Tensor.Data)
		}
		if s.entries[want.Name].begin%want.Tensor.DType.Size() != 0 {
			t.Errorf("%s is not aligned", want.Name)
		}
	}
}

func TestSafetensorsEmpty(t *testing.T) {
	var w bytes.Buffer
	if err := WriteSafetensors(&w, nil, nil); err != nil {
		t.Fatal(err)
	}
	if want := safetensorsFile("{}      "); !bytes.Equal(w.Bytes(), want) {
		t.Errorf("wrote %q, want %q", w.Bytes(), want)
	}
	s, err := readSafetensors(w.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Read("x")
	mentions(t, "empty file", err, `no tensor "x"`, "holds none")
}

// TestSafetensorsForeign checks that reading a tensor of an unsupported element type is an error.
func TestSafetensorsForeign(t *testing.T) {
	s, err := readSafetensors(safetensorsFile(`{"q":{"dtype":"F8_E8M0","shape":[3],"data_offsets":[0,3]},"x":{"dtype":"F16","shape":[],"data_offsets":[3,5]}}`, 1, 2, 3, 0, 0x3c))
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Read("q")
	mentions(t, "foreign dtype", err, `tensor "q"`, "F8_E8M0", "want F32")
	x, err := s.Read("x")
	if err != nil || x.Float64(0) != 1 {
		t.Errorf("x is %v, %v", x, err)
	}
}

func TestSafetensorsBad(t *testing.T) {
	const w = `"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}`
	eight := make([]byte, 8)
	tensorWith := func(dtype, shape, offsets string) []byte {
		return safetensorsFile(fmt.Sprintf(`{"w":{"dtype":%s,"shape":%s,"data_offsets":%s}}`, dtype, shape, offsets),
			eight...)
	}
	claim := func(n uint64) []byte { return append(binary.LittleEndian.AppendUint64(nil, n), "{}"...) }
	for _, c := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty file", nil, "0 bytes"},
		{"seven bytes", make([]byte, 7), "7 bytes"},
		{"no header", eight, "start with {"},
		{"header of 2^63", claim(1 << 63), "9223372036854775808"},
		{"header of 2^64-1", claim(math.MaxUint64), "limit"},
		{"header over the limit", claim(100_000_001), "limit"},
		{"header over the file", claim(3), "only 2 follow"},
		{"truncated header", safetensorsFile(`{` + w), "unexpected EOF"},
		{"array", safetensorsFile(`[]`), "start with {"},
		{"space first", safetensorsFile(` {}`), "start with {"},
		{"not UTF-8", safetensorsFile("{\"\xff\":1}"), "UTF-8"},
		{"two values", safetensorsFile(`{} {}`), "follows"},
		{"zero padding", safetensorsFile("{}\x00"), "follows"},
		{"trailing comma", safetensorsFile(`{`+w+`,}`, eight...), "invalid character"},
		{"no colon", safetensorsFile(`{"w" 1}`), "invalid character"},
		{"duplicate tensor", safetensorsFile(`{`+w+`,`+w+`}`, eight...), `"w" comes twice`},
		{"duplicate by escape", safetensorsFile(`{`+w+`,"\u0077"`+w[3:]+`}`, eight...), `"w" comes twice`},
		{"duplicate metadata", safetensorsFile(`{"__metadata__":{},"__metadata__":{}}`), "comes twice"},
		{"duplicate in metadata", safetensorsFile(`{"__metadata__":{"a":"","a":""}}`), "comes twice"},
		{"duplicate in entry", safetensorsFile(`{"w":{"dtype":"F32","dtype":"F32"}}`), `"dtype" comes twice`},
		{"metadata number", safetensorsFile(`{"__metadata__":{"a":1}}`), "want a string"},
		{"metadata nested", safetensorsFile(`{"__metadata__":{"a":{}}}`), "want a string"},
		{"metadata null", safetensorsFile(`{"__metadata__":null}`), "found null"},
		{"entry is a string", safetensorsFile(`{"w":"F32"}`), `tensor "w": found "F32", want {`},
		{"unknown key", safetensorsFile(`{"w":{"dtype":"F32","stride":[1]}}`), `unknown key "stride"`},
		{"missing key", safetensorsFile(`{"w":{"dtype":"F32","shape":[2]}}`, eight...), "three keys"},
		{"deep nesting", safetensorsFile(`{"w":` + strings.Repeat("[", 1e6)), `tensor "w": found [, want {`},
		{"deep in shape", safetensorsFile(`{"w":{"shape":` + strings.Repeat("[", 1e6)), "want a number"},
		{"dtype number", tensorWith(`32`, `[2]`, `[0,8]`), "want a string"},
		{"shape object", tensorWith(`"F32"`, `{}`, `[0,8]`), "found {, want ["},
		{"shape string", tensorWith(`"F32"`, `["2"]`, `[0,8]`), "want a number"},
		{"negative extent", tensorWith(`"F32"`, `[-2]`, `[0,8]`), "whole number"},
		{"fraction", tensorWith(`"F32"`, `[2.0]`, `[0,8]`), "whole number"},
		{"exponent", tensorWith(`"F32"`, `[2e0]`, `[0,8]`), "whole number"},
		{"extent 2^63", tensorWith(`"F32"`, `[9223372036854775808]`, `[0,8]`), "whole number"},
		{"product wraps", tensorWith(`"F32"`, `[4294967296,4294967296]`, `[0,8]`), "overflows"},
		{"bytes wrap", tensorWith(`"F64"`, `[2305843009213693952]`, `[0,0]`), "overflows"},
		{"negative offset", tensorWith(`"F32"`, `[2]`, `[-8,0]`), "whole number"},
		{"backwards", tensorWith(`"F32"`, `[0]`, `[8,0]`), "backwards"},
		{"three offsets", tensorWith(`"F32"`, `[2]`, `[0,8,8]`), "has 3 numbers"},
		{"wrong size", tensorWith(`"F64"`, `[2]`, `[0,8]`), "hold 8 bytes, want 16 for F64[2]"},
		{"wrong scalar size", tensorWith(`"F32"`, `[]`, `[0,8]`), "hold 8 bytes, want 4"},
		{"gap before", tensorWith(`"F32"`, `[1]`, `[4,8]`), "offset 4, want 0"},
		{"data left over", tensorWith(`"F32"`, `[1]`, `[0,4]`), "4 bytes of data, but the file has 8"},
		{"data missing", tensorWith(`"F32"`, `[4]`, `[0,16]`), "16 bytes of data, but the file has 8"},
		{"huge foreign", tensorWith(`"U8"`, `[1]`, `[0,9223372036854775807]`), "but the file has 8"},
		{"overlap", safetensorsFile(`{`+w+`,"v":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, eight...),
			`"v": its data starts at offset 4, want 8`},
		{"same place", safetensorsFile(`{`+w+`,"v":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, eight...),
			"want 8"},
		{"hole", safetensorsFile(`{"v":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F16","shape":[1],"data_offsets":[6,8]}}`, eight...), "want 4"},
	} {
		_, err := readSafetensors(c.file)
		mentions(t, c.name, err, c.want)
		if err != nil && len(err.Error()) > 1000 {
			t.Errorf("%s: the message is too long: %d bytes", c.name, len(err.Error()))
		}
	}
}

// TestSafetensorsTruncated checks that the golden file is refused if it is truncated at any byte.
func TestSafetensorsTruncated(t *testing.T) {
	for n := range goldenSafetensors {
		if _, err := readSafetensors(goldenSafetensors[:n]); err == nil {
			t.Errorf("the first %d of %d bytes are accepted", n, len(goldenSafetensors))
		}
	}
}

// TestSafetensorsShrunk checks that reading from a file that was truncated after opening is an
// error.
func TestSafetensorsShrunk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	if err := os.WriteFile(path, goldenSafetensors, 0o666); err != nil {
		t.Fatal(err)
	}
	s, err := OpenSafetensors(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := os.Truncate(path, int64(len(goldenSafetensors))-3); err != nil {
		t.Fatal(err)
	}
	x, err := s.Read("b<\n")
	mentions(t, "shrunk", err, "x.safetensors", `"b<\n"`, "read 3 of 6 bytes")
	if x != nil {
		t.Error("a tensor is returned together with the error")
	}
}

// TestSafetensorsMemory checks that no memory is allocated for sizes that a small file merely
// claims.
func TestSafetensorsMemory(t *testing.T) {
	files := [][]byte{
		append(binary.LittleEndian.AppendUint64(nil, 99_999_999), '{'),
		safetensorsFile(`{"w":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}`),
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, f := range files {
		if _, err := readSafetensors(f); err == nil {
			t.Error("accepted")
		}
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("%d bytes allocated", n)
	}
}

func TestWriteSafetensorsBad(t *testing.T) {
	x, _ := New(ir.F32, []int64{1})
	for _, c := range []struct {
		name    string
		tensors []Named
		meta    map[string]string
		want    string
	}{
		{"double", []Named{{"x", x}, {"x", x}}, nil, `called "x"`},
		{"reserved", []Named{{"__metadata__", x}}, nil, "__metadata__"},
		{"name", []Named{{"\xff", x}}, nil, "UTF-8"},
		{"nil", []Named{{"x", nil}}, nil, `"x": tensor is nil`},
		{"data", []Named{{"x", &Tensor{DType: ir.F32, Shape: []int64{2}, Data: make([]byte, 4)}}}, nil,
			"has 4 bytes of data, want 8"},
		{"dtype", []Named{{"x", &Tensor{}}}, nil, "invalid element type"},
		{"metadata", nil, map[string]string{"a": "\xff"}, "UTF-8"},
	} {
		var w bytes.Buffer
		mentions(t, c.name, WriteSafetensors(&w, c.tensors, c.meta), c.want)
		if w.Len() != 0 {
			t.Errorf("%s: %d bytes were written", c.name, w.Len())
		}
	}
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	write := func(text string, fail error) error {
		return files.Write(path, func(w io.Writer) error {
			_, err := io.WriteString(w, text)
			return errors.Join(err, fail)
		})
	}
	if err := write("first", nil); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	if err := write("second", broken); !errors.Is(err, broken) || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v does not wrap %v and name %s", err, broken, path)
	}
	if got, _ := os.ReadFile(path); string(got) != "first" {
		t.Errorf("a failed write leaves %q", got)
	}
	if err := write("third", nil); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); string(got) != "third" {
		t.Errorf("the file contains %q", got)
	}
	if err := files.WriteUnsynced(path, []byte("fourth")); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); string(got) != "fourth" {
		t.Errorf("the file contains %q", got)
	}
	if files, _ := os.ReadDir(dir); len(files) != 1 {
		t.Errorf("%d files are left", len(files))
	}
	path = filepath.Join(dir, "no", "out")
	mentions(t, "no directory", write("x", nil), path)
}

func TestOpenNotRegular(t *testing.T) {
	dir := t.TempDir()
	_, err := OpenSafetensors(dir)
	mentions(t, "directory", err, dir, "not a regular file")
	_, err = ReadNpyFile(dir)
	mentions(t, "directory", err, dir, "not a regular file")
}

func FuzzSafetensors(f *testing.F) {
	f.Add(goldenSafetensors)
	f.Add(safetensorsFile("{}"))
	f.Add(safetensorsFile(`{"w":{"dtype":"F8_E4M3","shape":[0,3],"data_offsets":[0,0]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := readSafetensors(b)
		if err != nil {
			return
		}
		var all []Named
		for _, name := range s.Names() {
			if x, err := s.Read(name); err == nil {
				all = append(all, Named{name, x})
			}
		}
		var w bytes.Buffer
		if err := WriteSafetensors(&w, all, s.Metadata()); err != nil {
			t.Fatal(err)
		}
		again, err := readSafetensors(w.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(again.Metadata(), s.Metadata()) {
			t.Fatalf("metadata %q is read back as %q", s.Metadata(), again.Metadata())
		}
		for _, want := range all {
			got, err := again.Read(want.Name)
			if err != nil || got.DType != want.Tensor.DType || !slices.Equal(got.Shape, want.Tensor.Shape) ||
				!bytes.Equal(got.Data, want.Tensor.Data) {
				t.Fatalf("%q is read back as %v, %v; want %v", want.Name, got, err, want.Tensor)
			}
		}
	})
}
