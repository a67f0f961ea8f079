package pickle

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// written is what CPython 3.11's pickle.dumps(v, protocol) returns for
//
//	shared = ['x', 1]
//	v = {'none': None, 'bools': (True, False),
//	     'ints': [0, 255, 256, 65536, -1, -2**31, 2**31, -2**63, 2**63, -2**64],
//	     'floats': (0.5, -1e300), 'text': 'a\u00e4\U0001d11e', 'bytes': b'\x00\xff',
//	     'tuples': ((), (1,), (1, 2, 3), (1, 2, 3, 4)), 'shared': [shared, shared],
//	     'dict': {}, 1: 'one'}
var written = map[int]string{
	2: `80027d71002858040000006e6f6e6571014e5805000000626f6f6c73710288898671035804000000696e747371045d710528
4b004bff4d00014a000001004affffffff4a000000808a0500000080008a0800000000000000808a090000000000000080008a09000000
0000000000ff655806000000666c6f6174737106473fe000000000000047fe37e43c8800759c8671075804000000746578747108580700
000061c3a4f09d849e710958050000006279746573710a635f636f646563730a656e636f64650a710b580300000000c3bf710c58060000
006c6174696e31710d86710e52710f58060000007475706c6573711028294b018571114b014b024b03877112284b014b024b034b047471
13747114580600000073686172656471155d7116285d71172858010000007871184b016568176558040000006469637471197d711a4b01
58030000006f6e65711b752e`,
	3: `80037d71002858040000006e6f6e6571014e5805000000626f6f6c73710288898671035804000000696e747371045d710528
4b004bff4d00014a000001004affffffff4a000000808a0500000080008a0800000000000000808a090000000000000080008a09000000
0000000000ff655806000000666c6f6174737106473fe000000000000047fe37e43c8800759c8671075804000000746578747108580700
000061c3a4f09d849e710958050000006279746573710a430200ff710b58060000007475706c6573710c28294b0185710d4b014b024b03
87710e284b014b024b034b0474710f747110580600000073686172656471115d7112285d71132858010000007871144b01656813655804
0000006469637471157d71164b0158030000006f6e657117752e`,
	4: `800495ea000000000000007d94288c046e6f6e65944e8c05626f6f6c7394888986948c04696e7473945d94284b004bff4d00
014a000001004affffffff4a000000808a0500000080008a0800000000000000808a090000000000000080008a090000000000000000ff
658c06666c6f61747394473fe000000000000047fe37e43c8800759c86948c0474657874948c0761c3a4f09d849e948c05627974657394
430200ff948c067475706c65739428294b0185944b014b024b038794284b014b024b034b04749474948c06736861726564945d94285d94
288c0178944b01656813658c0464696374947d944b018c036f6e6594752e`,
	5: `800595ea000000000000007d94288c046e6f6e65944e8c05626f6f6c7394888986948c04696e7473945d94284b004bff4d00
014a000001004affffffff4a000000808a0500000080008a0800000000000000808a090000000000000080008a090000000000000000ff
658c06666c6f61747394473fe000000000000047fe37e43c8800759c86948c0474657874948c0761c3a4f09d849e948c05627974657394
430200ff948c067475706c65739428294b0185944b014b024b038794284b014b024b034b04749474948c06736861726564945d94285d94
288c0178944b01656813658c0464696374947d944b018c036f6e6594752e`,
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func decode(t *testing.T, s string) any {
	t.Helper()
	v, err := Decode(bytes.NewReader(unhex(t, s)), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func tuple(items ...any) *Tuple { return &Tuple{items} }

var options = cmp.Options{cmp.AllowUnexported(Dict{}),
	cmp.Comparer(func(a, b *big.Int) bool { return a.Cmp(b) == 0 })}

// TestDecodePython decodes values that Python wrote in each protocol.
func TestDecodePython(t *testing.T) {
	two := func(n uint) *big.Int { return new(big.Int).Lsh(big.NewInt(1), n) }
	want := map[any]any{
		"none": nil, "bools": tuple(true, false),
		"ints": &List{[]any{int64(0), int64(255), int64(256), int64(65536), int64(-1), int64(-1 << 31), int64(1 << 31),
			int64(-1 << 63), two(63), new(big.Int).Neg(two(64))}},
		"floats": tuple(0.5, -1e300), "text": "a\u00e4\U0001d11e", "bytes": []byte{0, 255},
		"tuples": tuple(tuple(), tuple(int64(1)), tuple(int64(1), int64(2), int64(3)),
			tuple(int64(1), int64(2), int64(3), int64(4))),
		"shared": &List{[]any{&List{[]any{"x", int64(1)}}, &List{[]any{"x", int64(1)}}}},
		"dict":   &Dict{}, int64(1): "one",
	}
	for protocol, s := range written {
		d, ok := decode(t, s).(*Dict)
		if !ok || len(d.Keys) != len(want) {
			t.Fatalf("protocol %d: wrong dict", protocol)
		}
		for i, k := range d.Keys {
			got := d.Values[i]
			if o, ok := got.(*Object); ok && protocol == 2 &&
				k == "bytes" { // protocol 2 represents a bytes object by a call
				if o.Module != "_codecs" || o.Name != "encode" || !cmp.Equal(o.Args, tuple("\u0000\u00ff", "latin1")) {
					t.Errorf("protocol 2: bytes are %+v", o)
				}
				continue
			}
			if diff := cmp.Diff(want[k], got, options); diff != "" {
				t.Errorf("protocol %d: %v: %s", protocol, k, diff)
			}
		}
		if l := d.Get("shared").(*List); l.Items[0] != l.Items[1] {
			t.Errorf("protocol %d: a shared list was decoded twice", protocol)
		}
	}
}

// TestNothingIsCalled decodes os.system("echo hi"), an object with state, and an ordered dict.
func TestNothingIsCalled(t *testing.T) {
	for _, s := range []string{
		"80049522000000000000008c05706f736978948c0673797374656d9493948c076563686f20686994859452942e",
		"800263706f7369780a73797374656d0a710058070000006563686f20686971018571025271032e",
	} {
		got := decode(t, s).(*Object)
		if want := (&Object{Module: "posix", Name: "system", Called: true, Args: tuple("echo hi")}); !cmp.Equal(got,
			want, options) {
			t.Errorf("got %+v", got)
		}
	}
	got := decode(t, "8002635f5f6d61696e5f5f0a500a7100298171017d710258010000006171034b0173622e").(*Object)
	if got.Name != "P" || got.State.(*Dict).Get("a") != int64(1) {
		t.Errorf("an object with state: %+v", got)
	}
	got = decode(t, "80049529000000000000008c0b636f6c6c656374696f6e73948c0b4f72"+
		"6465726564446963749493942952948c0161944b01732e").(*Object)
	if got.Name != "OrderedDict" || got.Entries.Get("a") != int64(1) {
		t.Errorf("an ordered dict: %+v", got)
	}
}

func TestCycle(t *testing.T) {
	l := decode(t, "80049506000000000000005d946800612e").(*List)
	if len(l.Items) != 1 || l.Items[0] != any(l) {
		t.Error("the list does not contain itself")
	}
}

// TestDecodeTorch decodes pickles that torch wrote, from the corpus next to the repository.
func TestDecodeTorch(t *testing.T) {
	files, _ := filepath.Glob("../../../shared/corpus/flight/*.pickle")
	if len(files) == 0 {
		t.Skip("the corpus next to the repository is missing")
	}
	for _, path := range files {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		v, err := Decode(f, Limits{})
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if n := len(v.(*Dict).Get("entries").(*List).Items); n != 7 {
			t.Errorf("%s: %d entries, want 7", path, n)
		}
	}
}

// endless is a reader that repeats some bytes forever.
type endless struct {
	s string
	i int
}

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = e.s[e.i%len(e.s)]
		e.i++
	}
	return len(p), nil
}

// TestLimits checks that endless input, and input that claims a large size, ends in an error.
func TestLimits(t *testing.T) {
	for _, repeated := range []string{"]", "(", "N0", "]q\x00", "X\x01\x00\x00\x00a0"} {
		r := io.MultiReader(strings.NewReader("\x80\x02"), &endless{s: repeated})
		if _, err := Decode(r, Limits{Bytes: 1 << 20, Memory: 1 << 20}); !errors.Is(err, ErrLimit) {
			t.Errorf("%q for ever: %v", repeated, err)
		}
	}
	for _, s := range []string{"X\xff\xff\xff\x7f", "\x8e\xff\xff\xff\xff\xff\xff\xff\xff", "\x8b\xff\xff\xff\x7f"} {
		if _, err := Decode(strings.NewReader("\x80\x04"+s), Limits{}); !errors.Is(err, ErrLimit) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

// TestMalformed checks that malformed pickles are refused with the position of the fault.
func TestMalformed(t *testing.T) {
	for s, want := range map[string]string{
		"":                            "offset 0: unexpected EOF",
		"\x80":                        "offset 0: unexpected EOF",
		"(lp0\n.":                     "offset 0: no pickle of protocol 2",
		"{}":                          "offset 0: no pickle",
		"\x80\x06N.":                  "protocol 6",
		"\x80\x02.":                   "more values than the stack has",
		"\x80\x02NN.":                 "values are left",
		"\x80\x02N(.":                 "more values than the stack has",
		"\x80\x02(a":                  "more values than the stack has",
		"\x80\x02Nt.":                 "the stack has no mark",
		"\x80\x02}(Nu.":               "has no value",
		"\x80\x02NNa.":                "appends to",
		"\x80\x02h\x07.":              "entry 7 of the memo",
		"\x80\x02NN\x93.":             "whose name is not a string",
		"\x80\x02NNR.":                "it calls",
		"\x80\x05\x97.":               "a buffer outside the file",
		"\x80\x02I1\n.":               "of protocol 0 or 1",
		"\x80\x02\xee":                "there is no opcode 0xee",
		"\x80\x02X\x05\x00\x00\x00ab": "unexpected EOF",
	} {
		_, err := Decode(strings.NewReader(s), Limits{})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "offset ") {
			t.Errorf("%q: %v; want %q", s, err, want)
		}
	}
}

// TestNested checks that deeply nested values are decoded or refused, and that messages stay short.
func TestNested(t *testing.T) {
	const n = 1 << 20
	for what, s := range map[string]struct{ pickle, limit string }{
		"tuples":           {"N" + strings.Repeat("\x85", n), ""},
		"a tuple shared":   {")" + strings.Repeat("q\x00h\x00\x86", n/5), ""},
		"lists":            {strings.Repeat("]", 2*n) + strings.Repeat("a", 2*n-1), "values on the stack"},
		"lists of marks":   {strings.Repeat("(", 2*n) + strings.Repeat("l", 2*n), "nested more than"},
		"tuples, too many": {"N" + strings.Repeat("\x85", 2*n), "bytes of memory"},
		"lists, too many":  {"](" + strings.Repeat(strings.Repeat("]", 1000)+"e(", 2*n/1000) + "e", "bytes of memory"},
		"imports": {"](" + strings.Repeat(strings.Repeat("c\n\n", 1000)+"e(", n/1000) + "e",
			"bytes of memory"},
	} {
		v, err := Decode(strings.NewReader("\x80\x02"+s.pickle+"."), Limits{Memory: 96 << 20})
		switch {
		case s.limit == "" && (err != nil || len(Brief(v)) > 100):
			t.Errorf("%s: %v", what, err)
		case s.limit != "" && (!errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), s.limit)):
			t.Errorf("%s: %v, want %q", what, err, s.limit)
		}
	}
}

// TestGet checks that the last of equal keys is found, in short and long dicts, also after entries
// were added.
func TestGet(t *testing.T) {
	d := &Dict{}
	for n := range 200 {
		d.Keys, d.Values = append(d.Keys, strconv.Itoa(n%150), int64(n)), append(d.Values, int64(n), nil)
		if got := d.Get(strconv.Itoa(n % 150)); got != int64(n) {
			t.Fatalf("key %d: %v, want %d", n%150, got, n)
		}
		if got := d.Get("none"); got != nil {
			t.Fatalf("none: %v", got)
		}
	}
}

// again pickles a value, up to a depth and a number of values, and reports whether the whole value was written.
func again(b *bytes.Buffer, v any, depth int, left *int) bool {
	if *left--; depth == 0 || *left < 0 {
		return false
	}
	all := func(open, end string, lists ...[]any) bool {
		b.WriteString(open)
		for i := range lists[0] {
			for _, l := range lists {
				if !again(b, l[i], depth-1, left) {
					return false
				}
			}
		}
		b.WriteString(end)
		return true
	}
	switch v := v.(type) {
	case nil:
		b.WriteByte(opNone)
	case bool:
		b.WriteByte(map[bool]byte{true: opNewTrue, false: opNewFalse}[v])
	case int64:
		b.Write(binary.LittleEndian.AppendUint64([]byte{opLong1, 8}, uint64(v)))
	case float64:
		b.Write(binary.BigEndian.AppendUint64([]byte{opBinFloat}, math.Float64bits(v)))
	case string:
		b.Write(binary.LittleEndian.AppendUint32([]byte{opBinUnicode}, uint32(len(v))))
		b.WriteString(v)
	case []byte:
		b.Write(binary.LittleEndian.AppendUint32([]byte{opBinBytes}, uint32(len(v))))
		b.Write(v)
	case *Tuple:
		return all("(", "t", v.Items)
	case *List:
		return all("](", "e", v.Items)
	case *Set:
		return all("\x8f(", "\x90", v.Items)
	case *Dict:
		return all("}(", "u", v.Keys, v.Values)
	default:
		return false // integers and objects are not written
	}
	return true
}

// FuzzDecode: errors have a position in the pickle, and decoded data are the same after they are encoded and decoded
// again. The decoder must not use more memory than its limit.
func FuzzDecode(f *testing.F) {
	for _, s := range written {
		b, _ := hex.DecodeString(strings.Join(strings.Fields(s), ""))
		f.Add(b)
	}
	for _, s := range []string{"N\x85\x85\x85.", "]]]aa.", "((llt.", ")q\x00h\x00\x86.", "]\x94h\x00a.",
		"cm\nn\n)\x81}b.", "\x8f(NNN\x90."} {
		f.Add([]byte("\x80\x04" + s))
	}
	place := regexp.MustCompile(`^pickle: offset (\d+): `)
	f.Fuzz(func(t *testing.T, b []byte) {
		limits := Limits{Bytes: 1 << 16, Memory: 1 << 20}
		v, err := Decode(bytes.NewReader(b), limits)
		if err != nil {
			m := place.FindStringSubmatch(err.Error())
			if m == nil {
				t.Fatalf("no place: %v", err)
			}
			if at, _ := strconv.Atoi(m[1]); at > len(b) {
				t.Fatalf("offset %d of %d: %v", at, len(b), err)
			}
			return
		}
		if len(Brief(v)) > 300 {
			t.Errorf("not brief: %s", Brief(v))
		}
		var first, second bytes.Buffer
		first.WriteString("\x80\x04")
		left := 1000
		if !again(&first, v, 20, &left) || first.Len() > int(limits.Bytes) {
			return
		}
		first.WriteByte(opStop)
		w, err := Decode(bytes.NewReader(first.Bytes()), limits)
		if err != nil {
			t.Fatalf("%q, pickled again: %v", first.Bytes(), err)
		}
		second.WriteString("\x80\x04")
		left = 1000
		again(&second, w, 20, &left)
		second.WriteByte(opStop)
		if !bytes.Equal(first.Bytes(), second.Bytes()) {
			t.Errorf("%q has become %q", first.Bytes(), second.Bytes())
		}
	})
}
