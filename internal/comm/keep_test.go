package comm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hocket.example/hocket/internal/files"
)

// oneEntry returns a table with an entry for the given number of members.
func oneEntry(members int) *Table {
	return &Table{Version: TableVersion, Identity: "abacus", Ranks: 64, Entries: []Entry{{Op: "all_gather", Elem: 2, Members: members, Brackets: []Bracket{row(0, "a")}}}}
}

// keepOne adds the entry to the table at path, as a tuning does.
func keepOne(ctx context.Context, path string, members int) (string, error) {
	t := oneEntry(members)
	return t.Keep(ctx, path, func(there *Table) {
		if there != nil {
			there.Put(t.Entries[0])
			t.Entries = there.Entries
		}
	})
}

func membersAt(t *testing.T, path string) (list []int) {
	t.Helper()
	kept, err := readKept(path, "abacus", 64)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range kept.Entries {
		list = append(list, e.Members)
	}
	slices.Sort(list)
	return list
}

func filesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		names = append(names, f.Name())
	}
	return names
}

// TestKeepAtOnce checks that concurrent calls of Keep lose no entry and leave no lock file.
func TestKeepAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "x.json")
	var all sync.WaitGroup
	var want []int
	for members := 2; members < 22; members++ {
		want = append(want, members)
		all.Go(func() {
			if moved, err := keepOne(context.Background(), path, members); moved != "" || err != nil {
				t.Errorf("%d members: %q, %v", members, moved, err)
			}
		})
	}
	all.Wait()
	if got := membersAt(t, path); !slices.Equal(got, want) {
		t.Errorf("kept are %v", got)
	}
	if got := filesIn(t, filepath.Dir(path)); !slices.Equal(got, []string{"x.json"}) {
		t.Errorf("files %q", got)
	}
}

// TestKeepAside checks that unusable files are renamed, each to a different name in the same folder.
func TestKeepAside(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.json")
	var was []string
	for text, want := range map[string]string{
		`{"version": 99, "identity": "abacus", "ranks": 64, "made": "", "entries": []}`:           "the table has version 99",
		`{"version": 1, "identity": "abacus", "ranks": 64, "made": "", "entries": [], "mine": 1}`: "unknown key",
		`{"version": 1, "identity": "abacus", "ranks": 64, "ma`:                                   "not a table of collectives",
		`{"version": 1, "identity": "slide rule", "ranks": 64, "made": "", "entries": []}`:        "the table was measured on slide rule",
		``: "not a table of collectives",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		was = append(was, text)
		to := fmt.Sprintf("%s.old.%d", path, len(was))
		if moved, err := keepOne(context.Background(), path, 2); err != nil || !strings.Contains(moved, want) || !strings.HasSuffix(moved, "that file is now "+to) {
			t.Errorf("%s: %q, %v", text, moved, err)
		}
		if got := membersAt(t, path); !slices.Equal(got, []int{2}) {
			t.Errorf("%s: kept are %v", text, got)
		}
		for i, text := range was {
			if data, err := os.ReadFile(fmt.Sprintf("%s.old.%d", path, i+1)); err != nil || string(data) != text {
				t.Errorf("renamed file %d contains %q, %v; want %q", i+1, data, err, text)
			}
		}
	}
	t.Setenv(files.CacheVariable, filepath.Join(dir, "none"))
	if kept := Kept(); len(kept) != 0 {
		t.Errorf("kept are %+v", kept)
	}
}

// TestLock checks that a caller that cannot get the lock in time gets an error with a way out, that a canceled context
// ends the wait, and that a released lock can be acquired again.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	release, err := lock(context.Background(), path, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock(context.Background(), path, 30*time.Millisecond); err == nil || !strings.Contains(err.Error(),
		"x.lock is held by another process and was not released for 30ms: end that hocket process, or remove the file") {
		t.Errorf("held: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if _, err := lock(ctx, path, time.Minute); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("out of patience: %v", err)
	}
	release()
	if release, err = lock(context.Background(), path, 0); err != nil {
		t.Fatalf("released: %v", err)
	}
	release()
	if got := filesIn(t, filepath.Dir(path)); len(got) > 0 {
		t.Errorf("files %q", got)
	}
	if _, err := lock(context.Background(), filepath.Join(path, "none"), time.Minute); err == nil || !strings.Contains(err.Error(), "lock "+path) {
		t.Errorf("Keep without a folder: %v", err)
	}
}

// TestLockByFile checks the lock that is used on systems without file locks.
func TestLockByFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	release, err := tryMake(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tryMake(path); !errors.As(err, new(heldError)) {
		t.Errorf("held: %v", err)
	}
	release()
	if release, err = tryMake(path); err != nil {
		t.Fatalf("released: %v", err)
	}
	release()
}
