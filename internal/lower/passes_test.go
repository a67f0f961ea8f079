package lower

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/ir"
)

func TestPassTable(t *testing.T) {
	if tableErr != nil {
		t.Fatal(tableErr)
	}
	for _, p := range Passes() {
		if p.Doc == "" {
			t.Errorf("pass %s has no doc", p.Name)
		}
	}
	for _, c := range order {
		if c.reason == "" {
			t.Errorf("%s before %s without a reason", c.before, c.after)
		}
	}
}

func TestBadPassTables(t *testing.T) {
	nop := func(*unit) error { return nil }
	reversed := slices.Clone(passes)
	slices.Reverse(reversed)
	for _, c := range []struct {
		name   string
		passes []Pass
		order  []constraint
		want   string
	}{
		{"reversed", reversed, nil, "decompose must run before overlap: overlap requires it"},
		{"order", []Pass{{Name: "a", run: nop}, {Name: "b", run: nop}}, []constraint{{"b", "a", "because"}},
			"b must run before a: because"},
		{"twice", []Pass{{Name: "a", run: nop}, {Name: "a", run: nop}}, nil, "row 1"},
		{"unnamed", []Pass{{run: nop}}, nil, "row 0"},
		{"no function", []Pass{{Name: "a"}}, nil, "row 0"},
		{"required is missing", []Pass{{Name: "a", run: nop, Requires: []string{"x"}}}, nil, "no pass x"},
		{"ordered is missing", []Pass{{Name: "a", run: nop}}, []constraint{{"a", "x", "because"}}, "no pass x"},
		{"itself", []Pass{{Name: "a", run: nop, Requires: []string{"a"}}}, nil, "a must run before a"},
	} {
		err := checkTable(c.passes, c.order)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

const oneGather = "mesh tp[2]\nfunc f(%x: f32[n/tp]) -> f32[n] { return %x }\n"

func TestOptions(t *testing.T) {
	p := parse(t, oneGather)
	res, err := Run(p, Options{StopAfter: "shard"})
	if err != nil || len(res.Stages) != 1 || !res.Stages[0].Changed ||
		!strings.Contains(res.Stages[0].Text, "reshard") {
		t.Errorf("StopAfter shard: %+v, %v", res, err)
	}
	if _, err := Run(p, Options{StopAfter: "sharp"}); err == nil ||
		!strings.Contains(err.Error(), "shard, clean, decompose") {
		t.Errorf("unknown pass: %v", err)
	}
	var seen []string
	if _, err := Run(p, Options{CheckEach: func(q *ir.Program) error {
		seen = append(seen,
			q.String())
		return nil
	}}); err != nil ||
		len(seen) != 4 || seen[0] != seen[1] || seen[1] == seen[2] || seen[2] != seen[3] {
		t.Errorf("CheckEach saw %q, %v", seen, err)
	}
	wrong := errors.New("wrong")
	var fault *PassError
	if _, err := Run(p, Options{CheckEach: func(*ir.Program) error { return wrong }}); !errors.As(err, &fault) ||
		fault.Pass != "shard" || !errors.Is(err, wrong) {
		t.Errorf("CheckEach's error: %v", err)
	}
}

func TestExplicitProgramsStay(t *testing.T) {
	p := parse(t, "mesh tp[2]\nfunc f(%x: f32[n]) -> f32[n] {\n  %y = alloc f32[n]\n  all_reduce %x into %y, over=tp, op=sum\n  return %y\n}\n")
	res, err := Run(p, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range res.Stages {
		if s.Changed || s.Text != p.String() {
			t.Errorf("%s changed it:\n%s", s.Pass, s.Text)
		}
	}
	if len(res.Log) > 0 {
		t.Errorf("log: %v", res.Log)
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct{ name, source, want string }{
		{"unknown name", "func f(%x: f32[n]) -> f32[n] { return %y }\n", "%y is not defined"},
		{"partial with bias", "mesh tp[2]\nfunc f(%x: f32[t, k/tp], %w: f32[n, k/tp], %b: f32[n]) -> f32[t, n] {\n" +
			"  %y: f32[t, n] partial(tp, sum) = linear %x, %w, %b\n  return %y\n}\n", "each rank would add the bias"},
		{"no ranks", "dim D = 1\nmesh d[D] = {}\nmesh e[1] = {0}\nfunc f(%x: f32[n] @d) -> f32[n] @e { return %x }\n",
			"mesh d has no ranks"},
		{"empty axis", "mesh tp[0]\nfunc f(%x: f32[5]) -> f32[5/tp] { return %x }\n", "mesh axis tp has size 0"},
		{"result does not divide", "mesh tp[2]\nfunc f(%x: f32[5]) -> f32[5/tp] { return %x }\n",
			"5 is not a multiple of size(tp)=2; the next multiple is 6"},
		{"parameter does not divide", "mesh a[2] b[2]\nfunc f(%x: f32[2, 6/(a, b)]) -> f32[2, 6] { return %x }\n",
			"6 is not a multiple of size(a)*size(b)=4; the next multiple is 8"},
	} {
		p, ds := ir.Parse("test.hkt", c.source)
		if ds.HasErrors() {
			t.Fatalf("%s: %v", c.name, ds)
		}
		_, err := Run(p, Options{})
		var diags ir.Diagnostics
		if !errors.As(err, &diags) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// TestSubMeshOfOpenSizes checks that the whole value is transferred, without a panic, if the text does not determine
// the arrangement of a mesh, or if the device list does not fill the mesh.
func TestSubMeshOfOpenSizes(t *testing.T) {
	for _, mesh := range []string{"mesh p[A] q[B] = {3 2 1 0}", "mesh p[2] q[3] = {3 2 1 0}",
		"mesh p[9] q[9] = {3 2 1 0}"} {
		lowerText(t, "dim A = 2\ndim B = 2\nmesh z[1] = {0}\n"+mesh+
			"\nfunc f(%x: f32[n, m] @z) -> f32[n/p, m/q] @p { return %x }\nfunc g(%x: f32[n/(q, p)] @p) -> f32[n] @z { return %x }\n")
	}
}

func TestRunKeepsDeepPrograms(t *testing.T) {
	const depth = 900
	src := "mesh tp[2]\nfunc f(%x: f32[4/tp]) -> f32[4] {\n" + strings.Repeat("if 0 == 0 {\n", depth) +
		"%y: f32[4] = reshard %x\n" + strings.Repeat("}\n", depth) + "return %x\n}\n"
	lowerText(t, src)
}
