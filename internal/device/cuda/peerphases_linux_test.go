package cuda

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/device/cuda/process"
	"hocket.example/hocket/internal/device/devicetest"
	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/nvlib"
)

// The tests in this file kill or stop a process in each phase of its life, on fake drivers and on real GPUs.

var (
	faultsFlag = flag.Int("faults", 1, "how often TestRealPeerPhases tries each fault")
	faultsOnly = flag.String("faults.only", "", "those that it tries, as a regular expression: kill in replay of 1")
	faultsSide = flag.Int("faults.worlds", 4, "how many worlds it has at once")
)

// peerFault describes a signal (SIGKILL or SIGSTOP) that a process receives within a driver call.
type peerFault struct {
	Signal syscall.Signal // 0 for none
	Call   string         // name of a driver call, or of a part of a load: batch or close
	Number int            // which of the calls of that name, counted from 1
	After  int            // number of later calls, of any name, after which the signal comes
}

// struck is the text that a process prints directly before it receives its signal.
const struck = "the fault is at "

// strike returns a function that is called for each driver call and part of a load, and sends the signal.
func (x peerFault) strike() func(name string) {
	var mu sync.Mutex
	seen := 0
	return func(name string) {
		if x.Signal == 0 {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		switch {
		case seen >= x.Number:
			seen++
		case name == x.Call:
			seen++
		}
		if seen == x.Number+x.After {
			fmt.Fprintln(os.Stderr, struck, time.Now().UnixNano())
			_ = syscall.Kill(os.Getpid(), x.Signal)
		}
	}
}

// realSystem returns the CUDA state of this host's GPUs. It calls the function called for every driver call. The
// context of this process's GPU is created already.
func realSystem(t *testing.T, called func(name string)) *process.Shared {
	t.Helper()
	if err := cabi.Setenv(process.QueuesVariable, "32"); err != nil {
		t.Fatal(err)
	}
	lib, err := cabi.Open([]string{cmp.Or(os.Getenv("HOCKET_LIBCUDA"), "libcuda.so.1")})
	if err != nil {
		t.Fatal(err)
	}
	f := fakedriver.New(t, 1)
	f.Queue()
	f.ShareMemory()
	table := map[string]func([]uintptr) uintptr{}
	names := slices.AppendSeq([]string{"cuCtxSynchronize", "cuFuncGetAttribute", "cuFuncGetParamInfo", "cuFuncIsLoaded",
		"cuFuncLoad"}, maps.Keys(f.AllCalls())) // names of calls that the fake driver lacks, and of those that it has
	for _, name := range names {
		do, err := lib.Lookup(name)
		if err != nil {
			continue // an older driver lacks some
		}
		table[name] = func(a []uintptr) uintptr {
			called(name)
			return do.CallPinned(a)
		}
	}
	drv, err := nvlib.DriverOn(cabi.Fake(lib.Name(), table))
	if err != nil {
		t.Fatal(err)
	}
	sys, err := process.New(drv, sync.OnceValues(nvlib.OpenCuBLASLt))
	if err != nil {
		t.Fatal(err)
	}
	rank, err := strconv.Atoi(os.Getenv("HOCKET_RANK"))
	if err != nil || rank >= len(sys.GPUs) {
		t.Fatalf("process %d (%v), %d GPUs", rank, err, len(sys.GPUs))
	}
	if err := sys.GPUs[rank].Bound(func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	return sys
}

// peerPhases lists the phases of a process's life and the call with which each begins.
var peerPhases = []struct {
	name string
	peerFault
	calls int // the signal comes within this many calls
}{
	{"export", peerFault{Call: "cuMemExportToShareableHandle", Number: 1}, 2},
	{"import", peerFault{Call: "cuMemImportFromShareableHandle", Number: 1}, 2},
	{"warm-up", peerFault{Call: "batch", Number: 1, After: 1}, 16},
	{"steady state", peerFault{Call: "batch", Number: 3, After: 1}, 60},
	{"capture", peerFault{Call: "cuStreamBeginCapture_v2", Number: 1}, 8},
	{"replay", peerFault{Call: "cuGraphLaunch", Number: 2}, 16},
	{"teardown", peerFault{Call: "close", Number: 1, After: 1}, 8},
}

// phaseLoads are loads of programs that go through all phases.
var phaseLoads = []peerLoad{
	{Program: "row_parallel.hkt", Dims: phaseDims, Batches: []int{1, 4, 20}},
	{Program: "row_parallel.hkt", Dims: phaseDims, Graph: true, Batches: []int{1, 2, 4, 20}},
}

var phaseDims = map[string]int64{"P": 2, "T": 48, "K": 32, "N": 16, "C": 2}

// phaseCase is a case of these tests: a phase, and a signal that one of two processes receives in it.
type phaseCase struct {
	phase   string
	fault   peerFault
	culprit int
}

func (c phaseCase) String() string {
	kind := "kill"
	if c.stops() {
		kind = "stop"
	}
	return fmt.Sprintf("%s in %s of %d", kind, c.phase, c.culprit)
}

func (c phaseCase) stops() bool { return c.fault.Signal == syscall.SIGSTOP }

// phaseCases returns all cases, each the given number of times.
func phaseCases(t *testing.T, times int) (list []phaseCase) {
	t.Helper()
	rng := rand.New(rand.NewPCG(longtest.Drawn(t), 0))
	for range times {
		for _, p := range peerPhases {
			for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
				for culprit := range 2 {
					x := p.peerFault
					x.Signal = signal
					x.After += rng.IntN(p.calls)
					list = append(list, phaseCase{p.name, x, culprit})
				}
			}
		}
	}
	return list
}

// check makes one of two processes fail, and returns the time until the other has ended.
func (c phaseCase) check(t *testing.T, j peerJob, stall time.Duration) (took time.Duration, err error) {
	jobs := slices.Repeat([]peerJob{j}, 2)
	jobs[c.culprit].Fault = c.fault
	peers := startPeers(t, stall, jobs...)
	survivor, culprit := peers[1-c.culprit], peers[c.culprit]
	r := survivor.wait(t)
	ended := time.Now()
	if c.stops() {
		_ = culprit.Process.Kill()
	}
	var killed *exec.ExitError
	if err := culprit.Wait(); !errors.As(err, &killed) || killed.Exited() {
		return 0, fmt.Errorf("process %d was not killed: %v\n%s", c.culprit, err, culprit.out.String())
	}
	words := regexp.MustCompile(struck + ` (\d+)`).FindStringSubmatch(culprit.out.String())
	switch {
	case r == nil:
		return 0, fmt.Errorf("the survivor was killed too:\n%s", survivor.out.String())
	case words == nil:
		return 0, fmt.Errorf("the fault did not occur:\n%s", culprit.out.String())
	case r.Rank != c.culprit:
		return 0, fmt.Errorf("the error blames process %d, want %d: %s", r.Rank, c.culprit, r.Err)
	case j.Real && survivor.ProcessState.ExitCode() != 3:
		return 0, fmt.Errorf("the survivor ended with %v", survivor.ProcessState)
	}
	at, err := strconv.ParseInt(words[1], 10, 64)
	return ended.Sub(time.Unix(0, at)), err
}

// TestPeerPhases checks that, if a process is killed or stopped in any phase, the other process ends with an error that
// names it.
func TestPeerPhases(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long under the race detector")
	}
	t.Parallel()
	all := phaseCases(t, 1)
	if !longtest.On() { // one case per phase
		some := all[:0:0]
		for i := range peerPhases {
			some = append(some, all[4*i+i%4])
		}
		all = some
	}
	loads := slices.Clone(phaseLoads)
	for i := range loads {
		loads[i].Algorithm = "staged"
	}
	sideBySide(t, 4, all, phaseCase.String, func(t *testing.T, c phaseCase) {
		if _, err := c.check(t, peerJob{GPUs: 2, PerGPU: 1, Loads: loads}, stallTimeout); err != nil {
			t.Error(err)
		}
	})
}

// TestRealPeerPhases is TestPeerPhases on two real GPUs, with time limits. The other process ends within 5 s of a kill,
// and within the stall timeout plus 5 s of a stop. Five seconds after the last process of each world has ended, the
// GPUs' memory use must be the same as before. No other program may use the GPUs meanwhile.
func TestRealPeerPhases(t *testing.T) {
	m := real(t, Options{})
	devicetest.NeedGPUs(t, len(m.sys.GPUs), 2, nil)
	for _, g := range m.sys.GPUs { // keeps the GPUs initialized
		if err := g.Bound(func() error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	const stall, most = 2 * time.Second, 5 * time.Second
	j := peerJob{Real: true, Loads: phaseLoads}
	good := func() {
		t.Helper()
		for rank, r := range runPeers(t, 2, j) { // the first execution compiles kernels
			if r.Err != "" {
				t.Fatalf("process %d: %s", rank, r.Err)
			}
		}
	}
	good()
	all := slices.DeleteFunc(phaseCases(t, *faultsFlag), func(c phaseCase) bool {
		return !regexp.MustCompile(*faultsOnly).MatchString(c.String())
	})
	if len(all) == 0 {
		t.Fatalf("no fault matches %q", *faultsOnly)
	}
	before := memoryUsed(t)
	// The driver may take a moment to free the memory of the previous world.
	for began := time.Now(); time.Since(began) < most; time.Sleep(200 * time.Millisecond) {
		for i, n := range memoryUsed(t) {
			before[i] = min(before[i], n)
		}
	}
	t.Logf("%d faults; memory in use before: %v MiB", len(all), before)
	var longest [2]atomic.Int64 // after kills and after stops
	for wave := range slices.Chunk(all, max(*faultsSide, 1)) {
		t.Run(fmt.Sprint(len(wave), " worlds"), func(t *testing.T) {
			var running sync.WaitGroup
			for _, c := range wave {
				running.Go(func() {
					t.Run(c.String(), func(t *testing.T) {
						took, err := c.check(t, j, stall)
						limit, kind := most, 0
						if c.stops() {
							limit, kind = stall+most, 1
						}
						for n := longest[kind].Load(); int64(took) > n &&
							!longest[kind].CompareAndSwap(n, int64(took)); {
							n = longest[kind].Load()
						}
						switch {
						case err != nil:
							t.Error(err)
						case took > limit:
							t.Errorf("the survivor ended after %v, at most %v are allowed", took, limit)
						default:
							t.Logf("%v, after %d calls: %v", c, c.fault.After, took)
						}
					})
				})
			}
			running.Wait()
			for ended := time.Now(); ; time.Sleep(200 * time.Millisecond) {
				now := memoryUsed(t)
				if now[0] <= before[0] && now[1] <= before[1] {
					t.Logf("memory is back after %v", time.Since(ended))
					break
				}
				if time.Since(ended) > most {
					t.Errorf("%v after the last process %v MiB are in use on the GPUs, before %v", time.Since(ended), now,
						before)
					break
				}
			}
		})
	}
	good()
	t.Logf("the longest: %v after a kill, %v after a stop", time.Duration(longest[0].Load()),
		time.Duration(longest[1].Load()))
}

// memoryUsed returns the memory in use on each GPU by all processes, in MiB, as nvidia-smi reports it.
func memoryUsed(t *testing.T) (mib []int) {
	t.Helper()
	out, err := exec.Command("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range strings.Fields(string(out)) {
		n, err := strconv.Atoi(word)
		if err != nil {
			t.Fatal(err)
		}
		mib = append(mib, n)
	}
	if len(mib) < 2 {
		t.Fatalf("nvidia-smi lists %d GPUs", len(mib))
	}
	return mib
}
