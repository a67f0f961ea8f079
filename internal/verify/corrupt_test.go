package verify_test

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"testing"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/verify"
)

// numbers collects every integer in a value.
func numbers(v reflect.Value, out *[]reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			numbers(v.Field(i), out)
		}
	case reflect.Slice:
		for i := range v.Len() {
			numbers(v.Index(i), out)
		}
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint8:
		*out = append(*out, v)
	}
}

// TestCorruptPlansAreChecked replaces each number in a plan by another. The checker must return quickly and without a
// panic, since plans may come from files or from a faulty planner.
func TestCorruptPlansAreChecked(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	values := []int64{-1, 0, 1, 2, 3, 7, 255, 256, 1 << 20, 1<<31 - 1, -1 << 31, 1 << 40, 1 << 62, 1<<63 - 1, -1 << 63}
	refuted := 0
	for _, l := range lowerings(t, small) {
		if len(l.original.Cmds) > 120 {
			continue
		}
		text, err := json.Marshal(l.original)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			p := &plan.Plan{}
			if err := json.Unmarshal(text, p); err != nil {
				t.Fatal(err)
			}
			var all []reflect.Value
			numbers(reflect.ValueOf(p).Elem(), &all)
			at := all[r.IntN(len(all))]
			v := values[r.IntN(len(values))]
			if at.Kind() == reflect.Uint8 {
				at.SetUint(uint64(uint8(v)))
			} else {
				at.Set(reflect.ValueOf(v).Convert(at.Type()))
			}
			if verify.Plan(p, verify.Options{Prog: l.prog, Redundant: true}).Verdict == verify.Refuted {
				refuted++
			}
		}
	}
	if refuted == 0 {
		t.Error("none of them is refuted")
	}
	t.Logf("%d refuted", refuted)
}
