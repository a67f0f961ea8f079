package ir_test

import (
	"hocket.example/hocket/ir"
	"reflect"
	"testing"
)

const cloneSource = `// lead
dim n = 4  // a dim
mesh tp[2]
mesh d[2] = {1 0}

func g(%x: f32[n/tp]) -> f32[n] refines f {
  %y: f32[n] = all_gather %x, over=tp, axis=0  // trail
  return %y
}

func f(%x: f32[n/tp], %z: inout f32[n]) -> (f32[n], f32[n]) {
  // lead
  %s = stream[2]
  %c = counter[size(tp)]
  %b = alloc[2] f32[n] symmetric
  for %i in 0..2 stream(2) {
    if %i == 0 {
      put %z into %b[%i] at tp[1]
    } else {
      signal %c[%i] at tp[0]
    }
    // tail
  }
  return %z, %z
}
// end
`

func TestCloneSharesNothingThatChanges(t *testing.T) {
	p, ds := ir.Parse("clone.hkt", cloneSource)
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	q := p.Clone()
	if !reflect.DeepEqual(p, q) {
		t.Fatal("the copy differs")
	}
	before := p.String()
	scribble(reflect.ValueOf(q).Elem(), map[uintptr]bool{})
	if after := p.String(); after != before {
		t.Errorf("changing the copy changed the original:\n%s", after)
	}
	fresh, _ := ir.Parse("clone.hkt", cloneSource)
	if !reflect.DeepEqual(p, fresh) {
		t.Error("changing the copy changed the original")
	}
}

// scribble overwrites every name and number that is reachable from v, except those in expressions. Expressions may be
// shared, since no pass changes them.
func scribble(v reflect.Value, seen map[uintptr]bool) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() || seen[v.Pointer()] || v.Type() == reflect.TypeFor[*ir.Expr]() {
			return
		}
		seen[v.Pointer()] = true
		scribble(v.Elem(), seen)
	case reflect.Interface:
		if !v.IsNil() {
			scribble(v.Elem(), seen)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			scribble(v.Field(i), seen)
		}
	case reflect.Slice:
		for i := range v.Len() {
			if v.Index(i).Type() == reflect.TypeFor[*ir.Expr]() {
				v.Index(i).SetZero()
				continue
			}
			scribble(v.Index(i), seen)
		}
	case reflect.String:
		v.SetString("scribbled")
	case reflect.Int32, reflect.Int64:
		v.SetInt(-7)
	}
}
