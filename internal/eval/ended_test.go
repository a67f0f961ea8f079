package eval

import (
	"context"
	"testing"

	"hocket.example/hocket/ir"
)

// asked is a context that ends after its Err method has been called a given number of times.
type asked struct {
	context.Context
	times, last int
}

func (c *asked) Err() error {
	if c.times++; c.times < c.last {
		return nil
	}
	return context.Canceled
}

// TestEndedAmid checks that long operations examine their context once for each row, and return an error when the
// context has ended.
func TestEndedAmid(t *testing.T) {
	const many = 200
	for name, src := range map[string]string{
		"linear":    "func f(%x: f32[200, 3], %w: f32[4, 3]) -> f32[200, 4] {\n  %y = linear %x, %w\n  return %y\n}\n",
		"matmul":    "func f(%x: i32[10, 20, 3], %w: i32[10, 3, 4]) -> i32[10, 20, 4] {\n  %y = matmul %x, %w\n  return %y\n}\n",
		"partial":   "mesh tp[2]\nfunc f(%x: f32[200, 4/tp], %w: f32[4, 4/tp]) -> f32[200, 4] {\n  %y = linear %x, %w\n  return %y\n}\n",
		"into":      "func f(%x: f32[200, 3], %w: f32[4, 3]) -> f32[200, 4] {\n  %y = alloc f32[200, 4]\n  linear %x, %w into %y\n  return %y\n}\n",
		"attention": "func f(%q: f32[200, 2, 4]) -> f32[200, 2, 4] {\n  %y = attention %q, %q, %q\n  return %y\n}\n",
	} {
		b := bind(t, src, ir.Binding{})
		whole := &asked{context.Background(), 0, 1 << 30}
		if _, err := Run(whole, b, inputsFor(t, b, "ints:1"), Options{}); err != nil || whole.times < many {
			t.Errorf("%s: asked %d times: %v", name, whole.times, err)
		}
		half := &asked{context.Background(), 0, many / 2}
		if _, err := Run(half, b, inputsFor(t, b, "ints:1"), Options{}); err != context.Canceled ||
			half.times != half.last {
			t.Errorf("%s: the context ended after %d calls of Err, but Err was called %d times: %v", name, half.last, half.times,
				err)
		}
	}
}
