package cuda

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device"
	procs "hocket.example/hocket/internal/world"
)

// Worlds of several processes on fakes: each process, this test binary again, has a fake of its own, and the fakes
// share their memory. Kernels of teams that compute do not run on fakes: collectives are schedules of copies and
// counters, and copies by engines, between kernels that only meet.

// peerJob is what a process of a world does.
type peerJob struct {
	GPUs    int           // of its fake
	Numbers []int         // which of the host's they are; nil for the first ones
	PerGPU  int           // ranks
	Limit   int64         // memory of a GPU; 0 for plenty
	Timeout time.Duration // of kernels that wait
	Loads   []peerLoad
}

// peerLoad is a program that is loaded, run, and closed again.
type peerLoad struct {
	Program             string // an example
	Dims                map[string]int64
	Strategy, Algorithm string
	Graph               bool
	Batches             []int // runs of each
}

func (l peerLoad) String() string {
	return fmt.Sprintf("%s %v %s %s graph %v", l.Program, l.Dims, l.Strategy, l.Algorithm, l.Graph)
}

// peerResult is how it went.
type peerResult struct {
	Hashes     [][]string // of the runs of each load
	Algorithms [][]string // of the collectives of each load
	Err        string
	Rank       int  // who is to blame, where that is another process; -1 for nobody
	Disagree   bool // processes differ
}

const (
	peerVariable   = "HOCKET_TEST_PEER"
	resultVariable = "HOCKET_TEST_PEER_RESULT"
)

// TestPeer is a process of a world.
func TestPeer(t *testing.T) {
	text := os.Getenv(peerVariable)
	if text == "" {
		t.Skip("no test asks for a process of a world")
	}
	var job peerJob
	if err := json.Unmarshal([]byte(text), &job); err != nil {
		t.Fatal(err)
	}
	w, err := hocket.Join(t.Context(), hocket.JoinOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r := job.run(t, w)
	if err := w.Leave(); err != nil && r.Err == "" {
		r.Err = err.Error()
	}
	data, err := json.Marshal(r)
	if err == nil {
		err = os.WriteFile(os.Getenv(resultVariable), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// run does the job, as a process of w, or alone.
func (j *peerJob) run(t *testing.T, w *hocket.World) *peerResult {
	r := &peerResult{Rank: -1}
	err := j.runAll(t, w, r)
	var peer *hocket.PeerError
	var differ *hocket.DisagreeError
	switch {
	case err == nil:
		return r
	case errors.As(err, &differ):
		r.Disagree = true
	case errors.As(err, &peer):
		r.Rank = peer.Rank
	}
	r.Err = err.Error()
	return r
}

func (j *peerJob) runAll(t *testing.T, w *hocket.World, r *peerResult) (err error) {
	f := newFake(t, j.GPUs)
	f.queue()
	f.shareMemory()
	f.numbers, f.limit = j.Numbers, j.Limit
	device.Register(t.Name(), func(peers *procs.World) (device.Machine, error) {
		return newJoined(f.system(), Options{Kernels: f, RanksPerGPU: j.PerGPU, Peers: peers, TeamTimeout: j.Timeout})
	})
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{Name: t.Name(), World: w})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	for _, l := range j.Loads {
		if err := l.run(t.Context(), m, r); err != nil {
			return fmt.Errorf("%s: %w", l, err)
		}
	}
	return nil
}

func (l peerLoad) run(ctx context.Context, m *hocket.Machine, r *peerResult) (err error) {
	text, err := os.ReadFile(filepath.Join("../../../examples", l.Program))
	if err != nil {
		return err
	}
	p, err := hocket.Parse(l.Program, string(text))
	if err != nil {
		return err
	}
	model, err := m.Load(p, hocket.Binding{Dims: l.Dims}, hocket.LoadOptions{Strategy: l.Strategy, Algorithm: l.Algorithm, Graph: l.Graph, Gather: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	var hashes []string
	for _, n := range l.Batches {
		var batch []hocket.Args
		for range n {
			in, err := model.RandomInputs(fmt.Sprintf("ints:%d", len(hashes)+len(batch)))
			if err != nil {
				return err
			}
			batch = append(batch, hocket.Args{In: in})
		}
		reports, err := model.RunBatch(ctx, batch)
		if err != nil {
			return err
		}
		for _, report := range reports {
			hashes = append(hashes, report.OutputsSHA256())
		}
	}
	r.Hashes = append(r.Hashes, hashes)
	return nil
}

// peer is a process that was started.
type peer struct {
	*exec.Cmd
	out    bytes.Buffer
	result string // its file
}

// startPeers starts the processes of a world, each with a job, and ends them with the test.
func startPeers(t *testing.T, stall time.Duration, jobs ...peerJob) []*peer {
	t.Helper()
	dir, all := t.TempDir(), make([]*peer, len(jobs))
	for rank, j := range jobs {
		text, err := json.Marshal(j)
		if err != nil {
			t.Fatal(err)
		}
		p := &peer{Cmd: exec.Command(os.Args[0], "-test.run=^TestPeer$"), result: filepath.Join(dir, fmt.Sprint("result", rank))}
		p.Env = append(os.Environ(), fmt.Sprint("HOCKET_RANK=", rank), fmt.Sprint("HOCKET_WORLD_SIZE=", len(jobs)), "HOCKET_RUN_ID="+t.Name(),
			"HOCKET_RUN_DIR="+dir, fmt.Sprint("HOCKET_STALL_TIMEOUT=", stall), peerVariable+"="+string(text), resultVariable+"="+p.result)
		p.Stdout, p.Stderr = &p.out, &p.out
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Process.Kill() })
		all[rank] = p
	}
	return all
}

// wait waits for a process, and returns what it says; nil if it was killed.
func (p *peer) wait(t *testing.T) *peerResult {
	t.Helper()
	late := time.AfterFunc(5*time.Minute, func() {
		t.Errorf("process %d did not end", p.Process.Pid)
		_ = p.Process.Signal(syscall.SIGQUIT) // its output tells where it was
	})
	defer late.Stop()
	err := p.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && !exit.Exited() {
		return nil
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, p.out.String())
	}
	text, err := os.ReadFile(p.result)
	if err != nil {
		t.Fatalf("%v\n%s", err, p.out.String())
	}
	r := &peerResult{}
	if err := json.Unmarshal(text, r); err != nil {
		t.Fatal(err)
	}
	return r
}

// runPeers has n processes do a job, and returns what each says.
func runPeers(t *testing.T, n int, j peerJob) []*peerResult {
	t.Helper()
	var all []*peerResult
	for _, p := range startPeers(t, time.Minute, slices.Repeat([]peerJob{j}, n)...) {
		all = append(all, p.wait(t)); t.Log(p.out.String())
	}
	return all
}

func TestPeersTry(t *testing.T) {
	list, err := filepath.Glob("../../../examples/*.hkt")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range list {
		name := filepath.Base(path)
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			took := func() time.Duration { d := time.Since(began); began = time.Now(); return d }
			j := peerJob{GPUs: 4, PerGPU: 4, Loads: []peerLoad{{Program: name, Dims: small[name], Batches: []int{2}},
				{Program: name, Dims: small[name], Batches: []int{2, 3}, Graph: true}}}
			m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
			if err != nil {
				t.Fatal(err)
			}
			cpu := &peerResult{}
			if err := j.Loads[0].run(t.Context(), m, cpu); err != nil {
				t.Fatal(err)
			}
			m.Close()
			c := took()
			one := j.run(t, nil)
			o := took()
			exact := len(one.Hashes) > 0 && slices.Equal(cpu.Hashes[0], one.Hashes[0])
			for rank, r := range runPeers(t, 2, j) {
				if r.Err != one.Err || fmt.Sprint(r.Hashes) != fmt.Sprint(one.Hashes) {
					t.Errorf("process %d: %+v, not %+v", rank, r, one)
				}
			}
			two := took()
			t.Logf("exact %v, %s; cpu %v, one %v, two %v", exact, one.Err, c, o, two)
		})
	}
}
