package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/ir"
)

// These tests launch a kernel that does not end within a run's deadline.

var spin = flag.Duration("spin", 10*time.Second,
	"how long the kernel of TestEndlessCUDA takes, at most a minute; from 40s on closing gives the GPU up")

// spinSource is the source of a kernel that copies z to y after ns nanoseconds.
const spinSource = `
__device__ unsigned long long now() {
  unsigned long long t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}
extern "C" __global__ void spin(const float* z, float* y, long long n, long long ns) {
  const unsigned long long begun = now(), most = ns < 60000000000LL ? ns : 60000000000LL;
  while (now() - begun < most) {}
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = z[i];
}`

const spinProgram = `func f(%%x: f32[512]) -> f32[512] {
  %%z = add %%x, %%x
  %%y = alloc f32[512]
  launch "spin.cu":spin(%%z, into %%y, i64 512, i64 %d), grid=2, block=256
  return %%y
}`

func init() {
	hocket.RegisterKernel("spin.cu:spin", func(c *hocket.KernelCall) error {
		time.Sleep(min(time.Duration(c.Args[3].Int), time.Minute))
		copy(c.Args[1].Tensor.Data, c.Args[0].Tensor.Data)
		return nil
	})
}

// endless has the parameters of a process that runs the kernel.
type endless struct {
	Machine        string
	Dir            string
	Spin, Deadline time.Duration // the deadline 0 for none
	Trace          bool
	Close          bool // whether to close the machine while the kernel runs
}

// endlessEnd is the output of a process that ran the kernel.
type endlessEnd struct {
	Run, Close string // errors
	Expired    bool   // by the deadline
	Lost       bool   // the GPU, says Close
	Took       time.Duration
	Closed     time.Duration
	Right      bool
	Flight     json.RawMessage
}

// flightStream is the part of a flight record that describes a stream.
type flightStream struct {
	Rank  int
	Since string
	In    struct{ Text string }
}

const endlessVariable = "HOCKET_TEST_ENDLESS"

// TestEndlessProcess is the process that the other tests start. The process exits while the kernel runs, unless it
// closes the machine.
func TestEndlessProcess(t *testing.T) {
	text := os.Getenv(endlessVariable)
	if text == "" {
		t.Skip("no test asks for a process")
	}
	var e endless
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		t.Fatal(err)
	}
	end, err := e.run()
	if err != nil {
		t.Fatal(err)
	}
	if text, err := json.Marshal(end); err != nil {
		t.Fatal(err)
	} else if err := os.WriteFile(filepath.Join(e.Dir, "end"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	os.Exit(0)
}

func (e endless) run() (end endlessEnd, err error) {
	prog, err := hocket.Parse(filepath.Join(e.Dir, "spin.hkt"), fmt.Sprintf(spinProgram, e.Spin.Nanoseconds()))
	if err != nil {
		return end, err
	}
	m, err := hocket.Open(context.Background(), hocket.MachineOptions{Name: e.Machine,
		Failed: func(dump func(io.Writer) error) {
			var b strings.Builder
			if err := dump(&b); err == nil {
				end.Flight = json.RawMessage(b.String())
			}
		}})
	if err != nil {
		return end, err
	}
	model, err := m.Load(prog, hocket.Binding{}, hocket.LoadOptions{Grace: -1, Trace: e.Trace})
	if err != nil {
		return end, err
	}
	if err := model.Prepare(context.Background(), nil); err != nil {
		return end, err
	}
	once, twice := make([]float64, 512), make([]float64, 512)
	for i := range once {
		once[i], twice[i] = float64(i), float64(2*i)
	}
	x, err := hocket.FromFloats(ir.F32, once, 512)
	if err != nil {
		return end, err
	}
	ctx, cancel := context.Background(), func() {}
	if e.Deadline > 0 {
		ctx, cancel = context.WithTimeout(ctx, e.Deadline)
	}
	defer cancel()
	began := time.Now()
	r, err := model.Run(ctx, hocket.Args{In: map[string]*hocket.Tensor{"x": x}})
	end.Took = time.Since(began)
	if err != nil {
		end.Run, end.Expired = err.Error(), errors.Is(err, context.DeadlineExceeded)
	} else {
		want, err := hocket.FromFloats(ir.F32, twice, 512)
		if err != nil {
			return end, err
		}
		end.Right = slices.Equal(r.Out[r.OutNames[0]].Data, want.Data)
	}
	if e.Close {
		began := time.Now()
		if err := m.Close(); err != nil {
			end.Close, end.Lost = err.Error(), errors.Is(err, hocket.ErrDeviceLost)
		}
		end.Closed = time.Since(began)
	}
	return end, nil
}

// start runs e in a separate process.
func (e endless) start(t *testing.T) (end endlessEnd) {
	t.Helper()
	e.Dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(e.Dir, "spin.cu"), []byte(spinSource), 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestEndlessProcess$")
	c.Env = append(os.Environ(), endlessVariable+"="+string(text))
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err = os.ReadFile(filepath.Join(e.Dir, "end"))
	if err == nil {
		err = json.Unmarshal(text, &end)
	}
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// TestEndless runs a Go function in place of the kernel. The function cannot be interrupted, so the run returns only
// after it.
func TestEndless(t *testing.T) {
	t.Parallel()
	endlessOn(t, "cpu", 2*time.Second, 100*time.Millisecond)
}

// TestEndlessCUDA runs the kernel on a GPU. If the kernel takes longer than Close waits, the process loses the GPU.
func TestEndlessCUDA(t *testing.T) {
	if err := modeltest.GPUs(t).Close(); err != nil {
		t.Fatal(err)
	}
	const deadline = 2 * time.Second
	endlessOn(t, "cuda", *spin, deadline)
	end := endless{Machine: "cuda", Spin: *spin, Deadline: deadline, Close: true}.start(t)
	t.Logf("closed after %v: lost %v, %q", end.Closed, end.Lost, end.Close)
	switch {
	case !end.Expired:
		t.Errorf("the run: %q", end.Run)
	case *spin >= 40*time.Second:
		for _, want := range []string{"GPU 0", "was lost at", "work still ran 30s after its world was closed"} {
			if !end.Lost || !strings.Contains(end.Close, want) {
				t.Errorf("closing does not say %q: %q", want, end.Close)
			}
		}
	case end.Close != "":
		t.Errorf("closing, which waits for the kernel: %s", end.Close)
	}
	if end := (endless{Machine: "cuda"}).start(t); !end.Right {
		t.Errorf("the next process: %+v", end)
	}
}

// endlessOn requires that a run ends at its deadline, with an error that describes the state of the run.
func endlessOn(t *testing.T, machine string, spin, deadline time.Duration) {
	t.Helper()
	end := endless{Machine: machine, Spin: spin, Deadline: deadline, Trace: true}.start(t)
	t.Logf("after %v: %s", end.Took, end.Run)
	if !end.Expired || machine != "cpu" && end.Took >= spin {
		t.Errorf("it took %v: %q", end.Took, end.Run)
	}
	for _, want := range []string{"the time limit was reached", "rank 0, stream main", `launch "spin.cu":spin`, "spin.hkt:4"} {
		if !strings.Contains(end.Run, want) {
			t.Errorf("the error does not say %q: %s", want, end.Run)
		}
	}
	var flight struct {
		Machine  string
		Programs []struct {
			Failure string
			Batches []struct{ Seconds float64 }
			Streams []flightStream
		}
	}
	if err := json.Unmarshal(end.Flight, &flight); err != nil || len(flight.Programs) != 1 {
		t.Fatalf("the flight record: %v\n%s", err, end.Flight)
	}
	p := flight.Programs[0]
	in := slices.ContainsFunc(p.Streams, func(s flightStream) bool {
		return s.Rank == 0 && s.Since != "" && strings.Contains(s.In.Text, `launch "spin.cu":spin`)
	})
	if flight.Machine != machine || !strings.Contains(p.Failure, "the time limit was reached") || len(p.Batches) != 1 || !in {
		t.Errorf("the flight record:\n%s", end.Flight)
	}
	if end := (endless{Machine: machine}).start(t); !end.Right {
		t.Errorf("the next process: %+v", end)
	}
}
