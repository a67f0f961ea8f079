package world

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestFolder checks that a folder that cannot be used safely, such as one of another user, is an error.
func TestFolder(t *testing.T) {
	ctx := context.Background()
	path := func(t *testing.T, base string) string {
		d, err := openFolder(ctx, base, "run")
		if err != nil {
			t.Fatal(err)
		}
		defer d.close()
		return d.path
	}
	refused := func(t *testing.T, base, why string) {
		t.Helper()
		d, err := openFolder(ctx, base, "run")
		if err == nil {
			d.close()
		}
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("got %v, want an error with %q", err, why)
		}
	}
	t.Run("others can write", func(t *testing.T) {
		base := t.TempDir()
		p := path(t, base)
		if err := errors.Join(os.Mkdir(p, 0o700), os.Chmod(p, 0o770)); err != nil {
			t.Fatal(err)
		}
		refused(t, base, "HOCKET_RUN_DIR")
	})
	t.Run("another user", func(t *testing.T) {
		base := t.TempDir()
		p := path(t, base)
		if err := os.Mkdir(p, 0o700); err != nil {
			t.Fatal(err)
		}
		if os.Chown(p, 12345, -1) != nil {
			t.Skip("only root can change the owner of files")
		}
		refused(t, base, "belongs to user 12345")
	})
	t.Run("link", func(t *testing.T) {
		base, target := t.TempDir(), t.TempDir()
		if err := errors.Join(os.Chmod(target, 0o700), os.Symlink(target, path(t, base))); err != nil {
			t.Fatal(err)
		}
		refused(t, base, "")
		if _, err := os.Stat(target); err != nil {
			t.Error(err)
		}
	})
	t.Run("file", func(t *testing.T) {
		base := t.TempDir()
		if err := os.WriteFile(path(t, base), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		refused(t, base, "not a directory")
	})
	t.Run("no base", func(t *testing.T) {
		base := filepath.Join(t.TempDir(), "absent")
		refused(t, base, "no such file or directory: processes of this host meet in "+base+", which HOCKET_RUN_DIR, or the option dir, names")
		t.Setenv("XDG_RUNTIME_DIR", base)
		refused(t, "", "which XDG_RUNTIME_DIR names: set HOCKET_RUN_DIR to a folder that exists")
		t.Setenv("XDG_RUNTIME_DIR", "")
		t.Setenv("TMPDIR", base)
		refused(t, "", "which TMPDIR names: set HOCKET_RUN_DIR")
	})
	t.Run("long and odd path", func(t *testing.T) {
		o := options(t, 2)
		o.Dir = filepath.Join(o.Dir, strings.Repeat("long ", 40), "[*?\\")
		if err := os.MkdirAll(o.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
		inOne(t, o, func(w *World) error { return nil })
	})
}

// TestUmask checks that a folder can be used with any umask, and that it is removed.
func TestUmask(t *testing.T) {
	base := t.TempDir()
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread with the changed umask ends
		failed <- errors.Join(unix.Unshare(unix.CLONE_FS), dropCapabilities())
		unix.Umask(0o777)
		d, err := openFolder(t.Context(), base, "run")
		if err == nil {
			d.close()
		}
		failed <- err
	}()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	if err := <-failed; err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(base); err != nil || len(left) > 0 {
		t.Errorf("%v is left: %v", left, err)
	}
}

// dropCapabilities removes the capabilities of the calling thread, so that file modes apply to it even if the user is
// root.
func dropCapabilities() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		return err
	}
	data[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
	return unix.Capset(&head, &data[0])
}

// TestStaleFolder checks that files left by a killed run are removed by the next run, and do not
// disturb a run of the same name.
func TestStaleFolder(t *testing.T) {
	for _, id := range []string{"another", "TestStaleFolder"} {
		t.Run(id, func(t *testing.T) {
			o := options(t, 2)
			o.ID = id
			f := start(t, Options{Size: 3, ID: id, Dir: o.Dir, JoinTimeout: limit, StallTimeout: limit}, "life",
				func(rank int) []string {
					if rank == 0 { // rank 0 stops, and the others wait for it
						return []string{faultVariable + "=stop bound"}
					}
					return nil
				})
			f.waitStopped(0, limit)
			waitFor(t, func() bool { s, _ := filepath.Glob(filepath.Join(o.Dir, "*", "2")); return len(s) == 1 })
			for _, signal := range []syscall.Signal{syscall.SIGSTOP,
				syscall.SIGKILL} { // stopped before they are killed, so that no process detects the death of another
				for _, c := range f.command {
					c.Process.Signal(signal)
				}
				for r := range f.command {
					if signal == syscall.SIGSTOP {
						f.waitStopped(r, limit)
					}
				}
			}
			for _, ended := range f.ended {
				<-ended
			}
			if left, _ := os.ReadDir(o.Dir); len(left) != 1 {
				t.Fatalf("the killed run left %v: nothing to test", left)
			}
			o.ID = "TestStaleFolder"
			inOne(t, o, func(w *World) error { return nil })
		})
	}
}

func waitFor(t *testing.T, there func() bool) {
	t.Helper()
	for range 1000 {
		if there() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("it does not come")
}

// TestSweep checks that runs that start and end at the same time do not remove each other's
// folders.
func TestSweep(t *testing.T) {
	base := t.TempDir()
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for j := range 10 {
				o := Options{Size: 2, ID: string(rune('a' + i)), Dir: base, JoinTimeout: limit, StallTimeout: limit}
				var both sync.WaitGroup
				for r := range 2 {
					both.Go(func() {
						o := o
						o.Rank = r
						w, err := Join(context.Background(), o)
						if err != nil {
							t.Errorf("run %d.%d, rank %d: %v", i, j, r, err)
							return
						}
						w.Leave()
					})
				}
				both.Wait()
			}
		})
	}
	all.Wait()
	if left, err := os.ReadDir(base); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestRemovedFolder removes the folder of a run while a process waits in it. A process that starts later cannot meet
// the first one, and both must report this.
func TestRemovedFolder(t *testing.T) {
	t.Parallel()
	o := options(t, 2)
	o.JoinTimeout = 2 * time.Second
	socket, joined, leave := joining(t, o)
	defer func() { leave() }()
	if err := os.RemoveAll(filepath.Dir(socket)); err != nil {
		t.Fatal(err)
	}
	second := o
	second.Rank = 1
	_, err := Join(context.Background(), second)
	waits := fmt.Sprintf("; rank %%d waits for run %q in %s", o.ID, o.Dir)
	if want := "rank 0: absent: did not join within 2s" + fmt.Sprintf(waits, 1); err == nil || err.Error() != want {
		t.Errorf("rank 1: %v, want %q", err, want)
	}
	err = <-joined
	if want := "rank 1: absent: did not join within 2s" + fmt.Sprintf(waits, 0); err == nil || err.Error() != want {
		t.Errorf("rank 0: %v, want %q", err, want)
	}
}

// TestSameRank starts two jobs with the same ID, so that a process claims a rank that another process has. Both
// processes must get an error, and so must all processes that have joined the run, because they may be of different
// jobs.
func TestSameRank(t *testing.T) {
	for rank := range 2 {
		for _, before := range []string{"all have joined", "a process is absent"} {
			t.Run(fmt.Sprintf("rank %d after %s", rank, before), func(t *testing.T) {
				t.Parallel()
				o := options(t, 3)
				join := func(rank int) (*World, error) {
					o := o
					o.Rank = rank
					return Join(context.Background(), o)
				}
				first := []int{0, 1, 2}
				if before == "a process is absent" {
					first = first[:2]
				}
				ends := make(chan error, 3)
				var linked sync.WaitGroup
				for _, r := range first {
					linked.Add(1)
					go func() {
						w, err := join(r)
						linked.Done()
						if err == nil {
							<-w.Done()
							err = w.Leave()
						}
						ends <- err
					}()
				}
				if len(first) == 3 {
					linked.Wait()
				}
				waitFor(t, func() bool { s, _ := filepath.Glob(filepath.Join(o.Dir, "*", "[01]")); return len(s) == 2 })
				if _, err := join(rank); err == nil ||
					!strings.Contains(err.Error(), fmt.Sprintf("has claimed rank %d of run %q already", rank, o.ID)) {
					t.Errorf("a second rank %d: %v", rank, err)
				}
				if len(first) == 2 {
					// The process with the other rank may have no link to the process whose rank was claimed twice, so
					// its rank is claimed twice, too.
					o.Rank = 1 - rank
					if _, err := Join(context.Background(), o); err == nil {
						t.Error("a second process joined with the other rank")
					}
				}
				for range first {
					err := <-ends
					var peer *PeerError
					if !errors.As(err, &peer) || !strings.Contains(err.Error(), "claims the same rank of run") {
						t.Errorf("a process of the run: %v, want an error about the rank that was claimed twice", err)
					}
				}
			})
		}
	}
}

// TestNextRun checks that a run with the ID of an earlier run can begin while processes of that run have not left, as
// long as its processes use free ranks, and that it waits for the other ranks.
func TestNextRun(t *testing.T) {
	o := options(t, 2)
	join := func(rank int) *World {
		o := o
		o.Rank = rank
		w, err := Join(context.Background(), o)
		if err != nil {
			t.Error(err)
			return nil
		}
		return w
	}
	first, next := make([]*World, 2), make(chan *World, 1)
	var all sync.WaitGroup
	for r := range first {
		all.Go(func() { first[r] = join(r) })
	}
	all.Wait()
	if first[0] == nil || first[1] == nil {
		return
	}
	first[1].Leave()
	go func() { next <- join(1) }()
	waitFor(t, func() bool { s, _ := filepath.Glob(filepath.Join(o.Dir, "*", "1")); return len(s) == 1 })
	if err := first[0].Err(); err != nil {
		t.Errorf("the earlier run: %v", err)
	}
	first[0].Leave()
	w0, w1 := join(0), <-next
	for _, w := range []*World{w0, w1} {
		if w != nil {
			w.Leave()
		}
	}
}

// TestCancelledJoin ends a wait in Join by its context.
func TestCancelledJoin(t *testing.T) {
	o := options(t, 3)
	o.Rank = 1
	ctx, cancel := context.WithCancel(context.Background())
	joined := make(chan error, 1)
	go func() { _, err := Join(ctx, o); joined <- err }()
	waitFor(t, func() bool { s, _ := filepath.Glob(filepath.Join(o.Dir, "*", "1")); return len(s) == 1 })
	cancel()
	err := <-joined
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "waiting for ranks 0, 2 to join") {
		t.Errorf("got %v", err)
	}
	if left, err := os.ReadDir(o.Dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestNothingLeft checks that no goroutine, open file or folder remains, however a world ends.
func TestNothingLeft(t *testing.T) {
	count := func() (files int) {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	fate := func(i int) {
		o := options(t, 3)
		var all sync.WaitGroup
		for r := range 3 {
			all.Go(func() {
				o := o
				o.Rank = r
				w, err := Join(context.Background(), o)
				if err != nil {
					t.Error(err)
					return
				}
				c, err := w.NewCounters("nobody maps these", 4)
				if err == nil {
					defer c.Close()
					err = w.Same(context.Background(), "the end", "x")
				}
				if err != nil && i%2 == 0 {
					t.Error(err)
				}
				if i%2 == 1 && r == 1 {
					w.Abort(errors.New("an error"))
				}
				w.Leave()
				w.Leave() // must be harmless
			})
		}
		all.Wait()
		o.JoinTimeout = 20 * time.Millisecond
		if _, err := Join(context.Background(), o); err == nil {
			t.Error("a process joins a world that has ended")
		}
	}
	fate(0) // call it once before counting: Go's runtime keeps some files open
	files := count()
	for i := range 20 {
		fate(i)
	}
	waitFor(t, func() bool { return goroutinesHere() == 0 })
	if now := count(); now > files {
		t.Errorf("%d files are open, %d were before", now, files)
	}
}

// goroutinesHere counts the goroutines that run code of this package, except tests.
func goroutinesHere() (n int) {
	for stack := range strings.SplitSeq(stacks(), "\n\n") {
		if strings.Contains(stack, "internal/world.(*") {
			n++
		}
	}
	return n
}

// TestFolderOfOthers checks that a run removes only folders with the names and contents of those
// that hocket creates.
func TestFolderOfOthers(t *testing.T) {
	base := t.TempDir()
	user := fmt.Sprintf("hocket-%d-", os.Geteuid())
	for _, name := range []string{"mydata/file", "0123456789abcdef/file", "0123456789abcde0/0",
		"0123456789abcde1/sub/0",
		"0123456789ABCDEF/0"} {
		path := filepath.Join(base, user+name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list := func() (all []string) {
		err := filepath.WalkDir(base, func(path string, _ fs.DirEntry, err error) error {
			all = append(all, path)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	before := list()
	empty := filepath.Join(base, user+"00000000000000ff")
	if err := os.Mkdir(empty, 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := openFolder(context.Background(), base, "run")
	if err != nil {
		t.Fatal(err)
	}
	d.close()
	if after := list(); !slices.Equal(before, after) {
		t.Errorf("before: %q\nafter: %q", before, after)
	}
}
