package tensor

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"hocket.example/hocket/ir"
)

// TestSHA256 compares SHA256 with its definition in docs/language.md.
func TestSHA256(t *testing.T) {
	y := &Tensor{DType: ir.F32, Shape: []int64{2, 1}, Data: []byte{0, 0, 128, 63, 0, 0, 0, 64}}
	n := &Tensor{DType: ir.I32, Shape: []int64{}, Data: []byte{1, 0, 0, 0}}
	sum := func(text string) string {
		h := sha256.Sum256([]byte(text))
		return hex.EncodeToString(h[:])
	}
	for _, c := range []struct {
		list []Named
		want string
	}{
		{nil, sum("")},
		{[]Named{{"y", y}}, sum("y f32 2 1\n\x00\x00\x80\x3f\x00\x00\x00\x40")},
		{[]Named{{"y", y}, {"a", n}, {"Z", n}},
			sum("Z i32\n\x01\x00\x00\x00a i32\n\x01\x00\x00\x00y f32 2 1\n\x00\x00\x80\x3f\x00\x00\x00\x40")},
	} {
		if got := SHA256(c.list); got != c.want {
			t.Errorf("%v: %s, want %s", c.list, got, c.want)
		}
	}
}
