package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/ir"
)

var loadFlag = flag.Duration("load", 0, "how long TestLoad sends requests; 0 for a second, or 30 in a long run")

const (
	llama = "../llama/llama.hkt"
	room  = 1024
	vocab = 16 // of llama.hkt
)

// served is a server that answers HTTP requests. The requests wait until decode is started.
type served struct {
	*server
	t   testing.TB
	url string
}

func serve(t testing.TB, slots int64, waiting int) *served {
	t.Helper()
	return serveFile(t, llama, 0, slots, waiting)
}

func serveFile(t testing.TB, file string, ranks int, slots int64, waiting int) *served {
	t.Helper()
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	model := load(m, file, "", ranks, map[string]int64{"B": slots, "T": 1, "S": room})
	s := &served{server: newServer(m, model, room, waiting), t: t}
	web := httptest.NewServer(s.routes())
	t.Cleanup(web.Close)
	s.url = web.URL
	return s
}

// start starts decode, which ends with the test.
func (s *served) start() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.decode(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			s.t.Errorf("decode: %v", err)
		}
	})
}

// send posts a request and returns the status and the generated sequence, or the message.
func (s *served) send(ctx context.Context, body string) (status int, ids []int32, message string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/generate", strings.NewReader(body))
	if err != nil {
		return 0, nil, "", err
	}
	rep, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, "", err
	}
	defer rep.Body.Close()
	text, err := io.ReadAll(rep.Body)
	if err != nil {
		return 0, nil, "", err
	}
	if rep.StatusCode != http.StatusOK {
		return rep.StatusCode, nil, string(text), nil
	}
	var out struct{ IDs []int32 }
	err = json.Unmarshal(text, &out)
	return rep.StatusCode, out.IDs, "", err
}

func body(ids []int32, n int, d time.Duration) string {
	text, _ := json.Marshal(map[string]any{"ids": ids, "n": n, "ms": d.Milliseconds()})
	return string(text)
}

// wants sends a request and checks the status and the sequence or the message in the answer.
func (s *served) wants(body string, status int, ids []int32, message string) {
	s.t.Helper()
	got, is, text, err := s.send(context.Background(), body)
	if err != nil || got != status || !slices.Equal(is, ids) || !strings.Contains(text, message) {
		s.t.Errorf("%s: status %d, %v %q, %v; want %d, %v %q", body, got, is, text, err, status, ids, message)
	}
}

// evaluator decodes single sequences without a server, and checks them against the reference evaluator.
type evaluator struct {
	t   testing.TB
	one *hocket.Model // one token at a time
	all *hocket.Model // all tokens in one run, in f64, so that error bounds are less than the differences of logits
}

func newEvaluator(t testing.TB) *evaluator {
	t.Helper()
	m, err := hocket.Open(context.Background(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	text, err := os.ReadFile(llama)
	if err != nil {
		t.Fatal(err)
	}
	p, err := hocket.Parse(llama, strings.ReplaceAll(string(text), "f32[", "f64["))
	if err != nil {
		t.Fatal(err)
	}
	all, err := m.Load(p, hocket.Binding{Dims: map[string]int64{"B": 1}}, hocket.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	one := load(m, llama, "", 0, map[string]int64{"B": 1, "T": 1, "S": room})
	weights, err := one.RandomInputs("rand:1") // as load binds them
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range weights {
		if !slices.Contains([]string{"ids", "at", "sees", "keys", "values"}, name) {
			if err := all.Bind(name, must(hocket.FromFloats(ir.F64, x.Floats(), x.Shape...))); err != nil {
				t.Fatal(err)
			}
		}
	}
	return &evaluator{t, one, all}
}

// sequence returns ids followed by n tokens, which it decodes without other sequences.
func (e *evaluator) sequence(ids []int32, n int) []int32 {
	e.t.Helper()
	out := slices.Clone(ids)
	for at := 0; len(out) < len(ids)+n; at++ {
		rep := e.run(e.one, map[string]*hocket.Tensor{}, out[at:at+1], at)
		if at+1 == len(out) {
			out = append(out, int32(rep.Out["next"].Ints()[0]))
		}
	}
	return out
}

// arguments adds the ids of tokens from a position on to in.
func (e *evaluator) arguments(in map[string]*hocket.Tensor, ids []int32, from int) hocket.Args {
	at, sees := make([]int, len(ids)), make([]int, len(ids))
	for i := range at {
		at[i], sees[i] = from+i, from+i+1
	}
	in["ids"] = must(hocket.FromInts(ir.I32, ids, 1, int64(len(ids))))
	in["at"] = must(hocket.FromInts(ir.I32, at, 1, int64(len(ids))))
	in["sees"] = must(hocket.FromInts(ir.I32, sees, 1, int64(len(ids))))
	return hocket.Args{In: in}
}

func (e *evaluator) run(m *hocket.Model, in map[string]*hocket.Tensor, ids []int32, from int) *hocket.Report {
	e.t.Helper()
	rep, err := m.Run(e.t.Context(), e.arguments(in, ids, from))
	if err != nil {
		e.t.Fatal(err)
	}
	return rep
}

// agrees checks the generated tokens of a sequence against the reference evaluator.
func (e *evaluator) agrees(prompt int, ids []int32) {
	e.t.Helper()
	n := len(ids) - 1 // nothing follows the last token
	in := map[string]*hocket.Tensor{}
	for _, name := range []string{"keys", "values"} {
		in[name] = must(hocket.NewTensor(ir.F64, 2, 1, int64(n), 2, 4))
	}
	rep := e.run(e.all, in, ids[:n], 0)
	ref, err := e.all.Reference(e.t.Context(), e.arguments(in, ids[:n], 0))
	if err != nil {
		e.t.Fatal(err)
	}
	next := rep.Out["next"].Ints()
	for i := prompt - 1; i < n; i++ {
		next[i] = int64(ids[i+1])
	}
	rep.Out["next"] = must(hocket.FromInts(ir.I32, next, 1, int64(n)))
	if c := ref.Compare(rep); c.Verdict != hocket.Exact && c.Verdict != hocket.Within {
		e.t.Errorf("%v: %v", ids, c)
	}
	rep.Out["next"] = must(hocket.FromInts(ir.I32, append(next[:n-1], (next[n-1]+1)%vocab), 1, int64(n)))
	if c := ref.Compare(rep); c.Verdict != hocket.Differs {
		e.t.Errorf("with another last token: %v", c)
	}
}

// TestBatched decodes sequences of different lengths in one batch, and in reused slots. The tokens must be those of
// each sequence decoded alone, which the reference evaluator confirms.
func TestBatched(t *testing.T) {
	s, e := serve(t, 3, 100), newEvaluator(t)
	s.start()
	rng := rand.New(rand.NewPCG(longtest.Seed(t), 1))
	var all sync.WaitGroup
	seen := map[string]bool{}
	for i := range longtest.Of(16, 200) {
		ids := make([]int32, 1+rng.IntN(6))
		for k := range ids {
			ids[k] = int32(rng.IntN(vocab))
		}
		want := e.sequence(ids, 1+rng.IntN(10))
		seen[fmt.Sprint(want[len(ids):])] = true
		if i < 4 {
			e.agrees(len(ids), want)
		}
		all.Go(func() { s.wants(body(ids, len(want)-len(ids), time.Minute), 200, want, "") })
	}
	all.Wait()
	if len(seen) < 8 {
		t.Errorf("only %d different results: sequences could be mixed up unnoticed", len(seen))
	}
}

// safetensors writes a file of f32 tensors and returns its name.
func safetensors(t *testing.T, tensors map[string]*hocket.Tensor) string {
	t.Helper()
	header, data := map[string]any{}, []byte(nil)
	for name, x := range tensors {
		at := len(data)
		data = append(data, x.Data...)
		header[name] = map[string]any{"dtype": "F32", "shape": x.Shape, "data_offsets": []int{at, len(data)}}
	}
	text, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "weights.safetensors")
	all := slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text, data)
	if err := os.WriteFile(file, all, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestWeights: the weights of a program are read from a file of safetensors.
func TestWeights(t *testing.T) {
	e := newEvaluator(t)
	weights, err := e.one.RandomInputs("rand:1")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ids", "at", "sees", "keys", "values"} {
		delete(weights, name)
	}
	file := safetensors(t, weights)
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	e.one = load(m, llama, file, 0, map[string]int64{"B": 1, "T": 1, "S": room})
	e.agrees(2, e.sequence([]int32{6, 2}, 8))
}

// TestImported: an archive of torch.export is served, too. The tokens of each sequence must be those of the sequence
// decoded alone, whose runs must match the reference.
func TestImported(t *testing.T) {
	const file = "testdata/recurrent.pt2"
	s, alone := serveFile(t, file, 0, 0, 100), serveFile(t, file, 0, 0, 0)
	s.start()
	var all sync.WaitGroup
	rng := rand.New(rand.NewPCG(longtest.Seed(t), 2))
	seen := map[string]bool{}
	for range 12 {
		ids := make([]int32, 1+rng.IntN(4))
		for i := range ids {
			ids[i] = int32(rng.IntN(12))
		}
		want, n := slices.Clone(ids), 1+rng.IntN(6)
		for at := 0; len(want) < len(ids)+n; at++ {
			in := map[string]*hocket.Tensor{}
			for name, v := range map[string]int32{"ids": want[at], "at": int32(at), "sees": int32(at + 1)} {
				in[name] = must(hocket.FromInts(ir.I64, []int32{0, v, 0}, 3, 1))
			}
			c, err := alone.model.Compare(t.Context(), hocket.Args{In: in})
			if err != nil || c.Verdict != hocket.Within && c.Verdict != hocket.Exact {
				t.Fatal(c, err)
			}
			rep, err := alone.model.Run(t.Context(), hocket.Args{In: in})
			if err != nil {
				t.Fatal(err)
			}
			if at+1 == len(want) {
				want = append(want, int32(rep.Out["out0"].Ints()[1]))
			}
		}
		seen[fmt.Sprint(want[len(ids):])] = true
		all.Go(func() { s.wants(body(ids, n, time.Minute), 200, want, "") })
	}
	s.wants(body([]int32{12}, 1, time.Minute), 400, nil, "ids[0] is 12, want a value from 0 to 11")
	all.Wait()
	if len(seen) < 6 {
		t.Errorf("only %d different results: sequences could be mixed up unnoticed", len(seen))
	}
}

// TestBadRequests: wrong requests are refused with status 400 and do not change the sequences that are decoded
// meanwhile.
func TestBadRequests(t *testing.T) {
	s, e := serve(t, 3, 100), newEvaluator(t)
	s.start()
	var good sync.WaitGroup
	for _, ids := range [][]int32{{1, 2, 3}, {7}} {
		want := e.sequence(ids, 500)
		good.Go(func() { s.wants(body(ids, 500, time.Minute), 200, want, "") })
	}
	for range 5 {
		for text, message := range map[string]string{
			body([]int32{3, vocab}, 4, time.Minute):           "wrong inputs: ids[1] is 16, want a value from 0 to 15\n",
			body([]int32{-1}, 4, time.Minute):                 "wrong inputs: ids[0] is -1, want a value from 0 to 15\n",
			body([]int32{1}, room, time.Minute):               "1 ids and n=1024, want together at most 1024 tokens",
			body(make([]int32, room+1), 1, time.Minute):       "1025 ids and n=1, want together at most 1024 tokens",
			body([]int32{1}, math.MaxInt, time.Minute):        "want together at most 1024 tokens",
			body(nil, 4, time.Minute):                         "ids is empty",
			body([]int32{1}, 0, time.Minute):                  "n is 0",
			body([]int32{1}, 1, 1e6*time.Hour):                "ms is 3600000000000, want a value from 0 to 3600000",
			body([]int32{1}, 1, -time.Hour):                   "ms is -3600000",
			`{"ids": [1], "n": 1, "ms": 9223372036854775807}`: "ms is 9223372036854775807",
			`{"ids": [1099511627776], "n": 1, "ms": 1000}`:    "ids: number 1099511627776 before byte 22, want a whole number of 32 bits",
			`{"ids": [1.5], "n": 1, "ms": 1000}`:              "ids: number 1.5 before byte 12, want a whole number of 32 bits",
			`{"ids": "x", "n": 1, "ms": 1000}`:                "ids: string before byte 11, want a list",
			`{"ids": [1], "n": "x", "ms": 1000}`:              "n: string before byte 21, want a whole number",
			`{"ids": [1, null], "n": 1}`:                      "ids[1] is null, want a whole number",
			`[1]`:                                             "the body is a JSON array, want an object with ids, n and ms",
			`{"ids": 1,}`:                                     "the body is not JSON: invalid character '}'",
			`{"ids": [1], "n": 1, "mss": 1000}`:               `unknown key "mss", want an object with ids, n and ms`,
			`{"ids": [1], "n": 1, "temperature": 0.5}`:        `unknown key "temperature"`,
			`{"ids": [1], "n": 1} {"ids": [2], "n": 1}`:       "more text after an object",
			`{"ids": [1], "n": 1}]`:                           "more text after an object",
			`{"ids": [1], "n": 1}}`:                           "more text after an object",
			`{"ids": [1], "n": 1} x`:                          "more text after an object",
			`{"ids": [`:                                       "the body ends before the end of an object",
			"":                                                "the body ends before the end of an object",
			`{"ids": [` + strings.Repeat("1, ", 1<<19) + `]`:  "too large",
		} {
			s.wants(text, 400, nil, message)
		}
	}
	good.Wait()
	if stats := s.machine.Stats().Runs; stats.Refused != 10 || stats.Failed != 0 {
		t.Errorf("%+v: want a refused run for each unknown id", stats)
	}
}

// TestOverloaded checks that, if the queue of requests is full, another request is refused at once, and those in the
// queue are answered.
func TestOverloaded(t *testing.T) {
	s, e := serve(t, 2, 2), newEvaluator(t)
	want := e.sequence([]int32{5, 6}, 3)
	var waiting sync.WaitGroup
	for range 2 {
		waiting.Go(func() { s.wants(body([]int32{5, 6}, 3, time.Minute), 200, want, "") })
	}
	s.until(func() bool { return len(s.queue) == 2 })
	for range 3 {
		s.wants(body([]int32{5, 6}, 3, time.Minute), 503, nil, "overloaded: 2 requests wait")
	}
	s.start()
	waiting.Wait()
	s.wants(body([]int32{5, 6}, 3, time.Minute), 200, want, "")
}

func (s *served) until(is func() bool) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatal("the condition is false for a minute")
		}
	}
}

// TestDeadlines: requests that wait or are decoded at their deadline get status 504, and their slots are free.
func TestDeadlines(t *testing.T) {
	s, e := serve(t, 2, 100), newEvaluator(t)
	s.wants(body([]int32{1}, 1, time.Millisecond), 504, nil, "deadline") // decode has not begun
	s.start()
	var late sync.WaitGroup
	for range 2 {
		late.Go(func() { s.wants(body([]int32{2}, room-1, 5*time.Millisecond), 504, nil, "deadline") })
	}
	late.Wait()
	s.wants(body([]int32{1, 2}, 9, time.Minute), 200, e.sequence([]int32{1, 2}, 9), "")
}

// TestCancelled: a client that disconnects frees the slot of its request for another request.
func TestCancelled(t *testing.T) {
	s, e := serve(t, 2, 100), newEvaluator(t)
	s.start()
	long, short := e.sequence([]int32{4}, room-1), e.sequence([]int32{9, 8}, 5)
	ctx, disconnect := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, _, _, err := s.send(ctx, body([]int32{3}, room-1, time.Minute))
		gone <- err
	}()
	var others sync.WaitGroup
	s.until(func() bool { return s.machine.Stats().Runs.Succeeded > 0 })
	before := s.machine.Stats().Runs.Succeeded
	others.Go(func() { s.wants(body([]int32{4}, room-1, time.Minute), 200, long, "") })
	others.Go(func() {
		s.until(func() bool { return s.machine.Stats().Runs.Succeeded > before+20 }) // both slots are in use
		s.wants(body([]int32{9, 8}, 5, time.Minute), 200, short, "")
		if n := s.machine.Stats().Runs.Succeeded; n > before+room/2 {
			t.Errorf("after %d runs: the request waited until the others were complete", n-before)
		}
	})
	s.until(func() bool { return s.machine.Stats().Runs.Succeeded > before+40 })
	disconnect()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("the client that disconnects: %v", err)
	}
	others.Wait()
}

// TestMilliseconds checks that a request without ms has the default time limit of a minute.
func TestMilliseconds(t *testing.T) {
	s, e := serve(t, 1, 1), newEvaluator(t)
	s.start()
	s.wants(`{"ids": [1, 2], "n": 3}`, 200, e.sequence([]int32{1, 2}, 3), "")
	s.wants(`{"ids": [1, 2], "n": 3, "ms": 0}`, 504, nil, "deadline")
}

// TestLostState: when the state is lost, the request is answered with status 500, and decode ends.
func TestLostState(t *testing.T) {
	s := serve(t, 2, 100)
	empty, err := s.model.NewDeviceTensor(t.Context(), "keys", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.model.BindDevice("keys", empty); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.decode(context.Background()) }()
	s.wants(body([]int32{1}, 1, time.Minute), 500, nil, "the device tensor for keys has no contents")
	if err := <-ended; !errors.Is(err, hocket.ErrNoContents) {
		t.Errorf("decode without state: %v", err)
	}
}

// TestRanks checks that a server on two ranks returns the tokens that the evaluator computes, and that the weights are
// split.
func TestRanks(t *testing.T) {
	e := newEvaluator(t)
	s := serveFile(t, llama, 2, 2, 100)
	s.start()
	for _, ids := range [][]int32{{1, 2, 3}, {7}} {
		s.wants(body(ids, 5, time.Minute), 200, e.sequence(ids, 5), "")
	}
	plan, err := s.model.Plan(nil)
	if err != nil || !strings.HasPrefix(plan, "plan step: 2 ranks ") {
		t.Errorf("%v, want a plan of two ranks:\n%.300s", err, plan)
	}
}

// TestMain runs the server in place of the tests if the environment variable HOCKET_TEST_SERVER is set.
func TestMain(m *testing.M) {
	if os.Getenv("HOCKET_TEST_SERVER") == "" {
		os.Exit(m.Run())
	}
	main()
}

// command returns the command of a server with the given arguments.
func command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, os.Args[0], args...)
	c.Env = append(os.Environ(), "HOCKET_TEST_SERVER=1")
	return c
}

// TestRefused: wrong arguments and weights end the server before it listens.
func TestRefused(t *testing.T) {
	other := safetensors(t, map[string]*hocket.Tensor{"other": must(hocket.NewTensor(ir.F32, 2))})
	noIDs := filepath.Join(t.TempDir(), "f.hkt")
	if err := os.WriteFile(noIDs, []byte("dim B\ndim T\ndim S\nmesh tp[1]\nfunc f(%x: f32[B, T, S]) -> f32[B, T, S] {\n"+
		"  return %x\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for says, args := range map[string][]string{
		"usage: server":                         {},
		"-slots and -room must be at least 1":   {"-slots", "0", llama},
		"-slots and -room must be at least 1\n": {"-room", "0", llama},
		"has the name of a parameter":           {"-weights", other, llama},
		"-weights cannot be used with a .pt2":   {"-weights", other, "testdata/recurrent.pt2"},
		"-n cannot be used with a .pt2":         {"-n", "2", "testdata/recurrent.pt2"},
		"-n must be at least 1":                 {"-n", "-1", llama},
		"KV=2 is not a multiple of size(tp)=3":  {"-n", "3", llama},
		"the model has no parameter %ids":       {noIDs},
	} {
		text, err := command(t.Context(), args...).CombinedOutput()
		if err == nil || !strings.Contains(string(text), says) || strings.Contains(string(text), "serving") {
			t.Errorf("%v: %s, %v; want %q", args, text, err, says)
		}
	}
}

// TestListens: the server logs its address when it listens.
func TestListens(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := command(ctx, "-addr", "localhost:0", "-room", "16", llama)
	out, err := c.StderrPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = c.Wait() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	_, url, found := strings.Cut(strings.TrimSpace(line), " at ")
	if err != nil || !found {
		t.Fatalf("%q, %v", line, err)
	}
	s := &served{t: t, url: url}
	s.wants(body([]int32{1}, 16, time.Minute), 400, nil, "at most 16 tokens")
}

// TestInterrupted: after a signal the server answers the request in progress, and then exits without an error.
func TestInterrupted(t *testing.T) {
	c := command(t.Context(), "-addr", "localhost:0", llama)
	out, err := c.StderrPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	_, url, found := strings.Cut(strings.TrimSpace(line), " at ")
	if err != nil || !found {
		t.Fatalf("%q, %v", line, err)
	}
	s, want := &served{t: t, url: url}, newEvaluator(t).sequence([]int32{5, 6}, room-2)
	var request sync.WaitGroup
	request.Go(func() { s.wants(body([]int32{5, 6}, room-2, time.Minute), 200, want, "") })
	s.until(func() bool { return s.runs() > 0 })
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	request.Wait()
	rest, err := io.ReadAll(lines)
	if err := errors.Join(err, c.Wait()); err != nil || !strings.Contains(string(rest), "stopping") {
		t.Errorf("the server exits with %v and\n%s", err, rest)
	}
}

// runs returns the number of runs that the metrics report.
func (s *served) runs() int64 {
	rep, err := http.Get(s.url + "/metrics")
	if err != nil {
		s.t.Error(err)
		return 1
	}
	defer rep.Body.Close()
	var out struct{ Machine hocket.Stats }
	if err := json.NewDecoder(rep.Body).Decode(&out); err != nil {
		s.t.Error(err)
	}
	return out.Machine.Runs.Succeeded
}

// TestClosed: a run that fails ends decode with its error, which the requests in the slots get.
func TestClosed(t *testing.T) {
	s := serve(t, 2, 100)
	ended := make(chan error, 1)
	go func() { ended <- s.decode(context.Background()) }()
	go func() {
		s.until(func() bool { return s.machine.Stats().Runs.Succeeded > 3 })
		_ = s.machine.Close() // the test closes it again
	}()
	s.wants(body([]int32{1}, room-1, time.Minute), 503, nil, "the machine is closed")
	if err := <-ended; !errors.Is(err, hocket.ErrClosed) {
		t.Errorf("decode of a closed machine: %v", err)
	}
}

// TestMetrics: the counters of the machine are served as JSON.
func TestMetrics(t *testing.T) {
	s := serve(t, 2, 100)
	s.start()
	s.wants(body([]int32{vocab}, 1, time.Minute), 400, nil, "")
	if status, _, _, err := s.send(t.Context(), body([]int32{1, 2, 3}, 4, time.Minute)); status != 200 {
		t.Fatal(status, err)
	}
	rep, err := http.Get(s.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer rep.Body.Close()
	var out struct{ Machine hocket.Stats }
	if err := json.NewDecoder(rep.Body).Decode(&out); err != nil {
		t.Fatal(err)
	}
	if r := out.Machine.Runs; r.Succeeded != 6 || r.Refused != 1 || r.RunTime <= 0 || out.Machine.Plans.Plans != 1 {
		t.Errorf("%+v, want the 6 runs of 3 tokens and 3 further ones, and the refused run", out)
	}
}

// TestPage: the code in docs/library.md is in the example, and the requests in that page get the answers that it shows.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/library.md")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "## A server, step by step\n")
	text, _, _ = strings.Cut(text, "\n## ")
	unindented := regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(string(program), "")
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(text, -1)
	if !found || len(blocks) < 8 {
		t.Fatalf("the section has %d blocks of code", len(blocks))
	}
	for _, b := range blocks {
		if !strings.Contains(unindented, regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(b[1], "")) {
			t.Errorf("main.go does not contain\n%s", b[1])
		}
	}
	s := serve(t, 8, 64)
	s.start()
	requests := regexp.MustCompile(`(?m)^\$ curl -d '(.*)' localhost:8080/generate\n\{"ids":(.*)\}$`).
		FindAllStringSubmatch(text, -1)
	if len(requests) == 0 {
		t.Error("the page shows no request")
	}
	for _, r := range requests {
		var ids []int32
		if err := json.Unmarshal([]byte(r[2]), &ids); err != nil {
			t.Fatal(err)
		}
		s.wants(strings.Replace(r[1], `"ms": 1000`, `"ms": 60000`, 1), 200, ids, "")
	}
}

// TestLoad sends correct, wrong, cancelled and late requests at the same time. Each correct request must get the tokens
// of its sequence decoded alone. At the end all slots must be free, and the numbers of goroutines and of bytes in use
// must not have grown.
func TestLoad(t *testing.T) {
	d := *loadFlag
	if d == 0 {
		d = time.Duration(longtest.Of(1, 30)) * time.Second
	}
	s, e := serve(t, 4, 8), newEvaluator(t)
	s.start()
	type known struct{ ids, all []int32 }
	rng := rand.New(rand.NewPCG(longtest.Seed(t), 3))
	var list []known
	for range 64 {
		ids := make([]int32, 1+rng.IntN(20))
		for k := range ids {
			ids[k] = int32(rng.IntN(vocab))
		}
		list = append(list, known{ids, e.sequence(ids, 1+rng.IntN(40))})
	}
	var right, overloaded, bad, cancelled, late atomic.Int64
	one := func(rng *rand.Rand) {
		k := list[rng.IntN(len(list))]
		ctx, n, limit, ids := context.Background(), len(k.all)-len(k.ids), time.Minute, k.ids
		kind := rng.IntN(8)
		switch kind {
		case 0:
			ids = append(slices.Clone(ids), vocab)
		case 1:
			n = room
		case 2:
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(3000))*time.Microsecond)
			defer cancel()
		case 3:
			n, limit = room-len(ids), time.Duration(rng.IntN(4))*time.Millisecond
		}
		status, out, text, err := s.send(ctx, body(ids, n, limit))
		switch {
		case status == http.StatusServiceUnavailable:
			overloaded.Add(1)
			time.Sleep(time.Millisecond)
		case err != nil && kind == 2:
			cancelled.Add(1)
		case status == http.StatusBadRequest && kind < 2:
			bad.Add(1)
		case status == http.StatusGatewayTimeout && kind == 3:
			late.Add(1)
		case status == http.StatusOK && kind != 0 && kind != 1 && slices.Equal(out, k.all):
			right.Add(1)
		default:
			t.Errorf("a request of kind %d for %d tokens after %v: status %d %s, %v, %v", kind, n, ids, status, text,
				out, err)
		}
	}
	phase := func(d time.Duration) (heap uint64, goroutines int) {
		var clients sync.WaitGroup
		end := time.Now().Add(d)
		for i := range 16 {
			rng := rand.New(rand.NewPCG(rng.Uint64(), uint64(i)))
			clients.Go(func() {
				for time.Now().Before(end) && !t.Failed() {
					one(rng)
				}
			})
		}
		clients.Wait()
		http.DefaultClient.CloseIdleConnections()
		for range 4 { // one request for each slot, at the same time
			clients.Go(func() {
				s.wants(body(list[0].ids, len(list[0].all)-len(list[0].ids), time.Minute), 200, list[0].all, "")
			})
		}
		clients.Wait()
		http.DefaultClient.CloseIdleConnections()
		time.Sleep(100 * time.Millisecond) // connections close
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc, runtime.NumGoroutine()
	}
	heap, goroutines := phase(d / 4)
	heapAfter, goroutinesAfter := phase(d - d/4)
	stats := s.machine.Stats()
	t.Logf("%v: %d right, %d refused as overloaded, %d bad, %d cancelled, %d late, in %d runs; heap %.2f MiB after a quarter, "+
		"%.2f MiB at the end; %d and %d goroutines; plans hold %d bytes", d, right.Load(), overloaded.Load(),
		bad.Load(),
		cancelled.Load(), late.Load(), stats.Runs.Succeeded, float64(heap)/(1<<20), float64(heapAfter)/(1<<20),
		goroutines, goroutinesAfter, stats.Plans.Bytes)
	for name, n := range map[string]*atomic.Int64{"right": &right, "bad": &bad, "cancelled": &cancelled,
		"late": &late} {
		if n.Load() == 0 {
			t.Errorf("no request was %s", name)
		}
	}
	if heapAfter > heap+1<<20 || goroutinesAfter > goroutines+8 {
		t.Error("memory or goroutines grow")
	}
	if stats.Runs.Failed != 0 || stats.Runs.Expired != 0 || stats.Plans.Misses != 1 {
		t.Errorf("%+v: want no run that failed, and one load", stats)
	}
}
