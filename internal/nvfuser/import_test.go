package nvfuser

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// program imports a dump and checks the result.
func program(t *testing.T, src string, defines ...string) *ir.Program {
	t.Helper()
	given := map[string]string{}
	for _, d := range defines {
		name, value, _ := strings.Cut(d, "=")
		given[name] = value
	}
	p, rest, ds := Import("d.txt", src, given)
	if len(ds) > 0 || len(rest) > 0 {
		t.Fatalf("%s\nleft: %v\n%s", ds, rest, src)
	}
	if _, ds := checker.Check(p); len(ds) > 0 {
		t.Fatalf("%s\n%s", ds, p)
	}
	return p
}

// refused checks the position and the text of the first error about a dump.
func refused(t *testing.T, src, place, want string) {
	t.Helper()
	p, _, ds := Import("d.txt", src, nil)
	if len(ds) == 0 {
		if _, ds = checker.Check(p); len(ds) == 0 {
			t.Fatalf("%q is read:\n%s\n%s", want, src, p)
		}
	}
	if got := ds[0].Error(); !strings.HasPrefix(got, "d.txt:"+place) || !strings.Contains(got, want) {
		t.Errorf("want %s: %s\ngot:\n%s", place, want, ds)
	}
}

// container returns a dump with the given statements. The dump's tensors T0, which is read, and T1, which is written,
// have the shape [i0, 4] and no mesh.
func container(body string) string {
	return "%HostIrContainer { (T0_g_float[iS0{i0}, iS1{4}]) -> (T1_g_float[iS2{i0}, iS3{4}]) :\n" + body +
		"} // %HostIrContainer\n"
}

const (
	t0     = "T0_g_float[iS0{i0}, iS1{4}]"
	t1     = "T1_g_float[iS2{i0}, iS3{4}]"
	copyT1 = "  " + t1 + "\n     = Set( " + t0 + ", cache_op=Streaming )\n"
)

func contains(t *testing.T, p *ir.Program, parts ...string) {
	t.Helper()
	text := p.String()
	for _, want := range parts {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
}

// TestCapturedStreamIsNoIndex checks that a captured stream is identified by its name. In early dumps the name is a
// number; the captured stream is nevertheless not the stream with that index.
func TestCapturedStreamIsNoIndex(t *testing.T) {
	p := program(t, container(`  GetCurrentStream into Stream 0
  FOR i9 in iS0{i0}:
    SetCurrentStream to Stream ( i9 % numberOfStreams )
    Synchronize Stream 0
    T2_l_float[iS4{4}] = HirAliasSelect( `+t0+`, axis = iS0{i0}, index = i9 )
    T3_l_float[iS5{4}] = HirAliasSelect( `+t1+`, axis = iS2{i0}, index = i9 )
    T3_l_float[iS5{4}] = Set( T2_l_float[iS4{4}] )
    SetCurrentStream to Stream 0
    Synchronize Stream ( i9 % numberOfStreams )
`))
	contains(t, p, "on %worker[%i9 mod numberOfStreams] {  // line 4\n      wait main",
		"\n    wait %worker[%i9 mod numberOfStreams]")
	// Without a GetCurrentStream the number in "Stream 2" is an index. The number is also an index if GetCurrentStream
	// captures another stream, which has an address.
	for _, capture := range []string{"", "  Stream 0x7f = GetCurrentStream()\n"} {
		p = program(t, container(capture+"  SetCurrentStream to Stream 2\n"+copyT1))
		contains(t, p, "%worker = stream[3]", "on %worker[2] {")
	}
}

// TestGenerations checks that dumps of both generations give the same program.
func TestGenerations(t *testing.T) {
	old := container(`  GetCurrentStream into Stream 0
  FOR i9 from 0 to 3:
    SetCurrentStream to Stream i9
    Synchronize Stream 0
  SetCurrentStream to Stream 0
` + copyT1 + `  FOR i9 from 0 to 3:
    Synchronize Stream i9
`)
	replace := strings.NewReplacer("GetCurrentStream into Stream 0", "Stream 0x1f = GetCurrentStream()",
		"SetCurrentStream to Stream 0", "SetCurrentStream(Stream 0x1f)",
		"SetCurrentStream to Stream i9", "SetCurrentStream(Stream i9)", "Synchronize Stream 0",
		"Synchronize(Stream 0x1f)", "Synchronize Stream i9", "Synchronize(Stream i9)")
	a, b := program(t, old).String(), program(t, replace.Replace(old)).String()
	if a != b {
		t.Errorf("%s\n%s", a, b)
	}
	contains(t, program(t, old), "stream[3]", "wait %worker[%i9]")
}

// TestAllocateOfBoundTensor checks that an ALLOCATE of a tensor that a select has bound has no effect: writes modify
// the tensor from which the select was made.
func TestAllocateOfBoundTensor(t *testing.T) {
	p := program(t, container(`  FOR i9 in iS0{i0}:
    T3_g_float[iS5{4}] = HirAliasSelect( `+t1+`, axis = iS2{i0}, index = i9 )
    T3_g_float[iS5{4}] = ALLOCATE(buffer=T3_g_float[iS5{4}], mem_type=global, size=4, zero_init=true, resets_to_zero=false)
    T2_l_float[iS4{4}] = select( `+t0+`, axis = iS0{i0}, index = i9 )
    T3_g_float[iS5{4}] = Set( T2_l_float[iS4{4}] )
`))
	contains(t, p, "%T3 = select %T1, axis=0", "copy %T2 into %T3")
	if n := strings.Count(p.String(), "alloc"); n != 1 {
		t.Errorf("%d allocs, want that of the output only:\n%s", n, p)
	}
}

// TestNumberOfStreams checks that numberOfStreams is a dim with the default 4.
func TestNumberOfStreams(t *testing.T) {
	p := program(t, container("  SetCurrentStream to Stream ( 7 % numberOfStreams )\n"+copyT1))
	contains(t, p, "dim numberOfStreams = 4", "stream[numberOfStreams]", "on %worker[7 mod numberOfStreams]")
	_, rest, ds := Import("d.txt", p.Source, map[string]string{"numberOfStreams": "2"})
	if rest["numberOfStreams"] != "2" || len(ds) > 0 {
		t.Errorf("numberOfStreams is for who binds the program, not taken: %v %v", rest, ds)
	}
}

// TestRankAsValue checks that rank and deviceIdx.x are translated to the device number.
func TestRankAsValue(t *testing.T) {
	for _, name := range []string{"rank", "deviceIdx.x"} {
		p := program(t, container("  IF Manual ( "+name+" == 0 ):\n  "+strings.ReplaceAll(copyT1, "\n",
			"\n  ")+"\n  ELSE:\n  "+strings.ReplaceAll(copyT1, "\n", "\n  ")+"\n"))
		contains(t, p, "if rank(world) == 0 {", "} else {")
	}
}

// TestMeshesThatSkipRanks checks that ranks outside a mesh do not execute the statements of the mesh.
func TestMeshesThatSkipRanks(t *testing.T) {
	for mesh, test := range map[string]string{
		"0 2 3": "if rank(world) != 1 {", "2": "if rank(world) == 2 {", "1 2 3": "if rank(world) != 0 {",
		"2 3":     "if rank(world) >= 2 {",
		"1 2 5 6": "if min(max(0, max(1 - rank(world), rank(world) - 2)), max(0, max(5 - rank(world), rank(world) - 6))) == 0 {",
	} {
		m := " (DeviceMesh{" + mesh + "})"
		p := program(t, "%HostIrContainer { (T0_g_float[iS0{4}]"+m+") -> (T1_g_float[iS1{4}]"+m+") :\n  T1_g_float[iS1{4}]"+m+" = Set( T0_g_float[iS0{4}]"+m+" )\n}\n")
		contains(t, p, test, "= {"+mesh+"}")
	}
	for _, ranks := range []rankSet{{0, 1}, {0, 1, 2}} { // the first ranks need one comparison with the last of them
		s := (&output{world: 9}).membership(ranks, ir.Pos{})
		if s.Cmp != ir.LE || s.Exprs[1].Val != ranks[len(ranks)-1] {
			t.Errorf("%v: %s", ranks, s)
		}
	}
}

// TestMembership compares the generated condition with the set of ranks, for all sets of seven ranks.
func TestMembership(t *testing.T) {
	const world = 7
	for bits := 1; bits < 1<<world; bits++ {
		var set rankSet
		for r := range int64(world) {
			if bits>>r&1 == 1 {
				set = append(set, r)
			}
		}
		s := (&output{world: world}).membership(set, ir.Pos{})
		for r := range int64(world) {
			left, err := s.Exprs[0].Eval(env{rank: r})
			if err != nil {
				t.Fatal(err)
			}
			if got, want := s.Cmp.Holds(left, s.Exprs[1].Val), bits>>r&1 == 1; got != want {
				t.Fatalf("%v: rank %d: %s says %v", set, r, s, got)
			}
		}
	}
}

// env evaluates expressions on one rank, with the dims i = 7 and j = -7.
type env struct{ rank int64 }

func (e env) Dim(name string) (int64, bool) {
	v, ok := map[string]int64{"i": 7, "j": -7, "k": 3}[name]
	return v, ok
}
func (e env) Rank(string) (int64, bool)        { return e.rank, true }
func (e env) Size(string) (int64, bool)        { return 0, false }
func (e env) Var(string) (int64, bool)         { return 0, false }
func (e env) Extent(string, int) (int64, bool) { return 0, false }

// TestIndexArithmetic checks where, fmax and similar functions that occur in the extents of slices. The operators % and
// / round towards zero, as in C.
func TestIndexArithmetic(t *testing.T) {
	for text, want := range map[string]int64{
		"where(( i < 0 ), ( i + k ), i)": 7, "where(j < 0, j + k, j)": -4, "fmax(i, k)": 7, "fmin(i, k)": 3,
		"max(1, 2)": 2, "min(1, 2)": 1,
		"( -( fmax(0, i) ) ) + k": -4, "abs(j)": 7, "ceilDiv(i, 3)": 3, "neg(k)": -3, "-k": -3,
		"i / k": 2, "j / k": -2, "i % k": 1, "j % k": -1, "(j % k) + k": 2, "( 8 + j ) % k": 1,
		"i == 7": 1, "i != 7": 0, "i < 7": 0, "i <= 7": 1, "i > 7": 0, "i >= 7": 1, "j < k": 1, "k < j": 0,
		"i == 7 && k == 3": 1, "i == 7 && k": 1, "i != 7 || k != 3": 0, "!k": 0, "!(i == k)": 1, "1 + 2 * 3": 7,
		"10 - 2 - 3": 5, "7 % 4 * 2": 6,
		"rank + 1": 3, "deviceIdx.x": 2,
	} {
		s, ds := parseDefine("x", text)
		if len(ds) > 0 {
			t.Errorf("%s: %s", text, ds)
			continue
		}
		tr := newTranslator(&reader{prog: &ir.Program{}}, &dump{}, nil)
		for _, name := range []string{"i", "j", "k"} {
			tr.symbols[name] = &ir.Dim{}
		}
		delete(tr.symbols, "j") // the range of j is unknown, so j may be negative
		tr.loops = []*loop{{name: "j", lo: &scalar{op: "neg", args: []*scalar{{val: 9}}}, hi: &scalar{val: 9}}}
		tr.world = 4
		e := asDims(tr.expr(s))
		if got, err := e.Eval(env{rank: 2}); err != nil || got != want {
			t.Errorf("%s is %d (%v), want %d: %s", text, got, err, want, e)
		}
	}
}

// asDims replaces loop variables by dims, for which env has values.
func asDims(e *ir.Expr) *ir.Expr {
	out := *e
	if e.Kind == ir.ExprVar {
		out.Kind = ir.ExprName
	}
	out.Args = nil
	for _, a := range e.Args {
		out.Args = append(out.Args, asDims(a))
	}
	return &out
}

func TestWhereInExtents(t *testing.T) {
	rows := "( fmax(0, ( where(( i0 < 3 ), ( i0 + 1 ), 3) )) )"
	p := program(t, "%HostIrContainer { (T0_g_float[iS0{i0}], T2_g_float[iS4{"+rows+"}]) -> (T1_g_float[iS1{"+rows+"}]) :\n  T1_g_float[iS1{"+rows+"}] = Set( T2_g_float[iS4{"+rows+"}] )\n}\n")
	for i0, want := range map[int64]int64{0: 1, 2: 3, 3: 3, 9: 3} {
		got, err := p.Funcs[0].Results[0].Dims[0].Extent.Eval(oneDim(i0))
		if err != nil || got != want {
			t.Errorf("i0=%d: %d rows (%v), want %d", i0, got, err, want)
		}
	}
}

type oneDim int64

func (e oneDim) Dim(string) (int64, bool)         { return int64(e), true }
func (e oneDim) Rank(string) (int64, bool)        { return 0, false }
func (e oneDim) Size(string) (int64, bool)        { return 0, false }
func (e oneDim) Var(string) (int64, bool)         { return 0, false }
func (e oneDim) Extent(string, int) (int64, bool) { return 0, false }

// TestDTypes checks that a tensor without a dtype is f32, and that broken lines are joined.
func TestDTypes(t *testing.T) {
	for printed, want := range map[string]string{"T0_g": "f32", "T0_l_float": "f32", "T0_g___bfloat": "bf16",
		"T0_s___half": "f16", "T0_g_double": "f64", "T0_g_int64_t": "i64", "T0_g_int": "i32"} {
		other := "T1" + printed[2:]
		p := program(t, "%HostIrContainer { ("+printed+"[ iS0{4} ]) -> ("+other+"[ iS1{4} ]) :\n  "+other+"[ iS1{4} ]\n     = Set( "+printed+"[ iS0{4} ] )\n}\n")
		contains(t, p, "%T0: "+want+"[4]")
	}
	refused(t, "%HostIrContainer { (T0_g_bool[iS0{4}]) -> (T0_g_bool[iS0{4}]) :\n}\n", "1:", "element type bool "+
		"is not supported")
}

// TestBrokenLines breaks a dump at every column of every line, as a terminal does, and checks that the program does not
// change.
func TestBrokenLines(t *testing.T) {
	src := container("  GetCurrentStream into Stream 0\n  T2_g_float[iS4{i0}, iS5{4}] = ALLOCATE(buffer=T2_g_float[iS4{i0}, iS5{4}], mem_type=global, size=( i0 * 4 ), zero_init=true, resets_to_zero=false)\n" +
		"  T2_g_float[iS4{i0}, iS5{4}]\n     = Set( " + t0 + ", cache_op=Streaming )\n  " + t1 +
		"\n     = add( T2_g_float[iS4{i0}, iS5{4}],\n            " + t0 + " )\n")
	want := program(t, src).String()
	lines := strings.Split(src, "\n")
	for i := 1; i < 6; i++ {
		first := len(lines[i]) - len(strings.TrimLeft(lines[i], " ")) + 1
		for at := first; at < len(lines[i]); at++ {
			broken := strings.Join(lines[:i],
				"\n") + "\n" + lines[i][:at] + "\n" + lines[i][at:] + "\n" + strings.Join(lines[i+1:], "\n")
			p, _, ds := Import("d.txt", broken, nil)
			if len(ds) > 0 {
				t.Errorf("broken before %q: %s", lines[i][at:], ds)
				continue
			}
			if got := p.String(); withoutLines(got) != withoutLines(want) {
				t.Errorf("broken before %q:\n%s", lines[i][at:], got)
			}
		}
	}
}

// withoutLines removes comments, because breaking lines changes the line numbers in them.
func withoutLines(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		code, _, _ := strings.Cut(line, "//")
		b.WriteString(strings.TrimRight(code, " \n") + "\n")
	}
	return b.String()
}

func TestRefused(t *testing.T) {
	for _, c := range []struct{ src, place, want string }{
		{container(copyT1 + "  Frobnicate Stream 0\n"), "4:3:", `no supported statement begins with "Frobnicate"`},
		{container(copyT1 + "  SetCurrentStream to Strem 0\n"), "4:23:", `expected "Stream", found "Strem"`},
		{container(copyT1 + "  T9_g_float[iS9{4}] = frob( " + t0 + " )\n"), "4:24:", "the operation frob is not " +
			"supported"},
		{container(copyT1 + "  LaunchKernel(\n    Group ID: 0,\n  )\n"), "4:",
			"a kernel whose text is not in the dump"},
		{container("  " + t1 + " = Set( T5_g_float[iS9{i0}, iS10{4}] )\n"), "2:", "tensor T5 is read, but no " +
			"statement writes it"},
		{container(""), "1:", "no statement writes the output T1"},
		{container("  " + t1 + " = ALLOCATE(buffer=" + t1 + ", mem_type=global, size=4)\n"), "1:",
			"no statement writes the output T1"},
		{container(copyT1 + "  T1_g_float[iS2{i0}, iS3{5}] = Set( " + t0 + " )\n"), "4:3:",
			"T1 is printed with other axes here than where it occurs first"},
		{container("  T2_g_float[iS4{i0}, iS5{5}] = Set( " + t0 + " )\n" + copyT1), "2:", "dimension 1 of f32[i0, 4] differs from that of f32[i0, 5]"},
		{container(copyT1 + "  T2_g_float[iS4{3}, iS5{5}] = ALLOCATE(buffer=T2_g_float[iS4{3}, iS5{5}], " +
			"mem_type=global, size=16)\n"), "4:", "has 16 elements, but its printed axes have 15"},
		{container(copyT1 + "  FOR i0 from 0 to 3:\n    Synchronize Stream 1\n"), "4:", "has a name that is " +
			"already in use"},
		{container("  FOR i9 from 0 to 3:\n    Synchronize Stream 1\n     Synchronize Stream 2\n" + copyT1), "4:6:",
			"this line is indented by 5"},
		{container("  FOR i9 from 0 to 3:\n    " + t1 + " = Set( " + t0 + " )\n    SetCurrentStream to Stream i9\n"),
			"3:5:", "the current stream of this statement depends on the iteration"},
		{container("  FOR i9 from 0 to 3:\n    SetCurrentStream to Stream i9\n" + copyT1), "4:3:",
			"the current stream of this statement differs between iterations"},
		{container("  IF Manual ( rank == 0 ):\n    SetCurrentStream to Stream 1\n" + copyT1), "4:3:",
			"differs between iterations"},
		{container("  SetCurrentStream to Stream 0x7\n  Stream 0x7 = GetCurrentStream()\n" + copyT1), "2:",
			"is used before the GetCurrentStream that captures it"},
		{container("  SetCurrentStream to Stream ( i0 * 2 )\n" + copyT1), "2:", "does not determine the number of " +
			"streams"},
		{container("  Wait Communication 3\n" + copyT1), "2:3:", "waits for communication 3, which was not posted"},
		{container("  PostOnStream (HostUnit3, Inputs:{}, Outputs:{})\n" + copyT1), "2:", "the dump does not " +
			"contain HostUnit3"},
		{container(copyT1)[:60] + "\n", "1:", "the file ends after this line"},
		{strings.TrimSuffix(container(copyT1), "} // %HostIrContainer\n"), "3:", "the dump ends without"},
		{container(copyT1) + "Index definitions:\n  i9 = i8;\n  i9 = i7;\n", "7:", "defined twice"},
		{container("  FOR i7 from 0 to i9:\n    Synchronize Stream 1\n"+copyT1) +
			"Index definitions:\n  i9 = i8 + 1;\n  i8 = i9;\n", "", "contains the index itself"},
		{"%HostIrContainer { (T0_g_float[ideviceIdx.x0{3}] (DeviceMesh{0 1})) -> (T0_g_float[ideviceIdx.x0{3}] " +
			"(DeviceMesh{0 1})) :\n}\n", "1:", "has extent 3, but its mesh has 2 devices"},
		{"%HostIrContainer { (T0_g_float[iS0{4}] (DeviceMesh{{0 1}{2 3}})) -> (T0_g_float[iS0{4}]) :\n}\n", "1:",
			"mesh has more than one dimension"},
		{"%HostIrContainer { (T0_g_float[iS0{4}] (DeviceMesh{0 0})) -> (T0_g_float[iS0{4}]) :\n}\n", "1:",
			"listed twice"},
	} {
		refused(t, c.src, c.place, c.want)
	}
}

// TestKernels checks the operations in HostUnits.
func TestKernels(t *testing.T) {
	p := program(t, `%HostIrContainer { (T0_g_float[iS0{2}, iS1{3}, iS2{5}]) -> (T9_g_float[iS3{3}, iS4{2}]) :
  PostOnStream (HostUnit1, Inputs:{T0_g_float[iS0{2}, iS1{3}, iS2{5}], }, Outputs:{T9_g_float[iS3{3}, iS4{2}], })

HostUnit1: Inputs={T0_g_float[iS0{2}, iS1{3}, iS2{5}], } -> Outputs={T4_g_float[iS13{3}, iS12{2}], }
%kernel {
T1_l_float[iS6{2}, iS7{3}, iS8{5}]
   = T0_g_float[iS0{2}, iS1{3}, iS2{5}]
   * double(0.5);
T2_l_float[iS9{2}, iS10{3}, rS11{5}]
   = reduction( T1_l_float[iS6{2}, iS7{3}, iS8{5}], op = add, initial value = float(0), allreduce = false )
T3_l_float[iS14{2}, iS15{3}]
   = relu(T2_l_float[iS9{2}, iS10{3}, rS11{5}]);
T4_g_float[iS13{3}, iS12{2}]
   = Set.Permute( T3_l_float[iS14{2}, iS15{3}], cache_op=Streaming )
} // %kernel
} // %HostIrContainer
`)
	refused(t, strings.Replace(p.Source, "HostUnit1: Inputs={T0_g_float[iS0{2}, iS1{3}, iS2{5}]",
		"HostUnit1: Inputs={T0_g_float[iS0{2}, iS1{7}, iS2{5}]", 1), "4:39:",
		"this axis has extent 7, but that of the tensor that is passed for it has 3")
	// nvFuser prints the fusion of the unit after its outputs, on the same line.
	joined := program(t, strings.Replace(p.Source, "Outputs={T4_g_float[iS13{3}, iS12{2}], }\n%kernel",
		"Outputs={T4_g_float[iS13{3}, iS12{2}], }Inputs:\n  T0_g_float[iS0{2}, iS1{3}, iS2{5}], float\nOutputs:\n  T4_g_float[iS13{3}, iS12{2}], float\n\n%kernel", 1))
	contains(t, joined, "scale %T0_l into %T1, by=0.5")
	contains(t, p, "scale %T0_l into %T1, by=0.5", "sum %T1 into %T2, axis=2", "relu %T2 into %T3",
		"transpose %T3, perm=(1, 0)", "into %T9")
}

// TestPermutations checks permutations, in which the result's axes are numbered in the operand's order.
func TestPermutations(t *testing.T) {
	for printed, want := range map[string]string{
		"iS10{2}, iS11{3}, iS12{5}": "", "iS12{5}, iS10{2}, iS11{3}": "perm=(2, 0, 1)",
		"iS11{3}, iS10{2}, iS12{5}": "perm=(1, 0, 2)",
	} {
		p := program(t, "%HostIrContainer { (T0_g[ iS0{2}, iS1{3}, iS2{5} ]) -> (T1_g[ "+printed+" ]) :\n  T1_g[ "+printed+" ]\n   = Set.Permute( T0_g[ iS0{2}, iS1{3}, iS2{5} ], cache_op=Streaming )\n}\n")
		if text := p.String(); want == "" && strings.Contains(text, "transpose") || !strings.Contains(text, want) {
			t.Errorf("%s: want %s\n%s", printed, want, text)
		}
	}
	refused(t, "%HostIrContainer { (T0_g[ iS0{2}, iS1{3} ]) -> (T1_g[ iS3{2}, iS2{3} ]) :\n  T1_g[ iS3{2}, iS2{3} ] = Set.Permute( T0_g[ iS0{2}, iS1{3} ] )\n}\n", "2:3:", "in which order")
}

// TestForgottenLineEnd reads two statements on one line.
func TestForgottenLineEnd(t *testing.T) {
	m := " (DeviceMesh{0 1})"
	p := program(t, "%HostIrContainer { (T0_g[ iS0{4} ]"+m+") -> (T1_g[ iS1{4} ]"+m+") :\n  Communication 3 (type=Allreduce, team=(0 1), Input=T0_g[ iS0{4} ]"+m+", Output=T1_g[ iS1{4} ]"+m+")    Wait Communication 3\n\n} // %HostIrContainer\n")
	contains(t, p, "all_reduce %T0_l into %T1, over=d, op=sum  // line 2")
}

// TestLongDumps checks that time and memory grow linearly with the size of the dump.
func TestLongDumps(t *testing.T) {
	lines := 100_000
	if testing.Short() {
		lines = 20_000
	}
	var many, deep, defs strings.Builder
	for i := range lines / 2 {
		fmt.Fprintf(&many, "  T%d_g_float[iS%d{4}] = Set( T%d_g_float[iS%d{4}] )\n", i+1, i+1, i, i)
		fmt.Fprintf(&defs, "  i%d = i%d + 1;\n", 10+i, 11+i)
	}
	n := lines / 2
	chain := fmt.Sprintf("%%HostIrContainer { (T0_g_float[iS0{4}]) -> (T%d_g_float[iS%d{4}]) :\n%s} // %%HostIrContainer\n", n, n, &many)
	for i := range 99 {
		fmt.Fprintf(&deep, "%sFOR i%d from 0 to 2:\n", strings.Repeat(" ", i+2), 100+i)
	}
	for i := range lines {
		fmt.Fprintf(&deep, "%sSynchronize Stream %d\n", strings.Repeat(" ", 101), i%7)
	}
	for name, src := range map[string]string{
		"a chain of copies": chain,
		"one tensor again":  container(strings.Repeat(copyT1, lines/2)),
		"a deep nest":       container(deep.String() + copyT1),
		"definitions":       container(copyT1) + "Index definitions:\n" + defs.String(),
		"an open bracket":   container("  T1_g_float[" + strings.Repeat("\n", lines)),
		"brackets":          container("  SetCurrentStream to Stream " + strings.Repeat("(", lines) + "\n"),
		"blanks":            "%HostIrContainer {" + strings.Repeat(" \n", lines),
		"comparisons": container("  SetCurrentStream to Stream " + strings.Repeat("( ",
			90) + "rank" + strings.Repeat(" == 1 )", 90) + "\n" + copyT1),
		"remainders": container("  SetCurrentStream to Stream " + strings.Repeat("( 1 - ( ",
			40) + "rank" + strings.Repeat(" % 3 ) )", 40) + "\n" + copyT1),
		"wrong lines": container(strings.Repeat("  what is this\n", lines)),
	} {
		start := time.Now()
		_, _, ds := Import("d.txt", src, nil)
		// The limit is more than ten times as long as each case takes on an idle machine, and far shorter than a
		// quadratic algorithm would take.
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("%s: %v", name, took)
		} else {
			t.Logf("%s: %v, %d findings", name, took.Round(time.Millisecond), len(ds))
		}
		if len(ds) > maxErrors {
			t.Errorf("%s: %d findings", name, len(ds))
		}
	}
	if _, _, ds := Import("d.txt", chain, nil); len(ds) > 0 {
		t.Error(ds)
	}
}

// TestNamesWithin checks that a definition before an on block does not get the name of a definition inside the block.
func TestNamesWithin(t *testing.T) {
	m := " (DeviceMesh{0 1})"
	worker := func(body, defs string) string {
		return "%HostIrContainer { (T0_g_float[iS0{2}, iS9{4}]" + m + ") -> (T1_g_float[iS1{2}, iS8{4}]" + m + ") :\n" +
			"  GetCurrentStream into Stream 0\n  SetCurrentStream to Stream 1\n  Synchronize Stream 0\n" +
			"  T1_g_float[iS1{2}, iS8{4}]" + m + " = Set( T0_g_float[iS0{2}, iS9{4}]" + m + " )\n" + body +
			"  SetCurrentStream to Stream 0\n  Synchronize Stream 1\n}\n" + defs
	}
	t1 := "T1_g_float[iS1{2}, iS8{4}]" + m
	for _, src := range []string{
		worker("  IF Manual ( rank == 0 ):\n    "+t1+" = "+t1+" + double(1)\n  "+t1+" = "+t1+" + double(2)\n", ""),
		worker("  IF Manual ( rank == 0 ):\n    T2_l_float[iS2{4}]"+m+" = select( "+t1+", axis = iS1{2}, index = i7 )\n    T3_l_float[iS3{4}]"+m+" = Set( T2_l_float[iS2{4}]"+m+" )\n"+
			"  T4_l_float[iS4{4}]"+m+" = select( "+t1+", axis = iS1{2}, index = i7 )\n  T4_l_float[iS4{4}]"+m+" = Set( T4_l_float[iS4{4}]"+m+" )\n", "Index definitions:\n  i7 = rank % 2;\n"),
		"%HostIrContainer { (T0_g_float[iS0{9}, iS9{4}]) -> (T1_g_float[iS1{4}]) :\n  FOR i9 in iS5{2}:\n    T2_l_float[iS2{4}] = select( T0_g_float[iS0{9}, iS9{4}], axis = iS0{9}, index = i7 )\n" +
			"    T3_l_float[iS3{i7}] = Set( T2_l_float[iS2{4}] )\n  T1_g_float[iS1{4}] = Set( T3_l_float[iS3{i7}] )\n}\nIndex definitions:\n  i7 = 2 * 2;\n",
	} {
		program(t, src)
	}
}

// TestQuotients checks that quotients round towards zero for all combinations of signs, as in C.
func TestQuotients(t *testing.T) {
	for index, want := range map[string]string{
		"( ( 5 / -2 ) + 4 )": "index=2", "( ( 5 % -2 ) + 1 )": "index=2", "( ( ( 2 - 7 ) / -2 ) + 1 )": "index=3",
		"( ( ( 2 - 7 ) % -2 ) + 2 )": "index=1", "( ( ( 2 - 7 ) / 2 ) + 3 )": "index=1",
		"( 5 / ( 3 - rank ) )":         "index=floordiv(5, 3 - rank(world))",
		"( ( 5 / ( rank - 3 ) ) + 3 )": "index=0 - floordiv(5, 0 - (rank(world) - 3)) + 3",
	} {
		src := "%HostIrContainer { (T0_g_float[iS0{4}, iS1{4}]) -> (T1_g_float[iS2{4}]) :\n  T2_l_float[iS3{4}] = select( T0_g_float[iS0{4}, iS1{4}], axis = iS0{4}, index = " + index + " )\n  T1_g_float[iS2{4}] = Set( T2_l_float[iS3{4}] )\n}\n"
		contains(t, program(t, src), want)
	}
	refused(t, "%HostIrContainer { (T0_g_float[iS0{4}, iS1{4}] (DeviceMesh{0 1})) -> (T1_g_float[iS2{4}] (DeviceMesh{0 1})) :\n  T2_l_float[iS3{4}] (DeviceMesh{0 1}) = select( T0_g_float[iS0{4}, iS1{4}] (DeviceMesh{0 1}), axis = iS0{4}, index = ( 3 / ( 2 * rank - 1 ) ) )\n"+
		"  T1_g_float[iS2{4}] (DeviceMesh{0 1}) = Set( T2_l_float[iS3{4}] (DeviceMesh{0 1}) )\n}\n", "2:",
		"the sign of the divisor is not known")
}

// TestMeaningIsKept checks that constructs that would change the results of the program are refused and not ignored.
func TestMeaningIsKept(t *testing.T) {
	sum := func(op, initial string) string {
		return "%HostIrContainer { (T0_g_float[iS0{4}, iS1{5}]) -> (T1_g_float[iS2{4}]) :\n  T2_l_float[iS3{4}, rS4{5}]\n   = reduction( T0_g_float[iS0{4}, iS1{5}], op = " + op + ", initial value = " + initial + ", allreduce = false )\n" +
			"  T1_g_float[iS2{4}] = Set( T2_l_float[iS3{4}, rS4{5}] )\n}\n"
	}
	for _, c := range [][2]string{{"add", "float(0)"}, {"add", "double(-0)"}, {"max", "float(-inf)"}, {"max", "-65504"},
		{"min", "inf"}, {"fmin", "float(3.40282e+38)"}} {
		program(t, sum(c[0], c[1]))
	}
	for _, c := range [][2]string{{"add", "float(7)"}, {"max", "float(100)"}, {"max", "float(inf)"},
		{"min", "float(0)"}, {"add", "float(x)"}} {
		refused(t, sum(c[0], c[1]), "3:", "has the initial value "+c[1])
	}
	m := " (DeviceMesh{0 1})"
	device := func(index string) string {
		return "%HostIrContainer { (T0_g_float[ideviceIdx.x0{2}, iS9{4}]" + m + ") -> (T1_g_float[iS1{4}]" + m +
			") :\n  T2_l_float[iS2{4}]" + m + " = select( T0_g_float[ideviceIdx.x0{2}, iS9{4}]" + m +
			", axis = ideviceIdx.x0{2}, index = " + index + " )\n" +
			"  T1_g_float[iS1{4}]" + m + " = Set( T2_l_float[iS2{4}]" + m + " )\n}\n"
	}
	program(t, device("0"))
	program(t, device("rank"))
	refused(t, device("1"), "2:", "1 cannot be selected")
	refused(t, device("( rank + 1 )"), "2:", "cannot be selected")
	set := "  T1_g_float[iS1{4}] = Set( T0_g_float[iS0{4}] )\n"
	head := "%HostIrContainer { (T0_g_float[iS0{4}]) -> (T1_g_float[iS1{4}]) :\n"
	program(t, head+set+"} // %HostIrContainer\n")
	refused(t, head+set+"} T1_g_float[iS1{4}] = Set( T1_g_float[iS1{4}] )\n", "3:", "after the dump's end")
	refused(t, head+"  T1_g_float[iS1{4}] = ALLOCATE(buffer=T0_g_float[iS0{4}], mem_type=global, size=4, "+
		"zero_init=false, resets_to_zero=false)\n"+set+"}\n", "2:", "this ALLOCATE has the buffer T0 but assigns "+
		"it to T1")
	if _, _, ds := Import("d.txt", head+set+"}\n", map[string]string{"rank": "5"}); len(ds) != 1 ||
		!strings.Contains(ds[0].Error(), "its value differs between devices") {
		t.Errorf("--define rank: %v", ds)
	}
}

// TestCoalescedWait checks that a Wait waits for all of the communications that are coalesced.
func TestCoalescedWait(t *testing.T) {
	m := " (DeviceMesh{0 1})"
	src := "%HostIrContainer { (T0_g_float[iS0{4}]" + m + ") -> (T1_g_float[iS1{4}]" + m + ") :\n  StartCoalescing\n" +
		"  P2PCommunication 5 (type=send, buffer=T0_g_float[iS0{4}]" + m + ", peer=( 1 - rank ), backend=NCCL)\n" +
		"  P2PCommunication 6 (type=recv, buffer=T1_g_float[iS1{4}]" + m + ", peer=( 1 - rank ), backend=NCCL)\n" +
		"  EndCoalescing 9\n  Wait(Communication 9)\n}\n"
	contains(t, program(t, src), "on %nccl_d {", "group {", "record %done9", "\n  wait %done9")
	refused(t, strings.Replace(src, "Wait(Communication 9)", "Wait(Communication 6)", 1), "6:3:",
		"communication 6, which is coalesced")
	refused(t, strings.Replace(src, "Wait(Communication 9)", "Wait(Communication 8)", 1), "6:3:", "was not posted")
}

// TestCapturedOnSomeWay checks a stream that was captured again in a loop or in one branch. Statements that use this
// stream are refused, unless they follow another capture of the stream.
func TestCapturedOnSomeWay(t *testing.T) {
	container := func(body string) string {
		return "%HostIrContainer { (T0_g_float[iS0{4}] (DeviceMesh{0 1})) -> (T1_g_float[iS1{4}] (DeviceMesh{0 1})) :\n  GetCurrentStream into Stream 0\n" + body + "}\n"
	}
	set := "  T1_g_float[iS1{4}] (DeviceMesh{0 1}) = Set( T0_g_float[iS0{4}] (DeviceMesh{0 1}) )\n"
	refused(t, container("  FOR i9 from 0 to 2:\n    SetCurrentStream to Stream 0\n  "+set+"    SetCurrentStream "+
		"to Stream 1\n    GetCurrentStream into Stream 0\n"), "4:32:", "Stream 0 refers to different streams")
	refused(t, container("  SetCurrentStream to Stream 1\n  Synchronize Stream 0\n"+set+"  IF Manual ( rank == 0 "+
		"):\n    GetCurrentStream into Stream 0\n  SetCurrentStream to Stream 0\n  Synchronize Stream 1\n"), "8:",
		"Stream 0 refers to different streams")
	program(t, container("  FOR i9 from 0 to 2:\n    SetCurrentStream to Stream 0\n    GetCurrentStream into Stream 0\n  "+set))
}

// TestTransfersOfMeshes checks that each of several consecutive sends and receives is executed by its own ranks.
func TestTransfersOfMeshes(t *testing.T) {
	p := program(t, "%HostIrContainer { (T0_g_float[iS1{4}] (DeviceMesh{0})) -> (T1_g_float[iS2{4}] (DeviceMesh{1})) :\n"+
		"  P2PCommunication 1 (type=send, buffer=T0_g_float[iS1{4}] (DeviceMesh{0}), peer=1, backend=NCCL)\n  P2PCommunication 2 (type=recv, buffer=T1_g_float[iS2{4}] (DeviceMesh{1}), peer=0, backend=NCCL)\n"+
		"  Wait(P2PCommunication 1)\n  Wait(P2PCommunication 2)\n}\n")
	contains(t, p, "send %T0", "recv")
	if text := p.String(); strings.Contains(text, "group") {
		t.Errorf("one group:\n%s", text)
	}
}

// TestAddresses checks that an address that ends in e is not read as a number with an exponent.
func TestAddresses(t *testing.T) {
	m := " (DeviceMesh{0 1})"
	set := "  T1_g_float[iS1{4}]" + m + " = Set( T0_g_float[iS0{4}]" + m + " )\n"
	p := program(t, "%HostIrContainer { (T0_g_float[iS0{4}]"+m+") -> (T1_g_float[iS1{4}]"+m+") :\n  GetCurrentStream into Stream 0\n  SetCurrentStream to Stream 0x174e\n  Synchronize Stream 0\n"+set+
		"  SetCurrentStream to Stream 0\n  Synchronize Stream 0x174e\n}\n")
	contains(t, p, "%stream_0x174e")
	refused(t, "%HostIrContainer { (T0_g_float[iS0{4}]"+m+") -> (T1_g_float[iS1{4}]"+m+") :\n  SetCurrentStream to Stream 0x174e-15\n"+set+"}\n", "2:", "")
}

// TestLostIndentation checks that a dump without indentation is accepted if only one program has its statements.
func TestLostIndentation(t *testing.T) {
	flat := func(src string) string {
		lines := strings.Split(src, "\n")
		for i := range lines {
			lines[i] = strings.TrimLeft(lines[i], " ")
		}
		return strings.Join(lines, "\n")
	}
	printed := container(`  GetCurrentStream into Stream 0
  FOR i9 in iS0{i0}:
    SetCurrentStream to Stream ( i9 % numberOfStreams )
    Synchronize Stream 0
    T2_l_float[iS4{4}] = HirAliasSelect( ` + t0 + `, axis = iS0{i0}, index = i9 )
    T3_l_float[iS5{4}] = HirAliasSelect( ` + t1 + `, axis = iS2{i0}, index = i9 )
    T3_l_float[iS5{4}] = Set( T2_l_float[iS4{4}] )
    SetCurrentStream to Stream 0
  FOR i9 in iS0{i0}:
    Synchronize Stream ( i9 % numberOfStreams )
`)
	p, _, ds := Import("d.txt", flat(printed), nil)
	if p == nil || len(ds) != 1 || ds[0].Severity != ir.Warning || len(ds[0].Notes) != 2 ||
		ds[0].Notes[0].Message != "this has lines 4 to 8" || ds[0].Notes[1].Message != "this has line 11" {
		t.Fatalf("%s", ds)
	}
	if want := program(t, printed).String(); p.String() != want {
		t.Errorf("it makes another program:\n%s\n%s", p, want)
	}
	// The copy of the whole tensor may be in the loop or after it.
	refused(t, flat(container("  FOR i9 in iS0{i0}:\n    Synchronize Stream i9\n"+copyT1)), "2:1:",
		"lost its indentation")
	// The error lists the programs, and --define selects one.
	several := container("  FOR i9 in iS0{i0}:\n    Synchronize Stream i9\n" + copyT1)
	_, _, ds = Import("d.txt", flat(several), nil)
	for _, want := range []string{"give 2 different programs", "d.txt:2:1: note: indentation=1: this has line 3\n",
		"d.txt:2:1: note: indentation=2: this has lines 3 to 5\n", "--define indentation=1"} {
		if !strings.Contains(ds.String(), want) {
			t.Errorf("there is no %q in\n%s", want, ds)
		}
	}
	deeper := container("  FOR i9 in iS0{i0}:\n    Synchronize Stream i9\n" + strings.ReplaceAll(copyT1, "  "+t1,
		"    "+t1))
	for n, indented := range map[string]string{"1": several, "2": deeper} {
		p, rest, ds := Import("d.txt", flat(several), map[string]string{"indentation": n})
		if ds.HasErrors() || len(rest) > 0 || p.String() != program(t, indented).String() {
			t.Errorf("indentation=%s: %v %v\n%s", n, rest, ds, p)
		}
	}
	for _, n := range []string{"0", "3", "x"} {
		if _, _, ds := Import("d.txt", flat(several),
			map[string]string{"indentation": n}); !strings.Contains(ds.String(),
			"--define indentation="+n+": the number must be from 1 to the number of ways to indent the dump, "+
				"which is 2") {
			t.Errorf("indentation=%s: %s", n, ds)
		}
	}
	refused(t, flat(container("  FOR i9 in iS0{i0}:\n"+copyT1+"    "+copyT1)), "2:1:", "lost its indentation")
	refused(t, flat(container("  FOR i9 in iS0{i0}:\n")), "2:1:", "lost its indentation")
	refused(t, flat(container(strings.Repeat("  FOR i9 in iS0{i0}:\n"+copyT1+copyT1+copyT1, 20))), "2:1:",
		"lost its indentation")
	// In a dump with indentation a loop may be empty.
	contains(t, program(t, container("  FOR i9 in iS0{i0}:\n  FOR i8 in iS0{i0}:\n    Deallocate { "+t0+" }\n"+copyT1)),
		"for %i9 in 0..i0 {")
}

// TestMissingIndices checks that indices are inferred if exactly one choice among the forms that nvFuser generates
// fits.
func TestMissingIndices(t *testing.T) {
	m := " (DeviceMesh{0 1 2})"
	t0, t1 := "T0_g_float[ideviceIdx.x0{3}, iS1{4}]"+m, "T1_g_float[iS2{3}, iS3{4}]"+m
	t2, t3 := "T2_l_float[iS4{4}]"+m, "T3_l_float[iS5{4}]"+m
	ring := func(condition string) string {
		return "%HostIrContainer { (" + t0 + ") -> (" + t1 + ") :\n  FOR i5 in iS6{3}:\n    " + t2 +
			" = HirAliasSelect( " + t1 + ", axis = iS2{3}, index = i7 )\n" +
			"    IF Manual ( " + condition + " ):\n      " + t3 + " = HirAliasSelect( " + t0 +
			", axis = ideviceIdx.x0{3}, index = 0 )\n      " + t2 + " = Set( " + t3 + " )\n" +
			"    ELSE:\n      ShareMemHandles(P2PCommunication 1 (type=send, buffer=" + t0 +
			", peer=i8, backend=CUDA), P2PCommunication 2 (type=recv, buffer=" + t2 +
			", peer=i7, backend=CUDA),\n      P2PCommunication 1 (type=send, buffer=" + t0 +
			", peer=i8, backend=CUDA)\n      P2PCommunication 2 (type=recv, buffer=" + t2 +
			", peer=i7, backend=CUDA)\n" +
			"      Wait Communication 1\n      Wait Communication 2\n}\n"
	}
	for condition, want := range map[string]string{
		"( ( 3 + ( rank - i5 ) ) % 3 ) == rank": "--define 'i7=(rank+i5)%3' --define 'i8=(3+(rank-i5))%3'",
		"( ( rank + i5 ) % 3 ) == rank":         "--define 'i7=(3+(rank-i5))%3' --define 'i8=(rank+i5)%3'",
	} {
		p, _, ds := Import("d.txt", ring(condition), nil)
		ds = withoutHints(ds)
		if p == nil || len(ds) != 1 || ds[0].Severity != ir.Warning || !strings.HasSuffix(ds[0].Message, want) {
			t.Errorf("%s: want %s:\n%s", condition, want, ds)
		}
	}
	// The dump does not determine the direction of this ring.
	_, _, ds := Import("d.txt", ring("i5 == 0"), nil)
	if !ds.HasErrors() || !strings.Contains(ds[0].Help, " --define 'i7=") ||
		!strings.Contains(ds[0].Help, " --define 'i8=") {
		t.Errorf("%s", ds)
	}
	_, _, ds = Import("d.txt", ring("( ( 3 + ( rank - i5 ) ) % 3 ) == rank"), map[string]string{"i8": "(rank+i5)%3"})
	if !ds.HasErrors() {
		t.Error("what is given contradicts what is printed, and it is read")
	}
}
