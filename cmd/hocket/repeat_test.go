package main

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/terminal"
)

// TestMedian checks that the median of an even number of times is the mean of the two in the middle.
func TestMedian(t *testing.T) {
	for _, test := range []struct{ list, want []time.Duration }{
		{[]time.Duration{7}, []time.Duration{7}},
		{[]time.Duration{1, 3, 100}, []time.Duration{3}},
		{[]time.Duration{1, 3, 5, 100}, []time.Duration{4}},
	} {
		if got := median(test.list); got != test.want[0] {
			t.Errorf("median of %v is %v, want %v", test.list, got, test.want[0])
		}
	}
}

// TestRepeatTellsTheMedian checks that the text and the JSON of run --repeat have the median time of a run and the
// number of runs.
func TestRepeatTellsTheMedian(t *testing.T) {
	t.Chdir("../..")
	stdout, stderr, code := hocketHere("run", "examples/mlp.hkt", "--repeat", "5")
	told := regexp.MustCompile(`(?m)^time  median [\d.]+ [µm]s a run, [\d.]+ [µm]s to [\d.]+ [µm]s, of 5 back to back$`)
	if code != 0 || !told.MatchString(stdout) {
		t.Errorf("exit %d, %s\n%s", code, stderr, stdout)
	}
	stdout, stderr, code = hocketHere("run", "examples/mlp.hkt", "--repeat", "4", "--json")
	var got struct{ Time *runTime }
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 || got.Time == nil {
		t.Fatalf("exit %d, %v, %s", code, err, stderr)
	}
	if x := got.Time; x.Runs != 4 || x.LeastUS <= 0 || x.LeastUS > x.MedianUS || x.MedianUS > x.MostUS {
		t.Errorf("%+v", *x)
	}
	stdout, _, _ = hocketHere("run", "examples/mlp.hkt", "--repeat", "4", "--schedules", "2")
	if strings.Contains(stdout, "median") {
		t.Errorf("schedules have no times: %s", stdout)
	}
}

// TestTimeoutCoversAll checks that --timeout ends a command in every stage, and that the error names the stage. Stages
// that can stop watch the context; for the others the channel expired is closed.
func TestTimeoutCoversAll(t *testing.T) {
	a, _, _ := testApp(strings.NewReader(""))
	a.expired = make(chan struct{})
	a.progress = terminal.NewProgress(nil)
	ctx, ended := a.within(context.Background(), time.Millisecond)
	a.progress.At("evaluating the reference", 1, 0)
	<-ctx.Done()
	<-a.expired
	var f *failure
	if err := ended(ctx.Err()); !errors.As(err, &f) || f.code != exitMachine || f.kind != "timeout" ||
		f.Error() != "the command did not end within 1ms: it was evaluating the reference" {
		t.Errorf("%v", err)
	}
	// If --timeout has passed, the watchdog of the run returns its error instead of a separate one.
	guarded, dog := watch(ctx, time.Hour)
	defer dog.stop()
	want := errors.New("a")
	if err := dog.explain(guarded, want); err != want {
		t.Errorf("%v", err)
	}
	t.Chdir("../..")
	for _, words := range [][]string{
		{"run", "examples/mlp.hkt", "--compare", "--timeout", "1ns"},
		{"run", "examples/mlp.hkt", "--schedules", "5", "--timeout", "1ns"},
	} {
		if _, stderr, code := hocketHere(words...); code != exitMachine ||
			!strings.Contains(stderr, "the command did not end within 1ns") {
			t.Errorf("hocket %v: exit %d, %s", words, code, stderr)
		}
	}
	// Without --timeout each run has a time limit, and the whole command has none.
	if o := (&runFlags{}); o.runLimit() != stuck {
		t.Errorf("a run may take %v", o.runLimit())
	}
}

// TestExplainGroupsLayers checks that similar layers are described once, with all their lines, and that exposed
// communication is summed.
func TestExplainGroupsLayers(t *testing.T) {
	t.Chdir("../..")
	stdout, stderr, code := hocketHere("opt", "examples/llama_layer.hkt", "--explain", "--machine", "h200x4")
	for _, want := range []string{
		"\n  lines 25 and 37: %a.g, %b.g: f32[T/tp, H] → f32[T, H]\n",
		"\nlines 33 and 41: %o, %d: linear + reduce_scatter + add, 1.5 KiB each",
		"\nexposed      26.4 µs of communication that no computation overlaps\n",
	} {
		if code != 0 || strings.Count(stdout, want) != 1 {
			t.Errorf("exit %d, %s: %q is not there once:\n%s", code, stderr, want, stdout)
		}
	}
	stdout, _, _ = hocketHere("opt", "examples/mlp.hkt", "--explain", "--machine", "h200x4",
		"--dim", "T=8192", "--dim", "H=8192", "--dim", "F=28672")
	// The two collectives take 261 and 284 µs, and under the sequential strategy no computation hides them.
	const want = "exposed      0.0 µs of communication that no computation overlaps, sequential 545 µs\n"
	if !strings.Contains(stdout, want) {
		t.Errorf("%q is not in\n%s", want, stdout)
	}
}

// TestBenchHasNoBoundOnTheCPU checks that times on the CPU machine, whose ranks share cores, are not compared with a
// bound computed from the rate of copies.
func TestBenchHasNoBoundOnTheCPU(t *testing.T) {
	stdout, stderr, code := hocketHere("bench", "allreduce", "-n", "2", "--sizes", "4K", "--rounds", "1")
	if code != 0 || !strings.Contains(stdout, "no bound: ranks are threads that share the CPU's cores") {
		t.Errorf("exit %d, %s\n%s", code, stderr, stdout)
	}
}

// TestPlanPrints checks that hocket plan prints the plan that hocket run executes.
func TestPlanPrints(t *testing.T) {
	t.Chdir("../..")
	stdout, stderr, code := hocketHere("plan", "examples/mlp.hkt", "--dim", "T=8", "--dim", "H=4", "--dim", "F=8")
	for _, want := range []string{"plan mlp: 4 ranks F=8 H=4 T=8\n", "\n  r3 main\n",
		"all_gather channel 0.0 axis=0 %x bf16[2 4] -> %x.g bf16[8 4] // 8:8\n"} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("exit %d, %s: %q is not in\n%s", code, stderr, want, stdout)
		}
	}
	if again, _, _ := hocketHere("plan", "examples/mlp.hkt", "--strategy", "exchange"); !strings.Contains(again,
		" copy %y.i@3 ") {
		t.Errorf("no copy between ranks in the plan of an exchange:\n%s", again)
	}
}
