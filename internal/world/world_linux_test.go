package world

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// options returns the options of a world in a new folder.
func options(t testing.TB, size int) Options {
	return Options{Size: size, ID: t.Name(), Dir: t.TempDir(), JoinTimeout: 20 * time.Second, StallTimeout: 20 * time.Second}
}

// errEnded is returned by functions passed to inOne that expect the world to end.
var errEnded = errors.New("the world has ended")

// inOne runs f in every process of a world. All processes are simulated by goroutines of this process.
func inOne(t *testing.T, o Options, f func(w *World) error) {
	t.Helper()
	var all sync.WaitGroup
	for r := range o.Size {
		all.Go(func() {
			o := o
			o.Rank = r
			w, err := Join(context.Background(), o)
			if err != nil {
				t.Errorf("rank %d: %v", r, err)
				return
			}
			ended := f(w)
			if ended != nil && ended != errEnded {
				t.Errorf("rank %d: %v", r, ended)
			}
			if err := w.Leave(); (err != nil) != (ended == errEnded) {
				t.Errorf("rank %d: left the world: %v", r, err)
			}
		})
	}
	all.Wait()
	if left, err := os.ReadDir(o.Dir); err != nil || len(left) > 0 {
		t.Errorf("left in the folder: %v, %v", left, err)
	}
}

func TestAgree(t *testing.T) {
	for _, size := range []int{1, 2, 5} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			inOne(t, options(t, size), func(w *World) error {
				for i := range 20 {
					// The values passed to Agree have lengths from 0 to the limit.
					mine := func(r int) []byte { return bytes.Repeat([]byte{byte(r + i)}, (r*31+i*211)%(MaxValue+1)) }
					got, err := w.Agree(context.Background(), fmt.Sprint("step ", i), mine(w.Process()))
					if err != nil {
						return err
					}
					for r := range size {
						if !bytes.Equal(got[r], mine(r)) {
							return fmt.Errorf("agreement %d: got %d bytes of rank %d, want %d", i, len(got[r]), r, len(mine(r)))
						}
					}
				}
				return nil
			})
		})
	}
}

// TestMany joins more processes than the number of connections (maxGuests) that may be unidentified at the same time.
func TestMany(t *testing.T) {
	o := options(t, maxGuests+8)
	o.JoinTimeout = time.Minute
	inOne(t, o, func(w *World) error { return w.Same(context.Background(), "the size", fmt.Sprint(w.Processes())) })
}

func TestSame(t *testing.T) {
	inOne(t, options(t, 3), func(w *World) error {
		if err := w.Same(context.Background(), "the plan", "abc"); err != nil {
			return err
		}
		err := w.Same(context.Background(), "the plan", []string{"x", "y", "x"}[w.Process()])
		var d *DisagreeError
		if !errors.As(err, &d) || d.What != "the plan" || len(d.Values) != 3 {
			return fmt.Errorf("got %v, want disagreement on the plan", err)
		}
		if want := "ranks disagree on the plan: rank 1 has y, the others (ranks 0, 2) have x"; unplaced(err) != want {
			return fmt.Errorf("got %q, want %q", err, want)
		}
		long := strings.Repeat("z", 3*MaxValue)
		if err := w.Same(context.Background(), "a long text", long); err != nil {
			return err
		}
		if err := w.Same(context.Background(), "a long text", long+fmt.Sprint(w.Process())); !errors.As(err, &d) {
			return fmt.Errorf("got %v for long texts that differ in the last byte", err)
		}
		return nil // the world remains usable after a difference in values
	})
}

// TestSameList checks that, if lists differ, the first different line is reported.
func TestSameList(t *testing.T) {
	lists := map[string][3][]string{
		"": {{"a", "b"}, {"a", "b"}, {"a", "b"}},
		"ranks disagree on the list: rank 2 has c, the others (ranks 0-1) have b":            {{"a", "b", "d"}, {"a", "b", "e"}, {"a", "c"}},
		"ranks disagree on the list: rank 0 has nothing more, the others (ranks 1-2) have b": {{"a"}, {"a", "b"}, {"a", "b"}},
		"ranks disagree on the list: rank 2 has a, the others (ranks 0-1) have ab":           {{"ab", ""}, {"ab", ""}, {"a", "b"}},
	}
	inOne(t, options(t, 3), func(w *World) error {
		for _, want := range slices.Sorted(maps.Keys(lists)) {
			err := w.SameList(context.Background(), "the list", lists[want][w.Process()])
			var d *DisagreeError
			if want == "" && err != nil || want != "" && (!errors.As(err, &d) || unplaced(err) != want) {
				return fmt.Errorf("got %v, want %q", err, want)
			}
		}
		return nil
	})
}

// TestCounters passes a number around a ring of processes, each of which adds one.
func TestCounters(t *testing.T) {
	const size, rounds = 3, 200
	inOne(t, options(t, size), func(w *World) error {
		ctx := context.Background()
		me := w.Process()
		next, last := (me+1)%size, (me+size-1)%size
		mine, err := w.NewCounters("ring", 2, last)
		if err != nil {
			return err
		}
		defer mine.Close()
		memory, err := NewSegment(8)
		if err != nil {
			return err
		}
		defer memory.Close()
		if err := w.Share("value", memory, last); err != nil {
			return err
		}
		theirs, err := w.MapCounters(ctx, next, "ring")
		if err != nil {
			return err
		}
		defer theirs.Close()
		value, err := w.Map(ctx, next, "value")
		if err != nil {
			return err
		}
		defer value.Close()
		for i := range rounds {
			if me > 0 || i > 0 {
				n := uint64(i)
				if me > 0 {
					n++
				}
				if err := mine.Wait(ctx, 1, n, last); err != nil {
					return err
				}
			}
			word(value.Bytes(), 0).Store(word(memory.Bytes(), 0).Load() + 1)
			theirs.Add(1, 1)
		}
		if me == 0 {
			if err := mine.Wait(ctx, 1, rounds, last); err != nil {
				return err
			}
			if got := word(memory.Bytes(), 0).Load(); got != size*rounds {
				return fmt.Errorf("the number is %d, want %d", got, size*rounds)
			}
		}
		_, err = w.Agree(ctx, "end", nil) // no process leaves before the last counter was raised
		return err
	})
}

func TestAbort(t *testing.T) {
	o := options(t, 3)
	mine := errors.New("out of memory")
	blames := func(err error) bool {
		var p *PeerError
		return errors.As(err, &p) && p.Rank == 1 && p.PID == os.Getpid() && p.Why == mine.Error()
	}
	var all sync.WaitGroup
	for r := range 3 {
		all.Go(func() {
			o := o
			o.Rank = r
			w, err := Join(context.Background(), o)
			if r != 1 && blames(err) {
				return // rank 1 aborted first
			}
			if err != nil {
				t.Error(err)
				return
			}
			defer w.Leave()
			if r == 1 {
				w.Abort(mine)
			}
			select {
			case <-w.Done():
			case <-time.After(10 * time.Second):
				t.Errorf("rank %d does not detect the abort", r)
			}
			if err := w.Err(); r == 1 && err != mine || r != 1 && !blames(err) {
				t.Errorf("rank %d: %#v, want the error of rank 1", r, err)
			}
			if w.mesh.page.Bytes()[0] == 0 {
				t.Errorf("rank %d: the abort word is not set", r)
			}
			if _, err := w.Agree(context.Background(), "more", nil); err == nil {
				t.Errorf("rank %d: Agree succeeds after the abort", r)
			}
			if err := w.Step("more"); err == nil {
				t.Errorf("rank %d: Step succeeds after the abort", r)
			}
		})
	}
	all.Wait()
}

// TestRanks joins processes with explicit lists of the program's ranks that each owns.
func TestRanks(t *testing.T) {
	for _, tc := range []struct {
		name  string
		lists [2][]int
		owner []int  // owner of each of the program's ranks
		want  string // expected error
	}{
		{"interleaved", [2][]int{{0, 3}, {2, 1}}, []int{0, 1, 1, 0}, ""},
		{"none", [2][]int{}, []int{0, 0, 1, 1}, ""},
		{"twice", [2][]int{{0, 1}, {1}}, nil, "processes 0 and 1 are both assigned rank 1 of the program"},
		{"one without", [2][]int{{0, 1}, nil}, nil, "processes 1 are assigned no ranks of the program, but other processes are: assign ranks in all processes or in none"},
		{"negative", [2][]int{{0}, {-1}}, nil, "a malformed list of ranks"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := options(t, 2)
			var all sync.WaitGroup
			for r := range 2 {
				all.Go(func() {
					o := o
					o.Rank, o.Ranks = r, tc.lists[r]
					w, err := Join(context.Background(), o)
					if tc.want != "" {
						if err == nil || !strings.Contains(err.Error(), tc.want) {
							t.Errorf("rank %d: %v, want %q", r, err, tc.want)
						}
						return
					}
					if err != nil {
						t.Errorf("rank %d: %v", r, err)
						return
					}
					defer w.Leave()
					if got, err := w.Owners(4); err != nil || !slices.Equal(got, tc.owner) {
						t.Errorf("rank %d: %v, %v; want %v", r, got, err, tc.owner)
					}
					if tc.lists[0] == nil {
						return
					}
					if got, err := w.Owners(5); err == nil {
						t.Errorf("rank %d: the owners of 5 ranks are %v", r, got)
					}
				})
			}
			all.Wait()
		})
	}
}

var places = regexp.MustCompile(` \(pid \d+ on [^)]*\)`)

// unplaced returns the text of an error without process IDs and host names.
func unplaced(err error) string {
	if err == nil {
		return ""
	}
	return places.ReplaceAllString(err.Error(), "")
}
