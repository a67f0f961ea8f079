package acceptance_test

import (
	"fmt"
	"testing"
)

// thereAndBack sends the four rows of four elements of each rank to the ranks that %n selects, and then back to their
// origin.
const thereAndBack = `func f(%x: f32[4 * D/d, 4], %n: i32[D * D/d]) -> f32[4 * D/d, 4] {
  %tokens = alloc f32[4 * D, 4]
  all_to_allv %x, %n into %tokens, over=d
  %comes = alloc i32[D]
  all_to_all %n into %comes, over=d
  %y = alloc f32[4 * D/d, 4]
  all_to_allv %tokens, %comes into %y, over=d
  return %y
}`

// routed returns an input of thereAndBack. The elements of %x count up from 1000 times the rank
// plus more. Rank r sends counts(r, to) rows to rank to.
func routed(d int64, more float64, counts func(r, to int64) float64) map[string]tens {
	x, n := newTens(4*d, 4), newTens(d*d)
	for r := range d {
		for i := range int64(16) {
			x.v[r*16+i] = float64(1000*r+i) + more
		}
		for to := range d {
			n.v[r*d+to] = counts(r, to)
		}
	}
	return map[string]tens{"x": x, "n": n}
}

// TestAcceptanceUneven runs M1 to M3. A dispatch followed by a combine must return the original values in each of
// several runs, and an exchange must join the received blocks in the order of the senders.
func TestAcceptanceUneven(t *testing.T) {
	for d := int64(1); d <= 4; d++ {
		head := fmt.Sprintf("dim D = %d\nmesh d[D]\n", d)
		one := func(_, to int64) float64 { // token 0 to rank 0, the others to rank 1
			return map[bool][]float64{true: {4}, false: {1, 3, 0, 0}}[d == 1][to]
		}
		t.Run(fmt.Sprintf("M1/%d", d), func(t *testing.T) {
			testCase{src: head + thereAndBack, runs: []map[string]tens{routed(d, 0, one)}, want: same}.check(t)
		})
		t.Run(fmt.Sprintf("M2/%d", d), func(t *testing.T) {
			c := testCase{src: head + thereAndBack, want: same}
			for i := range 7 {
				c.runs = append(c.runs, routed(d, float64(100*i), one))
			}
			c.check(t)
		})
		t.Run(fmt.Sprintf("M2/other counts in each run/%d", d), func(t *testing.T) {
			c := testCase{src: head + thereAndBack, want: same}
			for i := range int64(7) {
				c.runs = append(c.runs, routed(d, float64(100*i), func(r, to int64) float64 {
					if to == (r+i)%d {
						return float64(i % 5) // number of rows to send, of four; the others are not sent
					}
					return 0
				}))
			}
			for _, in := range c.runs {
				clip(in, d)
			}
			c.check(t)
		})
		for _, memory := range []bool{false, true} {
			t.Run(fmt.Sprintf("M3/in memory %v/%d", memory, d),
				func(t *testing.T) { exchanged(head, d, memory).check(t) })
		}
	}
}

// clip sets the rows that are not sent to any rank to zero, because these rows are not sent back.
func clip(in map[string]tens, d int64) {
	for r := range d {
		sent := int64(0)
		for to := range d {
			sent += int64(in["n"].v[r*d+to])
		}
		for i := sent * 4; i < 16; i++ {
			in["x"].v[r*16+i] = 0
		}
	}
}

// exchanged returns the case M3: rank s sends (s+d)%3+1 elements to rank d, counting up from 1000 times s. The receiver
// has space for 3 elements of each sender.
func exchanged(head string, d int64, memory bool) testCase {
	counts := func(s, to int64) int64 { return (s+to)%3 + 1 }
	operand, text := ", %n", ""
	if !memory {
		for to := range d {
			text += fmt.Sprintf(", (rank(d) + %d) mod 3 + 1", to)
		}
		operand, text = "", ", counts=("+text[2:]+")"
	}
	c := testCase{src: head + fmt.Sprintf(`func f(%%x: i64[3 * D * D/d], %%n: i32[D * D/d]) -> i64[3 * D * D/d] {
  %%y = alloc i64[3 * D * D/d]
  all_to_allv %%x%s into %%y, over=d%s
  return %%y
}`, operand, text)}
	x, n := newTens(3*d*d), newTens(d*d)
	for s := range d {
		for i := range 3 * d {
			x.v[s*3*d+i] = float64(1000*s + i)
		}
		for to := range d {
			n.v[s*d+to] = float64(counts(s, to))
		}
	}
	c.runs = []map[string]tens{{"x": x, "n": n}, {"x": x, "n": n}}
	c.want = func(in map[string]tens) tens {
		y := newTens(3 * d * d)
		for to := range d {
			at := to * 3 * d
			for s := range d {
				from := s * 3 * d
				for before := range to {
					from += counts(s, before)
				}
				for k := range counts(s, to) {
					y.v[at] = in["x"].v[from+k]
					at++
				}
			}
		}
		return y
	}
	return c
}
