package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hocket.example/hocket/internal/terminal"
)

// mistyped lists command lines with typical mistakes. Each entry has the expected exit code, a part of the error
// message, which must be one sentence, and a part of the help line, which must show the correction.
var mistyped = []struct {
	line string
	code int
	says string
	help string
}{
	// Commands.
	{"chek p.hkt", 2, `unknown command "chek"`, "did you mean hocket check?"},
	{"rnu p.hkt", 2, `unknown command "rnu"`, "did you mean hocket run?"},
	{"run- p.hkt", 2, `unknown command "run-"`, "did you mean hocket run?"},
	{"Run p.hkt", 2, `unknown command "Run"`, "did you mean hocket run?"},
	{"optt p.hkt", 2, `unknown command "optt"`, "did you mean hocket opt?"},
	{"compile p.hkt", 2, `unknown command "compile"`, "did you mean hocket opt?"},
	{"lower p.hkt", 2, `unknown command "lower"`, "did you mean hocket opt?"},
	{"verify p.hkt", 2, `unknown command "verify"`, "did you mean hocket check?"},
	{"prove p.hkt", 2, `unknown command "prove"`, "did you mean hocket check?"},
	{"exec p.hkt", 2, `unknown command "exec"`, "did you mean hocket run?"},
	{"format p.hkt", 2, `unknown command "format"`, "did you mean hocket fmt?"},
	{"benchmark p2p", 2, `unknown command "benchmark"`, "did you mean hocket bench?"},
	{"profile p.hkt", 2, `unknown command "profile"`, "did you mean hocket trace?"},
	{"docter", 2, `unknown command "docter"`, "did you mean hocket doctor?"},
	{"gpus", 2, `unknown command "gpus"`, "did you mean hocket doctor?"},
	{"mem p.hkt", 2, `unknown command "mem"`, "did you mean hocket memory?"},
	{"plna p.hkt", 2, `unknown command "plna"`, "did you mean hocket plan?"},
	{"launhc -n 2 -- run p.hkt", 2, `unknown command "launhc"`, "did you mean hocket launch?"},
	{"vesrion", 2, `unknown command "vesrion"`, "did you mean hocket version?"},
	{"p.hkt", 2, `unknown command "p.hkt"`, "did you mean hocket run p.hkt?"},
	{"frobnicate", 2, `unknown command "frobnicate"`, "see hocket --help"},
	{"frobnicate --help", 2, `unknown command "frobnicate"`, "see hocket --help"},
	{"chek --help", 2, `unknown command "chek"`, "did you mean hocket check?"},
	{"help chek", 2, `unknown command "chek"`, "did you mean hocket check?"},
	{"help run p.hkt", 2, `unknown command "p.hkt"`, "did you mean hocket run p.hkt?"},
	{"completion tcsh --help", 2, `unknown shell "tcsh"`, "hocket completion bash"},
	// Flags.
	{"--verison", 2, "unknown flag: --verison", "did you mean --version?"},
	{"run p.hkt --comparee", 2, "unknown flag: --comparee", "did you mean --compare?"},
	{"run p.hkt --cmp", 2, "unknown flag: --cmp", "see hocket run --help"},
	{"run p.hkt --schedule 3", 2, "unknown flag: --schedule", "did you mean --schedules?"},
	{"run p.hkt --dims T=4", 2, "unknown flag: --dims", "did you mean --dim?"},
	{"run p.hkt --rank 4", 2, "unknown flag: --rank", "did you mean --ranks?"},
	{"run p.hkt --startegy exchange", 2, "unknown flag: --startegy", "did you mean --strategy?"},
	{"plan p.hkt --html p.html", 2, "unknown flag: --html", "hocket memory, opt, run and trace have --html"},
	{"run p.hkt --report p.html", 2, "unknown flag: --report", "pages are written by --html FILE"},
	{"trace t.json --report p.html", 2, "unknown flag: --report", "pages are written by --html FILE"},
	{"check p.hkt --compare", 2, "unknown flag: --compare", "hocket run has --compare"},
	{"run p.hkt --hepl", 2, "unknown flag: --hepl", "did you mean --help?"},
	{"run p.hkt --version", 2, "unknown flag: --version", "hocket --version"},
	{"run p.hkt -dim T=4", 2, "there is no flag -dim", "did you mean --dim?"},
	{"run p.hkt -compare", 2, "there is no flag -compare", "did you mean --compare?"},
	{"run p.hkt -json", 2, "there is no flag -json", "did you mean --json?"},
	{"run p.hkt -machine=cpu", 2, "there is no flag -machine=cpu", "did you mean --machine?"},
	{"run p.hkt -x", 2, "unknown shorthand flag: 'x' in -x", "see hocket run --help"},
	{"run p.hkt -n", 2, "flag needs an argument: 'n' in -n", "see hocket run --help"},
	{"opt p.hkt --explian", 2, "unknown flag: --explian", "did you mean --explain?"},
	// Values.
	{"run p.hkt -n four", 2, `-n cannot be "four"`, "see hocket run --help"},
	{"run p.hkt -n 0", 2, "-n is 0, but must be at least 1", ""},
	{"run p.hkt --dim T", 2, `--dim "T": want NAME=VALUE`, ""},
	{"run p.hkt --dim T=4k", 2, `"4k" is not an integer`, "use --define for an expression"},
	{"run p.hkt --dim X=4", 2, "X", "dims"},
	{"run p.hkt --strategy exchnage", 2, "exchnage", "one of: sequential, chunked, exchange"},
	{"run p.hkt -m gpu", 2, `unknown machine "gpu"; the machines are cpu, cuda`, "see hocket doctor"},
	{"run p.hkt --in y=zeros", 2, "f has no parameter %y", "its parameters are %x: f32[T]"},
	{"run p.hkt --in zero", 2, "zero", "rand:SEED"},
	{"run p.hkt --repeat 0", 2, "--repeat is 0, but must be at least 1", ""},
	{"run p.hkt --timeout 30", 2, `--timeout cannot be "30": the unit is missing, as in 5s`, "see hocket run --help"},
	{"opt p.hkt --explain --machine h200", 2, "h200", "h200x4"},
	{"opt p.hkt --print-after shrad", 2, `unknown pass "shrad"`, "one of: shard"},
	{"bench allreduces", 2, "allreduces", "allreduce"},
	{"bench", 2, "one benchmark is required", "see hocket bench --help"},
	// Flags without effect.
	{"run sends.json --compare", 2,
		"--compare needs a collective with a defined result, but the schedule of sends.json has none",
		"remove --compare"},
	{"run sends.json --in x=zeros", 2, "--in does not apply to sends.json, which is a collective schedule",
		"see hocket run --help"},
	{"check sends.json --dim T=4", 2, "--dim does not apply to sends.json, which is a collective schedule",
		"see hocket check --help"},
	{"check p.hkt --launches 2", 2, "--launches does not apply to p.hkt, which is a program", "remove it"},
	{"check p.hkt --fix --redundant", 2, "--redundant needs the unchanged program", ""},
	{"import sends.json --func f", 2, "--func does not apply to sends.json, which is a collective schedule",
		"remove it"},
	{"import sends.json --plan p.json", 2, "--plan does not apply to sends.json, which is a collective schedule",
		"remove it"},
	{"import p.mlir --dim T=4", 2, "--dim does not apply to p.mlir, which is StableHLO", "see hocket import --help"},
	{"memory p.csv --html m.html", 2, "--html does not apply to p.csv, which is a list of buffers", "remove it"},
	{"memory p.csv --max-time 3s", 2, "--max-time does not apply to p.csv, which is a list of buffers", "remove it"},
	{"memory snapshot -n 2", 2, "--ranks does not apply to snapshot, which is a snapshot of torch's allocator",
		"remove it"},
	{"bench allreduce --shard up=colwise", 2,
		"--shard does not apply to allreduce, which is a benchmark without a program", "remove it"},
	{"bench p.hkt --func nope", 2, "the program has no function nope", "one of:"},
	{"bench p.hkt --batch B=2", 2, "--batch does not apply to p.hkt, which is a program without --prompt", "remove it"},
	{"bench p.hkt --prompt T=4 --runs 3", 2, "--runs does not apply to p.hkt", "remove it"},
	{"bench p.hkt --prompt T=4 --dim T=4", 2, "--dim T and --prompt set the same dim", "see hocket bench --help"},
	{"bench allreduce --prompt T=4", 2, "--prompt does not apply to allreduce", "remove it"},
	{"bench p.hkt --sizes 1K", 2, "--sizes does not apply to p.hkt, which is a program", "see hocket bench --help"},
	{"run p.hkt --measure", 2, "--measure requires --strategy auto", ""},
	{"run p.hkt --no-prove --certificate c", 2, "--no-prove and --certificate exclude each other", ""},
	{"trace kernels.json --program p.hkt --html p.html", 2,
		"--program has no effect: no event of kernels.json names a line of a program",
		"timelines that hocket run --trace writes"},
	{"trace kernels.json --html kernels.json", 2, "--html would replace kernels.json, which is also an input",
		"write to another file"},
	{"trace noise --against kernels.json --html ./kernels.json", 2, "--html would replace ./kernels.json", ""},
	{"check p.hkt --certificate p.hkt", 2, "--certificate would replace p.hkt, which is also an input", ""},
	{"run p.hkt --in x=kernels.json --trace kernels.json", 2, "--trace would replace kernels.json", ""},
	{"run p.hkt --trace ./new.json --html new.json", 2, "--html and --trace would both write", "write to another file"},
	{"run p.hkt --save new --trace new/outputs.safetensors", 2, "--save and --trace would both write", ""},
	{"import p.hkt -o p.hkt", 2, "--output would replace p.hkt, which is also an input", "write to another file"},
	{"import cut.pt2 --plan plan.json -o plan.json", 2, "--output would replace plan.json", ""},
	{"opt p.hkt -o ./p.hkt", 2, "--output would replace ./p.hkt", ""},
	{"plan p.hkt -o p.hkt", 2, "--output would replace p.hkt", ""},
	{"grad p.hkt -o p.hkt", 2, "--output would replace p.hkt", ""},
	{"check p.hkt --fix -o p.hkt", 2, "--output would replace p.hkt", ""},
	{"check sends.json --fix -o sends.json", 2, "--output would replace sends.json", ""},
	{"run p.hkt --in weights --save weights", 2, "--save would replace weights/outputs.safetensors", ""},
	{"grad p.hkt --wrt=", 2, "--wrt is given without a value", "see hocket grad --help"},
	{"grad p.hkt --output=", 2, "--output is given without a value", ""},
	{"import p.mlir --output=", 2, "--output is given without a value", ""},
	{"check p.hkt --certificate=", 2, "--certificate is given without a value", ""},
	{"run p.hkt --plan=", 2, "--plan is given without a value", ""},
	{"run p.hkt --func=", 2, "--func is given without a value", "see hocket run --help"},
	{"run p.hkt --cache=", 2, "--cache is given without a value", ""},
	{"run p.hkt --strategy=", 2, "--strategy is given without a value", ""},
	{"run p.hkt --in=", 2, "--in is given without a value", ""},
	{"trace kernels.json --against=", 2, "--against is given without a value", ""},
	{"trace kernels.json --program=", 2, "--program is given without a value", ""},
	{"memory p.hkt --viz=", 2, "--viz is given without a value", ""},
	{"memory p.hkt --viz examples", 2, "write examples: it is a directory", ""},
	{"bench p.hkt --runs 0", 2, "--runs: a batch of 0 runs is too short", ""},
	// Files.
	{"import p.hkt", 2, "p.hkt is a program already", "run, check and opt take it as it is"},
	{"import empty.hkt", 2, "empty.hkt is empty", ""},
	{"import job.log", 2, "job.log has no Host IR dump",
		"import reads archives of torch.export (.pt2), StableHLO, collective schedules"},
	{"trace noise", 2, "noise: it is none of the formats that can be read", ""},
	{"run", 2, "it takes one PROGRAM: a .hkt or .pt2 file", "see hocket run --help"},
	{"run p.hkt q.hkt", 2, "it takes one PROGRAM", "see hocket run --help"},
	{"check nosuch.json", 2, "file nosuch.json does not exist", "a collective schedule (.json or .xml"},
	{"opt gpus.json", 2, "gpus.json is not a program", "hocket import "},
	{"export all_reduce", 2, "--to is missing", ""},
	{"export broadcast2 --to mscclpp", 2, "all_gather and all_to_all", ""},
	{"run nosuch.hkt", 2, "file nosuch.hkt does not exist", "a PROGRAM is a .hkt file"},
	{"run examples/mpl.hkt", 2, "file examples/mpl.hkt does not exist", "did you mean examples/mlp.hkt?"},
	{"run mlp.hkt", 2, "file mlp.hkt does not exist", "did you mean examples/mlp.hkt?"},
	{"run examples/mlp", 2, "file examples/mlp does not exist", "did you mean examples/mlp.hkt?"},
	{"run examples", 2, "examples is not a file", "name a program in it"},
	{"trace nosuch.json", 2, "nosuch.json: no such file or directory", ""},
	{"memory nosuch.pickle", 2, "nosuch.pickle: no such file or directory", ""},
	{"check empty.pt2", 2, "empty.pt2 is empty", ""},
	{"check cut.pt2", 2, "malformed archive: it is truncated", ""},
	{"check cut.pt2 --plan plan.json", 2, "--plan plan.json: line 3, column 3: invalid character", ""},
	{"check job.log", 2, `job.log is no program, and no line has "%HostIrContainer {"`,
		`as a program, line 1: expected "dim"`},
	{"check snapshot", 2, "snapshot is not a program: it is a pickle", "use hocket memory for snapshots"},
	{"check job.log.gz", 2, "is not a program", "decompress logs first"},
	{"trace p.hkt", 2, "p.hkt: it is a program: hocket check, run, opt and memory take it", ""},
	{"trace sends.json", 2, "sends.json: it is a schedule of MSCCL++: hocket check, run", ""},
	{"check rows.txt", 2, "rows.txt is not a program: it is what nsys stats prints: hocket trace explains it", ""},
	{"memory timeline.json", 2, "timeline.json: it is a timeline: hocket trace explains it; a snapshot is a pickle",
		""},
	{"memory snapshot", 2, "unexpected EOF", "copy the whole snapshot"},
	{"run empty.pt2 --plan plan.json", 2, "empty.pt2 is empty", ""},
	{"import empty.pt2 --plan plan.json", 2, "empty.pt2 is empty", ""},
	{"check empty.hkt", 1, "expected a function, found end of file", ""},
}

// TestMistyped checks the exit code, the message and the help line of each mistyped command line.
func TestMistyped(t *testing.T) {
	if len(mistyped) < 60 {
		t.Fatalf("%d command lines; 60 are promised", len(mistyped))
	}
	dir := t.TempDir()
	files := map[string]string{
		"p.hkt":            "dim T = 8\nmesh tp[2]\nfunc f(%x: f32[T]) -> f32[T] {\n  %y = relu %x\n  return %y\n}\n",
		"examples/mlp.hkt": "", "empty.hkt": "", "job.log": "$ mpirun pytest\nPASSED\n", "snapshot": "\x80\x04\x95",
		"empty.pt2": "", "cut.pt2": "PK\x03\x04", "plan.json": "{\n  \"up\": \"colwise\",\n  up\n}\n",
		"job.log.gz": "\x1f\x8b\x08", "timeline.json": `{"traceEvents": []}`,
		"rows.txt": "Start (ns)  Duration (ns)\n", "gpus.json": "{\"gpus\": []}",
		"sends.json":                  `{"name":"s","collective":"test","gpus":[{"id":0,"input_chunks":1,"output_chunks":1,"threadblocks":[]}]}`,
		"p.mlir":                      "module @jit_f {\n  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {\n    return %arg0 : tensor<4xf32>\n  }\n}\n",
		"noise":                       "\x93\xab\xfd;;;;\x01\n",
		"weights/outputs.safetensors": "", "p.csv": "id,lower,upper,size\n0,0,1,4\n",
		"kernels.json": `{"traceEvents":[{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1,"dur":2,"args":{"device":0,"stream":7}}]}`,
	}
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	for _, test := range mistyped {
		stdout, stderr, code := hocketHere(strings.Fields(test.line)...)
		if code != test.code || stdout != "" {
			t.Errorf("hocket %s: exit %d, want %d; it prints %q", test.line, code, test.code, stdout)
		}
		first, rest, _ := strings.Cut(stderr, "\n")
		_, says, ok := strings.Cut(first, "error: ")
		if !ok || !strings.Contains(says, test.says) {
			t.Errorf("hocket %s: %q does not say %q", test.line, first, test.says)
		}
		if !strings.Contains(says+rest, test.help) {
			t.Errorf("hocket %s: %q does not help by %q", test.line, rest, test.help)
		}
		for _, leak := range []string{"stat ", "open ", "strconv", "pflag", "goroutine"} {
			if strings.Contains(stderr, leak) {
				t.Errorf("hocket %s: %q leaks %q", test.line, stderr, leak)
			}
		}
	}
}

// TestColours checks that colours are off if NO_COLOR is set or the terminal cannot show colours.
func TestColours(t *testing.T) {
	for _, test := range []struct {
		term, none string
		want       bool
	}{{"xterm", "", true}, {"dumb", "", false}, {"xterm", "1", false}} {
		t.Setenv("TERM", test.term)
		t.Setenv("NO_COLOR", test.none)
		if got := terminal.Colours(); got != test.want {
			t.Errorf("TERM=%s NO_COLOR=%s: colours %v, want %v", test.term, test.none, got, test.want)
		}
	}
}

// TestGradBudget checks that a budget that is too small for a gradient is not reported as a bug of hocket.
func TestGradBudget(t *testing.T) {
	program := filepath.Join("..", "..", "examples", "model_32.hkt")
	_, errs, code := hocketHere("grad", program, "--keep", "auto", "--budget", "1KiB")
	if code != exitProgram || !strings.Contains(errs, "the gradients need at least") {
		t.Errorf("exit %d, %s", code, errs)
	}
}
