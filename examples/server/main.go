// Command server generates tokens over HTTP. Its model decodes several sequences at a time: each sequence has a slot,
// with a part of the model's state, and each run computes one more token of every sequence.
//
//	go run ./examples/server -n 2 examples/llama/llama.hkt
//	curl -d '{"ids": [1, 2, 3], "n": 8, "ms": 1000}' localhost:8080/generate
//	curl localhost:8080/metrics
//
// The model is a program with the parameters and results of examples/llama/llama.hkt, with random weights unless
// -weights names a safetensors file. The model can also be an archive of torch.export (.pt2), with its weights. The
// archive must have the inputs ids, at and sees, and the next tokens as its result. The first dimension of its buffers
// must be the number of slots, and at position 0 of a sequence the model must ignore the earlier contents of the
// buffers for the sequence's slot.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"hocket.example/hocket"
)

func main() {
	addr := flag.String("addr", "localhost:8080", "the `ADDRESS` at which to serve")
	weights := flag.String("weights", "", "a safetensors `FILE` with tensors that have the names of the parameters")
	ranks := flag.Int("n", 0, "the number of ranks of a program (default: the size of its mesh)")
	slots := flag.Int64("slots", 8, "the number of sequences that are decoded at a time")
	room := flag.Int64("room", 1024, "the largest number of tokens of a sequence")
	flag.Parse()
	switch {
	case flag.NArg() != 1:
		log.Fatal("usage: server [flags] MODEL")
	case *slots < 1 || *room < 1:
		log.Fatal("-slots and -room must be at least 1")
	case *ranks < 0:
		log.Fatal("-n must be at least 1")
	}
	stopped, forget := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	m := must(hocket.Open(context.Background(), hocket.MachineOptions{})) // Name: "cuda" for GPUs, with package cuda
	model := load(m, flag.Arg(0), *weights, *ranks, map[string]int64{"B": *slots, "T": 1, "S": *room})
	s := newServer(m, model, *room, 64)
	listens := func(l net.Listener) context.Context {
		log.Printf("serving %s at http://%s", flag.Arg(0), l.Addr())
		return context.Background()
	}
	web := &http.Server{Addr: *addr, Handler: s.routes(), ReadTimeout: time.Minute, BaseContext: listens}
	go func() {
		if err := web.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			log.Fatal(err)
		}
	}()
	decoding, end := context.WithCancel(context.Background())
	go func() {
		<-stopped.Done()
		forget() // a second signal ends the process at once
		log.Print("stopping: no new requests are accepted, and those in progress have a minute")
		shutdown(web, time.Minute)
		end()
	}()
	err := s.decode(decoding)
	if decoding.Err() == nil { // a run has failed
		shutdown(web, time.Second) // the requests in the slots get their answers
		log.Fatal(err)
	}
	if err := m.Close(); err != nil {
		log.Fatal(err)
	}
}

// shutdown closes the listener and waits until all requests are answered, but at most for the given time.
func shutdown(web *http.Server, most time.Duration) {
	late, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	_ = web.Shutdown(late)
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

// load loads a program or an archive, binds its weights, and creates its state. load then prepares the first run, so
// that a parameter without a tensor is an error before the server listens.
func load(m *hocket.Machine, file, weights string, ranks int, dims map[string]int64) *hocket.Model {
	ctx := context.Background()
	if filepath.Ext(file) == ".pt2" {
		if weights != "" {
			log.Fatal("-weights cannot be used with a .pt2 archive, which contains its own weights")
		}
		if ranks > 0 {
			log.Fatal("-n cannot be used with a .pt2 archive: without a plan of layouts each rank would have all weights")
		}
		e := must(hocket.OpenExport(file, hocket.ExportOptions{}))
		model := must(m.Load(e.Program(), hocket.Binding{}, hocket.LoadOptions{}))
		must(e.Bind(ctx, model))
		return must(model, model.Prepare(ctx, nil))
	}
	p := must(hocket.Parse(file, string(must(os.ReadFile(file)))))
	model := must(m.Load(p, hocket.Binding{Ranks: ranks, Dims: dims}, hocket.LoadOptions{}))
	state := must(model.BindState(ctx, nil))
	inputs := []string{"ids", "at", "sees"}
	if weights != "" {
		must(model.BindFrom(must(hocket.OpenCheckpoint(weights)), hocket.Rules{Inputs: inputs}))
		return must(model, model.Prepare(ctx, nil))
	}
	for name, t := range must(model.RandomInputs("rand:1")) {
		if state[name] == nil && !slices.Contains(inputs, name) {
			must(name, model.Bind(name, t))
		}
	}
	return must(model, model.Prepare(ctx, nil))
}

// request is a sequence that is generated.
type request struct {
	IDs  []int32         // the prompt, followed by the generated tokens
	N    int             // the number of tokens that are still to be generated
	MS   int64           // the time that the request may take, in milliseconds
	ctx  context.Context // cancelled at the deadline, and if the client disconnects
	at   int             // the number of tokens whose keys and values are in the state
	done chan error      // receives the outcome of the sequence
}

// server decodes sequences of at most room tokens.
type server struct {
	machine *hocket.Machine
	model   *hocket.Model
	ids     hocket.Port // the parameter %ids, which has one row for each slot
	room    int64
	queue   chan *request // requests that wait for a slot
}

func newServer(m *hocket.Machine, model *hocket.Model, room int64, waiting int) *server {
	ports := must(model.Inputs(nil))
	ids := slices.IndexFunc(ports, func(p hocket.Port) bool { return p.Name == "ids" })
	if ids < 0 {
		log.Fatal("the model has no parameter %ids")
	}
	return &server{m, model, ports[ids], room, make(chan *request, waiting)}
}

// decode runs the model until ctx ends or a run fails, for example because a device is lost.
func (s *server) decode(ctx context.Context) error {
	slots := make([]*request, s.ids.Shape[0])
	for {
		ids, at, sees := make([]int32, len(slots)), slices.Repeat([]int32{-1}, len(slots)), make([]int32, len(slots))
		for i, r := range slots {
			if r == nil || r.ctx.Err() != nil { // the slot is free, or its request was cancelled or has exceeded its deadline
				select {
				case r = <-s.queue:
				default:
					r = nil
				}
			}
			if slots[i] = r; r != nil { // at position -1 the state of a slot is not changed
				ids[i], at[i], sees[i] = r.IDs[r.at], int32(r.at), int32(r.at+1)
			}
		}
		if slices.Max(at) < 0 { // no slot is in use
			select {
			case slots[0] = <-s.queue:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		in := map[string]*hocket.Tensor{}
		for name, vals := range map[string][]int32{"ids": ids, "at": at, "sees": sees} {
			in[name] = must(hocket.FromInts(s.ids.DType, vals, s.ids.Shape...))
		}
		report, err := s.model.Run(ctx, hocket.Args{In: in})
		var bad *hocket.InputError
		if errors.As(err, &bad) && !bad.Begun { // one request has an invalid id, and nothing was run: run again without this request
			i := bad.Index[0]
			slots[i].done <- fmt.Errorf("%w: %s[%d] is %d, want a value from %d to %d", hocket.ErrInput, bad.Param,
				slots[i].at, bad.Value, bad.Low, bad.High-1)
			slots[i] = nil
			continue
		}
		if err != nil { // the sequences in the slots cannot be continued
			for _, r := range slots {
				if r != nil {
					r.done <- err
				}
			}
			return err
		}
		for i, next := range cmp.Or(report.Out["next"], report.Out["out0"]).Ints() {
			r := slots[i]
			if r == nil {
				continue
			}
			if r.at++; r.at == len(r.IDs) { // the keys and values of the whole prompt are in the state
				r.IDs = append(r.IDs, int32(next))
				r.N--
			}
			if r.N == 0 {
				r.done <- nil
				slots[i] = nil
			}
		}
	}
}

// await gives a request to decode and waits until the sequence is complete or the request's context ends.
func (s *server) await(r *request) error {
	switch {
	case len(r.IDs) == 0:
		return fmt.Errorf("%w: ids is empty, want the ids of the prompt", hocket.ErrInput)
	case r.N < 1:
		return fmt.Errorf("%w: n is %d, want the number of tokens to generate, at least 1", hocket.ErrInput, r.N)
	case int64(r.N) > s.room-int64(len(r.IDs)): // the sum could overflow
		return fmt.Errorf("%w: %d ids and n=%d, want together at most %d tokens", hocket.ErrInput, len(r.IDs), r.N, s.room)
	case r.MS < 0 || r.MS > mostMS:
		return fmt.Errorf("%w: ms is %d, want a value from 0 to %d", hocket.ErrInput, r.MS, mostMS)
	}
	select {
	case s.queue <- r:
	default:
		return fmt.Errorf("%w: %d requests wait", hocket.ErrOverloaded, cap(s.queue))
	}
	select {
	case err := <-r.done:
		return err
	case <-r.ctx.Done():
		return r.ctx.Err()
	}
}

const mostMS = 60 * 60 * 1000 // the longest time of a request, in milliseconds

// read reads the body of a request, a JSON object.
func read(from io.Reader) (*request, error) {
	body := struct {
		IDs []*int32 // pointers, because null would otherwise be read as the id 0
		N   int
		MS  int64
	}{MS: 60_000}
	d := json.NewDecoder(from)
	d.DisallowUnknownFields() // otherwise a misspelled ms would be ignored
	err := d.Decode(&body)
	var kind *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch key, unknown := strings.CutPrefix(fmt.Sprint(err), "json: unknown field "); {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, fmt.Errorf("the body ends before the end of %s", object)
	case errors.As(err, &kind) && kind.Field == "":
		return nil, fmt.Errorf("the body is a JSON %s, want %s", kind.Value, object)
	case errors.As(err, &kind):
		return nil, fmt.Errorf("%s: %s before byte %d, want %s", strings.ToLower(kind.Field), kind.Value,
			kind.Offset, wanted(kind.Type))
	case errors.As(err, &syntax):
		return nil, fmt.Errorf("the body is not JSON: %w at byte %d", err, syntax.Offset)
	case unknown:
		return nil, fmt.Errorf("unknown key %s, want %s", key, object)
	case err != nil:
		return nil, err
	}
	if _, end := d.Token(); !errors.Is(end, io.EOF) {
		return nil, fmt.Errorf("there is more text after %s", object)
	}
	r := &request{N: body.N, MS: body.MS, done: make(chan error, 1)}
	for i, id := range body.IDs {
		if id == nil {
			return nil, fmt.Errorf("ids[%d] is null, want a whole number", i)
		}
		r.IDs = append(r.IDs, *id)
	}
	return r, nil
}

const object = "an object with ids, n and ms"

// wanted describes the JSON values of the type of a key.
func wanted(t reflect.Type) string {
	if t.Kind() == reflect.Slice {
		return "a list"
	}
	return fmt.Sprintf("a whole number of %d bits", t.Bits())
}

// generate answers POST /generate.
func (s *server) generate(w http.ResponseWriter, req *http.Request) {
	r, err := read(http.MaxBytesReader(w, req.Body, 1<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(req.Context(), time.Duration(min(r.MS, mostMS))*time.Millisecond)
	defer cancel()
	r.ctx = ctx
	err = s.await(r)
	var failed *hocket.RunError
	switch {
	case err == nil:
		_ = json.NewEncoder(w).Encode(map[string][]int32{"ids": r.IDs})
	case errors.As(err, &failed), errors.Is(err, hocket.ErrNoContents): // the state is lost, and the server ends
		http.Error(w, err.Error(), http.StatusInternalServerError)
	case errors.Is(err, hocket.ErrOverloaded), errors.Is(err, hocket.ErrClosed): // too many requests, or the server ends
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case errors.Is(err, ctx.Err()): // the deadline has passed, or the client has disconnected
		http.Error(w, err.Error(), http.StatusGatewayTimeout)
	case errors.Is(err, hocket.ErrInput):
		http.Error(w, err.Error(), http.StatusBadRequest)
	default: // for example hocket.ErrDeviceLost
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// routes serves POST /generate and GET /metrics.
func (s *server) routes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /generate", s.generate)
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"machine": s.machine.Stats(), "queued": len(s.queue)})
	})
	return mux
}
