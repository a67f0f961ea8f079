package planner

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"hocket.example/hocket/ir"

	"hocket.example/hocket/internal/plan"
)

// lines returns the commands of one rank as text, without their numbers, positions and iterations.
func lines(p *plan.Plan, rank int) []string {
	_, text, _ := strings.Cut(p.String(), "\ncommands\n")
	var out []string
	for _, l := range strings.Split(strings.TrimSpace(text), "\n") {
		l, _, _ = strings.Cut(l, " //")
		_, l, _ = strings.Cut(strings.TrimSpace(l), " ")
		r, l, _ := strings.Cut(l, " ")
		if r == fmt.Sprintf("r%d", rank) && !strings.Contains(l, "main input ") {
			out = append(out, l)
		}
	}
	return out
}

func wantLines(t *testing.T, p *plan.Plan, rank int, want ...string) {
	t.Helper()
	if got := lines(p, rank); !reflect.DeepEqual(got, want) {
		t.Errorf("rank %d:\n got  %s\n want %s", rank, strings.Join(got, "\n      "), strings.Join(want, "\n      "))
	}
}

func TestViews(t *testing.T) {
	p, _ := mustPlan(t, `
func f(%x: f32[6, 4]) -> f32[4, 2] {
  %y = alloc f32[4, 2]
  %a = chunk %x, axis=0, 2 of 4
  %b = slice %a, axis=1, 1..3
  %c = transpose %b
  %d = select %x, axis=1, index=3
  %e = reshape %x, shape=(4, 6)
  %m = copy %c
  %n = copy %d
  %g = slice %e, axis=1, 4..6
  copy %g into %y
  %z = chunk %x, axis=0, 3 of 4
  %k = copy %z
  return %y
}
`, ir.Binding{})
	wantLines(t, p, 0,
		"main copy %x+68 f32[2 2] strides [1 4] -> %m f32[2 2]",
		"main copy %x+12 f32[6] strides [4] -> %n f32[6]",
		"main copy %x+16 f32[4 2] strides [6 1] -> %y f32[4 2]",
		"main copy %x f32[0 4] -> %k f32[0 4]",
		"main output y %y f32[4 2]")
}

func TestReshapeOfAValueWithGapsCopies(t *testing.T) {
	p, _ := mustPlan(t, `
func f(%x: f32[6, 4]) -> f32[24] {
  %a = transpose %x
  %b = reshape %a, shape=(24)
  return %b
}
`, ir.Binding{})
	wantLines(t, p, 0, "main copy %x f32[4 6] strides [1 4] -> %b f32[4 6]", "main output b %b f32[24]")
}

func TestViewsWithIntoCopy(t *testing.T) {
	p, _ := mustPlan(t, `
func f(%x: f32[6, 4]) -> f32[24] {
  %y = alloc f32[24]
  %z = alloc f32[4, 6]
  transpose %x into %z
  %t = transpose %z
  reshape %t into %y, shape=(24)
  return %y
}
`, ir.Binding{})
	wantLines(t, p, 0,
		"main copy %x f32[4 6] strides [1 4] -> %z f32[4 6]",
		"main copy %z f32[6 4] strides [1 6] -> %y f32[6 4]",
		"main output y %y f32[24]")
}

func TestAttributes(t *testing.T) {
	p, _ := mustPlan(t, `
func f(%x: f32[6, 4]) -> f32[] {
  %a = matmul %x, %x, ta=true
  %b = scale %a, by=0.5
  %c = scale %b, by=3
  %z = alloc f32[2] zero
  %d = sum %c, axis=(0, 1)
  return %d
}
`, ir.Binding{})
	wantLines(t, p, 0,
		"main matmul ta %x f32[6 4], %x f32[6 4] -> %a f32[4 4]",
		"main scale 0.5 %a f32[4 4] -> %b f32[4 4]",
		"main scale 3 %b f32[4 4] -> %c f32[4 4]",
		"main fill 0 -> %z f32[2]",
		"main sum axes=[0 1] %c f32[4 4] -> %d f32[]",
		"main output d %d f32[]")
}

func TestDefaultsAndParts(t *testing.T) {
	p, _ := mustPlan(t, `
mesh dp[2] tp[2]
func f(%x: f32[6, 4], %ids: i32[6], %table: f32[8/(dp,tp), 4], %q: f32[3, 2, 4]) -> f32[6, 4] {
  %s = softmax %x
  %t = softmax %s, axis=0
  %w = sum %t, axis=0
  %r = rms_norm %t, %w
  %l = layer_norm %r, %w, %w, eps=0.5
  %a = attention %q, %q, %q, causal=true
  %b = attention %a, %q, %q, scale=2
  %e: f32[6, 4] partial(dp, sum) partial(tp, sum) = embedding %ids, %table
  %g = all_reduce %e, over=(dp, tp), op=sum
  %c = concat %l, %g
  %d = concat %l, %g, axis=1
  %one = reshape %w, shape=(4, 1)
  %x3 = broadcast %one, shape=(2, 4, 6)
  %acc = alloc f32[6]
  reduce_slots %x, axis=1, 1..3 into %acc
  reduce_slots %x, axis=1, 3..4 into %acc, resume=true
  %x2 = alloc f32[6, 4]
  embedding %ids, %x into %x2, first=rank(tp), of=10
  return %g
}
`, ir.Binding{})
	wantLines(t, p, 3,
		"main softmax axes=[1] %x f32[6 4] -> %s f32[6 4]",
		"main softmax axes=[0] %s f32[6 4] -> %t f32[6 4]",
		"main sum axes=[0] %t f32[6 4] -> %w f32[4]",
		"main rms_norm %t f32[6 4], %w f32[4] -> %r f32[6 4]",
		"main layer_norm eps=0.5 %r f32[6 4], %w f32[4], %w f32[4] -> %l f32[6 4]",
		"main attention scale=0.5 causal %q f32[3 2 4], %q f32[3 2 4], %q f32[3 2 4] -> %a f32[3 2 4]",
		"main attention scale=2 %a f32[3 2 4], %q f32[3 2 4], %q f32[3 2 4] -> %b f32[3 2 4]",
		"main embedding rows 6.. of 8 %ids i32[6], %table f32[2 4] -> %e f32[6 4]",
		"main all_reduce channel 0.0 sum %e f32[6 4] -> %g f32[6 4]",
		"main concat axes=[0] %l f32[6 4], %g f32[6 4] -> %c f32[12 4]",
		"main concat axes=[1] %l f32[6 4], %g f32[6 4] -> %d f32[6 8]",
		"main broadcast %w f32[2 4 6] strides [0 1 0] -> %x3 f32[2 4 6]",
		"main reduce_slots axes=[1] %x+4 f32[6 2] strides [4 1] -> %acc f32[6]",
		"main reduce_slots axes=[1] %x+12 f32[6 1] strides [4 1], %acc f32[6] -> %acc f32[6]",
		"main embedding rows 1.. of 10 %ids i32[6], %x f32[6 4] -> %x2 f32[6 4]",
		"main output g %g f32[6 4]")
}

func TestCollectivesOnBuffers(t *testing.T) {
	p, _ := mustPlan(t, `
mesh tp[3]
func f(%x: f32[6, 3]) -> f32[6, 3] {
  %y = alloc f32[6, 3]
  %g = alloc f32[18, 3]
  %s = alloc f32[2, 3]
  %a = alloc f32[18, 1]
  let %r = rank(tp)
  all_reduce %x into %y, over=tp, op=max, order=any
  all_gather %x into %g, over=tp
  reduce_scatter %x into %s, over=tp, op=sum
  all_to_all %x into %a, over=tp, split=1, concat=0
  broadcast %x into %y, over=tp, root=1
  reduce %x into %y, over=tp, root=2, op=sum
  gather %x into %g, over=tp, root=0
  scatter %x into %s, over=tp, root=2
  permute %x into %y, over=tp, to=(%r + 1) mod 3, from=(%r + 2) mod 3
  if %r == 0 { permute %x into %y, over=tp, to=1, from=0-1 }
  if %r == 1 { permute %x into %y, over=tp, to=0-1, from=0 }
  if %r == 2 { permute %x into %y, over=tp, to=0-1, from=0-1 }
  return %y
}
`, ir.Binding{})
	x, y := " %x f32[6 3]", " -> %y f32[6 3]"
	wantLines(t, p, 1,
		"main all_reduce channel 0.0 max order=any"+x+y,
		"main all_gather channel 0.1 axis=0"+x+" -> %g f32[18 3]",
		"main reduce_scatter channel 0.2 sum axis=0"+x+" -> %s f32[2 3]",
		"main all_to_all channel 0.3 split=1 concat=0"+x+" -> %a f32[18 1]",
		"main broadcast channel 0.4 root=1"+x+y,
		"main reduce channel 0.5 sum root=2"+x,
		"main gather channel 0.6 root=0 axis=0"+x,
		"main scatter channel 0.7 root=2 axis=0 -> %s f32[2 3]",
		"main permute channel 0.8 to=2 from=0"+x+y,
		"main permute channel 0.9 to=-1 from=0"+y,
		"main output y"+" %y f32[6 3]")
	if got := lines(p, 2)[9]; got != "main permute channel 0.9 to=-1 from=-1" {
		t.Errorf("rank 2: %s", got)
	}
}

func TestCollectivesOnValues(t *testing.T) {
	p, _ := mustPlan(t, `
mesh tp[2]
func f(%x: f32[6, 8/tp], %w: f32[4, 8/tp]) -> f32[6, 4] {
  %p: f32[6, 4] partial(tp, sum) = linear %x, %w
  %s: f32[6/tp, 4] = reduce_scatter %p, over=tp, op=sum
  %y = all_gather %s, over=tp
  return %y
}
`, ir.Binding{})
	wantLines(t, p, 1,
		"main linear %x f32[6 4], %w f32[4 4] -> %p f32[6 4]",
		"main reduce_scatter channel 0.0 sum axis=0 %p f32[6 4] -> %s f32[3 4]",
		"main all_gather channel 0.1 axis=0 %s f32[3 4] -> %y f32[6 4]",
		"main output y %y f32[6 4]")
	if lo := p.Inputs[0].Parts[1].Lo; !reflect.DeepEqual(lo, []int64{0, 4}) {
		t.Errorf("rank 1 holds %%x from %v", lo)
	}
}

func TestTwoDimensionalMesh(t *testing.T) {
	p, _ := mustPlan(t, `
mesh dp[2] tp[2]
func f(%x: f32[8/(dp,tp), 4]) -> f32[8/(dp,tp), 4] {
  %y = alloc f32[2, 4]
  all_reduce %x into %y, over=tp, op=sum
  all_reduce %y into %y, over=dp, op=sum
  barrier over=(dp,tp)
  barrier over=(tp,dp)
  return %y
}
`, ir.Binding{})
	var teams []string
	for _, c := range p.Channels {
		teams = append(teams, fmt.Sprint(c.Team))
	}
	want := "[0 1] [2 3] [0 2] [1 3] [0 1 2 3] [0 2 1 3]"
	if got := strings.Join(teams, " "); got != want {
		t.Errorf("teams %s, want %s", got, want)
	}
	if lo := p.Outputs[0].Parts[3].Lo; !reflect.DeepEqual(lo, []int64{6, 0}) {
		t.Errorf("rank 3's output begins at %v", lo)
	}
}

const subMesh = `
mesh tp[4]
mesh d[2] = {1 3}
func f(%x: f32[8/d, 4] @d) -> f32[8/d, 4] @d {
  %a = relu %x
  STMT
  return %a
}
`

func TestSubMesh(t *testing.T) {
	p, _ := mustPlan(t, strings.Replace(subMesh, "STMT", "", 1), ir.Binding{})
	for r := range 4 {
		want := []string(nil)
		if r%2 == 1 {
			want = []string{"main relu %x f32[4 4] -> %a f32[4 4]", "main output a %a f32[4 4]"}
		}
		if got := lines(p, r); !reflect.DeepEqual(got, want) {
			t.Errorf("rank %d: %q, want %q", r, got, want)
		}
		if p.Inputs[0].Parts[r].Ref.Present() != (r%2 == 1) {
			t.Errorf("rank %d: part %v", r, p.Inputs[0].Parts[r])
		}
	}
	refused(t, strings.Replace(subMesh, "STMT", "%b = alloc f32[4, 4]\n  relu %a into %b", 1), ir.Binding{},
		"bind", "%a is not on this rank", "rank 0")
}

func TestSendRecvAndGroups(t *testing.T) {
	p, _ := mustPlan(t, `
mesh tp[3]
func f(%x: f32[4]) -> f32[4] {
  %y = alloc f32[4]
  %z = alloc[3] f32[4]
  let %r = rank(tp)
  group {
    send %x to tp[(%r + 1) mod 3]
    recv %y from tp[(%r + 2) mod 3]
  }
  if %r == 0 { send %x to tp[1] }
  if %r == 1 { recv %y from tp[0] }
  group {
    for %i in 0..3 {
      send %x to tp[%i]
      recv %z[%i] from tp[%i]
    }
  }
  return %y
}
`, ir.Binding{})
	if len(p.Pairs) != 3+1+9 {
		t.Errorf("%d pairs", len(p.Pairs))
	}
	for i, pair := range p.Pairs {
		if pair.Src.Rank == pair.Dst.Rank && i < 4 {
			t.Errorf("pair %d: %v", i, pair)
		}
	}
	wantLines(t, p, 1,
		"main group send #2 %x f32[4] to r2, recv #0 %y f32[4] from r0",
		"main group recv #3 %y f32[4] from r0",
		lines(p, 1)[2],
		"main output y %y f32[4]")
}

func TestGetReadsThePeer(t *testing.T) {
	p, _ := mustPlan(t, `
mesh tp[2]
func f(%x: f32[4]) -> f32[4] {
  %s = alloc f32[4] symmetric
  %y = alloc f32[4]
  copy %x into %s
  barrier over=tp
  get %s at tp[1 - rank(tp)] into %y
  barrier over=tp
  return %y
}
`, ir.Binding{})
	wantLines(t, p, 1,
		"main copy %x f32[4] -> %s f32[4]",
		"main barrier channel 0.0",
		"main copy r0:%s f32[4] -> %y f32[4]",
		"main barrier channel 0.1",
		"main output y %y f32[4]")
}

func TestCallsAreInlined(t *testing.T) {
	p, _ := mustPlan(t, `
func g(%x: f32[4], %acc: inout f32[4]) -> f32[4] {
  %s = stream
  on %s { wait main
    copy %x into %acc }
  wait %s
  %y = relu %x
  return %y
}
func f(%x: f32[4], %a: inout f32[4]) -> f32[4] {
  %t = stream
  %p = call g %x, %a
  wait %t
  on %t { wait main
    %q = call g %p, %a }
  wait %t
  %r = call g %p, %a
  return %r
}
`, ir.Binding{})
	// g's %s is another stream on %t than on main, but the same in both calls on main.
	if got := len(p.Streams); got != 4 {
		t.Errorf("%d streams, want main, %%t and two of g's", got)
	}
	wantLines(t, p, 0,
		"main record e0", "%s wait e0", "%s copy %x f32[4] -> %a f32[4]", "%s record e1", "main wait e1",
		"main relu %x f32[4] -> %y f32[4]",
		"%t record e2", "main wait e2",
		"main record e3", "%t wait e3",
		"%t record e4", "%s wait e4", "%s copy %y f32[4] -> %a f32[4]", "%s record e5", "%t wait e5",
		"%t relu %y f32[4] -> %y f32[4]",
		"%t record e6", "main wait e6",
		"main record e7", "%s wait e7", "%s copy %y f32[4] -> %a f32[4]", "%s record e8", "main wait e8",
		"main relu %y f32[4] -> %y f32[4]",
		"main output r %y f32[4]", "main output a %a f32[4]")
	if len(p.Outputs) != 2 || !p.Outputs[1].Inout || !p.Inputs[1].Inout {
		t.Errorf("outputs %+v", p.Outputs)
	}
}

func TestForStreamIsForkAndJoin(t *testing.T) {
	sugar := `
func f(%x: f32[4]) -> f32[4] {
  %y = alloc f32[4]
  for %i in 1..6 stream(3) { copy %x into %y }
  return %y
}
`
	explicit := `
func f(%x: f32[4]) -> f32[4] {
  %y = alloc f32[4]
  %i = stream[3]
  for %j in 0..3 { on %i[%j] { wait main } }
  for %k in 1..6 { on %i[%k mod 3] { copy %x into %y } }
  for %j in 0..3 { wait %i[%j] }
  return %y
}
`
	for _, bounds := range []string{"1..6", "0-4..2"} {
		a, _ := mustPlan(t, strings.Replace(sugar, "1..6", bounds, 1), ir.Binding{})
		b, _ := mustPlan(t, strings.Replace(explicit, "1..6", bounds, 1), ir.Binding{})
		if a.Hash() != b.Hash() {
			t.Errorf("the plans differ:\n%s\n%s", a, b)
		}
	}
	empty, _ := mustPlan(t, strings.Replace(sugar, "1..6", "6..6", 1), ir.Binding{})
	if got := len(lines(empty, 0)); got != 1+3+3+3+1 {
		t.Errorf("an empty loop keeps fork and join, got %q", lines(empty, 0))
	}
}

func TestWaitsAreCoalescedButNeverDropped(t *testing.T) {
	p, _ := mustPlan(t, `
func f(%x: f32[4]) -> f32[4] {
  %s = stream[2]
  %e = event
  %y = alloc f32[4]
  wait main
  wait %s[0]
  wait %s[0]
  on %s[0] { wait main }
  on %s[1] { wait main
    copy %x into %y
    record %e
    record %e
    wait %e }
  wait %e
  wait %s[1]
  on %s[1] { copy %x into %y }
  wait %s[1]
  return %y
}
`, ir.Binding{})
	wantLines(t, p, 0,
		"%s[0] record e0", "main wait e0", // nothing was issued to %s[0], but the run before may still use it
		"main record e1", "%s[0] wait e1", "%s[1] wait e1",
		"%s[1] copy %x f32[4] -> %y f32[4]", "%s[1] record e2", "main wait e2",
		"%s[1] copy %x f32[4] -> %y f32[4]", "%s[1] record e3", "main wait e3",
		"main output y %y f32[4]")
}

func TestZeroExtentsAndEmptyLoops(t *testing.T) {
	for _, dims := range []map[string]int64{{"T": 0, "C": 3}, {"T": 2, "C": 5}, {"N": 0}, {"K": 0}} {
		p, _ := mustPlan(t, rowParallel, ir.Binding{Dims: dims})
		if len(p.Outputs) != 1 {
			t.Errorf("%v: outputs %v", dims, p.Outputs)
		}
	}
}

func TestEmptyLoop(t *testing.T) {
	p, _ := mustPlan(t, scaled["workers"], ir.Binding{Dims: map[string]int64{"C": 0}})
	if len(p.Colls) != 0 || p.ArenaBytes != p.Memory.Inputs {
		t.Errorf("an empty loop leaves work:\n%s", p)
	}
}

func TestRanksFromOneToEight(t *testing.T) {
	for n := 1; n <= 8; n++ {
		p, _ := mustPlan(t, exchangeSource, ir.Binding{Ranks: n, Dims: map[string]int64{"T": 8 * 3 * 5 * 7, "N": 8 * 3 * 5 * 7}})
		if p.Ranks != n || len(p.Main) != n {
			t.Errorf("%d ranks: %d, main %v", n, p.Ranks, p.Main)
		}
		for _, c := range p.Cmds {
			if c.Late {
				t.Errorf("%d ranks: a wait is late", n)
			}
		}
		puts := 0
		for _, c := range p.Cmds {
			if c.Kind == plan.Copy && c.Peer >= 0 && c.Outs[0].Rank != c.Rank {
				puts++
			}
		}
		if puts != n*(n-1) {
			t.Errorf("%d ranks: %d puts", n, puts)
		}
	}
}

// TestWaitForAllSignalsOfUnorderedStreams checks that signals without an order among them order their streams if the
// wait counts all of them and the signals of the next run are ordered after the wait.
func TestWaitForAllSignalsOfUnorderedStreams(t *testing.T) {
	src := body(2, `
  %s = stream[3]
  %c = counter
  %b = alloc f32[64] symmetric
  %d = alloc[3] f32[64]
  barrier over=tp
  for %i in 0..3 {
    on %s[%i] {
      wait main
      fill into %d[%i], value=1
      signal %c at tp[1 - rank(tp)]
    }
  }
  for %i in 0..3 { wait %s[%i] }
  wait %c >= 3
  fill into %b, value=2`)
	p, _ := mustPlan(t, src, ir.Binding{})
	// %b is ordered after all the signals, and the barrier orders the signals after the last run's %b.
	if p.Memory.Peak > p.Memory.Inputs+256+3*256 {
		t.Errorf("%%b shares with no %%d:\n%s", p)
	}
	refused(t, strings.Replace(src, "%c >= 3", "%c >= 2", 1), ir.Binding{}, "match", "of the 3 signals of a run")
}

// TestLateWaits plans a wait that precedes its signal in host order but that the streams can satisfy.
func TestLateWaits(t *testing.T) {
	p, _ := mustPlan(t, body(2, `
  %s = stream
  %c = counter
  on %s { wait main
    wait %c >= 1 }
  signal %c at tp[1 - rank(tp)]
  wait %s`), ir.Binding{})
	late := 0
	for _, c := range p.Cmds {
		if c.Late {
			late++
		}
	}
	if late == 0 {
		t.Errorf("no wait is late:\n%s", p)
	}
}

func TestPlansAreReproducible(t *testing.T) {
	for _, src := range []string{rowParallel, exchangeSource} {
		a, _ := mustPlan(t, src, ir.Binding{})
		b, _ := mustPlan(t, "// a comment moves every place\n"+src, ir.Binding{})
		if a.Hash() != b.Hash() {
			t.Error("two plans of one program differ")
		}
		c, _ := mustPlan(t, src, ir.Binding{Dims: map[string]int64{"K": 128}})
		if a.Hash() == c.Hash() {
			t.Error("another K gives the same plan")
		}
	}
}

// TestShippedPrograms plans the explicit functions of the shipped programs with several shapes.
func TestShippedPrograms(t *testing.T) {
	files, _ := filepath.Glob(filepath.Join("..", "..", "examples", "*.hkt"))
	for _, path := range files {
		src, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		p, _, ds := try(string(src), ir.Binding{})
		if ds.HasErrors() {
			if ds[0].Kind != "internal" || !strings.Contains(ds[0].Message, "lower the program first") {
				t.Errorf("%s: %s", path, ds)
			}
			continue
		}
		if err := verifyLayout(p); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}
