package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/proctree"
)

// hocketCommand returns a command that runs this test binary as hocket, in a folder that holds these files.
func hocketCommand(t *testing.T, files map[string]string, args ...string) *exec.Cmd {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name := range testCommands {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.Command(filepath.Join(dir, "hocket"), args...)
	c.Dir = dir
	c.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "HOCKET_RUN_DIR="+dir,
		"HOCKET_LIBCUDA=/none/libcuda.so", "HOCKET_CACHE="+dir)
	return c
}

// TestLaunchToken: launch hands the token to its processes in HOCKET_TOKEN, and no part of it in anything else.
func TestLaunchToken(t *testing.T) {
	const show = "#!/bin/sh\n[ $HOCKET_RANK = 0 ] && env && tr '\\0' ' ' </proc/$PPID/cmdline\nexit 0\n"
	c := hocketCommand(t, map[string]string{"show.sh": show}, "launch", "-n", "2", "--nodes", "2", "--", "./show.sh")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, token, found := strings.Cut("\n"+string(out), "\nHOCKET_TOKEN=")
	token, _, _ = strings.Cut(token, "\n")
	if !found || len(token) < 16 {
		t.Fatalf("no token in:\n%s", out)
	}
	rest := strings.Replace(string(out), "HOCKET_TOKEN="+token, "", 1)
	for i := range len(token) - 5 {
		if strings.Contains(rest, token[i:i+6]) {
			t.Errorf("%q, a part of the token, is in:\n%s", token[i:i+6], rest)
		}
	}
}

// launchFaultVariable is "RANK FAULT PHASE": what happens to a rank of a launch, and where in its life.
const launchFaultVariable = "HOCKET_TEST_LAUNCH_FAULT"

func init() { testCommands["rank"] = rank }

// rankPhases are those of a rank's life; at the last one it has left the world.
var rankPhases = []string{"start", "joined", "loaded", "ran", "left"}

const rankProgram = `mesh d[3]
func f(%x: f32[48/d, 4], %w: f32[4, 4]) -> f32[48, 4] {
  %y = linear %x, %w
  return %y
}`

// rank is a process of a launch: it joins, loads, runs and leaves.
func rank() {
	err := liveAsRank(context.Background())
	var peer *hocket.PeerError
	switch {
	case errors.As(err, &peer):
		fmt.Println(err)
		os.Exit(exitMachine)
	case err != nil:
		fmt.Println("other error:", err)
		os.Exit(exitHocket)
	}
}

func liveAsRank(ctx context.Context) error {
	suffer("start")
	w, err := hocket.Join(ctx, hocket.JoinOptions{})
	if err != nil {
		return err
	}
	suffer("joined")
	m, err := hocket.Open(ctx, hocket.MachineOptions{World: w})
	if err != nil {
		return err
	}
	p, err := hocket.Parse("rank.hkt", rankProgram)
	if err != nil {
		return err
	}
	model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{})
	if err == nil {
		err = model.Prepare(ctx, nil)
	}
	if err != nil {
		return err
	}
	suffer("loaded")
	in, err := model.RandomInputs("ints:1")
	if err == nil {
		_, err = model.RunBatch(ctx, slices.Repeat([]hocket.Args{{In: in}}, 20))
	}
	if err != nil {
		return err
	}
	suffer("ran")
	if err := errors.Join(m.Close(), w.Leave()); err != nil {
		return err
	}
	suffer("left")
	return nil
}

// faultFile is written when a fault begins.
const faultFile = "fault"

// suffer does to this rank what a fault does, at its phase.
func suffer(phase string) {
	var rank, fault, at string
	_, _ = fmt.Sscan(os.Getenv(launchFaultVariable), &rank, &fault, &at)
	if rank != os.Getenv("HOCKET_RANK") || at != phase {
		return
	}
	check := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	check(os.WriteFile(faultFile, nil, 0o600))
	pid := os.Getpid()
	switch fault {
	case "exit":
		os.Exit(7)
	case "kill":
		check(syscall.Kill(pid, syscall.SIGKILL))
		select {}
	case "stop":
		check(syscall.Kill(pid, syscall.SIGSTOP))
		time.Sleep(100 * time.Millisecond) // another thread may take the signal
	case "pause": // it is stopped for less than the bound
		check(exec.Command("sh", "-c", fmt.Sprintf("sleep 0.3; kill -CONT %d", pid)).Start())
		check(syscall.Kill(pid, syscall.SIGSTOP))
		time.Sleep(100 * time.Millisecond)
	case "work": // for longer than the bound, with a child that is stopped
		c := exec.Command("sh", "-c", "kill -STOP $$")
		check(c.Start())
		for began := time.Now(); time.Since(began) < 3*launchStall; {
			time.Sleep(time.Millisecond)
		}
		check(c.Process.Kill())
	default: // the test does something, and waits for the end
		time.Sleep(time.Hour)
	}
}

// wrappers are scripts that start a rank as their child.
var wrappers = map[string]string{
	"none":       "exec rank\n",
	"child":      "rank\nexit $?\n",
	"background": "rank &\nwait $!\nexit $?\n",
	"session":    "setsid rank\nexit $?\n",
	"pipe":       "{ rank; echo $? >code.$HOCKET_RANK; } | cat\nexit $(cat code.$HOCKET_RANK)\n",
	"stubborn":   "trap '' TERM INT HUP\nsleep 600 &\nrank\nexit $?\n",
	"leaves":     "setsid sleep 600 &\nsleep 600 >/dev/null &\nrank\nexit $?\n",
}

const (
	launchStall = 2 * time.Second
	launchJoin  = 10 * time.Second
)

// launchCase is a fault in one rank of three.
type launchCase struct {
	wrapper, fault, phase string
	rank, nodes           int
	after                 time.Duration // the start of launch, of what happens early
}

func (c launchCase) String() string {
	return fmt.Sprintf("%s of rank %d at %s, wrapper %s, %d nodes", c.fault, c.rank, c.phase, c.wrapper, c.nodes)
}

// launchFaults are the faults, and the exit codes that launch ends with.
var launchFaults = map[string][]int{
	"none": {0}, "pause": {0}, "work": {0},
	"exit": {3, 7}, "kill": {3, 137}, "stop": {3},
	"INT to launch": {130}, "TERM to launch": {130}, "HUP to launch": {130}, "KILL to launch": {-1},
	"KILL to launch's second process": {3}, "KILL to the wrapper": {3},
}

// launchEnds is the time that launch gives processes to end by themselves after a failure, and after a signal.
const launchEnds = 2*time.Second + 2*time.Second

// within is how long after the fault everything has ended, at most. Tests allow ten times as much.
func (c launchCase) within() time.Duration {
	switch {
	case c.fault == "none", c.fault == "pause":
		return 5 * time.Second
	case c.fault == "work":
		return 3*launchStall + 5*time.Second
	case c.phase == "start" && (c.fault == "stop" || strings.Contains(c.fault, " ")):
		return launchJoin + launchEnds + 5*time.Second
	}
	return launchStall + launchEnds + 5*time.Second
}

// TestLaunchFaults: whatever happens to a launch or to one of its ranks, started by a wrapper script or not, launch
// ends with the right exit code, and no process is left. A long run has 1,000 rounds.
func TestLaunchFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs many processes")
	}
	rng := rand.New(rand.NewPCG(longtest.Drawn(t), 0))
	var cases []launchCase
	for wrapper := range wrappers {
		for fault := range launchFaults {
			for _, phase := range rankPhases {
				switch {
				case fault == "none" && phase != "left", fault == "work" && phase != "left":
					continue
				case fault == "KILL to the wrapper" && wrapper == "none":
					continue // it is the rank
				case fault == "HUP to launch" && signal.Ignored(syscall.SIGHUP):
					continue // under nohup launch ignores it, too
				}
				cases = append(cases, launchCase{wrapper: wrapper, fault: fault, phase: phase})
			}
			if strings.HasSuffix(fault, "to launch") && (fault != "HUP to launch" || !signal.Ignored(syscall.SIGHUP)) {
				cases = append(cases, launchCase{wrapper: wrapper, fault: fault, phase: "early"})
			}
		}
	}
	slices.SortFunc(cases, func(a, b launchCase) int { return strings.Compare(a.String(), b.String()) })
	rng.Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
	var worst sync.Map // by fault
	var mu sync.Mutex
	free := make(chan struct{}, max(4, runtime.NumCPU()/2)) // most of them wait most of the time
	var running sync.WaitGroup
	rounds := longtest.Of(24, 1000)
	if testing.Short() {
		rounds = 8
	}
	for i := range rounds {
		c := cases[i%len(cases)]
		c.rank, c.nodes, c.after = rng.IntN(3), 1+rng.IntN(2), time.Duration(rng.IntN(200))*time.Millisecond
		free <- struct{}{}
		running.Go(func() {
			defer func() { <-free }()
			var took time.Duration
			t.Run(c.String(), func(t *testing.T) {
				var err error
				if took, err = c.try(t); err != nil {
					t.Error(err)
				}
			})
			if took == 0 { // -test.run has left it out
				return
			}
			mu.Lock()
			defer mu.Unlock()
			key := c.fault
			if c.phase == "start" || c.phase == "left" || c.phase == "early" {
				key += ", " + c.phase
			}
			if most, _ := worst.LoadOrStore(key, took); took > most.(time.Duration) {
				worst.Store(key, took)
			}
		})
	}
	running.Wait()
	worst.Range(func(fault, took any) bool {
		t.Logf("%v: nothing is left after at most %v", fault, took.(time.Duration).Round(time.Millisecond))
		return true
	})
}

// try runs a launch, and returns how long after the fault nothing of it was left.
func (c launchCase) try(t *testing.T) (took time.Duration, err error) {
	mark := fmt.Sprint("HOCKET_TEST_MARK=", rand.Uint64())
	l := hocketCommand(t, map[string]string{"wrapper.sh": "#!/bin/sh\n" + wrappers[c.wrapper]},
		"launch", "-n", "3", "--nodes", fmt.Sprint(c.nodes), "--", "./wrapper.sh")
	l.Env = append(l.Env, mark, fmt.Sprintf("%s=%d %s %s", launchFaultVariable, c.rank,
		strings.ReplaceAll(c.fault, " ", "_"), c.phase), fmt.Sprint("HOCKET_STALL_TIMEOUT=", launchStall),
		fmt.Sprint("HOCKET_JOIN_TIMEOUT=", launchJoin))
	if c.fault == "none" {
		l.Env = append(l.Env, launchFaultVariable+"=")
	}
	out, err := os.Create(filepath.Join(l.Dir, "out"))
	if err != nil {
		return 0, err
	}
	defer out.Close()
	l.Stdout, l.Stderr = out, out
	if err := l.Start(); err != nil {
		return 0, err
	}
	began, over := time.Now(), make(chan struct{})
	go func() {
		_ = l.Wait()
		close(over)
	}()
	said := func() string {
		text, _ := os.ReadFile(out.Name())
		return string(text)
	}
	defer func() { // nothing of a round that failed disturbs others
		for _, pid := range marked(mark) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		<-over
	}()
	switch {
	case c.phase == "early":
		time.Sleep(c.after)
	case c.fault != "none":
		for {
			if info, err := os.Stat(filepath.Join(l.Dir, faultFile)); err == nil {
				began = info.ModTime()
				break
			}
			if time.Since(began) > 10*launchJoin {
				return 0, fmt.Errorf("it does not come to %s:\n%s", c.phase, said())
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	if err := c.attack(l); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return 0, fmt.Errorf("%w:\n%s", err, said())
	}
	late := time.After(10 * c.within())
	select {
	case <-over:
	case <-late:
		return 0, fmt.Errorf("launch does not end:\n%s", said())
	}
	if c.fault == "KILL to launch" { // its second process ends the others
		for len(marked(mark)) > 0 && time.Since(began) < 10*c.within() {
			time.Sleep(5 * time.Millisecond)
		}
	}
	took = time.Since(began)
	for _, pid := range marked(mark) {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		err = fmt.Errorf("process %d (%q) is left:\n%s", pid, name, said())
	}
	code, text := l.ProcessState.ExitCode(), said()
	if c.phase == "early" && (code == 0 || code == -1) {
		return took, err // launch had ended, or had not begun to wait for signals
	}
	switch {
	case err != nil:
	case !slices.Contains(launchFaults[c.fault], code):
		err = fmt.Errorf("exit code %d, want one of %v:\n%s", code, launchFaults[c.fault], text)
	case c.fault == "stop" && c.phase == "left" && !strings.Contains(text,
		fmt.Sprintf("error: process %d of 3 was killed, because it was stopped for 2s after others had exited", c.rank)):
		err = fmt.Errorf("it does not say which rank was stopped:\n%s", text)
	case strings.Contains(text, "other error"):
		err = errors.New(text)
	}
	return took, err
}

// attack does what does not happen inside a rank.
func (c launchCase) attack(l *exec.Cmd) error {
	words := strings.SplitN(c.fault, " to ", 2)
	if len(words) == 1 {
		return nil
	}
	s := map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP,
		"KILL": syscall.SIGKILL}[words[0]]
	if words[1] == "launch" {
		return l.Process.Signal(s) // of one that has ended the number may be another's
	}
	now := proctree.Read()
	second := now[l.Process.Pid]
	if len(second) != 1 {
		return fmt.Errorf("launch has %d children", len(second))
	}
	if words[1] != "the wrapper" {
		return syscall.Kill(second[0].ID, s)
	}
	want := fmt.Sprint("HOCKET_RANK=", c.rank)
	for _, p := range now[second[0].ID] {
		if slices.Contains(environ(p.ID), want) && !strings.Contains(commandLine(p.ID), "sleep") {
			return syscall.Kill(p.ID, s)
		}
	}
	return errors.New("there is no wrapper")
}

func environ(pid int) []string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return strings.Split(string(text), "\x00")
}

func commandLine(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return string(bytes.ReplaceAll(text, []byte{0}, []byte{' '}))
}

// marked returns the processes that have a variable.
func marked(mark string) (pids []int) {
	for _, list := range proctree.Read() {
		for _, p := range list {
			if slices.Contains(environ(p.ID), mark) {
				pids = append(pids, p.ID)
			}
		}
	}
	return pids
}

// testTerminal is a pseudo-terminal. It keeps what has been written to it.
type testTerminal struct {
	*os.File
	shown bytes.Buffer
	mu    sync.Mutex
}

// newTerminal starts a shell with job control at a new terminal.
func newTerminal(t *testing.T, shell *exec.Cmd) *testTerminal {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	control, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	must(unix.IoctlSetPointerInt(int(control.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(control.Fd()), unix.TIOCGPTN)
	must(err)
	end, err := os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	must(err)
	shell.Stdin, shell.Stdout, shell.Stderr = end, end, end
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must(shell.Start())
	end.Close()
	term := &testTerminal{File: control}
	var reading sync.WaitGroup
	reading.Go(func() {
		b := make([]byte, 1<<12)
		for {
			n, err := control.Read(b)
			term.mu.Lock()
			term.shown.Write(b[:n])
			term.mu.Unlock()
			if err != nil { // the last process at the terminal has ended
				return
			}
		}
	})
	t.Cleanup(func() {
		_ = shell.Process.Kill()
		_ = shell.Wait()
		reading.Wait()
		control.Close()
	})
	return term
}

func (term *testTerminal) text() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return term.shown.String()
}

// until waits until what is looked for is so.
func (term *testTerminal) until(t *testing.T, what string, so func() bool) {
	t.Helper()
	for began := time.Now(); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatalf("not seen: %s\n%s", what, term.text())
		}
	}
}

// TestLaunchTerminal: at a terminal rank 0 reads what is typed, Ctrl-Z stops a launch with all its processes, fg has
// them go on, and Ctrl-C ends them.
func TestLaunchTerminal(t *testing.T) {
	c := hocketCommand(t, map[string]string{"ask.sh": `#!/bin/sh
[ $HOCKET_RANK = 0 ] && read line && echo rank 0 reads $line
sh -c 'sleep 600; exit 0'
exit 0
`})
	mark := fmt.Sprint("HOCKET_TEST_MARK=", rand.Uint64())
	shell := exec.Command("sh", "-i")
	shell.Dir, shell.Env = c.Dir, append(c.Env, "PS1=", "ENV=")
	term := newTerminal(t, shell)
	states := func(want int, of string) func() bool {
		return func() bool {
			n := 0
			for _, pid := range marked(mark) {
				p, ok := proctree.Find(pid)
				if ok && !strings.ContainsRune(of, rune(p.State)) {
					return false
				}
				n++
			}
			return n >= want
		}
	}
	_, err := fmt.Fprintf(term, "env %s hocket launch -n 2 -- ./ask.sh\n", mark)
	if err != nil {
		t.Fatal(err)
	}
	const all = 8 // two of launch, and of each rank the script, its shell and sleep
	term.until(t, "both ranks", func() bool { return len(marked(mark)) >= all-2 })
	_, _ = term.WriteString("some words\n")
	term.until(t, "what was typed", func() bool { return strings.Contains(term.text(), "rank 0 reads some words") })
	term.until(t, "all processes", states(all, "SRD"))
	_, _ = term.WriteString("\x1a")
	term.until(t, "that all are stopped", states(all, "T"))
	_, _ = term.WriteString("fg\n")
	term.until(t, "that all go on", states(all, "SRD"))
	_, _ = term.WriteString("\x03")
	term.until(t, "that all have ended", func() bool { return len(marked(mark)) == 0 })
	_, _ = term.WriteString("echo it ended with $?\n")
	term.until(t, "the exit code", func() bool { return strings.Contains(term.text(), "it ended with 130") })
}

// TestLaunchReadsRows: processes that read their rows of an archive's weights alone give the logits of one process, and
// agree about which weights they have.
func TestLaunchReadsRows(t *testing.T) {
	dir := filepath.Join(exportedModels(t), "llama")
	model, plan := filepath.Join(dir, "static.pt2"), filepath.Join(dir, "tp_plan.json")
	alone, together := t.TempDir(), t.TempDir()
	run := func(model, saved string) []string {
		return []string{"run", model, "--plan", plan, "-n", "2", "--in",
			"input_ids=" + filepath.Join(dir, "expected.safetensors") + "#input_ids", "--save", saved}
	}
	if out, errs, code := hocketHere(run(model, alone)...); code != 0 {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	c := hocketCommand(t, nil, append([]string{"launch", "-n", "2", "--"}, run(model, together)...)...)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	read := func(dir string) []byte {
		data, err := os.ReadFile(filepath.Join(dir, "outputs.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	if !bytes.Equal(read(alone), read(together)) {
		t.Error("two processes give other logits than one")
	}
	other := filepath.Join(exportedModels(t), "llama_bf16", "static.pt2")
	script := fmt.Sprintf("#!/bin/sh\nm=%s; [ $HOCKET_RANK = 1 ] && m=%s\nexec hocket run $m --plan %s -n 2\n", model,
		other,
		plan)
	c = hocketCommand(t, map[string]string{"differ.sh": script}, "launch", "-n", "2", "--", "./differ.sh")
	if out, err := c.CombinedOutput(); err == nil || !strings.Contains(string(out), "disagree") {
		t.Errorf("processes run different models: %v\n%s", err, out)
	}
}

func init() { testCommands["deaf"] = deaf }

// deaf is a process of a launch whose program goes on when its world has ended; rank 1 is stopped.
func deaf() {
	w, err := hocket.Join(context.Background(), hocket.JoinOptions{})
	if err != nil {
		fmt.Println(err)
		os.Exit(exitMachine)
	}
	if w.Rank() == 1 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	}
	select {}
}

// TestLaunchReported: a stopped process ends the launch when the others have reported it, also if they do not exit.
func TestLaunchReported(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for time-outs")
	}
	c := hocketCommand(t, nil, "launch", "-n", "3", "--", "deaf")
	c.Env = append(c.Env, "HOCKET_STALL_TIMEOUT=1s")
	out, _ := c.CombinedOutput()
	const want = "error: the failure began in process 1 of 3: stalled: no progress and no reaction for "
	if code := c.ProcessState.ExitCode(); code != exitMachine || !strings.Contains(string(out), want) {
		t.Errorf("exit code %d, want %d and %q:\n%s", code, exitMachine, want, out)
	}
}

// TestLaunchVariables: processes have what torchrun sets: torch.distributed and hocket agree on who they are, also
// where they are of several nodes. A port that the user has named stays.
func TestLaunchVariables(t *testing.T) {
	const names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE"
	const show = "#!/bin/sh\nfor v in " + names + " MASTER_ADDR MASTER_PORT; do eval echo $v=\\$$v; done\n"
	for _, port := range []string{"", "12345"} {
		c := hocketCommand(t, map[string]string{"show.sh": show}, "launch", "-n", "3", "--nodes", "2", "--", "show.sh")
		c.Env = append(c.Env, "MASTER_ADDR=", "MASTER_PORT="+port)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		ports := map[string]bool{}
		got := map[string][]string{} // values by variable, of the three ranks in their order
		for rank := range 3 {
			prefix := ""
			if rank > 0 {
				prefix = fmt.Sprintf("[%d] ", rank)
			}
			for line := range strings.Lines(string(out)) {
				words, own := strings.CutPrefix(strings.TrimSpace(line), prefix)
				name, value, found := strings.Cut(words, "=")
				if !own || !found || strings.Contains(name, " ") {
					continue
				}
				if name == "MASTER_PORT" {
					ports[value] = true
				}
				got[name] = append(got[name], value)
			}
		}
		want := map[string]string{"RANK": "0 1 2", "WORLD_SIZE": "3 3 3", "LOCAL_RANK": "0 0 1",
			"LOCAL_WORLD_SIZE": "1 2 2", "GROUP_RANK": "0 1 1", "GROUP_WORLD_SIZE": "2 2 2"}
		if port == "" {
			want["MASTER_ADDR"] = "127.0.0.1 127.0.0.1 127.0.0.1"
		}
		for name, values := range want {
			if have := strings.Join(got[name], " "); have != values {
				t.Errorf("%s is %s, want %s", name, have, values)
			}
		}
		if len(ports) != 1 || ports[""] || port != "" && !ports[port] {
			t.Errorf("MASTER_PORT is %v, given %q", ports, port)
		}
	}
}

// TestLaunchLines checks that lines of other processes do not appear within a line that process 0 writes in parts, if
// both outputs of launch are one pipe.
func TestLaunchLines(t *testing.T) {
	const parts = `#!/bin/sh
if [ $HOCKET_RANK = 0 ]; then
	printf begun
	touch begun
	while [ ! -e written ]; do sleep 0.01; done
	sleep 0.1
	echo ", and ended"
else
	while [ ! -e begun ]; do sleep 0.01; done
	sleep 0.1
	echo a line
	touch written
fi
`
	c := hocketCommand(t, map[string]string{"parts.sh": parts}, "launch", "-n", "2", "--", "./parts.sh")
	out, err := c.CombinedOutput()
	if err != nil || string(out) != "[1] a line\nbegun, and ended\n" {
		t.Errorf("the output is %q (%v), want the line of process 1, and then that of process 0", out, err)
	}
}
