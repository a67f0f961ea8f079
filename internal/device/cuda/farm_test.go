package cuda

import (
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"

	"hocket.example/hocket/internal/kernels"
)

// farm is a Compiler that compiles in other processes. Several processes are faster, because NVRTC uses little more
// than four threads of one process, and compilation takes most of the time of tests on GPUs.
type farm struct {
	kernels.Compiler // the compiler of this process: for its version, and if a worker fails
	with             string
	workers          chan *worker // nil elements are workers that have not been started
}

// worker is a process that compiles one source at a time.
type worker struct {
	cmd *exec.Cmd
	in  *os.File
	out *os.File
	enc *gob.Encoder
	dec *gob.Decoder
}

type compileOrder struct {
	Source  string
	Options []string
}

type compileResult struct {
	Image    []byte
	Log, Err string
}

// farmVariable is an environment variable that selects the compiler of a worker process.
const farmVariable = "HOCKET_TEST_COMPILER"

func newFarm(c kernels.Compiler, with string, workers int) *farm {
	f := &farm{Compiler: c, with: with, workers: make(chan *worker, workers)}
	for range workers {
		f.workers <- nil
	}
	return f
}

func (f *farm) Compile(source string, options []string) ([]byte, string, error) {
	w := <-f.workers
	defer func() { f.workers <- w }()
	if w == nil {
		var err error
		if w, err = f.begin(); err != nil {
			return f.Compiler.Compile(source, options)
		}
	}
	var r compileResult
	if err := errors.Join(w.enc.Encode(compileOrder{source, options}), w.dec.Decode(&r)); err != nil {
		w.end()
		w = nil
		return f.Compiler.Compile(source, options)
	}
	if r.Err != "" {
		return nil, r.Log, errors.New(r.Err)
	}
	return r.Image, r.Log, nil
}

// begin starts a worker, which exits with this process.
func (f *farm) begin() (*worker, error) {
	orders, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer orders.Close()
	out, results, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	defer results.Close()
	w := &worker{cmd: exec.Command(os.Args[0], "-test.run=^TestFarmWorker$"), in: in, out: out, enc: gob.NewEncoder(in), dec: gob.NewDecoder(out)}
	w.cmd.Env = append(os.Environ(), farmVariable+"="+f.with)
	w.cmd.ExtraFiles = []*os.File{orders, results}
	if err := w.cmd.Start(); err != nil {
		return nil, errors.Join(err, in.Close(), out.Close())
	}
	return w, nil
}

func (w *worker) end() {
	_ = w.in.Close()
	_ = w.out.Close()
	_ = w.cmd.Process.Kill()
	_ = w.cmd.Wait()
}

func (f *farm) close() {
	for range cap(f.workers) {
		if w := <-f.workers; w != nil {
			w.end()
		}
	}
}

// farmed returns the library of kernels, and its cache, that all tests on GPUs share.
var farmed = sync.OnceValues(func() (*kernels.Library, *kernels.Cache) {
	cache := kernels.OpenCache(nil)
	return kernels.New(newFarm(kernels.NVRTC(), "nvrtc", min(max(runtime.GOMAXPROCS(0)/2, 1), 16)), cache), cache
})

// TestFarmWorker runs in a worker process: it compiles what the parent process sends.
func TestFarmWorker(t *testing.T) {
	var c kernels.Compiler
	switch os.Getenv(farmVariable) {
	case "nvrtc":
		c = kernels.NVRTC()
	case "toy":
		c = toyCompiler{}
	default:
		t.Skip("this process is not a worker")
	}
	dec, enc := gob.NewDecoder(os.NewFile(3, "orders")), gob.NewEncoder(os.NewFile(4, "results"))
	for {
		var o compileOrder
		if dec.Decode(&o) != nil {
			return // the parent has exited
		}
		if o.Source == "crash" {
			os.Exit(3)
		}
		var r compileResult
		var err error
		if r.Image, r.Log, err = c.Compile(o.Source, o.Options); err != nil {
			r.Err = err.Error()
		}
		if enc.Encode(r) != nil {
			return
		}
	}
}

// toyCompiler is a compiler for tests: it returns the source as the compiled image.
type toyCompiler struct{ here bool }

func (c toyCompiler) Compile(source string, options []string) ([]byte, string, error) {
	if source == "wrong" {
		return nil, "", errors.New("line 1: wrong")
	}
	return []byte(source + " " + strings.Join(options, " ") + fmt.Sprint(" here ", c.here)), "log", nil
}

func (toyCompiler) Version() string { return "toy" }

// TestFarm checks that workers return the images of the sources that they receive, and the text of errors. A source is
// compiled in this process if its worker dies.
func TestFarm(t *testing.T) {
	f := newFarm(toyCompiler{here: true}, "toy", 2)
	defer f.close()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			image, log, err := f.Compile(fmt.Sprint("source ", i), []string{"-a", "-b"})
			if want := fmt.Sprintf("source %d -a -b here false", i); string(image) != want || log != "log" || err != nil {
				t.Errorf("got %q, %q, %v; want %q", image, log, err, want)
			}
		})
	}
	wg.Wait()
	if _, _, err := f.Compile("wrong", nil); err == nil || err.Error() != "line 1: wrong" {
		t.Errorf("got %v", err)
	}
	for _, tc := range [][2]string{{"crash", "crash  here true"}, {"after", "after  here false"}, {"more", "more  here false"}} {
		if image, _, err := f.Compile(tc[0], nil); string(image) != tc[1] || err != nil {
			t.Errorf("%s: got %q, %v", tc[0], image, err)
		}
	}
	if v := f.Version(); v != "toy" {
		t.Errorf("version %q", v)
	}
}
