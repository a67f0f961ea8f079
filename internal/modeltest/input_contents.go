package modeltest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/ir"
)

// serverText is a function that updates state. The program has an op of each kind whose integer operands are checked.
// Ids pass through a slice, a cast and a copy; positions are used in a loop.
const serverText = `dim T = 4
dim V = 1000
dim K = 8
mesh tp[2]
func step(%ids: i64[T + 2], %at: i32[2], %len: i32[T], %emb: f32[V/tp, 4], %counts: i32[2], %rows: f32[2, 1, 4], %kv: inout f32[K, 1, 4], %n: inout i32[1]) -> (f32[T, 4], f32[T, 1, 4], f32[4, 1, 4]) {
  %s = slice %ids, axis=0, 1..T + 1
  %i: i32[T] = cast %s
  %b = alloc i32[T]
  copy %i into %b
  %c: i32[T] = claim %b
  %y: f32[T, 4] = embedding %c, %emb
  for %l in 0..2 {
    index_copy %rows, %at into %kv
  }
  %m = add %n, %n
  copy %m into %n
  %k: f32[K, 1, 4] = claim %kv
  %q = reshape %y, shape=(T, 1, 4)
  %o = attention %q, %k, %k, %len
  %h = alloc f32[4, 1, 4]
  all_gatherv %rows, %counts into %h, over=tp, axis=0
  %g: f32[4, 1, 4] = claim %h
  return %y, %o, %g
}
`

// serverInputs returns valid inputs of serverText, in which some elements of the input with the given name are
// replaced.
func serverInputs(t testing.TB, name string, vals ...float64) map[string]*hocket.Tensor {
	t.Helper()
	in := map[string]*hocket.Tensor{}
	put := func(n string, dt ir.DType, of []float64, shape ...int64) {
		if n == name {
			of = vals
		}
		x, err := hocket.FromFloats(dt, of, shape...)
		if err != nil {
			t.Fatal(err)
		}
		in[n] = x
	}
	put("ids", ir.I64, []float64{-7, 1, 999, 0, 3, 5000}, 6) // no op reads the invalid ids
	put("at", ir.I32, []float64{-1, 7}, 2)
	put("len", ir.I32, []float64{0, 1, 8, 3}, 4)
	put("emb", ir.F32, slices.Repeat([]float64{1}, 4000), 1000, 4)
	put("counts", ir.I32, []float64{1, 2}, 2)
	put("rows", ir.F32, []float64{1, 2, 3, 4, 5, 6, 7, 8}, 2, 1, 4)
	return in
}

// wrongContents lists inputs of serverText with an element that an op must refuse.
var wrongContents = []struct {
	name  string
	vals  []float64
	index int64
	value int64
	low   int64
	high  int64
	says  string
}{
	{"ids", []float64{0, 1, 5000, 0, 3, 0}, 2, 5000, 0, 1000, "must be from 0 to 999"},
	{"ids", []float64{0, 1, 0, 0, -1, 0}, 4, -1, 0, 1000, "embedding"},
	{"at", []float64{8, 1}, 0, 8, -1, 8, "index_copy"},
	{"at", []float64{0, -2}, 1, -2, -1, 8, "must be from -1 to 7"},
	{"at", []float64{5, 5}, 1, 5, -1, 8, "element [0] has the same position"},
	{"len", []float64{0, 1, 9, 3}, 2, 9, 0, 9, "attention"},
	{"counts", []float64{2, 3}, 1, 3, 0, 5, "add up to 5 rows"},
	{"counts", []float64{1, 3}, 1, 3, 0, 3, "rank 1"},
	{"counts", []float64{-1, 1}, 0, -1, 0, 3, "all_gatherv"},
}

// InputContents checks that a wrong id, position, length or count is reported as an InputError before the run begins,
// whether the inputs and the state are in host memory or on the devices. The state must not change, and the next run
// must succeed.
func InputContents(t *testing.T, m *hocket.Machine, opts hocket.LoadOptions, others Outside) {
	for _, inputs := range []string{"host", "written", "filled", "batch"} {
		for _, state := range []string{"host", "bound", "in turns"} {
			t.Run(inputs+" inputs, state "+state, func(t *testing.T) {
				s := newServing(t, m, opts, others, inputs, state)
				defer s.model.Close()
				n := 1.0
				for _, c := range wrongContents {
					good := s.args(serverInputs(t, ""))
					if err := s.run(good); err != nil {
						t.Fatal(err)
					}
					n *= 2
					batch := []hocket.Args{s.args(serverInputs(t, c.name, c.vals...))}
					if inputs == "batch" {
						batch = append([]hocket.Args{s.args(serverInputs(t, ""))}, batch...)
					}
					err := s.run(batch...)
					var e *hocket.InputError
					if !errors.As(err, &e) || !errors.Is(err, hocket.ErrInput) || !strings.Contains(err.Error(), c.says) {
						t.Fatalf("%s %v: %v", c.name, c.vals, err)
					}
					got := []any{e.Param, e.Index, e.Value, e.Low, e.High, e.Begun, e.Run}
					want := []any{c.name, []int64{c.index}, c.value, c.low, c.high, false, len(batch) - 1}
					if fmt.Sprint(got) != fmt.Sprint(want) {
						t.Errorf("got %v, want %v", got, want)
					}
					if kv, is := s.state(); is != n || kv[31] != 8 || kv[0] != 0 {
						t.Fatalf("after %v the state is %v, %v, want %v", err, kv, is, n)
					}
				}
			})
		}
	}
}

// serving is a model of serverText, and its state.
type serving struct {
	*testing.T
	model         *hocket.Model
	others        Outside
	inputs, where string
	kv, n         *hocket.Tensor
	onDevices     map[string]*hocket.DeviceTensor
	other         map[string]*hocket.DeviceTensor // second tensors of state that alternates between two
}

func newServing(t *testing.T, m *hocket.Machine, opts hocket.LoadOptions, others Outside, inputs, where string) *serving {
	t.Helper()
	if others == nil {
		others = inProcess{}
	}
	s := &serving{T: t, others: others, model: Load(t, m, serverText, opts), inputs: inputs, where: where,
		onDevices: map[string]*hocket.DeviceTensor{}, other: map[string]*hocket.DeviceTensor{}}
	var err, nerr error
	s.kv, err = hocket.FromFloats(ir.F32, make([]float64, 32), 8, 1, 4)
	s.n, nerr = hocket.FromFloats(ir.I32, []float64{1}, 1)
	if err = errors.Join(err, nerr); err != nil {
		t.Fatal(err)
	}
	if where == "host" {
		return s
	}
	for name, x := range map[string]*hocket.Tensor{"kv": s.kv, "n": s.n} {
		s.onDevices[name] = s.put(name, x)
		if s.other[name] = s.put(name, x); where == "bound" {
			if err := s.model.BindDevice(name, s.onDevices[name]); err != nil {
				t.Fatal(err)
			}
		}
	}
	return s
}

// put makes a device tensor with the values of x.
func (s *serving) put(name string, x *hocket.Tensor) *hocket.DeviceTensor {
	d, err := s.model.NewDeviceTensor(s.Context(), name, nil)
	if err != nil {
		s.Fatal(err)
	}
	if s.inputs == "filled" {
		err = d.Fill(s.Context(), func(blocks []hocket.DeviceBlock) error {
			for _, b := range blocks {
				from, n := int64(0), int64(len(x.Data))
				if name == "emb" {
					from, n = b.From[0]*16, b.Shape[0]*16
				}
				if err := s.others.Put(b, x.Data[from:from+n]); err != nil {
					return err
				}
			}
			return nil
		})
	} else {
		err = d.Write(s.Context(), x)
	}
	if err != nil {
		s.Fatal(err)
	}
	return d
}

// args returns the arguments of a run.
func (s *serving) args(in map[string]*hocket.Tensor) hocket.Args {
	a := hocket.Args{In: in, Out: map[string]*hocket.Tensor{}}
	if s.inputs == "written" || s.inputs == "filled" {
		a.In, a.DeviceIn = map[string]*hocket.Tensor{}, map[string]*hocket.DeviceTensor{}
		for name, x := range in {
			a.DeviceIn[name] = s.put(name, x)
		}
	}
	switch s.where {
	case "host":
		a.In["kv"], a.In["n"] = s.kv, s.n
		a.Out["kv"], a.Out["n"] = s.kv, s.n
	case "in turns":
		if a.DeviceIn == nil {
			a.DeviceIn = map[string]*hocket.DeviceTensor{}
		}
		for name, d := range s.onDevices {
			a.DeviceIn[name] = d
		}
		a.DeviceOut = s.other
	}
	return a
}

func (s *serving) run(batch ...hocket.Args) error {
	_, err := s.model.RunBatch(s.Context(), batch)
	if err == nil && s.where == "in turns" {
		s.onDevices, s.other = s.other, s.onDevices
	}
	return err
}

// state reads the state.
func (s *serving) state() (kv []float64, n float64) {
	if s.where != "host" {
		for name, d := range s.onDevices {
			x, err := d.Read(s.Context())
			if err != nil {
				s.Fatal(err)
			}
			if name == "kv" {
				s.kv = x
			} else {
				s.n = x
			}
		}
	}
	return s.kv.Floats(), s.n.Floats()[0]
}
