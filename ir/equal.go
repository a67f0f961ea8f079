package ir

import (
	"math"
	"reflect"
)

// Equal reports whether a and b are the same program, with the same statements and the same declarations in the same
// order. Equal ignores the file name, source text, positions, comments, empty lines and redundant parentheses, and
// whether an operation was written as an operand or as a statement.
func Equal(a, b *Program) bool {
	return equal(reflect.ValueOf(a.decls()), reflect.ValueOf(b.decls()))
}

// laidOut lists the types whose values are not compared, since they describe only the layout of the text.
var laidOut = map[reflect.Type]bool{
	reflect.TypeFor[Pos]():       true,
	reflect.TypeFor[Comments]():  true,
	reflect.TypeFor[[]Comment](): true,
}

// equal compares two values of one type by reflection. One function serves all syntax, so it also compares fields that
// are added later.
func equal(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Interface, reflect.Pointer:
		if a.IsNil() || b.IsNil() {
			return a.IsNil() == b.IsNil()
		}
		a, b = a.Elem(), b.Elem()
		return a.Type() == b.Type() && equal(a, b)
	case reflect.Slice:
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !equal(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Struct:
		return equalFields(a, b)
	case reflect.Float64:
		x, y := a.Float(), b.Float()
		return x == y && math.Signbit(x) == math.Signbit(y) || math.IsNaN(x) && math.IsNaN(y)
	}
	return a.Equal(b)
}

func equalFields(a, b reflect.Value) bool {
	t := a.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		if laidOut[f.Type] || f.Name == "Paren" || f.Name == "Nested" || f.Name == "TailBlank" {
			continue
		}
		if !equal(a.Field(i), b.Field(i)) {
			return false
		}
	}
	return true
}
