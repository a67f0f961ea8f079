package hostmem

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestLeftOf: a control group's limit leaves what its processes do not use, files that are only
// cached not counted.
func TestLeftOf(t *testing.T) {
	for name, c := range map[string]struct {
		max, current, stat string
		want               int64
	}{
		"no group": {"", "", "", 0},
		"no limit": {"max", "500", "anon 500", 0},
		"used":     {"1000", "400", "anon 400\nfile 0\ninactive_file 0\nactive_file 0\n", 600},
		"files cached": {"1000", "950", "anon 150\nfile 800\nactive_anon 100\ninactive_file 500\nactive_file 250\n",
			800},
		"no statistics":   {"1000", "400", "", 600},
		"nothing is left": {"1000", "1000", "anon 1000", 1},
		"files only":      {"1000", "300", "inactive_file 400", 1000}, // read at another time
	} {
		dir := t.TempDir()
		for file, text := range map[string]string{"memory.max": c.max, "memory.current": c.current,
			"memory.stat": c.stat} {
			if text == "" {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := leftOf(dir); got != c.want {
			t.Errorf("%s: %d bytes are left, want %d", name, got, c.want)
		}
	}
	if got := Available(); got <= 0 {
		t.Errorf("%d bytes are available here", got)
	}
}

// TestGroupsOf: the groups that bound a process are its own and all around it.
func TestGroupsOf(t *testing.T) {
	for text, want := range map[string][]string{
		"":                               {"/"},
		"0::/\n":                         {"/"},
		"0::/system.slice/llm.service\n": {"/system.slice/llm.service", "/system.slice", "/"},
		"9:name=systemd:/a\n4:memory:/b\n0::/c d\n": {"/c d", "/"},
		"0::/../../outside/of/what/is/mounted/here\n": {"/outside/of/what/is/mounted/here",
			"/outside/of/what/is/mounted", "/outside/of/what/is", "/outside/of/what", "/outside/of", "/outside", "/"},
		"4:memory:/the/first/version/is/not/looked/at/all\n": {"/"},
	} {
		if got := groupsOf(text); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
