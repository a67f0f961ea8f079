package hostmem

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestLeftOf checks that leftOf returns the part of a control group's limit that its processes do not use, and that
// cached files do not count as used.
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
		"files only":      {"1000", "300", "inactive_file 400", 1000}, // usage and cached files were read at different times
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
			t.Errorf("%s: %d bytes left, want %d", name, got, c.want)
		}
	}
	if got := Available(); got <= 0 {
		t.Errorf("%d bytes are available on this host", got)
	}
}

// TestGroupsOf checks that the groups that limit a process are its own group and all ancestors, for
// both versions of control groups.
func TestGroupsOf(t *testing.T) {
	for text, want := range map[string][2][]string{
		"":                               {{"/"}, {"/"}},
		"0::/\n":                         {{"/"}, {"/"}},
		"0::/system.slice/llm.service\n": {{"/system.slice/llm.service", "/system.slice", "/"}, {"/"}},
		"9:name=systemd:/a\n4:cpu,memory:/b/c\n0::/c d\n":     {{"/c d", "/"}, {"/b/c", "/b", "/"}},
		"0::/../../outside/of\n":                              {{"/outside/of", "/outside", "/"}, {"/"}},
		"4:memory:/docker/1\n3:memory_recursive:/no\n2:cpu:/": {{"/"}, {"/docker/1", "/docker", "/"}},
	} {
		second, first := groupsOf(text)
		if !slices.Equal(second, want[0]) || !slices.Equal(first, want[1]) {
			t.Errorf("%q: %q and %q, want %q", text, second, first, want)
		}
	}
}

// TestAvailable checks that the result is the smallest of the available memory of the host, of the control groups of
// both versions, and of the address space.
func TestAvailable(t *testing.T) {
	const page = 1 << 12
	files := map[string]string{
		"proc/meminfo":     "MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n",
		"proc/self/cgroup": "4:memory:/old\n0::/new\n",
		"proc/self/statm":  "1000 20 5\n",
	}
	for _, c := range []struct {
		name      string
		more      map[string]string
		addresses int64
		want      int64
	}{
		{"the host", nil, 0, 8000000 << 10},
		{"the second version", map[string]string{"sys/fs/cgroup/new/memory.max": "5000", "sys/fs/cgroup/new/memory.current": "1000"}, 0, 4000},
		{"the first version", map[string]string{"sys/fs/cgroup/memory/old/memory.limit_in_bytes": "9000",
			"sys/fs/cgroup/memory/old/memory.usage_in_bytes": "2000", "sys/fs/cgroup/memory/old/memory.stat": "active_file 500\n"}, 0, 7500},
		{"around it", map[string]string{"sys/fs/cgroup/memory/memory.limit_in_bytes": "700"}, 0, 700},
		{"no limit of the first version", map[string]string{"sys/fs/cgroup/memory/old/memory.limit_in_bytes": "9223372036854771712"}, 0,
			8000000 << 10},
		{"addresses", nil, 5000 * page, 4000 * page},
		{"all addresses are taken", nil, 500 * page, 1},
	} {
		root := t.TempDir()
		for _, list := range []map[string]string{files, c.more} {
			for name, text := range list {
				path := filepath.Join(root, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		want := c.want
		if c.addresses > 0 && want > 1 {
			want = c.addresses - 1000*int64(os.Getpagesize())
		}
		if got := available(root, c.addresses); got != want {
			t.Errorf("%s: %d bytes, want %d", c.name, got, want)
		}
	}
}
