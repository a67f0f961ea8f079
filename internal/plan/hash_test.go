package plan

import (
	"reflect"
	"strings"
	"testing"
)

// notHashed lists the fields that are only for people and are not part of the hash.
var notHashed = map[string]bool{
	"Plan.Program": true, "Plan.Func": true, "Plan.Sites": true, "Plan.Memory": true,
	"Stream.Name": true, "Counter.Name": true,
	"Buffer.Name": true, "Buffer.Site": true, "Buffer.First": true, "Buffer.Last": true,
	"Cmd.Site": true, "Cmd.Iter": true,
}

// full sets v to a value in which every list has one element.
func full(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			full(v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		full(v.Index(0))
	case reflect.Array:
		for i := range v.Len() {
			full(v.Index(i))
		}
	}
}

// leaves calls f for every leaf of v with the path of fields to it.
func leaves(v reflect.Value, path string, f func(path string, leaf reflect.Value)) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			leaves(v.Field(i), path+" "+v.Type().Name()+"."+v.Type().Field(i).Name, f)
		}
	case reflect.Slice:
		f(path+" []", v)
		for i := range v.Len() {
			leaves(v.Index(i), path, f)
		}
	case reflect.Array:
		for i := range v.Len() {
			leaves(v.Index(i), path, f)
		}
	default:
		f(path, v)
	}
}

func TestHashDependsOnEveryFieldThatExecutionReads(t *testing.T) {
	p := &Plan{}
	full(reflect.ValueOf(p).Elem())
	base := p.Hash()
	seen := 0
	leaves(reflect.ValueOf(p).Elem(), "", func(path string, leaf reflect.Value) {
		want := true
		for _, field := range strings.Fields(path) {
			want = want && !notHashed[field]
		}
		old := reflect.New(leaf.Type()).Elem()
		old.Set(leaf)
		defer leaf.Set(old)
		switch leaf.Kind() {
		case reflect.Bool:
			leaf.SetBool(!leaf.Bool())
		case reflect.String:
			leaf.SetString(leaf.String() + "x")
		case reflect.Float64:
			leaf.SetFloat(leaf.Float() + 0.5)
		case reflect.Int, reflect.Int32, reflect.Int64:
			leaf.SetInt(leaf.Int() + 1)
		case reflect.Uint8, reflect.Uint64:
			leaf.SetUint(leaf.Uint() + 1)
		case reflect.Slice:
			leaf.Set(leaf.Slice(0, 0))
		default:
			t.Fatalf("%s: unexpected kind %v", path, leaf.Kind())
		}
		seen++
		if changed := p.Hash() != base; changed != want {
			t.Errorf("changing%s: hash changed is %v, want %v", path, changed, want)
		}
	})
	if seen < 100 {
		t.Errorf("only %d fields were tried", seen)
	}
	if p.Hash() != base {
		t.Error("the hash of an unchanged plan changed")
	}
	if len(p.HashString()) != 64 {
		t.Errorf("HashString is %q", p.HashString())
	}
}

func TestHashOfAbsentRefs(t *testing.T) {
	a := &Plan{Pairs: []Pair{{Src: Absent(), Dst: Absent()}}}
	b := &Plan{Pairs: []Pair{{Src: Ref{Buf: NoBuffer, Rank: 3}, Dst: Absent()}}}
	if a.Hash() != b.Hash() {
		t.Error("what an absent ref holds changes the hash")
	}
}
